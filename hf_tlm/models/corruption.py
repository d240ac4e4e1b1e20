"""Two transformers, of which one corrupts a text and the other says what was done to it (Clark et al. 2020)."""

from __future__ import annotations

import logging
from dataclasses import dataclass

import torch
from safetensors.torch import load_file
from torch import nn
from transformers import (
    AutoConfig,
    AutoModelForMaskedLM,
    AutoModelForPreTraining,
    AutoModelForSequenceClassification,
    PreTrainedConfig,
    PreTrainedModel,
)
from transformers.activations import get_activation
from transformers.utils import cached_file

from hf_tlm.models.base import TrainedModel, encode, layer_classes, refusals_of
from hf_tlm.models.dropout import use_fast_dropout
from hf_tlm.models.errors import ModelError
from hf_tlm.models.families import family_of
from hf_tlm.models.sampling import sample_tokens
from hf_tlm.models.texts import Texts
from hf_tlm.models.tlm import MlmHead, TlmOutput

logger = logging.getLogger(__name__)

TEMPERATURE = 0.8
# Folders inside an exported model (see `hf_tlm.models.export`), and the file of a head that no stock class has.
DISCRIMINATOR, GENERATOR, RTD_HEAD_FILE = "discriminator", "generator", "rtd_head.safetensors"


@dataclass
class CorruptionOutput(TlmOutput):
    """
    logits, mlm_loss: as in `TlmOutput`, of the main transformer and of the auxiliary one.
    rtd_logits: float [T], for each of the batch's T real tokens, row by row, how much it looks replaced.
    replaced: bool [T], the truth: the token differs from the original.
    guesses: int64 scalar, masked positions at which the auxiliary model's most likely token is the original.
    """

    rtd_logits: torch.FloatTensor | None = None
    replaced: torch.BoolTensor | None = None
    guesses: torch.LongTensor | None = None


class Auxiliary(nn.Module):
    """A stock masked LM's modules: the body under its own name, the head as an `MlmHead`."""

    def __init__(self, lm: PreTrainedModel):
        super().__init__()
        self.config = lm.config
        self.base_model_prefix = lm.base_model_prefix
        heads = {}
        for name, child in lm.named_children():
            if name == lm.base_model_prefix:
                self.add_module(name, child)
            else:
                heads[name] = child
        self.mlm_head = MlmHead(heads, family_of(lm.config))

    @property
    def base_model(self) -> PreTrainedModel:
        return getattr(self, self.base_model_prefix)


class RtdHead(nn.Module):
    """ELECTRA's head for replaced tokens, with the names of stock `ElectraForPreTraining.discriminator_predictions`."""

    def __init__(self, config: PreTrainedConfig):
        super().__init__()
        self.dense = nn.Linear(config.hidden_size, config.hidden_size)
        self.activation = get_activation(getattr(config, "hidden_act", "gelu"))  # ModernBERT's has another name.
        self.dense_prediction = nn.Linear(config.hidden_size, 1)
        for linear in (self.dense, self.dense_prediction):
            nn.init.normal_(linear.weight, std=config.initializer_range)
            nn.init.zeros_(linear.bias)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """Logits float [T] of hidden states float [T, H]."""
        return self.dense_prediction(self.activation(self.dense(hidden))).squeeze(-1)


