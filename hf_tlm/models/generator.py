"""The generator, a masked LM (COCO-LM's auxiliary model): its config, what it shares, and tokens drawn from it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from copy import deepcopy

import torch
from torch import nn
from transformers import ElectraConfig, PreTrainedConfig, PreTrainedModel

from hf_tlm.errors import ModelError
from hf_tlm.models.base import body_of
from hf_tlm.models.families import family_of
from hf_tlm.models.tlm import MlmHead


def sample_tokens(logits: torch.Tensor, uniforms: torch.Tensor, temperature: float = 1.0) -> torch.Tensor:
    r"""One token a row from softmax(logits / temperature), by inverting its distribution function.

    One uniform number a token is all the randomness there is, so that a sample is reproducible wherever its number is,
    whatever else is in the batch (`hf_tlm.data.masking.uniforms`).

    Args:
        logits: float [M, V].
        uniforms: float [M], in [0, 1).
        temperature: 0, or a number too small to divide by, takes the most likely token.

    Returns:
        int64 [M]. A token of probability 0 is never drawn. Of logits that are not finite some token: their loss is not
        finite either, and is what ends the run.
    """
    if temperature < torch.finfo(logits.dtype).tiny:
        return logits.argmax(dim=-1)
    # Any sum but 1 would do: the numbers are scaled to it.
    weights = ((logits - logits.amax(dim=-1, keepdim=True)) / temperature).exp_()
    # Rounding must not reach the total, which no token exceeds.
    if torch.are_deterministic_algorithms_enabled():
        # Sums of floats depend on their order, which a GPU does not keep, so that torch refuses them; these do not.
        cumulative = (weights.double() * 2**40).long().cumsum(dim=-1)
        total = cumulative[:, -1:]
        below = torch.minimum((uniforms[:, None].double() * total).long(), total - 1)
    else:
        cumulative = weights.cumsum(dim=-1)
        total = cumulative[:, -1:]
        below = uniforms[:, None].to(cumulative.dtype) * total
        below = torch.minimum(below, torch.nextafter(total, torch.zeros_like(total)))
    drawn = torch.searchsorted(cumulative, below.contiguous(), right=True).squeeze(-1)
    return drawn.clamp_(max=logits.shape[-1] - 1)


def generator_config(config: PreTrainedConfig, size: float = 0.25, layers: int | None = None) -> PreTrainedConfig:
    """A narrower or shallower model of the same family, vocabulary, positions, embedding size and dropout.

    ELECTRA (Clark et al., ICLR 2020, section 3.2 and appendix A) multiplies hidden size, FFN size and attention heads by
    `size` and keeps the depth and the size of a head. A model has whole heads, at least one: the number nearest to
    `size` x heads decides the width, and the FFN follows it.

    COCO-LM's (Meng et al., NeurIPS 2021, section 3.3 and appendix D) is as wide and shallower, with relative positions of
    its own and BERT's masked-LM head. Of a COCO-LM body, whose embeddings are as wide as it, the narrower one is an ELECTRA
    generator with embeddings of that width (Table 3, "w. ELECTRA's Auxiliary"), without relative positions.

    Args:
        config: the main model's; left as it is.
        size: width as a share of the main model's, in (0, 1].
        layers: depth; None: the main model's.

    Raises:
        ModelError: `size` or `layers` is out of range, or this body cannot be narrower than its token embeddings.
    """
    family_of(config)
    if not 0 < size <= 1:
        raise ModelError(f"auxiliary_size is a share of the main model's width, in (0, 1]; received {size}.")
    if layers is not None and not 1 <= layers <= config.num_hidden_layers:
        raise ModelError(
            f"auxiliary_layers must lie between 1 and the main model's {config.num_hidden_layers}; received {layers}."
        )
    generator = deepcopy(config)
    if config.model_type == "cocolm":
        generator.copy_head, generator.lm_transform = False, True
        if size < 1:
            generator = _electra(config)
    # Only where there is a projection between them can the width differ from that of the shared embeddings.
    if size < 1 and not hasattr(generator, "embedding_size"):
        raise ModelError(
            f"The token embeddings of a {config.model_type} body are as wide as the body, so an auxiliary model that "
            f"shares them cannot have auxiliary_size {size:g}. Take an electra (or albert) config, whose embeddings have a "
            "size of their own, or a shallower auxiliary model: --auxiliary_size 1 --auxiliary_layers "
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


def _electra(config: PreTrainedConfig) -> ElectraConfig:
    """ELECTRA's of the size of a COCO-LM body, which has every value that it has but the embeddings' width."""
    names = set(ElectraConfig().to_dict()) - {"model_type", "transformers_version", "architectures", "auto_map"}
    values = {name: value for name, value in config.to_dict().items() if name in names}
    values |= {"embedding_size": config.hidden_size, "type_vocab_size": max(1, config.type_vocab_size)}
    values["attn_implementation"] = config._attn_implementation
    return ElectraConfig(**values)


class Generator(nn.Module):
    """A stock masked LM's modules: the body under its own name, the head as an `MlmHead`.

    frozen: it does not learn, and is always in evaluation mode.
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
        """And without gradients."""
        self.eval()
        try:
            with torch.no_grad():
                yield
        finally:
            self.train()


def _token_embeddings(body: PreTrainedModel) -> str:
    """The name of their module."""
    return next(name for name, module in body.named_modules() if module is body.get_input_embeddings())


def shared_parameters(main: PreTrainedModel, generator: PreTrainedModel, frozen: bool, norm: bool = False) -> dict[str, str]:
    """Return the parameters that the two models share, target -> source, by their names in `GeneratorDiscriminator`.

    Of a frozen generator none are the main one's.

    Args:
        norm: the embeddings' LayerNorm is among them.

    Raises:
        ModelError: it shall be, and the two have none of one name and width.
    """
    body, source_body = f"{generator.base_model_prefix}.", f"main.{main.base_model_prefix}."
    theirs = dict(main.base_model.named_modules())

    def alike(kind: type[nn.Module]) -> list[str]:
        """Names of the modules of a kind that both bodies have, with weights of one shape."""
        own = {name: module for name, module in generator.base_model.named_modules() if isinstance(module, kind)}
        return [name for name in own if name in theirs and own[name].weight.shape == theirs[name].weight.shape]

    shared: dict[str, str] = {}
    if not frozen:
        # Families may name those of tokens differently.
        tokens = {_token_embeddings(body_of(generator)): _token_embeddings(body_of(main))}
        same = {name: name for name in alike(nn.Embedding)} | tokens
        shared = {f"{body}{name}.weight": f"{source_body}{source}.weight" for name, source in same.items()}
    if norm:
        norms = [name for name in alike(nn.LayerNorm) if name.startswith("embeddings.")]
        if not norms or frozen:
            raise ModelError(
                "share_embedding_norm is for two models that learn together and have a LayerNorm in their embeddings, of "
                "one width: electra or albert. Leave it out."
            )
        parts = [f"{name}.{part}" for name in norms for part, _ in theirs[name].named_parameters()]
        shared |= {f"{body}{part}": f"{source_body}{part}" for part in parts}

    def inside(name: str) -> str:
        return f"auxiliary.{name}" if name.startswith(body) else f"auxiliary.mlm_head.{name}"

    ties = {inside(target): source for target, source in shared.items()}
    for target, source in generator.get_expanded_tied_weights_keys().items():
        ties[inside(target)] = shared.get(source) or inside(source)
    return ties
