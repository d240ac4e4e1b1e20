"""Predictions of a fine-tuned model for unlabelled data, chunk by chunk."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import datasets
from torch import nn
from tqdm.auto import tqdm

from hf_tlm.data import load_tokenizer
from hf_tlm.hub.checkpoint import checkpoint_folder, split_revision
from hf_tlm.models import ModelError
from hf_tlm.runs.finetuning.arguments import FinetuneArguments
from hf_tlm.runs.finetuning.evaluation_set import EvaluationSet
from hf_tlm.runs.finetuning.kinds import kind_module
from hf_tlm.runs.finetuning.loading import load_finetuned
from hf_tlm.runs.finetuning.predict_arguments import PredictArguments
from hf_tlm.runs.finetuning.predictions import PredictionFile
from hf_tlm.runs.finetuning.saved import SAVED_FILE, read_saved
from hf_tlm.runs.finetuning.trainer import FinetuneTrainer
from hf_tlm.tasks import Task, unlabelled
from hf_tlm.training import ArgumentsError
from hf_tlm.utils.seals import SEAL, read_seal

# Beside a model; it is not published.
FOLDER = "predictions"
SUFFIXES = {"jsonl": "jsonl", "squad": "json"}


def predict(
    model_name_or_path: str,
    data: str,
    output: str | Path | None = None,
    *,
    predict_format: str = "jsonl",
    drop_bad_rows: bool = False,
    trust_remote_code: bool = False,
    **options: Any,
) -> Path:
    """Write what a fine-tuned model says of every row of a file.

    Rows are read, tokenised, predicted and written 10,000 at a time, so that the file may be of any size; what is written
    appears whole or not at all. With several processes each predicts a share of a chunk, and all must call this.

    Args:
        model_name_or_path: folder of a `finetune` run, or one on the Hub, with `@revision` if wanted.
        data: file, or Hub dataset, in the columns of the task, whose labels are not read; see `hf_tlm.tasks.unlabelled`,
            also for `drop_bad_rows`.
        output: a file, for `glue` a folder. Default: one called like the data, in the folder `predictions` beside the model,
            or here if that is on the Hub.
        predict_format: jsonl: a line a row, with `id`, `prediction` and probabilities. glue: a file for GLUE's leaderboard,
            under the name that it has there. squad: a JSON object, id -> answer, and another in `<name>_null_odds.json`,
            id -> how much the score of no answer is above that of the best one.
        options: further `FinetuneArguments`, such as `per_device_eval_batch_size`, `use_cpu`, `bf16`.

    Returns:
        The file.

    Raises:
        ModelError: it holds no fine-tuned model, or its files do not go together.
        ArgumentsError: the format is unknown or does not go with the task; the file is a folder.
        TaskError: see `unlabelled`.
    """
    name, revision = split_revision(model_name_or_path)
    folder = Path(checkpoint_folder(name, revision, trust_remote_code=trust_remote_code))
    spec, label_names, saved = read_saved(folder)
    if output is None:
        beside = folder / FOLDER if Path(name).is_dir() else Path(FOLDER)
        output = beside if predict_format == "glue" else beside / f"{Path(data).stem}.{SUFFIXES.get(predict_format)}"
    file = PredictionFile(Path(output), predict_format, spec, label_names)
    _check_place(file.path, data, folder)
    kind = kind_module(spec.kind)
    with tempfile.TemporaryDirectory() as scratch, contextlib.ExitStack() as stack:
        quiet = {"report_to": "none", "disable_tqdm": True, "select_by": "last", "eval_strategy": "no"}
        args = FinetuneArguments(output_dir=scratch, **quiet, **saved, **options)
        tokenizer = load_tokenizer(str(folder), trust_remote_code=trust_remote_code, masking=False)
        model = load_finetuned(folder, spec.kind, args, trust_remote_code)
        _check_classes(model, spec.kind, label_names, folder)
        trainer = FinetuneTrainer(model, args, data_collator=kind.collator(tokenizer, args), processing_class=tokenizer)
        main = args.process_index == 0
        stack.enter_context(_without_bars_of_chunks())
        if main:
            stack.enter_context(file)
        bar = stack.enter_context(tqdm(desc="Predicting", unit=" rows", disable=not main))
        for rows in unlabelled(data, spec, drop_bad_rows=drop_bad_rows):
            chunk = EvaluationSet(kind, rows, tokenizer, args, label_names)
            predictions = chunk.decode(chunk.outputs(trainer), model, args)
            if main:
                file.add(rows, predictions)
            bar.update(len(rows))
    trainer.accelerator.wait_for_everyone()
    return file.path


def check_predictable(task: Task, predicting: PredictArguments, output_dir: str, *, drop_bad_rows: bool = False) -> None:
    """Refuse what `predict` would refuse at the end of a training: a format, a place, or the first rows of the data.

    Raises:
        ArgumentsError, TaskError: see `predict`.
    """
    if predicting.predict is None:
        return
    place = Path(predicting.predict_output or f"{FOLDER}/rows")
    file = PredictionFile(place, predicting.predict_format, task.spec, task.label_names)
    _check_place(file.path, predicting.predict, Path(output_dir))
    next(unlabelled(predicting.predict, task.spec, drop_bad_rows=drop_bad_rows), None)


def _check_place(path: Path, data: str, folder: Path) -> None:
    """Predictions take the place of neither what they are of nor the model's files."""
    place, folder = path.resolve(), folder.resolve()
    if Path(data).is_file() and place == Path(data).resolve():
        raise ArgumentsError(f"predict_output {path} is the file to predict on. Give another.")
    if place.exists() and folder in place.parents:
        name = place.relative_to(folder)
        sealed = read_seal(folder)["files"] if (folder / SEAL).is_file() else ()
        if str(name) in {*sealed, SEAL, "settings.json", "results.json"} or name.parts[0].startswith("seed-"):
            raise ArgumentsError(f"predict_output {path} is a file of the run. Give another.")


def _check_classes(model: nn.Module, kind: str, label_names: Sequence[str], folder: Path) -> None:
    if kind in ("classification", "tagging") and model.config.num_labels != len(label_names):
        raise ModelError(
            f"The model in {folder} has {model.config.num_labels} classes, and {SAVED_FILE} names {len(label_names)}. Take "
            "the two from one run."
        )


@contextlib.contextmanager
def _without_bars_of_chunks() -> Iterator[None]:
    """One bar is enough."""
    shown = datasets.is_progress_bar_enabled()
    datasets.disable_progress_bars()
    try:
        yield
    finally:
        if shown:
            datasets.enable_progress_bars()
