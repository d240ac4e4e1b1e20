"""What a teacher said of the subset: how good it is, what it takes passages for, examples of every class."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hf_tlm.analysis.errors import AnalysisError
from hf_tlm.analysis.report.blocks import Column, Section, Text, make_table
from hf_tlm.analysis.report.run_folder import RunFolder
from hf_tlm.training.teacher import described, doubts
from hf_tlm.utils.checked import listed, mapped, read_fields, real, record, truth, whole, words
from hf_tlm.utils.run_names import TEACHER_FILE

_COUNTS = mapped(whole(0, 2**40), 10_000)
_SHARE = real(0, 1)
_COST = {"seconds": real(0, 1e12), "flops": real(0, 1e30)}
_EXAMPLE = record({"text": words(1000), "probability": _SHARE, "taught": truth})
# A stranger may have written the file. What a line or a table says; the rest of a teacher is among the settings.
_REPORT = {
    **{"model": words(10_000), "held_out": words(100), "held_out_accuracy": _SHARE, "largest_class": _SHARE},
    **{"passages": whole(0, 2**40), "passages_by_class": _COUNTS, "subset_by_class": _COUNTS},
    **{"class_shares": mapped(_SHARE, 10_000), "marks_without_passages": listed(words(1000), 1000)},
    **{"confidence_by_tenth": listed(whole(0, 2**40), 10), "examples": mapped(listed(_EXAMPLE, 100), 10_000)},
    **_COST,
    "training": record(_COST),
}


def teacher(run: RunFolder) -> Section | None:
    """The section; None for a run without a teacher.

    Raises:
        AnalysisError: `teacher.json` is damaged.
    """
    path = run.home / TEACHER_FILE
    if not isinstance(run.record.get("teacher"), Mapping) or not path.is_file():
        return None
    report: dict[str, Any] = read_fields(path, _REPORT, AnalysisError, optional=[*_REPORT])
    blocks: list[Any] = [Text(described(report)), *map(Text, doubts(report))]
    if seconds := report.get("seconds"):
        flops = f" and {report['flops']:.3g} FLOPs (2 x tokens x parameters)" if report.get("flops") else ""
        trained = report.get("training")
        training = f", training it {trained['seconds']:,.0f} and {trained['flops']:.3g}" if trained else ""
        blocks.append(Text(f"Asking it took {seconds:,.0f} seconds{flops}{training}. The run's costs are without these."))
    if subset := report.get("subset_by_class"):
        total, taught = max(1, sum(subset.values())), report.get("passages_by_class") or {}
        shares = report.get("class_shares") or {}
        columns = (Column("class"), Column("of task", "share"), Column("of subset", "share"), Column("taught", "number"))
        by_class = [(name, shares.get(name), count / total, taught.get(name, 0)) for name, count in subset.items()]
        blocks.append(make_table("What it takes passages for", columns, by_class))
    if tenths := report.get("confidence_by_tenth"):
        sure = [(f"{tenth / 10:.1f} to {(tenth + 1) / 10:.1f}", count) for tenth, count in enumerate(tenths) if count]
        of = (Column("probability of the likeliest class"), Column("passages", "number"))
        blocks.append(make_table("How sure it is", of, sure))
    if examples := report.get("examples"):
        about = (Column("class"), Column("probability", "share"), Column("taught"), Column("passage", wide=True))
        rows = [
            (name, one["probability"], "yes" if one["taught"] else "no", one["text"])
            for name, shown in examples.items()
            for one in shown
        ]
        caption = "The surest passages of every class, and the least sure one"
        blocks.append(make_table(caption, about, rows, searchable=True))
    return Section("The teacher", "teacher", blocks)
