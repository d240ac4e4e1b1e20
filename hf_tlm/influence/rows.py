"""Tokenised rows, as influence reads them, and their masks: a function of a seed and of each passage's id alone."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch
import xxhash
from datasets import Dataset
from transformers import PreTrainedTokenizerBase

from hf_tlm.data import TlmCollator, text_lengths
from hf_tlm.errors import InfluenceError

MAX_LENGTH = 128
READ_ROWS = 1000


def cut_at(asked: int | None, tokenizer: PreTrainedTokenizerBase, positions: int | None) -> int:
    """The tokens asked for, by default 128, or fewer where the tokenizer or a model's positions are for fewer.

    An InfluenceError where there are fewer positions than asked for, or nothing of a text is left.
    """
    special = tokenizer.num_special_tokens_to_add()
    if asked is None:
        return min(MAX_LENGTH, tokenizer.model_max_length, positions or MAX_LENGTH)
    if asked <= special:
        raise InfluenceError(
            f"score_max_length {asked} leaves a text no token beside its {special} special ones. Give --score_max_length "
            f"{special + 1} or more."
        )
    if positions is not None and asked > positions:
        raise InfluenceError(
            f"score_max_length {asked} is more than the {positions} positions of the score model. Give --score_max_length "
            f"{positions} or less."
        )
    return asked


def read(rows: Dataset, needed: str) -> Dataset:
    """The columns that are read, as Python values; `labels` is `label`, as the ecosystem has both names.

    Raises:
        InfluenceError: it is no Dataset, or `input_ids` or the column that is `needed` beside it is missing.
    """
    columns = rows.column_names if isinstance(rows, Dataset) else []
    if needed == "label" and "label" not in columns and "labels" in columns:
        return read(rows.rename_column("labels", "label"), needed)
    if not {"input_ids", needed} <= set(columns):
        found = f"a Dataset with {', '.join(columns)}" if isinstance(rows, Dataset) else type(rows).__name__
        kept = f" It leaves {needed} out: rows.add_column({needed!r}, ...)." if needed == "id" else ""
        raise InfluenceError(
            f"Rows are a Dataset with the columns input_ids and {needed}; received {found}. hf_tlm.data.tokenize makes "
            f"input_ids of texts.{kept}"
        )
    names = [name for name in ("input_ids", "token_type_ids", needed) if name in rows.column_names]
    return rows.select_columns(names).with_format(None)


def take(rows: Dataset, places: np.ndarray) -> list[dict]:
    """Some rows, by place, int64."""
    columns = rows[places.tolist()]
    return [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]


def batches(rows: Dataset, size: int) -> Iterator[np.ndarray]:
    """Places of rows of similar lengths, int64 [`size`] each, at least one."""
    order, size = np.argsort(text_lengths(rows), kind="stable"), max(1, size)
    return (order[start : start + size] for start in range(0, len(order), size))


def rows_digest(rows: Dataset) -> str:
    """32 hex digits of the rows' content: equal rows give the same wherever they are stored."""
    digest = xxhash.xxh3_128(f"{len(rows)} {sorted(rows.column_names)}".encode())
    for table in rows.with_format("arrow").iter(batch_size=READ_ROWS):
        for name in sorted(table.column_names):
            column = table[name].combine_chunks()
            if pa.types.is_nested(column.type):
                digest.update(pc.list_value_length(column).to_numpy(zero_copy_only=False).astype(np.int64).tobytes())
                column = column.flatten()
            if pa.types.is_integer(column.type):
                digest.update(column.to_numpy(zero_copy_only=False).astype(np.int64).tobytes())
            else:
                digest.update(json.dumps(column.to_pylist()).encode())
    return digest.hexdigest()


def draws(ids: Sequence[str], seed: int) -> np.ndarray:
    """int64 [N], not negative: the `draw` of each passage (see `TlmCollator`), a hash of the seed and its id."""
    seed %= 2**64
    return np.array([xxhash.xxh3_64_intdigest(name.encode(), seed=seed) >> 1 for name in ids], np.int64)


class MaskedTexts:
    """Batches of masked passages, in which every text has a masked token.

    A mask that hides nothing would make a loss of no token: it is drawn again, with the next seed for the draw.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, mlm_probability: float, seed: int):
        self.collator = TlmCollator(tokenizer, mlm_probability=mlm_probability, seed=seed)
        self.seed = seed

    def maskable(self, input_ids: Sequence[int]) -> bool:
        """Whether a text has any token but special ones."""
        return not self.collator.special[np.asarray(input_ids, np.int64)].all()

    def counts(self, texts: list[dict]) -> np.ndarray:
        """int64 [N], the masked tokens of each passage; 0 of one that cannot be masked."""
        kept = [place for place, text in enumerate(texts) if self.maskable(text["input_ids"])]
        found = np.zeros(len(texts), np.int64)
        if kept:
            found[kept] = (self([texts[place] for place in kept])["mlm_labels"] != -100).sum(dim=1).numpy()
        return found

    def of_task(self, texts: list[dict]) -> dict[str, torch.Tensor]:
        """The padded batch of labelled texts, masked by the seed and their own tokens; some may have no masked token."""
        names = [" ".join(map(str, text["input_ids"])) for text in texts]
        batch = self.collator([{**text, "draw": draw} for draw, text in zip(draws(names, self.seed), texts, strict=True)])
        del batch["mlm_labels"]
        return batch

    def __call__(self, texts: list[dict]) -> dict[str, torch.Tensor]:
        """The padded batch of texts that can be masked, columns `id` and `input_ids` (`token_type_ids`)."""
        ids = [text["id"] for text in texts]
        columns = [name for name in ("input_ids", "token_type_ids") if name in texts[0]]
        drawn = draws(ids, self.seed)
        attempt = 0
        while True:
            batch = self.collator(
                [{"draw": draw, **{name: text[name] for name in columns}} for draw, text in zip(drawn, texts, strict=True)]
            )
            empty = (batch["mlm_labels"] == -100).all(dim=1).numpy()
            if not empty.any():
                return batch
            attempt += 1
            drawn = np.where(empty, draws(ids, self.seed + attempt), drawn)
