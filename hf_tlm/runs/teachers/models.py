"""Models as teachers: finished models, single or averaged, and a linear model on TF-IDF features.

A network learns from a linear model by texts: passages that are similar to the task's texts become training texts, with the
teacher's probabilities as soft labels. On the task's own texts, answers of a model that was trained on them would be near
perfect and teach nothing, so each answer is from a model that has not seen the text.
"""

from __future__ import annotations

import contextlib
import json
import logging
import re
import time
import warnings
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from itertools import product
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
import xxhash
from accelerate.state import AcceleratorState
from datasets import Dataset
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import StratifiedGroupKFold
from tqdm.auto import tqdm

from hf_tlm.errors import ArgumentsError, HfTlmError
from hf_tlm.hub.repo import FILES, fetch, is_fetched
from hf_tlm.hub.repo_id import find_repo
from hf_tlm.models.adapters import ADAPTER_FILE, ADAPTER_WEIGHTS, base_folder, read_adapter
from hf_tlm.models.linear_start import logistic_regression
from hf_tlm.models.loading import SAFE_WEIGHTS
from hf_tlm.models.onnx_session import OnnxModel
from hf_tlm.runs.averaging import shown_member
from hf_tlm.runs.linear import by_character, tfidf
from hf_tlm.runs.prediction import Predictor, open_predictor
from hf_tlm.runs.prediction_source import Source, find_source
from hf_tlm.runs.teachers.answers import (
    MIN_PROBABILITY,
    Answers,
    class_matrix,
    entropy,
    held_out_correlation,
    held_out_report,
    progress,
)
from hf_tlm.tasks import Task
from hf_tlm.tasks.spec import columns_of_texts
from hf_tlm.training.run_folder import RECORDS, RESULTS_FILE, run_of
from hf_tlm.training.teacher import lineage, teacher_cost
from hf_tlm.utils.files import atomic_file
from hf_tlm.utils.json_files import find_object
from hf_tlm.utils.locks import broadcast_decision, rank_and_size
from hf_tlm.utils.run_files import EXPORT_FILE, ONNX_FILES, is_export
from hf_tlm.utils.seals import checksum

logger = logging.getLogger(__name__)

# Number of texts that are asked about together; after an interruption, asking resumes after the last finished chunk.
CHUNK = 1000
# Whether a folder contains an adapter -> its safetensors files, which loaders prefer to pickles.
_SAFE_WEIGHTS = {False: (SAFE_WEIGHTS, f"{SAFE_WEIGHTS}.index.json"), True: (ADAPTER_WEIGHTS,)}
_LICENSE = re.compile(r"^license:\s*([\w .+-]{1,60})\s*$", re.MULTILINE)
# For the linear model: number of cross-validation folds, and n-grams and C to choose from.
FOLDS, N_GRAMS, C = 5, (1, 2), (1.0, 5.0, 25.0, 125.0)
# With more classes only single words are counted: a fit needs memory for ten times all features of every class.
MOST_CLASSES_FOR_PAIRS = 50
# Maximum number of texts to choose n-grams and C on; more texts are sampled.
MOST_TEXTS_FOR_CHOICE = 4000
ITERATIONS = 300
# Number of passages that the linear model answers for together.
PASSAGES_TOGETHER = 10_000


@dataclass(frozen=True)
class _Model:
    name: str
    source: Source
    matrix: np.ndarray | None
    digest: str
    dtype: str | None = None  # Of the graph that answers for an export; None: torch computes the answers.

    def exported(self) -> OnnxModel | None:
        return None if self.dtype is None else OnnxModel(self.source.folder, self.dtype)


