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
    OMP_NUM_THREADS="1",  # Tests run in as many processes as there are cores.
)

import pytest  # noqa: E402
import torch  # noqa: E402
from datasets import Dataset  # noqa: E402

from toys import make_task, sentences  # noqa: E402

torch.set_num_threads(1)
ROOT = Path(__file__).resolve().parent.parent


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
