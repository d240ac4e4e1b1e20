"""Spectral warm start: token embeddings from the co-occurrence statistics of the training text, before any step.

A masked LM spends its first millions of tokens on what counting finds in seconds: which tokens occur near which. Here
token embeddings start as a truncated SVD of the positive pointwise mutual information (PPMI) of those counts (Levy and
Goldberg 2014; Levy et al. 2015 for the context exponent). This is an addition of hf_tlm to the published methods.

V vocabulary, D embedding dimension.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch
from torch import nn
from tqdm.auto import tqdm

from hf_tlm.models.families import ModelError

_CHUNK_TOKENS = 1 << 20
# Each nonzero takes 12 bytes (float64 value, int32 column in CSR) and as much again while a chunk is added.
MAX_NONZEROS = 60_000_000


@dataclass
class SpectralEmbeddings:
    """vectors: float32 [V, D], each row of norm `scale`, zero for a token without statistics.

    report: what they were made from, for logs and cards.
    """

    vectors: np.ndarray
    report: dict[str, Any]

    def write_to(self, model: nn.Module) -> None:
        """Copy the rows into the model's input embedding in place; tied output embeddings follow.

        Tokens without statistics (special tokens, tokens that never occur) keep their initial rows.

        Raises:
            ModelError: the model's embedding has another shape.
        """
        weight = model.get_input_embeddings().weight
        if tuple(weight.shape) != self.vectors.shape:
            raise ModelError(f"Spectral embeddings of shape {self.vectors.shape} do not fit {tuple(weight.shape)}.")
        known = np.flatnonzero(self.vectors.any(axis=1))
        with torch.no_grad():
            weight[torch.from_numpy(known)] = torch.from_numpy(self.vectors[known]).to(weight)


def cooccurrence(
    texts: Iterable[Sequence[int]],
    vocab_size: int,
    *,
    window: int = 5,
    ignore: Collection[int] = (),
    max_nonzeros: int = MAX_NONZEROS,
) -> tuple[sp.csr_matrix, float]:
    """Symmetric counts of token pairs at most `window` positions apart in one text, each weighted by 1 / distance.

    Ignored ids keep their positions but are in no pair. Texts are read in chunks. When more than `max_nonzeros` pairs
    are held, the rarest are forgotten until half remain, so memory is bounded whatever the number of texts.

    Returns:
        (counts float64 CSR [V, V], the weight that was forgotten as a share of all).
    """
    ignored = np.zeros(vocab_size, dtype=bool)
    ignored[list(ignore)] = True
    counts = sp.csr_matrix((vocab_size, vocab_size), dtype=np.float64)
    forgotten = 0.0
    for chunk in _chunks(texts):
        ids = np.concatenate(chunk)
        owner = np.repeat(np.arange(len(chunk)), [len(text) for text in chunk])
        usable = ~ignored[ids]
        for distance in range(1, window + 1):
            left, right = ids[:-distance], ids[distance:]
            pair = (owner[:-distance] == owner[distance:]) & usable[:-distance] & usable[distance:]
            weights = np.full(int(pair.sum()), 1.0 / distance)
            counts = counts + sp.coo_matrix((weights, (left[pair], right[pair])), shape=counts.shape).tocsr()
        if counts.nnz > max_nonzeros:
            keep = np.partition(counts.data, counts.nnz - max_nonzeros // 2)[counts.nnz - max_nonzeros // 2]
            forgotten += counts.data[counts.data < keep].sum()
            counts.data[counts.data < keep] = 0.0
            counts.eliminate_zeros()
    counts = (counts + counts.T).tocsr()
    total = counts.sum() + 2 * forgotten
    return counts, float(2 * forgotten / total) if total else 0.0


def _chunks(texts: Iterable[Sequence[int]]) -> Iterable[list[np.ndarray]]:
    """Lists of texts of about `_CHUNK_TOKENS` tokens in all, empty texts left out."""
    chunk: list[np.ndarray] = []
    size = 0
    for text in tqdm(texts, desc="Counting co-occurrences", unit=" texts"):
        if len(text):
            chunk.append(np.asarray(text, dtype=np.int64))
            size += len(text)
        if size >= _CHUNK_TOKENS:
            yield chunk
            chunk, size = [], 0
    if chunk:
        yield chunk


def ppmi(counts: sp.csr_matrix, context_power: float = 0.75) -> sp.csr_matrix:
    """max(0, log p(t, c) / (p(t) p'(c))), with p' from context counts to the power `context_power`; sparse [V, V]."""
    total = counts.sum()
    tokens = np.asarray(counts.sum(axis=1)).ravel() / total
    contexts = np.asarray(counts.sum(axis=0)).ravel() ** context_power
    contexts = contexts / contexts.sum()
    result = counts.tocoo(copy=True)
    result.data = np.maximum(np.log(result.data / total / (tokens[result.row] * contexts[result.col])), 0.0)
    result = result.tocsr()
    result.eliminate_zeros()
    return result


def spectral_embeddings(
    texts: Iterable[Sequence[int]],
    vocab_size: int,
    dim: int,
    *,
    scale: float = 1.0,
    window: int = 5,
    context_power: float = 0.75,
    ignore: Collection[int] = (),
    max_nonzeros: int = MAX_NONZEROS,
    seed: int = 0,
) -> SpectralEmbeddings:
    """U sqrt(S) of the randomised SVD of the PPMI matrix, rows normalised to length `scale`.

    Args:
        texts: token ids of each text.
        dim: D, the model's embedding dimension (the factorised one where a body has it).
        ignore: ids without meaning of their own: special tokens.

    Raises:
        ModelError: the texts hold no pair of tokens.
    """
    from sklearn.utils.extmath import randomized_svd

    started = time.monotonic()
    counts, forgotten = cooccurrence(texts, vocab_size, window=window, ignore=ignore, max_nonzeros=max_nonzeros)
    if counts.nnz == 0:
        raise ModelError("Spectral embeddings need texts of two tokens or more, and there are none.")
    rank = min(dim, vocab_size - 1)
    left, singular, _ = randomized_svd(ppmi(counts, context_power), n_components=rank, random_state=seed)
    vectors = np.zeros((vocab_size, dim), dtype=np.float32)
    vectors[:, :rank] = left * np.sqrt(singular)
    # A token of the null space has only rounding errors: it has no direction to normalise.
    norms = np.linalg.norm(vectors, axis=1, keepdims=True)
    known = norms > 1e-6 * norms.max()
    vectors = np.where(known, vectors / np.where(known, norms, 1.0), 0.0).astype(np.float32) * np.float32(scale)
    report = {
        "window": window,
        "context_power": context_power,
        "scale": scale,
        "tokens_covered": int(known.sum()),
        "vocab_size": vocab_size,
        "nonzeros": int(counts.nnz),
        "forgotten_share": forgotten,
        "seconds": round(time.monotonic() - started, 2),
    }
    return SpectralEmbeddings(vectors, report)
