"""A push is one commit or none, whatever fails on the way; it loses no other writer's files and never shows the token."""

import logging
import os
import subprocess
import sys
import threading

import httpx2
import huggingface_hub
import pytest

from hf_tlm.errors import HubError
from hf_tlm.hub import check_push, push
from hf_tlm.hub.errors import redacted, with_retries
from hf_tlm.hub.push import Publication, published
from hf_tlm.hub.repo_id import Repo

CONTENT = {
    "README.md": b"# A model\n",
    "config.json": b"{}",
    "model.safetensors": bytes(range(250)) * 10,
    "mlm/config.json": b"{}",
}


@pytest.fixture
def folder(tmp_path):
    """A finished run with files that are published and files that are not."""
    return write_run(tmp_path / "run", CONTENT)


def write_run(folder, files):
    stays = ("seed-0/model/model.safetensors", "checkpoint-3/optimizer.pt", "training_args.bin", ".hidden", "a.tmp")
    stays += ("analysis/report.html", "teacher.json")
    for name, data in {**dict.fromkeys(stays, b"x"), **files}.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)
    return folder


def test_files_of_training_are_not_published(folder):
    inside = ("training/log.json", "stage1/model/config.json", "points/a=1/config.json", "trials/study.db", "runs/events")
    write_run(folder, dict.fromkeys((*inside, "round-2/model.safetensors", ".cache/x"), b"x"))
    assert list(published(folder)) == sorted(CONTENT)


def test_links_to_files_are_followed_and_others_refused(folder, tmp_path):
    """A link to a file is published as the file; broken links and links to folders are refused."""
    (folder / "link.txt").symlink_to(tmp_path / "run" / "config.json")
    assert published(folder)["link.txt"].read_bytes() == b"{}"
    (folder / "checkpoint-9").symlink_to(tmp_path / "run" / "mlm")
    for name, target in {"data": "mlm", "gone": "nowhere", "loop": "loop"}.items():
        (folder / name).symlink_to(folder / target)
        with pytest.raises(HubError, match=f"broken links or links to folders, which cannot be published: {name}. Replace"):
            published(folder)
        (folder / name).unlink()


def test_new_repository_is_private_and_gets_one_commit(hub, folder):
    done = push(folder, "alice/model", message="First")
    assert hub.files("alice/model") == CONTENT and hub.repository("alice/model").private
    assert done.commit == hub.history("alice/model")[0] and len(hub.history("alice/model")) == 2
    assert done.url == f"{hub.url}/alice/model" and sorted(done.pushed) == sorted(CONTENT) and not done.unchanged
    assert hub.repository("alice/model").find("main").title == "First"
    assert "Published alice/model (private) as commit " + done.commit[:12] in done.to_text()


def test_unchanged_content_creates_no_commit(hub, folder):
    push(folder, "alice/model", message="First")
    hub.log.clear()
    done = push(folder, "alice/model", message="Second")
    assert done.commit is None and not done.pushed and len(hub.history("alice/model")) == 2
    assert {method for method, _ in hub.log} == {"GET"} and "already has this content" in done.to_text()


def test_only_changes_are_sent_and_stale_files_deleted(hub, folder):
    hub.put(
        "alice/model",
        {
            "notes.md": "by hand",
            "mlm/model.safetensors": "old",
            "tf/model.h5": "by hand",
            "onnx/model.onnx": "of the old weights",
        },
    )
    push(folder, "alice/model", message="First")
    (folder / "config.json").write_bytes(b'{"a": 1}')
    done = push(folder, "alice/model", message="Second")
    assert done.pushed == ["config.json"] and len(done.unchanged) == 3
    assert set(hub.files("alice/model")) == {*CONTENT, "notes.md", "tf/model.h5"}
    (folder / "mlm" / "config.json").unlink()
    assert push(folder, "alice/model", message="Third", replace=()).commit is None
    assert push(folder, "alice/model", message="Third", replace=("mlm/*",)).deleted == ["mlm/config.json"]


