"""The options of a teacher, shared by all runs that can learn from one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from hf_tlm.errors import ArgumentsError
from hf_tlm.utils.options import NoEffect, option

NONE = "none"
LINEAR = "linear"
SELF = "self"
WITHOUT_TEACHER = NoEffect("teacher", ([NONE],), "without a teacher. Leave it out.")
WITHOUT_PASSAGES = NoEffect("teacher_passages", (0,), "with teacher_passages 0. Leave it out.")


@dataclass(repr=False)
class TeacherArguments:
    """Settings of a teacher: which model it is, the passages it labels, and the weight of its answers."""

    teacher: list[str] = option(
        factory=lambda: [NONE],
        help="Who answers for the task's texts and for passages of the subset, which then are training texts too. "
        "linear: a linear model on TF-IDF, on the task's texts out of fold. A finished run's folder, or a classifier of "
        "the Hub (owner/name, with @revision if wanted); of several the average. A file (csv, jsonl, parquet, ...) with "
        "id or text and a probability a class. self (hf-tlm train): this run's own seeds together, in a second round. none.",
        nargs="+",
    )
    teacher_labels: Annotated[list[str] | None, WITHOUT_TEACHER] = option(
        None,
        "Where the teacher's classes have other names: its name=the task's, for every one; several may be one "
        "class of the task.",
        nargs="+",
    )
    teacher_weight: Annotated[float, WITHOUT_TEACHER] = option(
        1.0, "Weight of the cross-entropy against the teacher's answers beside the task loss."
    )
    teacher_temperature: Annotated[float, WITHOUT_TEACHER] = option(
        1.0, "Above 1 both answers are compared softened, so that unlikely classes count; below 1 sharpened."
    )
    teacher_passages: Annotated[int, WITHOUT_TEACHER] = option(
        4000,
        "Passages that the teacher answers for: those it is most certain of, in proportion to the task's "
        "classes. 0: the task's texts alone.",
    )
    teacher_candidates: Annotated[int | None, WITHOUT_TEACHER, WITHOUT_PASSAGES] = option(
        None,
        "Passages that the teacher is asked of, the best-ranked first (default: all of the subset). A large teacher may "
        "take longer over them than training does.",
    )
    teacher_trust: Annotated[str, WITHOUT_TEACHER, WITHOUT_PASSAGES] = option(
        "confidence",
        "How certain the teacher is of a passage: by the probability of its class (confidence), or by how "
        "little is spread over all classes (entropy).",
        choices=["confidence", "entropy"],
    )
    teacher_passage_length: Annotated[str, WITHOUT_TEACHER, WITHOUT_PASSAGES] = option(
        "whole",
        "whole: passages as they are. task: each is cut, before the teacher is asked, to a length that texts of "
        "the task have.",
        choices=["whole", "task"],
    )
    teacher_marks: Annotated[list[str] | None, WITHOUT_TEACHER, WITHOUT_PASSAGES] = option(
        None,
        "What marks phrases in the task's texts, before and behind each, such as '<<' '>>' '[[' ']]': the teacher answers "
        "for sentences of passages in which phrases that are marked there stand, and marked likewise, instead of passages.",
        nargs="+",
    )
    teacher_share: Annotated[float, WITHOUT_TEACHER, WITHOUT_PASSAGES] = option(
        0.5,
        "Of the texts of an epoch of task batches at most so many, below 1, are the teacher's passages: the task's own are "
        "repeated until that is so.",
    )

    def __post_init__(self):
        if isinstance(self.teacher, str):
            self.teacher = [self.teacher]
        if not self.teacher:  # null or [] in a config file.
            self.teacher = [NONE]
        if len(self.teacher) > 1 and (word := {NONE, LINEAR, SELF} & set(self.teacher)):
            raise ArgumentsError(
                f"teacher {word.pop()} stands alone; received {' '.join(self.teacher):.200}. Several are folders of runs."
            )
        if self.teacher_weight == 0:
            raise ArgumentsError("teacher_weight 0 leaves the teacher unheard. Give another one, or --teacher none.")
        super().__post_init__()
        if self.teacher_candidates is not None and self.teacher_candidates < self.teacher_passages:
            raise ArgumentsError(
                f"teacher_candidates {self.teacher_candidates} are fewer than teacher_passages {self.teacher_passages}, "
                "which are chosen of them. Ask of more, or choose fewer."
            )

    @property
    def taught_by_itself(self) -> bool:
        """Whether the teacher is the models of this run's own seeds from the previous round."""
        return self.teacher == [SELF]

    @property
    def taught(self) -> bool:
        """Whether there is a teacher."""
        return self.teacher != [NONE]
