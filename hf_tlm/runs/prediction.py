"""Predict on unlabelled data with finished models, chunk by chunk."""

from __future__ import annotations

import contextlib
import os
import random
import tempfile
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from fnmatch import fnmatch
from functools import partial
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import torch
from accelerate.utils import gather_object
from datasets import Dataset
from torch import nn
from tqdm.auto import tqdm
from transformers import AutoConfig, PreTrainedConfig

from hf_tlm.corpora.tables import strip_compression
from hf_tlm.data import load_tokenizer
from hf_tlm.hub.repo import FILES, TOKENIZER_FILES
from hf_tlm.models import ModelError
from hf_tlm.models.loading import check_positions, reading
from hf_tlm.models.onnx_session import OnnxModel, check_dtypes
from hf_tlm.runs.arguments import MACHINE_OPTIONS, PredictArguments
from hf_tlm.runs.averaging import average, check_alike, model_names
from hf_tlm.runs.few_shot.classifier import PromptClassifier
from hf_tlm.runs.finetuning.arguments import FinetuneArguments
from hf_tlm.runs.finetuning.kinds import EvaluationSet, feature_lengths, kind_module
from hf_tlm.runs.finetuning.models import FinetuneTrainer, load_finetuned, set_token_types
from hf_tlm.runs.finetuning.tagging import CRF_FILE
from hf_tlm.runs.linear import WEIGHTS_FILE, LinearModel
from hf_tlm.runs.prediction_files import PredictionFile
from hf_tlm.runs.prediction_source import Source, find_source
from hf_tlm.runs.records import SAVED_FILE, logits_to_predictions
from hf_tlm.tasks import Task, unlabelled_chunks
from hf_tlm.tasks.reading import data_name, separator_as_in
from hf_tlm.tasks.spec import check_task
from hf_tlm.training import ArgumentsError
from hf_tlm.training.base_arguments import BaseArguments
from hf_tlm.training.run_folder import RESULTS_FILE, SETTINGS_FILE
from hf_tlm.utils.files import check_writable
from hf_tlm.utils.json_files import find_object
from hf_tlm.utils.run_files import EXPORT_FILE, ONNX_FILES, PREDICTIONS, SEED, SPLIT, is_export
from hf_tlm.utils.seals import SEAL, read_seal
from hf_tlm.utils.shown import few, one_line

SUFFIXES = {"squad": "json", None: "jsonl"}


@contextlib.contextmanager
def restore_random_states() -> Iterator[None]:
    """Restore the random states of Python, numpy and torch on exit: the construction of a Trainer seeds them all."""
    python_state, numpy_state = random.getstate(), np.random.get_state()
    devices = range(torch.cuda.device_count()) if torch.cuda.is_initialized() else ()
    with torch.random.fork_rng(devices):
        try:
            yield
        finally:
            random.setstate(python_state)
            np.random.set_state(numpy_state)


