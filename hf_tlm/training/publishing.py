"""Publishing of a run (`--push_to_hub`): checks before the first step, pushes of checkpoints, and the final push."""

from __future__ import annotations

import logging
import os
import shutil
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from transformers import TrainerCallback

from hf_tlm.errors import ArgumentsError, HubError
from hf_tlm.hub.errors import UnansweredError
from hf_tlm.hub.publish import publish_result
from hf_tlm.hub.push import Push, check_push, push
from hf_tlm.hub.repo import CODE, PUBLISHED_FILES, RESUME_FILES, check_sizes, fetch, file_sizes, is_ours, mark_as_fetched
from hf_tlm.hub.repo_id import find_repo, hub_name
from hf_tlm.models import coco_lm
from hf_tlm.training.base_arguments import BaseArguments, PublishedArguments
from hf_tlm.training.checkpoints import best_of, checkpoints_in
from hf_tlm.training.run_folder import RESULTS_FILE, SETTINGS_FILE, OtherRunError, ProtocolError, claim
from hf_tlm.training.stages import STAGE_FILE
from hf_tlm.utils.files import atomic_directory, files_in
from hf_tlm.utils.locks import Claim
from hf_tlm.utils.seals import SEAL
from hf_tlm.utils.shown import counted

logger = logging.getLogger(__name__)
STAGED = ".upload-"
# Python files that travel with a COCO-LM body, by name.
OWN_CODE = {path.name: path for path in Path(coco_lm.__file__).parent.glob("*.py") if not path.name.startswith("_")}
# Folders of a run that are not needed to continue it.
_EXCLUDED = ("runs", "logs")


class Uploads:
    """A background thread that uploads folders one at a time, and removes each after its upload.

    A waiting folder is removed without an upload if a newer one is submitted.

    succeeded: number of folders that were uploaded.
    errors: errors of the uploads that failed.
    """

    def __init__(self, upload: Callable[[Path], Any]):
        self._upload, self._lock = upload, threading.Lock()
        self._waiting: Path | None = None
        self._thread: threading.Thread | None = None
        self.succeeded = 0
        self.errors: list[Exception] = []

    def submit(self, folder: Path) -> None:
        """Upload a folder after the upload in progress, unless a newer one is submitted before."""
        with self._lock:
            superseded, self._waiting = self._waiting, folder
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="uploads", daemon=True)
                self._thread.start()
        if superseded is not None:
            shutil.rmtree(superseded, ignore_errors=True)

    def wait(self) -> None:
        """Wait until all submitted folders are uploaded or have failed."""
        while (thread := self._thread) is not None:
            thread.join()

    def _work(self) -> None:
        while True:
            with self._lock:
                folder, self._waiting = self._waiting, None
                if folder is None:
                    self._thread = None
                    return
            try:
                self._upload(folder)
                self.succeeded += 1
            except Exception as error:  # No error may end the thread.
                self.errors.append(error)
                logger.warning("An upload failed, and the run continues: %s", error)
            finally:
                shutil.rmtree(folder, ignore_errors=True)


def check_hub(args: BaseArguments, *, adapter: bool = False, base: str | None = None) -> None:
    """Check before training that the result can be published. The first process asks the Hub (`hf_tlm.hub.check_push`).

    Args:
        adapter: whether the result of the run is an adapter.
        base: base model of the adapter, which must be on the Hub.

    Raises:
        ArgumentsError: the base of an adapter is a local model.
        HubError: see `hf_tlm.hub.check_push`.
    """
    if not args.push_to_hub:
        return
    if adapter and hub_name(base) is None:
        raise ArgumentsError(
            "The adapter of this run would need a base model on this machine, and nobody could load it from the Hub. Pass "
            "the repo id of the base as --model_name_or_path (publish the base first), or remove push_to_hub or use_peft."
        )
    if args.process_index == 0 and args.hub_model_id is not None:
        try:
            check_push(args.hub_model_id, args.hub_token)
        except UnansweredError as error:
            raise UnansweredError(
                f"{error} Or train without push_to_hub and the hub_ options, and publish the finished folder later with "
                "`hf-tlm publish`."
            ) from None


