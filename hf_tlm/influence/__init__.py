"""Influence (ISS): how much a training step on each passage of a subset would lower the task's loss, and selection by it."""

from typing import TYPE_CHECKING

from hf_tlm.utils.lazy import export_lazily

if TYPE_CHECKING:
    from hf_tlm.errors import InfluenceError
    from hf_tlm.influence.arguments import SelectionArguments
    from hf_tlm.influence.rows import draws
    from hf_tlm.influence.score_files import DocumentScores, ScoreFiles, score
    from hf_tlm.influence.scorer import InfluenceScorer, load_scorer, save_scorer
    from hf_tlm.influence.select import select
    from hf_tlm.influence.selection import PassageScores, Selection, select_rows
    from hf_tlm.influence.sharded import score_sharded

__getattr__, __dir__, __all__ = export_lazily(__name__)
