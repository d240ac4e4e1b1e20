"""Influence of passages on task batches: inner products of gradients, exact and about as fast as a forward pass.

A scorer can be saved to a directory, for processes and machines that have neither its models nor the task.

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
from tqdm.auto import tqdm
from transformers import PreTrainedTokenizerBase

from hf_tlm.data import load_tokenizer
from hf_tlm.errors import InfluenceError
from hf_tlm.influence.checkpoint import Checkpoint, Gradient, check_alike, choose_parameters, nbytes
from hf_tlm.influence.gradients import MAX_NUMBERS, EmbeddingGradient, MatrixGradient, Tokens
from hf_tlm.influence.rows import READ_ROWS, MaskedTexts, batches, cut_at, read, rows_digest, take
from hf_tlm.influence.task_gradients import GRADIENTS_FOLDER, Block, TaskGradients
from hf_tlm.models import TlmModel, export_stock
from hf_tlm.models.families import longest_input
from hf_tlm.utils.files import atomic_directory, sha256
from hf_tlm.utils.options import check_numbers, to_python

# Task gradients are written, and shared between processes, in blocks of at most this many texts.
BLOCK_TEXTS = 1024
# If task gradients have to be read from disk again, gradients of passages are collected until they have this many bytes.
WAITING_BYTES = 1 << 28
# The file of a saved scorer with everything except its models and gradients.
SCORER_FILE = "scorer.json"


class InfluenceScorer:
    r"""A scorer of the influence of passages on batches of a labelled task (ISS, Wang et al. 2023, equation 6).

    .. math:: I(p, t) = \langle \nabla_\theta L_{mlm}(p), \nabla_\theta L_{task}(t) \rangle

    The larger the influence, the more a step on the passage lowers the task's loss. `L_mlm(p)` is the mean cross-entropy
    over a passage's masked tokens, `L_task(t)` the mean cross-entropy over the texts of a task batch, both without dropout;
    masks depend only on `seed` and the passage's `id`. So a passage's scores do not depend on the batch, the order or the
    process in which they are computed. The influence of several passages that share a gradient is the sum of theirs.

    The gradient of a single passage is not formed where its factors suffice, see `hf_tlm.influence.gradients`; the backward
    pass covers only the modules above the chosen parameters.

        scorer = InfluenceScorer([model], tokenizer)
        scorer.fit(tokenize(task.splits["validation"], tokenizer, 128), task_batch_size=1)
        scores = scorer.score(rows)                                # float [N, T]

    Args:
        models: checkpoints of one model; the influence is the mean over them. They are put into evaluation mode, and their
            parameters no longer require gradients.
        layer: index as in transformers' `hidden_states`: 0 is the embeddings, 1 the first layer, -1 the last.
        parameters: patterns of names inside that layer, see `choose_parameters`.
        mask_task_texts: mask the task's texts as passages are masked, by the seed and their tokens (the released code);
            by default they are not masked.
        batch_size: texts in a forward pass. The graph above a low layer and gradients that are stored completely take
            memory; batches are smaller then.
        projection_dim: approximate inner products of weights of linear layers, see `MatrixGradient`.

    Attributes:
        num_task_batches: T; 0 until there are task gradients.
        models: the given models.
        choice: the layer, counted from 0, and its chosen parameters.
        settings: all of the arguments that scores depend on, except the models, as JSON values.
        fingerprint: hex digest of the settings and the models.

    Raises:
        InfluenceError: there is no model, a model is not a `TlmModel`, models have different parameters, parameters cannot
            be chosen, a number is out of range, the tokenizer has more tokens than the models embed, or a projection has
            nothing to project.
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
        mask_task_texts: bool = False,
    ):
        given = [models] if isinstance(models, torch.nn.Module) else models
        if given is not models or any(not isinstance(model, TlmModel) for model in given):
            found = next((model for model in given if not isinstance(model, TlmModel)), models)
            raise InfluenceError(
                f"Influence needs a list of TlmModel; received {type(found).__name__}. Pass "
                "[TlmModel.from_checkpoint(folder, id2label=task.id2label)], with the folder or Hub id of a classifier."
            )
        if not models:
            raise InfluenceError("Influence needs at least one model; received none.")
        check_numbers(InfluenceError, score_mlm_probability=mlm_probability, score_batch_size=batch_size)
        check_numbers(InfluenceError, projection_dim=projection_dim, layer=layer, selection_seed=seed)
        # The settings are written as JSON, which does not accept NumPy's numbers.
        layer, mlm_probability, seed, projection_dim = map(to_python, (layer, mlm_probability, seed, projection_dim))
        check_alike(models)
        self.masked = MaskedTexts(tokenizer, mlm_probability, seed)
        if len(tokenizer) > (vocabulary := models[0].config.vocab_size):
            raise InfluenceError(
                f"The tokenizer has {len(tokenizer):,} tokens, and the models have embeddings for {vocabulary:,}. Pass the "
                "models' own tokenizer."
            )
        self._checkpoints = []
        for number, model in enumerate(models):
            model.eval().requires_grad_(False)
            self.choice = choose_parameters(model, layer, parameters, projection_dim)
            self._checkpoints.append(Checkpoint(model, self.choice.parameters, number, projection_dim, seed))
        self.models, self.tokenizer = list(models), tokenizer
        self.batch_size, self.device, self.mask_task_texts = batch_size, models[0].device, mask_task_texts
        self._wide = torch.promote_types(models[0].dtype, torch.float32)
        self.settings: dict[str, Any] = {
            "layer": self.choice.layer,
            "parameters": [parameter.name for parameter in self.choice.parameters],
            "mlm_probability": mlm_probability,
            "projection_dim": projection_dim,
            "seed": seed,
        }
        if mask_task_texts:  # Left out otherwise, so that fingerprints equal those of versions without this option.
            self.settings["mask_task_texts"] = True
        digest = xxhash.xxh3_64(json.dumps(self.settings).encode())
        for checkpoint in self._checkpoints:
            checkpoint.add_to(digest)
        self.fingerprint = digest.hexdigest()
        self._tasks: TaskGradients | None = None

    def max_length(self, asked: int | None = None) -> int:
        """Return the length at which texts are truncated, see `hf_tlm.influence.rows.cut_at`.

        Raises:
            InfluenceError: the models have fewer positions, or no token besides the special ones is left.
        """
        return cut_at(asked, self.tokenizer, longest_input(self.models[0].config))

    def fit(
        self,
        rows: Dataset,
        task_batch_size: int,
        folder: str | os.PathLike | None = None,
        *,
        process_index: int = 0,
        num_processes: int = 1,
    ) -> None:
        """Compute the gradients of a task's batches, each of `task_batch_size` consecutive texts.

        Args:
            rows: tokenised labelled texts: columns `input_ids`, optionally `token_type_ids`, and `label` or `labels`.
            folder: directory to which the gradients are written, block by block, and from which `load` reads them. Existing
                blocks of these texts are not computed again; anything else in the directory is removed. Default: a temporary
                directory that is removed with this object. The gradients may be larger than memory.
            process_index, num_processes: for processes that compute the gradients together, in one directory.

        Raises:
            InfluenceError: there is no text, a column is missing, or a label is not one of the model's classes.
            HfTlmError: the gradients cannot be written.
        """
        check_numbers(InfluenceError, task_batch_size=task_batch_size)
        task_batch_size = to_python(task_batch_size)  # JSON does not accept NumPy's numbers.
        rows = read(rows, "label")
        if not len(rows):
            raise InfluenceError("Influence on a task needs labelled texts, those of its validation split; received none.")
        classes = self._checkpoints[0].model.config.num_labels
        assert classes is not None
        wrong = sorted(set(rows["label"]) - set(range(classes)), key=str)
        if wrong:
            raise InfluenceError(f"The labels of a model with {classes} classes are 0 to {classes - 1}; found {wrong[0]}.")
        if folder is None:
            self._temporary = tempfile.TemporaryDirectory(prefix="hf-tlm-task-gradients-")
            folder = Path(self._temporary.name) / GRADIENTS_FOLDER
        tasks = self._open_task_gradients(rows, task_batch_size, Path(folder))
        # Each process begins at a different block and skips blocks that exist when it gets to them. So no process waits for
        # another, and two that compute the same block at the end write the same content.
        first = len(tasks.stops) * process_index // num_processes
        with tqdm(desc="Task gradients", unit=" examples", total=len(rows), disable=process_index > 0) as bar:
            for number in (*range(first, len(tasks.stops)), *range(first)):
                of_block = tasks.task_batches(number)
                if not tasks.has(number):
                    tasks.write(number, self._compute_block(rows, task_batch_size, of_block))
                bar.update(min(len(rows), of_block.stop * task_batch_size) - of_block.start * task_batch_size)
        self.load(folder)

    def save(self, folder: str | os.PathLike) -> None:
        """Copy the task gradients to a directory, for `load` in another process.

        Raises:
            InfluenceError: there are no task gradients.
            HfTlmError: the directory cannot be written.
        """
        with atomic_directory(folder) as work:
            shutil.copytree(self._fitted().folder, work, dirs_exist_ok=True)

    def load(self, folder: str | os.PathLike) -> None:
        """Use the task gradients in a directory that `fit` or `save` wrote; it must not be removed afterwards.

        Raises:
            InfluenceError: there are no task gradients, or they belong to other models or settings.
        """
        self._tasks = TaskGradients.open(Path(folder), self.device, self.fingerprint)
        self.num_task_batches = self._tasks.num_task_batches
        self._apply_storage(self._tasks)
        self._vocabularies: list[torch.Tensor | None] = []
        for checkpoint in self._checkpoints:
            tied = [g.key for _, g in checkpoint.gradients if isinstance(g, EmbeddingGradient) and g.tied]
            ids = [ids for key in tied for ids in self._tasks.tensors(key, "id")]
            found: Any = torch.unique(torch.cat(ids)).to(self.device) if ids else ()
            self._vocabularies.append(found if len(found) else None)

    def score(self, rows: Dataset) -> np.ndarray:
        """Return the influence of passages, float32 [N, T] (float64 for float64 models); NaN without maskable tokens.

        Args:
            rows: tokenised passages, in any order: columns `id`, `input_ids`, optionally `token_type_ids`.

        Raises:
            InfluenceError: there are no task gradients yet, or a column is missing.
        """
        tasks, rows = self._fitted(), read(rows, "id")
        result = np.full((len(rows), self.num_task_batches), np.nan, str(self._wide).removeprefix("torch."))
        numbers = sum(gradient.numbers_of_a_passage for _, gradient in self._checkpoints[0].gradients)
        # If task gradients have to be read again each time, several small batches are multiplied with them at once.
        most = 0 if tasks.stay else WAITING_BYTES
        waiting: list[tuple[np.ndarray, list[list]]] = []
        held = 0
        for places in batches(rows, min(self._texts_at_once, MAX_NUMBERS // max(1, numbers))):
            texts = take(rows, places)
            kept = [index for index, text in enumerate(texts) if self.masked.maskable(text["input_ids"])]
            if kept:
                waiting.append((places[kept], self._passage_gradients([texts[index] for index in kept])))
                held += nbytes(waiting[-1][1])
            if held > most:
                self._multiply(waiting, result)
                held = 0
        self._multiply(waiting, result)
        return result

    def masked_tokens(self, rows: Dataset) -> np.ndarray:
        """Return how many tokens of each passage are masked when it is scored, int64 [N].

        Args:
            rows: see `score`.

        Raises:
            InfluenceError: a column is missing.
        """
        rows = read(rows, "id")
        counts = np.zeros(len(rows), np.int64)
        for places in batches(rows, READ_ROWS):
            counts[places] = self.masked.counts(take(rows, places))
        return counts

    def _passage_gradients(self, texts: list[dict]) -> list[list]:
        """Return the gradients of passages by checkpoint and parameter, see `Checkpoint.of_passages`."""
        batch = self.masked(texts)
        pairs = zip(self._checkpoints, self._vocabularies, strict=True)
        return [checkpoint.of_passages(batch, vocabulary) for checkpoint, vocabulary in pairs]

    def _multiply(self, waiting: list[tuple[np.ndarray, list[list]]], result: np.ndarray) -> None:
        """Compute the scores of waiting batches, write them to their rows of `result` [N, T], and clear `waiting`."""
        options: dict[str, Any] = {"dtype": self._wide, "device": self.device}
        sums = [torch.zeros(len(row_indices), self.num_task_batches, **options) for row_indices, _ in waiting]
        for tasks, block in self._fitted().blocks() if waiting else ():
            for total, (_, passages) in zip(sums, waiting, strict=True):
                for checkpoint, values in zip(self._checkpoints, passages, strict=True):
                    for (_, gradient), value in zip(checkpoint.gradients, values, strict=True):
                        total[:, tasks] += gradient.products(value, block[gradient.key], tasks.stop - tasks.start)
        for total, (row_indices, _) in zip(sums, waiting, strict=True):
            result[row_indices] = (total / len(self._checkpoints)).cpu().numpy()
        waiting.clear()

    def _open_task_gradients(self, rows: Dataset, task_batch_size: int, folder: Path) -> TaskGradients:
        """Find or begin the folder's task gradients. The first run decides the blocks and how gradients are stored."""
        settings = {"fingerprint": self.fingerprint, "task_batch_size": task_batch_size, "texts": rows_digest(rows)}
        tasks = TaskGradients.find(folder, self.device, **settings)
        if tasks is None:
            numbers = max(1, self._estimate_numbers(rows, task_batch_size))
            size = max(1, min(MAX_NUMBERS // numbers, BLOCK_TEXTS // task_batch_size))
            count = math.ceil(len(rows) / task_batch_size)
            stops = [min(count, first + size) for first in range(0, count, size)]
            whole = [g.key for _, g in self._gradients() if isinstance(g, MatrixGradient) and g.whole]
            tasks = TaskGradients.begin(folder, self.device, stops, settings | {"whole": whole})
        self._apply_storage(tasks)
        return tasks

    def _apply_storage(self, tasks: TaskGradients) -> None:
        for _, gradient in self._gradients():
            if isinstance(gradient, MatrixGradient):
                gradient.whole = gradient.key in tasks.settings["whole"]

    def _compute_block(self, rows: Dataset, task_batch_size: int, tasks: slice) -> Block:
        """Compute the gradients of consecutive task batches."""
        start, stop = tasks.start * task_batch_size, min(len(rows), tasks.stop * task_batch_size)
        like = torch.zeros((), dtype=self._wide, device=self.device)
        stores = {g.key: g.start(tasks.stop - tasks.start, like) for _, g in self._gradients()}
        block_rows = rows.select(range(start, stop))
        task_of_row = np.arange(stop - start) // task_batch_size
        weights = 1 / np.bincount(task_of_row)[task_of_row]
        for indices in batches(block_rows, self._texts_at_once):
            tokens_by_checkpoint = self._task_tokens(block_rows, indices, weights[indices])
            task_of_text = torch.from_numpy(task_of_row[indices]).to(self.device)
            for checkpoint, tokens in zip(self._checkpoints, tokens_by_checkpoint, strict=True):
                by_task = [each.of_texts(task_of_text[each.text]) for each in tokens]
                for module_index, gradient in checkpoint.gradients:
                    gradient.add(stores[gradient.key], by_task[module_index])
        return {g.key: g.finish(stores[g.key]) for _, g in self._gradients()}

    def _estimate_numbers(self, rows: Dataset, task_batch_size: int) -> int:
        """Estimate how many numbers are stored for a task batch, from the first texts."""
        indices = np.arange(min(self._texts_at_once, len(rows)))
        tokens_by_checkpoint = self._task_tokens(rows, indices, np.ones(len(indices)))
        return sum(
            gradient.plan(len(tokens[module_index].text) / len(indices) * task_batch_size)
            for checkpoint, tokens in zip(self._checkpoints, tokens_by_checkpoint, strict=True)
            for module_index, gradient in checkpoint.gradients
        )

    def _task_tokens(self, rows: Dataset, indices: np.ndarray, weights: np.ndarray) -> Iterator[list[Tokens]]:
        collate = self.masked.of_task if self.mask_task_texts else self.masked.collator
        batch = collate(take(rows, indices))
        return (checkpoint.of_tasks(batch, torch.from_numpy(weights).to(self._wide)) for checkpoint in self._checkpoints)

    @property
    def _texts_at_once(self) -> int:
        # A graph over several layers keeps about as much memory for each layer as a forward pass needs for one.
        return max(1, self.batch_size // self.choice.depth)

    def _gradients(self) -> list[tuple[int, Gradient]]:
        return [pair for checkpoint in self._checkpoints for pair in checkpoint.gradients]

    def _fitted(self) -> TaskGradients:
        if self._tasks is None:
            raise InfluenceError("The task gradients have not been computed: call fit, or load what fit saved.")
        return self._tasks


def save_scorer(scorer: InfluenceScorer, folder: str | os.PathLike, *, gradients: bool = True) -> None:
    """Write a scorer's models, tokenizer and settings to a directory, for `load_scorer`.

    Args:
        gradients: write the task gradients too, which the scorer then must have; with False the loaded scorer has to be
            fitted, or to load them.

    Raises:
        InfluenceError: there are no task gradients.
        HfTlmError: the directory cannot be written.
    """
    with atomic_directory(folder) as work:
        for number, model in enumerate(scorer.models):
            export_stock(model, scorer.tokenizer, work / f"model-{number}")
        task = None
        if gradients:
            scorer.save(work / GRADIENTS_FOLDER)
            task = [sha256(path) for path in sorted((work / GRADIENTS_FOLDER).glob("*.safetensors"))]
        model = scorer.models[0]
        details = {
            "models": len(scorer.models),
            "id2label": model.config.id2label,
            "attn_implementation": model.config._attn_implementation,
            "dtype": str(model.dtype).removeprefix("torch."),
            "batch_size": scorer.batch_size,
            "settings": scorer.settings,
            "fingerprint": scorer.fingerprint,
            "task": task,
        }
        (work / SCORER_FILE).write_text(json.dumps(details, indent=2) + "\n", encoding="utf-8")


def load_scorer(folder: str | os.PathLike, device: str | torch.device = "cpu") -> InfluenceScorer:
    """Load the scorer that `save_scorer` wrote; its scores are the same as before.

    Raises:
        InfluenceError: the directory holds no scorer, or its models are not those that were saved.
        ModelError, TokenizerError: see `TlmModel.from_checkpoint` and `load_tokenizer`.
    """
    folder, details = Path(folder), describe_scorer(folder)
    id2label = {int(label): name for label, name in details["id2label"].items()}
    models = [
        # The wrapper that transformers puts around torch's `to` hides from mypy that it is a method.
        TlmModel.from_checkpoint(  # type: ignore[call-arg]
            str(folder / f"model-{number}"), id2label=id2label, attn_implementation=details["attn_implementation"]
        ).to(device=device, dtype=getattr(torch, details["dtype"]))
        for number in range(details["models"])
    ]
    settings = dict(details["settings"])
    parameters = ",".join(settings.pop("parameters"))
    tokenizer = load_tokenizer(str(folder / "model-0"))
    scorer = InfluenceScorer(models, tokenizer, parameters=parameters, batch_size=details["batch_size"], **settings)
    if scorer.fingerprint != details["fingerprint"]:
        raise InfluenceError(
            f"The scorer in {folder} differs from the one that was saved: its files are damaged, or this version of "
            "transformers reads them differently. Save it again with the installed versions."
        )
    if details["task"] is not None:
        scorer.load(folder / GRADIENTS_FOLDER)
    return scorer


def describe_scorer(folder: Path) -> dict:
    """Read the settings that `save_scorer` wrote.

    Raises:
        InfluenceError: the directory holds no scorer.
    """
    try:
        return json.loads((folder / SCORER_FILE).read_text(encoding="utf-8"))
    except OSError as error:
        raise InfluenceError(f"{folder} contains no scorer: {error}. Save one with save_scorer.") from error