def test_files_of_other_kinds_of_runs_are_deleted_and_scripts_stay(hub, folder):
    gone = {"prompt.json": "answered examples", "grid.json": "{}", "results.md": "old", "mlm/modeling_coco_lm.py": "old"}
    kept = {"notes/helper.py": "by hand", "train.py": "by hand"}
    hub.put("alice/model", {**gone, **kept})
    assert set(push(folder, "alice/model", message="m").deleted) == set(gone)
    assert set(hub.files("alice/model")) == {*CONTENT, *kept}


def test_gitignore_of_the_repository_is_not_applied(hub, folder):
    hub.put("alice/model", {".gitignore": "*.safetensors\nmlm/*\n"})
    push(folder, "alice/model", message="m")
    assert hub.files("alice/model") == {**CONTENT, ".gitignore": b"*.safetensors\nmlm/*\n"}


def test_visibility_is_only_set_for_a_new_repository(hub, folder):
    done = push(folder, "alice/open", message="m", private=False)
    assert not hub.repository("alice/open").private and "Published alice/open (public) as" in done.to_text()
    push(folder, "alice/open", message="m")
    assert not hub.repository("alice/open").private
    with pytest.raises(HubError, match="is public, but a private repository was requested.*Nothing was published"):
        push(folder, "alice/open", message="m", private=True)
    push(folder, "alice/closed", message="m")
    again = push(folder, "alice/closed", message="m", private=False)
    assert hub.repository("alice/closed").private and "alice/closed (private) already has" in again.to_text()


def test_push_to_a_branch_of_a_dataset_repository(hub, tmp_path):
    data = write_run(tmp_path / "data", {"data/train.parquet": b"rows", "README.md": b"card"})
    hub.put("alice/rows", {"README.md": "other", "data/old.parquet": "old", "large/train.parquet": "kept"}, type="dataset")
    done = push(data, "alice/rows", message="m", type="dataset", revision="next")
    assert done.url == f"{hub.url}/datasets/alice/rows/tree/next"
    assert set(hub.files("alice/rows", "dataset", "next")) == {"data/train.parquet", "README.md", "large/train.parquet"}
    assert hub.files("alice/rows", "dataset")["README.md"] == b"other"
    files = {"small/train.parquet": data / "data" / "train.parquet"}
    assert push(data, "alice/rows", message="m", type="dataset", files=files, replace=("small/*",)).pushed == list(files)


def test_tag_is_created_and_never_moved(hub, folder):
    first = push(folder, "alice/model", message="m", tag="v1")
    assert hub.repository("alice/model").tags == {"v1": first.commit}
    assert push(folder, "alice/model", message="m", tag="v1").commit is None
    (folder / "config.json").write_bytes(b"new")
    with pytest.raises(HubError, match="'v1' of alice/model is commit .* Choose another tag. Nothing was published"):
        push(folder, "alice/model", message="m", tag="v1")
    with pytest.raises(HubError, match="no branch 'v1', and only a branch can be published to.*Nothing was published"):
        push(folder, "alice/model", message="m", revision="v1")
    second = push(folder, "alice/model", message="m", tag="v2")
    assert hub.repository("alice/model").tags == {"v1": first.commit, "v2": second.commit}


def test_dry_run_sends_nothing(hub, folder, monkeypatch):
    plan = push(folder, "alice/model", message="m", dry_run=True)
    assert sorted(plan.pushed) == sorted(CONTENT) and plan.commit is None and "nothing was sent" in plan.to_text()
    hub.put("alice/model", {"config.json": "{}", "vocab.txt": "old"})
    before = hub.history("alice/model")
    monkeypatch.delenv("HF_TOKEN")
    plan = push(folder, "alice/model", message="m", dry_run=True)
    assert plan.unchanged == ["config.json"] and plan.deleted == ["vocab.txt"]
    assert hub.history("alice/model") == before and {method for method, _ in hub.log} == {"GET"}


