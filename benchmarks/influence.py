"""Measure influence scores: speed against a backward pass per passage, a bare forward pass and bergson; memory.

    python benchmarks/influence.py --sections speed memory layers projection

Models are BERT 4 x 256 and 12 x 768 with random weights and a vocabulary of 30,522; the gradient is that of attention's
output projection in the last layer, with masks of 10%, in evaluation mode, in float32; texts have 128 random tokens (`full`)
or 25 to 128 (`mixed`). The naive sides are stock `BertForMaskedLM`, one passage at a time. The sides alternate in a fresh
process for each row of settings; the first round is not counted, figures are medians of `--repeats`. Writes
benchmarks/results/influence.json and .md. The section `peer` needs an environment of its own, see influence_peer.py. On a
GPU:

    python benchmarks/influence.py --sections speed memory layers projection --name influence_gpu \
        --device cuda --dtype bfloat16 --batch_size 256
"""

from __future__ import annotations

import argparse
import itertools
import os

import influence_measures as measures
import influence_peer
from measuring import fresh
from results_file import ROOT, ResultsFile

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
    "naive ones, relative to the largest of those; both have the same dtype. `lowest` and `highest` are passages/s of "
    "single turns.",
    "memory": "Largest resident set of a fresh process, or on a GPU the most that tensors had there, MB, while two batches "
    "of the same texts of 128 tokens pass the body, or the task's gradients and their scores are made. `before` is what was "
    "held once the model was made. Both ratios are to the forward pass: `ratio` that of whole peaks, `ratio above before` "
    "that of what grew. Below the last layer ours takes fewer of a batch's texts at a time, as its graph has more layers.",
    "layers": "The default parameter of each layer: of layer 0, the embeddings, the matrix of word embeddings, of others "
    "attention's output projection. `time / last layer's` is that of a passage, to be compared with Table 7 of the paper.",
    "projection": "`--projection_dim`, on either side of the weight, against exact scores of the same passages (without a "
    f"number), by a model trained for {measures.TRAINING_STEPS} steps on random texts whose words tell their class. `error` "
    "is the root mean square difference, relative to the exact scores' own; `Spearman` and `same best 20%` are means over "
    "task gradients; all three are means over seeds of projection and masks. `seconds`, a median, are of the task's "
    "gradients and the scores; `MB kept` is of the task's gradients.",
    "peer": "bergson 2.5.1, in an environment made as benchmarks/influence_peer.py says: same weights, masked texts and "
    "task gradients, texts of 128 tokens, float32, no projection; batches of each side's default size, 32 texts and 16. "
    "bergson's backward pass goes through the whole model; where nothing but the one weight needs a gradient it stops "
    "there. `Spearman` and `same best 20%`, the share of our best passages that are among bergson's, are means over task "
    "gradients; `difference` is the largest of a score from ours, relative to the largest of ours.",
}


def setting_of(options: argparse.Namespace, body: str) -> measures.Setting:
    places = {"device": options.device, "dtype": options.dtype, "batch_size": options.batch_size}
    return measures.Setting(body, options.threads, options.vocab_size, options.passages, **places)


def speed(options: argparse.Namespace) -> list[dict]:
    rows = []
    for body, texts, tasks in itertools.product(options.bodies, options.texts, options.tasks):
        rows += fresh(measures.speed, setting=setting_of(options, body), texts=texts, tasks=tasks, repeats=options.repeats)
        print(*rows[-5:], sep="\n")
    return rows


def memory(options: argparse.Namespace) -> list[dict]:
    rows = []
    for body in options.bodies:
        sides = [("forward pass of the body", -1, 0)]
        sides += [("ours", layer, tasks) for layer, tasks in itertools.product((-1, 1, 0), options.tasks)]
        for side, layer, tasks in sides:
            run = fresh(measures.memory, setting=setting_of(options, body), side=side, layer=layer, tasks=tasks)
            grown = run["peak"] - run["before"]
            if side != "ours":
                plain, plain_grown = run["peak"], grown
            where = {"layer": layer, "task gradients": tasks} if side == "ours" else {"layer": None, "task gradients": None}
            # A pass that fits into memory that was already free has grown by nothing.
            ratios = {"ratio": run["peak"] / plain, "ratio above before": grown / plain_grown if plain_grown else None}
            rows.append({"body": body, "side": side, **where, **run, **ratios})
            print(rows[-1])
    return rows


def layers(options: argparse.Namespace) -> list[dict]:
    rows = []
    for body, tasks in itertools.product(options.bodies, options.tasks):
        rows += fresh(measures.layers, setting=setting_of(options, body), tasks=tasks, repeats=options.repeats)
    print(*rows, sep="\n")
    return rows


def projection(options: argparse.Namespace) -> list[dict]:
    rows = []
    for body in options.bodies:
        settings = {"tasks": max(options.tasks), "dimensions": options.dimensions}
        rows += fresh(measures.projection, setting=setting_of(options, body), **settings)
    print(*rows, sep="\n")
    return rows


def peer(options: argparse.Namespace) -> list[dict]:
    rows = []
    for body, tasks in itertools.product(options.bodies, options.tasks):
        settings = {"body": body, "threads": options.threads, "vocabulary": options.vocab_size}
        settings["passages"] = options.passages or measures.PASSAGES[body]
        rows += fresh(influence_peer.peer, tasks=tasks, repeats=options.repeats, **settings)
        print(*rows[-1 - len(influence_peer.SIDES) :], sep="\n")
    return rows


def gpu_name(parser: argparse.ArgumentParser) -> str:
    import torch

    if not torch.cuda.is_available():
        parser.error("--device cuda: torch sees no GPU here. Leave it out, or install a build of torch for this machine's.")
    return torch.cuda.get_device_name()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--sections", nargs="+", choices=list(TITLES), default=list(TITLES))
    add("--bodies", nargs="+", choices=list(measures.BODIES), default=["4x256", "12x768"])
    add("--texts", nargs="+", choices=("full", "mixed"), default=["full", "mixed"])
    add("--tasks", nargs="+", type=int, default=[1, 32], help="Numbers of task gradients.")
    add("--dimensions", nargs="+", type=int, default=[16, 64, 256], help="Dimensions of projections.")
    add("--passages", type=int, help="Passages scored in a round; default by body and device.")
    add("--repeats", type=int, default=3)
    add("--device", choices=("cpu", "cuda"), default="cpu", help="Device; peer always uses the CPU in float32.")
    add("--dtype", choices=("float32", "bfloat16"), default="float32")
    add("--batch_size", type=int, default=measures.BATCH, help="Texts at a time.")
    add("--threads", type=int, default=os.cpu_count())
    add("--vocab_size", type=int, default=measures.VOCABULARY)
    add("--results_dir", default=str(ROOT / "benchmarks" / "results"))
    add("--name", default="influence", help="Name of the result files.")
    options = parser.parse_args()
    hardware = gpu_name(parser) if options.device == "cuda" else None
    file = ResultsFile(options.results_dir, options.name, TITLES, NOTES)
    measured = {"speed": speed, "memory": memory, "layers": layers, "projection": projection, "peer": peer}
    for section in options.sections:
        if section != "peer" or influence_peer.installed():
            file.add(section, measured[section](options), None if section == "peer" else hardware)
    print("\n" + file.to_text())


if __name__ == "__main__":
    main()
