"""A linear model as a finished run: its logits, its files, and predictions with it, alone and averaged with networks."""

import json
import re
import shutil
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from datasets import ClassLabel, Dataset
from scipy.special import softmax
from sklearn.pipeline import make_pipeline
from sklearn.svm import LinearSVC

from hf_tlm.errors import HfTlmError
from hf_tlm.models import ModelError
from hf_tlm.runs import export_onnx, linear_model, majority_class, predict
from hf_tlm.runs.linear import (
    TOKENS,
    TOKENS_BY_CHARACTER,
    LinearModel,
    as_margins,
    best_temperature,
    by_character,
    tfidf,
)
from hf_tlm.runs.prediction import Predictor
from hf_tlm.runs.teachers.models import ModelTeacher
from hf_tlm.tasks import TaskSpec, task_from_datasets
from support.tiny_checkpoints import go, pretrained
from support.toys import make_task

CPU = {"use_cpu": True}


@pytest.fixture(scope="module")
def task():
    return make_task()


@pytest.fixture(scope="module")
def folder(task, tmp_path_factory):
    folder = tmp_path_factory.mktemp("baselines")
    linear_model(task).save(folder / "linear", task)
    return folder


def with_label_names(splits, classes):
    label = ClassLabel(names=list(classes))
    return task_from_datasets(
        TaskSpec(name="named", path="memory"), {split: rows.cast_column("label", label) for split, rows in splits.items()}
    )


def read_lines(path):
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def write_test_texts(task, path):
    columns = [column for column in task.test.column_names if column.startswith("text")]
    task.test.select_columns(columns).to_json(path)
    return str(path)


def test_logits_are_the_margins_of_scikit_learn(task, folder):
    """Of a pipeline fitted with the chosen settings; the probabilities are the softmax of the margins over the
    temperature."""
    linear = linear_model(task)
    n, c, weight = (linear.settings[name] for name in ("n_grams", "C", "class_weight"))
    pipeline = make_pipeline(tfidf(n), LinearSVC(C=c, class_weight=weight, random_state=0))
    pipeline.fit(task.train["text"][:], task.train["label"][:])
    expected = pipeline.decision_function(task.test["text"][:])
    for model in (linear.model, LinearModel.open(folder / "linear")):
        assert model.logits(task.test) * model.temperature == pytest.approx(expected, abs=1e-5)
    assert np.array_equal(expected.argmax(1), linear.predictions["test"])
    shares = softmax(expected / linear.model.temperature, axis=1)
    for line, row, right in zip(
        read_lines(folder / "linear/predictions/test.jsonl"), shares, task.test["label"], strict=True
    ):
        assert list(line["probabilities"].values()) == pytest.approx(row, abs=2e-6)
        assert list(line["probabilities"]) == list(task.label_names) and line["label"] == task.id2label[right]


def test_two_classes_have_one_row_of_weights(task, tmp_path):
    rows = {split: rows.filter(lambda row: row["label"] < 2) for split, rows in task.splits.items()}
    two = with_label_names(rows, task.label_names[:2])
    linear = linear_model(two)
    linear.save(tmp_path, two)
    model = LinearModel.open(tmp_path)
    assert model.weights.shape[0] == 1
    logits = model.logits(two.test)
    assert np.array_equal(logits.argmax(1), linear.predictions["test"]) and logits.sum(1) == pytest.approx(0)
    pipeline = make_pipeline(
        tfidf(linear.settings["n_grams"]),
        LinearSVC(C=linear.settings["C"], class_weight=linear.settings["class_weight"], random_state=0),
    ).fit(two.train["text"][:], two.train["label"][:])
    margins = pipeline.decision_function(two.test["text"][:])
    assert (logits[:, 1] - logits[:, 0]) * model.temperature == pytest.approx(margins, abs=1e-5)


def test_scripts_without_spaces_are_split_into_characters(task, tmp_path):
    """The class is a word of two characters within clauses that are all different."""
    rng = np.random.default_rng(0)
    words = ("好看", "难看", "一般")

    def clause(label):
        other = "".join(map(chr, rng.integers(0x4E00, 0x4F00, 12)))
        return f"{other[:5]}{words[label]}{other[5:]}。"

    rows = {
        split: Dataset.from_dict({"text": [clause(i % 3) for i in range(90)], "label": [i % 3 for i in range(90)]})
        for split in ("train", "validation", "test")
    }
    chinese = with_label_names(rows, ("good", "bad", "so so"))
    made = linear_model(chinese)
    assert made.scores["test"]["accuracy"] > 0.9
    made.save(tmp_path, chinese)
    assert np.array_equal(LinearModel.open(tmp_path).logits(chinese.test), made.model.logits(chinese.test))
    linear_model(task).save(tmp_path / "other", task)
    assert "by_character" not in (tmp_path / "other/linear.json").read_text()


