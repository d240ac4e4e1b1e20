"""Initial weights with which a small model leaves the plateau of word frequencies within its first steps.

A masked LM with BERT's random weights predicts word frequencies for its first millions of tokens: its output bias has to
learn them, and its heads have to learn to find the neighbours of a token and to copy their content. All of this can be
initialised instead. No architecture changes: every weight is one of the stock model and is trained like any other. Token
embeddings from counts are in `hf_tlm.models.spectral`. These are additions of hf_tlm to the published methods.

Shapes: V vocabulary, E token embedding size, H hidden size, P dimensions of position codes, D size of a head.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn
from transformers import PreTrainedConfig, PreTrainedModel

from hf_tlm.errors import ModelError
from hf_tlm.models.base import embedding_weight, layer_stack
from hf_tlm.models.families import Stock, family_of
from hf_tlm.models.spectral import token_chunks

# BERT's initializer_range, and the hidden size that it is meant for.
BERT_RANGE, BERT_WIDTH = 0.02, 768
# Relative offsets that the first heads of a layer attend to before training; further heads are initialised at random.
OFFSETS = ((-1,), (1,), (-2, -3, -4), (2, 3, 4))
# Maximum number of dimensions of position codes, which have a quarter of all dimensions.
MAX_POSITION_DIMS = 64
# Score of a token at the offset minus that of a far token; its exponential is the ratio of their attention weights.
SHARPNESS = 10.0
# Scale of the identity in the transform before the output embedding.
IDENTITY = 0.2


def scale_to_width(config: PreTrainedConfig) -> None:
    """Set `initializer_range` to 0.02 x sqrt(768 / H), in place.

    The product of a random matrix and a vector of H numbers is then as large at any width as it is in BERT-base.
    """
    config.initializer_range = BERT_RANGE * math.sqrt(BERT_WIDTH / config.hidden_size)


def token_counts(texts: Iterable[Sequence[int]], vocab_size: int) -> np.ndarray:
    """Return how often each token id occurs in texts, int64 [V]."""
    counts = np.zeros(vocab_size, dtype=np.int64)
    for chunk in token_chunks(texts, "Counting tokens"):
        counts += np.bincount(np.concatenate(chunk), minlength=vocab_size)
    return counts


def unigram_bias(decoder: nn.Linear, counts: np.ndarray, ignore: Collection[int] = ()) -> None:
    """Set the bias of an output embedding to the log frequencies of the tokens, in place.

    One is added to every count, so that no token is impossible.

    Args:
        counts: int [V]; ignore: ids that are never predicted, which get the smallest bias.

    Raises:
        ModelError: the output embedding has no bias, or not V outputs.
    """
    if decoder.bias is None or len(decoder.bias) != len(counts):
        size = None if decoder.bias is None else len(decoder.bias)
        raise ModelError(
            f"The output bias would be initialised with frequencies of {len(counts):,} tokens, but this model's output "
            "embedding has " + ("no bias." if size is None else f"{size:,}.")
        )
    counts = counts.astype(np.float64)
    counts[list(ignore)] = 0.0
    with torch.no_grad():
        decoder.bias.copy_(torch.from_numpy(np.log((counts + 1.0) / (counts + 1.0).sum())))


def near_identity(dense: nn.Linear, carried: torch.Tensor) -> None:
    """Set the layer before an output embedding to 0.2 times the map from hidden states back to embeddings, in place.

    Its random weights are added, scaled to half that size. The activation that follows is nearly linear for such small
    numbers, and the LayerNorm after it rescales them, so that the transform is nearly the identity at first.

    Args:
        dense: a layer from H to E.
        carried: float [H, E], the map from an embedding to a hidden state, see `embedding_map_of`.
    """
    with torch.no_grad():
        noise = dense.weight * (0.5 * IDENTITY / dense.weight.norm(dim=1).mean())
        dense.weight.copy_(noise + IDENTITY * carried.T.to(noise))


@dataclass(frozen=True)
class AttentionWeights:
    """The matrices of one attention layer, as views.

    Attributes:
        query, key, value: float [H, H], the D rows of a head one after another.
        output: float [H, H], the D columns of a head one after another.
    """

    query: torch.Tensor
    key: torch.Tensor
    value: torch.Tensor
    output: torch.Tensor
    heads: int


def layers_of(body: PreTrainedModel) -> list[nn.Module]:
    """Return the layers of a body in order, from the embeddings on; for ALBERT the shared layers, once each."""
    return [inner for layer in layer_stack(body) for inner in (getattr(layer, "albert_layers", None) or [layer])]


def attention_weights(layer: nn.Module, heads: int) -> AttentionWeights:
    """Return the attention matrices of a layer of any supported family, or raise a ModelError for other layers."""
    attention: Stock = getattr(layer, "attn", None) or getattr(layer, "attention", None)
    if hasattr(attention, "Wqkv"):  # ModernBERT
        query, key, value = attention.Wqkv.weight.chunk(3)
        return AttentionWeights(query, key, value, attention.Wo.weight, heads)
    if hasattr(attention, "q_lin"):  # DistilBERT
        modules = (attention.q_lin, attention.k_lin, attention.v_lin, attention.out_lin)
    elif hasattr(attention, "self"):  # BERT and similar
        self_attention = attention.self
        modules = (self_attention.query, self_attention.key, self_attention.value, attention.output.dense)
    elif hasattr(attention, "query"):  # ALBERT
        modules = (attention.query, attention.key, attention.value, attention.dense)
    else:
        raise ModelError(f"{type(layer).__name__} is not supported: its attention layers are unknown.")
    query, key, value, output = (module.weight for module in modules)
    return AttentionWeights(query, key, value, output, heads)


def copying_heads(body: PreTrainedModel) -> None:
    """Initialise every head of a body to copy what it reads: random orthogonal values, and outputs that invert them.

    Before training, a head then adds the mean of the states that it attends to, projected on D random directions, to the
    hidden state, instead of random mixtures of it. For ALBERT this changes the shared layers.
    """
    with torch.no_grad():
        for layer in layers_of(body):
            weights = attention_weights(layer, body.config.num_attention_heads)
            mixing = _random_orthonormal(*weights.value.shape)
            weights.value.copy_(mixing)
            weights.output.copy_(mixing.T)


def position_embeddings(body: PreTrainedModel) -> nn.Embedding | None:
    """Return the learned absolute position embeddings of a body, or None if it has other positions."""
    return getattr(getattr(body, "embeddings", None), "position_embeddings", None)


def position_dims(embedding_size: int) -> int:
    """Return P, the number of embedding dimensions, the last ones, for position codes: a quarter, at most 64, even."""
    return min(embedding_size // 4, MAX_POSITION_DIMS) // 2 * 2


def frequencies(count: int) -> np.ndarray:
    """Return the frequencies of the sines and cosines of a position code, in radians per token, float64 [count].

    They are pi ((k - 1/2) / count)^1.5: unevenly spread over all frequencies that integer offsets can distinguish, so that
    the inner product of two codes is large at one offset and small at all others within some hundred tokens.
    """
    return np.pi * ((np.arange(count) + 0.5) / count) ** 1.5


def position_codes(positions: int, dims: int) -> np.ndarray:
    """Return sinusoidal codes of the positions 0, 1, ..., float64 [positions, dims]: one half sines, then the cosines."""
    angles = np.outer(np.arange(positions), frequencies(dims // 2))
    return np.concatenate([np.sin(angles), np.cos(angles)], axis=1)


def start_at_neighbors(body: PreTrainedModel, seen: Collection[int] | None = None) -> list[tuple[int, ...]]:
    """Initialise the first layer of a body with learned positions to attend to neighbouring tokens, in place.

    Position embeddings become sinusoidal codes in the last `position_dims` dimensions, which are zeroed in the token
    embeddings. The queries of the first heads rotate the code of a position to those of its neighbours (`OFFSETS`), and the
    keys are the codes, so that nearly all attention goes to the neighbours. Such a head copies what it reads, without the
    codes. A projection between embeddings and body is replaced by one that keeps lengths, as far as the body is wide enough.

    Args:
        seen: ids of the tokens in the texts, whose embeddings determine the scale of the codes; None: all.

    Returns:
        The offsets that each of the first heads attends to.

    Raises:
        ModelError: the body has no learned positions.
    """
    positions = position_embeddings(body)
    if positions is None:
        raise ModelError(
            "Heads initialised to attend to neighbouring tokens need a body with learned positions; a "
            f"{body.config.model_type} body has other positions."
        )
    tokens, types = embedding_weight(body), getattr(body.embeddings, "token_type_embeddings", None)
    dims = position_dims(tokens.shape[1])
    content = tokens.shape[1] - dims
    with torch.no_grad():
        tokens[:, content:] = 0.0
        if types is not None:
            types.weight[:, content:] = 0.0
        # Position dimensions vary as much as those of a token embedding, random or spectral.
        scale = tokens[slice(None) if seen is None else list(seen)].norm(dim=1).median().item()
        # The factor by which they are smaller after the LayerNorm, as a token type embedding is added.
        shrinkage = math.hypot(scale, 0.0 if types is None else types.weight[0].norm().item()) / scale
        first = family_of(body.config).first_position(body.config)
        codes = position_codes(len(positions.weight) - first, dims) * scale * math.sqrt(2.0 / content)
        positions.weight.zero_()
        positions.weight[first:, content:] = torch.from_numpy(codes).to(positions.weight)
        keep_lengths(body)
        mapping = embedding_map_of(body)
        # An orthonormal basis of the subspace of hidden states that holds the rest of an embedding.
        space = mapping[:, :content] if mapping.shape[0] >= mapping.shape[1] else torch.eye(len(mapping))[:, dims:]
        weights = attention_weights(layers_of(body)[0], body.config.num_attention_heads)
        head_size = len(weights.query) // weights.heads
        head_dims = _select_head_dims(dims, head_size)
        for index, offsets in enumerate(OFFSETS[: weights.heads]):
            rows = slice(index * head_size, (index + 1) * head_size)
            _attend_to_offsets(offsets, weights, rows, mapping[:, content:], head_dims, shrinkage)
            basis = _random_orthonormal(min(head_size, space.shape[1]), space.shape[1]) @ space.T
            for matrix in (weights.value[rows], weights.output[:, rows].T):
                matrix.zero_()
                matrix[: len(basis)] = basis.to(matrix)
    return list(OFFSETS[: weights.heads])


def _projection(body: PreTrainedModel) -> nn.Linear | None:
    """Return the projection of embeddings to hidden states: ELECTRA has one if sizes differ, ALBERT always, others None."""
    return getattr(body, "embeddings_project", None) or getattr(
        getattr(body, "encoder", None), "embedding_hidden_mapping_in", None
    )


def embedding_map_of(body: PreTrainedModel) -> torch.Tensor:
    """Return the map from an embedding to the first hidden state of a body, float [H, E]."""
    projection = _projection(body)
    size = embedding_weight(body).shape[1]
    return torch.eye(size) if projection is None else projection.weight.detach().clone().cpu()


def keep_lengths(body: PreTrainedModel) -> None:
    """Replace the projection between embeddings and body, if there is one, by orthonormal columns, in place.

    In a body narrower than the embeddings, the first P dimensions carry the position codes unchanged, the others a
    projection of the rest.
    """
    projection = _projection(body)
    if projection is None:
        return
    with torch.no_grad():
        hidden, size = projection.weight.shape
        dims = position_dims(size)
        matrix = torch.zeros(hidden, size)
        if hidden >= size or hidden <= dims:
            matrix = _random_orthonormal(hidden, size)
        else:
            matrix[:dims, size - dims :] = torch.eye(dims)
            matrix[dims:, : size - dims] = _random_orthonormal(hidden - dims, size - dims)
        projection.weight.copy_(matrix)


def _random_orthonormal(rows: int, columns: int) -> torch.Tensor:
    """Return a random matrix with orthonormal rows, or columns if there are fewer, float [rows, columns]."""
    return nn.init.orthogonal_(torch.empty(rows, columns))


def _select_head_dims(dims: int, head_size: int) -> np.ndarray:
    """Return the position dimensions that fit into a head, sines with their cosines, evenly spread over frequencies."""
    half = dims // 2
    chosen = np.linspace(0, half - 1, min(half, head_size // 2)).round().astype(int)
    return np.concatenate([chosen, chosen + half])


def _attend_to_offsets(
    offsets: Sequence[int],
    weights: AttentionWeights,
    rows: slice,
    codes: torch.Tensor,
    head_dims: np.ndarray,
    shrinkage: float,
) -> None:
    """Set the queries and keys of one head so that it attends to some offsets.

    Args:
        codes: float [H, P], the map from the dimensions of position codes to a hidden state.
        head_dims: indices of the P dimensions that this head compares.
        shrinkage: the factor by which the LayerNorm reduces the amplitude of codes.
    """
    head_size, pairs, dims = rows.stop - rows.start, len(head_dims) // 2, codes.shape[1]
    # The highest score at one of these offsets, as a share of that for a single offset.
    kernel = np.cos(np.outer(np.arange(-8, 9), frequencies(dims // 2)[head_dims[:pairs]])).mean(axis=1)
    peak = max(np.mean([kernel[8 + center - offset] for offset in offsets]) for center in offsets)
    # After the LayerNorm of the embeddings a code has amplitude sqrt(2), so that two equal ones have the product 2 x pairs.
    gain = shrinkage * math.sqrt(SHARPNESS * math.sqrt(head_size) / (2 * pairs * peak))
    queries = torch.from_numpy(gain * _rotation(offsets, dims)[head_dims]).to(codes) @ codes.T
    for matrix, values in ((weights.query[rows], queries), (weights.key[rows], gain * codes.T[head_dims])):
        matrix.zero_()
        matrix[: len(head_dims)] = values.to(matrix)


def _rotation(offsets: Sequence[int], dims: int) -> np.ndarray:
    """Return the matrix that maps the code of position i to the mean of those at i + each offset, float64 [dims, dims]."""
    half = dims // 2
    angles = np.outer(offsets, frequencies(half))
    sine, cosine = np.sin(angles).mean(axis=0), np.cos(angles).mean(axis=0)
    rotation = np.zeros((dims, dims))
    index = np.arange(half)
    rotation[index, index] = rotation[index + half, index + half] = cosine
    rotation[index, index + half], rotation[index + half, index] = sine, -sine
    return rotation
