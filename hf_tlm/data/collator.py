"""From tokenised rows to the batch the model takes."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import torch
from transformers import PreTrainedTokenizerBase

from hf_tlm.data.masking import mask_tokens
from hf_tlm.data.tokenization import check_tokenizer


@dataclass
class TlmCollator:
    """Pads a batch and, for training draws, masks it.

    Rows hold `input_ids`, optionally `token_type_ids` and `label`, and for training a `draw` (see
    `hf_tlm.data.interleave`). Evaluation rows have no `draw` and are never masked. For two task texts and
    `mlm_probability` 0.15 the batch is for example

        {"input_ids":      [[2, 4, 17, 3], [2, 9, 3, 0]],
         "attention_mask": [[1, 1, 1, 1], [1, 1, 1, 0]],
         "mlm_labels":     [[-100, 31, -100, -100], [-100, -100, -100, -100]],
         "labels":         [5, 0]}

    and for corpus texts the same without `labels`. `mlm_probability` 0 (stage 2) leaves texts and batch unmasked.

    Raises:
        TokenizerError: the tokenizer lacks a mask token or a padding token.
    """

    tokenizer: PreTrainedTokenizerBase
    mlm_probability: float = 0.15
    seed: int = 0
    special: np.ndarray = field(init=False, repr=False)

    def __post_init__(self):
        check_tokenizer(self.tokenizer)
        self.special = np.zeros(len(self.tokenizer), dtype=bool)
        self.special[self.tokenizer.all_special_ids] = True

    def __call__(self, rows: list[dict]) -> dict[str, torch.Tensor]:
        lengths = np.array([len(row["input_ids"]) for row in rows])
        shape = (len(rows), int(lengths.max()))
        real = np.arange(shape[1])[None, :] < lengths[:, None]
        input_ids = np.full(shape, self.tokenizer.pad_token_id, dtype=np.int64)
        input_ids[real] = np.concatenate([row["input_ids"] for row in rows])
        batch = {}
        if self.mlm_probability > 0 and "draw" in rows[0]:
            input_ids, batch["mlm_labels"] = mask_tokens(
                input_ids,
                real & ~self.special[input_ids],
                np.array([row["draw"] for row in rows], dtype=np.int64),
                seed=self.seed,
                mlm_probability=self.mlm_probability,
                mask_token_id=self.tokenizer.mask_token_id,
                vocab_size=len(self.tokenizer),
            )
        batch["input_ids"] = input_ids
        batch["attention_mask"] = real.astype(np.int64)
        if "token_type_ids" in rows[0]:
            batch["token_type_ids"] = np.zeros(shape, dtype=np.int64)
            batch["token_type_ids"][real] = np.concatenate([row["token_type_ids"] for row in rows])
        if "label" in rows[0]:
            batch["labels"] = np.array([row["label"] for row in rows], dtype=np.int64)
        return {name: torch.from_numpy(values) for name, values in batch.items()}
