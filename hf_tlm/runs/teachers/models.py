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
from hf_tlm.runs.averaging import shown_member
from hf_tlm.runs.linear import by_character, tfidf
from hf_tlm.runs.prediction import Predictor, open_predictor
from hf_tlm.runs.prediction_source import Source, find_source
from hf_tlm.runs.teachers.answers import LEAST, Answers, class_matrix, entropy, held_out, progress
from hf_tlm.tasks import Task
from hf_tlm.tasks.spec import columns_of_texts
from hf_tlm.training.run_folder import RECORDS, RESULTS_FILE, run_of
from hf_tlm.training.teacher import lineage, teacher_cost
from hf_tlm.utils.files import atomic_file
from hf_tlm.utils.json_files import find_object
from hf_tlm.utils.locks import broadcast_decision, rank_and_size
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


class ModelTeacher:
    """A teacher of one or several models trained on the task, whose probabilities (regression: values) are averaged.

    Args:
        names: folders of finished runs or stock checkpoints, or repositories of these on the Hub, with `@revision` if
            wanted.
        mapping: see `class_matrix`.
        options: options of `FinetuneArguments` about the machine.

    Raises:
        ArgumentsError: a model is linear, is for another kind of task, for pairs instead of single texts or vice versa, has
            no safetensors, or other classes.
        ModelError, HubError, SealError: see `find_source`.
    """

    def __init__(self, task: Task, names: Sequence[str], mapping: Mapping[str, str], options: Mapping[str, Any]):
        self.options = dict(options)
        self.models = [_opened(task, name, mapping) for name in names]
        shown = [shown_member(name) for name in names]
        self.about: dict[str, Any] = {
            "model": shown[0] if len(shown) == 1 else f"the average of {len(shown)} models ({', '.join(shown)})",
            "teachers": [_described(one) for one in self.models],
        }
        costs, earlier = _trained(self.models)
        if all(costs):
            self.about["training"] = {name: sum(cost[name] for cost in costs) for name in ("flops", "seconds")}
        if earlier:
            self.about["earlier"] = earlier
        matrices = [None if one.matrix is None else one.matrix.tolist() for one in self.models]
        self.digest = " ".join(one.digest for one in self.models) + json.dumps(matrices)

    def __call__(self, task: Task, passages: Dataset | None, parts: Path) -> Answers:
        """Return the teacher's answers; those for the validation texts measure its quality. All processes must call this.

        Args:
            parts: folder for finished chunks, from which an interrupted call resumes.
        """
        splits = {"validation texts": task.validation, "training texts": task.train}
        if passages is not None:
            splits["passages"] = passages.select_columns(["text"])
        width = max(1, task.num_labels)
        said = {"passages": np.zeros((0, width)), **{name: np.zeros((len(rows), width)) for name, rows in splits.items()}}
        own_entropy = np.zeros(len(said["passages"]))
        tokens, parameters, flops, seconds, rank = 0, 0, 0.0, 0.0, rank_and_size()[0]
        for number, one in enumerate(self.models, 1):
            with open_predictor(one.source, **self.options) as predictor:
                for name, rows in splits.items():
                    of = f" {number} of {len(self.models)}" if len(self.models) > 1 else ""
                    part = parts / f"{number}-{name.replace(' ', '-')}"
                    answers, read, took = _asked(predictor, one, rows, part, f"Asking the teacher{of} about {name}")
                    said[name] += answers / len(self.models)
                    if name == "passages" and rank == 0 and one.matrix is not None:
                        own_entropy += entropy(answers) / len(self.models)
                    tokens, seconds, flops = tokens + read, seconds + took, flops + 2.0 * read * predictor.parameters
                parameters += predictor.parameters
            # The predictor's precision is global state of the process, and the run's own may differ.
            AcceleratorState._reset_state()
        report: dict[str, Any] = {"parameters": parameters, "tokens": tokens, "flops": flops, "seconds": round(seconds, 3)}
        apart = own_entropy
        if task.kind == "classification":
            report |= held_out("validation texts", said["validation texts"], np.asarray(task.validation["label"][:]))
            # The mean divergence from the average is the entropy of the average minus the mean entropy.
            apart = np.maximum(entropy(said["passages"]) - own_entropy, 0.0)
        return Answers(said["training texts"], said["passages"], report, apart)


