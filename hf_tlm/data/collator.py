"""From tokenised rows to the batch the model takes."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import torch
from transformers import PreTrainedTokenizerBase

from hf_tlm.data.masking import mask_tokens, uniforms
from hf_tlm.data.packing import pack
from hf_tlm.data.tokenization import check_tokenizer


@dataclass
class TlmCollator:
    """Lays the texts of a batch out in rows, padded or packed, and, for training draws, masks them.

    Texts hold `input_ids`, optionally `token_type_ids` and `label`, and for training a `draw` (see
    `hf_tlm.data.interleave`). Evaluation texts have no `draw` and are never masked. For two task texts and
    `mlm_probability` 0.15 the batch is for example

        {"labels":         [5, 0],
         "input_ids":      [[2, 4, 17, 3], [2, 9, 3, 0]],
         "attention_mask": [[1, 1, 1, 1], [1, 1, 1, 0]],
         "mlm_labels":     [[-100, 31, -100, -100], [-100, -100, -100, -100]]}

    and for corpus texts the same without `labels`. `mlm_probability` 0 (stage 2) leaves texts and batch unmasked.

    With a row length, several texts share a row (`hf_tlm.data.packing`), and three tensors say where they are:

        {"input_ids":    [[2, 4, 17, 3, 2, 9, 3]],
         "position_ids": [[0, 1, 2, 3, 0, 1, 2]],       places within the texts
         "text_ids":     [[1, 1, 1, 1, 2, 2, 2]],       1 + the text's index in the batch; 0 is padding
         "first_tokens": [0, 4], ...}                   [B], where each text begins in the flattened rows

    A text is masked alike in every layout.

    Args:
        row_length: tokens of a packed row of training draws; None gives every text its own. A longer text widens the rows
            of its batch.
        eval_row_length: the same for evaluation texts.
        replacing: every chosen token becomes the mask token (ELECTRA's corruption, Clark et al. 2020, equation 1), and
            `uniforms`, float32 [R, S], are the random numbers in [0, 1) that replacements are drawn with
            (`hf_tlm.models.CorruptAndPredict`).

    Raises:
        TokenizerError: the tokenizer lacks a mask token or a padding token.
    """

    tokenizer: PreTrainedTokenizerBase
    mlm_probability: float = 0.15
    seed: int = 0
    row_length: int | None = None
    eval_row_length: int | None = None
    replacing: bool = False
    special: np.ndarray = field(init=False, repr=False)

    def __post_init__(self):
        check_tokenizer(self.tokenizer)
        self.special = np.zeros(len(self.tokenizer), dtype=bool)
        self.special[self.tokenizer.all_special_ids] = True

    def __call__(self, texts: list[dict]) -> dict[str, torch.Tensor]:
        lengths = np.array([len(text["input_ids"]) for text in texts])
        row_length = self.row_length if "draw" in texts[0] else self.eval_row_length
        if row_length is None:
            rows, starts = np.arange(len(texts)), np.zeros(len(texts), np.int64)
        else:
            rows, starts = pack(lengths, max(row_length, int(lengths.max())))
        shape = (int(rows.max()) + 1, int((starts + lengths).max()))
        first_tokens = rows * shape[1] + starts
        # One entry per token, text after text.
        text_of = np.repeat(np.arange(len(texts)), lengths)
        positions = np.arange(len(text_of)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
        place = first_tokens[text_of] + positions

        def laid_out(values: np.ndarray, padding: int, dtype: type = np.int64) -> np.ndarray:
            table = np.full(shape, padding, dtype)
            table.reshape(-1)[place] = values
            return table

        batch = {}
        if "label" in texts[0]:
            # First: the Trainer takes the first tensor's length for the number of texts.
            batch["labels"] = np.array([text["label"] for text in texts], dtype=np.int64)
        input_ids, mlm_labels = np.concatenate([text["input_ids"] for text in texts]).astype(np.int64), None
        if self.mlm_probability > 0 and "draw" in texts[0]:
            draws = np.array([text["draw"] for text in texts], dtype=np.int64)[text_of]
            input_ids, mlm_labels = mask_tokens(
                input_ids,
                ~self.special[input_ids],
                draws,
                positions,
                seed=self.seed,
                mlm_probability=self.mlm_probability,
                mask_token_id=self.tokenizer.mask_token_id,
                vocab_size=len(self.tokenizer),
                mask_share=1.0 if self.replacing else 0.8,
                random_share=0.0 if self.replacing else 0.1,
            )
        batch["input_ids"] = laid_out(input_ids, self.tokenizer.pad_token_id)
        batch["attention_mask"] = laid_out(np.ones_like(place), 0)
        if "token_type_ids" in texts[0]:
            batch["token_type_ids"] = laid_out(np.concatenate([text["token_type_ids"] for text in texts]), 0)
        if row_length is not None:
            batch["position_ids"] = laid_out(positions, 0)
            batch["text_ids"] = laid_out(text_of + 1, 0)
            batch["first_tokens"] = first_tokens
        if mlm_labels is not None:
            batch["mlm_labels"] = laid_out(mlm_labels, -100)
            if self.replacing:
                batch["uniforms"] = laid_out(uniforms(self.seed, draws, positions, stream=3), 0, np.float32)
        return {name: torch.from_numpy(values) for name, values in batch.items()}
