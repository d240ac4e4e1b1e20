"""Dynamic masking and cropping whose randomness depends on the text and the visit, not on the batch.

Usually masks are drawn from a global generator in batch order, so they change with the batch size and the number of
processes, and when a run is resumed. Here every token's random numbers are a hash of (seed, draw, position in its text):
one vectorised pass over the batch, and the same masks however the texts are batched or packed.

A crop is the second view of a text, a contiguous part of it (COCO-LM, Meng et al., NeurIPS 2021, section 3.3, X_crop).
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from datasets import Dataset
from transformers import PreTrainedTokenizerBase

from hf_tlm.data.interleave import mix
from hf_tlm.data.tokenization import TokenizerError, special_ids
from hf_tlm.errors import HfTlmError

# P(l > k), k = 0, ..., 9, of the length l of a span: P(l) is proportional to 0.2 * 0.8 ** (l - 1) up to 10; 3.8 on average.
_LENGTH_SURVIVAL = (0.8 ** np.arange(10) - 0.8**10) / (1 - 0.8**10)


def with_draws(rows: Any) -> Any:
    """Add a column `draw` to evaluation passages, or to a mapping of several sets of them, unless they have one.

    A passage's mask is then the same at every evaluation and in every run. Anything but a `datasets.Dataset` is returned
    unchanged.
    """
    if isinstance(rows, Mapping):
        return {name: with_draws(some) for name, some in rows.items()}
    if not isinstance(rows, Dataset) or "draw" in rows.column_names:
        return rows
    return rows.add_column("draw", [-1 - number for number in range(len(rows))])  # Draws of training are not negative.


def uniforms(seed: int, draws: np.ndarray, positions: np.ndarray, stream: int) -> np.ndarray:
    """Return independent uniform numbers in [0, 1), float64 [T], a function of seed, draw, position and stream only.

    Args:
        draws: int64 [T], the draw of each token's text.
        positions: int64 [T], each token's position in its text, from 0.
        stream: which of several independent sequences: 0 choice of tokens, 1 corruption of chosen tokens (mask, random or
            unchanged), 2 random tokens, 3 replacements (`TlmCollator`), 4 crops (`Cropper`).
    """
    golden = np.uint64(0x9E3779B97F4A7C15)
    with np.errstate(over="ignore"):
        key = mix(np.uint64(seed % 2**64) * golden + np.uint64(stream + 1))
        text_hashes = mix(draws.astype(np.uint64) * golden + key)
        bits = mix(text_hashes + (positions.astype(np.uint64) + np.uint64(1)) * golden)
    return (bits >> np.uint64(11)) * 2.0**-53


def to_float32(numbers: np.ndarray) -> np.ndarray:
    """Convert numbers of `uniforms` to float32 in [0, 1), where rounding alone would make the largest ones 1."""
    return np.minimum(numbers, 1 - 2.0**-24).astype(np.float32)


def choose_spans(draws: np.ndarray, positions: np.ndarray, seed: int, mlm_probability: float) -> np.ndarray:
    """Choose tokens in spans of geometric length, at most 10 (SpanBERT, Joshi et al., TACL 2020, section 3.1).

    A span begins at every position with the same probability, also at positions before the first token, so that every token
    is chosen with `mlm_probability`. One uniform number per position decides whether a span begins there and how long it
    is. (SpanBERT's spans consist of whole words and are drawn until a share of the text is reached.)

    Args:
        draws, positions: int64 [T], see `uniforms`.

    Returns:
        bool [T], whether each token is in a span; special tokens are not excluded.
    """
    start_probability = _start_probability(mlm_probability)
    covered = np.zeros(len(draws), dtype=bool)
    for offset, survival in enumerate(_LENGTH_SURVIVAL):
        covered |= uniforms(seed, draws, positions - offset, stream=0) < start_probability * survival
    return covered


@functools.cache
def _start_probability(mlm_probability: float) -> float:
    """Return the probability p with which spans begin, by bisection of 1 - prod_k (1 - p P(l > k)) = `mlm_probability`."""
    low, high = 0.0, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if 1 - np.prod(1 - middle * _LENGTH_SURVIVAL) < mlm_probability else (low, middle)
    return high


def chances(seed: int, draws: np.ndarray, positions: np.ndarray, starts: np.ndarray | None) -> np.ndarray:
    """Return the uniform numbers that choose tokens, float64 [T]: a token is chosen where it is below `mlm_probability`."""
    return uniforms(seed, draws, positions if starts is None else starts, stream=0)


def word_continuations(tokenizer: PreTrainedTokenizerBase) -> np.ndarray:
    """Return which tokens of the vocabulary continue the word of the previous token, bool [V].

    WordPiece marks such tokens. Other vocabularies mark tokens that follow a space instead, so with them a word includes
    the punctuation that follows it, and a text without spaces (Chinese, Japanese) is one word.

    Raises:
        TokenizerError: the tokens mark neither.
    """
    model: Any = getattr(getattr(tokenizer, "backend_tokenizer", None), "model", None)
    tokens = [str(token) for token in tokenizer.convert_ids_to_tokens(list(range(len(tokenizer))))]
    # The marks of byte-level BPE and SentencePiece. The first is also a letter, with which tokens of many languages begin.
    mark_counts = {mark: sum(token.startswith(mark) for token in tokens) for mark in ("\u0120", "\u2581")}
    space_mark = max(mark_counts, key=mark_counts.__getitem__)
    if type(model).__name__ == "WordPiece":
        flags = [token.startswith(model.continuing_subword_prefix) for token in tokens]
    elif mark_counts[space_mark] and not getattr(model, "end_of_word_suffix", None):
        flags = [not token.startswith((space_mark, "\u010a", " ")) for token in tokens]  # Newlines; spaces of added tokens.
    else:
        raise TokenizerError(
            f"whole_word_mask needs tokens that show where words begin, and those of this {type(tokenizer).__name__} do "
            "not. Remove whole_word_mask, or use a WordPiece tokenizer (BERT), a byte-level one (RoBERTa) or SentencePiece "
            "(ALBERT)."
        )
    continues = np.array(flags)
    continues[special_ids(tokenizer)] = False
    return continues


def word_starts(continues: np.ndarray, maskable: np.ndarray, positions: np.ndarray) -> np.ndarray:
    """Return, for every token, the position in its text of the first token of its word, int64 [T].

    Args:
        continues: bool [T], whether each token continues a word, see `word_continuations`. The first token of a text, and
            a token after a special token, always begin a word.
        maskable, positions: see `mask_tokens`; one text after the other.
    """
    is_start = ~continues | (positions == 0) | ~np.roll(maskable, 1)
    return positions[np.maximum.accumulate(np.where(is_start, np.arange(len(is_start)), 0))]


def mask_tokens(
    input_ids: np.ndarray,
    maskable: np.ndarray,
    draws: np.ndarray,
    positions: np.ndarray,
    *,
    seed: int,
    mlm_probability: float,
    mask_token_id: int,
    vocab_size: int,
    replacing: bool = False,
    spans: bool = False,
    starts: np.ndarray | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """Choose tokens for masked language modelling, and corrupt them.

    Each maskable token is chosen with `mlm_probability`; with `spans`, contiguous tokens are chosen together
    (`choose_spans`). Of the chosen tokens, 80% become the mask token (with `replacing` all), 10% a random token of the
    vocabulary, and the rest stays unchanged, as in BERT: decided for each token, or with `spans` for each span.

    Args:
        input_ids: int64 [T], the tokens of any number of texts, in any order; with `spans` one text after the other.
        maskable: bool [T], False at special tokens.
        draws, positions: int64 [T], see `uniforms`.
        starts: result of `word_starts`, so that the tokens of a word are chosen together, though each is corrupted
            independently; None, without `spans`: each token is chosen independently.

    Returns:
        (corrupted ids int64 [T], labels int64 [T] with the original id at chosen tokens and -100 elsewhere).
    """
    if spans:
        covered = choose_spans(draws, positions, seed, mlm_probability) & maskable
        # The number at a span's first token decides how the span is corrupted. Adjacent spans count as one.
        is_start = covered & ~(np.roll(covered, 1) & (positions > 0))
        deciding_index = np.maximum.accumulate(np.where(is_start, np.arange(len(covered)), 0))
    else:
        covered = (chances(seed, draws, positions, starts) < mlm_probability) & maskable
        deciding_index = np.arange(len(covered))
    chosen = np.flatnonzero(covered)
    labels, corrupted = np.full_like(input_ids, -100), input_ids.copy()
    labels[chosen] = input_ids[chosen]
    action = uniforms(seed, draws[chosen], positions[deciding_index[chosen]], stream=1)
    random_ids = (uniforms(seed, draws[chosen], positions[chosen], stream=2) * vocab_size).astype(np.int64)
    corrupted[chosen[(action < 0.8) | replacing]] = mask_token_id
    is_random = (action >= 0.9) & (not replacing)
    corrupted[chosen[is_random]] = random_ids[is_random]
    return corrupted, labels


@dataclass(frozen=True)
class Cropper:
    """A transform that crops texts to a random contiguous `fraction` of their tokens, at least one.

    [CLS] is put in front and, if the tokenizer has one, [SEP] at the end, so that both views of a text have the same form.
    The paper has [CLS] as the sequence's first token and does not mention [SEP].

    The fraction is of the tokens between the special tokens around a text (separators inside it are kept), and rounded to a
    number of tokens. The start of the crop is one random number, a function of seed and draw, like masks
    (`hf_tlm.data.masking`).

    Args:
        fraction: in (0, 1] (0.9 in the paper; Figure 4 compares others); 1 crops nothing.

    Raises:
        HfTlmError: `fraction` is out of range.
        TokenizerError: the tokenizer has no [CLS].
    """

    tokenizer: PreTrainedTokenizerBase
    fraction: float
    seed: int

    def __post_init__(self):
        if not 0 < self.fraction <= 1:
            raise HfTlmError(
                f"crop_fraction, the share of a text that is kept, must be in (0, 1]; received {self.fraction}."
            )
        if self.tokenizer.cls_token_id is None:
            raise TokenizerError(
                "Cropped texts begin with a cls_token, whose vector stands for the text, and this tokenizer has none. Use "
                "the tokenizer of an encoder (BERT, RoBERTa, ...), or switch contrastive learning off: --scl false."
            )

    def __call__(self, texts: list[dict], special: np.ndarray) -> list[dict]:
        """Return the cropped texts: `input_ids`, and `token_type_ids` if the texts have them.

        Args:
            texts: rows with `input_ids`, `draw` and optionally `token_type_ids`, see `TlmCollator`.
            special: bool [V], which tokens are special.
        """
        draws = np.array([text["draw"] for text in texts], dtype=np.int64)
        start_uniforms = uniforms(self.seed, draws, np.zeros_like(draws), stream=4)
        return [self._crop(text, special, start_uniform) for text, start_uniform in zip(texts, start_uniforms, strict=True)]

    def _crop(self, text: dict, special: np.ndarray, start_uniform: float) -> dict:
        ids = np.asarray(text["input_ids"])
        inner = np.flatnonzero(~special[ids])
        if not len(inner):  # Nothing but special tokens.
            return {name: text[name] for name in ("input_ids", "token_type_ids") if name in text}
        inner_length = inner[-1] + 1 - inner[0]
        length = max(1, int(self.fraction * inner_length + 0.5))
        start = inner[0] + int(start_uniform * (inner_length - length + 1))
        end = [] if self.tokenizer.sep_token_id is None else [self.tokenizer.sep_token_id]
        cropped = {"input_ids": np.concatenate([[self.tokenizer.cls_token_id], ids[start : start + length], end])}
        if "token_type_ids" in text:
            types = np.asarray(text["token_type_ids"])
            span = types[start : start + length]
            cropped["token_type_ids"] = np.concatenate([types[:1], span, span[-1:] if end else []])
        return cropped
