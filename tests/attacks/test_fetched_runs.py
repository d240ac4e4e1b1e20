"""Runs that others have put on the Hub: which files are fetched, and that none is executed, published or followed."""

import json
import os
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from attacks.hostile import classifier, finetuned, pickled, torch_pickled
from hf_tlm.analysis import AnalysisError, write_report
from hf_tlm.errors import HubError
from hf_tlm.hub import publish_model, repo
from hf_tlm.hub.repo import CODE, FETCHED_FILE, PUBLISHED_FILES, RESUME_FILES, is_foreign, is_ours
from hf_tlm.models import ModelError
from hf_tlm.models.loading import read_weights
from hf_tlm.runs import ProtocolError, predict, run_tlm
from hf_tlm.training import ModelArguments, TlmArguments
from hf_tlm.training.base_trainer import _check_readable
from hf_tlm.training.checkpoints import CheckpointError, checkpoints_in
from hf_tlm.training.publishing import OWN_CODE, CheckpointPushes, _copy, fetch_run
from hf_tlm.utils.seals import SEAL, write_seal
from support.report_runs import tlm_run
from support.toys import FAST, TINY_CONFIGS, make_task

RUN = {"settings.json": "{}", "seed-0/stage1/checkpoint-2/optimizer.pt": "x", "seed-0/results.json": "{}"}
OWN = {f"seed-0/model/{name}": path.read_bytes() for name, path in OWN_CODE.items()}


def fetch(folder, name="mallory/run"):
    fetch_run(SimpleNamespace(resume_from_checkpoint=name, process_index=0, folder=folder, hub_token=None))


def names(folder):
    return {path.relative_to(folder).as_posix() for path in Path(folder).rglob("*") if path.is_file()}


@pytest.mark.parametrize(
    "name",
    [
        *("install.sh", "a.exe", "notes.html", "data.csv", ".bashrc", ".git/config", "seed-0/.hidden.json", "core"),
        *("hf_tlm/__init__.py", "sitecustomize.py", "conftest.py", "seed-0/model/modeling_theirs.py", "setup.py"),
        *("seed-0/model/pickle.pkl", "seed-x/results.json", "deep/settings.json", "seed-0/results.json.exe"),
        *("seed-0/model/config .json", "seed-0/model/conf\x1big.json", "fetched.json", "settings.json/x"),
    ],
)
def test_files_that_no_recipe_writes_are_not_fetched(hub, tmp_path, caplog, name):
    hub.put("mallory/run", {**RUN, name: "x"})
    fetch(tmp_path / "out")
    assert names(tmp_path / "out") == {*RUN, FETCHED_FILE}
    assert "Downloading 3 files of mallory/run, 5 bytes. Skipped" in caplog.text
    assert {path.name for path in tmp_path.iterdir()} <= {"out", "hub-cache"}


@pytest.mark.parametrize(
    "files, bounds, error, expected",
    [
        ({"../../theirs.json": "x"}, {}, HubError, "points outside its folder"),
        ({"seed-0/../../theirs.json": "x"}, {}, HubError, "points outside its folder"),
        ({"C:\\theirs.json": "x"}, {}, HubError, "points outside its folder"),
        (
            {"results.json": "x" * 100},
            {"LARGEST_OTHER": 50},
            HubError,
            "results.json of mallory/run has 100 bytes; at most 50",
        ),
        ({"model.safetensors": "x" * 100}, {"LARGEST_TENSORS": 50}, HubError, "model.safetensors of mallory/run has 100"),
        ({"model.safetensors": "x" * 100}, {"LARGEST_RUN": 50}, HubError, "mallory/run has 105 bytes"),
        ({"seed-0/model/modeling_coco_lm.py": "print()"}, {}, ProtocolError, "differs from the file of this hf_tlm"),
    ],
)
def test_refused_run_leaves_no_files(hub, tmp_path, monkeypatch, files, bounds, error, expected):
    for name, value in bounds.items():
        monkeypatch.setattr(repo, name, value)
    hub.put("mallory/run", {**RUN, **files})
    with pytest.raises(error, match=expected):
        fetch(tmp_path / "out")
    assert {path.name for path in tmp_path.iterdir()} <= {"hub-cache"}


