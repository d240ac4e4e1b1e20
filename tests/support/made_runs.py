"""Folders in the layout that recipes write, built without training."""

import json
import runpy
import sys

from support.launching import ROOT


def write(path, content):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")
    return path


def make_run(
    folder, task, scores, metric="macro_f1", flops=1e12, model=None, subset=None, splits=("validation", "test"), **arguments
):
    """Write a finished run.

    Args:
        scores: seed -> share of 1, for every split, or split -> seed -> share.
    """
    by_split = scores if isinstance(next(iter(scores.values())), dict) else dict.fromkeys(splits, scores)
    seeds = [
        {"seed": seed, "cost": {"steps": 10, "flops": flops}}
        | {split: {"accuracy": 0.5, metric: by_seed[seed]} for split, by_seed in by_split.items()}
        for seed in next(iter(by_split.values()))
    ]
    content = {
        "task": task,
        "metric": metric,
        "subset": subset,
        "arguments": arguments,
        "model": model or {},
        "seeds": seeds,
    }
    write(folder / "results.json", content)
    return folder


def make_record(folder, task, arm, seed, score=None, error=None, **settings):
    """Write the record of one run of `reproduce.py`, failed if `error` is given."""
    name = f"{task}/{arm}/seed-{seed}"
    record = {"status": "failed" if error else "finished", "name": name, "kind": "train_tlm", "task": task, "arm": arm}
    record |= {"seed": seed, "settings": {**settings, "seed": seed}}
    if error:
        record["error"] = error
    else:
        record |= {"metric": "macro_f1", "test": {"macro_f1": score}, "cost": {"flops": 1e12}, "subset": None}
    return write(folder / "runs" / f"{name.replace('/', '.')}.json", record)


def make_state(file, entries):
    return write(file, {"global_step": 9, "log_history": entries})


def run_analyze(*arguments):
    """Run the recipe analyze.py in this process."""
    before = sys.argv
    sys.argv = ["analyze.py", *map(str, arguments)]
    try:
        runpy.run_path(str(ROOT / "recipes" / "analyze.py"), run_name="recipe")["main"]()
    finally:
        sys.argv = before
