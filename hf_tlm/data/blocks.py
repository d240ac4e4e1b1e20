"""Packing of texts into blocks, the fixed-length sequences of pretraining, and their cache on disk in shards."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import repeat
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import xxhash
from datasets import Dataset, Features, List, Value, concatenate_datasets
from tqdm.auto import tqdm
from transformers import PreTrainedTokenizerBase

from hf_tlm.corpora import Corpus
from hf_tlm.data.masking import with_draws
from hf_tlm.data.tokenization import TokenizerError, backend_settings
from hf_tlm.data.word_pieces import find_encoder
from hf_tlm.errors import BlocksError
from hf_tlm.utils.arrow_files import cache_folder, find_rows, seal_rows
from hf_tlm.utils.files import atomic_directory, atomic_write
from hf_tlm.utils.json_files import checked_text, find_checked
from hf_tlm.utils.options import check_numbers
from hf_tlm.utils.texts import batch_by_size, sentences

CONTIGUOUS, SENTENCES = "contiguous", "sentences"
# Characters that are tokenised together. The limit bounds memory when documents are long.
_CHUNK_CHARACTERS = 1 << 20
logger = logging.getLogger(__name__)

SCHEMA = Features({"input_ids": List(Value("int32"))}).arrow_schema
BLOCKS_FILE, STATE_FILE, TOTALS_FILE = "blocks.arrow", "state.json", "totals.json"
SHARD_SIZE = 1 << 14
POLL_SECONDS = 0.05
# By mode. Increase one when equal settings would give other blocks.
_FORMAT_VERSIONS = {CONTIGUOUS: 1, SENTENCES: 2}


class BlockMaker:
    """A packer of texts into blocks `[CLS] ... [SEP]` of at most `max_length` tokens.

    The special tokens are the tokenizer's `cls_token` and `sep_token`. A text is tokenised as one string, so a sentence's
    tokens do not depend on the mode.

    Args:
        mode: `contiguous` concatenates the tokens of all texts, with a [SEP] between two texts, and cuts every
            `max_length` - 2 tokens; only the last block is shorter. `sentences` fills a block with complete sentences
            until the next one does not fit, with a [SEP] between texts that share a block; a sentence longer than a block
            is cut (FULL-SENTENCES of Liu et al. 2019, section 4.2).

    Attributes:
        blocks: finished blocks, int32 [<= max_length] each, for the caller to remove.
        open: tokens of the block that is being filled, at most `max_length` - 3.
        tokens: number of tokens of all texts so far, special tokens not counted.

    Raises:
        TokenizerError: the tokenizer is not a fast one, or does not put one token before a text and one after it.
        BlocksError: `mode` is unknown, or `max_length` leaves no room for tokens.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, max_length: int, mode: str = CONTIGUOUS):
        if mode not in (CONTIGUOUS, SENTENCES):
            raise BlocksError(f"blocks must be {CONTIGUOUS} or {SENTENCES}; received {mode!r}.")
        if max_length < 3:
            raise BlocksError(
                f"max_length must be at least 3: two special tokens and at least one more; received {max_length}."
            )
        name = tokenizer.name_or_path or "this one"
        if not tokenizer.is_fast:
            raise TokenizerError(f"Blocks need a fast tokenizer (a tokenizer.json); {name} is a slow one, in pure Python.")
        self.first, self.last = tokenizer.cls_token_id, tokenizer.sep_token_id
        if None in (self.first, self.last) or tokenizer("")["input_ids"] != [self.first, self.last]:
            raise TokenizerError(
                f"Blocks need a tokenizer that puts a cls_token before a text and a sep_token after it; {name} converts an "
                f"empty text to {tokenizer.convert_ids_to_tokens(tokenizer('')['input_ids'])}. Use an encoder's (BERT, "
                "RoBERTa, ...), or remove --tokenizer_name to train one."
            )
        self.tokenizer, self.mode, self.capacity = tokenizer, mode, max_length - 2
        self.encoder = find_encoder(tokenizer) if mode == CONTIGUOUS else None  # Sentences need the tokens' offsets.
        self.blocks: list[np.ndarray] = []
        self.open: list[int] = []
        self.tokens = 0

    def add(self, texts: Sequence[str]) -> Iterator[None]:
        """Append texts, and yield after each one, when `blocks`, `open` and `tokens` include exactly the texts so far."""
        for chunk in batch_by_size(texts, _CHUNK_CHARACTERS):
            for index, (ids, offsets) in enumerate(self._encode(chunk)):
                if ids and self.mode == CONTIGUOUS:
                    self.open += [self.last, *ids] if self.tokens else ids
                    self._cut_full_blocks()
                elif ids:
                    self._add_sentences(_split_sentences(chunk[index], ids, offsets))
                self.tokens += len(ids)
                yield

    def _encode(self, texts: list[str]) -> Iterator[tuple[list[int], list[tuple[int, int]]]]:
        """Yield the token ids of each text, without special tokens, and for sentences the offsets of the tokens."""
        if self.encoder is not None:
            yield from ((self.encoder.word_ids(text), []) for text in texts)
            return
        encoded = self.tokenizer(
            texts,
            add_special_tokens=False,
            return_attention_mask=False,
            return_token_type_ids=False,
            return_offsets_mapping=self.mode == SENTENCES,
            verbose=False,  # No warning: texts longer than the model's maximum are expected here.
        )
        yield from zip(encoded["input_ids"], encoded.get("offset_mapping") or repeat([]), strict=False)

    def finish(self) -> None:
        """Move the block that is being filled to `blocks`, if it has tokens."""
        if self.open:
            self.blocks.append(self._make_block(self.open))
            self.open = []

    def state(self) -> dict[str, Any]:
        """Return the state, as JSON values, from which `restore` continues."""
        return {"open": self.open, "tokens": self.tokens, "blocks": [block.tolist() for block in self.blocks]}

    def restore(self, state: dict[str, Any]) -> None:
        self.open, self.tokens = list(state["open"]), state["tokens"]
        self.blocks = [np.array(block, np.int32) for block in state["blocks"]]

    def _add_sentences(self, sentence_ids: list[list[int]]) -> None:
        for index, ids in enumerate(sentence_ids):
            separator = [self.last] if index == 0 and self.open else []
            if len(self.open) + len(separator) + len(ids) > self.capacity:
                self.finish()
                separator = []
            self.open += separator + ids
            self._cut_full_blocks()

    def _cut_full_blocks(self) -> None:
        end = len(self.open) // self.capacity * self.capacity
        self.blocks += [self._make_block(self.open[start : start + self.capacity]) for start in range(0, end, self.capacity)]
        del self.open[:end]

    def _make_block(self, ids: list[int]) -> np.ndarray:
        return np.array([self.first, *ids, self.last], np.int32)


