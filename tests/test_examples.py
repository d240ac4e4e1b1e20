"""Every example runs at a tiny scale in an empty folder; its inline metadata for uv names this package."""

import json
import re
import runpy
import sys
import tomllib
from pathlib import Path

import pytest

from support.launching import TINY
from support.toys import FAST, write_files

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"
SCRIPTS = sorted(EXAMPLES.glob("*.py"))
NOTEBOOK = EXAMPLES / "retrieve_train_look.ipynb"


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """A folder with `task`, `corpus.parquet`, the subset `bm25` and the finished run `model`."""
    from hf_tlm import ModelArguments, TlmArguments, load_corpus, load_task, retrieve, run_tlm

    folder = tmp_path_factory.mktemp("data")
    write_files(folder)
    task = load_task(str(folder / "task"))
    subset = retrieve(task, load_corpus(str(folder / "corpus.parquet")), top_k=4)
    subset.save(folder / "bm25")
    args = TlmArguments(output_dir=str(folder / "model"), **FAST)
    run_tlm(task, subset, args, ModelArguments(model_config=str(folder / "model.json"), vocab_size=120))
    return folder


@pytest.fixture
def example(data, tmp_path, monkeypatch, capsys):
    """Return a function that runs a script of examples/ in an empty folder and returns what it printed."""
    monkeypatch.chdir(tmp_path)

    def run(name, *arguments):
        monkeypatch.setattr(sys, "argv", [name, *map(str, arguments)])
        runpy.run_path(str(EXAMPLES / name), run_name="__main__")
        return capsys.readouterr().out

    return run


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_inline_metadata_names_the_package_and_its_source(script):
    """The metadata are those of PEP 723, whose source for uv is the clone around the script."""
    source = script.read_text(encoding="utf-8")
    (block,) = re.findall(r"^# /// script\n((?:#(?: .*)?\n)+?)# ///$", source, flags=re.MULTILINE)
    metadata = tomllib.loads("".join(line.removeprefix("#").removeprefix(" ") for line in block.splitlines(keepends=True)))
    assert metadata["dependencies"] == ["hf-tlm"] and metadata["requires-python"] == ">=3.11"
    assert (EXAMPLES / metadata["tool"]["uv"]["sources"]["hf-tlm"]["path"] / "setup.py").is_file()
    assert len(source.splitlines()) <= 120


def test_readme_lists_every_example():
    table = (EXAMPLES / "README.md").read_text(encoding="utf-8")
    assert sorted(re.findall(r"^\| \[(\S+)\]\(\1\)", table, flags=re.MULTILINE)) == sorted(
        path.name for path in (*SCRIPTS, NOTEBOOK)
    )


@pytest.mark.slow
def test_own_model_and_loss_example_trains_and_saves(example, data, tmp_path):
    from safetensors.torch import load_file

    out = example("own_model_and_loss.py", "--task", data / "task", "--corpus", data / "corpus.parquet", "--max_steps", 4)
    assert re.search(r"^validation 0\.\d+$", out, flags=re.MULTILINE) and re.search(
        r"^test 0\.\d+$", out, flags=re.MULTILINE
    )
    assert load_file(tmp_path / "own_model" / "model.safetensors")["classifier.weight"].shape == (3, 128)


def test_influence_example_keeps_a_quarter_of_the_texts(example, data, tmp_path):
    files = ["--task", data / "task", "--texts", data / "corpus.parquet"]
    assert "15 of 60 texts" in example("influence_on_own_classifier.py", "--model", data / "model", *files, "--keep", 0.25)
    lines = (tmp_path / "influential.jsonl").read_text(encoding="utf-8").splitlines()
    assert len(lines) == 15 and set(json.loads(lines[0])) == {"text", "influence"}


def test_retrieval_example_finds_passages_and_reuses_the_index(example, data, tmp_path):
    arguments = ["--corpus", data / "corpus.parquet", "--top_k", 2, "enzyme", "drug tumor"]
    out = example("retrieval_as_a_library.py", *arguments)
    hits = [line for line in out.splitlines() if line.startswith("  ")]
    assert len(hits) == 4 and "enzyme" in hits[0] and ("drug" in hits[2] or "tumor" in hits[2])
    assert example("retrieval_as_a_library.py", *arguments) == out and (tmp_path / "bm25_index").is_dir()


def test_hub_round_trip_example_publishes_subset_and_model(example, data, hub):
    out = example("hub_round_trip.py", "--subset", data / "bm25", "--model", data / "model", "--user", "alice")
    assert "passages, the best: the " in out and "BertForMaskedLM" in out
    card = hub.files("alice/tlm-example")["README.md"].decode()
    assert "alice/tlm-example-subset" in card


@pytest.mark.slow
def test_notebook_has_no_outputs_and_runs(data, tmp_path, monkeypatch, capsys):
    """Run the code cells in order in one session, and set what the cell tagged `parameters` sets, as papermill does."""
    book = json.loads(NOTEBOOK.read_text(encoding="utf-8"))
    assert book["nbformat"] == 4 and NOTEBOOK.stat().st_size < 20_000
    cells = [cell for cell in book["cells"] if cell["cell_type"] == "code"]
    assert not [cell for cell in cells if cell["outputs"] or cell["execution_count"]]
    monkeypatch.chdir(tmp_path)
    names = {"__name__": "__main__"}
    for cell in cells:
        exec(compile("".join(cell["source"]), f"cell {cell['id']}", "exec"), names)
        if "parameters" in cell["metadata"].get("tags", ()):
            names |= {"task_path": str(data / "task"), "corpus_path": str(data / "corpus.parquet")}
            names["options"] += [*TINY, "--model_config", str(data / "model.json")]
    out = capsys.readouterr().out
    assert "linear" in out and "retrieved: the " in out and "notebook_report.html" in out
    assert (tmp_path / "notebook_run" / "results.json").is_file() and (tmp_path / "notebook_report.html").is_file()
