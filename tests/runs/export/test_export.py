"""Exports: predictions equal torch's, files are complete or absent, the model stays unchanged, and torch is not needed."""

import errno
import json
import logging
import math
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import onnx
import pytest
from datasets import Dataset
from onnx import TensorProto, helper
from transformers import AutoModel, AutoModelForSequenceClassification

from hf_tlm.hub.cards import onnx_card
from hf_tlm.models import ModelError
from hf_tlm.models.onnx_graph import check_plain, half, quantized
from hf_tlm.models.onnx_session import OnnxModel
from hf_tlm.runs import export_onnx, predict
from hf_tlm.runs.export import export as module
from hf_tlm.runs.export import exportable
from hf_tlm.runs.export.exportable import masked_rows
from hf_tlm.tasks import TaskError
from hf_tlm.training import ArgumentsError
from hf_tlm.utils.run_files import ONNX_FILES
from hf_tlm.utils.seals import SealError
from support.tiny_checkpoints import files, pretrained
from support.toys import make_task

ROOT = Path(__file__).resolve().parents[3]
ANY = {"max_drop": 100}


@pytest.fixture
def texts(tmp_path):
    Dataset.from_list([{"text": row["text"]} for row in make_task().test]).to_json(tmp_path / "texts.jsonl")
    return str(tmp_path / "texts.jsonl")


def read_lines(path):
    return [json.loads(line) for line in Path(path).read_text().splitlines()]


@pytest.mark.slow
@pytest.mark.parametrize("make", [quantized, half])
def test_conversion_leaves_logging_and_sys_path_unchanged(exported, make, monkeypatch):
    graph = onnx.load(exported.folder / "onnx/model.onnx")
    for name in [name for name in sys.modules if name.startswith(("onnxruntime.quantization", "onnxruntime.transformers"))]:
        monkeypatch.delitem(sys.modules, name)  # As in a process that exports for the first time.
    monkeypatch.setattr(logging.root, "handlers", [])
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if "onnxruntime" not in entry])
    before = list(sys.path)
    make(graph)
    assert logging.root.handlers == [] and sys.path == before
    assert logging.root.isEnabledFor(logging.WARNING)  # The program's own warnings are also still logged.


def test_export_writes_graphs_record_and_card(exported):
    folder, record = exported.folder, json.loads((exported.folder / "export.json").read_text())
    assert record == exported.record and "taught_by" not in record
    assert {
        "onnx/model.onnx",
        "onnx/model_quantized.onnx",
        "config.json",
        "tokenizer.json",
        "finetuned.json",
        "seal.json",
    } < {*files(folder)}
    assert not any(name.endswith(".safetensors") for name in files(folder))
    full, small = record["files"]["onnx/model.onnx"], record["files"]["onnx/model_quantized.onnx"]
    assert 0 < full["max_difference"] <= 1e-4 and full["drop"] == 0
    assert small["bytes"] < full["bytes"] == (folder / "onnx/model.onnx").stat().st_size
    assert 1e-4 < small["max_difference"] < 1
    to_beat = record["checked_on"].pop("to_beat")
    assert record["checked_on"] == {"texts": 24, "what": "validation of toy", "metric": "macro_f1"}
    assert re.match(r"majority class [\d.]+, linear [\d.]+ \(macro_f1 on validation\)", to_beat)
    assert to_beat in exported.to_text() and to_beat in (folder / "README.md").read_text()
    card = (folder / "README.md").read_text()
    assert f"| {100 * small['score']:.2f} | {max(small['drop'], 0):.2f} |" in card and "24 texts" in card
    assert json.loads((folder / "tokenizer_config.json").read_text())["model_max_length"] == 32
    for file, line in zip((full, small), exported.to_text().splitlines(), strict=False):
        one, batch = file["milliseconds"]["32"], file["texts_per_second"]["32"]
        assert 0 < one and 0 < batch and f"   ms a text of 32 tokens {one:.2g}" in line
        assert f" | {one:.2g} | " in card and f" | {batch:,.0f} | " in card
        memory = file["memory_megabytes"]
        assert 20 < memory < 400 and f"   memory {memory:.0f} MB" in line and f" | {batch:,.0f} | {memory:.0f} | " in card
        del file["memory_megabytes"]  # As written by an earlier version.
    assert "MB of memory" in card and "MB of memory" not in (earlier := onnx_card(record)) and "Memory is" not in earlier
    for file in (full, small):
        del file["milliseconds"], file["texts_per_second"]  # As written by the version before that.
    assert "ms, 32 tokens" in earlier and "ms, 32 tokens" not in onnx_card(record)


