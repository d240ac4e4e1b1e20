"""Average the quickstart's table over seeds, which draw the task's 100 texts, the random passages, and the weights.

    python benchmarks/quickstart.py --seeds 0 1 2

Runs recipes/quickstart.py with each seed, in a folder of its own below --output_dir; a seed that has its table is not
repeated. Writes benchmarks/results/quickstart.json and .md. --options are passed to the command, for a trial in seconds.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from results_file import ROOT, run_sections

from hf_tlm.runs import aggregate, format_score

TITLES = {"quickstart": "The quickstart's table"}
NOTES = {
    "quickstart": "Posts of four newsgroups, 25 labelled ones of each; a corpus of other posts and of Wikipedia's "
    "summaries; the scale `tlm/minute`, with 256 tokens of a text in stage 2. In percent, mean and standard deviation over "
    "seeds. Tokens, FLOPs and seconds are of one run, the first seed's."
}


class Benchmark:
    def __init__(self, options: argparse.Namespace):
        self.options = options

    def quickstart(self) -> list[dict[str, Any]]:
        tables = [self._table(seed) for seed in self.options.seeds]
        rows, names = [], [f"{split} {self.options.metric}" for split in ("validation", "test")]
        for place, first in enumerate(tables[0]):
            same = [table[place] for table in tables]
            together = aggregate([{name: row[name]["mean"] for name in names} for row in same])
            scores = {name: format_score(together[name]) for name in names}
            costs = {name: first[name] for name in ("real tokens", "FLOPs", "seconds")}
            rows.append({"arm": first["arm"], "seeds": len(same), **scores, **costs})
        return rows

    def _table(self, seed: int) -> list[dict[str, Any]]:
        """Return the rows of a seed's table, running the command first if there is none."""
        folder = Path(self.options.output_dir) / f"seed-{seed}"
        if not (folder / "table.json").is_file():
            command = [sys.executable, ROOT / "recipes" / "quickstart.py", "--seed", seed, "--output_dir", folder]
            subprocess.run([*map(str, command), *self.options.options], check=True)
        return json.loads((folder / "table.json").read_text(encoding="utf-8"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--output_dir", default="runs/quickstart")
    parser.add_argument("--metric", default="macro_f1", help="The task's metric.")
    parser.add_argument("--options", nargs=argparse.REMAINDER, default=[], help="Options of the command; must come last.")
    run_sections(parser, Benchmark, "quickstart", TITLES, NOTES)


if __name__ == "__main__":
    main()
