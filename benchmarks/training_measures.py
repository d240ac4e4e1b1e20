"""What benchmarks/training.py measures. Each function runs in a process of its own."""

from __future__ import annotations

import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
from retrieval_measures import Memory

MAX_LENGTH, BATCH, TEXTS = 128, 32, 26_000
BODIES = {
    "2x64": {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 1, "intermediate_size": 256},
    "4x256": {"hidden_size": 256, "num_hidden_layers": 4, "num_attention_heads": 4, "intermediate_size": 1024},
    "12x768": {"hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12, "intermediate_size": 3072},
}
# The first steps that are not timed: kernels are chosen, buffers allocated.
WARM = 2
# Steps whose mean loss is shown.
LAST = 5


def prepare(*, data: str, work_dir: str, passages: int, vocab_size: int) -> dict[str, dict[str, str]]:
    """Retrieve, train the vocabulary and tokenise, once: for `whole` passages, most of them longer than 128 tokens, and
    `short` texts, pairs of their sentences, the folders of the tokenised texts and of the tokenizer."""
    import re

    from datasets import Dataset

    from hf_tlm.corpora import load_corpus
    from hf_tlm.data import tokenize, train_wordpiece
    from hf_tlm.retrieval import retrieve
    from hf_tlm.tasks import load_task

    folder = Path(work_dir)
    tokenizer_dir, kinds = folder / "tokenizer", {kind: folder / kind for kind in ("short", "whole")}
    if not all(rows.is_dir() for rows in kinds.values()):
        corpus = load_corpus(f"{data}/corpus/*.parquet").to_dataset().shuffle(seed=0)
        corpus = load_corpus(corpus.select(range(min(passages, len(corpus)))))
        found = retrieve(load_task(f"{data}/tasks/chemprot"), corpus, top_k=50).dataset["text"]
        tokenizer = train_wordpiece(found, vocab_size, max_length=MAX_LENGTH)
        tokenizer.save_pretrained(tokenizer_dir)
        sentences = [re.split(r"(?<=[.!?])\s+", text) for text in found]
        pairs = [" ".join(parts[i : i + 2]) for parts in sentences for i in range(0, len(parts), 2)]
        for kind, texts in (("short", pairs), ("whole", found)):
            rows = Dataset.from_dict({"text": texts}).shuffle(seed=0).select(range(min(TEXTS, len(texts))))
            tokenize(rows, tokenizer, MAX_LENGTH).save_to_disk(kinds[kind])
    return {kind: {"rows": str(rows), "tokenizer": str(tokenizer_dir)} for kind, rows in kinds.items()}


def _config(body: str, vocab_size: int):
    from transformers import BertConfig

    return BertConfig(vocab_size=vocab_size, max_position_embeddings=MAX_LENGTH, num_labels=2, **BODIES[body])


def _arguments(folder: str, steps: int, seed: int, **options) -> dict:
    return {
        "output_dir": folder,
        "max_steps": steps,
        "per_device_train_batch_size": BATCH,
        "learning_rate": 5e-4,
        "warmup_steps": 0.1,
        "seed": seed,
        "use_cpu": True,
        "report_to": "none",
        "disable_tqdm": True,
        "save_strategy": "no",
        "logging_steps": 1,
        **options,
    }


def _ours(rows, tokenizer, body: str, steps: int, seed: int, packing: str, **options):
    from datasets import Dataset
    from transformers import set_seed

    from hf_tlm.models import TlmModel
    from hf_tlm.training import TlmArguments, TlmTrainer

    set_seed(seed)
    args = TlmArguments(
        **_arguments("unused", steps, seed, **options),
        rho1=float("inf"),
        max_length=MAX_LENGTH,
        packing=packing,
        data_seed=seed,
    )
    nothing = Dataset.from_dict({"input_ids": [[2, 3]], "label": [0]})
    model = TlmModel.from_config(_config(body, len(tokenizer)))
    return TlmTrainer(model, args, train_dataset=nothing, corpus_dataset=rows, processing_class=tokenizer)


def _plain(rows, tokenizer, body: str, steps: int, seed: int):
    from transformers import BertForMaskedLM, DataCollatorForLanguageModeling, Trainer, TrainingArguments, set_seed

    set_seed(seed)
    args = TrainingArguments(**_arguments("unused", steps, seed))
    return Trainer(
        BertForMaskedLM(_config(body, len(tokenizer))),
        args,
        train_dataset=rows,
        data_collator=DataCollatorForLanguageModeling(tokenizer, mlm_probability=0.15, pad_to_multiple_of=MAX_LENGTH),
        processing_class=tokenizer,
    )


def _load(rows: str, tokenizer: str, threads: int):
    import torch
    from datasets import load_from_disk
    from transformers import AutoTokenizer

    torch.set_num_threads(threads)
    return load_from_disk(rows), AutoTokenizer.from_pretrained(tokenizer)


def _watch(trainer):
    """Time and places of every step that was really computed; the Trainer fetches one batch ahead."""
    from transformers import TrainerCallback

    times, places, tokens = [], [], []
    step = trainer.training_step

    def counted(model, inputs, *args, **kwargs):
        places.append(inputs["input_ids"].numel())
        tokens.append(int(inputs["attention_mask"].sum()))
        return step(model, inputs, *args, **kwargs)

    class Times(TrainerCallback):
        def on_step_end(self, args, state, control, **kwargs):
            times.append(time.perf_counter())

    trainer.training_step = counted
    trainer.add_callback(Times())
    return times, places, tokens


def train(*, side: str, body: str, steps: int, seed: int, threads: int, rows: str, tokenizer: str) -> dict:
    """One run of one side: its speed, fill, losses and memory (MB)."""
    rows, tokenizer = _load(rows, tokenizer, threads)
    with Memory() as memory:
        before = memory.now("VmRSS")
        if side == "plain":
            trainer = _plain(rows, tokenizer, body, steps + WARM, seed)
        else:
            trainer = _ours(rows, tokenizer, body, steps + WARM, seed, side.removeprefix("ours, "))
        times, places, tokens = _watch(trainer)
        trainer.train()
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    return {
        "tokens per second": sum(tokens[WARM:]) / (times[-1] - times[WARM - 1]),
        "fill": sum(tokens) / sum(places),
        "losses": losses,
        "loss": sum(losses[-LAST:]) / len(losses[-LAST:]),
        "peak": memory.peak,
        "before": before,
    }


def overhead(*, body: str, steps: int, seed: int, threads: int, rows: str, tokenizer: str) -> dict[str, float]:
    """Seconds a step of our Trainer, and of a bare loop that takes its steps on the same batches between the Trainer's."""
    import torch
    from transformers import TrainerCallback, get_scheduler

    from hf_tlm.memory import keep_freed_memory

    rows, tokenizer = _load(rows, tokenizer, threads)
    trainer, other = (_ours(rows, tokenizer, body, steps + WARM, seed, "auto", logging_steps=50) for _ in range(2))
    batches, model = [], other.model
    for step in range(steps + WARM):
        draws = next(iter(trainer.batch_sampler.batches_of(step)))
        texts = [
            {"draw": d, "input_ids": rows[(d - 1) % (len(rows) + 1)]["input_ids"]} for d in draws
        ]  # One task text comes first.
        batches.append(trainer.data_collator(texts))
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-4, fused=True)
    schedule = get_scheduler("linear", optimizer, num_warmup_steps=1, num_training_steps=steps + WARM)
    model.train()
    keep_freed_memory()
    longest = max(batches, key=lambda batch: batch["input_ids"].numel())
    times = {"trainer": [], "loop": []}

    class Between(TrainerCallback):
        begin = None

        def on_step_end(self, args, state, control, **kwargs):
            now = time.perf_counter()
            if self.begin is not None:
                times["trainer"].append(now - self.begin)
            batch = batches[state.global_step - 1]
            loss = model(**batch).mlm_loss / (batch["mlm_labels"] != -100).sum()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
            times["loop"].append(time.perf_counter() - now)
            if state.global_step == WARM:
                # Whoever first has a longer batch waits for its memory, which the process keeps for both from then on. Not
                # before: the optimizers' moments would be put there.
                model(**longest).mlm_loss.backward()
                optimizer.zero_grad()
            self.begin = time.perf_counter()

    trainer.add_callback(Between())
    trainer.train()
    return {side: sum(found[-steps:]) / steps for side, found in times.items()}


