"""Compare the cost of a Muon step with that of an AdamW step, and with the forward and backward pass of the same batch.

    OMP_NUM_THREADS=1 python benchmarks/optimizers.py
    python benchmarks/optimizers.py --device cuda --rounds 30

Every model is a ModernBERT trained as a masked LM on random tokens, 32 texts of 128 in bf16; both optimizers update the same
model in turn, with the gradients of the preceding pass. Medians over rounds. Writes optimizers.json and .md.
"""

from __future__ import annotations

import argparse
import time
from statistics import median

import torch
from results_file import run_sections
from transformers import AutoConfig, set_seed

from hf_tlm.models import TlmModel
from hf_tlm.training.optimizers import Muon, layer_matrices, parameter_groups

TEXTS, LENGTH, MASKED = 32, 128, 0.15
SIZES = {
    "3x128": (3, 128, 4, 8000),
    "4x256": (4, 256, 4, 8000),
    "6x512": (6, 512, 8, 30_522),
    "12x768": (12, 768, 12, 30_522),
}
TITLES = {"steps": "A step of Muon and of AdamW"}
NOTES = {
    "steps": "Milliseconds. *pass*: forward and backward of 32 texts of 128 tokens. *matrices*: parameters of the layers "
    "that Muon steps, in millions; the others are AdamW's in both. *of a step*: by how much Muon makes a whole step longer."
}


class Benchmark:
    def __init__(self, options: argparse.Namespace):
        self.options = options

    def steps(self) -> list[dict]:
        return [self._row(name, *SIZES[name]) for name in self.options.models]

    def _row(self, name: str, layers: int, width: int, heads: int, vocabulary: int) -> dict:
        device = torch.device(self.options.device)
        set_seed(0)
        config = AutoConfig.for_model(
            "modernbert",
            **{"num_hidden_layers": layers, "hidden_size": width, "num_attention_heads": heads, "vocab_size": vocabulary},
            **{"intermediate_size": 2 * width, "max_position_embeddings": 512, "local_attention": 32, "pad_token_id": 0},
        )
        model = TlmModel.from_config(config).to(device).train()
        matrices = layer_matrices(model)
        rates = {"learning_rate": 1e-4, "weight_decay": 0.01}
        muon = Muon(parameter_groups(model, matrices, **rates, muon_learning_rate=1e-4), lr=1e-4)
        adamw = torch.optim.AdamW(parameter_groups(model, matrices, **rates), lr=1e-4, fused=True)
        times: dict[str, list[float]] = {"pass": [], "adamw": [], "muon": []}
        generator = torch.Generator().manual_seed(0)
        for _ in range(self.options.rounds + 2):
            ids = torch.randint(5, vocabulary, (TEXTS, LENGTH), generator=generator)
            labels = torch.where(torch.rand(ids.shape, generator=generator) < MASKED, ids, -100)
            batch = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "mlm_labels": labels}
            batch = {name: value.to(device) for name, value in batch.items()}
            times["pass"].append(_timed(device, lambda batch=batch: _pass(model, batch)))
            times["adamw"].append(_timed(device, adamw.step))
            times["muon"].append(_timed(device, muon.step))
        middle = {name: 1000 * median(values[2:]) for name, values in times.items()}
        count = sum(value.numel() for name, value in model.named_parameters() if name in matrices)
        return {
            "model": name,
            "vocabulary": vocabulary,
            "matrices": count / 1e6,
            **middle,
            "muon / adamw": middle["muon"] / middle["adamw"],
            "of a step": f"{100 * (middle['muon'] - middle['adamw']) / (middle['pass'] + middle['adamw']):.0f}%",
        }


def _pass(model: TlmModel, batch: dict[str, torch.Tensor]) -> None:
    model.zero_grad()
    with torch.autocast(batch["input_ids"].device.type, dtype=torch.bfloat16):
        loss = model(**batch).mlm_loss / (batch["mlm_labels"] != -100).sum()
    loss.backward()


def _timed(device: torch.device, work) -> float:
    begun = time.perf_counter()
    work()
    if device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - begun


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", choices=list(SIZES), default=list(SIZES))
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--device", default="cpu")
    run_sections(parser, Benchmark, "optimizers", TITLES, NOTES)


if __name__ == "__main__":
    main()
