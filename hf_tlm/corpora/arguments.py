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
        "Files: a folder, path or glob, or several separated by commas (parquet, jsonl, csv, tsv, xlsx; txt or md with one "
        "text per line; also .gz and .zst); or a Hub dataset id, with @revision if wanted. Required, except for retrieval "
        "from Elasticsearch.",
    )
    corpus_text_column: str = option(
        "text", "Column of the texts; for files that differ, several with commas: body,text is body where a file has it."
    )
    corpus_id_column: str | None = option(None, "Column of unique ids. Default: file name and row number.")
    corpus_source_column: str = option("source", "Column with the source of a text.")
    passage_words: int | None = option(
        None,
        "Cut documents into passages of at most this many words, at sentence ends. Default, and 0: do not cut them.",
    )
    corpus_sample_by: str = option(
        "line",
        "Unit of a .txt or .md file that is one text: a line, a paragraph (separated by blank lines), or the entire file "
        "(document).",
        choices=SAMPLE_BY,
    )
    corpus_split: str = option("train", "Split of a Hub dataset.")
    corpus_config: str | None = option(None, "Configuration of a Hub dataset.")
    corpus_revision: str | None = option(None, "Branch, tag or commit of a Hub dataset.")
    skip_bad_files: bool = option(
        False, "Leave out files of the corpus that cannot be read completely, and warn with their names."
    )

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
            raise CorpusError("--corpus is missing: pass files, or the id of a Hub dataset.")
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
        "Cut documents into passages of at most this many words, at sentence ends: the length that a model is trained on, "
        "some 100 words for 128 tokens. 0: do not cut them.",
    )


@dataclass
class BlockArguments:
    """Settings of how a corpus is packed into blocks of max_length tokens."""

    blocks: str = option(
        "contiguous",
        "contiguous: texts are concatenated and cut every max_length tokens. sentences: as many complete sentences as fit. "
        "Both separate texts by a [SEP].",
        choices=["contiguous", "sentences"],
    )
    validation_share: float = option(
        0.005, "Share of the corpus's documents held out for evaluation, chosen by their ids. 0: no evaluation."
    )
    max_validation_blocks: int = option(1000, "Maximum number of blocks to evaluate on.")
    vocab_texts: int = option(
        200_000, "Maximum number of passages that a new vocabulary is trained on, chosen by their ids."
    )
    shard_size: int = option(
        1 << 14, "Number of blocks per stored file. An interrupted preparation continues after the last file."
    )
    streaming_blocks: bool = option(
        False,
        "Start training when the first blocks are stored, while a thread prepares the next ones. A pass reads them file by "
        "file, shuffled within each file. Only for contiguous blocks. A new vocabulary is trained on some of the first 10 x "
        "vocab_texts passages.",
    )
    shards_ahead: int = option(2, "streaming_blocks: maximum number of files prepared ahead of training.")

    def __post_init__(self):
        check_ranges(self, BlocksError)
