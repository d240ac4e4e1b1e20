"""Influence as pipeline steps of datatrove: for the shards of a subset, and for documents in a user's own pipeline.

The tasks of an executor score a subset in a shared workspace, see `hf_tlm.influence.sharded`:

    scorer/              models, tokenizer, settings
    task/                rows.arrow: tokenised validation examples
    task-gradients/      gradients of the validation examples
    passages/<shard>/    rows.arrow: 1,024 tokenised passages
    scores/<shard>/      their scores
    logs/<stage>/        datatrove's logs and completion markers
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch
import xxhash
from datasets import Dataset
from datatrove.data import Document
from datatrove.pipeline.base import PipelineStep

from hf_tlm.errors import InfluenceError
from hf_tlm.influence.score_files import (
    IDS_FILE,
    SCORES_FILE,
    SETTINGS_FILE,
    SHARD_ROWS,
    DocumentScores,
    ScoreFiles,
    batch_name,
    end_name,
)
from hf_tlm.influence.scorer import InfluenceScorer, describe_scorer, load_scorer
from hf_tlm.influence.selection import Selection
from hf_tlm.influence.task_gradients import GRADIENTS_FOLDER
from hf_tlm.retrieval.sharded.steps import Step
from hf_tlm.retrieval.sharded.workspace import Workspace, read_table, shard_name, write_table

SCORER_FOLDER, TASK_FOLDER = "scorer", "task"
ROWS_FILE = "rows.arrow"


@dataclass(frozen=True)
class Worker:
    """Settings with which a task loads the workspace's scorer.

    device: None is the machine's accelerator (with several, chosen by rank), or the CPU without one. threads: None keeps
    torch's default.
    """

    device: str | None = None
    threads: int | None = None

    def scorer(self, workspace: Workspace, rank: int) -> InfluenceScorer:
        if self.threads is not None:
            torch.set_num_threads(self.threads)
        return load_scorer(workspace.reading(SCORER_FOLDER), self.device or machine_device(rank))


@dataclass(eq=False, repr=False)
class FitTask(Step):
    """The step that computes the task gradients, in one task."""

    name = "gradients"

    worker: Worker
    task_batch_size: int

    def output(self, rank: int) -> str:
        return GRADIENTS_FOLDER

    def work(self, folder: Path, rank: int, world_size: int) -> None:
        rows, scorer = read_rows(self.workspace.reading(TASK_FOLDER)), self.worker.scorer(self.workspace, rank)
        if not self.workspace.local:
            scorer.fit(rows, self.task_batch_size, folder)
            return
        # A killed task continues in this folder.
        partial_folder = Path(self.workspace.path(f"{GRADIENTS_FOLDER}-in-work"))
        scorer.fit(rows, self.task_batch_size, partial_folder)
        for file in partial_folder.iterdir():
            os.replace(file, folder / file.name)
        partial_folder.rmdir()


class ScoreShards(PipelineStep):
    """The step that scores shards of passages: task r of R scores those whose number modulo R is r."""

    type, name = "hf_tlm", "scores"

    def __init__(self, workspace: Workspace, worker: Worker, shards: list[int], tasks: int):
        super().__init__()
        self.workspace, self.worker = workspace, worker
        self.shares = [[number for number in shards if number % tasks == rank] for rank in range(tasks)]

    def unfinished(self, rank: int) -> list[int]:
        return [number for number in self.shares[rank] if not self.workspace.has(shard_name("scores", number))]

    def done(self, rank: int) -> bool:
        return not self.unfinished(rank)

    def run(self, data=None, rank: int = 0, world_size: int = 1) -> None:
        with self.track_time(unit="task"):
            scorer = None
            for number in self.unfinished(rank):
                if scorer is None:
                    scorer = self.worker.scorer(self.workspace, rank)
                    scorer.load(self.workspace.reading(GRADIENTS_FOLDER))
                rows = read_rows(self.workspace.reading(shard_name("passages", number)))
                with self.workspace.writing(shard_name("scores", number)) as folder:
                    ScoreFiles(folder, (0, scorer.num_task_batches)).write(number, scorer.score(rows))


class ScoreDocuments(PipelineStep):
    """A step that scores the documents of a pipeline and adds `metadata["influence"]`: the mean over task batches.

        scorer.fit(tokenize(task.validation, tokenizer, 128), task_batch_size=4)
        save_scorer(scorer, "scorer")
        pipeline = [ParquetReader("corpus"), ScoreDocuments("scorer", "scores"), ParquetWriter("scored")]
        LocalPipelineExecutor(pipeline, tasks=100).run()

        scores = DocumentScores("scores")                                # of all tasks, in the order of their ranks
        chosen = select_rows(scores, num_passages=10_000)                # as from a subset of the same passages
        pipeline = [ParquetReader("corpus"), KeepDocuments("scores", chosen), ParquetWriter("kept")]
        LocalPipelineExecutor(pipeline, tasks=100).run()

    Ids must be unique, because masks depend on them. A document without maskable tokens gets None. At most 1,024
    documents are in memory at a time; each such batch is written atomically, and a batch that a killed task has written is
    not scored again if its documents are unchanged.

    Args:
        scorer: folder that `save_scorer` wrote with task gradients; a path that all machines see, or a URL of fsspec.
        output: folder of ids and scores; such a path or URL too.
        max_length: tokens after which a text is truncated.
        device: None is the machine's accelerator (with several, chosen by rank), or the CPU without one.
    """

    type, name = "hf_tlm", "influence"

    def __init__(self, scorer: str, output: str, *, max_length: int = 128, device: str | None = None):
        super().__init__()
        self.scorer, self.output, self.max_length, self.device = scorer, Workspace(output), max_length, device

    def run(self, data: Iterable[Document], rank: int = 0, world_size: int = 1) -> Iterator[Document]:
        """Score documents, and pass them on with their mean score in `metadata["influence"]`.

        Raises:
            InfluenceError: the scorer has no task gradients, or the output was written with another scorer, length or number
                of tasks.
        """
        scorer, documents = load_scorer(self._claim(world_size), self.device or machine_device(rank)), iter(data)
        scorer.max_length(self.max_length)
        # Reset the end marker of an earlier run: it would count other documents if this run were killed.
        self.output.write(end_name(rank), {})
        count = batches = 0
        while batch := list(itertools.islice(documents, SHARD_ROWS)):
            with self.track_time(unit="batch"):
                scores = self._scores(scorer, batch, batch_name(rank, batches))
            means = (scores.astype(np.float64).sum(axis=1) / scores.shape[1]).astype(np.float32)
            for document, mean in zip(batch, means, strict=True):
                document.metadata["influence"] = None if np.isnan(mean) else float(mean)
                self.stat_update("scored" if not np.isnan(mean) else "without_score")
                yield document
            count, batches = count + len(batch), batches + 1
        self.output.write(end_name(rank), {"documents": count, "batches": batches})

    def _claim(self, world_size: int) -> Path:
        """Return the scorer's folder, after checking that the output belongs to this scorer and these settings."""
        parent, _, name = self.scorer.rstrip("/").rpartition("/")
        folder = Workspace(parent).reading(name) if "://" in self.scorer else Path(self.scorer)
        details = describe_scorer(folder)
        if details["task"] is None:
            raise InfluenceError(f"The scorer in {self.scorer} has no task gradients. Save it after fit.")
        settings = {name: details[name] for name in ("fingerprint", "task")}
        settings |= {"max_length": self.max_length, "tasks": world_size, "rows": SHARD_ROWS}
        recorded = self.output.read(SETTINGS_FILE)
        if recorded is None:
            self.output.write(SETTINGS_FILE, settings)
        elif recorded != settings:
            differ = ", ".join(name for name in settings if recorded.get(name) != settings[name])
            raise InfluenceError(f"{self.output.location} contains scores with different {differ}. Choose another output.")
        return folder

    def _scores(self, scorer: InfluenceScorer, batch: list[Document], name: str) -> np.ndarray:
        """Return the scores of a batch, float32 [n, T]; read from the output if it holds them already."""
        ids, texts = [document.id for document in batch], [document.text for document in batch]
        digests = [xxhash.xxh3_64_intdigest(text.encode("utf-8", "surrogatepass")) for text in texts]
        table = pa.table({"id": pa.array(ids, pa.large_string()), "digest": pa.array(digests, pa.uint64())})
        if self.output.has(name):
            folder = self.output.reading(name)
            if read_table(folder / IDS_FILE).equals(table):
                return np.load(folder / SCORES_FILE)
        tokens = scorer.tokenizer(texts, truncation=True, max_length=self.max_length)
        scores = scorer.score(Dataset.from_dict({"id": ids, "input_ids": tokens["input_ids"]})).astype(np.float32)
        with self.output.writing(name) as folder:
            write_table(folder / IDS_FILE, table)
            np.save(folder / SCORES_FILE, np.asfortranarray(scores))
        return scores


