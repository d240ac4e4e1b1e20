"""COCO-LM's model family; importing it registers the model type `cocolm` with the Auto classes of transformers.

Configuration, modeling and tokenization files import nothing of hf_tlm outside this folder, and import each other
relatively: transformers copies them into the folder of a saved model, which then loads with `trust_remote_code=True` where
hf_tlm is not installed.
"""

import transformers

from hf_tlm.models.coco_lm import modeling_coco_lm
from hf_tlm.models.coco_lm.bert import as_bert, export_bert
from hf_tlm.models.coco_lm.configuration_coco_lm import CocoLmConfig
from hf_tlm.models.coco_lm.modeling_coco_lm import (
    AUTO_CLASSES,
    CocoLmForMaskedLM,
    CocoLmForMultipleChoice,
    CocoLmForQuestionAnswering,
    CocoLmForSequenceClassification,
    CocoLmForTokenClassification,
    CocoLmMaskedLMOutput,
    CocoLmModel,
)
from hf_tlm.models.coco_lm.relative_positions import relative_position_buckets
from hf_tlm.models.coco_lm.tokenization_coco_lm import CocoLmTokenizer

__all__ = [
    "CocoLmConfig",
    "CocoLmForMaskedLM",
    "CocoLmForMultipleChoice",
    "CocoLmForQuestionAnswering",
    "CocoLmForSequenceClassification",
    "CocoLmForTokenClassification",
    "CocoLmMaskedLMOutput",
    "CocoLmModel",
    "CocoLmTokenizer",
    "as_bert",
    "export_bert",
    "relative_position_buckets",
]

transformers.AutoConfig.register("cocolm", CocoLmConfig)
CocoLmConfig.register_for_auto_class()
# For folders that name this tokenizer; a folder that names another tokenizer loads that one.
transformers.AutoTokenizer.register(CocoLmConfig, CocoLmTokenizer)
CocoLmTokenizer.register_for_auto_class()
for _auto, _name in AUTO_CLASSES.items():
    _model = getattr(modeling_coco_lm, _name)
    getattr(transformers, _auto).register(CocoLmConfig, _model)
    _model.register_for_auto_class(_auto)
