"""Publish finished folders to the Hub: the options of recipes, the checks of a folder, and its completed card."""

from __future__ import annotations

import logging
import os
import shlex
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path, PurePosixPath
from typing import Annotated, Any

from hf_tlm.errors import HfTlmError, HubError
from hf_tlm.hub.cards import published_card
from hf_tlm.hub.push import CARD, REPLACED, Push, check_push, published, push, repo_to_push
from hf_tlm.hub.repo import ADAPTER_FILE, CODE, PUBLISHED_FILES, is_ours
from hf_tlm.hub.repo_id import hub_name
from hf_tlm.hub.subset_cards import check_alone, repo_files
from hf_tlm.utils.files import atomic_write, sha256
from hf_tlm.utils.json_files import (
    check_fields,
    find_object,
    listed,
    mapped,
    maybe,
    one_of,
    read_fields,
    read_json,
    read_object,
    real,
    record,
    such,
    truth,
    whole,
    words,
)
from hf_tlm.utils.options import NoEffect, check_effects, check_ranges, named, option
from hf_tlm.utils.run_files import EXPORT_FILE, LINEAR_FILE, MANIFEST_FILE, ONNX_FILES, RESULTS_FILE, SETTINGS_FILE
from hf_tlm.utils.seals import SEAL, seal_problem
from hf_tlm.version import __version__

logger = logging.getLogger(__name__)

CONFIG = "config.json"
# The schema of `export.json`, which may be damaged or written by somebody who is not trusted.
_ADVICE = "Export the model again (hf-tlm export), or copy the folder again."
_NAME, _COUNT, _NUMBERS = words(1000), whole(0, 2**53), mapped(real(0, 1e300), 100)
# NaN and infinity are allowed, because differences of logits can be either.
_NUMBER = such(lambda value: type(value) in (int, float), "a number")
_MEASUREMENT_FIELDS = {
    **{"score": _NUMBER, "drop": _NUMBER, "changed": _COUNT, "memory_megabytes": real(0, 1e9)},
    **{"per_channel": truth, "keep_float": listed(_NAME, 10), "milliseconds": _NUMBERS, "texts_per_second": _NUMBERS},
}
_FILE_FIELDS = {"dtype": one_of(*ONNX_FILES), "bytes": whole(1, 2**53), "sha256": words(64), "max_difference": _NUMBER}
_CHECKED_ON_FIELDS = {"texts": _COUNT, "what": _NAME, "metric": maybe(_NAME), "to_beat": words(10_000)}
_FIELDS = {
    **{"format": one_of("hf_tlm.export"), "format_version": one_of(1), "model": _NAME, "model_type": words(100)},
    **{"parameters": _COUNT, "kind": words(100), "pairs": truth, "max_length": whole(1, 2**31), "opset": whole(1, 1000)},
    **{"inputs": listed(words(100), 10), "outputs": listed(words(100), 10), "versions": mapped(_NAME, 100)},
    "checked_on": record(_CHECKED_ON_FIELDS, optional=("metric", "to_beat")),
    "files": mapped(record({**_FILE_FIELDS, **_MEASUREMENT_FIELDS}, optional=tuple(_MEASUREMENT_FIELDS)), len(ONNX_FILES)),
    "models": listed(_NAME, 10_000),
}
_NEEDS_CHECKPOINT = NoEffect("legacy_checkpoint", (None,), "without --legacy_checkpoint. Remove it.")
_NEEDS_EVALUATE_ON = NoEffect("evaluate_on", (None,), "without --evaluate_on. Remove it.")
_NEEDS_SUBSET = NoEffect("subset", (None,), "without --subset. Remove it.")
_NEEDS_REPO = NoEffect("repo_id", (None,), "without --repo_id. Remove it.")


