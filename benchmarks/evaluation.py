"""Measure the seconds to score a validation split, with its texts in their order and sorted by length, longest first.

    python benchmarks/evaluation.py --tasks_dir ../shared/data/tasks

Runs the Trainer's own `predict` on a ModernBERT of 3 x 128 with random weights, as in the scale tlm/coffee, on one thread in
batches of 64 texts. The two orders alternate, `--repeats` times; figures are medians. Writes
benchmarks/results/evaluation.json and .md.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path
from statistics import median

from results_file import ROOT, run_sections

# Task -> tokens to which a text is truncated in stage 2.
TASKS = {"imdb": 512, "hyperpartisan": 512, "agnews": 128, "rct_ei": 128, "chemprot": 128, "scierc": 128}
TITLES = {"evaluation": "Scoring a validation split, texts as they come and longest first"}
NOTES = {
    "evaluation": "Seconds of `Trainer.predict` in float32, medians; `fill` is the share of computed places that are not "
    "padding. A training of tlm/coffee scores its validation split twenty times."
}


class Benchmark:
    def __init__(self, options: argparse.Namespace):
        self.options = options

    def evaluation(self) -> list[dict]:
        import torch

        torch.set_num_threads(1)
        return [self._row(name) for name in self.options.tasks]

    def _row(self, name: str) -> dict:
        import numpy as np
        from transformers import (
            AutoConfig,
            AutoModelForSequenceClassification,
            DataCollatorWithPadding,
            Trainer,
            TrainingArguments,
            set_seed,
        )

        from hf_tlm import load_task
        from hf_tlm.data import in_first_order, longest_first, text_lengths, tokenize, train_wordpiece

        task = load_task(str(Path(self.options.tasks_dir) / name))
        texts = task.validation.select(range(min(self.options.texts, len(task.validation))))
        tokenizer = train_wordpiece(task.train["text"][:], 8000, max_length=TASKS[name])
        rows = tokenize(texts, tokenizer, TASKS[name]).rename_column("label", "labels")
        ordered, order = longest_first(rows)
        config = AutoConfig.from_pretrained(
            ROOT / "recipes/configs/models/modernbert_3x128.json",
            vocab_size=len(tokenizer),
            num_labels=task.num_labels,
            pad_token_id=tokenizer.pad_token_id,
        )
        set_seed(0)
        model = AutoModelForSequenceClassification.from_config(config)
        seconds: dict[str, list[float]] = {"as they come": [], "longest first": []}
        logits = {}
        with tempfile.TemporaryDirectory() as folder:
            args = TrainingArguments(
                folder, per_device_eval_batch_size=64, use_cpu=True, report_to="none", disable_tqdm=True
            )
            trainer = Trainer(model, args, data_collator=DataCollatorWithPadding(tokenizer))
            for _ in range(self.options.repeats):
                for which, data in (("as they come", rows), ("longest first", ordered)):
                    begun = time.perf_counter()
                    logits[which] = trainer.predict(data).predictions
                    seconds[which].append(time.perf_counter() - begun)
        apart = np.abs(in_first_order(logits["longest first"], order) - logits["as they come"]).max()
        taken = {which: median(values) for which, values in seconds.items()}
        row = {
            "task": name,
            "texts": len(rows),
            "tokens at most": TASKS[name],
            **taken,
            "ratio": taken["as they come"] / taken["longest first"],
            "fill": _fill(text_lengths(rows)),
            "fill, longest first": _fill(text_lengths(ordered)),
            "logits within": float(apart),
            "all": seconds,
        }
        print(row)
        return row


def _fill(lengths) -> float:
    parts = [lengths[start : start + 64] for start in range(0, len(lengths), 64)]
    return float(lengths.sum() / sum(len(part) * part.max() for part in parts))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", nargs="+", choices=list(TASKS), default=list(TASKS))
    parser.add_argument("--tasks_dir", default="../shared/data/tasks")
    parser.add_argument("--texts", type=int, default=1000, help="Most texts of a validation split.")
    parser.add_argument("--repeats", type=int, default=3)
    run_sections(parser, Benchmark, "evaluation", TITLES, NOTES, hidden=("all",))


if __name__ == "__main__":
    main()