def test_other_texts_are_split_into_words():
    """Also texts with a few characters of a script without spaces, and those whose words were separated by spaces."""
    clause = "今天天气很好"
    assert by_character(["plain words", clause]) and not by_character(["plain words " * 100, clause])
    assert not by_character(["今天 天气 很 好"] * 9) and clause in tfidf(1).fit([clause]).vocabulary_
    texts = ["plain wörds, x_1 don't!", "नमस्ते दुनिया"]
    assert all(re.findall(TOKENS, text) == re.findall(TOKENS_BY_CHARACTER, text) for text in texts)


def test_class_without_training_texts_is_never_predicted(task):
    some = replace(task, splits={**task.splits, "train": task.train.filter(lambda row: row["label"] != 1)})
    shares = softmax(linear_model(some).model.logits(task.test), axis=1)
    assert shares[:, 1].max() == 0 and shares.sum(1) == pytest.approx(1)


def test_temperature_maximizes_the_likelihood():
    rng = np.random.default_rng(0)
    margins, classes = rng.normal(size=(4000, 3)), np.array([0, 2, 5])
    chosen = [rng.choice(3, p=row) for row in softmax(margins / 0.4, axis=1)]
    labels = classes[chosen]
    found = best_temperature(margins, classes, labels)
    assert found == pytest.approx(0.4, rel=0.05)
    assert best_temperature(np.vstack([margins, margins[:5]]), classes, np.append(labels, [1] * 5)) == pytest.approx(found)
    assert best_temperature(margins[:0], classes, labels[:0]) == 1.0
    # Few texts, all classified correctly: with 24 texts and the margin 1, the probability of each is 25 / 26.
    apart = np.tile(np.eye(3), (8, 1))
    found = best_temperature(apart, np.arange(3), np.tile(np.arange(3), 8))
    assert softmax(apart / found, axis=1).max(1) == pytest.approx(25 / 26, abs=1e-4)
    assert as_margins(np.array([3.0, -1.0])).tolist() == [[-1.5, 1.5], [0.5, -0.5]]


def test_predictions_equal_those_of_training(task, folder, tmp_path):
    """On the task's own test texts; also by the path of the parent folder, and with any backend."""
    data = write_test_texts(task, tmp_path / "texts.jsonl")
    expected = read_lines(folder / "linear/predictions/test.jsonl")
    for name, options in ((folder / "linear", CPU), (folder, CPU), (folder, {"backend": "onnx"})):
        predictions = read_lines(predict(str(name), data, tmp_path / "out.jsonl", **options))
        for one, other in zip(predictions, expected, strict=True):
            assert one["prediction"] == other["prediction"] and one["probabilities"] == other["probabilities"]
    with pytest.raises(HfTlmError, match="a linear model reads complete texts. Remove it"):
        predict(str(folder), data, tmp_path / "out.jsonl", max_length=8)
    with pytest.raises(ModelError, match="is a linear model, which has no graph to export"):
        export_onnx(str(folder), tmp_path / "export", dtypes=["fp32"])


def test_both_texts_of_a_pair_are_read(task, tmp_path):
    """The first text identifies one class, and the second distinguishes the other two."""

    def pairs(rows):
        return rows.map(
            lambda row: {"text": "yes" if row["label"] == 0 else "no", "text_pair": "up" if row["label"] == 1 else "down"}
        )

    spec = replace(task.spec, text_columns=("text", "text_pair"))
    paired = replace(task, spec=spec, splits={split: pairs(rows) for split, rows in task.splits.items()})
    linear_model(paired).save(tmp_path / "run", paired)
    predictions = read_lines(
        predict(str(tmp_path / "run"), write_test_texts(paired, tmp_path / "texts.jsonl"), tmp_path / "out.jsonl", **CPU)
    )
    assert [row["prediction"] for row in predictions] == [paired.id2label[label] for label in paired.test["label"]]
    with pytest.raises(ModelError, match="was trained on 2 columns of texts; received 1. Name"):
        predict(str(tmp_path / "run"), str(tmp_path / "texts.jsonl"), tmp_path / "out.jsonl", text_columns="text", **CPU)


