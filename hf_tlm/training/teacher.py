"""A linear model as a teacher: its answers on the task's texts, out of fold, and on passages of the subset.

What a linear model on TF-IDF knows of a task gets into a network by way of texts: passages that resemble the task's become
training texts with the teacher's probabilities for labels. In-fold answers on the task's own texts would be near perfect
and teach nothing, so each is of a model that has not seen the text. Where that is mistaken, the text's own label is the
answer: mistakes would be learned too (benchmarks/results/plateau.md has what that costs).
"""

from __future__ import annotations

import json
import logging
import math
import re
import time
import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import xxhash
from datasets import Dataset, Features, List, Value, concatenate_datasets, config
from tqdm.auto import tqdm

from hf_tlm.tasks import Task
from hf_tlm.training.errors import ArgumentsError
from hf_tlm.utils.seals import keep_sealed

if TYPE_CHECKING:
    from sklearn.linear_model import LogisticRegression

logger = logging.getLogger(__name__)

FOLDS = 5
N_GRAMS = (1, 2)
C = (1.0, 5.0, 25.0, 125.0)
# Texts on which n-grams and C are chosen; of more there is a sample.
MOST_TEXTS_FOR_CHOICE = 4000
# The least probability of a class: a model that has not seen a class would say 0.
LEAST = 1e-6
ITERATIONS = 300
# A mark that so many of the task's texts have, and hardly any passage.
OFTEN, HARDLY = 0.5, 0.01
# Passages that are looked at together.
CHUNK = 10_000
ANSWERS, REPORT = "answers.npz", "report.json"
_RUN = re.compile(r"([^\w\s])\1+")


@dataclass
class Teacher:
    """What a teacher says.

    train: float32 [N, C], probabilities of the training texts; 1 for the label where the teacher is mistaken.
    rows: int64 [M], which passages of the subset it answers for, ascending.
    passages: float32 [M, C], their probabilities.
    report: JSON values: how it was chosen, how good it is, what it says.
    """

    train: np.ndarray
    rows: np.ndarray
    passages: np.ndarray
    report: dict[str, Any]

    def answered(self, texts: Dataset, passages: Dataset | None, share: float) -> Dataset:
        """The task's training texts and the passages as one data set, with a column `teacher_probs`.

        Passages have the label -100. The texts are there as often as it takes for passages to be at most `share` of all.

        Args:
            texts: N tokenised rows with `label`.
            passages: M tokenised rows, those of `rows`; None where there are none.
        """
        parts = [_with_answers(texts, self.train)]
        if passages is not None and len(passages):
            parts = parts * repeats(len(texts), len(passages), share)
            parts.append(_with_answers(passages.add_column("label", [-100] * len(passages)), self.passages, texts.features))
        return concatenate_datasets(parts)


def repeats(texts: int, passages: int, share: float) -> int:
    """The least number of times that `texts` are there so that `passages` are at most `share` of all, in (0, 1)."""
    return max(1, math.ceil(passages * (1 - share) / (share * texts) - 1e-9))


def linear_teacher(task: Task, passages: Sequence[str], num_passages: int) -> Teacher:
    """Logistic regression on TF-IDF, kept in the cache of `datasets` for every run with equal texts.

    N-grams (1, 2) and C (1 to 125) have the least cross-entropy on held-out training texts, in folds that keep equal texts
    together; validation is not used. Of the passages it answers for at most `num_passages`: of each class those of which
    it is most certain, in proportion to the class's training texts.

    Raises:
        ArgumentsError: the task has pairs of texts, or too few texts to hold any out.
    """
    labels = np.asarray(task.train["label"][:])
    if "text_pair" in task.train.column_names:
        raise ArgumentsError("teacher linear answers for single texts, and this task's are pairs. Leave --teacher out.")
    texts = list(task.train["text"])
    key = xxhash.xxh3_128(json.dumps([2, labels.tolist(), task.num_labels, num_passages]).encode())
    for text in (*texts, None, *passages):
        key.update(f"{-1 if text is None else len(text)}:{text}".encode("utf-8", "surrogatepass"))
    folder = Path(config.HF_DATASETS_CACHE) / "hf_tlm" / f"teacher-{key.hexdigest()}"

    def ask(work: Path) -> None:
        made = _ask(texts, labels, list(task.id2label.values()), passages, num_passages)
        np.savez(work / ANSWERS, train=made.train, rows=made.rows, passages=made.passages)
        (work / REPORT).write_text(json.dumps(made.report, indent=2) + "\n", encoding="utf-8")

    keep_sealed(folder, ask, ANSWERS, REPORT)
    with np.load(folder / ANSWERS) as kept:
        arrays = {name: kept[name] for name in ("train", "rows", "passages")}
    made = Teacher(**arrays, report=json.loads((folder / REPORT).read_text(encoding="utf-8")))
    logger.info("The teacher: %s", described(made.report))
    for warning in doubts(made.report):
        logger.warning(warning)
    return made


