r"""Fine-tune a pretrained encoder on the real tasks, for scores to compare training from scratch with.

    python benchmarks/finetune.py --model_name_or_path path/to/encoder --seeds 0 1 2

Runs recipes/finetune.py on the data in HF_TLM_DATA (default ../shared/data) and writes benchmarks/results/finetune.json and
.md, a row for each task as soon as it is finished; finished runs in --work_dir are not repeated. The processor should
support bf16 products (lscpu lists avx512_bf16 or amx_bf16); otherwise remove `--bf16 true` from COMMON.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

from corpus_sample import ROOT, data_dir
from results_file import ResultsFile

# Common to all tasks; the learning rate is the best of three on validation (acl_arc, one seed: 5e-5, 1e-4, 3e-4).
COMMON = "--learning_rate 1e-4 --total_batch_size 16 --bf16 true --use_cpu true"
# Epochs, more for smaller data; maximum lengths; and the fraction of a large task.
BASELINE = {
    "glue_mrpc": "--num_train_epochs 4",
    "glue_rte": "--num_train_epochs 6",
    "glue_cola": "--num_train_epochs 4 --max_length 64",
    "glue_stsb": "--num_train_epochs 4",
    "glue_sst2": "--num_train_epochs 3 --max_length 64 --train_fraction 0.1",
    "acl_arc": "--num_train_epochs 12",
    "scierc": "--num_train_epochs 5",
    "chemprot": "--num_train_epochs 4",
}
OTHERS = {
    "glue_qnli": "--num_train_epochs 3",
    "pos_ewt": "--num_train_epochs 3 --train_fraction 0.2",
    "pos_ewt, CRF": "--num_train_epochs 3 --train_fraction 0.2 --crf true",
    "squad_small": "--num_train_epochs 4 --max_length 256",
    "race_middle": "--num_train_epochs 1 --train_fraction 0.05 --max_length 256",
}
SECTIONS = {"finetune": BASELINE, "others": OTHERS}
TITLES = {"finetune": "A pretrained encoder, fine-tuned", "others": "Other tasks"}
NOTES = {
    "finetune": f"`recipes/finetune.py` with `{COMMON}` for all tasks and what the table names; the other options are the "
    "recipe's defaults. The learning rate was chosen on acl_arc's validation split from 5e-5, 1e-4 and 3e-4, with one seed "
    "and in float32; nothing else was tuned. Mean ± standard deviation over the seeds, percent; validation is the best of "
    "the evaluations after each pass, whose checkpoint is scored on test. Where test labels are not public there is no test "
    "score. `tokens` are those of one seed's training, padding not counted. The commands are in finetune.json.",
    "others": "As above; the column says how many seeds.",
}


def percent(summary: dict, metrics: list[str]) -> str:
    from hf_tlm.runs.records import format_score

    return " / ".join(format_score(summary[metric]) for metric in metrics if metric in summary)


def row_of(task: str, encoder: str, seeds: list[str], work_dir: str, threads: int | None) -> dict:
    output = Path(work_dir) / task.replace(", ", "-").lower()
    command = ["recipes/finetune.py", "--task", f"{data_dir()}/tasks/{task.split(',')[0]}", "--model_name_or_path", encoder]
    own = (BASELINE | OTHERS)[task]
    command += [*shlex.split(COMMON), *shlex.split(own), "--seeds", *seeds]
    command += ["--report_to", "none", "--disable_tqdm", "true", "--output_dir", str(output)]
    environment = os.environ if threads is None else {**os.environ, "OMP_NUM_THREADS": str(threads)}
    subprocess.run([sys.executable, *command], cwd=ROOT, env=environment, check=True)  # A finished run is not repeated.
    run = json.loads((ROOT / output / "results.json").read_text(encoding="utf-8"))
    metrics, cost = [run["metric"], *run["further_metrics"]], run["seeds"][0]["cost"]
    return {
        "task": task,
        "metrics": " / ".join(metrics),
        "validation": percent(run["summary"]["validation"], metrics),
        "test": percent(run["summary"].get("test", {}), metrics),
        "of its own": own.replace("--", ""),
        "examples": run["seeds"][0]["train_examples"],
        "tokens": cost["real_tokens"],
        "seeds": len(run["seeds"]),
        "command": shlex.join(["python", *command]),
        "summary": run["summary"],
        "environment": run["environment"],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--model_name_or_path", required=True)
    add("--tasks", nargs="+", choices=[*BASELINE, *OTHERS], default=[*BASELINE, *OTHERS])
    add("--seeds", nargs="+", default=["0", "1", "2"])
    add("--other_seeds", nargs="+", default=["0"], help="Seeds for tasks of other kinds.")
    add("--threads", type=int)
    add("--work_dir", default="runs/finetune")
    add("--results_dir", default=str(ROOT / "benchmarks" / "results"))
    add("--name", default="finetune", help="Name of the result files.")
    options = parser.parse_args()
    file = ResultsFile(options.results_dir, options.name, TITLES, NOTES, hidden=("command", "summary", "environment"))
    for section, tasks in SECTIONS.items():
        seeds = options.seeds if section == "finetune" else options.other_seeds
        rows = []
        for task in (name for name in tasks if name in options.tasks):
            rows.append(row_of(task, options.model_name_or_path, seeds, options.work_dir, options.threads))
            file.add(section, rows)
    print("\n" + file.to_text())


if __name__ == "__main__":
    main()