def test_dry_run_describes_repository_files_and_tag(hub, folder):
    (folder / "README.md").write_text("# Mine\n")
    text = push(folder, "alice/model", message="m", private=False, dry_run=True).to_text()
    assert "no such repository that you may see; it would be created as public" in text and text.startswith(
        "README.md:\n\n# Mine\n\nWould"
    )
    assert [line for line in text.splitlines() if line.split() == ["README.md", "7", "bytes"]]
    hub.put("alice/model", {"config.json": "{}"})
    hub.repository("alice/model").private = True
    first = push(folder, "alice/model", message="m", dry_run=True, tag="v1")
    assert first.about == "The repository exists and is private. Tag: v1." and "config.json" not in first.sizes
    assert "branch would be created" in push(folder, "alice/model", message="m", revision="b", dry_run=True).about
    push(folder, "alice/model", message="m", tag="v1")
    (folder / "config.json").write_bytes(b"new")
    with pytest.raises(HubError, match="Choose another tag. Nothing was published"):
        push(folder, "alice/model", message="m", tag="v1", dry_run=True)


@pytest.mark.parametrize("how", [None, "reset", 503])
def test_dry_run_works_without_a_hub(folder, request, monkeypatch, how):
    """Without a network, or if the Hub fails, it reports at once what would be sent to an empty repository."""
    if how is not None:
        hub = request.getfixturevalue("hub")
        hub.put("alice/model", {"config.json": "{}"})
        hub.fail(lambda method, path: True, how, times=99)
    monkeypatch.setattr("hf_tlm.hub.errors.time.sleep", lambda seconds: pytest.fail("waited"))
    monkeypatch.delenv("HF_TOKEN", raising=False)
    plan = push(folder, "alice/model", message="m", tag="v1", dry_run=True)
    assert plan.pushed == sorted(CONTENT) and not plan.deleted + plan.unchanged
    assert "The Hub was not asked" in plan.about and "would be created as private. Tag: v1." in plan.about
    assert plan.sizes == {name: len(data) for name, data in CONTENT.items()}


def requests_of_a_push(hub, folder, **options):
    hub.log.clear()
    push(folder, "alice/model", message="m", **options)
    return len(hub.log)


# The number of requests of a first push to a new branch with a tag (repository, branch, parts of an object), and of a push
# that changes and deletes files. test_number_of_requests_of_a_push checks the numbers.
NEW, CHANGE = 17, 7


def first_push(hub, folder):
    hub.part_size = 1000
    return {"revision": "next", "tag": "v1"}


def later_push(hub, folder):
    hub.put("alice/model", {**CONTENT, "vocab.txt": "old"})
    (folder / "config.json").write_bytes(b"new")
    (folder / "model.safetensors").write_bytes(b"new")
    return {}


@pytest.mark.parametrize("prepare,count", [(first_push, NEW), (later_push, CHANGE)])
def test_number_of_requests_of_a_push(hub, folder, prepare, count):
    assert requests_of_a_push(hub, folder, **prepare(hub, folder)) == count


@pytest.mark.parametrize("how", ["reset", "lost", "truncate", "page", 500, 429])
@pytest.mark.parametrize(
    "prepare,number", [*((first_push, n) for n in range(1, NEW + 1)), *((later_push, n) for n in range(1, CHANGE + 1))]
)
def test_push_survives_a_fault_at_any_request(hub, sleeps, folder, prepare, number, how):
    options = prepare(hub, folder)
    before = len(hub.history("alice/model")) if ("model", "alice/model") in hub.repositories else 1
    hub.log.clear()
    hub.fail(number, how)
    done = push(folder, "alice/model", message="m", **options)
    revision = options.get("revision", "main")
    assert hub.files("alice/model", revision=revision) == {
        path.as_posix(): (folder / path).read_bytes() for path in relative_names(folder)
    }
    history = hub.history("alice/model", revision=revision)
    assert len(history) == before + 1 and done.commit == history[0]  # One commit, even if its response was lost.
    assert "config.json" in done.pushed and sleeps
    if "tag" in options:
        assert hub.repository("alice/model").tags == {"v1": done.commit}


def relative_names(folder):
    return [path.relative_to(folder) for path in published(folder).values()]


