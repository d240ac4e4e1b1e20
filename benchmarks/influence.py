"""Influence scores: passages a second against one backward pass each and against a bare forward pass; memory.

    python benchmarks/influence.py --sections speed memory

BERT 4 x 256 and 12 x 768 at random weights, a vocabulary of 30,522, the weight of attention's output projection in the last
layer, masks of 10%, in evaluation mode, float32; texts of 128 random tokens (`full`) and of 25 to 128 (`mixed`). The naive
sides are stock `BertForMaskedLM`, a passage a time. The sides take turns in a fresh process for each row of settings; the
first turn is not counted, figures are medians of `--repeats`. Writes benchmarks/results/influence.json and .md.
"""

from __future__ import annotations

import argparse
import itertools
import os
import sys
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "benchmarks"))
import influence_measures as measures  # noqa: E402
from results_file import ResultsFile  # noqa: E402

TITLES = {"speed": "Passages per second", "memory": "Peak memory"}
NOTES = {
    "speed": "`naive` is one backward pass per passage through the whole model, as the released code does it, padded to 128 "
    "or not, or with the gradient of that one weight only. The forward pass is the body's alone, without heads, on the "
    "batches that are scored. `largest difference` is that of a score from the naive ones, relative to the largest score.",
    "memory": "Largest resident set of a fresh process, MB, after two batches of 32 texts of 128 tokens: a forward pass of "
    "the body, or the task's gradients and the scores. `before` is what the process held once the model was made.",
}
PASSAGES = {"2x64": 40, "4x256": 128, "12x768": 32}


def fresh(function, **arguments):
    """Run a function in a process of its own."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        return pool.submit(function, **arguments).result()


def speed(options: argparse.Namespace) -> list[dict]:
    rows = []
    for body, texts, tasks in itertools.product(options.bodies, options.texts, options.tasks):
        settings = {"repeats": options.repeats, "threads": options.threads, "vocabulary": options.vocab_size}
        settings["passages"] = options.passages or PASSAGES[body]
        rows += fresh(measures.speed, body=body, texts=texts, tasks=tasks, **settings)
        print(*rows[-5:], sep="\n")
    return rows


def memory(options: argparse.Namespace) -> list[dict]:
    rows = []
    for body in options.bodies:
        settings = {"body": body, "threads": options.threads, "vocabulary": options.vocab_size, "tasks": max(options.tasks)}
        sides = [("forward pass of the body", -1), ("ours", -1), ("ours", 1)]
        runs = [fresh(measures.memory, side=side, layer=layer, **settings) for side, layer in sides]
        for (side, layer), run in zip(sides, runs, strict=True):
            layer = layer if side == "ours" else None
            rows.append({"body": body, "side": side, "layer": layer, **run, "ratio": run["peak"] / runs[0]["peak"]})
            print(rows[-1])
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--sections", nargs="+", choices=list(TITLES), default=list(TITLES))
    add("--bodies", nargs="+", choices=list(measures.BODIES), default=["4x256", "12x768"])
    add("--texts", nargs="+", choices=("full", "mixed"), default=["full", "mixed"])
    add("--tasks", nargs="+", type=int, default=[1, 32], help="Task gradients.")
    add("--passages", type=int, help="Passages that are scored in a turn; default by body.")
    add("--repeats", type=int, default=3)
    add("--threads", type=int, default=os.cpu_count())
    add("--vocab_size", type=int, default=measures.VOCABULARY)
    add("--results_dir", default=str(ROOT / "benchmarks" / "results"))
    add("--name", default="influence", help="Name of the result files.")
    options = parser.parse_args()
    file = ResultsFile(options.results_dir, options.name, TITLES, NOTES)
    for section in options.sections:
        file.add(section, {"speed": speed, "memory": memory}[section](options))
    print("\n" + file.to_text())


if __name__ == "__main__":
    main()