def test_graphs_use_only_standard_operators_and_contain_no_paths(exported):
    for name in exported.record["files"]:
        content = (exported.folder / name).read_bytes()
        made = onnx.load_from_string(content)
        onnx.checker.check_model(made)
        assert [(entry.domain, entry.version) for entry in made.opset_import] == [("", 23)]
        assert {node.domain for node in made.graph.node} == {""} and not made.functions
        assert b"site-packages" not in content and str(ROOT).encode() not in content
        shapes = {each.name: [dim.dim_param for dim in each.type.tensor_type.shape.dim] for each in made.graph.input}
        assert shapes == dict.fromkeys(["input_ids", "attention_mask", "token_type_ids"], ["batch", "sequence"])


@pytest.mark.parametrize("options", [{}, {"onnx_dtype": "int8", "num_threads": 1}])
def test_predictions_equal_those_of_torch(run, exported, texts, tmp_path, options):
    by_torch = read_lines(predict(str(run), texts, tmp_path / "torch.jsonl", use_cpu=True))
    by_onnx = read_lines(predict(str(exported.folder), texts, tmp_path / "onnx.jsonl", backend="onnx", **options))
    assert len(by_onnx) == 24
    for row, other in zip(by_onnx, by_torch, strict=True):
        assert row["id"] == other["id"] and row["text"] == other["text"]
        assert row["probabilities"] == pytest.approx(other["probabilities"], abs=0.05 if options else 2e-6)
        assert options or row["prediction"] == other["prediction"]