def _split_sentences(text: str, ids: list[int], offsets: list[tuple[int, int]]) -> list[list[int]]:
    """Split the token ids of a text into sentences. A token belongs to the sentence in which its first letter is."""
    starts = [start for start, _ in sentences(text)][1:]
    # The space before a word belongs to the word's token, and some tokenizers count it in the offsets.
    first_letters = [end - len(text[start:end].lstrip()) for start, end in offsets]
    cuts = [0, *np.searchsorted(first_letters, starts).tolist(), len(ids)]
    return [ids[start:end] for start, end in zip(cuts, cuts[1:], strict=False) if end > start]


def is_held_out(corpus: Corpus, identifier: str, share: float) -> bool:
    """Return whether a passage is held out for validation.

    A hash of its document's id decides, so the answer depends neither on the run nor on the order or the other passages.
    """
    document = identifier.rpartition("#")[0] if corpus.cut or corpus.max_words is not None else identifier
    return xxhash.xxh3_64_intdigest(document.encode()) < share * 2**64


@dataclass
class BlockShards:
    """The blocks of a corpus (see `BlockMaker`), cached on disk in shards.

    The name of the cache folder is a hash of everything that the blocks depend on. `shard-<n>/` holds `shard_size` blocks
    (the last shard the remaining ones) as Arrow, column `input_ids`, with the state from which preparation continues after
    it. `totals.json` is written after the last shard. Shards are written atomically and never changed, so any number of
    runs and processes can read them while further ones are written.

    Args:
        max_length: tokens per block.
        mode: see `BlockMaker`.
        shard_size: blocks per shard.
        validation_share: share of the corpus's documents that are held out from training.
        cache_dir: default a folder of the `datasets` cache.

    Raises:
        TokenizerError: see `BlockMaker`.
        BlocksError: see `BlockMaker`; or `validation_share` or `shard_size` is out of range.
    """

    corpus: Corpus
    tokenizer: PreTrainedTokenizerBase
    max_length: int
    mode: str = CONTIGUOUS
    shard_size: int = SHARD_SIZE
    validation_share: float = 0.0
    cache_dir: str | Path | None = None

    def __post_init__(self):
        check_numbers(BlocksError, validation_share=self.validation_share, shard_size=self.shard_size)
        BlockMaker(self.tokenizer, self.max_length, self.mode)

    @cached_property
    def folder(self) -> Path:
        settings = [
            [_FORMAT_VERSIONS[self.mode], self.corpus.fingerprint, self.corpus.skip_bad_files, self.mode, self.max_length],
            [self.shard_size, self.validation_share, self.tokenizer.cls_token_id, self.tokenizer.sep_token_id],
            backend_settings(self.tokenizer),
        ]
        digest = xxhash.xxh3_64_hexdigest(json.dumps(settings, sort_keys=True).encode())
        return cache_folder(self.cache_dir) / f"blocks-{digest}"

    @property
    def totals(self) -> dict[str, Any] | None:
        """Totals of the corpus; None while it is being prepared.

        Keys: `shards`, `blocks`, `tokens` (special ones not counted), `last_block` (its tokens), `passages`, `held_out`
        (how many of the passages are held out), and `bad_files` (the files that were skipped).
        """
        totals = find_checked(self.folder / TOTALS_FILE)
        return totals if totals is None or {"shards", "blocks", "tokens"} <= totals.keys() else None

    def find(self, number: int) -> Dataset | None:
        """Return the blocks of shard `number`, memory-mapped; None if it is missing or damaged."""
        return _load_blocks(self.folder / f"shard-{number:05d}")

    def to_dataset(self) -> Dataset:
        """Return all training blocks, memory-mapped, after preparing the missing ones with a progress bar.

        Raises:
            BlocksError: the corpus has no passage, or does not fill a block.
            CorpusError: the corpus cannot be read.
            HfTlmError: the cache cannot be written.
        """
        shards = [self.find(number) for number in self.prepare(progress=True)]
        return concatenate_datasets(shards) if len(shards) > 1 else shards[0]

    def wait(self) -> None:
        """Wait until another process has prepared all blocks.

        This polls, because preparation may take longer than the timeout of a barrier.
        """
        while self.totals is None:
            time.sleep(POLL_SECONDS)

    def prepare(self, *, progress: bool = False, pause: Callable[[], object] | None = None) -> Iterator[int]:
        """Write the missing shards, in order.

        Yields the number of every shard, existing ones included, as soon as it can be read.

        Args:
            progress: whether to show a progress bar.
            pause: called before every batch of passages; an error that it raises ends the preparation.

        Raises:
            BlocksError, CorpusError, HfTlmError: see `to_dataset`.
        """
        shard_number, totals = 0, self.totals
        while self.find(shard_number) is not None:
            yield shard_number
            shard_number += 1
        if totals is not None and shard_number == totals["shards"]:
            return
        maker = BlockMaker(self.tokenizer, self.max_length, self.mode)
        cursor: dict[str, Any] = {"part": 0, "row": 0, "passages": 0, "held_out": 0, "bad_files": {}}
        if shard_number:
            saved_state = find_checked(self.folder / f"shard-{shard_number - 1:05d}" / STATE_FILE)
            assert saved_state is not None  # `find` has just read it.
            cursor = saved_state
            maker.restore(cursor["maker"])
        with tqdm(desc="Preparing blocks", unit=" passages", initial=cursor["passages"], disable=not progress) as bar:
            for _ in self._add_passages(maker, cursor, bar, pause):
                while len(maker.blocks) >= self.shard_size:
                    self._write_shard(shard_number, maker, cursor)
                    yield shard_number
                    shard_number += 1
        if not maker.tokens:
            raise BlocksError(
                f"The corpus {self.corpus.name} has no passage to train on ({self.corpus.skipped} rows without text, "
                f"{cursor['held_out']} passages held out, {len(cursor['bad_files'])} files skipped)."
            )
        if shard_number == 0 and not maker.blocks:
            raise BlocksError(
                f"The corpus {self.corpus.name} has {maker.tokens} tokens, which do not fill one block of "
                f"{self.max_length}. Add more text, or lower max_length."
            )
        maker.finish()
        while maker.blocks:  # `finish` may leave one block more than a shard holds.
            self._write_shard(shard_number, maker, cursor)
            yield shard_number
            shard_number += 1
        last = self.find(shard_number - 1)
        assert last is not None
        totals = {"shards": shard_number, "blocks": (shard_number - 1) * self.shard_size + len(last), "tokens": maker.tokens}
        totals |= {"last_block": len(last[-1]["input_ids"])}
        totals |= {name: cursor[name] for name in ("passages", "held_out", "bad_files")}
        atomic_write(self.folder / TOTALS_FILE, checked_text(totals))

    def validation(self, max_blocks: int, *, progress: bool = True) -> Dataset:
        """Return the first blocks of the held-out passages, at most `max_blocks`.

        The columns are `input_ids` and `draw`. Each block's mask is derived from its draw, so that it is the same at every
        evaluation and in every run.

        Raises:
            BlocksError: no passage is held out.
            CorpusError, HfTlmError: see `to_dataset`.
        """
        folder = self.folder / f"validation-{max_blocks}"
        if (blocks := _load_blocks(folder)) is None:
            maker = BlockMaker(self.tokenizer, self.max_length, self.mode)
            with tqdm(desc="Preparing held-out blocks", unit=" passages", disable=not progress) as bar:
                for _, batch in self.corpus.batches():
                    bar.update(len(batch))
                    rows = [row for row in batch.to_pylist() if is_held_out(self.corpus, row["id"], self.validation_share)]
                    for _ in maker.add([row["text"] for row in rows]):
                        pass
                    if len(maker.blocks) >= max_blocks:
                        break
            maker.finish()
            if not maker.blocks:
                raise BlocksError(
                    f"validation_share {self.validation_share:g} holds out none of the passages of {self.corpus.name}. "
                    "Increase it, or set it to 0 to train without evaluation."
                )
            _save_blocks(folder, maker.blocks[:max_blocks], {})
            blocks = _load_blocks(folder)
            assert blocks is not None
        return with_draws(blocks)

    def _add_passages(self, maker: BlockMaker, cursor: dict[str, Any], bar: tqdm, pause: Callable | None) -> Iterator[None]:
        """Add the passages after `cursor` to `maker`, and yield after each one, with `cursor` updated."""
        bad_before = dict(cursor["bad_files"])
        part, row = cursor["part"], 0
        for part_number, batch in self.corpus.batches(first_part=part):
            if pause is not None:
                pause()
            if part_number != part:
                part, row = part_number, 0
                cursor |= {"part": part, "row": 0}
            cursor["bad_files"] = bad_before | self.corpus.bad_files
            rows = batch.slice(min(max(0, cursor["row"] - row), len(batch))).to_pylist()
            row += len(batch)
            train = [not is_held_out(self.corpus, passage["id"], self.validation_share) for passage in rows]
            added = maker.add([passage["text"] for passage, keep in zip(rows, train, strict=True) if keep])
            for keep in train:
                cursor["row"] += 1
                cursor["passages"] += 1
                cursor["held_out"] += not keep
                if keep:
                    next(added)
                    yield
            bar.update(len(rows))

    def _write_shard(self, shard_number: int, maker: BlockMaker, cursor: dict[str, Any]) -> None:
        blocks, maker.blocks = maker.blocks[: self.shard_size], maker.blocks[self.shard_size :]
        _save_blocks(self.folder / f"shard-{shard_number:05d}", blocks, {**cursor, "maker": maker.state()})


def _save_blocks(folder: Path, blocks: Sequence[np.ndarray], state: dict[str, Any]) -> None:
    offsets = np.cumsum([0, *map(len, blocks)]).astype(np.int32)
    column = pa.ListArray.from_arrays(offsets, np.concatenate(blocks))
    with atomic_directory(folder) as work:
        with pa.OSFile(str(work / BLOCKS_FILE), "wb") as sink, pa.ipc.new_stream(sink, SCHEMA) as writer:
            writer.write_batch(pa.record_batch([column], schema=SCHEMA))
        seal_rows(work / BLOCKS_FILE, len(blocks))
        (work / STATE_FILE).write_text(checked_text({**state, "blocks": len(blocks)}), encoding="utf-8")


def _load_blocks(folder: Path) -> Dataset | None:
    if not folder.is_dir():
        return None
    state = find_checked(folder / STATE_FILE)
    blocks = None if state is None else find_rows(folder / BLOCKS_FILE, state.get("blocks"))
    if blocks is not None and blocks.column_names == SCHEMA.names:
        return blocks
    logger.warning("%s is damaged and will be created again.", folder)
    return None
