"""Measurements of benchmarks/training.py: its data, its two sides and their runs, each in a process of its own."""

from __future__ import annotations

import tempfile
import time
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from measuring import GpuMemory, Memory

MAX_LENGTH, BATCH, TEXTS = 128, 32, 26_000
BODIES = {
    "2x64": {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 1, "intermediate_size": 256},
    "4x256": {"hidden_size": 256, "num_hidden_layers": 4, "num_attention_heads": 4, "intermediate_size": 1024},
    "12x768": {"hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12, "intermediate_size": 3072},
}
# Untimed first steps, which choose kernels and allocate buffers; compiled, the second length of rows triggers a graph for
# all lengths.
WARM, COMPILED_WARM = 2, 5
# Last steps whose mean loss is shown.
LAST = 5
LEARNING_RATE, WEIGHT_DECAY = 5e-4, 0.01
# FLOP/s of half-precision matrix products measured on an H200; MFU is relative to them.
PEAK_FLOPS = 790e12


@dataclass(frozen=True)
class Setting:
    """How both sides of a measurement compute.

    device: cpu or cuda. bf16: autocast; weights stay float32. compile: whether to use `torch.compile`, with `backend`.
    attention: implementation in the bodies. batch: texts per step. threads: of the CPU. onednn: whether our side's float32
    products on a CPU use oneDNN where that is faster, as in our Trainer; bare loops only.
    """

    threads: int
    device: str = "cpu"
    bf16: bool = False
    compile: bool = False
    backend: str = "inductor"
    attention: str = "sdpa"
    batch: int = BATCH
    onednn: bool = True

    def arguments(self) -> dict:
        """Return the arguments for the Trainers."""
        compiled = {"torch_compile": True, "torch_compile_backend": self.backend} if self.compile else {}
        batch = {"per_device_train_batch_size": self.batch}
        return {"use_cpu": self.device == "cpu", "bf16": self.bf16, **batch, **compiled}

    @property
    def warm(self) -> int:
        """Number of untimed steps."""
        return COMPILED_WARM if self.compile else WARM

    def prepared(self, model):
        """Prepare a model for a bare loop as the Trainers do."""
        import torch

        model = model.to(self.device).train()
        return torch.compile(model, backend=self.backend) if self.compile else model

    def device_name(self) -> str:
        import torch

        return torch.cuda.get_device_name() if self.device == "cuda" else "CPU"

    def autocast(self) -> AbstractContextManager:
        import torch

        return torch.autocast(self.device, torch.bfloat16, enabled=self.bf16)

    def products(self) -> AbstractContextManager:
        from hf_tlm.models.cpu_kernels import OneDnnLinear

        return OneDnnLinear() if self.onednn and not self.compile else nullcontext()

    def now(self) -> float:
        """Return the time in seconds, after waiting for the device to finish its work."""
        if self.device == "cuda":
            import torch

            torch.cuda.synchronize()
        return time.perf_counter()

    def graphs(self) -> int:
        """Return how many graphs this process has compiled so far."""
        if not self.compile:
            return 0
        from torch._dynamo.utils import counters

        return counters["stats"]["unique_graphs"]

    def memory(self) -> Memory | GpuMemory:
        return GpuMemory() if self.device == "cuda" else Memory()


def prepare(*, data: str, work_dir: str, passages: int, vocab_size: int) -> dict[str, dict[str, str]]:
    """Retrieve, train the vocabulary and tokenise, once.

    Returns:
        for `whole` passages, most of them longer than 128 tokens, and for `short` texts, pairs of their sentences, the
        folders of the tokenised texts (`rows`) and of the `tokenizer`; under `labelled` that of ChemProt's training texts
        (`task`).
    """
    import re

    from datasets import Dataset

    from hf_tlm.corpora import load_corpus
    from hf_tlm.data import tokenize, train_wordpiece
    from hf_tlm.retrieval import retrieve
    from hf_tlm.tasks import load_task

    folder = Path(work_dir)
    tokenizer_dir, task_dir, kinds = folder / "tokenizer", folder / "task", {k: folder / k for k in ("short", "whole")}
    if not all(rows.is_dir() for rows in (task_dir, *kinds.values())):
        corpus = load_corpus(f"{data}/corpus/*.parquet").to_dataset().shuffle(seed=0)
        corpus = load_corpus(corpus.select(range(min(passages, len(corpus)))))
        task = load_task(f"{data}/tasks/chemprot")
        found = retrieve(task, corpus, top_k=50).dataset["text"][:]  # A list: a lazy column would be read row by row.
        tokenizer = train_wordpiece(found, vocab_size, max_length=MAX_LENGTH)
        tokenizer.save_pretrained(tokenizer_dir)
        sentences = [re.split(r"(?<=[.!?])\s+", text) for text in found]
        pairs = [" ".join(parts[i : i + 2]) for parts in sentences for i in range(0, len(parts), 2)]
        for kind, texts in (("short", pairs), ("whole", found)):
            rows = Dataset.from_dict({"text": texts}).shuffle(seed=0).select(range(min(TEXTS, len(texts))))
            tokenize(rows, tokenizer, MAX_LENGTH).save_to_disk(kinds[kind])
        tokenize(task.splits["train"], tokenizer, MAX_LENGTH).save_to_disk(task_dir)
    found = {kind: {"rows": str(rows), "tokenizer": str(tokenizer_dir)} for kind, rows in kinds.items()}
    return {**found, "labelled": {"task": str(task_dir)}}


def load(rows: str, tokenizer: str, threads: int):
    import torch
    from datasets import load_from_disk
    from transformers import AutoTokenizer

    torch.set_num_threads(threads)
    return load_from_disk(rows), AutoTokenizer.from_pretrained(tokenizer)


def _config(body: str, vocab_size: int, setting: Setting, dropout: float, num_labels: int = 2):
    from transformers import BertConfig

    return BertConfig(
        vocab_size=vocab_size,
        max_position_embeddings=MAX_LENGTH,
        num_labels=num_labels,
        hidden_dropout_prob=dropout,
        attention_probs_dropout_prob=dropout,
        attn_implementation=setting.attention,
        **BODIES[body],
    )


def _arguments(setting: Setting, steps: int, seed: int, options: dict) -> dict:
    return {
        # Nothing is saved, but the Trainers create the folder.
        "output_dir": str(Path(tempfile.gettempdir()) / "hf_tlm_training_benchmark"),
        "max_steps": steps,
        "learning_rate": LEARNING_RATE,
        "weight_decay": WEIGHT_DECAY,
        "warmup_steps": 0.1,
        "seed": seed,
        "report_to": "none",
        "disable_tqdm": True,
        "save_strategy": "no",
        "logging_steps": 10,
        **setting.arguments(),
        **options,
    }


def ours(
    rows, tokenizer, body: str, steps: int, seed: int, packing: str, setting: Setting, *, task=None, dropout=0.1, **options
):
    """Build our Trainer on the texts of `rows` alone, or alternating with labelled ones (`rho1` in the options)."""
    from transformers import set_seed

    from hf_tlm.models import TlmModel
    from hf_tlm.training import TlmArguments, TlmTrainer

    set_seed(seed)
    streams = {"rho1": float("inf")} if task is None else {}
    args = TlmArguments(
        **_arguments(setting, steps, seed, streams | options), max_length=MAX_LENGTH, packing=packing, data_seed=seed
    )
    num_labels = 2 if task is None else max(task["label"]) + 1
    model = TlmModel.from_config(_config(body, len(tokenizer), setting, dropout, num_labels))
    return TlmTrainer(model, args, train_dataset=task, corpus_dataset=rows, processing_class=tokenizer)


def plain(rows, tokenizer, body: str, steps: int, seed: int, setting: Setting, *, collator=None, dropout=0.1, **options):
    """Build the stock Trainer with `BertForMaskedLM`; by default rows are padded to `MAX_LENGTH` and masked in its way."""
    from transformers import BertForMaskedLM, DataCollatorForLanguageModeling, Trainer, TrainingArguments, set_seed

    set_seed(seed)
    padded = DataCollatorForLanguageModeling(tokenizer, mlm_probability=0.15, pad_to_multiple_of=MAX_LENGTH)
    return Trainer(
        BertForMaskedLM(_config(body, len(tokenizer), setting, dropout)),
        TrainingArguments(**_arguments(setting, steps, seed, options)),
        train_dataset=rows,
        data_collator=collator or padded,
        processing_class=tokenizer,
    )


def side_of(side: str):
    """Return the function that builds the Trainer of `plain` or `ours, <packing>`."""
    return plain if side == "plain" else partial(ours, packing=side.removeprefix("ours, "))


class Watch:
    """Records what every step of a Trainer's run computed (it fetches one batch ahead), and when it ended.

    Losses and counts stay on the device until they are read; the device is synchronised only where timing begins and ends.

    times: seconds at the end of each step, exact for steps `warm` and the last. graphs: compiled so far at each step.
    """

    def __init__(self, trainer, setting: Setting, warm: int):
        import torch
        from transformers import TrainerCallback

        self.times: list[float] = []
        self.graphs: list[int] = []
        self._losses, self._counts = [], []
        step = trainer.training_step

        def counted(model, inputs, *args, **kwargs):
            mask = inputs["attention_mask"]
            # A text of n tokens has positions 0 to n - 1, over which 2 position + 1 sums to n^2.
            places = inputs.get("position_ids", torch.arange(mask.shape[1], device=mask.device))
            self._counts.append((mask.numel(), mask.sum(), ((2 * places + 1) * mask).sum()))
            loss = step(model, inputs, *args, **kwargs)
            self._losses.append(loss.detach())
            return loss

        class Times(TrainerCallback):
            def on_step_end(_, args, state, control, **kwargs):
                exact = state.global_step in (warm, state.max_steps)
                self.times.append(setting.now() if exact else time.perf_counter())
                self.graphs.append(setting.graphs())

        trainer.training_step = counted
        trainer.add_callback(Times())

    @property
    def losses(self) -> list[float]:
        return [float(loss) for loss in self._losses]

    def counts(self, first: int) -> tuple[int, int, int]:
        """Return, from step `first` on: positions computed, real tokens, and the sum of the texts' squared lengths."""
        return tuple(sum(int(count[i]) for count in self._counts[first:]) for i in range(3))


def needed_flops(body, tokens: int, squares: int) -> float:
    """Return the FLOPs of training a body on real tokens, without embeddings and heads.

    They are 6 x parameters of its layers x tokens, plus attention's products of queries with keys and of weights with
    values, 12 x layers x hidden size x the sum of squared lengths.
    """
    from hf_tlm.models.base import applied_parameters

    attention = 12 * body.config.num_hidden_layers * body.config.hidden_size * squares
    return 6.0 * applied_parameters(body.encoder) * tokens + attention


def train(
    *, side: str, body: str, steps: int, seed: int, setting: Setting, rows: str, tokenizer: str, warm: int | None = None
) -> dict:
    """Run one side for `warm` steps (None: the setting's) and `steps` timed ones.

    Returns its speed, fill, MFU, losses, memory (MB), and the number of graphs compiled in the timed steps.
    """
    warm = warm or setting.warm
    rows, tokenizer = load(rows, tokenizer, setting.threads)
    with setting.memory() as memory:
        trainer = side_of(side)(rows, tokenizer, body, steps + warm, seed, setting=setting)
        base, watch = trainer.model.base_model, Watch(trainer, setting, warm)
        trainer.train()
    seconds = watch.times[-1] - watch.times[warm - 1]
    places, tokens, squares = watch.counts(warm)
    return {
        "tokens per second": tokens / seconds,
        "ms a step": 1000 * seconds / steps,
        "fill": tokens / places,
        "mfu": needed_flops(base, tokens, squares) / seconds / PEAK_FLOPS,
        "losses": watch.losses,
        "loss": sum(watch.losses[-LAST:]) / len(watch.losses[-LAST:]),
        "recompilations": watch.graphs[-1] - watch.graphs[warm - 1],
        "peak": memory.peak,
        "before": memory.before,
        "device": setting.device_name(),
    }


def train_on_size(*, megabytes: int, threads: int, work_dir: str) -> dict[str, float]:
    """Run three steps on an Arrow file of `megabytes` MB of token ids.

    Returns peak and anonymous memory, MB, and the seconds to the end of the first step.
    """
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
        setting = Setting(threads=threads)
        trainer = ours(rows, tokenizer, "4x256", 3, 0, "auto", setting)
        watch = Watch(trainer, setting, setting.warm)
        trainer.train()
    return {
        "texts": len(rows),
        "peak": memory.peak,
        "anonymous": memory.anonymous,
        "seconds to the first step's end": watch.times[0] - begin,
    }
