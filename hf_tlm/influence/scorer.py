"""Influence of passages on task batches: the inner products of their gradients, exact and at the speed of batches."""

from __future__ import annotations

import os
from collections.abc import Sequence

import numpy as np
from datasets import Dataset
from transformers import PreTrainedTokenizerBase

from hf_tlm.models import TlmModel


class InfluenceScorer:
    """...

    Attributes:
        num_task_batches: T, after `fit` or `load`.
        layer: as transformers counts `hidden_states`, not negative.
        parameters: names inside the layer of the parameters that were chosen.
        fingerprint: hex digest of the models' weights and of all settings that scores depend on.
    """

    def __init__(
        self,
        models: Sequence[TlmModel],
        tokenizer: PreTrainedTokenizerBase,
        *,
        layer: int = -1,
        parameters: str | None = None,
        mlm_probability: float = 0.1,
        seed: int = 0,
        batch_size: int = 32,
        projection_dim: int | None = None,
    ): ...

    def fit(self, rows: Dataset, task_batch_size: int, folder: str | os.PathLike | None = None) -> None:
        """`folder`: where the gradients are written, atomically; default a temporary one that lives as long as this object.
        """

    def score(self, rows: Dataset) -> np.ndarray: ...

    def save(self, folder: str | os.PathLike) -> None: ...

    def load(self, folder: str | os.PathLike) -> None:
        """Raises InfluenceError where they are missing or of another fingerprint."""