@pytest.mark.slow
def test_linear_model_is_averaged_with_a_network(task, folder, tmp_path, tokenizer):
    base = pretrained(tmp_path / "base", tokenizer, num_hidden_layers=1)
    go(tmp_path / "run", base, make_task(train=24), num_train_epochs=4)
    data = write_test_texts(task, tmp_path / "texts.jsonl")
    found = read_lines(predict([str(tmp_path / "run"), str(folder)], data, tmp_path / "out.jsonl", **CPU))
    network = read_lines(tmp_path / "run/seed-0/predictions/test.jsonl")
    for one, *two in zip(found, network, read_lines(folder / "linear/predictions/test.jsonl"), strict=True):
        mean = {name: (two[0]["probabilities"][name] + two[1]["probabilities"][name]) / 2 for name in task.label_names}
        assert one["probabilities"] == pytest.approx(mean, abs=1e-5)
    export_onnx(str(tmp_path / "run"), tmp_path / "export", dtypes=["fp32"])
    other = read_lines(predict([tmp_path / "export", folder], data, tmp_path / "onnx.jsonl", backend="onnx"))
    for one, same in zip(found, other, strict=True):
        assert one["probabilities"] == pytest.approx(same["probabilities"], abs=1e-4)


def test_files_are_reproducible(task, folder, tmp_path):
    linear_model(task).save(tmp_path, task)
    for name in ("linear.json", "linear.safetensors", "finetuned.json", "predictions/test.jsonl"):
        assert (tmp_path / name).read_bytes() == (folder / "linear" / name).read_bytes()


def _edit_settings(**values):
    def edit(folder):
        found = json.loads((folder / "linear.json").read_text())
        (folder / "linear.json").write_text(json.dumps({**found, **values}))

    return edit


def _edit_tensors(change):
    def edit(folder):
        from safetensors.numpy import load_file, save_file

        tensors = load_file(folder / "linear.safetensors")
        change(tensors)
        save_file(tensors, folder / "linear.safetensors")

    return edit


def _use_unsupported_dtype(folder):
    """Save the weights in a type that numpy does not have."""
    import torch
    from safetensors.torch import load_file, save_file

    tensors = load_file(folder / "linear.safetensors")
    save_file({**tensors, "weights": tensors["weights"].to(torch.float8_e4m3fn)}, folder / "linear.safetensors")


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda folder: (folder / "linear.json").write_text("{"), "is not JSON"),
        (lambda folder: (folder / "linear.safetensors").unlink(), "cannot be read"),
        (lambda folder: (folder / "linear.safetensors").write_bytes(b"cut"), "cannot be read"),
        (_edit_settings(n_grams=9), "n_grams must be a whole number from 1 to 3"),
        (_edit_settings(temperature=0), "temperature must be"),
        (_edit_settings(terms={"text": ["a", "b"]}), "words do not match its weights"),
        (_edit_settings(terms={"words": ["a"]}), "words do not match its weights"),
        (_edit_settings(num_labels=2), "words do not match its weights"),
        (_edit_settings(num_labels=4), "Use both from the same run"),
        (_edit_tensors(lambda tensors: tensors.pop("biases")), "words do not match its weights"),
        (_edit_tensors(lambda tensors: tensors["weights"].fill(np.nan)), "words do not match its weights"),
        (_edit_tensors(lambda tensors: tensors["idf.text"].fill(3e38)), "words do not match its weights"),
        (_edit_tensors(lambda tensors: tensors.update(classes=np.array(3))), "words do not match its weights"),
        (
            _edit_tensors(lambda tensors: tensors.update(weights=tensors["weights"].astype(bool))),
            "words do not match its weights",
        ),
        (_edit_tensors(lambda tensors: tensors.update(biases=np.full(3, 1e308))), "words do not match its weights"),
        (lambda folder: _use_unsupported_dtype(folder), "cannot be read"),
        (lambda folder: (folder / "finetuned.json").unlink(), "describes what the model was trained on"),
        (_edit_tensors(lambda tensors: tensors["classes"].fill(0)), "words do not match its weights"),
        (
            _edit_tensors(lambda tensors: tensors.update(classes=tensors["classes"].astype(np.float64))),
            "do not match its weights",
        ),
    ],
)
def test_damaged_files_are_refused(task, folder, tmp_path, damage, said):
    shutil.copytree(folder / "linear", tmp_path / "run")
    (tmp_path / "run/seal.json").unlink()  # As if somebody damaged it on purpose.
    damage(tmp_path / "run")
    with pytest.raises(ModelError, match=said):
        predict(str(tmp_path / "run"), write_test_texts(task, tmp_path / "texts.jsonl"), tmp_path / "out.jsonl", **CPU)
    assert not (tmp_path / "out.jsonl").exists()


