"""Predictions for unlabelled data: equal to those of the run, in every format, and all or nothing."""

import csv
import datetime
import decimal
import importlib
import io
import json
import random
from collections import Counter
from functools import partial

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
import torch
from datasets import Dataset
from transformers import set_seed

from hf_tlm.runs import FinetuneArguments, PredictArguments, check_predictable, predict, predict_after
from hf_tlm.runs.prediction_files import PredictionFile, glue_task, glue_value
from hf_tlm.tasks import TaskError, TaskSpec
from hf_tlm.training import ArgumentsError
from support.tiny_checkpoints import go, pretrained
from support.toys import make_task

CPU = {"use_cpu": True}


@pytest.fixture(scope="module")
def run(tmp_path_factory, tokenizer):
    folder = tmp_path_factory.mktemp("run")
    base = pretrained(folder / "base", tokenizer)
    go(folder / "out", base, make_task(train=12), max_steps=1)
    return folder / "out"


@pytest.fixture
def unlabelled_file(tmp_path):
    rows = [{"id": row["id"], "text": row["text"]} for row in make_task().test]
    Dataset.from_list(rows).to_json(tmp_path / "texts.jsonl")
    return tmp_path / "texts.jsonl"


def read_lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_predictions_equal_those_of_the_run(run, unlabelled_file, tmp_path, monkeypatch):
    # In chunks of 10 rows.

    module = importlib.import_module("hf_tlm.runs.prediction")
    original = module.unlabelled_chunks
    monkeypatch.setattr(module, "unlabelled_chunks", lambda *args, **options: original(*args, chunk=10, **options))
    path = predict(str(run), str(unlabelled_file), tmp_path / "out.jsonl", **CPU)
    found, expected = read_lines(path), read_lines(run / "seed-0/predictions/test.jsonl")
    assert len(found) == 24
    for one, other in zip(found, expected, strict=True):
        assert "label" not in one and (one["id"], one["prediction"]) == (other["id"], other["prediction"])
        assert one["probabilities"] == pytest.approx(other["probabilities"], abs=1e-5)
    assert predict(str(run), str(unlabelled_file), **CPU) == run / "predictions" / "texts.jsonl"


def test_progress_bar_ends_with_the_share_of_each_class(run, unlabelled_file, tmp_path, capsys):
    path = predict(str(run), str(unlabelled_file), tmp_path / "out.jsonl", **CPU)
    counts = Counter(one["prediction"] for one in read_lines(path)).most_common()
    shares = ", ".join(f"{name} {count / 24:.0%}" for name, count in counts)
    assert shares in capsys.readouterr().err.replace("\r", "\n").splitlines()[-1]


def test_random_states_are_unchanged(run, unlabelled_file, tmp_path):
    drawn = []
    for predicts in (False, True):
        set_seed(5)
        if predicts:
            predict(str(run), str(unlabelled_file), tmp_path / "out.jsonl", **CPU)
        drawn.append((random.random(), np.random.rand(), torch.rand(1).item()))
    assert drawn[0] == drawn[1]


def test_failing_prediction_leaves_no_file(run, tmp_path):
    rows = [{"text": "the gene binds"}, {"text": " "}]
    Dataset.from_list(rows).to_json(tmp_path / "texts.jsonl")
    with pytest.raises(ValueError, match="blank text"):
        predict(str(run), str(tmp_path / "texts.jsonl"), tmp_path / "out.jsonl", **CPU)
    assert [path.name for path in tmp_path.iterdir()] == ["texts.jsonl"]
    predict(str(run), str(tmp_path / "texts.jsonl"), tmp_path / "out.jsonl", drop_bad_rows=True, **CPU)
    assert [line["id"] for line in read_lines(tmp_path / "out.jsonl")] == ["0"]


@pytest.mark.parametrize("written", "^,\t")
def test_separator_of_the_task_also_reads_data_with_another(run, tmp_path, task, written):
    """After a training whose table has a separator that is not detected."""
    (tmp_path / "in.csv").write_text(f"number{written}text\n007{written}the gene\n")
    predicting = PredictArguments(predict=str(tmp_path / "in.csv"), predict_output=str(tmp_path / "out.jsonl"))
    check_predictable(task, predicting, str(tmp_path / "run"), separator="^")
    args = FinetuneArguments(output_dir=str(run), use_cpu=True)
    (line,) = read_lines(predict_after(args, predicting, separator="^"))
    assert (line["number"], line["text"]) == ("007", "the gene")