def publish_run(folder: Path, args: BaseArguments) -> Push | None:
    """Publish the finished folder from the first process, if `push_to_hub` is set.

    Returns:
        The push; None if nothing was published.

    Raises:
        HubError: the push failed; the message says how to publish the folder later.
    """
    if not args.push_to_hub or args.hub_model_id is None or args.process_index != 0:
        return None
    return publish_result(
        *("model", folder, args.hub_model_id),
        token=args.hub_token,
        private=args.hub_private_repo,
        revision=args.hub_revision,
    )


class CheckpointPushes(TrainerCallback):
    """A callback that pushes the run's folder to the branch `<hub_revision or main>-checkpoints` after every save.

    Pushes run in the background. Each is one commit of settings, finished seeds and stages, and the newest checkpoint with
    the best one so far. It uploads hard links, so that the run can meanwhile write and remove files. Use it as a context
    manager: leaving it waits for the last upload.

    Args:
        output_dir: directory of the run.
    """

    def __init__(self, output_dir: Path, args: PublishedArguments):
        self.output_dir, self.args = output_dir, args
        self.uploads = Uploads(self._push)
        self.active = args.pushes_checkpoints and args.process_index == 0

    def __enter__(self) -> CheckpointPushes:
        if self.active:
            for leftover in self.output_dir.glob(f"{STAGED}*"):  # Left by a killed run.
                shutil.rmtree(leftover, ignore_errors=True)
        return self

    def __exit__(self, *exception) -> None:
        self.uploads.wait()

    def on_save(self, args, state, control, **kwargs) -> None:
        if not self.active:
            return
        staged = Path(tempfile.mkdtemp(prefix=STAGED, dir=self.output_dir))
        for path in needed_to_continue(self.output_dir):
            name = path.relative_to(self.output_dir)
            if not is_ours(name.as_posix(), (*PUBLISHED_FILES, *RESUME_FILES, *CODE)):
                continue
            link = staged / name
            link.parent.mkdir(parents=True, exist_ok=True)
            try:
                os.link(path, link)
            except OSError:  # Not every file system has hard links.
                shutil.copyfile(path, link)
        self.uploads.submit(staged)

    def check(self) -> None:
        """Raise a HubError if checkpoints were pushed, and every push failed."""
        errors = self.uploads.errors
        if errors and not self.uploads.succeeded:
            raise HubError(
                f"The run is finished and complete in {self.output_dir}, but none of its {len(errors)} checkpoints could be "
                f"pushed to {self.args.hub_model_id}@{checkpoint_branch(self.args)}: {errors[-1]}"
            )

    def _push(self, folder: Path) -> None:
        assert self.args.hub_model_id is not None  # push_to_hub requires it.
        try:
            push(
                *(folder, self.args.hub_model_id),
                message="What the run needs to continue",
                files=files_in(folder),
                replace=["[!.]*"],  # Everything else on the branch; .gitattributes is the Hub's.
                token=self.args.hub_token,
                private=self.args.hub_private_repo,
                revision=checkpoint_branch(self.args),
            )
        except HubError as error:
            raise HubError(str(error).replace(str(folder), str(self.output_dir))) from None


def checkpoint_branch(args: BaseArguments) -> str:
    return f"{args.hub_revision or 'main'}-checkpoints"


def needed_to_continue(folder: Path) -> Iterator[Path]:
    """Yield the files of a run's folder that are needed to continue from its newest complete checkpoint."""
    sealed = [path for _, path in checkpoints_in(folder) if (path / SEAL).is_file()]
    # A finished stage needs no checkpoint.
    kept = (sealed[-1], best_of(sealed[-1])) if sealed and not (folder / "model" / STAGE_FILE).is_file() else ()
    for path in sorted(folder.iterdir()):
        if path.name.startswith((".", "nonfinite-")) or path.name in _EXCLUDED:
            continue
        if path.is_file():
            yield path
        elif path.name.startswith("checkpoint-"):
            if path in kept:
                yield from needed_to_continue(path)
        elif not (path.name.startswith("stage") and (folder / RESULTS_FILE).is_file()):  # A finished seed needs no stages.
            yield from needed_to_continue(path)


