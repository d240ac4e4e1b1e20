"""Options of baselines, predictions and exports, and of the checkpoint that is fine-tuned; light to import."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

from hf_tlm.errors import ArgumentsError, ModelError
from hf_tlm.hub.repo import ADAPTER_FILE, split_revision
from hf_tlm.hub.repo_id import find_repo
from hf_tlm.models.arguments import LoraArguments
from hf_tlm.tasks.arguments import text_columns
from hf_tlm.utils.options import NoEffect, check_effects, check_ranges, named, option
from hf_tlm.utils.run_files import LINEAR_FILE, is_export
from hf_tlm.utils.shown import suggested_path

MAJORITY, LINEAR = "majority class", "linear"
# Options of the machine, on which predictions depend only by rounding.
MACHINE_OPTIONS = ("per_device_eval_batch_size", "use_cpu", "bf16_full_eval", "fp16_full_eval", "dataloader_num_workers")
_WITHOUT_ONNX = NoEffect("backend", ("torch",), "without --backend onnx. Leave it out.")
_WITH_ONNX = NoEffect("backend", ("onnx",), "with --backend onnx. Leave it out.")
_WITHOUT_PREDICT = NoEffect("predict", (None,), "without predict. Give --predict a file.")
_WITHOUT_DATA = NoEffect("data", (None,), "without --data. Leave it out.")
_WITHOUT_PAGE = NoEffect("page", (None,), "without --page. Leave it out.")


@dataclass
class CheckpointArguments(LoraArguments):
    """Settings of the pretrained model."""

    model_name_or_path: str = field(
        kw_only=True,
        metadata={
            "help": "The pretrained encoder: a folder, or a Hub id with @revision if wanted. finetune also accepts a "
            "pattern of folders, such as 'runs/cocolm/training/checkpoint-*', and fine-tunes each of them."
        },
    )
    model_revision: str | None = option(None, "Branch, tag or commit of the checkpoint, instead of @revision.")
    tokenizer_name: str | None = option(
        None, "The tokenizer: a folder, or a Hub id with @revision if wanted. Default: the checkpoint's."
    )
    trust_remote_code: bool = option(False, "Run code that comes with the checkpoint.")
    attn_implementation: str | None = option(
        None,
        "Attention implementation: sdpa, eager, flash_attention_2, ...; the last needs its package, a GPU and bf16. "
        "Default: sdpa.",
    )
    use_peft: bool = option(False, "Train a LoRA adapter and the head of the task instead of all weights.")

    def __post_init__(self):
        super().__post_init__()
        for name in ("model_name_or_path", "tokenizer_name"):
            setattr(self, name, named(name, getattr(self, name), ArgumentsError))
        # Records, and the base model on a card, have the id without the revision.
        self.model_name_or_path, self.model_revision = split_revision(self.model_name_or_path, self.model_revision)

    @property
    def tokenizer_source(self) -> dict[str, Any]:
        """The keyword arguments of `load_tokenizer`."""
        # The revision is of the checkpoint's repository; a tokenizer from another repository has its own.
        revision = None if self.tokenizer_name else self.model_revision
        name = self.tokenizer_name or self.model_name_or_path
        return {"name_or_path": name, "revision": revision, "trust_remote_code": self.trust_remote_code}


@dataclass
class BaselineArguments:
    """Settings of the baselines."""

    baseline: str = option(
        "all",
        "majority class: predict the largest class of the training split. linear: a support vector machine on TF-IDF, with "
        "settings chosen on validation.",
        choices=["all", MAJORITY, LINEAR],
    )


def baseline_names(baseline: str) -> list[str]:
    """Return the names of the baselines that a choice of `BaselineArguments.baseline` stands for."""
    return [MAJORITY, LINEAR] if baseline == "all" else [baseline]


def _format_metadata(output_option: str) -> dict[str, Any]:
    """Return the metadata of the option `predict_format`; output_option: that of the predictions' path."""
    return {
        "help": "jsonl, csv, tsv, parquet, xlsx: the rows with predictions and probabilities as further columns. txt: one "
        f"prediction per line. glue: a file for GLUE's leaderboard; {output_option} is its folder. squad: a JSON object, id "
        f"-> answer. Default: the suffix of {output_option}; without {output_option} jsonl.",
        "choices": ["jsonl", "csv", "tsv", "parquet", "xlsx", "txt", "glue", "squad"],
    }


