"""--hub_strategy checkpoint: the files on the branch, resuming from it on another machine, and failing pushes."""

import json
import threading
from pathlib import Path
from types import SimpleNamespace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from datasets import Dataset

from hf_tlm.corpora import load_corpus
from hf_tlm.data import BlockArguments
from hf_tlm.errors import HubError
from hf_tlm.retrieval import retrieve
from hf_tlm.runs import ProtocolError, run_pretraining, run_tlm
from hf_tlm.tasks import load_task
from hf_tlm.training import ModelArguments, PretrainArguments, TlmArguments, publishing
from hf_tlm.training.publishing import CheckpointPushes, Uploads, fetch_run, needed_to_continue
from support import tiny_checkpoints
from support.toys import FAST, TINY_CONFIGS

CONFIG = {"model_type": "bert", **{k: v for k, v in TINY_CONFIGS["bert"].items() if k not in ("vocab_size", "num_labels")}}
SAVING = {**FAST, "save_strategy": "steps", "save_steps": 2, "seeds": [0, 1]}
PUSHING = {"push_to_hub": True, "hub_model_id": "alice/toy", "hub_strategy": "checkpoint"}
BRANCH = "main-checkpoints"
MODEL = {"model_config": CONFIG, "vocab_size": 120}


def go(folder, task, subset, **changes):
    return run_tlm(task, subset, TlmArguments(output_dir=str(folder), **{**SAVING, **changes}), ModelArguments(**MODEL))


@pytest.fixture
def subset(task, corpus):
    return retrieve(task, corpus, top_k=5)


class Killed(Exception):
    pass


def kill_after_saves(monkeypatch, saves):
    """End the run after this many saves; every push is finished before training continues."""
    original, seen = CheckpointPushes.on_save, []

    def on_save(self, *args, **kwargs):
        original(self, *args, **kwargs)
        self.uploads.wait()
        seen.append(self)
        if len(seen) == saves:
            raise Killed

    monkeypatch.setattr(CheckpointPushes, "on_save", on_save)


def without_time(record):
    drop = ("seconds", "price", "environment", "command")
    return json.loads(json.dumps(record), object_hook=lambda d: {k: v for k, v in d.items() if k not in drop})


@pytest.mark.slow
def test_run_resumes_from_the_hub(hub, tmp_path, task, subset, monkeypatch):
    whole = go(tmp_path / "whole", task, subset)
    with monkeypatch.context() as patch:
        kill_after_saves(patch, 7)  # 2 saves of stage 1 and 3 of stage 2 with the first seed, 2 of the second
        with pytest.raises(Killed):
            go(tmp_path / "killed", task, subset, **PUSHING)
    files = hub.files("alice/toy", revision=BRANCH)
    assert {"settings.json", "seed-0/results.json", "seed-0/model/model.safetensors"} <= set(files)
    assert not [name for name in files if name.startswith("seed-0/stage") or "checkpoint-2/" in name]
    assert "seed-1/stage1/checkpoint-4/seal.json" in files and hub.repository("alice/toy").private
    assert not list((tmp_path / "killed").glob(".upload-*"))

    # On another machine: another folder, with access only to the branch.
    continued = go(tmp_path / "elsewhere", task, subset, resume_from_checkpoint=f"alice/toy@{BRANCH}")
    assert without_time(continued.seeds) == without_time(whole.seeds)
    state = json.loads((tmp_path / "elsewhere/seed-1/stage1/trainer_state.json").read_text())
    assert [entry["step"] for entry in state["log_history"] if "train_runtime" in entry] == [4]

    # The same command again has nothing to fetch.
    hub.log.clear()
    go(tmp_path / "elsewhere", task, subset, resume_from_checkpoint=f"alice/toy@{BRANCH}")
    assert not hub.log


def files_that_mention(files, paths):
    """Return the files of a repository that contain one of `paths`."""
    found = set()
    for name, content in files.items():
        if name.endswith(".parquet"):  # Compressed.
            table = pq.read_table(pa.BufferReader(content))
            content = f"{table.to_pylist()} {table.schema.metadata}".encode()
        found |= {name for place in paths if str(place).encode() in content}
    return found


