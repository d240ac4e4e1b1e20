r"""Pretrain a real encoder further on a task's subsets, then fine-tune it (ISS, section 4.2).

    python benchmarks/further_pretraining.py --model_name_or_path path/to/encoder --task scierc \
        --subsets 'ISS 20%=runs/cpu/scierc/subsets/iss-20' 'BM25=runs/cpu/scierc/subsets/bm25'

Runs recipes/pretrain.py on each subset, for the same number of steps, and recipes/finetune.py on the results and on the
encoder itself, with the data in HF_TLM_DATA (default ../shared/data); writes benchmarks/results/further_pretraining.json and
.md, a row as soon as it is finished. Finished runs in --work_dir are not repeated.
"""

from __future__ import annotations

import argparse
import json
import shlex
import subprocess
import sys
from pathlib import Path

from corpus_sample import ROOT, data_dir
from results_file import ResultsFile

NONE = "none"
MACHINE = "--report_to none --disable_tqdm true --use_cpu true"
PRETRAIN = f"--max_length 128 --total_batch_size 32 --warmup_steps 0.1 {MACHINE}"
# As in benchmarks/finetune.py for this encoder.
FINETUNE = f"--learning_rate 1e-4 --total_batch_size 16 --num_train_epochs 5 {MACHINE}"
TITLES = {"further": "An encoder pretrained further on subsets, then fine-tuned"}
NOTES = {
    "further": "`recipes/pretrain.py` for equal steps, then `recipes/finetune.py`; percent, mean ± standard deviation over "
    "the seeds of fine-tuning, one of pretraining. `MLM loss` is of held-out texts of the subset, at the end. An encoder "
    "that comes without a masked-LM head gets a new one, which these steps have to train as well."
}


def recipe(name: str, output: Path, *arguments: str) -> dict:
    """Run a recipe, which does not repeat finished work, and return its results."""
    command = [sys.executable, f"recipes/{name}.py", *arguments, "--output_dir", str(output)]
    subprocess.run(command, cwd=ROOT, check=True)
    return json.loads((ROOT / output / "results.json").read_text(encoding="utf-8"))


def row_of(options: argparse.Namespace, name: str, subset: str | None) -> dict:
    from hf_tlm.runs.records import format_score

    precision = ["--bf16", "true"] if options.bf16 else []
    folder, encoder, pretrained = Path(options.work_dir) / name.lower().replace(" ", "-"), options.model_name_or_path, None
    if subset is not None:
        given = ["--subset", subset, "--model_name_or_path", encoder, "--learning_rate", str(options.learning_rate)]
        given += ["--max_steps", str(options.max_steps), *shlex.split(PRETRAIN), *precision]
        pretrained = recipe("pretrain", folder / "pretrained", *given)
        encoder = str(folder / "pretrained")
    given = ["--task", f"{data_dir()}/tasks/{options.task}", "--model_name_or_path", encoder, *shlex.split(FINETUNE)]
    run = recipe("finetune", folder / "finetuned", *given, *precision, "--seeds", *map(str, options.seeds))
    row = {"task": options.task, "pretrained further on": name}
    for part in ("steps", "real_tokens", "seconds"):
        row[part] = None if pretrained is None else pretrained["cost"][part]
    row["MLM loss"] = None if pretrained is None else pretrained["validation"]["mlm_loss"]
    row |= {split: format_score(run["summary"][split][run["metric"]]) for split in ("validation", "test")}
    return row | {"seeds": len(options.seeds), "summary": run["summary"], "environment": run["environment"]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--model_name_or_path", required=True)
    add("--task", default="scierc")
    add(
        "--subsets",
        nargs="+",
        required=True,
        metavar="NAME=FOLDER",
        help="Saved subsets, compared with no further pretraining.",
    )
    add("--max_steps", type=int, default=300, help="Steps of pretraining.")
    add("--learning_rate", type=float, default=1e-4, help="Learning rate of pretraining.")
    add("--seeds", nargs="+", type=int, default=[0, 1, 2], help="Seeds of fine-tuning.")
    add("--bf16", action="store_true")
    add("--work_dir", default="runs/further_pretraining")
    add("--results_dir", default=str(ROOT / "benchmarks" / "results"))
    add("--name", default="further_pretraining", help="Name of the result files.")
    options = parser.parse_args()
    file = ResultsFile(options.results_dir, options.name, TITLES, NOTES, hidden=("summary", "environment"))
    rows = []
    for name, subset in [(NONE, None), *(text.rsplit("=", 1) for text in options.subsets)]:
        rows.append(row_of(options, name, subset))
        file.add("further", rows)
    print("\n" + file.to_text())


if __name__ == "__main__":
    main()
