"""Losses, of texts and of the labelled task, and the two ways of combining them.

An objective maps (model outputs, batch) to named scalars; `"loss"` is what is differentiated. It also says how many
items its mean is over (`count`), so that the trainer can take that mean over a whole optimizer step: over all
accumulated micro-batches of all processes, whose numbers of masked tokens differ.

A named term is such a mean, a scalar; or a pair (sum, count), of which the quotient over many steps is wanted.
"""

from typing import TYPE_CHECKING

from hf_tlm.utils.lazy import export_lazily

if TYPE_CHECKING:
    from hf_tlm.objectives.language_modelling import CorrectiveLm, Mlm, ReplacedTokenDetection, copy_loss, corrective_lm_loss
    from hf_tlm.objectives.sequence_contrastive import SequenceContrastive, SequenceCosines, contrastive_loss
    from hf_tlm.objectives.task import RDrop, TaskLoss, TeacherLoss, ValueLoss
    from hf_tlm.objectives.terms import WeightedMean, WeightedSum

__getattr__, __dir__, __all__ = export_lazily(__name__)
