"""Push a finished folder to a repository on the Hub in one commit, or leave the repository unchanged."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatch
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from hf_tlm.errors import HubError
from hf_tlm.hub.errors import UnansweredError, client_errors, log_in, status_of, with_retries
from hf_tlm.hub.repo_id import Repo, parse_repo
from hf_tlm.utils.files import sha256
from hf_tlm.utils.run_files import EXPORT_FILE, MANIFEST_FILE, TEACHER_FILE
from hf_tlm.utils.seals import SEAL
from hf_tlm.utils.shown import counted

if TYPE_CHECKING:
    from huggingface_hub import HfApi
    from huggingface_hub.hf_api import RepoFile


MAX_CONFLICTS = 20  # How many times another writer may be faster before the push fails.
HUGGINGFACE = "https://huggingface.co"
CARD = "README.md"
GITIGNORE = "# nothing is ignored\n"  # An empty string could be treated as no content.
# Globs of file and folder names that are not published: hidden files, what is needed only to resume training or to detect
# damage, the seeds, rounds, stages, points and trials that the published model was chosen from, its predictions, pages
# that show it, and the answers of a teacher, which quote passages.
NOT_PUBLISHED = (
    *(".*", "*.tmp", "checkpoint-*", "seed-*", "round-[0-9]*", "stage[12]", "points", "trials", "training", "runs", "logs"),
    *("predictions", "analysis", TEACHER_FILE),
    *("__pycache__", "optimizer*", "scheduler*", "scaler*", "rng_state*", "trainer_state.json", "training_args.bin"),
    SEAL,
)
# Type of repository -> globs of the files of one artefact. Matching files that the new artefact lacks are deleted; others,
# such as files that somebody added by hand, are kept.
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
    """Check, before hours of work, that the user is logged in and may write to repositories of the owner.

    Raises:
        HubError: `repo_id` is not owner/name; there is no token, the Hub does not accept it, or it is read-only; the
            owner is neither its user nor one of their organisations; the Hub cannot be reached.
    """
    repo = repo_to_push(repo_id, "model", None)
    account = with_retries(_api(token, repo).whoami, repo)
    names = [account["name"], *(organisation["name"] for organisation in account.get("orgs", []))]
    owner = repo_id.split("/")[0]
    if owner not in names:
        raise HubError(
            f"The token belongs to {account['name']}, who cannot publish as {owner!r}. Choose a repository under "
            f"{' or '.join(names)}, or log in with an account that can."
        )
    if account.get("auth", {}).get("accessToken", {}).get("role") == "read":
        raise HubError(
            f"The token of {account['name']} is read-only, but publishing needs a token with write access. {log_in()}."
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
    """Publish a folder in one commit that contains all new and changed files, or not at all.

    Files that the repository already has are not sent again; without new files there is no commit. If another writer
    commits meanwhile, their commit is kept and the push starts over from it. Temporary failures are retried (see
    `with_retries`).

    Args:
        folder: a finished folder; files that `NOT_PUBLISHED` matches are not sent. It is never changed.
        message: the commit message.
        type: `model`, `dataset` or `space`.
        private: for a repository that is created now: None and True make it private, False public. The visibility of an
            existing repository does not change.
        revision: branch; created from the default branch if it does not exist. None: the default branch.
        tag: tag to set on the commit, for a release.
        replace: globs of repository paths; files that match and are not pushed are deleted. None: `REPLACED` for the type.
        files: repository path -> local file, to use another layout than the folder's.
        dry_run: only return the plan. The Hub is asked which files it has; if it gives no answer, for example without a
            network, the plan is that for an empty repository, and says so. Needs no token, except to see a private
            repository.
        token: None for the token of the logged-in user.
        retries: number of retries after the first try.

    Raises:
        HubError: there is no token, or it may not write; there is nothing to send; a private repository was asked for, but
            it is public; `tag` is already set on another commit; the Hub kept failing. The message says whether anything
            was published.
    """
    repo = repo_to_push(repo_id, type, revision)
    local = {path: LocalFile(Path(file)) for path, file in (published(folder) if files is None else files).items()}
    if not local:
        raise HubError(f"There is nothing to publish in {folder}. Expected the folder of a finished run or a saved subset.")
    replaced = REPLACED[type] if replace is None else replace
    publication = Publication(_api(token, repo, anonymous=dry_run), repo, local, replaced, private, tag, message)
    if dry_run:
        try:
            return with_retries(publication.plan, repo, retries=0)
        except UnansweredError as error:
            return publication.plan(unanswered=str(error))
    try:
        return with_retries(publication.run, repo, retries, publication.starts_over)
    except HubError as error:
        if publication.refused:
            raise
        outcome = publication.outcome()
        if tag is None and (result := publication.result()) is not None:
            return result
        raise HubError(f"{error} {outcome} {folder} is intact; run the same command again to publish it.") from None


def published(folder: str | os.PathLike) -> dict[str, Path]:
    """Return the files of a folder that are published: path within it -> file, sorted. Links to files are followed.

    Raises:
        HubError: the folder contains links to folders, or broken links.
    """
    folder = Path(folder)
    paths = {path.relative_to(folder).as_posix(): path for path in folder.rglob("*")}
    unpublished = {name for name in paths for part in name.split("/") if any(fnmatch(part, glob) for glob in NOT_PUBLISHED)}
    paths = {name: paths[name] for name in sorted(paths) if name not in unpublished}
    if "tokenizer_config.json" in paths:  # `tokenizer/`, from which a pretraining resumes, is then a duplicate.
        paths = {name: path for name, path in paths.items() if not name.startswith("tokenizer/")}
    if broken := [name for name, path in paths.items() if path.is_symlink() and not path.is_file()]:
        raise HubError(
            f"{folder} has broken links or links to folders, which cannot be published: {', '.join(broken)}. Replace them "
            "with copies of their targets, or remove them."
        )
    return {name: path for name, path in paths.items() if path.is_file()}


def _api(token: str | None, repo: Repo, anonymous: bool = False) -> HfApi:
    """Return the Hub's client for a token, or for the logged-in user.

    Raises:
        HubError: nobody is logged in, and `anonymous` is false.
    """
    from huggingface_hub import HfApi, get_token

    token = token or get_token()
    if token is None and not anonymous:
        raise HubError(f"To publish {repo}, you must be logged in. {log_in()}.")
    return HfApi(token=token)


def repo_to_push(repo_id: str, type: str, revision: str | None) -> Repo:
    """Return the repository and branch to publish to.

    Raises:
        HubError: `repo_id` is not owner/name.
    """
    repo = parse_repo(repo_id, type)
    if repo is None or repo.revision is not None:
        raise HubError(
            "Expected the repository to publish to as owner/name, without a branch (for which --revision or --hub_revision "
            f"is); received {repo_id!r}."
        )
    return Repo(repo_id, revision, type)


@dataclass(frozen=True)
class Push:
    """The result of a push, or with `dry_run` its plan.

    commit: the new commit; None if nothing was new, and with `dry_run`.
    pushed, unchanged, deleted: paths in the repository.
    is_private: whether the repository is private; None, with `dry_run`, if it does not exist or was not asked for.
    about: with `dry_run`, whether the repository exists and is private, in words.
    sizes: with `dry_run`, path -> bytes of the files that would be pushed.
    card: with `dry_run`, the text of the card that would be published; None without a card.
    """

    url: str
    repo: Repo
    commit: str | None
    pushed: list[str]
    unchanged: list[str]
    deleted: list[str]
    dry_run: bool
    is_private: bool | None
    about: str = ""
    sizes: Mapping[str, int] = field(default_factory=dict)
    card: str | None = None

    @property
    def is_empty(self) -> bool:
        return not (self.pushed or self.deleted)

    def to_text(self) -> str:
        if self.dry_run:
            return self._plan_text()
        repo = f"{self.repo} ({'private' if self.is_private else 'public'})"
        if self.commit is None:
            head = f"{repo} already has this content: {self.url}"
        else:
            head = f"Published {repo} as commit {self.commit[:12]}: {self.url}"
        lines = [("new or changed", self.pushed), ("deleted", self.deleted), ("unchanged", self.unchanged)]
        return "\n".join([head, *(f"  {label}: {', '.join(paths)}" for label, paths in lines if paths)])

    def _plan_text(self) -> str:
        lines = [f"Would publish to {self.repo} ({self.url}); nothing was sent.", self.about]
        width = max(map(len, self.pushed), default=0)
        lines += [f"  {path:<{width}}{self.sizes[path]:>15,} bytes" for path in self.pushed]
        lines += [f"new or changed: {counted(len(self.pushed), 'file')}, {sum(self.sizes.values()) / 1e6:,.2f} MB"]
        for label, paths in (("deleted", self.deleted), ("unchanged", self.unchanged)):
            lines += [f"{label}: {', '.join(paths)}"] if paths else []
        # The long card comes first, because a terminal shows the end of what is printed.
        return "\n".join(([] if self.card is None else [f"{CARD}:", "", self.card.rstrip(), ""]) + lines)


@dataclass
class LocalFile:
    """A file to publish. Its git and LFS hashes are computed only once, even if the push is retried."""

    path: Path

    @cached_property
    def sha256(self) -> str:
        return sha256(self.path)

    @cached_property
    def git_oid(self) -> str:
        from huggingface_hub.utils.sha import git_hash

        return git_hash(self.path.read_bytes())

    def equals(self, remote: RepoFile) -> bool:
        if self.path.stat().st_size != remote.size:
            return False
        return self.sha256 == remote.lfs.sha256 if remote.lfs else self.git_oid == remote.blob_id


@dataclass
class Publication:
    """The state of one push, which may take several tries; each try reads the repository's files again.

    api: the client, with the token to use.
    local: repository path -> file.
    replaced: globs of the repository paths that are deleted if they are not in `local`.
    private, tag, message: see `push`.
    sent: the changes of the last commit that was sent; None before the first.
    commit: the commit that contains all files, once it is known.
    new: whether the repository or the branch did not exist before.
    is_private: whether the repository is private; None before it was seen.
    refused: whether a retry cannot change the error, whose message already says what was published.
    conflicts: number of times that another writer was faster.
    """

    api: HfApi
    repo: Repo
    local: Mapping[str, LocalFile]
    replaced: Sequence[str]
    private: bool | None
    tag: str | None
    message: str
    sent: Push | None = None
    commit: str | None = None
    new: bool = False
    is_private: bool | None = None
    refused: bool = False
    conflicts: int = 0

    def plan(self, unanswered: str | None = None) -> Push:
        """Return what a push would do, without changing anything.

        Args:
            unanswered: why the Hub cannot be asked; the plan is then that for an empty repository.
        """
        head = self._head() if unanswered is None else None
        plan, commit = self._compare(head)
        if commit is not None:
            self._check_tag(commit, plan)
        state = f"created as {'public' if self.private is False else 'private'}"
        if unanswered is not None:
            about = (
                f"The Hub was not asked which files it has: {unanswered} Therefore every file is listed; a repository "
                f"that does not exist would be {state}."
            )
        elif self.is_private is not None:
            about = f"The repository exists and is {'private' if self.is_private else 'public'}."
        elif self.repo.revision is not None:
            about = (
                f"The branch would be created; a repository that does not exist (or that you may not see) would be {state}."
            )
        else:
            about = f"There is no such repository that you may see; it would be {state}."
        about += "" if self.tag is None else f" Tag: {self.tag}."
        card = self.local[CARD].path.read_text(encoding="utf-8", errors="replace") if CARD in self.local else None
        sizes = {path: self.local[path].path.stat().st_size for path in plan.pushed}
        return replace(plan, about=about, sizes=sizes, card=card)

    def run(self) -> Push:
        """Try the push once."""
        from huggingface_hub import CommitOperationAdd, CommitOperationDelete

        remote_head = self._head() or self._create()
        plan, head = self._compare(remote_head)[0], remote_head[0]
        self._check_tag(head, plan)
        if not plan.is_empty:
            additions = [CommitOperationAdd(path, str(self.local[path].path)) for path in plan.pushed]
            operations: list[Any] = [*additions, *(CommitOperationDelete(path) for path in plan.deleted)]
            options: dict[str, Any] = {"repo_type": self.repo.type, "revision": self.repo.revision}
            self._choose_storage()
            # Otherwise the server would silently drop files that a .gitignore in the repository matches.
            self.api.preupload_lfs_files(self.repo.id, additions, gitignore_content=GITIGNORE, free_memory=False, **options)
            self.sent, self.commit = plan, None
            # With its parent given, the commit is refused if another writer committed first.
            options |= {"commit_message": self.message, "parent_commit": head}
            self.commit = self.api.create_commit(self.repo.id, operations, **options).oid
        elif self.sent is not None and self.commit is None:
            self.commit = head  # An earlier try's commit arrived, but its response was lost.
        if self.tag is not None:
            self._set_tag(self.tag, self.commit or head)
        return self.result() or replace(plan, dry_run=False)

    def result(self) -> Push | None:
        """Return what was pushed; None if there was no commit."""
        return replace(self.sent, commit=self.commit, dry_run=False) if self.sent and self.commit else None

    def starts_over(self, error: Exception) -> bool:
        """Return whether another writer was faster, so that the push starts over from their commit; count the conflict."""
        conflict = status_of(error) in (409, 412)
        self.conflicts += conflict
        return conflict and self.conflicts <= MAX_CONFLICTS

    def outcome(self) -> str:
        """Return a sentence that says, after an error, whether anything was published."""
        if self.sent is not None and self.commit is None:
            # The commit may have arrived, and only its response been lost.
            try:
                plan, head = self._compare(self._head())
            except client_errors():
                return f"It is not known whether the commit arrived; {self.repo} is complete with or without it."
            self.commit = head if plan.is_empty else None
        if self.commit is not None:
            tag = "" if self.tag is None else f", without the tag {self.tag!r}"
            return f"The files are published as commit {self.commit[:12]}{tag}."
        # One that could not be seen may have any files: those of its owner, or of the branch from which it was created.
        return "Nothing was published." if self.new else f"Nothing was published; {self.repo} is unchanged."

    def _head(self) -> tuple[str, dict[str, RepoFile]] | None:
        """Return the latest commit of the branch and its files (path -> file); None without such a repository or branch.

        Raises:
            HubError: the repository is public, and a private one was asked for.
        """
        from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError, RevisionNotFoundError
        from huggingface_hub.hf_api import RepoFile

        options: dict[str, Any] = {"repo_type": self.repo.type}
        try:
            info = self.api.repo_info(self.repo.id, revision=self.repo.revision, **options)
        except GatedRepoError:
            raise
        except (RepositoryNotFoundError, RevisionNotFoundError):
            return None
        if self.private and not info.private:
            self._refuse(
                f"{self.repo.id} is public, but a private repository was requested. Make it private in its settings, or "
                "choose another name."
            )
        self.is_private = info.private
        entries = self.api.list_repo_tree(self.repo.id, recursive=True, revision=info.sha, **options)
        files = {entry.path: entry for entry in entries if isinstance(entry, RepoFile)}
        # An empty repository on a server other than huggingface.co may have no commit.
        return info.sha, files  # type: ignore[return-value]

    def _create(self) -> tuple[str, dict[str, RepoFile]]:
        """Create the repository and the branch if they do not exist; return the result of `_head`."""
        options: dict[str, Any] = {"repo_type": self.repo.type, "exist_ok": True}
        self.new = True
        sdk: dict[str, Any] = {"space_sdk": "static"} if self.repo.type == "space" else {}
        self.api.create_repo(self.repo.id, private=self.private is not False, **sdk, **options)
        if self.repo.revision is not None:
            self.api.create_branch(self.repo.id, branch=self.repo.revision, **options)
        head = self._head()
        if head is None:
            self._refuse(f"{self.repo} was created, but {self.api.endpoint} does not know it yet. Wait a minute.")
        return head

    def _choose_storage(self) -> None:
        """Make the client upload by LFS if a self-hosted server has no Xet: with Xet the upload would fail."""
        from huggingface_hub import constants
        from huggingface_hub.utils import build_hf_headers, get_session

        if constants.HF_HUB_DISABLE_XET or self.api.endpoint == HUGGINGFACE:
            return
        url = f"{self.api.endpoint}/api/{self.repo.type}s/{self.repo.id}/xet-write-token/{self.repo.revision or 'main'}"
        # Some servers know the path but do not support it, and respond with 501 or 405.
        if get_session().get(url, headers=build_hf_headers(token=self.api.token)).status_code in (404, 405, 501):
            constants.HF_HUB_DISABLE_XET = True

    def _compare(self, head: tuple[str, dict[str, RepoFile]] | None) -> tuple[Push, str | None]:
        """Return the changes between a head (see `_head`) and the local files, and the commit of that head."""
        commit, remote = head or (None, {})
        unchanged = [path for path, file in self.local.items() if path in remote and file.equals(remote[path])]
        pushed = [path for path in self.local if path not in unchanged]
        deleted = [p for p in remote if p not in self.local and any(fnmatch(p, pattern) for pattern in self.replaced)]
        url = f"{self.api.endpoint}/{self.repo.page}"
        url += "" if self.repo.revision is None else f"/tree/{self.repo.revision}"
        return Push(url, self.repo, None, pushed, unchanged, deleted, True, self.is_private), commit

    def _check_tag(self, head: str, plan: Push) -> None:
        """Raise a HubError if the tag exists already, and not on a commit with the content to publish."""
        existing = None if self.tag is None else self._tags().get(self.tag)
        if existing is not None and not (plan.is_empty and existing == head):
            self._refuse(
                f"The tag {self.tag!r} of {self.repo.id} is commit {existing[:12]}, which has other content; tags are not "
                "moved. Choose another tag."
            )

    def _set_tag(self, tag: str, commit: str) -> None:
        from huggingface_hub.errors import HfHubHTTPError

        if self._tags().get(tag) == commit:
            return
        try:
            self.api.create_tag(self.repo.id, tag=tag, revision=commit, repo_type=self.repo.type)
        except HfHubHTTPError as error:
            # Another writer, or a try whose response was lost, has set the tag already.
            if status_of(error) != 409 or self._tags().get(tag) != commit:
                raise

    def _tags(self) -> dict[str, str]:
        references = self.api.list_repo_refs(self.repo.id, repo_type=self.repo.type)
        return {tag.name: tag.target_commit for tag in references.tags}

    def _refuse(self, text: str) -> NoReturn:
        self.refused = True
        raise HubError(f"{text} {self.outcome()}")
