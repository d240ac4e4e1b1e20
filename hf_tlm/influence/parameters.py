"""Which parameters gradients are taken of: those of one layer whose names match."""

from __future__ import annotations

from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from torch import nn
from transformers.models.albert.modeling_albert import AlbertLayerGroup

from hf_tlm.errors import InfluenceError
from hf_tlm.models import TlmModel
from hf_tlm.models.base import layer_stack

# The output projection of attention, and the word embedding, under the names that they have in the families.
DEFAULT_IN_LAYERS = (
    "attention.output.dense.weight,attention.dense.weight,attention.out_lin.weight,attn.Wo.weight"  # BERT, ALBERT, ...
)
DEFAULT_IN_EMBEDDINGS = "word_embeddings.weight,tok_embeddings.weight"
# What a body has before its first layer; the projections are of bodies whose embeddings are narrower than their layers.
_BEFORE = ("embeddings", "embeddings_project", "encoder.embedding_hidden_mapping_in")
SUPPORTED = (nn.Linear, nn.LayerNorm, nn.Embedding)


@dataclass(frozen=True)
class Parameter:
    """One parameter of a layer: its name there, the module that owns it, and its name in that."""

    name: str
    module: nn.Module
    attribute: str


@dataclass(frozen=True)
class Choice:
    """The parameters of one layer that were chosen.

    Attributes:
        layer: 0 is the embeddings, 1 the first layer.
        depth: layers that are applied from the first use of its parameters on.
    """

    layer: int
    depth: int
    parameters: list[Parameter]


def layers_of(model: TlmModel) -> list[list[tuple[str, nn.Module]]]:
    """The modules of each layer, by its index in transformers' `hidden_states`, and what their names there begin with."""
    body = model.base_model
    modules = dict(body.named_modules())
    before = [("", modules[_BEFORE[0]])]
    before += [(f"{name.rpartition('.')[2]}.", modules[name]) for name in _BEFORE[1:] if name in modules]
    stack = layer_stack(body)
    if not isinstance(stack[0], AlbertLayerGroup):
        return [before, *([("", layer)] for layer in stack)]
    count = model.config.num_hidden_layers
    groups: list[Any] = [stack[int(layer / (count / len(stack)))] for layer in range(count)]
    return [before, *([("", layer) for layer in group.albert_layers] for group in groups)]


def choose_parameters(model: TlmModel, layer: int, patterns: str | None) -> Choice:
    """The parameters of a layer whose names match one of the patterns.

    Args:
        layer: as transformers counts `hidden_states`: 0 is the embeddings, 1 the first layer, -1 the last.
        patterns: of names inside the layer, with wildcards (`fnmatch`), separated by commas. None: the weight of
            attention's output projection; of layer 0 the word embedding.

    Raises:
        InfluenceError: there is no such layer, nothing matches, or what matches is not of a linear layer, a LayerNorm or an
            embedding.
    """
    layers = layers_of(model)
    if not -len(layers) <= layer < len(layers):
        raise InfluenceError(
            f"layer must be between {-len(layers)} and {len(layers) - 1} for this {model.config.model_type} model (0 is the "
            f"embeddings, {len(layers) - 1} or -1 the last layer); received {layer}."
        )
    layer %= len(layers)
    if patterns is None:
        patterns = DEFAULT_IN_LAYERS if layer else DEFAULT_IN_EMBEDDINGS
    owned = [
        Parameter(f"{prefix}{owner}.{attribute}" if owner else f"{prefix}{attribute}", module, attribute)
        for prefix, top in layers[layer]
        for owner, module in top.named_modules()
        for attribute, _ in module.named_parameters(recurse=False)
    ]
    wanted = [pattern.strip() for pattern in patterns.split(",")]
    chosen = [parameter for parameter in owned if any(fnmatchcase(parameter.name, pattern) for pattern in wanted)]
    if not chosen:
        names = ", ".join(dict.fromkeys(parameter.name for parameter in owned))
        raise InfluenceError(f"No parameter of layer {layer} matches {patterns!r}. It has: {names}.")
    for parameter in chosen:
        if type(parameter.module) not in SUPPORTED:
            raise InfluenceError(
                f"The gradient of {parameter.name} cannot be taken text by text: it belongs to a "
                f"{type(parameter.module).__name__}, and only of {', '.join(kind.__name__ for kind in SUPPORTED)}. "
                "Narrow `parameters`."
            )
    # A layer that is applied several times is used from its first application on.
    first = next(index for index, modules in enumerate(layers) if modules[0][1] is layers[layer][0][1])
    return Choice(layer, len(layers) - first, chosen)
