"""The parts of a `GeneratorDiscriminator`, and how they are read from an exported folder or a checkpoint.

The generator (COCO-LM's auxiliary model) is a masked LM: this module has its config, the parameters that it shares, and the
sampling of tokens. The heads of the main model learn which tokens of a corrupted text were replaced, or what the original
tokens were.

Shapes: M masked positions, T tokens that are not padding, B texts, H hidden size, V vocabulary.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass

import torch
from safetensors.torch import load_file
from torch import nn
from torch.nn.functional import gelu
from transformers import (
    AutoConfig,
    AutoModelForMaskedLM,
    AutoModelForPreTraining,
    ElectraConfig,
    PreTrainedConfig,
    PreTrainedModel,
)
from transformers.activations import get_activation
from transformers.utils import cached_file

from hf_tlm.errors import ModelError
from hf_tlm.hub.repo import checkpoint_folder
from hf_tlm.models.base import body_of
from hf_tlm.models.families import family_of
from hf_tlm.models.loading import DTYPE, head_is_new, new_weights, reading
from hf_tlm.models.tlm import MLM_SUBFOLDER, MlmHead, TlmOutput

logger = logging.getLogger(__name__)

# Folders inside an exported model (see `hf_tlm.models.export`), files of heads that no stock class has, and the file that
# records how texts are corrupted.
DISCRIMINATOR, GENERATOR = "discriminator", "generator"
RTD_HEAD_FILE, CLM_HEADS_FILE = "rtd_head.safetensors", "clm_heads.safetensors"
CORRUPTION_FILE = "corruption.json"
# (hidden, weight, bias, copy_logits, labels, input_ids, masked, max_logits) -> (loss, right), see `CorrectiveLm.lm_loss`.
LmLoss = Callable[..., tuple[torch.Tensor, torch.Tensor]]


def sample_tokens(logits: torch.Tensor, uniforms: torch.Tensor, temperature: float = 1.0) -> torch.Tensor:
    r"""Sample one token per row from softmax(logits / temperature), by inverting its cumulative distribution.

    The only randomness is one uniform number per token, so that a sample is reproducible if its number is, whatever else is
    in the batch (`hf_tlm.data.masking.uniforms`).

    Args:
        logits: float [M, V].
        uniforms: float [M], in [0, 1).
        temperature: 0, or a number too small to divide by, selects the most likely token.

    Returns:
        int64 [M]. A token of probability 0 is never sampled. Logits that are not finite give any token: their loss is not
        finite either, and ends the run.
    """
    if temperature < torch.finfo(logits.dtype).tiny:
        return logits.argmax(dim=-1)
    # Not normalised: the uniform numbers are scaled to the sum of the weights instead.
    weights = ((logits - logits.amax(dim=-1, keepdim=True)) / temperature).exp_()
    # Rounding must not raise a number to the total, which is above the last token's interval.
    if torch.are_deterministic_algorithms_enabled():
        # Sums of floats depend on their order, which varies on a GPU, so that torch refuses them; sums of integers do not.
        cumulative = (weights.double() * 2**40).long().cumsum(dim=-1)
        total = cumulative[:, -1:]
        targets = torch.minimum((uniforms[:, None].double() * total).long(), total - 1)
    else:
        cumulative = weights.cumsum(dim=-1)
        total = cumulative[:, -1:]
        targets = uniforms[:, None].to(cumulative.dtype) * total
        targets = torch.minimum(targets, torch.nextafter(total, torch.zeros_like(total)))
    sampled = torch.searchsorted(cumulative, targets.contiguous(), right=True).squeeze(-1)
    return sampled.clamp_(max=logits.shape[-1] - 1)


def generator_config(config: PreTrainedConfig, size: float = 0.25, layers: int | None = None) -> PreTrainedConfig:
    """Return the config of a narrower or shallower model; family, vocabulary, positions, embedding size and dropout stay.

    ELECTRA (Clark et al., ICLR 2020, section 3.2 and appendix A) multiplies hidden size, FFN size and attention heads by
    `size` and keeps the depth and the size of a head. The number of heads is the integer nearest to `size` x heads, at
    least one; it determines the hidden size and the FFN size.

    COCO-LM's auxiliary model (Meng et al., NeurIPS 2021, section 3.3 and appendix D) is as wide as the main one and
    shallower, with relative positions of its own and BERT's masked-LM head. The embeddings of a COCO-LM body are as wide as
    the body, so a narrower auxiliary model for it is an ELECTRA generator with embeddings of that width (Table 3, "w.
    ELECTRA's Auxiliary"), without relative positions.

    Args:
        config: the main model's; it is not changed.
        size: width as a share of the main model's, in (0, 1].
        layers: depth; None: the main model's.

    Raises:
        ModelError: `size` or `layers` is out of range, or this body cannot be narrower than its token embeddings.
    """
    family_of(config)
    if not 0 < size <= 1:
        raise ModelError(f"auxiliary_size must be a share of the main model's width, in (0, 1]; received {size}.")
    if layers is not None and not 1 <= layers <= config.num_hidden_layers:
        raise ModelError(
            f"auxiliary_layers must be between 1 and the main model's {config.num_hidden_layers}; received {layers}."
        )
    generator = deepcopy(config)
    if config.model_type == "cocolm":
        generator.copy_head, generator.lm_transform = False, True
        if size < 1:
            generator = _electra_config(config)
    # The width can differ from that of the shared embeddings only if there is a projection between them.
    if size < 1 and not hasattr(generator, "embedding_size"):
        raise ModelError(
            f"The token embeddings of a {config.model_type} body are as wide as the body, so an auxiliary model that shares "
            f"them cannot have auxiliary_size {size:g}. Choose an electra (or albert) config, whose embeddings have a "
            "separate size, or a shallower auxiliary model: --auxiliary_size 1 --auxiliary_layers "
            f"{max(1, config.num_hidden_layers // 3)}."
        )
    if size < 1:
        heads = max(1, round(size * config.num_attention_heads))
        generator.num_attention_heads = heads
        generator.hidden_size = config.hidden_size * heads // config.num_attention_heads
        generator.intermediate_size = config.intermediate_size * heads // config.num_attention_heads
    if layers is not None:
        generator.num_hidden_layers = layers
        if hasattr(config, "num_hidden_groups"):
            generator.num_hidden_groups = min(config.num_hidden_groups, layers)
        if hasattr(config, "layer_types"):
            generator.layer_types = config.layer_types[:layers]
    return generator


def _electra_config(config: PreTrainedConfig) -> ElectraConfig:
    """Return an ELECTRA config with the values of a COCO-LM config, and embeddings as wide as its body."""
    names = set(ElectraConfig().to_dict()) - {"model_type", "transformers_version", "architectures", "auto_map"}
    values = {name: value for name, value in config.to_dict().items() if name in names}
    values |= {"embedding_size": config.hidden_size, "type_vocab_size": max(1, config.type_vocab_size)}
    values["attn_implementation"] = config._attn_implementation
    return ElectraConfig(**values)


class Generator(nn.Module):
    """The modules of a stock masked LM: the body under its own name, the head as an `MlmHead`.

    Args:
        frozen: the model is not trained, and is always in evaluation mode.
    """

    def __init__(self, lm: PreTrainedModel, frozen: bool = False):
        super().__init__()
        self.config, self.frozen = lm.config, frozen
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

    def train(self, mode: bool = True) -> Generator:
        return super().train(mode and not self.frozen)

    @contextmanager
    def without_dropout(self) -> Iterator[None]:
        """Run the block without dropout and without gradients."""
        self.eval()
        try:
            with torch.no_grad():
                yield
        finally:
            self.train()


def _token_embeddings_name(body: PreTrainedModel) -> str:
    """Return the name of the module that holds the token embeddings of a body."""
    return next(name for name, module in body.named_modules() if module is body.get_input_embeddings())


def shared_parameters(main: PreTrainedModel, generator: PreTrainedModel, frozen: bool, norm: bool = False) -> dict[str, str]:
    """Return the parameters that the two models share, target -> source, by their names in `GeneratorDiscriminator`.

    The generator's own tied weights are among them. A frozen generator shares none with the main model.

    Args:
        norm: the LayerNorm of the embeddings is shared too.

    Raises:
        ModelError: `norm` is set, and the generator is frozen, or the two have no such LayerNorm of the same name and width.
    """
    body, source_body = f"{generator.base_model_prefix}.", f"main.{main.base_model_prefix}."
    main_modules = dict(main.base_model.named_modules())

    def find_shared(kind: type[nn.Module]) -> list[str]:
        """Return the names of the modules of a kind that both bodies have, with weights of the same shape."""
        generator_modules = {
            name: module for name, module in generator.base_model.named_modules() if isinstance(module, kind)
        }
        return [
            name
            for name in generator_modules
            if name in main_modules and generator_modules[name].weight.shape == main_modules[name].weight.shape
        ]

    shared: dict[str, str] = {}
    if not frozen:
        # Families may name the token embeddings differently.
        tokens = {_token_embeddings_name(body_of(generator)): _token_embeddings_name(body_of(main))}
        pairs = {name: name for name in find_shared(nn.Embedding)} | tokens
        shared = {f"{body}{name}.weight": f"{source_body}{source}.weight" for name, source in pairs.items()}
    if norm:
        norms = [name for name in find_shared(nn.LayerNorm) if name.startswith("embeddings.")]
        if not norms or frozen:
            raise ModelError(
                "share_embedding_norm is for two models that learn together and have a LayerNorm in their embeddings, of "
                "equal width: electra or albert. Remove it."
            )
        parameters = [f"{name}.{parameter}" for name in norms for parameter, _ in main_modules[name].named_parameters()]
        shared |= {f"{body}{parameter}": f"{source_body}{parameter}" for parameter in parameters}

    def full_name(name: str) -> str:
        return f"auxiliary.{name}" if name.startswith(body) else f"auxiliary.mlm_head.{name}"

    ties = {full_name(target): source for target, source in shared.items()}
    for target, source in generator.get_expanded_tied_weights_keys().items():
        ties[full_name(target)] = shared.get(source) or full_name(source)
    return ties


def load_auxiliary(name_or_path: str | None, main: str | None = None, **options) -> PreTrainedModel:
    """Load a masked LM in float32 from a checkpoint, by default from the folder `generator` of the checkpoint `main`.

    Args:
        options: of `from_pretrained`; `revision` is that of `main`.

    Raises:
        HubError: see `checkpoint_folder`.
        ModelError: the checkpoint cannot be loaded, or lacks weights of its body.
    """
    trusted, revision = options.get("trust_remote_code", False), options.pop("revision", None)
    name, folder = name_or_path, ""
    if name is None:
        assert main is not None  # the checkpoint that it is in
        name = f"{main}/{GENERATOR}"
        folder = os.path.join(checkpoint_folder(main, revision, trust_remote_code=trusted), GENERATOR)
        if not os.path.isdir(folder):
            raise ModelError(
                f"{main} has no folder {GENERATOR}, in which pretraining saves a generator. Pass the generator to train it "
                "with as auxiliary_name_or_path."
            )
    else:
        folder = checkpoint_folder(name, trust_remote_code=trusted)
    with reading("an auxiliary model from", name):
        options |= {"output_loading_info": True, "dtype": DTYPE}
        model, info = AutoModelForMaskedLM.from_pretrained(folder, **options)
    if head_is_new(model, new_weights(model, info, name)):
        logger.warning("%s has no masked-LM head: a new one is initialised at random.", name)
    return model


@dataclass
class CorruptionOutput(TlmOutput):
    """The output of a `GeneratorDiscriminator`.

    Attributes:
        logits, mlm_loss: as in `TlmOutput`, of the main transformer and of the auxiliary one.
        replaced: bool [T], True where a token differs from the original, for the batch's T tokens that are not padding, row
            by row.
        guesses: int64 scalar, number of masked positions at which the auxiliary model's most likely token is the original.
        rtd_logits: float [T], positive where a token looks replaced; None without a head for that.
        copy_logits, lm_loss, lm_right: float [T], scalar, bool [T], of corrective language modelling, see
            `hf_tlm.objectives.CorrectiveLm`; None without its heads.
        corrupted_vectors, cropped_vectors: float [B, H], the first token's hidden state, or its projection by a
            `ContrastHead`, of each corrupted and each cropped text; None for a batch without crops.
    """

    replaced: torch.Tensor | None = None
    guesses: torch.Tensor | None = None
    rtd_logits: torch.Tensor | None = None
    copy_logits: torch.Tensor | None = None
    lm_loss: torch.Tensor | None = None
    lm_right: torch.Tensor | None = None
    corrupted_vectors: torch.Tensor | None = None
    cropped_vectors: torch.Tensor | None = None


class RtdHead(nn.Module):
    """ELECTRA's head for replaced token detection, named like stock `ElectraForPreTraining.discriminator_predictions`.

    Args:
        dense: False leaves out the first layer, so that the head is a single linear layer, as in COCO-LM's ablations (Meng
            et al., NeurIPS 2021, section 3.1).
    """

    def __init__(self, config: PreTrainedConfig, dense: bool = True):
        super().__init__()
        self.dense = nn.Linear(config.hidden_size, config.hidden_size) if dense else None
        self.activation = get_activation(getattr(config, "hidden_act", "gelu"))  # ModernBERT's field has another name.
        self.dense_prediction = nn.Linear(config.hidden_size, 1)
        for linear in filter(None, (self.dense, self.dense_prediction)):
            nn.init.normal_(linear.weight, std=config.initializer_range)
            nn.init.zeros_(linear.bias)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """Return the logits float [T] of hidden states float [T, H]."""
        if self.dense is not None:
            hidden = self.activation(self.dense(hidden))
        return self.dense_prediction(hidden).squeeze(-1)


class ClmHeads(nn.Module):
    """The two heads of corrective language modelling, named as in `CocoLmForMaskedLM`, for any body."""

    def __init__(self, config: PreTrainedConfig):
        super().__init__()
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size)
        self.copy_head = nn.Linear(config.hidden_size, 1, bias=getattr(config, "copy_bias", False))
        for linear in (self.lm_head, self.copy_head):
            nn.init.normal_(linear.weight, std=config.initializer_range)
            if linear.bias is not None:
                nn.init.zeros_(linear.bias)

    def forward(
        self,
        hidden: torch.Tensor,
        labels: torch.LongTensor,
        input_ids: torch.LongTensor,
        masked: torch.BoolTensor,
        lm_loss: LmLoss,
        max_logits: int,
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return the copy logits float [T], and the two results of `lm_loss`.

        Args:
            hidden: float [T, H]; labels, input_ids: int64 [T], the original tokens and those that were read; masked: bool
                [T].
        """
        copy_logits = self.copy_head(hidden).squeeze(-1)
        weights = (self.lm_head.weight, self.lm_head.bias)
        return copy_logits, *lm_loss(hidden, *weights, copy_logits, labels, input_ids, masked, max_logits)