@pytest.mark.slow
def test_published_files_contain_no_local_paths(hub, tmp_path, task, corpus, monkeypatch, caplog):
    """The task, corpus, config and run are local folders; models, checkpoints, a subset and an adapter are published."""
    for name in ("train", "validation", "test"):
        split = getattr(task, name)
        split.to_json(str(tmp_path / "tickets" / f"{name}.jsonl"))
    Dataset.from_list(list(corpus)).to_parquet(str(tmp_path / "texts" / "part.parquet"))
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    here = load_task(str(tmp_path / "tickets"))
    subset = retrieve(here, load_corpus(str(tmp_path / "texts" / "*.parquet")), top_k=5)
    subset.push_to_hub("alice/passages")
    options = {**SAVING, "seeds": [0], "stage2_max_steps": 4, **PUSHING}
    kill_after_saves(monkeypatch, 10**6)  # Every push is waited for.
    args = TlmArguments(output_dir=str(tmp_path / "run"), teacher=["linear"], **options)
    run_tlm(here, subset, args, ModelArguments(model_config=str(tmp_path / "config.json"), vocab_size=120))
    assert "no run writes files of these names" not in caplog.text  # teacher.json, which quotes passages, is not published.
    half = [hub.files("alice/toy", revision=commit) for commit in hub.history("alice/toy", revision=BRANCH)]
    assert any("seed-0/stage2/checkpoint-4/trainer_state.json" in files for files in half)
    published = {f"{number}/{name}": text for number, files in enumerate(half) for name, text in files.items()}
    published |= hub.files("alice/toy") | hub.files("alice/passages", "dataset")
    assert "results.json" in published and any(name.endswith(".parquet") for name in published)

    tuning = {"max_steps": 2, "eval_strategy": "steps", "eval_steps": 2, **PUSHING, "hub_model_id": "alice/tuned"}
    tiny_checkpoints.go(tmp_path / "adapter", "alice/toy", here, {"use_peft": True, "lora_r": 2}, **tuning)
    half = [hub.files("alice/tuned", revision=commit) for commit in hub.history("alice/tuned", revision=BRANCH)]
    assert any(name.endswith("checkpoint-2/adapter_config.json") for files in half for name in files)
    published |= {f"tuned/{number}/{name}": text for number, files in enumerate(half) for name, text in files.items()}
    published |= {f"tuned/{name}": text for name, text in hub.files("alice/tuned").items()}
    assert files_that_mention(published, [tmp_path, Path.cwd(), Path.home()]) == set()


@pytest.mark.slow
def test_pretraining_resumes_from_the_hub(hub, tmp_path, corpus, monkeypatch):
    fast = {name: value for name, value in SAVING.items() if not name.startswith(("rho", "stage2", "seeds"))}

    def pretrain(folder, **changes):
        args = PretrainArguments(output_dir=str(folder), **{**fast, **changes})
        return run_pretraining(corpus, args, ModelArguments(**MODEL), BlockArguments(validation_share=0.2))

    whole = pretrain(tmp_path / "whole")
    with monkeypatch.context() as patch:
        kill_after_saves(patch, 1)
        with pytest.raises(Killed):
            pretrain(tmp_path / "killed", **PUSHING)
    files = hub.files("alice/toy", revision=BRANCH)
    assert {"settings.json", "tokenizer/tokenizer.json", "training/checkpoint-2/seal.json"} <= set(files)
    continued = pretrain(tmp_path / "elsewhere", resume_from_checkpoint=f"alice/toy@{BRANCH}")
    assert without_time(continued.record) == without_time(whole.record)


@pytest.mark.slow
def test_failing_pushes_do_not_stop_training(hub, sleeps, tmp_path, task, caplog):
    hub.fail(lambda method, path: f"/commit/{BRANCH}" in path, 500, times=10**6)
    with pytest.raises(HubError, match=f"none of its .* checkpoints could be pushed to alice/toy@{BRANCH}") as caught:
        go(tmp_path / "out", task, None, rho1=0, seeds=[0], **PUSHING)
    assert f"complete in {tmp_path / 'out'}" in str(caught.value) and ".upload-" not in str(caught.value) + caplog.text
    assert "the run continues" in caplog.text and not list((tmp_path / "out").glob(".upload-*"))
    # The model itself was published.
    assert hub.files("alice/toy")["model.safetensors"] == (tmp_path / "out" / "model.safetensors").read_bytes()


