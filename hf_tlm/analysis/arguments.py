"""What every analysis takes: runs, models, subsets, a task, texts."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from hf_tlm.analysis.errors import AnalysisError
from hf_tlm.tasks.arguments import TaskArguments
from hf_tlm.utils.ranges import check_ranges

if TYPE_CHECKING:
    from hf_tlm.retrieval import Subset
    from hf_tlm.tasks import Task

WHAT = ("heads", "words", "embeddings", "curves", "cost", "subsets", "tables", "report")
NAMED = "`name=place` pairs, or places that are their own names"


@dataclass
class AnalyzeArguments:
    """What is analysed."""

    what: list[str] = field(metadata={"help": f"One or several of {', '.join(WHAT)}.", "choices": WHAT})
    run: list[str] | None = field(default=None, metadata={"help": f"Folders of runs: {NAMED}."})
    models: list[str] | None = field(
        default=None,
        metadata={"help": f"Encoders, by folder or Hub id (@revision if wanted): {NAMED}. Default: of the runs."},
    )
    subsets: list[str] | None = field(default=None, metadata={"help": f"Subsets, by folder or Hub id: {NAMED}."})
    texts: str | None = field(
        default=None, metadata={"help": "File of texts (parquet, jsonl, csv, txt) to run models on. Default: the task's."}
    )
    output_dir: str | None = field(
        default=None,
        metadata={"help": "Folder of figures, tables, reports. Default: analysis in the first run, or here."},
    )
    max_texts: int = field(default=2000, metadata={"help": "Texts that a model reads, drawn at random with the seed."})
    batch_size: int = field(default=32, metadata={"help": "Texts in a batch."})
    max_length: int = field(default=128, metadata={"help": "Longest text in tokens: longer ones are truncated."})
    seed: int = field(default=0, metadata={"help": "Of whatever is drawn."})
    trust_remote_code: bool = field(default=False, metadata={"help": "Run code that comes with a model."})

    def __post_init__(self):
        check_ranges(self, AnalysisError)

    @property
    def folder(self) -> Path:
        """Where figures go: output_dir, or `analysis` in the first run, or `analysis` here."""
        if self.output_dir is not None:
            return Path(self.output_dir)
        return (next(iter(self.runs.values())) if self.run else Path()) / "analysis"

    @cached_property
    def runs(self) -> dict[str, Path]:
        """By name, folders that exist.

        Raises:
            AnalysisError: one does not.
        """
        found = {name: Path(place) for name, place in named(self.run, "run").items()}
        if missing := [str(path) for path in found.values() if not path.is_dir()]:
            raise AnalysisError(f"--run takes folders that recipes have written; there is no {missing[0]}.")
        return found

    @cached_property
    def encoders(self) -> dict[str, str]:
        """By name, folders or Hub ids of models: those given, else the runs' own."""
        return named(self.models, "models") or {name: str(path) for name, path in self.runs.items()}

    @cached_property
    def opened_subsets(self) -> dict[str, Subset]:
        """By name.

        Raises:
            RetrievalError: one is not there or not a subset.
        """
        from hf_tlm.retrieval import Subset

        return {name: Subset.open(place) for name, place in named(self.subsets, "subsets").items()}


@dataclass
class AnalyzedTask(TaskArguments):
    """The labelled task, where one is needed."""

    task: str | None = field(default=None, metadata=dict(TaskArguments.__dataclass_fields__["task"].metadata))

    def load(self, what: str = "This analysis") -> Task:
        """Read the task.

        Raises:
            AnalysisError: none was given. TaskError: see `load_task`.
        """
        if self.task is None:
            raise AnalysisError(f"{what} needs --task: a registered name, a folder or a Hub id.")
        return super().load()


def named(values: Sequence[str] | None, option: str) -> dict[str, str]:
    """`name=place` pairs, or places whose last part is their name.

    Raises:
        AnalysisError: a name or a place is empty, or a name comes twice.
    """
    found: dict[str, str] = {}
    for value in values or ():
        name, equals, place = value.partition("=")
        if not equals or Path(value).exists():  # Folders of runs are called lr=1e-4 now and then.
            name, place = Path(value).name, value
        if not name or not place:
            raise AnalysisError(f"--{option} takes {NAMED}; received {value!r}.")
        if name in found:
            raise AnalysisError(f"--{option}: {name!r} comes twice. Give each its own name, as in first={place}.")
        found[name] = os.path.expanduser(place)  # Which shells do at the start of words alone.
    return found