def test_changed_file_is_refused(task, folder, tmp_path):
    shutil.copytree(folder / "linear", tmp_path / "run")
    _edit_settings(temperature=2.0)(tmp_path / "run")
    with pytest.raises(HfTlmError, match=r"linear.json has .* bytes and had|has changed since"):
        predict(str(tmp_path / "run"), write_test_texts(task, tmp_path / "texts.jsonl"), tmp_path / "out.jsonl", **CPU)


def test_models_of_different_classes_are_not_averaged(task, folder, tmp_path):
    other = with_label_names(task.splits, ["x", "y", "z"])
    linear_model(other).save(tmp_path / "other", other)
    Dataset.from_dict({"text": ["the gene binds"]}).to_json(tmp_path / "texts.jsonl")
    with pytest.raises(HfTlmError, match="the same kind of task, classes and columns"):
        predict([str(folder), str(tmp_path / "other")], str(tmp_path / "texts.jsonl"), tmp_path / "out.jsonl", **CPU)


def test_run_with_a_baseline_in_its_folder_predicts_with_the_run(task, folder, tmp_path, tokenizer):
    go(tmp_path / "run", pretrained(tmp_path / "base", tokenizer, num_hidden_layers=1), make_task(train=24), max_steps=2)
    shutil.copytree(folder / "linear", tmp_path / "run/linear")
    found = read_lines(
        predict(str(tmp_path / "run"), write_test_texts(task, tmp_path / "texts.jsonl"), tmp_path / "out.jsonl", **CPU)
    )
    for one, other in zip(found, read_lines(tmp_path / "run/seed-0/predictions/test.jsonl"), strict=True):
        assert one["probabilities"] == pytest.approx(other["probabilities"], abs=1e-5)


def test_baseline_without_a_model_is_refused(task, tmp_path):
    majority_class(task).save(tmp_path / "run", task)
    Dataset.from_dict({"text": ["the gene binds"]}).to_json(tmp_path / "texts.jsonl")
    with pytest.raises(ModelError, match="has the scores of a baseline but no model"):
        predict(str(tmp_path / "run"), str(tmp_path / "texts.jsonl"), tmp_path / "out.jsonl", **CPU)


def test_very_long_word_is_kept(task, tmp_path):
    long = task.train.map(lambda row: {"text": f"{row['text']} {'acgt' * 5000}"})
    linear_model(replace(task, splits={**task.splits, "train": long})).save(tmp_path, task)
    assert max(map(len, LinearModel.open(tmp_path).terms["text"])) >= 20_000


def test_saving_again_keeps_earlier_predictions(task, tmp_path):
    data = write_test_texts(task, tmp_path / "texts.jsonl")
    for _ in range(2):
        linear_model(task).save(tmp_path / "run", task)
        assert predict(str(tmp_path / "run"), data, **CPU) == tmp_path / "run/predictions/texts.jsonl"


def test_linear_model_folder_as_teacher_is_refused(task, folder):
    with pytest.raises(HfTlmError, match="Pass --teacher linear"):
        ModelTeacher(task, [str(folder)], {}, {})


@pytest.mark.parametrize("processes", [1, 2, 3, 5])
def test_rows_are_divided_among_processes(processes, monkeypatch):
    """Also where there are fewer rows than processes."""
    monkeypatch.setattr("hf_tlm.runs.prediction.gather_object", lambda share: share)
    for count in (1, 2, 4):
        rows, found = Dataset.from_dict({"text": [str(row) for row in range(count)]}), []
        for rank in range(processes):
            process = SimpleNamespace(args=SimpleNamespace(process_index=rank, world_size=processes))
            found += Predictor._predict_shares(process, rows, lambda share: share["text"][:])
        assert found == rows["text"][:]
