"""A tiny run and its export, created once: torch takes seconds per graph."""

import hashlib

import onnx
import pytest

from hf_tlm.runs import export_onnx
from hf_tlm.runs.export import export as module
from hf_tlm.runs.export import page
from support.tiny_checkpoints import files, go, pretrained
from support.toys import make_task


@pytest.fixture(scope="package")
def run(tmp_path_factory, tokenizer):
    folder = tmp_path_factory.mktemp("run")
    base = pretrained(folder / "base", tokenizer, num_hidden_layers=1)
    go(folder / "out", base, make_task(train=24), max_steps=3)
    return folder / "out"


@pytest.fixture(scope="package")
def exported(run, tmp_path_factory):
    before = files(run)
    made = export_onnx(str(run), tmp_path_factory.mktemp("export") / "out", task=make_task(), max_drop=100)
    assert files(run) == before
    return made


@pytest.fixture(autouse=True)
def no_memory(monkeypatch, one_registry):
    """Do not measure memory, which takes a process and a second per graph: only `exported` measures it."""
    monkeypatch.setattr(module, "onnx_memory", lambda *args: None)


@pytest.fixture
def graph(exported, monkeypatch):
    """Return the exported graph again, without the time to create it."""
    made = onnx.load(exported.folder / "onnx/model.onnx")
    monkeypatch.setattr(module, "to_onnx", lambda *args, **options: made)
    return made


@pytest.fixture
def runtime(tmp_path, monkeypatch):
    """Return a folder as npm writes it, with other files in place of transformers.js and onnxruntime-web."""
    for package, names in page.RUNTIME.items():
        place = tmp_path / "npm/node_modules" / package.rpartition("@")[0] / "dist"
        place.mkdir(parents=True)
        for name in names:
            (place / name).write_text(name)
            monkeypatch.setitem(names, name, hashlib.sha256(name.encode()).hexdigest())
    return tmp_path / "npm"
