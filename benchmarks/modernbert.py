"""Measure the milliseconds of a pass of a small ModernBERT on one core: stock transformers against ours.

    python benchmarks/modernbert.py

Times the forward and backward pass of a classifier on random texts of one length, and the forward pass alone as in scoring,
on one thread. Both sides have the same weights and alternate, `--repeats` times; figures are medians. Writes
benchmarks/results/modernbert.json and .md.
"""

from __future__ import annotations

import argparse
import time
from contextlib import nullcontext
from statistics import median

from results_file import ROOT, run_sections

# Kind of pass -> (texts, tokens of a text, dropout).
PASSES = {
    "training, stage 1": (32, 128, 0.0),
    "training, stage 2": (16, 128, 0.1),
    "training, stage 2, long texts": (16, 512, 0.1),
    "scoring": (64, 128, 0.0),
    "scoring, long texts": (64, 512, 0.0),
}
TITLES = {"modernbert": "A small ModernBERT on a CPU, stock and ours"}
NOTES = {
    "modernbert": "Milliseconds of a pass, medians; `ratio` is the median of the pairs' ratios, `lowest` and `highest` "
    "their range. Training is forward and backward pass, without the optimizer, with dropout in stage 2; scoring is the "
    "forward pass. `apart` is the largest difference of logits in the forward pass alone, without dropout.",
}


class Benchmark:
    def __init__(self, options: argparse.Namespace):
        self.options = options

    def modernbert(self) -> list[dict]:
        import torch

        from hf_tlm.utils.process import keep_freed_memory

        torch.set_num_threads(1)
        keep_freed_memory()
        return [
            self._row(body, precision, name)
            for body in self.options.bodies
            for precision in self.options.precisions
            for name in self.options.passes
        ]

    def _row(self, body: str, precision: str, name: str) -> dict:
        import torch
        from transformers import AutoConfig, AutoModelForSequenceClassification, set_seed

        from hf_tlm.models.cpu_kernels import faster_kernels, set_dropout, use_cpu_kernels

        texts, tokens, dropout = PASSES[name]
        device = torch.device("cpu")

        def classifier():
            set_seed(0)
            config = AutoConfig.from_pretrained(
                ROOT / f"recipes/configs/models/modernbert_{body}.json", vocab_size=8000, num_labels=3, pad_token_id=0
            )
            return AutoModelForSequenceClassification.from_config(config)

        sides = {"stock": classifier(), "ours": classifier()}
        use_cpu_kernels(sides["ours"])
        for model in sides.values():
            set_dropout(model, dropout)
        ids = torch.randint(5, 8000, (texts, tokens))
        mask = torch.ones_like(ids)
        mask[1::4, tokens * 3 // 4 :] = 0  # As in batches of texts of similar length.
        labels = torch.arange(texts) % 3
        autocast = torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16")
        training = name.startswith("training")

        def run(model):
            with autocast, torch.set_grad_enabled(training):
                outputs = model(input_ids=ids, attention_mask=mask, labels=labels)
            if training:
                outputs.loss.backward()
                model.zero_grad()
            return outputs.logits

        with torch.no_grad(), autocast:
            found = [model.eval()(input_ids=ids, attention_mask=mask).logits.float() for model in sides.values()]
        seconds: dict[str, list[float]] = {side: [] for side in sides}
        for repeat in range(self.options.repeats + 1):
            for side in sides if repeat % 2 else reversed(sides):
                model = sides[side].train(training)
                begun = time.perf_counter()
                with faster_kernels(device) if side == "ours" else nullcontext():
                    run(model)
                if repeat:  # The first repeat allocates memory.
                    seconds[side].append(time.perf_counter() - begun)
        ratios = [stock / ours for stock, ours in zip(seconds["stock"], seconds["ours"], strict=True)]
        row = {
            "body": body,
            "pass": name,
            "texts": texts,
            "tokens": tokens,
            "precision": precision,
            "stock, ms": 1000 * median(seconds["stock"]),
            "ours, ms": 1000 * median(seconds["ours"]),
            "ratio": median(ratios),
            "lowest": min(ratios),
            "highest": max(ratios),
            "apart": (found[0] - found[1]).abs().max().item(),
            "all": seconds,
        }
        print(row)
        return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--bodies", nargs="+", default=["3x128", "6x384"], help="Names in recipes/configs/models/modernbert_*."
    )
    parser.add_argument("--passes", nargs="+", choices=list(PASSES), default=list(PASSES))
    parser.add_argument("--precisions", nargs="+", choices=("float32", "bf16"), default=["float32", "bf16"])
    parser.add_argument("--repeats", type=int, default=7)
    run_sections(parser, Benchmark, "modernbert", TITLES, NOTES, hidden=("all",))


if __name__ == "__main__":
    main()
