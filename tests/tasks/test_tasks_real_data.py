"""The tasks of the papers with real data: see the README of the data folder."""

import pytest

from hf_tlm.tasks import TASKS, load_task


@pytest.mark.parametrize("name", ["chemprot", "acl_arc", "scierc", "hyperpartisan"])
def test_real_tasks_have_the_sizes_classes_and_metric_of_the_papers(data_dir, name):
    task = load_task(str(data_dir / "tasks" / name))
    assert tuple(len(task.splits[split]) for split in ("train", "validation", "test")) == TASKS[name].split_sizes
    assert task.label_names == TASKS[name].classes
    assert task.metric == TASKS[name].metric
    assert all(not counts["dropped"] for counts in task.report.values())
    assert all(len(set(rows["id"])) == len(rows) for rows in task.splits.values())


def test_known_overlaps_of_splits_are_reported(data_dir):
    report = load_task(str(data_dir / "tasks" / "acl_arc")).report
    assert report["test"]["texts_also_in_train"] == 52
    assert report["validation"]["texts_also_in_train"] == 43


def test_sentence_pairs_are_read(data_dir):
    task = load_task(str(data_dir / "tasks" / "glue_rte"), text_columns=("sentence1", "sentence2"))
    assert [len(task.train), len(task.validation), task.test] == [2490, 277, None]
    assert task.train.column_names == ["id", "text", "text_pair", "label"]
