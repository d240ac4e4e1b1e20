"""Export a finished model to ONNX, and check every file before the output folder appears."""

from __future__ import annotations

import importlib.metadata
import json
import logging
import os
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hf_tlm.hub.cards import onnx_card
from hf_tlm.hub.repo_id import displayed_name, hub_name
from hf_tlm.models.families import longest_input
from hf_tlm.models.onnx_graph import OPSET, PARTS, averaged, check_installed, check_size, half, quantized, save, to_onnx
from hf_tlm.models.onnx_session import OnnxModel, check_dtypes
from hf_tlm.runs.arguments import missing_texts_error
from hf_tlm.runs.averaging import check_alike, model_names, shown_member
from hf_tlm.runs.export.exportable import (
    Exportable,
    FillMask,
    RandomCheck,
    TextCheck,
    combine_models,
    create_check,
    load_exportable,
)
from hf_tlm.runs.export.page import check_page, fill_page, read_runtime
from hf_tlm.runs.few_shot.classifier import PROMPT_FILE
from hf_tlm.runs.finetuning.tagging import CRF_FILE
from hf_tlm.runs.prediction_source import Source, find_source
from hf_tlm.runs.price import megabytes, onnx_memory, onnx_price
from hf_tlm.runs.records import SAVED_FILE
from hf_tlm.runs.teachers.models import training_costs
from hf_tlm.tasks import Task
from hf_tlm.tasks.spec import check_task
from hf_tlm.training import ArgumentsError
from hf_tlm.utils.files import atomic_directory, check_writable, sha256
from hf_tlm.utils.json_files import read_object
from hf_tlm.utils.options import check_numbers
from hf_tlm.utils.run_files import EXPORT_FILE, ONNX_FILES, SETTINGS_FILE
from hf_tlm.utils.seals import unsealed_files, write_seal
from hf_tlm.utils.shown import few, figures, one_line
from hf_tlm.version import __version__

_PACKAGES = ("torch", "transformers", "onnx", "onnxscript", "onnxruntime")
_CARD = "README.md"
_INT8_MEASUREMENTS = ("score", "drop", "milliseconds", "texts_per_second", "memory_megabytes")
logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Exported:
    """The result of an export.

    folder: the output folder.
    record: the content of `export.json`. For each of its `files` it has the size, the score, the largest difference of its
        logits from torch's, the time per text on one core of this machine, and the memory of a process, see `onnx_price`
        and `onnx_memory` of `hf_tlm.runs.price`.
    """

    folder: Path
    record: Mapping[str, Any]

    def to_text(self) -> str:
        """Return a line for each file, and the score of the baseline if it is known."""
        lines = []
        for name, file in self.record["files"].items():
            line = f"{name:<30}{file['bytes'] / 1e6:>9.2f} MB   logits within {file['max_difference']:.1e}"
            if "score" in file:
                line += f"   {self.record['checked_on']['metric']} {100 * file['score']:.2f}"
            if "drop" in file:
                texts = self.record["checked_on"]["texts"]
                change_note = f"; {file['changed']:,} of {texts:,} change" if "changed" in file else ""
                line += f" ({0 - file['drop']:+.2f}{change_note})"
            if times := file.get("milliseconds"):
                line += "   ms a text of " + ", of ".join(f"{length} tokens {figures(ms)}" for length, ms in times.items())
            line += f"   memory {file['memory_megabytes']:.0f} MB" if "memory_megabytes" in file else ""
            lines.append(line)
        if line := self.record["checked_on"].get("to_beat"):
            lines.append(f"to beat     {line}")
        return "\n".join(lines)


