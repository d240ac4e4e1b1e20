"""Names of Hub repositories, and names of Hub or local checkpoints and corpora as records and cards show them."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass

from hf_tlm.errors import HubError
from hf_tlm.utils.run_files import SEED, SPLIT, STAGE
from hf_tlm.utils.shown import kind_of

_NAME_PART = r"[A-Za-z0-9_](?:[A-Za-z0-9._-]*[A-Za-z0-9_])?"
_NAME = re.compile(rf"(?P<id>{_NAME_PART}/{_NAME_PART})(?:@(?P<revision>[^@\s]+))?")
# Type of repository -> prefix of the path of its page.
TYPES = {"model": "", "dataset": "datasets/", "space": "spaces/"}
# A model name, with or without its owner, as a checkpoint or a card gives it.
HUB_NAME = re.compile(r"[\w][\w.-]*(/[\w][\w.-]*)?")
# The folder of a checkpoint, and the folders between it and the folder of its run.
_CHECKPOINT = re.compile(r"checkpoint-\d+")
_RUN_FOLDER = re.compile(rf"training|({STAGE}|{SEED}|{SPLIT}|round-)\d+")
_HUB_CORPUS = re.compile(r"[\w][\w.-]*/[\w][\w.-]*@[0-9a-f]{40}\b")


@dataclass(frozen=True)
class Repo:
    """A repository on the Hub.

    id: `owner/name`.
    revision: branch, tag or commit; None for the default branch.
    type: `model`, `dataset` or `space`.
    """

    id: str
    revision: str | None = None
    type: str = "model"

    @property
    def page(self) -> str:
        """The URL path of the repository's page on the Hub."""
        return f"{TYPES[self.type]}{self.id}"

    def __str__(self) -> str:
        return self.id if self.revision is None else f"{self.id}@{self.revision}"


def parse_repo(name: str, type: str) -> Repo | None:
    """Parse `owner/name` or `owner/name@revision` into a Repo; return None if it cannot be a repository name.

    Raises:
        HubError: `type` is no type of repository.
    """
    if type not in TYPES:
        raise HubError(f"The types of repositories are {', '.join(TYPES)}; received {type!r}.")
    match = _NAME.fullmatch(name)
    # The Hub's own rules: it reserves "--" and "..".
    if match is None or len(match["id"]) > 96 or re.search(r"--|\.\.|\.git$", match["id"]):
        return None
    return Repo(match["id"], match["revision"], type)


def may_be_repo(name: str) -> bool:
    """Return whether a name that is no local file looks like `owner/name` rather than a path."""
    return name.count("/") == 1 and not name.startswith((".", "/", "~"))


def find_repo(name: str, type: str) -> Repo | None:
    """Return the repository of a name; None for an existing local path, or if it cannot be a repository name.

    Raises:
        HubError: `name` is neither a string nor a path, or `type` is no type of repository.
    """
    if not isinstance(name, (str, os.PathLike)):
        raise HubError(f"Expected a local path, or a {type} repository of the Hub as owner/name; received {kind_of(name)}.")
    return None if os.path.exists(name) else parse_repo(str(name), type)


def hub_name(name_or_path: str | None) -> str | None:
    """Return the repo id in `name_or_path` without its revision; None for a local path or an invalid repo id."""
    if name_or_path is None or os.path.exists(name_or_path):
        return None
    name = name_or_path.partition("@")[0]
    return name if HUB_NAME.fullmatch(name) else None


def hub_dataset(corpus: str) -> str | None:
    """Return the `owner/name@<commit>` that the name of a corpus starts with if it is from the Hub; otherwise None.

    The commit is required: without it, a local `folder/file.parquet` would look like a repository.
    """
    match = _HUB_CORPUS.match(corpus)
    return None if match is None else match[0]


def short_name(name_or_path: str | None) -> str | None:
    """Return the name of a checkpoint for the settings of a run: its repo id, or the last two parts of its path."""
    if name_or_path is None or hub_name(name_or_path):
        return name_or_path
    return "/".join(re.split(r"[\\/]+", name_or_path.rstrip("\\/"))[-2:])


def displayed_name(name_or_path: str | None) -> str | None:
    """Return the name of a checkpoint for a card: its repo id, or the end of its path without this machine's folders.

    For a checkpoint inside a run (`training/checkpoint-50`, `seed-0/stage1/checkpoint-50`) this includes the run's folder.
    """
    parts = re.split(r"[\\/]+", (name_or_path or "").strip("\\/"))
    first = len(parts) - 2
    if name_or_path is None or hub_name(name_or_path) or not _CHECKPOINT.fullmatch(parts[-1]):
        return short_name(name_or_path)
    while first > 0 and _RUN_FOLDER.fullmatch(parts[first]):
        first -= 1
    return "/".join(parts[max(first, 0) :])