def test_documented_program_needs_only_onnxruntime_and_tokenizers(exported, run, texts, tmp_path):
    """It runs where torch, transformers and this package cannot be imported."""
    program, _ = re.findall(r"```python\n(.*?)```", (ROOT / "docs/how_to/onnxruntime_without_torch.md").read_text(), re.S)
    assert "exports/reviews" in program
    blocked = "import sys\nfor name in ('torch', 'transformers', 'datasets', 'hf_tlm'): sys.modules[name] = None\n"
    inputs = [line["text"] for line in read_lines(texts)]
    program = program.replace('"exports/reviews"', f"{str(exported.folder)!r}, 'model.onnx'")
    program += f"\nprint(json.dumps(classify({inputs!r})))\nprint(json.dumps(classify([('a gene', 'it binds')])))"
    done = subprocess.run([sys.executable, "-c", blocked + program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    *_, alone, pairs = done.stdout.splitlines()
    expected = read_lines(predict(str(run), texts, tmp_path / "torch.jsonl", use_cpu=True))
    for one, other in zip(json.loads(alone), expected, strict=True):
        assert one == pytest.approx(other["probabilities"], abs=2e-6)
    assert sum(json.loads(pairs)[0].values()) == pytest.approx(1)


@pytest.mark.parametrize("how", ["hf_tlm", "a process without it", "the documentation's program"])
def test_onnxruntime_telemetry_is_disabled(exported, tmp_path, how):
    """Otherwise its wheels queue telemetry in the user's cache from the first session on."""
    graph, words = (str(exported.folder / name) for name in ("onnx/model.onnx", "tokenizer.json"))
    program, _ = re.findall(r"```python\n(.*?)```", (ROOT / "docs/how_to/onnxruntime_without_torch.md").read_text(), re.S)
    command = {
        "hf_tlm": ["-c", f"import hf_tlm, onnxruntime; onnxruntime.InferenceSession({graph!r})"],
        "a process without it": [str(ROOT / "hf_tlm/runs/onnx_process.py"), graph, words, "16"],
        "the documentation's program": [
            "-c",
            program.replace('"exports/reviews"', f"{str(exported.folder)!r}, 'model.onnx'"),
        ],
    }[how]
    environment = {
        name: value for name, value in os.environ.items() if name not in ("ORT_DISABLE_TELEMETRY", "XDG_CACHE_HOME")
    }
    environment |= {"HOME": str(tmp_path), "PYTHONPATH": str(ROOT)}
    subprocess.run([sys.executable, *command], env=environment, input='["a text"]', text=True, check=True)
    assert not [*tmp_path.rglob("Microsoft")]


def test_export_that_loses_too_much_is_refused(run, graph, tmp_path, monkeypatch):
    def wrong(model, **options):
        made = onnx.ModelProto()
        made.CopyFrom(model)
        (head,) = [each for each in made.graph.initializer if each.name.endswith("classifier.weight")]
        head.CopyFrom(onnx.numpy_helper.from_array(-onnx.numpy_helper.to_array(head), head.name))
        return made

    monkeypatch.setattr(module, "quantized", wrong)
    task, rows = make_task(), make_task().validation
    rows.select_columns("text").to_json(tmp_path / "rows.jsonl")
    found = read_lines(predict(str(run), str(tmp_path / "rows.jsonl"), tmp_path / "found.jsonl", use_cpu=True))
    (tmp_path / "found.jsonl").unlink()
    labels = [task.label2id[line["prediction"]] for line in found]  # So that float32 is correct for all.
    task.splits["validation"] = rows.remove_columns("label").add_column("label", labels)
    tries = "Try --keep_float head or --keep_float head embeddings or --dtypes fp32"
    with pytest.raises(
        ModelError, match=rf"int8 loses [\d.]+ points of macro_f1, from 100.00 to .* predictions change.*{tries}"
    ):
        export_onnx(str(run), tmp_path / "out", task=task)
    with pytest.raises(ModelError, match=r"loses [\d.]+ points of agreement.* Try --keep_float head embeddings or"):
        export_onnx(str(run), tmp_path / "out", data=str(tmp_path / "rows.jsonl"), keep_float=["head"])
    monkeypatch.setattr(module, "to_onnx", lambda *args, **options: wrong(graph))
    for task in (make_task(), None):
        with pytest.raises(ModelError, match="its logits differ from torch's by"):
            export_onnx(str(run), tmp_path / "out", task=task, dtypes=["fp32"])
    assert [path.name for path in tmp_path.iterdir()] == ["rows.jsonl"]


def test_quantization_options_change_the_weights(graph):
    def floats(made):
        return sum(np.prod(each.dims) for each in made.graph.initializer if each.data_type == TensorProto.FLOAT)

    plain, whole = quantized(graph), quantized(graph, per_channel=False)
    kept = {part: quantized(graph, keep_float=[part]) for part in ("embeddings", "head")}
    assert len(whole.SerializeToString()) < len(plain.SerializeToString())
    assert floats(kept["embeddings"]) - floats(plain) > 120 * 16 - 10 and floats(kept["head"]) - floats(plain) >= 3 * 16 - 10
    assert floats(half(graph)) < 20


def test_command_writes_a_page(run, graph, texts, tmp_path, runtime, recipe):
    arguments = ["export", "--model_name_or_path", run, "--output_dir", tmp_path / "out", "--data", texts, "--max_drop", 100]
    folder = tmp_path / "a page"
    page = ["--page", folder, "--page_runtime", runtime, "--page_texts", "the gene", "a cell"]
    assert f"page        {folder} (python -m http.server --directory '{folder}')" in recipe(*arguments, *page)
    about = json.loads((folder / "page.json").read_text())
    assert about["texts"] == ["the gene", "a cell"] and about["dtype"] == "q8"
    made = files(folder)
    assert made["vendor/transformers.web.min.js"] == b"transformers.web.min.js"
    assert made["model/onnx/model_quantized.onnx"] == files(tmp_path / "out")["onnx/model_quantized.onnx"]


def test_texts_of_a_named_column_are_used_for_the_check(run, graph, tmp_path, recipe):
    Dataset.from_list([{"body": row["text"]} for row in make_task().test]).to_csv(tmp_path / "new.csv")
    arguments = ["export", "--model_name_or_path", run, "--output_dir", tmp_path / "out", "--data", tmp_path / "new.csv"]
    assert "new.csv (" in recipe(*arguments, "--text_column", "body", "--max_drop", 100)
    with pytest.raises(TaskError, match="text"):
        export_onnx(str(run), tmp_path / "other", data=str(tmp_path / "new.csv"))
    (tmp_path / "pipes.csv").write_text("body|text, and more\n" + "a, b, c|d, e, f\n" * 9)
    arguments[-1] = tmp_path / "pipes.csv"
    options = ("--text_column", "text, and more", "--separator", "|", "--max_drop", 100)
    assert "pipes.csv (9 texts)" in recipe(*arguments, *options)
    with pytest.raises(ArgumentsError, match="separator is that of data, which was not passed"):
        export_onnx(str(run), tmp_path / "other", separator=";", dtypes=["fp32"])
    with pytest.raises(ArgumentsError, match="text_columns are columns of data, which was not passed"):
        export_onnx(str(run), tmp_path / "other", text_columns="body", dtypes=["fp32"])


def test_fp16_export_has_only_the_fp16_graph(run, graph, texts, tmp_path):
    made = export_onnx(str(run), tmp_path / "out", data=texts, dtypes=["fp16"], **ANY)
    assert [*made.record["files"]] == ["onnx/model_fp16.onnx"] and not (made.folder / "onnx/model.onnx").exists()
    assert made.record["files"]["onnx/model_fp16.onnx"]["max_difference"] < 0.01
    with pytest.raises(ModelError, match="has no onnx/model.onnx, which fp32 is read from. It has fp16"):
        predict(str(made.folder), texts, tmp_path / "a.jsonl", backend="onnx")


def test_exporting_again_replaces_the_export(run, graph, texts, tmp_path, monkeypatch):
    memory = iter([100.0, 101.0])
    monkeypatch.setattr(module, "onnx_memory", lambda *args: next(memory))
    first = export_onnx(str(run), tmp_path / "out", dtypes=["fp32"])
    assert first.record["checked_on"] == {"texts": 0, "what": "random tokens"}
    assert "score" not in first.record["files"]["onnx/model.onnx"] and "random tokens" in first.to_text() + str(first.record)
    content = files(tmp_path / "out")
    export_onnx(str(run), tmp_path / "out", dtypes=["fp32"])
    again = files(tmp_path / "out")
    assert again.keys() == content.keys()
    # Measured times and memory differ.
    assert {name for name in again if again[name] != content[name]} <= {"export.json", "README.md", "seal.json"}
    predictions = predict(str(tmp_path / "out"), texts, backend="onnx")
    with pytest.raises(ArgumentsError, match=r"would be deleted with it \(predictions/texts.jsonl\). Move them"):
        export_onnx(str(run), tmp_path / "out", dtypes=["fp32"])
    assert predictions.is_file() and files(tmp_path / "out").keys() == {*content, "predictions/texts.jsonl"}


def test_full_disk_leaves_no_files(run, graph, tmp_path, monkeypatch):
    def full(*args):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(module, "save", full)
    with pytest.raises(ValueError, match="is full"):
        export_onnx(str(run), tmp_path / "out", dtypes=["fp32"])
    assert not [*tmp_path.iterdir()]


def test_exporting_an_export_is_refused(exported, tmp_path):
    with pytest.raises(
        ModelError, match="is itself an export and has no weights. Pass the model from which it was exported"
    ):
        export_onnx(str(exported.folder), tmp_path / "out", dtypes=["fp32"])


def test_invalid_arguments_are_refused_before_any_work(run, tmp_path, tokenizer, monkeypatch):
    def refused(error, match, model=run, output=None, **options):
        with pytest.raises(error, match=match):
            export_onnx(str(model), output or tmp_path / "out", **options)

    refused(ArgumentsError, "int8: expected texts for the check; received none. Pass --task")
    refused(ArgumentsError, "received both", task=make_task(), data="a.txt")
    refused(ArgumentsError, "keep_float apply to int8", dtypes=["fp32"], keep_float=["head"])
    refused(ArgumentsError, "keep_float: expected embeddings or head; received 'body'", data="a.txt", keep_float=["body"])
    refused(ModelError, "dtype: expected one of fp32, int8, fp16; received 'int4'", dtypes=["int4"])
    refused(ArgumentsError, "dtypes: expected one or more of fp32, int8, fp16; received none", dtypes=[])
    only = {"dtypes": ["fp32"]}
    for name, value in (("opset", 17), ("opset", 99), ("max_drop", math.nan), ("max_length", 0), ("batch_size", 0)):
        refused(ArgumentsError, f"--{name}: expected a .*number from .*; received {value}", **only, **{name: value})
        if name != "max_length":
            refused(ArgumentsError, "expected numbers; received None", **only, **{name: None})
    refused(ArgumentsError, "is inside the folder of the model", output=run / "onnx", **only)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/thesis.txt").touch()
    refused(ArgumentsError, "is not empty and contains no export", output=tmp_path / "mine", **only)
    for output in (tmp_path / "mine/thesis.txt", tmp_path / "mine/thesis.txt/a/b"):
        refused(ArgumentsError, "mine/thesis.txt is not a writable folder. Choose another", output=output, **only)
    body = pretrained(tmp_path / "body", tokenizer, auto_class=AutoModel)
    refused(ModelError, "has no task head", model=body, **only)
    damaged = pretrained(tmp_path / "damaged", tokenizer, auto_class=AutoModelForSequenceClassification)
    (damaged / "model.safetensors").write_bytes((damaged / "model.safetensors").read_bytes()[:500])
    refused(
        ModelError,
        "Cannot load the model in .*its weights are truncated or damaged .*Download or create them again",
        model=damaged,
        **only,
    )
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    refused(ModelError, "Exporting needs the package onnxscript, which is not installed", **only)
    assert not (tmp_path / "out").exists()


def test_invalid_page_is_refused_before_any_work(run, tmp_path, monkeypatch):
    monkeypatch.setattr(module, "to_onnx", lambda *args, **options: pytest.fail("The export has begun."))
    out = tmp_path / "exports/out"
    for page in (run / "page", out, out / "page", out.parent):
        with pytest.raises(ArgumentsError, match="overlap: neither may be inside the other"):
            export_onnx(str(run), out, dtypes=["fp32"], page=page)
    (run.parent / "a-file").touch()
    with pytest.raises(ArgumentsError, match="--page .*a-file is not a writable folder"):
        export_onnx(str(run), out, dtypes=["fp32"], page=run.parent / "a-file" / "page")
    with pytest.raises(ArgumentsError, match="lacks .*npm install"):
        export_onnx(str(run), out, dtypes=["fp32"], page=tmp_path / "page", page_runtime=tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ArgumentsError, match="with npm, which is not installed"):
        export_onnx(str(run), out, dtypes=["fp32"], page=tmp_path / "page")
    assert not [*tmp_path.iterdir()]


@pytest.mark.parametrize("dtypes, browser", [("fp32", "fp32"), ("int8", "q8"), ("fp16", "fp16"), ("fp32 int8", "q8")])
def test_commands_of_the_card_match_the_files(exported, dtypes, browser):
    """They name existing files, and are left out where they would not work."""
    (one, *_) = exported.record["files"].values()
    record = {**exported.record, "files": {ONNX_FILES[name]: {**one, "dtype": name} for name in dtypes.split()}}
    card = onnx_card(record)
    assert f'{{ dtype: "{browser}" }}' in card and "library_name: transformers.js" in card
    assert (
        f"In texts with more than {record['max_length']} tokens, transformers.js also drops the closing special token"
        in card
    )
    assert "predict --backend onnx" in card and ("--onnx_dtype" in card) == ("fp32" not in dtypes)
    assert "fp32" in dtypes or f"--onnx_dtype {dtypes} --model" in card
    assert "hf-tlm predict" not in onnx_card({**record, "kind": "fill_mask"})
    for changes in ({"model_type": "cocolm"}, {"kind": "multiple_choice"}):
        other = onnx_card({**record, **changes})
        assert "transformers.js" not in other and "pipeline(" not in other and "predict --backend onnx" in other


def test_card_of_averaged_models(exported):
    """It names them and what is averaged; measurements that a file lacks are blank."""
    (one, *_) = exported.record["files"].values()
    plain = {name: value for name, value in one.items() if name not in ("milliseconds", "texts_per_second")}
    del plain["memory_megabytes"]
    timed = plain | {"milliseconds": {"32": 132.9}, "texts_per_second": {"32": 678}, "memory_megabytes": 99.6}
    record = exported.record | {"models": ["seed-0/model", "me/<b>"], "repo_id": None}
    for both in ({"a.onnx": timed, "b.onnx": plain}, {"b.onnx": plain, "a.onnx": timed}):
        card = onnx_card(record | {"files": both})
        assert "| `a.onnx` | 133 | 678 | 100 | \n" in card and "| `b.onnx` |  |  |  | \n" in card
    assert "whose probabilities are averaged" in card and "The models are `seed-0/model`, `me/<b>`." in card
    card = onnx_card(record | {"kind": "regression"})
    assert "whose values are averaged" in card and "probabilities" not in card
    assert "The models are" not in onnx_card(exported.record)


def test_teachers_are_on_the_card(run, graph, tmp_path):
    """For the run's model and for a seed's."""
    taught = shutil.copytree(run, tmp_path / "run")
    one = {"name": "me/<b>", "revision": "0f", "license": "mit", "digest": "1"}
    teacher = {"model": "me/<b>", "teachers": [one], "earlier": [{"model": "linear", "flops": 0, "seconds": 2}]}
    path = taught / "results.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"teacher": teacher}))
    for number, model in enumerate((taught, taught / "seed-0" / "model")):
        made = export_onnx(str(model), tmp_path / f"out-{number}", dtypes=["fp32"])
        assert [link["model"] for link in made.record["taught_by"]] == ["me/<b>", "linear"]
        card = (made.folder / "README.md").read_text()
        assert (
            "of the teacher `me/<b>`. `me/<b>` at revision `0f`: licence `mit`. That teacher was taught by `linear`." in card
        )


@pytest.mark.parametrize("threads", [0, -1, 1.5])
def test_invalid_number_of_threads_is_refused(exported, threads):
    with pytest.raises(ModelError, match="num_threads"):
        OnnxModel(exported.folder, num_threads=threads)


def test_task_with_other_classes_is_refused(run, graph, tmp_path):
    task = make_task()
    with pytest.raises(ModelError, match="The model has the classes down, none, up; the classes of toy are a, b, c"):
        export_onnx(str(run), tmp_path / "out", task=type(task)(task.spec, task.splits, ("a", "b", "c")))


def test_damaged_export_does_not_predict(exported, texts, tmp_path):
    folder = tmp_path / "copy"
    (folder / "onnx").mkdir(parents=True)
    for name, content in files(exported.folder).items():
        (folder / name).write_bytes(content)
    (folder / "onnx/model.onnx").write_bytes(b"\0" + (folder / "onnx/model.onnx").read_bytes()[1:])
    with pytest.raises(SealError):
        predict(str(folder), texts, tmp_path / "a.jsonl", backend="onnx")
    (folder / "seal.json").unlink()
    with pytest.raises(ModelError, match="onnxruntime cannot load"):
        predict(str(folder), texts, tmp_path / "a.jsonl", backend="onnx")


def test_exported_max_length_is_used_for_predictions(run, exported, graph, texts, tmp_path):
    made = export_onnx(str(run), tmp_path / "out", dtypes=["fp32"], max_length=5)
    assert json.loads((made.folder / "finetuned.json").read_text())["arguments"]["max_length"] == 5
    assert (exported.folder / "finetuned.json").read_bytes() == (run / "finetuned.json").read_bytes()
    predictions = read_lines(predict(str(made.folder), texts, tmp_path / "short.jsonl", backend="onnx"))
    by_torch = read_lines(predict(str(run), texts, tmp_path / "torch.jsonl", use_cpu=True, max_length=5))
    for one, other in zip(predictions, by_torch, strict=True):
        assert one["probabilities"] == pytest.approx(other["probabilities"], abs=2e-6)
    with pytest.raises(ModelError, match=r"max_length 4,?000 is more than the \d+ positions of .*Set --max_length"):
        export_onnx(str(run), tmp_path / "long", dtypes=["fp32"], max_length=4000)
    for folder, backend in ((run, "torch"), (made.folder, "onnx")):  # The error came with the first longer text.
        with pytest.raises(ModelError, match=r"max_length 41 is more than the 40 positions of .*Set --max_length"):
            predict(str(folder), texts, tmp_path / "long.jsonl", backend=backend, max_length=41)


def test_default_output_folder(tmp_path):
    for name in ("runs/reviews/mlm", "runs/reviews/training/checkpoint-500", "runs/plain"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "runs/reviews/settings.json").touch()
    names = {"reviews": "", "reviews-mlm": "mlm", "reviews-training-checkpoint-500": "training/checkpoint-500"}
    for name, inner in [*((name, f"reviews/{inner}") for name, inner in names.items()), ("plain", "plain")]:
        model = tmp_path / "runs" / inner
        output_dir = module._choose_output_folder([str(model)], [SimpleNamespace(folder=model)], None)
        assert output_dir == tmp_path / f"runs/{name}-onnx"


def test_nan_differences_and_scores_are_refused(run, graph, texts, tmp_path, monkeypatch):
    nan, one = np.array([np.nan]), np.array([1.0])
    for outputs in ((one, nan), (nan, one)):
        assert np.isnan(exportable._max_difference(outputs, (one, one)))
    apart = iter([0.0, np.nan, 0.0, 0.0])
    with monkeypatch.context() as patch:
        patch.setattr(exportable, "_max_difference", lambda *args: next(apart))
        with pytest.raises(ModelError, match="differ from torch's by nan"):
            export_onnx(str(run), tmp_path / "out", dtypes=["fp32"])
    scores = iter([1.0, 1.0, np.nan])
    monkeypatch.setattr(exportable.TextCheck, "compute_score", lambda *args: next(scores))
    with pytest.raises(ModelError, match="int8 loses nan points"):
        export_onnx(str(run), tmp_path / "out", data=texts)


def test_regression_tolerance_follows_float32_precision():
    """For house prices the last digit of float32 is larger than 1e-4."""
    prices, rounded = (np.array([[250_000.0], [3.0]], dtype=np.float32) for _ in range(2))
    rounded[0] = np.nextafter(rounded[0], np.inf)
    assert exportable._check_agreement(rounded, prices, "regression") == pytest.approx(1 / 64)
    for kind, found in (("classification", rounded), ("regression", prices * 1.0001)):
        with pytest.raises(ModelError, match="is not equivalent to the model"):
            exportable._check_agreement(found, prices, kind)


def test_texts_too_short_for_masking_are_refused(tokenizer):
    assert masked_rows(["the gene binds it"], tokenizer, 32).num_rows == 1
    with pytest.raises(ArgumentsError, match="none has the 4 tokens"):
        masked_rows(["the gene", "a cell"], tokenizer, 32)


@pytest.mark.parametrize(
    "changes", [{"auto_map": {"AutoConfig": "code.Config"}, "model_type": "own"}, {"model_type": "nonesuch"}]
)
def test_config_with_custom_code_is_refused(exported, texts, tmp_path, monkeypatch, changes):
    folder = tmp_path / "copy"
    for name, content in files(exported.folder).items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    (folder / "seal.json").unlink()
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | changes))
    monkeypatch.setattr("builtins.input", lambda *args: pytest.fail("asked whether to run code"))
    with pytest.raises(ModelError, match="Cannot load the config in"):
        predict(str(folder), texts, tmp_path / "a.jsonl", backend="onnx")


