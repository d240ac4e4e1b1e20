"""COCO-LM's main transformer, a post-LayerNorm BERT with a relative position bias, and its heads (Meng et al. 2021).

The layers are transformers' own BERT layers; the bias reaches them through the attention mask. Without relative positions
the body is a stock BERT (`hf_tlm.models.coco_lm.as_bert`).

This file travels with published models and imports nothing of hf_tlm.

Shapes: B texts, S places, H hidden size, V vocabulary, C classes or choices.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn
from transformers import PreTrainedModel
from transformers import initialization as init
from transformers.loss.loss_utils import fixed_cross_entropy
from transformers.masking_utils import create_bidirectional_mask
from transformers.modeling_outputs import (
    BaseModelOutputWithPooling,
    MaskedLMOutput,
    MultipleChoiceModelOutput,
    QuestionAnsweringModelOutput,
    SequenceClassifierOutput,
    TokenClassifierOutput,
)
from transformers.models.bert.modeling_bert import (
    BertEncoder,
    BertLayer,
    BertPooler,
    BertPredictionHeadTransform,
    BertSelfAttention,
)
from transformers.utils.generic import can_return_tuple, merge_with_config_defaults
from transformers.utils.output_capturing import capture_outputs

from .configuration_coco_lm import CocoLmConfig
from .embeddings import CocoLmEmbeddings
from .relative_positions import RelativePositionBias

AUTO_CLASSES = {
    "AutoModel": "CocoLmModel",
    "AutoModelForMaskedLM": "CocoLmForMaskedLM",
    "AutoModelForSequenceClassification": "CocoLmForSequenceClassification",
    "AutoModelForTokenClassification": "CocoLmForTokenClassification",
    "AutoModelForQuestionAnswering": "CocoLmForQuestionAnswering",
    "AutoModelForMultipleChoice": "CocoLmForMultipleChoice",
}


def add_bias(mask: torch.Tensor | None, bias: torch.Tensor) -> torch.Tensor:
    """The additive attention mask of a bias, float [B, heads, S, S].

    Args:
        mask: [B, 1, S, S], bool (True: visible) or float (added to the scores); or None: everything is visible.
        bias: float [B or 1, heads, S, S].
    """
    if mask is None:
        return bias
    if mask.dtype != torch.bool:
        return mask + bias
    # A number that bfloat16 holds: autocast would round float32's lowest to -inf, and a row of those has no softmax.
    lowest = max(torch.finfo(bias.dtype).min, torch.finfo(torch.bfloat16).min)
    return torch.where(mask, bias, lowest)


class CocoLmPreTrainedModel(PreTrainedModel):
    """Loading, saving and initialisation."""

    config_class = CocoLmConfig
    base_model_prefix = "cocolm"
    supports_gradient_checkpointing = True
    _supports_sdpa = True
    _no_split_modules = ["CocoLmEmbeddings", "BertLayer"]
    _can_record_outputs = {"hidden_states": BertLayer, "attentions": BertSelfAttention}

    @torch.no_grad()
    def _init_weights(self, module):
        super()._init_weights(module)
        if isinstance(module, RelativePositionBias):
            init.normal_(module.weight, std=self.config.initializer_range)
            init.copy_(module.buckets, module.bucket_table())

    def save_pretrained(self, save_directory, **kwargs):
        """As transformers does; the folder holds the code and names it for every Auto class, not only for this one's."""
        code = __name__.split(".")[-1]
        self.config.auto_map = {name: f"{code}.{model}" for name, model in AUTO_CLASSES.items()}
        super().save_pretrained(save_directory, **kwargs)


