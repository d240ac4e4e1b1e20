"""From tokenised rows to the batch the model takes: one text a row or several, padded or packed, drawn and masked."""

from __future__ import annotations

import bisect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from transformers import PreTrainedTokenizerBase

from hf_tlm.data.masking import Cropper, chances, mask_tokens, single, uniforms, word_continuations, word_starts
from hf_tlm.data.tokenization import check_tokenizer, special_ids
from hf_tlm.errors import HfTlmError
from hf_tlm.utils.options import LENGTH, Range, check_number


@dataclass
class TlmCollator:
    """Lays the texts of a batch out in rows, padded or packed, and, for training draws, masks them.

    Texts hold `input_ids`, optionally `token_type_ids`, `label` (-100: none) and `teacher_probs`, a probability a class, and
    for training a `draw` (see `hf_tlm.data.interleave`). Evaluation texts have no `draw` and are never masked. For two task
    texts and `mlm_probability` 0.15 the batch is for example

        {"labels":         [5, 0],
         "input_ids":      [[2, 4, 17, 3], [2, 9, 3, 0]],
         "attention_mask": [[1, 1, 1, 1], [1, 1, 1, 0]],
         "mlm_labels":     [[-100, 31, -100, -100], [-100, -100, -100, -100]]}

    and for corpus texts the same without `labels`. `mlm_probability` 0 (stage 2) leaves texts and batch unmasked.

    With a row length, several texts share a row (`Layout`), and three tensors say where they are:

        {"input_ids":    [[2, 4, 17, 3, 2, 9, 3]],
         "position_ids": [[0, 1, 2, 3, 0, 1, 2]],       positions within the texts
         "text_ids":     [[1, 1, 1, 1, 2, 2, 2]],       1 + the text's index in the batch; 0 is padding
         "first_tokens": [0, 4], ...}                   [B], where each text begins in the flattened rows

    A text is masked alike in every layout.

    Args:
        row_length: tokens of a packed row of training draws; None gives every text its own. A longer text widens the rows
            of its batch.
        eval_row_length: the same for evaluation texts.
        replacing: every chosen token becomes the mask token (ELECTRA's corruption, Clark et al. 2020, equation 1), and
            `uniforms`, float32 [R, S], are the random numbers in [0, 1) that replacements are drawn with
            (`hf_tlm.models.GeneratorDiscriminator`).
        spans: spans of tokens are chosen, not single ones (`hf_tlm.data.masking.choose_spans`).
        whole_word_mask: the tokens of a word are chosen together (`hf_tlm.data.masking.word_continuations`).
        thinning: `chances`, float32 [R, S], are in a masked batch too: tokens whose are below a smaller share would have
            been chosen at that share (`thinned`).
        mask_special: special tokens are chosen like any other (RoBERTa's way; COCO-LM, appendix D).
        crop_fraction: a masked batch has rows of the texts cropped to this share too (`hf_tlm.data.masking.Cropper`), the
            same names with `crop_` before them; texts are in the same order, packed where the others are. None: it has none.

    Raises:
        TokenizerError: the tokenizer lacks a mask token or a padding token, or [CLS] for crops.
        HfTlmError: `mlm_probability`, `crop_fraction` or the length of a row is out of range.
        ValueError: texts that are not tokenised, whose tokens are not the tokenizer's, with a label that is no index of a
            class, or of which some have a column and some have not.
    """

    tokenizer: PreTrainedTokenizerBase
    mlm_probability: float = 0.15
    seed: int = 0
    row_length: int | None = None
    eval_row_length: int | None = None
    replacing: bool = False
    spans: bool = False
    whole_word_mask: bool = False
    thinning: bool = False
    mask_special: bool = False
    crop_fraction: float | None = None
    special: np.ndarray = field(init=False, repr=False)

    def __post_init__(self):
        check_tokenizer(self.tokenizer)
        check_number(HfTlmError, "mlm_probability", self.mlm_probability, Range(0, 1, below=True))
        for name in ("row_length", "eval_row_length"):
            if (length := getattr(self, name)) is not None:
                check_number(HfTlmError, name, length, Range(1, LENGTH, whole=True))
        self.special = np.zeros(len(self.tokenizer), dtype=bool)
        self.special[special_ids(self.tokenizer)] = True
        self._continues = word_continuations(self.tokenizer) if self.whole_word_mask else None
        self._crop = None if self.crop_fraction is None else Cropper(self.tokenizer, self.crop_fraction, self.seed)

    def __call__(self, texts: list[dict]) -> dict[str, torch.Tensor]:
        _check_texts(texts)
        training = "draw" in texts[0]
        layout, input_ids, types = _flattened(texts, self.row_length if training else self.eval_row_length)
        batch = {}
        # The ecosystem has both names; without one these are corpus texts, and nothing learns the task.
        label = next((name for name in ("label", "labels") if name in texts[0]), None)
        if label is not None:
            # First: the Trainer takes the first tensor's length for the number of texts.
            batch["labels"] = class_labels([text[label] for text in texts])
        if "teacher_probs" in texts[0]:
            batch["teacher_probs"] = np.array([text["teacher_probs"] for text in texts], dtype=np.float32)
        if input_ids.max(initial=0) >= len(self.special):
            raise ValueError(
                f"The texts have the token {input_ids.max()}, and the tokenizer {len(self.special)} tokens. Pass the one "
                "that the texts were tokenised with."
            )
        of_masks: dict[str, np.ndarray] = {}
        if training and self.mlm_probability > 0:
            input_ids, of_masks = self._masked(texts, layout, input_ids)
        batch |= layout.rows(input_ids, types, self.tokenizer.pad_token_id) | of_masks
        return {name: torch.from_numpy(values) for name, values in batch.items()}

    def _masked(self, texts: list[dict], layout: Layout, input_ids: np.ndarray) -> tuple[np.ndarray, dict[str, np.ndarray]]:
        """The tokens of training draws with masks, int64 [T], and what a masked batch has beside its rows."""
        draws = np.array([text["draw"] for text in texts], dtype=np.int64)[layout.text_of]
        special = self.special[input_ids]
        starts = None
        if self._continues is not None:
            starts = word_starts(self._continues[input_ids], ~special, layout.positions)
        input_ids, labels = mask_tokens(
            input_ids,
            ~special | self.mask_special,
            draws,
            layout.positions,
            seed=self.seed,
            mlm_probability=self.mlm_probability,
            mask_token_id=self.tokenizer.mask_token_id,
            vocab_size=len(self.tokenizer),
            mask_share=1.0 if self.replacing else 0.8,
            random_share=0.0 if self.replacing else 0.1,
            spans=self.spans,
            starts=starts,
        )
        found = {"mlm_labels": layout.table(labels, -100)}
        if self.thinning:
            found["chances"] = layout.table(single(chances(self.seed, draws, layout.positions, starts)), 1, np.float32)
        if self.replacing:
            found["uniforms"] = layout.table(single(uniforms(self.seed, draws, layout.positions, stream=3)), 0, np.float32)
        if self._crop is not None:
            cropped, crop_ids, types = _flattened(self._crop(texts, self.special), self.row_length)
            rows = cropped.rows(crop_ids, types, self.tokenizer.pad_token_id)
            found |= {f"crop_{name}": values for name, values in rows.items()}
        return input_ids, found


