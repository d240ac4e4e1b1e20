"""Prediction with runs of every kind and stock checkpoints; tables keep their columns in every format."""

import csv
import json
import shutil

import numpy as np
import pandas as pd
import pytest
from transformers import (
    AutoConfig,
    AutoModelForMaskedLM,
    AutoModelForQuestionAnswering,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
    pipeline,
    set_seed,
)

from hf_tlm.models import ModelError
from hf_tlm.runs import predict, run_tlm
from hf_tlm.runs.prediction_source import find_source
from hf_tlm.tasks import TaskError, load_task
from hf_tlm.tasks.formats import write_excel
from hf_tlm.training import ArgumentsError, ModelArguments, TlmArguments
from support import prompts
from support.tiny_checkpoints import go, pretrained
from support.toys import TINY_CONFIGS, make_task, sentences

CPU = {"use_cpu": True}


def read_lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def tickets(count=36):
    return [{"nr": f"{i:03}", "Body": row["text"], "queue": row["label"]} for i, row in enumerate(sentences(count))]


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    path = tmp_path_factory.mktemp("table") / "tickets.csv"
    pd.DataFrame(tickets(60)).to_csv(path, index=False, sep=";")
    return path


@pytest.fixture(scope="module")
def tlm(tmp_path_factory, table):
    """A TLM run on a table, with texts truncated to 12 tokens."""
    out = tmp_path_factory.mktemp("tlm") / "out"
    values = {key: value for key, value in TINY_CONFIGS["bert"].items() if key not in ("vocab_size", "num_labels")}
    (out.parent / "model.json").write_text(json.dumps({"model_type": "bert", **values}))
    steps = {
        "rho1": 0,
        "max_steps": 2,
        "stage2_max_steps": 2,
        "stage2_eval_steps": 1,
        "max_length": 12,
        "save_strategy": "no",
    }
    args = TlmArguments(output_dir=str(out), report_to="none", use_cpu=True, disable_tqdm=True, **steps)
    task = load_task(table, text_columns="Body", label_column="queue", validation_share=0.2)
    run_tlm(task, None, args, ModelArguments(model_config=str(out.parent / "model.json"), vocab_size=120))
    return out, task


def test_predictions_equal_those_of_the_run(tlm, table, tmp_path):
    out, task = tlm
    assert json.loads((out / "settings.json").read_text())["held_out"] == {"validation": 0.2, "test": 0.1}
    assert "of the texts of each class were held out" in (out / "README.md").read_text()
    predictions = read_lines(predict(str(out), str(table), tmp_path / "all.jsonl", **CPU))
    assert [line["nr"] for line in predictions] == [f"{i:03}" for i in range(60)]  # Not read as numbers.
    by_text = {line["Body"]: line for line in predictions}
    for split in ("validation", "test"):
        ids = dict(zip(task.splits[split]["id"][:], task.splits[split]["text"][:], strict=True))
        for line in read_lines(out / f"seed-0/predictions/{split}.jsonl"):
            predicted = by_text[ids[line["id"]]]
            assert predicted["prediction"] == line["prediction"] and predicted["queue"] == line["label"]
            assert predicted["probabilities"] == pytest.approx(line["probabilities"], abs=1e-5)
    assert find_source(str(out)).arguments == {"max_length": 12}


def test_older_folder_needs_text_columns_on_the_command_line(tlm, table, tmp_path):
    old = tmp_path / "old"
    shutil.copytree(tlm[0] / "seed-0" / "model", old)
    (old / "finetuned.json").unlink()
    with pytest.raises(
        TaskError, match="no column 'text'; the columns are nr, Body, queue. Choose columns with --text_column"
    ):
        predict(str(old), str(table), tmp_path / "a.jsonl", **CPU)
    first, second = (
        read_lines(predict(str(folder), str(table), tmp_path / "a.jsonl", text_columns="Body", **CPU))
        for folder in (old, tlm[0])
    )
    assert first == second


