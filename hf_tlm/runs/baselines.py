"""Baselines of a classification task that need no network: the majority class, and a linear model on TF-IDF."""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from datasets import Dataset
from scipy import sparse
from scipy.special import softmax
from sklearn.feature_extraction.text import CountVectorizer, TfidfTransformer
from sklearn.svm import LinearSVC
from tqdm.auto import tqdm

from hf_tlm.errors import HfTlmError
from hf_tlm.metrics import load_metric
from hf_tlm.runs.arguments import LINEAR, MAJORITY, baseline_names
from hf_tlm.runs.linear import WEIGHTS_FILE, LinearModel, as_margins, best_temperature, by_character, token_pattern
from hf_tlm.runs.records import SAVED_FILE, logits_to_predictions, predictions_jsonl, saved_settings
from hf_tlm.tasks import Task
from hf_tlm.tasks.spec import check_task, columns_of_texts
from hf_tlm.utils.arrow_files import cache_folder
from hf_tlm.utils.files import atomic_write
from hf_tlm.utils.json_files import checked_text, find_checked
from hf_tlm.utils.run_files import LINEAR_FILE, RESULTS_FILE, SETTINGS_FILE, predictions_file
from hf_tlm.utils.seals import write_seal

logger = logging.getLogger(__name__)

N_GRAMS = (1, 2, 3)
# Words in the training texts above which trigrams are left out: they would take too long, and bigrams suffice.
MOST_WORDS_FOR_TRIGRAMS = 1_000_000
# Training texts above which settings are chosen on a sample of as many.
MOST_TEXTS = 30_000
# Words in the training texts above which a run does not fit the linear model: it would take more than a few minutes.
MOST_WORDS = 15_000_000
# Version of the cached files: increase it when equal tasks would get other scores, or files other contents.
_CACHE_VERSION = 2
C = (0.05, 0.2, 1.0, 5.0)
CLASS_WEIGHTS = (None, "balanced")
# Classes above which only a part of the grid is tried: a fit solves one problem on all features for each class.
MOST_CLASSES_FOR_GRID = 50
# Length of n-grams; column -> its n-grams and their idf; split -> features of its texts, float32 [N, F].
_Features = tuple[int, dict[str, tuple[list[str], np.ndarray]], dict[str, sparse.csr_matrix]]


@dataclass
class Baseline:
    """A baseline model that is no network, and its scores.

    name: `majority class` or `linear`.
    settings: the hyperparameters chosen on validation, or the majority class.
    scores: split -> metric -> value of at most 1, for validation and, where there is one, test; accuracy is always included.
    predictions: split -> int [N], indices of classes in the order of the rows.
    model: the linear model, fitted to the training split.
    """

    name: str
    settings: dict[str, Any]
    scores: dict[str, dict[str, float]]
    seconds: float
    predictions: dict[str, np.ndarray] = field(repr=False, default_factory=dict)
    model: LinearModel | None = field(repr=False, default=None)

    def to_dict(self) -> dict[str, Any]:
        """Return JSON values, without the predictions and the model."""
        return {"name": self.name, "settings": self.settings, "scores": self.scores, "seconds": self.seconds}

    def save(self, folder: str | os.PathLike, task: Task) -> None:
        """Write `results.json`, and the predictions for each split as JSON lines: id, label, prediction (names).

        A linear model is saved too, and the predictions then contain the probabilities of all classes: `hf-tlm predict`
        accepts the folder.

        Raises:
            HfTlmError: it is the folder of a run, whose files of these names would be replaced.
        """
        if (Path(folder) / SETTINGS_FILE).is_file():
            raise HfTlmError(f"{folder} holds a run, whose results would be replaced. Choose another folder.")
        folder, saved_files = Path(folder), [RESULTS_FILE, SAVED_FILE, LINEAR_FILE, WEIGHTS_FILE]
        for split, class_indices in self.predictions.items():
            rows, names = task.splits[split], task.label_names
            predictions = [{"prediction": names[class_index]} for class_index in class_indices.tolist()]
            if self.model is not None:
                predictions = logits_to_predictions(self.model.logits(rows), names)
            atomic_write(predictions_file(folder, split), predictions_jsonl(task.kind, names, rows, predictions))
            saved_files.append(str(predictions_file(folder, split).relative_to(folder)))
        if self.model is not None:
            atomic_write(folder / SAVED_FILE, saved_settings(task, {}))
            self.model.save(folder)
        record = {"task": task.name, "task_fingerprint": task.fingerprint, "metric": task.metric, **self.to_dict()}
        atomic_write(folder / RESULTS_FILE, json.dumps(record, indent=2) + "\n")
        write_seal(folder, *saved_files)


