"""Real task folders of every kind: kind, metrics, sizes and a few facts; see also test_tasks_real_data."""

import pyarrow.parquet as pq
import pytest
from datasets import Dataset

from hf_tlm.tasks import TASKS, load_task, task_from_datasets

EXPECTED = {
    "agnews": ("classification", ("macro_f1",), 4, (15667, 1999, 7600)),
    "rct_ei": ("classification", ("macro_f1",), 5, (26006, 3343, 3232)),
    "glue_cola": ("classification", ("matthews",), ("unacceptable", "acceptable"), (8551, 1043)),
    "glue_mrpc": ("classification", ("f1", "accuracy"), ("not_equivalent", "equivalent"), (3667, 408, 1724)),
    "glue_qnli": ("classification", ("accuracy",), ("entailment", "not_entailment"), (4463, 1000)),
    "glue_rte": ("classification", ("accuracy",), ("entailment", "not_entailment"), (2490, 277)),
    "glue_sst2": ("classification", ("accuracy",), ("negative", "positive"), (67349, 872)),
    "glue_stsb": ("regression", ("pearson", "spearman"), (), (5749, 1500, 1379)),
    "squad_small": ("question_answering", ("squad_f1",), (), (850, 340)),
    "race_middle": ("multiple_choice", ("accuracy",), ("A", "B", "C", "D"), (25421, 1436, 1436)),
    "pos_ewt": ("tagging", ("tag_accuracy",), 49, (12544, 2001, 2077)),
}


def test_first_rows_of_imdb_are_read(data_dir):
    """Reading all 50,000 reviews would take longer than the other tests together."""
    splits = {}
    for split in ("train", "validation", "test"):
        batches = pq.ParquetFile(data_dir / "tasks" / "imdb" / f"{split}.parquet").iter_batches(50)
        splits[split] = Dataset.from_list(next(batches).to_pylist())
    task = task_from_datasets(TASKS["imdb"], splits)
    assert (task.kind, task.metric, task.label_names) == ("classification", "macro_f1", ("neg", "pos"))
    assert task.report["test"]["examples"] == 50


@pytest.mark.slow
@pytest.mark.parametrize("name", EXPECTED)
def test_real_folder_is_read_without_options(data_dir, name):
    kind, metrics, names, sizes = EXPECTED[name]
    task = load_task(str(data_dir / "tasks" / name))
    assert (task.kind, (task.metric, *task.spec.further_metrics)) == (kind, metrics)
    assert names in (task.label_names, len(task.label_names))
    assert tuple(map(len, task.splits.values())) == sizes
    assert not any(counts["dropped"] for counts in task.report.values())
    row = task.validation[-1]
    if kind == "question_answering":
        (start,), (answer,) = row["starts"], row["answers"]
        assert row["context"][start : start + len(answer)] == answer
    elif kind == "tagging":
        assert task.report["test"]["words"] == 25094 and task.report["test"]["words_with_unknown_tags"] == 0
    elif kind == "multiple_choice":
        assert len(row["options"]) == 4 and len(set(task.train["id"][:])) == 25421
