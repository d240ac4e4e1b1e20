"""Influence scores on disk: of the passages of a subset, and of the documents of a pipeline.

The scores of a subset are in shards. Any number of processes compute each shard once, and continue after a kill. The scores
of documents are written by `ScoreDocuments` of `hf_tlm.influence.datatrove_steps`.
"""

from __future__ import annotations

import io
import json
import re
import shutil
import time
from collections.abc import Iterable, Iterator
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import xxhash
from datasets import Dataset
from tqdm.auto import tqdm

from hf_tlm.errors import HfTlmError, InfluenceError
from hf_tlm.influence.rows import rows_digest
from hf_tlm.influence.task_gradients import GRADIENTS_FOLDER
from hf_tlm.retrieval.sharded.workspace import Workspace, read_table
from hf_tlm.utils.arrow_files import cache_folder
from hf_tlm.utils.files import atomic_write
from hf_tlm.utils.locks import Claim, awaited

if TYPE_CHECKING:
    from hf_tlm.influence.scorer import InfluenceScorer


SETTINGS_FILE = "settings.json"
# Files of a batch of documents, in its folder.
IDS_FILE, SCORES_FILE = "ids.arrow", "scores.npy"
# The folder that the tasks of an executor share, see `hf_tlm.influence.sharded`.
WORK_FOLDER = "sharded"
SHARD_ROWS = 1024
POLL_SECONDS = 0.1
# Increased when equal settings would give different scores.
_FORMAT = 1