def described(report: Mapping[str, Any]) -> str:
    """A teacher's report in a line."""
    found = (
        f"{report['model']}, {100 * report['held_out_accuracy']:.1f}% right on held-out training texts "
        f"(the largest class: {100 * report['largest_class']:.1f}%)"
    )
    if "passages" not in report:
        return found
    classes = ", ".join(f"{count:,} {name}" for name, count in report["passages_by_class"].items())
    return f"{found}; {report['passages']:,} passages: {classes}"


def doubts(report: Mapping[str, Any]) -> list[str]:
    """What speaks against a teacher, a sentence each."""
    found = []
    if report["held_out_accuracy"] <= report["largest_class"]:
        found.append(
            "The teacher is no better on held-out training texts than the largest class: it has nothing to teach. Leave "
            "--teacher out."
        )
    if marks := report.get("marks_without_passages"):
        found.append(
            f"Most texts of the task have the marks {' '.join(marks)} and no passage of the subset has: what depends on "
            "them the teacher cannot know of a passage. --teacher_passages 0 leaves passages out."
        )
    if missing := [name for name, count in report.get("passages_by_class", {}).items() if count == 0]:
        found.append(f"The teacher takes no passage of the subset for {', '.join(missing)}.")
    return found


def _ask(texts: list[str], labels: np.ndarray, names: list[str], passages: Sequence[str], num_passages: int) -> Teacher:
    begun, classes = time.monotonic(), len(names)
    folds = _folds(texts, labels)
    settings, tried = _choose(texts, labels, classes)
    held_out = np.full((len(texts), classes), LEAST)
    for train, test in tqdm(folds, desc="Asking the teacher", unit=" folds"):
        held_out[test] = _Linear(*settings, [texts[i] for i in train], labels[train], classes)([texts[i] for i in test])
    n, c = settings
    report: dict[str, Any] = {
        "model": "logistic regression on TF-IDF",
        "n_grams": n,
        "C": c,
        "settings_tried": tried,
        "held_out_accuracy": round(float((held_out.argmax(1) == labels).mean()), 4),
        "held_out_cross_entropy": round(_cross_entropy(held_out, labels), 4),
        "largest_class": round(float(np.bincount(labels).max() / len(labels)), 4),
    }
    rows, answers = np.zeros(0, dtype=np.int64), np.zeros((0, classes), dtype=np.float32)
    if len(passages) and num_passages:
        model, starts = _Linear(n, c, texts, labels, classes), range(0, len(passages), CHUNK)
        chunks = tqdm(starts, desc="Asking the teacher of passages", unit=" chunks")
        said = np.concatenate([model(passages[start : start + CHUNK]) for start in chunks])
        rows = most_certain(said, np.bincount(labels, minlength=classes) / len(labels), num_passages)
        answers = said[rows].astype(np.float32)
        guessed = said.argmax(1)
        report |= {
            "passages": len(rows),
            "passages_by_class": dict(zip(names, np.bincount(guessed[rows], minlength=classes).tolist(), strict=True)),
            "subset_by_class": dict(zip(names, np.bincount(guessed, minlength=classes).tolist(), strict=True)),
            "mean_confidence": round(float(answers.max(1).mean()), 4) if len(rows) else None,
            "marks_without_passages": marks_without_passages(texts, passages),
        }
    return Teacher(
        corrected(held_out, labels).astype(np.float32),
        rows,
        answers,
        report | {"seconds": round(time.monotonic() - begun, 1)},
    )


class _Linear:
    """Texts -> probabilities, float64 [N, C]."""

    def __init__(self, n: int, c: float, texts: Sequence[str], labels: np.ndarray, classes: int):
        from hf_tlm.data.tfidf import tfidf

        self.features, self.classes = tfidf(n).fit(texts), classes
        self.model = _regression(self.features.transform(texts), labels, c)

    def __call__(self, texts: Sequence[str]) -> np.ndarray:
        return _spread(self.model, self.features.transform(texts), self.classes)


