"""Attention maps of a model that transformers loads, and the classification of its heads (TLM, section 4.4.1).

Each row of a map holds a token's attention to all tokens of its text; its maximum is the largest weight. A head is
*positional* (Voita et al. 2019) if at least 90% of these maxima are on a token next to the row's own, *vertical* (Kovaleva
et al. 2019) if at least 90% are on [CLS], [SEP] or a full stop. The papers leave some details open; here:

- Rows are counted over all tokens, special ones included, of all texts together; rows and columns of padding are left out.
- A token next to the row's own is the previous or the next one, and a head may mix them, as TLM's wording allows. Voita et
  al. require one side: `AttentionHead` has the counts of both.
- If a row has several equal maxima, all have to be on such a token. A uniform row counts for neither kind.
- A head that is both, which only very short texts allow, is positional.
- TLM says "at least 90%" for one kind and "more than 90%" for the other; here exactly 90% is enough for both.

Only this analysis computes attention eagerly: faster implementations return no maps.

Shapes: B texts, S positions, L layers, A heads of a layer.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import torch
from torch import nn
from torch.nn.functional import pad
from tqdm.auto import tqdm
from transformers import DataCollatorWithPadding, PreTrainedModel, PreTrainedTokenizerBase

from hf_tlm.errors import AnalysisError
from hf_tlm.models.base import body_of
from hf_tlm.models.families import longest_input
from hf_tlm.utils.process import is_first_process

SHARE = Fraction(9, 10)
POSITIONAL, VERTICAL, OTHER = "positional", "vertical", "other"
Text = str | tuple[str, str]  # A text, or a pair.
Inputs = dict[str, list[int]]  # Model inputs of a text.
# Most weights in the maps of one batch: 256 MiB.
WEIGHTS = 1 << 26
# A full stop in the vocabularies of WordPiece, sentencepiece, byte-level and word-end BPE, at the start of or inside a word.
FULL_STOP = re.compile(r"(?:##|▁|Ġ)?\.(?:</w>)?")


@dataclass(frozen=True)
class AttentionHead:
    """Counts of the positions of a head's row maxima.

    layer, head: from 1.
    rows: number of rows.
    previous, next: maxima on the token before, and after, the row's own.
    adjacent: maxima on either; exceeds the sum of the two by the rows in which both are equal.
    separators: maxima on [CLS], [SEP] or a full stop.
    """

    layer: int
    head: int
    rows: int
    previous: int
    next: int
    adjacent: int
    separators: int

    @property
    def kind(self) -> str:
        if self.adjacent >= SHARE * self.rows:
            return POSITIONAL
        return VERTICAL if self.separators >= SHARE * self.rows else OTHER


@dataclass(frozen=True)
class LayerShares:
    """The percentage of a layer's heads that are of each kind; layer None: of all layers' heads."""

    layer: int | None
    heads: int
    positional: float
    vertical: float
    other: float


def count_maxima(maps: torch.Tensor, attention_mask: torch.Tensor, separators: torch.Tensor) -> torch.Tensor:
    """Count the row maxima of one layer that are on the previous token, on the next, on either, and on a separator.

    Args:
        maps: float [B, A, S, S]: attention weights of rows (third dimension) to columns, not negative.
        attention_mask: [B, S], 0 at padding, on either side.
        separators: bool [B, S]: whether a position is [CLS], [SEP] or a full stop.

    Returns:
        int64 [A, 4].

    Raises:
        AnalysisError: a weight is NaN.
    """
    real = attention_mask.bool()
    maps = maps.masked_fill(~real[:, None, None, :], -1)
    largest = maps.amax(-1, keepdim=True)
    if (largest[..., 0].isnan() & real[:, None]).any():
        raise AnalysisError("Attention weights are NaN: the model has diverged, or its weights are damaged.")
    on_top = maps == largest
    maxima = on_top.sum(-1)
    previous = pad(on_top.diagonal(-1, 2, 3), (1, 0))
    following = pad(on_top.diagonal(1, 2, 3), (0, 1))
    is_adjacent = (previous.int() + following.int() == maxima) & real[:, None]
    is_separator = ((on_top & separators[:, None, None, :]).sum(-1) == maxima) & real[:, None]
    counted = (is_adjacent & ~following, is_adjacent & ~previous, is_adjacent, is_separator)
    return torch.stack([rows.sum((0, 2)) for rows in counted], dim=1)


def layer_shares(heads: Iterable[AttentionHead]) -> list[LayerShares]:
    """Return the shares of each layer in order, then those of all heads."""
    kinds: dict[int | None, list[str]] = {}
    for head in heads:
        kinds.setdefault(head.layer, []).append(head.kind)
    kinds[None] = [kind for layer in kinds.values() for kind in layer]
    return [
        LayerShares(
            layer,
            len(layer_kinds),
            *(100 * layer_kinds.count(kind) / len(layer_kinds) for kind in (POSITIONAL, VERTICAL, OTHER)),
        )
        for layer, layer_kinds in kinds.items()
        if layer_kinds
    ]


@dataclass(frozen=True)
class TextMaps:
    """The attention maps of one text.

    tokens: of the text.
    maps: for each of L layers float32 [A, S, S]; rows attend to columns.
    """

    tokens: list[str]
    maps: list[np.ndarray]


def separator_ids(tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """Return the token ids of [CLS] and [SEP] (or BOS and EOS), and of every full stop in the vocabulary."""
    special = (tokenizer.cls_token_id, tokenizer.sep_token_id, tokenizer.bos_token_id, tokenizer.eos_token_id)
    stops = [index for token, index in tokenizer.get_vocab().items() if FULL_STOP.fullmatch(token)]
    return sorted({index for index in special if index is not None}.union(stops))


def measure_heads(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    texts: Sequence[Text],
    *,
    batch_size: int = 32,
    max_length: int = 128,
    name: str = "",
) -> list[AttentionHead]:
    """Count the positions of every head's row maxima over all texts, to classify it; the model is left unchanged.

    Texts of similar length share a batch. Maps are counted batch by batch and not kept: those of a batch have at most
    256 MiB, or belong to a single text.

    Args:
        model: any model with attention maps, on any device. For an encoder-decoder the encoder is measured; in a causal
            decoder no token attends to the next one.
        texts: strings, or pairs of strings.
        max_length: most tokens of a text: longer ones are truncated.
        name: of the model, for the progress bar.

    Returns:
        One head after another, layer by layer.

    Raises:
        AnalysisError: there is no token, or a text is not a string; a text is longer than the model accepts, or has token
            ids beyond its vocabulary; the model returns no maps of S x S, or weights that are NaN.
    """
    rows = _encode(model, tokenizer, texts, max_length)
    separators = torch.tensor(separator_ids(tokenizer), device=model.device)
    counts: list[torch.Tensor] = []
    total = sum(len(row["input_ids"]) for row in rows)
    bar = tqdm(total=len(rows), desc=f"Heads {name}".strip(), unit=" texts", disable=not is_first_process())
    with _attention_enabled(model) as body, torch.inference_mode(), bar:
        for batch in _split_batches(rows, model, batch_size):
            padded = _pad_batch(batch, tokenizer, model)
            special = torch.isin(padded["input_ids"], separators)
            batch_counts = [count_maxima(maps, padded["attention_mask"], special) for maps in _compute_maps(body, padded)]
            counts = [old + new for old, new in zip(counts, batch_counts, strict=True)] if counts else batch_counts
            bar.update(len(batch))
    return [
        AttentionHead(layer, head, total, *head_counts)
        for layer, heads in enumerate(counts, 1)
        for head, head_counts in enumerate(heads.tolist(), 1)
    ]


def text_maps(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, text: Text, max_length: int = 24) -> TextMaps:
    """Return the attention maps of one text, truncated to `max_length` tokens.

    Raises:
        AnalysisError: see `measure_heads`.
    """
    rows = _encode(model, tokenizer, [text], max_length)
    with _attention_enabled(model) as body, torch.inference_mode():
        maps = _compute_maps(body, _pad_batch(rows, tokenizer, model))
    tokens = tokenizer.convert_ids_to_tokens(rows[0]["input_ids"])
    return TextMaps(list(tokens), [layer[0].float().cpu().numpy() for layer in maps])


def most_tokens(texts: Sequence[Text], tokenizers: Sequence[PreTrainedTokenizerBase], limit: int) -> np.ndarray:
    """Return the number of tokens of each text, int64 [texts], with the tokenizer that needs most, at most `limit`."""
    lengths = np.zeros(len(texts), np.int64)
    for tokenizer in tokenizers:
        lengths = np.maximum(lengths, [len(ids) for ids in _tokenize(tokenizer, texts, limit)["input_ids"]])
    return lengths


def _tokenize(tokenizer: PreTrainedTokenizerBase, texts: Sequence[Text], max_length: int) -> dict[str, list[list[int]]]:
    parts = [text if isinstance(text, tuple) else (text,) for text in texts]
    for row, text_parts in enumerate(parts):
        if len(text_parts) > 2 or not all(isinstance(part, str) for part in text_parts):
            raise AnalysisError(f"Texts must be strings or pairs of strings; text number {row} is {texts[row]!r}.")
    if len({len(text_parts) for text_parts in parts}) > 1:
        raise AnalysisError("Some texts are pairs and others are not. Pass only pairs or only single texts.")
    options = {"truncation": True, "max_length": max_length, "return_attention_mask": False}
    return tokenizer(*map(list, zip(*parts, strict=True)), **options)


def _encode(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, texts: Sequence[Text], max_length: int
) -> list[Inputs]:
    """Tokenize the texts; return the model inputs of those with at least one token, the longest first."""
    if tokenizer.pad_token is None:
        raise AnalysisError(
            "Batches need a tokenizer with a pad_token; this tokenizer has none. Set one, such as its eos_token."
        )
    encoded = _tokenize(tokenizer, texts, max_length) if texts else {"input_ids": []}
    names = ["input_ids"]
    # As in fine-tuning: tokenizers do not know whether the model has token type embeddings.
    if model.config.model_type == "xlnet" or getattr(model.config, "type_vocab_size", 0) > 1:
        names += ["token_type_ids"] if "token_type_ids" in encoded else []
    rows = [dict(zip(names, values, strict=True)) for values in zip(*(encoded[name] for name in names), strict=True)]
    rows = sorted((row for row in rows if row["input_ids"]), key=lambda row: -len(row["input_ids"]))
    if not rows:
        raise AnalysisError(f"There is nothing to attend to: the {len(texts)} texts have no token.")
    limit, longest = longest_input(model.config), len(rows[0]["input_ids"])
    if limit is not None and longest > limit:
        raise AnalysisError(
            f"A text has {longest} tokens, but the model has {limit} positions. Truncate texts to {limit} tokens or fewer "
            "(--max_length; for the text that is drawn, --heads_tokens)."
        )
    num_embeddings, largest = model.get_input_embeddings().num_embeddings, max(max(row["input_ids"]) for row in rows)
    if largest >= num_embeddings:
        raise AnalysisError(
            f"The tokenizer has a token id {largest}, but the model embeds {num_embeddings} tokens. Pass the model's "
            "own tokenizer."
        )
    return rows


def _split_batches(rows: list[Inputs], model: PreTrainedModel, batch_size: int) -> Iterator[list[Inputs]]:
    """Split the rows, sorted by length, into batches limited by `batch_size` and by the size of their maps."""
    maps = getattr(model.config, "num_hidden_layers", 12) * getattr(model.config, "num_attention_heads", 12)
    start = 0
    while start < len(rows):
        # The first row is the longest.
        fitting = WEIGHTS // (maps * len(rows[start]["input_ids"]) ** 2)
        size = max(1, min(batch_size, fitting))
        yield rows[start : start + size]
        start += size


def _pad_batch(rows: list[Inputs], tokenizer: PreTrainedTokenizerBase, model: PreTrainedModel) -> dict[str, torch.Tensor]:
    """Pad rows to one batch on the model's device."""
    return {name: values.to(model.device) for name, values in DataCollatorWithPadding(tokenizer)(rows).items()}


