"""Influence of passages on task batches: inner products of gradients, exact and about as fast as a forward pass.

Shapes: N passages, T task batches.
"""

from __future__ import annotations

import json
import math
import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import xxhash
from datasets import Dataset
from transformers import PreTrainedTokenizerBase

from hf_tlm.data import text_lengths
from hf_tlm.files import atomic_directory
from hf_tlm.influence.capture import Tokens
from hf_tlm.influence.checkpoint import Checkpoint, Gradient
from hf_tlm.influence.errors import InfluenceError
from hf_tlm.influence.gradients import MAX_NUMBERS, EmbeddingGradient, MatrixGradient
from hf_tlm.influence.masks import MaskedTexts
from hf_tlm.influence.parameters import choose_parameters
from hf_tlm.influence.task_gradients import TaskGradients
from hf_tlm.models import TlmModel

# Masks are drawn until they hide something, which for a text of one token takes 1 / mlm_probability of them.
_LEAST_PROBABILITY = 0.01


class InfluenceScorer:
    r"""Influence of passages on batches of a labelled task (ISS, Wang et al. 2023, equation 6).

    .. math:: I(p, t) = \langle \nabla_\theta L_{mlm}(p), \nabla_\theta L_{task}(t) \rangle

    The larger, the more a step on the passage lowers the task's loss. `L_mlm(p)` is the mean cross-entropy over a passage's
    masked tokens, `L_task(t)` that over the texts of a task batch, both without dropout; masks depend on `seed` and the
    passage's `id` only. So a passage's scores do not depend on the batch, the order or the process in which they are
    computed. The influence of several passages that share a gradient is the sum of theirs.

    No gradient of a single passage is formed where its factors say as much, see `hf_tlm.influence.gradients`; only what lies
    above the chosen parameters is differentiated.

        scorer = InfluenceScorer([model], tokenizer)
        scorer.fit(tokenize(task.splits["validation"], tokenizer, 128), task_batch_size=1)
        scores = scorer.score(rows)                                # float [N, T]

    Args:
        models: checkpoints of a model; the influence is the mean over them. They are put into evaluation mode, and their
            parameters no longer need gradients.
        layer: as transformers counts `hidden_states`: 0 is the embeddings, 1 the first layer, -1 the last.
        parameters: patterns of names inside that layer, see `choose_parameters`.
        batch_size: texts of a forward pass. The graph above a low layer, and gradients that are kept whole, take memory:
            then fewer are taken at a time.
        projection_dim: approximate inner products of weights of linear layers, see `MatrixGradient`.

    Attributes:
        num_task_batches: T; 0 until there are task gradients.
        models: those given.
        choice: the layer, counted from 0, and its chosen parameters.
        settings: all of the above that scores depend on, but for the models, as JSON values.
        fingerprint: hex digest of these and of the models.

    Raises:
        InfluenceError: there is no model, parameters cannot be chosen, or a number makes no sense.
        TokenizerError: the tokenizer lacks a mask token or a padding token.
    """

    num_task_batches = 0

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
    ):
        if not models:
            raise InfluenceError("Influence needs at least one model; received none.")
        if not _LEAST_PROBABILITY <= mlm_probability <= 1:
            raise InfluenceError(
                f"mlm_probability must be at least {_LEAST_PROBABILITY} and at most 1; received {mlm_probability}."
            )
        for name, value in (("batch_size", batch_size), ("projection_dim", projection_dim)):
            if value is not None and value < 1:
                raise InfluenceError(f"{name} must be at least 1; received {value}.")
        self.masked = MaskedTexts(tokenizer, mlm_probability, seed)
        self._checkpoints = []
        for number, model in enumerate(models):
            model.eval().requires_grad_(False)
            self.choice = choose_parameters(model, layer, parameters)
            self._checkpoints.append(Checkpoint(model, self.choice.parameters, number, projection_dim, seed))
        self.models, self.tokenizer = list(models), tokenizer
        self.batch_size, self.device = batch_size, models[0].device
        self._wide = torch.promote_types(models[0].dtype, torch.float32)
        self.settings: dict[str, Any] = {
            "layer": self.choice.layer,
            "parameters": [parameter.name for parameter in self.choice.parameters],
            "mlm_probability": mlm_probability,
            "projection_dim": projection_dim,
            "seed": seed,
        }
        digest = xxhash.xxh3_64(json.dumps(self.settings).encode())
        for checkpoint in self._checkpoints:
            checkpoint.add_to(digest)
        self.fingerprint = digest.hexdigest()
        self._tasks: TaskGradients | None = None

    def fit(self, rows: Dataset, task_batch_size: int, folder: str | os.PathLike | None = None) -> None:
        """Make the gradients of a task, its texts in batches of `task_batch_size` consecutive ones.

        Args:
            rows: tokenised labelled texts: columns `input_ids`, optionally `token_type_ids`, and `label`.
            folder: where the gradients are written, as `save` does; default a temporary folder that is removed with this
                object. They may be larger than memory.

        Raises:
            InfluenceError: there is no text, a column is missing, or a label is not one of the model's classes.
            HfTlmError: they cannot be written.
        """
        if task_batch_size < 1:
            raise InfluenceError(f"task_batch_size must be at least 1; received {task_batch_size}.")
        rows = _read(rows, "label")
        if not len(rows):
            raise InfluenceError("Influence on a task needs labelled texts, those of its validation split; received none.")
        classes = self._checkpoints[0].model.config.num_labels
        wrong = sorted(set(rows["label"]) - set(range(classes)))
        if wrong:
            raise InfluenceError(f"The labels of a model with {classes} classes are 0 to {classes - 1}; found {wrong[0]}.")
        if folder is None:
            self._temporary = tempfile.TemporaryDirectory(prefix="hf-tlm-task-gradients-")
            folder = Path(self._temporary.name) / "task-gradients"
        with atomic_directory(folder) as work:
            self._write(rows, task_batch_size, work)
        self.load(folder)

    def save(self, folder: str | os.PathLike) -> None:
        """Copy the task gradients, for `load` of another process.

        Raises:
            InfluenceError: there are none.
            HfTlmError: the folder cannot be written.
        """
        with atomic_directory(folder) as work:
            shutil.copytree(self._fitted().folder, work, dirs_exist_ok=True)

    def load(self, folder: str | os.PathLike) -> None:
        """Use the task gradients in a folder that `fit` or `save` wrote; it must stay.

        Raises:
            InfluenceError: they are not there, or were made by other models or with other settings.
        """
        self._tasks = TaskGradients.open(Path(folder), self.device, self.fingerprint)
        self.num_task_batches = self._tasks.num_task_batches
        for _, gradient in self._gradients():
            if isinstance(gradient, MatrixGradient):
                gradient.whole = gradient.key in self._tasks.settings["whole"]
        vocabularies = self._tasks.settings["vocabularies"]
        self._vocabularies = [ids and torch.tensor(ids, device=self.device) for ids in vocabularies]

    def score(self, rows: Dataset) -> np.ndarray:
        """The influence of passages, float32 [N, T] (of float64 models float64); NaN for a passage without maskable tokens.

        Args:
            rows: tokenised passages, in any order: columns `id`, `input_ids`, optionally `token_type_ids`.

        Raises:
            InfluenceError: there are no task gradients yet, or a column is missing.
        """
        self._fitted()
        rows = _read(rows, "id")
        result = np.full((len(rows), self.num_task_batches), np.nan, str(self._wide).removeprefix("torch."))
        numbers = sum(gradient.numbers_of_a_passage for _, gradient in self._checkpoints[0].gradients)
        for places in self._batches(text_lengths(rows), MAX_NUMBERS // max(1, numbers)):
            texts = _texts(rows, places)
            kept = [index for index, text in enumerate(texts) if self.masked.maskable(text["input_ids"])]
            if kept:
                result[places[kept]] = self._score([texts[index] for index in kept]).cpu().numpy()
        return result

    def _score(self, texts: list[dict]) -> torch.Tensor:
        batch = self.masked(texts)
        result = torch.zeros(len(texts), self.num_task_batches, dtype=self._wide, device=self.device)
        for checkpoint, vocabulary in zip(self._checkpoints, self._vocabularies, strict=True):
            passages = checkpoint.of_passages(batch, vocabulary)
            for tasks, block in self._tasks.blocks():
                for (_, gradient), values in zip(checkpoint.gradients, passages, strict=True):
                    result[:, tasks] += gradient.products(values, block[gradient.key], tasks.stop - tasks.start)
        return result / len(self._checkpoints)

    def _write(self, rows: Dataset, task_batch_size: int, folder: Path) -> None:
        lengths, batches = text_lengths(rows), math.ceil(len(rows) / task_batch_size)
        sizes = np.bincount(np.arange(len(rows)) // task_batch_size)
        block_size = max(1, MAX_NUMBERS // max(1, self._plan(rows, task_batch_size)))
        vocabularies: list[set[int]] = [set() for _ in self._checkpoints]
        stops = []
        for first in range(0, batches, block_size):
            stops.append(min(batches, first + block_size))
            like = torch.zeros((), dtype=self._wide, device=self.device)
            stores = {g.key: g.start(stops[-1] - first, like) for _, g in self._gradients()}
            start = first * task_batch_size
            for places in self._batches(lengths[start : stops[-1] * task_batch_size], self.batch_size):
                task = (places + start) // task_batch_size
                found = self._of_tasks(rows, places + start, 1 / sizes[task])
                of_text = torch.from_numpy(task - first).to(self.device)
                for checkpoint, tokens in zip(self._checkpoints, found, strict=True):
                    by_task = [each.of_texts(of_text[each.text]) for each in tokens]
                    for at, gradient in checkpoint.gradients:
                        gradient.add(stores[gradient.key], by_task[at])
            block = {g.key: g.finish(stores[g.key]) for _, g in self._gradients()}
            TaskGradients.write_block(folder, len(stops) - 1, block)
            for checkpoint, vocabulary in zip(self._checkpoints, vocabularies, strict=True):
                for _, gradient in checkpoint.gradients:
                    if isinstance(gradient, EmbeddingGradient) and gradient.tied:
                        vocabulary.update(block[gradient.key]["id"].tolist())
        settings: dict[str, Any] = {"fingerprint": self.fingerprint, "task_batch_size": task_batch_size}
        settings["whole"] = [g.key for _, g in self._gradients() if isinstance(g, MatrixGradient) and g.whole]
        settings["vocabularies"] = [sorted(vocabulary) or None for vocabulary in vocabularies]
        TaskGradients.finish(folder, stops, settings)

    def _plan(self, rows: Dataset, task_batch_size: int) -> int:
        """Numbers that are kept of a task batch, judged by the first texts."""
        places = np.arange(min(self._texts_at_once, len(rows)))
        found = self._of_tasks(rows, places, np.ones(len(places)))
        return sum(
            gradient.plan(len(tokens[at].text) / len(places) * task_batch_size)
            for checkpoint, tokens in zip(self._checkpoints, found, strict=True)
            for at, gradient in checkpoint.gradients
        )

    def _of_tasks(self, rows: Dataset, places: np.ndarray, weights: np.ndarray) -> Iterator[list[Tokens]]:
        batch = self.masked.collator(_texts(rows, places))
        return (checkpoint.of_tasks(batch, torch.from_numpy(weights).to(self._wide)) for checkpoint in self._checkpoints)

    @property
    def _texts_at_once(self) -> int:
        # A graph over several layers keeps about as much of each as a forward pass needs for one.
        return max(1, self.batch_size // self.choice.depth)

    def _batches(self, lengths: np.ndarray, most: int) -> Iterator[np.ndarray]:
        """Places of texts of similar lengths, int64 each."""
        order, step = np.argsort(lengths, kind="stable"), max(1, min(most, self._texts_at_once))
        return (order[start : start + step] for start in range(0, len(order), step))

    def _gradients(self) -> list[tuple[int, Gradient]]:
        return [pair for checkpoint in self._checkpoints for pair in checkpoint.gradients]

    def _fitted(self) -> TaskGradients:
        if self._tasks is None:
            raise InfluenceError("There are no task gradients yet: call fit, or load what fit wrote.")
        return self._tasks


def _read(rows: Dataset, needed: str) -> Dataset:
    """The columns of tokenised rows that are read, as Python values."""
    for name in ("input_ids", needed):
        if name not in rows.column_names:
            raise InfluenceError(f"Rows need the columns input_ids and {needed}; received {', '.join(rows.column_names)}.")
    names = [name for name in ("input_ids", "token_type_ids", needed) if name in rows.column_names]
    return rows.select_columns(names).with_format(None)


def _texts(rows: Dataset, places: np.ndarray) -> list[dict]:
    columns = rows[places.tolist()]
    return [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]