class CorruptAndPredict(TrainedModel):
    """The two networks of ELECTRA (Clark et al. 2020, section 2) and of ALE (Shao, section II.E).

    `auxiliary` is a masked LM. At the masked positions tokens are drawn from its softmax, and `main` reads the result.
    No gradient goes through the draw. `main` is a stock `ForSequenceClassification` model, so that a labelled task can be
    learned together with the corruption (TLM), and `rtd_head` tells replaced tokens from original ones.

    Token embeddings are shared, and those of positions and types where their shapes are equal.

    Build one with `from_config` or `from_checkpoint`.

    Args:
        temperature: of the softmax that replacements are drawn from (0.8 in the ALE paper, section IV.B; 1 in ELECTRA's);
            0 takes the most likely token.

    Raises:
        ModelError: the two have different token embeddings, or the temperature is negative.
    """

    def __init__(self, main: PreTrainedModel, auxiliary: PreTrainedModel, temperature: float = TEMPERATURE):
        super().__init__(main.config)
        if not temperature >= 0:
            raise ModelError(f"temperature must be 0 or more; received {temperature}.")
        shapes = [tuple(model.get_input_embeddings().weight.shape) for model in (main, auxiliary)]
        if shapes[0] != shapes[1]:
            raise ModelError(
                f"The auxiliary model shares the main model's token embeddings, and theirs differ: {shapes[1]} and "
                f"{shapes[0]} (vocabulary, width). Give both the same vocabulary and embedding_size."
            )
        self.main, self.auxiliary = main, Auxiliary(auxiliary)
        self.rtd_head = RtdHead(main.config)
        self.temperature = temperature
        # Of the random numbers for batches that bring none; None is torch's global one.
        self.generator: torch.Generator | None = None
        self._no_split_modules = layer_classes(main.base_model) | layer_classes(auxiliary.base_model)
        self._tie(_shared(main, auxiliary))
        for stock in (main, auxiliary):
            use_fast_dropout(stock)

    @classmethod
    def from_config(
        cls, config: PreTrainedConfig, auxiliary_config: PreTrainedConfig, temperature: float = TEMPERATURE
    ) -> CorruptAndPredict:
        """A randomly initialised model (seed it with `transformers.set_seed`).

        Args:
            auxiliary_config: see `hf_tlm.models.auxiliary_config`.

        Raises:
            ModelError: a `model_type` is not a supported encoder; see also the class.
        """
        for each in (config, auxiliary_config):
            family_of(each)
        with refusals_of(config):
            main = AutoModelForSequenceClassification.from_config(config)
            auxiliary = AutoModelForMaskedLM.from_config(auxiliary_config)
        return cls(main, auxiliary, temperature)

    @classmethod
    def from_checkpoint(
        cls,
        model_name_or_path: str,
        auxiliary_name_or_path: str | None = None,
        *,
        id2label: dict[int, str],
        temperature: float = TEMPERATURE,
        revision: str | None = None,
        trust_remote_code: bool = False,
        attn_implementation: str | None = None,
    ) -> CorruptAndPredict:
        """Both transformers from checkpoints: Hub ids, or folders, also those that `export_stock` wrote.

        Heads that a checkpoint lacks, and a classifier for other classes, are initialised at random. Shared embeddings
        are the main model's.

        Args:
            model_name_or_path: a discriminator such as google/electra-small-discriminator, or any encoder.
            auxiliary_name_or_path: a masked LM with the same vocabulary and width of the token embeddings. Default: the
                folder `generator` in the other.
            revision: of `model_name_or_path`.

        Raises:
            ModelError: one cannot be loaded, or the two do not fit.
        """
        options = {"revision": revision, "trust_remote_code": trust_remote_code}
        options |= {} if attn_implementation is None else {"attn_implementation": attn_implementation}
        label2id = {label: index for index, label in id2label.items()}
        try:
            config = AutoConfig.from_pretrained(model_name_or_path, id2label=id2label, label2id=label2id, **options)
            family_of(config)
            main = AutoModelForSequenceClassification.from_pretrained(
                model_name_or_path, config=config, ignore_mismatched_sizes=True, **options
            )
            head = _rtd_head_state(model_name_or_path, config, options)
        except ModelError:
            raise
        except (OSError, RuntimeError, KeyError, ImportError, ValueError) as error:
            raise ModelError(f"Cannot load a model from {model_name_or_path!r}: {error}") from error
        try:
            if auxiliary_name_or_path is None:
                auxiliary = AutoModelForMaskedLM.from_pretrained(model_name_or_path, subfolder=GENERATOR, **options)
            else:
                auxiliary = AutoModelForMaskedLM.from_pretrained(auxiliary_name_or_path, trust_remote_code=trust_remote_code)
        except (OSError, RuntimeError, KeyError, ImportError, ValueError) as error:
            advice = "" if auxiliary_name_or_path else " Give auxiliary_name_or_path, the generator it was trained with."
            where = auxiliary_name_or_path or f"the folder {GENERATOR!r} of {model_name_or_path}"
            raise ModelError(f"Cannot load an auxiliary model from {where}: {error}{advice}") from error
        model = cls(main, auxiliary, temperature)
        if head is None:
            logger.warning("%s has no head for replaced tokens: a new one begins at random.", model_name_or_path)
        else:
            model.rtd_head.load_state_dict(head)
        return model

    def get_input_embeddings(self) -> nn.Module:
        return self.main.get_input_embeddings()

    def reset_classifier(self) -> None:
        """Initialise the classification head afresh; everything else stays."""
        fresh = AutoModelForSequenceClassification.from_config(self.main.config)
        for name, child in fresh.named_children():
            if name != self.main.base_model_prefix:
                getattr(self.main, name).load_state_dict(child.state_dict())

    def forward(
        self,
        input_ids: torch.LongTensor,
        attention_mask: torch.LongTensor,
        token_type_ids: torch.LongTensor | None = None,
        position_ids: torch.LongTensor | None = None,
        text_ids: torch.LongTensor | None = None,
        first_tokens: torch.LongTensor | None = None,
        mlm_labels: torch.LongTensor | None = None,
        labels: torch.LongTensor | None = None,
        uniforms: torch.FloatTensor | None = None,
    ) -> CorruptionOutput:
        """With `mlm_labels` corrupt and predict; without them, class logits of the texts as they are.

        Args:
            input_ids, attention_mask, token_type_ids, position_ids, text_ids, first_tokens: see `TlmModel.forward`.
            mlm_labels: int64 [R, S], the original token where `input_ids` is masked, -100 elsewhere.
            labels: int64 [B]. Given, or `mlm_labels` not given: class logits.
            uniforms: float [R, S], in [0, 1): what replacements are drawn with at masked positions. Default: drawn from
                `self.generator`.
        """
        places = (attention_mask, token_type_ids, position_ids, text_ids, first_tokens)
        output = CorruptionOutput()
        if mlm_labels is not None:
            texts = encode(self.auxiliary.base_model, input_ids, *places)
            output, input_ids = self._corrupt(texts, input_ids, mlm_labels, uniforms)
        texts = encode(self.main.base_model, input_ids, *places)
        return self._predict(output, texts, labels)

    # The number of masked tokens differs from batch to batch: compiled, this part would be compiled again and again.
    @torch.compiler.disable
    def _corrupt(
        self, texts: Texts, input_ids: torch.Tensor, mlm_labels: torch.Tensor, uniforms: torch.Tensor | None
    ) -> tuple[CorruptionOutput, torch.Tensor]:
        """The auxiliary model's part of the output, and the ids that the main model reads, int64 [R, S]."""
        masked = mlm_labels != -100
        originals = mlm_labels[masked]
        if uniforms is None:
            uniforms = torch.rand(originals.shape, generator=self.generator, device=originals.device)
        else:
            uniforms = uniforms[masked]
        drawn, guesses = torch.empty_like(originals), torch.zeros_like(originals, dtype=torch.bool)

        def draw(rows: slice, logits: torch.Tensor) -> None:
            drawn[rows] = sample_tokens(logits, uniforms[rows], self.temperature)
            guesses[rows] = logits.argmax(dim=-1) == originals[rows]

        loss = self.auxiliary.mlm_head(texts.hidden[masked], originals, self.max_logits, visit=draw)
        corrupted = input_ids.masked_scatter(masked, drawn)
        replaced = torch.zeros_like(masked).masked_scatter(masked, drawn != originals)
        real = texts.attention_mask.bool()
        return CorruptionOutput(mlm_loss=loss, replaced=replaced[real], guesses=guesses.sum()), corrupted

    @torch.compiler.disable
    def _predict(self, output: CorruptionOutput, texts: Texts, labels: torch.Tensor | None) -> CorruptionOutput:
        corrupted = output.replaced is not None
        if corrupted:
            output.rtd_logits = self.rtd_head(texts.hidden[texts.attention_mask.bool()])
        if labels is not None or not corrupted:
            output.logits = family_of(self.main.config).classify(self.main, texts)
        return output