@pytest.mark.parametrize("how", ["reset", "lost", "truncate", 500, 429])
@pytest.mark.parametrize(
    "prepare,number", [*((first_push, n) for n in range(1, NEW + 1)), *((later_push, n) for n in range(1, CHANGE + 1))]
)
def test_push_to_a_failing_hub_is_complete_or_has_no_effect(hub, sleeps, folder, prepare, number, how):
    options = prepare(hub, folder)
    exists = ("model", "alice/model") in hub.repositories
    before = hub.files("alice/model") if exists else {}
    hub.log.clear()
    hub.fail(number, how, times=1000)
    with pytest.raises(HubError) as error:
        push(folder, "alice/model", message="m", retries=1, **options)
    hub.faults.clear()
    repository = hub.repositories.get(("model", "alice/model"))
    after = {} if repository is None else hub.files("alice/model", revision=branch_to_check(repository, options))
    complete = {path.as_posix(): (folder / path).read_bytes() for path in relative_names(folder)}
    assert "is intact; run the same command again" in str(error.value)
    if "The files are published as commit" in str(error.value):
        assert after == complete and "without the tag 'v1'" in str(error.value)
    elif "It is not known whether the commit arrived" in str(error.value):
        assert after in (before, complete)
    else:
        assert "Nothing was published" in str(error.value) and after == before
    # Running the same command again completes the push.
    assert push(folder, "alice/model", message="m", **options)
    assert hub.files("alice/model", revision=options.get("revision", "main")) == complete


def branch_to_check(repository, options):
    return options["revision"] if options.get("revision") in repository.branches else "main"


def test_commit_with_a_lost_response_is_recognized(hub, sleeps, folder):
    hub.fail(lambda method, path: "/commit/" in path, "lost")
    done = push(folder, "alice/model", message="m", retries=0)
    assert done.commit == hub.history("alice/model")[0] and done.pushed


def test_waits_double_unless_the_hub_sends_retry_after(hub, sleeps, folder, caplog):
    hub.fail(lambda method, path: path.endswith("/repos/create"), 500, times=4)
    with caplog.at_level(logging.WARNING):
        push(folder, "alice/model", message="m")
    assert sleeps == [1, 2, 4, 8] and caplog.text.count("Trying again in") == 4
    sleeps.clear()
    hub.retry_after = 30
    (folder / "config.json").write_bytes(b"new")
    hub.fail(lambda method, path: "/commit/" in path, 429)
    push(folder, "alice/model", message="m")
    assert sleeps == [30]


@pytest.mark.parametrize("how", [503, "reset"])
@pytest.mark.parametrize("what,seconds", [("PUT", 23), ("/preupload/main", 23), ("/repos/create", 31), ("/commit/main", 31)])
def test_failing_request_is_tried_six_times_in_all(hub, folder, monkeypatch, what, seconds, how):
    """The client itself retries uploads, so push does not; push alone retries the creation of a repository or a commit."""
    clock = [0.0]
    monkeypatch.setattr("time.sleep", lambda wait: clock.__setitem__(0, clock[0] + wait))

    def chosen(method, path):
        return method == what or path.endswith(what)

    hub.fail(chosen, how, times=1000)
    with pytest.raises(HubError, match="Nothing was published"):
        push(folder, "alice/model", message="m")
    assert len([True for method, path in hub.log if chosen(method, path)]) == 6 and clock == [seconds]
    # Shorter outages are survived, also several in a row.
    hub.faults.clear()
    for fails in (chosen, lambda method, path: path.endswith("/repos/create"), lambda method, path: method == "PUT"):
        hub.fail(fails, how, times=2)
    assert push(folder, "alice/model", message="m").commit


def test_long_retry_after_is_respected_five_times(hub, folder, sleeps):
    hub.retry_after = 300
    hub.fail(lambda method, path: method == "PUT", 429, times=1000)
    with pytest.raises(HubError, match="Nothing was published"):
        push(folder, "alice/model", message="m")
    assert sleeps == [301] * 5  # The client sleeps, and adds a second.


