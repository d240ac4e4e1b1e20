r"""Table 6 of the ISS paper on real data: words with the largest PMI with a label, and how often subsets have them.

    python benchmarks/influential_words.py --task ../shared/data/tasks/scierc \
        --subsets 'BM25=runs/tlm_tiny/scierc-bm25' 'ISS 20%=runs/tlm_tiny/scierc-iss-20'

Writes benchmarks/results/influential_words.json and .md.
"""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from dataclasses import asdict
from pathlib import Path

from hf_tlm import Subset
from hf_tlm.analysis import label_pmi, to_markdown, word_frequencies
from hf_tlm.tasks import load_task

RESULTS = Path(__file__).resolve().parent / "results"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--task", required=True)
    add("--subsets", nargs="+", required=True, help="name=folder")
    add("--top", type=int, default=5, help="Words of a label.")
    add("--min_count", type=int, default=10)
    add("--results_dir", default=str(RESULTS))
    options = parser.parse_args()
    found = label_pmi(load_task(options.task), options.top, min_count=options.min_count)
    subsets = {name: Subset.load(folder) for name, _, folder in (text.partition("=") for text in options.subsets)}
    frequencies = word_frequencies([word.word for word in found], subsets)
    command = shlex.join(["python", "benchmarks/influential_words.py", *sys.argv[1:]])
    results = Path(options.results_dir)
    record = {"command": command, "words": [asdict(word) for word in found], "frequencies": frequencies}
    record["passages"] = {name: len(subset) for name, subset in subsets.items()}
    (results / "influential_words.json").write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
    sums = ", ".join(f"{name} {100 * sum(shares):.2f}%" for name, shares in frequencies.items())
    sizes = ", ".join(f"{name} {count:,}" for name, count in record["passages"].items())
    text = (
        f"Made by `{command}`. PMI and counts of words (at least {options.min_count}) from the training split; the share of "
        f"a subset's word tokens that each has. Passages: {sizes}. All these words together: {sums}.\n\n"
    )
    (results / "influential_words.md").write_text(text + to_markdown(found, frequencies), encoding="utf-8")
    print(text + to_markdown(found, frequencies))


if __name__ == "__main__":
    main()
