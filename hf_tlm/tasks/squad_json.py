"""The files of SQuAD 1.1 and 2.0 as they are distributed: articles of paragraphs of questions, as one JSON object."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from datasets import Dataset, Features, List, Value

from hf_tlm.tasks.spec import TaskError

FEATURES = Features(
    {name: Value("string") for name in ("id", "title", "context", "question")}
    | {"answers": List(Value("string")), "answer_start": List(Value("int64"))}
)
_HEAD = re.compile(r'\s*\{\s*("version"\s*:\s*"[^"]*"\s*,\s*)?"data"\s*:\s*\[\s*\{')


def is_squad_json(path: Path) -> bool:
    """Whether a file begins as SQuAD's do; a file of lines of JSON begins otherwise."""
    with path.open(encoding="utf-8", errors="replace") as file:
        return path.suffix == ".json" and _HEAD.match(file.read(1000)) is not None


def read_squad_json(path: Path) -> Dataset:
    """A row a question: id, title, context, question, answers, answer_start (lists; empty for an unanswerable question).

    Raises:
        TaskError: it is not built like SQuAD's.
    """
    rows: list[dict[str, Any]] = []
    content = json.loads(path.read_text(encoding="utf-8"))
    try:
        for article in content["data"]:
            for paragraph in article["paragraphs"]:
                for question in paragraph["qas"]:
                    # A file without answers, as one to predict on, is one too.
                    answers = [] if question.get("is_impossible") else question.get("answers", [])
                    rows.append(
                        {
                            "id": question["id"],
                            "title": article.get("title"),
                            "context": paragraph["context"],
                            "question": question["question"],
                            "answers": [answer["text"] for answer in answers],
                            "answer_start": [answer["answer_start"] for answer in answers],
                        }
                    )
    except (KeyError, TypeError, AttributeError) as error:  # A key that is missing, or something else in its place.
        raise TaskError(
            f"{path} begins as a SQuAD file and goes on otherwise after {len(rows)} questions: {error}. Articles have "
            "paragraphs, these a context and qas, and these an id, a question and answers with text and answer_start."
        ) from error
    return Dataset.from_list(rows, features=FEATURES)
