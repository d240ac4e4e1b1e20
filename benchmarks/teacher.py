r"""Measure what a teacher is worth: a scale of our own with and without one, on BM25's, on random and on no passages.

    python benchmarks/teacher.py --seeds 0 1 2 --output_dir runs/teacher
    python benchmarks/teacher.py --seeds 0 --output_dir runs/teacher --section controls \
        --arms 'BM25, teacher' 'BM25, teacher, cut' 'random, teacher' 'task only, teacher'
    python benchmarks/teacher.py --teacher runs/encoder --section network --output_dir runs/taught

The task is Reuters R8 with 40 examples a class, or that of --task, with passages from --corpus. The teacher is the linear
model, or the one that --teacher names. Writes benchmarks/results/teacher.json and .md after every arm; finished seeds are
not repeated.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from results_file import ROOT, ResultsFile
from reuters import posts_and_summaries, reuters_task

from hf_tlm import load_corpus, load_task
from hf_tlm.config import parse
from hf_tlm.retrieval import Subset, retrieve
from hf_tlm.runs import make_baselines, run_tlm
from hf_tlm.training import ModelArguments, TlmArguments
from hf_tlm.training.teacher import teacher_cost

SECTIONS = {
    "reuters_r8": "Reuters R8, 40 examples a class",
    "controls": "Controls on the same: what is the passages', and what the teacher's",
    "linear_start": "A classifier that begins as a linear model, without a teacher and with one",
    "network": "A network as the teacher",
}
# Name -> (passages, whether it has a teacher, options of train_tlm and of its model).
ARMS = {
    "BM25": ("bm25", False, {}),
    "BM25, teacher on the task's texts alone": ("bm25", True, {"teacher_passages": 0}),
    "BM25, teacher": ("bm25", True, {}),
    "BM25, teacher, cut": ("bm25", True, {"teacher_passage_length": "task"}),
    "BM25, teacher, two rounds": ("bm25", True, {"teacher_rounds": 2}),
    "BM25, linear start": ("bm25", False, {"classifier_init": "linear"}),
    "BM25, linear start, a fifth of the rate": ("bm25", False, {"classifier_init": "linear", "stage2_learning_rate": 1e-4}),
    "BM25, linear start and teacher": ("bm25", True, {"classifier_init": "linear"}),
    "random, teacher": ("random", True, {}),
    "task only, teacher": (None, True, {"rho1": 0}),
}
NOTE = (
    "Percent, mean ± standard deviation over seeds (n - 1) of the checkpoint best on validation. Seconds are of both stages "
    "of a seed, on one thread, by the clock of a machine that had other work too; the teacher's own are beside them."
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config", default="recipes/configs/tlm/minute.yaml")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--arms", nargs="+", choices=list(ARMS), default=list(ARMS))
    parser.add_argument("--section", choices=list(SECTIONS), default="reuters_r8")
    parser.add_argument("--teacher", nargs="+", default=["linear"])
    parser.add_argument("--task")
    parser.add_argument("--corpus", nargs="+")
    parser.add_argument("--output_dir", default="runs/teacher")
    parser.add_argument("--results_dir", default=str(ROOT / "benchmarks" / "results"))
    options = parser.parse_args()
    output, task = Path(options.output_dir), load_task(options.task) if options.task else reuters_task()
    corpus = load_corpus(options.corpus) if options.corpus else posts_and_summaries()
    file = ResultsFile(options.results_dir, "teacher", SECTIONS, dict.fromkeys(SECTIONS, NOTE))
    rows = [_baseline_row(baseline, task.metric) for baseline in make_baselines(task)]
    for name in options.arms:
        kind, taught, changes = ARMS[name]
        changes = {**changes, "teacher": options.teacher} if taught else changes
        values = {"output_dir": str(output / name.replace(" ", "-").replace("'", "").replace(",", "")), **changes}
        values |= {"seeds": options.seeds, "use_cpu": True, "disable_tqdm": True, "report_to": "none"}
        line = ["--config", options.config]
        model_args, args = parse(ModelArguments, TlmArguments, recipe="train_tlm", description="", args=line, values=values)
        rows.append(_row(name, run_tlm(task, kind and _subset(kind, task, corpus, output), args, model_args), task.metric))
        file.add(options.section, rows)
    print("\n" + file.to_text())


def _subset(kind: str, task, corpus, output: Path) -> Subset:
    folder = output / f"subset-{kind}"
    if not (folder / "manifest.json").is_file():
        if kind == "bm25":
            retrieve(task, corpus, top_k=100).save(folder)
        else:
            size = len(_subset("bm25", task, corpus, output).dataset)
            retrieve(task, corpus, retriever="random", num_passages=size, seed=0).save(folder)
    return Subset.load(folder)


def _baseline_row(baseline, metric: str) -> dict:
    scores = {split: f"{100 * baseline.scores[split][metric]:.2f}" for split in ("validation", "test")}
    nothing = {"teacher right": None, "passages": None, "teacher's seconds": None}
    return {"arm": baseline.name, "seeds": "", **scores, "FLOPs": None, "seconds": baseline.seconds, **nothing}


def _row(name: str, run, metric: str) -> dict:
    scores = {split: run.summary[split][metric] for split in ("validation", "test")}
    teacher = run.details.get("teacher", {})
    return {
        "arm": name,
        "seeds": str(len(run.seeds)),
        **{split: _shown(score) for split, score in scores.items()},
        "FLOPs": f"{run.seeds[0]['cost']['flops']:.2g}",
        "seconds": round(sum(seed["cost"]["seconds"] for seed in run.seeds) / len(run.seeds)),
        "teacher right": f"{100 * teacher['held_out_accuracy']:.1f}" if "held_out_accuracy" in teacher else None,
        "passages": teacher.get("passages"),
        "teacher's seconds": round(teacher_cost(teacher, "seconds"), 1) if teacher else None,
    }


def _shown(score: dict) -> str:
    spread = "" if score["std"] is None else f" ± {100 * score['std']:.2f}"
    return f"{100 * score['mean']:.2f}{spread}"


if __name__ == "__main__":
    main()
