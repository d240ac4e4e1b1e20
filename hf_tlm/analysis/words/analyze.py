"""Table 6 of the ISS paper for a task and subsets."""

from __future__ import annotations

from hf_tlm.analysis.arguments import AnalyzeArguments, AnalyzedTask
from hf_tlm.analysis.figures import to_csv
from hf_tlm.analysis.findings import Findings
from hf_tlm.analysis.words.influential_words import label_pmi, to_markdown, word_frequencies
from hf_tlm.analysis.words.options import Options
from hf_tlm.files import atomic_write


def analyze(args: AnalyzeArguments, task: AnalyzedTask, options: Options) -> Findings:
    """The words of each label with the largest PMI, and how often the subsets have them: words.md and words.csv."""
    loaded = task.load("--what words")
    found = label_pmi(loaded, options.top_words, min_count=options.min_count)
    frequencies = word_frequencies([word.word for word in found], args.opened_subsets)
    args.folder.mkdir(parents=True, exist_ok=True)
    files = [args.folder / "words.md", args.folder / "words.csv"]
    table = to_markdown(found, frequencies)
    rows = [
        {"word": word.word, "label": word.label, "pmi": word.pmi, "count": word.count}
        | {name: shares[at] for name, shares in frequencies.items()}
        for at, word in enumerate(found)
    ]
    for path, content in zip(files, (table, to_csv(rows)), strict=True):
        atomic_write(path, content)
    return Findings(f"Task-influential words of {loaded.name}", table, files)
