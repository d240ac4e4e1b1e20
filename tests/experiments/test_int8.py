"""Tables of 8-bit models: what is measured and when, what stays unchanged, and what the table shows."""

import json
import logging
import runpy
import shutil
import sys
from pathlib import Path

import pytest
from datasets import Dataset

from hf_tlm.data import train_wordpiece
from hf_tlm.errors import HfTlmError
from hf_tlm.experiments import Arm, ReproductionError, TaskEntry, make_plan, reproduce
from hf_tlm.models import ModelError
from hf_tlm.runs import export_onnx
from hf_tlm.tasks import load_task
from support.tiny_checkpoints import pretrained
from support.toys import FAST, sentences, write_files

ROOT = Path(__file__).resolve().parents[2]
MAKING = sys.modules[reproduce.__module__]
OPTIONS = {"report_to": "none", "disable_tqdm": True, "use_cpu": True, "max_length": 32, "max_steps": 2}
COLUMNS = ["MB int8", "memory MB int8", "ms a text int8", "int8 drop"]


@pytest.fixture(scope="module")
def work(tmp_path_factory):
    """A task, a corpus, the options of the recipes, and a finished table of one run from scratch and one fine-tuned."""
    folder = tmp_path_factory.mktemp("work")
    # 128 positions, so that texts of 128 tokens are timed; one layer, since each takes time to export.
    shape = {"max_position_embeddings": 128, "num_hidden_layers": 1}
    write_files(folder, train=24, held_out=12, **shape)
    train = {**FAST, "model_config": str(folder / "model.json"), "max_steps": 2, "stage2_max_steps": 2, "vocab_size": 120}
    (folder / "options.yaml").write_text(json.dumps({"train_tlm": train, "finetune": OPTIONS}))
    tokenizer = train_wordpiece([row["text"] for row in sentences(40, 7)], 120, max_length=32)
    pretrained(folder / "encoder", tokenizer, **shape)
    reproduce(plan_of(folder, folder / "out"))
    return folder


def plan_of(work, out, arms=("task only", "pretrained"), seeds=(0,), **options):
    return make_plan(
        *([TaskEntry("task")], [Arm.read(arm) for arm in arms], seeds, out),
        **{"files": [str(work / "options.yaml")], "tasks_dir": str(work), "pretrained": str(work / "encoder"), **options},
    )


@pytest.fixture
def finished(work, tmp_path):
    """The plan of a copy of the finished table."""
    shutil.copytree(work / "out", tmp_path / "out")
    return plan_of(work, tmp_path / "out")


def records(plan):
    return {step.arm.name: json.loads(plan.record_file(step).read_text()) for step in plan.trainings}


def cells(table):
    lines = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.to_text().splitlines() if "|" in line]
    return {row["arm"]: row for row in (dict(zip(lines[0], line, strict=True)) for line in lines[2:])}


@pytest.fixture
def priced(monkeypatch):
    """Replace the export; the list of models that would be exported."""
    models = []

    def price(model, task):
        models.append(model.relative_to(model.parents[2]).as_posix())
        times = {"milliseconds": {"32": 0.5, "128": 1.5}, "texts_per_second": {"32": 900.0}}
        measured = {"score": 0.5, "drop": 0.25, **times, "memory_megabytes": 99.5}
        return {"megabytes": 1.25, **measured, "checked_on": "validation"}

    monkeypatch.setattr(MAKING, "int8_price", price)
    monkeypatch.setattr(MAKING, "make_step", lambda plan, step: pytest.fail(f"{step.name} is made again"))
    return models


