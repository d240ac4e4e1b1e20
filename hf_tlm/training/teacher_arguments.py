"""The options of a teacher, shared by all runs that can learn from one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from hf_tlm.errors import ArgumentsError
from hf_tlm.utils.options import NoEffect, option

NONE = "none"
LINEAR = "linear"
SELF = "self"
WITHOUT_TEACHER = NoEffect("teacher", ([NONE],), "without a teacher. Remove it.")
WITHOUT_PASSAGES = NoEffect("teacher_passages", (0,), "with teacher_passages 0. Remove it.")


@dataclass(repr=False)
class TeacherArguments:
    """Settings of a teacher: which model it is, the passages it labels, and the weight of its answers."""

    teacher: list[str] = option(
        factory=lambda: [NONE],
        help="Models that label the task's texts and passages to train on. linear: linear model on TF-IDF, out of fold on "
        "the task's texts. Run folders, exports or Hub models (owner/name[@revision]), averaged. File (csv, ...) with id or "
        "text and class probabilities. self (hf-tlm train): this run's seeds, in round 2. none.",
        nargs="+",
    )
    teacher_labels: Annotated[list[str] | None, WITHOUT_TEACHER] = option(
        None,
        "Names of the teacher's classes if they differ from the task's: its name=the task's, for every class; "
        "several may map to one class of the task.",
        nargs="+",
    )
    teacher_weight: Annotated[float, WITHOUT_TEACHER] = option(
        1.0, "Weight of the cross-entropy with the teacher's answers, which is added to the task loss."
    )
    teacher_temperature: Annotated[float, WITHOUT_TEACHER] = option(
        1.0,
        "Temperature of both distributions in the teacher's loss: above 1 softens them, so that unlikely classes "
        "count; below 1 sharpens them.",
    )
    teacher_passages: Annotated[int, WITHOUT_TEACHER] = option(
        4000,
        "Number of passages that the teacher labels: those it is most certain of, in proportion to the task's "
        "classes. 0: the task's texts alone.",
    )
    teacher_candidates: Annotated[int | None, WITHOUT_TEACHER, WITHOUT_PASSAGES] = option(
        None,
        "Number of passages that the teacher is asked about, the best-ranked first. Default: the complete subset. A "
        "large teacher may take longer for them than training does.",
    )
    teacher_trust: Annotated[str, WITHOUT_TEACHER, WITHOUT_PASSAGES] = option(
        "confidence",
        "Measure of the teacher's certainty of a passage: the probability of its class (confidence), or the entropy "
        "over all classes, the lower the more certain (entropy).",
        choices=["confidence", "entropy"],
    )
    teacher_passage_length: Annotated[str, WITHOUT_TEACHER, WITHOUT_PASSAGES] = option(
        "whole",
        "Length of the passages. whole: uncut. task: each is cut, before the teacher is asked, to a length that "
        "texts of the task have.",
        choices=["whole", "task"],
    )
    teacher_marks: Annotated[list[str] | None, WITHOUT_TEACHER, WITHOUT_PASSAGES] = option(
        None,
        "Marks before and after phrases in the task's texts, such as '<<' '>>' '[[' ']]'. The teacher then labels "
        "sentences of passages that contain phrases marked in the task's texts, with the same marks, instead of "
        "passages.",
        nargs="+",
    )
    teacher_share: Annotated[float, WITHOUT_TEACHER, WITHOUT_PASSAGES] = option(
        0.5,
        "Maximum share of the teacher's passages, below 1, among the texts of an epoch of task batches: the task's "
        "own texts are repeated until it is met.",
    )

    def __post_init__(self):
        if isinstance(self.teacher, str):
            self.teacher = [self.teacher]
        if not self.teacher:  # null or [] in a config file.
            self.teacher = [NONE]
        if len(self.teacher) > 1 and (word := {NONE, LINEAR, SELF} & set(self.teacher)):
            raise ArgumentsError(
                f"teacher {word.pop()} cannot be combined with others; received {' '.join(self.teacher):.200}. Several "
                "teachers must be models: folders of runs, or ids on the Hub."
            )
        if self.teacher_weight == 0:
            raise ArgumentsError("teacher_weight 0 ignores the teacher. Choose another weight, or --teacher none.")
        super().__post_init__()
        if self.teacher_candidates is not None and self.teacher_candidates < self.teacher_passages:
            raise ArgumentsError(
                f"teacher_candidates {self.teacher_candidates} are fewer than teacher_passages {self.teacher_passages}, "
                "which are chosen from them. Increase teacher_candidates, or lower teacher_passages."
            )

    @property
    def taught_by_itself(self) -> bool:
        """Whether the teacher is the models of this run's own seeds from the previous round."""
        return self.teacher == [SELF]

    @property
    def taught(self) -> bool:
        """Whether there is a teacher."""
        return self.teacher != [NONE]