def export_onnx(
    model_name_or_path: str | os.PathLike | Sequence[str | os.PathLike],
    output_dir: str | os.PathLike | None = None,
    *,
    task: Task | None = None,
    data: str | None = None,
    text_columns: str | Sequence[str] | None = None,
    separator: str | None = None,
    dtypes: Sequence[str] = ("fp32", "int8"),
    max_drop: float = 0.5,
    per_channel: bool = True,
    keep_float: Sequence[str] = (),
    opset: int = OPSET,
    max_length: int | None = None,
    page: str | os.PathLike | None = None,
    page_texts: Sequence[str] = (),
    page_runtime: str | os.PathLike | None = None,
    page_model: str | None = None,
    batch_size: int = 64,
    trust_remote_code: bool = False,
) -> Exported:
    """Export a finished model to a folder for onnxruntime and transformers.js; the model's own folder does not change.

    The folder contains `onnx/model.onnx`, `onnx/model_quantized.onnx` (int8) or `onnx/model_fp16.onnx`. The inputs of their
    graphs are `input_ids`, `attention_mask` and, if the model has token types, `token_type_ids`, int64 [batch, sequence]
    (for multiple choice [batch, choices, sequence]); the outputs are float32 `logits` (for question answering
    `start_logits` and `end_logits`). It also contains the config, the tokenizer, the files that `hf_tlm.runs.predict`
    needs, a card, and `export.json`, which says what was checked. The folder is written atomically.

        export_onnx("runs/reviews", "exports/reviews", task=load_task("reviews.csv"))

    Args:
        model_name_or_path: see `find_source`; a masked LM is possible, too. Adapters are merged into their base model.
            Several models of the same classification or regression task with the same tokenizer, such as the seeds of a
            run, become one graph, whose logits are the logarithm of their average probabilities, or their average value.
        output_dir: folder to write; an earlier export in it is replaced. Default: NAME-onnx next to the model; for a folder
            in a run RUN-NAME-onnx next to the run. Required for several models.
        task: task on whose validation texts (test texts if there are none) the files are checked: float32 must give torch's
            logits within 1e-4, and the metric of the other dtypes is measured. A masked LM predicts every seventh token
            instead.
        data: texts without labels instead of a task, see `unlabelled_chunks`: the share of unchanged predictions is
            measured. Without `task` and `data`, `dtypes` must be only fp32, which is checked on random tokens.
        text_columns: text columns of `data`, if they have other names than in training.
        separator: of the fields of `data`, if it is csv or tsv. Default: detected.
        dtypes: any of fp32, int8, fp16.
        max_drop: points (hundredths of the metric) that int8 and fp16 may lose; if a task has one answer per text, they may
            lose one answer if that is more.
        per_channel, keep_float: see `hf_tlm.models.onnx_graph.quantized`.
        opset: opset version of ONNX.
        max_length: see `find_source`.
        page, page_texts, page_runtime, page_model: folder for a web page and its options, see `write_page`.
        batch_size: texts per batch in the check.
        trust_remote_code: run the model's own code.

    Raises:
        ModelError: the extra [onnx] is not installed; there is no model that can be exported, or it has fewer positions than
            `max_length`; an exported file computes something else, or loses more than `max_drop`; several models cannot be
            averaged, or differ in their tokenizers; the classes of the task are not those of the model.
        ArgumentsError: a number is out of range; options cannot be combined; `output_dir` contains files that an export did
            not write, such as predictions, or is inside the model's folder; see also `check_page`, `read_runtime`.
        TaskError: the kind of the task is not that of the model; see also `unlabelled_chunks` and `with_text_columns`.
    """
    if task is not None:
        check_task(task)
    check_installed()
    if not dtypes:
        raise ArgumentsError(f"dtypes: expected one or more of {', '.join(ONNX_FILES)}; received none.")
    check_dtypes(dtypes)
    if None in (opset, max_drop, batch_size):
        raise ArgumentsError(
            "opset, max_drop, batch_size: expected numbers; received None. Remove the argument to use its default."
        )
    check_numbers(ArgumentsError, opset=opset, max_drop=max_drop, max_length=max_length, batch_size=batch_size)
    if task is not None and data is not None:
        raise ArgumentsError(
            "Expected a task, whose labels measure the loss of int8, or data without labels; received both. Pass one of "
            "them."
        )
    if (reduced := [dtype for dtype in ONNX_FILES if dtype in dtypes and dtype != "fp32"]) and task is data is None:
        raise missing_texts_error(reduced)
    if text_columns is not None and data is None:
        raise ArgumentsError("text_columns are columns of data, which was not passed. Remove text_columns.")
    if separator is not None and data is None:
        raise ArgumentsError("separator is that of data, which was not passed. Remove separator.")
    if "int8" not in dtypes and (keep_float or not per_channel):
        raise ArgumentsError(
            "per_channel and keep_float apply to int8, which is not among the dtypes. Remove them, or add int8."
        )
    if others := [part for part in keep_float if part not in PARTS]:
        raise ArgumentsError(f"keep_float: expected {' or '.join(PARTS)}; received {others[0]!r:.60}.")
    names = model_names(model_name_or_path)
    sources = [
        find_source(name, trust_remote_code=trust_remote_code, max_length=max_length, masked_lm=True) for name in names
    ]
    if len(names) > 1:
        check_alike(names, sources)
    output = _choose_output_folder(names, sources, output_dir)
    with tempfile.TemporaryDirectory() as scratch:
        model = combine_models(names, [load_exportable(source, scratch, trust_remote_code) for source in sources])
        if page is not None:
            description = {
                "kind": model.kind_name,
                "model_type": model.stock.config.model_type,
                "pairs": _has_pairs(model, task),
            }
            other_folders: list[str | os.PathLike] = [*names, *(source.folder for source in sources), output]
            check_page(description, dtypes, page, page_texts, other_folders, page_model)
            runtime = read_runtime(page_runtime)
        check = create_check(model, task, data, text_columns, separator, batch_size)
        choices = model.source.spec.kind == "multiple_choice"
        check_size(model.members)
        graphs = [
            to_onnx(
                *(member, model.inputs, model.outputs), choices=choices, longest=longest_input(member.config), opset=opset
            )
            for member in model.members
        ]
        with atomic_directory(output) as folder:
            _write_loader_files(folder, model)
            int8 = {"per_channel": per_channel, "keep_float": list(keep_float)}
            files = _write_graphs(folder, model, graphs, check, dtypes, max_drop, int8)
            record = _create_record(names, sources, model, check, files, opset)
            (folder / EXPORT_FILE).write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
            (folder / _CARD).write_text(onnx_card(record), encoding="utf-8")
            write_seal(folder, *(path.name for path in sorted(folder.iterdir())))
    if page is not None:
        fill_page(output, page, runtime, texts=page_texts, model=page_model)
    return Exported(output, record)