@pytest.mark.parametrize("name", ["out.csv", "out.tsv", "out.parquet", "out.xlsx", "out.jsonl", "OUT.CSV"])
@pytest.mark.parametrize("given", ["in.csv", "in.tsv", "in.jsonl", "in.parquet", "in.xlsx"])
def test_tables_keep_their_columns_beside_the_predictions(tlm, tmp_path, given, name):
    if "xlsx" in given + name:
        pytest.importorskip("openpyxl")
    rows = [
        {"nr": f"{i:03}", "Body": row["Body"] + ' ;,"x"\tü', "note": None if i % 2 else "=1+1"}
        for i, row in enumerate(tickets(6))
    ]
    frame, path = pd.DataFrame(rows), tmp_path / given
    if given == "in.jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    elif given == "in.parquet":
        frame.to_parquet(path)
    elif given == "in.xlsx":
        with path.open("wb") as stream:
            write_excel(frame.to_dict("list"), stream)
    else:
        frame.to_csv(path, index=False, sep="\t" if given == "in.tsv" else ",")
    out = predict(str(tlm[0]), str(path), tmp_path / name, **CPU)
    classes = ["down", "none", "up"]
    if name == "out.jsonl":
        read = pd.DataFrame(
            [{**line, **{f"probability_{c}": line["probabilities"][c] for c in classes}} for line in read_lines(out)]
        )
        read = read.drop(columns=["id", "probabilities"])
    elif name == "out.parquet":
        read = pd.read_parquet(out)
    elif name == "out.xlsx":
        read = pd.read_excel(out, dtype={"nr": str})
    else:
        read = pd.read_csv(out, sep="\t" if "tsv" in name else ",", dtype={"nr": str})
    assert list(read.columns) == ["nr", "Body", "note", "prediction", *(f"probability_{name}" for name in classes)]
    for column in ("nr", "Body", "note"):
        assert [None if pd.isna(cell) else cell for cell in read[column]] == [row[column] for row in rows]
    shares = read[[f"probability_{name}" for name in classes]].to_numpy(float)
    assert shares.sum(axis=1) == pytest.approx(1, abs=1e-4)
    assert list(read["prediction"]) == [classes[best] for best in np.argmax(shares, axis=1)]


def test_text_file_has_one_text_per_line(tlm, tmp_path):
    (tmp_path / "in.txt").write_text("the gene binds\nthe cell dies\n", encoding="utf-8")
    out = predict(str(tlm[0]), str(tmp_path / "in.txt"), tmp_path / "out.csv", **CPU)
    with out.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["Body"] for row in rows] == ["the gene binds", "the cell dies"]
    out = predict(str(tlm[0]), str(tmp_path / "in.txt"), tmp_path / "out.txt", **CPU)
    assert out.read_text().splitlines() == [row["prediction"] for row in rows]


def test_existing_prediction_columns_are_renamed(tlm, tmp_path):
    once = predict(str(tlm[0]), _csv(tmp_path / "in.csv"), tmp_path / "once.csv", **CPU)
    twice = pd.read_csv(predict(str(tlm[0]), str(once), tmp_path / "twice.csv", **CPU))
    assert list(twice["input_prediction"]) == list(twice["prediction"]) == list(pd.read_csv(once)["prediction"])
    assert len(set(twice.columns)) == len(twice.columns)


def test_bad_rows_are_dropped_from_the_output_table(tlm, tmp_path):
    rows = tickets(5)
    rows[1]["Body"], rows[3]["Body"] = "", "  "
    out = predict(str(tlm[0]), _csv(tmp_path / "in.csv", rows), tmp_path / "out.csv", drop_bad_rows=True, **CPU)
    assert list(pd.read_csv(out, dtype=str)["nr"]) == ["000", "002", "004"]