@restore_random_states()
def predict(
    model_name_or_path: str | os.PathLike | Sequence[str | os.PathLike],
    data: str,
    output: str | Path | None = None,
    *,
    predict_format: str | None = None,
    text_columns: str | Sequence[str] | None = None,
    separator: str | None = None,
    max_length: int | None = None,
    drop_bad_rows: bool = False,
    trust_remote_code: bool = False,
    backend: str = "torch",
    onnx_dtype: str = "fp32",
    num_threads: int | None = None,
    **options: Any,
) -> Path:
    """Predict every row of a file with a finished model, or with the average of several, and write the predictions.

    The columns of the input are kept, and `prediction` and the probabilities of all classes are added; see
    `hf_tlm.runs.prediction_files.PredictionFile`. Text columns and the maximal length are those of the training: for a run's
    folder they need not be given again.

    Rows are read, tokenised, predicted and written 10,000 at a time, so that the file may be of any size; the output is
    written atomically. With several processes each predicts a share of a chunk, and all must call this. Random states are
    restored.

        predict("runs/tickets", "new.csv", "answered.csv")

    Args:
        model_name_or_path: folder of a finished run of TLM, fine-tuning (adapters too) or few-shot learning (the split that
            is best on validation is used), of a linear model, of a stock checkpoint with the head of a task, or one of these
            on the Hub, with `@revision` if wanted. Of several models of one classification or regression task, such as the
            seeds of a run, the probabilities or values are averaged.
        data: file (csv, tsv, xlsx, jsonl, json, parquet, or txt with one text per line), or Hub dataset, with the columns of
            the task; labels are not read. See `hf_tlm.tasks.unlabelled`, also for `drop_bad_rows`.
        output: a file, for `glue` a folder; earlier predictions there are replaced. Default: a file named like the data, in
            the subfolder `predictions` of the model's folder, or of the working directory for a model on the Hub or several.
        predict_format: jsonl, csv, tsv, parquet, xlsx: a table. txt: one prediction per line. glue: a file for GLUE's
            leaderboard, under its name there. squad: a JSON object, id -> answer, and another in `<name>_null_odds.json`,
            id -> score of no answer minus score of the best answer. Default: the format of the suffix of `output`; jsonl
            without `output`.
        text_columns, max_length: see `find_source`.
        separator: of the fields of csv and tsv data. Default: detected.
        backend: torch; or onnx: the model is a folder of `hf_tlm.runs.export_onnx`, which onnxruntime runs, in one process.
            A linear model is computed by scikit-learn with either.
        onnx_dtype, num_threads: for the backend onnx, see `OnnxModel`.
        options: further `FinetuneArguments`, such as `per_device_eval_batch_size`, `use_cpu`, `bf16_full_eval`.

    Returns:
        The path of the written file.

    Raises:
        ModelError: the folder holds no model that predicts, its files do not match, or it has fewer positions than
            `max_length`; see `check_alike`.
        ArgumentsError: the format is unknown or not for this task; `output` is a folder, the data, a file of a model, or a
            table without predictions, or cannot be written.
        TaskError: see `unlabelled`.
    """
    names, data = model_names(model_name_or_path), data_name(data)
    sources = find_sources(
        names, backend, onnx_dtype, max_length=max_length, text_columns=text_columns, trust_remote_code=trust_remote_code
    )
    file = _create_prediction_file(names, data, output, predict_format, sources, separator)
    _check_all_rows(file, drop_bad_rows)
    with contextlib.ExitStack() as stack:
        machine: dict[str, Any] = {"backend": backend, "onnx_dtype": onnx_dtype, "num_threads": num_threads}
        predictors = stack.enter_context(open_predictors(sources, **machine, trust_remote_code=trust_remote_code, **options))
        args = predictors[0].args
        is_main = args.process_index == 0
        if is_main:
            stack.enter_context(file)
        bar = stack.enter_context(tqdm(desc="Predicting", unit=" rows", disable=not is_main))
        counts: Counter[str] = Counter()
        for rows, columns in unlabelled_chunks(data, sources[0].spec, drop_bad_rows=drop_bad_rows, separator=separator):
            predictions = average_predictions(predictors, rows)
            if is_main:
                file.add(rows, predictions, columns)
            if sources[0].spec.kind == "classification":
                counts.update(str(one["prediction"]) for one in predictions)
                bar.set_postfix_str(
                    few([f"{one_line(name, 30)} {count / counts.total():.0%}" for name, count in counts.most_common()], 5)
                )
            bar.update(len(rows))
        with args.main_process_first(local=False, desc="writing the predictions"):
            if is_main:
                stack.close()
    return file.path


@contextlib.contextmanager
def open_predictors(
    sources: Sequence[Source], *, backend: str, onnx_dtype: str, num_threads: int | None, **options: Any
) -> Iterator[list[Predictor]]:
    """Open several models for prediction, see `open_predictor`.

    Args:
        backend, onnx_dtype, num_threads: see `predict`.

    Raises:
        ArgumentsError: graphs are to run in several processes.
    """
    predictors: dict[int, Predictor] = {}
    with contextlib.ExitStack() as stack:
        # Linear models first: after a network's Trainer no other arguments may set up the process.
        for index, one in sorted(enumerate(sources), key=lambda pair: not pair[1].linear):
            exported = None if backend == "torch" or one.linear else OnnxModel(one.folder, onnx_dtype, num_threads)
            predictors[index] = stack.enter_context(open_predictor(one, exported=exported, **options))
        if backend == "onnx" and predictors[0].args.world_size > 1:
            raise ArgumentsError("--backend onnx runs in one process, with --num_threads; several were started. Start one.")
        yield [predictors[index] for index in range(len(sources))]


def average_predictions(predictors: Sequence[Predictor], rows: Dataset) -> list[dict[str, Any]]:
    """Return the predictions of a model, or the average of those of several."""
    predictions = [predictor(rows) for predictor in predictors]
    return predictions[0] if len(predictions) == 1 else average(predictions)


