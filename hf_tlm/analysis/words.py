r"""Task-influential words (ISS, section 6 and Table 6): find them, measure their frequency in subsets, draw the figure.

    found = label_pmi(task, top=3)
    frequencies = word_frequencies([word.word for word in found], {"ISS": iss, "BM25": bm25})
    print(to_markdown(found, frequencies))

A word's pointwise mutual information with a label says how much more often it occurs in that label's texts than elsewhere:

.. math:: \mathrm{PMI}(w, y) = \log \frac{p(w, y)}{p(w)\, p(y)}

with shares of the training split's word tokens as probabilities, and the natural logarithm. Words are lower case and have
two or more characters; stop words are included. In texts without spaces, each two neighbouring letters are a word.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from hf_tlm.analysis.arguments import AnalyzeArguments, AnalyzedTask, Findings, WordsArguments, check_positive
from hf_tlm.analysis.figures import (
    WIDTH,
    add_legend,
    label_decades,
    new_figure,
    save_figure,
    save_files,
    series_style,
    shortened,
    style,
)
from hf_tlm.errors import AnalysisError
from hf_tlm.retrieval.bm25.tokenize import Vocabulary, tokenize_words
from hf_tlm.retrieval.report import MarkedTerms
from hf_tlm.retrieval.texts import Analyzer
from hf_tlm.tasks.spec import check_task, columns_of_texts
from hf_tlm.utils.shown import markdown_table
from hf_tlm.utils.texts import SCRIPTS, script_of

if TYPE_CHECKING:
    from datasets import Dataset

    from hf_tlm.retrieval import Subset
    from hf_tlm.tasks import Task

READ_ROWS = 10_000
# More words do not fit on a page.
MOST_WORDS = 28
LINE = 0.145  # Height of a line, inches.
NAME_WIDTH = 22
_COLUMNS = ("word", "label", "pmi", "count", "ratio")  # Of words.csv, beside those of the subsets.


@dataclass(frozen=True)
class InfluentialWord:
    """A word with a high PMI with a label; count: its occurrences in the training split, under any label."""

    word: str
    label: str
    pmi: float
    count: int


def label_pmi(task: Task, top: int = 10, *, min_count: int = 10) -> list[InfluentialWord]:
    """Return the words with the largest PMI for each label of a task, in the order of labels.

    Args:
        top: number of words per label. Ties, such as words that occur in one label only, are sorted by frequency, then
            alphabetically.
        min_count: least number of occurrences: a word that occurs once has the largest possible PMI.

    Raises:
        AnalysisError: a number is below 1, or no word occurs `min_count` times.
        TaskError: the task is not a classification.
    """
    check_task(task, "label_pmi", "classification")
    check_positive(top=top, min_count=min_count)
    counts, words = _count_words(task.train, classes=task.num_labels)
    word_counts, label_counts = counts.sum(axis=1), counts.sum(axis=0)
    kept = np.flatnonzero(word_counts >= min_count)
    if not len(kept):
        most = word_counts.max(initial=0)
        raise AnalysisError(
            f"No word occurs at least {min_count} times in the training texts of {task.name}; the most frequent one occurs "
            f"{most} times."
        )
    with np.errstate(divide="ignore", invalid="ignore"):  # A class may have no training text.
        pmi = np.log(counts[kept]) - np.log(word_counts[kept, None]) - np.log(label_counts / label_counts.sum())
    influential = []
    for label, name in enumerate(task.label_names):
        indices = [index for index in range(len(kept)) if counts[kept[index], label]]
        indices.sort(key=lambda index: (-pmi[index, label].round(12), -word_counts[kept[index]], words[kept[index]]))
        influential += [
            InfluentialWord(words[kept[index]], name, float(pmi[index, label]), int(word_counts[kept[index]]))
            for index in indices[:top]
        ]
    return influential


def word_frequencies(words: Sequence[str], subsets: Mapping[str, Subset | Dataset]) -> dict[str, list[float]]:
    """Return the share of each word among the word tokens of each subset, by the subset's name.

    Args:
        subsets: name -> subset, or a dataset with a column `text`.

    Raises:
        AnalysisError: one of `words` is not a single word, or a subset has no words.
    """
    as_is = [Analyzer(stopwords=None, script=script) for script in (None, *SCRIPTS)]
    if wrong := [word for word in words if all(analyzer(word) != [word] for analyzer in as_is)]:
        raise AnalysisError(
            f"words: expected lower-case words of two or more letters, digits or underscores; received {wrong[0]!r}."
        )
    frequencies = {}
    for name, subset in subsets.items():
        script = MarkedTerms.of(getattr(subset, "manifest", {})).script
        counts, vocabulary = _count_words(getattr(subset, "dataset", subset), script=script)
        if not counts.sum():
            raise AnalysisError(f"The texts of {name!r} contain no words.")
        word_index = {word: index for index, word in enumerate(vocabulary)}
        shares = counts[:, 0] / counts.sum()
        frequencies[name] = [float(shares[word_index[word]]) if word in word_index else 0.0 for word in words]
    return frequencies


def to_markdown(words: Sequence[InfluentialWord], frequencies: Mapping[str, Sequence[float]]) -> str:
    """Format Table 6: a row for each word with its label, its PMI, and its frequency in each subset in percent."""
    rows = []
    for index, word in enumerate(words):
        shares = [f"{100 * shares[index]:.4f}" for shares in frequencies.values()]
        rows.append([word.word, word.label, f"{word.pmi:.3f}", *shares])
    return markdown_table(["word", "label", "PMI", *(f"{name} /%" for name in frequencies)], rows, texts=2)


def _count_words(rows: Dataset, classes: int = 1, script: str | None = None) -> tuple[np.ndarray, list[str]]:
    """Count how often each word occurs in the texts of each class; both texts of pairs count.

    Returns (int64 [V, classes], the V words).
    """
    vocabulary, counts = Vocabulary(), np.zeros((0, classes), np.int64)
    columns = columns_of_texts(rows)
    script = script or script_of(text for name in columns for text in rows[name])
    for table in rows.with_format("arrow").iter(batch_size=READ_ROWS):
        labels = table["label"].to_numpy() if classes > 1 else np.zeros(len(table), np.int64)
        for column in columns:
            ids, offsets = tokenize_words(table[column], vocabulary, script)
            size = len(vocabulary) * classes
            batch_counts = np.bincount(ids.astype(np.int64) * classes + np.repeat(labels, np.diff(offsets)), minlength=size)
            batch_counts = batch_counts.reshape(-1, classes)
            batch_counts[: len(counts)] += counts
            counts = batch_counts
    return counts, vocabulary.words()


def to_rows(words: Sequence[InfluentialWord], frequencies: Mapping[str, Sequence[float]]) -> list[dict[str, Any]]:
    """Return a CSV row for each word: its PMI and count, its share of each subset, and the ratio if there are two.

    Raises:
        AnalysisError: a subset has the name of another column.
    """
    rows = []
    if taken := [name for name in frequencies if name in _COLUMNS]:
        raise AnalysisError(
            f"A subset is called {taken[0]}, like a column of words.csv. Pass another name, as in --subsets mine=FOLDER."
        )
    for index, word in enumerate(words):
        row = {"word": word.word, "label": word.label, "pmi": word.pmi, "count": word.count}
        row |= {name: shares[index] for name, shares in frequencies.items()}
        if len(frequencies) == 2:
            first, second = (shares[index] for shares in frequencies.values())
            row["ratio"] = first / second if second else ""
        rows.append(row)
    return rows


@style()
def draw_frequencies(
    words: Sequence[InfluentialWord], frequencies: Mapping[str, Sequence[float]], directory: str | os.PathLike
) -> list[Path]:
    """Draw a line for each word, grouped by label, with a dot for each subset; for two subsets, also their ratio.

    Writes words.png, words.svg and words.csv.

    The picture has the first words of every label, about 28 in total; the CSV has all.

    Args:
        words: at least one.
        frequencies: name of a subset -> share of each of `words` among its words.
    """
    rows, lines = to_rows(words, frequencies), _figure_lines(words)
    figure, axes = new_figure(width=WIDTH, height=0.8 + LINE * len(lines))
    axes.set(xscale="log", ylim=(len(lines) - 0.4, -0.6))
    shown = [(y, word_index) for y, (_, word_index) in enumerate(lines) if word_index is not None]
    percents = 100 * np.array([[shares[word_index] for _, word_index in shown] for shares in frequencies.values()])
    # A logarithmic axis cannot show 0: such points are drawn left of all others.
    zero_x = percents[percents > 0].min() / 2 if percents.any() else 5e-3
    positions, has_zeros = np.where(percents > 0, percents, zero_x), not percents.all()
    if has_zeros:
        axes.axvline(zero_x, color="#808080", linewidth=0.8, linestyle=":")
        text_position = {"xycoords": ("data", "axes fraction"), "textcoords": "offset points"}
        axes.annotate("none", (zero_x, 1), (0, 2), ha="center", fontsize=6.5, **text_position)
    for index, (name, values) in enumerate(zip(frequencies, positions, strict=True)):
        line_style = series_style(index) | {"linestyle": "none"}
        hollow = {"markerfacecolor": "none"} if index % 2 else {}
        axes.plot(values, [y for y, _ in shown], label=name, zorder=3, **line_style, **hollow)
    for (y, word), values in zip(shown, positions.T, strict=True):
        axes.plot([values.min(), values.max()], [y, y], color="#b0b0b0", linewidth=0.8, zorder=2)
        if (ratio := rows[word].get("ratio", "")) != "":
            axes.text(1.02, y, f"×{ratio:.2f}", transform=axes.get_yaxis_transform(), fontsize=6.5, va="center")
    axes.set_yticks(range(len(lines)), [shortened(text, NAME_WIDTH) for text, _ in lines])
    for text, (_, word_index) in zip(axes.get_yticklabels(), lines, strict=True):
        text.set_fontweight("bold" if word_index is None else "normal")
    axes.tick_params(axis="y", length=0)
    axes.set_xlabel("share of the subset's words (%)")
    label_decades(axes.xaxis)
    if has_zeros:
        for minor in (False, True):  # The position of 0 has no number.
            ticks = axes.get_xticks(minor=minor)
            axes.set_xticks(ticks[(ticks > 1.05 * zero_x) & (ticks <= axes.get_xlim()[1])], minor=minor)
    title = f"×: {' / '.join(frequencies)}" if len(frequencies) == 2 else None
    add_legend(figure, ncols=4, handletextpad=0.2, title=title)
    return save_figure(figure, directory, "words", rows)


def _figure_lines(words: Sequence[InfluentialWord]) -> list[tuple[str, int | None]]:
    """Return (text, index of the word) of each line of the figure; None as the index of a label, which heads its words."""
    by_label: dict[str, list[int]] = {}
    for index, word in enumerate(words):
        by_label.setdefault(word.label, []).append(index)
    most, lines = max(MOST_WORDS // len(by_label), 1), []
    for label, indices in list(by_label.items())[:MOST_WORDS]:
        lines += [(label, None), *((words[index].word, index) for index in indices[:most])]
    return lines


def analyze(args: AnalyzeArguments, task: AnalyzedTask, options: WordsArguments) -> Findings:
    """Find the words of each label with the largest PMI, and their frequency in the subsets.

    Writes words.md, words.csv, and with subsets words.png and words.svg.
    """
    loaded = task.load("--what words")
    influential = label_pmi(loaded, options.top_words, min_count=options.min_count)
    frequencies = word_frequencies([word.word for word in influential], args.opened_subsets)
    table = to_markdown(influential, frequencies) + _total_share_sentence(influential, frequencies)
    files = save_files(args.folder, {"words.md": table})
    if frequencies:
        files += draw_frequencies(influential, frequencies, args.folder)
    else:
        files += save_files(args.folder, {"words.csv": to_rows(influential, frequencies)})
    return Findings(f"Task-influential words of {loaded.name}", table, files)


def _total_share_sentence(words: Sequence[InfluentialWord], frequencies: Mapping[str, Sequence[float]]) -> str:
    """Return a sentence with the total share of these words in each subset; a word of two labels counts once."""
    if not frequencies:
        return ""
    indices = list({word.word: index for index, word in enumerate(words)}.values())
    shares = [
        f"{100 * sum(word_shares[index] for index in indices):.3f}% ({name})" for name, word_shares in frequencies.items()
    ]
    return f"\nOf all words of a subset, these {len(indices)} together make up {', '.join(shares)}.\n"
