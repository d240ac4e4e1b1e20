"""Names of repositories on the Hub."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass

from hf_tlm.errors import HubError
from hf_tlm.utils.shown import kind_of

_PART = r"[A-Za-z0-9_](?:[A-Za-z0-9._-]*[A-Za-z0-9_])?"
_NAME = re.compile(rf"(?P<id>{_PART}/{_PART})(?:@(?P<revision>[^@\s]+))?")
# Of repositories, and what the addresses of their pages begin with.
TYPES = {"model": "", "dataset": "datasets/", "space": "spaces/"}


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