class ModelTeacher:
    """A teacher of one or several models trained on the task, whose probabilities (regression: values) are averaged.

    Args:
        names: folders of finished runs or stock checkpoints, or repositories of these on the Hub, with `@revision` if
            wanted. Of an export onnxruntime runs the 8-bit graph, or if there is none the float32 one.
        mapping: see `class_matrix`.
        options: options of `FinetuneArguments` about the machine.

    Raises:
        ArgumentsError: a model is linear, is for another kind of task, for pairs instead of single texts or vice versa, has
            no safetensors, or other classes.
        ModelError, HubError, SealError: see `find_source`.
    """

    def __init__(self, task: Task, names: Sequence[str], mapping: Mapping[str, str], options: Mapping[str, Any]):
        self.options = dict(options)
        self.models = [_open_model(task, name, mapping) for name in names]
        display_names = [
            shown_member(model.name) + ("" if model.dtype is None else f" ({model.dtype} export)") for model in self.models
        ]
        self.about: dict[str, Any] = {
            "model": display_names[0]
            if len(display_names) == 1
            else f"the average of {len(display_names)} models ({', '.join(display_names)})",
            "teachers": [_describe_model(model) for model in self.models],
        }
        training, earlier = training_costs([(model.name, model.source.folder) for model in self.models])
        if training is not None:
            self.about["training"] = training
        if earlier:
            self.about["earlier"] = earlier
        matrices = [None if model.matrix is None else model.matrix.tolist() for model in self.models]
        self.digest = " ".join(model.digest for model in self.models) + json.dumps(matrices)

    def __call__(self, task: Task, passages: Dataset | None, chunk_folder: Path) -> Answers:
        """Return the teacher's answers; those for the validation texts measure its quality. All processes must call this.

        Args:
            chunk_folder: folder for finished chunks, from which an interrupted call resumes.
        """
        splits = {"validation texts": task.validation, "training texts": task.train}
        if passages is not None:
            splits["passages"] = passages.select_columns(["text"])
        width = max(1, task.num_labels)
        averages = {
            "passages": np.zeros((0, width)),
            **{name: np.zeros((len(rows), width)) for name, rows in splits.items()},
        }
        mean_entropy = np.zeros(len(averages["passages"]))
        tokens, parameters, flops, seconds, rank = 0, 0, 0.0, 0.0, rank_and_size()[0]
        for model_number, model in enumerate(self.models, 1):
            with open_predictor(model.source, exported=model.exported(), **self.options) as predictor:
                for name, rows in splits.items():
                    counter = f" {model_number} of {len(self.models)}" if len(self.models) > 1 else ""
                    chunk_prefix = chunk_folder / f"{model_number}-{name.replace(' ', '-')}"
                    answers, num_tokens, elapsed = _ask_model(
                        predictor, model, rows, chunk_prefix, f"Asking the teacher{counter} about {name}"
                    )
                    averages[name] += answers / len(self.models)
                    if name == "passages" and rank == 0 and model.matrix is not None:
                        mean_entropy += entropy(answers) / len(self.models)
                    tokens += num_tokens
                    seconds += elapsed
                    flops += 2.0 * num_tokens * predictor.parameters
                parameters += predictor.parameters
            # The predictor's precision is global state of the process, and the run's own may differ.
            AcceleratorState._reset_state()
        report: dict[str, Any] = {"parameters": parameters, "tokens": tokens, "flops": flops, "seconds": round(seconds, 3)}
        disagreement, labels = mean_entropy, np.asarray(task.validation["label"][:])
        if task.kind == "regression":
            report |= held_out_correlation("validation texts", averages["validation texts"], labels)
        else:
            report |= held_out_report("validation texts", averages["validation texts"], labels)
            # The mean divergence from the average is the entropy of the average minus the mean entropy.
            disagreement = np.maximum(entropy(averages["passages"]) - mean_entropy, 0.0)
        return Answers(averages["training texts"], averages["passages"], report, disagreement)


def _open_model(task: Task, name: str, mapping: Mapping[str, str]) -> _Model:
    source, display_name = find_source(name), shown_member(name)
    dtype = _export_dtype(source.folder)
    if dtype is not None:
        source = find_source(name, files=(*FILES, ONNX_FILES[dtype]))
    if source.linear:
        raise ArgumentsError(
            f"The teacher {display_name} is a linear model that has seen all training texts and is overconfident on them. "
            "Pass --teacher linear, which answers for each text with a model that has not seen it."
        )
    if source.spec.kind != task.kind:
        raise ArgumentsError(
            f"The teacher {display_name} is for {source.spec.kind} tasks, and {task.name} is a {task.kind} task."
        )
    if not source.stock and task.has_pairs != (len(source.spec.text_columns) == 2):
        trained_on, task_rows = ("single texts", "pairs") if task.has_pairs else ("pairs of texts", "single texts")
        raise ArgumentsError(f"The teacher {display_name} was trained on {trained_on}, but this task has {task_rows}.")
    folders = [source.folder]
    if (source.folder / ADAPTER_FILE).is_file():
        folders.append(Path(base_folder(source.folder, read_adapter(source.folder))))
    for folder in folders if dtype is None else ():
        if not any((folder / weights).is_file() for weights in _SAFE_WEIGHTS[(folder / ADAPTER_FILE).is_file()]):
            subject = f"The teacher {display_name}" if folder == source.folder else f"The base of the adapter {display_name}"
            raise ArgumentsError(
                f"{subject} has no weights in the safetensors format, which a teacher needs. Save it again with "
                "save_pretrained of a current version of transformers."
            )
    matrix = None
    if task.kind == "classification":
        matrix = class_matrix(source.label_names, task.label_names, mapping, f"the teacher {display_name}")
    digests = [_digest(folder) for folder in folders]
    if dtype is not None:
        graph = source.folder / ONNX_FILES[dtype]
        if not graph.is_file():
            raise ArgumentsError(f"The teacher {display_name} is an export without {ONNX_FILES[dtype]}. Export it again.")
        digests.append(checksum(graph))
    return _Model(name, source, matrix, " ".join(digests), dtype)


