r"""What a linear model teaches: a scale of our own with and without `--teacher linear`, on BM25's and on random passages.

    python benchmarks/teacher.py --seeds 0 1 2 --output_dir runs/teacher
    python benchmarks/teacher.py --task path/to/task --corpus 'path/to/corpus/*.parquet' --section own --output_dir runs/own

On the quickstart's task and corpus (Reuters R8 with 40 examples a class) unless `--task` and `--corpus` say otherwise.
Writes benchmarks/results/teacher.json and .md after every arm; finished seeds are not repeated.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from results_file import ROOT, ResultsFile

from hf_tlm.corpora import load_corpus
from hf_tlm.corpora.demo import demo_corpus
from hf_tlm.evaluation import BaselineArguments, run_tlm
from hf_tlm.parser import parse
from hf_tlm.retrieval import Subset, retrieve
from hf_tlm.tasks import load_task
from hf_tlm.tasks.demo import demo_task
from hf_tlm.training import ModelArguments, TlmOptions

# Name -> (passages, options of train_tlm).
ARMS = {
    "BM25": ("bm25", {}),
    "BM25, teacher on the task's texts alone": ("bm25", {"teacher": "linear", "teacher_passages": 0}),
    "BM25, teacher": ("bm25", {"teacher": "linear"}),
    "random, teacher": ("random", {"teacher": "linear"}),
}
NOTE = (
    "Percent, mean ± standard deviation over seeds (n - 1) of the checkpoint best on validation. Seconds are of both stages "
    "of a seed, on one thread; the teacher's own, which all seeds share, are beside them."
)


def _score(summary: dict, split: str, metric: str) -> str:
    if split not in summary:
        return ""
    score = summary[split][metric]
    return f"{100 * score['mean']:.2f}" + ("" if score["std"] is None else f" ± {100 * score['std']:.2f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--task")
    parser.add_argument("--corpus")
    parser.add_argument("--top_k", type=int, default=100)
    parser.add_argument("--config", default="recipes/configs/tlm/minute.yaml")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--arms", nargs="+", choices=list(ARMS), default=list(ARMS))
    parser.add_argument("--section", default="reuters_r8", help="Name of the table in the results.")
    parser.add_argument("--output_dir", default="runs/teacher")
    parser.add_argument("--results_dir", default=str(ROOT / "benchmarks" / "results"))
    options = parser.parse_args()
    output = Path(options.output_dir)
    task = load_task(options.task) if options.task else demo_task()
    corpus = load_corpus(options.corpus, max_words=100) if options.corpus else demo_corpus()
    file = ResultsFile(options.results_dir, "teacher", {}, {})
    file.titles = {name: name for name in [*file.results, options.section]}
    file.notes = dict.fromkeys(file.titles, NOTE)
    rows = []
    for baseline in BaselineArguments().make(task):
        scores = {split: f"{100 * values[task.metric]:.2f}" for split, values in baseline.scores.items()}
        row = {"arm": baseline.name, "seeds": "", "validation": "", "test": "", **scores, "FLOPs": None}
        rows.append(row | {"seconds": baseline.seconds, "teacher right": None, "passages": None, "teacher's seconds": None})
    for name in options.arms:
        kind, changes = ARMS[name]
        values = {"output_dir": str(output / name.replace(" ", "-").replace("'", "").replace(",", "")), **changes}
        values |= {"seeds": options.seeds, "use_cpu": True, "disable_tqdm": True, "report_to": "none"}
        line = ["--config", options.config]
        model_args, args = parse(ModelArguments, TlmOptions, recipe="train_tlm", description="", args=line, values=values)
        run = run_tlm(task, _subset(kind, task, corpus, output, options.top_k), args, model_args)
        cost, teacher = run.seeds[0]["cost"], run.details.get("teacher", {})
        rows.append(
            {
                "arm": name,
                "seeds": str(len(run.seeds)),
                "validation": _score(run.summary, "validation", task.metric),
                "test": _score(run.summary, "test", task.metric),
                "FLOPs": f"{cost['flops']:.2g}",
                "seconds": round(sum(seed["cost"]["seconds"] for seed in run.seeds) / len(run.seeds)),
                "teacher right": f"{100 * teacher['held_out_accuracy']:.1f}" if teacher else None,
                "passages": teacher.get("passages"),
                "teacher's seconds": teacher.get("seconds"),
            }
        )
        file.add(options.section, rows)
    print("\n" + file.to_text())


def _subset(kind: str, task, corpus, output: Path, top_k: int) -> Subset:
    if not (output / "subset-bm25" / "manifest.json").is_file():
        retrieve(task, corpus, top_k=top_k).save(output / "subset-bm25")
    if kind == "random" and not (output / "subset-random" / "manifest.json").is_file():
        size = len(Subset.load(output / "subset-bm25").dataset)
        retrieve(task, corpus, retriever="random", num_passages=size, seed=0).save(output / "subset-random")
    return Subset.load(output / f"subset-{kind}")


if __name__ == "__main__":
    main()