@contextlib.contextmanager
def open_predictor(
    source: Source, *, trust_remote_code: bool = False, exported: OnnxModel | None = None, **options: Any
) -> Iterator[Predictor]:
    """Open a model of `find_source` for prediction. All processes must call this, and the predictor.

    The caller passes chunk after chunk to the predictor, and shows the progress itself: the bars of `datasets` are disabled
    until the context ends.

    Args:
        exported: the source's exported graph, which is run instead of its weights.
        options: further `FinetuneArguments`; see `predict`.
    """
    with tempfile.TemporaryDirectory() as scratch, _hide_datasets_bars():
        args = source.finetune_arguments(scratch, **options)
        if exported is not None:
            yield _OnnxPredictor(source, args, exported)
        elif source.linear:
            yield _LinearPredictor(source, args)
        else:
            yield _PromptPredictor(source, args) if source.prompted else _HeadPredictor(source, args, trust_remote_code)


class Predictor(ABC):
    """A model that maps rows to predictions.

    parameters: number of parameters of the model.
    tokens: number of tokens read so far, without padding; prompted models do not count them.
    """

    def __init__(self, args: FinetuneArguments, parameters: int):
        self.args, self.parameters, self.tokens = args, parameters, 0

    @abstractmethod
    def __call__(self, rows: Dataset) -> list[dict[str, Any]]:
        """Return `prediction`, and for classes `probabilities`, for each row; see `hf_tlm.runs.finetuning.kinds`."""

    def _predict_shares(
        self, rows: Dataset, predict_rows: Callable[[Dataset], list[dict[str, Any]]]
    ) -> list[dict[str, Any]]:
        """Predict a share of the rows on each process, and gather the predictions of all."""
        predictions: list[dict[str, Any]] = []
        if self.args.process_index < len(rows):
            predictions = predict_rows(rows.shard(self.args.world_size, self.args.process_index, contiguous=True))
        return gather_object(predictions) if self.args.world_size > 1 else predictions


class _HeadPredictor(Predictor):
    """A predictor of a stock model with the head of the task."""

    def __init__(self, source: Source, args: FinetuneArguments, trust_remote_code: bool):
        self.kind = kind_module(source.spec.kind)
        self.tokenizer = load_tokenizer(str(source.folder), trust_remote_code=trust_remote_code, masking=False)
        self.model = load_finetuned(source.folder, source.spec.kind, args, trust_remote_code)
        check_positions(self.model.config, str(source.folder), args.max_length)
        _check_classes(self.model.config.num_labels, source)
        if source.stock:
            set_token_types(self.tokenizer, self.model.config)
        if source.spec.kind == "regression":
            self.model.config.problem_type = "regression"
        collate = partial(self.kind.collate, self.tokenizer)
        self.trainer = FinetuneTrainer(self.model, args, data_collator=collate, processing_class=self.tokenizer)
        super().__init__(args, self.model.num_parameters())

    def __call__(self, rows: Dataset) -> list[dict[str, Any]]:
        chunk = EvaluationSet(self.kind, rows, self.tokenizer, self.args)
        self.tokens += int(feature_lengths(chunk.features).sum())
        return chunk.decode(chunk.outputs(self.trainer), self.model, self.args)


class _ConfigModule(nn.Module):
    """A module without weights that carries the config of a model whose logits are computed elsewhere."""

    device = torch.device("cpu")

    def __init__(self, config: PreTrainedConfig):
        super().__init__()
        self.config = config


class _OnnxPredictor(Predictor):
    """A predictor of an exported model, run by onnxruntime."""

    def __init__(self, source: Source, args: FinetuneArguments, exported: OnnxModel):
        if source.prompted:
            raise ModelError(f"{source.folder} is a masked LM with a prompt, which needs --backend torch.")
        self.kind, self.exported = kind_module(source.spec.kind), exported
        self.tokenizer = load_tokenizer(str(source.folder), masking=False)
        self.collate = partial(self.kind.collate, self.tokenizer)
        with reading("the config in", source.folder):  # It may come from an untrusted source.
            config = AutoConfig.from_pretrained(source.folder, trust_remote_code=False)
        check_positions(config, str(source.folder), args.max_length)
        self.model: nn.Module = _ConfigModule(config)
        parameters = (find_object(source.folder / EXPORT_FILE) or {}).get("parameters")
        super().__init__(args, parameters if isinstance(parameters, int) else 0)  # An export of other tools says none.
        _check_classes(config.num_labels, source)
        if source.spec.kind == "regression":
            config.problem_type = "regression"
        if restore := getattr(self.kind, "restore", None):
            self.model = restore(self.model, source.folder, args)

    def __call__(self, rows: Dataset) -> list[dict[str, Any]]:
        predictions: list[dict[str, Any]] = []
        # One process predicts all rows: in 8 bits the logits of a text depend on the other texts of its batch.
        if self.args.process_index == 0:
            chunk = EvaluationSet(self.kind, rows, self.tokenizer, self.args)
            self.tokens += int(feature_lengths(chunk.features).sum())
            limits = (self.args.per_device_eval_batch_size, self.exported.most_tokens, self.exported.num_threads)
            predictions = chunk.decode(chunk.outputs_of(self.exported, self.collate, *limits), self.model, self.args)
        return gather_object(predictions) if self.args.world_size > 1 else predictions


