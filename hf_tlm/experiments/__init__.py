"""Reproduction of the papers' tables at a chosen budget: arms x tasks x seeds, with the published figures beside them."""

from typing import TYPE_CHECKING

from hf_tlm.utils.lazy import export_lazily

if TYPE_CHECKING:
    from hf_tlm.experiments.arguments import TableArguments
    from hf_tlm.experiments.arms import Arm, ReproductionError, Selection, TaskEntry
    from hf_tlm.experiments.plan import Plan, Step, make_plan
    from hf_tlm.experiments.published import PUBLISHED, Published
    from hf_tlm.experiments.reproduce import reproduce
    from hf_tlm.experiments.table import Table

__getattr__, __dir__, __all__ = export_lazily(__name__)