def _export_dtype(folder: Path) -> str | None:
    """Return the dtype of the graph that answers for an export, which has no weights for torch; None for other folders."""
    if not is_export(folder):
        return None
    files = (find_object(folder / EXPORT_FILE) or {}).get("files") or {}
    return next((dtype for dtype in ("int8", "fp32", "fp16") if ONNX_FILES[dtype] in files), "fp32")


def _digest(folder: Path) -> str:
    records = (*RECORDS, EXPORT_FILE)  # They hold times, among others.
    files = [path for path in sorted(folder.iterdir()) if path.is_file() and path.name not in records]
    files = [path for path in files if any(fnmatch(path.name, pattern) for pattern in FILES)]
    digest = xxhash.xxh3_128()
    for path in files:
        digest.update(f"{path.name} {checksum(path)} ".encode())
    return digest.hexdigest()


def _describe_model(model: _Model) -> dict[str, Any]:
    """Return the facts about a teacher for a card: name, commit if it is on the Hub, licence if its card has one, digest."""
    name, folder = shown_member(model.name), model.source.folder
    revision: str | None = None
    if (repo := find_repo(model.name, "model")) is not None and is_fetched(folder):
        name, revision = repo.id, folder.name
        folder = fetch(repo, allow_patterns=["README.md"])
    card, license = folder / "README.md", None
    if card.is_file():
        with card.open(encoding="utf-8", errors="replace") as file:
            match = _LICENSE.search(file.read(1 << 16))
        license = match[1] if match else None
    return {"name": name, "revision": revision, "license": license, "digest": model.digest}


def training_costs(models: Sequence[tuple[str, Path]]) -> tuple[dict[str, float] | None, list[dict[str, Any]]]:
    """Return FLOPs and seconds of the training of models (None if unknown), and their own teachers (see `lineage`).

    The cost of a run is that of all its seeds, or of one seed if the model is its folder `seed-<n>/model`; the cost of the
    run's own teacher is added, but only once per run. An export has the cost of the models from which it was made.

    Args:
        models: the name of each, as a user gives it, and its folder.
    """
    costs, earlier, run_folders = [], [], set()
    for name_or_path, path in models:
        folder, (run_folder, run) = path.resolve(), run_of(path)
        if is_export(folder):
            exported = find_object(folder / EXPORT_FILE) or {}
            run = {"rounds": [exported.get("training")], "teacher": {"earlier": exported.get("taught_by")}}
        teacher, is_seed_model = run.get("teacher") or {}, run_folder != folder and Path(name_or_path).resolve() == folder
        try:
            seeds = (
                [find_object(folder.parent / RESULTS_FILE) or {}] if is_seed_model else run.get("seeds") or run.get("splits")
            )
            cost_records = run.get("rounds") or [seed["cost"] for seed in seeds or [run]]
            cost = {name: float(sum(cost_record[name] for cost_record in cost_records)) for name in ("flops", "seconds")}
            if run_folder not in run_folders and "rounds" not in run:  # The costs of rounds already include their teachers.
                cost = {name: value + teacher_cost(teacher, name) for name, value in cost.items()}
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError):
            cost = {}  # A stock checkpoint, a run of an older version, or a record with invalid content.
        costs.append(cost if all(0 <= value < float("inf") for value in cost.values()) else {})
        earlier += [link for link in lineage(teacher) if link not in earlier]
        run_folders.add(run_folder)
    total = {name: sum(cost[name] for cost in costs) for name in ("flops", "seconds")} if all(costs) else None
    return total, earlier


