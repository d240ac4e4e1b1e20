"""The papers' points: what was trained with how many FLOPs, and its scores.

Scores and FLOPs of TLM's Table 2 and ISS's Table 3 are those of `hf_tlm.experiments.PUBLISHED`. Rows of ISS's
Table 3 that repeat TLM's are left out, as is its Table 4: the FLOPs there are without those of the checkpoints that were
trained further.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from hf_tlm.experiments.published import PUBLISHED
from hf_tlm.tasks import TASKS

ROBERTA_LARGE = "TLM Table 2: RoBERTa-Large"
# Points of a family are one line, with more FLOPs from left to right.
FAMILIES: dict[str, tuple[str, ...]] = {
    "BERT": ("TLM Table 2: BERT-Base", "TLM Table 2: BERT-Large"),
    "RoBERTa": ("TLM Table 2: RoBERTa-Base", ROBERTA_LARGE),
    "TLM": ("TLM Table 2: TLM (small-scale)", "TLM Table 2: TLM (medium-scale)", "TLM Table 2: TLM (large-scale)"),
    "TLM, 20% of the data": (
        "ISS Table 3: TLM (small-20%)",
        "ISS Table 3: TLM (medium-20%)",
        "ISS Table 3: TLM (large-20%)",
    ),
    "TLM large, as BERT-Base": ("ISS Table 3: TLM (large, BERT-Base)",),
    "ISS": ("ISS Table 3: ISS (small-scale)", "ISS Table 3: ISS (medium-scale)", "ISS Table 3: ISS (large-scale)"),
}
# Of "BERT, ELECTRA and ALE" (electra_ale), Table IV: GLUE's validation splits, the best of 10 runs, shares of 1 as printed;
# FLOPs are those of pretraining. The metrics are those of its table of tasks.
ALE_COLUMNS = "flops mrpc cola mnli sst2 qqp qnli rte stsb average"
ALE_ROWS = {
    "BERT_small": "2.3e17 0.838 0.317 0.785 0.908 0.877 0.862 0.610 0.862 0.757",
    "ELECTRA_small": "2.3e17 0.824 0.509 0.770 0.877 0.888 0.847 0.592 0.840 0.768",
    "ELECTRA_small, 2x time": "4.6e17 0.831 0.561 0.769 0.869 0.887 0.851 0.592 0.848 0.776",
    "ALE_small": "2.3e17 0.738 0.305 0.745 0.834 0.878 0.824 0.567 0.810 0.713",
}
ALE_METRICS = {"cola": "matthews", "stsb": "pearson"}  # All others are accuracies.


@dataclass(frozen=True)
class Point:
    """One published row.

    source: paper, table and row. split: whose scores. flops: of all training, as printed.
    scores: task -> percent. metrics: task -> the metric it is on.
    """

    family: str
    source: str
    split: str
    flops: float
    scores: Mapping[str, float]
    metrics: Mapping[str, str]

    def average(self, tasks: Mapping[str, str]) -> float | None:
        """In percent over tasks, given with their metrics; None where the row lacks one, or has it on another metric."""
        names = {task.removeprefix("glue_"): metric for task, metric in tasks.items()}
        if any(self.metrics.get(task) != metric for task, metric in names.items()):
            return None
        return fmean(self.scores[task] for task in names)


def published_points() -> Sequence[Point]:
    """All points, families together, in the order of their FLOPs."""
    points = []
    for family, rows in FAMILIES.items():
        for key in rows:
            row = PUBLISHED[key]
            assert row.flops is not None  # else it has no place in a family
            scores = {task: of[0] for task in row.cells if task != "average" and (of := row.score(task))}
            metrics = {task: TASKS[task].metric for task in scores}
            points.append(Point(family, key, row.measure, row.flops, scores, metrics))
    names = ALE_COLUMNS.split()
    for model, text in ALE_ROWS.items():
        cells = dict(zip(names, map(float, text.split()), strict=True))
        flops = cells.pop("flops")
        scores = {task: 100 * score for task, score in cells.items() if task != "average"}
        metrics = {task: ALE_METRICS.get(task, "accuracy") for task in scores}
        family = model.partition(",")[0].replace("_", " ")
        points.append(Point(family, f"BERT, ELECTRA and ALE Table IV: {model}", "validation", flops, scores, metrics))
    return points
