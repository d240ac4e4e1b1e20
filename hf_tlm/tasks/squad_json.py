"""The files of SQuAD 1.1 and 2.0 as they are distributed: articles of paragraphs of questions, as one JSON object."""

from __future__ import annotations

import json
import re
from pathlib import Path

from datasets import Dataset

from hf_tlm.tasks.spec import TaskError

_HEAD = re.compile(r'\s*\{\s*("version"\s*:\s*"[^"]*"\s*,\s*)?"data"\s*:\s*\[\s*\{')


def is_squad_json(path: Path) -> bool:
    """Whether a file begins as SQuAD's do; a file of lines of JSON begins otherwise."""
    with path.open(encoding="utf-8", errors="replace") as file:
        return path.suffix == ".json" and _HEAD.match(file.read(1000)) is not None


def read_squad_json(path: Path) -> Dataset:
    """A row a question: id, title, context, question, answers, answer_start (lists; empty for an unanswerable question).

    Raises:
        TaskError: something that a question needs is not there.
    """
    columns: dict[str, list] = {name: [] for name in ("id", "title", "context", "question", "answers", "answer_start")}
    content = json.loads(path.read_text(encoding="utf-8"))
    try:
        for article in content["data"]:
            for paragraph in article["paragraphs"]:
                for question in paragraph["qas"]:
                    # A file without answers, as one to predict on, is one too.
                    answers = [] if question.get("is_impossible") else question.get("answers", [])
                    columns["id"].append(question["id"])
                    columns["title"].append(article.get("title"))
                    columns["context"].append(paragraph["context"])
                    columns["question"].append(question["question"])
                    columns["answers"].append([answer["text"] for answer in answers])
                    columns["answer_start"].append([answer["answer_start"] for answer in answers])
    except KeyError as error:
        where = f"after {len(columns['id'])} questions there is one"
        raise TaskError(f"{path} is not whole as a SQuAD file: {where} without {error}.") from error
    return Dataset.from_dict(columns)
