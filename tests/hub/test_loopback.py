"""The loopback Hub works with the real clients: the other tests of the Hub rely on it."""

import os

import datasets
import httpx2
import pytest
from huggingface_hub import CommitOperationAdd, CommitOperationDelete, HfApi, hf_hub_download, snapshot_download
from huggingface_hub.errors import (
    EntryNotFoundError,
    GatedRepoError,
    HfHubHTTPError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)
from transformers import AutoModelForSequenceClassification, BertConfig, BertForSequenceClassification


def test_files_of_every_kind_are_uploaded_and_downloaded(hub):
    api = HfApi()
    url = api.create_repo("alice/things", private=True)
    assert url.startswith(hub.url) and api.repo_info("alice/things").private
    hub.part_size = 1000
    contents = {
        "notes.md": b"text",
        "sub/empty.json": b"",
        "small.safetensors": bytes(100),
        "deep/er/large.safetensors": os.urandom(3500),
    }
    operations = [CommitOperationAdd(path, data) for path, data in contents.items()]
    info = api.create_commit("alice/things", operations, commit_message="first")
    assert hub.files("alice/things") == contents and hub.history("alice/things")[0] == info.oid
    folder = snapshot_download("alice/things")
    for path, data in contents.items():
        with open(os.path.join(folder, path), "rb") as file:
            assert file.read() == data
    assert sum(method == "PUT" for method, _ in hub.log) == 1 + 4  # One object in one piece, one in parts.
    api.create_commit("alice/things", [CommitOperationDelete("sub/", is_folder=True)], commit_message="second")
    assert "sub/empty.json" not in hub.files("alice/things")
    assert [commit.title for commit in api.list_repo_commits("alice/things")] == ["second", "first", "initial commit"]
    # Unchanged content creates no commit.
    again = api.create_commit("alice/things", [CommitOperationAdd("notes.md", b"text")], commit_message="third")
    assert again.oid == hub.history("alice/things")[0] and len(hub.history("alice/things")) == 3


def test_branches_tags_and_pages_of_listings(hub):
    api = HfApi()
    first = hub.put("alice/pages", {f"{n:02d}.txt": str(n) for n in range(10)})
    api.create_tag("alice/pages", tag="v1")
    api.create_branch("alice/pages", branch="next/try")
    api.upload_file(path_or_fileobj=b"new", path_in_repo="00.txt", repo_id="alice/pages", revision="next/try")
    for revision, content in {"main": b"0", "v1": b"0", first: b"0", "next/try": b"new"}.items():
        with open(hf_hub_download("alice/pages", "00.txt", revision=revision), "rb") as file:
            assert file.read() == content
    references = api.list_repo_refs("alice/pages")
    assert {branch.name for branch in references.branches} == {"main", "next/try"}
    assert references.tags[0].target_commit == first
    for create in (lambda: api.create_tag("alice/pages", tag="v1"), lambda: api.create_branch("alice/pages", branch="main")):
        with pytest.raises(HfHubHTTPError) as error:
            create()
        assert error.value.response.status_code == 409
    hub.page_size = 3
    assert len(list(api.list_repo_tree("alice/pages"))) == 11
    assert [info.path for info in api.get_paths_info("alice/pages", ["03.txt", "nothing"])] == ["03.txt"]
    with pytest.raises(RevisionNotFoundError):
        api.model_info("alice/pages", revision="v2")
    with pytest.raises(EntryNotFoundError):
        hf_hub_download("alice/pages", "99.txt")


def test_commit_on_an_outdated_parent_is_refused(hub):
    parent = hub.put("alice/race", {"a": "1"})
    hub.put("alice/race", {"a": "2"})
    with pytest.raises(HfHubHTTPError) as error:
        HfApi().create_commit("alice/race", [CommitOperationAdd("a", b"3")], commit_message="late", parent_commit=parent)
    assert error.value.response.status_code == 412 and hub.files("alice/race") == {"a": b"2"}


