"""Spectral warm start: token embeddings from the co-occurrence statistics of the training text, before any step.

A masked LM spends its first millions of tokens on what counting finds in seconds: which tokens occur near which. Here
token embeddings start as a truncated SVD of the positive pointwise mutual information (PPMI) of those counts (Levy and
Goldberg 2014; Levy et al. 2015 for the context exponent). This is an addition of hf_tlm to the published methods.

Shapes: V vocabulary, D embedding dimension.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch
from tqdm.auto import tqdm
from transformers import PreTrainedModel

from hf_tlm.errors import ModelError
from hf_tlm.models.base import embedding_weight

_CHUNK_TOKENS = 1 << 20
WINDOW, CONTEXT_POWER = 5, 0.75
# Pairs in one direction, 12 bytes each while they are counted. Making them symmetric and computing the PMI needs about five
# times as much at once: 2 GB at the limit, which a million passages of 100 words do not reach at a vocabulary of 30,000.
MAX_NONZEROS = 30_000_000


@dataclass
class SpectralEmbeddings:
    """Token embeddings computed from co-occurrence counts.

    Attributes:
        vectors: float32 [V, D], each row of norm `scale`, zero for a token without statistics.
        report: how they were computed, for logs and cards.
    """

    vectors: np.ndarray
    report: dict[str, Any]

    @property
    def known(self) -> np.ndarray:
        """Ids of the tokens that have statistics, int64 [n]."""
        return np.flatnonzero(self.vectors.any(axis=1))

    def write_to(self, model: PreTrainedModel) -> None:
        """Copy the rows into the model's input embedding in place; tied output embeddings follow.

        Tokens without statistics (special tokens, tokens that never occur) keep their initial rows.

        Raises:
            ModelError: the model's embedding has another shape.
        """
        weight = embedding_weight(model)
        if tuple(weight.shape) != self.vectors.shape:
            raise ModelError(
                f"Spectral embeddings of shape {self.vectors.shape} do not fit the model's {tuple(weight.shape)}: create "
                "them with its vocabulary size and embedding dimension."
            )
        with torch.no_grad():
            weight[torch.from_numpy(self.known)] = torch.from_numpy(self.vectors[self.known]).to(weight)

    def padded(self, size: int) -> SpectralEmbeddings:
        """Return these embeddings with zeros appended, vectors float32 [V, size]."""
        return replace(self, vectors=np.pad(self.vectors, ((0, 0), (0, size - self.vectors.shape[1]))))


def cooccurrence(
    texts: Iterable[Sequence[int]],
    vocab_size: int,
    *,
    window: int = WINDOW,
    ignore: Collection[int] = (),
    max_nonzeros: int = MAX_NONZEROS,
) -> tuple[sp.csr_matrix, float]:
    """Count token pairs at most `window` positions apart in one text, symmetrically and weighted by 1 / distance.

    Ignored ids keep their positions but are in no pair. Texts are read in chunks. When more than `max_nonzeros` pairs
    are held, the rarest are dropped until half remain, so memory is bounded whatever the number of texts.

    Returns:
        The counts, float64 CSR [V, V], and the dropped weight as a share of the total.

    Raises:
        ModelError: window or max_nonzeros too small, or an id outside the vocabulary.
    """
    if window < 1 or max_nonzeros < 2:
        raise ModelError(f"window must be at least 1, and max_nonzeros at least 2; received {window} and {max_nonzeros}.")
    ignored = np.zeros(vocab_size, dtype=bool)
    ignored[list(ignore)] = True
    # Each pair once, the smaller id as the row: half the memory, and `_drop_rarest` treats both directions alike.
    counts = sp.csr_matrix((vocab_size, vocab_size), dtype=np.float64)
    dropped = 0.0
    for chunk in token_chunks(texts, "Counting co-occurrences"):
        ids = np.concatenate(chunk)
        if ids.max() >= vocab_size or ids.min() < 0:
            raise ModelError(f"Token id {max(ids.max(), -ids.min())} is outside the vocabulary of {vocab_size} tokens.")
        text_indices = np.repeat(np.arange(len(chunk)), [len(text) for text in chunk])
        usable = ~ignored[ids]
        for distance in range(1, window + 1):
            is_pair = (text_indices[:-distance] == text_indices[distance:]) & usable[:-distance] & usable[distance:]
            left, right = ids[:-distance][is_pair], ids[distance:][is_pair]
            weights = np.full(len(left), 1.0 / distance)
            indices = (np.minimum(left, right), np.maximum(left, right))
            counts = counts + sp.coo_matrix((weights, indices), shape=counts.shape).tocsr()
        if counts.nnz > max_nonzeros:
            dropped += _drop_rarest(counts, max_nonzeros // 2)
    counts = (counts + counts.T).tocsr()
    total = counts.sum() + 2 * dropped
    return counts, float(2 * dropped / total) if total else 0.0


def _drop_rarest(counts: sp.csr_matrix, keep: int) -> float:
    """Drop all but the `keep` largest counts in place (of equal ones the first), and return the dropped weight."""
    threshold = np.partition(counts.data, counts.nnz - keep)[counts.nnz - keep]
    is_kept = counts.data > threshold
    is_kept[np.flatnonzero(counts.data == threshold)[: keep - int(is_kept.sum())]] = True
    dropped = float(counts.data[~is_kept].sum())
    counts.data[~is_kept] = 0.0
    counts.eliminate_zeros()
    return dropped


def token_chunks(texts: Iterable[Sequence[int]], description: str) -> Iterable[list[np.ndarray]]:
    """Yield lists of texts with about a million tokens per list, each text int64; empty texts are left out.

    Args:
        description: of the progress bar.
    """
    chunk: list[np.ndarray] = []
    size = 0
    for text in tqdm(texts, desc=description, unit=" texts"):
        if len(text):
            chunk.append(np.asarray(text, dtype=np.int64))
            size += len(text)
        if size >= _CHUNK_TOKENS:
            yield chunk
            chunk, size = [], 0
    if chunk:
        yield chunk


def ppmi(counts: sp.csr_matrix) -> sp.csr_matrix:
    """Return the positive pointwise mutual information of counts, float32 CSR [V, V].

    It is max(0, log p(t, c) / (p(t) p'(c))), with p' from context counts to the power `CONTEXT_POWER`.
    """
    tokens = np.asarray(counts.sum(axis=1)).ravel()
    contexts = np.asarray(counts.sum(axis=0)).ravel() ** CONTEXT_POWER
    rows = np.repeat(np.arange(counts.shape[0]), np.diff(counts.indptr))
    expected = tokens[rows] * (contexts / contexts.sum())[counts.indices]
    values = np.maximum(np.log(counts.data / expected), 0.0).astype(np.float32)
    result = sp.csr_matrix((values, counts.indices, counts.indptr), shape=counts.shape, copy=True)
    result.eliminate_zeros()
    return result


def spectral_embeddings(
    texts: Iterable[Sequence[int]],
    vocab_size: int,
    dim: int,
    *,
    scale: float = 1.0,
    ignore: Collection[int] = (),
) -> SpectralEmbeddings:
    """Compute token embeddings: U sqrt(S) of the randomised SVD of the PPMI matrix, rows normalised to length `scale`.

    Args:
        texts: token ids of each text.
        dim: D, the model's embedding dimension (the factorised one where a body has it).
        ignore: ids without meaning of their own: special tokens.

    Raises:
        ModelError: the texts hold no pair of tokens.
    """
    from sklearn.utils.extmath import randomized_svd

    started = time.monotonic()
    counts, dropped_share = cooccurrence(texts, vocab_size, ignore=ignore)
    if counts.nnz == 0:
        raise ModelError("Spectral embeddings need texts of at least two tokens; found none.")
    matrix = ppmi(counts)
    rank = min(dim, vocab_size - 1)
    # In float32, the matrix's own precision: two to three times as fast, and the same subspace.
    left, singular, _ = randomized_svd(matrix, n_components=rank, random_state=0)
    # Directions of the null space and tokens without any association hold only rounding errors: they become zero.
    singular = np.where(singular > singular[0] * vocab_size * np.finfo(np.float32).eps, singular, 0.0)
    has_statistics = np.diff(matrix.indptr) > 0
    vectors = np.zeros((vocab_size, dim), dtype=np.float32)
    vectors[:, :rank] = left * np.sqrt(singular)
    norms = np.linalg.norm(vectors, axis=1)
    has_statistics &= norms > 0
    vectors[~has_statistics] = 0.0
    vectors[has_statistics] *= scale / norms[has_statistics, None]
    report = {
        "window": WINDOW,
        "context_power": CONTEXT_POWER,
        "scale": scale,
        "tokens_covered": int(has_statistics.sum()),
        "vocab_size": vocab_size,
        "nonzeros": int(counts.nnz),
        "forgotten_share": dropped_share,
        "seconds": round(time.monotonic() - started, 2),
    }
    return SpectralEmbeddings(vectors, report)