class ContrastHead(nn.Module):
    """The head between [CLS] and the cosine of sequence contrastive learning.

    The published COCO-LM model has it; the paper does not. It is as wide as the body (the published one: 768 in every size).
    """

    def __init__(self, config: PreTrainedConfig):
        super().__init__()
        self.dense = nn.Linear(config.hidden_size, config.hidden_size)
        self.LayerNorm = nn.LayerNorm(config.hidden_size)
        nn.init.normal_(self.dense.weight, std=config.initializer_range)
        nn.init.zeros_(self.dense.bias)

    def forward(self, vectors: torch.Tensor) -> torch.Tensor:
        """Return the projections float [B, H] of hidden states float [B, H]."""
        return self.LayerNorm(gelu(self.dense(vectors)))


def rtd_head_state(name_or_path: str, options: dict) -> dict[str, torch.Tensor] | None:
    """Return the weights of a checkpoint's head for replaced token detection, or None.

    They are in its folder `discriminator` or at its top level.
    """
    for folder in (DISCRIMINATOR, ""):
        if file := _find_file(name_or_path, folder, options, RTD_HEAD_FILE):
            return load_file(file)
        if not _find_file(name_or_path, folder, options):
            continue
        if AutoConfig.from_pretrained(name_or_path, subfolder=folder, **options).model_type == "electra":
            stock, info = AutoModelForPreTraining.from_pretrained(
                name_or_path, subfolder=folder, output_loading_info=True, **options
            )
            if not any(name.startswith("discriminator_predictions.") for name in info["missing_keys"]):
                return stock.discriminator_predictions.state_dict()
    return None


