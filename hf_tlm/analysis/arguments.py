"""Options of the analyses, shared and per analysis, the function that runs one, and its `Findings`."""

from __future__ import annotations

import importlib
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from hf_tlm.errors import AnalysisError
from hf_tlm.tasks.arguments import TaskArguments
from hf_tlm.utils.files import check_writable
from hf_tlm.utils.options import check_ranges, option
from hf_tlm.utils.shown import suggested_path

if TYPE_CHECKING:
    from hf_tlm.retrieval import Subset
    from hf_tlm.tasks import Task

WHAT = ("heads", "words", "embeddings", "curves", "cost", "subsets", "tables", "report")
# Axes of curves -> their labels in figures. Values are totals since the beginning of the first stage.
AXES = {
    "steps": "steps",
    "tokens": "tokens, padding included",
    "real_tokens": "tokens",
    "flops": "FLOPs",
    "seconds": "seconds of training",
}
SPREADS = ("band", "lines")
POOLINGS = ("cls", "mean")
SPLITS = ("train", "validation", "test")
SCORED_SPLITS = ("validation", "test")
NAMED = "`name=place` pairs, or places that are their own names"


class _CheckedArguments:
    def __post_init__(self):
        check_ranges(self, AnalysisError)


@dataclass
class AnalyzeArguments(_CheckedArguments):
    """What to analyze, and the settings that all analyses share."""

    what: list[str] = option(
        factory=lambda: ["report"], help=f"Analyses to run: one or several of {', '.join(WHAT)}.", choices=WHAT
    )
    run: list[str] | None = option(None, f"Folders of runs: {NAMED}.")
    models: list[str] | None = option(
        None, f"Encoders, by folder or Hub id (@revision if wanted): {NAMED}. Default: those of --run."
    )
    subsets: list[str] | None = option(None, f"Subsets, by folder or Hub id: {NAMED}.")
    texts: str | None = option(None, "File of texts (parquet, jsonl, csv, txt) to run models on. Default: the task's.")
    output_dir: str | None = option(
        None,
        "Folder for figures, tables and reports. Default: analysis in the first run, or here; the report of a comparison "
        "has a folder of its own there.",
    )
    max_texts: int = option(2000, "Most texts that a model reads, drawn at random with the seed.")
    batch_size: int = option(32, "Texts in a batch.")
    max_length: int = option(128, "Most tokens of a text: longer ones are truncated.")
    seed: int = option(0, "Random seed of everything that is drawn.")
    trust_remote_code: bool = option(False, "Run code that comes with a model.")

    @property
    def folder(self) -> Path:
        """Output folder: output_dir, else `analysis` in the first run, else `analysis` in the working directory."""
        if self.output_dir is not None:
            return Path(self.output_dir)
        return (next(iter(self.runs.values())) if self.run else Path()) / "analysis"

    @cached_property
    def runs(self) -> dict[str, Path]:
        """Name -> folder of the run, checked to exist.

        Raises:
            AnalysisError: a folder does not exist.
        """
        folders = {name: Path(place) for name, place in named(self.run, "run").items()}
        if missing := [str(path) for path in folders.values() if not path.is_dir()]:
            hint = suggested_path(missing[0])
            raise AnalysisError(f"--run: expected folders of runs; there is no folder {missing[0]}.{hint}")
        return folders

    @cached_property
    def encoders(self) -> dict[str, str]:
        """Name -> folder or Hub id of the model: those given, else the runs' own."""
        return named(self.models, "models") or {name: str(path) for name, path in self.runs.items()}

    @cached_property
    def opened_subsets(self) -> dict[str, Subset]:
        """Name -> opened subset.

        Raises:
            RetrievalError: a subset does not exist, or the folder is not a subset.
        """
        from hf_tlm.retrieval import Subset

        return {name: Subset.open(place) for name, place in named(self.subsets, "subsets").items()}


