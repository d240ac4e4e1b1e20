"""Records of a run's folder: its settings, by which a run is recognised, and the sealed records of finished parts.

Seals (`hf_tlm.utils.seals`) reveal damage before a record or model is used or published. A damaged part counts as
unfinished and is computed again from the intact ones.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any

from transformers import TrainingArguments

from hf_tlm.commands import find_preset
from hf_tlm.errors import HfTlmError
from hf_tlm.hub.repo_id import short_name
from hf_tlm.models import MLM_SUBFOLDER
from hf_tlm.models.generator_discriminator_parts import GENERATOR
from hf_tlm.objective_specs import OBJECTIVES
from hf_tlm.training.base_arguments import BaseArguments
from hf_tlm.training.teacher_arguments import NONE
from hf_tlm.utils.files import atomic_file, atomic_write, remove_abandoned, sha256
from hf_tlm.utils.json_files import Unfit, find_object, mapped, read_object, real, record, truth, whole, words
from hf_tlm.utils.locks import Claim
from hf_tlm.utils.run_files import GRID_FILE, PLACES_FILE, RESULTS_FILE, SETTINGS_FILE, TEACHER_FILE
from hf_tlm.utils.seals import SEAL, broken_seal, write_seal
from hf_tlm.utils.shown import shown_argument, shown_values

logger = logging.getLogger(__name__)
# Arguments that may differ between two starts of a run, because they change what is printed or stored, not the results.
_FREE = (
    "output_dir run_name report_to project logging_strategy logging_steps logging_first_step disable_tqdm log_level "
    "log_level_replica log_on_each_node dataloader_num_workers dataloader_prefetch_factor dataloader_pin_memory "
    "seed_figure dataloader_persistent_workers save_strategy save_steps save_total_limit save_only_model seeds seed "
    "per_device_eval_batch_size local_rank push_to_hub hub_model_id hub_dataset_id hub_strategy hub_token hub_private_repo "
    "hub_always_push hub_revision resume_from_checkpoint teacher_output eval_accumulation_steps torch_empty_cache_steps "
    "ddp_timeout dataloader_multiprocessing_context trackio_space_id trackio_bucket_id trackio_static_space_id "
    "export_int8"
).split()

# Files beside a model that another start of its run may rewrite.
RECORDS = (SETTINGS_FILE, RESULTS_FILE, GRID_FILE, PLACES_FILE, TEACHER_FILE, SEAL)
# Settings that are missing, or not the ones used, in folders of versions that did not record the digests of local files.
_LATER = ("bf16", "fp16", "texts_per_micro_batch", "tokens_per_micro_batch")
# Options of a model whose values may be a local folder or file.
LOCAL = ("model_config", "model_name_or_path", "auxiliary_name_or_path", "tokenizer_name")
# Data of a run -> how an error calls others; "another" and the name, for those that are not listed.
_OTHER_DATA = {
    "task_fingerprint": "other rows of the task",
    "corpus_fingerprint": "another corpus",
    "further_metrics": "other further metrics",
}
# The cost of a prediction, which records of older versions lack.
_TIMES = mapped(real(0, 1e12), 10)
PRICE = record(
    {
        **{"megabytes": real(0, 1e9), "parameters": whole(0, 2**63), "adapter": truth},
        **{"milliseconds": _TIMES, "texts_per_second": _TIMES},
    },
    optional=("parameters", "adapter", "milliseconds", "texts_per_second"),
)
# The cost of a prediction in 8 bits, of runs with `export_int8`.
INT8_PRICE = record(
    {
        **{"megabytes": real(0, 1e9), "memory_megabytes": real(0, 1e9), "milliseconds": _TIMES, "texts_per_second": _TIMES},
        **{"score": real(-1e12, 1e12), "drop": real(-1e14, 1e14), "checked_on": words(200)},
    },
    optional=("memory_megabytes", "milliseconds", "texts_per_second", "score", "drop"),
)
_OPTIONAL = {"price"}


class ProtocolError(HfTlmError):
    """Raised when a run cannot be started or continued in a folder."""


class OtherRunError(ProtocolError):
    """Raised when a folder holds a run with other settings.

    difference: how they differ, in words.
    """

    def __init__(self, message: str, difference: str = ""):
        super().__init__(message)
        self.difference = difference


def settings(args: BaseArguments) -> dict[str, Any]:
    """Return the arguments that determine the results of a run, as JSON values."""
    values = {name: value for name, value in args.to_dict().items() if name not in _FREE and not name.endswith("token")}
    # The number of processes may change, the number of texts per step may not.
    trainer_args = args.for_trainer(args.folder, args.seed)
    if values.get("total_batch_tokens") is None:
        values["texts_per_step"] = (
            trainer_args.train_batch_size * trainer_args.gradient_accumulation_steps * trainer_args.world_size
        )
    if OBJECTIVES[values.get("objective", "mlm")].contrasts and values["scl"]:
        # Only the contrastive loss depends on the micro-batch: its other texts are the negatives.
        if values.get("total_batch_tokens") is None:
            values["texts_per_micro_batch"] = trainer_args.train_batch_size * trainer_args.world_size
        else:
            values["tokens_per_micro_batch"] = values["total_batch_tokens"] // trainer_args.gradient_accumulation_steps
    if values.get("clm") == "rtd":
        # Runs of versions without this option used ELECTRA's head and do not record it.
        values["rtd_head"] = None if values["rtd_head"] == "electra" else "linear"
    for name in ("per_device_train_batch_size", "gradient_accumulation_steps"):
        del values[name]
    if teacher := values.get("teacher"):
        values["teacher"] = recorded_teacher(teacher)
    return json.loads(json.dumps(values, default=str))


def recorded_teacher(teacher: Sequence[str]) -> list[str | None] | str | None:
    """Return the value of the option `teacher` for settings, with short names, as the content of folders counts, not paths.

    A single teacher is not a list, as in versions that allowed only one.
    """
    names = [short_name(name) for name in teacher]
    return names if len(names) > 1 else names[0]


def run_of(folder: Path) -> tuple[Path, dict[str, Any]]:
    """Return the run that the model in a folder belongs to, as (folder of the run, its record).

    The record of an unfinished run, which may have a finished seed, has its teacher's report alone; that of a stock
    checkpoint is empty.
    """
    home = folder.resolve()
    if home.name == MLM_SUBFOLDER:
        home = home.parent
    if home.name == "model" and not (home / RESULTS_FILE).is_file():
        home = home.parent.parent  # The parent is the folder of a seed or a split.
    record = find_object(home / RESULTS_FILE) or {}
    if "teacher" not in record and (teacher := find_object(home / TEACHER_FILE)) is not None:
        record["teacher"] = teacher
    return home, record


def local_files(model: Mapping[str, Any]) -> dict[str, list[tuple[str, str]]]:
    """List the files, with their digests, of options whose values are local models, tokenizers or configs.

    Cards and records are left out. A run whose files have changed counts as another run.
    """
    files_by_option = {}
    for name in LOCAL:
        if name == "model_config" and model.get("model_name_or_path") is not None:
            continue  # The config is not used.
        value = model.get(name)
        path = None if not isinstance(value, str) else find_preset(value) if name == "model_config" else Path(value)
        if path is None or not path.exists():
            continue
        folders = (path, path / MLM_SUBFOLDER, path / GENERATOR)
        files = [path] if path.is_file() else [file for folder in folders for file in folder.glob("*")]
        files = [file for file in files if file.is_file() and file.suffix != ".md" and file.name not in RECORDS]
        files_by_option[name] = sorted((str(file.relative_to(path)), sha256(file)) for file in files)
    return files_by_option


def claim(
    output_dir: Path, details: Mapping[str, Any], data: Sequence[str], process_index: int, *, options: Sequence[Any] = ()
) -> Claim:
    """Claim a folder for this run by writing its settings, or check that it holds the same run.

    Args:
        details: the settings by section. `arguments`, `model` and `blocks` are compared value by value; local files that
            `model` names are compared by content.
        data: names of further sections, which are compared as a unit.
        process_index: the first process, 0, writes.
        options: the dataclasses of arguments and model. An option that an older folder does not record counts as its
            default.

    Returns:
        A context manager for the steps that follow: it removes the claim if an error ends them before anything worth keeping
        is in the folder.

    Raises:
        ProtocolError: the folder holds another run, or is not empty and holds no run.
    """
    path, folder_claim = output_dir / SETTINGS_FILE, Claim(output_dir, SETTINGS_FILE, PLACES_FILE)
    sections = [name for name in ("arguments", "model", "blocks") if name in details]
    shown = {name: shown_values(details[name]) for name in sections}
    current = json.loads(json.dumps({**details, **shown, "files": local_files(details["model"])}, default=str))
    if path.is_file():
        recorded = read_object(path, ProtocolError, "Choose another --output_dir, or delete that folder to start over.")
        # A damaged section is empty.
        recorded |= {name: {} for name in (*sections, "files") if name in recorded and not isinstance(recorded[name], dict)}
        changed = _changed_options(output_dir, recorded, current, {name: details[name] for name in sections}, options)
        changed += _changed_files(recorded, current)
        others = [name for name in data if recorded.get(name) != current[name]]
        changed += [_OTHER_DATA.get(name, f"another {name.replace('_', ' ')}") for name in others]
        if changed:
            difference = "; ".join(changed[:5])
            raise OtherRunError(
                f"{output_dir} holds a run with other settings ({difference}). Choose another --output_dir, or delete that "
                "folder to start over.",
                difference,
            )
    elif process_index == 0:
        remove_abandoned(path)  # A partial file of a killed run.
        if output_dir.is_dir() and any(output_dir.iterdir()):
            raise ProtocolError(f"{output_dir} is not empty and holds no run. Choose an empty --output_dir.")
        atomic_write(path, json.dumps(current, indent=2) + "\n")
        folder_claim.new = True
    if process_index == 0:
        _write_local_paths(output_dir, details, shown)
    return folder_claim


def places_of(folder: str | os.PathLike) -> dict[str, str]:
    """Return the real values of a run's options and command line arguments whose local paths records replace.

    Returns:
        Recorded value -> real value; empty if the run did not start on this machine.
    """
    paths = find_object(Path(folder) / PLACES_FILE) or {}
    return {name: path for name, path in paths.items() if isinstance(path, str)}


def _write_local_paths(folder: Path, details: Mapping[str, Any], shown: Mapping[str, Mapping[str, Any]]) -> None:
    paths = {shown_argument(argument): argument for argument in sys.argv[1:]}
    for section, values in shown.items():
        paths |= {value: details[section][name] for name, value in values.items() if isinstance(value, str)}
    previous = places_of(folder)
    if (paths := {**previous, **{name: path for name, path in paths.items() if name != path}}) != previous:
        atomic_write(folder / PLACES_FILE, json.dumps(paths, indent=2) + "\n")


def _changed_options(
    folder: Path,
    recorded: Mapping[str, Any],
    current: Mapping[str, Any],
    real_values: Mapping[str, Mapping[str, Any]],
    options: Sequence[Any],
) -> list[str]:
    """List the options whose values differ from the settings that were found in the folder, one message each.

    Args:
        real_values: the sections of `current` with the real values instead of the recorded ones (`shown_values`).
        options: see `claim`.
    """
    defaults = {
        entry.name: entry.default
        for options_class in options
        for entry in fields(options_class)
        if entry.default is not MISSING
    }
    defaults["teacher"] = NONE
    local_paths = places_of(folder)
    return [
        f"{name}: {old_value!r:.60} in the folder, {new_value!r:.60} requested"
        for section, values in real_values.items()
        for name, new_value in current[section].items()
        if (old_value := recorded.get(section, {}).get(name, defaults.get(name))) != new_value
        and not (isinstance(old_value, str) and values[name] in (old_value, local_paths.get(old_value)))
        and ("files" in recorded or name not in _LATER)
        # The paths of local files do not count: their content is compared by `_changed_files`.
        and not (name in current["files"] and name in recorded.get("files", ()))
    ]


def _changed_files(recorded: Mapping[str, Any], current: Mapping[str, Any]) -> list[str]:
    """List the options whose local files have changed, one message each; none for old settings without files."""
    changed = []
    for name, files in current["files"].items() if "files" in recorded else ():
        recorded_files = recorded["files"].get(name)
        if isinstance(recorded_files, list):  # Older versions listed records too.
            recorded_files = [
                file for file in recorded_files if not (isinstance(file, list) and file and file[0] in RECORDS)
            ]
        if files != recorded_files:
            old, new = recorded.get("model", {}).get(name), current["model"][name]
            difference = "have changed" if old in (None, new) else f"differ from those of {old}"
            changed.append(f"the files of {name} {new} {difference}")
    return changed


def copy_best_model(source: Path, target: Path) -> None:
    """Copy a model folder's files into `target`, each atomically, with configs and results last, and seal it."""
    last_names = ("config.json", "adapter_config.json", RESULTS_FILE)
    files = sorted(
        (p for p in source.rglob("*") if p.is_file()), key=lambda p: (p.name in last_names, p.name == RESULTS_FILE, p)
    )
    files = [file for file in files if file != source / SEAL]
    unseal(target)
    for file in files:
        with open(file, "rb") as content, atomic_file(target / file.relative_to(source)) as stream:
            shutil.copyfileobj(content, stream)
    write_seal(target, *(file.relative_to(source).as_posix() for file in files))