@pytest.mark.slow
def test_finished_models_are_exported_without_training_again(work, finished, one_registry, tmp_path, monkeypatch):
    before, plain = records(finished), (tmp_path / "out/results.md").read_text()
    assert not any("int8" in record for record in before.values()) and "MB int8" not in plain
    monkeypatch.setattr(MAKING, "make_step", lambda plan, step: pytest.fail(f"{step.name} is made again"))
    table = reproduce(finished, export_int8=True)
    after = records(finished)
    for step in finished.trainings:
        record, folder = after[step.arm.name], finished.folder(step)
        found = record.pop("int8")
        assert record == before[step.arm.name]
        # Equal to a separate export, except for times.
        export = export_onnx(folder, tmp_path / step.arm.name, task=load_task(str(work / "task")), max_drop=100)
        quantized = export.record["files"]["onnx/model_quantized.onnx"]
        assert (found["score"], found["drop"]) == (quantized["score"], quantized["drop"])
        names = ("onnx/model_quantized.onnx", "config.json", "tokenizer.json", "tokenizer_config.json")
        assert found["megabytes"] == round(sum((export.folder / name).stat().st_size for name in names) / 1e6, 3)
        assert set(found["milliseconds"]) == set(found["texts_per_second"]) == {"32", "128"}
        assert 20 < found["memory_megabytes"] < 400
        assert found["checked_on"] == "validation of task" and found["processor"]
        assert [path.name for path in folder.parent.iterdir()] == ["seed-0"], "nothing of the export stays"
        row = cells(table)[step.arm.name]
        shown = [found["megabytes"], found["memory_megabytes"], found["milliseconds"]["128"], found["drop"]]
        assert [row[column] for column in COLUMNS] == [f"{value:.3g}" for value in shown]
    assert list(cells(table)["task only"])[-6:] == ["MB", "ms a text", *COLUMNS]
    page = (tmp_path / "out/results.md").read_text()
    assert "points of the metric that it is below float32 on validation" in page and "Memory is the maximum" in page
    # Repeating the command does nothing.
    monkeypatch.setattr(MAKING, "int8_price", lambda *args: pytest.fail("exported again"))
    assert reproduce(finished, export_int8=True).to_text() == table.to_text()


@pytest.mark.slow
def test_run_is_exported_after_its_training(work, tmp_path, monkeypatch):
    statuses = []
    price = {"megabytes": 1.25, "drop": 0.25, "checked_on": "validation"}

    def exported(model, task):
        (file,) = (tmp_path / "out/runs").glob("*seed-0.json")
        statuses.append(json.loads(file.read_text())["status"])
        return price

    monkeypatch.setattr(MAKING, "int8_price", exported)
    plan = plan_of(work, tmp_path / "out", ["pretrained"])
    table = reproduce(plan, export_int8=True)
    assert statuses == ["finished"], "a kill while it is exported costs no training"
    assert records(plan)["pretrained"]["int8"].items() >= price.items()
    row = cells(table)["pretrained"]
    assert [row[column] for column in ("MB int8", "ms a text int8", "int8 drop")] == ["1.25", "", "0.25"]
    # Older records have no memory either.
    assert "memory MB int8" not in row and "Memory is" not in table.to_text()


def test_baselines_are_not_exported(work, tmp_path, monkeypatch):
    monkeypatch.setattr(MAKING, "int8_price", lambda *args: pytest.fail("exported"))
    plan = plan_of(work, tmp_path / "out", ["majority class"])
    assert "MB int8" not in reproduce(plan, export_int8=True).to_text()


def test_run_whose_model_was_deleted_is_not_exported(finished, priced, caplog):
    scratch, _ = finished.trainings
    for file in finished.folder(scratch).glob("*.safetensors"):
        file.unlink()
    before = records(finished)
    with caplog.at_level(logging.WARNING):
        table = reproduce(finished, export_int8=True)
    assert priced == ["task/pretrained/seed-0"] and records(finished)["task only"] == before["task only"]
    assert [cells(table)["task only"][column] for column in COLUMNS] == ["", "", "", ""]
    assert [cells(table)["pretrained"][column] for column in COLUMNS] == ["1.25", "99.5", "1.5", "0.25"]
    (message,) = [line for line in caplog.messages if "task/task-only/seed-0" in line]
    assert message == f"Not exported, because the models are no longer in {finished.output_dir}: task/task-only/seed-0."


