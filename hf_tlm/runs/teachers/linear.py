"""A linear model as a teacher: its answers on the task's texts, out of fold, and on passages.

What a linear model on TF-IDF knows of a task gets into a network by way of texts: passages that resemble the task's become
training texts with the teacher's probabilities for labels. In-fold answers on the task's own texts would be near perfect
and teach nothing, so each is of a model that has not seen the text.
"""

from __future__ import annotations

import contextlib
import logging
import warnings
from collections import defaultdict
from collections.abc import Callable, Sequence
from itertools import product
from typing import Any

import numpy as np
from datasets import Dataset
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import StratifiedGroupKFold
from tqdm.auto import tqdm

from hf_tlm.errors import ArgumentsError
from hf_tlm.models.linear_start import logistic_regression
from hf_tlm.runs.linear import by_character, tfidf
from hf_tlm.runs.teachers.answers import LEAST, Answers, held_out, progress
from hf_tlm.tasks import Task

logger = logging.getLogger(__name__)

FOLDS = 5
N_GRAMS = (1, 2)
# Classes above which single words are counted alone: a fit has all features for each class, ten times over in memory.
MOST_CLASSES_FOR_PAIRS = 50
C = (1.0, 5.0, 25.0, 125.0)
# Texts on which n-grams and C are chosen; of more there is a sample.
MOST_TEXTS_FOR_CHOICE = 4000
ITERATIONS = 300
# Passages that are looked at together.
CHUNK = 10_000


class LinearTeacher:
    """Logistic regression on TF-IDF.

    N-grams (1, 2) and C (1 to 125) have the least cross-entropy on held-out training texts, in folds that keep equal texts
    together; validation is not used. Of more than 50 classes single words are counted alone.

    Raises:
        ArgumentsError: the task is of another kind than classification, or has pairs of texts.
    """

    about = {"model": "logistic regression on TF-IDF"}
    digest = "linear 1"

    def __init__(self, task: Task):
        if task.kind != "classification":
            raise ArgumentsError(f"teacher linear classifies, and {task.name} is a {task.kind} task. Leave --teacher out.")
        if task.has_pairs:
            raise ArgumentsError("teacher linear answers for single texts, and this task's are pairs. Leave --teacher out.")
        if by_character(task.train["text"]):
            self.digest = "linear 2"  # Answers of before characters were words are asked for again.
        if task.num_labels > MOST_CLASSES_FOR_PAIRS:
            self.digest = "linear 3"  # And those of before many classes had single words alone.

    def __call__(self, task: Task, passages: Dataset | None) -> Answers:
        """Its answers; an ArgumentsError where there are too few texts to hold any out."""
        texts, labels, classes = list(task.train["text"]), np.asarray(task.train["label"][:]), task.num_labels
        folds = _folds(texts, labels)
        if classes > MOST_CLASSES_FOR_PAIRS:
            logger.warning(
                "%s has %d classes: its linear teacher counts single words, without the pairs that it tries for %d classes "
                "and fewer, which would take many times as long.",
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
            chunks = progress(range(0, len(rows), CHUNK), "Asking the teacher of passages", " chunks")
            said = np.concatenate([model(rows[start : start + CHUNK]) for start in chunks])
        return Answers(answers, said, report)


def _fitted(
    n: int, c: float, texts: Sequence[str], labels: np.ndarray, classes: int
) -> Callable[[Sequence[str]], np.ndarray]:
    """A model fitted to texts, as a function: other texts -> probabilities, float64 [N, C]."""
    features = tfidf(n, characters=by_character(texts)).fit(texts)
    model = logistic_regression(features.transform(texts), labels, c, ITERATIONS)
    return lambda others: _spread(model, features.transform(others), classes)


def _spread(model: LogisticRegression, features: Any, classes: int) -> np.ndarray:
    """Probabilities of all classes, those among them that the model has not seen."""
    found = np.full((features.shape[0], classes), LEAST)
    found[:, model.classes_] = np.maximum(model.predict_proba(features), LEAST)
    return found / found.sum(1, keepdims=True)


def _choose(texts: list[str], labels: np.ndarray, classes: int) -> tuple[tuple[int, float], int]:
    """(n, C) of the least cross-entropy on held-out texts, and how many pairs were tried."""
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
    """(rows to fit, rows held out), in which texts that are equal but for case and spaces stay together."""
    groups = np.unique([" ".join(text.lower().split()) for text in texts], return_inverse=True)[1]
    splitter = StratifiedGroupKFold(max(2, min(FOLDS, groups.max() + 1)), shuffle=True, random_state=0)
    folds = []
    with warnings.catch_warnings(), contextlib.suppress(ValueError):  # Fewer texts of every class than parts.
        # Of a class with fewer texts than there are parts: some parts hold none of it out.
        warnings.simplefilter("ignore", UserWarning)
        folds = [(train, test) for train, test in splitter.split(texts, labels, groups) if len(test)]
    if not all(len(train) for train, _ in folds) or not folds:
        raise ArgumentsError(
            f"teacher linear holds out parts of the training texts, and these {len(texts)} ({groups.max() + 1} different "
            "ones) are too few for it. Leave --teacher out."
        )
    for train, _ in folds:
        if len(set(labels[train].tolist())) < 2:
            raise ArgumentsError(
                f"teacher linear needs texts of two classes in every part of the training texts that it is fitted to; of "
                f"these {len(texts)} one part has those of a single class. Leave --teacher out."
            )
    return folds


def _cross_entropy(probabilities: np.ndarray, labels: np.ndarray) -> float:
    return float(-np.log(np.maximum(probabilities[np.arange(len(labels)), labels], LEAST)).mean())