def test_permissions_to_see_read_and_write(hub):
    bob, reader = hub.add_user("bob", organisations=("lab",)), hub.add_user("alice", role="read")
    hub.put("alice/private", {"a": "1"}, private=True)
    hub.put("alice/gated", {"a": "1"}, gated="auto")
    for token, error in ((bob, RepositoryNotFoundError), (False, RepositoryNotFoundError), ("hf_wrong", HfHubHTTPError)):
        with pytest.raises(error):
            HfApi(token=token).model_info("alice/private")
    assert HfApi(token=bob).model_info("alice/gated").gated == "auto"
    with pytest.raises(GatedRepoError):
        hf_hub_download("alice/gated", "a", token=bob)
    hub.grant("bob", "alice/gated")
    assert hf_hub_download("alice/gated", "a", token=bob)
    for token, name in ((bob, "alice/gated"), (reader, "alice/private")):
        with pytest.raises(HfHubHTTPError) as error:
            HfApi(token=token).upload_file(path_or_fileobj=b"x", path_in_repo="a", repo_id=name)
        assert error.value.response.status_code == 403
    assert HfApi(token=bob).create_repo("lab/new").repo_id == "lab/new"
    with pytest.raises(HfHubHTTPError):
        HfApi(token=bob).create_repo("alice/new")


@pytest.mark.parametrize(
    "how,error_class,message",
    [
        ("reset", httpx2.TransportError, "disconnect|reset|closed"),
        ("truncate", httpx2.TransportError, "disconnect|reset|closed|[Bb]roken pipe"),
        (500, HfHubHTTPError, "500"),
        (429, HfHubHTTPError, "429"),
    ],
)
def test_faults_are_injected(hub, sleeps, how, error_class, message):
    hub.put("alice/faulty", {"a": "1" * 100})
    hub.fail(1, how)
    assert [file.path for file in HfApi().list_repo_tree("alice/faulty")] == [".gitattributes", "a"]  # tried again
    assert len(hub.log) == 2 and sleeps == [4 if how == 429 else 1]
    hub.fail(lambda method, path: method == "POST", how)
    with pytest.raises(error_class, match=message):
        HfApi().create_branch("alice/faulty", branch="b")
    assert "b" not in hub.repository("alice/faulty").branches
    HfApi().create_branch("alice/faulty", branch="b")  # The fault was injected once.
    assert "b" in hub.repository("alice/faulty").branches and [method for method, _ in hub.log[2:]] == ["POST", "POST"]


def test_lost_response_hides_a_request_that_took_effect(hub):
    hub.put("alice/faulty", {"a": "1"})
    hub.fail(lambda method, path: "/branch/" in path, "lost")
    with pytest.raises(Exception, match="disconnect|reset|closed|Connection"):
        HfApi().create_branch("alice/faulty", branch="b")
    assert "b" in hub.repository("alice/faulty").branches


def test_model_is_pushed_and_loaded(hub):
    sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8, "vocab_size": 20}
    model = BertForSequenceClassification(BertConfig(**sizes))
    model.push_to_hub("alice/tiny")
    assert {"config.json", "model.safetensors"} <= set(hub.files("alice/tiny"))
    loaded = AutoModelForSequenceClassification.from_pretrained("alice/tiny")
    assert all((a == b).all() for a, b in zip(model.parameters(), loaded.parameters(), strict=True))


def test_dataset_is_pushed_and_loaded(hub):
    data = datasets.Dataset.from_dict({"text": ["a", "b", "c"], "label": [0, 1, 0]})
    data.push_to_hub("alice/rows", "small")
    data.select([0]).push_to_hub("alice/rows", "large", private=True)
    assert datasets.load_dataset("alice/rows", "small", split="train")[:] == data[:]
    streamed = datasets.load_dataset("alice/rows", "large", split="train", streaming=True)
    assert list(streamed) == [{"text": "a", "label": 0}]
    assert set(datasets.get_dataset_config_names("alice/rows")) == {"small", "large"}


def test_settings_change_and_references_are_deleted(hub):
    api = HfApi()
    hub.put("alice/model", {"a": "1"})
    api.create_branch("alice/model", branch="next")
    api.create_tag("alice/model", tag="v1")
    api.delete_branch("alice/model", branch="next")
    api.delete_tag("alice/model", tag="v1")
    repository = hub.repository("alice/model")
    assert set(repository.branches) == {"main"} and not repository.tags
    api.update_repo_settings("alice/model", private=True, gated="auto")
    assert api.model_info("alice/model").private and repository.gated == "auto"
    api.delete_repo("alice/model")
    assert not api.repo_exists("alice/model")