class _PromptPredictor(Predictor):
    """A predictor of a masked LM with a prompt."""

    def __init__(self, source: Source, args: FinetuneArguments):
        self.classifier = PromptClassifier.from_pretrained(str(source.folder))
        self.classifier.model.to(args.device)  # type: ignore[arg-type]  # transformers' wrapper loses its `self`.
        super().__init__(args, self.classifier.model.num_parameters())

    def __call__(self, rows: Dataset) -> list[dict[str, Any]]:
        predictions = self._predict_shares(
            rows, lambda share: self.classifier.predict(share, self.args.per_device_eval_batch_size)
        )
        return [
            prediction | {"probabilities": {name: round(value, 6) for name, value in prediction["probabilities"].items()}}
            for prediction in predictions
        ]


class _LinearPredictor(Predictor):
    """A predictor of a linear model, which reads texts without truncation."""

    def __init__(self, source: Source, args: FinetuneArguments):
        self.names, self.linear = source.label_names, LinearModel.open(source.folder)
        _check_classes(self.linear.num_labels, source)
        if len(self.linear.terms) != len(source.spec.text_columns):
            raise ModelError(
                f"The linear model in {source.folder} was trained on {len(self.linear.terms)} columns of texts; received "
                f"{len(source.spec.text_columns)}. Name as many."
            )
        super().__init__(args, 0)

    def __call__(self, rows: Dataset) -> list[dict[str, Any]]:
        return self._predict_shares(rows, lambda share: logits_to_predictions(self.linear.logits(share), self.names))


def predict_after(
    args: BaseArguments,
    predicting: PredictArguments,
    *,
    drop_bad_rows: bool = False,
    trust_remote_code: bool = False,
    separator: str | None = None,
) -> Path | None:
    """Predict with the model of a run that has just finished, with the run's machine options. All processes must call this.

    Args:
        separator: that of the task's files, if it was given; used if the header of the data has it, otherwise detected.

    Returns:
        The path of the file; None where `predicting.predict` is None.

    Raises:
        ArgumentsError, ModelError, TaskError: see `predict`.
    """
    if predicting.predict is None:
        return None
    return predict(
        *(str(args.folder), predicting.predict, predicting.predict_output),
        predict_format=predicting.predict_format,
        separator=separator_as_in(Path(predicting.predict), separator),
        drop_bad_rows=drop_bad_rows,
        trust_remote_code=trust_remote_code,
        **{name: getattr(args, name) for name in MACHINE_OPTIONS},
    )


def check_predictable(
    task: Task,
    predicting: PredictArguments,
    output_dir: str,
    *,
    drop_bad_rows: bool = False,
    separator: str | None = None,
) -> None:
    """Check before a training what `predict` checks at its end: the format, the output path, and the first rows of the data.

    Args:
        separator: see `predict_after`.

    Raises:
        ArgumentsError, TaskError: see `predict`.
    """
    check_task(task)
    if predicting.predict is None:
        return
    path = Path(predicting.predict_output or f"{PREDICTIONS}/rows.{SUFFIXES.get(predicting.predict_format, 'jsonl')}")
    _check_output_path(path, predicting.predict, [Path(output_dir)])
    file = PredictionFile(path, predicting.predict_format, task.spec, task.label_names)
    _check_all_rows(file, drop_bad_rows)
    _check_output_path(file.path, predicting.predict, [Path(output_dir)])
    if predicting.predict_output is not None:  # The default is in output_dir, which the training writes.
        check_writable(file.path.parent, f"predict_output {file.path}")
    separator = separator_as_in(Path(predicting.predict), separator)
    next(unlabelled_chunks(predicting.predict, task.spec, drop_bad_rows=drop_bad_rows, separator=separator), None)


