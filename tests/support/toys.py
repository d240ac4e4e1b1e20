"""Tiny configs and data shared by the tests."""

import json
import re
from functools import cache

from datasets import Dataset

COMMON = {"vocab_size": 120, "pad_token_id": 0, "num_labels": 3, "max_position_embeddings": 40}
SIZES = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
# One tiny config per family, for `AutoConfig.for_model`.
TINY_CONFIGS = {
    "bert": {**COMMON, **SIZES},
    "roberta": {**COMMON, **SIZES},
    "electra": {**COMMON, **SIZES, "embedding_size": 8},
    "albert": {**COMMON, **SIZES, "embedding_size": 8},
    "distilbert": {**COMMON, "dim": 16, "n_layers": 2, "n_heads": 2, "hidden_dim": 32},
    "modernbert": {
        **COMMON,
        **SIZES,
        "cls_token_id": 2,
        "sep_token_id": 3,
        "bos_token_id": 2,
        "eos_token_id": 3,
        "global_attn_every_n_layers": 2,
        "local_attention": 8,
    },
    "cocolm": {
        **COMMON,
        **SIZES,
        "copy_head": False,
        "relative_attention_num_buckets": 8,
        "relative_attention_max_distance": 12,
    },
}
# Settings for a run of both stages that takes a second.
FAST = {
    "report_to": "none",
    "disable_tqdm": True,
    "use_cpu": True,
    "save_strategy": "no",
    "rho1": 1,
    "max_steps": 4,
    "learning_rate": 1e-2,
    "max_length": 32,
    "per_device_train_batch_size": 8,
    "stage2_max_steps": 6,
    "stage2_learning_rate": 1e-2,
    "stage2_eval_steps": 2,
    "stage2_total_batch_size": 8,
}
SUBJECTS = ["enzyme", "protein", "drug", "gene", "cell", "tumor", "receptor", "acid"]
VERBS = {
    "up": ["activates", "raises", "induces"],
    "down": ["inhibits", "blocks", "lowers"],
    "none": ["meets", "binds"],
}


def sentences(count: int, seed: int = 0) -> list[dict[str, str]]:
    """Return short labelled sentences with a learnable rule: the verb determines the label."""
    import random

    rng = random.Random(seed)
    rows = []
    for i in range(count):
        label = sorted(VERBS)[i % 3]
        words = [rng.choice(SUBJECTS) for _ in range(rng.randint(2, 9))]
        rows.append({"text": f"the {words[0]} {rng.choice(VERBS[label])} the {' and the '.join(words[1:])}", "label": label})
    return rows


@cache
def _split(count: int, seed: int) -> Dataset:
    return Dataset.from_list(sentences(count, seed))


def make_task(train=48, validation=24, test=24, name="toy", metric="macro_f1"):
    from hf_tlm.tasks import TaskSpec, task_from_datasets

    counts = {"train": train, "validation": validation, "test": test}
    splits = {split: _split(n, seed) for seed, (split, n) in enumerate(counts.items())}
    return task_from_datasets(TaskSpec(name=name, path="memory", metric=metric), splits)


def write_files(folder, train=48, held_out=24, **config):
    """Write a task's folder `task`, `corpus.parquet` and a BERT config `model.json`, for recipes.

    Args:
        config: values of the model's config that replace those of the tiny one.
    """
    (folder / "task").mkdir()
    for split, count in (("train", train), ("validation", held_out), ("test", held_out)):
        Dataset.from_list(sentences(count, len(split))).to_json(folder / "task" / f"{split}.jsonl")
    Dataset.from_list([{"text": row["text"]} for row in sentences(60, 9)]).to_parquet(folder / "corpus.parquet")
    values = {k: v for k, v in TINY_CONFIGS["bert"].items() if k not in ("vocab_size", "num_labels")}
    (folder / "model.json").write_text(json.dumps({"model_type": "bert", **values, **config}))


def code_blocks(card, folder):
    """Execute every Python block of a card with `folder` in place of the repo id; return the number of blocks."""
    blocks = re.findall(r"```python\n(.*?)```", card, flags=re.S)
    for block in blocks:
        assert "path/or/repo-id" in block
        exec(block.replace("path/or/repo-id", str(folder)), {})
    return len(blocks)
