"""The data collator: it lays tokenised texts out in padded or packed rows, and masks them."""

from __future__ import annotations

import bisect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from transformers import PreTrainedTokenizerBase

from hf_tlm.data.masking import Cropper, chances, mask_tokens, to_float32, uniforms, word_continuations, word_starts
from hf_tlm.data.tokenization import check_tokenizer, special_ids
from hf_tlm.errors import HfTlmError
from hf_tlm.utils.options import LENGTH, Range, check_number


@dataclass
class TlmCollator:
    """A data collator that lays texts out in padded or packed rows and masks training texts.

    Texts have `input_ids`, optionally `token_type_ids`, `label` (-100: none) and `teacher_probs` (one probability per
    class), and for training a `draw` (see `hf_tlm.data.interleave`). Evaluation texts have no `draw` and are never masked.
    For two task texts and `mlm_probability` 0.15 the batch is, for example,

        {"labels":         [5, 0],
         "input_ids":      [[2, 4, 17, 3], [2, 9, 3, 0]],
         "attention_mask": [[1, 1, 1, 1], [1, 1, 1, 0]],
         "mlm_labels":     [[-100, 31, -100, -100], [-100, -100, -100, -100]]}

    and for corpus texts the same without `labels`. With `mlm_probability` 0 (stage 2) texts are not masked, and the batch
    has no `mlm_labels`.

    With a row length, several texts share a row (`Layout`), and three further tensors locate them:

        {"input_ids":    [[2, 4, 17, 3, 2, 9, 3]],
         "position_ids": [[0, 1, 2, 3, 0, 1, 2]],       positions within the texts
         "text_ids":     [[1, 1, 1, 1, 2, 2, 2]],       1 + the text's index in the batch; 0 is padding
         "first_tokens": [0, 4], ...}                   [B], where each text begins in the flattened rows

    A text gets the same mask in every layout.

    Args:
        mlm_probability: share of tokens chosen for prediction.
        row_length: tokens per packed row of training texts; None gives every text a row of its own. A longer text widens
            the rows of its batch.
        eval_row_length: the same for evaluation texts.
        replacing: every chosen token becomes the mask token (ELECTRA's corruption, Clark et al. 2020, equation 1), and a
            masked batch has `uniforms`, float32 [R, S], the random numbers in [0, 1) from which
            `hf_tlm.models.GeneratorDiscriminator` samples replacements.
        spans: choose spans of tokens instead of single tokens (`hf_tlm.data.masking.choose_spans`).
        whole_word_mask: choose all tokens of a word together (`hf_tlm.data.masking.word_continuations`).
        thinning: add `chances`, float32 [R, S], to a masked batch, so that `thinned` can lower its masking probability: a
            token is chosen where its value is below the probability.
        mask_special: choose special tokens like any other (as RoBERTa does; COCO-LM, appendix D).
        crop_fraction: add rows of the texts cropped to this share (`hf_tlm.data.masking.Cropper`) to a masked batch, under
            the same names with the prefix `crop_`, in the same order, packed if the others are. None: no crops.

    Raises:
        TokenizerError: the tokenizer lacks a mask token or a padding token, or [CLS] for crops.
        HfTlmError: `mlm_probability`, `crop_fraction` or a row length is out of range.
        ValueError: texts are not tokenised, have token ids outside the tokenizer's vocabulary, have a label that is not a
            class index, or differ in their columns.
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
        layout, input_ids, types = _flatten_texts(texts, self.row_length if training else self.eval_row_length)
        batch = {}
        # Data sets use either name. Texts without a label are corpus texts.
        label = next((name for name in ("label", "labels") if name in texts[0]), None)
        if label is not None:
            # First, because the Trainer reads the number of texts from the first tensor.
            batch["labels"] = class_labels([text[label] for text in texts])
        if "teacher_probs" in texts[0]:
            batch["teacher_probs"] = np.array([text["teacher_probs"] for text in texts], dtype=np.float32)
        if input_ids.max(initial=0) >= len(self.special):
            raise ValueError(
                f"The texts contain token id {input_ids.max()}, and the tokenizer has {len(self.special)} tokens. Pass the "
                "tokenizer that the texts were tokenised with."
            )
        mask_tensors: dict[str, np.ndarray] = {}
        if training and self.mlm_probability > 0:
            input_ids, mask_tensors = self._mask_texts(texts, layout, input_ids)
        batch |= layout.rows(input_ids, types, self.tokenizer.pad_token_id) | mask_tensors
        return {name: torch.from_numpy(values) for name, values in batch.items()}

    def _mask_texts(
        self, texts: list[dict], layout: Layout, input_ids: np.ndarray
    ) -> tuple[np.ndarray, dict[str, np.ndarray]]:
        """Return the masked token ids of training texts, int64 [T], and the further tensors of a masked batch."""
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
            replacing=self.replacing,
            spans=self.spans,
            starts=starts,
        )
        tensors = {"mlm_labels": layout.table(labels, -100)}
        if self.thinning:
            tensors["chances"] = layout.table(to_float32(chances(self.seed, draws, layout.positions, starts)), 1, np.float32)
        if self.replacing:
            tensors["uniforms"] = layout.table(
                to_float32(uniforms(self.seed, draws, layout.positions, stream=3)), 0, np.float32
            )
        if self._crop is not None:
            cropped, crop_ids, types = _flatten_texts(self._crop(texts, self.special), self.row_length)
            rows = cropped.rows(crop_ids, types, self.tokenizer.pad_token_id)
            tensors |= {f"crop_{name}": values for name, values in rows.items()}
        return input_ids, tensors


def _check_texts(texts: list[dict]) -> None:
    if not texts or "input_ids" not in texts[0]:
        columns = ", ".join(texts[0]) if texts else "none"
        raise ValueError(
            f"TlmCollator expects tokenised texts, with input_ids; received {columns}. hf_tlm.data.tokenize creates them."
        )
    if other := [text for text in texts if text.keys() != texts[0].keys()]:
        raise ValueError(
            f"TlmCollator expects texts with the same columns; received one with {', '.join(texts[0])} and one with "
            f"{', '.join(other[0])}. Put task texts and corpus texts into separate batches."
        )


def thinned(batch: dict[str, torch.Tensor], mlm_probability: float) -> dict[str, torch.Tensor]:
    """Return a masked batch as a smaller masking probability would give it, without its `chances`.

    Tokens that are no longer chosen get their original id back; the others do not change.
    """
    kept = batch["chances"] < mlm_probability
    labels = batch["mlm_labels"]
    changed = {
        "input_ids": torch.where(kept | (labels == -100), batch["input_ids"], labels),
        "mlm_labels": labels.masked_fill(~kept, -100),
    }
    return {name: changed.get(name, values) for name, values in batch.items() if name != "chances"}


def class_labels(values: Sequence[Any]) -> np.ndarray:
    """Return labels as int64 [N], or raise a ValueError for one that is not an integer."""
    labels = [
        value.item() if isinstance(value, (torch.Tensor, np.generic)) and value.ndim == 0 else value for value in values
    ]
    for label in labels:
        if not isinstance(label, int) and not (isinstance(label, float) and label.is_integer()):
            raise ValueError(f"expected labels to be indices of classes, one per text; received {str(label):.60}.")
    return np.array(labels, dtype=np.int64)


def _flatten_texts(texts: list[dict], row_length: int | None) -> tuple[Layout, np.ndarray, np.ndarray | None]:
    """Return the layout of texts, their token ids, int64 [T], and their token types, int64 [T] (None if they have none)."""
    layout = Layout.of(np.array([len(text["input_ids"]) for text in texts]), row_length)
    names = [name for name in ("input_ids", "token_type_ids") if name in texts[0]]
    values = [np.concatenate([text[name] for text in texts]).astype(np.int64) for name in names]
    return layout, values[0], values[1] if len(values) > 1 else None


def pack(lengths: Sequence[int] | np.ndarray, capacity: int) -> tuple[np.ndarray, np.ndarray]:
    """Pack texts into rows by best-fit decreasing bin packing.

    Every text, longest first, goes into the fullest row that still has room for it. This needs at most 11/9 of the fewest
    possible rows, plus one (Johnson et al. 1974).

    Args:
        lengths: number of tokens of each text, at most `capacity`.
        capacity: tokens per row.

    Returns:
        (row of each text, position in that row of its first token), int64 [N] each. Equal lengths keep their order.
    """
    sizes = np.asarray(lengths)
    rows, starts = np.zeros(len(sizes), np.int64), np.zeros(len(sizes), np.int64)
    open_rows: list[tuple[int, int]] = []  # (free positions, row), ascending
    for text in np.argsort(-sizes, kind="stable").tolist():
        length = int(sizes[text])
        index = bisect.bisect_left(open_rows, (length, 0))
        free, row = open_rows.pop(index) if index < len(open_rows) else (capacity, len(open_rows))
        rows[text], starts[text] = row, capacity - free
        bisect.insort(open_rows, (free - length, row))
    return rows, starts


@dataclass(frozen=True)
class Layout:
    """Positions of the T tokens of a batch, text after text, in R rows of S positions.

    Attributes:
        shape: (R, S).
        text_of: int64 [T], index of each token's text.
        positions: int64 [T], position of each token in its text, from 0.
        first_tokens: int64 [B], index of each text's first token in the flattened rows.
        packed: whether texts share rows.
    """

    shape: tuple[int, int]
    text_of: np.ndarray
    positions: np.ndarray
    first_tokens: np.ndarray
    packed: bool

    @classmethod
    def of(cls, lengths: np.ndarray, row_length: int | None) -> Layout:
        """Create the layout of texts with the given numbers of tokens, int64 [B].

        Args:
            row_length: tokens per packed row, which a longer text widens; None gives each text a row.
        """
        if row_length is None:
            rows, starts = np.arange(len(lengths)), np.zeros(len(lengths), np.int64)
        else:
            rows, starts = pack(lengths, max(row_length, int(lengths.max())))
        shape = (int(rows.max()) + 1, int((starts + lengths).max()))
        text_of = np.repeat(np.arange(len(lengths)), lengths)
        positions = np.arange(len(text_of)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
        return cls(shape, text_of, positions, rows * shape[1] + starts, row_length is not None)

    def table(self, values: np.ndarray, padding: int, dtype: type = np.int64) -> np.ndarray:
        """Return the values [T] of the tokens as a table [R, S]."""
        table: np.ndarray = np.full(self.shape, padding, dtype)
        table.reshape(-1)[self.first_tokens[self.text_of] + self.positions] = values
        return table

    def rows(self, input_ids: np.ndarray, token_type_ids: np.ndarray | None, pad_token_id: int) -> dict[str, np.ndarray]:
        """Return the inputs of a model body, [R, S] each, and, if rows are packed, the tensors that locate the texts."""
        rows = {"input_ids": self.table(input_ids, pad_token_id), "attention_mask": self.table(np.ones_like(input_ids), 0)}
        if token_type_ids is not None:
            rows["token_type_ids"] = self.table(token_type_ids, 0)
        if self.packed:
            rows |= {"position_ids": self.table(self.positions, 0), "text_ids": self.table(self.text_of + 1, 0)}
            rows["first_tokens"] = self.first_tokens
        return rows


def leading_texts(batch: Mapping[str, torch.Tensor], count: int) -> dict[str, torch.Tensor]:
    """Return a batch of `TlmCollator` with its first `count` texts only.

    The rows of the other texts are removed; in packed rows, their positions become padding.
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


def repeat_rows(batch: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return a batch, packed or padded, with all its rows repeated after the last one (R-Drop's two passes)."""
    doubled = {name: torch.cat([values, values]) for name, values in batch.items()}
    if "first_tokens" in batch:
        num_texts, num_positions = len(batch["first_tokens"]), batch["input_ids"].numel()
        num_rows = len(batch["input_ids"])
        doubled["first_tokens"][num_texts:] += num_positions
        doubled["text_ids"][num_rows:] += num_texts * (batch["text_ids"] > 0)
    return doubled
