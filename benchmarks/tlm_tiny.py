r"""Compare task data only, a random subset and a BM25 subset at equal steps, with random and with spectral embeddings.

Also compares what influence (ISS) and its controls keep of the BM25 subset.

    python benchmarks/tlm_tiny.py --tasks chemprot acl_arc scierc --seeds 0 1 2 --output_dir runs/tlm_tiny
    python benchmarks/tlm_tiny.py --arms 'BM25 subset' 'ISS 20%' 'BM25 20%' 'random 20%' --embeddings spectral \
        --name iss_tiny

Runs recipes/retrieve.py, recipes/select_influence.py and recipes/train_tlm.py with recipes/configs/tlm/tiny.yaml on the
data in HF_TLM_DATA (default ../shared/data) and writes benchmarks/results/tlm_tiny.json and .md with the scores and the
exact commands. `--jobs` trainings run in parallel, with one thread each; times are not reported. Finished runs are not
repeated.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import re
import shlex
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from results_file import ROOT

from hf_tlm.runs.records import aggregate, format_table

RESULTS = ROOT / "benchmarks" / "results"
CONFIG = "recipes/configs/tlm/tiny.yaml"
METHODS = {"ISS": "iss", "DSIR": "dsir", "BM25": "bm25-rank", "random": "random"}


class Subset(NamedTuple):
    """A subset: the suffix of its folder's name after the task's, and the recipe and arguments that build it."""

    name: str
    recipe: str
    arguments: tuple[str, ...]


def subset_of(arm: str) -> Subset | None:
    """Return the subset that an arm is trained on; `{bm25}` in the arguments stands for the folder of the BM25 subset.

    Parts of the BM25 subset are named `ISS 20%`, with a layer's gradients `ISS 20% layer 1`, `DSIR 20%`, `BM25 20%` and
    `random 20%`.
    """
    if arm == "task only":
        return None
    if arm == "BM25 subset":
        return Subset("bm25", "retrieve", ("--passage_words", "0"))
    if arm == "random subset":
        return Subset("random", "retrieve", ("--passage_words", "0", "--retriever", "random", "--like", "{bm25}"))
    found = re.fullmatch(rf"({'|'.join(METHODS)}) (\d+)%(?: layer (-?\d+))?", arm)
    if not found or (found[3] and found[1] != "ISS"):
        raise SystemExit(
            f"Unknown arm {arm!r}: 'task only', 'random subset', 'BM25 subset', 'ISS 20%', 'ISS 20% layer 1', ..."
        )
    layer = ("--layer", found[3]) if found[3] else ()
    arguments = ("--method", METHODS[found[1]], "--fraction", str(int(found[2]) / 100), *layer, "--subset", "{bm25}")
    return Subset(re.sub(r"[% ]+", "-", arm.lower()).strip("-"), "select_influence", arguments)


def call(recipe: str, *arguments: str, threads: int | None = None) -> str:
    """Run a recipe from the repository root; return the command as a user would type it."""
    command = [f"recipes/{recipe}.py", "--config", CONFIG, *arguments]
    environment = dict(os.environ)
    if threads is not None:
        environment["OMP_NUM_THREADS"] = str(threads)
    subprocess.run([sys.executable, *command], cwd=ROOT, env=environment, check=True)
    return shlex.join(["python", *command])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", nargs="+", default=["chemprot", "acl_arc", "scierc"])
    parser.add_argument("--seeds", nargs="+", default=["0", "1", "2"])
    arms = ["task only", "random subset", "BM25 subset"]
    parser.add_argument("--arms", nargs="+", default=arms, help="Arms, also 'ISS 20%%', 'ISS 20%% layer 1', ...")
    parser.add_argument("--embeddings", nargs="+", default=["random", "spectral"])
    parser.add_argument("--output_dir", default="runs/tlm_tiny")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--name", default="tlm_tiny", help="Name of the result files.")
    options = parser.parse_args()
    data, runs = os.environ.get("HF_TLM_DATA", "../shared/data"), Path(options.output_dir)
    subsets = {arm: subset_of(arm) for arm in options.arms}
    made = make_subsets(options.tasks, list(filter(None, subsets.values())), data, runs)

    def row_of(cell: tuple[str, str, str]) -> dict:
        embeddings, task, arm = cell
        return {"task": task, "arm": arm, **train(task, subsets[arm], embeddings, options.seeds, data, runs)}

    with ThreadPoolExecutor(options.jobs) as pool:
        rows = list(pool.map(row_of, itertools.product(options.embeddings, options.tasks, options.arms)))
    write(rows, made, options)


def make_subsets(tasks: list[str], subsets: list[Subset], data: str, runs: Path) -> list[str]:
    """Build the subsets that do not exist, BM25's first, as others are selected from it; return the commands of all."""
    commands = []
    made = dict.fromkeys([subset_of("BM25 subset"), *subsets]) if subsets else {}
    for task, subset in itertools.product(tasks, made):
        output = runs / f"{task}-{subset.name}"
        arguments = ["--task", f"{data}/tasks/{task}"]
        arguments += [part.format(bm25=runs / f"{task}-bm25") for part in subset.arguments]
        whole = subset.recipe == "retrieve"
        arguments += ["--corpus", f"{data}/corpus/*.parquet"] if whole else ["--report_to", "none", "--disable_tqdm", "true"]
        arguments += ["--output_dir", str(output)]
        commands.append(shlex.join(["python", f"recipes/{subset.recipe}.py", "--config", CONFIG, *arguments]))
        if not (ROOT / output / "manifest.json").is_file():
            call(subset.recipe, *arguments)
    return commands