# Operators of torch by what they are for; random numbers are drawn by `hf_tlm.models.dropout` or by `bernoulli_`.
PARTS = {
    "matrix products": {"aten::mm", "aten::addmm", "aten::addmm_", "aten::bmm", "aten::baddbmm"},
    "dropout's random numbers": {"dropout_noise", "aten::bernoulli_"},
    "optimizer and clipping": {"aten::_fused_adamw_", "aten::linalg_vector_norm", "aten::_foreach_mul_"},
}


def step(*, body: str, packing: str, steps: int, repeats: int, threads: int, rows: str, tokenizer: str) -> list[dict]:
    """Milliseconds of a step with torch's dropout and with ours, on the same batches by turns, and where they go."""
    import torch
    from torch.profiler import profile, record_function

    from hf_tlm.models import dropout

    rows, tokenizer = _load(rows, tokenizer, threads)
    trainer = _ours(rows, tokenizer, body, steps + WARM, 0, packing)
    loader = iter(trainer.get_train_dataloader())
    batches = [next(loader) for _ in range(steps + WARM)]
    model = trainer.model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-4, fused=True)
    modules = [module for module in model.modules() if isinstance(module, dropout.Dropout)]
    kinds = {"torch's": (torch.nn.Dropout, "sdpa"), "ours": (dropout.Dropout, dropout.ATTENTION)}
    draw = dropout.dropout_noise

    def recorded(*args):
        with record_function("dropout_noise"):
            return draw(*args)

    dropout.dropout_noise = recorded

    def run(kind: str, batch: dict) -> float:
        for module in modules:
            module.__class__ = kinds[kind][0]
        model.config._attn_implementation = kinds[kind][1]
        begin = time.perf_counter()
        loss = model(**batch).mlm_loss / (batch["mlm_labels"] != -100).sum()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        return time.perf_counter() - begin

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


