r"""Load any encoder that transformers loads, embed texts, measure the embedding space, and project it to two dimensions.

    model, tokenizer = load_encoder("runs/scierc")
    vectors = embed_texts(model, tokenizer, texts)
    similar = cosine_similarities(vectors, same_class_pairs(labels, 10_000))
    random = cosine_similarities(vectors, random_pairs(len(texts), 10_000))
    alignment(similar), uniformity(random)

Alignment and uniformity are Wang and Isola's (ICML 2020, section 4.1, with alpha = 2 and t = 2), of vectors of length 1:

.. math:: \ell_\mathrm{align} = \mathrm{E}_{\text{similar } x, y} \|x - y\|^2, \qquad
          \ell_\mathrm{uniform} = \log \mathrm{E}_{\text{random } x, y}\, e^{-2 \|x - y\|^2}

Smaller is better for both. As \|x - y\|^2 = 2 - 2 cos(x, y), both are functions of cosines.

Shapes: N texts, B texts of a batch, S tokens, H hidden size, P pairs.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tqdm.auto import tqdm
from transformers import AutoModel, DataCollatorWithPadding, PreTrainedModel, PreTrainedTokenizerBase

from hf_tlm.analysis.arguments import POOLINGS
from hf_tlm.corpora import load_corpus
from hf_tlm.data import load_tokenizer
from hf_tlm.errors import AnalysisError
from hf_tlm.hub.isolated_load import ADAPTER_CLASSES
from hf_tlm.hub.repo import ADAPTER_FILE, checkpoint_folder
from hf_tlm.models.adapters import load_merged, read_adapter
from hf_tlm.models.base import body_of
from hf_tlm.models.families import longest_input
from hf_tlm.models.loading import POOLER, hub_options, reading, without_reports
from hf_tlm.runs.finetuning.models import set_token_types
from hf_tlm.utils.options import check_numbers
from hf_tlm.utils.process import is_first_process
from hf_tlm.utils.shown import kind_of

# Pairs whose vectors are gathered at once: 100 MB at H = 768.
CHUNK = 1 << 14
SILHOUETTE_TEXTS = 5000


# Batches whose texts are tokenised and sorted by length together.
CHUNK_BATCHES = 32
# PCA components given to t-SNE, as its authors do: they preserve the neighbours and make distances cheaper.
COMPONENTS = 50
LEAST_TEXTS = 3


def load_encoder(
    name_or_path: str,
    *,
    max_length: int = 128,
    trust_remote_code: bool = False,
    attn_implementation: str | None = None,
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Load an encoder and its tokenizer, on a GPU if there is one, in evaluation mode.

    Returns (body, tokenizer). A head of the checkpoint is left out, an adapter is merged into its base model, and of an
    encoder-decoder only the encoder is kept.

    Args:
        name_or_path: folder, or Hub id, with `@revision` if wanted.
        max_length: number of tokens that the model has to accept.
        attn_implementation: "eager" if attention maps are wanted.

    Raises:
        AnalysisError: weights of the body are missing, or the model has fewer positions than `max_length`.
        ModelError, HubError, TokenizerError: it cannot be loaded.
    """
    options = hub_options(None, trust_remote_code, attn_implementation) | {"dtype": torch.float32}
    folder = checkpoint_folder(name_or_path, trust_remote_code=trust_remote_code)
    tokenizer = load_tokenizer(name_or_path, masking=False, trust_remote_code=trust_remote_code)
    # Suppress the loading report: a head that is left out is expected here.
    with without_reports(), reading("an encoder from", name_or_path):
        if (Path(folder) / ADAPTER_FILE).is_file():
            model, missing = _load_merged_body(folder, options), []
        else:
            model, info = AutoModel.from_pretrained(folder, output_loading_info=True, **options)
            missing = [key for key in info["missing_keys"] if POOLER not in key.split(".")]
    if missing:
        raise AnalysisError(
            f"{name_or_path} lacks weights of its body ({', '.join(sorted(missing)[:3])}), which would be random. Pass a "
            "checkpoint of a trained encoder."
        )
    positions = longest_input(model.config)
    if positions is not None and max_length > positions:
        raise AnalysisError(
            f"{name_or_path} has {positions} positions, fewer than {max_length}. Set --max_length to at most {positions}."
        )
    set_token_types(tokenizer, model.config)
    model = model.get_encoder() if model.config.is_encoder_decoder else model
    return model.eval().to("cuda" if torch.cuda.is_available() else "cpu"), tokenizer


