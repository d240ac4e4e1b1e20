"""Repositories that are read: their names, and a snapshot of their files without what could run code."""

from __future__ import annotations

import os
from collections.abc import Sequence
from fnmatch import fnmatch
from pathlib import Path, PurePosixPath
from typing import Any

from hf_tlm.errors import HubError
from hf_tlm.hub.errors import explaining
from hf_tlm.hub.repo_id import Repo, find_repo

# Formats that `torch.load` and the like unpickle; what is pickled may run any code.
PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt", "*.pkl")
# Pickles beside a model that are not its weights.
_OF_TRAINING = ("training_args.bin", "optimizer*", "scheduler*", "scaler*", "rng_state*")


def is_fetched(path: str | os.PathLike) -> bool:
    """Whether a file or folder is in the Hub's cache: a stranger's, until somebody has looked at it and copied it."""
    from huggingface_hub import constants

    return Path(path).absolute().is_relative_to(Path(constants.HF_HUB_CACHE).absolute())


def check_named(name: str, folder: str | os.PathLike) -> None:
    """Of a model that a file in `folder` names.

    Raises:
        HubError: the file is from the Hub, and the model is not.
    """
    if is_fetched(folder) and find_repo(name, "model") is None:
        raise HubError(
            f"{folder} is from the Hub and needs the model {name!r}, which must be a model there (owner/name) and no path "
            "of this machine. Ask its author where that model is."
        )


def fetch(
    repo: Repo,
    *,
    allow_patterns: Sequence[str] | str | None = None,
    trust_remote_code: bool = False,
    allow_pickle: bool = False,
    token: str | None = None,
) -> Path:
    """A snapshot of a repository in the Hub's cache; without a network, the one that is there.

    The list of files is checked before the first is downloaded. Python files, and pickles, come only where they are
    asked for; a pickled copy of weights that are there as safetensors never does.

    Args:
        allow_patterns: globs of the files to download; None: all.
        trust_remote_code: a model's own Python files are wanted. A data set's never are.
        allow_pickle: a model's pickles are wanted.
        token: None for the one that is logged in.

    Raises:
        HubError: the repository has Python files, or weights as pickles only, that are not asked for; it is not there,
            gated, or not for this token; the Hub cannot be reached, and the snapshot is not in the cache.
    """
    import httpx2
    from huggingface_hub import HfApi, snapshot_download
    from huggingface_hub.errors import OfflineModeIsEnabled
    from huggingface_hub.utils import filter_repo_objects

    options: dict[str, Any] = {"repo_id": repo.id, "repo_type": repo.type}
    unwanted = [] if trust_remote_code and repo.type == "model" else ["*.py"]
    if repo.type == "model" and not allow_pickle:
        unwanted += PICKLES

    def check(files: list[str]) -> list[str]:
        # Any sequence will do.
        chosen = list(filter_repo_objects(files, allow_patterns=allow_patterns))  # type: ignore[arg-type]
        if repo.type == "dataset":
            return []
        return check_model(repo, chosen, trust_remote_code, allow_pickle)

    with explaining(repo):
        api = HfApi(token=token)
        revision = api.resolve_revision(repo.id, revision=repo.revision, repo_type=repo.type)
        filters: dict[str, Any] = {"revision": revision, "allow_patterns": allow_patterns, "token": token}
        try:
            files = api.list_repo_files(**options, revision=revision.resolved)
        except (httpx2.TransportError, OfflineModeIsEnabled):
            folder = Path(snapshot_download(**options, **filters, ignore_patterns=unwanted, local_files_only=True))
            check([path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()])
            return folder
        unwanted += check(files)
        return Path(snapshot_download(**options, **filters, ignore_patterns=unwanted))


def file_sizes(repo: Repo, token: str | None = None) -> tuple[Repo, dict[str, int]]:
    """The repository at a commit, and its files with their sizes; without a network those of the cached snapshot.

    Raises:
        HubError: see `fetch`; or a file's name leaves the folder that it would be in.
    """
    import httpx2
    from huggingface_hub import HfApi, snapshot_download
    from huggingface_hub.errors import OfflineModeIsEnabled
    from huggingface_hub.hf_api import RepoFile

    options: dict[str, Any] = {"repo_type": repo.type}
    with explaining(repo):
        api = HfApi(token=token)
        commit = api.resolve_revision(repo.id, revision=repo.revision, **options).resolved
        try:
            tree = api.list_repo_tree(repo.id, recursive=True, revision=commit, **options)
            sizes = {entry.path: entry.size for entry in tree if isinstance(entry, RepoFile)}
        except (httpx2.TransportError, OfflineModeIsEnabled):
            folder = Path(snapshot_download(repo.id, revision=commit, local_files_only=True, **options))
            files = [path for path in folder.rglob("*") if path.is_file()]
            sizes = {path.relative_to(folder).as_posix(): path.stat().st_size for path in files}
    for name in sizes:
        if {"", ".", ".."} & set(name.split("/")) or "\\" in name or ":" in name:
            raise HubError(f"{repo} has a file {name!r}, whose name leads out of its folder. Nothing of it was fetched.")
    return Repo(repo.id, commit, repo.type), sizes


def local_folder(name: str, type: str, **options) -> Path:
    """An existing local path as it is; otherwise a snapshot of the repository of that name.

    Args:
        options: see `fetch`.

    Raises:
        HubError: it is neither. For others see `fetch`.
    """
    if os.path.exists(name):
        return Path(name)
    repo = find_repo(name, type)
    if repo is None:
        raise HubError(
            f"Expected a local path, or a {type} repository of the Hub as owner/name or owner/name@revision; "
            f"received {str(name)!r}, which is neither."
        )
    return fetch(repo, **options)


def check_model(repo: Repo, files: list[str], trust_remote_code: bool, allow_pickle: bool = False) -> list[str]:
    """The pickles that safetensors beside them make superfluous.

    Raises:
        HubError: there are Python files, or weights as pickles only, that are not asked for.
    """
    code = [file for file in files if file.endswith(".py")]
    if code and not trust_remote_code:
        raise HubError(
            f"{repo} has Python files of its own ({_some(code)}), which loading it could run. Read them on the Hub; "
            "if you trust them, give trust_remote_code (--trust_remote_code)."
        )
    safe = {PurePosixPath(file).parent for file in files if file.endswith(".safetensors")}
    weights = [file for file in files if _matches(file, PICKLES) and not _matches(file, _OF_TRAINING)]
    pickled = [file for file in weights if PurePosixPath(file).parent not in safe]
    if pickled and not allow_pickle:
        raise HubError(
            f"The weights of {repo} are pickles ({_some(pickled)}), which can run code when they are read; safetensors "
            "cannot. Use a revision with safetensors (its page may offer one as a pull request: @refs/pr/N). If you trust "
            "this one, download it and give the folder; of TLM and COCO-LM, convert it: hf-tlm publish "
            "--legacy_checkpoint."
        )
    return [file for file in weights if file not in pickled]


def _matches(file: str, patterns: Sequence[str]) -> bool:
    return any(fnmatch(PurePosixPath(file).name, pattern) for pattern in patterns)


def _some(files: list[str]) -> str:
    return ", ".join(files[:3]) + (f" and {len(files) - 3} more" if len(files) > 3 else "")
