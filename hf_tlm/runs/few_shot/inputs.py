"""The inputs of a run: filled prompts in the order of training, and for evaluation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from torch.utils.data import Dataset

from hf_tlm.runs.few_shot.demonstrations import Demonstrations
from hf_tlm.runs.few_shot.encoding import PromptEncoder, Texts

# Streams of random numbers under one seed.
_ORDER, _TRAIN, _SET = range(3)


@dataclass
class TrainingInputs(Dataset):
    """All texts of a training run in their order.

    Pass after pass goes over the examples, each pass in an order of its own, each text with demonstrations drawn for that
    very place, never itself.

    A text is a function of seed and place alone, so that a run that resumes, or has more processes, sees the same.

    Attributes:
        length: of the run, steps x batch.
        similarities: of the examples to each other, float [N, N], or None.
    """

    encoder: PromptEncoder
    texts: Sequence[Texts]
    labels: Sequence[int]
    length: int
    seed: int
    demonstrations: Demonstrations | None = None
    similarities: np.ndarray | None = None

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, place: int) -> dict:
        turn, rest = divmod(place, len(self.texts))
        index = int(np.random.default_rng([self.seed, _ORDER, turn]).permutation(len(self.texts))[rest])
        shown = []
        if self.demonstrations is not None:
            generator = np.random.default_rng([self.seed, _TRAIN, place])
            similarities = None if self.similarities is None else self.similarities[index]
            shown = self.demonstrations.draw(generator, besides=index, similarities=similarities)
        return {**self.encoder.fill(self.texts[index], shown), "label": self.labels[index]}


@dataclass
class EvaluationInputs(Dataset):
    """Texts to be classified, `sets` times in a row each, with other demonstrations every time.

    The demonstrations of a time are the same for all texts (of those that are similar to the text, where similarities are
    given), so that what is predicted for a text does not depend on the texts beside it.

    labels: [N], or None where they are unknown.
    sets: how often; 1 without demonstrations.
    similarities: of the texts to the examples, float [N, examples], or None.
    """

    encoder: PromptEncoder
    texts: Sequence[Texts]
    labels: Sequence[int] | None
    seed: int
    demonstrations: Demonstrations | None = None
    sets: int = 1
    similarities: np.ndarray | None = None

    def __len__(self) -> int:
        return len(self.texts) * self.sets

    def __getitem__(self, place: int) -> dict:
        index, number = divmod(place, self.sets)
        shown = []
        if self.demonstrations is not None:
            similarities = None if self.similarities is None else self.similarities[index]
            shown = self.demonstrations.draw(np.random.default_rng([self.seed, _SET, number]), similarities=similarities)
        filled = self.encoder.fill(self.texts[index], shown)
        return filled if self.labels is None else {**filled, "label": self.labels[index]}


def averaged(logits: np.ndarray, sets: int) -> np.ndarray:
    """Logits float [N x sets, C] of `EvaluationInputs` as [N, C]: the mean over a text's sets, as LM-BFF averages."""
    return logits.reshape(-1, sets, logits.shape[-1]).mean(axis=1)
