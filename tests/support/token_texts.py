"""Texts as token ids, in the form that a collator reads."""

import numpy as np


def rows(tokenizer, *texts, **extra):
    return [{"input_ids": tokenizer(text)["input_ids"], **extra} for text in texts]


def texts(labelled, pairs=False, count=9):
    """Return random texts of 3 to 21 tokens."""
    rng = np.random.default_rng(5)
    found = []
    for draw in range(count):
        ids = [2, *rng.integers(5, 120, rng.integers(1, 20)).tolist(), 3]
        found.append({"input_ids": ids, "draw": draw})
        if labelled:
            found[-1]["label"] = draw % 3
        if pairs:
            found[-1]["token_type_ids"] = [int(i > len(ids) // 2) for i in range(len(ids))]
    return found