@pytest.mark.parametrize("error", [RuntimeError("no such\n\noperator"), HfTlmError("no such operator")])
def test_run_that_cannot_be_exported_stays_finished(finished, priced, monkeypatch, caplog, error):
    works = MAKING.int8_price

    def fails(model, task):
        if "pretrained" in str(model):
            return works(model, task)
        raise error

    monkeypatch.setattr(MAKING, "int8_price", fails)
    before = records(finished)["task only"]
    with caplog.at_level(logging.WARNING):
        table = reproduce(finished, export_int8=True)
    assert table.failures == [] and "2 of 2 runs are finished." in table.to_text()
    assert records(finished)["task only"] == before and "int8" in records(finished)["pretrained"]
    assert [cells(table)[arm]["MB int8"] for arm in ("task only", "pretrained")] == ["", "1.25"]
    assert caplog.messages.count("task/task-only/seed-0 has no price in 8 bits: no such operator") == 1
    monkeypatch.setattr(MAKING, "int8_price", works)
    assert cells(reproduce(finished, export_int8=True))["task only"]["MB int8"] == "1.25", "the next start tries it again"


def test_run_on_other_data_is_not_exported(work, finished, tmp_path, priced, caplog):
    shutil.copytree(work / "task", tmp_path / "tasks" / "task")
    file = tmp_path / "tasks" / "task" / "validation.jsonl"
    Dataset.from_list([{"text": "other", "label": json.loads(file.read_text().splitlines()[0])["label"]}] * 4).to_json(file)
    with caplog.at_level(logging.WARNING):
        reproduce(plan_of(work, tmp_path / "out", tasks_dir=str(tmp_path / "tasks")), export_int8=True)
    assert priced == [] and "task/task-only/seed-0 has no price in 8 bits: it was trained on other data" in caplog.text


def test_equal_run_of_another_table_is_exported_once(work, finished, priced):
    """Its record may already have the measurements; otherwise the model is in the folder of the first table's run."""
    same = json.dumps({"name": "same", "subset": "none"})
    plan = plan_of(work, finished.output_dir, [same], table_name="second")
    assert cells(reproduce(plan, export_int8=True))["same"]["MB int8"] == "1.25" and priced == ["task/task-only/seed-0"]
    assert not plan.folder(plan.trainings[0]).exists()
    reproduce(finished, export_int8=True)
    third = plan_of(work, finished.output_dir, [same.replace("same", "third")], table_name="third")
    del priced[:]
    assert cells(reproduce(third, export_int8=True))["third"]["MB int8"] == "1.25" and priced == []


def test_export_without_the_extra_is_refused_before_any_work(work, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    steps = []
    monkeypatch.setattr(MAKING, "make_step", lambda plan, step: steps.append(step.name))
    plan = plan_of(work, tmp_path / "out", ["task only"])
    with pytest.raises(ModelError, match=r"Exporting needs the package onnxscript.*\[onnx\]"):
        reproduce(plan, export_int8=True)
    assert steps == [] and not (tmp_path / "out").exists()
    # The option of the recipe is refused alike.
    options = ["--tasks_dir", work, "--tasks", "task", "--arms", "task only", "--output_dir", tmp_path / "out"]
    argv = ["recipes/reproduce.py", "--config", work / "options.yaml", *options, "--export_int8", "true"]
    monkeypatch.setattr(sys, "argv", list(map(str, argv)))
    with pytest.raises(ModelError, match="Exporting needs the package onnxscript"):
        runpy.run_path(str(ROOT / "recipes" / "reproduce.py"), run_name="recipe")["main"]()
    assert steps == [] and not (tmp_path / "out").exists()


def test_export_with_prepare_only_is_refused(work, tmp_path):
    with pytest.raises(ReproductionError, match="--export_int8: with --prepare_only there are no models to export"):
        reproduce(plan_of(work, tmp_path / "out"), prepare_only=True, export_int8=True)
    assert not (tmp_path / "out").exists()


def test_export_in_a_job_of_several_processes_is_refused(work, tmp_path, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(
        ReproductionError, match="--export_int8 needs a single process; this is a job of 2. Remove the option"
    ):
        reproduce(plan_of(work, tmp_path / "out"), export_int8=True)
    assert not (tmp_path / "out").exists()