def clm_heads_state(name_or_path: str, options: dict) -> dict[str, torch.Tensor] | None:
    """Return the weights of a checkpoint's heads for corrective language modelling, or None.

    For a COCO-LM body they are in its folder `mlm` or at its top level, for other bodies in `discriminator` or at its top
    level.
    """
    for folder in (DISCRIMINATOR, ""):
        if file := _find_file(name_or_path, folder, options, CLM_HEADS_FILE):
            return load_file(file)
    for folder in (MLM_SUBFOLDER, ""):
        if not _find_file(name_or_path, folder, options):
            continue
        config = AutoConfig.from_pretrained(name_or_path, subfolder=folder, **options)
        if config.model_type != "cocolm" or not config.copy_head or config.lm_transform:
            continue
        stock, info = AutoModelForMaskedLM.from_pretrained(
            name_or_path, subfolder=folder, output_loading_info=True, **options
        )
        if not any(name.startswith(("lm_head.", "copy_head.")) for name in info["missing_keys"]):
            return {name: value for name, value in stock.state_dict().items() if not name.startswith("cocolm.")}
    return None


def _find_file(name_or_path: str, folder: str, options: dict, file: str = "config.json") -> str | None:
    """Return the path of a file of a checkpoint, or None if the checkpoint lacks it."""
    lookup_options = {"_raise_exceptions_for_missing_entries": False, "revision": options["revision"]}
    return cached_file(name_or_path, file, subfolder=folder, **lookup_options)