@dataclass(repr=False)  # A repr would show the token.
class SubsetHubArguments:
    """Settings of publishing the subset to the Hub, with the same names as those of the Trainer."""

    push_to_hub: bool = option(False, "Publish the subset as a dataset on the Hub.")
    hub_dataset_id: str | None = option(None, "With push_to_hub: repository to publish to, owner/name.")
    hub_private_repo: bool | None = option(None, "With push_to_hub: whether a new repository is private; default: yes.")
    hub_revision: str | None = option(None, "With push_to_hub: branch to publish to; created if it does not exist.")
    hub_token: str | None = option(None, "With push_to_hub: token. Default: HF_TOKEN, or the token of `hf auth login`.")

    def __post_init__(self):
        names = ("hub_dataset_id", "hub_private_repo", "hub_revision", "hub_token")
        hub_options = [f"--{name}" for name in names if getattr(self, name) is not None]
        if hub_options and not self.push_to_hub:
            has = "has" if len(hub_options) == 1 else "have"
            raise HubError(
                f"{' and '.join(hub_options)} {has} no effect without --push_to_hub. Add --push_to_hub, or remove "
                f"{' and '.join(hub_options)}."
            )
        if self.push_to_hub and self.hub_dataset_id is None:
            raise HubError("--push_to_hub needs --hub_dataset_id owner/name: the repository to publish the subset to.")

    def check(self) -> None:
        """Check, before the work begins, that the subset can be published if that was asked for.

        Raises:
            HubError: see `hf_tlm.hub.check_push`.
        """
        if self.push_to_hub and self.hub_dataset_id is not None:
            check_push(self.hub_dataset_id, self.hub_token)

    def publish(self, folder: str | os.PathLike) -> Push | None:
        """Publish a saved subset if that was asked for; otherwise return None.

        Raises:
            HubError: it could not be published; the message contains the command to do it later.
        """
        if not self.push_to_hub or self.hub_dataset_id is None:
            return None
        return publish_result(
            *("subset", folder, self.hub_dataset_id),
            token=self.hub_token,
            private=self.hub_private_repo,
            revision=self.hub_revision,
        )


