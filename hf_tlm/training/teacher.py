"""What a teacher has said of a task's texts and of passages, and the training texts that come of it."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from datasets import Dataset, Features, List, Value, concatenate_datasets

from hf_tlm.tasks.spec import NO_LABEL
from hf_tlm.utils.files import atomic_write
from hf_tlm.utils.json_files import Unfit, listed, maybe, real, record, words
from hf_tlm.utils.run_files import TEACHER_FILE

# A teacher that gains less than this share of what is to gain over the largest class has little to teach.
LEAST_GAIN = 0.1
# Of a report whom a card names; a stranger may have written it.
_WHO = record({"name": words(1000), "revision": maybe(words(200)), "license": maybe(words(200))})
_WHO_TAUGHT = {"model": words(10_000), "teachers": listed(_WHO, 1000)}
_COST = {"flops": real(0, 1e40), "seconds": real(0, 1e12)}
# How far the shares of classes may be from the task's: half the sum of the differences.
MOST_DISTANT = 0.4
# By how much a teacher's mean probability of its classes may be above the share that it has right of held-out texts.
MOST_OVERCONFIDENT = 0.1


@dataclass
class Teacher:
    """What a teacher says.

    train: float32 [N, C], probabilities of the training texts; 1 for the label where the teacher is mistaken, zeros where
        it has not answered. For regression values, float32 [N, 1], and NaN.
    rows: int64 [M], which passages of the subset it answers for, ascending; of marked sentences which of these.
    ends: int64 [M], after how many characters each of them is cut.
    passages: float32 [M, C], their probabilities.
    report: JSON values: who it is, how good it is, what it says.
    marked: M marked sentences of passages, where it answers for them instead (`teacher_marks`).
    """

    train: np.ndarray
    rows: np.ndarray
    ends: np.ndarray
    passages: np.ndarray
    report: dict[str, Any]
    marked: list[str] | None = None

    def write(self, folder: Path | None) -> dict[str, Any]:
        """What the record of a run says of it, `{"teacher": ...}`; in `folder`, if any, `teacher.json` with examples too."""
        if folder is not None:
            atomic_write(folder / TEACHER_FILE, json.dumps(self.report, indent=2, ensure_ascii=False) + "\n")
        return {"teacher": {name: value for name, value in self.report.items() if name != "examples"}}

    def texts(self, passages: Dataset) -> Dataset:
        """The column `text` of what it answers for: passages, of all those of the subset, or marked sentences of them."""
        if self.marked is not None:
            return Dataset.from_dict({"text": self.marked})
        return shortened(passages.select_columns(["text"]).select(self.rows), self.ends)

    def answered(self, texts: Dataset, passages: Dataset | None, share: float) -> Dataset:
        """The task's training texts and the passages as one data set, with a column `teacher_probs`.

        Passages have the label -100 (regression: NaN). The texts are there as often as it takes for passages to be at most
        `share` of all.

        Args:
            texts: N tokenised rows with `label`.
            passages: M tokenised rows, those of `texts`; None where there are none.
        """
        parts = [_with_answers(texts, self.train)]
        if passages is not None and len(passages):
            parts = parts * repeats(len(texts), len(passages), share)
            none = math.nan if self.train.shape[1] == 1 else NO_LABEL
            parts.append(_with_answers(passages.add_column("label", [none] * len(passages)), self.passages, texts.features))
        return concatenate_datasets(parts)


def shortened(passages: Dataset, ends: np.ndarray) -> Dataset:
    """The passages cut after so many characters each, `ends`, int64 [N]: texts alone; as they are where none is longer."""
    texts = passages["text"][:]
    if all(len(text) <= end for text, end in zip(texts, ends, strict=True)):
        return passages
    return Dataset.from_dict({"text": [text[:end] for text, end in zip(texts, ends, strict=True)]})


def repeats(texts: int, passages: int, share: float) -> int:
    """The least number of times that `texts` are there so that `passages` are at most `share` of all, in (0, 1)."""
    return max(1, math.ceil(passages * (1 - share) / (share * texts) - 1e-9))


def described(report: Mapping[str, Any]) -> str:
    """A teacher's report in a line."""
    found = report["model"]
    if earlier := report.get("earlier"):
        found += f" (itself taught by {', '.join(link['model'] for link in earlier)})"
    if (right := report.get("held_out_accuracy")) is not None and "largest_class" in report:
        found += (
            f", {100 * right:.1f}% right on {report.get('held_out', 'held-out training texts')} "
            f"(the largest class: {100 * report['largest_class']:.1f}%)"
        )
    if "passages" not in report:
        return found
    by_class = report.get("passages_by_class") or {}
    classes = ", ".join(f"{count:,} {name}" for name, count in by_class.items())
    if (only := _only_class(report)) is not None:
        classes = f"all {only}, none of which it tells apart"
    kind = "marked sentences of passages" if "marks" in report else "passages"
    return f"{found}; {report['passages']:,} {kind}" + (f": {classes}" if classes else "")


