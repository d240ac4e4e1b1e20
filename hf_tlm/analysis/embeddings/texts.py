"""Which texts are embedded, and which pairs of them are similar or random.

- A classification task: similar are texts of one class.
- A task of pairs with scores (STS-B): its texts one by one; similar are pairs with high scores.
- A classification task of pairs and a class that means similar (MRPC's): the same.

Random are pairs of these texts, or of a corpus's, as COCO-LM draws them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from hf_tlm.analysis.arguments import EmbeddingsArguments
from hf_tlm.analysis.embeddings.measures import random_pairs, same_class_pairs
from hf_tlm.analysis.embeddings.projection import LEAST_TEXTS
from hf_tlm.analysis.errors import AnalysisError
from hf_tlm.analysis.sampling import sample_corpus
from hf_tlm.tasks import Task

# The default of similar_from, as a share of the largest score there is.
SIMILAR_SHARE = 0.8


@dataclass(frozen=True)
class DrawnTexts:
    """Texts to embed, and pairs of them to compare.

    Attributes:
        texts: N different ones, or as many inputs of two with `text_pairs`.
        similar: int64 [P, 2], rows of `texts`.
        random: int64 [R, 2], rows of `texts`, or of `random_texts` where there are such.
        similar_are, random_are: what they are, to be read.
        labels: int64 [N], indices of `label_names`; None where texts have no class.
    """

    texts: list[str]
    similar: np.ndarray
    random: np.ndarray
    similar_are: str
    random_are: str
    text_pairs: list[str] | None = None
    random_texts: list[str] | None = None
    labels: np.ndarray | None = None
    label_names: tuple[str, ...] = ()


def draw_texts(
    task: Task, options: EmbeddingsArguments, *, max_texts: int = 2000, random_from: str | None = None, seed: int = 0
) -> DrawnTexts:
    """Draw texts of a task's split, and similar and random pairs of them.

    Args:
        max_texts: of a split with more as many are drawn; of pairs all similar ones first, as far as they go.
        random_from: a corpus by file, folder or Hub id, for the random pairs.

    Raises:
        AnalysisError: fewer than three texts, fewer than two classes, no similar pair, or options that the task has no
            use for. TaskError: the task is of another kind than classification and regression. CorpusError: see
            `load_corpus`.
    """
    task.check_kind("--what embeddings", "classification", "regression")
    split = options.embedding_split or ("test" if "test" in task.splits else "validation")
    if split not in task.splits:
        raise AnalysisError(f"{task.name} has no {split} split with labels; choose from {', '.join(task.splits)}.")
    rows = task.splits[split]
    order = np.random.default_rng(seed).permutation(len(rows))
    if options.similar_from is not None and task.kind != "regression":
        raise AnalysisError(f"--similar_from is a score; the texts of {task.name} have classes. Give --similar_label.")
    if task.kind == "regression" or options.similar_label is not None:
        if "text_pair" not in rows.column_names:
            raise AnalysisError(
                f"{task.name} has one text a row: similar pairs are of tasks with pairs of texts. Classes need no "
                "--similar_label; scores of single texts cannot be analysed."
            )
        is_similar, said = _similar(task, rows["label"][:], options)
        order = order[np.argsort(~is_similar[order], kind="stable")][: max(max_texts // 2, 1)]
        rows = rows.select(order)
        place: dict[str, int] = {}
        both = zip(rows["text"][:], rows["text_pair"][:], strict=True)
        pairs = [[place.setdefault(text, len(place)) for text in row] for row in both]
        texts, parts = list(place), {"similar": np.asarray(pairs, np.int64)[is_similar[order]], "similar_are": said}
    else:
        rows = rows.select(order[:max_texts])
        labels = np.asarray(rows["label"][:], np.int64)
        if len(present := np.unique(labels)) < 2:
            named = ", ".join(task.label_names[label] for label in present)
            raise AnalysisError(f"Two classes are needed; the {len(labels)} {split} texts of {task.name} are all {named}.")
        texts, parts = rows["text"][:], {"labels": labels, "label_names": tuple(task.label_names)}
        parts["text_pairs"] = rows["text_pair"][:] if "text_pair" in rows.column_names else None
        parts |= {"similar": same_class_pairs(labels, options.max_pairs, seed=seed), "similar_are": "of one class"}
    if len(texts) < LEAST_TEXTS:
        raise AnalysisError(
            f"{LEAST_TEXTS} texts or more are needed; {len(texts)} were drawn of {task.name}'s {split} split."
        )
    if not len(parts["similar"]):
        raise AnalysisError(
            f"None of the texts drawn of {task.name}'s {split} split form a similar pair ({parts['similar_are']})."
        )
    if random_from is None:
        others, count, said = None, len(texts), f"{task.name}'s {split} split"
    else:
        others = sample_corpus(random_from, max_texts, seed=seed, least=2)
        count, said = len(others), Path(random_from).name
    return DrawnTexts(
        texts,
        **parts,
        random=random_pairs(count, options.max_pairs, seed=seed),
        random_are=f"of {said}",
        random_texts=others,
    )


def _similar(task: Task, labels: Sequence[float], options: EmbeddingsArguments) -> tuple[np.ndarray, str]:
    """(which rows are similar pairs, what that means)."""
    values = np.asarray(labels)
    if task.kind == "regression":
        if options.similar_label is not None:
            raise AnalysisError(f"--similar_label is a class; the pairs of {task.name} have scores. Give --similar_from.")
        least = options.similar_from
        if least is None:
            least = SIMILAR_SHARE * max(max(rows["label"]) for rows in task.splits.values())
        return values >= least, f"with a score of {least:g} or more"
    if options.similar_label not in task.label_names:
        raise AnalysisError(
            f"--similar_label must be a class of {task.name}: {', '.join(task.label_names)}; received "
            f"{options.similar_label!r}."
        )
    return values == task.label2id[options.similar_label], f"of the class {options.similar_label}"