def test_output_over_the_input_or_the_run_is_refused(tlm, tmp_path):
    data = _csv(tmp_path / "in.csv")
    with pytest.raises(ArgumentsError, match="^Predictions cannot be written to .*it is the file to predict on"):
        predict(str(tlm[0]), data, data, **CPU)
    (tmp_path / "link.csv").symlink_to(data)
    with pytest.raises(ArgumentsError, match="^Predictions cannot be written to .*it is the file to predict on"):
        predict(str(tlm[0]), data, tmp_path / "link.csv", **CPU)
    stock = tmp_path / "stock"
    shutil.copytree(tlm[0] / "seed-0" / "model", stock)
    (stock / "seal.json").unlink(missing_ok=True)
    for name in ("config.json", "tokenizer.json", "model.safetensors"):
        with pytest.raises(ArgumentsError, match="is a file of the run"):
            predict(str(stock), data, stock / name, **CPU)
    with pytest.raises(ArgumentsError, match="must be one of .jsonl, .json, .csv"):
        predict(str(tlm[0]), data, tmp_path / "out.doc", **CPU)
    for _ in range(2):  # The second output replaces the first.
        assert predict(str(stock), data, stock / "out.csv", **CPU).is_file()


def _csv(path, rows=None):
    pd.DataFrame(rows or tickets(6)).to_csv(path, index=False)
    return str(path)


def test_adapter_predicts(tmp_path, tokenizer):
    base = pretrained(tmp_path / "base", tokenizer)
    go(tmp_path / "out", base, make_task(train=12), {"use_peft": True}, max_steps=1)
    rows = [{"text": row["text"]} for row in make_task().test]
    pd.DataFrame(rows).to_csv(tmp_path / "in.csv", index=False)
    found = read_lines(predict(str(tmp_path / "out"), str(tmp_path / "in.csv"), tmp_path / "out.jsonl", **CPU))
    expected = read_lines(tmp_path / "out/seed-0/predictions/test.jsonl")
    for one, other in zip(found, expected, strict=True):
        assert one["probabilities"] == pytest.approx(other["probabilities"], abs=1e-5)


@pytest.mark.parametrize("method", ["prompt", "finetune"])
def test_few_shot_run_predicts(tmp_path, method):
    checkpoint, task = prompts.save(tmp_path / "lm", prompts.wordpiece()), make_task()
    run = prompts.go(tmp_path / "out", task, checkpoint, method=method, splits=2)
    pd.DataFrame([{"text": row["text"]} for row in task.test]).to_csv(tmp_path / "in.csv", index=False)
    found = read_lines(predict(str(tmp_path / "out"), str(tmp_path / "in.csv"), tmp_path / "out.jsonl", **CPU))
    best = max(run.splits, key=lambda record: record["validation"]["macro_f1"])["seed"]
    expected = read_lines(tmp_path / f"out/split-{best}/predictions/test.jsonl")
    for one, other in zip(found, expected, strict=True):
        assert one["probabilities"] == pytest.approx(other["probabilities"], abs=1e-4)
    assert find_source(str(tmp_path / "out")).arguments["max_length"] == 32
    if method == "prompt":
        with pytest.raises(ArgumentsError, match="max_length has no effect: a prompt has the length of its training"):
            predict(str(tmp_path / "out"), str(tmp_path / "in.csv"), tmp_path / "out.jsonl", max_length=8, **CPU)


def stock(folder, tokenizer, auto_class, model_type="bert", **changes):
    set_seed(0)
    config = AutoConfig.for_model(model_type, **{**TINY_CONFIGS[model_type], "vocab_size": len(tokenizer), **changes})
    auto_class.from_config(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder)


