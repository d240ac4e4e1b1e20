"""What a finished model predicts on, and where that goes."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Annotated, Any

from hf_tlm.errors import ArgumentsError, ModelError
from hf_tlm.hub.repo_id import find_repo
from hf_tlm.tasks.arguments import text_columns
from hf_tlm.utils.options import NoEffect, check_effects, check_ranges, option

# What predictions do not depend on, but for rounding: the machine's.
MACHINE = ("per_device_eval_batch_size", "use_cpu", "bf16_full_eval", "fp16_full_eval", "dataloader_num_workers")


def _format(output: str) -> dict[str, Any]:
    """Metadata of the option `predict_format`; output: the option that says where predictions go."""
    return {
        "help": "jsonl, csv, tsv, parquet, xlsx: the rows, with predictions and probabilities beside them. txt: a "
        f"prediction a line. glue: a file for GLUE's leaderboard; {output} is its folder. squad: a JSON object, id "
        f"-> answer. Default: what the name of {output} says; without one jsonl.",
        "choices": ["jsonl", "csv", "tsv", "parquet", "xlsx", "txt", "glue", "squad"],
    }


_OF_ONNX = NoEffect("backend", ("torch",), "without --backend onnx. Leave it out.")
_OF_TORCH = NoEffect("backend", ("onnx",), "with --backend onnx. Leave it out.")
_WITHOUT_PREDICT = NoEffect("predict", (None,), "without predict. Give --predict a file.")


@dataclass
class PredictArguments:
    """Predictions for unlabelled data."""

    predict: str | None = option(
        None,
        "File, or Hub dataset, to predict on with the finished model; it has the columns of the task, and needs no labels.",
    )
    predict_output: Annotated[str | None, _WITHOUT_PREDICT] = option(
        None, "Where predictions go. Default: a file of that name in output_dir/predictions."
    )
    predict_format: Annotated[str | None, _WITHOUT_PREDICT] = field(default=None, metadata=_format("predict_output"))

    def __post_init__(self):
        # Before a training, at whose end it would come out.
        check_data("predict", self.predict)
        if self.predict_output and self.predict and os.path.realpath(self.predict_output) == os.path.realpath(self.predict):
            raise ArgumentsError(f"predict_output {self.predict_output} is the file to predict on. Give another.")
        check_effects(self, ArgumentsError)


@dataclass
class PredictorArguments:
    """What is predicted, by which model."""

    model_name_or_path: list[str] = option(
        help=(
            "The folder of a finished run (train_tlm, finetune, few_shot; adapters too), of baseline (its linear model), "
            "or a stock checkpoint with the head of a task; or one of these on the Hub, with @revision if wanted. Several, "
            "such as runs/a/seed-*/model: their probabilities are averaged."
        ),
        nargs="+",
    )
    data: str = option(
        help=(
            "File (csv, tsv, xlsx, jsonl, parquet, or txt with a text a line), or Hub dataset, in the columns that "
            "the model was trained on; labels are not needed."
        )
    )
    output: str | None = option(
        None,
        "Where predictions go: a file ending with .csv, .tsv, .xlsx, .jsonl, .parquet or .txt. Default: a "
        ".jsonl called like the data, in the folder predictions beside the model; of several models in predictions here.",
    )
    predict_format: str | None = field(default=None, metadata=_format("output"))
    text_column: str | None = option(None, "Column of the texts. Default: that of the training; of stock checkpoints text.")
    text_pair_column: str | None = option(None, "Column of the second texts of pairs.")
    separator: str | None = option(
        None, "What separates the fields of csv and tsv files: ; or tab, say. Default: it is looked for."
    )
    max_length: int | None = option(
        None, "Tokens after which a text is cut. Default: as in training; of stock checkpoints the longest they take."
    )
    drop_bad_rows: bool = option(False, "Leave out rows with null or blank texts.")
    backend: str = option(
        "torch",
        "torch; or onnx: the model is a folder of hf-tlm export, and onnxruntime computes, on the CPU.",
        choices=["torch", "onnx"],
    )
    onnx_dtype: Annotated[str, _OF_ONNX] = option(
        "fp32", "Which of the export's files: fp32, int8, fp16.", choices=["fp32", "int8", "fp16"]
    )
    num_threads: Annotated[int | None, _OF_ONNX] = option(None, "Threads of onnxruntime. Default: one a core.")
    trust_remote_code: Annotated[bool, _OF_TORCH] = option(False, "Run code that comes with the checkpoint.")
    per_device_eval_batch_size: int = option(64, "Texts per device and batch.")
    dataloader_num_workers: Annotated[int, _OF_TORCH] = option(0, "Processes that prepare batches.")
    use_cpu: Annotated[bool, _OF_TORCH] = option(False, "Leave a GPU alone.")
    bf16_full_eval: Annotated[bool, _OF_TORCH] = option(False, "Compute in bfloat16.")
    fp16_full_eval: Annotated[bool, _OF_TORCH] = option(False, "Compute in float16.")

    def __post_init__(self):
        check_ranges(self, ArgumentsError)
        check_data("data", self.data)
        check_effects(self, ArgumentsError)

    def options(self) -> dict[str, Any]:
        """The keyword arguments of `hf_tlm.runs.predict`."""
        others = ("model_name_or_path", "data", "output", "text_column", "text_pair_column")
        own = {name: value for name, value in vars(self).items() if name not in others}
        return own | {"text_columns": text_columns(self.text_column, self.text_pair_column)}


def check_models(names: Iterable[str]) -> None:
    """Raise a ModelError for a model that is not here and cannot be on the Hub."""
    for name in names:
        if not os.path.exists(name) and find_repo(name, "model") is None:
            raise ModelError(f"No model {name!r}: expected a folder of a finished run, or a name on the Hub (owner/name).")


def check_data(name: str, data: str | None) -> None:
    """Raise an ArgumentsError if what is to be predicted on is no file and cannot be on the Hub."""
    if data is not None and not os.path.isfile(data):
        if os.path.exists(data):
            raise ArgumentsError(f"{name}: expected a file, or a dataset of the Hub; {data} is no file.")
        if find_repo(data, "dataset") is None:
            raise ArgumentsError(f"{name}: expected a file, or a dataset of the Hub; there is no {data}.")