def _check_texts(texts: list[dict]) -> None:
    if not texts or "input_ids" not in texts[0]:
        found = ", ".join(texts[0]) if texts else "none"
        raise ValueError(
            f"TlmCollator takes tokenised texts, with input_ids; received {found}. hf_tlm.data.tokenize makes them."
        )
    if other := [text for text in texts if text.keys() != texts[0].keys()]:
        raise ValueError(
            f"TlmCollator takes texts with the same columns; received one with {', '.join(texts[0])} and one with "
            f"{', '.join(other[0])}. Task texts and corpus texts are batches of their own."
        )


def thinned(batch: dict[str, torch.Tensor], mlm_probability: float) -> dict[str, torch.Tensor]:
    """A masked batch as it would be at a smaller share, without its `chances`: the other tokens are as they were."""
    kept = batch["chances"] < mlm_probability
    labels = batch["mlm_labels"]
    changed = {
        "input_ids": torch.where(kept | (labels == -100), batch["input_ids"], labels),
        "mlm_labels": labels.masked_fill(~kept, -100),
    }
    return {name: changed.get(name, values) for name, values in batch.items() if name != "chances"}


def class_labels(values: Sequence[Any]) -> np.ndarray:
    """Labels as int64 [N]; a ValueError for one that is no index of a class."""
    labels = [
        value.item() if isinstance(value, (torch.Tensor, np.generic)) and value.ndim == 0 else value for value in values
    ]
    for label in labels:
        if not isinstance(label, int) and not (isinstance(label, float) and label.is_integer()):
            raise ValueError(f"expected labels to be indices of classes, one a text; received {str(label):.60}.")
    return np.array(labels, dtype=np.int64)


def _flattened(texts: list[dict], row_length: int | None) -> tuple[Layout, np.ndarray, np.ndarray | None]:
    """The layout of texts, and their tokens and types (None without), int64 [T] each."""
    layout = Layout.of(np.array([len(text["input_ids"]) for text in texts]), row_length)
    names = [name for name in ("input_ids", "token_type_ids") if name in texts[0]]
    values = [np.concatenate([text[name] for text in texts]).astype(np.int64) for name in names]
    return layout, values[0], values[1] if len(values) > 1 else None


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