def train_on_size(*, megabytes: int, threads: int, work_dir: str) -> dict[str, float]:
    """Three steps on an Arrow file of so many MB of token ids: peak and anonymous memory, MB, and seconds to start."""
    import numpy as np
    import pyarrow as pa
    import torch
    from datasets import Dataset

    from hf_tlm.data import train_wordpiece

    torch.set_num_threads(threads)
    tokenizer = train_wordpiece([f"{a}{b}" for a in "abcdefgh" for b in "ijklmnop"] * 3, 1000)
    file = Path(work_dir) / f"ids-{megabytes}.arrow"
    if not file.is_file():
        rng = np.random.default_rng(0)
        schema = pa.schema({"input_ids": pa.list_(pa.int32())})
        with pa.OSFile(str(file), "wb") as sink, pa.ipc.new_stream(sink, schema) as writer:
            for _ in range(megabytes):
                ids = pa.array(rng.integers(5, len(tokenizer), 250_000, dtype=np.int32))
                offsets = pa.array(np.arange(0, 250_001, 100, dtype=np.int32))
                writer.write_table(pa.table({"input_ids": pa.ListArray.from_arrays(offsets, ids)}, schema))
    rows = Dataset.from_file(str(file))
    begin = time.perf_counter()
    with Memory() as memory:
        trainer = _ours(rows, tokenizer, "4x256", 3, 0, "auto")
        times = _watch(trainer)[0]
        trainer.train()
    return {
        "texts": len(rows),
        "peak": memory.peak,
        "anonymous": memory.anonymous,
        "seconds to the first step's end": times[0] - begin,
    }