def _shared(main: PreTrainedModel, auxiliary: PreTrainedModel) -> dict[str, str]:
    """The parameters that are one, target -> source, by their names in `CorruptAndPredict`."""
    body = f"{auxiliary.base_model_prefix}."
    embeddings = {
        f"{body}{name}.weight": f"main.{main.base_model_prefix}.{name}.weight"
        for name, module in auxiliary.base_model.named_modules()
        if isinstance(module, nn.Embedding)
        and name in dict(main.base_model.named_modules())
        and module.weight.shape == main.base_model.get_submodule(name).weight.shape
    }

    def inside(name: str) -> str:
        return f"auxiliary.{name}" if name.startswith(body) else f"auxiliary.mlm_head.{name}"

    ties = {inside(target): source for target, source in embeddings.items()}
    for target, source in auxiliary.get_expanded_tied_weights_keys().items():
        ties[inside(target)] = embeddings.get(source) or inside(source)
    return ties


def _rtd_head_state(name_or_path: str, config: PreTrainedConfig, options: dict) -> dict[str, torch.Tensor] | None:
    """The weights of a checkpoint's head for replaced tokens, in its folder `discriminator` or at its top; or None."""
    missing_is_fine = {"_raise_exceptions_for_missing_entries": False, "revision": options["revision"]}
    for folder in (DISCRIMINATOR, ""):
        if cached_file(name_or_path, "config.json", subfolder=folder, **missing_is_fine) is None:
            continue
        if config.model_type == "electra":
            stock, found = AutoModelForPreTraining.from_pretrained(
                name_or_path, subfolder=folder, output_loading_info=True, **options
            )
            if not any(name.startswith("discriminator_predictions.") for name in found["missing_keys"]):
                return stock.discriminator_predictions.state_dict()
        elif file := cached_file(name_or_path, RTD_HEAD_FILE, subfolder=folder, **missing_is_fine):
            return load_file(file)
    return None