@dataclass
class AnalyzedTask(TaskArguments):
    """The labelled task, where one is needed."""

    task: str | None = field(  # type: ignore[assignment]  # Not every analysis needs one.
        default=None, metadata=dict(TaskArguments.__dataclass_fields__["task"].metadata)
    )

    def load(self, user: str = "This analysis", *kinds: str) -> Task:
        """Read the task.

        Raises:
            AnalysisError: no task was given.
            TaskError: see `load_task`.
        """
        if self.task is None:
            raise AnalysisError(f"{user} needs --task: a registered name, a folder or a Hub id.")
        return super().load(user, *kinds)


@dataclass
class HeadsArguments(_CheckedArguments):
    """Attention heads (--what heads)."""

    heads_text: str | None = option(None, "Text whose attention maps are drawn. Default: the first that is short enough.")
    heads_tokens: int = option(24, "Most tokens of that text: longer ones are truncated.")

    def __post_init__(self):
        super().__post_init__()
        if self.heads_text is not None and not self.heads_text.strip():
            raise AnalysisError("--heads_text is blank. Pass a text, or remove --heads_text.")


@dataclass
class WordsArguments(_CheckedArguments):
    """Task-influential words (--what words)."""

    top_words: int = option(5, "Number of words per label.")
    min_count: int = option(10, "Leave out words with fewer occurrences in the training texts.")


@dataclass
class EmbeddingsArguments(_CheckedArguments):
    """Embeddings (--what embeddings)."""

    pooling: str = option(
        "cls", "Vector of a text: that of [CLS], as in the papers, or the mean over its tokens.", choices=POOLINGS
    )
    layer: int = option(-1, "Layer that vectors are from: -1 is the last, 0 the embedding layer.")
    embedding_split: str | None = option(
        None, "Split of the task (default: test, or validation without one).", choices=SPLITS
    )
    similar_from: float | None = option(
        None,
        "Least score of a similar pair of texts, for tasks with scores. Default: four fifths of the largest, 4 of "
        "STS-B's 5; COCO-LM uses 5.",
    )
    similar_label: str | None = option(
        None, "Class of similar pairs, for tasks of text pairs such as MRPC. Default: texts of one class are similar."
    )
    max_pairs: int = option(10_000, "Most pairs that are drawn: random ones, of --texts if given, and those of one class.")
    perplexity: float = option(30.0, "Perplexity of t-SNE; at most a third of the number of texts.")


@dataclass
class CurvesArguments(_CheckedArguments):
    """Training curves (--what curves)."""

    x: str = option("steps", f"Axis to draw curves against: one of {', '.join(AXES)}.", choices=tuple(AXES))
    quantities: list[str] | None = option(
        None, "Quantities to draw: names as logged, with or without `corpus/` and `task/`, or patterns such as *_loss."
    )
    smoothing: int = option(1, "Points of a centred running mean, an odd number; 1 for none.")
    spread: str = option(
        "band",
        "For several seeds: a band of the standard deviation around the mean, or a line for each seed.",
        choices=SPREADS,
    )

    def __post_init__(self):
        super().__post_init__()
        if self.smoothing % 2 == 0:
            raise AnalysisError(f"--smoothing must be an odd number of points, 1 for none; received {self.smoothing}.")


@dataclass
class CostArguments(_CheckedArguments):
    """Average score against training FLOPs (--what cost)."""

    cost_split: str = option("test", f"Split whose scores are used: {' or '.join(SCORED_SPLITS)}.", choices=SCORED_SPLITS)
    cost_tasks: list[str] | None = option(None, "Tasks to average over. Default: those that all compared runs have.")
    pretraining_flops: list[str] | None = option(
        None,
        "`checkpoint=FLOPs` pairs for checkpoints that runs started from, by the last part of their names. Needed "
        "only if their own results are not found.",
    )
    published: bool = option(True, "Draw the papers' published points too, hollow.")


@dataclass
class SubsetsArguments(_CheckedArguments):
    """Views of subsets: case study, size against K, sources, rank against influence, overlap (--what subsets)."""

    case_studies: int = option(10, "Number of task texts in the case study; 0 leaves it out. Needs --task.")
    case_passages: int = option(2, "Most passages shown for a task text.")
    top_sources: int = option(10, "Number of sources shown; all others are grouped into one.")
    rank_bins: int = option(10, "Number of groups of BM25 ranks that influence is averaged over.")


