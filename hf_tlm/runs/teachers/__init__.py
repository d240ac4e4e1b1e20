"""Teachers: a linear model, finished models, or a file, and what they say of a task's texts and of passages."""

from typing import TYPE_CHECKING

from hf_tlm.utils.lazy import export_lazily

if TYPE_CHECKING:
    from hf_tlm.runs.teachers.ask import (
        answered_subset,
        ask_teacher,
        asked_passages,
        check_passage_options,
        content_of,
        open_teacher,
        teacher_scores,
    )

__getattr__, __dir__, __all__ = export_lazily(__name__)
