"""Reading from the Hub: names of repositories, and snapshots without files that could run code unless they are allowed."""

import logging

import httpx2
import pytest
from huggingface_hub.errors import HfHubHTTPError

from hf_tlm.errors import HubError
from hf_tlm.hub import Repo, fetch, find_repo, local_folder
from hf_tlm.hub.errors import explain
from hf_tlm.hub.repo import FILES

SAFE = {"config.json": "{}", "model.safetensors": "weights", "tokenizer.json": "{}"}


@pytest.mark.parametrize(
    "name,repo",
    [
        ("yxchar/chemprot-tlm", Repo("yxchar/chemprot-tlm")),
        ("alice/model@v1.0", Repo("alice/model", "v1.0")),
        ("alice/model@refs/pr/3", Repo("alice/model", "refs/pr/3")),
        *(
            (name, None)
            for name in ("bert", "a/b/c", "/tmp/x", "./a/b", "../b", "a/b@", "a/b@c@d", "a--b/c", "a/b.git", "a/b c")
        ),
        *((name, None) for name in ("data/*.parquet", "a/" + "b" * 96, "b" * 5000, "")),
    ],
)
def test_name_is_parsed_into_repository_and_revision(name, repo):
    assert find_repo(name, "model") == repo


def test_local_path_wins_over_a_hub_id(tmp_path, monkeypatch, hub):
    (tmp_path / "alice" / "model").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    assert find_repo("alice/model", "model") is None
    assert local_folder("alice/model", "model").samefile(tmp_path / "alice" / "model") and not hub.log
    assert str(find_repo("alice/other@v1", "dataset")) == "alice/other@v1"
    with pytest.raises(HubError, match="Expected a local path, or a model repository of the Hub.*received 'nothing'"):
        local_folder("nothing", "model")
    with pytest.raises(HubError, match="received 'bucket'"):
        find_repo("alice/other", "bucket")


def file_names(folder):
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()} - {".gitattributes"}


def test_files_of_a_revision_are_fetched(hub):
    first = hub.put("alice/model", SAFE)
    hub.put("alice/model", {"config.json": '{"new": 1}'})
    hub.repository("alice/model").tags["v1"] = first
    assert (local_folder("alice/model", "model") / "config.json").read_text() == '{"new": 1}'
    for revision in ("v1", first):
        assert (local_folder(f"alice/model@{revision}", "model") / "config.json").read_text() == "{}"
    assert file_names(fetch(Repo("alice/model"), allow_patterns="*.json")) >= {"config.json", "tokenizer.json"}
    assert not any("v2" in path for _, path in hub.log)
    with pytest.raises(HubError, match="alice/model has no branch, tag or commit 'v2'"):
        local_folder("alice/model@v2", "model")


def test_pickled_weights_are_refused_unless_allowed(hub):
    hub.put("alice/safe", {**SAFE, "pytorch_model.bin": "p", "training_args.bin": "p", "sub/optimizer.pt": "p"})
    assert file_names(fetch(Repo("alice/safe"))) == set(SAFE)
    # Allowed: files that exist only as pickles, but not a second copy of the weights.
    assert file_names(fetch(Repo("alice/safe"), allow_pickle=True)) == {*SAFE, "training_args.bin", "sub/optimizer.pt"}
    for name, files in {
        "alice/pickled": {"config.json": "{}", "pytorch_model.bin": "p"},
        "alice/mixed": {**SAFE, "mlm/weights.pth": "p"},
    }.items():
        hub.put(name, files)
        hub.log.clear()
        with pytest.raises(
            HubError, match=f"weights of {name} are pickles .(pytorch_model.bin|mlm/weights.pth).*legacy_checkpoint"
        ):
            fetch(Repo(name))
        assert not any("/resolve/" in path for _, path in hub.log)
        assert file_names(fetch(Repo(name), allow_pickle=True)) == set(files)
    assert file_names(fetch(Repo("alice/mixed"), allow_patterns=list(SAFE))) >= set(SAFE)


