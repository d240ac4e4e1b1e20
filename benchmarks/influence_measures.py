"""Measurements of benchmarks/influence.py; each function runs in a process of its own."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import mean, median

from measuring import GpuMemory, Memory, seconds
from training_measures import BODIES

VOCABULARY, LENGTH, BATCH = 30_522, 128, 32
CLASSES, CLS, SEP, FIRST_WORD = 8, 2, 3, 5
# Share of the best passages that two rankings are compared by.
BEST = 0.2
# Passages that a round scores, and how many of them the naive sides score. On a CPU these take a second per passage of the
# large body; with few passages their speed varies.
PASSAGES, NAIVE = {"2x64": 40, "4x256": 128, "12x768": 32}, {"2x64": 2, "4x256": 32, "12x768": 3}
PASSAGES_ON_GPU, NAIVE_ON_GPU = 4096, 64
# Side -> (whether only the weight's gradient is computed, whether texts are padded to LENGTH).
NAIVE_SIDES = {
    "naive, padded": (False, True),
    "naive, unpadded": (False, False),
    "naive, unpadded, one weight's gradient": (True, False),
}
# Number of seeds of projections and masks that figures are averaged over.
SEEDS = 5
# Enough for gradients unlike those of random weights: at 4 x 256 the masked-LM loss falls from 10.4 to 6.5, and all classes
# are predicted correctly.
TRAINING_STEPS, LEARNING_RATE = 30, 1e-3
# Exponent of a uniform random number that gives a token's index in its part of the vocabulary: the first 0.4% of the words
# make up half of all tokens.
SKEW = 8


@dataclass(frozen=True)
class Setting:
    """The model and device of a measurement.

    passages: number that a round scores; None chooses by body and device. batch_size: texts at a time.
    """

    body: str
    threads: int
    vocabulary: int
    passages: int | None = None
    device: str = "cpu"
    dtype: str = "float32"
    batch_size: int = BATCH

    @property
    def on_gpu(self) -> bool:
        return self.device == "cuda"

    @property
    def count(self) -> int:
        return self.passages or (PASSAGES_ON_GPU if self.on_gpu else PASSAGES[self.body])

    @property
    def naive_count(self) -> int:
        return min(self.count, NAIVE_ON_GPU if self.on_gpu else NAIVE[self.body])

    def model(self):
        """Build the model on the setting's device, and set torch's number of threads."""
        import torch

        torch.set_num_threads(self.threads)
        return tlm_model(self.body, self.vocabulary).to(self.device, getattr(torch, self.dtype))

    def rows(self, kind: str, count: int, **columns):
        return random_rows(kind, count, self.vocabulary, **columns)

    def task_rows(self, kind: str, count: int):
        return self.rows(kind, count, label=[i % CLASSES for i in range(count)])

    def scorer(self, model, **options):
        from hf_tlm.influence import InfluenceScorer

        return InfluenceScorer([model], tokenizer(self.vocabulary), **{"batch_size": self.batch_size, **options})


def tokenizer(vocabulary: int):
    from transformers import BertTokenizer

    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    pieces += [f"w{number}" for number in range(vocabulary - len(pieces))]
    return BertTokenizer(vocab={piece: number for number, piece in enumerate(pieces)})


def random_rows(kind: str, count: int, vocabulary: int, **columns):
    """Return random tokens: `full` texts have LENGTH of them, `mixed` ones between a fifth of that and LENGTH."""
    import numpy as np
    from datasets import Dataset

    rng = np.random.default_rng(0)
    lengths = np.full(count, LENGTH) if kind == "full" else rng.integers(LENGTH // 5, LENGTH + 1, count)
    ids = [[CLS, *rng.integers(FIRST_WORD, vocabulary, size - 2).tolist(), SEP] for size in lengths]
    return Dataset.from_dict({"input_ids": ids, "id": [str(i) for i in range(count)], **columns})


def telling_rows(count: int, vocabulary: int, seed: int):
    """Return full texts of random tokens from their label's part of the vocabulary, a few frequent, as in real texts."""
    import numpy as np
    from datasets import Dataset

    rng = np.random.default_rng(seed)
    labels, part = np.arange(count) % CLASSES, (vocabulary - FIRST_WORD) // CLASSES
    words = FIRST_WORD + labels[:, None] * part + (part * rng.random((count, LENGTH - 2)) ** SKEW).astype(int)
    ids = [[CLS, *text, SEP] for text in words.tolist()]
    return Dataset.from_dict({"input_ids": ids, "id": [str(i) for i in range(count)], "label": labels})


