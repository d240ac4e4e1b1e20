"""Runs with `export_int8`: what is measured of which model, where it is shown, and what a failed export leaves."""

import html
import json
import logging
import sys

import pytest

from hf_tlm.analysis.report.page import report_page
from hf_tlm.analysis.report.run_folder import read_run
from hf_tlm.errors import ArgumentsError, ModelError
from hf_tlm.runs import export_onnx, run_tlm
from hf_tlm.runs.export import export as module
from hf_tlm.runs.finetuning import CheckpointArguments, FinetuneArguments
from hf_tlm.runs.grid import run_grid
from hf_tlm.runs.grid_points import Grid
from hf_tlm.runs.price import int8_line
from hf_tlm.training import ModelArguments, ScoreModelArguments, TlmArguments
from support.tiny_checkpoints import FAST as QUICK
from support.tiny_checkpoints import files, go, pretrained
from support.toys import FAST, TINY_CONFIGS, make_task

PRICE = {"megabytes": 1.76, "milliseconds": {"32": 0.18}, "texts_per_second": {"32": 7082.4}, "memory_megabytes": 71.2}
PRICE |= {"score": 0.8012, "drop": 0.11, "checked_on": "validation of toy"}


@pytest.fixture
def base(tmp_path, tokenizer):
    return pretrained(tmp_path / "base", tokenizer, num_hidden_layers=1)


@pytest.mark.slow
def test_best_model_is_measured_and_shown(base, tmp_path):
    task, options = make_task(train=24), {"max_steps": 3, "seeds": [0, 1]}
    before = go(tmp_path / "out", base, task, **options)
    assert "int8" not in before.details and "8 bits" not in before.to_text() + (tmp_path / "out/README.md").read_text()
    models = files(tmp_path / "out/seed-0/model") | files(tmp_path / "out/seed-1/model")
    run = go(tmp_path / "out", base, task, **options, export_int8=True)
    assert files(tmp_path / "out/seed-0/model") | files(tmp_path / "out/seed-1/model") == models
    found = run.details["int8"]
    assert json.loads((tmp_path / "out/results.json").read_text())["int8"] == found
    # Equal to a separate export of the run's model, except for times.
    export = export_onnx(tmp_path / "out", tmp_path / "onnx", task=task, max_drop=100)
    file = export.record["files"]["onnx/model_quantized.onnx"]
    assert (found["score"], found["drop"]) == (file["score"], file["drop"])
    assert found["megabytes"] > file["bytes"] / 1e6 and "32" in found["milliseconds"]
    line = int8_line(found, task.metric)
    assert f"in 8 bits    {line}" in run.to_text()
    assert (
        f"in 8 bits (`hf-tlm export`), the model with configuration and tokenizer is {found['megabytes']:.3g} MB"
        in (tmp_path / "out/README.md").read_text()
    )
    assert line in html.unescape(report_page(read_run(tmp_path / "out")))


def test_line_has_cost_and_loss():
    assert int8_line(PRICE, "macro_f1") == (
        "1.76 MB; 0.18 ms for a text of 32 tokens, on one core (onnxruntime, int8); in batches 7,082 texts of 32 tokens per "
        "second; 71 MB of memory; macro_f1 80.12 (-0.11) on validation of toy"
    )
    assert int8_line({"megabytes": 1.76, "checked_on": "random tokens"}, "macro_f1") == "1.76 MB"


def test_only_the_best_round_is_exported(tmp_path, monkeypatch, tokenizer):
    exported = []
    monkeypatch.setattr(module, "int8_price", lambda model, task: exported.append(model) or PRICE)
    tokenizer.save_pretrained(tmp_path / "tokenizer")
    (tmp_path / "model.json").write_text(json.dumps({"model_type": "bert", **TINY_CONFIGS["bert"]}))
    options = {**FAST, "rho1": 0, "max_steps": 2, "stage2_max_steps": 2, "teacher": "self", "teacher_rounds": 2}
    model_args = ModelArguments(model_config=str(tmp_path / "model.json"), tokenizer_name=str(tmp_path / "tokenizer"))
    run = run_tlm(make_task(), None, TlmArguments(str(tmp_path / "out"), **options, export_int8=True), model_args)
    assert exported == [tmp_path / f"out/round-{run.details['round']}/seed-0/model"]
    assert run.details["int8"] == PRICE and "in 8 bits    1.76 MB" in run.to_text()
    assert not any("int8" in json.loads(file.read_text()) for file in tmp_path.glob("out/round-*/results.json"))


def test_model_that_cannot_be_exported_stays_finished(base, tmp_path, monkeypatch, caplog):
    def fails(*args, **options):
        raise RuntimeError("no such\noperator")

    monkeypatch.setattr(module, "to_onnx", fails)
    with caplog.at_level(logging.WARNING):
        run = go(tmp_path / "out", base, max_steps=2, export_int8=True)
    assert "int8" not in run.details and (tmp_path / "out/results.json").is_file()
    assert "The cost of a prediction in 8 bits is not measured: no such operator" in caplog.messages


def test_extra_is_checked_before_the_work(monkeypatch):
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    for arguments in (FinetuneArguments, TlmArguments):
        with pytest.raises(ModelError, match="Install the extra \\[onnx\\]"):
            arguments("unused", export_int8=True)


def test_score_models_are_not_exported():
    with pytest.raises(ArgumentsError, match="export_int8 measures a model that predicts"):
        ScoreModelArguments(export_int8=True)


def test_only_the_chosen_point_of_a_grid_is_exported(base, tmp_path, monkeypatch):
    """Also where the option is added to the command of a finished grid."""
    exported = []
    monkeypatch.setattr(module, "int8_price", lambda model, task: exported.append(model) or PRICE)
    for export_int8 in (False, True, True):
        args = FinetuneArguments(**{**QUICK, "output_dir": str(tmp_path / "out"), "export_int8": export_int8})
        checkpoint, grid = CheckpointArguments(model_name_or_path=str(base)), Grid({"learning_rate": [1e-2, 1e-3]})
        run = run_grid(make_task(train=24), checkpoint, args, grid)
    assert exported == [tmp_path / "out" / run.record["chosen"]["folder"] / "seed-0/model"]
    assert json.loads((tmp_path / "out/results.json").read_text())["int8"] == PRICE
    assert "in 8 bits    1.76 MB" in run.to_text() and "1.76 MB" in (tmp_path / "out/README.md").read_text()
