"""Losses of language modelling and of the labelled task, and their weighted sum and weighted mean.

An objective maps (model outputs, batch) to named scalars; `"loss"` is the one that is differentiated. Its method `count`
returns the number of items that its mean is over, so that the trainer can take the mean over a complete optimizer step:
over all accumulated micro-batches of all processes, whose numbers of masked tokens differ.

A named term is such a mean, a scalar; or a pair (sum, count), which is logged as the quotient over many steps.
"""

from typing import TYPE_CHECKING

from hf_tlm.utils.lazy import export_lazily

if TYPE_CHECKING:
    from hf_tlm.objectives.language_modelling import CorrectiveLm, Mlm, ReplacedTokenDetection, copy_loss, corrective_lm_loss
    from hf_tlm.objectives.sequence_contrastive import SequenceContrastive, SequenceCosines, contrastive_loss
    from hf_tlm.objectives.task import RDrop, TaskLoss, TeacherLoss, ValueLoss
    from hf_tlm.objectives.terms import WeightedMean, WeightedSum

__getattr__, __dir__, __all__ = export_lazily(__name__)
