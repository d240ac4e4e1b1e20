"""The papers' tables at a budget of one's own: arms x tasks x seeds, and the published figures beside them."""

from typing import TYPE_CHECKING

from hf_tlm.lazy import export_lazily

if TYPE_CHECKING:
    from hf_tlm.evaluation.reproduction.arguments import TableArguments
    from hf_tlm.evaluation.reproduction.arms import Arm, ReproductionError, Selection, TaskEntry
    from hf_tlm.evaluation.reproduction.plan import Plan, Step, make_plan
    from hf_tlm.evaluation.reproduction.published import PUBLISHED, Published
    from hf_tlm.evaluation.reproduction.reproduce import reproduce
    from hf_tlm.evaluation.reproduction.table import Table

__getattr__, __dir__, __all__ = export_lazily(
    __name__,
    {
        "arguments": ["TableArguments"],
        "arms": ["Arm", "ReproductionError", "Selection", "TaskEntry"],
        "plan": ["Plan", "Step", "make_plan"],
        "published": ["PUBLISHED", "Published"],
        "reproduce": ["reproduce"],
        "table": ["Table"],
    },
)