def _opened(task: Task, name: str, mapping: Mapping[str, str]) -> _Model:
    source, shown = find_source(name), shown_member(name)
    if source.linear:
        raise ArgumentsError(
            f"The teacher {shown} is a linear model that has seen all training texts and is overconfident on them. Pass "
            "--teacher linear, which answers for each text with a model that has not seen it."
        )
    if source.spec.kind != task.kind:
        raise ArgumentsError(f"The teacher {shown} is for {source.spec.kind} tasks, and {task.name} is a {task.kind} task.")
    if not source.stock and task.has_pairs != (len(source.spec.text_columns) == 2):
        was, here = ("single texts", "pairs") if task.has_pairs else ("pairs of texts", "single texts")
        raise ArgumentsError(f"The teacher {shown} was trained on {was}, but this task has {here}.")
    folders = [source.folder, *_base(source.folder)]
    for folder in folders:
        if not any((folder / weights).is_file() for weights in _SAFE_WEIGHTS[(folder / ADAPTER_FILE).is_file()]):
            whose = f"The teacher {shown}" if folder == source.folder else f"The base of the adapter {shown}"
            raise ArgumentsError(
                f"{whose} has no weights in the safetensors format, which a teacher needs. Save it again with "
                "save_pretrained of a current version of transformers."
            )
    matrix = None
    if task.kind == "classification":
        matrix = class_matrix(source.label_names, task.label_names, mapping, f"the teacher {shown}")
    return _Model(name, source, matrix, " ".join(map(_digest, folders)))


def _base(folder: Path) -> list[Path]:
    """Return the folder of an adapter's base model in a list; an empty list if the folder contains no adapter."""
    if not (folder / ADAPTER_FILE).is_file():
        return []
    return [Path(base_folder(folder, read_adapter(folder)))]


def _digest(folder: Path) -> str:
    """Return a digest of the files in a model's folder that its predictions depend on."""
    files = [path for path in sorted(folder.iterdir()) if path.is_file() and path.name not in RECORDS]
    files = [path for path in files if any(fnmatch(path.name, pattern) for pattern in FILES)]
    digest = xxhash.xxh3_128()
    for path in files:
        digest.update(f"{path.name} {checksum(path)} ".encode())
    return digest.hexdigest()


def _described(one: _Model) -> dict[str, Any]:
    """Return the facts about a teacher for a card: name, commit if it is on the Hub, licence if its card has one, digest."""
    name, folder = shown_member(one.name), one.source.folder
    revision: str | None = None
    if (repo := find_repo(one.name, "model")) is not None and is_fetched(folder):
        name, revision = repo.id, folder.name
        folder = fetch(repo, allow_patterns=["README.md"])
    card, license = folder / "README.md", None
    if card.is_file():
        with card.open(encoding="utf-8", errors="replace") as file:
            found = _LICENSE.search(file.read(1 << 16))
        license = found[1] if found else None
    return {"name": name, "revision": revision, "license": license, "digest": one.digest}


def _trained(models: Sequence[_Model]) -> tuple[list[dict[str, float]], list[dict[str, Any]]]:
    """Return FLOPs and seconds of the training of each model (empty if unknown), and their own teachers (see `lineage`).

    The cost of a run is that of all its seeds, or of one seed if the model is its folder `seed-<n>/model`; the cost of the
    run's own teacher is added, but only once per run.
    """
    costs, earlier, homes = [], [], set()
    for one in models:
        folder, (home, run) = one.source.folder.resolve(), run_of(one.source.folder)
        teacher, named = run.get("teacher") or {}, home != folder and Path(one.name).resolve() == folder
        try:
            seeds = [find_object(folder.parent / RESULTS_FILE) or {}] if named else run.get("seeds") or run.get("splits")
            parts = run.get("rounds") or [seed["cost"] for seed in seeds or [run]]
            cost = {name: float(sum(part[name] for part in parts)) for name in ("flops", "seconds")}
            if home not in homes and "rounds" not in run:  # The costs of rounds already include their teachers.
                cost = {name: value + teacher_cost(teacher, name) for name, value in cost.items()}
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError):
            cost = {}  # A stock checkpoint, a run of an older version, or a record with invalid content.
        costs.append(cost if all(0 <= value < float("inf") for value in cost.values()) else {})
        earlier += [link for link in lineage(teacher) if link not in earlier]
        homes.add(home)
    return costs, earlier


