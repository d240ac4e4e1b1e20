"""Pretrain COCO-LM's tiny model for longer, and show what it logs (Figures 7 and 8 of its paper).

    python benchmarks/coco_lm_long.py --threads 1 --work_dir runs/coco_lm

Runs recipes/pretrain.py with recipes/configs/pretrain/cocolm_tiny.yaml on passages of the corpus in HF_TLM_DATA (default
../shared/data), with the settings that leave the plateau of masked language modelling soonest here: small batches, a high
learning rate, a small vocabulary, spectral initialisation of embeddings. Writes benchmarks/results/coco_lm_long.json, .md
and .png (extra [analysis]) from the run's log. A finished run is not repeated, an interrupted one continues.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path

from coco_lm import CONFIGS, MEASURES, SCL, draw
from corpus_sample import corpus_sample
from results_file import ROOT, run_sections

TITLES = {"log": "COCO-LM's tiny model, for longer"}
NOTES = {
    "log": "One seed. Means since the line before, of training batches, with dropout. Accuracies are shares of the tokens "
    "that the auxiliary model replaced, and of those that are as they were (of the LM, at masked positions)."
}
SETTINGS = {
    **{"embedding_init": "spectral", "learning_rate": 1e-3, "vocab_size": 4000, "warmup_steps": 200},
    **{"total_batch_size": 16, "per_device_train_batch_size": 16, "use_cpu": "true"},
    **{"report_to": "none", "disable_tqdm": "true"},
}


class Benchmark:
    """The benchmark; one method per section, which returns its rows."""

    def __init__(self, options: argparse.Namespace):
        self.options = options

    def log(self) -> list[dict]:
        options, folder = self.options, Path(self.options.work_dir).absolute()
        corpus, run = corpus_sample(folder / "corpus.parquet", options.passages), folder / "long"
        values = {"corpus": corpus, "output_dir": run, "max_steps": options.steps, "logging_steps": options.every}
        values |= {"seed": options.seed, **SETTINGS}
        command = [sys.executable, "recipes/pretrain.py", "--config", *CONFIGS]
        command += [part for name, value in values.items() for part in (f"--{name}", str(value))]
        environment = {**os.environ, "OMP_NUM_THREADS": str(options.threads)}
        subprocess.run(command, env=environment, cwd=ROOT, check=True)
        state = json.loads((run / "training" / "trainer_state.json").read_text(encoding="utf-8"))
        names = {"mlm_loss": "MLM loss", **MEASURES}
        rows = [
            {"objective": SCL, "step": entry["step"], "tokens": entry["real_tokens"]}
            | {shown: entry.get(f"corpus/{name}") for name, shown in names.items()}
            for entry in state["log_history"]
            if "loss" in entry
        ]
        draw(rows, Path(options.results_dir) / f"{options.name}.png")
        return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--steps", type=int, default=8000)
    add("--every", type=int, default=200, help="Steps between lines of the log.")
    add("--passages", type=int, default=30_000, help="Passages drawn at random from the corpus.")
    add("--seed", type=int, default=0)
    add("--threads", type=int, default=os.cpu_count())
    add("--work_dir", default="runs/coco_lm", help="Folder of the runs; use another one for other --steps.")
    run_sections(parser, Benchmark, "coco_lm_long", TITLES, NOTES)


if __name__ == "__main__":
    main()
