"""What `ScoreDocuments` has written, as the scores of one list of passages."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property

import numpy as np

from hf_tlm.errors import InfluenceError
from hf_tlm.retrieval.sharded.workspace import Workspace, read_table

SETTINGS_FILE, IDS_FILE, SCORES_FILE = "settings.json", "ids.arrow", "scores.npy"


def batch_name(rank: int, number: int) -> str:
    """The folder of a batch of documents: IDS_FILE, and SCORES_FILE, float32 [n, T]."""
    return f"{rank:05d}/{number:05d}"


def end_name(rank: int) -> str:
    """Written when a task has come to its end: how many documents and batches it has; {} while it is at work."""
    return f"{rank:05d}/end.json"


class DocumentScores:
    """The scores of N documents on T task batches, one task's after another's, each in the order of its pipeline.

    `scores[:, start:stop]` reads some columns, float32 [N, stop - start], NaN for documents without a score: what
    `hf_tlm.influence.select_rows` takes.

    Args:
        location: `output` of `ScoreDocuments`.

    Attributes:
        shape: (N, T).
        num_tasks: tasks whose scores these are.

    Raises:
        InfluenceError: there are no scores, or not of all tasks.
    """

    def __init__(self, location: str):
        self.workspace = Workspace(location)
        settings = self.workspace.read(SETTINGS_FILE)
        if settings is None:
            raise InfluenceError(f"{location} holds no scores of documents. Run a pipeline with ScoreDocuments.")
        ends = [self.workspace.read(end_name(rank)) for rank in range(settings["tasks"])]
        if missing := [str(rank) for rank, end in enumerate(ends) if not end]:
            raise InfluenceError(f"The tasks {', '.join(missing[:10])} of {len(ends)} have not come to their end. Run them.")
        self.num_tasks, self._ends = len(ends), [end for end in ends if end]
        self._batches = [name for rank in range(len(ends)) for name in self._batches_of(rank)]
        if not self._batches:
            raise InfluenceError(f"{location} holds the scores of no document: the pipeline has read none.")
        self.shape = (sum(end["documents"] for end in self._ends), self._scores(self._batches[0]).shape[1])

    @cached_property
    def ids(self) -> list[str]:
        """Of the documents, N."""
        return [name for rank in range(self.num_tasks) for name in self.ids_of(rank)]

    def ids_of(self, rank: int) -> Iterator[str]:
        """Of the documents of one task, not more than a batch of them in memory."""
        for name in self._batches_of(rank):
            yield from read_table(self.workspace.reading(name) / IDS_FILE)["id"].to_pylist()

    def rows_of(self, rank: int) -> range:
        """The rows of one task's documents."""
        counts = [end["documents"] for end in self._ends]
        return range(sum(counts[:rank]), sum(counts[: rank + 1]))

    def __getitem__(self, key: tuple[slice, slice]) -> np.ndarray:
        """float32 [N, stop - start]: `scores[:, start:stop]`."""
        rows, columns = key
        return np.concatenate([self._scores(name)[:, columns] for name in self._batches])[rows]

    def _batches_of(self, rank: int) -> list[str]:
        return [batch_name(rank, number) for number in range(self._ends[rank]["batches"])]

    def _scores(self, name: str) -> np.ndarray:
        return np.load(self.workspace.reading(name) / SCORES_FILE, mmap_mode="r")