def sample_corpus(corpus: str, count: int, *, seed: int = 0, least: int = 1, text_column: str = "text") -> list[str]:
    """Draw `count` texts of a corpus uniformly at random, or all if it has fewer, in the corpus's order.

    The corpus is read once, and only the drawn texts are kept in memory. Blank texts do not count.

    Raises:
        AnalysisError: the corpus has fewer than `least` texts.
    """
    rng, num_read = np.random.default_rng(seed), 0
    kept: list[tuple[float, int, str]] = []
    for _, batch in load_corpus(corpus, text_column=text_column).batches():
        texts = [text for text in batch["text"].to_pylist() if text and text.strip()]
        kept += zip(rng.random(len(texts)), range(num_read, num_read + len(texts)), texts, strict=True)
        kept, num_read = sorted(kept)[:count], num_read + len(texts)
    if len(kept) < least:
        raise AnalysisError(f"At least {least} texts that are not blank are needed; {corpus} has {len(kept)}.")
    return [text for _, _, text in sorted(kept, key=lambda drawn: drawn[1])]


@torch.inference_mode()
def embed_texts(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    texts: Sequence[str],
    text_pairs: Sequence[str] | None = None,
    *,
    pooling: str = "cls",
    layer: int = -1,
    max_length: int = 128,
    batch_size: int = 32,
    description: str = "Embedding",
) -> np.ndarray:
    """Embed texts: return a vector for each, float32 [N, H], not normalised. Batching and padding do not change them.

    Args:
        model: a model whose output has `last_hidden_state` or `hidden_states`; see `load_encoder`.
        text_pairs: N second texts, each encoded with the first text in one input.
        pooling: "cls": the vector of the tokenizer's [CLS], or of the first token if it adds none. "mean": the mean over
            all tokens but padding.
        layer: -1 is the last one, 0 the embedding layer, 1 the first layer after it.
        max_length: tokens after which a text is truncated.
        description: text of the progress bar.

    Raises:
        AnalysisError: an argument has a wrong type, a text is null or blank, there is no such pooling or layer, vectors are
            not finite, or all [CLS] vectors are the same, as in decoders, where the first token attends only to itself.
    """
    _check_encoder(model, tokenizer)
    _check_texts("texts", texts)
    if text_pairs is not None:
        _check_texts("text_pairs", text_pairs)
        if len(text_pairs) != len(texts):
            raise AnalysisError(f"text_pairs: expected as many as texts, {len(texts):,}; received {len(text_pairs):,}.")
    check_numbers(AnalysisError, layer=layer, max_length=max_length, batch_size=batch_size)
    if pooling not in POOLINGS:
        raise AnalysisError(f"pooling must be one of {', '.join(POOLINGS)}; received {pooling!r}.")
    both = [texts] if text_pairs is None else [texts, text_pairs]
    for row, parts in enumerate(zip(*both, strict=True)):
        if not all(isinstance(text, str) and text.strip() for text in parts):
            raise AnalysisError(f"Text {row} is null or blank: {parts!r:.80}. Remove such rows (--drop_bad_rows).")
    collate = DataCollatorWithPadding(tokenizer)
    chunks: list[np.ndarray] = []
    size = batch_size * CHUNK_BATCHES
    with tqdm(total=len(texts), desc=description, unit=" texts", disable=not is_first_process()) as bar:
        for start in range(0, len(texts), size):
            chunk = [list(part[start : start + size]) for part in both]
            inputs = tokenizer(*chunk, truncation=True, max_length=max_length)
            order = np.argsort([len(ids) for ids in inputs["input_ids"]], kind="stable")
            chunk_vectors = []
            for batch_start in range(0, len(order), batch_size):
                rows = order[batch_start : batch_start + batch_size]
                batch = collate([{name: values[row] for name, values in inputs.items()} for row in rows])
                batch = {name: values.to(model.device) for name, values in batch.items()}
                chunk_vectors.append(_pool_vectors(model, batch, tokenizer.cls_token_id, pooling, layer))
                bar.update(len(rows))
            chunks.append(np.concatenate(chunk_vectors)[np.argsort(order)])
    vectors = np.concatenate(chunks) if chunks else np.zeros((0, 0), np.float32)
    _check_vectors(vectors, texts, pooling)
    return vectors


