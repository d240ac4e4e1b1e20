"""Whose an output folder is, by the settings of its run, and which parts of it are finished: sealed records and models.

The seal shows damage before either is used or published. A damaged part is not finished, and is made again from what else
there is.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
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
from hf_tlm.utils.json_files import Unfit, find_object, mapped, read_object, real, record, whole, words
from hf_tlm.utils.locks import Claim
from hf_tlm.utils.run_files import GRID_FILE, PLACES_FILE, RESULTS_FILE, SETTINGS_FILE, TEACHER_FILE
from hf_tlm.utils.seals import SEAL, broken_seal, write_seal
from hf_tlm.utils.shown import shown_argument, shown_values

logger = logging.getLogger(__name__)
# Arguments that may change between two starts of one run: they change what is printed or stored, not what is computed.
_FREE = (
    "output_dir run_name report_to project logging_strategy logging_steps logging_first_step disable_tqdm log_level "
    "log_level_replica log_on_each_node dataloader_num_workers dataloader_prefetch_factor dataloader_pin_memory "
    "seed_figure dataloader_persistent_workers save_strategy save_steps save_total_limit save_only_model seeds seed "
    "per_device_eval_batch_size local_rank push_to_hub hub_model_id hub_dataset_id hub_strategy hub_token hub_private_repo "
    "hub_always_push hub_revision resume_from_checkpoint teacher_output"
).split()

# Files beside a model that another start of its run may write anew.
RECORDS = (SETTINGS_FILE, RESULTS_FILE, GRID_FILE, PLACES_FILE, TEACHER_FILE, SEAL)
# Not in the settings of folders from before files counted, or not as they were computed.
_LATER = ("bf16", "fp16", "texts_per_micro_batch", "tokens_per_micro_batch")
# What of a model may be a folder or a file.
LOCAL = ("model_config", "model_name_or_path", "auxiliary_name_or_path", "tokenizer_name")
# What a prediction costs, which records of before do not say.
_TIMES = mapped(real(0, 1e12), 10)
PRICE = record(
    {"megabytes": real(0, 1e9), "parameters": whole(0, 2**63), "milliseconds": _TIMES, "texts_per_second": _TIMES},
    optional=("parameters", "milliseconds", "texts_per_second"),
)
_OPTIONAL = {"price"}


class ProtocolError(HfTlmError):
    """A run that cannot be started or continued in this folder."""


def settings(args: BaseArguments) -> dict[str, Any]:
    """The arguments that decide what is computed, as JSON values."""
    values = {name: value for name, value in args.to_dict().items() if name not in _FREE and not name.endswith("token")}
    # The number of processes may change, the texts of a step may not.
    one = args.for_trainer(args.folder, args.seed)
    if values.get("total_batch_tokens") is None:
        values["texts_per_step"] = one.train_batch_size * one.gradient_accumulation_steps * one.world_size
    if OBJECTIVES[values.get("objective", "mlm")].contrasts and values["scl"]:
        # The only loss that depends on them: a text is told from the others of its micro-batch.
        if values.get("total_batch_tokens") is None:
            values["texts_per_micro_batch"] = one.train_batch_size * one.world_size
        else:
            values["tokens_per_micro_batch"] = values["total_batch_tokens"] // one.gradient_accumulation_steps
    if values.get("clm") == "rtd":
        # Runs from before there was a choice had ELECTRA's, and say nothing of it.
        values["rtd_head"] = None if values["rtd_head"] == "electra" else "linear"
    for name in ("per_device_train_batch_size", "gradient_accumulation_steps"):
        del values[name]
    if teacher := values.get("teacher"):
        values["teacher"] = recorded_teacher(teacher)
    return json.loads(json.dumps(values, default=str))


def recorded_teacher(teacher: Sequence[str]) -> list[str | None] | str | None:
    """What settings have of the option `teacher`: of folders the content counts, not where they are.

    One alone is as it was before there could be several.
    """
    names = [short_name(name) for name in teacher]
    return names if len(names) > 1 else names[0]


def run_of(folder: Path) -> tuple[Path, dict[str, Any]]:
    """The run that the model in a folder is of, by its folder, and its record, or what there is of it.

    Of an unfinished run, of which a seed may be finished, that is what its teacher says; of a stock checkpoint nothing.
    """
    home = folder.resolve()
    if home.name == MLM_SUBFOLDER:
        home = home.parent
    if home.name == "model" and not (home / RESULTS_FILE).is_file():
        home = home.parent.parent  # `home` is a seed's or a split's.
    record = find_object(home / RESULTS_FILE) or {}
    if "teacher" not in record and (said := find_object(home / TEACHER_FILE)) is not None:
        record["teacher"] = said
    return home, record


def local_files(model: Mapping[str, Any]) -> dict[str, list[tuple[str, str]]]:
    """List the files, with their digests, of the options whose values are local models, tokenizers or configs.

    Cards and records are left out. After a change there a run is another one.
    """
    found = {}
    for name in LOCAL:
        if name == "model_config" and model.get("model_name_or_path") is not None:
            continue  # It is not read.
        value = model.get(name)
        path = None if not isinstance(value, str) else find_preset(value) if name == "model_config" else Path(value)
        if path is None or not path.exists():
            continue
        folders = (path, path / MLM_SUBFOLDER, path / GENERATOR)
        files = [path] if path.is_file() else [file for folder in folders for file in folder.glob("*")]
        files = [file for file in files if file.is_file() and file.suffix != ".md" and file.name not in RECORDS]
        found[name] = sorted((str(file.relative_to(path)), sha256(file)) for file in files)
    return found


@contextmanager
def saying_if_finished(folder: Path) -> Iterator[None]:
    """Have an error say so where the run in the folder is finished: what is missing may not be needed any more."""
    try:
        yield
    except HfTlmError as error:
        if not (folder / RESULTS_FILE).is_file() or not (folder / SETTINGS_FILE).is_file():
            raise
        raise type(error)(f"{error} The run in {folder} is finished: its model and {RESULTS_FILE} are there.") from error


def claim(
    output_dir: Path, details: Mapping[str, Any], data: Sequence[str], process_index: int, *, options: Sequence[Any] = ()
) -> Claim:
    """Make the folder this run's, or check that it is.

    Args:
        details: sections `arguments`, `model` and `blocks`, of which every value counts, and more. Of local files that
            `model` names the content counts.
        data: sections that count as wholes.
        process_index: the first process, 0, writes.
        options: the dataclasses that arguments and model come from. An option that a folder from before it was made lacks
            counts as its default.

    Returns:
        A context for what follows: of a run that is refused before anything worth keeping is there, nothing is left.

    Raises:
        ProtocolError: it holds another run, or files of something else.
    """
    path, made = output_dir / SETTINGS_FILE, Claim(output_dir, SETTINGS_FILE, PLACES_FILE)
    sections = [name for name in ("arguments", "model", "blocks") if name in details]
    shown = {name: shown_values(details[name]) for name in sections}
    wanted = json.loads(json.dumps({**details, **shown, "files": local_files(details["model"])}, default=str))
    if path.is_file():
        found = read_object(path, ProtocolError, "Choose another --output_dir, or delete that folder to start over.")
        # A damaged section is empty.
        found |= {name: {} for name in (*sections, "files") if name in found and not isinstance(found[name], dict)}
        changed = _changed_options(output_dir, found, wanted, {name: details[name] for name in sections}, options)
        changed += _changed_files(found, wanted)
        changed += [f"another {name.replace('_', ' ')}" for name in data if found.get(name) != wanted[name]]
        if changed:
            raise ProtocolError(
                f"{output_dir} holds a run with other settings ({'; '.join(changed[:5])}). Choose another "
                "--output_dir, or delete that folder to start over."
            )
    elif process_index == 0:
        remove_abandoned(path)  # What a kill left of its write.
        if output_dir.is_dir() and any(output_dir.iterdir()):
            raise ProtocolError(f"{output_dir} is not empty and holds no run. Choose an empty --output_dir.")
        atomic_write(path, json.dumps(wanted, indent=2) + "\n")
        made.new = True
    if process_index == 0:
        _write_places(output_dir, details, shown)
    return made


def places_of(folder: str | os.PathLike) -> dict[str, str]:
    """Shown argument or option of a run -> the real one, where it was started on this machine."""
    found = find_object(Path(folder) / PLACES_FILE) or {}
    return {name: place for name, place in found.items() if isinstance(place, str)}


def _write_places(folder: Path, details: Mapping[str, Any], shown: Mapping[str, Mapping[str, Any]]) -> None:
    places = {shown_argument(argument): argument for argument in sys.argv[1:]}
    for section, values in shown.items():
        places |= {value: details[section][name] for name, value in values.items() if isinstance(value, str)}
    before = places_of(folder)
    if (places := {**before, **{name: place for name, place in places.items() if name != place}}) != before:
        atomic_write(folder / PLACES_FILE, json.dumps(places, indent=2) + "\n")


def _changed_options(
    folder: Path,
    found: Mapping[str, Any],
    wanted: Mapping[str, Any],
    given: Mapping[str, Mapping[str, Any]],
    options: Sequence[Any],
) -> list[str]:
    """What a run asks for otherwise than the settings that were found in its folder; options: see `claim`.

    given: the sections of `wanted` as they were before they were shown.
    """
    defaults = {entry.name: entry.default for one in options for entry in fields(one) if entry.default is not MISSING}
    defaults["teacher"] = NONE
    places = places_of(folder)
    return [
        f"{name}: {there!r:.60} there, {here!r:.60} asked for"
        for section, values in given.items()
        for name, here in wanted[section].items()
        if (there := found.get(section, {}).get(name, defaults.get(name))) != here
        and not (isinstance(there, str) and values[name] in (there, places.get(there)))
        and ("files" in found or name not in _LATER)
        # Wherever they lie: their content is compared beside.
        and not (name in wanted["files"] and name in found.get("files", ()))
    ]


def _changed_files(found: Mapping[str, Any], wanted: Mapping[str, Any]) -> list[str]:
    """Whose local files are others than those that settings have; folders from before files counted have none."""
    changed = []
    for name, files in wanted["files"].items() if "files" in found else ():
        there = found["files"].get(name)
        if isinstance(there, list):  # Earlier versions counted records too.
            there = [file for file in there if not (isinstance(file, list) and file and file[0] in RECORDS)]
        if files != there:
            changed.append(f"the files of {name} {wanted['model'][name]} have changed")
    return changed


def copy_best_model(source: Path, target: Path) -> None:
    """Copy a model folder's files into `target`, each whole or not at all, then configs, results and a seal."""
    last = ("config.json", "adapter_config.json", RESULTS_FILE)
    files = sorted((p for p in source.rglob("*") if p.is_file()), key=lambda p: (p.name in last, p.name == RESULTS_FILE, p))
    files = [file for file in files if file != source / SEAL]
    unseal(target)
    for file in files:
        with open(file, "rb") as content, atomic_file(target / file.relative_to(source)) as stream:
            shutil.copyfileobj(content, stream)
    write_seal(target, *(file.relative_to(source).as_posix() for file in files))


