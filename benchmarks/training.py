"""The training engine against the plain Trainer: real tokens per second, overhead over a bare loop, memory.

    python benchmarks/training.py --sections throughput overhead step memory corpus --work_dir runs/training_benchmark

Masked language modelling from scratch on the passages retrieved for ChemProt (HF_TLM_DATA, default ../shared/data): whole
(most are cut at 128 tokens), and as short texts, pairs of their sentences. BERT 4 x 256 and 12 x 768 with a vocabulary of
30,522, 32 texts of at most 128 tokens a step, float32, fused AdamW, clipping. The plain side is `Trainer` with
`BertForMaskedLM` and `DataCollatorForLanguageModeling`, padded to 128. The sides take turns, each run in a fresh process;
figures are medians of `--repeats`. Writes benchmarks/results/training.json and .md.
"""

from __future__ import annotations

import argparse
import itertools
import os
import sys
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from statistics import median

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "benchmarks"))
import training_measures as measures  # noqa: E402
from results_file import run_sections  # noqa: E402

TITLES = {
    "throughput": "Real tokens per second",
    "overhead": "The Trainer over a bare loop on the same batches",
    "step": "Where a step goes",
    "memory": "Peak memory of training",
    "corpus": "Peak memory against the size of the corpus",
}
NOTES = {
    "throughput": "`fill` is the share of computed places that are not padding; `loss` the mean over the steps named, whose "
    "texts and masks are another random draw on each side. Time runs from the end of the second step.",
    "overhead": "The loop has its batches ready: forward, backward, clipping, optimizer, schedule and nothing else. Both "
    "take steps by turns in one process.",
    "step": "A bare loop, short texts; dropout as torch draws it and as `hf_tlm.models.dropout` does, on the same batches "
    "by turns: the mean over batches of each one's fastest pass. Shares of the time that torch's profiler counts, in a "
    "pass of its own; `the rest` is everything from layer norms to the embedding's gradient.",
    "memory": "Largest resident set of a fresh process after three steps, and what the process held before the model was "
    "made; MB.",
    "corpus": "Random token ids in an Arrow file of that size, 4 x 256; three steps. `anonymous` is memory that no file "
    "backs, which is what a corpus must not grow.",
}
# Steps that are timed, by body: the plain side needs minutes for a few of the large one.
STEPS = {"4x256": 20, "12x768": 3}


def fresh(function, **arguments):
    """Run a function in a process of its own."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        return pool.submit(function, **arguments).result()


class Benchmark:
    """One method per section: its rows."""

    def __init__(self, options: argparse.Namespace):
        self.options = options
        self.data = fresh(
            measures.prepare,
            data=os.environ.get("HF_TLM_DATA", "../shared/data"),
            work_dir=options.work_dir,
            passages=options.passages,
            vocab_size=options.vocab_size,
        )

    def throughput(self) -> list[dict]:
        rows = []
        for texts, body in itertools.product(self.options.texts, self.options.bodies):
            steps = self.options.steps or STEPS[body]
            sides = ("plain", *(f"ours, {packing}" for packing in self.options.packing))
            runs: dict[str, list[dict]] = {side: [] for side in sides}
            for repeat in range(self.options.repeats):
                for side in sides:
                    runs[side].append(
                        fresh(
                            measures.train,
                            side=side,
                            body=body,
                            steps=steps,
                            seed=repeat,
                            threads=self.options.threads,
                            **self.data[texts],
                        )
                    )
            for side in sides:
                ratios = [
                    run["tokens per second"] / plain["tokens per second"]
                    for run, plain in zip(runs[side], runs["plain"], strict=True)
                ]
                rows.append(
                    {
                        "texts": texts,
                        "body": body,
                        "side": side,
                        "real tokens/s": median(run["tokens per second"] for run in runs[side]),
                        "ratio": median(ratios),
                        "fill": median(run["fill"] for run in runs[side]),
                        f"loss, last {measures.LAST} steps": median(run["loss"] for run in runs[side]),
                        "steps": steps,
                        "repeats": self.options.repeats,
                        "all": {"ratios": ratios, "losses": [run["losses"] for run in runs[side]]},
                    }
                )
                print(rows[-1])
        return rows

    def overhead(self) -> list[dict]:
        rows = []
        for body in self.options.bodies:
            steps = self.options.steps or 2 * STEPS[body]
            runs = [
                fresh(measures.overhead, body=body, steps=steps, seed=r, threads=self.options.threads, **self.data["short"])
                for r in range(self.options.repeats)
            ]
            rows.append(
                {
                    "body": body,
                    "Trainer, ms a step": 1000 * median(run["trainer"] for run in runs),
                    "bare loop": 1000 * median(run["loop"] for run in runs),
                    "ratio": median(run["trainer"] / run["loop"] for run in runs),
                    "steps": steps,
                    "repeats": self.options.repeats,
                }
            )
            print(rows[-1])
        return rows

    def step(self) -> list[dict]:
        rows = []
        for body, packing in itertools.product(self.options.bodies, self.options.packing):
            steps, repeats = self.options.steps or STEPS[body], self.options.repeats
            run = fresh(
                measures.step,
                body=body,
                packing=packing,
                steps=steps,
                repeats=repeats,
                threads=self.options.threads,
                **self.data["short"],
            )
            rows += [{"body": body, "layout": packing, **part, "steps": steps, "repeats": repeats} for part in run]
            print(rows[-2:])
        return rows

    def memory(self) -> list[dict]:
        rows = []
        for body in self.options.bodies:
            for side in ("plain", "ours, auto"):
                run = fresh(
                    measures.train, side=side, body=body, steps=3, seed=0, threads=self.options.threads, **self.data["short"]
                )
                rows.append({"body": body, "side": side, "peak": run["peak"], "before": run["before"]})
                print(rows[-1])
        return rows

    def corpus(self) -> list[dict]:
        rows = []
        for megabytes in self.options.corpus_sizes:
            run = fresh(
                measures.train_on_size, megabytes=megabytes, threads=self.options.threads, work_dir=self.options.work_dir
            )
            rows.append({"corpus, MB": megabytes, **run})
            print(rows[-1])
        return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--bodies", nargs="+", choices=list(measures.BODIES), default=["4x256", "12x768"])
    add("--texts", nargs="+", choices=("short", "whole"), default=["short", "whole"], help="Of `throughput`.")
    add("--packing", nargs="+", choices=("none", "group", "pack"), default=["none", "group", "pack"])
    add("--steps", type=int, help="Steps of a run; default by body.")
    add("--repeats", type=int, default=3)
    add("--threads", type=int, default=os.cpu_count())
    add("--passages", type=int, default=150_000, help="Passages of the corpus that ChemProt's are retrieved from.")
    add("--vocab_size", type=int, default=30_522)
    add("--corpus_sizes", nargs="+", type=int, default=[10, 1000, 10_000], help="MB of token ids.")
    add("--work_dir", default="runs/training_benchmark")
    run_sections(parser, Benchmark, "training", TITLES, NOTES, hidden=("all",))


if __name__ == "__main__":
    main()