def random_pairs(count: int, limit: int, *, seed: int = 0) -> np.ndarray:
    """Return pairs of two different texts out of `count`, int64 [P, 2].

    All pairs if there are at most `limit`, else `limit` draws with replacement.
    """
    return same_class_pairs(np.zeros(count, np.int64), limit, seed=seed)


def same_class_pairs(labels: np.ndarray, limit: int, *, seed: int = 0) -> np.ndarray:
    """Return pairs of two different texts of one class, int64 [P, 2].

    All pairs if there are at most `limit`, else `limit` draws with replacement, every pair with the same probability.

    Args:
        labels: int64 [N].
    """
    order = np.argsort(labels, kind="stable")
    _, starts, sizes = np.unique(np.asarray(labels)[order], return_index=True, return_counts=True)
    pairs_by_class = sizes * (sizes - 1) // 2
    if pairs_by_class.sum() <= limit:
        positions = [start + np.stack(np.triu_indices(size, 1), axis=1) for start, size in zip(starts, sizes, strict=True)]
        return order[np.concatenate(positions)] if positions else np.zeros((0, 2), np.int64)
    rng = np.random.default_rng(seed)
    classes = rng.choice(len(sizes), limit, p=pairs_by_class / pairs_by_class.sum())
    first, second = rng.integers(sizes[classes]), rng.integers(sizes[classes] - 1)
    second += second >= first
    return order[starts[classes, None] + np.stack([first, second], axis=1)]


def cosine_similarities(vectors: np.ndarray, pairs: np.ndarray) -> np.ndarray:
    """Return the cosine similarities of pairs of vectors, float64 [P], from -1 to 1.

    Args:
        vectors: [N, H], not necessarily normalised; a zero vector has similarity 0 to all.
        pairs: int64 [P, 2], rows of `vectors`.
    """
    lengths = np.linalg.norm(vectors.astype(np.float64), axis=1)
    cosines = np.empty(len(pairs))
    for start in range(0, len(pairs), CHUNK):
        first, second = pairs[start : start + CHUNK].T
        products = np.einsum("ph,ph->p", vectors[first], vectors[second], dtype=np.float64)
        scale = lengths[first] * lengths[second]
        cosines[start : start + CHUNK] = np.divide(products, scale, out=np.zeros_like(scale), where=scale > 0)
    return cosines.clip(-1, 1)


def alignment(cosines: np.ndarray) -> float:
    """Return the alignment, from 0 (the vectors of all similar pairs coincide) to 4.

    Args:
        cosines: [P], of similar pairs.
    """
    return float(np.mean(2 - 2 * cosines))


def uniformity(cosines: np.ndarray) -> float:
    """Return the uniformity, from -8 to 0 (all vectors coincide); evenly spread vectors of many dimensions reach about -4.

    Args:
        cosines: [P], of random pairs.
    """
    return float(np.log(np.mean(np.exp(-2 * (2 - 2 * cosines)))))


def silhouette(vectors: np.ndarray, labels: np.ndarray, *, seed: int = 0) -> float:
    """Return the silhouette score of the classes by cosine distance (Rousseeuw 1987), from -1 to 1 (well separated).

    It measures how much nearer texts are to their own class than to the next one. At most 5000 texts are used, drawn at
    random.

    Args:
        vectors: [N, H].
        labels: int64 [N], of at least two classes and fewer than N.
    """
    from sklearn.metrics import silhouette_score

    drawn = np.random.default_rng(seed).permutation(len(labels))[:SILHOUETTE_TEXTS]
    return float(silhouette_score(vectors[drawn], labels[drawn], metric="cosine"))


def project(vectors: np.ndarray, *, perplexity: float = 30.0, seed: int = 0) -> np.ndarray:
    """Project vectors to two dimensions, float32 [N, 2]: t-SNE of the first 50 principal components.

    Equal seeds give equal results. Distances between clusters and their sizes mean nothing, and axes have no unit.

    Args:
        vectors: [N, H].
        perplexity: about the number of neighbours of a text. It is reduced to (N - 1) / 3 if larger, as t-SNE looks at
            three times that many.

    Raises:
        AnalysisError: there are fewer than three vectors, or all are the same.
    """
    from sklearn.decomposition import PCA
    from sklearn.manifold import TSNE

    if len(vectors) < LEAST_TEXTS:
        raise AnalysisError(f"t-SNE needs at least {LEAST_TEXTS} texts; received {len(vectors)}.")
    if (vectors == vectors[0]).all():
        raise AnalysisError(f"t-SNE needs vectors that differ; all {len(vectors)} are the same.")
    size = min(COMPONENTS, *vectors.shape)
    reduced = PCA(size, svd_solver="full", random_state=seed).fit_transform(vectors.astype(np.float64))
    if reduced.shape[1] < 2:
        reduced = np.pad(reduced, [(0, 0), (0, 1)])
    tsne = TSNE(perplexity=min(perplexity, (len(vectors) - 1) / 3), init="pca", learning_rate="auto", random_state=seed)
    return tsne.fit_transform(reduced).astype(np.float32)