def test_unwritable_output_is_refused_before_models_load(run, unlabelled_file, tmp_path, monkeypatch):
    module = importlib.import_module("hf_tlm.runs.prediction")
    monkeypatch.setattr(module, "open_predictor", lambda *_, **__: pytest.fail("A model is loaded."))
    (tmp_path / "file").touch()
    with pytest.raises(ValueError, match="Predictions go to .*out.csv: .*file is not a writable folder"):
        predict(str(run), str(unlabelled_file), tmp_path / "file" / "out.csv", **CPU)


def test_unwritable_output_is_refused_before_training(unlabelled_file, tmp_path, task):
    (tmp_path / "file").touch()
    predicting = PredictArguments(predict=str(unlabelled_file), predict_output=str(tmp_path / "file" / "out.csv"))
    with pytest.raises(ValueError, match="predict_output .*out.csv: .*file is not a writable folder"):
        check_predictable(task, predicting, str(tmp_path / "run"))
    predicting.predict_output = None
    check_predictable(task, predicting, str(tmp_path / "run"))


def test_unsupported_models_formats_and_outputs_are_refused(run, unlabelled_file, tmp_path):
    with pytest.raises(ValueError, match="contains no model to predict with"):
        predict(str(tmp_path), str(unlabelled_file), **CPU)
    with pytest.raises(ValueError, match="predict_format glue supports the tasks of GLUE"):
        predict(str(run), str(unlabelled_file), predict_format="glue", **CPU)
    with pytest.raises(ValueError, match="predict_format squad is for question answering"):
        predict(str(run), str(unlabelled_file), predict_format="squad", **CPU)
    with pytest.raises(ValueError, match="predict_format must be one of"):
        predict(str(run), str(unlabelled_file), predict_format="xml", **CPU)
    with pytest.raises(ValueError, match="Predictions are written to a file, but .* is a folder"):
        predict(str(run), str(unlabelled_file), tmp_path, **CPU)


@pytest.mark.parametrize(
    "name,prediction,value",
    [
        ("cola", "acceptable", 1),
        ("glue_cola", "0", "0"),
        ("mnli_mm", "contradiction", "contradiction"),
        ("mnli", "1", "neutral"),
        ("glue/rte", "1", "not_entailment"),
        ("glue-mnli-mm", "0", "entailment"),
        ("stsb", 5.6, "5.000"),
        ("stsb", 2.34567, "2.346"),
        ("sst2", "negative", 0),
    ],
)
def test_glue_values(name, prediction, value):
    assert glue_value(glue_task(name), prediction) == value


def test_glue_file(tmp_path):
    rows = Dataset.from_dict({"id": ["a", "b"]})
    with PredictionFile(tmp_path, "glue", TaskSpec(name="glue_rte", path="")) as file:
        file.add(rows, [{"prediction": "entailment"}, {"prediction": "not_entailment"}])
        file.add(rows.select([0]), [{"prediction": "entailment"}])
        assert not (tmp_path / "RTE.tsv").exists()
    assert (tmp_path / "RTE.tsv").read_text() == ("index\tprediction\n0\tentailment\n1\tnot_entailment\n2\tentailment\n")


def write_table(folder, name, rows):
    """Write a table in the format of the file name."""
    path = folder / name
    found = Dataset.from_list(rows)
    {
        ".jsonl": found.to_json,
        ".csv": partial(found.to_csv, sep=";" if "semicolons" in name else ","),
        ".tsv": partial(found.to_csv, sep="\t"),
        ".parquet": found.to_parquet,
        ".xlsx": lambda path: found.to_pandas().to_excel(path, index=False),
    }[path.suffix](path)
    return path


