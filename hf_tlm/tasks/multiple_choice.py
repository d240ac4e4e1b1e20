"""Read tasks of multiple choice: a passage, a question, and options of which one is correct (RACE)."""

from __future__ import annotations

import string
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

from datasets import ClassLabel, Dataset, Features, List, Value

from hf_tlm.tasks.rows import Bad, check_text, class_names, column_of, columns_of
from hf_tlm.tasks.spec import TaskError, TaskSpec


def label_names(spec: TaskSpec, train: Dataset) -> tuple[str, ...]:
    """Return the names of the options, A, B, ...: as many as most training rows have.

    Raises:
        TaskError: most training rows have less than 2 or more than 26 options.
    """
    (options,) = columns_of(spec, "train", train, "options")
    counts = Counter(len(row) for row in options if isinstance(row, list))
    num_options = counts.most_common(1)[0][0] if counts else 0
    if not 2 <= num_options <= len(string.ascii_uppercase):
        raise TaskError(
            f"Task {spec.name}: a multiple-choice task needs 2 to 26 options per question, as a list of strings; most "
            f"training rows have {num_options}."
        )
    return tuple(string.ascii_uppercase[:num_options])


def features(spec: TaskSpec, labelled: bool) -> Features:
    texts = {name: Value("string") for name in ("id", "context", "question")}
    return Features(texts | {"options": List(Value("string"))} | ({"label": Value("int64")} if labelled else {}))


def unlabelled(spec: TaskSpec, rows: Dataset) -> bool:
    """Return whether no row has a label."""
    column = column_of(spec, "label", rows)
    return column in rows.column_names and all(label in (None, -1, "") for label in rows[column][:])


def read(spec: TaskSpec, split: str, rows: Dataset, names: tuple[str, ...], labelled: bool) -> Iterator[tuple | Bad]:
    """Yield passage, question and options of each row, and the correct option's index if `labelled`; or a `Bad`.

    A label is a letter or an index from 0. Every row must have one option for each of `names`; without names, as many
    options as the first row that has any.
    """
    contexts, questions, options = columns_of(spec, split, rows, "context", "question", "options")
    num_options = len(names) or next((len(row) for row in options if isinstance(row, list) and row), 0)
    targets: Iterable[tuple | Bad] = [()] * len(rows)
    if labelled:
        (labels,) = columns_of(spec, split, rows, "label")
        feature = rows.features[column_of(spec, "label", rows)]
        if isinstance(feature, ClassLabel):
            labels = class_names(labels, feature.names)
        targets = (_parse_label(label, names) for label in labels)
    for context, question, row_options, label in zip(contexts, questions, options, targets, strict=True):
        problem = check_text("context", context) or check_text("question", question)
        problem = problem or check_text("option", *(row_options or [None] if isinstance(row_options, list) else [None]))
        if not problem and len(row_options) != num_options:
            problem = Bad(f"another number of options than {num_options}", f"{len(row_options)} options")
        if problem or isinstance(label, Bad):
            yield problem or label
        else:
            yield (str(context), str(question), list(map(str, row_options)), *label)  # Options may be numbers.


def _parse_label(label: Any, names: tuple[str, ...]) -> tuple[int] | Bad:
    if label in (None, -1, ""):
        return Bad("no label")
    label_index = names.index(label) if label in names else label
    if isinstance(label_index, int) and 0 <= label_index < len(names):
        return (label_index,)
    return Bad("a label that is no option", f"label {label!r}, options {', '.join(names)} or 0 to {len(names) - 1}")


def number_questions(spec: TaskSpec, rows: Dataset, ids: list[str | None]) -> list[str | None]:
    """Return unique ids of questions, by adding their number (from 0) to ids that are those of passages, as in RACE."""
    (contexts,) = columns_of(spec, "ids", rows, "context")
    passages: dict[str | None, set[str]] = {}
    for identifier, context in zip(ids, contexts, strict=True):
        passages.setdefault(identifier, set()).add(str(context))
    id_counts, question_ids = Counter(ids), []
    next_numbers: Counter[str | None] = Counter()
    for identifier in ids:
        is_of_passage = identifier is not None and id_counts[identifier] > 1 and len(passages[identifier]) == 1
        question_ids.append(f"{identifier}:{next_numbers[identifier]}" if is_of_passage else identifier)
        next_numbers[identifier] += 1
    return question_ids


def report(spec: TaskSpec, rows: Dataset, names: tuple[str, ...]) -> dict[str, Any]:
    return {"labels": dict(sorted(Counter(names[label] for label in rows["label"][:]).items()))}


def content(rows: Dataset) -> list[tuple]:
    """Return the context, question and options of each row, by which rows are compared."""
    options = (tuple(row) for row in rows["options"][:])
    return list(zip(rows["context"][:], rows["question"][:], options, strict=True))
