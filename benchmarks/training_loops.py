"""Bare training loops for benchmarks/training.py; each function runs in a process of its own.

They measure the Trainer's overhead over a loop, the parts of a step, the least cost of padding, and the gain from half
precision and compilation.
"""

from __future__ import annotations

import copy
from dataclasses import replace
from itertools import chain, repeat

from training_measures import COMPILED_WARM, LEARNING_RATE, WARM, WEIGHT_DECAY, Setting, load, ours


class Loop:
    """A training loop with prepared batches: forward, loss, backward, clipping, optimizer and schedule only."""

    def __init__(self, model, objectives, setting: Setting, steps: int):
        import torch
        from transformers import get_scheduler

        self.objectives, self.setting = objectives, setting
        self.model = setting.prepared(model)
        self.parameters = list(model.parameters())
        self.optimizer = torch.optim.AdamW(self.parameters, lr=LEARNING_RATE, weight_decay=WEIGHT_DECAY, fused=True)
        self.schedule = get_scheduler("linear", self.optimizer, num_warmup_steps=1, num_training_steps=steps)

    def loss(self, batch: dict):
        """Compute the objective of the batch's stream, as `TlmTrainer` does."""
        with self.setting.autocast():
            outputs = self.model(**batch)
        return self.objectives[_stream_of(batch)](outputs, batch)["loss"]

    def backward(self, batch: dict) -> None:
        with self.setting.products():
            self.loss(batch).backward()

    def step(self, batch: dict) -> float:
        """Run one step and return its seconds."""
        import torch

        begin = self.setting.now()
        self.backward(batch)
        torch.nn.utils.clip_grad_norm_(self.parameters, 1.0)
        self.optimizer.step()
        self.schedule.step()
        self.optimizer.zero_grad()
        return self.setting.now() - begin

    def touch(self, batches: list[dict]) -> None:
        """Allocate the memory for each stream's longest batch, which the process keeps.

        Otherwise the side that first has a longer batch pays for it. Call this after the optimizers have allocated their
        moments, which would otherwise use this memory.
        """
        longest = {_stream_of(batch): batch for batch in sorted(batches, key=lambda batch: batch["input_ids"].numel())}
        for batch in longest.values():
            self.backward(batch)
        self.optimizer.zero_grad()


def _stream_of(batch: dict) -> str:
    return "task" if "labels" in batch else "corpus"


def texts_of(trainer, steps: int) -> list[list[dict]]:
    """Return the tokenised texts of each of the first steps of a run of our Trainer."""
    from hf_tlm.data.interleave import InterleavedDataset

    texts = InterleavedDataset(trainer.train_dataset, trainer.corpus_dataset)
    return [texts.__getitems__(next(trainer.batch_sampler.batches_of(step))) for step in range(steps)]


def batches_of(trainer, steps: int, setting: Setting) -> list[dict]:
    """Return the batches of the first steps of a run of our Trainer, on the device."""
    batches = map(trainer.data_collator, texts_of(trainer, steps))
    return [{name: values.to(setting.device) for name, values in batch.items()} for batch in batches]


