"""--task and --corpus by Hub id: revisions, and a clear message for repositories that cannot be read."""

import pytest
from datasets import Dataset

from hf_tlm.corpora import CorpusArguments
from hf_tlm.errors import HfTlmError
from hf_tlm.tasks import TaskArguments
from support.toys import sentences


@pytest.fixture
def data(hub, tmp_path):
    """Two revisions of alice/data; the newer one has more training texts."""
    for seed, (revision, count) in enumerate({"v1": 12, "main": 24}.items()):
        files = {}
        for name, number in (("train", count), ("validation", 9)):
            Dataset.from_list(sentences(number, seed)).to_csv(tmp_path / "rows.csv")
            files[f"{name}.csv"] = (tmp_path / "rows.csv").read_bytes()
        hub.put("alice/data", files, "dataset", revision=revision)
    hub.put("bob/private", {"train.csv": "text,label\na,b\n"}, "dataset", private=True)
    hub.put("bob/gated", {"train.csv": "text,label\na,b\n"}, "dataset", gated=True)


def load_both(name):
    return TaskArguments(name).load(), list(CorpusArguments(name).load())


def test_data_of_a_revision_are_loaded(data):
    for name, count in (("alice/data", 24), ("alice/data@v1", 12)):
        task, passages = load_both(name)
        assert len(task.train) == len(passages) == count and task.name == "data"
    assert len(TaskArguments("alice/data", task_revision="v1").load().train) == 12
    assert "@" in CorpusArguments("alice/data@v1").load().name


@pytest.mark.parametrize("load", [lambda name: TaskArguments(name).load(), lambda name: CorpusArguments(name).load()])
@pytest.mark.parametrize(
    "name,message",
    [
        ("alice/nothing", "(no dataset repository alice/nothing that you may see|'alice/nothing' doesn't exist)"),
        ("alice/data@v9", "no branch, tag or commit 'v9'"),
        ("bob/private", "(bob/private that you may see.*log in|'bob/private' doesn't exist.*or cannot be accessed)"),
        ("bob/gated", "'bob/gated' is a gated dataset.*ask for access"),
    ],
)
def test_repository_that_cannot_be_read_is_refused(data, load, name, message):
    with pytest.raises(HfTlmError, match=message):
        load(name)


@pytest.mark.parametrize("load", [lambda name: TaskArguments(name).load(), lambda name: CorpusArguments(name).load()])
def test_missing_network_is_reported(data, hub, load, sleeps):
    hub.fail(lambda method, path: True, "reset", times=1000)
    with pytest.raises(HfTlmError, match="cannot be reached.*Check the network"):
        load("alice/data")


@pytest.mark.parametrize("load", [lambda name: TaskArguments(name).load(), lambda name: CorpusArguments(name).load()])
def test_offline_setting_is_reported(data, hub, load, monkeypatch):
    for library in ("huggingface_hub.constants", "datasets.config"):
        monkeypatch.setattr(f"{library}.HF_HUB_OFFLINE", True)
    advice = "HF_HUB_OFFLINE is set, so the dataset repository .* cannot be requested. Unset it, or pass a local path"
    with pytest.raises(HfTlmError, match=advice):
        load("alice/data")
    assert not hub.log
