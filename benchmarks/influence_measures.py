"""What benchmarks/influence.py measures. Each function runs in a process of its own."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).resolve().parent))
from retrieval_measures import Memory, seconds
from training_measures import BODIES

VOCABULARY, LENGTH, BATCH = 30_522, 128, 32
CLASSES, CLS, SEP, FIRST_WORD = 8, 2, 3, 5
# Passages that the naive sides take a repeat: they need a second for one of the large body.
NAIVE = {"2x64": 2, "4x256": 8, "12x768": 3}


def _tokenizer(vocabulary: int):
    from transformers import BertTokenizer

    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    pieces += [f"w{number}" for number in range(vocabulary - len(pieces))]
    return BertTokenizer(vocab={piece: number for number, piece in enumerate(pieces)})


def _rows(kind: str, count: int, vocabulary: int, **columns):
    """Random tokens: `full` texts have LENGTH of them, `mixed` ones between a fifth of that and all."""
    import numpy as np
    from datasets import Dataset

    rng = np.random.default_rng(0)
    lengths = np.full(count, LENGTH) if kind == "full" else rng.integers(LENGTH // 5, LENGTH + 1, count)
    ids = [[CLS, *rng.integers(FIRST_WORD, vocabulary, size - 2).tolist(), SEP] for size in lengths]
    return Dataset.from_dict({"input_ids": ids, "id": [str(i) for i in range(count)], **columns})


def _model(body: str, vocabulary: int):
    from transformers import BertConfig, set_seed

    from hf_tlm.models import TlmModel

    set_seed(0)
    config = BertConfig(vocab_size=vocabulary, max_position_embeddings=LENGTH, num_labels=CLASSES, **BODIES[body])
    return TlmModel.from_config(config)


def _naive(model, rows, scorer, weight_only: bool, pad: bool):
    """One backward pass per passage with stock BertForMaskedLM of the same weights: a function that gives a row's scores.

    As the released code does it, every parameter has a gradient, of which one weight's is looked at; or only that weight's
    is asked for.
    """
    import torch
    from transformers import BertForMaskedLM

    from hf_tlm.influence.capture import Capture
    from hf_tlm.influence.losses import task_loss

    stock = BertForMaskedLM(model.config).eval()
    stock.bert.load_state_dict(model.bert.state_dict(), strict=False)
    stock.cls.load_state_dict(model.mlm_head["cls"].state_dict())
    weight = stock.bert.encoder.layer[-1].attention.output.dense.weight
    tasks = []
    dense = model.bert.encoder.layer[-1].attention.output.dense
    for row in scorer.task_rows:
        batch = scorer.masked.collator([row])
        with Capture([dense], 1) as capture:
            tokens = capture.tokens(task_loss(model, batch, torch.ones(1)))[0]
        tasks.append((tokens.gradients.T @ tokens.inputs).flatten())
    tasks = torch.stack(tasks)

    def score(row) -> torch.Tensor:
        batch = scorer.masked([row])
        if pad and (missing := LENGTH - len(row["input_ids"])):
            fill = {"mlm_labels": -100}
            batch = {k: torch.nn.functional.pad(v, (0, missing), value=fill.get(k, 0)) for k, v in batch.items()}
        loss = stock(batch["input_ids"], attention_mask=batch["attention_mask"], labels=batch["mlm_labels"]).loss
        if weight_only:
            gradient = torch.autograd.grad(loss, weight)[0]
        else:
            stock.zero_grad()
            loss.backward()
            gradient = weight.grad
        return tasks @ gradient.flatten()

    if weight_only:
        stock.requires_grad_(False)
        weight.requires_grad_(True)
    return score


def speed(*, body: str, texts: str, tasks: int, repeats: int, threads: int, vocabulary: int, passages: int) -> list[dict]:
    """Passages a second of each side, by turns, and how far the scores of ours are from the naive ones."""
    import numpy as np
    import torch

    from hf_tlm.influence import InfluenceScorer
    from hf_tlm.models.base import encode

    torch.set_num_threads(threads)
    model, rows = _model(body, vocabulary), _rows(texts, passages, vocabulary)
    scorer = InfluenceScorer([model], _tokenizer(vocabulary), batch_size=BATCH)
    scorer.task_rows = _rows(texts, tasks, vocabulary, label=[i % CLASSES for i in range(tasks)])
    scorer.fit(scorer.task_rows, 1)
    found = scorer.score(rows)
    batches = [
        scorer.masked(rows.select(range(start, min(start + BATCH, passages))).to_list())
        for start in range(0, passages, BATCH)
    ]
    order = np.argsort([len(row["input_ids"]) for row in rows], kind="stable")
    batches = [scorer.masked(rows.select(order[start : start + BATCH]).to_list()) for start in range(0, passages, BATCH)]

    def forward():
        with torch.no_grad():
            for batch in batches:
                encode(model.base_model, batch["input_ids"], batch["attention_mask"])

    naive = {
        "naive, padded": _naive(model, rows, scorer, False, True),
        "naive, unpadded": _naive(model, rows, scorer, False, False),
        "naive, unpadded, one weight's gradient": _naive(model, rows, scorer, True, False),
    }
    few, expected = min(NAIVE[body], passages), {}

    def run_naive(side):
        expected[side] = np.stack([naive[side](row).numpy() for row in rows.select(range(few))])

    sides = {side: (lambda side=side: run_naive(side), few) for side in naive}
    sides |= {"ours": (lambda: scorer.score(rows), passages), "forward pass of the body": (forward, passages)}
    times: dict[str, list[float]] = {side: [] for side in sides}
    for _ in range(repeats + 1):
        for side, (function, count) in sides.items():
            times[side].append(seconds(function) / count)
    largest = max(np.abs(values).max() for values in expected.values())
    error = max(np.abs(values - found[:few]).max() for values in expected.values()) / largest
    return [
        {
            "body": body,
            "texts": texts,
            "task gradients": tasks,
            "side": side,
            "passages/s": 1 / median(times[side][1:]),
            "ours is faster by": median(a / b for a, b in zip(times[side][1:], times["ours"][1:], strict=True)),
            "largest difference": float(error) if side == "ours" else None,
            "repeats": repeats,
        }
        for side in sides
    ]


def memory(*, body: str, side: str, threads: int, vocabulary: int, layer: int, tasks: int) -> dict[str, float]:
    """Peak of the resident set of a process that passes two batches through the body, or scores them, MB."""
    import torch

    from hf_tlm.influence import InfluenceScorer
    from hf_tlm.models.base import encode

    torch.set_num_threads(threads)
    with Memory() as watched:
        model, rows = _model(body, vocabulary), _rows("full", 2 * BATCH, vocabulary)
        scorer = InfluenceScorer([model], _tokenizer(vocabulary), batch_size=BATCH, layer=layer)
        before = watched.now("VmRSS")
        begin = time.perf_counter()
        if side == "forward pass of the body":
            for start in (0, BATCH):
                batch = scorer.masked(rows.select(range(start, start + BATCH)).to_list())
                with torch.no_grad():
                    encode(model.base_model, batch["input_ids"], batch["attention_mask"])
        else:
            scorer.fit(_rows("full", tasks, vocabulary, label=[i % CLASSES for i in range(tasks)]), 1)
            scorer.score(rows)
        took = time.perf_counter() - begin
    return {"peak": watched.peak, "before": before, "seconds": took}