class ScoreFiles:
    """The scores of N passages on T task batches, as `scores-<n>.npy` of 1,024 passages each in a folder.

    A shard is float32 [n, T] in Fortran order (a task batch's values are contiguous), NaN for passages without a score,
    followed by its checksum. It is written atomically and never changed. `scores[:, start:stop]` reads these columns from
    all shards.

    Args:
        folder: directory of the shards and their settings.
        shape: (N, T).
        claim: the folder's claim, if `open_scores` opened it; default: a new `Claim`.
    """

    def __init__(self, folder: Path, shape: tuple[int, int], claim: Claim | None = None):
        self.folder, self.shape = folder, shape
        self._sound: set[int] = set()  # Shards whose checksum was compared.
        self.claim = claim or Claim(folder)

    @property
    def num_shards(self) -> int:
        return -(-self.shape[0] // SHARD_ROWS)

    def rows(self, number: int) -> range:
        """Return the rows of a shard's passages."""
        return range(number * SHARD_ROWS, min((number + 1) * SHARD_ROWS, self.shape[0]))

    def find(self, number: int) -> np.ndarray | None:
        """Return a shard, memory-mapped; None if it is missing or damaged. Its checksum is compared only once."""
        path = self._path(number)
        try:
            shard = np.load(path, mmap_mode="r")
            if number not in self._sound and not _has_valid_checksum(shard, path.read_bytes()):
                return None
        except (OSError, ValueError, EOFError):
            return None
        self._sound.add(number)
        return shard if shard.shape == (len(self.rows(number)), self.shape[1]) else None

    def missing(self) -> list[int]:
        """Return the numbers of the shards that are missing or damaged."""
        return [number for number in range(self.num_shards) if self.find(number) is None]

    def write(self, number: int, scores: np.ndarray) -> None:
        """Write the scores of a shard.

        Raises:
            HfTlmError: the file cannot be written.
        """
        file = io.BytesIO()
        np.save(file, np.asfortranarray(scores, np.float32))
        self._sound.discard(number)
        atomic_write(self._path(number), file.getvalue() + _checksum(file.getvalue()))

    def __getitem__(self, key: tuple[slice, slice]) -> np.ndarray:
        """Return the columns `scores[:, start:stop]`, float32 [N, stop - start]."""
        every, columns = key
        block = np.empty((self.shape[0], len(range(*columns.indices(self.shape[1])))), np.float32, order="F")
        for number in range(self.num_shards):
            if (shard := self.find(number)) is None:
                raise InfluenceError(f"{self._path(number)} is missing or damaged. Run the same command again to create it.")
            rows = self.rows(number)
            block[rows.start : rows.stop] = shard[:, columns]
        return block[every]

    def _path(self, number: int) -> Path:
        return self.folder / f"scores-{number:05d}.npy"


def score(
    task_rows: Dataset,
    subset_rows: Dataset,
    scorer: InfluenceScorer,
    work_dir: str | Path | None = None,
    *,
    task_batch_size: int = 1,
    process_index: int = 0,
    num_processes: int = 1,
) -> ScoreFiles:
    """Return the influence of every passage on every task batch; compute the scores that are not on disk yet.

    All processes call this function, each with its own scorer: each computes its share and returns when all shares are
    complete. The scores do not depend on the number of processes, nor on where a run was killed and continued.

    Args:
        task_rows: tokenised validation examples, columns input_ids (token_type_ids), label; T is their number divided by
            `task_batch_size`, rounded up.
        subset_rows: N tokenised passages, columns input_ids (token_type_ids), id.
        work_dir: directory of the scores, visible to all processes; None: a directory in the cache of `datasets`, named by
            a digest of everything that the scores depend on. It takes 4 x N x T bytes, plus the task gradients until all
            scores are complete.

    Raises:
        InfluenceError: `work_dir` holds scores of other texts, models or settings; or see `InfluenceScorer.fit`.
        HfTlmError: a file cannot be written.
    """
    main = process_index == 0
    scores = open_scores(task_rows, subset_rows, scorer, work_dir, task_batch_size, main)
    # The share is fixed by number, because processes that list the missing shards at different times see different lists.
    missing = scores.missing()
    mine = [number for number in missing if number % num_processes == process_index]
    try:
        with scores.claim:
            if mine:
                processes = {"process_index": process_index, "num_processes": num_processes}
                scorer.fit(task_rows, task_batch_size, scores.folder / GRADIENTS_FOLDER, **processes)
            _score_shards(scores, subset_rows, scorer, missing, mine, main)
    except (FileNotFoundError, HfTlmError):
        # A concurrent selection, for example of another size, may have computed the same scores and removed the gradients.
        if scores.missing():
            raise
    if main:
        # Task gradients may be larger than the scores, and can be computed again.
        for name in (GRADIENTS_FOLDER, WORK_FOLDER):
            shutil.rmtree(scores.folder / name, ignore_errors=True)
    return scores


def open_scores(
    task_rows: Dataset,
    subset_rows: Dataset,
    scorer: InfluenceScorer,
    work_dir: str | Path | None,
    task_batch_size: int,
    main: bool = True,
) -> ScoreFiles:
    """Open the folder of the scores of this data and these settings, or begin it; missing shards remain to be written.

    Args:
        work_dir, task_batch_size: see `score`.
        main: whether this is the process that begins the folder; the other processes wait for it.

    Raises:
        InfluenceError: `work_dir` holds scores of other texts, models or settings.
    """
    settings = {
        "format": _FORMAT,
        "subset": rows_digest(subset_rows),
        "task": rows_digest(task_rows),
        "task_batch_size": task_batch_size,
        **scorer.settings,
        "scorer": scorer.fingerprint,
    }
    digest = xxhash.xxh3_64_hexdigest(json.dumps(settings, sort_keys=True).encode())
    folder = cache_folder() / f"influence-{digest}" if work_dir is None else Path(work_dir)
    claim = _claim(folder, settings, main)
    return ScoreFiles(folder, (len(subset_rows), -(-len(task_rows) // task_batch_size)), claim)


def batch_name(rank: int, number: int) -> str:
    """Return the folder name of a batch of documents; it holds IDS_FILE, and SCORES_FILE, float32 [n, T]."""
    return f"{rank:05d}/{number:05d}"


def end_name(rank: int) -> str:
    """Return the name of a task's end marker: its numbers of documents and batches; {} while the task is running."""
    return f"{rank:05d}/end.json"


class DocumentScores:
    """The scores of N documents on T task batches, ordered by pipeline task, then by the document's order in the task.

    `scores[:, start:stop]` reads these columns, float32 [N, stop - start], NaN for documents without a score, as
    `hf_tlm.influence.select_rows` expects.

    Args:
        location: `output` of `ScoreDocuments`.

    Attributes:
        shape: (N, T).
        num_tasks: number of pipeline tasks that wrote these scores.

    Raises:
        InfluenceError: there are no scores, or some tasks have not finished.
    """

    def __init__(self, location: str):
        self.workspace = Workspace(location)
        settings = self.workspace.read(SETTINGS_FILE)
        if settings is None:
            raise InfluenceError(f"{location} contains no scores of documents. Run a pipeline with ScoreDocuments.")
        ends = [self.workspace.read(end_name(rank)) for rank in range(settings["tasks"])]
        if missing := [str(rank) for rank, end in enumerate(ends) if not end]:
            raise InfluenceError(f"The tasks {', '.join(missing[:10])} of {len(ends)} are not finished. Run them.")
        self.num_tasks, self._ends = len(ends), [end for end in ends if end]
        self._batches = [name for rank in range(len(ends)) for name in self._batches_of(rank)]
        if not self._batches:
            raise InfluenceError(f"{location} contains no scores, as the pipeline has read no documents.")
        self.shape = (sum(end["documents"] for end in self._ends), self._scores(self._batches[0]).shape[1])

    @cached_property
    def ids(self) -> list[str]:
        """The ids of the N documents."""
        return [name for rank in range(self.num_tasks) for name in self.ids_of(rank)]

    def ids_of(self, rank: int) -> Iterator[str]:
        """Yield the ids of one task's documents, with at most one batch in memory."""
        for name in self._batches_of(rank):
            yield from read_table(self.workspace.reading(name) / IDS_FILE)["id"].to_pylist()

    def rows_of(self, rank: int) -> range:
        """Return the rows of one task's documents."""
        counts = [end["documents"] for end in self._ends]
        return range(sum(counts[:rank]), sum(counts[: rank + 1]))

    def __getitem__(self, key: tuple[slice, slice]) -> np.ndarray:
        """Return the columns `scores[:, start:stop]`, float32 [N, stop - start]."""
        rows, columns = key
        return np.concatenate([self._scores(name)[:, columns] for name in self._batches])[rows]

    def _batches_of(self, rank: int) -> list[str]:
        return [batch_name(rank, number) for number in range(self._ends[rank]["batches"])]

    def _scores(self, name: str) -> np.ndarray:
        return np.load(self.workspace.reading(name) / SCORES_FILE, mmap_mode="r")


def _checksum(content: bytes) -> bytes:
    return xxhash.xxh3_128_digest(content)


def _has_valid_checksum(shard: np.memmap, content: bytes) -> bool:
    """Return whether a file's checksum matches its shard; files of versions without checksums are accepted."""
    end = shard.offset + shard.nbytes
    return content[end:] in (b"", _checksum(content[:end]))


def _claim(folder: Path, settings: dict[str, Any], main: bool) -> Claim:
    """Claim a folder of scores with these settings.

    The main process writes the settings if the folder has none; the others wait for them.

    Raises:
        InfluenceError: the folder has other settings, its settings are damaged, or it holds scores without settings.
    """
    path, claim = folder / SETTINGS_FILE, Claim(folder, SETTINGS_FILE)
    while not path.is_file():
        if main:
            with awaited(folder):
                if not path.is_file():
                    _check_no_scores(folder)
                    atomic_write(path, json.dumps(settings, indent=2) + "\n")
                    claim.new = True
        else:
            time.sleep(POLL_SECONDS)
    try:
        recorded = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(recorded, dict):
            raise ValueError("it is not a JSON object")
    except ValueError as error:
        raise InfluenceError(f"{path} is damaged: {error}. Remove the folder, or choose another --work_dir.") from error
    if recorded != settings:
        differing = [name for name in sorted({*recorded, *settings}) if recorded.get(name) != settings.get(name)]
        differences = ", ".join(
            f"{name} ({_shorten(recorded.get(name))} in the folder, {_shorten(settings.get(name))} now)"
            for name in differing
        )
        raise InfluenceError(
            f"{folder} contains scores with other settings or data: {differences}. Choose another --work_dir for this "
            "selection, or remove the folder."
        )
    return claim


def _check_no_scores(folder: Path) -> None:
    others = sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []
    if any(re.fullmatch(r"scores-\d+\.npy", name) for name in others):
        raise InfluenceError(
            f"{folder} contains scores ({others[0]} ...), but no {SETTINGS_FILE} with their settings. Choose another "
            "--work_dir, or remove the folder."
        )


def _shorten(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 60 else f"{text[:60]}…"


def _score_shards(scores: ScoreFiles, rows: Dataset, scorer, missing: list[int], mine: list[int], main: bool) -> None:
    """Compute the shards that are `mine`, and wait for the other missing ones."""
    done = len(rows) - sum(len(scores.rows(number)) for number in missing)
    with tqdm(desc="Scoring", unit=" passages", total=len(rows), initial=done, disable=not main) as bar:
        for number in mine:
            if scores.find(number) is None:
                scores.write(number, scorer.score(rows.select(scores.rows(number))))
            missing = _advance(scores, missing, bar)
        while missing:
            time.sleep(POLL_SECONDS)
            missing = _advance(scores, missing, bar)


def _advance(scores: ScoreFiles, missing: Iterable[int], bar) -> list[int]:
    """Return the shards that are still missing, and advance the progress bar by the others."""
    still = [number for number in missing if scores.find(number) is None]
    bar.update(sum(len(scores.rows(number)) for number in set(missing) - set(still)))
    return still