def tlm_model(body: str, vocabulary: int):
    from transformers import BertConfig, set_seed

    from hf_tlm.models import TlmModel

    set_seed(0)
    config = BertConfig(vocab_size=vocabulary, max_position_embeddings=LENGTH, num_labels=CLASSES, **BODIES[body])
    return TlmModel.from_config(config)


def stock_model(model):
    """Return a `BertForMaskedLM` with the model's weights, on its device."""
    from transformers import BertForMaskedLM

    stock = BertForMaskedLM(model.config).eval().to(model.device, model.dtype)
    stock.bert.load_state_dict(model.bert.state_dict(), strict=False)
    stock.cls.load_state_dict(model.mlm_head["cls"].state_dict())
    return stock


def finished(function) -> None:
    """Call a function, and wait until the GPU has finished its work."""
    import torch

    function()
    if torch.cuda.is_initialized():
        torch.cuda.synchronize()


def on_device(batch: dict, device) -> dict:
    return {name: values.to(device) for name, values in batch.items()}


def by_turns(sides: dict, repeats: int) -> dict[str, list[float]]:
    """Return the seconds per passage of each side, alternating; the first round is not counted.

    Args:
        sides: side -> (function, number of passages that it scores).
    """
    times: dict[str, list[float]] = {side: [] for side in sides}
    for _ in range(repeats + 1):
        for side, (function, count) in sides.items():
            times[side].append(seconds(partial(finished, function)) / count)
    return {side: taken[1:] for side, taken in times.items()}


def _naive(model, masked, tasks, weight_only: bool, pad: bool):
    """Return a function that scores a row with its own backward pass through stock BertForMaskedLM with the model's weights.

    As in the released code, every parameter gets a gradient, of which one weight's is used; or only that weight's gradient
    is computed.

    Args:
        masked: function that returns the masked batch of rows.
        tasks: float [T, H * H], the task gradients.
    """
    import torch
    import torch.nn.functional as F

    stock = stock_model(model).requires_grad_(not weight_only)
    weight = stock.bert.encoder.layer[-1].attention.output.dense.weight.requires_grad_(True)

    def score(row) -> torch.Tensor:
        batch = on_device(masked([row]), stock.device)
        missing = LENGTH - len(row["input_ids"]) if pad else 0
        ids, mask = (F.pad(batch[name], (0, missing)) for name in ("input_ids", "attention_mask"))
        loss = stock(ids, attention_mask=mask, labels=F.pad(batch["mlm_labels"], (0, missing), value=-100)).loss
        if weight_only:
            return tasks @ torch.autograd.grad(loss, weight)[0].flatten()
        stock.zero_grad()
        loss.backward()
        return tasks @ weight.grad.flatten()

    return score


def task_gradients(model, batches):
    """Return the task gradients of attention's output projection in the last layer, float [T, H * H]."""
    import torch
    import torch.nn.functional as F

    weight = model.bert.encoder.layer[-1].attention.output.dense.weight
    found = []
    for batch in batches:
        batch = on_device(batch, model.device)
        labels = batch.pop("labels")
        weight.requires_grad_(True)
        found.append(torch.autograd.grad(F.cross_entropy(model(**batch).logits, labels), weight)[0].flatten())
        weight.requires_grad_(False)
    return torch.stack(found)