def test_one_successful_push_is_enough(tmp_path):
    args = SimpleNamespace(pushes_checkpoints=True, process_index=0)
    pushes = CheckpointPushes(tmp_path, args)
    pushes.uploads.errors.append(HubError("no"))
    pushes.uploads.succeeded = 1
    pushes.check()


def test_repository_without_a_run_is_refused(hub, tmp_path, task):
    hub.put("alice/toy", {"config.json": "{}"})
    with pytest.raises(ProtocolError, match="alice/toy has no run to continue"):
        go(tmp_path / "out", task, None, rho1=0, resume_from_checkpoint="alice/toy")
    assert not (tmp_path / "out").exists()
    assert fetch_run(SimpleNamespace(resume_from_checkpoint="alice/toy", process_index=1, folder=tmp_path)) is False


def test_fetched_run_with_other_settings_leaves_no_folder(hub, tmp_path, task):
    hub.put("alice/toy", {"settings.json": json.dumps({"arguments": {"rho1": 7}, "model": {}})})
    with pytest.raises(
        ProtocolError,
        match=r"^alice/toy holds a run with other settings \(max_steps: 0 in the folder, 4 .*\). Pass the settings of",
    ):
        go(tmp_path / "out", task, None, rho1=0, resume_from_checkpoint="alice/toy")
    assert not (tmp_path / "out").exists()


def test_only_files_needed_to_resume_are_pushed(tmp_path):
    names = [
        *("settings.json", ".upload-x/settings.json", "runs/events", "seed-0/results.json", "seed-0/model/config.json"),
        *("seed-0/stage1/model/stage.json", "seed-1/stage1/model/stage.json", "seed-1/stage1/checkpoint-4/seal.json"),
        *("seed-1/stage2/nonfinite-step-3/batch.pt", "seed-1/stage2/checkpoint-10/model.safetensors"),
        *(f"seed-1/stage2/checkpoint-{n}/{name}" for n in (2, 4, 6) for name in ("seal.json", "trainer_state.json")),
    ]
    for name in names:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(json.dumps({"best_model_checkpoint": "/elsewhere/checkpoint-2"}))
    found = {path.relative_to(tmp_path).as_posix() for path in needed_to_continue(tmp_path)}
    assert found == {
        *("settings.json", "seed-0/results.json", "seed-0/model/config.json", "seed-1/stage1/model/stage.json"),
        *(f"seed-1/stage2/checkpoint-{n}/{name}" for n in (2, 6) for name in ("seal.json", "trainer_state.json")),
    }


def test_files_are_copied_where_hard_links_fail(tmp_path, monkeypatch):
    def refuse(*args):
        raise OSError("not here")

    monkeypatch.setattr(publishing.os, "link", refuse)
    args = SimpleNamespace(pushes_checkpoints=True, process_index=0)
    pushes, seen = CheckpointPushes(tmp_path, args), []
    pushes.uploads = Uploads(lambda folder: seen.append((folder / "settings.json").read_text()))
    (tmp_path / "settings.json").write_text("{}")
    with pushes:
        pushes.on_save(None, None, None)
    assert seen == ["{}"] and [path.name for path in tmp_path.iterdir()] == ["settings.json"]


def test_newest_waiting_upload_is_next(tmp_path):
    started, resume, seen = threading.Event(), threading.Event(), []

    def upload(folder):
        started.set()
        assert resume.wait(30)
        seen.append(folder.name)
        if folder.name == "0":
            raise ValueError("broken")

    uploads = Uploads(upload)
    for number in range(4):
        (tmp_path / str(number)).mkdir()
        uploads.submit(tmp_path / str(number))
        assert started.wait(30)
    resume.set()
    uploads.wait()
    assert seen == ["0", "3"] and uploads.succeeded == 1 and not list(tmp_path.iterdir())
    assert [str(error) for error in uploads.errors] == ["broken"]
    uploads.wait()