@pytest.mark.parametrize("name", ["a.jsonl", "a.csv", "semicolons.csv", "a.tsv", "a.parquet", "a.xlsx"])
def test_table_without_predictions_is_not_overwritten(tmp_path, name):
    """Its labels would be lost; earlier predictions may be overwritten."""
    spec, rows = TaskSpec(name="reviews", path=""), [{"text": "good, or; so", "label": "a"}, {"text": "bad", "label": "b"}]
    path = write_table(tmp_path, name, rows)
    before = path.read_bytes()
    with pytest.raises(
        ArgumentsError, match="it is a table with the columns text, label, and would be lost. Choose another"
    ):
        PredictionFile(path, None, spec)
    assert path.read_bytes() == before
    path.unlink()
    write_table(tmp_path, name, [{"text": row["text"], "prediction": row["label"]} for row in rows])
    for _ in range(2):  # It may overwrite its own output too.
        with PredictionFile(path, None, spec) as file:
            file.add(Dataset.from_list([{"id": 1}]), [{"prediction": "a", "probabilities": {"a": 1.0}}], {"text": ["good"]})
    path.write_bytes(b"")
    PredictionFile(path, None, spec)
    path.write_bytes(bytes(range(256)))
    with pytest.raises(ArgumentsError, match="it is not a readable table, and would be lost"):
        PredictionFile(path, None, spec)


def test_overwritten_files_are_logged(tmp_path, caplog):
    """Text files may be anything; tables with another suffix and GLUE files are recognised as predictions."""
    (tmp_path / "a.txt").write_text("mine\n")
    PredictionFile(tmp_path / "a.txt", None, TaskSpec(name="reviews", path=""))
    assert "a.txt exists and will be replaced" in caplog.text
    (tmp_path / "a.csv").write_text('{"id": 1, "prediction": "a"}\n')
    PredictionFile(tmp_path / "a.csv", None, TaskSpec(name="reviews", path=""))
    for _ in range(2):
        with PredictionFile(tmp_path, "glue", TaskSpec(name="glue_rte", path="")) as file:
            file.add(Dataset.from_list([{"id": 1}]), [{"prediction": "entailment"}])
    (tmp_path / "RTE.tsv").write_text("index\tlabel\n")
    with pytest.raises(ArgumentsError, match="columns index, label, and would be lost"):
        PredictionFile(tmp_path, "glue", TaskSpec(name="glue_rte", path=""))


def test_rows_may_not_be_left_out_of_a_glue_file(tmp_path):
    """Its rows have the numbers of the data's."""
    check = importlib.import_module("hf_tlm.runs.prediction")._check_all_rows
    file = PredictionFile(tmp_path, "glue", TaskSpec(name="glue_rte", path=""))
    with pytest.raises(ArgumentsError, match="glue needs a prediction for every row, and drop_bad_rows leaves rows out"):
        check(file, True)
    check(file, False)
    check(PredictionFile(tmp_path / "a.csv", None, REVIEWS), True)


REVIEWS = TaskSpec(name="reviews", path="")
ROWS = Dataset.from_list([{"id": "0"}, {"id": "1"}])


def test_line_feeds_in_predictions_keep_one_line_a_row(tmp_path):
    with PredictionFile(tmp_path / "a.txt", None, REVIEWS) as file:
        file.add(ROWS, [{"prediction": "two\nlines"}, {"prediction": ""}])
    assert (tmp_path / "a.txt").read_text() == "two lines\n\n"


def test_more_rows_than_a_sheet_has_are_refused_when_they_come(tmp_path, monkeypatch):
    monkeypatch.setattr("hf_tlm.tasks.formats._MAX_ROWS", 4)
    with pytest.raises(TaskError, match="An Excel sheet has at most 4 rows; received 5"):
        with PredictionFile(tmp_path / "a.xlsx", None, REVIEWS) as file:
            file.add(ROWS, [{"prediction": "a"}] * 2)
            file.add(ROWS, [{"prediction": "b"}] * 2)
    assert not list(tmp_path.iterdir())


def test_failure_at_the_end_leaves_no_file(tmp_path, monkeypatch):
    monkeypatch.setattr(pq, "write_table", lambda *arguments: 1 / 0)
    with pytest.raises(ZeroDivisionError), PredictionFile(tmp_path / "a.parquet", None, REVIEWS) as file:
        file.add(ROWS, [{"prediction": "a"}] * 2)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("content", [b"hello\n", b"\x1f\x8b"])
def test_damaged_compressed_input_is_one_sentence(tmp_path, content):
    (tmp_path / "bad.csv.gz").write_bytes(content)
    with pytest.raises(TaskError, match="Cannot read .*bad.csv.gz"):
        PredictionFile(tmp_path / "out.csv", None, REVIEWS, like=tmp_path / "bad.csv.gz")


