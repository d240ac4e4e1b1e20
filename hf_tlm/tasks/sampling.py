"""Stratified parts of a task's texts: held-out validation and test splits, and samples of a split."""

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

# Number of quantiles of a regression task's labels, which are the strata to sample from.
QUANTILES = 10
_SCALE = 2.0**64
SHARE = 0.1
# Kind of task -> column whose rows with equal values go to the same part; so all questions about a context stay together.
_CONTENT = {"question_answering": "context", "multiple_choice": "context", "tagging": "tokens"}


def content_place(content: Any) -> float:
    """Return a hash of a text's content as a number in [0, 1): equal for equal contents, and uniform over different ones."""
    text = content if isinstance(content, str) else repr(content)
    digest = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "big") / _SCALE


def strata(rows: Dataset, kind: str, ties: np.ndarray | None = None) -> np.ndarray:
    """Return the stratum of every row: int64 [N].

    The strata are the classes for classification and ten quantiles of the labels for regression; other kinds have one.

    Args:
        rows: with a column `label` for classification and regression.
        kind: kind of the task, see `hf_tlm.tasks.TaskSpec`.
        ties: [N], sort key that assigns rows with equal labels to quantiles; default: their order.
    """
    if kind == "classification":
        return np.asarray(rows["label"][:], dtype=np.int64)
    if kind == "regression":
        ties = np.arange(len(rows)) if ties is None else ties
        ranks = np.argsort(np.lexsort((ties, np.asarray(rows["label"][:]))), kind="stable")
        return ranks * min(QUANTILES, len(rows)) // len(rows)
    return np.zeros(len(rows), dtype=np.int64)


def sample(groups: np.ndarray, places: np.ndarray, size: int) -> np.ndarray:
    """Return the indices of a stratified sample, int64 [size] in ascending order.

    Each group gets its share of the sample to within one row, but at least one row, at the cost of larger groups if its
    share is less. The sample depends neither on the order of rows nor on a seed, and a larger sample contains every smaller
    one.

    Args:
        groups: int64 [N], see `strata`.
        places: float64 [N], see `content_place`; the rows with the smallest values of each group are chosen first.
        size: size of the sample, from the number of groups to N.
    """
    order = np.lexsort((groups, places))
    turn = np.empty(len(groups))
    for group in np.unique(groups):
        members = order[groups[order] == group]
        turn[members] = (np.arange(len(members)) + 0.5) / len(members)
        turn[members[0]] = 0.0
    return np.sort(order[np.argsort(turn[order], kind="stable")][:size])


def hold_out(spec: TaskSpec, rows: Dataset, shares: Mapping[str, float]) -> tuple[dict[str, Dataset], dict[str, list[int]]]:
    """Split the rows of a table into train and the parts that `shares` names.

    Texts that are equal up to white space go to the same part. Every part gets its share of the distinct texts of each
    class, to within one or two, and the first text of a class goes to train. A hash of each text, in the order of the
    table, decides: rows that are appended later do not move earlier rows. Rows without a text or a label go to train, where
    they are reported.

    Without an id column, the ids are `row-<n>`, counted from 0.

    Args:
        shares: part (`validation`, `test`) -> share of the texts, with a sum below 1; parts with share 0 are left out.

    Returns:
        Part -> its rows, and part -> the indices of these rows in the table.

    Raises:
        TaskError: a column is missing, a share is invalid, or there are too few texts for a part.
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
                f"{100 * shares.get(name, 1 - sum(shares.values())):g}%. Choose a larger --{name}_share or another "
                "column of labels, or pass a folder with train, validation and test files."
            )
    return {name: rows.select(chosen) for name, chosen in found.items()}, found


def _contents(spec: TaskSpec, rows: Dataset) -> list[str | None]:
    """Return the content of every row, with normalised white space, by which rows are compared; None without a text."""
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
    """Return the class of every row, or None without a label; the same for all rows for other kinds of tasks."""
    if spec.kind != "classification":
        return [""] * len(rows)
    texts.checked_names(spec, rows)  # Labels that are not classes would each become a stratum.
    return texts.labels(spec, rows)


def _assign(rows: Iterable[tuple[str | None, Any]], shares: Mapping[str, float]) -> list[str]:
    """Return the part of every row.

    Args:
        rows: (content, class) of each.
    """
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
    """Return the part of the next text of a class.

    A part that would fall behind its share gets it, and a part that is ahead does not; otherwise the hash decides.

    Args:
        number: position of the text among the distinct texts of its class, from 1.
        counts: part -> number of texts of the class that it already has.
    """
    if number == 1:
        return "train"
    due = {part: number * share for part, share in shares.items()}
    for part, count in counts.items():
        # A part gets its first text as soon as its share is one text; after that it may be one short of its share.
        if count < max(math.floor(due[part] + 1e-9) - 1, due[part] >= 1 - 1e-9):
            return part
    place, end = content_place(content), 0.0
    for part, share in shares.items():
        if end <= place < (end := end + share) and counts[part] < max(math.ceil(due[part]) + (due[part] >= 1), 1):
            return part
    return "train"