def _ask_model(
    predictor: Predictor, model: _Model, rows: Dataset, chunk_prefix: Path, description: str
) -> tuple[np.ndarray, int, float]:
    """Return a model's answers in the task's classes, float64 [N, C], the number of tokens it read, and the seconds it took.

    Only the first process returns these, other processes return empty values. It writes each chunk to a file, and includes
    the chunks of an earlier start.
    """
    rank, processes = rank_and_size()
    starts = range(0, len(rows), CHUNK)
    chunks = (
        {start: saved for start in starts if (saved := _load_chunk(chunk_prefix, start)) is not None} if rank == 0 else {}
    )
    # All processes must compute the same missing chunks, although only the first one knows the files.
    missing = broadcast_decision([start for start in starts if start not in chunks], processes)
    for start in progress(missing, description, f" x {CHUNK} texts"):
        chunk = rows[start : start + CHUNK]
        texts = Dataset.from_dict({name: chunk[name] for name in columns_of_texts(rows)})
        start_time, tokens_before = time.monotonic(), predictor.tokens
        try:
            predictions = predictor(texts)
        except HfTlmError as error:
            raise ArgumentsError(f"The teacher {shown_member(model.name)} cannot answer. {error}") from error
        answers = _convert_predictions(predictions, model)
        chunks[start] = answers, predictor.tokens - tokens_before, time.monotonic() - start_time
        if rank == 0:
            with atomic_file(chunk_prefix.with_name(f"{chunk_prefix.name}-{start}.npz")) as file:
                np.savez(file, answers=answers, tokens=chunks[start][1], seconds=chunks[start][2])
    if rank > 0 or not len(rows):
        return np.zeros(()), 0, 0.0
    all_answers, tokens, seconds = zip(*(chunks[start] for start in starts), strict=True)
    return np.concatenate(all_answers), sum(tokens), sum(seconds)


def _load_chunk(chunk_prefix: Path, start: int) -> tuple[np.ndarray, int, float] | None:
    try:
        with np.load(chunk_prefix.with_name(f"{chunk_prefix.name}-{start}.npz"), allow_pickle=False) as file:
            return file["answers"], int(file["tokens"]), float(file["seconds"])
    except (OSError, ValueError, EOFError, KeyError, TypeError, AttributeError, BadZipFile):
        return None  # The file is missing or truncated, so the chunk is computed again.


def _convert_predictions(predictions: Sequence[Mapping[str, Any]], model: _Model) -> np.ndarray:
    if model.matrix is None:
        answers = np.array([[prediction["prediction"]] for prediction in predictions], dtype=np.float64)
    else:
        answers = np.array(
            [[prediction["probabilities"][name] for name in model.source.label_names] for prediction in predictions]
        )
        answers = np.maximum(answers @ model.matrix, MIN_PROBABILITY)
        answers /= answers.sum(1, keepdims=True)
    if not np.isfinite(answers).all():
        raise ArgumentsError(
            f"The teacher {shown_member(model.name)} gives numbers that are not finite. Remove this teacher."
        )
    return answers


class LinearTeacher:
    """A teacher that is a logistic regression on TF-IDF features.

    N-grams (1, 2) and C (1 to 125) are chosen by the lowest cross-entropy on held-out training texts, in folds that keep
    equal texts together; the validation split is not used. For more than 50 classes only single words are counted.

    Raises:
        ArgumentsError: the task is not classification, or has pairs of texts.
    """

    about = {"model": "logistic regression on TF-IDF"}
    digest = "linear 1"

    def __init__(self, task: Task):
        if task.kind != "classification":
            raise ArgumentsError(
                f"teacher linear is only for classification; {task.name} is a {task.kind} task. Remove --teacher."
            )
        if task.has_pairs:
            raise ArgumentsError("teacher linear is only for single texts; this task has pairs. Remove --teacher.")
        if by_character(task.train["text"]):
            self.digest = "linear 2"  # Invalidates answers cached before such texts were tokenized by character.
        if task.num_labels > MOST_CLASSES_FOR_PAIRS:
            self.digest = "linear 3"  # Invalidates answers cached before many classes were limited to single words.

    def __call__(self, task: Task, passages: Dataset | None) -> Answers:
        """Return the teacher's answers; those for training texts are out-of-fold.

        Raises:
            ArgumentsError: there are too few texts to hold any out.
        """
        texts, labels, classes = list(task.train["text"]), np.asarray(task.train["label"][:]), task.num_labels
        folds = _folds(texts, labels)
        if classes > MOST_CLASSES_FOR_PAIRS:
            logger.warning(
                "%s has %d classes, more than %d: its linear teacher counts only single words. Trying pairs of words too "
                "would take many times as long.",
                *(task.name, classes, MOST_CLASSES_FOR_PAIRS),
            )
        (n, c), tried = _choose_settings(texts, labels, classes)
        answers = np.full((len(texts), classes), MIN_PROBABILITY)
        for train, test in tqdm(folds, desc="Asking the teacher", unit=" folds"):
            answers[test] = _fit_linear_model(n, c, [texts[i] for i in train], labels[train], classes)(
                [texts[i] for i in test]
            )
        report: dict[str, Any] = {"n_grams": n, "C": c, "settings_tried": tried}
        loss = round(_cross_entropy(answers, labels), 4)
        report |= held_out_report("held-out training texts", answers, labels, held_out_cross_entropy=loss)
        passage_answers = np.zeros((0, classes))
        if passages is not None and len(passages):
            model, rows = _fit_linear_model(n, c, texts, labels, classes), passages["text"]
            chunks = progress(range(0, len(rows), PASSAGES_TOGETHER), "Asking the teacher about passages", " chunks")
            passage_answers = np.concatenate([model(rows[start : start + PASSAGES_TOGETHER]) for start in chunks])
        return Answers(answers, passage_answers, report)