@dataclass
class TablesArguments(_CheckedArguments):
    """Sensitivity tables (--what tables)."""

    table_rows: list[str] | None = option(
        None, "Settings whose values are rows: rho1, rho2, top_k, fraction, subset, ... Default: those that differ."
    )
    table_columns: list[str] | None = option(None, "Settings whose values are columns. Default: task, if there are several.")
    table_split: str = option(
        "validation",
        f"Split of the scores: {' or '.join(SCORED_SPLITS)}. The papers' are on validation.",
        choices=SCORED_SPLITS,
    )


@dataclass
class ReportPageArguments(_CheckedArguments):
    """One page for any browser about a run, alone or beside a second (--what report)."""

    report_rows: int = option(300, "Most rows in a table of texts.")
    report_characters: int = option(500, "Characters after which a text is truncated.")
    rare_below: int = option(
        5, "A word is rare if fewer training texts than this have it; scores are grouped by rare words."
    )


@dataclass
class ReportArguments:
    """The report at the end."""

    report: bool = option(
        False,
        "Write analysis/report.html into output_dir: one page for any browser, with scores, cost, errors and "
        "curves. hf-tlm analyze --what report writes it later, too.",
    )

    def write(self, output_dir: str | os.PathLike, task: Task | None = None, subset: Subset | None = None) -> Path | None:
        """Write the report page of the finished run in `output_dir`; return None if it was not asked for.

        Args:
            task, subset: those of the run.

        Raises:
            AnalysisError: see `hf_tlm.analysis.write_report`.
        """
        if not self.report:
            return None
        subsets = None if subset is None else {"the run's subset": subset}
        return _module("report").write_report(output_dir, task=task, subsets=subsets)


# Analysis -> the class of its own options.
ARGUMENTS = {
    "heads": HeadsArguments,
    "words": WordsArguments,
    "embeddings": EmbeddingsArguments,
    "curves": CurvesArguments,
    "cost": CostArguments,
    "subsets": SubsetsArguments,
    "tables": TablesArguments,
    "report": ReportPageArguments,
}


@dataclass(frozen=True)
class Findings:
    """The result of an analysis: its text, a few sentences or tables in Markdown, and the files that were written."""

    title: str
    text: str
    files: Sequence[Path] = ()

    def to_text(self) -> str:
        listed = "\n".join(f"  {path}" for path in self.files)
        return f"## {self.title}\n\n{self.text.strip()}\n" + (f"\nSaved:\n{listed}\n" if listed else "")


def analyze(what: str, args: AnalyzeArguments, task: AnalyzedTask, options: Any) -> Findings:
    """Run one analysis: call `analyze` of its module.

    Args:
        what: name of the analysis, one of `WHAT`.
        options: an instance of its class in `ARGUMENTS`.

    Raises:
        ArgumentsError: the output folder is not writable.
        AnalysisError: see the module's `analyze`.
    """
    check_writable(args.folder)
    return _module(what).analyze(args, task, options)


def check_positive(**values: int) -> None:
    """Check that all values are at least 1, or raise an AnalysisError."""
    for name, value in values.items():
        if value < 1:
            raise AnalysisError(f"{name} must be at least 1; received {value}.")


def named(values: Sequence[str] | None, option: str) -> dict[str, str]:
    """Parse `name=place` pairs, or places that are named after their last part, into name -> place.

    Raises:
        AnalysisError: a name or a place is empty, or a name occurs twice.
    """
    places: dict[str, str] = {}
    for value in values or ():
        name, equals, place = value.partition("=")
        if not equals or Path(value).exists():  # Folders of runs may have names such as lr=1e-4.
            name, place = Path(value).name, value
        if not name or not place:
            raise AnalysisError(f"--{option}: expected {NAMED}; received {value!r}.")
        if name in places:
            raise AnalysisError(f"--{option}: the name {name!r} occurs twice. Use different names, such as first={place}.")
        places[name] = os.path.expanduser(place)  # Shells expand ~ only at the start of a word.
    return places


def _module(what: str) -> ModuleType:
    """Import the module of an analysis, late, as it imports this one."""
    return importlib.import_module(f"hf_tlm.analysis.{'report.page' if what == 'report' else what}")