@contextmanager
def _attention_enabled(model: PreTrainedModel) -> Iterator[PreTrainedModel]:
    """Yield the model's body in evaluation mode with attention maps enabled; afterwards restore the model's state."""
    body: PreTrainedModel = model.get_encoder() if model.config.is_encoder_decoder else body_of(model)
    config = body.config
    training, implementation, output_attentions = model.training, config._attn_implementation, config.output_attentions
    try:
        model.eval()
        body.set_attn_implementation("eager")
        if config._attn_implementation != "eager":
            raise AnalysisError(
                f"{type(model).__name__} cannot change its attention. Load the model with attn_implementation='eager'."
            )
        config.output_attentions = True
        yield body
    finally:
        config.output_attentions = output_attentions
        body.set_attn_implementation(implementation)
        model.train(training)


def _compute_maps(body: nn.Module, batch: dict[str, torch.Tensor]) -> Sequence[torch.Tensor]:
    """Return the maps of each layer, float [B, A, S, S]."""
    maps = getattr(body(**batch), "attentions", None)
    texts, positions = batch["input_ids"].shape
    expected = (texts, positions, positions)
    if not maps or any(
        not torch.is_tensor(layer_maps) or (len(layer_maps), *layer_maps.shape[2:]) != expected for layer_maps in maps
    ):
        raise AnalysisError(
            f"{type(body).__name__} returns no attention maps of all tokens to all tokens: heads can be classified only in "
            "models with full attention."
        )
    return maps
