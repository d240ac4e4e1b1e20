import json

import pytest
from datasets import Dataset

from toys import TINY_CONFIGS, sentences


@pytest.fixture(scope="module")
def work(tmp_path_factory):
    folder = tmp_path_factory.mktemp("work")
    (folder / "task").mkdir()
    for split, count in (("train", 48), ("validation", 24), ("test", 24)):
        Dataset.from_list(sentences(count, len(split))).to_json(folder / "task" / f"{split}.jsonl")
    Dataset.from_list([{"text": row["text"]} for row in sentences(60, 9)]).to_parquet(folder / "corpus.parquet")
    values = {k: v for k, v in TINY_CONFIGS["bert"].items() if k not in ("vocab_size", "num_labels")}
    # Without dropout, whose draws differ between processes, one and two processes compute the same.
    off = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    (folder / "model.json").write_text(json.dumps({"model_type": "bert", **values, **off}))
    return folder


@pytest.fixture(scope="module")
def subset(work):
    """Of the task and the corpus in `work`, as recipes/retrieve.py saves it."""
    from hf_tlm.corpora import load_corpus
    from hf_tlm.retrieval import retrieve
    from hf_tlm.tasks import load_task

    retrieve(load_task(str(work / "task")), load_corpus(str(work / "corpus.parquet")), top_k=4).save(work / "subset")
    return work / "subset"
