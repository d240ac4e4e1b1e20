"""Time and memory of a step of corrupt-and-predict against its two transformers as stock models, see objectives.py."""

from __future__ import annotations

import json
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).resolve().parent))
from retrieval_measures import Memory

CONFIG = Path(__file__).resolve().parent.parent / "recipes" / "configs" / "models" / "electra_small.json"
VOCABULARY, BATCH, LENGTH, MASKED = 30_522, 16, 128, 0.15
STEPS_OF_MEMORY = 2
SIDES = ("composite", "generator", "discriminator", "generator's body", "discriminator's body")


def _batch():
    """A batch of random tokens, full rows, masked as the collator does for ELECTRA: int64 [BATCH, LENGTH] and the like."""
    import torch

    generator = torch.Generator().manual_seed(0)
    original = torch.randint(1000, VOCABULARY, (BATCH, LENGTH), generator=generator)
    chosen = torch.rand(BATCH, LENGTH, generator=generator) < MASKED
    return {
        "input_ids": original.masked_fill(chosen, 103),
        "attention_mask": torch.ones_like(original),
        "mlm_labels": original.masked_fill(~chosen, -100),
        "uniforms": torch.rand(BATCH, LENGTH, generator=generator),
    }


def _side(name: str):
    """(model, function of the batch that gives the loss) of one side."""
    from transformers import AutoConfig, ElectraForMaskedLM, ElectraForPreTraining, ElectraModel

    from hf_tlm.models import CorruptAndPredict, auxiliary_config
    from hf_tlm.objectives import Mlm, ReplacedTokenDetection, WeightedSum

    main = AutoConfig.for_model(**json.loads(CONFIG.read_text(encoding="utf-8")), vocab_size=VOCABULARY)
    small = auxiliary_config(main)
    if name == "composite":
        model, objective = (
            CorruptAndPredict.from_config(main, small),
            WeightedSum((1.0, Mlm()), (50.0, ReplacedTokenDetection())),
        )
        return model, lambda batch: objective(model(**batch), batch)["loss"]
    if name.endswith("body"):
        model = ElectraModel(small if name.startswith("generator") else main)
        return model, lambda batch: model(batch["input_ids"], batch["attention_mask"]).last_hidden_state.mean()
    if name == "generator":
        model = ElectraForMaskedLM(small)
        return model, lambda batch: model(batch["input_ids"], batch["attention_mask"], labels=batch["mlm_labels"]).loss
    model = ElectraForPreTraining(main)
    return (
        model,
        lambda batch: model(batch["input_ids"], batch["attention_mask"], labels=(batch["mlm_labels"] != -100).long()).loss,
    )


def _step(model, loss, batch) -> float:
    """Seconds of forward, loss and backward."""
    begin = time.perf_counter()
    loss(batch).backward()
    elapsed = time.perf_counter() - begin
    model.zero_grad()
    return elapsed


def _times(repeats: int, threads: int) -> dict[str, list[float]]:
    import torch

    torch.set_num_threads(threads)
    batch, sides = _batch(), {name: _side(name) for name in SIDES}
    times: dict[str, list[float]] = {name: [] for name in SIDES}
    # The first round is not counted: kernels are chosen, buffers allocated.
    for repeat in range(repeats + 1):
        for name, (model, loss) in sides.items():
            elapsed = _step(model, loss, batch)
            if repeat:
                times[name].append(elapsed)
    return times


def _memory(name: str, threads: int) -> float:
    import torch

    torch.set_num_threads(threads)
    with Memory() as memory:
        batch, (model, loss) = _batch(), _side(name)
        before = memory.now("VmRSS") - sum(p.numel() * p.element_size() for p in model.parameters()) / 2**20
        for _ in range(STEPS_OF_MEMORY):
            _step(model, loss, batch)
    return memory.peak - before


def _fresh(function, *arguments):
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        return pool.submit(function, *arguments).result()


def measure_step(*, repeats: int, threads: int) -> list[dict]:
    """Rows: seconds and memory of the composite, of both stock models, and of their bodies alone."""
    times = _fresh(_times, repeats, threads)
    memory = {name: _fresh(_memory, name, threads) for name in SIDES}
    rows = []
    for label, values in (("seconds a step", times), ("memory", {name: [value] for name, value in memory.items()})):
        for against, parts in (("stock models", SIDES[1:3]), ("bodies", SIDES[3:])):
            ratios = [a / (b + c) for a, b, c in zip(*(values[name] for name in (SIDES[0], *parts)), strict=True)]
            rows.append(
                {
                    "figure": label,
                    "composite": median(values["composite"]),
                    "against": against,
                    "generator": median(values[parts[0]]),
                    "discriminator": median(values[parts[1]]),
                    "ratio": median(ratios),
                    "repeats": len(ratios),
                    "all": ratios,
                }
            )
            print(rows[-1], flush=True)
    return rows