@dataclass(repr=False)  # A repr would show the token.
class PublishArguments:
    """Settings of publishing: the folder to publish, and the repository to publish it to."""

    model: str | None = option(None, "Folder of a finished run, or of an export (hf-tlm export).")
    subset: str | None = option(None, "Folder of a subset (hf-tlm retrieve, select-influence).")
    space: str | None = option(None, "Folder of a web page (hf-tlm export --page), to publish as a static Space.")
    legacy_checkpoint: str | None = option(
        None,
        "Released checkpoint to convert: Hub id, with @revision if wanted, or folder with pytorch_model.bin, config.json "
        "and a tokenizer (COCO-LM: sp.model and dict.txt).",
    )
    output_dir: Annotated[str | None, _NEEDS_CHECKPOINT] = option(
        None, "With legacy_checkpoint: folder for the converted model; an earlier model in it is replaced."
    )
    task: Annotated[str | None, _NEEDS_CHECKPOINT] = option(
        None, "For a TLM checkpoint: registered task whose classes it predicts. Default: that in the checkpoint's name."
    )
    label_names: Annotated[list[str] | None, _NEEDS_CHECKPOINT] = option(
        None, "For a TLM checkpoint: class names in the order of their indices, instead of --task.", nargs="+"
    )
    tokenizer_name: Annotated[str | None, _NEEDS_CHECKPOINT] = option(
        None, "For a TLM checkpoint without a tokenizer: Hub id or folder of its tokenizer."
    )
    evaluate_on: Annotated[str | None, _NEEDS_CHECKPOINT] = option(
        None, "For a TLM checkpoint: labelled task (name, Hub id or folder) to score the converted model on."
    )
    evaluate_length: Annotated[int | None, _NEEDS_EVALUATE_ON] = option(
        None,
        "With evaluate_on: maximum length of a text in tokens. Default: that of TLM's scripts for the checkpoint's task, or "
        "for evaluate_on if that is unknown: 512 for IMDB, otherwise 128.",
    )
    repo_id: str | None = option(None, "Repository to publish to, owner/name.")
    config_name: Annotated[str | None, _NEEDS_SUBSET] = option(
        None, "For a subset: its configuration (small, large) in a repository of several subsets."
    )
    private: Annotated[bool | None, _NEEDS_REPO] = option(None, "Whether a new repository is private; default: yes.")
    revision: Annotated[str | None, _NEEDS_REPO] = option(None, "Branch to publish to; created if it does not exist.")
    tag: Annotated[str | None, _NEEDS_REPO] = option(None, "Tag for the published commit, for a release (v1).")
    license: Annotated[str | None, _NEEDS_REPO] = option(None, "Licence for the card. Default: the card's, or none.")
    language: Annotated[str | None, _NEEDS_REPO] = option(
        None, "Language of the texts (en) for the card. Default: the card's, or none."
    )
    dataset: Annotated[str | None, _NEEDS_REPO] = option(
        None, "For a model: repo id of the subset that it was trained on, with @revision if known."
    )
    widget_texts: Annotated[list[str] | None, _NEEDS_REPO] = option(
        None, "For a model: your own texts that its page offers to try; no texts of the task are published.", nargs="+"
    )
    dry_run: Annotated[bool, _NEEDS_REPO] = option(
        False, "Show what would be published, without publishing; needs no network."
    )
    verify: Annotated[bool, _NEEDS_REPO] = option(
        False, "Load what was published, without this package, and compare it with the local folder."
    )
    hub_token: Annotated[str | None, _NEEDS_REPO] = option(
        None, "Token. Default: HF_TOKEN, or the token of `hf auth login`."
    )

    def __post_init__(self):
        check_ranges(self, HubError)
        kinds = ("model", "subset", "space", "legacy_checkpoint")
        kinds_given = [kind for kind in kinds if getattr(self, kind) is not None]
        if len(kinds_given) != 1:
            raise HubError(
                f"Pass one of {', '.join(f'--{kind}' for kind in kinds)}; received {', '.join(kinds_given) or 'none'}."
            )
        if kinds_given[0] == "legacy_checkpoint" and self.output_dir is None:
            raise HubError("--legacy_checkpoint needs --output_dir: the folder for the converted model.")
        if kinds_given[0] != "legacy_checkpoint" and self.repo_id is None:
            raise HubError(f"--{kinds_given[0]} needs --repo_id owner/name: the repository to publish to.")
        check_effects(self, HubError, prefix="--")
        ineffective = {"subset": ("dataset", "widget_texts"), "space": ("dataset", "widget_texts", "language", "verify")}
        for name in ineffective.get(kinds_given[0], ()):
            if getattr(self, name) not in (None, False):
                target = "a Space" if kinds_given[0] == "space" else "a subset: it is for a model"
                raise HubError(f"--{name} has no effect on {target}. Remove it.")
        if self.verify and self.model is not None and os.path.isfile(os.path.join(self.model, EXPORT_FILE)):
            raise HubError(
                f"--verify compares weights in safetensors, and {self.model} is an export, which was checked when it was "
                "written. Remove --verify."
            )
        if self.dry_run and self.verify:
            raise HubError("--dry_run publishes nothing that --verify could load. Pass only one of them.")


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
    """Publish the folder of a finished run, a converted checkpoint or an export: weights, tokenizer, card and records.

    An export may be published to its own repository, or to the repository of its model. In the latter case the weights,
    config and tokenizer of the repository stay; the ONNX graphs, `export.json` and the card replace earlier ones, and files
    that the repository lacks are added.

    Args:
        license, language: for the card's metadata; None keeps the card's.
        dataset: repo id of the subset that the model was trained on, with `@revision` if known, for the card.
        widget_texts: your own examples that the model's page offers to try, as no texts of a task are published. Those for
            a masked LM contain its mask token.
        options: private, revision, tag, dry_run, token and retries, see `hf_tlm.hub.push`.

    Raises:
        HubError: the folder contains no model, a damaged one, an unfinished run, or an adapter for a local model; otherwise
            see `hf_tlm.hub.push`.
    """
    folder = Path(named("folder", folder, HubError, needed=True, what="a folder"))
    names = os.listdir(folder) if os.path.isdir(folder) else []
    if SETTINGS_FILE in names and RESULTS_FILE not in names:
        raise HubError(f"{folder} contains an unfinished run. Run its command again to continue it.")
    exported = EXPORT_FILE in names and any(folder.glob("onnx/*.onnx"))
    weights = exported or any(name.endswith(".safetensors") for name in names)
    if not ({CONFIG, ADAPTER_FILE}.intersection(names) and weights):
        if any(os.path.isfile(folder / subfolder / LINEAR_FILE) for subfolder in ("", "linear")):
            raise HubError(
                f"{folder} contains a linear model, for `hf-tlm predict`; only networks can be published, as written by "
                "`hf-tlm train` and `hf-tlm pretrain`. To share its files as they are, use hf upload."
            )
        inside = _find_models(folder) if names else []
        raise HubError(
            f"{folder} contains no model: expected config.json (or adapter_config.json) and safetensors, as written by "
            "`hf-tlm train` and `hf-tlm pretrain`, or an export of `hf-tlm export`."
            + (f" There is a model in {inside[0]}: pass that folder." if inside else "")
        )
    if SEAL in names and (problem := seal_problem(folder)) is not None:
        raise HubError(
            f"{folder} is damaged or was edited: {problem}. Run its command again to repair it; if you made the change, "
            f"remove {SEAL} and publish again."
        )
    if exported:
        read_export(folder, HubError)
    for name, path in published(folder).items():
        if PurePosixPath(name).name == ADAPTER_FILE:
            _check_adapter(path)
    card = {"license": license, "language": language, "dataset": dataset, "widget_texts": widget_texts}
    if exported:
        repo = repo_to_push(repo_id, "model", options.get("revision"))
        repo_paths = repo_files(repo, options.get("token"), options.get("dry_run", False))
        kept_files = _files_to_keep(repo_paths, published(folder))
        options |= {"replace": ["onnx/*.onnx"], "kept": kept_files}
    return _publish(folder, repo_id, "model", f"Model of hf_tlm {__version__}", card, options)


