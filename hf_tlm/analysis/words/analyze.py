"""Table 6 of the ISS paper for a task and subsets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hf_tlm.analysis.arguments import AnalyzeArguments, AnalyzedTask, WordsArguments
from hf_tlm.analysis.figures import to_csv
from hf_tlm.analysis.findings import Findings
from hf_tlm.analysis.words.figures import draw_frequencies, to_rows
from hf_tlm.analysis.words.influential_words import InfluentialWord, label_pmi, to_markdown, word_frequencies
from hf_tlm.utils.files import atomic_write


def analyze(args: AnalyzeArguments, task: AnalyzedTask, options: WordsArguments) -> Findings:
    """Find the words of each label with the largest PMI, and how often the subsets have them.

    Writes words.md, words.csv, and with subsets words.png and words.svg.
    """
    loaded = task.load("--what words")
    found = label_pmi(loaded, options.top_words, min_count=options.min_count)
    frequencies = word_frequencies([word.word for word in found], args.opened_subsets)
    table = to_markdown(found, frequencies) + _together(found, frequencies)
    files = [args.folder / "words.md"]
    atomic_write(files[0], table)
    if frequencies:
        files += draw_frequencies(found, frequencies, args.folder)
    else:
        files.append(args.folder / "words.csv")
        atomic_write(files[-1], to_csv(to_rows(found, frequencies)))
    return Findings(f"Task-influential words of {loaded.name}", table, files)


def _together(words: Sequence[InfluentialWord], frequencies: Mapping[str, Sequence[float]]) -> str:
    """How much of each subset these words make up; a word of two labels counts once."""
    if not frequencies:
        return ""
    once = list({word.word: at for at, word in enumerate(words)}.values())
    shares = [f"{100 * sum(own[at] for at in once):.3f}% ({name})" for name, own in frequencies.items()]
    return f"\nOf all words of a subset, these {len(once)} together make up {', '.join(shares)}.\n"