def make_baselines(task: Task, baseline: str = "all") -> list[Baseline]:
    """Compute the baselines of a task.

    Args:
        baseline: one of the choices of `BaselineArguments.baseline`.

    Raises:
        TaskError: the task is of another kind than classification.
    """
    makers = {MAJORITY: majority_class, LINEAR: linear_model}
    return [makers[name](task) for name in baseline_names(baseline)]


def to_beat(task: Task, samples: Sequence[Task] = ()) -> list[dict[str, Any]]:
    """Return the baseline scores that a classifier has to beat: `name`, `settings` and `scores` of every baseline.

    They are cached by the task's content. Above `MOST_WORDS` words of training texts the linear model is left out;
    `hf-tlm baseline` fits it. The list is empty for tasks of other kinds than classification.

    Args:
        samples: for a run that trains on a sample of the texts, the task as each of its seeds has it. The scores are then
            means over the first of these, as many as hold `MOST_TEXTS` texts together, but at least one.
    """
    return _load_or_compute(task, samples)["baselines"] if task.spec.kind == "classification" else []


def linear_predictions(task: Task) -> dict[str, list[dict[str, Any]]]:
    """Return the predictions of the linear model of `to_beat`: split -> `prediction` and `probabilities` by class per row.

    The dict is empty where the linear model is left out.
    """
    names, cached = task.label_names, _load_or_compute(task, ())["linear"] if task.spec.kind == "classification" else {}
    return {
        split: [
            {"prediction": names[class_index], "probabilities": dict(zip(names, probabilities, strict=True))}
            for class_index, probabilities in zip(predicted["classes"], predicted["probabilities"], strict=True)
        ]
        for split, predicted in cached.items()
    }