def _find_models(folder: Path) -> list[Path]:
    """Return the folders with a model one or two levels below `folder`, such as those of splits, seeds or grid points."""
    files = (path for depth in ("*", "*/*") for name in (CONFIG, ADAPTER_FILE) for path in folder.glob(f"{depth}/{name}"))
    return sorted({path.parent for path in files if any(path.parent.glob("*.safetensors"))})


def _files_to_keep(repo_paths: Sequence[str], export: Mapping[str, Path]) -> set[str]:
    """Return the files that an export must not replace in a repository.

    If the repository contains weights, these are all its files but the card, `export.json` and the ONNX graphs, because
    config and tokenizer belong to the weights; otherwise none.

    Args:
        repo_paths: files of the repository.
        export: files of the export.
    """
    if not any(name.endswith((".safetensors", ".bin")) and name not in export for name in repo_paths):
        return set()
    return {name for name in repo_paths if name not in (EXPORT_FILE, CARD) and not fnmatch(name, "onnx/*.onnx")}


def _check_adapter(path: Path) -> None:
    base = read_object(path, HubError).get("base_model_name_or_path")
    if hub_name(base) is None:
        raise HubError(
            f"{path.parent} contains an adapter for the local model {base}: nobody could load it from the Hub. Publish that "
            f"model first, set base_model_name_or_path in {path.name} to its repo id, remove {SEAL} if there is one, then "
            "publish the adapter."
        )


def publish_subset(
    folder: str | os.PathLike, repo_id: str, *, license: str | None = None, language: str | None = None, **options: Any
) -> Push:
    """Publish a saved subset to a repository of its own: parquet, manifest, report and card.

    For the arguments see `publish_model`.

    Raises:
        HubError: the folder contains no saved subset, or a damaged one; the repository contains named subsets; otherwise
            see `hf_tlm.hub.push`.
    """
    folder = Path(named("folder", folder, HubError, needed=True, what="a folder"))
    _check_subset(folder)
    repo = repo_to_push(repo_id, "dataset", options.get("revision"))
    check_alone(repo, options.get("token"), options.get("dry_run", False))
    card = {"license": license, "language": language}
    return _publish(folder, repo_id, "dataset", f"Subset of hf_tlm {__version__}", card, options)


def publish_space(folder: str | os.PathLike, repo_id: str, *, license: str | None = None, **options: Any) -> Push:
    """Publish a page that `hf-tlm export` wrote as a static Space.

    Args:
        license: for the Space's metadata.
        options: see `publish_model`.

    Raises:
        HubError: the folder contains no page, or a damaged model; otherwise see `hf_tlm.hub.push`.
    """
    import yaml

    folder = Path(named("folder", folder, HubError, needed=True, what="a folder"))
    files = {
        name: path
        for name, path in published(folder).items()
        if any(fnmatch(name, glob) for glob in REPLACED["space"]) and not path.name.startswith(".")
    }
    if not {"index.html", "page.json"} <= set(files):
        raise HubError(
            f"{folder} contains no page: expected index.html and page.json, as written by `hf-tlm export --page`."
        )
    if f"model/{EXPORT_FILE}" in files:
        read_export(folder / "model", HubError, all_files=False)
    title = str(read_object(folder / "page.json", HubError).get("title"))
    metadata = {"title": title, "sdk": "static", "app_file": "index.html", "tags": ["hf_tlm", "onnx"]}
    metadata |= {} if license is None else {"license": license}
    text = "The model runs in the browser's tab; no text leaves it. Made by `hf-tlm export --page`."
    with tempfile.TemporaryDirectory() as work:
        files[CARD] = Path(work) / CARD
        atomic_write(files[CARD], f"---\n{yaml.safe_dump(metadata, allow_unicode=True, sort_keys=False)}---\n\n{text}\n")
        return push(folder, repo_id, type="space", message=f"Page of hf_tlm {__version__}", files=files, **options)


