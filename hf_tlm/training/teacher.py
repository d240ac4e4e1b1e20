"""The answers of a teacher on a task's texts and on passages, the training data with them, and reports on the teacher."""

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

# A teacher must close at least this share of the gap between the largest class's accuracy and 1 to be useful.
LEAST_GAIN = 0.1
# A regression teacher's values must correlate at least this much with the labels.
LEAST_CORRELATION = 0.1
# Fields of a report that a card shows. They are checked, because a stranger may have written the report.
_SOURCE_RECORD = record({"name": words(1000), "revision": maybe(words(200)), "license": maybe(words(200))})
_TEACHER_RECORD = {"model": words(10_000), "teachers": listed(_SOURCE_RECORD, 1000)}
_COST = {"flops": real(0, 1e40), "seconds": real(0, 1e12)}
# Largest accepted distance between the class shares of the subset and of the task: half the sum of the differences.
MOST_DISTANT = 0.4
# Largest accepted difference between a teacher's mean confidence and its accuracy on held-out texts.
MOST_OVERCONFIDENT = 0.1


@dataclass
class Teacher:
    """The answers of a teacher.

    train: float32 [N, C], class probabilities of the training texts; 1 for the label if the teacher is wrong, zeros if it
        gave no answer. For regression: values, float32 [N, 1]; NaN is no answer.
    rows: int64 [M], indices of the passages of the subset that it answers for, ascending; for marked sentences, indices of
        these.
    ends: int64 [M], number of characters after which each passage is cut.
    passages: float32 [M, C], class probabilities of the passages.
    report: JSON values: which model it is, how good it is, and a summary of its answers.
    marked: M marked sentences of passages, if it answers for them instead of passages (`teacher_marks`).
    """

    train: np.ndarray
    rows: np.ndarray
    ends: np.ndarray
    passages: np.ndarray
    report: dict[str, Any]
    marked: list[str] | None = None

    def write(self, folder: Path | None) -> dict[str, Any]:
        """Return the report without examples, for the record of a run, and write it with examples to a folder.

        Args:
            folder: folder for `teacher.json`; None writes nothing.

        Returns:
            `{"teacher": report}`.
        """
        if folder is not None:
            atomic_write(folder / TEACHER_FILE, json.dumps(self.report, indent=2, ensure_ascii=False) + "\n")
        return {"teacher": {name: value for name, value in self.report.items() if name != "examples"}}

    def texts(self, passages: Dataset) -> Dataset:
        """Return the texts that the teacher answers for, column `text`: passages, or marked sentences.

        Args:
            passages: all passages of the subset.
        """
        if self.marked is not None:
            return Dataset.from_dict({"text": self.marked})
        return shortened(passages.select_columns(["text"]).select(self.rows), self.ends)

    def count_texts(self, own: int, share: float, *, with_passages: bool = True) -> int:
        """Return the number of rows of `answered` for `own` texts of the task."""
        num_passages = len(self.rows) if with_passages else 0
        return own * repeats(own, num_passages, share) + num_passages

    def answered(self, texts: Dataset, passages: Dataset | None, share: float) -> Dataset:
        """Concatenate the task's training texts and the passages, with the teacher's answers in a column `teacher_probs`.

        Passages have the label -100 (regression: NaN). The texts are repeated until passages are at most `share` of all
        rows.

        Args:
            texts: N tokenised rows with `label`.
            passages: M tokenised rows, of the result of the method `texts`; None without passages.
        """
        parts = [_add_teacher_column(texts, self.train)]
        if passages is not None and len(passages):
            parts = parts * repeats(len(texts), len(passages), share)
            none = math.nan if self.train.shape[1] == 1 else NO_LABEL
            parts.append(
                _add_teacher_column(passages.add_column("label", [none] * len(passages)), self.passages, texts.features)
            )
        return concatenate_datasets(parts)


def shortened(passages: Dataset, ends: np.ndarray) -> Dataset:
    """Cut each passage after a number of characters.

    Args:
        ends: int64 [N], number of characters of each passage to keep.

    Returns:
        The cut passages, column `text` alone; `passages` itself if none is longer.
    """
    texts = passages["text"][:]
    if all(len(text) <= end for text, end in zip(texts, ends, strict=True)):
        return passages
    return Dataset.from_dict({"text": [text[:end] for text, end in zip(texts, ends, strict=True)]})


def repeats(texts: int, passages: int, share: float) -> int:
    """Return how often `texts` rows must be repeated so that `passages` rows are at most `share`, in (0, 1), of all."""
    return max(1, math.ceil(passages * (1 - share) / (share * texts) - 1e-9))


def described(report: Mapping[str, Any]) -> str:
    """Return one line that summarises a teacher's report."""
    description = report["model"]
    if earlier := report.get("earlier"):
        description += f" (itself taught by {', '.join(link['model'] for link in earlier)})"
    if (accuracy := report.get("held_out_accuracy")) is not None and "largest_class" in report:
        description += (
            f", {100 * accuracy:.1f}% correct on {report.get('held_out', 'held-out training texts')} "
            f"(largest class: {100 * report['largest_class']:.1f}%)"
        )
    if (correlation := report.get("held_out_correlation")) is not None:
        description += f", correlation {correlation:.3f} with the labels of {report['held_out']}"
    if "passages" not in report:
        return description
    by_class = report.get("passages_by_class") or {}
    classes = ", ".join(f"{count:,} {name}" for name, count in by_class.items())
    if (only_class := _only_class(report)) is not None:
        classes = f"all {only_class}: the teacher does not distinguish them"
    kind = "marked sentences of passages" if "marks" in report else "passages"
    return f"{description}; {report['passages']:,} {kind}" + (f": {classes}" if classes else "")