def _load_or_compute(task: Task, samples: Sequence[Task]) -> dict[str, Any]:
    """Return `baselines` for `to_beat`, and `linear` for `linear_predictions`, empty with samples; they are cached."""
    tasks, cache_key = [task], task.fingerprint
    if samples:
        tasks = list(samples[: max(1, MOST_TEXTS // sum(map(len, samples[0].splits.values())))])
        ids = [[one.train["id"][:], one.validation["id"][:]] for one in tasks]
        cache_key += "-" + hashlib.sha256(json.dumps(ids).encode()).hexdigest()[:16]
    cache_key += "-characters" if _is_by_character(task) else ""
    cache_key += "-in-turn" if task.num_labels > MOST_CLASSES_FOR_GRID else ""
    cache_key += "-sampled" if len(task.train) > MOST_TEXTS else ""
    file = cache_folder() / f"baselines-{_CACHE_VERSION}-{cache_key}-{task.metric}.json"
    content = find_checked(file) or {}
    if _is_cache_content(content):
        return content
    baselines_by_task = [make_baselines(one, "all" if _num_words(one) <= MOST_WORDS else MAJORITY) for one in tasks]
    baselines = [
        {
            "name": group[0].name,
            "settings": {"draws": len(group)} if samples else group[0].settings,
            "scores": {
                split: {metric: float(np.mean([one.scores[split][metric] for one in group])) for metric in metrics}
                for split, metrics in group[0].scores.items()
            },
        }
        for group in zip(*baselines_by_task, strict=True)
    ]
    linear = {
        split: {
            "classes": classes.tolist(),
            "probabilities": softmax(one.model.logits(task.splits[split]), axis=-1).round(6).tolist(),
        }
        for one in baselines_by_task[0]
        if one.model is not None and not samples
        for split, classes in one.predictions.items()
    }
    content = {"baselines": baselines, "linear": linear}
    with contextlib.suppress(HfTlmError):  # Where the cache cannot be written, the next run computes them again.
        atomic_write(file, checked_text(content))
    return content


def _is_cache_content(content: Mapping[str, Any]) -> bool:
    """Return whether a cached object has the form that `_load_or_compute` writes."""
    baselines, linear = content.get("baselines"), content.get("linear")
    return (
        isinstance(baselines, list)
        and all(isinstance(baseline, dict) and {"name", "scores"} <= baseline.keys() for baseline in baselines)
        and isinstance(linear, dict)
        and all(
            isinstance(predicted, dict) and {"classes", "probabilities"} <= predicted.keys() for predicted in linear.values()
        )
    )


def majority_class(task: Task) -> Baseline:
    """Predict the largest class of the training split (the first of equally large ones) for every text.

    Raises:
        TaskError: the task is of another kind than classification.
    """
    check_task(task, "The majority class", "classification")
    start_time = time.monotonic()
    counts = Counter(task.train["label"][:])
    largest = max(range(task.num_labels), key=lambda label: counts[label])
    predictions = {split: np.full(len(rows), largest) for split, rows in _evaluation_splits(task)}
    return _score_baseline(task, MAJORITY, {"class": task.id2label[largest]}, predictions, start_time)


def linear_model(task: Task) -> Baseline:
    """Fit a linear support vector machine on TF-IDF features of words and punctuation marks.

    In scripts without spaces between words the tokens are characters. The maximal length of n-grams (1, 2, 3), C (0.05 to 5)
    and whether classes are weighted by inverse frequency are chosen by the task's metric on validation; of ties the first.
    Only the training split is used, and texts are not truncated. Each text of a pair has its own features.
    One core takes one to four seconds per thousand abstracts or sentences, depending on the number of classes. With more
    than 30,000 training texts the settings are chosen on a random sample of as many, and one model is fitted to all. With
    more than 50 classes, C and weights are chosen for unigrams, and with these the n-grams are lengthened as long as that
    helps: 500 classes take five seconds per thousand sentences, and 35 with the complete grid.

    Raises:
        TaskError: the task is of another kind than classification.
    """
    check_task(task, "A linear model", "classification")
    start_time, max_n = time.monotonic(), _max_n_gram(task)
    with tqdm(desc="Fitting linear models", unit=" models") as progress:
        best = _choose_linear_model(_sample_texts(task), max_n, progress, others=len(task.train) > MOST_TEXTS)
        if len(task.train) > MOST_TEXTS:
            n, c, class_weight = (best.settings[name] for name in ("n_grams", "C", "class_weight"))
            features = next(features for features in _features(task, max_n) if features[0] == n)
            best = _predict(_fit(task, features[2], c, class_weight), features, c, class_weight)
            best.settings["chosen_on"] = f"{MOST_TEXTS:,} texts"
            progress.update()
    linear = LinearModel(
        terms={column: terms for column, (terms, _) in best.vocabulary.items()},
        idf={column: idf for column, (_, idf) in best.vocabulary.items()},
        weights=best.model.coef_.astype(np.float32),
        biases=best.model.intercept_.astype(np.float32),
        classes=best.model.classes_.astype(np.int64),
        num_labels=task.num_labels,
        n_grams=best.settings["n_grams"],
        temperature=best_temperature(best.margins, best.model.classes_, np.asarray(task.validation["label"][:])),
        by_character=_is_by_character(task),
    )
    return _score_baseline(task, LINEAR, best.settings, best.predictions, start_time, linear)


@dataclass
class _Fitted:
    """A support vector machine and what it predicts.

    vocabulary: column -> the n-grams of its features, and their idf.
    predictions: split -> class indices.
    margins: of the validation texts; see `as_margins`.
    """

    settings: dict[str, Any]
    model: LinearSVC
    vocabulary: dict[str, tuple[list[str], np.ndarray]]
    predictions: dict[str, np.ndarray]
    margins: np.ndarray


def _choose_linear_model(task: Task, max_n: int, progress: tqdm, others: int) -> _Fitted:
    """Fit a model with every setting, or a part of them with many classes; return the one best on validation.

    Args:
        progress: bar of all models, whose total is set here.
        others: number of models that are fitted later.
    """
    metric, references = load_metric(task.metric), np.asarray(task.validation["label"][:])
    # With equally frequent classes, every balanced weight is 1.
    is_balanced = len(set(Counter(task.train["label"][:]).values())) == 1
    grid = list(product(CLASS_WEIGHTS[:1] if is_balanced else CLASS_WEIGHTS, C))
    if has_many_classes := task.num_labels > MOST_CLASSES_FOR_GRID:
        logger.warning(
            "%s has %d classes, more than %d: C and the class weights of its linear model are chosen with single words, "
            "and then the length of n-grams; searching all of them together would take many times as long.",
            *(task.name, task.num_labels, MOST_CLASSES_FOR_GRID),
        )
    best: _Fitted | None = None
    best_score = -np.inf
    progress.reset((len(grid) + max_n - 1 if has_many_classes else len(grid) * max_n) + others)
    for features in _features(task, max_n):
        n, _, matrices = features
        if has_many_classes and best is not None:
            if best.settings["n_grams"] < n - 1:
                break  # (n - 1)-grams were no better, so longer ones are not tried.
            grid = [(best.settings["class_weight"], best.settings["C"])]
        for class_weight, c in grid:
            model = _fit(task, matrices, c, class_weight)
            predicted = model.predict(matrices["validation"])
            score = metric.compute(predictions=predicted, references=references)[task.metric]
            if score > best_score:
                best_score, best = score, _predict(model, features, c, class_weight)
            progress.update()
    assert best is not None  # Any score is above -inf.
    return best


def _fit(task: Task, matrices: Mapping[str, sparse.csr_matrix], c: float, class_weight: str | None) -> LinearSVC:
    labels = np.asarray(task.train["label"][:])
    return LinearSVC(C=c, class_weight=class_weight, random_state=0).fit(matrices["train"], labels)


def _predict(model: LinearSVC, features: _Features, c: float, class_weight: str | None) -> _Fitted:
    n, vocabulary, matrices = features
    settings = {"n_grams": n, "C": c, "class_weight": class_weight, "features": matrices["train"].shape[1]}
    predictions = {split: model.predict(matrix) for split, matrix in matrices.items() if split != "train"}
    margins = as_margins(model.decision_function(matrices["validation"]))
    return _Fitted(settings, model, vocabulary, predictions, margins)


def _sample_texts(task: Task) -> Task:
    """Return the task with a random sample of `MOST_TEXTS` training texts, or the task itself if it has no more."""
    if len(task.train) <= MOST_TEXTS:
        return task
    rows = np.sort(np.random.default_rng(0).permutation(len(task.train))[:MOST_TEXTS])
    return replace(task, splits={**task.splits, "train": task.train.select(rows)})


def _evaluation_splits(task: Task) -> Iterator[tuple[str, Dataset]]:
    return ((split, rows) for split, rows in task.splits.items() if split != "train")


def _is_by_character(task: Task) -> bool:
    return by_character(*(task.train[column] for column in columns_of_texts(task.train)))


def _num_words(task: Task) -> int:
    """Return the number of words in the training texts; of characters in scripts without spaces."""
    texts = task.train["text"]
    return sum(map(len, texts)) if _is_by_character(task) else sum(len(text.split()) for text in texts)


def _max_n_gram(task: Task) -> int:
    return max(n for n in N_GRAMS if n < 3 or _num_words(task) <= MOST_WORDS_FOR_TRIGRAMS)


def _features(task: Task, max_n: int) -> Iterator[_Features]:
    """Yield the TF-IDF features of all splits with n-grams of up to n words, for n = 1 to max_n.

    They equal those of `tfidf(n)`, but the texts are tokenised only once.
    """
    pattern, counts_by_column = token_pattern(_is_by_character(task)), {}
    for column in columns_of_texts(task.train):
        vectorizer = CountVectorizer(token_pattern=pattern, ngram_range=(1, max_n), dtype=np.float32)
        counts = {"train": vectorizer.fit_transform(task.train[column])}
        counts["train"].sort_indices()  # As in the other splits, so that sums are identical to the bit.
        counts |= {split: vectorizer.transform(rows[column]) for split, rows in _evaluation_splits(task)}
        terms = vectorizer.get_feature_names_out()
        counts_by_column[column] = terms, np.array([term.count(" ") + 1 for term in terms]), counts
    for n in range(1, max_n + 1):
        matrices_by_split: dict[str, list[sparse.csr_matrix]] = {split: [] for split in task.splits}
        vocabulary = {}
        for column, (terms, term_lengths, counts) in counts_by_column.items():
            term_indices = np.flatnonzero(term_lengths <= n)
            selected_counts = {split: matrix[:, term_indices] for split, matrix in counts.items()}
            weights = TfidfTransformer(sublinear_tf=True).fit(selected_counts["train"])
            vocabulary[column] = terms[term_indices].tolist(), weights.idf_
            for split in matrices_by_split:
                matrices_by_split[split].append(weights.transform(selected_counts[split]))
        yield n, vocabulary, {split: sparse.hstack(matrices, format="csr") for split, matrices in matrices_by_split.items()}


def _score_baseline(
    task: Task,
    name: str,
    settings: dict[str, Any],
    predictions: dict[str, np.ndarray],
    start_time: float,
    model: LinearModel | None = None,
) -> Baseline:
    metrics = [load_metric(metric) for metric in dict.fromkeys((task.metric, "accuracy"))]
    scores: dict[str, dict[str, float]] = {}
    for split, predicted in predictions.items():
        labels = task.splits[split]["label"][:]
        scores[split] = {}
        for metric in metrics:
            scores[split] |= metric.compute(predictions=predicted, references=labels)
    return Baseline(name, settings, scores, round(time.monotonic() - start_time, 2), predictions, model)