def test_code_files_of_this_package_are_fetched(hub, tmp_path, caplog):
    hub.put("alice/run", {**RUN, **OWN})
    fetch(tmp_path / "out", "alice/run")
    assert {*RUN, *OWN, FETCHED_FILE} == names(tmp_path / "out")
    assert "Downloading" in caplog.text and "Skipped" not in caplog.text
    assert is_foreign(tmp_path / "out/seed-0/stage1/checkpoint-2") and not is_foreign(tmp_path)


def test_links_out_of_a_snapshot_are_not_followed(tmp_path):
    secret, snapshot = tmp_path / "secret.json", tmp_path / "models--a--b" / "snapshots" / "0"
    snapshot.mkdir(parents=True)
    secret.write_text("{}")
    (snapshot / "settings.json").symlink_to(secret)
    with pytest.raises(ProtocolError, match="is not the file of 2 bytes"):
        _copy(snapshot, "settings.json", 2, tmp_path / "copy")
    assert not (tmp_path / "copy").exists()


def test_deepspeed_checkpoint_is_refused(tmp_path):
    """Earlier versions wrote them; the Trainer would resume without the optimizer's state."""
    checkpoint = tmp_path / "checkpoint-2"
    (checkpoint / "global_step2").mkdir(parents=True)
    (checkpoint / "global_step2" / "zero_pp_rank_0_mp_rank_00_optim_states.pt").write_bytes(b"")
    with pytest.raises(CheckpointError, match="checkpoint-2 was saved with DeepSpeed.*another output folder"):
        _check_readable(checkpoint)


@pytest.fixture
def run_and_record(tmp_path):
    """The folder of a run with predictions, and its results."""
    run = tlm_run(tmp_path / "run", make_task(), {0: {0}}, [0.5])
    return run, json.loads((run / "results.json").read_text())


COMMANDS = [
    "train_tlm.py --task mallory/data --subset mallory/subset",
    "train_tlm.py --task=mallory/data@main",
    "train_tlm.py --config {folder}/theirs.yaml",
    "train_tlm.py --config /dev/stdin /dev/zero --task mallory/data",
    "train_tlm.py --task //mallory.example/share --subset //mallory.example/share",
    "train_tlm.py --task https://mallory.example/data --subset hf://datasets/mallory/data",
    "train_tlm.py --task /dev/zero --subset " + "x" * 5000,
    "train_tlm.py --task '' --subset ''",
]


@pytest.mark.parametrize("command", COMMANDS)
def test_report_fetches_nothing_that_the_run_names(hub, run_and_record, tmp_path, command):
    run, record = run_and_record
    (tmp_path / "theirs.yaml").write_text("train_tlm: {task: mallory/data, subset: mallory/subset}\n")
    manifest = {"corpus": {"name": "c"}, "task": {"name": "t"}, "counts": {"union": 1}, "retriever": "random"}
    record |= {"command": command.format(folder=tmp_path), "subset": manifest}
    (run / "results.json").write_text(json.dumps(record))
    page = write_report(run, tmp_path / "report.html").read_text(encoding="utf-8")
    assert not hub.log and "as --task" in page and "as --subsets" in page


def test_report_ignores_local_paths_named_by_a_fetched_run(run_and_record, tmp_path, monkeypatch):
    """Even if the path exists and is the run's; a task given by the user is used."""
    run, record = run_and_record
    task = make_task()
    monkeypatch.setattr("hf_tlm.analysis.report.run_folder.AnalyzedTask.load", lambda self: task)
    (tmp_path / "data").mkdir()
    (run / "results.json").write_text(json.dumps(record | {"command": f"train_tlm.py --task {tmp_path / 'data'}"}))
    assert "as --task" not in write_report(run, tmp_path / "own.html").read_text(encoding="utf-8")
    (run / FETCHED_FILE).write_text("{}")
    page = write_report(run, tmp_path / "foreign.html").read_text(encoding="utf-8")
    assert "as --task" in page and "The run is from the Hub" in page
    assert "as --task" not in write_report(run, tmp_path / "given.html", task=task).read_text(encoding="utf-8")