def int8_price(model: Path, task: Task) -> dict[str, Any]:
    """Measure what a prediction of a finished model costs in 8 bits, with onnxruntime on one thread of this machine.

    Args:
        model: see `export_onnx`; the export is temporary.
        task: the task on whose texts the export is checked; no loss of score is refused.

    Returns:
        megabytes of the graph, the configuration and the tokenizer; score and drop (the points that the export loses) on
        checked_on; milliseconds and texts_per_second, see `hf_tlm.runs.price.onnx_price`, and memory_megabytes, see
        `onnx_memory` there.

    Raises:
        HfTlmError: see `export_onnx`.
    """
    with tempfile.TemporaryDirectory() as scratch:
        exported = export_onnx(model, Path(scratch) / "export", task=task, max_drop=100)
        file, size = exported.record["files"][ONNX_FILES["int8"]], megabytes(exported.folder)
    measurements = {name: file[name] for name in _INT8_MEASUREMENTS if name in file}
    return {
        "megabytes": round(size + file["bytes"] / 1e6, 3),
        **measurements,
        "checked_on": exported.record["checked_on"]["what"],
    }


def int8_entry(model: Path, task: Task) -> dict[str, Any]:
    """Return the entry `int8` of the record of a run, see `int8_price`; none, with a warning, if the export fails."""
    try:
        return {"int8": int8_price(model, task)}
    except Exception as error:  # Exporters raise errors of any class, for models of other libraries.
        logger.warning("The cost of a prediction in 8 bits is not measured: %s", one_line(str(error), 500))
        return {}


def _write_graphs(
    folder: Path,
    model: Exportable,
    graphs: Sequence[Any],
    check: RandomCheck | TextCheck,
    dtypes: Sequence[str],
    max_drop: float,
    int8: Mapping[str, Any],
) -> dict[str, dict[str, Any]]:
    """Write and check a file for each dtype, and return file name -> its entry in the record.

    A float32 file is also written and checked if it is not asked for, and then removed.

    Args:
        graphs: the float32 graph of each member of the model.
        int8: the arguments of `quantized`.
    """
    files: dict[str, dict[str, Any]] = {}
    for dtype in ("fp32", *(name for name in ONNX_FILES if name in dtypes and name != "fp32")):
        settings, converted, path = int8 if dtype == "int8" else {}, graphs, folder / ONNX_FILES[dtype]
        if dtype != "fp32":
            converted = [quantized(graph, **int8) if dtype == "int8" else half(graph) for graph in graphs]
        save(averaged(converted, shares=model.averages_probs) if model.others else converted[0], path)
        measured = check.measure(OnnxModel(folder, dtype), dtype, max_drop, settings)
        digest = {"bytes": path.stat().st_size, "sha256": sha256(path)}
        # Multiple choice is not timed, as with torch: the size of an input depends on the number of choices.
        is_timed = dtype in dtypes and model.source.spec.kind != "multiple_choice"
        costs: dict[str, Any] = {}
        if is_timed:
            config, longest = model.stock.config, longest_input(model.stock.config)
            memory = onnx_memory(folder, dtype, longest)
            costs = onnx_price(folder, dtype, config.vocab_size, longest)
            costs |= {} if memory is None else {"memory_megabytes": memory}
        files[ONNX_FILES[dtype]] = {"dtype": dtype, **digest, **settings, **measured, **costs}
    if "fp32" not in dtypes:
        (folder / ONNX_FILES["fp32"]).unlink()
        del files[ONNX_FILES["fp32"]]
    return files


