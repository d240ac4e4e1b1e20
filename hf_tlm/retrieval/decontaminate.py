"""Finding the passages of a corpus that give away validation or test texts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from hf_tlm.retrieval.analyzer import RetrievalError
from hf_tlm.retrieval.ngrams import hash_ngrams, hash_words, words

if TYPE_CHECKING:
    from hf_tlm.tasks import Task

HELD_OUT_SPLITS = ("validation", "test")
FILTER_BITS = (16, 27)  # at most 128 MiB


@dataclass(frozen=True)
class Leak:
    """Why a passage is left out.

    held_out: id of the held-out text, the one with the highest share; of several the first.
    reason: "contains", the passage has all its words in a row; "shares", n-grams only.
    share: of the distinct n-grams of the held-out text, or of those of the passage, whichever is more; 1 if contained.
    """

    held_out: str
    reason: str
    share: float


class Decontaminator:
    """Says which passages hold held-out texts, in the manner of GPT-3's n-gram overlap (Brown et al. 2020, appendix C).

    A passage leaks a held-out text of `ngram` words or more if more than `threshold` of the distinct n-grams of either
    are in both: of the text's, because a long text may be cut into several passages; of the passage's, because it may
    be a piece of a long text. So it leaks if it contains the whole text. A shorter text leaks only as a whole, its words
    in a row; and if it has fewer than `min_characters` (words joined by spaces) only when the passage is nothing else,
    for "yes" is in half of a corpus. Words are those of `hf_tlm.retrieval.ngrams.words`: case, punctuation and white
    space do not count; in scripts without spaces an n-gram is `ngram` characters.

    Memory: the held-out texts, and for each of their n-grams about 20 bytes (50 while they are sorted); passages are
    streamed.

    Args:
        held_out: (id, text) pairs, as `held_out_texts` gives them. Texts without a word are never found.
        threshold: at least 0 and below 1.

    Raises:
        RetrievalError: a setting out of range.
    """

    def __init__(
        self, held_out: Iterable[tuple[str, str]], *, ngram: int = 13, threshold: float = 0.2, min_characters: int = 50
    ):
        if ngram < 1 or not 0 <= threshold < 1 or min_characters < 0:
            raise RetrievalError(
                "Decontamination needs ngram of at least 1, threshold of at least 0 and below 1, and min_characters of "
                f"at least 0; received {ngram}, {threshold} and {min_characters}."
            )
        self.ngram, self.threshold, self.min_characters = ngram, threshold, min_characters
        self._held_out = list(held_out)
        self._alone: dict[str, int] = {}  # texts which only an equal passage leaks -> position
        lengths, keys, owners, first = {ngram}, [], [], 0
        for texts, hashes, offsets in hash_words(text for _, text in self._held_out):
            found, of = hash_ngrams(hashes, offsets, ngram, short_texts=True)
            lost = np.zeros(len(texts), bool)
            for position in np.flatnonzero(np.diff(offsets) < ngram).tolist():
                text = " ".join(words(texts[position]))
                if len(text) < min_characters:
                    self._alone.setdefault(text, first + position)
                    lost[position] = True
                else:
                    lengths.add(int(offsets[position + 1] - offsets[position]))
            keys.append(found[~lost[of]])
            owners.append(of[~lost[of]] + first)
            first += len(texts)
        self._alone.pop("", None)
        self._lengths = sorted(lengths - {0})
        self._index(np.concatenate([np.empty(0, np.uint64), *keys]), np.concatenate([np.empty(0, np.int64), *owners]))

    def _index(self, keys: np.ndarray, owners: np.ndarray) -> None:
        """Sort the n-grams by hash, then text; each once a text."""
        order = np.argsort(keys, kind="stable")
        keys, owners = keys[order], owners[order].astype(np.int32)
        first = np.ones(len(keys), bool)
        first[1:] = (keys[1:] != keys[:-1]) | (owners[1:] != owners[:-1])
        self._keys, self._owners = keys[first], owners[first]
        self._sizes = np.bincount(self._owners, minlength=len(self._held_out))
        # One look-up here spares most n-grams of the passages a binary search.
        bits = min(max(FILTER_BITS[0], (8 * len(keys)).bit_length()), FILTER_BITS[1])
        self._shift = np.uint64(64 - bits)
        self._filter = np.zeros(1 << bits, bool)
        self._filter[self._keys >> self._shift] = True

    def __len__(self) -> int:
        """Held-out texts."""
        return len(self._held_out)

    def leaks(self, texts: Iterable[str]) -> Iterator[Leak | None]:
        """For each passage, in order: what it leaks, or None if it may stay."""
        for batch, hashes, offsets in hash_words(texts):
            own, of = hash_ngrams(hashes, offsets, self.ngram)
            starts = np.searchsorted(of, np.arange(len(batch) + 1))
            hits, hit_of = self._known(hashes, offsets)
            hit_starts = np.searchsorted(hit_of, np.arange(len(batch) + 1))
            few = np.diff(offsets) < self.ngram
            for i, text in enumerate(batch):
                if hit_starts[i] < hit_starts[i + 1]:
                    num_own = len(np.unique(own[starts[i] : starts[i + 1]]))
                    yield self._worst(text, np.unique(hits[hit_starts[i] : hit_starts[i + 1]]), num_own)
                elif few[i] and (position := self._alone.get(" ".join(words(text)))) is not None:
                    yield Leak(self._held_out[position][0], "contains", 1.0)
                else:
                    yield None

    def _known(self, hashes: np.ndarray, offsets: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Of the passages' n-grams, and runs as long as the short texts, the held-out ones: (hashes, passage of each)."""
        hits, hit_of = [], []
        for length in self._lengths:
            found, of = hash_ngrams(hashes, offsets, length)
            maybe = np.flatnonzero(self._filter[found >> self._shift])
            maybe = maybe[np.argsort(found[maybe])]  # in order, a binary search stays within the processor's cache
            found, of = found[maybe], of[maybe]
            places = np.searchsorted(self._keys, found)
            sure = places < len(self._keys)
            sure[sure] = self._keys[places[sure]] == found[sure]
            hits.append(found[sure])
            hit_of.append(of[sure])
        all_hits, all_of = np.concatenate(hits), np.concatenate(hit_of)
        order = np.argsort(all_of, kind="stable")
        return all_hits[order], all_of[order]

    def _worst(self, text: str, hits: np.ndarray, num_own: int) -> Leak | None:
        """The leak of the highest share, confirmed on the words. hits: distinct; num_own: distinct n-grams of `text`."""
        starts, ends = (np.searchsorted(self._keys, hits, side) for side in ("left", "right"))
        owners = np.concatenate([self._owners[start:end] for start, end in zip(starts, ends, strict=True)])
        owners, shared = np.unique(owners, return_counts=True)
        shares = np.maximum(shared / self._sizes[owners], shared / max(num_own, 1))
        passage = words(text)
        for candidate in np.lexsort((owners, -shares)):
            if shares[candidate] <= self.threshold:
                break
            if leak := self._confirm(passage, *self._held_out[owners[candidate]]):
                return leak
        return None

    def _confirm(self, passage: list[str], held_out: str, text: str) -> Leak | None:
        """The definition, on words instead of hashes."""
        text_words = words(text)
        if f" {' '.join(text_words)} " in f" {' '.join(passage)} ":
            return Leak(held_out, "contains", 1.0)
        theirs, own = _ngram_set(text_words, self.ngram), _ngram_set(passage, self.ngram)
        shared = len(theirs & own)
        share = max(shared / max(len(theirs), 1), shared / max(len(own), 1))
        return Leak(held_out, "shares", share) if share > self.threshold else None


def held_out_texts(task: Task) -> list[tuple[str, str]]:
    """(`<split>/<id>`, text) of every validation and test example; of a pair of texts each of them, and both in a row."""
    texts = []
    for split in HELD_OUT_SPLITS:
        if split not in task.splits:
            continue
        rows = task.splits[split]
        firsts = rows["text"][:]
        seconds = rows["text_pair"][:] if "text_pair" in rows.column_names else [None] * len(rows)
        for identifier, first, second in zip(rows["id"][:], firsts, seconds, strict=True):
            parts = [first] if second is None else [first, second, f"{first} {second}"]
            texts += [(f"{split}/{identifier}", part) for part in parts]
    return texts


def _ngram_set(words: list[str], n: int) -> set[tuple[str, ...]]:
    return set(zip(*(words[start:] for start in range(n)), strict=False))