def _fit_linear_model(
    n: int, c: float, texts: Sequence[str], labels: np.ndarray, classes: int
) -> Callable[[Sequence[str]], np.ndarray]:
    """Fit a model to texts, and return it as a function: other texts -> probabilities, float64 [N, C]."""
    features = tfidf(n, characters=by_character(texts)).fit(texts)
    model = logistic_regression(features.transform(texts), labels, c, ITERATIONS)
    return lambda new_texts: _predict_all_classes(model, features.transform(new_texts), classes)


def _predict_all_classes(model: LogisticRegression, features: Any, classes: int) -> np.ndarray:
    """Return probabilities of all classes, including those that the model has not seen, float64 [N, C]."""
    probabilities = np.full((features.shape[0], classes), MIN_PROBABILITY)
    probabilities[:, model.classes_] = np.maximum(model.predict_proba(features), MIN_PROBABILITY)
    return probabilities / probabilities.sum(1, keepdims=True)


def _choose_settings(texts: list[str], labels: np.ndarray, classes: int) -> tuple[tuple[int, float], int]:
    """Choose (n, C) by the lowest cross-entropy on held-out texts; also return the number of pairs that were tried."""
    if len(texts) > MOST_TEXTS_FOR_CHOICE:
        sample = np.sort(np.random.default_rng(0).permutation(len(texts))[:MOST_TEXTS_FOR_CHOICE])
        texts, labels = [texts[i] for i in sample], labels[sample]
    folds = _folds(texts, labels)
    losses: defaultdict[tuple[int, float], float] = defaultdict(float)
    characters = by_character(texts)
    n_grams = N_GRAMS[:1] if classes > MOST_CLASSES_FOR_PAIRS else N_GRAMS
    grid = list(product(n_grams, folds))
    for n, (train, test) in tqdm(grid, desc="Choosing the linear teacher", unit=" fits"):
        vectorizer = tfidf(n, characters=characters)
        train_features = vectorizer.fit_transform([texts[i] for i in train])
        test_features = vectorizer.transform([texts[i] for i in test])
        for c in C:
            answers = _predict_all_classes(
                logistic_regression(train_features, labels[train], c, ITERATIONS), test_features, classes
            )
            losses[n, c] += _cross_entropy(answers, labels[test]) * len(test)
    return min(losses, key=lambda pair: losses[pair]), len(losses)


def _folds(texts: Sequence[str], labels: np.ndarray) -> list[tuple[np.ndarray, np.ndarray]]:
    """Return folds (rows to fit, rows held out) in which texts that differ only in case and spaces stay together."""
    groups = np.unique([" ".join(text.lower().split()) for text in texts], return_inverse=True)[1]
    splitter = StratifiedGroupKFold(max(2, min(FOLDS, groups.max() + 1)), shuffle=True, random_state=0)
    folds = []
    with warnings.catch_warnings(), contextlib.suppress(ValueError):  # Every class has fewer texts than there are folds.
        # The warning is about a class with fewer texts than folds, which some folds do not hold out.
        warnings.simplefilter("ignore", UserWarning)
        folds = [(train, test) for train, test in splitter.split(texts, labels, groups) if len(test)]
    if not all(len(train) for train, _ in folds) or not folds:
        raise ArgumentsError(
            f"teacher linear holds out parts of the training texts, but these {len(texts)} ({groups.max() + 1} different "
            "ones) are too few. Remove --teacher."
        )
    for train, _ in folds:
        if len(set(labels[train].tolist())) < 2:
            raise ArgumentsError(
                "teacher linear needs texts of at least two classes in every part of the training texts on which it is "
                f"fitted; one part of these {len(texts)} texts has only one class. Remove --teacher."
            )
    return folds


def _cross_entropy(probabilities: np.ndarray, labels: np.ndarray) -> float:
    return float(-np.log(np.maximum(probabilities[np.arange(len(labels)), labels], MIN_PROBABILITY)).mean())
