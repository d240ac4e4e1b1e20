r"""Task data only, a random subset, a BM25 subset, each with random and spectral embeddings, at equal steps; and what
influence (ISS) and its controls keep of the BM25 subset.

    python benchmarks/tlm_tiny.py --tasks chemprot acl_arc scierc --seeds 0 1 2 --output_dir runs/tlm_tiny
    python benchmarks/tlm_tiny.py --arms 'BM25 subset' 'ISS 20%' 'BM25 20%' 'random 20%' --embeddings spectral \
        --name iss_tiny

Runs recipes/retrieve.py, recipes/select_influence.py and recipes/train_tlm.py with recipes/configs/tlm/tiny.yaml on the
data in HF_TLM_DATA (default ../shared/data) and writes benchmarks/results/tlm_tiny.json and .md with the scores and the
exact commands. `--jobs` trainings run side by side, with one thread each; times are not reported. Finished runs are not
repeated.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import shlex
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from hf_tlm.evaluation.seeds import aggregate, format_table

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results"
CONFIG = "recipes/configs/tlm/tiny.yaml"
# The folder of an arm's subset, and the recipe and arguments that make it.
ARMS = {"task only": None, "random subset": "random", "BM25 subset": "bm25", "ISS 20%": "iss", "DSIR 20%": "dsir"}
ARMS |= {"BM25 20%": "bm25-rank", "random 20%": "bm25-random"}
SUBSETS = {
    "bm25": ("retrieve",),
    "random": ("retrieve", "--retriever", "random", "--like", "{bm25}"),
    "iss": ("select_influence", "--method", "iss", "--subset", "{bm25}"),
    "dsir": ("select_influence", "--method", "dsir", "--subset", "{bm25}"),
    "bm25-rank": ("select_influence", "--method", "bm25-rank", "--subset", "{bm25}"),
    "bm25-random": ("select_influence", "--method", "random", "--subset", "{bm25}"),
}


def call(recipe: str, *arguments: str, threads: int | None = None) -> str:
    """Run a recipe from the repository root; the command as a user would type it."""
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
    parser.add_argument("--arms", nargs="+", choices=list(ARMS), default=["task only", "random subset", "BM25 subset"])
    parser.add_argument("--embeddings", nargs="+", default=["random", "spectral"])
    parser.add_argument("--output_dir", default="runs/tlm_tiny")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--name", default="tlm_tiny", help="Name of the result files.")
    options = parser.parse_args()
    data = os.environ.get("HF_TLM_DATA", "../shared/data")
    runs = Path(options.output_dir)

    commands: dict[str, list[str]] = {}
    wanted = {ARMS[arm] for arm in options.arms}
    if wanted - {None}:
        wanted |= {"bm25"}
    for task, (kind, (recipe, *extra)) in itertools.product(options.tasks, SUBSETS.items()):
        if kind not in wanted:
            continue
        output = runs / f"{task}-{kind}"
        arguments = ["--task", f"{data}/tasks/{task}", *(part.format(bm25=runs / f"{task}-bm25") for part in extra)]
        arguments += ["--corpus", f"{data}/corpus/*.parquet"] if recipe == "retrieve" else ["--report_to", "none"]
        arguments += ["--output_dir", str(output)]
        commands[str(output)] = [recipe, *arguments]
        if not (ROOT / output / "manifest.json").is_file():
            call(recipe, *arguments)

    def train(cell: tuple[str, str, str | None, str]) -> dict:
        task, arm, kind, embeddings = cell
        output = runs / f"{task}-{kind or 'task'}-{embeddings}"
        source = ["--subset", str(runs / f"{task}-{kind}")] if kind else ["--rho1", "0"]
        arguments = ["--task", f"{data}/tasks/{task}", *source, "--embedding_init", embeddings]
        arguments += ["--seeds", *options.seeds, "--report_to", "none", "--disable_tqdm", "true"]
        command = call("train_tlm", *arguments, "--output_dir", str(output), threads=1)
        result = json.loads((ROOT / output / "results.json").read_text(encoding="utf-8"))
        seeds = result["seeds"]
        return {
            "task": task,
            "arm": arm,
            "embeddings": embeddings,
            "metric": result["metric"],
            "validation": result["summary"]["validation"][result["metric"]],
            "test": result["summary"]["test"][result["metric"]],
            "after stage 1": aggregate([s["stages"]["1"]["validation"] for s in seeds])[result["metric"]],
            "real tokens": seeds[0]["cost"]["real_tokens"],
            "FLOPs": seeds[0]["cost"]["flops"],
            "parameters": seeds[0]["parameters"],
            "spectral": result.get("spectral"),
            "subset passages": (result["subset"] or {}).get("counts", {}).get("union"),
            "command": command,
            "environment": result["environment"],
        }

    cells = [(t, arm, ARMS[arm], e) for e in options.embeddings for t in options.tasks for arm in options.arms]
    with ThreadPoolExecutor(options.jobs) as pool:
        rows = list(pool.map(train, cells))
    RESULTS.mkdir(exist_ok=True)
    subsets = [shlex.join(["python", f"recipes/{c[0]}.py", "--config", CONFIG, *c[1:]]) for c in commands.values()]
    record = {"config": (ROOT / CONFIG).read_text(encoding="utf-8"), "subset_commands": subsets, "rows": rows}
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
