"""Stratified subsets of a task's texts: held-out validation and test splits, and samples of a split."""

from __future__ import annotations

import hashlib
import math
from collections import defaultdict
from collections.abc import Hashable, Iterable, Mapping
from typing import Any

import numpy as np
from datasets import Dataset

from hf_tlm.tasks import texts
from hf_tlm.tasks.rows import columns_of, missing_columns_error
from hf_tlm.tasks.spec import TaskError, TaskSpec

# Number of quantiles of a regression task's labels, which are the strata to sample from.
QUANTILES = 10
_HASH_RANGE = 2.0**64
DEFAULT_SHARE = 0.1
# Kind of task -> column whose rows with equal values go to the same split; so all questions about a context stay together.
_CONTENT_ROLES = {"question_answering": "context", "multiple_choice": "context", "tagging": "tokens"}


def content_hash(content: Any) -> float:
    """Return a hash of a text's content as a number in [0, 1): equal for equal contents, and uniform over different ones."""
    text = content if isinstance(content, str) else repr(content)
    digest = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "big") / _HASH_RANGE


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


def sample(groups: np.ndarray, hashes: np.ndarray, size: int) -> np.ndarray:
    """Return the indices of a stratified sample, int64 [size] in ascending order.

    Each group gets its share of the sample to within one row, but at least one row, at the cost of larger groups if its
    share is less. The sample depends neither on the order of rows nor on a seed, and a larger sample contains every smaller
    one.

    Args:
        groups: int64 [N], see `strata`.
        hashes: float64 [N], see `content_hash`; the rows with the smallest values of each group are chosen first.
        size: size of the sample, from the number of groups to N.
    """
    order = np.lexsort((groups, hashes))
    quantiles = np.empty(len(groups))
    for group in np.unique(groups):
        members = order[groups[order] == group]
        quantiles[members] = (np.arange(len(members)) + 0.5) / len(members)
        quantiles[members[0]] = 0.0
    return np.sort(order[np.argsort(quantiles[order], kind="stable")][:size])


def hold_out(spec: TaskSpec, rows: Dataset, shares: Mapping[str, float]) -> tuple[dict[str, Dataset], dict[str, list[int]]]:
    """Split the rows of a table into train and the splits that `shares` names.

    Texts that are equal up to white space go to the same split. Every split gets its share of the distinct texts of each
    class, to within one or two, and the first text of a class goes to train. A hash of each text, in the order of the
    table, decides: rows that are appended later do not move earlier rows. Rows without a text or a label go to train, where
    they are reported.

    Without an id column, the ids are `row-<n>`, counted from 0.

    Args:
        shares: split (`validation`, `test`) -> share of the texts, with a sum below 1; splits with share 0 are left out.

    Returns:
        Split -> its rows, and split -> the indices of these rows in the table.

    Raises:
        TaskError: a column is missing, a share is invalid, or there are too few texts for a split.
    """
    shares = {split: share for split, share in shares.items() if share}
    for split, share in shares.items():
        if isinstance(share, bool) or not isinstance(share, (int, float)) or not 0 < share < 1:
            raise TaskError(f"{split}_share must be a share of at least 0 and below 1; received {share!r}.")
    if sum(shares.values()) >= 1:
        listed_shares = " and ".join(f"{split}_share {share:g}" for split, share in shares.items())
        raise TaskError(f"Task {spec.name}: {listed_shares} leave nothing to train on. Together they must be below 1.")
    contents, classes = _read_contents(spec, rows), _read_classes(spec, rows)
    if spec.id_column is None and "id" not in rows.column_names:
        rows = rows.add_column("id", [f"row-{index}" for index in range(len(rows))])
    row_splits = _assign_splits(zip(contents, classes, strict=True), shares)
    split_indices = {name: [row for row, split in enumerate(row_splits) if split == name] for name in ("train", *shares)}
    for name, chosen in split_indices.items():
        if not chosen:
            num_texts, num_classes = len(set(contents) - {None}), len(set(classes) - {None})
            in_classes = (
                f" in {num_classes} classes, which {spec.label_column!r} names," if spec.kind == "classification" else ""
            )
            raise TaskError(
                f"Task {spec.name}: {num_texts} different texts{in_classes} are too few for a {name} split of "
                f"{100 * shares.get(name, 1 - sum(shares.values())):g}%. Choose a larger --{name}_share or another "
                "column of labels, or pass a folder with train, validation and test files."
            )
    return {name: rows.select(chosen) for name, chosen in split_indices.items()}, split_indices


def _read_contents(spec: TaskSpec, rows: Dataset) -> list[str | None]:
    """Return the content of every row, with normalised white space, by which rows are compared; None for null or blank."""
    if spec.kind in _CONTENT_ROLES:
        columns = columns_of(spec, "the table", rows, _CONTENT_ROLES[spec.kind])
    else:
        if absent := [column for column in spec.text_columns if column not in rows.column_names]:
            raise missing_columns_error(spec, "the table", absent, rows, texts.ADVICE)
        columns = [rows[column][:] for column in spec.text_columns]
    columns = [["" if cell is None else " ".join(str(cell).split()) for cell in cells] for cells in columns]
    return ["\0".join(cells) if all(cells) else None for cells in zip(*columns, strict=True)]


def _read_classes(spec: TaskSpec, rows: Dataset) -> list[Hashable]:
    """Return the class of every row, or None without a label; the same for all rows for other kinds of tasks."""
    if spec.kind != "classification":
        return [""] * len(rows)
    texts.check_class_names(spec, rows)  # Labels that are not classes would each become a stratum.
    return texts.labels(spec, rows)


def _assign_splits(rows: Iterable[tuple[str | None, Any]], shares: Mapping[str, float]) -> list[str]:
    """Return the split of every row.

    Args:
        rows: (content, class) of each.
    """
    assigned: dict[str, str] = {}
    num_texts: dict[Hashable, int] = defaultdict(int)
    counts: dict[tuple[str, Hashable], int] = defaultdict(int)
    splits = []
    for content, label in rows:
        if content is None or label is None:
            splits.append("train")
            continue
        if content not in assigned:
            num_texts[label] += 1
            assigned[content] = split = _choose_split(
                content, num_texts[label], {p: counts[p, label] for p in shares}, shares
            )
            counts[split, label] += 1
        splits.append(assigned[content])
    return splits


def _choose_split(content: str, position: int, counts: Mapping[str, int], shares: Mapping[str, float]) -> str:
    """Return the split of the next text of a class.

    A split that would fall behind its share gets it, and a split that is ahead does not; otherwise the hash decides.

    Args:
        position: position of the text among the distinct texts of its class, from 1.
        counts: split -> number of texts of the class that it already has.
    """
    if position == 1:
        return "train"
    quotas = {split: position * share for split, share in shares.items()}
    for split, count in counts.items():
        # A split gets its first text as soon as its share is one text; after that it may be one short of its share.
        if count < max(math.floor(quotas[split] + 1e-9) - 1, quotas[split] >= 1 - 1e-9):
            return split
    text_hash, upper = content_hash(content), 0.0
    for split, share in shares.items():
        if upper <= text_hash < (upper := upper + share) and counts[split] < max(
            math.ceil(quotas[split]) + (quotas[split] >= 1), 1
        ):
            return split
    return "train"
