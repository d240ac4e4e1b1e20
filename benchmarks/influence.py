"""Influence scores: passages a second against one backward pass each, a bare forward pass and bergson; memory.

    python benchmarks/influence.py --sections speed memory layers projection

BERT 4 x 256 and 12 x 768 at random weights, a vocabulary of 30,522, the weight of attention's output projection in the last
layer, masks of 10%, in evaluation mode, float32; texts of 128 random tokens (`full`) and of 25 to 128 (`mixed`). The naive
sides are stock `BertForMaskedLM`, a passage a time. The sides take turns in a fresh process for each row of settings; the
first turn is not counted, figures are medians of `--repeats`. Writes benchmarks/results/influence.json and .md. The section
`peer` needs an environment of its own, see influence_peer.py.
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
import influence_peer  # noqa: E402
from results_file import ResultsFile  # noqa: E402

TITLES = {
    "speed": "Passages per second",
    "memory": "Peak memory",
    "layers": "Passages per second by layer",
    "projection": "Projected gradients against exact ones",
    "peer": "Against bergson",
}
NOTES = {
    "speed": "`naive` is one backward pass per passage through the whole model, as the released code does it, padded to 128 "
    "or not, or with the gradient of that one weight only. The forward pass is the body's alone, without heads, on the "
    "batches that are scored. `time / ours` is that of a passage; `difference` is the largest of a score from the padded "
    "naive ones, relative to the largest of those. `lowest` and `highest` are passages/s of single turns.",
    "memory": "Largest resident set of a fresh process, MB, while two batches of 32 texts of 128 tokens pass the body, "
    "or the task's gradients and their scores are made. `before` is what the process held once the model was made.",
    "layers": "The default parameter of each layer: of layer 0, the embeddings, the matrix of word embeddings, of others "
    "attention's output projection. `time / last layer's` is that of a passage, to be compared with Table 7 of the paper.",
    "projection": "`--projection_dim`, on either side of the weight, against exact scores of the same passages; the model "
    "has random weights. `error` is the root mean square difference, relative to the exact scores' own; `Spearman` and "
    "`same best 20%` are means over task gradients.",
    "peer": "bergson 2.5.1, in an environment made as benchmarks/influence_peer.py says: same weights, masked texts and "
    "task gradients, texts of 128 tokens, float32, no projection; batches of each side's default size, 32 texts and 16. "
    "bergson's backward pass goes through the whole model; where nothing but the one weight needs a gradient it stops "
    "there. `Spearman` and `same best 20%`, the share of our best passages that are among bergson's, are means over task "
    "gradients; `difference` is the largest of a score from ours, relative to the largest of ours.",
}
PASSAGES = {"2x64": 40, "4x256": 128, "12x768": 32}


def fresh(function, **arguments):
    """Run a function in a process of its own."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        return pool.submit(function, **arguments).result()


def settings_of(options: argparse.Namespace, body: str) -> dict:
    settings = {"body": body, "threads": options.threads, "vocabulary": options.vocab_size}
    return {**settings, "passages": options.passages or PASSAGES[body]}


def speed(options: argparse.Namespace) -> list[dict]:
    rows = []
    for body, texts, tasks in itertools.product(options.bodies, options.texts, options.tasks):
        rows += fresh(measures.speed, texts=texts, tasks=tasks, repeats=options.repeats, **settings_of(options, body))
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


def layers(options: argparse.Namespace) -> list[dict]:
    rows = []
    for body, tasks in itertools.product(options.bodies, options.tasks):
        rows += fresh(measures.layers, tasks=tasks, repeats=options.repeats, **settings_of(options, body))
    print(*rows, sep="\n")
    return rows


def projection(options: argparse.Namespace) -> list[dict]:
    rows = []
    for body in options.bodies:
        settings = settings_of(options, body)
        rows += fresh(measures.projection, tasks=max(options.tasks), dimensions=options.dimensions, **settings)
    print(*rows, sep="\n")
    return rows


def peer(options: argparse.Namespace) -> list[dict]:
    rows = []
    for body, tasks in itertools.product(options.bodies, options.tasks):
        rows += fresh(influence_peer.peer, tasks=tasks, repeats=options.repeats, **settings_of(options, body))
        print(*rows[-1 - len(influence_peer.SIDES) :], sep="\n")
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--sections", nargs="+", choices=list(TITLES), default=list(TITLES))
    add("--bodies", nargs="+", choices=list(measures.BODIES), default=["4x256", "12x768"])
    add("--texts", nargs="+", choices=("full", "mixed"), default=["full", "mixed"])
    add("--tasks", nargs="+", type=int, default=[1, 32], help="Task gradients.")
    add("--dimensions", nargs="+", type=int, default=[16, 64, 256], help="Of projections.")
    add("--passages", type=int, help="Passages that are scored in a turn; default by body.")
    add("--repeats", type=int, default=3)
    add("--threads", type=int, default=os.cpu_count())
    add("--vocab_size", type=int, default=measures.VOCABULARY)
    add("--results_dir", default=str(ROOT / "benchmarks" / "results"))
    add("--name", default="influence", help="Name of the result files.")
    options = parser.parse_args()
    file = ResultsFile(options.results_dir, options.name, TITLES, NOTES)
    for section in options.sections:
        if section != "peer" or influence_peer.installed():
            file.add(
                section,
                {"speed": speed, "memory": memory, "layers": layers, "projection": projection, "peer": peer}[section](
                    options
                ),
            )
    print("\n" + file.to_text())


if __name__ == "__main__":
    main()