def _check_all_rows(file: PredictionFile, drop_bad_rows: bool) -> None:
    """Check that no row may be left out of a file whose rows have the numbers of the data's, or raise an ArgumentsError."""
    if file.task is not None and drop_bad_rows:
        raise ArgumentsError(
            "predict_format glue needs a prediction for every row, and drop_bad_rows leaves rows out. Remove one of them."
        )


def find_sources(
    names: Sequence[str], backend: str, onnx_dtype: str, *, max_length: int | None, **options: Any
) -> list[Source]:
    """Find the models, and check that the backend can run them and that several can be averaged.

    Args:
        backend, onnx_dtype, max_length: see `predict`.
        options: further arguments of `find_source`.

    Raises:
        ModelError: a model is an export and the backend torch, or several cannot be averaged; see also `find_source`.
        ArgumentsError: there is no such backend or dtype, or `max_length` is given for models whose length is fixed.
    """
    if backend not in ("torch", "onnx"):
        raise ArgumentsError(f"backend must be torch or onnx; received {backend!r:.60}.")
    check_dtypes([onnx_dtype])
    files = FILES if backend == "torch" else [*TOKENIZER_FILES, CRF_FILE, WEIGHTS_FILE, ONNX_FILES[onnx_dtype]]
    sources = [find_source(name, files=files, max_length=max_length, **options) for name in names]
    for name, source in zip(names, sources, strict=True):
        if backend == "torch" and is_export(source.folder):
            raise ModelError(f"{name} is an export, which needs onnxruntime. Pass --backend onnx.")
    if len(names) > 1:
        check_alike(names, sources)
    if max_length is not None and all(one.linear or one.prompted for one in sources):
        cause = "a linear model reads complete texts" if sources[0].linear else "a prompt has the length of its training"
        raise ArgumentsError(f"max_length has no effect: {cause}. Remove it.")
    return sources


def _create_prediction_file(
    names: Sequence[str],
    data: str,
    output: str | Path | None,
    predict_format: str | None,
    sources: Sequence[Source],
    separator: str | None,
) -> PredictionFile:
    if output is None:
        default_folder = Path(names[0]) / PREDICTIONS if len(names) == 1 and Path(names[0]).is_dir() else Path(PREDICTIONS)
        suffix = SUFFIXES.get(predict_format, predict_format)
        output = (
            default_folder if predict_format == "glue" else default_folder / f"{strip_compression(Path(data)).stem}.{suffix}"
        )
    folders = [*map(Path, names), *(source.folder for source in sources)]
    _check_output_path(Path(output), data, folders)
    first, input_path = sources[0], Path(data)
    file = PredictionFile(Path(output), predict_format, first.spec, first.label_names, like=input_path, separator=separator)
    _check_output_path(file.path, data, folders)
    check_writable(file.path.parent, f"Predictions go to {file.path}")
    return file


def _check_output_path(path: Path, data: str, folders: Sequence[Path]) -> None:
    """Check that predictions overwrite neither the data nor a file of a model, or raise an ArgumentsError."""
    output_path = path.resolve()
    if Path(data).is_file() and output_path == Path(data).resolve():
        raise ArgumentsError(f"Predictions cannot be written to {path}: it is the file to predict on. Choose another path.")
    for folder in map(Path.resolve, folders):
        if not output_path.exists() or folder not in output_path.parents:
            continue
        name = output_path.relative_to(folder)
        is_run_file = name.parts[0].startswith((SEED, SPLIT)) or str(name) in {SEAL, SETTINGS_FILE, RESULTS_FILE}
        if (folder / SEAL).is_file():
            is_run_file |= str(name) in read_seal(folder)["files"]
        elif len(name.parts) == 1:
            is_run_file |= any(fnmatch(name.name, glob) for glob in FILES)
        if is_run_file:
            raise ArgumentsError(f"Predictions cannot be written to {path}: it is a file of the run. Choose another path.")


def _check_classes(num_labels: int | None, source: Source) -> None:
    if source.spec.kind in ("classification", "tagging") and num_labels != len(source.label_names):
        raise ModelError(
            f"The model in {source.folder} has {num_labels} classes, but {SAVED_FILE} names {len(source.label_names)}. Use "
            "both from the same run."
        )


@contextlib.contextmanager
def _hide_datasets_bars() -> Iterator[None]:
    """Disable the progress bars of `datasets`: one bar is enough."""
    was_enabled = datasets.is_progress_bar_enabled()
    datasets.disable_progress_bars()
    try:
        yield
    finally:
        if was_enabled:
            datasets.enable_progress_bars()
