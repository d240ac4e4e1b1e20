"""A finished folder becomes one commit of a repository, or the repository stays as it was."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from fnmatch import fnmatch
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from hf_tlm.errors import HubError
from hf_tlm.hub.commit import LocalFile, Publication, Push
from hf_tlm.hub.errors import UnansweredError, log_in, with_retries
from hf_tlm.hub.repo_id import Repo, parse_repo
from hf_tlm.utils.run_files import EXPORT_FILE, MANIFEST_FILE, TEACHER_FILE

if TYPE_CHECKING:
    from huggingface_hub import HfApi

# What of a folder stays here, by the name of a file or of a folder on the way to it: hidden files, what is needed only
# to continue training or to see damage, the seeds, rounds, stages, points and trials that the published model was chosen
# from, what was predicted with it, pages that show it, and what a teacher says, which quotes passages.
NOT_PUBLISHED = (
    *(".*", "*.tmp", "checkpoint-*", "seed-*", "round-[0-9]*", "stage[12]", "points", "trials", "training", "runs", "logs"),
    *("predictions", "analysis", TEACHER_FILE),
    *("__pycache__", "optimizer*", "scheduler*", "scaler*", "rng_state*", "trainer_state.json", "training_args.bin"),
    "seal.json",
)
# The files that make up one artefact: those that a new one lacks go with the old one. Others, such as what somebody
# added by hand, are left alone.
REPLACED = {
    "model": (
        *("*.safetensors", "*.safetensors.index.json", "*.bin", "*.bin.index.json", "*config.json"),
        *("*tokenizer*", "*vocab.*", "*merges.txt", "*.model", "*added_tokens.json", "*special_tokens_map.json"),
        *("*configuration_*.py", "*modeling_*.py", "*tokenization_*.py"),
        *("*bert.py", "*embeddings.py", "*relative_positions.py", "*dict.txt"),  # COCO-LM's code, and its vocabulary.
        *("*corruption.json", "finetuned.json", "prompt.json", "grid.json", "results.*", "settings.json"),
        *("onnx/*.onnx", EXPORT_FILE),  # Graphs of the old weights.
    ),
    "dataset": ("data/*", MANIFEST_FILE, "report.md"),
    "space": ("index.html", "page.*", "model.js", "vendor/*", "model/*"),
}


def check_push(repo_id: str, token: str | None = None) -> None:
    """Before hours of work: is somebody logged in who may write to repositories of the owner?

    Raises:
        HubError: `repo_id` is not owner/name; there is no token, the Hub does not accept it, or it may only read; the
            owner is neither its user nor one of their organisations; the Hub cannot be reached.
    """
    repo = repo_to_push(repo_id, "model", None)
    account = with_retries(_api(token, repo).whoami, repo)
    names = [account["name"], *(organisation["name"] for organisation in account.get("orgs", []))]
    owner = repo_id.split("/")[0]
    if owner not in names:
        raise HubError(
            f"The token is one of {account['name']}, who cannot publish as {owner!r}. Choose a repository under "
            f"{' or '.join(names)}, or log in as somebody who can."
        )
    if account.get("auth", {}).get("accessToken", {}).get("role") == "read":
        raise HubError(
            f"The token of {account['name']} may only read, and publishing needs one with write access. {log_in()}."
        )


def push(
    folder: str | os.PathLike,
    repo_id: str,
    *,
    message: str,
    type: str = "model",
    private: bool | None = None,
    revision: str | None = None,
    tag: str | None = None,
    replace: Sequence[str] | None = None,
    files: Mapping[str, str | os.PathLike] | None = None,
    dry_run: bool = False,
    token: str | None = None,
    retries: int = 5,
) -> Push:
    """Publish a folder in one commit, which holds all that is new in it, or in none.

    Files that are there already are not sent again, and nothing new makes no commit. Another writer's commit in between
    is kept: the push starts over from it. After passing failures it is tried again (see `with_retries`).

    Args:
        folder: a finished folder; what `NOT_PUBLISHED` matches is not sent.
        message: of the commit.
        type: `model`, `dataset` or `space`.
        private: of a repository that is made now: None and True make it private, False public. That of one which is
            there is left alone.
        revision: branch; made from the default branch if it is not there. None: the default branch.
        tag: of the result, for a release.
        replace: globs of repository paths; files there that match and are not pushed are deleted. None: those of
            `REPLACED` for the type.
        files: repository path -> local file, for another layout than the folder's.
        dry_run: only find out what would be done. The Hub is asked what it has already; where it gives no answer, as
            without a network, the plan is that of an empty repository, and says so. Needs no token, but to see a private
            repository.
        token: None for the one that is logged in.
        retries: tries after the first one.

    Raises:
        HubError: there is no token, or it may not write; there is nothing to send; a private repository was asked for and
            it is public; `tag` is another commit's; the Hub kept failing. The message says whether anything was
            published. The folder is never touched.
    """
    repo = repo_to_push(repo_id, type, revision)
    local = {path: LocalFile(Path(file)) for path, file in (published(folder) if files is None else files).items()}
    if not local:
        raise HubError(f"There is nothing to publish in {folder}. Expected the folder of a finished run or a saved subset.")
    replaced = REPLACED[type] if replace is None else replace
    work = Publication(_api(token, repo, anonymous=dry_run), repo, local, replaced, private, tag, message)
    if dry_run:
        try:
            return with_retries(work.plan, repo, retries=0)
        except UnansweredError as error:
            return work.plan(unanswered=str(error))
    try:
        return with_retries(work.run, repo, retries, work.starts_over)
    except HubError as error:
        if work.refused:
            raise
        outcome = work.outcome()
        if tag is None and (done := work.result()) is not None:
            return done
        raise HubError(f"{error} {outcome} {folder} is intact; run the same again to publish it.") from None


def published(folder: str | os.PathLike) -> dict[str, Path]:
    """What of a folder is published: path within it -> file, sorted. Links to files stand for them; others: a HubError."""
    folder = Path(folder)
    paths = {path.relative_to(folder).as_posix(): path for path in folder.rglob("*")}
    paths = {name: paths[name] for name in sorted(paths) if not _stays(PurePosixPath(name).parts)}
    if "tokenizer_config.json" in paths:  # That which a pretraining goes on with; its model has the same.
        paths = {name: path for name, path in paths.items() if not name.startswith("tokenizer/")}
    if broken := [name for name, path in paths.items() if path.is_symlink() and not path.is_file()]:
        raise HubError(
            f"{folder} has links to folders or to nothing, which cannot be published: {', '.join(broken)}. Put copies of "
            "what they stand for in their places, or remove them."
        )
    return {name: path for name, path in paths.items() if path.is_file()}


def _stays(parts: Sequence[str]) -> bool:
    return any(fnmatch(part, pattern) for part in parts for pattern in NOT_PUBLISHED)


def _api(token: str | None, repo: Repo, anonymous: bool = False) -> HfApi:
    """The client of one account; a HubError where nobody is logged in, and `anonymous` will not do."""
    from huggingface_hub import HfApi, get_token

    token = token or get_token()
    if token is None and not anonymous:
        raise HubError(f"To publish {repo}, the Hub must know who you are. {log_in()}.")
    return HfApi(token=token)


def repo_to_push(repo_id: str, type: str, revision: str | None) -> Repo:
    """The branch of a repository to publish to; a HubError where `repo_id` is not owner/name."""
    repo = parse_repo(repo_id, type)
    if repo is None or repo.revision is not None:
        raise HubError(
            f"Expected the repository to publish to as owner/name, a branch of it apart from that; received {repo_id!r}."
        )
    return Repo(repo_id, revision, type)