def _load_merged_body(folder: str, options: dict[str, Any]) -> PreTrainedModel:
    """Load the body of a base model with an adapter merged into it."""
    adapter = read_adapter(folder)
    bare = "AutoModelForMultipleChoice" if adapter.modules_to_save else "AutoModelForMaskedLM"
    model = load_merged(folder, ADAPTER_CLASSES.get(adapter.task_type or "", bare), **options)
    assert isinstance(model, PreTrainedModel)  # All Auto classes return one.
    return body_of(model)


def _check_encoder(model: Any, tokenizer: Any) -> None:
    if not isinstance(model, torch.nn.Module):
        argument = json.dumps(os.fspath(model), ensure_ascii=False) if isinstance(model, (str, os.PathLike)) else "..."
        received = kind_of(model) if argument == "..." else argument
        raise AnalysisError(
            f"model: expected an encoder; received {received}. Pass the first value that load_encoder({argument}) returns."
        )
    if not isinstance(tokenizer, PreTrainedTokenizerBase):
        raise AnalysisError(
            f"tokenizer: expected a tokenizer of transformers; received {kind_of(tokenizer)}. Pass the second value that "
            "load_encoder(...) returns."
        )


def _check_texts(name: str, texts: Any) -> None:
    if isinstance(texts, (str, bytes)) or not (hasattr(texts, "__len__") and hasattr(texts, "__getitem__")):
        suggestion = "[text]" if isinstance(texts, str) else "list(texts)" if hasattr(texts, "__iter__") else "a list"
        raise AnalysisError(f"{name}: expected a list of texts; received {kind_of(texts)}. Pass {suggestion}.")
    if isinstance(texts, Mapping) or hasattr(texts, "column_names"):
        raise AnalysisError(f"{name}: expected a list of texts; received {kind_of(texts)}. Pass its column: rows['text'].")


def _pool_vectors(model: PreTrainedModel, batch: dict, cls_token_id: int | None, pooling: str, layer: int) -> np.ndarray:
    """Return the pooled vectors of a batch, float32 [B, H]."""
    if layer == -1:
        hidden = model(**batch).last_hidden_state
    else:
        layers = model(**batch, output_hidden_states=True).hidden_states
        if not -len(layers) <= layer < len(layers):
            raise AnalysisError(f"layer must be from 0 to {len(layers) - 1}, or -1 for the last; received {layer}.")
        hidden = layers[layer]
    hidden, mask = hidden.float(), batch["attention_mask"]
    if pooling == "mean":
        return ((hidden * mask[..., None]).sum(dim=1) / mask.sum(dim=1, keepdim=True)).cpu().numpy()
    is_cls = (batch["input_ids"] == cls_token_id) & (mask == 1) if cls_token_id is not None else mask == 0
    # XLNet puts [CLS] at the end and pads on the left.
    is_cls = torch.where(is_cls.any(dim=1, keepdim=True), is_cls, mask == 1)
    first = is_cls.int().argmax(dim=1)
    return hidden[torch.arange(len(hidden), device=hidden.device), first].cpu().numpy()


def _check_vectors(vectors: np.ndarray, texts: Sequence[str], pooling: str) -> None:
    if not np.isfinite(vectors).all():
        raise AnalysisError("The model's vectors are not finite numbers: its weights are damaged, or its training diverged.")
    if pooling == "cls" and len(set(texts)) > 1 and np.ptp(vectors, axis=0).max() <= 1e-6 * np.abs(vectors).max():
        raise AnalysisError(
            "All texts have the same [CLS] vector: the model is a decoder, whose first token attends only to itself, or has "
            "collapsed. Try --pooling mean."
        )
