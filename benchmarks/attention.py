"""Measure what batches of new shapes cost attention on a GPU, with cuDNN and with torch's own kernels.

    python benchmarks/attention.py

Times twelve calls of `scaled_dot_product_attention` with their backward passes in bf16, 12 heads of 64, as in one pass of a
BERT-Base. Each series has 15 batches: all of 109 rows of 128 tokens; with ever more rows; with ever more and longer rows.
Figures are medians of the batches after the third. Writes benchmarks/results/attention_gpu.json and .md.
"""

from __future__ import annotations

import argparse
import sys
import time
from statistics import median

import torch
import torch.nn.functional as F
from results_file import run_sections

LAYERS, HEADS, WIDTH, WARM = 12, 12, 64, 3
SHAPES = {
    "one shape": [(109, 128)] * 15,
    "new rows": [(95 + i, 128) for i in range(15)],
    "new rows and lengths": [(95 + i, 40 + 8 * i) for i in range(15)],
}
TITLES = {"shapes": "Attention of batches whose shapes differ"}
NOTES = {
    "shapes": "Milliseconds of twelve layers' attention, forward and backward. cuDNN makes a plan for each new shape; texts "
    "in groups of similar length, or in packed rows, have a new one nearly every step. torch prefers cuDNN on Hopper cards; "
    "hf_tlm's steps leave it out."
}


class Benchmark:
    def __init__(self, options: argparse.Namespace):
        if not torch.cuda.is_available():
            sys.exit("This benchmark is of a GPU's kernels, and torch sees no GPU.")

    def shapes(self) -> list[dict]:
        rows = []
        for cudnn in (True, False):
            torch.backends.cuda.enable_cudnn_sdp(cudnn)
            for masked in (False, True):
                times = {name: _median(shapes, masked) for name, shapes in SHAPES.items()}
                rows.append({"cuDNN": "yes" if cudnn else "no", "mask": "yes" if masked else "no", **times})
        return [{**row, "device": torch.cuda.get_device_name()} for row in rows]


def _median(shapes: list[tuple[int, int]], masked: bool) -> float:
    times = []
    for rows, length in shapes:
        size = (rows, HEADS, length, WIDTH)
        tensors = [torch.randn(size, device="cuda", dtype=torch.bfloat16, requires_grad=True) for _ in range(3)]
        mask = torch.ones(rows, 1, length, length, device="cuda", dtype=torch.bool).tril() if masked else None
        torch.cuda.synchronize()
        begun = time.perf_counter()
        for _ in range(LAYERS):
            F.scaled_dot_product_attention(*tensors, attn_mask=mask).sum().backward()
        torch.cuda.synchronize()
        times.append(1000 * (time.perf_counter() - begun))
    return median(times[WARM:])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    run_sections(parser, Benchmark, "attention_gpu", TITLES, NOTES)


if __name__ == "__main__":
    main()