@dataclass
class PredictArguments:
    """Settings of predictions for unlabelled data at the end of a training."""

    predict: str | None = option(
        None,
        "File or Hub dataset to predict on with the finished model, with the columns of the task; labels are not needed.",
    )
    predict_output: Annotated[str | None, _WITHOUT_PREDICT] = option(
        None, "Path of the predictions. Default: a file named like the data in output_dir/predictions."
    )
    predict_format: Annotated[str | None, _WITHOUT_PREDICT] = field(
        default=None, metadata=_format_metadata("predict_output")
    )

    def __post_init__(self):
        # Checked now: otherwise the error would appear only at the end of the training.
        check_data("predict", self.predict)
        if self.predict_output and self.predict and os.path.realpath(self.predict_output) == os.path.realpath(self.predict):
            raise ArgumentsError(f"predict_output {self.predict_output} is the file to predict on. Choose another path.")
        check_effects(self, ArgumentsError)


@dataclass
class PredictorArguments:
    """Settings of predictions: the data, the model and the output file."""

    model_name_or_path: list[str] = option(
        help="The folder of a finished run (train_tlm, finetune, few_shot; adapters too) or of baseline (its linear model), "
        "or a stock checkpoint with the head of a task; or one of these on the Hub, with @revision if wanted. The "
        "probabilities of several models, such as runs/a/seed-*/model, are averaged.",
        nargs="+",
    )
    data: str | None = option(
        None,
        "File (csv, tsv, xlsx, jsonl, parquet, or txt with one text per line) or Hub dataset, with the columns that the "
        "model was trained on; labels are not needed.",
    )
    text: list[str] = option(
        help="Texts, instead of --data: their classes are printed. For a model of pairs, both texts of the first pair, then "
        "those of the next.",
        factory=list,
        nargs="+",
    )
    output: Annotated[str | None, _WITHOUT_DATA] = option(
        None,
        "Path of the predictions, ending with .csv, .tsv, .xlsx, .jsonl, .parquet or .txt. Default: a .jsonl named like the "
        "data, in the subfolder predictions of the model's folder; for several models, or one on the Hub, in ./predictions.",
    )
    predict_format: Annotated[str | None, _WITHOUT_DATA] = field(default=None, metadata=_format_metadata("output"))
    text_column: Annotated[str | None, _WITHOUT_DATA] = option(
        None, "Column of the texts. Default: as in training; for stock checkpoints text."
    )
    text_pair_column: Annotated[str | None, _WITHOUT_DATA] = option(None, "Column of the second texts of pairs.")
    separator: Annotated[str | None, _WITHOUT_DATA] = option(
        None, "Separator of the fields in csv and tsv files, such as ; or tab. Default: tab for tsv, detected for csv."
    )
    max_length: int | None = option(
        None,
        "Number of tokens to which texts are truncated. Default: as in training; for stock checkpoints their longest input.",
    )
    drop_bad_rows: Annotated[bool, _WITHOUT_DATA] = option(False, "Leave out rows with null or blank texts.")
    backend: str = option(
        "torch",
        "torch; or onnx: the model is a folder written by hf-tlm export, which onnxruntime runs on the CPU.",
        choices=["torch", "onnx"],
    )
    onnx_dtype: Annotated[str, _WITHOUT_ONNX] = option(
        "fp32", "File of the export to run: fp32, int8, fp16.", choices=["fp32", "int8", "fp16"]
    )
    num_threads: Annotated[int | None, _WITHOUT_ONNX] = option(
        None, "Batches that onnxruntime computes at the same time, each on one core. Default: one per core."
    )
    trust_remote_code: Annotated[bool, _WITH_ONNX] = option(False, "Run code that comes with the checkpoint.")
    per_device_eval_batch_size: int = option(64, "Texts per device and batch.")
    dataloader_num_workers: Annotated[int, _WITH_ONNX] = option(0, "Processes that prepare batches.")
    use_cpu: Annotated[bool, _WITH_ONNX] = option(False, "Compute on the CPU even if there is a GPU.")
    bf16_full_eval: Annotated[bool, _WITH_ONNX] = option(False, "Compute in bfloat16.")
    fp16_full_eval: Annotated[bool, _WITH_ONNX] = option(False, "Compute in float16.")

    def __post_init__(self):
        check_ranges(self, ArgumentsError)
        if (self.data is None) == (not self.text):
            received = "neither" if self.data is None else "both"
            raise ArgumentsError(f"Expected --data, a file to predict on, or --text, texts; received {received}.")
        check_data("data", self.data)
        check_effects(self, ArgumentsError)

    def options(self) -> dict[str, Any]:
        """Return the keyword arguments of `hf_tlm.runs.predict`, or of `predict_texts` if there are texts."""
        excluded = ["model_name_or_path", "data", "text", "output", "text_column", "text_pair_column"]
        if self.text:
            excluded += ["predict_format", "separator", "drop_bad_rows"]
        arguments = {name: value for name, value in vars(self).items() if name not in excluded}
        columns = {} if self.text else {"text_columns": text_columns(self.text_column, self.text_pair_column)}
        return arguments | columns


