"""Influence (ISS): how much a training step on each passage of a subset would lower the task's loss, and what to keep."""

from typing import TYPE_CHECKING

from hf_tlm.lazy import export_lazily

if TYPE_CHECKING:
    from hf_tlm.influence.errors import InfluenceError
    from hf_tlm.influence.masks import draws
    from hf_tlm.influence.scorer import InfluenceScorer

__getattr__, __dir__, __all__ = export_lazily(
    __name__,
    {
        "errors": ["InfluenceError"],
        "masks": ["draws"],
        "scorer": ["InfluenceScorer"],
    },
)
