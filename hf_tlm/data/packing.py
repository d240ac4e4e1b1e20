"""Where the tokens of a batch's texts go: one text a row, or several, so that little of the batch is padding."""

from __future__ import annotations

import bisect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch


def pack(lengths: Sequence[int] | np.ndarray, capacity: int) -> tuple[np.ndarray, np.ndarray]:
    """Best-fit decreasing: every text, longest first, goes into the fullest row that still has room for it.

    At most 11/9 of the fewest possible rows, plus one (Johnson et al. 1974).

    Args:
        lengths: tokens of each text, none longer than `capacity`.
        capacity: tokens of a row.

    Returns:
        (row of each text, place in that row of its first token), int64 [N] each. Equal lengths keep their order.
    """
    sizes = np.asarray(lengths)
    rows, starts = np.zeros(len(sizes), np.int64), np.zeros(len(sizes), np.int64)
    room: list[tuple[int, int]] = []  # (free places, row), ascending
    for text in np.argsort(-sizes, kind="stable").tolist():
        length = int(sizes[text])
        at = bisect.bisect_left(room, (length, 0))
        free, row = room.pop(at) if at < len(room) else (capacity, len(room))
        rows[text], starts[text] = row, capacity - free
        bisect.insort(room, (free - length, row))
    return rows, starts


@dataclass(frozen=True)
class Layout:
    """The places of a batch's tokens, T of them text after text, in R rows of S positions.

    shape: (R, S).
    text_of, positions: int64 [T], each token's text and its place in it, from 0.
    first_tokens: int64 [B], where each text begins in the flattened rows.
    packed: texts share rows.
    """

    shape: tuple[int, int]
    text_of: np.ndarray
    positions: np.ndarray
    first_tokens: np.ndarray
    packed: bool

    @classmethod
    def of(cls, lengths: np.ndarray, row_length: int | None) -> Layout:
        """Of texts of int64 [B] tokens; row_length None gives each a row, and a longer text widens the rows."""
        if row_length is None:
            rows, starts = np.arange(len(lengths)), np.zeros(len(lengths), np.int64)
        else:
            rows, starts = pack(lengths, max(row_length, int(lengths.max())))
        shape = (int(rows.max()) + 1, int((starts + lengths).max()))
        text_of = np.repeat(np.arange(len(lengths)), lengths)
        positions = np.arange(len(text_of)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
        return cls(shape, text_of, positions, rows * shape[1] + starts, row_length is not None)

    def table(self, values: np.ndarray, padding: int, dtype: type = np.int64) -> np.ndarray:
        """[T] values in rows, [R, S]."""
        table: np.ndarray = np.full(self.shape, padding, dtype)
        table.reshape(-1)[self.first_tokens[self.text_of] + self.positions] = values
        return table

    def rows(self, input_ids: np.ndarray, token_type_ids: np.ndarray | None, pad_token_id: int) -> dict[str, np.ndarray]:
        """What a body reads of a batch, and where the texts of packed rows are."""
        rows = {"input_ids": self.table(input_ids, pad_token_id), "attention_mask": self.table(np.ones_like(input_ids), 0)}
        if token_type_ids is not None:
            rows["token_type_ids"] = self.table(token_type_ids, 0)
        if self.packed:
            rows |= {"position_ids": self.table(self.positions, 0), "text_ids": self.table(self.text_of + 1, 0)}
            rows["first_tokens"] = self.first_tokens
        return rows


def leading_texts(batch: Mapping[str, torch.Tensor], count: int) -> dict[str, torch.Tensor]:
    """Return a batch of `TlmCollator` with its first `count` texts only.

    The rows of the others are gone, their places in packed rows are padding.
    """
    packed = {prefix: batch[f"{prefix}text_ids"] for prefix in ("", "crop_") if f"{prefix}text_ids" in batch}
    texts = {}
    for name, values in batch.items():
        text_ids = packed.get("crop_" if name.startswith("crop_") else "")
        if text_ids is None or values.dim() == 1:  # A row, or an entry, is a text.
            texts[name] = values[:count]
        else:
            texts[name] = values.where(text_ids <= count, -100 if name == "mlm_labels" else 0)
    return texts


def twice(batch: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """A batch with every row a second time, after all of the first, packed or padded."""
    doubled = {name: torch.cat([values, values]) for name, values in batch.items()}
    if "first_tokens" in batch:
        texts, places = len(batch["first_tokens"]), batch["input_ids"].numel()
        rows = len(batch["input_ids"])
        doubled["first_tokens"][texts:] += places
        doubled["text_ids"][rows:] += texts * (batch["text_ids"] > 0)
    return doubled
