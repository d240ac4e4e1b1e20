"""The network of TLM: one encoder with a stock classification head and the masked-LM head of its family."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import torch
from peft.utils import ModulesToSaveWrapper
from safetensors.torch import load_file
from torch import nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor
from transformers import (
    AutoConfig,
    AutoModelForMaskedLM,
    AutoModelForSequenceClassification,
    PreTrainedConfig,
    PreTrainedModel,
)
from transformers.utils import SAFE_WEIGHTS_NAME, ModelOutput

from hf_tlm.errors import ModelError
from hf_tlm.hub.repo import checkpoint_folder
from hf_tlm.models.base import TrainedModel, body_of, building, encode, encode_masked_positions, layer_classes, true_indices
from hf_tlm.models.cpu_kernels import use_cpu_kernels
from hf_tlm.models.families import EncodedTexts, Family, family_of
from hf_tlm.models.linear_cross_entropy import linear_cross_entropy
from hf_tlm.models.loading import (
    DTYPE,
    TRAINER_STATE,
    head_is_new,
    hub_options,
    load_classifier,
    parse_id2label,
    reading,
    without_reports,
)
from hf_tlm.utils.options import named
from hf_tlm.utils.shown import kind_of

logger = logging.getLogger(__name__)
MLM_SUBFOLDER = "mlm"


@dataclass
class TlmOutput(ModelOutput):
    """The output of a `TlmModel`.

    Attributes:
        logits: class logits, float [B, C]; None for a batch without a classification loss.
        mlm_loss: the masked-LM loss summed over the masked tokens, a float32 scalar; None for a batch without one. It is a
            sum because the mean is over the complete optimizer step (`hf_tlm.objectives`), and a loss instead of logits
            because these are never all in memory.
    """

    logits: torch.Tensor | None = None
    mlm_loss: torch.Tensor | None = None


class MlmHead(nn.ModuleDict):
    """The head modules of a family's stock `ForMaskedLM` under their own names; calling it returns the loss.

    It is a module with a `forward` of its own, so that FSDP gathers the output embedding for it like any other weight.
    """

    def __init__(self, modules: dict[str, nn.Module], family: Family):
        super().__init__(modules)
        self.family = family

    @property
    def weight(self) -> torch.Tensor:
        """The output embedding, float [V, E]."""
        return self.family.decoder(self).weight

    def forward(
        self,
        hidden: torch.Tensor,
        labels: torch.LongTensor,
        max_logits: int,
        visit: Callable[[slice, torch.Tensor], None] | None = None,
    ) -> torch.Tensor:
        """Return the masked-LM loss of hidden states float [M, H] and labels int64 [M], summed, a scalar.

        Args:
            max_logits, visit: see `linear_cross_entropy`.
        """
        decoder = self.family.decoder(self)
        hidden = self.family.transform(self, hidden)
        return linear_cross_entropy(hidden, decoder.weight, decoder.bias, labels, max_logits=max_logits, visit=visit)


class TlmModel(TrainedModel):
    """The network of TLM (paper, section 3.1): one body, a classification head and a masked-LM head.

    The modules are those of the family's stock `ForSequenceClassification` under the same names, plus `mlm_head`, the
    head modules of its stock `ForMaskedLM`, whose output embedding is tied to the body's input embedding where the
    config ties them. So `state_dict()` of a checkpoint is a stock classifier with extra `mlm_head.*` entries, and
    `hf_tlm.models.export.export_stock` writes two stock checkpoints from it without changing a number.

    Build one with `from_config` (from scratch) or `from_checkpoint`.

    Attributes:
        classifier_is_new, mlm_head_is_new: whether `from_checkpoint` initialised the head at random, because the checkpoint
            lacks it or its classifier has other classes.
    """

    classifier_is_new = mlm_head_is_new = False

    def __init__(self, classifier: PreTrainedModel, lm: PreTrainedModel | None = None):
        if not isinstance(classifier, PreTrainedModel) or lm is None:
            raise ModelError(
                f"TlmModel consists of two stock models, a classifier and a masked LM; received {kind_of(classifier)}"
                f"{' alone' if lm is None else ''}. Call TlmModel.from_config(config), or TlmModel.from_checkpoint(folder, "
                "id2label=task.id2label)."
            )
        super().__init__(classifier.config)
        self.family = family_of(classifier.config)
        self.base_model_prefix = classifier.base_model_prefix
        for name, child in classifier.named_children():
            self.add_module(name, child)
        body = lm.base_model_prefix
        self.mlm_head = MlmHead({name: child for name, child in lm.named_children() if name != body}, self.family)
        ties = lm.get_expanded_tied_weights_keys()
        self._no_split_modules = layer_classes(self.base_model)
        self._tie(
            {
                f"mlm_head.{target}": source if source.startswith(f"{body}.") else f"mlm_head.{source}"
                for target, source in ties.items()
            }
        )
        use_cpu_kernels(self)

    @classmethod
    def from_pretrained(cls, pretrained_model_name_or_path: Any = None, *model_args: Any, **kwargs: Any) -> NoReturn:
        """Raise a ModelError: a checkpoint holds one stock model, and this network consists of two.

        Raises:
            ModelError: always; it says what to call instead.
        """
        raise ModelError(
            f"TlmModel has no from_pretrained: TlmModel.from_checkpoint({str(pretrained_model_name_or_path)!r:.60}, ...) "
            "adds what a stock model lacks. A finished TLM model is a stock model: load it with "
            "AutoModelForSequenceClassification.from_pretrained."
        )

    @classmethod
    def from_config(cls, config: PreTrainedConfig) -> TlmModel:
        """Build a randomly initialised model (seed it with `transformers.set_seed`).

        Raises:
            ModelError: the config's `model_type` is not a supported encoder.
        """
        family_of(config)
        with building(config):
            return cls(AutoModelForSequenceClassification.from_config(config), AutoModelForMaskedLM.from_config(config))

    @classmethod
    def from_checkpoint(
        cls,
        model_name_or_path: str,
        *,
        id2label: dict[int, str],
        revision: str | None = None,
        trust_remote_code: bool = False,
        attn_implementation: str | None = None,
    ) -> TlmModel:
        """Load body and heads of a checkpoint: an encoder on the Hub, or a folder that `export_stock` or the Trainer wrote.

        Heads that the checkpoint lacks, and a classifier for other classes, are initialised at random. The weights are
        float32, whatever the dtype of the checkpoint.

        Args:
            model_name_or_path: folder, or Hub id, optionally with `@revision`.

        Raises:
            HubError: see `checkpoint_folder`.
            ModelError: the checkpoint cannot be loaded, lacks weights of its body, or has no supported `model_type`; its
                name is not valid; or `id2label` does not name the classes from 0 on.
        """
        name = named("model_name_or_path", model_name_or_path, ModelError, needed=True)
        id2label = parse_id2label(id2label)
        options = hub_options(revision, trust_remote_code, attn_implementation)
        if (Path(name) / TRAINER_STATE).is_file():
            return cls._from_trainer(name, id2label, options)
        folder = Path(checkpoint_folder(name, revision, trust_remote_code=trust_remote_code))
        # Our own exports keep the masked-LM head beside the classifier.
        has_lm_folder = (folder / MLM_SUBFOLDER / "config.json").is_file()
        # Each class loads its own head only: transformers would report the weights of the other as unused.
        with without_reports(), reading("a model from", name):
            classifier, classifier_is_new = load_classifier(str(folder), name, id2label=id2label, **options)
            lm, info = AutoModelForMaskedLM.from_pretrained(
                str(folder),
                subfolder=MLM_SUBFOLDER if has_lm_folder else "",
                output_loading_info=True,
                dtype=DTYPE,
                **options,
            )
        model = cls(classifier, lm)
        model.classifier_is_new, model.mlm_head_is_new = classifier_is_new, head_is_new(lm, info["missing_keys"])
        if model.mlm_head_is_new:
            logger.warning("%s has no masked-LM head: a new one is initialised at random.", name)
        return model

    @classmethod
    def _from_trainer(cls, folder: str, id2label: dict[int, str], options: dict) -> TlmModel:
        """Load a checkpoint-* folder of the Trainer, which holds this network under names that no stock class has."""
        with reading("the checkpoint", folder):
            config = AutoConfig.from_pretrained(
                folder, id2label=id2label, label2id={v: k for k, v in id2label.items()}, **options
            )
            model = cls.from_config(config)
            missing, unexpected = model.load_state_dict(load_file(Path(folder) / SAFE_WEIGHTS_NAME), strict=False)
            if mismatched := (set(missing) - set(model.all_tied_weights_keys)) | set(unexpected):
                raise ModelError(
                    f"{folder} is not a checkpoint of a {config.model_type} TlmModel: {', '.join(sorted(mismatched)[:5])}."
                )
        return model

    def get_input_embeddings(self) -> nn.Module:
        return body_of(self).get_input_embeddings()

    def get_output_embeddings(self) -> MlmHead:
        """Return the masked-LM head, which FSDP shards together with the input embedding if they share the weight."""
        return self.mlm_head

    def reset_classifier(self) -> None:
        """Reinitialise the classification head at random; body and masked-LM head stay."""
        renew_classifier(self)

    def forward(
        self,
        input_ids: torch.LongTensor,
        attention_mask: torch.LongTensor | None = None,
        token_type_ids: torch.LongTensor | None = None,
        position_ids: torch.LongTensor | None = None,
        text_ids: torch.LongTensor | None = None,
        first_tokens: torch.LongTensor | None = None,
        mlm_labels: torch.LongTensor | None = None,
        labels: torch.LongTensor | None = None,
    ) -> TlmOutput:
        """Run the body once, and those heads that this batch needs.

        Args:
            input_ids, attention_mask, token_type_ids: int64 [R, S], one text per row, or several with the next three
                arguments. Without a mask all tokens are read, as in stock models; in packed rows all but padding.
            position_ids, text_ids, first_tokens: int64 [R, S], [R, S], [B] of a packed batch, see `TlmCollator`.
            mlm_labels: int64 [R, S], -100 where nothing is predicted. If given, the masked-LM loss of the other positions is
                computed.
            labels: int64 [B]. Class logits are computed if it is given, or if `mlm_labels` is not.
        """
        inputs = (input_ids, attention_mask, token_type_ids, position_ids, text_ids, first_tokens)
        masked = None if mlm_labels is None else true_indices(mlm_labels != -100)
        if masked is not None and mlm_labels is not None and labels is None:
            hidden = encode_masked_positions(body_of(self), masked, *inputs)
            return TlmOutput(mlm_loss=self._mlm_loss(hidden, masked, mlm_labels))
        return self._compute_heads(encode(body_of(self), *inputs), masked, mlm_labels)

    # The number of masked tokens differs from batch to batch: compiled, this part would be compiled again and again.
    @torch.compiler.disable
    def _compute_heads(self, texts: EncodedTexts, masked: torch.Tensor | None, mlm_labels: torch.Tensor | None) -> TlmOutput:
        logits, mlm_loss = self.family.classify(self, texts), None
        if masked is not None and mlm_labels is not None:
            mlm_loss = self._mlm_loss(texts.hidden.flatten(0, 1)[masked], masked, mlm_labels)
        return TlmOutput(logits=logits, mlm_loss=mlm_loss)

    @torch.compiler.disable
    def _mlm_loss(self, hidden: torch.Tensor, masked: torch.Tensor, mlm_labels: torch.Tensor) -> torch.Tensor:
        """Return the summed masked-LM loss of the masked positions, whose hidden states are float [M, H].

        Projecting these positions alone to the vocabulary is most of the speed of a small model.
        """
        return self.mlm_head(hidden, mlm_labels.flatten()[masked], self.max_logits)


def renew_classifier(model: PreTrainedModel) -> None:
    """Reinitialise the classification head of a model with a stock classifier's modules at random; the rest stays."""
    fresh = AutoModelForSequenceClassification.from_config(model.config)
    for name, child in fresh.named_children():
        if name != model.base_model_prefix:
            head = getattr(model, name)
            # An adapter trains a copy of the head, see `hf_tlm.models.adapters`.
            if isinstance(head, ModulesToSaveWrapper):
                head = head.modules_to_save[head.active_adapter]
            head.load_state_dict(child.state_dict())


def gather_fsdp(model: PreTrainedModel) -> PreTrainedModel:
    """Return the model or, if FSDP2 has sharded it, a complete copy on each process; all processes must call this.

    FSDP shards a model in place and permanently, and what follows a stage needs all of it: the export, and the next stage,
    which shards it again.
    """
    if not isinstance(model, FSDPModule):
        return model
    state = {
        name: tensor.full_tensor() if isinstance(tensor, DTensor) else tensor for name, tensor in model.state_dict().items()
    }
    copy = TlmModel.from_config(model.config)
    copy.to(model.dtype)  # type: ignore[arg-type]  # The wrapper that transformers has around it loses its `self`.
    copy.load_state_dict(state)
    return copy
