"""Time and memory of a step of corrupt-and-predict against the passes that it consists of; used by objectives.py.

The passes run on plain models. ELECTRA: one pass of each stock model. COCO-LM: two of the auxiliary model, to sample
(forward only) and to learn, and two of the main model, on corrupted and on cropped texts, by `CocoLmForMaskedLM`.
"""

from __future__ import annotations

import time
from statistics import median

from measuring import Memory, fresh

VOCABULARY, BATCH, LENGTH, MASKED, CROPPED = 30_522, 16, 128, 0.15, 0.9
SIZE = {"hidden_size": 256, "num_hidden_layers": 12, "num_attention_heads": 4, "intermediate_size": 1024}
CONFIGS = {
    "ELECTRA small": {"model_type": "electra", "embedding_size": 128, **SIZE},
    "COCO-LM small": {"model_type": "cocolm", **SIZE},
}
STEPS_OF_MEMORY = 2
SIDES = ("composite", "auxiliary", "main", "auxiliary's body", "main body")


def _batch():
    """Return a batch of random tokens without padding, masked as by the collator: int64 [BATCH, LENGTH] and the like."""
    import torch

    generator = torch.Generator().manual_seed(0)
    original = torch.randint(1000, VOCABULARY, (BATCH, LENGTH), generator=generator)
    chosen = torch.rand(BATCH, LENGTH, generator=generator) < MASKED
    cropped = original[:, : round(CROPPED * LENGTH)]
    return {
        "input_ids": original.masked_fill(chosen, 103),
        "attention_mask": torch.ones_like(original),
        "mlm_labels": original.masked_fill(~chosen, -100),
        "uniforms": torch.rand(BATCH, LENGTH, generator=generator),
        "crop_input_ids": cropped,
        "crop_attention_mask": torch.ones_like(cropped),
    }


def _side(model_name: str, side: str):
    """Return (model, function of the batch that returns the loss) of one side."""
    from transformers import AutoConfig

    from hf_tlm.models import generator_config

    main = AutoConfig.for_model(**CONFIGS[model_name], vocab_size=VOCABULARY)
    if model_name == "ELECTRA small":
        return _electra(side, main, generator_config(main))
    return _coco_lm(side, main, generator_config(main, 1, 2))


def _electra(side: str, main, auxiliary):
    from transformers import ElectraForMaskedLM, ElectraForPreTraining, ElectraModel

    from hf_tlm.models import GeneratorDiscriminator
    from hf_tlm.objectives import Mlm, ReplacedTokenDetection, WeightedSum

    if side == "composite":
        model = GeneratorDiscriminator.from_config(main, auxiliary)
        objective = WeightedSum((1.0, Mlm()), (50.0, ReplacedTokenDetection()))
        return model, lambda batch: objective(model(**_uncropped(batch)), batch)["loss"]
    if side.endswith("body"):
        model = ElectraModel(auxiliary if side.startswith("auxiliary") else main)
        return model, lambda batch: model(batch["input_ids"], batch["attention_mask"]).last_hidden_state.mean()
    model = ElectraForMaskedLM(auxiliary) if side == "auxiliary" else ElectraForPreTraining(main)

    def loss(batch):
        labels = batch["mlm_labels"] if side == "auxiliary" else (batch["mlm_labels"] != -100).long()
        return model(batch["input_ids"], batch["attention_mask"], labels=labels).loss

    return model, loss


def _coco_lm(side: str, main, auxiliary):
    import torch

    from hf_tlm.models import CocoLmForMaskedLM, CocoLmModel, GeneratorDiscriminator
    from hf_tlm.objectives import CorrectiveLm, Mlm, SequenceContrastive, WeightedSum

    if side == "composite":
        model, correction = GeneratorDiscriminator.from_config(main, auxiliary, 1.0, heads="clm", apart=True), CorrectiveLm()
        model.lm_loss = correction.lm_loss
        objective = WeightedSum((1.0, Mlm()), (1.0, correction), (1.0, SequenceContrastive()))
        return model, lambda batch: objective(model(**batch), batch)["loss"]
    config, whole = auxiliary if side.startswith("auxiliary") else main, not side.endswith("body")
    model = CocoLmForMaskedLM(config) if whole else CocoLmModel(config, add_pooling_layer=False)
    body = model.cocolm if whole else model

    def learn(batch):
        rows = (batch["input_ids"], batch["attention_mask"])
        return model(*rows, labels=batch["mlm_labels"]).loss if whole else model(*rows).last_hidden_state.mean()

    def sample_and_learn(batch):
        model.eval()
        with torch.no_grad():
            model(batch["input_ids"], batch["attention_mask"])
        model.train()
        return learn(batch)

    def learn_both_views(batch):
        cropped = body(batch["crop_input_ids"], batch["crop_attention_mask"]).last_hidden_state
        return learn(batch) + cropped[:, 0].mean()

    return model, sample_and_learn if side.startswith("auxiliary") else learn_both_views


def _uncropped(batch: dict) -> dict:
    return {name: rows for name, rows in batch.items() if not name.startswith("crop_")}


def _step(model, loss, batch) -> float:
    """Return the seconds of forward, loss and backward."""
    begin = time.perf_counter()
    loss(batch).backward()
    elapsed = time.perf_counter() - begin
    model.zero_grad()
    return elapsed


def _times(model_name: str, repeats: int, threads: int) -> dict[str, list[float]]:
    import torch

    torch.set_num_threads(threads)
    batch, sides = _batch(), {side: _side(model_name, side) for side in SIDES}
    times: dict[str, list[float]] = {side: [] for side in SIDES}
    # The first round is not counted: it chooses kernels and allocates buffers.
    for repeat in range(repeats + 1):
        for side, (model, loss) in sides.items():
            elapsed = _step(model, loss, batch)
            if repeat:
                times[side].append(elapsed)
    return times


def _memory(model_name: str, side: str, threads: int) -> float:
    import torch

    torch.set_num_threads(threads)
    with Memory() as memory:
        batch, (model, loss) = _batch(), _side(model_name, side)
        before = memory.now("VmRSS") - sum(p.numel() * p.element_size() for p in model.parameters()) / 2**20
        for _ in range(STEPS_OF_MEMORY):
            _step(model, loss, batch)
    return memory.peak - before


def measure_step(models: list[str], *, repeats: int, threads: int) -> list[dict]:
    """Return rows with the seconds and memory of each composite, of the plain models' passes, and of their bodies alone."""
    rows = []
    for model in models:
        times = fresh(_times, model, repeats, threads)
        memory = {side: [fresh(_memory, model, side, threads)] for side in SIDES}
        for figure, values in (("seconds a step", times), ("memory", memory)):
            for against, parts in (("plain models", SIDES[1:3]), ("bodies", SIDES[3:])):
                ratios = [a / (b + c) for a, b, c in zip(*(values[side] for side in (SIDES[0], *parts)), strict=True)]
                rows.append(
                    {
                        "model": model,
                        "figure": figure,
                        "composite": median(values["composite"]),
                        "against": against,
                        "auxiliary": median(values[parts[0]]),
                        "main": median(values[parts[1]]),
                        "ratio": median(ratios),
                        "repeats": len(ratios),
                        "all": ratios,
                    }
                )
                print(rows[-1], flush=True)
    return rows