def test_long_uploads_are_tried_as_often_as_short_ones(monkeypatch):
    """The duration of a try does not count."""
    clock, tries = [0.0], []
    monkeypatch.setattr("time.sleep", lambda wait: clock.__setitem__(0, clock[0] + wait))
    monkeypatch.setattr("hf_tlm.hub.errors.monotonic", lambda: clock[0])

    def upload():
        tries.append(clock[0])
        clock[0] += 300
        raise httpx2.ConnectError("reset")

    with pytest.raises(HubError, match="It was tried 6 times in 1,831 seconds"):
        with_retries(upload, Repo("alice/model"))
    assert len(tries) == 6


def test_upload_that_hf_xet_has_retried_is_not_retried(hub, folder, monkeypatch, sleeps):
    """hf_xet itself retries while the storage behind the Hub is busy."""
    calls = []

    def storage(*args, **options):
        calls.append(args)
        raise ConnectionError("xet storage is busy")

    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_DISABLE_XET", False)
    monkeypatch.setattr(Publication, "_choose_storage", lambda self: None)
    monkeypatch.setattr("hf_xet.XetSession.new_upload_commit", storage, raising=True)
    with pytest.raises(HubError, match="cannot be reached .*Nothing was published"):
        push(folder, "alice/model", message="m")
    assert len(calls) == 1 and not sleeps


def test_server_without_xet_gets_ordinary_uploads(hub, folder, monkeypatch):
    """The client has hf_xet installed, and no variable disables it."""
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_DISABLE_XET", False)
    push(folder, "alice/model", message="m", retries=0)
    push(folder, "alice/model", message="m", revision="next", retries=0)
    assert hub.files("alice/model")["model.safetensors"] == (folder / "model.safetensors").read_bytes()
    assert len([path for _, path in hub.log if "xet" in path]) == 1


def test_simultaneous_writers_in_threads_lose_no_files(hub, tmp_path, monkeypatch):
    monkeypatch.setattr("hf_tlm.hub.errors.random.uniform", lambda low, high: 0.01)
    hub.put("alice/shared", {"a": "1"})
    folders = [write_run(tmp_path / str(n), {f"{n}.txt": b"x", f"{n}.safetensors": os.urandom(50)}) for n in range(4)]
    start, done = threading.Barrier(4), []

    def work(folder):
        start.wait()
        done.append(push(folder, "alice/shared", message=folder.name, replace=()))

    threads = [threading.Thread(target=work, args=(folder,)) for folder in folders]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert set(hub.files("alice/shared")) == {"a", *(name for folder in folders for name in published(folder))}
    assert {push.commit for push in done} == set(hub.history("alice/shared")[:4])


def test_files_of_a_faster_writer_are_kept(hub, sleeps, folder, monkeypatch):
    """Between the listing and the commit another writer adds a file, and one that would not fit to this model."""
    hub.put("alice/model", {"a": "1"})
    from huggingface_hub import HfApi

    create_commit, added = HfApi.create_commit, []

    def late(self, *args, **options):
        if not added:
            added.append(hub.put("alice/model", {"b": "2", "mlm/model.safetensors": "theirs"}))
        return create_commit(self, *args, **options)

    monkeypatch.setattr(HfApi, "create_commit", late)
    done = push(folder, "alice/model", message="m")
    assert set(hub.files("alice/model")) == {"a", "b", *CONTENT} and done.deleted == ["mlm/model.safetensors"]
    assert hub.history("alice/model")[:2] == [done.commit, added[0]]


def test_two_processes_create_one_repository(hub, tmp_path):
    program = (
        "import sys\n"
        "from hf_tlm.hub import push\n"
        "print(push(sys.argv[1], 'alice/shared', message='m', replace=()).to_text())\n"
    )
    folders = [write_run(tmp_path / str(n), {f"{n}.txt": b"x"}) for n in range(2)]
    runs = [subprocess.Popen([sys.executable, "-c", program, str(folder)], stdout=subprocess.PIPE) for folder in folders]
    assert all(b"Published alice/shared (private)" in run.communicate(timeout=60)[0] for run in runs)
    assert set(hub.files("alice/shared")) == {"0.txt", "1.txt"}