@dataclass
class ExportArguments:
    """Settings of an export: the model and the files to write."""

    model_name_or_path: list[str] = option(
        help="The folder of a finished run (train, finetune, few-shot, pretrain; adapters too), its masked LM in "
        "mlm, or a stock checkpoint with a head; or one of these on the Hub, with @revision if wanted. Several models, such "
        "as runs/a/seed-*/model, become one graph that averages their probabilities.",
        nargs="+",
    )
    output_dir: str | None = option(
        None,
        "Folder to write; an earlier export there is replaced. Default: NAME-onnx beside the model; for a folder in "
        "a run, RUN-NAME-onnx beside the run. Needed for several models.",
    )
    dtypes: list[str] = option(
        help="fp32: onnx/model.onnx. int8: weights in 8 bits, onnx/model_quantized.onnx. fp16: for GPUs and WebGPU, "
        "onnx/model_fp16.onnx.",
        factory=lambda: ["fp32", "int8"],
        nargs="+",
        choices=["fp32", "int8", "fp16"],
    )
    data: str | None = option(
        None,
        "Instead of --task: file (or Hub dataset) of texts without labels, with the columns of the model's task or "
        "--text_column. The share of unchanged predictions is then measured, on the first 10,000 rows.",
    )
    max_drop: float = option(
        0.5,
        "Maximal loss of int8 and fp16, in points of the task's metric, or one answer where that is more; a file that loses "
        "more is refused.",
    )
    per_channel: bool = option(True, "int8: one scale for each output of a matrix; false: one scale per matrix.")
    keep_float: list[str] = option(
        help="int8: parts that stay in float32: embeddings, the token vectors; head, the last matrix.",
        factory=list,
        nargs="+",
        choices=["embeddings", "head"],
    )
    page: str | None = option(
        None,
        "Folder for a web page that classifies in the browser, from its own files alone; an earlier page there is replaced.",
    )
    page_texts: Annotated[list[str], _WITHOUT_PAGE] = option(
        help="Example texts on the page, which everyone who opens it can read.", factory=list, nargs="+"
    )
    page_runtime: Annotated[str | None, _WITHOUT_PAGE] = option(
        None,
        "Folder in which `npm install @huggingface/transformers@4.3.1` was run. Default: npm fetches what the page needs.",
    )
    page_model: Annotated[str | None, _WITHOUT_PAGE] = option(
        None,
        "Public repository of the Hub (owner/name, with @revision if wanted) from which the page loads the model, uploaded "
        "by `hf-tlm publish`. Default: from the page's own folder.",
    )
    opset: int = option(23, "Version of the ONNX operator set.")
    max_length: int | None = option(
        None,
        "Number of tokens to which loaders truncate texts. Default: as in training; for stock checkpoints their longest "
        "input.",
    )
    per_device_eval_batch_size: int = option(64, "Texts per batch of the check.")
    trust_remote_code: bool = option(False, "Run code that comes with the checkpoint.")

    def __post_init__(self):
        check_ranges(self, ArgumentsError)
        check_effects(self, ArgumentsError)
        if (self.page or "").lower() in ("true", "false", "yes", "no"):  # Meant as a switch, which --page is not.
            raise ArgumentsError(f"page: expected a folder to write; received {self.page}. Name one, such as --page page.")
        check_data("data", self.data)

    @property
    def without_texts(self) -> list[str]:
        """The dtypes whose files are checked on texts, where `data` gives no texts; else an empty list."""
        return [dtype for dtype in self.dtypes if dtype != "fp32"] if self.data is None else []

    def options(self) -> dict[str, Any]:
        """Return the keyword arguments of `hf_tlm.runs.export_onnx`."""
        excluded = ("model_name_or_path", "output_dir", "per_device_eval_batch_size")
        arguments = {name: value for name, value in vars(self).items() if name not in excluded}
        return arguments | {"batch_size": self.per_device_eval_batch_size}


