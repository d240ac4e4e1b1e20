"""Read tasks of extractive question answering: an answer is a span of the context, or there is none (SQuAD 1.1, 2.0)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from datasets import Dataset, Features, List, Value

from hf_tlm.tasks.rows import Bad, check_text, column_of, columns_of
from hf_tlm.tasks.spec import TaskSpec


def label_names(spec: TaskSpec, train: Dataset) -> tuple[str, ...]:
    return ()


def features(spec: TaskSpec, labelled: bool) -> Features:
    texts = {name: Value("string") for name in ("id", "context", "question")}
    return Features(texts | ({"answers": List(Value("string")), "starts": List(Value("int64"))} if labelled else {}))


def unlabelled(spec: TaskSpec, rows: Dataset) -> bool:
    """Return whether no row has an answer; a split with only unanswerable questions counts as one without answers."""
    column = column_of(spec, "answers", rows)
    return column in rows.column_names and not any(_parse_answers(cell, 0)[0] for cell in rows[column][:])


def read(spec: TaskSpec, split: str, rows: Dataset, names: tuple[str, ...], labelled: bool) -> Iterator[tuple | Bad]:
    """Yield context and question of each row, and its answers and their offsets if `labelled`; or a `Bad`.

    Answers are `{"text": [...], "answer_start": [...]}` or `[{"text": ..., "answer_start": ...}, ...]` in one column, or
    texts and offsets in two columns. In the latter case a null or blank text means that the question is unanswerable.
    """
    contexts, questions = columns_of(spec, split, rows, "context", "question")
    answers, starts = [None] * len(rows), [None] * len(rows)
    if labelled:
        (answers,) = columns_of(spec, split, rows, "answers")
        nested = any(_is_nested(cell) for cell in answers)
        if not nested:
            (starts,) = columns_of(spec, split, rows, "starts")
    for context, question, cell, start in zip(contexts, questions, answers, starts, strict=True):
        if problem := check_text("context", context) or check_text("question", question):
            yield problem
        elif not labelled:
            yield (str(context), str(question))
        elif cell is None and nested:
            yield Bad("no answers")
        else:
            texts, offsets = _parse_answers(cell, start)
            problem = _check_answers(str(context), texts, offsets)
            yield problem or (str(context), str(question), texts, [int(offset) for offset in offsets])


def _is_nested(cell: Any) -> bool:
    return isinstance(cell, dict) or isinstance(cell, list) and bool(cell) and isinstance(cell[0], dict)


def _parse_answers(cell: Any, start: Any) -> tuple[list[Any], list[Any]]:
    """Return the texts and offsets of a row's answers; both are empty for an unanswerable question."""
    if isinstance(cell, dict):
        return _as_list(cell.get("text")), _as_list(cell.get("answer_start"))
    if _is_nested(cell):
        return [answer.get("text") for answer in cell], [answer.get("answer_start") for answer in cell]
    if isinstance(cell, list):
        return list(map(str, cell)), _as_list(start)
    return ([], []) if cell is None or not str(cell).strip() else ([str(cell)], [start])


def _as_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [] if value is None else [value]


def _check_answers(context: str, texts: list[Any], starts: list[Any]) -> Bad | None:
    if len(texts) != len(starts):
        return Bad("different numbers of answers and offsets", f"{len(texts)} answers, {len(starts)} offsets")
    for text, start in zip(texts, starts, strict=True):
        if problem := check_text("answer", text):
            return problem
        if not isinstance(text, str):
            return Bad("an answer that is no text", f"answer {text!r}")
        if not isinstance(start, (int, float)):
            return Bad("an answer without an offset", f"answer {text!r}, offset {start!r}")
        excerpt = context[int(start) : int(start) + len(text)] if start >= 0 else ""
        if excerpt != text:
            return Bad(
                "an answer that is not at its offset",
                f"answer {text!r}, but from character {start:.0f} on the context has {excerpt!r}",
            )
    return None


def report(spec: TaskSpec, rows: Dataset, names: tuple[str, ...]) -> dict[str, Any]:
    return {"unanswerable": sum(not texts for texts in rows["answers"][:])}


def content(rows: Dataset) -> list[tuple[str, str]]:
    """Return the context and question of each row, by which rows are compared."""
    return list(zip(rows["context"][:], rows["question"][:], strict=True))