def test_rights_are_checked_before_training(hub, monkeypatch):
    check_push("alice/model")
    check_push("lab/model", token=hub.add_user("bob", organisations=("lab",)))
    for name, text in {
        "carol/model": "belongs to alice, who cannot publish as 'carol'.*under alice",
        "model": "as owner/name",
        "alice/model@main": "as owner/name",
    }.items():
        with pytest.raises(HubError, match=text):
            check_push(name)
    with pytest.raises(HubError, match="is read-only"):
        check_push("alice/model", token=hub.add_user("alice", role="read"))
    monkeypatch.setenv("HF_TOKEN", "hf_expired")
    with pytest.raises(HubError, match="does not accept your token.*hf auth login"):
        check_push("alice/model")
    monkeypatch.delenv("HF_TOKEN")
    with pytest.raises(HubError, match="you must be logged in. Log in with `hf auth login`, or set HF_TOKEN"):
        check_push("alice/model")


def test_push_without_write_access_is_refused(hub, folder, monkeypatch, tmp_path):
    hub.put("carol/model", {"a": "1"})
    hub.put("carol/secret", {"a": "1"}, private=True)
    for name, outcome in {"carol/model": "; carol/model is unchanged. ", "carol/secret": ". ", "carol/new": ". "}.items():
        told = f"Your token may not write to the model repository carol/.*Nothing was published{outcome}{folder} is intact"
        with pytest.raises(HubError, match=told):
            push(folder, name, message="m")
    monkeypatch.delenv("HF_TOKEN")
    with pytest.raises(HubError, match=f"hf auth login.*a token of {hub.url}/settings/tokens"):
        push(folder, "alice/model", message="m")
    with pytest.raises(HubError, match="nothing to publish in"):
        push(tmp_path / "nothing", "alice/model", message="m", token="x")


def test_endpoint_that_is_no_hub_is_refused(hub, folder, sleeps):
    hub.fail(lambda method, path: True, "html", times=1000)
    with pytest.raises(
        HubError, match=f"The response of {hub.url} .* is not that of a Hub.*Check HF_ENDPOINT.*Nothing was published"
    ):
        push(folder, "alice/model", message="m")


def test_push_in_offline_mode_is_refused(hub, folder, sleeps, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(HubError, match="HF_HUB_OFFLINE is set.*Unset it. Nothing was published"):
        push(folder, "alice/model", message="m")
    assert not sleeps


@pytest.mark.parametrize(
    "status,said", [(413, "larger than the model repository"), (422, r"not be used: .* '422 .* injected 422\. Nothing")]
)
def test_http_status_is_explained(hub, folder, status, said):
    hub.fail(lambda method, path: "/commit/" in path, status, times=1000)
    with pytest.raises(HubError, match=said) as error:
        push(folder, "alice/model", message="m")
    assert "developer.mozilla.org" not in str(error.value) and "Nothing was published" in str(error.value)


@pytest.mark.parametrize("token", ["hf_abcdefgh12", "hf_oauth_abcdefgh12", "hf_jwt_abcdefgh.ij-k_l.m", "Bearer secret"])
def test_tokens_are_redacted_in_messages(token):
    assert redacted(ValueError(f"no\n{token} here, in hf_tlm")).endswith("<token> here, in hf_tlm")


def test_token_is_in_no_log_message_or_file(hub, folder, sleeps, caplog, capfd, monkeypatch):
    token = os.environ["HF_TOKEN"]
    texts = []
    with caplog.at_level(logging.DEBUG):
        texts.append(push(folder, "alice/model", message="m").to_text())
        hub.fail(lambda method, path: True, 500, times=1000)
        (folder / "config.json").write_bytes(b"new")
        for call in (
            lambda: push(folder, "alice/model", message="m", token=token),
            lambda: check_push("alice/model", token),
        ):
            with pytest.raises(HubError) as error:
                call()
            texts.append(f"{error.value!r} {error.value.__cause__!r}")
    assert caplog.text and token not in "\n".join([caplog.text, *capfd.readouterr(), *texts])
    assert all(token.encode() not in path.read_bytes() for path in folder.rglob("*") if path.is_file())
