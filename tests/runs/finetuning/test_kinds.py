"""Question answering, multiple choice and tagging end to end: all parameters learn, and exports give the scored
predictions."""

import json
import logging
from functools import partial

import numpy as np
import pyarrow.parquet as pq
import pytest
from datasets import Dataset
from safetensors.torch import load_file
from transformers import (
    AutoConfig,
    AutoModelForMultipleChoice,
    AutoModelForQuestionAnswering,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    pipeline,
)

from hf_tlm.data import train_wordpiece
from hf_tlm.runs.finetuning import multiple_choice, question_answering, tagging
from hf_tlm.runs.finetuning.tagging import CRF_FILE
from hf_tlm.tasks import TaskSpec, load_task, task_from_datasets
from support.kind_toys import TAGS, TOKENIZERS, arguments, labels_of, predict, rows_of, task_of, tiny_model
from support.tiny_checkpoints import go, pretrained

MODULES = {"question_answering": question_answering, "multiple_choice": multiple_choice, "tagging": tagging}


@pytest.mark.parametrize("family", ["bert", "xlnet", "modernbert", "cocolm"])
@pytest.mark.parametrize("kind", MODULES)
def test_every_parameter_has_a_gradient(kind, family):
    module, tokenizer, args = MODULES[kind], TOKENIZERS[family](), arguments(max_length=40)
    rows = Dataset.from_list(rows_of(kind, 6))
    features = module.encode(rows, tokenizer, args)
    values = {"id2label": dict(enumerate(TAGS))} if kind == "tagging" else {}
    model = tiny_model(family, module.AUTO_CLASS, **values)
    for crf in (False, True) if kind == "tagging" else (False,):
        model = tagging.wrap(model, arguments(crf=crf))
        batch = module.collate(tokenizer, list(features))
        model(**batch).loss.backward()
        still = {name for name, each in model.named_parameters() if each.grad is None or not each.grad.any()}
        # XLNet has an extra vector for pretraining, and adding one number to all positions or options changes nothing.
        free = ("mask_emb",) if kind == "tagging" else ("mask_emb", "qa_outputs.bias", "classifier.bias", "logits_proj.bias")
        assert {name for name in still if not name.endswith(free)} == set()
        model.zero_grad()


@pytest.fixture(scope="module")
def base(tmp_path_factory, tokenizer):
    return pretrained(tmp_path_factory.mktemp("base") / "bert", tokenizer)


def train_and_read_predictions(kind, base, out, **changes):
    task = task_of(kind, rows_of(kind, 24), labels_of(kind), train=rows_of(kind, 64))
    run = go(out, base, task, num_train_epochs=4, seeds=[1], learning_rate=5e-3, **changes)
    lines = (out / "seed-1/predictions/validation.jsonl").read_text().splitlines()
    assert len(lines) == 24
    assert all(f" {name} " in run.to_text() for name in run.seeds[0]["validation"])
    return task, run.seeds[0], list(map(json.loads, lines))


def test_question_answering_export_gives_the_scored_predictions(base, tmp_path):
    task, record, lines = train_and_read_predictions("question_answering", base, tmp_path / "out", doc_stride=4)
    assert 0 < record["validation"]["squad_f1"] <= 1 and "no_answer_f1" in record["validation"]
    model = AutoModelForQuestionAnswering.from_pretrained(tmp_path / "out").eval()
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "out")
    saved = json.loads((tmp_path / "out/finetuned.json").read_text())["arguments"]
    # The threshold chosen on validation is saved, and with it the exported weights give the same answers.
    assert isinstance(saved["null_threshold"], float)
    args = arguments(**saved)
    features = question_answering.encode(task.validation, tokenizer, args)
    assert len(features) > len(task.validation)
    outputs = predict(model, features, partial(question_answering.collate, tokenizer))
    again = question_answering.decode(outputs, features, task.validation, model, args)
    assert [line["prediction"] for line in lines] == [row["prediction"] for row in again]
    assert question_answering.score(task, again, task.validation) == record["validation"]


