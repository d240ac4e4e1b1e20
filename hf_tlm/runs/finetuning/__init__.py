"""Fine-tuning of pretrained encoders on labelled tasks of every kind, with stock models and the stock Trainer."""

from typing import TYPE_CHECKING

from hf_tlm.utils.lazy import export_lazily

if TYPE_CHECKING:
    from hf_tlm.runs.arguments import CheckpointArguments
    from hf_tlm.runs.finetuning.arguments import FinetuneArguments
    from hf_tlm.runs.finetuning.finetune import FinetuneRun, check_finetuning, draw_fraction, finetune
    from hf_tlm.runs.finetuning.kinds import kind_module

__getattr__, __dir__, __all__ = export_lazily(__name__)
