"""Predictions for texts that are given directly: equal to those of a file, for one model, an average, pairs and numbers."""

import json

import pytest
from datasets import Dataset

from hf_tlm.runs import export_onnx, linear_model, predict, predict_texts, predictions_to_text
from hf_tlm.runs.arguments import PredictorArguments
from hf_tlm.tasks import TaskSpec, task_from_datasets
from hf_tlm.training import ArgumentsError
from support.tiny_checkpoints import go, pretrained
from support.toys import make_task

CPU = {"use_cpu": True}
TEXTS = ["the gene binds", "line one\nline two", "cells of the receptor"]


@pytest.fixture(scope="module")
def base(tmp_path_factory, tokenizer):
    return pretrained(tmp_path_factory.mktemp("base") / "base", tokenizer)


@pytest.fixture(scope="module")
def run(base, tmp_path_factory):
    folder = tmp_path_factory.mktemp("run") / "out"
    go(folder, base, make_task(train=12), seeds=[0, 1], max_steps=1)
    return folder


def of_a_file(model, rows, folder, **options):
    Dataset.from_list(rows).to_json(folder / "texts.jsonl")
    path = predict(model, str(folder / "texts.jsonl"), folder / "out.jsonl", **CPU, **options)
    lines = map(json.loads, path.read_text().splitlines())
    return [{name: line[name] for name in ("prediction", "probabilities") if name in line} for line in lines]


@pytest.mark.parametrize("seeds", [1, 2])
def test_texts_have_the_predictions_of_a_file(run, tmp_path, seeds):
    models = [str(run / f"seed-{seed}/model") for seed in range(seeds)]
    assert predict_texts(models, TEXTS, **CPU) == of_a_file(models, [{"text": text} for text in TEXTS], tmp_path)


def test_exported_graph_predicts_texts(run, tmp_path):
    export_onnx(str(run), tmp_path / "export", dtypes=["fp32"])
    found = predict_texts(str(tmp_path / "export"), TEXTS, backend="onnx")
    for one, other in zip(found, predict_texts(str(run), TEXTS, **CPU), strict=True):
        assert one["probabilities"] == pytest.approx(other["probabilities"], abs=1e-5)


def test_texts_of_pairs_take_turns(base, tmp_path):
    rows = [{"premise": f"the gene {i}", "hypothesis": "it binds", "label": "yn"[i % 2]} for i in range(12)]
    spec = TaskSpec("pairs", "-", text_columns=("premise", "hypothesis"))
    task = task_from_datasets(spec, {name: Dataset.from_list(rows) for name in ("train", "validation", "test")})
    go(tmp_path / "run", base, task, max_steps=1)
    pairs = [{"premise": "a gene", "hypothesis": "binds"}, {"premise": "the cells", "hypothesis": "of it"}]
    texts = ["a gene", "binds", "the cells", "of it"]
    predictions = predict_texts(str(tmp_path / "run"), texts, **CPU)
    assert predictions == of_a_file(str(tmp_path / "run"), pairs, tmp_path)
    assert [line for line in predictions_to_text(texts, predictions).splitlines() if line[0] != " "] == texts
    with pytest.raises(ArgumentsError, match="received 3 texts. Pass the second text of each pair"):
        predict_texts(str(tmp_path / "run"), texts[:3], **CPU)


@pytest.mark.parametrize(
    ("texts", "received"),
    [
        ("a text", r"a list of texts; received a str. Give \[text\]"),
        ([], "a list of texts; received none"),
        (None, "a list of texts; received none"),
        (["a", " "], "texts; received a blank one as number 2"),
        ([("a", "b")], "texts; received a tuple as number 1"),
    ],
)
def test_anything_but_texts_is_refused(texts, received):
    with pytest.raises(ArgumentsError, match=f"^texts: expected {received}.$"):
        predict_texts("runs/nix", texts)


def test_model_of_another_kind_is_refused(base, tmp_path):
    rows = [{"tokens": ["the", "gene"], "tags": ["D", "N"]}] * 4
    splits = {name: Dataset.from_list(rows) for name in ("train", "validation", "test")}
    go(tmp_path / "run", base, task_from_datasets(TaskSpec("tags", "-", kind="tagging"), splits), max_steps=1)
    with pytest.raises(ArgumentsError, match="texts are for classification and regression; .*is for tagging. Pass a file"):
        predict_texts(str(tmp_path / "run"), TEXTS, **CPU)


def test_length_is_refused_for_a_linear_model(tmp_path):
    task = make_task(train=12)
    linear_model(task).save(tmp_path, task)
    with pytest.raises(ArgumentsError, match="max_length has no effect: a linear model reads complete texts"):
        predict_texts(str(tmp_path), TEXTS, max_length=8, **CPU)


def test_most_probable_classes_are_shown_first():
    shares = {"a": 0.03, "b": 0.61, "c": 0.05, "d": 0.11, "e": 0.16, "f": 0.04}
    shown = predictions_to_text(["one\ntwo", "x" * 200], [{"prediction": "b", "probabilities": shares}, {"prediction": 2.5}])
    assert shown.splitlines() == [
        *("one two", "   61.0%  b", "   16.0%  e", "   11.0%  d", "    5.0%  c", "    4.0%  f"),
        *(f"{'x' * 100}…", "  2.5"),
    ]


@pytest.mark.parametrize(
    ("given", "error"),
    [
        ({}, "Expected --data, a file to predict on, or --text, texts; received neither"),
        ({"data": __file__, "text": ["a"]}, "received both"),
        ({"text": ["a"], "output": "o.csv"}, "output o.csv has no effect without --data"),
        ({"text": ["a"], "drop_bad_rows": True}, "drop_bad_rows True has no effect without --data"),
        ({"data": f"{__file__[:-4]}.py"}, "does not exist. Did you mean .*test_prediction_texts.py"),
    ],
)
def test_options_that_do_not_fit_are_refused(given, error):
    with pytest.raises(ArgumentsError, match=error):
        PredictorArguments(model_name_or_path=["runs/a"], **given)
