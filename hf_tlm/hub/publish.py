"""Finished folders to the Hub: what is checked of them, and the card they get there."""

from __future__ import annotations

import logging
import os
import shlex
import tempfile
from collections.abc import Mapping, Sequence
from fnmatch import fnmatch
from pathlib import Path, PurePosixPath
from typing import Any

from hf_tlm.errors import HubError
from hf_tlm.hub.commit import CARD, Push
from hf_tlm.hub.export_record import read_export
from hf_tlm.hub.push import REPLACED, published, push, repo_to_push
from hf_tlm.hub.rendering import hub_name, published_card
from hf_tlm.hub.repo import CODE, NAMES, is_ours
from hf_tlm.hub.subset_configs import check_alone, repo_files
from hf_tlm.utils.files import atomic_write, sha256
from hf_tlm.utils.json_files import mapped, read_fields, read_object, words
from hf_tlm.utils.options import named
from hf_tlm.utils.run_files import EXPORT_FILE, LINEAR_FILE, MANIFEST_FILE, RESULTS_FILE, SETTINGS_FILE
from hf_tlm.utils.seals import SEAL, seal_problem
from hf_tlm.version import __version__

logger = logging.getLogger(__name__)

CONFIG, ADAPTER_CONFIG = "config.json", "adapter_config.json"


def publish_model(
    folder: str | os.PathLike,
    repo_id: str,
    *,
    license: str | None = None,
    language: str | None = None,
    dataset: str | None = None,
    widget_texts: Sequence[str] | None = None,
    **options: Any,
) -> Push:
    """Publish the folder of a finished run, of a converted checkpoint or of an export: weights, tokenizer, card and records.

    An export may go to a repository of its own, or to that of its model. What is there stays then, weights, config and
    tokenizer; the graphs, `export.json` and the card take the place of earlier ones, and what the repository lacks is added.

    Args:
        license, language: for the card's metadata; None leaves what is there.
        dataset: repo id of the subset it was trained on, with `@revision` if known, for the card.
        widget_texts: examples that the model's page offers to try, of your own: what is published of a task has none of its
            texts. A masked LM's have its mask token.
        options: private, revision, tag, dry_run, token and retries, see `hf_tlm.hub.push`.

    Raises:
        HubError: the folder holds no model, a damaged one, a run that is not finished, or an adapter to a model of this
            machine; for others see `hf_tlm.hub.push`.
    """
    folder = Path(named("folder", folder, HubError, needed=True, what="a folder"))
    names = os.listdir(folder) if os.path.isdir(folder) else []
    if SETTINGS_FILE in names and RESULTS_FILE not in names:
        raise HubError(f"{folder} holds a run that is not finished. Run its command again, which continues it.")
    exported = EXPORT_FILE in names and any(folder.glob("onnx/*.onnx"))
    weights = exported or any(name.endswith(".safetensors") for name in names)
    if not ({CONFIG, ADAPTER_CONFIG}.intersection(names) and weights):
        if any(os.path.isfile(folder / part / LINEAR_FILE) for part in ("", "linear")):
            raise HubError(
                f"{folder} holds a linear model, which `hf-tlm predict` answers with; what is published are networks, as "
                "`hf-tlm train` and `hf-tlm pretrain` leave them. To share its files as they are: hf upload."
            )
        inside = _models_in(folder) if names else []
        raise HubError(
            f"{folder} holds no model: expected config.json (or adapter_config.json) and safetensors, as "
            "`hf-tlm train` and `hf-tlm pretrain` leave them, or an export of `hf-tlm export`."
            + (f" There is one in {inside[0]}: give that." if inside else "")
        )
    if SEAL in names and (problem := seal_problem(folder)) is not None:
        raise HubError(
            f"{folder} is damaged or was edited: {problem}. Run its command again, which mends it; if the change is yours, "
            f"remove {SEAL} and publish again."
        )
    if exported:
        read_export(folder, HubError)
    for name, path in published(folder).items():
        if PurePosixPath(name).name == ADAPTER_CONFIG:
            _check_adapter(path)
    card = {"license": license, "language": language, "dataset": dataset, "widget_texts": widget_texts}
    if exported:
        repo = repo_to_push(repo_id, "model", options.get("revision"))
        there = repo_files(repo, options.get("token"), options.get("dry_run", False))
        kept = _beside_weights(there, published(folder))
        options |= {"replace": ["onnx/*.onnx"], "kept": kept}
    return _publish(folder, repo_id, "model", f"Model of hf_tlm {__version__}", card, options)


def _models_in(folder: Path) -> list[Path]:
    """Folders with a model one or two below: of splits, of seeds, of points of a grid."""
    files = (path for depth in ("*", "*/*") for name in (CONFIG, ADAPTER_CONFIG) for path in folder.glob(f"{depth}/{name}"))
    return sorted({path.parent for path in files if any(path.parent.glob("*.safetensors"))})


def _beside_weights(there: Sequence[str], export: Mapping[str, Path]) -> set[str]:
    """What of an export stays as a repository has it: where there are weights, the config and the tokenizer are theirs."""
    if not any(name.endswith((".safetensors", ".bin")) and name not in export for name in there):
        return set()
    return {name for name in there if name not in (EXPORT_FILE, CARD) and not fnmatch(name, "onnx/*.onnx")}


def _check_adapter(path: Path) -> None:
    base = read_object(path, HubError).get("base_model_name_or_path")
    if hub_name(base) is None:
        raise HubError(
            f"{path.parent} holds an adapter to {base}, a model of this machine: nobody could load it from the Hub. Publish "
            f"that model first, put its repo id into {path.name} as base_model_name_or_path, then publish the adapter."
        )


