r"""Task-influential words and how often subsets have them (ISS, section 6.2 and Table 6).

    found = label_pmi(task, top=3)
    frequencies = word_frequencies([word.word for word in found], {"ISS": iss, "BM25": bm25})
    print(to_markdown(found, frequencies))

A word's pointwise mutual information with a label tells how much more often than elsewhere it stands in that label's texts:

.. math:: \mathrm{PMI}(w, y) = \log \frac{p(w, y)}{p(w)\, p(y)}

with the shares of the training split's word tokens as probabilities, and the natural logarithm. Words are lower case, of two
or more characters, stop words among them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from hf_tlm.analysis.errors import AnalysisError
from hf_tlm.retrieval.analyzer import Analyzer
from hf_tlm.retrieval.engines.bm25.tokenize import tokenize_words
from hf_tlm.retrieval.engines.bm25.vocabulary import Vocabulary
from hf_tlm.utils.markdown import markdown_table

if TYPE_CHECKING:
    from datasets import Dataset

    from hf_tlm.retrieval import Subset
    from hf_tlm.tasks import Task

READ_ROWS = 10_000


@dataclass(frozen=True)
class InfluentialWord:
    """count: how often the training split has the word, under any label."""

    word: str
    label: str
    pmi: float
    count: int


def label_pmi(task: Task, top: int = 10, *, min_count: int = 10) -> list[InfluentialWord]:
    """For each label of a task the words with the largest PMI, in the order of labels.

    Args:
        top: words per label; of equal PMI, as of all words that no other label has, the more frequent is first, then the
            alphabet decides.
        min_count: leave out rarer words: whatever occurs once has the largest PMI there can be.

    Raises:
        AnalysisError: a number below 1, or no word is so frequent.
        TaskError: the task is of another kind than classification.
    """
    task.check_kind("label_pmi", "classification")
    for name, value in (("top", top), ("min_count", min_count)):
        if value < 1:
            raise AnalysisError(f"{name} must be at least 1; received {value}.")
    counts, words = _count_words(task.train, classes=task.num_labels)
    of_word, of_label = counts.sum(axis=1), counts.sum(axis=0)
    kept = np.flatnonzero(of_word >= min_count)
    if not len(kept):
        most = of_word.max(initial=0)
        raise AnalysisError(f"No word occurs {min_count} times in the training texts of {task.name}, the most {most} times.")
    with np.errstate(divide="ignore"):
        pmi = np.log(counts[kept]) - np.log(of_word[kept, None]) - np.log(of_label / of_label.sum())
    found = []
    for label, name in enumerate(task.label_names):
        of = [at for at in range(len(kept)) if counts[kept[at], label]]
        of.sort(key=lambda at: (-pmi[at, label].round(12), -of_word[kept[at]], words[kept[at]]))
        found += [InfluentialWord(words[kept[at]], name, float(pmi[at, label]), int(of_word[kept[at]])) for at in of[:top]]
    return found


def word_frequencies(words: Sequence[str], subsets: Mapping[str, Subset | Dataset]) -> dict[str, list[float]]:
    """By name of a subset, the share of its word tokens that each word has.

    Args:
        subsets: or datasets with a column `text`.

    Raises:
        AnalysisError: what is given is not a word, or a subset has no words.
    """
    as_is = Analyzer(stopwords=None)
    if wrong := [word for word in words if as_is(word) != [word]]:
        raise AnalysisError(f"Words are lower case, of two or more letters, digits or underscores; received {wrong[0]!r}.")
    found = {}
    for name, subset in subsets.items():
        counts, vocabulary = _count_words(getattr(subset, "dataset", subset))
        if not counts.sum():
            raise AnalysisError(f"There is no word in the texts of {name!r}.")
        place = {word: at for at, word in enumerate(vocabulary)}
        shares = counts[:, 0] / counts.sum()
        found[name] = [float(shares[place[word]]) if word in place else 0.0 for word in words]
    return found


def to_markdown(words: Sequence[InfluentialWord], frequencies: Mapping[str, Sequence[float]]) -> str:
    """Table 6: a row for each word, its label and PMI, and its frequency in each subset in percent."""
    rows = []
    for at, word in enumerate(words):
        shares = [f"{100 * shares[at]:.4f}" for shares in frequencies.values()]
        rows.append([word.word, word.label, f"{word.pmi:.3f}", *shares])
    return markdown_table(["word", "label", "PMI", *(f"{name} /%" for name in frequencies)], rows, texts=2)


def _count_words(rows: Dataset, classes: int = 1) -> tuple[np.ndarray, list[str]]:
    """(int64 [V, classes], the words): how often the texts of each class have each word, both texts of pairs."""
    vocabulary, counts = Vocabulary(), np.zeros((0, classes), np.int64)
    columns = [name for name in ("text", "text_pair") if name in rows.column_names]
    for table in rows.with_format("arrow").iter(batch_size=READ_ROWS):
        labels = table["label"].to_numpy() if classes > 1 else np.zeros(len(table), np.int64)
        for column in columns:
            ids, offsets = tokenize_words(table[column], vocabulary)
            size = len(vocabulary) * classes
            own = np.bincount(ids.astype(np.int64) * classes + np.repeat(labels, np.diff(offsets)), minlength=size)
            own = own.reshape(-1, classes)
            own[: len(counts)] += counts
            counts = own
    return counts, vocabulary.words()
