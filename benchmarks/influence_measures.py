"""What benchmarks/influence.py measures. Each function runs in a process of its own."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).resolve().parent))
from retrieval_measures import Memory, seconds
from training_measures import BODIES

VOCABULARY, LENGTH, BATCH = 30_522, 128, 32
CLASSES, CLS, SEP, FIRST_WORD = 8, 2, 3, 5
# Of the passages, whose share two rankings have in common is looked at.
BEST = 0.2
# Passages that the naive sides take a repeat. They need a second for one of the large body; with few their speed wanders.
NAIVE = {"2x64": 2, "4x256": 32, "12x768": 3}
# Only the one weight's gradient; padded to LENGTH.
NAIVE_SIDES = {
    "naive, padded": (False, True),
    "naive, unpadded": (False, False),
    "naive, unpadded, one weight's gradient": (True, False),
}


def tokenizer(vocabulary: int):
    from transformers import BertTokenizer

    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    pieces += [f"w{number}" for number in range(vocabulary - len(pieces))]
    return BertTokenizer(vocab={piece: number for number, piece in enumerate(pieces)})


def random_rows(kind: str, count: int, vocabulary: int, **columns):
    """Random tokens: `full` texts have LENGTH of them, `mixed` ones between a fifth of that and all."""
    import numpy as np
    from datasets import Dataset

    rng = np.random.default_rng(0)
    lengths = np.full(count, LENGTH) if kind == "full" else rng.integers(LENGTH // 5, LENGTH + 1, count)
    ids = [[CLS, *rng.integers(FIRST_WORD, vocabulary, size - 2).tolist(), SEP] for size in lengths]
    return Dataset.from_dict({"input_ids": ids, "id": [str(i) for i in range(count)], **columns})


def tlm_model(body: str, vocabulary: int):
    from transformers import BertConfig, set_seed

    from hf_tlm.models import TlmModel

    set_seed(0)
    config = BertConfig(vocab_size=vocabulary, max_position_embeddings=LENGTH, num_labels=CLASSES, **BODIES[body])
    return TlmModel.from_config(config)


def stock_model(model):
    """`BertForMaskedLM` with the model's weights."""
    from transformers import BertForMaskedLM

    stock = BertForMaskedLM(model.config).eval()
    stock.bert.load_state_dict(model.bert.state_dict(), strict=False)
    stock.cls.load_state_dict(model.mlm_head["cls"].state_dict())
    return stock


def by_turns(sides: dict, repeats: int) -> dict[str, list[float]]:
    """Seconds per passage of each side, a function and its passages; the first turn is not counted."""
    times: dict[str, list[float]] = {side: [] for side in sides}
    for _ in range(repeats + 1):
        for side, (function, count) in sides.items():
            times[side].append(seconds(function) / count)
    return {side: taken[1:] for side, taken in times.items()}


def _naive(model, masked, tasks, weight_only: bool, pad: bool):
    """The scores of a row by a backward pass of its own through stock BertForMaskedLM with the model's weights, a function.

    As the released code does it, every parameter gets a gradient, of which one weight's is looked at; or only that weight's
    is asked for.

    Args:
        masked: gives the masked batch of rows.
        tasks: float [T, H * H], the task gradients.
    """
    import torch
    import torch.nn.functional as F

    stock = stock_model(model).requires_grad_(not weight_only)
    weight = stock.bert.encoder.layer[-1].attention.output.dense.weight.requires_grad_(True)

    def score(row) -> torch.Tensor:
        batch = masked([row])
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
    """float [T, H * H], of the weight that is looked at."""
    import torch
    import torch.nn.functional as F

    weight = model.bert.encoder.layer[-1].attention.output.dense.weight
    found = []
    for batch in batches:
        labels = batch.pop("labels")
        weight.requires_grad_(True)
        found.append(torch.autograd.grad(F.cross_entropy(model(**batch).logits, labels), weight)[0].flatten())
        weight.requires_grad_(False)
    return torch.stack(found)


