"""One checkpoint of a score model: its chosen parameters, the two losses, and the gradients of both.

Influence is the inner product of the gradients of the two losses: masked language modelling of passages, and the task's.

Shapes: B texts, K tokens of the vocabulary.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from transformers.models.albert.modeling_albert import AlbertLayerGroup
from xxhash import xxh3_64

from hf_tlm.errors import InfluenceError
from hf_tlm.influence.gradients import Capture, Decoded, EmbeddingGradient, MatrixGradient, Tokens, VectorGradient
from hf_tlm.models import TlmModel
from hf_tlm.models.base import Tail, encode_masked_positions, layer_stack, true_indices
from hf_tlm.models.cpu_kernels import faster_kernels
from hf_tlm.models.linear_cross_entropy import linear_cross_entropy

Gradient = VectorGradient | MatrixGradient | EmbeddingGradient
# Config entries that say where a model came from and how it was saved; the weights themselves give their dtype.
_IGNORED_CONFIG_KEYS = {"_name_or_path", "architectures", "dtype", "transformers_version"}


# Names of attention's output projection, and of the word embedding, in the model families.
DEFAULT_IN_LAYERS = (
    "attention.output.dense.weight,attention.dense.weight,attention.out_lin.weight,attn.Wo.weight"  # BERT, ALBERT, ...
)
DEFAULT_IN_EMBEDDINGS = "word_embeddings.weight,tok_embeddings.weight"
# Modules of a body before its first layer; the projections exist where the embeddings are narrower than the layers.
_EMBEDDING_MODULES = ("embeddings", "embeddings_project", "encoder.embedding_hidden_mapping_in")
SUPPORTED = (nn.Linear, nn.LayerNorm, nn.Embedding)


@dataclass(frozen=True)
class Parameter:
    """One parameter of a layer: its name in the layer, the module that owns it, and its attribute name in that module."""

    name: str
    module: nn.Module
    attribute: str


@dataclass(frozen=True)
class Choice:
    """The chosen parameters of one layer.

    Attributes:
        layer: index of the layer: 0 is the embeddings, 1 the first layer.
        depth: number of layers applied from the first use of the layer's parameters to the end.
    """

    layer: int
    depth: int
    parameters: list[Parameter]


def layers_of(model: TlmModel) -> list[list[tuple[str, nn.Module]]]:
    """Return the modules of each layer with their name prefixes; the index is that of transformers' `hidden_states`."""
    body = model.base_model
    modules = dict(body.named_modules())
    embedding_modules = [("", modules[_EMBEDDING_MODULES[0]])]
    embedding_modules += [
        (f"{name.rpartition('.')[2]}.", modules[name]) for name in _EMBEDDING_MODULES[1:] if name in modules
    ]
    stack = layer_stack(body)
    if not isinstance(stack[0], AlbertLayerGroup):
        return [embedding_modules, *([("", layer)] for layer in stack)]
    count = model.config.num_hidden_layers
    groups: list[Any] = [stack[int(layer / (count / len(stack)))] for layer in range(count)]
    return [embedding_modules, *([("", layer) for layer in group.albert_layers] for group in groups)]


