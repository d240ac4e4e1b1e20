"""Tasks with fewer training or validation examples: which examples are kept, and how this is reported."""

from collections import Counter

import numpy as np
import pytest
from datasets import Dataset

from hf_tlm.runs import linear_model
from hf_tlm.tasks import TaskArguments, TaskError, load_task
from hf_tlm.tasks.sampling import content_hash, sample, strata
from tests.support.kind_toys import rows_of

COUNTS = {"common": 700, "some": 250, "rare": 47, "single": 3}


def table(seed=0):
    rows = [{"text": f"{name} text {i}", "label": name} for name, count in COUNTS.items() for i in range(count)]
    return [rows[i] for i in np.random.default_rng(seed).permutation(len(rows))]


def splits(seed=0):
    rows = table(seed)
    return {"train": Dataset.from_list(rows), "validation": Dataset.from_list(rows[:100])}


@pytest.mark.parametrize("size", [4, 5, 30, 100, 333, 999])
def test_sample_is_stratified_by_class(size):
    task = load_task(splits(), max_train_samples=size)
    assert len(task.train) == size == task.report["train"]["examples"] and task.sampled_of == {"train": 1000}
    counts = Counter(task.label_names[label] for label in task.train["label"])
    for name, count in COUNTS.items():
        assert counts[name] == max(counts[name], 1) and abs(counts[name] - size * count / 1000) <= (1 if size > 30 else 3), (
            name
        )
    assert task.report["train"]["classes"] == dict(sorted(counts.items()))
    assert len(task.validation) == 100


def test_smaller_samples_are_subsets_of_larger_ones_in_data_order():
    texts = [load_task(splits(), max_train_samples=size).train["text"][:] for size in (10, 50, 400, 1000)]
    for smaller, larger in zip(texts, texts[1:], strict=False):
        assert [text for text in larger if text in set(smaller)] == smaller
    assert load_task(splits(seed=1), max_train_samples=50).train["text"][:] != texts[1]
    assert set(load_task(splits(seed=1), max_train_samples=50).train["text"]) == set(texts[1]), "whatever order rows have"


def test_sample_does_not_depend_on_the_order_of_texts():
    task = load_task(splits(), max_train_samples=200)
    numbers = np.array([int(text.split()[-1]) for text in task.train["text"] if text.startswith("common")])
    assert abs(numbers.mean() - 350) < 60


def test_sample_follows_its_definition():
    """Each example's turn is (its rank within its class + 1/2) / the class's size; the first of a class comes first."""
    groups, contents = np.array([0, 1, 0, 0, 1, 0]), list("abcdef")
    turns = {}
    for group in (0, 1):
        members = sorted(np.flatnonzero(groups == group), key=lambda i: content_hash(contents[i]))
        turns |= {int(i): 0 if rank == 0 else (rank + 0.5) / len(members) for rank, i in enumerate(members)}
    for size in range(2, 7):
        expected = sorted(sorted(turns, key=lambda i: (turns[i], content_hash(contents[i])))[:size])
        assert sample(groups, np.array([content_hash(content) for content in contents]), size).tolist() == expected


def test_sample_as_large_as_the_split_changes_nothing():
    for size in (1000, 5000):
        task = load_task(splits(), max_train_samples=size)
        assert (len(task.train), task.sampled_of) == (1000, {})
        assert task.fingerprint == load_task(splits()).fingerprint
        assert "train_sampled" not in task.about_splits()


@pytest.mark.parametrize(
    ("size", "said"),
    [(3, "one example for each of 4 classes"), *((size, "expected a whole number") for size in (0, True, "7", 7e9, 2.5))],
)
def test_invalid_sample_size_is_refused(size, said):
    with pytest.raises(TaskError, match=said):
        load_task(splits(), max_train_samples=size)


def test_option_refuses_zero():
    with pytest.raises(TaskError, match="max_train_samples"):
        TaskArguments("reviews.csv", max_train_samples=0)


def test_sampling_does_not_change_held_out_splits(tmp_path):
    whole = load_task(Dataset.from_list(table()))
    task = load_task(Dataset.from_list(table()), max_train_samples=100)
    assert len(task.train) == 100 and task.sampled_of == {"train": len(whole.train)}
    for split in ("validation", "test"):
        assert task.splits[split]["text"][:] == whole.splits[split]["text"][:]
    assert set(task.train["id"]) < set(whole.train["id"]), "ids are those of the table"