def _number(value: Any) -> float | None:
    """A number, also nan, which scores can be; or null."""
    if value is not None and type(value) not in (int, float):
        raise Unfit("a number or null")
    return value


# What summaries and cards take from the record of a model, and of a seed.
MODEL = {"validation": mapped(_number, 1000), "cost": mapped(_number, 100), "model_type": words(200)}
MODEL |= {"parameters": whole(0, 2**63), "trained_parameters": whole(0, 2**63)}
SEED = {"seed": whole(0, 2**63), **MODEL, "price": PRICE}
# What is continued after a stage.
STAGE = {"cost": mapped(_number, 100), "validation": mapped(_number, 1000)}


def finish(folder: Path, content: Mapping[str, Any], *parts: str) -> None:
    """Write the record `results.json`, whose presence says that what is in the folder is finished, and the seal.

    Args:
        parts: further files and folders in it that are sealed.
    """
    unseal(folder)
    atomic_write(folder / RESULTS_FILE, json.dumps(content, indent=2, ensure_ascii=False) + "\n")
    write_seal(folder, RESULTS_FILE, *parts)


def unseal(folder: Path) -> None:
    """Remove a seal before what is sealed changes."""
    (folder / SEAL).unlink(missing_ok=True)


def finished(
    folder: Path,
    args: TrainingArguments,
    name: str = RESULTS_FILE,
    fields: Mapping[str, Any] | None = None,
    *,
    local: bool = False,
) -> dict[str, Any] | None:
    """The record of a finished part; None where it is not finished, or was damaged since.

    The first process looks, and takes the record of a damaged part away, with a warning that names the file.

    Args:
        args: of the run, for its processes.
        name: the record, in `folder`.
        fields: of the record, those that are used later.
        local: look here alone, as where the processes of a run do not all come by.

    Raises:
        HfTlmError: a file is there and cannot be read.
    """
    if local:
        return _whole(folder, name, fields)
    with args.main_process_first(local=False, desc=f"looking at {folder.name}"):
        return _whole(folder, name, fields, remove=args.process_index == 0)


