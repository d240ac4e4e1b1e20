"""Dynamic masking whose randomness depends on the text and the visit, not on the batch.

The usual way draws masks from a global generator in batch order, so another batch size, another number of processes or
a resumed run masks differently. Here every position's random numbers are a hash of (seed, draw, position): one
vectorised pass over the batch, and the same masks however the texts are batched.
"""

from __future__ import annotations

import numpy as np


def _mix(x: np.ndarray) -> np.ndarray:
    """The splitmix64 finaliser (Steele et al. 2014): a bijection of uint64 whose output bits all depend on all input."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def uniforms(seed: int, draws: np.ndarray, length: int, stream: int) -> np.ndarray:
    """Independent uniforms in [0, 1), float64 [B, length], a function of seed, draw, position and stream only.

    Args:
        draws: int64 [B], one per text.
        stream: which of several independent tables is wanted.
    """
    golden = np.uint64(0x9E3779B97F4A7C15)
    with np.errstate(over="ignore"):
        key = _mix(np.uint64(seed % 2**64) * golden + np.uint64(stream + 1))
        rows = _mix(draws.astype(np.uint64) * golden + key)
        bits = _mix(rows[:, None] + np.arange(1, length + 1, dtype=np.uint64)[None, :] * golden)
    return (bits >> np.uint64(11)) * 2.0**-53


def mask_tokens(
    input_ids: np.ndarray,
    maskable: np.ndarray,
    draws: np.ndarray,
    *,
    seed: int,
    mlm_probability: float,
    mask_token_id: int,
    vocab_size: int,
) -> tuple[np.ndarray, np.ndarray]:
    """BERT's corruption: each maskable token is chosen with `mlm_probability`; of those 80% become the mask token, 10%
    a random token of the vocabulary, 10% stay.

    Args:
        input_ids: int64 [B, S].
        maskable: bool [B, S], False at special tokens and padding.
        draws: int64 [B].

    Returns:
        (corrupted ids int64 [B, S], labels int64 [B, S] with the original id at chosen positions and -100 elsewhere).
    """
    length = input_ids.shape[1]
    chosen = (uniforms(seed, draws, length, stream=0) < mlm_probability) & maskable
    labels = np.where(chosen, input_ids, -100)
    action = uniforms(seed, draws, length, stream=1)
    random_ids = (uniforms(seed, draws, length, stream=2) * vocab_size).astype(np.int64)
    corrupted = np.where(chosen & (action < 0.8), mask_token_id, input_ids)
    return np.where(chosen & (action >= 0.9), random_ids, corrupted), labels