def _asked(predictor: Predictor, one: _Model, rows: Dataset, part: Path, description: str) -> tuple[np.ndarray, int, float]:
    """Return a model's answers in the task's classes, float64 [N, C], the number of tokens it read, and the seconds it took.

    Only the first process returns these, other processes return empty values. It writes each chunk to a file, and includes
    the chunks of an earlier start.
    """
    rank, processes = rank_and_size()
    starts = range(0, len(rows), CHUNK)
    kept = {start: found for start in starts if (found := _kept(part, start)) is not None} if rank == 0 else {}
    # All processes must compute the same missing chunks, although only the first one knows the files.
    missing = broadcast_decision([start for start in starts if start not in kept], processes)
    for start in progress(missing, description, f" x {CHUNK} texts"):
        chunk = rows[start : start + CHUNK]
        texts = Dataset.from_dict({name: chunk[name] for name in columns_of_texts(rows)})
        begun, before = time.monotonic(), predictor.tokens
        try:
            predictions = predictor(texts)
        except HfTlmError as error:
            raise ArgumentsError(f"The teacher {shown_member(one.name)} cannot answer. {error}") from error
        answers = _numbers(predictions, one)
        kept[start] = answers, predictor.tokens - before, time.monotonic() - begun
        if rank == 0:
            with atomic_file(part.with_name(f"{part.name}-{start}.npz")) as file:
                np.savez(file, answers=answers, tokens=kept[start][1], seconds=kept[start][2])
    if rank > 0 or not len(rows):
        return np.zeros(()), 0, 0.0
    said, tokens, seconds = zip(*(kept[start] for start in starts), strict=True)
    return np.concatenate(said), sum(tokens), sum(seconds)


def _kept(part: Path, start: int) -> tuple[np.ndarray, int, float] | None:
    try:
        with np.load(part.with_name(f"{part.name}-{start}.npz"), allow_pickle=False) as kept:
            return kept["answers"], int(kept["tokens"]), float(kept["seconds"])
    except (OSError, ValueError, EOFError, KeyError, TypeError, AttributeError, BadZipFile):
        return None  # The file is missing or truncated, so the chunk is computed again.


def _numbers(predictions: Sequence[Mapping[str, Any]], one: _Model) -> np.ndarray:
    if one.matrix is None:
        said = np.array([[found["prediction"]] for found in predictions], dtype=np.float64)
    else:
        said = np.array([[found["probabilities"][name] for name in one.source.label_names] for found in predictions])
        said = np.maximum(said @ one.matrix, LEAST)
        said /= said.sum(1, keepdims=True)
    if not np.isfinite(said).all():
        raise ArgumentsError(f"The teacher {shown_member(one.name)} gives numbers that are not finite. Remove this teacher.")
    return said


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
        (n, c), tried = _choose(texts, labels, classes)
        answers = np.full((len(texts), classes), LEAST)
        for train, test in tqdm(folds, desc="Asking the teacher", unit=" folds"):
            answers[test] = _fitted(n, c, [texts[i] for i in train], labels[train], classes)([texts[i] for i in test])
        report: dict[str, Any] = {"n_grams": n, "C": c, "settings_tried": tried}
        loss = round(_cross_entropy(answers, labels), 4)
        report |= held_out("held-out training texts", answers, labels, held_out_cross_entropy=loss)
        said = np.zeros((0, classes))
        if passages is not None and len(passages):
            model, rows = _fitted(n, c, texts, labels, classes), passages["text"]
            chunks = progress(range(0, len(rows), PASSAGES_TOGETHER), "Asking the teacher about passages", " chunks")
            said = np.concatenate([model(rows[start : start + PASSAGES_TOGETHER]) for start in chunks])
        return Answers(answers, said, report)


def _fitted(
    n: int, c: float, texts: Sequence[str], labels: np.ndarray, classes: int
) -> Callable[[Sequence[str]], np.ndarray]:
    """Fit a model to texts, and return it as a function: other texts -> probabilities, float64 [N, C]."""
    features = tfidf(n, characters=by_character(texts)).fit(texts)
    model = logistic_regression(features.transform(texts), labels, c, ITERATIONS)
    return lambda others: _spread(model, features.transform(others), classes)


def _spread(model: LogisticRegression, features: Any, classes: int) -> np.ndarray:
    """Return probabilities of all classes, including those that the model has not seen, float64 [N, C]."""
    found = np.full((features.shape[0], classes), LEAST)
    found[:, model.classes_] = np.maximum(model.predict_proba(features), LEAST)
    return found / found.sum(1, keepdims=True)


def _choose(texts: list[str], labels: np.ndarray, classes: int) -> tuple[tuple[int, float], int]:
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
        seen = vectorizer.fit_transform([texts[i] for i in train])
        unseen = vectorizer.transform([texts[i] for i in test])
        for c in C:
            answers = _spread(logistic_regression(seen, labels[train], c, ITERATIONS), unseen, classes)
            losses[n, c] += _cross_entropy(answers, labels[test]) * len(test)
    return min(losses, key=lambda pair: losses[pair]), len(losses)


def _folds(texts: Sequence[str], labels: np.ndarray) -> list[tuple[np.ndarray, np.ndarray]]:
    """Return folds (rows to fit, rows held out) in which texts that differ only in case and spaces stay together.

    Raises:
        ArgumentsError: there are too few texts, or a fold has texts of only one class to fit.
    """
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
    return float(-np.log(np.maximum(probabilities[np.arange(len(labels)), labels], LEAST)).mean())