def teacher_cost(report: Mapping[str, Any], name: str) -> float:
    """What a teacher cost, to ask and, where its folder tells, to train: flops (of a linear one not counted) or seconds."""
    return float(sum(part.get(name) or 0.0 for part in (report, report.get("training") or {})))


def cost_line(report: Mapping[str, Any]) -> str:
    """What a teacher cost, asked and where its folder tells trained, for the end of a line."""
    flops, seconds = (teacher_cost(report, name) for name in ("flops", "seconds"))
    trained = " with its training" if report.get("training") else ""
    return f"; it cost {seconds:,.0f} s" + (f" and {flops:.3g} FLOPs" if flops else "") + trained


def lineage(report: Any) -> list[dict[str, Any]]:
    """Who taught, and before them who taught those, the nearest first.

    Args:
        report: that of a run's record, whoever has written it; what is none is left out.

    Returns:
        Of each its `model`, the `teachers` that it was (name, revision, license; none of a linear model), and what it
        cost with its own teachers: flops, seconds; without these where it tells none, or what is no cost.
    """
    found: list[dict[str, Any]] = []
    earlier = report.get("earlier") if isinstance(report, Mapping) else None
    for link in [report, *(earlier if isinstance(earlier, list) else [])]:
        try:
            one = record(_WHO_TAUGHT, ("teachers",))(link)
        except Unfit:
            continue
        with suppress(Unfit, TypeError, ValueError, AttributeError, OverflowError):  # Who it was stays without it.
            told = _COST if link.keys() & {*_COST, "training"} else {}
            one |= record(told)({name: teacher_cost(link, name) for name in told})
        found.append({**one, "teachers": list(one.get("teachers", ()))})
    return found


def doubts(report: Mapping[str, Any]) -> list[str]:
    """What speaks against a teacher, a sentence each."""
    found, held_out = [], report.get("held_out", "held-out training texts")
    right, largest = report.get("held_out_accuracy"), report.get("largest_class", 1.0)
    if right is not None and right - largest < LEAST_GAIN * (1 - largest):
        found.append(
            f"The teacher tells {100 * right:.1f}% of {held_out} right, not or "
            f"hardly more than the {100 * largest:.1f}% of their largest class: it has nothing to teach. Leave it out."
        )
    if right is not None and (certain := _mean_confidence(report)) > right + MOST_OVERCONFIDENT:
        found.append(
            f"The teacher is {100 * certain:.0f}% sure of its class of a passage on average and {100 * right:.0f}% right on "
            f"{held_out}: its answers are nearly labels, with its mistakes. "
            "--teacher_temperature above 1 softens them."
        )
    if marks := report.get("marks_without_passages"):
        found.append(
            f"Most texts of the task have the marks {' '.join(marks)} and no passage of the subset has: what depends on "
            "them the teacher cannot know of a passage."
            + (
                " --teacher_marks takes sentences of them and marks them likewise; --teacher_passages 0 leaves passages out."
                if "passages" in report
                else ""
            )
        )
    kind = "marked sentence" if "marks" in report else "passage of the subset"
    if (only := _only_class(report)) is not None:
        found.append(
            f"The teacher takes every {kind} for {only}: it tells none of them apart. --teacher_passages 0 leaves them out."
        )
    elif missing := [name for name, count in (report.get("passages_by_class") or {}).items() if count == 0]:
        found.append(f"The teacher takes no {kind} for {', '.join(missing)}.")
    elif (distance := _distance(report)) > MOST_DISTANT:
        found.append(
            f"The teacher takes passages of the subset for other classes than the task's texts are of (the shares differ "
            f"by {100 * distance:.0f}%): it may not know passages. Look at what it says of them in teacher.json."
        )
    return found


def _only_class(report: Mapping[str, Any]) -> str | None:
    """The class, of several, that a teacher takes all passages for; None where that is more than one, or none."""
    by_class = report.get("subset_by_class") or {}
    given = [name for name, count in by_class.items() if count]
    return given[0] if len(given) == 1 < len(by_class) else None


def _distance(report: Mapping[str, Any]) -> float:
    """Half the sum of the differences between a class's share of the subset and of the training texts."""
    subset, shares = report.get("subset_by_class") or {}, report.get("class_shares") or {}
    total = sum(subset.values())
    if not total or not shares:
        return 0.0
    return sum(abs(subset[name] / total - shares.get(name, 0.0)) for name in subset) / 2


def _mean_confidence(report: Mapping[str, Any]) -> float:
    """The mean probability of the likeliest class over all passages, to the middle of its tenth; 0 without passages."""
    counts = report.get("confidence_by_tenth") or []
    return sum((tenth + 0.5) / 10 * count for tenth, count in enumerate(counts)) / max(1, sum(counts))


def _with_answers(rows: Dataset, answers: np.ndarray, features: Features | None = None) -> Dataset:
    told = rows.add_column("teacher_probs", answers.tolist(), feature=List(Value("float32")))
    columns = {**(features or rows.features), "teacher_probs": List(Value("float32"))}
    return told.select_columns(list(columns)).cast(Features(columns))