def overhead(
    *, body: str, steps: int, warm: int, seed: int, setting: Setting, rows: str, task: str, tokenizer: str
) -> dict[str, list[float]]:
    """Measure the seconds of each step of our Trainer, and of a bare loop with the same batches, losses and model.

    Task batches come between corpus batches. Both sides share a model because, with one for each side, equal operators were
    a percent or two slower on one. The sides alternate in being first, because the second may find memory that the first
    had to allocate. The Trainer logs once per round of both streams.
    """
    from datasets import load_from_disk
    from transformers import TrainerCallback

    from hf_tlm.utils.process import keep_freed_memory

    rows, tokenizer = load(rows, tokenizer, setting.threads)
    streams = {"task": load_from_disk(task), "rho1": 3, "logging_steps": 4}
    trainer = ours(rows, tokenizer, body, steps + warm, seed, "auto", setting, **streams)
    batches = batches_of(trainer, steps + warm, setting)
    loop = Loop(trainer.model, trainer.objectives, setting, steps + warm)
    if setting.device == "cpu":
        keep_freed_memory()
    times = {"trainer": [], "loop": []}

    class Between(TrainerCallback):
        # End of the Trainer's last step, and seconds of a loop step within its next one.
        end, loops = None, 0.0

        def take(self, step: int) -> None:
            times["loop"].append(loop.step(batches[step]))

        def loop_first(self, step: int) -> bool:
            """Return whether the loop is first in this step; it alternates, shifted by one each round of four."""
            return (step + step // 4) % 2 == 1

        def on_step_begin(self, args, state, control, **kwargs):
            self.loops = 0.0
            if self.loop_first(state.global_step):
                self.take(state.global_step)
                self.loops = times["loop"][-1]

        def on_step_end(self, args, state, control, **kwargs):
            if self.end is not None:
                times["trainer"].append(setting.now() - self.end - self.loops)
            if not self.loop_first(state.global_step - 1):
                self.take(state.global_step - 1)
            if state.global_step == warm:
                loop.touch(batches)
            self.end = setting.now()

    trainer.add_callback(Between())
    trainer.train()
    return {side: found[-steps:] for side, found in times.items()}


def full_rows(
    *, body: str, steps: int, seed: int, length: int | None, setting: Setting, rows: str, tokenizer: str
) -> dict[str, float]:
    """Measure tokens per second of a bare loop on a run's texts, concatenated into rows of `length` tokens without padding.

    Args:
        length: None for the average length of a text.
    """
    import torch

    from hf_tlm.utils.process import keep_freed_memory

    rows, tokenizer = load(rows, tokenizer, setting.threads)
    trainer = ours(rows, tokenizer, body, steps + setting.warm, seed, "none", setting)
    padded = batches_of(trainer, steps + setting.warm, setting)
    real = {name: torch.cat([b[name][b["attention_mask"] == 1] for b in padded]) for name in ("input_ids", "mlm_labels")}
    tokens = len(real["input_ids"])
    length = length or round(tokens / sum(len(batch["input_ids"]) for batch in padded))
    shape = (len(padded), tokens // (len(padded) * length), length)
    steps_of = {name: values[: shape[0] * shape[1] * shape[2]].view(shape) for name, values in real.items()}
    mask = torch.ones(shape[1:], dtype=torch.int64, device=setting.device)
    loop = Loop(trainer.model, trainer.objectives, setting, len(padded))
    if setting.device == "cpu":
        keep_freed_memory()
    times = [
        loop.step({"attention_mask": mask, **{name: values[step] for name, values in steps_of.items()}})
        for step in range(len(padded))
    ]
    return {"tokens per second": shape[1] * length * steps / sum(times[setting.warm :]), "length": length}


def precision(
    *, body: str, steps: int, seed: int, packing: str, setting: Setting, rows: str, tokenizer: str
) -> dict[str, dict]:
    """Return arm -> seconds of each timed step, and the number of graphs compiled in these steps.

    All arms start from the same weights, and take turns on the same batches.
    """
    from hf_tlm.utils.process import keep_freed_memory

    rows, tokenizer = load(rows, tokenizer, setting.threads)
    count = steps + COMPILED_WARM
    trainer = ours(rows, tokenizer, body, count, seed, packing, setting)
    batches = batches_of(trainer, count, setting)
    by_torch = Loop(copy.deepcopy(trainer.model), trainer.objectives, replace(setting, onednn=False), count)
    loops = {"float32, torch's products": by_torch}
    for compiled in (False, True):
        for name, bf16 in (("float32", False), ("bf16", True)):
            arm = replace(setting, bf16=bf16, compile=compiled)
            loops[name + ", compiled" * compiled] = Loop(copy.deepcopy(trainer.model), trainer.objectives, arm, count)
    if setting.device == "cpu":
        keep_freed_memory()
    found = {name: {"seconds": [], "recompilations": 0} for name in loops}
    for number, batch in enumerate(batches):
        for name, loop in loops.items():
            before = loop.setting.graphs()
            seconds = loop.step(batch)
            if number >= COMPILED_WARM:
                found[name]["seconds"].append(seconds)
                found[name]["recompilations"] += loop.setting.graphs() - before
    return found


def pipeline(*, packing: str, workers: int, batches: int, setting: Setting, rows: str, tokenizer: str) -> float:
    """Measure the seconds per batch of our Trainer's loader, on an otherwise idle processor.

    This includes reading the Arrow file, grouping or packing, masking and padding.
    """
    rows, tokenizer = load(rows, tokenizer, setting.threads)
    options = {"dataloader_num_workers": workers}
    loader = ours(rows, tokenizer, "2x64", batches + WARM, 0, packing, setting, **options).get_train_dataloader()
    passes = chain.from_iterable(repeat(loader))
    for _ in range(WARM):
        next(passes)
    begin = setting.now()
    for _ in range(batches):
        next(passes)
    return (setting.now() - begin) / batches


# Operators of torch by purpose; random numbers come from `hf_tlm.models.cpu_kernels` or from `bernoulli_`.
PARTS = {
    "matrix products": "aten::mm aten::addmm aten::addmm_ aten::bmm aten::baddbmm mkldnn::_linear_pointwise".split(),
    "dropout's random numbers": {"dropout_noise", "aten::bernoulli_"},
    "optimizer and clipping": {"aten::_fused_adamw_", "aten::linalg_vector_norm", "aten::_foreach_mul_"},
}


def step(*, body: str, packing: str, steps: int, repeats: int, setting: Setting, rows: str, tokenizer: str) -> list[dict]:
    """Measure a step with torch's dropout and with ours, on the same batches in turns: milliseconds, and shares of parts."""
    import torch
    from torch.profiler import profile, record_function

    from hf_tlm.models import cpu_kernels

    rows, tokenizer = load(rows, tokenizer, setting.threads)
    trainer = ours(rows, tokenizer, body, steps + WARM, 0, packing, setting)
    batches = batches_of(trainer, steps + WARM, setting)
    model = trainer.model
    loop = Loop(model, trainer.objectives, setting, 10**9)
    modules = [module for module in model.modules() if isinstance(module, cpu_kernels.Dropout)]
    kinds = {"torch's": (torch.nn.Dropout, "sdpa"), "ours": (cpu_kernels.Dropout, cpu_kernels.ATTENTION)}
    draw = cpu_kernels.dropout_noise

    def recorded(*args):
        with record_function("dropout_noise"):
            return draw(*args)

    cpu_kernels.dropout_noise = recorded

    def run(kind: str, batch: dict) -> float:
        for module in modules:
            module.__class__ = kinds[kind][0]
        model.config._attn_implementation = kinds[kind][1]
        return loop.step(batch)

    best = {kind: [float("inf")] * len(batches) for kind in kinds}
    for _ in range(repeats):
        for number, batch in enumerate(batches):
            for kind in kinds:
                best[kind][number] = min(best[kind][number], run(kind, batch))
    found = []
    for kind in kinds:
        with profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
            for batch in batches[WARM:]:
                run(kind, batch)
        times: dict[str, float] = {}
        for entry in profiler.key_averages():
            part = next((part for part, names in PARTS.items() if entry.key in names), "the rest")
            times[part] = times.get(part, 0.0) + entry.self_cpu_time_total
        shares = {part: times.get(part, 0.0) / sum(times.values()) for part in (*PARTS, "the rest")}
        found.append({"dropout": kind, "ms a step": 1000 * sum(best[kind][WARM:]) / steps, **shares})
    return found