def train(task: str, subset: Subset | None, embeddings: str, seeds: list[str], data: str, runs: Path) -> dict:
    """Train an arm's seeds on one thread; return its results for the table."""
    output = runs / f"{task}-{subset.name if subset else 'task'}-{embeddings}"
    source = ["--subset", str(runs / f"{task}-{subset.name}")] if subset else ["--rho1", "0"]
    arguments = ["--task", f"{data}/tasks/{task}", *source, "--embedding_init", embeddings]
    arguments += ["--seeds", *seeds, "--report_to", "none", "--disable_tqdm", "true"]
    command = call("train_tlm", *arguments, "--output_dir", str(output), threads=1)
    result = json.loads((ROOT / output / "results.json").read_text(encoding="utf-8"))
    metric, first = result["metric"], result["seeds"][0]
    return {
        "embeddings": embeddings,
        "metric": metric,
        "validation": result["summary"]["validation"][metric],
        "test": result["summary"]["test"][metric],
        "after stage 1": aggregate([seed["stages"]["1"]["validation"] for seed in result["seeds"]])[metric],
        "real tokens": first["cost"]["real_tokens"],
        "FLOPs": first["cost"]["flops"],
        "parameters": first["parameters"],
        "spectral": result.get("initialization", {}).get("spectral"),
        "subset passages": (result["subset"] or {}).get("counts", {}).get("union"),
        "command": command,
        "environment": result["environment"],
    }


def write(rows: list[dict], subset_commands: list[str], options: argparse.Namespace) -> None:
    """Write the JSON file and the page."""
    RESULTS.mkdir(exist_ok=True)
    record = {"config": (ROOT / CONFIG).read_text(encoding="utf-8"), "subset_commands": subset_commands, "rows": rows}
    (RESULTS / f"{options.name}.json").write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
    columns = ["task", "metric", "arm", "embeddings", "validation", "test", "real tokens", "FLOPs"]
    shown = [{**r, "real tokens": f"{r['real tokens']:,}", "FLOPs": f"{r['FLOPs']:.2g}"} for r in rows]
    environment = rows[0]["environment"]
    command = f"python benchmarks/tlm_tiny.py --tasks {' '.join(options.tasks)} --seeds {' '.join(options.seeds)}"
    command += f" --arms {shlex.join(options.arms)} --embeddings {' '.join(options.embeddings)}"
    command += f" --output_dir {options.output_dir} --name {options.name}"
    text = (
        f"Made by `{command}` on {environment['processor']}, {environment['cpu_cores']} cores, {options.jobs} trainings "
        f"side by side, one thread each. {len(options.seeds)} seeds, mean ± standard deviation, percent. Equal steps "
        f"for all arms of a task. All commands are in {options.name}.json.\n\n" + format_table(shown, columns) + "\n"
    )
    (RESULTS / f"{options.name}.md").write_text(text, encoding="utf-8")
    print("\n" + text)


if __name__ == "__main__":
    main()