def missing_texts_error(dtypes: Sequence[str], why: str = "") -> ArgumentsError:
    """Return the error for dtypes that are checked on texts where no texts were given.

    why: a sentence for the message, with a space after it, or an empty string.
    """
    return ArgumentsError(
        f"{' and '.join(dtypes)}: expected texts for the check; received none. {why}Pass --task, whose validation texts "
        "are scored, or --data, a file of texts; or only --dtypes fp32."
    )


def check_models(names: Iterable[str]) -> None:
    """Check that every model is a local path or may be the id of a Hub repository, or raise a ModelError."""
    for name in names:
        if not os.path.exists(name) and find_repo(name, "model") is None:
            raise ModelError(
                f"Model {name!r} not found: expected the folder of a finished run, or a Hub id (owner/name)."
                f"{suggested_path(name)}"
            )


def has_network(folder: Path) -> bool:
    """Return whether a folder holds a model of transformers, or an adapter of one."""
    return any((folder / file).is_file() for file in ("config.json", ADAPTER_FILE))


def linear_folder(folder: Path) -> Path | None:
    """Return the folder of the linear model that a folder holds, such as a run of baselines; None if it holds a network."""
    if has_network(folder):
        return None
    return next((each for each in (folder / LINEAR, folder) if (each / LINEAR_FILE).is_file()), None)


def check_exportable(folder: Path) -> None:
    """Check that a folder does not hold a linear model or an export, which have no network, or raise a ModelError."""
    if linear_folder(folder) is not None:
        raise ModelError(
            f"{folder} is a linear model, which has no graph to export. `hf-tlm predict` uses it directly, alone or "
            "together with exports (--backend onnx)."
        )
    if is_export(folder):
        raise ModelError(f"{folder} is itself an export and has no weights. Pass the model from which it was exported.")


def check_data(name: str, data: str | None) -> None:
    """Check that `data` is None, a file, or may be the id of a dataset on the Hub, or raise an ArgumentsError.

    name: the option's, for the message.
    """
    if data is not None and not os.path.isfile(data):
        if os.path.exists(data):
            raise ArgumentsError(f"{name}: expected a file or a dataset on the Hub; {data} is not a file.")
        if find_repo(data, "dataset") is None:
            raise ArgumentsError(
                f"{name}: expected a file or a dataset on the Hub; {data} does not exist.{suggested_path(data)}"
            )