@pytest.mark.parametrize("place", ["../elsewhere", "/etc", "points/../../elsewhere"])
def test_grid_with_a_point_outside_its_folder_is_refused(run_and_record, tmp_path, place):
    run, record = run_and_record
    (run / "grid.json").write_text(json.dumps({"chosen": {"folder": place}, "points": []}))
    with pytest.raises(AnalysisError, match="lies outside of the run's folder"):
        write_report(run, tmp_path / "report.html")


class Killed(Exception):
    pass


@pytest.fixture
def killed(tmp_path, task, monkeypatch):
    """A run that was killed after its first checkpoint, and a function that starts it again."""

    def start_run():
        args = TlmArguments(
            output_dir=str(tmp_path / "out"), **{**FAST, "rho1": 0, "save_strategy": "steps", "save_steps": 2}
        )
        values = {k: v for k, v in TINY_CONFIGS["bert"].items() if k not in ("vocab_size", "num_labels")}
        return run_tlm(task, None, args, ModelArguments(model_config={"model_type": "bert", **values}, vocab_size=120))

    def kill(*args, **kwargs):
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(CheckpointPushes, "on_save", kill)
        with pytest.raises(Killed):
            start_run()
    ((_, checkpoint),) = checkpoints_in(tmp_path / "out/seed-0/stage1")
    return checkpoint, start_run


def test_checkpoint_with_code_is_refused_without_running_it(killed, tmp_path):
    """The checkpoint is sealed, as its sender could do."""
    checkpoint, start_run = killed
    (checkpoint / "optimizer.pt").write_bytes(torch_pickled(tmp_path / "ran", tmp_path))
    (checkpoint / SEAL).unlink()
    write_seal(checkpoint, step=2, world_size=1, resumable=True)
    with pytest.raises(CheckpointError, match="contains more than tensors: .*open.* None of its code was run") as raised:
        start_run()
    assert "weights_only" not in str(raised.value) and not (tmp_path / "ran").exists()


@pytest.mark.parametrize("make", [lambda ran, folder: pickled(ran), torch_pickled], ids=["pickle", "torch"])
def test_weights_with_code_are_refused_without_running_it(make, tmp_path, tokenizer):
    ran, folder = tmp_path / "ran", classifier(tmp_path / "theirs", tokenizer, finetuned())
    (folder / "model.safetensors").unlink()
    (folder / "pytorch_model.bin").write_bytes(make(ran, tmp_path))
    (tmp_path / "rows.jsonl").write_text('{"text": "x"}\n')
    for read in (
        lambda: read_weights(folder / "pytorch_model.bin", ""),
        lambda: predict(str(folder), str(tmp_path / "rows.jsonl"), use_cpu=True),
    ):
        with pytest.raises(ModelError) as raised:
            read()
        assert "weights_only" not in str(raised.value) and len(str(raised.value)) < 400 and not ran.exists()


def test_pickled_tensors_are_read(tmp_path):
    torch.save({"a": torch.ones(2)}, tmp_path / "x.bin")
    assert read_weights(tmp_path / "x.bin", "")["a"].tolist() == [1, 1]


def test_only_files_that_recipes_write_are_published(hub, tokenizer, tmp_path, caplog):
    folder = classifier(tmp_path / "out", tokenizer, finetuned())
    ours = names(folder)
    for name in ("install.sh", "theirs/config.json", "x.pkl", "optimizer.pt", "predict.py", "fetched.json", ".env"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text("x")
    publish_model(folder, "alice/toy")
    assert set(hub.files("alice/toy")) - {".gitattributes"} == ours
    assert "Not published" in caplog.text and "install.sh" in caplog.text


def test_every_file_of_a_run_is_recognized(killed, tmp_path):
    killed[1]()
    found = names(tmp_path / "out")
    assert len(found) > 20 and [name for name in found if not is_ours(name, (*PUBLISHED_FILES, *RESUME_FILES, *CODE))] == []
    assert json.loads((tmp_path / "out/settings.json").read_text()) and os.path.isdir(tmp_path / "out/seed-0/model")