def teacher_cost(report: Mapping[str, Any], name: str) -> float:
    """Return the cost of a teacher's answers and, if its report has it, of its training.

    Args:
        name: `flops` (not counted for a linear model) or `seconds`.
    """
    return float(sum(part.get(name) or 0.0 for part in (report, report.get("training") or {})))


def cost_line(report: Mapping[str, Any]) -> str:
    """Return the cost of a teacher's answers and, if known, of its training, as text to append to a line."""
    flops, seconds = (teacher_cost(report, name) for name in ("flops", "seconds"))
    trained = ", including its training" if report.get("training") else ""
    return f"; cost {seconds:,.0f} s" + (f" and {flops:.3g} FLOPs" if flops else "") + trained


def lineage(report: Any) -> list[dict[str, Any]]:
    """List the teachers of a run, the teachers of these, and so on, the nearest first.

    Args:
        report: the teacher's report in a run's record, which may come from a stranger; invalid reports are skipped.

    Returns:
        For each teacher its `model`, its `teachers` (name, revision and license of each model; empty for a linear one), and
        its cost, that of its own teachers included, as `flops` and `seconds`, if its report has a valid one.
    """
    teachers: list[dict[str, Any]] = []
    earlier = report.get("earlier") if isinstance(report, Mapping) else None
    for link in [report, *(earlier if isinstance(earlier, list) else [])]:
        try:
            entry = record(_TEACHER_RECORD, ("teachers",))(link)
        except Unfit:
            continue
        with suppress(Unfit, TypeError, ValueError, AttributeError, OverflowError):  # An invalid cost is left out.
            cost_fields = _COST if link.keys() & {*_COST, "training"} else {}
            entry |= record(cost_fields)({name: teacher_cost(link, name) for name in cost_fields})
        teachers.append({**entry, "teachers": list(entry.get("teachers", ()))})
    return teachers


def doubts(report: Mapping[str, Any]) -> list[str]:
    """List the reasons to doubt a teacher, one sentence each."""
    reasons, held_out = [], report.get("held_out", "held-out training texts")
    accuracy, largest = report.get("held_out_accuracy"), report.get("largest_class", 1.0)
    if accuracy is not None and accuracy - largest < LEAST_GAIN * (1 - largest):
        reasons.append(
            f"The teacher classifies {100 * accuracy:.1f}% of {held_out} correctly; always predicting their largest class "
            f"would be right on {100 * largest:.1f}%. It has nothing to teach. Choose another teacher, or none."
        )
    if (correlation := report.get("held_out_correlation")) is not None and correlation < LEAST_CORRELATION:
        reasons.append(
            f"The teacher's values for {held_out} barely correlate with the labels ({correlation:.2f}). It has "
            "nothing to teach. Choose another teacher, or none."
        )
    if accuracy is not None and (confidence := _mean_confidence(report)) > accuracy + MOST_OVERCONFIDENT:
        reasons.append(
            f"On average, the teacher is {100 * confidence:.0f}% certain of the class of a passage, but "
            f"{100 * accuracy:.0f}% right on {held_out}: its answers are nearly hard labels, with its mistakes. "
            "--teacher_temperature above 1 softens them."
        )
    if marks := report.get("marks_without_passages"):
        reasons.append(
            f"Most texts of the task have the marks {' '.join(marks)} and no passage of the subset has: the teacher cannot "
            "tell from a passage what depends on marks."
            + (
                " --teacher_marks marks sentences of passages in the same way; --teacher_passages 0 trains without passages."
                if "passages" in report
                else ""
            )
        )
    kind = "marked sentence" if "marks" in report else "passage of the subset"
    if (only_class := _only_class(report)) is not None:
        reasons.append(
            f"The teacher labels every {kind} as {only_class}: it does not distinguish them. --teacher_passages 0 trains "
            "without them."
        )
    elif missing := [name for name, count in (report.get("passages_by_class") or {}).items() if count == 0]:
        reasons.append(f"The teacher labels no {kind} as {', '.join(missing)}.")
    elif (distance := _class_share_distance(report)) > MOST_DISTANT:
        reasons.append(
            "The teacher's classes of passages of the subset are distributed differently from those of the task's texts "
            f"(the shares differ by {100 * distance:.0f}%): it may misjudge passages. See its answers in teacher.json."
        )
    return reasons


def _only_class(report: Mapping[str, Any]) -> str | None:
    """Return the single class that a teacher predicts for all passages; None if it predicts several, or none."""
    by_class = report.get("subset_by_class") or {}
    predicted = [name for name, count in by_class.items() if count]
    return predicted[0] if len(predicted) == 1 < len(by_class) else None


def _class_share_distance(report: Mapping[str, Any]) -> float:
    """Return half the sum of the absolute differences between the class shares of the subset and of the training texts."""
    subset, shares = report.get("subset_by_class") or {}, report.get("class_shares") or {}
    total = sum(subset.values())
    if not total or not shares:
        return 0.0
    return sum(abs(subset[name] / total - shares.get(name, 0.0)) for name in subset) / 2


def _mean_confidence(report: Mapping[str, Any]) -> float:
    """Return the mean confidence over all passages, by the midpoints of a histogram of ten bins; 0 without passages."""
    counts = report.get("confidence_by_tenth") or []
    return sum((tenth + 0.5) / 10 * count for tenth, count in enumerate(counts)) / max(1, sum(counts))


def _add_teacher_column(rows: Dataset, answers: np.ndarray, features: Features | None = None) -> Dataset:
    extended = rows.add_column("teacher_probs", answers.tolist(), feature=List(Value("float32")))
    columns = {**(features or rows.features), "teacher_probs": List(Value("float32"))}
    return extended.select_columns(list(columns)).cast(Features(columns))
