"""Checkpoints by the names that options take: a folder, or a Hub id with an optional revision."""

from __future__ import annotations

from collections.abc import Sequence

from hf_tlm.errors import HubError
from hf_tlm.hub.repo import PICKLES, fetch
from hf_tlm.hub.repo_id import Repo, find_repo
from hf_tlm.utils.seals import check_seal

# What tokenizers and configs are, and with weights, safe or not, a checkpoint; a repository may hold other formats too.
TOKENIZER_FILES = ["*.json", "*.txt", "*.model", "*.jinja"]
FILES = [*TOKENIZER_FILES, "*.safetensors", *PICKLES]


def checkpoint_folder(
    name_or_path: str,
    revision: str | None = None,
    *,
    trust_remote_code: bool = False,
    files: Sequence[str] = FILES,
) -> str:
    """The folder of a checkpoint called owner/name or owner/name@revision, in the Hub's cache; other names as they are.

    Python files come only with `trust_remote_code`. A model that needs them is then refused where it is loaded.

    Args:
        revision: branch, tag or commit, instead of one in the name.
        files: globs of what is needed of it.

    Raises:
        HubError: two revisions, or see `fetch`: there is no such repository, or its weights are pickles only.
        SealError: a folder that a run wrote, with files that have changed since.
    """
    repo = find_repo(name_or_path, "model")
    if repo is None:
        check_seal(name_or_path)
        return name_or_path
    repo = Repo(*split_revision(name_or_path, revision), "model")
    files = [*files, "*.py"] if trust_remote_code else files
    return str(fetch(repo, allow_patterns=files, trust_remote_code=trust_remote_code))


def split_revision(name_or_path: str, revision: str | None = None) -> tuple[str, str | None]:
    """owner/name@revision in two; other names as they are, with `revision`.

    Raises:
        HubError: there are two revisions.
    """
    repo = find_repo(name_or_path, "model")
    if repo is None or repo.revision is None:
        return name_or_path, revision
    if revision not in (None, repo.revision):
        raise HubError(f"{name_or_path} names a revision, and {revision!r} is another. Give one of the two.")
    return repo.id, repo.revision