def _whole(folder: Path, name: str, fields: Mapping[str, Any] | None, remove: bool = True) -> dict[str, Any] | None:
    path = folder / name
    if not path.is_file():
        return None
    # Folders of before there were seals are taken without.
    try:
        problem = broken_seal(folder, name) if (folder / SEAL).is_file() else None
    except OSError as error:
        raise _unreadable(folder, path, error) from error
    if problem is None:
        try:
            content = read_object(path)
            record(fields or {}, optional=_OPTIONAL)(content)
            return content
        except HfTlmError as error:
            if isinstance(error.__cause__, OSError):
                raise _unreadable(folder, path, error.__cause__) from error
            problem = str(error)
        except Unfit as unfit:
            problem = f"{path} is damaged: {'.'.join(map(str, unfit.place))} must be {unfit.expected}"
    logger.warning("%s. It is made again.", problem.removesuffix(". Make it again."))
    if remove:
        path.unlink(missing_ok=True)
        unseal(folder)
    return None


def _unreadable(folder: Path, path: Path, error: OSError) -> HfTlmError:
    """Not taken for damage: what a disk or a network does not give now may be whole."""
    return HfTlmError(
        f"{folder} is finished and cannot be read ({error}). Try again later; if it stays so, delete {path}, and it is made "
        "again."
    )
