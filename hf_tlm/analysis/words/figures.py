"""The figure of task-influential words: how frequent each is in each subset."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hf_tlm.analysis.figures import WIDTH, add_legend, label_decades, new_figure, save_figure, series_style, shortened, style

if TYPE_CHECKING:
    from hf_tlm.analysis.words.influential_words import InfluentialWord

# More do not fit a page.
MOST_WORDS = 28
LINE = 0.145  # inches
NAME_WIDTH = 22


def to_rows(words: Sequence[InfluentialWord], frequencies: Mapping[str, Sequence[float]]) -> list[dict[str, Any]]:
    """Return a row for each word: what it is, and the share of each subset's words that it has.

    Of two subsets it has the ratio of the first's to the second's too, empty where the second lacks the word.
    """
    rows = []
    for at, word in enumerate(words):
        row = {"word": word.word, "label": word.label, "pmi": word.pmi, "count": word.count}
        row |= {name: shares[at] for name, shares in frequencies.items()}
        if len(frequencies) == 2:
            first, second = (shares[at] for shares in frequencies.values())
            row["ratio"] = first / second if second else ""
        rows.append(row)
    return rows


@style()
def draw_frequencies(
    words: Sequence[InfluentialWord], frequencies: Mapping[str, Sequence[float]], directory: str | os.PathLike
) -> list[Path]:
    """Draw a line for each word, under its label, with a dot for each subset; of two subsets the ratio too.

    Writes words.png, words.svg and words.csv.

    The picture has the first words of every label, so many that there are about 28; the csv has all.

    Args:
        words: one at least.
        frequencies: name of a subset -> the share of its words that each of `words` has.
    """
    rows, lines = to_rows(words, frequencies), _lines(words)
    figure, axes = new_figure(width=WIDTH, height=0.8 + LINE * len(lines))
    axes.set(xscale="log", ylim=(len(lines) - 0.4, -0.6))
    shown = [(y, at) for y, (_, at) in enumerate(lines) if at is not None]
    percents = {name: [100 * shares[at] for _, at in shown] for name, shares in frequencies.items()}
    everything = [value for values in percents.values() for value in values]
    # 0 has no place on a logarithmic axis; it gets one left of all others.
    none = min(filter(None, everything), default=1e-2) / 2
    if 0 in everything:
        axes.axvline(none, color="#808080", linewidth=0.8, linestyle=":")
        place = {"xycoords": ("data", "axes fraction"), "textcoords": "offset points"}
        axes.annotate("none", (none, 1), (0, 2), ha="center", fontsize=6.5, **place)
    for index, (name, values) in enumerate(percents.items()):
        look = series_style(index) | {"linestyle": "none"}
        hollow = {"markerfacecolor": "none"} if index % 2 else {}
        axes.plot([value or none for value in values], [y for y, _ in shown], label=name, zorder=3, **look, **hollow)
    for (y, at), *values in zip(shown, *percents.values(), strict=True):
        values = [value or none for value in values]
        axes.plot([min(values), max(values)], [y, y], color="#b0b0b0", linewidth=0.8, zorder=2)
        if rows[at].get("ratio", "") != "":
            axes.text(1.02, y, f"×{rows[at]['ratio']:.2f}", transform=axes.get_yaxis_transform(), fontsize=6.5, va="center")
    axes.set_yticks(range(len(lines)), [shortened(text, NAME_WIDTH) for text, _ in lines])
    for text, (_, at) in zip(axes.get_yticklabels(), lines, strict=True):
        text.set_fontweight("bold" if at is None else "normal")
    axes.tick_params(axis="y", length=0)
    axes.set_xlabel("share of the subset's words (%)")
    label_decades(axes.xaxis)
    if 0 in everything:
        for minor in (False, True):  # The place of 0 has no number.
            ticks = axes.get_xticks(minor=minor)
            axes.set_xticks(ticks[(ticks > 1.05 * none) & (ticks <= axes.get_xlim()[1])], minor=minor)
    ratio = f"×: {' / '.join(frequencies)}" if len(frequencies) == 2 else None
    add_legend(figure, ncols=4, handletextpad=0.2, title=ratio)
    return save_figure(figure, directory, "words", rows)


def _lines(words: Sequence[InfluentialWord]) -> list[tuple[str, int | None]]:
    """What is written at each line, and the word's index; None for a label, which stands above its words."""
    by_label: dict[str, list[int]] = {}
    for at, word in enumerate(words):
        by_label.setdefault(word.label, []).append(at)
    most, lines = max(MOST_WORDS // len(by_label), 1), []
    for label, found in list(by_label.items())[:MOST_WORDS]:
        lines += [(label, None), *((words[at].word, at) for at in found[:most])]
    return lines
