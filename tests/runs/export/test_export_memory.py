"""Memory of a process that predicts: what is measured, and exports where it cannot be measured."""

import io
import json
import logging
import sys

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from hf_tlm.runs import export_onnx, onnx_process, price
from hf_tlm.runs.export import export as module


def graph_of(folder, tokenizer, width):
    """Write a graph that embeds 120 tokens in `width` dimensions and outputs the largest number of a batch."""
    path = folder / "onnx/model.onnx"
    path.parent.mkdir(parents=True)
    tokenizer.save_pretrained(folder)
    vectors = onnx.numpy_helper.from_array(np.ones((120, width), np.float32), "vectors")
    graph = helper.make_graph(
        [
            helper.make_node("Gather", ["vectors", "input_ids"], ["found"]),
            helper.make_node("ReduceMax", ["found"], ["logits"], keepdims=0),
        ],
        "graph",
        [helper.make_tensor_value_info("input_ids", TensorProto.INT64, ["batch", "sequence"])],
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, [])],
        [vectors],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10), path)
    return folder


@pytest.fixture
def small(tmp_path, tokenizer):
    return graph_of(tmp_path / "small", tokenizer, 8)


def test_larger_activations_need_more_memory(small, tmp_path, tokenizer):
    """256 tokens with 60,000 dimensions are 61 MB, and the table of 120 tokens is 29 MB."""
    wide = graph_of(tmp_path / "wide", tokenizer, 60_000)
    least = price.onnx_memory(small, "fp32", 128)
    long = price.onnx_memory(wide, "fp32", 128)
    assert 20 < least < long - 60 < 400
    assert price.onnx_memory(wide, "fp32", None) == pytest.approx(long, abs=5), "128 tokens, if the model takes more"


def test_measured_process_imports_only_onnxruntime(small, tmp_path, monkeypatch, caplog):
    (tmp_path / "others").mkdir()
    for name in ("torch", "transformers", "datasets", "hf_tlm"):
        (tmp_path / f"others/{name}.py").write_text("raise SystemExit('it is imported')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "others"))
    assert 20 < price.onnx_memory(small, "fp32", 32) < 400
    (tmp_path / "others/onnxruntime.py").write_text("raise SystemExit('it is imported')")
    with caplog.at_level(logging.INFO):
        assert price.onnx_memory(small, "fp32", 32) is None
    assert "The memory of a prediction of fp32 is not measured: it is imported" in caplog.messages


@pytest.mark.parametrize(
    "program, why",
    [
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", "its process ended with status -9"),
        ("import time; time.sleep(600)", "its process took more than 0.5 seconds"),
        ("", "could not convert string to float: ''"),
    ],
)
def test_failing_or_hanging_process_measures_nothing(small, tmp_path, monkeypatch, caplog, program, why):
    (tmp_path / "program.py").write_text(program)
    monkeypatch.setattr(onnx_process, "__file__", str(tmp_path / "program.py"))
    monkeypatch.setattr(price, "MEMORY_SECONDS", 0.5 if "sleep" in program else 60)
    with caplog.at_level(logging.INFO):
        assert price.onnx_memory(small, "fp32", 32) is None
    assert caplog.messages == [f"The memory of a prediction of fp32 is not measured: {why}"]


def test_systems_without_vmhwm_are_not_measured(monkeypatch):
    monkeypatch.setattr("builtins.open", lambda *args, **options: io.StringIO("VmRSS: 20 kB\n"))
    with pytest.raises(OSError, match="has no VmHWM"):
        onnx_process.peak_megabytes()
    monkeypatch.setattr("builtins.open", lambda *args, **options: io.StringIO("VmPeak: 30 kB\nVmHWM:\t   2000 kB\n"))
    assert onnx_process.peak_megabytes() == 2.048


def test_export_without_a_measurement_is_otherwise_complete(run, graph, tmp_path, monkeypatch):
    monkeypatch.setattr(module, "onnx_memory", price.onnx_memory)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "no-python"))
    made = export_onnx(str(run), tmp_path / "out", dtypes=["fp32"])
    (file,) = json.loads((made.folder / "export.json").read_text())["files"].values()
    assert "memory_megabytes" not in file and set(file["milliseconds"]) == {"32"}
    assert "memory" not in made.to_text() and "MB of memory" not in (made.folder / "README.md").read_text()