class CocoLmModel(CocoLmPreTrainedModel):
    """The body."""

    def __init__(self, config: CocoLmConfig, add_pooling_layer: bool = True):
        super().__init__(config)
        self.embeddings = CocoLmEmbeddings(config)
        self.relative_attention_bias = None
        if config.relative_attention_mode is not None:
            self.relative_attention_bias = RelativePositionBias(
                config.relative_attention_mode,
                config.relative_attention_num_buckets,
                config.relative_attention_max_distance,
                config.num_attention_heads,
            )
        self.encoder = BertEncoder(config)
        self.pooler = BertPooler(config) if add_pooling_layer else None
        self.post_init()

    def get_input_embeddings(self) -> nn.Module:
        return self.embeddings.word_embeddings

    def set_input_embeddings(self, value: nn.Module) -> None:
        self.embeddings.word_embeddings = value

    @merge_with_config_defaults
    @capture_outputs
    def forward(
        self,
        input_ids: torch.LongTensor | None = None,
        attention_mask: torch.Tensor | None = None,
        token_type_ids: torch.LongTensor | None = None,
        position_ids: torch.LongTensor | None = None,
        inputs_embeds: torch.FloatTensor | None = None,
        **kwargs,
    ) -> BaseModelOutputWithPooling:
        """Hidden states float [B, S, H] and, from the first token, `pooler_output` [B, H].

        Args:
            input_ids: int64 [B, S]; or inputs_embeds: float [B, S, H].
            attention_mask: [B, S], 0 at padding, or [B, 1, S, S] (bool, or added to the scores).
            token_type_ids: int64 [B, S]; not used where the config has no token types.
            position_ids: int64 [B or 1, S]; default 0, 1, ... Distances are between them, so that texts packed into one
                row can each begin at 0; the mask keeps them apart.
        """
        if (input_ids is None) == (inputs_embeds is None):
            raise ValueError("Give either input_ids or inputs_embeds.")
        embedded = self.get_input_embeddings()(input_ids) if inputs_embeds is None else inputs_embeds
        if position_ids is None:
            position_ids = torch.arange(embedded.shape[1], device=embedded.device).unsqueeze(0)
        hidden = self.embeddings(embedded, position_ids, token_type_ids)
        if self.config.zero_padding and attention_mask is not None and attention_mask.dim() == 2:
            hidden = hidden * attention_mask.unsqueeze(-1).to(hidden.dtype)
        mask = create_bidirectional_mask(self.config, inputs_embeds=hidden, attention_mask=attention_mask)
        if self.relative_attention_bias is not None:
            mask = add_bias(mask, self.relative_attention_bias(position_ids))
        hidden = self.encoder(hidden, attention_mask=mask, **kwargs).last_hidden_state
        pooled = None if self.pooler is None else self.pooler(hidden)
        return BaseModelOutputWithPooling(last_hidden_state=hidden, pooler_output=pooled)


@dataclass
class CocoLmMaskedLMOutput(MaskedLMOutput):
    """
    logits: float [B, S, V], of the tokens that belong there.
    copy_logits: float [B, S], w^T h: positive where the token that is there looks original; None without a copy head.
    """

    copy_logits: torch.FloatTensor | None = None


class CocoLmForMaskedLM(CocoLmPreTrainedModel):
    """The two heads of corrective language modelling (section 3.3): tied embedding + bias without a transform, and copy.

    With `lm_transform` and without `copy_head` the masked LM that an auxiliary model is.
    """

    _tied_weights_keys = {"lm_head.weight": "cocolm.embeddings.word_embeddings.weight"}

    def __init__(self, config: CocoLmConfig):
        super().__init__(config)
        self.cocolm = CocoLmModel(config, add_pooling_layer=False)
        self.transform = BertPredictionHeadTransform(config) if config.lm_transform else None
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size)
        self.copy_head = nn.Linear(config.hidden_size, 1, bias=config.copy_bias) if config.copy_head else None
        self.post_init()

    def get_output_embeddings(self) -> nn.Module:
        return self.lm_head

    def set_output_embeddings(self, value: nn.Module) -> None:
        self.lm_head = value

    @can_return_tuple
    def forward(
        self,
        input_ids: torch.LongTensor | None = None,
        attention_mask: torch.Tensor | None = None,
        token_type_ids: torch.LongTensor | None = None,
        position_ids: torch.LongTensor | None = None,
        inputs_embeds: torch.FloatTensor | None = None,
        labels: torch.LongTensor | None = None,
        **kwargs,
    ) -> CocoLmMaskedLMOutput:
        """labels: int64 [B, S], -100 where nothing is predicted: the cross-entropy of `logits`. Others as in the body."""
        outputs = self.cocolm(input_ids, attention_mask, token_type_ids, position_ids, inputs_embeds, **kwargs)
        hidden = outputs.last_hidden_state
        logits = self.lm_head(hidden if self.transform is None else self.transform(hidden))
        loss = None
        if labels is not None:
            loss = self.loss_function(logits=logits, labels=labels, vocab_size=self.config.vocab_size, **kwargs)
        return CocoLmMaskedLMOutput(
            loss=loss,
            logits=logits,
            copy_logits=None if self.copy_head is None else self.copy_head(hidden).squeeze(-1),
            hidden_states=outputs.hidden_states,
            attentions=outputs.attentions,
        )


class CocoLmWithClassifier(CocoLmPreTrainedModel):
    """A body, dropout and one linear layer: what the models for labelled tasks have in common, under stock BERT's names."""

    pooled = True

    def __init__(self, config: CocoLmConfig):
        super().__init__(config)
        self.num_labels = config.num_labels
        self.cocolm = CocoLmModel(config, add_pooling_layer=self.pooled)
        dropout = config.hidden_dropout_prob if config.classifier_dropout is None else config.classifier_dropout
        self.dropout = nn.Dropout(dropout)
        self._add_head(config)
        self.post_init()

    def _add_head(self, config: CocoLmConfig) -> None:
        self.classifier = nn.Linear(config.hidden_size, config.num_labels)


