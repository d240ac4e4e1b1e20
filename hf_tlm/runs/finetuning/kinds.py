"""The kinds of tasks that are fine-tuned, one module each, with the same names in every module.

    AUTO_CLASS: str     the Auto class of transformers, such as "AutoModelForQuestionAnswering"

    encode(rows, tokenizer, args) -> Dataset
        Features in the order of the rows, several a row where it is long: `input_ids` (not padded), `token_type_ids` where
        the tokenizer makes them, `example` (int64, the row), labels where the rows have them, and what `decode` needs.
    collator(tokenizer) -> Callable[[list[dict]], dict[str, Tensor]]
        Pads features to a batch, and drops the columns that the model does not take.
    decode(outputs, features, rows, model, args) -> list[dict]
        What the Trainer predicted for the features, as one JSON-ready dict a row, in the order of the rows: `prediction`,
        and `probability` or `probabilities`. Rows need no labels.
    score(task, predictions, rows) -> dict[str, float]
        The task's metric and its further ones.

And where a kind needs it:

    wrap(model, args) -> Module
        What is trained instead of the stock model, with its `config` and a `save_pretrained(folder)` of its own.
    restore(model, folder, args) -> Module
        The same from a folder that its `save_pretrained` wrote, for the stock model of that folder.
    loss_terms(batch, args) -> Tensor
        int64 []: what the loss of a batch is the mean of, where that is not its rows.
    validation_choices(task, outputs, features, rows, args) -> dict[str, Any]
        Options that the labels of validation decide, such as `null_threshold`; args -> their values from then on.
    tables(task, predictions, rows) -> dict[str, list[dict]]
        Tables for `results.json`.
"""

from __future__ import annotations

import importlib
from dataclasses import fields
from types import ModuleType
from typing import Any

from hf_tlm.errors import ArgumentsError

KINDS = {
    "classification": "classification",
    "regression": "classification",
    "question_answering": "question_answering",
    "multiple_choice": "multiple_choice",
    "tagging": "tagging",
}
# The columns of the labels in a batch; for others `labels`.
LABEL_NAMES = {"question_answering": ["start_positions", "end_positions"]}
# What peft calls them. It has no name for multiple choice.
PEFT_TASK_TYPES = {
    "classification": "SEQ_CLS",
    "regression": "SEQ_CLS",
    "question_answering": "QUESTION_ANS",
    "tagging": "TOKEN_CLS",
}
# Which kinds have a use for an option.
OPTIONS = {
    **dict.fromkeys(
        ("doc_stride", "max_query_length", "max_answer_length", "n_best", "null_threshold"), ("question_answering",)
    ),
    "option_apart": ("multiple_choice",),
    "crf": ("tagging",),
    "label_smoothing_factor": ("classification", "multiple_choice", "tagging"),
}


def kind_module(kind: str) -> ModuleType:
    """The module of a kind of task (`TaskSpec.kind`), with the names above."""
    return importlib.import_module(f"hf_tlm.runs.finetuning.{KINDS[kind]}")


def label_names(kind: str) -> list[str]:
    """The columns of a batch that are labels."""
    return LABEL_NAMES.get(kind, ["labels"])


def check_kind(args: Any, kind: str) -> None:
    """Raise an ArgumentsError for an option of `args`, `FinetuneArguments`, that was given and the kind has no use for."""
    for entry in fields(args):
        takers, value = OPTIONS.get(entry.name), getattr(args, entry.name)
        if takers and kind not in takers and value != entry.default:
            raise ArgumentsError(
                f"{entry.name} {value} has no effect on a {kind.replace('_', ' ')} task: it is for "
                f"{', '.join(takers).replace('_', ' ')}. Leave it out."
            )
