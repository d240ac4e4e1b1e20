"""Offline, small and deterministic: set before any Hugging Face library is imported."""

import os
import tempfile
from pathlib import Path

_HOME = tempfile.mkdtemp(prefix="hf-tlm-tests-")
os.environ.update(
    HF_HOME=_HOME,
    HF_HUB_OFFLINE="1",
    HF_HUB_DISABLE_TELEMETRY="1",
    HF_DATASETS_DISABLE_PROGRESS_BARS="1",
    TOKENIZERS_PARALLELISM="false",
    CUDA_VISIBLE_DEVICES="",
)

import pytest  # noqa: E402
import torch  # noqa: E402
from datasets import Dataset  # noqa: E402

torch.set_num_threads(1)
ROOT = Path(__file__).resolve().parent.parent

COMMON = {"vocab_size": 120, "pad_token_id": 0, "num_labels": 3, "max_position_embeddings": 40}
SIZES = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
# One tiny config per family, as `AutoConfig.for_model` takes it.
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
}
SUBJECTS = ["enzyme", "protein", "drug", "gene", "cell", "tumor", "receptor", "acid"]
VERBS = {"up": ["activates", "raises", "induces"], "down": ["inhibits", "blocks", "lowers"], "none": ["meets", "binds"]}


def sentences(count: int, seed: int = 0) -> list[dict[str, str]]:
    """Short labelled sentences with a learnable rule: the verb gives the label."""
    import random

    rng = random.Random(seed)
    rows = []
    for i in range(count):
        label = sorted(VERBS)[i % 3]
        words = [rng.choice(SUBJECTS) for _ in range(rng.randint(2, 9))]
        rows.append({"text": f"the {words[0]} {rng.choice(VERBS[label])} the {' and the '.join(words[1:])}", "label": label})
    return rows


def make_task(train=48, validation=24, test=24, name="toy", metric="macro_f1"):
    from hf_tlm.tasks import TaskSpec, task_from_datasets

    counts = {"train": train, "validation": validation, "test": test}
    splits = {split: Dataset.from_list(sentences(n, seed)) for seed, (split, n) in enumerate(counts.items())}
    return task_from_datasets(TaskSpec(name=name, path="memory", metric=metric), splits)


@pytest.fixture
def task():
    return make_task()


@pytest.fixture(scope="session")
def corpus_rows():
    return [{"text": row["text"] + ".", "source": f"part{i % 2}"} for i, row in enumerate(sentences(60, seed=9))]


@pytest.fixture
def corpus(corpus_rows):
    from hf_tlm.corpora import load_corpus

    return load_corpus(Dataset.from_list(corpus_rows))


@pytest.fixture(scope="session")
def tokenizer(corpus_rows):
    from hf_tlm.data import train_wordpiece

    return train_wordpiece([row["text"] for row in corpus_rows], 120, max_length=32)


@pytest.fixture(scope="session")
def data_dir() -> Path:
    """The real tasks and corpus."""
    path = Path(os.environ.get("HF_TLM_DATA", ROOT.parent / "shared" / "data"))
    if not (path / "tasks").is_dir():
        pytest.skip(f"NO REAL DATA: {path}/tasks is not there. Set HF_TLM_DATA to the folder with tasks/ and corpus/.")
    return path