def _number(value: Any) -> float | None:
    """Return `value` if it is a number (nan, as scores can be, included) or None, or raise `Unfit`."""
    if value is not None and type(value) not in (int, float):
        raise Unfit("a number or null")
    return value


# Fields that summaries and cards read from the record of a model, and of a seed.
MODEL = {"validation": mapped(_number, 1000), "cost": mapped(_number, 100), "model_type": words(200)}
MODEL |= {"parameters": whole(0, 2**63), "trained_parameters": whole(0, 2**63)}
SEED = {"seed": whole(0, 2**63), **MODEL, "price": PRICE}
# Fields of a stage's record that are needed to continue after it.
STAGE = {"cost": mapped(_number, 100), "validation": mapped(_number, 1000)}


def finish(folder: Path, content: Mapping[str, Any], *parts: str) -> None:
    """Mark a folder as finished by writing its record `results.json` and its seal.

    Args:
        parts: further files and folders in it to seal.
    """
    unseal(folder)
    atomic_write(folder / RESULTS_FILE, json.dumps(content, indent=2, ensure_ascii=False) + "\n")
    write_seal(folder, RESULTS_FILE, *parts)


def unseal(folder: Path) -> None:
    """Remove the seal of a folder, before sealed files change."""
    (folder / SEAL).unlink(missing_ok=True)


