"""Command-line options of a corpus, and of the token blocks that are built from it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from hf_tlm.errors import BlocksError
from hf_tlm.utils.options import check_ranges, option
from hf_tlm.utils.texts import SAMPLE_BY

if TYPE_CHECKING:
    from hf_tlm.corpora.corpus import Corpus


@dataclass
class CorpusArguments:
    """Settings of the general corpus."""

    corpus: str | None = option(
        None,
        "Files: a folder, a path or a glob, several separated by commas (parquet, jsonl, csv, txt or md with a text a line; "
        ".gz and .zst too); or a Hub dataset id (@revision if wanted). Needed but for retrieval from Elasticsearch.",
    )
    corpus_text_column: str = option("text", "Column of the texts.")
    corpus_id_column: str | None = option(None, "Column of unique ids. Default: file name and row number.")
    corpus_source_column: str = option("source", "Column that says where a text is from.")
    passage_words: int | None = option(
        None,
        "Cut documents into passages of at most so many words, at sentence ends. Default and 0: whole documents.",
    )
    corpus_sample_by: str = option(
        "line",
        "What of a .txt or .md file is a text: a line, a paragraph (blank lines lie between), or the whole file (document).",
        choices=SAMPLE_BY,
    )
    corpus_split: str = option("train", "Split of a Hub dataset.")
    corpus_config: str | None = option(None, "Configuration of a Hub dataset.")
    corpus_revision: str | None = option(None, "Branch, tag or commit of a Hub dataset.")
    skip_bad_files: bool = option(False, "Leave out whole files of the corpus that cannot be read, and name them.")

    def __post_init__(self):
        from hf_tlm.corpora.corpus import CorpusError

        check_ranges(self, CorpusError)

    def load(self, optional: bool = False) -> Corpus | None:
        """Open the corpus; return None if it is optional and not given.

        Raises:
            CorpusError: no corpus is given and it is not optional; or see `load_corpus`.
        """
        from hf_tlm.corpora.corpus import CorpusError
        from hf_tlm.corpora.loading import load_corpus

        if self.corpus is None:
            if optional:
                return None
            raise CorpusError("--corpus is missing: its files, or the id of a Hub dataset.")
        return load_corpus(
            self.corpus,
            text_column=self.corpus_text_column,
            id_column=self.corpus_id_column,
            source_column=self.corpus_source_column,
            max_words=self.passage_words,
            sample_by=self.corpus_sample_by,
            split=self.corpus_split,
            config_name=self.corpus_config,
            revision=self.corpus_revision,
            skip_bad_files=self.skip_bad_files,
        )


@dataclass
class PassageArguments(CorpusArguments):
    """Settings of the general corpus, cut by default into passages of the length that a model is trained on."""

    passage_words: int | None = option(
        100,
        "Cut documents into passages of at most so many words, at sentence ends: of what a model is trained on, which is "
        "some 100 for 128 tokens. 0: whole documents.",
    )


@dataclass
class BlockArguments:
    """Settings of how a corpus is packed into blocks of max_length tokens."""

    blocks: str = option(
        "contiguous",
        "contiguous: texts one after the other, cut every max_length tokens. sentences: whole sentences, as "
        "many as fit. Both keep texts apart by a [SEP].",
        choices=["contiguous", "sentences"],
    )
    validation_share: float = option(
        0.005, "Share of the corpus's documents kept for evaluation, chosen by their ids. 0: no evaluation."
    )
    max_validation_blocks: int = option(1000, "Blocks to evaluate on, at most.")
    vocab_texts: int = option(
        200_000, "A vocabulary that is trained is trained on at most so many passages, chosen by their ids."
    )
    shard_size: int = option(1 << 14, "Blocks are stored in files of so many; preparation continues after the last one.")
    streaming_blocks: bool = option(
        False,
        "Begin to train when the first blocks are stored, while a thread makes the next ones; a pass takes them "
        "file by file, shuffled within each. Contiguous blocks only; a vocabulary is trained on some of the first 10 x "
        "vocab_texts passages.",
    )
    shards_ahead: int = option(2, "streaming_blocks: files that are made ahead of training, at most.")

    def __post_init__(self):
        check_ranges(self, BlocksError)