def test_graph_with_external_data_is_refused(tmp_path):
    (tmp_path / "secret").write_bytes(np.ones(4, np.float32).tobytes())
    weight = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[4], data_location=TensorProto.EXTERNAL)
    weight.external_data.add(key="location", value="../../secret")
    graph = helper.make_graph(
        [helper.make_node("Identity", ["w"], ["logits"])],
        "graph",
        [helper.make_tensor_value_info("input_ids", TensorProto.INT64, ["batch", "sequence"])],
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, [4])],
        [weight],
    )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
    (tmp_path / "export/onnx").mkdir(parents=True)
    (tmp_path / "export/onnx/model.onnx").write_bytes(made.SerializeToString())
    with pytest.raises(ModelError, match="onnxruntime cannot load"):
        OnnxModel(tmp_path / "export")
    with pytest.raises(ModelError, match="w in another file"):
        check_plain(made)


class _FixedCheck(exportable.TextCheck):
    """A check of so many predictions of which `changed` change and `lost` (net) become wrong."""

    def __init__(self, answers, changed, lost, kind="classification"):
        self.model = SimpleNamespace(kind_name=kind)
        self.predictions, self.reference = [{"prediction": "a"}] * answers, np.zeros(1)
        self.metric, self.score, self.changed, self.lost = "accuracy", 0.9, changed, lost

    def outputs(self, of):
        return self.reference

    def decode(self, outputs):
        return [{"prediction": "b"}] * self.changed + self.predictions[self.changed :]

    def compute_score(self, predictions):
        return self.score - self.lost / len(self.predictions)