@pytest.mark.parametrize("model_type", ["bert", "distilbert", "roberta"])
def test_stock_classifier_predicts_as_the_pipeline(tmp_path, tokenizer, model_type):
    names = {0: "good", 1: "bad", 2: "fine"}
    auto_class = AutoModelForSequenceClassification
    folder = stock(
        tmp_path / "m", tokenizer, auto_class, model_type, id2label=names, label2id={v: k for k, v in names.items()}
    )
    texts = [row["text"] for row in sentences(7)] + ["the gene binds the cell " * 60]
    pd.DataFrame({"text": texts}).to_csv(tmp_path / "in.csv", index=False)
    found = read_lines(predict(folder, str(tmp_path / "in.csv"), tmp_path / "out.jsonl", **CPU))
    source = find_source(folder)
    classify = pipeline("text-classification", model=folder, top_k=None, device="cpu")
    for line, answer in zip(found, classify(texts, truncation=True, max_length=source.arguments["max_length"]), strict=True):
        assert {one["label"]: pytest.approx(one["score"], abs=1e-5) for one in answer} == line["probabilities"]


def test_stock_heads_of_other_tasks_predict(tmp_path, tokenizer):
    tags = stock(tmp_path / "tags", tokenizer, AutoModelForTokenClassification)
    (tmp_path / "words.jsonl").write_text(json.dumps({"tokens": ["the", "gene"]}) + "\n")
    (line,) = read_lines(predict(tags, str(tmp_path / "words.jsonl"), tmp_path / "tags.jsonl", **CPU))
    assert len(line["prediction"]) == 2 and line["tokens"] == ["the", "gene"]
    table = pd.read_csv(predict(tags, str(tmp_path / "words.jsonl"), tmp_path / "tags.csv", **CPU))
    assert json.loads(table["prediction"][0]) == line["prediction"]
    answers = stock(tmp_path / "qa", tokenizer, AutoModelForQuestionAnswering, num_labels=2)
    (tmp_path / "q.jsonl").write_text(json.dumps({"id": "a", "context": "the gene binds", "question": "what binds"}) + "\n")
    assert {"prediction", "probability"} <= set(
        read_lines(predict(answers, str(tmp_path / "q.jsonl"), tmp_path / "a.jsonl", **CPU))[0]
    )
    number = stock(tmp_path / "r", tokenizer, AutoModelForSequenceClassification, num_labels=1)
    (tmp_path / "t.txt").write_text("the gene\n")
    assert isinstance(
        read_lines(predict(number, str(tmp_path / "t.txt"), tmp_path / "r.jsonl", **CPU))[0]["prediction"], float
    )


def test_models_that_cannot_predict_are_refused(tmp_path, tokenizer):
    (tmp_path / "t.txt").write_text("the gene\n")
    cases = {
        stock(tmp_path / "lm", tokenizer, AutoModelForMaskedLM): "has no task head .BertForMaskedLM.*Fine-tune it first",
        stock(
            tmp_path / "multi", tokenizer, AutoModelForSequenceClassification, problem_type="multi_label_classification"
        ): "multi-label., which is not supported",
        str(tmp_path / "multy"): "expected the folder of a finished run, or a Hub id.*Did you mean .*/multi[?]",
    }
    (tmp_path / "begun").mkdir()
    (tmp_path / "begun/settings.json").write_text("{}")
    cases[str(tmp_path / "begun")] = "is an unfinished run"
    for name, message in cases.items():
        with pytest.raises(ModelError, match=message):
            predict(name, str(tmp_path / "t.txt"), tmp_path / "out.csv", **CPU)
    assert not (tmp_path / "out.csv").exists()


def test_missing_head_is_not_replaced_by_a_random_one(tmp_path, tokenizer):
    folder = stock(tmp_path / "lm", tokenizer, AutoModelForMaskedLM)
    config = json.loads((tmp_path / "lm/config.json").read_text())
    (tmp_path / "lm/config.json").write_text(json.dumps({**config, "architectures": ["BertForSequenceClassification"]}))
    (tmp_path / "t.txt").write_text("the gene\n")
    with pytest.raises(ModelError, match="lacks weights"):
        predict(folder, str(tmp_path / "t.txt"), tmp_path / "out.csv", **CPU)