def test_multiple_choice_export_gives_the_scored_predictions(base, tmp_path):
    task, record, lines = train_and_read_predictions("multiple_choice", base, tmp_path / "out")
    right = sum(line["prediction"] == "ABCD"[row["label"]] for line, row in zip(lines, task.validation, strict=True))
    assert record["validation"]["accuracy"] == pytest.approx(right / 24)
    tokenizer, row = AutoTokenizer.from_pretrained(tmp_path / "out"), task.validation[0]
    texts = [row["question"].replace("_", option) for option in row["options"]]
    inputs = tokenizer([row["context"]] * 4, texts, padding=True, return_tensors="pt")
    model = AutoModelForMultipleChoice.from_pretrained(tmp_path / "out").eval()
    shares = model(**{name: values[None] for name, values in inputs.items()}).logits.softmax(dim=-1)[0]
    assert lines[0]["probabilities"] == pytest.approx(dict(zip("ABCD", shares.tolist(), strict=True)), abs=1e-4)


@pytest.mark.parametrize("crf", [False, True])
def test_tagging_export_gives_the_scored_predictions(crf, base, tmp_path):
    task, record, lines = train_and_read_predictions("tagging", base, tmp_path / "out", crf=crf)
    assert record["validation"]["tag_accuracy"] > 0.5  # Three tags; the most frequent has 0.4.
    assert {line["tag"]: line["support"] for line in record["tables"]["validation"]["tags"]} == {
        "DT": 48,
        "NN": 48,
        "VBZ": 24,
    }
    tag = pipeline("token-classification", model=str(tmp_path / "out"), device="cpu")
    found = [
        entity["entity"] for entity in tag(" ".join(task.validation[0]["tokens"])) if not entity["word"].startswith("##")
    ]
    if not crf:
        assert found == lines[0]["prediction"] and not (tmp_path / "out" / CRF_FILE).exists()
        return
    # The pipeline tags each word independently; the CRF's transitions are in a file of their own.
    assert len(found) == 5
    start = load_file(tmp_path / "out" / CRF_FILE)["start_transitions"]
    assert start.abs().max() > 0.1  # Larger than at initialisation; the first word is always a determiner.
    model = tagging.restore(tag.model, tmp_path / "out", arguments())
    features = tagging.encode(task.validation, tag.tokenizer, arguments())
    outputs = predict(model, features, partial(tagging.collate, tag.tokenizer))
    again = tagging.decode(outputs, features, task.validation, model, arguments())
    assert [row["prediction"] for row in again] == [line["prediction"] for line in lines]


def test_label_smoothing_with_a_crf_is_refused(base, tmp_path):
    with pytest.raises(ValueError, match="label_smoothing_factor 0.1 smooths the loss of single tags"):
        train_and_read_predictions("tagging", base, tmp_path / "out", crf=True, label_smoothing_factor=0.1)


@pytest.mark.parametrize("kind", ["question_answering", "multiple_choice"])
def test_classifier_checkpoint_gets_a_new_head(kind, tokenizer, tmp_path):
    head = {"auto_class": AutoModelForSequenceClassification, "id2label": {0: "low", 1: "middle", 2: "high"}}
    folder = pretrained(tmp_path / "base", tokenizer, **head, problem_type="single_label_classification")
    task = task_of(kind, rows_of(kind, 8), labels_of(kind))
    go(tmp_path / "out", folder, task, max_steps=1, doc_stride=4 if kind == "question_answering" else 128)
    assert "middle" not in (tmp_path / "out/config.json").read_text()


