"""The inputs of a run: filled prompts in the order of training, and with answered examples (LM-BFF, section 6)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from datasets import Dataset
from torch.utils.data import DataLoader
from transformers import AutoModel, DataCollatorWithPadding

from hf_tlm.data import load_tokenizer, tokenize
from hf_tlm.hub.repo import checkpoint_folder
from hf_tlm.models.loading import reading
from hf_tlm.runs.few_shot.encoding import PromptEncoder, Texts
from hf_tlm.runs.few_shot.templates import PromptError
from hf_tlm.tasks.spec import columns_of_texts

# The share of a class's examples, most similar first, that demonstrations are drawn from (LM-BFF, section 6.2).
SIMILAR_SHARE = 0.5
# Streams of random numbers under one seed.
_ORDER, _TRAIN, _SET = range(3)


@dataclass
class Demonstrations:
    """The examples to draw from.

    texts, labels: [N], encoded by the prompt's encoder; classes' indices.

    Raises:
        PromptError: a class has one example alone, which could not be shown beside itself in training.
    """

    texts: Sequence[Texts]
    labels: Sequence[int]
    by_class: list[np.ndarray] = field(init=False)

    def __post_init__(self):
        labels = np.asarray(self.labels)
        self.by_class = [np.flatnonzero(labels == label) for label in range(labels.max() + 1)]
        if min(map(len, self.by_class)) < 2:
            raise PromptError("Demonstrations need two examples a class or more: one that is shown, for another. Raise --k.")

    def draw(
        self, generator: np.random.Generator, *, besides: int | None = None, similarities: np.ndarray | None = None
    ) -> list[tuple[Texts, int]]:
        """One example of each class, in the order of the classes.

        Args:
            besides: index of an example that is not drawn: the one that is asked about.
            similarities: float [N], of the text that is asked about to the examples; only the more similar half of each
                class is drawn from. None: all are.
        """
        drawn = []
        for candidates in self.by_class:
            candidates = candidates[candidates != besides] if besides is not None else candidates
            if similarities is not None:
                order = np.argsort(-similarities[candidates], kind="stable")
                candidates = candidates[order[: max(1, int(SIMILAR_SHARE * len(candidates)))]]
            index = int(generator.choice(candidates))
            drawn.append((self.texts[index], int(self.labels[index])))
        return drawn


@torch.inference_mode()
def embed(rows: Dataset, model_name_or_path: str, *, batch_size: int = 32, device: str | torch.device = "cpu") -> np.ndarray:
    """float32 [N, H]: mean-pooled last hidden states of the rows' first 128 tokens (pairs in one input), of length 1.

    Args:
        model_name_or_path: any encoder by folder or Hub id; LM-BFF's was trained for it (Sentence-BERT).

    Raises:
        HubError, TokenizerError, ModelError: it cannot be loaded.
    """
    folder = checkpoint_folder(model_name_or_path)
    tokenizer = load_tokenizer(model_name_or_path)
    with reading(f"the similarity model {model_name_or_path!r}"):
        model = AutoModel.from_pretrained(folder).eval().to(device)
    texts = rows.select_columns(columns_of_texts(rows))
    tokenized = tokenize(texts, tokenizer, 128, description="Tokenising for similarity")
    vectors = []
    for batch in DataLoader(tokenized, batch_size=batch_size, collate_fn=DataCollatorWithPadding(tokenizer)):
        hidden = model(**batch.to(device)).last_hidden_state.float()
        weights = batch["attention_mask"].unsqueeze(-1)
        mean = (hidden * weights).sum(dim=1) / weights.sum(dim=1)
        vectors.append(torch.nn.functional.normalize(mean, dim=-1).cpu().numpy())
    return np.concatenate(vectors)


@dataclass
class TrainingInputs(torch.utils.data.Dataset):
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
class EvaluationInputs(torch.utils.data.Dataset):
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