def _regression(features: Any, labels: np.ndarray, c: float) -> LogisticRegression:
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.linear_model import LogisticRegression

    with warnings.catch_warnings():
        # After so many iterations probabilities hardly move, whatever the gradient is.
        warnings.simplefilter("ignore", ConvergenceWarning)
        return LogisticRegression(C=c, max_iter=ITERATIONS).fit(features, labels)


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
    from hf_tlm.data.tfidf import tfidf

    folds, losses = _folds(texts, labels), Counter()
    grid = list(product(N_GRAMS, folds))
    for n, (train, test) in tqdm(grid, desc="Choosing the linear teacher", unit=" fits"):
        vectorizer = tfidf(n)
        seen = vectorizer.fit_transform([texts[i] for i in train])
        unseen = vectorizer.transform([texts[i] for i in test])
        for c in C:
            answers = _spread(_regression(seen, labels[train], c), unseen, classes)
            losses[n, c] += _cross_entropy(answers, labels[test]) * len(test)
    return min(losses, key=losses.get), len(losses)


def _folds(texts: Sequence[str], labels: np.ndarray) -> list[tuple[np.ndarray, np.ndarray]]:
    """(rows to fit, rows held out), in which texts that are equal but for case and spaces stay together."""
    from sklearn.model_selection import StratifiedGroupKFold

    groups = np.unique([" ".join(text.lower().split()) for text in texts], return_inverse=True)[1]
    splitter = StratifiedGroupKFold(max(2, min(FOLDS, groups.max() + 1)), shuffle=True, random_state=0)
    try:
        with warnings.catch_warnings():
            # Of a class with fewer texts than there are parts: some parts hold none of it out.
            warnings.simplefilter("ignore", UserWarning)
            folds = [(train, test) for train, test in splitter.split(texts, labels, groups) if len(test)]
    except ValueError as error:
        raise ArgumentsError(
            f"teacher linear holds out parts of the training texts, and {len(texts)} are too few ({error}). Leave --teacher "
            "out."
        ) from error
    for train, _ in folds:
        if len(set(labels[train].tolist())) < 2:
            raise ArgumentsError(
                f"teacher linear needs texts of two classes in every part of the training texts that it is fitted to; of "
                f"these {len(texts)} one part has those of a single class. Leave --teacher out."
            )
    return folds


def corrected(probabilities: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """The probabilities, float [N, C], with those of the label alone in rows where another class is likelier."""
    wrong = probabilities.argmax(1) != labels
    return np.where(wrong[:, None], np.eye(probabilities.shape[1])[labels], probabilities)


def _cross_entropy(probabilities: np.ndarray, labels: np.ndarray) -> float:
    return float(-np.log(np.maximum(probabilities[np.arange(len(labels)), labels], LEAST)).mean())


def most_certain(probabilities: np.ndarray, shares: np.ndarray, count: int) -> np.ndarray:
    """Rows, ascending: of each class at most its share of `count`, those where it is likeliest and its probability highest.

    Args:
        probabilities: float [N, C].
        shares: float [C], adding up to 1.
    """
    likeliest, chosen = probabilities.argmax(1), []
    for label, share in enumerate(shares):
        rows = np.flatnonzero(likeliest == label)
        order = np.argsort(-probabilities[rows, label], kind="stable")
        chosen.append(rows[order[: round(share * count)]])
    return np.sort(np.concatenate(chosen)).astype(np.int64)


def marks_without_passages(texts: Sequence[str], passages: Sequence[str]) -> list[str]:
    """List the punctuation that the task's texts often have and passages hardly ever.

    More than half of the texts have it, and less than one of a hundred passages: where a label depends on it, as on marked
    entities, the teacher cannot know that of a passage.
    """
    counts = Counter(mark for text in texts for mark in _marks(text))
    often = {mark for mark, count in counts.items() if count > OFTEN * len(texts)}
    there = Counter(mark for text in passages for mark in _marks(text) & often) if often else Counter()
    return sorted(mark for mark in often if there[mark] < HARDLY * len(passages))


def _marks(text: str) -> set[str]:
    """Runs of at least two equal characters that are neither letters, digits nor spaces."""
    return {found[0] for found in _RUN.finditer(text)}


def _with_answers(rows: Dataset, answers: np.ndarray, features: Features | None = None) -> Dataset:
    told = rows.add_column("teacher_probs", answers.tolist(), feature=List(Value("float32")))
    columns = {**(features or rows.features), "teacher_probs": List(Value("float32"))}
    return told.select_columns(list(columns)).cast(Features(columns))