def test_table_below_blank_lines_is_not_overwritten(tmp_path):
    (tmp_path / "a.csv").write_text("\n \ntext,label\na,b\n")
    with pytest.raises(ArgumentsError, match="it is a table with the columns text, label, and would be lost"):
        PredictionFile(tmp_path / "a.csv", None, REVIEWS)


def test_late_new_column_is_refused_in_csv_and_kept_in_jsonl(tmp_path):
    rows = Dataset.from_dict({"id": ["0"]})

    def write(name):
        with PredictionFile(tmp_path / name, None, TaskSpec(name="reviews", path="")) as file:
            file.add(rows, [{"prediction": "good"}], {"text": ["one"]})
            file.add(rows, [{"prediction": "bad"}], {"text": ["two"], "more": [3]})

    with pytest.raises(
        ValueError, match=r"after row 1 the input has the new columns more, .* Choose a \.jsonl or \.parquet file"
    ):
        write("out.csv")
    assert not (tmp_path / "out.csv").exists()
    write("out.jsonl")
    assert [line.get("more") for line in read_lines(tmp_path / "out.jsonl")] == [None, 3]


def write_and_read(path, *sources):
    """Write predictions in one chunk per source, with its columns of the input, and return the file's columns."""
    with PredictionFile(path, None, TaskSpec(name="reviews", path="")) as file:
        for source in sources:
            found = {"prediction": "good", "probabilities": {"bad": 0.25, "good": 0.75}}
            count = len(next(iter(source.values())))
            file.add(Dataset.from_dict({"id": ["0"] * count}), [found] * count, source)
    if path.suffix in (".csv", ".tsv"):
        return pd.read_csv(path, dtype=str, keep_default_na=False, sep="," if path.suffix == ".csv" else "\t").to_dict(
            "list"
        )
    if path.suffix == ".xlsx":
        pytest.importorskip("openpyxl")
        return pd.read_excel(path, keep_default_na=False).to_dict("list")
    return pq.read_table(path).to_pydict()


@pytest.mark.parametrize("name", ["out.csv", "out.xlsx", "out.parquet"])
def test_repeated_prediction_columns_get_distinct_names(tmp_path, name):
    source = {"prediction": ["second"], "input_prediction": ["first"], "text": ["one"]}
    read = write_and_read(tmp_path / name, source)
    assert read["input_input_prediction"] == ["second"] and read["input_prediction"] == ["first"]
    assert read["prediction"] == ["good"] and read["text"] == ["one"]


@pytest.mark.parametrize("name", ["out.xlsx", "out.parquet"])
def test_column_of_mixed_types_becomes_text(tmp_path, name):
    within = write_and_read(tmp_path / name, {"x": [1, "n/a"], "y": [2, 3]})
    between = write_and_read(tmp_path / name, {"x": [1], "y": [2]}, {"x": ["n/a"], "y": [3]})
    assert within == between
    assert within["x"] == ["1", "n/a"] and within["y"] == [2, 3] and within["probability_bad"] == [0.25, 0.25]


def test_excel_and_csv_keep_the_values_of_the_input(tmp_path):
    zone = datetime.timezone(datetime.timedelta(hours=2))
    given = {
        "when": [datetime.datetime(2020, 1, 31, 12, tzinfo=zone)],
        "for": [datetime.timedelta(hours=1)],
        "price": [decimal.Decimal("1.50")],
        "error": ["#N/A"],
        "list": [["a", 1]],
        "tweet": [1234567890123456789],
    }
    read = write_and_read(tmp_path / "out.xlsx", given)
    assert read["tweet"] == given["tweet"]  # A cell with a number would be 1234567890123457024, and in Excel end in 50000.
    late = write_and_read(tmp_path / "late.xlsx", {"tweet": [1, None]}, {"tweet": [1234567890123456789]})
    assert list(map(str, late["tweet"])) == ["1", "", "1234567890123456789"]
    assert read["when"] == ["2020-01-31 12:00:00+02:00"] and read["for"] == ["1:00:00"] and read["list"] == ['["a", 1]']
    assert read["price"] == [1.5] and read["error"] == ["#N/A"]
    read = write_and_read(tmp_path / "out.csv", given)
    assert read["when"] == ["2020-01-31 12:00:00+02:00"] and read["for"] == ["1:00:00"] and read["list"] == ['["a", 1]']
    assert read["price"] == ["1.50"] and read["error"] == ["#N/A"]