def publish_subset(
    folder: str | os.PathLike, repo_id: str, *, license: str | None = None, language: str | None = None, **options: Any
) -> Push:
    """Publish a saved subset, alone in its repository: parquet, manifest, report and card. Arguments as `publish_model`'s.

    Raises:
        HubError: the folder holds no saved subset, or a damaged one, or the repository has some with names; for others see
            `hf_tlm.hub.push`.
    """
    folder = Path(named("folder", folder, HubError, needed=True, what="a folder"))
    _check_subset(folder)
    repo = repo_to_push(repo_id, "dataset", options.get("revision"))
    check_alone(repo, options.get("token"), options.get("dry_run", False))
    card = {"license": license, "language": language}
    return _publish(folder, repo_id, "dataset", f"Subset of hf_tlm {__version__}", card, options)


def publish_space(folder: str | os.PathLike, repo_id: str, *, license: str | None = None, **options: Any) -> Push:
    """Publish a page that `hf-tlm export` made (`--page`) as a static Space. Options as `publish_model`'s.

    Args:
        license: for the Space's metadata.

    Raises:
        HubError: the folder holds no page, or a damaged model; for others see `hf_tlm.hub.push`.
    """
    import yaml

    folder = Path(named("folder", folder, HubError, needed=True, what="a folder"))
    files = {
        name: path
        for name, path in published(folder).items()
        if any(fnmatch(name, glob) for glob in REPLACED["space"]) and not path.name.startswith(".")
    }
    if not {"index.html", "page.json"} <= set(files):
        raise HubError(f"{folder} holds no page: expected index.html and page.json, as `hf-tlm export --page` leaves them.")
    if f"model/{EXPORT_FILE}" in files:
        read_export(folder / "model", HubError, all_files=False)
    title = str(read_object(folder / "page.json", HubError).get("title"))
    about = {"title": title, "sdk": "static", "app_file": "index.html", "tags": ["hf_tlm", "onnx"]}
    about |= {} if license is None else {"license": license}
    text = "The model runs in the browser's tab; no text leaves it. Made by `hf-tlm export --page`."
    with tempfile.TemporaryDirectory() as work:
        files[CARD] = Path(work) / CARD
        atomic_write(files[CARD], f"---\n{yaml.safe_dump(about, allow_unicode=True, sort_keys=False)}---\n\n{text}\n")
        return push(folder, repo_id, type="space", message=f"Page of hf_tlm {__version__}", files=files, **options)


def publish_result(
    kind: str, folder: str | os.PathLike, repo_id: str, *, token: str | None, private: bool | None, revision: str | None
) -> Push:
    """What a recipe does at its end: publish the model or the subset, or raise a HubError that says how to do it later."""
    publish = {"model": publish_model, "subset": publish_subset}[kind]
    try:
        return publish(folder, repo_id, token=token, private=private, revision=revision)
    except HubError as error:
        command = ["hf-tlm", "publish", f"--{kind}", str(folder), "--repo_id", repo_id]
        command += [] if private is None else ["--private", str(private).lower()]
        command += [] if revision is None else ["--revision", revision]
        later = f"The result is whole in {folder}. To publish it later:\n  {shlex.join(command)}"
        raise HubError(f"{error} {later}") from None


def _check_subset(folder: Path) -> None:
    try:
        data = read_fields(folder / MANIFEST_FILE, {"files": mapped(words(200), 100)}, HubError)["files"].items()
    except OSError:
        raise HubError(f"{folder} holds no subset: expected a folder that `hf-tlm retrieve` or Subset.save wrote.") from None
    if damaged := [name for name, digest in data if not (folder / name).is_file() or sha256(folder / name) != digest]:
        raise HubError(
            f"{folder} is damaged or was edited: {', '.join(damaged)} is not what its {MANIFEST_FILE} describes. Copy it "
            "again, or retrieve the subset again."
        )


def _publish(folder: Path, repo_id: str, type: str, message: str, card: Mapping[str, Any], options: dict[str, Any]) -> Push:
    """Push, with the `options` of that and `kept`, what is not sent. The folder's card stays as it is."""
    kept = options.pop("kept", ())
    found = {name: path for name, path in published(folder).items() if name not in kept}
    files = {name: path for name, path in found.items() if is_ours(name, (*NAMES, *CODE))}
    if others := sorted(set(found) - set(files)):
        logger.warning(
            "Not published, as no recipe writes files of these names: %s. To add some by hand: hf upload %s PATH.",
            ", ".join(others[:10]) + (f" and {len(others) - 10:,} more" if len(others) > 10 else ""),
            repo_id,
        )
    if CARD not in files and (given := [name for name, value in card.items() if value is not None]):
        raise HubError(f"{folder} has no {CARD} that could name the {given[0]}. Write one, or leave the {given[0]} out.")
    with tempfile.TemporaryDirectory() as work:
        if CARD in files:
            try:
                text = published_card(files[CARD].read_text(encoding="utf-8"), repo_id, **card)
            except UnicodeDecodeError as error:
                raise HubError(f"{folder / CARD} is no text in UTF-8: {error}. Save it as one.") from error
            except ValueError as error:
                raise HubError(f"The metadata of {folder / CARD} cannot be used: {error}. Correct them.") from error
            atomic_write(Path(work) / CARD, text)
            files[CARD] = Path(work) / CARD
        return push(folder, repo_id, type=type, message=message, files=files, **options)
