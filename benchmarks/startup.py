"""Measure how long starting takes: importing the package, `--help` of every recipe, and the imports of a run.

    python benchmarks/startup.py

Measures the wall time of complete new processes, the interpreter included, as medians of `--repeats`; the processes
alternate, after one round that fills the disk cache and is not counted. Writes benchmarks/results/startup.json and .md.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from statistics import median
from time import perf_counter

from results_file import ROOT, ResultsFile, machine_and_load

TITLES = {"startup": "Seconds to start"}
NOTES = {"startup": "Fresh processes that take turns, files in the disk cache; medians, the fastest and the slowest."}
PARSER = "from transformers import HfArgumentParser, TrainingArguments; HfArgumentParser(TrainingArguments).print_help()"


def commands() -> dict[str, list[str]]:
    """Return name of a measurement -> the arguments of Python."""
    recipes = {f"{path.stem}.py --help": [str(path), "--help"] for path in sorted((ROOT / "recipes").glob("*.py"))}
    return {
        "an empty program": ["-c", ""],
        "import hf_tlm": ["-c", "import hf_tlm"],
        **recipes,
        "help of transformers' TrainingArguments alone": ["-c", PARSER],
        "import what a retrieval needs": ["-c", "from hf_tlm import load_task, load_corpus, retrieve"],
        "import what a training run needs": ["-c", "from hf_tlm import TlmArguments, load_task, run_tlm"],
        "import torch, datasets and transformers' Trainer": [
            "-c",
            "import torch, datasets; from transformers import Trainer",
        ],
    }


def seconds(arguments: list[str]) -> float:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1"}
    start = perf_counter()
    subprocess.run([sys.executable, *arguments], cwd=ROOT, env=environment, check=True, capture_output=True)
    return perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--results_dir", default=str(ROOT / "benchmarks" / "results"))
    options = parser.parse_args()
    hardware = machine_and_load()
    runs: dict[str, list[float]] = {what: [] for what in commands()}
    for repeat in range(options.repeats + 1):
        for what, arguments in commands().items():
            taken = seconds(arguments)
            if repeat:
                runs[what].append(taken)
    rows = [{"what": w, "median": median(t), "fastest": min(t), "slowest": max(t), "all": t} for w, t in runs.items()]
    file = ResultsFile(options.results_dir, "startup", TITLES, NOTES, hidden=("all",))
    file.add("startup", rows, hardware)
    print(file.to_text())


if __name__ == "__main__":
    main()