def publish_result(
    kind: str, folder: str | os.PathLike, repo_id: str, *, token: str | None, private: bool | None, revision: str | None
) -> Push:
    """Publish the model or subset at the end of a recipe.

    Args:
        kind: `model` or `subset`.

    Raises:
        HubError: it could not be published; the message contains the command to do it later.
    """
    publish = {"model": publish_model, "subset": publish_subset}[kind]
    try:
        return publish(folder, repo_id, token=token, private=private, revision=revision)
    except HubError as error:
        command = ["hf-tlm", "publish", f"--{kind}", str(folder), "--repo_id", repo_id]
        command += [] if private is None else ["--private", str(private).lower()]
        command += [] if revision is None else ["--revision", revision]
        later = f"The result is complete in {folder}. To publish it later:\n  {shlex.join(command)}"
        raise HubError(f"{error} {later}") from None


def _check_subset(folder: Path) -> None:
    try:
        data = read_fields(folder / MANIFEST_FILE, {"files": mapped(words(200), 100)}, HubError)["files"].items()
    except OSError:
        raise HubError(
            f"{folder} contains no subset: expected a folder that `hf-tlm retrieve` or Subset.save wrote."
        ) from None
    if damaged := [name for name, digest in data if not (folder / name).is_file() or sha256(folder / name) != digest]:
        raise HubError(
            f"{folder} is damaged or was edited: {', '.join(damaged)} does not match its {MANIFEST_FILE}. Copy the "
            "folder again, or retrieve the subset again."
        )


def _publish(folder: Path, repo_id: str, type: str, message: str, card: Mapping[str, Any], options: dict[str, Any]) -> Push:
    """Push a folder with a completed copy of its card; the card in the folder is not changed.

    Args:
        card: keyword arguments of `published_card`.
        options: those of `push`, and `kept`: names of files that are not sent.
    """
    kept_files = options.pop("kept", ())
    all_files = {name: path for name, path in published(folder).items() if name not in kept_files}
    files = {name: path for name, path in all_files.items() if is_ours(name, (*PUBLISHED_FILES, *CODE))}
    if skipped := sorted(set(all_files) - set(files)):
        logger.warning(
            "Not published, because no recipe writes files of these names: %s. To add files by hand: hf upload %s PATH.",
            ", ".join(skipped[:10]) + (f" and {len(skipped) - 10:,} more" if len(skipped) > 10 else ""),
            repo_id,
        )
    if CARD not in files and (card_options := [name for name, value in card.items() if value is not None]):
        raise HubError(f"{folder} has no {CARD} for the {card_options[0]}. Write a {CARD}, or remove the {card_options[0]}.")
    with tempfile.TemporaryDirectory() as work:
        if CARD in files:
            try:
                text = published_card(files[CARD].read_text(encoding="utf-8"), repo_id, **card)
            except UnicodeDecodeError as error:
                raise HubError(f"{folder / CARD} is not UTF-8 text: {error}. Save it as UTF-8.") from error
            except ValueError as error:
                raise HubError(f"The metadata of {folder / CARD} cannot be used: {error}. Correct them.") from error
            atomic_write(Path(work) / CARD, text)
            files[CARD] = Path(work) / CARD
        return push(folder, repo_id, type=type, message=message, files=files, **options)


def read_export(folder: Path, error: type[HfTlmError], *, all_files: bool = True) -> dict[str, Any]:
    """Read `export.json` and check that it describes the ONNX graphs in its folder.

    Args:
        error: class of the error to raise.
        all_files: whether every graph that it lists must be in the folder; false for a page, which has one of them.

    Raises:
        HfTlmError: of the class `error`, naming the file: it is damaged, or describes other graphs or another model.
        OSError: a file cannot be read.
    """
    path = folder / EXPORT_FILE
    export = check_fields(
        *(read_json(path, error), _FIELDS, error, f"{path} is not what recipes write", _ADVICE), optional=("models",)
    )
    graphs = {file.relative_to(folder).as_posix(): file for file in sorted(folder.glob("onnx/*.onnx"))}
    for name in dict.fromkeys([*graphs, *(export["files"] if all_files else ())]):
        facts = export["files"].get(name)
        if facts is None or ONNX_FILES[facts["dtype"]] != name:
            raise error(f"{path} does not describe {name}. {_ADVICE}")
        if name not in graphs:
            raise error(f"{path} lists {name}, which does not exist. {_ADVICE}")
        if (size := graphs[name].stat().st_size) != facts["bytes"]:
            raise error(f"{path} does not match the graphs: {name} has {size:,} bytes, not {facts['bytes']:,}. {_ADVICE}")
        if sha256(graphs[name]) != facts["sha256"]:
            raise error(f"{path} and the file {name} have different checksums. {_ADVICE}")
    model_type = (find_object(folder / "config.json") or {}).get("model_type")
    if model_type != export["model_type"]:
        raise error(f"{path} has model_type {export['model_type']}, but config.json next to it has {model_type}. {_ADVICE}")
    return export
