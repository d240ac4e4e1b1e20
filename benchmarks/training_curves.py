"""Compute loss curves of both sides of benchmarks/training.py on the same texts with the same masks."""

from __future__ import annotations

from training_loops import texts_of
from training_measures import MAX_LENGTH, Setting, Watch, load, ours, plain


def _padded(tokenizer, seed: int):
    """Return a collator for the stock model: texts are masked as ours are, one per row of `MAX_LENGTH`."""
    import torch.nn.functional as F

    from hf_tlm.data.collator import TlmCollator

    collate = TlmCollator(tokenizer, seed=seed)
    fill = {"input_ids": tokenizer.pad_token_id, "attention_mask": 0, "mlm_labels": -100}

    def padded(texts: list[dict]) -> dict:
        batch = collate(texts)
        room = (0, MAX_LENGTH - batch["input_ids"].shape[1])
        batch = {name: F.pad(batch[name], room, value=value) for name, value in fill.items()}
        return {"labels": batch.pop("mlm_labels"), **batch}

    return padded


def curves(
    *, body: str, packing: str, steps: int, seed: int, setting: Setting, rows: str, tokenizer: str
) -> dict[str, list[float]]:
    """Return the loss of every step on both sides, without dropout.

    `plain` is the stock Trainer on the texts of `ours` in the same order, padded, with the same masks, initial weights and
    optimizer.
    """
    rows, tokenizer = load(rows, tokenizer, setting.threads)
    our_trainer = ours(rows, tokenizer, body, steps, seed, packing, setting, dropout=0.0)
    theirs = plain(
        sum(texts_of(our_trainer, steps), []),
        tokenizer,
        body,
        steps,
        seed,
        setting,
        collator=_padded(tokenizer, seed),
        dropout=0.0,
        train_sampling_strategy="sequential",
        remove_unused_columns=False,
    )
    weights, wanted = our_trainer.model.state_dict(), theirs.model.state_dict()
    theirs.model.load_state_dict({name: weights[name if name in weights else f"mlm_head.{name}"] for name in wanted})
    found = {}
    for side, trainer in (("ours", our_trainer), ("plain", theirs)):
        watch = Watch(trainer, setting, setting.warm)
        trainer.train()
        found[side] = watch.losses
    return found
