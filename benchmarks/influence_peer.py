"""Compare influence scores with bergson (EleutherAI's gradient attribution): section `peer` of benchmarks/influence.py.

bergson needs an environment of its own, with the same torch and transformers:

    python -m venv bergson-env
    bergson-env/bin/pip install -c constraints.txt -e . bergson==2.5.1
    bergson-env/bin/python benchmarks/influence.py --sections peer --name influence_peer --threads 1

Both sides have the same weights, masked texts and task gradients (bergson computes those of a language model only, so ours
are passed to it), float32, no projection. bergson supports causal language models: it uses the logits of a position for the
next token, and passes no attention mask to the model. So its labels are shifted by one position, and all texts have the same
length.
"""

from __future__ import annotations

import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path
from statistics import median

import influence_measures as measures

# The parameter that requires a gradient: the input embedding, as in bergson's own workers, which sends the backward pass
# through the complete model; or only the weight itself.
SIDES = {"bergson": "bert.embeddings.word_embeddings.weight", "bergson, that weight's gradient alone": None}
# bergson's default of 2,048 tokens: it is slower with more at a time.
BATCH = 2048 // measures.LENGTH


def installed() -> bool:
    """Return whether bergson is installed; if not, say so on stderr."""
    if find_spec("bergson"):
        return True
    print("The section `peer` is skipped: bergson is not installed, see benchmarks/influence_peer.py.", file=sys.stderr)
    return False


def _bergson(model, batch: dict, task_gradients, parameter: str | None):
    """Return a function that computes bergson's scores of a masked batch, float [N, T].

    Args:
        task_gradients: float [T, H * H].
        parameter: the one that requires a gradient; default: the weight whose gradient is used.
    """
    from bergson import CollectorComputer, GradientProcessor, IndexConfig, InMemoryCollector, Scorer
    from bergson.score.score_writer import InMemorySequenceScoreWriter
    from datasets import Dataset

    stock = measures.stock_model(model).requires_grad_(False)
    module = f"encoder.layer.{model.config.num_hidden_layers - 1}.attention.output.dense"
    stock.get_parameter(parameter or f"bert.{module}.weight").requires_grad_(True)
    # The last token is never masked, so no label is lost.
    labels = batch["mlm_labels"].roll(1, dims=1)
    data = Dataset.from_dict({"input_ids": batch["input_ids"].tolist(), "labels": labels.tolist()})
    batches = [list(range(start, min(start + BATCH, len(data)))) for start in range(0, len(data), BATCH)]

    def score():
        writer = InMemorySequenceScoreWriter(len(data), len(task_gradients))
        scorer = Scorer({module: task_gradients}, [module], writer, stock.device, task_gradients.dtype)
        with tempfile.TemporaryDirectory() as folder:
            config = IndexConfig(str(Path(folder) / "run"), loss_reduction="mean")
            config.partial_run_path.mkdir()
            collector = InMemoryCollector(
                model=stock.bert,
                target_modules={module},
                processor=GradientProcessor(projection_dim=None),
                data=data,
                cfg=config,
                scorer=scorer,
            )
            CollectorComputer(stock, data, collector=collector, batches=batches, cfg=config).run_with_collector_hooks()
        return collector.scores.numpy()

    return score


def peer(*, body: str, tasks: int, repeats: int, threads: int, vocabulary: int, passages: int) -> list[dict]:
    """Measure passages per second of each side, alternating, and the agreement of their scores with ours."""
    import torch

    from hf_tlm.influence import InfluenceScorer

    torch.set_num_threads(threads)
    model, rows = measures.tlm_model(body, vocabulary), measures.random_rows("full", passages, vocabulary)
    labels = [i % measures.CLASSES for i in range(tasks)]
    task_rows = measures.random_rows("full", tasks, vocabulary, label=labels)
    scorer = InfluenceScorer([model], measures.tokenizer(vocabulary), batch_size=measures.BATCH)
    scorer.fit(task_rows, 1)
    gradients = measures.task_gradients(model, [scorer.masked.collator([row]) for row in task_rows])
    batch = scorer.masked(rows.to_list())
    scores = {"ours": lambda: scorer.score(rows)}
    scores |= {side: _bergson(model, batch, gradients, parameter) for side, parameter in SIDES.items()}
    found: dict = {}

    def turn(side):
        return lambda: found.update({side: scores[side]()})

    times = measures.by_turns({side: (turn(side), passages) for side in scores}, repeats)
    return [
        {
            "body": body,
            "task gradients": tasks,
            "side": side,
            "passages/s": 1 / median(times[side]),
            "time / ours": median(a / b for a, b in zip(times[side], times["ours"], strict=True)),
            **measures.agreement(found[side], found["ours"]),
            "passages": passages,
            "repeats": repeats,
        }
        for side in scores
    ]