@pytest.mark.parametrize(
    "name",
    [
        "openvino/openvino_model.bin",
        "coreml/fill-mask/float32_model.mlpackage/Data/com.apple.CoreML/weights/weight.bin",
        "2_Dense/pytorch_model.bin",
    ],
)
def test_weights_of_other_frameworks_are_not_downloaded(hub, name):
    hub.put("alice/many", {**SAFE, "pytorch_model.bin": "p", name: "p"})
    assert file_names(fetch(Repo("alice/many"), allow_patterns=FILES)) == set(SAFE)


def test_index_of_pickled_shards_is_refused(hub):
    """The shards may be in another folder, or in the cache, where another program has put them."""
    files = {"config.json": "{}", "pytorch_model.bin.index.json": "{}", "parts/pytorch_model-00001-of-00001.bin": "p"}
    hub.put("alice/parts", files)
    with pytest.raises(HubError, match=r"weights of alice/parts are pickles \(pytorch_model.bin.index.json\)"):
        fetch(Repo("alice/parts"))
    assert file_names(fetch(Repo("alice/parts"), allow_pickle=True)) == set(files)
    hub.put("alice/both", {**SAFE, **files})
    assert file_names(fetch(Repo("alice/both"))) == {*SAFE, "pytorch_model.bin.index.json"}


def test_python_files_are_refused_unless_trusted(hub):
    hub.put("alice/code", {**SAFE, "modeling_new.py": "import os"})
    hub.put("alice/rows", {"rows.py": "import os", "train.csv": "text\na\n", "vectors.bin": "data"}, type="dataset")
    hub.log.clear()
    with pytest.raises(HubError, match=r"Python files of its own \(modeling_new.py\).*trust_remote_code"):
        fetch(Repo("alice/code"))
    assert not any("/resolve/" in path for _, path in hub.log)
    assert file_names(fetch(Repo("alice/code"), trust_remote_code=True)) == {*SAFE, "modeling_new.py"}
    rows = Repo("alice/rows", type="dataset")
    assert file_names(fetch(rows, trust_remote_code=True)) == {"train.csv", "vectors.bin"}


def test_private_and_gated_repositories_need_access(hub, monkeypatch):
    hub.put("alice/private", SAFE, private=True)
    hub.put("carol/gated", SAFE, gated="manual")
    assert file_names(local_folder("alice/private", "model")) == set(SAFE)
    with pytest.raises(HubError, match=f"carol/gated is gated: ask for access at {hub.url}/carol/gated"):
        local_folder("carol/gated", "model")
    with pytest.raises(HubError, match="no model repository alice/nothing that you may see, and no local path of this name"):
        local_folder("alice/nothing", "model")
    bob = hub.add_user("bob")
    with pytest.raises(HubError, match="no dataset repository alice/private"):
        fetch(Repo("alice/private", type="dataset"), token=bob)
    with pytest.raises(HubError, match="does not accept your token") as error:
        fetch(Repo("carol/other"), token="hf_wrong")
    assert "hf_wrong" not in str(error.value)


def test_cached_snapshot_is_used_without_a_network(hub, sleeps, monkeypatch, caplog):
    hub.put("alice/model", {**SAFE, "pytorch_model.bin": "p"})
    online = fetch(Repo("alice/model"))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    assert fetch(Repo("alice/model")) == online
    with pytest.raises(HubError, match="alice/other.*HF_HUB_OFFLINE is set|HF_HUB_OFFLINE is set.*alice/other"):
        fetch(Repo("alice/other"))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    hub.fail(lambda method, path: True, "reset", times=1000)
    assert fetch(Repo("alice/model")) == online
    with (
        caplog.at_level(logging.WARNING),
        pytest.raises(HubError, match="^There is no local path alice/other, and http.* cannot be reached for the model"),
    ):
        fetch(Repo("alice/other"))


@pytest.mark.parametrize(
    ("reading", "message"),
    [(True, "Access to the model repository a/b was refused"), (False, "Your token may not write to")],
)
def test_refused_access_is_told_by_what_was_done(reading, message):
    response = httpx2.Response(403, request=httpx2.Request("GET", "https://hub.test/a/b"))
    assert message in explain(HfHubHTTPError("no", response=response), Repo("a/b"), reading=reading)