def _choose_output_folder(names: Sequence[str], sources: Sequence[Source], output_dir: str | os.PathLike | None) -> Path:
    if output_dir is None:
        if len(names) > 1:
            raise ArgumentsError("Several models become one export, which has no default folder. Pass --output_dir.")
        name = names[0]
        model_path = (
            Path(name).resolve() if Path(name).exists() else Path(name.partition("@")[0].rpartition("/")[2]).absolute()
        )
        # For a folder in a run, such as mlm or training/checkpoint-500: next to the run.
        run_folder = next(
            (folder for folder in reversed(model_path.parents[:4]) if (folder / SETTINGS_FILE).is_file()), model_path
        )
        output_dir = run_folder.parent / "-".join([*model_path.relative_to(run_folder.parent).parts, "onnx"])
    output = Path(output_dir)
    for folder in (*(Path(name).resolve() for name in names), *(source.folder.resolve() for source in sources)):
        if output.resolve().is_relative_to(folder):
            raise ArgumentsError(
                f"--output_dir {output} is inside the folder of the model, which an export does not change. Choose another "
                "folder."
            )
    check_writable(output, replaced=True)  # Checked now, before the work, and not only when it is written.
    if output.is_dir() and any(output.iterdir()) and not (output / EXPORT_FILE).is_file():
        raise ArgumentsError(
            f"--output_dir {output} is not empty and contains no export. Choose another folder, or empty this one."
        )
    if others := unsealed_files(output, _CARD):
        raise ArgumentsError(
            f"--output_dir {output} contains files that are not part of its export and would be deleted with it "
            f"({few(others, 3)}). Move them, or choose another folder."
        )
    return output


def _has_pairs(model: Exportable, task: Task | None) -> bool:
    return len((model.source.spec if task is None else task.spec).text_columns) > 1


def _create_record(
    names: Sequence[str],
    sources: Sequence[Source],
    model: Exportable,
    check: RandomCheck | TextCheck,
    files: Mapping[str, Any],
    opset: int,
) -> dict[str, Any]:
    spec, repos = model.source.spec, [hub_name(name) for name in names]
    training, taught_by = training_costs([(name, source.folder) for name, source in zip(names, sources, strict=True)])
    versions = {package: importlib.metadata.version(package) for package in _PACKAGES}
    return {
        "format": "hf_tlm.export",
        "format_version": 1,
        "model": displayed_name(names[0]) if len(names) == 1 else f"the average of {len(names)} models",
        **({"models": [shown_member(name) for name in names]} if len(names) > 1 else {}),
        "repo_id": repos[0] if len(repos) == 1 else repos if all(repos) else None,
        "model_type": model.stock.config.model_type,
        "parameters": sum(parameter.numel() for member in model.members for parameter in member.parameters()),
        "task": check.task.name if check.task else None if model.kind is FillMask or model.source.stock else spec.name,
        **({"training": training} if training else {}),
        **({"taught_by": taught_by} if taught_by else {}),
        "kind": model.kind_name,
        "pairs": _has_pairs(model, check.task),
        **({"crf": True} if (model.source.folder / CRF_FILE).is_file() else {}),
        "max_length": model.args.max_length,
        "opset": opset,
        "inputs": model.inputs,
        "outputs": list(model.outputs),
        "checked_on": check.description,
        "files": dict(files),
        "versions": {"hf_tlm": __version__, **versions},
    }


def _write_loader_files(folder: Path, model: Exportable) -> None:
    config = model.stock.config
    config.architectures = [type(model.stock).__name__]
    if hasattr(config, "auto_map"):  # The model's code is not exported, and not needed to run the graph.
        del config.auto_map
    config.save_pretrained(folder)
    model.tokenizer.model_max_length = model.args.max_length
    model.tokenizer.save_pretrained(folder)
    for name in (SAVED_FILE, CRF_FILE, PROMPT_FILE):
        if (model.source.folder / name).is_file():
            shutil.copyfile(model.source.folder / name, folder / name)
    if not model.source.fills_masks and (folder / SAVED_FILE).is_file():
        saved = read_object(folder / SAVED_FILE)
        saved["arguments"]["max_length"] = model.args.max_length
        (folder / SAVED_FILE).write_text(json.dumps(saved, indent=2) + "\n", encoding="utf-8")