def test_regression_from_a_classifier_checkpoint_does_not_warn(tokenizer, tmp_path, caplog, monkeypatch):
    monkeypatch.setattr(logging.getLogger("transformers"), "propagate", True)
    classes = {"id2label": {0: "low", 1: "middle", 2: "high"}, "problem_type": "single_label_classification"}
    folder = pretrained(tmp_path / "base", tokenizer, **classes)
    rows = Dataset.from_list([{"id": f"{n}", "text": ("the gene", "the cell")[n % 2], "label": n / 2} for n in range(8)])
    spec = TaskSpec(name="toy", path="memory", kind="regression")
    go(tmp_path / "out", folder, task_from_datasets(spec, {"train": rows, "validation": rows}), seeds=[0], max_steps=1)
    assert "incompatible" not in caplog.text
    config = AutoConfig.from_pretrained(tmp_path / "out")
    assert (config.id2label, config.problem_type) == ({0: "LABEL_0"}, "regression")


@pytest.mark.parametrize(("family", "typed"), [("bert", True), ("xlnet", True), ("albert", True), ("modernbert", False)])
def test_token_types_match_the_model(family, typed, tokenizer, tmp_path):
    """Also in the saved folder."""
    folder = pretrained(tmp_path / "base", tokenizer, family)
    task = task_of("tagging", rows_of("tagging", 8), TAGS)
    go(tmp_path / "out", folder, task, seeds=[0], max_steps=1)
    inputs = AutoTokenizer.from_pretrained(tmp_path / "out")("the gene", "the cell")
    assert ("token_type_ids" in inputs) == typed and (not typed or max(inputs["token_type_ids"]) == 1)


def load_first_rows(data_dir, name, folder, train, validation):
    """Load a task with only the first rows of its splits."""
    for split, count in (("train", train), ("validation", validation)):
        rows = pq.read_table(data_dir / "tasks" / name / f"{split}.parquet").slice(0, count)
        folder.mkdir(exist_ok=True)
        pq.write_table(rows, folder / f"{split}.parquet")
    return load_task(str(folder))


def texts_of(task):
    columns = [task.train[name][:] for name in ("context", "question") if name in task.train.column_names]
    return sum(columns, []) if columns else [" ".join(tokens) for tokens in task.train["tokens"]]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "train", "metric", "floor", "changes"),
    [
        ("squad_small", 48, "squad_f1", -1, {"max_length": 96, "doc_stride": 32}),
        ("race_middle", 32, "accuracy", -1, {"max_length": 64}),
        ("pos_ewt", 600, "tag_accuracy", 0.2, {"max_length": 64}),  # The most frequent tag has 0.13.
        ("pos_ewt", 160, "tag_accuracy", 0.1, {"max_length": 64, "crf": True}),
    ],
)
def test_real_tasks_are_learned(name, train, metric, floor, changes, data_dir, tmp_path):
    task = load_first_rows(data_dir, name, tmp_path / name, train, 24)
    tokenizer = train_wordpiece(texts_of(task), 1500, max_length=128)
    base = pretrained(tmp_path / "base", tokenizer, vocab_size=1500, max_position_embeddings=128)
    record = go(tmp_path / "out", base, task, seeds=[0], **changes).seeds[0]
    assert floor < record["validation"][metric] <= 1


def test_windows_of_real_texts_keep_every_answer(data_dir, tmp_path):
    """No window cuts an answer that no other window contains completely."""
    task = load_first_rows(data_dir, "squad_small", tmp_path / "squad_small", 40, 60)
    tokenizer = train_wordpiece(texts_of(task), 1500, max_length=128)
    args = arguments(max_length=96, max_answer_length=60, doc_stride=40)
    features = question_answering.encode(task.validation, tokenizer, args)
    assert len(features) > 200
    outputs = []
    for name in ("start_positions", "end_positions"):
        outputs.append(np.eye(96, dtype=np.float32)[features[name][:]])
    predictions = question_answering.decode(tuple(outputs), features, task.validation, None, args)
    assert question_answering.score(task, predictions, task.validation) == {"squad_f1": 1, "exact_match": 1}
