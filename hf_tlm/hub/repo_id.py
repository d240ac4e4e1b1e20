"""Names of repositories on the Hub, and of checkpoints and corpora, there or here, as records and cards have them."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass

from hf_tlm.errors import HubError
from hf_tlm.utils.run_files import SEED, SPLIT, STAGE
from hf_tlm.utils.shown import kind_of

_PART = r"[A-Za-z0-9_](?:[A-Za-z0-9._-]*[A-Za-z0-9_])?"
_NAME = re.compile(rf"(?P<id>{_PART}/{_PART})(?:@(?P<revision>[^@\s]+))?")
# Of repositories, and what the addresses of their pages begin with.
TYPES = {"model": "", "dataset": "datasets/", "space": "spaces/"}
# What may be the name of a model, without its owner too, as a checkpoint or a card names it.
HUB_NAME = re.compile(r"[\w][\w.-]*(/[\w][\w.-]*)?")
# A checkpoint's folder, and those that it is in within the folder of a run.
_CHECKPOINT = re.compile(r"checkpoint-\d+")
_IN_A_RUN = re.compile(rf"training|({STAGE}|{SEED}|{SPLIT}|round-)\d+")
_HUB_CORPUS = re.compile(r"[\w][\w.-]*/[\w][\w.-]*@[0-9a-f]{40}\b")


@dataclass(frozen=True)
class Repo:
    """A repository of the Hub.

    id: `owner/name`.
    revision: branch, tag or commit; None for the default branch.
    type: `model`, `dataset` or `space`.
    """

    id: str
    revision: str | None = None
    type: str = "model"

    @property
    def page(self) -> str:
        """The path of its page on a Hub."""
        return f"{TYPES[self.type]}{self.id}"

    def __str__(self) -> str:
        return self.id if self.revision is None else f"{self.id}@{self.revision}"


def parse_repo(name: str, type: str) -> Repo | None:
    """`owner/name` or `owner/name@revision` as a Repo; None for what cannot be the name of one."""
    if type not in TYPES:
        raise HubError(f"The types of repositories are {', '.join(TYPES)}; received {type!r}.")
    match = _NAME.fullmatch(name)
    # As the Hub has it: "--" and ".." are kept for its own use.
    if match is None or len(match["id"]) > 96 or re.search(r"--|\.\.|\.git$", match["id"]):
        return None
    return Repo(match["id"], match["revision"], type)


def may_be_repo(name: str) -> bool:
    """Whether what is no file here may be meant as `owner/name`, rather than as a path."""
    return name.count("/") == 1 and not name.startswith((".", "/", "~"))


def find_repo(name: str, type: str) -> Repo | None:
    """The repository that a name means; None for an existing local path, or for what cannot be a repository's name.

    Raises:
        HubError: it is no name at all.
    """
    if not isinstance(name, (str, os.PathLike)):
        raise HubError(f"Expected a local path, or a {type} repository of the Hub as owner/name; received {kind_of(name)}.")
    return None if os.path.exists(name) else parse_repo(str(name), type)


def hub_name(name_or_path: str | None) -> str | None:
    """The repo id in `name_or_path`, without a revision; None for a path of this machine, and for what cannot be one."""
    if name_or_path is None or os.path.exists(name_or_path):
        return None
    name = name_or_path.partition("@")[0]
    return name if HUB_NAME.fullmatch(name) else None


def hub_dataset(corpus: str) -> str | None:
    """The `owner/name@<commit>` that the name of a corpus of the Hub begins with; None for others.

    Without the commit, `folder/file.parquet` of some machine would be taken for a repository.
    """
    found = _HUB_CORPUS.match(corpus)
    return None if found is None else found[0]


def short_name(name_or_path: str | None) -> str | None:
    """A checkpoint as the settings of a run have it: its repo id, or the last two names of its path."""
    if name_or_path is None or hub_name(name_or_path):
        return name_or_path
    return "/".join(re.split(r"[\\/]+", name_or_path.rstrip("\\/"))[-2:])


def displayed_name(name_or_path: str | None) -> str | None:
    """A checkpoint as a card names it: its repo id, or the end of its path, without the folders of this machine.

    Of a checkpoint within a run (`training/checkpoint-50`, `seed-0/stage1/checkpoint-50`) the run's folder is named too.
    """
    parts = re.split(r"[\\/]+", (name_or_path or "").strip("\\/"))
    first = len(parts) - 2
    if name_or_path is None or hub_name(name_or_path) or not _CHECKPOINT.fullmatch(parts[-1]):
        return short_name(name_or_path)
    while first > 0 and _IN_A_RUN.fullmatch(parts[first]):
        first -= 1
    return "/".join(parts[max(first, 0) :])
