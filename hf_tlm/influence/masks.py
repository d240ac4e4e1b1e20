"""The masks of the texts that are scored: a function of a seed and of each passage's id, and of nothing else."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
import xxhash
from transformers import PreTrainedTokenizerBase

from hf_tlm.data import TlmCollator


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
