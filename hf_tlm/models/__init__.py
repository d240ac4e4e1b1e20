"""Encoders with their heads, generator-discriminator pairs, adapters, initialisation, and export to stock classes."""

from typing import TYPE_CHECKING

from hf_tlm.utils.lazy import export_lazily

if TYPE_CHECKING:
    from hf_tlm.errors import ModelError
    from hf_tlm.models.adapters import add_lora, export_adapter, export_model, load_adapter, trained_parameters
    from hf_tlm.models.arguments import LoraArguments
    from hf_tlm.models.base import TrainedModel, applied_parameters
    from hf_tlm.models.coco_lm import (
        CocoLmConfig,
        CocoLmForMaskedLM,
        CocoLmForMultipleChoice,
        CocoLmForQuestionAnswering,
        CocoLmForSequenceClassification,
        CocoLmForTokenClassification,
        CocoLmModel,
        CocoLmTokenizer,
        as_bert,
        export_bert,
    )
    from hf_tlm.models.export import export_stock, load_exported
    from hf_tlm.models.families import FAMILIES
    from hf_tlm.models.generator_discriminator import GeneratorDiscriminator
    from hf_tlm.models.generator_discriminator_parts import CorruptionOutput, generator_config
    from hf_tlm.models.loading import build_config, read_config
    from hf_tlm.models.released_coco_lm import convert_released, load_released
    from hf_tlm.models.released_tlm import (
        ReleasedTlm,
        convert_legacy,
        convert_released_tlm,
        legacy_length,
        load_released_tlm,
    )
    from hf_tlm.models.tlm import MLM_SUBFOLDER, TlmModel, TlmOutput, gather_fsdp

__getattr__, __dir__, __all__ = export_lazily(__name__)