def speed(setting: Setting, *, texts: str, tasks: int, repeats: int) -> list[dict]:
    """Measure passages per second of each side, alternating, and the difference of our scores from the naive ones."""
    import numpy as np
    import torch

    from hf_tlm.models.base import encode

    model, rows, task_rows = setting.model(), setting.rows(texts, setting.count), setting.task_rows(texts, tasks)
    scorer = setting.scorer(model)
    scorer.fit(task_rows, 1)
    order = np.argsort([len(ids) for ids in rows["input_ids"]], kind="stable")
    parts = (order[start : start + setting.batch_size] for start in range(0, len(rows), setting.batch_size))
    batches = [on_device(scorer.masked(rows.select(part).to_list()), setting.device) for part in parts]

    def forward():
        with torch.no_grad():
            for batch in batches:
                encode(model.base_model, batch["input_ids"], batch["attention_mask"])

    found: dict[str, np.ndarray] = {}
    few = rows.select(range(setting.naive_count))
    gradients = task_gradients(model, [scorer.masked.collator([row]) for row in task_rows])
    sides = {}
    for side, options in NAIVE_SIDES.items():
        score = _naive(model, scorer.masked, gradients, *options)

        def run(side=side, score=score):
            found[side] = torch.stack([score(row) for row in few]).float().cpu().numpy()

        sides[side] = (run, len(few))

    def ours():
        found["ours"] = scorer.score(rows)[: len(few)]

    sides |= {"ours": (ours, len(rows)), "forward pass of the body": (forward, len(rows))}
    times = by_turns(sides, repeats)
    naive = found["naive, padded"]
    return [
        {
            "body": setting.body,
            "texts": texts,
            "task gradients": tasks,
            "side": side,
            "passages/s": 1 / median(times[side]),
            "lowest": 1 / max(times[side]),
            "highest": 1 / min(times[side]),
            "time / ours": median(a / b for a, b in zip(times[side], times["ours"], strict=True)),
            "difference": float(np.abs(found[side] - naive).max() / np.abs(naive).max()) if side in found else None,
            "repeats": repeats,
        }
        for side in sides
    ]