def test_one_lost_prediction_is_accepted_if_worth_more_than_max_drop(caplog):
    int8 = {"per_channel": True, "keep_float": ()}
    measured = _FixedCheck(65, changed=3, lost=1).measure(None, "int8", 0.5, int8)
    assert (measured["changed"], round(measured["drop"], 2)) == (3, 1.54)
    assert "loses 1.54 points of accuracy, more than --max_drop 0.5, but is kept: one answer of 65" in caplog.text
    assert _FixedCheck(65, changed=1, lost=1.2).measure(None, "int8", 0.5, int8)["changed"] == 1  # As macro F1 may lose.
    caplog.clear()
    assert _FixedCheck(1000, changed=9, lost=5).measure(None, "int8", 0.5, int8)["changed"] == 9
    assert not caplog.text
    for check, message in (
        (
            _FixedCheck(65, changed=2, lost=2),
            r"2 of 65 predictions change\), more than --max_drop 0.5 and 1.54 .one answer of 65.",
        ),
        (_FixedCheck(1000, changed=9, lost=6), r"9 of 1,000 predictions change\), more than --max_drop 0.5\. Try"),
        (_FixedCheck(65, changed=65, lost=1, kind="regression"), r"90.00 to 88.46, more than --max_drop 0.5\. Try"),
        (_FixedCheck(65, changed=0, lost=math.nan), "loses nan points"),
    ):
        with pytest.raises(ModelError, match=message):
            check.measure(None, "int8", 0.5, int8)
