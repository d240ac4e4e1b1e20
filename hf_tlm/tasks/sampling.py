"""Parts of a task's texts, of every class its share: those held out for validation and test, and samples of a split."""

from __future__ import annotations

import hashlib
import math
from collections import defaultdict
from collections.abc import Hashable, Iterable, Mapping
from typing import Any

import numpy as np
from datasets import Dataset

from hf_tlm.tasks import texts
from hf_tlm.tasks.rows import columns_of, missing
from hf_tlm.tasks.spec import TaskError, TaskSpec

# Of a regression task's labels, whose examples are drawn from each in the same share.
QUANTILES = 10
_SCALE = 2.0**64
SHARE = 0.1
# By kind, the column whose equal values have to be on one side: all questions to a context are.
_CONTENT = {"question_answering": "context", "multiple_choice": "context", "tagging": "tokens"}


def content_place(content: Any) -> float:
    """A number in [0, 1) by which equal contents are equal, and others evenly spread."""
    text = content if isinstance(content, str) else repr(content)
    digest = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "big") / _SCALE


def strata(rows: Dataset, kind: str, ties: np.ndarray | None = None) -> np.ndarray:
    """The group of every row, of which a part has its share: int64 [N].

    These are the classes of classification and ten quantiles of the labels of regression; other kinds have one.

    Args:
        rows: column `label` for classification and regression.
        kind: of the task, see `hf_tlm.tasks.TaskSpec`.
        ties: [N], by which rows of equal labels come into quantiles; default: their order.
    """
    if kind == "classification":
        return np.asarray(rows["label"][:], dtype=np.int64)
    if kind == "regression":
        ties = np.arange(len(rows)) if ties is None else ties
        ranks = np.argsort(np.lexsort((ties, np.asarray(rows["label"][:]))), kind="stable")
        return ranks * min(QUANTILES, len(rows)) // len(rows)
    return np.zeros(len(rows), dtype=np.int64)


def sample(groups: np.ndarray, places: np.ndarray, size: int) -> np.ndarray:
    """Indices, int64 [size] and ascending, of a part with one row of every group at least, else its share, to within one.

    Groups whose share is less than one row have one at the cost of the others. Neither the order of rows nor a seed
    matters, and the rows of a smaller part are among those of a larger one.

    Args:
        groups: int64 [N], see `strata`.
        places: float64 [N], see `content_place`; of each group those with the smallest come first.
        size: at least as many as there are groups, at most N.
    """
    order = np.lexsort((groups, places))
    turn = np.empty(len(groups))
    for group in np.unique(groups):
        members = order[groups[order] == group]
        turn[members] = (np.arange(len(members)) + 0.5) / len(members)
        turn[members[0]] = 0.0
    return np.sort(order[np.argsort(turn[order], kind="stable")][:size])


def hold_out(spec: TaskSpec, rows: Dataset, shares: Mapping[str, float]) -> tuple[dict[str, Dataset], dict[str, list[int]]]:
    """Split the rows of a table in train and the parts that `shares` names, and say which rows of the table each has.

    Equal texts (but for white space) are all in one part. Of each class, every part has its share of the distinct texts, to
    within one or two, and the first text is in train. Which texts these are is decided by a hash of each, in the order of
    the table: rows that are appended to it change nothing for those before them. Rows without a text or a label are in
    train, where they are found.

    Where there is no id column the ids are `row-<n>`, counted from 0.

    Args:
        shares: part (`validation`, `test`) -> share of the texts, together below 1; parts of share 0 are left out.

    Raises:
        TaskError: a column is missing, the shares are no shares, or there are too few texts for a part.
    """
    shares = {part: share for part, share in shares.items() if share}
    for part, share in shares.items():
        if isinstance(share, bool) or not isinstance(share, (int, float)) or not 0 < share < 1:
            raise TaskError(f"{part}_share must be a share of at least 0 and below 1; received {share!r}.")
    if sum(shares.values()) >= 1:
        given = " and ".join(f"{part}_share {share:g}" for part, share in shares.items())
        raise TaskError(f"Task {spec.name}: {given} leave nothing to train on. Together they must be below 1.")
    contents, classes = _contents(spec, rows), _classes(spec, rows)
    if spec.id_column is None and "id" not in rows.column_names:
        rows = rows.add_column("id", [f"row-{number}" for number in range(len(rows))])
    parts = _assign(zip(contents, classes, strict=True), shares)
    found = {name: [row for row, part in enumerate(parts) if part == name] for name in ("train", *shares)}
    for name, chosen in found.items():
        if not chosen:
            distinct, kinds = len(set(contents) - {None}), len(set(classes) - {None})
            many = f" in {kinds} classes, which {spec.label_column!r} names," if spec.kind == "classification" else ""
            raise TaskError(
                f"Task {spec.name}: {distinct} different texts{many} are too few for a {name} split of "
                f"{100 * shares.get(name, 1 - sum(shares.values())):g}%. Give it a larger share (--{name}_share), another "
                "column of labels, or a folder with train, validation and test files."
            )
    return {name: rows.select(chosen) for name, chosen in found.items()}, found


def _contents(spec: TaskSpec, rows: Dataset) -> list[str | None]:
    """What makes two rows equal; None where there is no text."""
    if spec.kind in _CONTENT:
        columns = columns_of(spec, "the table", rows, _CONTENT[spec.kind])
    else:
        if absent := [column for column in spec.text_columns if column not in rows.column_names]:
            raise missing(spec, "the table", absent, rows, texts.ADVICE)
        columns = [rows[column][:] for column in spec.text_columns]
    return [
        None if None in cells else "\0".join(" ".join(str(c).split()) for c in cells) for cells in zip(*columns, strict=True)
    ]


def _classes(spec: TaskSpec, rows: Dataset) -> list[Hashable]:
    """The class of every row, None without one; all alike for other kinds of tasks."""
    if spec.kind != "classification":
        return [""] * len(rows)
    texts.checked_names(spec, rows)  # Of what is no class there would be a part of its own.
    return texts.labels(spec, rows)


def _assign(rows: Iterable[tuple[str | None, Any]], shares: Mapping[str, float]) -> list[str]:
    """The part of every row, of which (content, class) is given."""
    known: dict[str, str] = {}
    seen: dict[Hashable, int] = defaultdict(int)
    counts: dict[tuple[str, Hashable], int] = defaultdict(int)
    parts = []
    for content, label in rows:
        if content is None or label is None:
            parts.append("train")
            continue
        if content not in known:
            seen[label] += 1
            known[content] = part = _part(content, seen[label], {p: counts[p, label] for p in shares}, shares)
            counts[part, label] += 1
        parts.append(known[content])
    return parts


def _part(content: str, number: int, counts: Mapping[str, int], shares: Mapping[str, float]) -> str:
    """The part of the next text of a class, its `number`-th, from 1.

    A part that would fall behind its share takes it, and one that is ahead does not; else the hash decides.
    """
    if number == 1:
        return "train"
    due = {part: number * share for part, share in shares.items()}
    for part, count in counts.items():
        # Of ten texts there is one; later it may be one less than the share.
        if count < max(math.floor(due[part] + 1e-9) - 1, due[part] >= 1 - 1e-9):
            return part
    place, end = content_place(content), 0.0
    for part, share in shares.items():
        if end <= place < (end := end + share) and counts[part] < max(math.ceil(due[part]) + (due[part] >= 1), 1):
            return part
    return "train"