@pytest.mark.parametrize("name", ["out.csv", "out.tsv"])
def test_line_ends_within_cells_are_quoted(tmp_path, name):
    """Readers also end a row at a carriage return alone, as in texts of old Macs."""
    source = {"text": ["one\rtwo", "three\r\nfour", "five\nsix"], "a\rb": ["\r", "", "x"]}
    write_and_read(tmp_path / name, source)
    written = (tmp_path / name).read_bytes().decode()
    assert written.count("\r\n") == 1 and written.endswith("0.75\n")
    header, *rows = csv.reader(io.StringIO(written, newline=""), delimiter="," if name == "out.csv" else "\t")
    assert header[:3] == ["text", "a\rb", "prediction"]
    assert [row[:2] for row in rows] == [list(row) for row in zip(*source.values(), strict=True)]


def test_predictions_with_odd_column_names_are_overwritten(tmp_path):
    """Names of more than one line, and with more separators than columns."""
    spec = TaskSpec(name="reviews", path="")
    (tmp_path / "in.csv").write_text("text;x\n")
    for name in ("my\nnote", "a, b, c, d, e, f, g", "a|b|c|d|e|f"):
        for _ in range(2):
            with PredictionFile(tmp_path / "out.csv", None, spec, like=tmp_path / "in.csv") as file:
                file.add(Dataset.from_dict({"id": ["0"]}), [{"prediction": "good"}], {"text": ["one"], name: [1]})


def test_texts_too_long_for_excel_cells_are_warned_about(tmp_path, caplog):
    read = write_and_read(tmp_path / "out.xlsx", {"text": ["a" * 32_767, "b" * 32_768, "c" * 40_000]})
    assert [len(text) for text in read["text"]] == [32_767] * 3
    cut = "longer texts are truncated: 2 in text. csv and parquet keep them complete."
    assert f"An Excel cell has at most 32,767 characters; {cut}" in caplog.text
    caplog.clear()
    write_and_read(tmp_path / "out.csv", {"text": ["b" * 32_768]})
    write_and_read(tmp_path / "whole.xlsx", {"text": ["a" * 32_767]})
    assert not caplog.text


def test_squad_predictions_and_null_odds(tmp_path):
    spec = TaskSpec(name="squad_small", path="", kind="question_answering")
    rows = Dataset.from_dict({"id": ["a", 'b"']})
    with PredictionFile(tmp_path / "dev.json", "squad", spec) as file:
        file.add(rows, [{"prediction": "Zürich", "null_odds": -2.5}, {"prediction": "", "null_odds": 1.5}])
    assert json.loads((tmp_path / "dev.json").read_text()) == {"a": "Zürich", 'b"': ""}
    assert json.loads((tmp_path / "dev_null_odds.json").read_text()) == {"a": -2.5, 'b"': 1.5}
    with PredictionFile(tmp_path / "none.json", "squad", spec):
        pass
    assert json.loads((tmp_path / "none.json").read_text()) == {}


@pytest.mark.parametrize(("separator", "mark"), [(";", "\ufeff"), ("\t", ""), (",", "\ufeff"), ("|", "")])
def test_csv_keeps_the_separator_and_byte_order_mark_of_the_input(run, tmp_path, separator, mark):
    """So that the spreadsheet program that wrote the input opens it."""
    table = [["number", "text"], ["007", "the gene; binds, here"], ["8", "größer | als"]]
    with (tmp_path / "in.csv").open("w", encoding="utf-8", newline="") as file:
        file.write(mark)
        csv.writer(file, delimiter=separator).writerows(table)
    for option in (None, separator):
        out = predict(str(run), str(tmp_path / "in.csv"), tmp_path / "out.csv", separator=option, **CPU)
        written = out.read_bytes().decode()
        assert written.startswith(mark + "number") and written.count("\ufeff") == len(mark)
        first, *rows = csv.reader(written.removeprefix(mark).splitlines(), delimiter=separator)
        assert first[:3] == ["number", "text", "prediction"] and [row[:2] for row in rows] == table[1:]
    jsonl = predict(str(run), str(tmp_path / "in.csv"), tmp_path / "out.jsonl", **CPU)
    assert [line["number"] for line in read_lines(jsonl)] == ["007", "8"]
    tsv = predict(str(run), str(tmp_path / "in.csv"), tmp_path / "out.tsv", **CPU).read_text()
    assert tsv.startswith("number\ttext\tprediction")