def layers(setting: Setting, *, tasks: int, repeats: int) -> list[dict]:
    """Measure passages per second for the embeddings and every quarter of the layers, alternating."""
    model, rows, task_rows = setting.model(), setting.rows("full", setting.count), setting.task_rows("full", tasks)
    last = model.config.num_hidden_layers
    scorers = {}
    for layer in sorted({last * quarter // 4 for quarter in range(5)}):
        scorers[layer] = setting.scorer(model, layer=layer)
        scorers[layer].fit(task_rows, 1)
    times = by_turns({layer: (partial(scorer.score, rows), len(rows)) for layer, scorer in scorers.items()}, repeats)
    return [
        {
            "body": setting.body,
            "task gradients": tasks,
            "layer": layer,
            "passages/s": 1 / median(taken),
            "time / last layer's": median(a / b for a, b in zip(taken, times[last], strict=True)),
            "repeats": repeats,
        }
        for layer, taken in times.items()
    ]


def agreement(scores, ours) -> dict[str, float]:
    """Return the agreement of two score matrices, float [N, T]: means over task gradients, and the largest difference."""
    import numpy as np
    from scipy.stats import spearmanr

    most = round(BEST * len(ours))
    best = [[set(np.argsort(-column)[:most]) for column in x.T] for x in (scores, ours)]
    return {
        "Spearman": float(np.mean([spearmanr(a, b).statistic for a, b in zip(scores.T, ours.T, strict=True)])),
        "same best 20%": float(np.mean([len(a & b) / most for a, b in zip(*best, strict=True)])),
        "difference": float(np.abs(scores - ours).max() / np.abs(ours).max()),
    }


def train_a_little(model, setting: Setting) -> None:
    """Train the model with both losses for `TRAINING_STEPS` steps."""
    import torch
    import torch.nn.functional as F

    rows = telling_rows(TRAINING_STEPS * BATCH, setting.vocabulary, 1)
    masked = setting.scorer(model).masked
    optimizer = torch.optim.AdamW(model.train().requires_grad_(True).parameters(), lr=LEARNING_RATE)
    for start in range(0, len(rows), BATCH):
        texts = rows.select(range(start, start + BATCH)).to_list()
        labels = torch.tensor([text["label"] for text in texts])
        batch = on_device({**masked(texts), "labels": labels}, model.device)
        output = model(**batch)
        loss = output.mlm_loss / (batch["mlm_labels"] != -100).sum() + F.cross_entropy(output.logits, batch["labels"])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def projection(setting: Setting, *, tasks: int, dimensions: list[int]) -> list[dict]:
    """Measure how close scores by projected gradients are to exact ones, and the savings, in the last and first layer."""
    model = setting.model()
    train_a_little(model, setting)
    rows, task_rows = telling_rows(setting.count, setting.vocabulary, 2), telling_rows(tasks, setting.vocabulary, 3)

    def scored(**options):
        """Return scores float [N, T], seconds, and the bytes of the task gradients."""
        scorer, found = setting.scorer(model, **options), []
        with tempfile.TemporaryDirectory() as folder:

            def run():
                scorer.fit(task_rows, 1, Path(folder) / "tasks")
                found.append(scorer.score(rows))

            taken = seconds(partial(finished, run))
            return found[0], taken, sum(file.stat().st_size for file in Path(folder).rglob("*.safetensors"))

    found = []
    for layer in (-1, 1):
        runs: dict = {dimension: [] for dimension in (None, *dimensions)}
        for seed in range(SEEDS):
            for dimension, made in runs.items():
                made.append(scored(layer=layer, seed=seed, projection_dim=dimension))
        exact, times, sizes = zip(*runs[None], strict=True)
        for dimension, made in runs.items():
            pairs = [(scores, true) for (scores, *_), true in zip(made, exact, strict=True)]
            near = [agreement(*pair) for pair in pairs]
            errors = [float(((a - b) ** 2).mean() ** 0.5 / (b**2).mean() ** 0.5) for a, b in pairs]
            found.append(
                {
                    "body": setting.body,
                    "layer": layer,
                    "projection_dim": dimension,
                    "error": mean(errors),
                    **{name: mean(each[name] for each in near) for name in ("Spearman", "same best 20%")},
                    "seconds": median(taken for _, taken, _ in made),
                    "time / exact": median(taken / other for (_, taken, _), other in zip(made, times, strict=True)),
                    "MB kept": mean(size for *_, size in made) / 2**20,
                    "bytes / exact": mean(size for *_, size in made) / mean(sizes),
                    "passages": len(rows),
                    "task gradients": tasks,
                    "seeds": SEEDS,
                }
            )
    return found


def memory(setting: Setting, *, side: str, layer: int, tasks: int) -> dict[str, float]:
    """Measure the peak memory, MB, while two batches pass through the body, or are scored."""
    import torch

    from hf_tlm.models.base import encode

    model, size = setting.model(), setting.batch_size
    rows, task_rows = setting.rows("full", 2 * size), setting.task_rows("full", tasks)
    scorer = setting.scorer(model, layer=layer)
    if not setting.on_gpu:
        # Building the model needs more memory than a pass: reset the peak.
        Path("/proc/self/clear_refs").write_text("5")
    with GpuMemory() if setting.on_gpu else Memory() as watched:
        if side == "ours":
            scorer.fit(task_rows, 1)
            scorer.score(rows)
        else:
            for start in (0, size):
                batch = on_device(scorer.masked(rows.select(range(start, start + size)).to_list()), setting.device)
                with torch.no_grad():
                    encode(model.base_model, batch["input_ids"], batch["attention_mask"])
    return {"texts at a time": scorer._texts_at_once, "peak": watched.peak, "before": watched.before}