def claim_run(args: BaseArguments, details: Mapping[str, Any], data: Sequence[str], options: Sequence[Any]) -> Claim:
    """Claim the folder of a run by `claim`, into which `fetch_run` may have fetched it.

    Raises:
        ProtocolError: the fetched run has other settings, and is removed again; and see `fetch_run` and `claim`.
    """
    is_fetched = fetch_run(args)
    try:
        return claim(args.folder, details, data, args.process_index, options=options)
    except OtherRunError as error:
        if not is_fetched:
            raise
        shutil.rmtree(args.folder)
        raise ProtocolError(
            f"{args.resume_from_checkpoint} holds a run with other settings ({error.difference}). Pass the settings of that "
            "run, or remove resume_from_checkpoint."
        ) from None


def fetch_run(args: BaseArguments) -> bool:
    """Download the run of `--resume_from_checkpoint owner/name@branch` into an empty output directory.

    A directory that is not empty is not changed, so that the same command continues the run later. Only files with names
    that recipes write are downloaded, and their number and size are logged before. Checkpoints hold pickles (of the
    optimizer and of random generators), which this option allows. They are read as tensors and numbers only, so they run no
    code.

    Returns:
        Whether this process downloaded it now.

    Raises:
        HubError: see `hf_tlm.hub.repo.file_sizes`, `hf_tlm.hub.fetch`; or a file is too large for a run.
        ProtocolError: the repository holds no run, or code that this package did not write.
    """
    output_dir = args.folder
    if args.resume_from_checkpoint is None:
        return False
    if args.process_index != 0 or (output_dir.is_dir() and any(output_dir.iterdir())):
        return False
    repo_id = find_repo(args.resume_from_checkpoint, "model")
    assert repo_id is not None  # The arguments' check.
    repo, sizes = file_sizes(repo_id, args.hub_token)
    if SETTINGS_FILE not in sizes:
        raise ProtocolError(
            f"{repo_id} has no run to continue: there is no {SETTINGS_FILE}. Runs with --hub_strategy checkpoint are on a "
            "separate branch, such as owner/name@main-checkpoints."
        )
    wanted = {name: size for name, size in sizes.items() if is_ours(name, (*PUBLISHED_FILES, *RESUME_FILES, *OWN_CODE))}
    check_sizes(wanted, str(repo_id))
    others = sorted(set(sizes) - set(wanted) - {".gitattributes"})
    more = f" and {len(others) - 10:,} more" if len(others) > 10 else ""
    skipped = f" Skipped, as no run writes files of these names: {', '.join(others[:10])}{more}." if others else ""
    total = f"{sum(wanted.values()):,} bytes"
    logger.warning("Downloading %s of %s, %s.%s", counted(len(wanted), "file"), repo_id, total, skipped)
    snapshot = fetch(repo, allow_patterns=sorted(wanted), trust_remote_code=True, allow_pickle=True, token=args.hub_token)
    with atomic_directory(output_dir) as work:
        for name, size in wanted.items():
            _copy(snapshot, name, size, work / name)
        mark_as_fetched(work, repo_id, repo)
    return True


def _copy(snapshot: Path, name: str, size: int, target: Path) -> None:
    """Copy a downloaded file to `target`, if it is in the cached repository, of the listed size, and no code of others."""
    source = (snapshot / name).resolve()
    if not source.is_relative_to(snapshot.parents[1].resolve()) or not source.is_file() or source.stat().st_size != size:
        raise ProtocolError(f"{snapshot / name} is not the file of {size:,} bytes that the Hub listed. Nothing was copied.")
    if name.endswith(".py") and source.read_bytes() != OWN_CODE[Path(name).name].read_bytes():
        raise ProtocolError(
            f"{name} of the run differs from the file of this hf_tlm: it was edited, or another version wrote it. Use that "
            "version, or start a new run."
        )
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(source, target)
