"""Reading of tokenised rows for influence, and their masks, which depend only on a seed and on each passage's id."""

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
    """Return the length at which texts are truncated: `asked`, or by default the smallest of 128 and the limits.

    The limits are those of the tokenizer (`model_max_length`) and of the model (`positions`).

    Args:
        positions: number of positions of the score model; None: no limit.

    Raises:
        InfluenceError: `asked` is more than `positions`, or leaves no token besides the special ones.
    """
    special = tokenizer.num_special_tokens_to_add()
    if asked is None:
        return min(MAX_LENGTH, tokenizer.model_max_length, positions or MAX_LENGTH)
    if asked <= special:
        raise InfluenceError(
            f"score_max_length {asked} leaves no token of a text beside {special} special tokens. Set --score_max_length to "
            f"{special + 1} or more."
        )
    if positions is not None and asked > positions:
        raise InfluenceError(
            f"score_max_length {asked} is more than the {positions} positions of the score model. Set --score_max_length to "
            f"{positions} or less."
        )
    return asked


def read(rows: Dataset, needed: str) -> Dataset:
    """Return the rows with only the columns that influence reads, as Python values.

    A column `labels` is renamed to `label`, because data sets use both names.

    Raises:
        InfluenceError: `rows` is not a Dataset, or the column `input_ids` or `needed` is missing.
    """
    columns = rows.column_names if isinstance(rows, Dataset) else []
    if needed == "label" and "label" not in columns and "labels" in columns:
        return read(rows.rename_column("labels", "label"), needed)
    if not {"input_ids", needed} <= set(columns):
        received = f"a Dataset with {', '.join(columns)}" if isinstance(rows, Dataset) else type(rows).__name__
        advice = f" It does not keep {needed}: add it with rows.add_column({needed!r}, ...)." if needed == "id" else ""
        raise InfluenceError(
            f"rows: expected a Dataset with the columns input_ids and {needed}; received {received}. hf_tlm.data.tokenize "
            f"creates input_ids from texts.{advice}"
        )
    names = [name for name in ("input_ids", "token_type_ids", needed) if name in rows.column_names]
    return rows.select_columns(names).with_format(None)


def take(rows: Dataset, indices: np.ndarray) -> list[dict]:
    """Return the rows at some indices, int64, as a list of dicts."""
    columns = rows[indices.tolist()]
    return [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]


def batches(rows: Dataset, size: int) -> Iterator[np.ndarray]:
    """Return batches of row indices, int64 [`size`] each (`size` is at least 1), rows of similar lengths together."""
    order, size = np.argsort(text_lengths(rows), kind="stable"), max(1, size)
    return (order[start : start + size] for start in range(0, len(order), size))


def rows_digest(rows: Dataset) -> str:
    """Return a digest of the rows' content, 32 hex digits: equal rows have equal digests wherever they are stored."""
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
    """Return the `draw` of each passage (see `TlmCollator`), int64 [N], not negative: a hash of the seed and its id."""
    seed %= 2**64
    return np.array([xxhash.xxh3_64_intdigest(name.encode(), seed=seed) >> 1 for name in ids], np.int64)


class MaskedTexts:
    """A collator of masked passages that masks at least one token of every text.

    A text without a masked token has no loss, so its mask is drawn again with the next seed.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, mlm_probability: float, seed: int):
        self.collator = TlmCollator(tokenizer, mlm_probability=mlm_probability, seed=seed)
        self.seed = seed

    def maskable(self, input_ids: Sequence[int]) -> bool:
        """Return whether a text has any token that is not special."""
        return not self.collator.special[np.asarray(input_ids, np.int64)].all()

    def counts(self, texts: list[dict]) -> np.ndarray:
        """Return how many tokens of each passage are masked, int64 [N]; 0 for a passage that cannot be masked."""
        maskable_indices = [index for index, text in enumerate(texts) if self.maskable(text["input_ids"])]
        counts = np.zeros(len(texts), np.int64)
        if maskable_indices:
            counts[maskable_indices] = (
                (self([texts[index] for index in maskable_indices])["mlm_labels"] != -100).sum(dim=1).numpy()
            )
        return counts

    def of_task(self, texts: list[dict]) -> dict[str, torch.Tensor]:
        """Return a padded batch of labelled texts, masked by seed and their own tokens; some may have no masked token."""
        names = [" ".join(map(str, text["input_ids"])) for text in texts]
        batch = self.collator([{**text, "draw": draw} for draw, text in zip(draws(names, self.seed), texts, strict=True)])
        del batch["mlm_labels"]
        return batch

    def __call__(self, texts: list[dict]) -> dict[str, torch.Tensor]:
        """Return a padded batch of maskable texts, given with `id`, `input_ids` and optionally `token_type_ids`."""
        ids = [text["id"] for text in texts]
        columns = [name for name in ("input_ids", "token_type_ids") if name in texts[0]]
        current_draws = draws(ids, self.seed)
        attempt = 0
        while True:
            batch = self.collator(
                [
                    {"draw": draw, **{name: text[name] for name in columns}}
                    for draw, text in zip(current_draws, texts, strict=True)
                ]
            )
            empty = (batch["mlm_labels"] == -100).all(dim=1).numpy()
            if not empty.any():
                return batch
            attempt += 1
            current_draws = np.where(empty, draws(ids, self.seed + attempt), current_draws)