def choose_parameters(model: TlmModel, layer: int, patterns: str | None, projection_dim: int | None = None) -> Choice:
    """Return the parameters of a layer whose names match one of the patterns.

    Args:
        layer: index as in transformers' `hidden_states`: 0 is the embeddings, 1 the first layer, -1 the last.
        patterns: patterns of names inside the layer, with wildcards (`fnmatch`), separated by commas. None: the weight of
            attention's output projection, or the word embedding for layer 0.
        projection_dim: see `InfluenceScorer`.

    Raises:
        InfluenceError: the layer does not exist, no parameter matches, a match belongs to a module other than a linear
            layer, a LayerNorm or an embedding, or a projection has nothing to project.
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
    candidates = [
        Parameter(f"{prefix}{owner}.{attribute}" if owner else f"{prefix}{attribute}", module, attribute)
        for prefix, top in layers[layer]
        for owner, module in top.named_modules()
        for attribute, _ in module.named_parameters(recurse=False)
    ]
    name_patterns = [pattern.strip() for pattern in patterns.split(",")]
    chosen = [
        parameter for parameter in candidates if any(fnmatchcase(parameter.name, pattern) for pattern in name_patterns)
    ]
    if not chosen:
        names = ", ".join(dict.fromkeys(parameter.name for parameter in candidates))
        raise InfluenceError(f"No parameter of layer {layer} matches {patterns!r}. Choose from: {names}.")
    for parameter in chosen:
        if type(parameter.module) not in SUPPORTED:
            raise InfluenceError(
                f"The gradient of {parameter.name} cannot be computed per text: it belongs to a "
                f"{type(parameter.module).__name__}, and only {', '.join(kind.__name__ for kind in SUPPORTED)} are "
                "supported. Narrow `parameters`."
            )
    matrices = [one for one in chosen if isinstance(one.module, nn.Linear) and one.attribute == "weight"]
    if projection_dim is not None and not matrices:
        raise InfluenceError(
            "projection_dim projects the gradients of linear layers' weights; among "
            f"{', '.join(parameter.name for parameter in chosen)} there is none. Remove projection_dim."
        )
    # A layer with shared parameters is applied several times; its first application counts.
    first = next(index for index, modules in enumerate(layers) if modules[0][1] is layers[layer][0][1])
    return Choice(layer, len(layers) - first, chosen)


class Checkpoint:
    """A trained model and the gradients of its chosen parameters.

    Attributes:
        modules: the modules that own the chosen parameters.
        gradients: for each parameter, the index of its module in `modules` and the object that stores its gradients. Keys
            begin with `number`.
    """

    def __init__(self, model: TlmModel, parameters: Sequence[Parameter], number: int, projection_dim: int | None, seed: int):
        body: Any = model.base_model
        self.model, self.tail = model, Tail(body)
        self.modules = list(dict.fromkeys(parameter.module for parameter in parameters))
        self.gradients: list[tuple[int, Gradient]] = []
        for parameter_index, parameter in enumerate(parameters):
            module, key = parameter.module, f"{number}/{parameter_index}/{parameter.name}"
            gradient: Gradient
            if isinstance(module, nn.Embedding):
                gradient = EmbeddingGradient(key, module, tied=module.weight is model.mlm_head.weight)
            elif isinstance(module, nn.Linear) and parameter.attribute == "weight":
                gradient = MatrixGradient(key, module, projection_dim, seed)
            else:
                gradient = VectorGradient(key, module, parameter.attribute)
            self.gradients.append((self.modules.index(module), gradient))

    def of_tasks(self, batch: dict[str, torch.Tensor], weights: torch.Tensor) -> list[Tokens]:
        """Return the captured tokens of each module, of the task loss: the loss of each text times its weight, float [B]."""
        batch, weights = self._to_device(batch), weights.to(self.model.device)
        with faster_kernels(self.model.device), torch.enable_grad(), Capture(self.modules, len(weights)) as capture:
            return capture.tokens(task_loss(self.model, batch, weights))

    def of_passages(self, batch: dict[str, torch.Tensor], vocabulary: torch.Tensor | None) -> list:
        """Return the gradients of each passage's masked-LM loss, by parameter, in the form that `products` expects."""
        batch = self._to_device(batch)
        count, text = len(batch["input_ids"]), (batch["mlm_labels"] != -100).nonzero()[:, 0]
        with (
            faster_kernels(self.model.device),
            torch.enable_grad(),
            Capture(self.modules, count, self.tail.modules, text) as capture,
        ):
            loss, decoded = mlm_loss(self.model, batch, vocabulary)
            tokens = capture.tokens(loss)
        return [gradient.of_passages(tokens[module_index], count, decoded) for module_index, gradient in self.gradients]

    def add_to(self, digest: xxh3_64) -> None:
        """Add the model's config and weights to a hash."""
        config = {name: value for name, value in self.model.config.to_dict().items() if name not in _IGNORED_CONFIG_KEYS}
        digest.update(json.dumps(config, sort_keys=True, default=str).encode())
        for name, value in sorted(self.model.state_dict().items()):
            digest.update(name.encode())
            digest.update(value.cpu().contiguous().flatten().view(torch.uint8).numpy())

    def _to_device(self, batch: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        return {name: values.to(self.model.device) for name, values in batch.items()}


def check_alike(models: Sequence[TlmModel]) -> None:
    """Check that all models have parameters of the same names and shapes, or raise an InfluenceError."""
    first, *others = ({name: tuple(p.shape) for name, p in model.named_parameters()} for model in models)
    for number, shapes in enumerate(others, start=2):
        if differ := sorted(name for name in {*first, *shapes} if first.get(name) != shapes.get(name)):
            raise InfluenceError(
                f"Scores are averaged over checkpoints of one model: number {number} has a different {differ[0]} from the "
                f"first ({shapes.get(differ[0])} instead of {first.get(differ[0])}). Pass checkpoints of one run."
            )


def nbytes(values: Any) -> int:
    """Return the size in bytes of all tensors in what `Checkpoint.of_passages` returns."""
    if isinstance(values, torch.Tensor):
        return values.nbytes
    if isinstance(values, Decoded):
        values = list(vars(values).values())
    return sum(map(nbytes, values)) if isinstance(values, (list, tuple)) else 0


def mlm_loss(
    model: TlmModel, batch: dict[str, torch.Tensor], vocabulary: torch.Tensor | None = None
) -> tuple[torch.Tensor, Decoded | None]:
    """Compute the masked-LM loss of a padded batch: the mean over each text's masked tokens, summed over the texts.

    Args:
        vocabulary: int64 [K], ascending: the tokens for which the factors of the output embedding's gradient are returned
            too.
    """
    masked = batch["mlm_labels"] != -100
    labels, text = batch["mlm_labels"][masked], masked.nonzero()[:, 0]
    inputs = (batch["input_ids"], batch["attention_mask"], batch.get("token_type_ids"))
    body: Any = model.base_model
    hidden = model.family.transform(model.mlm_head, encode_masked_positions(body, true_indices(masked), *inputs))
    wide = torch.promote_types(hidden.dtype, torch.float32)
    weights = (1 / masked.sum(dim=1).to(wide))[text]
    errors = None if vocabulary is None else torch.empty(len(labels), len(vocabulary), dtype=wide, device=hidden.device)

    def visit(rows: slice, logits: torch.Tensor) -> None:
        # Called only if `errors` is not None.
        errors[rows] = (logits[:, vocabulary] - logits.logsumexp(dim=1, keepdim=True)).exp_()  # type: ignore[index]

    decoder = model.family.decoder(model.mlm_head)
    loss = linear_cross_entropy(
        hidden,
        decoder.weight,
        decoder.bias,
        labels,
        max_logits=model.max_logits,
        visit=None if errors is None else visit,
        outer=lambda rows, log_p: (-weights[rows] * log_p, -weights[rows]),
    )
    if errors is None or vocabulary is None:
        return loss, None
    column = torch.searchsorted(vocabulary, labels).clamp_(max=len(vocabulary) - 1)
    in_vocabulary = vocabulary[column] == labels
    errors[in_vocabulary.nonzero()[:, 0], column[in_vocabulary]] -= 1
    return loss, Decoded(vocabulary, text, hidden.detach().to(wide), errors.mul_(weights[:, None]))


def task_loss(model: TlmModel, batch: dict[str, torch.Tensor], weights: torch.Tensor) -> torch.Tensor:
    """Compute the classification loss of a batch: the sum of each text's loss times its weight, float [B]."""
    inputs = {name: values for name, values in batch.items() if name != "labels"}
    logits = model(**inputs).logits
    wide = torch.promote_types(logits.dtype, torch.float32)
    return (F.cross_entropy(logits.to(wide), batch["labels"], reduction="none") * weights.to(wide)).sum()