def speed(*, body: str, texts: str, tasks: int, repeats: int, threads: int, vocabulary: int, passages: int) -> list[dict]:
    """Passages a second of each side, by turns, and how far the scores of ours are from the naive ones."""
    import numpy as np
    import torch

    from hf_tlm.influence import InfluenceScorer
    from hf_tlm.models.base import encode

    torch.set_num_threads(threads)
    model, rows = tlm_model(body, vocabulary), random_rows(texts, passages, vocabulary)
    task_rows = random_rows(texts, tasks, vocabulary, label=[i % CLASSES for i in range(tasks)])
    scorer = InfluenceScorer([model], tokenizer(vocabulary), batch_size=BATCH)
    scorer.fit(task_rows, 1)
    order = np.argsort([len(ids) for ids in rows["input_ids"]], kind="stable")
    batches = [scorer.masked(rows.select(order[start : start + BATCH]).to_list()) for start in range(0, passages, BATCH)]

    def forward():
        with torch.no_grad():
            for batch in batches:
                encode(model.base_model, batch["input_ids"], batch["attention_mask"])

    found: dict[str, np.ndarray] = {}
    few = rows.select(range(min(NAIVE[body], passages)))
    gradients = task_gradients(model, [scorer.masked.collator([row]) for row in task_rows])
    sides = {}
    for side, options in NAIVE_SIDES.items():
        score = _naive(model, scorer.masked, gradients, *options)

        def run(side=side, score=score):
            found[side] = np.stack([score(row).numpy() for row in few])

        sides[side] = (run, len(few))

    def ours():
        found["ours"] = scorer.score(rows)[: len(few)]

    sides |= {"ours": (ours, passages), "forward pass of the body": (forward, passages)}
    times = by_turns(sides, repeats)
    naive = found["naive, padded"]
    return [
        {
            "body": body,
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


def layers(*, body: str, tasks: int, repeats: int, threads: int, vocabulary: int, passages: int) -> list[dict]:
    """Passages a second for the embeddings and every quarter of the layers, by turns."""
    import torch

    from hf_tlm.influence import InfluenceScorer

    torch.set_num_threads(threads)
    model, rows = tlm_model(body, vocabulary), random_rows("full", passages, vocabulary)
    task_rows = random_rows("full", tasks, vocabulary, label=[i % CLASSES for i in range(tasks)])
    last = model.config.num_hidden_layers
    scorers = {}
    for layer in sorted({last * quarter // 4 for quarter in range(5)}):
        scorers[layer] = InfluenceScorer([model], tokenizer(vocabulary), batch_size=BATCH, layer=layer)
        scorers[layer].fit(task_rows, 1)
    times = by_turns({layer: (partial(scorer.score, rows), passages) for layer, scorer in scorers.items()}, repeats)
    return [
        {
            "body": body,
            "task gradients": tasks,
            "layer": layer,
            "passages/s": 1 / median(taken),
            "time / last layer's": median(a / b for a, b in zip(taken, times[last], strict=True)),
            "repeats": repeats,
        }
        for layer, taken in times.items()
    ]


def agreement(scores, ours) -> dict[str, float]:
    """Of two float [N, T]: means over task gradients, and the largest difference."""
    import numpy as np
    from scipy.stats import spearmanr

    most = round(BEST * len(ours))
    best = [[set(np.argsort(-column)[:most]) for column in x.T] for x in (scores, ours)]
    return {
        "Spearman": float(np.mean([spearmanr(a, b).statistic for a, b in zip(scores.T, ours.T, strict=True)])),
        "same best 20%": float(np.mean([len(a & b) / most for a, b in zip(*best, strict=True)])),
        "difference": float(np.abs(scores - ours).max() / np.abs(ours).max()),
    }


def projection(*, body: str, tasks: int, dimensions: list[int], threads: int, vocabulary: int, passages: int) -> list[dict]:
    """How near scores by projected gradients are to the exact ones."""
    import torch

    from hf_tlm.influence import InfluenceScorer

    torch.set_num_threads(threads)
    model, rows = tlm_model(body, vocabulary), random_rows("full", passages, vocabulary)
    task_rows = random_rows("full", tasks, vocabulary, label=[i % CLASSES for i in range(tasks)])
    scores = {}
    for dimension in (None, *dimensions):
        scorer = InfluenceScorer([model], tokenizer(vocabulary), batch_size=BATCH, projection_dim=dimension)
        scorer.fit(task_rows, 1)
        scores[dimension] = scorer.score(rows)
    exact = scores.pop(None)
    found = []
    for dimension, projected in scores.items():
        near = agreement(projected, exact)
        error = float(((projected - exact) ** 2).mean() ** 0.5 / (exact**2).mean() ** 0.5)
        counts = {"passages": passages, "task gradients": tasks}
        found.append({"body": body, "projection_dim": dimension, "error": error, **near, **counts})
        del found[-1]["difference"]
    return found


def memory(*, body: str, side: str, threads: int, vocabulary: int, layer: int, tasks: int) -> dict[str, float]:
    """Peak of the resident set while two batches pass through the body, or are scored, MB."""
    import torch

    from hf_tlm.influence import InfluenceScorer
    from hf_tlm.models.base import encode

    torch.set_num_threads(threads)
    model, rows = tlm_model(body, vocabulary), random_rows("full", 2 * BATCH, vocabulary)
    scorer = InfluenceScorer([model], tokenizer(vocabulary), batch_size=BATCH, layer=layer)
    # Making the model takes more than a pass does: the peak begins anew.
    Path("/proc/self/clear_refs").write_text("5")
    with Memory() as watched:
        if side == "ours":
            scorer.fit(random_rows("full", tasks, vocabulary, label=[i % CLASSES for i in range(tasks)]), 1)
            scorer.score(rows)
        else:
            for start in (0, BATCH):
                batch = scorer.masked(rows.select(range(start, start + BATCH)).to_list())
                with torch.no_grad():
                    encode(model.base_model, batch["input_ids"], batch["attention_mask"])
    return {"peak": watched.peak, "before": watched.before}
