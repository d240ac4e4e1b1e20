"""Losses, one per file, and the two ways of combining them.

An objective maps (model outputs, batch) to named scalars; `"loss"` is what is differentiated. It also says how many
items its mean is over (`count`), so that the trainer can take that mean over a whole optimizer step: over all
accumulated micro-batches of all processes, whose numbers of masked tokens differ.

A named term is such a mean, a scalar; or a pair (sum, count), of which the quotient over many steps is wanted.
"""

from typing import TYPE_CHECKING

from hf_tlm.utils.lazy import export_lazily

if TYPE_CHECKING:
    from hf_tlm.objectives.combine import WeightedMean, WeightedSum
    from hf_tlm.objectives.corrective_lm import CorrectiveLm, copy_loss, corrective_lm_loss
    from hf_tlm.objectives.mlm import Mlm
    from hf_tlm.objectives.rdrop import RDrop
    from hf_tlm.objectives.replaced_token_detection import ReplacedTokenDetection
    from hf_tlm.objectives.sequence_contrastive import SequenceContrastive, SequenceCosines, contrastive_loss
    from hf_tlm.objectives.task import TaskLoss, ValueLoss
    from hf_tlm.objectives.teacher import TeacherLoss

__getattr__, __dir__, __all__ = export_lazily(__name__)
