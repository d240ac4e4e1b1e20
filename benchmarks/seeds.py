"""Compare ways to run several seeds on one machine: in one process on all cores, or in one process per core.

    python benchmarks/seeds.py

Measures the wall time of complete commands, from their start to the results over all seeds: `hf-tlm train` at tlm/coffee on
SciERC with BM25's subset of the corpus (HF_TLM_DATA, default ../shared/data). A single process has one thread per core;
several have one each, and run the same command with the same output folder. The sides alternate. Both train the same number
of seeds; the weights depend on a process's number of threads. Writes benchmarks/results/seeds.json and .md.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
from pathlib import Path
from statistics import median
from time import perf_counter

from corpus_sample import data_dir
from results_file import ROOT, ResultsFile, machine_and_load

TITLES = {"seeds": "Several seeds on one machine"}
NOTES = {
    "seeds": "Whole commands that take turns, from their start to the results over all seeds; medians, the fastest and the "
    "slowest. `ratio` is the median of the rounds' seconds of one process over these."
}


def command(work_dir: Path, options: argparse.Namespace) -> list[str]:
    data = data_dir()
    task, subset = ["--task", str(data / "tasks/scierc")], work_dir / "subset"
    begin = [sys.executable, "-m", "hf_tlm.cli"]
    if not (subset / "manifest.json").is_file():
        corpus = ["--corpus", f"{data}/corpus/*.parquet", "--output_dir", str(subset)]
        subprocess.run([*begin, "retrieve", "--config", "tlm/coffee", *task, *corpus], check=True, env=environment(0))
    length = ["--max_flops", options.max_flops, "--stage2_max_steps", options.stage2_max_steps]
    seeds = ["--seeds", *map(str, range(options.num_seeds))]
    return [*begin, "train", "--config", "tlm/coffee", *task, "--subset", str(subset), *length, *seeds]


def environment(threads: int) -> dict[str, str]:
    """Return the environment of a process; threads: its number of threads, 0 for torch's default."""
    given = {**os.environ, "PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    return {**given, "OMP_NUM_THREADS": str(threads)} if threads else given


def seconds(line: list[str], folder: Path, processes: int, threads: int) -> float:
    """Return the seconds until all processes have ended."""
    shutil.rmtree(folder, ignore_errors=True)
    start, line = perf_counter(), [*line, "--output_dir", str(folder), "--use_cpu", "true"]
    with open(folder.with_suffix(".log"), "w", encoding="utf-8") as log:
        running = [subprocess.Popen(line, env=environment(threads), stdout=log, stderr=log) for _ in range(processes)]
        ends = [one.wait() for one in running]
        if any(ends):
            sys.exit(f"A training failed: see {log.name}.")
    return perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--num_seeds", type=int, default=2)
    parser.add_argument("--max_flops", default="4e13", help="FLOPs of stage 1; the default is the scale's.")
    parser.add_argument("--stage2_max_steps", default="2000", help="Steps of stage 2; the default is the scale's.")
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--work_dir", default="runs/seeds_benchmark")
    parser.add_argument("--results_dir", default=str(ROOT / "benchmarks" / "results"))
    options = parser.parse_args()
    work_dir, cores = Path(options.work_dir).resolve(), os.cpu_count() or 1
    work_dir.mkdir(parents=True, exist_ok=True)
    hardware = machine_and_load()
    line, number = command(work_dir, options), min(cores, options.num_seeds)
    sides = {"one process, a thread a core": (1, cores), f"{number} processes, a thread each": (number, 1)}
    runs: dict[str, list[float]] = {side: [] for side in sides}
    for _ in range(options.repeats):
        for side, (processes, threads) in sides.items():
            runs[side].append(seconds(line, work_dir / f"{processes}-processes", processes, threads))
            print(side, runs[side])
    alone, *_ = runs.values()
    rows = [
        {
            "side": side,
            "seeds": options.num_seeds,
            "seconds": median(taken),
            "fastest": min(taken),
            "slowest": max(taken),
            "ratio": median(one / own for one, own in zip(alone, taken, strict=True)),
            "repeats": options.repeats,
        }
        for side, taken in runs.items()
    ]
    file = ResultsFile(options.results_dir, "seeds", TITLES, NOTES)
    file.add("seeds", rows, hardware)
    print(file.to_text())


if __name__ == "__main__":
    main()