def test_bad_rows_are_not_sampled():
    rows = [{"text": None, "label": "a"}] * 30 + [{"text": f"text {i}", "label": "ab"[i % 2]} for i in range(30)]
    data = {"train": Dataset.from_list(rows), "validation": Dataset.from_list(rows[-6:])}
    with pytest.raises(TaskError, match="unusable rows"):
        load_task(data, max_train_samples=10)
    task = load_task(data, max_train_samples=10, drop_bad_rows=True)
    assert len(task.train) == 10 and None not in task.train["text"][:] and task.sampled_of == {"train": 30}
    assert Counter(task.train["label"]) == {0: 5, 1: 5}


def test_validation_split_is_sampled():
    """The sample is stratified by class, other splits are unchanged, and the size is reported."""
    rows = table()
    data = {"train": Dataset.from_list(rows), "validation": Dataset.from_list(rows), "test": Dataset.from_list(rows)}
    task = load_task(data, max_eval_samples=40)
    assert [len(split) for split in task.splits.values()] == [1000, 40, 1000] and task.sampled_of == {"validation": 1000}
    counts = Counter(task.label_names[label] for label in task.validation["label"])
    assert set(counts) == set(COUNTS) and abs(counts["common"] - 28) <= 3 and task.report["validation"]["examples"] == 40
    assert "train 1,000, validation 40 of 1,000, test 1,000" in task.to_text()
    assert task.about_splits()["validation_sampled"] == {"examples": 40, "of": 1000}
    both = load_task(data, max_train_samples=40, max_eval_samples=50)
    assert both.sampled_of == {"train": 1000, "validation": 1000} and len(both.train) == 40
    assert set(both.train["text"]) < set(both.validation["text"]), "smaller samples are parts of larger ones"
    with pytest.raises(TaskError, match="max_eval_samples 3 is less than one example for each of 4 classes"):
        load_task(data, max_eval_samples=3)
    with pytest.raises(TaskError, match="max_eval_samples"):
        TaskArguments("reviews.csv", max_eval_samples=0)


def test_every_kind_of_task_is_sampled():
    for kind in ("question_answering", "multiple_choice", "tagging"):
        rows = Dataset.from_list(rows_of(kind, 40))
        task = load_task({"train": rows, "validation": rows.select(range(10))}, kind=kind, max_train_samples=12)
        assert (len(task.train), task.sampled_of) == (12, {"train": 40}), kind


def test_regression_sample_is_spread_over_the_labels():
    rows = Dataset.from_list([{"text": f"text {i}", "label": float(i**2)} for i in range(100)])
    drawn = sample(strata(rows, "regression"), np.array([content_hash(text) for text in rows["text"]]), 20)
    assert Counter(drawn // 10) == dict.fromkeys(range(10), 2)


def test_regression_sample_does_not_depend_on_the_order_of_equal_labels():
    rows = [{"text": f"text {i}", "label": float(i % 3)} for i in range(60)]
    data = [{"train": Dataset.from_list(order), "validation": Dataset.from_list(rows)} for order in (rows, rows[::-1])]
    first, second = (load_task(one, kind="regression", max_train_samples=12).train["text"][:] for one in data)
    assert first != second and set(first) == set(second)


def test_equal_texts_of_two_classes_are_sampled_in_any_order():
    groups, positions = np.array([0, 1] * 6), np.repeat([0.5, 0.1, 0.9, 0.3, 0.7, 0.2], 2)
    for size in range(2, 13):
        other = 11 - sample(groups[::-1], positions[::-1], size)
        assert sample(groups, positions, size).tolist() == sorted(other), size


def test_sample_is_reported_and_used_by_the_linear_model():
    task = load_task(splits(), max_train_samples=100)
    assert "train 100 of 1,000, validation 100" in task.to_text()
    assert task.about_splits()["train_sampled"] == {"examples": 100, "of": 1000}
    features = [linear_model(one).settings["features"] for one in (task, load_task(splits()))]
    assert features[0] < features[1]


def test_splits_of_a_task_can_be_loaded_again():
    """The offsets of answers then have this package's column name."""
    rows = Dataset.from_list(rows_of("question_answering", 20))
    task = load_task({"train": rows, "validation": rows}, kind="question_answering")
    assert load_task(task.splits).fingerprint == task.fingerprint