def finished(
    folder: Path,
    args: TrainingArguments,
    name: str = RESULTS_FILE,
    fields: Mapping[str, Any] | None = None,
    *,
    local: bool = False,
) -> dict[str, Any] | None:
    """Return the record of a finished part of a run; None if it is unfinished or damaged.

    The first process removes the record of a damaged part, with a warning that names the file.

    Args:
        args: arguments of the run, which synchronise its processes.
        name: file name of the record in `folder`.
        fields: fields of the record to check, which are used later.
        local: do not synchronise the processes, for calls that not all of them make.

    Raises:
        HfTlmError: a file exists and cannot be read.
    """
    if local:
        return _read_record(folder, name, fields)
    with args.main_process_first(local=False, desc=f"looking at {folder.name}"):
        return _read_record(folder, name, fields, remove=args.process_index == 0)


def _read_record(folder: Path, name: str, fields: Mapping[str, Any] | None, remove: bool = True) -> dict[str, Any] | None:
    path = folder / name
    if not path.is_file():
        return None
    # Folders of older versions have no seal and are accepted without.
    try:
        problem = broken_seal(folder, name) if (folder / SEAL).is_file() else None
    except OSError as error:
        raise _unreadable_error(folder, path, error) from error
    if problem is None:
        try:
            content = read_object(path)
            record(fields or {}, optional=_OPTIONAL)(content)
            return content
        except HfTlmError as error:
            if isinstance(error.__cause__, OSError):
                raise _unreadable_error(folder, path, error.__cause__) from error
            problem = str(error)
        except Unfit as unfit:
            problem = f"{path} is damaged: {'.'.join(map(str, unfit.keys))} must be {unfit.expected}"
    logger.warning("%s. It will be created again.", problem.removesuffix(". Create it again."))
    if remove:
        path.unlink(missing_ok=True)
        unseal(folder)
    return None


def _unreadable_error(folder: Path, path: Path, error: OSError) -> HfTlmError:
    """Return the error for a file that cannot be read now. It may be intact, so it does not count as damaged."""
    return HfTlmError(
        f"{folder} is finished and cannot be read ({error}). Try again later; if the error remains, delete {path} to create "
        "it again."
    )