class CocoLmForSequenceClassification(CocoLmWithClassifier):
    """Classes of a text, or a number where `num_labels` is 1."""

    @can_return_tuple
    def forward(
        self,
        input_ids: torch.LongTensor | None = None,
        attention_mask: torch.Tensor | None = None,
        token_type_ids: torch.LongTensor | None = None,
        position_ids: torch.LongTensor | None = None,
        inputs_embeds: torch.FloatTensor | None = None,
        labels: torch.LongTensor | None = None,
        **kwargs,
    ) -> SequenceClassifierOutput:
        """Logits float [B, C]; labels: [B] (or float [B, C] for several labels a text). Others as in the body."""
        outputs = self.cocolm(input_ids, attention_mask, token_type_ids, position_ids, inputs_embeds, **kwargs)
        logits = self.classifier(self.dropout(outputs.pooler_output))
        loss = None
        if labels is not None:
            loss = self.loss_function(labels=labels, pooled_logits=logits, config=self.config, **kwargs)
        return SequenceClassifierOutput(loss, logits, outputs.hidden_states, outputs.attentions)


class CocoLmForTokenClassification(CocoLmWithClassifier):
    """A class of every token."""

    pooled = False

    @can_return_tuple
    def forward(
        self,
        input_ids: torch.LongTensor | None = None,
        attention_mask: torch.Tensor | None = None,
        token_type_ids: torch.LongTensor | None = None,
        position_ids: torch.LongTensor | None = None,
        inputs_embeds: torch.FloatTensor | None = None,
        labels: torch.LongTensor | None = None,
        **kwargs,
    ) -> TokenClassifierOutput:
        """Logits float [B, S, C]; labels: int64 [B, S], -100 where there is none. Others as in the body."""
        outputs = self.cocolm(input_ids, attention_mask, token_type_ids, position_ids, inputs_embeds, **kwargs)
        logits = self.classifier(self.dropout(outputs.last_hidden_state))
        loss = None if labels is None else self.loss_function(logits, labels, self.config, **kwargs)
        return TokenClassifierOutput(loss, logits, outputs.hidden_states, outputs.attentions)


class CocoLmForQuestionAnswering(CocoLmWithClassifier):
    """Where an answer begins and ends. Like stock BERT without dropout before the head."""

    pooled = False

    def _add_head(self, config: CocoLmConfig) -> None:
        self.dropout = None
        self.qa_outputs = nn.Linear(config.hidden_size, 2)

    @can_return_tuple
    def forward(
        self,
        input_ids: torch.LongTensor | None = None,
        attention_mask: torch.Tensor | None = None,
        token_type_ids: torch.LongTensor | None = None,
        position_ids: torch.LongTensor | None = None,
        inputs_embeds: torch.FloatTensor | None = None,
        start_positions: torch.LongTensor | None = None,
        end_positions: torch.LongTensor | None = None,
        **kwargs,
    ) -> QuestionAnsweringModelOutput:
        """Logits float [B, S] each; positions: int64 [B], S or more where there is no answer. Others as in the body."""
        outputs = self.cocolm(input_ids, attention_mask, token_type_ids, position_ids, inputs_embeds, **kwargs)
        start, end = (logits.contiguous() for logits in self.qa_outputs(outputs.last_hidden_state).unbind(-1))
        loss = self.loss_function(start, end, start_positions, end_positions, **kwargs)
        return QuestionAnsweringModelOutput(loss, start, end, outputs.hidden_states, outputs.attentions)


class CocoLmForMultipleChoice(CocoLmWithClassifier):
    """Which of C texts it is."""

    def _add_head(self, config: CocoLmConfig) -> None:
        self.classifier = nn.Linear(config.hidden_size, 1)

    @can_return_tuple
    def forward(
        self,
        input_ids: torch.LongTensor | None = None,
        attention_mask: torch.Tensor | None = None,
        token_type_ids: torch.LongTensor | None = None,
        position_ids: torch.LongTensor | None = None,
        inputs_embeds: torch.FloatTensor | None = None,
        labels: torch.LongTensor | None = None,
        **kwargs,
    ) -> MultipleChoiceModelOutput:
        """Logits float [B, C] of inputs [B, C, S] (`inputs_embeds` [B, C, S, H]); labels: int64 [B]. See the body."""
        inputs = (input_ids, attention_mask, token_type_ids, position_ids, inputs_embeds)
        choices = (input_ids if inputs_embeds is None else inputs_embeds).shape[1]
        outputs = self.cocolm(*(None if each is None else each.flatten(0, 1) for each in inputs), **kwargs)
        logits = self.classifier(self.dropout(outputs.pooler_output)).view(-1, choices)
        loss = None if labels is None else fixed_cross_entropy(logits, labels, **kwargs)
        return MultipleChoiceModelOutput(loss, logits, outputs.hidden_states, outputs.attentions)