class KeepDocuments(PipelineStep):
    """A step that keeps the selected documents, in a second run of the pipeline that scored them.

    The second run needs the same number of tasks. Documents get `metadata["influence"]` and `metadata["influence_rank"]`.
    See `ScoreDocuments`, which scored them, for an example.

    Args:
        scores: `output` of `ScoreDocuments`.
        selection: what `select_rows` returned for these scores.
    """

    type, name = "hf_tlm", "most influential"

    def __init__(self, scores: str, selection: Selection):
        super().__init__()
        self.scores, self.selection = scores, selection

    def run(self, data: Iterable[Document], rank: int = 0, world_size: int = 1) -> Iterator[Document]:
        """Pass on the selected documents, with their influence and its rank in their metadata.

        Raises:
            InfluenceError: the scores do not exist, or the documents or tasks differ from those that were scored.
        """
        scores = DocumentScores(self.scores)
        message = f"{self.scores} has scores of other documents. Run the scored pipeline with the same number of tasks."
        if world_size != scores.num_tasks:
            raise InfluenceError(f"{message} It had {scores.num_tasks}; received {world_size}.")
        rows, documents = scores.rows_of(rank), iter(data)
        positions = {int(row): position for position, row in enumerate(self.selection.rows) if rows.start <= row < rows.stop}
        expected = zip(rows, scores.ids_of(rank), strict=True)
        pairs: Iterator[Any] = itertools.zip_longest(documents, expected, fillvalue=(None, None))
        for document, (row, name) in pairs:
            document_id = None if document == (None, None) else document.id
            if document_id != name:
                raise InfluenceError(f"{message} Task {rank} reads {document_id!r} instead of {name!r}.")
            if (position := positions.get(row)) is not None:
                document.metadata["influence"] = float(self.selection.influence[position])
                document.metadata["influence_rank"] = int(self.selection.rank[position])
                self.stat_update("kept")
                yield document


def machine_device(rank: int) -> torch.device:
    """Return this machine's accelerator (with several, chosen by rank), or the CPU without one."""
    if not torch.accelerator.is_available():
        return torch.device("cpu")
    accelerator = torch.accelerator.current_accelerator()
    assert accelerator is not None
    return torch.device(accelerator.type, rank % torch.accelerator.device_count())


def write_rows(folder: Path, rows: Dataset) -> None:
    table = rows.with_format("arrow")[:]
    with pa.OSFile(str(folder / ROWS_FILE), "wb") as sink, pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)


def read_rows(folder: Path) -> Dataset:
    """Read the rows that `write_rows` wrote, memory-mapped."""
    return Dataset.from_file(str(folder / ROWS_FILE))
