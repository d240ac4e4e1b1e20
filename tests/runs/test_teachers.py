"""Teachers of every kind: their predictions, how passages are chosen by confidence, and how a run learns from them."""

import dataclasses
import html
import json
import logging
import shutil
import sys
from collections import Counter
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from datasets import Dataset, is_progress_bar_enabled
from safetensors.torch import save_file
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from transformers import AutoModel, AutoModelForSequenceClassification, AutoTokenizer

from hf_tlm.analysis.report import teacher_and_subset
from hf_tlm.analysis.report.page import report_page
from hf_tlm.analysis.report.run_folder import read_run
from hf_tlm.data import tokenize
from hf_tlm.errors import AnalysisError, ArgumentsError, HfTlmError
from hf_tlm.hub.cards import tlm_card
from hf_tlm.influence import InfluenceError, select
from hf_tlm.models import ModelError
from hf_tlm.objectives.task import class_weights
from hf_tlm.retrieval import Subset, retrieval_report, retrieve
from hf_tlm.runs import export_onnx, predict, run_tlm, teacher_scores
from hf_tlm.runs.finetuning import FinetuneArguments
from hf_tlm.runs.finetuning.classification import AUTO_CLASS
from hf_tlm.runs.finetuning.models import load_finished
from hf_tlm.runs.teachers import models
from hf_tlm.runs.teachers.answers import class_matrix, most_certain, task_lengths
from hf_tlm.runs.teachers.ask import answered_subset, ask_teacher, check_passage_options, open_teacher, replace_wrong_answers
from hf_tlm.tasks import TaskSpec, task_from_datasets
from hf_tlm.training import ModelArguments, ScoreModelArguments, TlmArguments, TlmTrainer
from hf_tlm.training.teacher import cost_line, described, doubts, lineage, repeats
from support.card_records import RUN
from support.tiny_checkpoints import go, pretrained
from support.toys import FAST, TINY_CONFIGS, make_task, sentences
from support.training_runs import QUIET


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")
    return tmp_path / "cache" / "hf_tlm"


PASSAGES = [row["text"] for row in sentences(40, 9)]


def answers_of_teacher(task, passages, count=10, teacher="linear", **options):
    """Return a teacher's answers on the task and passages (texts, or columns)."""
    if passages is not None:
        passages = Dataset.from_dict(passages if isinstance(passages, dict) else {"text": passages})
    args = TlmArguments(output_dir="unused", **QUIET, teacher=teacher, teacher_passages=count, **options)
    return ask_teacher(task, passages, args)


def test_training_texts_are_answered_by_models_fitted_without_them(task):
    answers = answers_of_teacher(task, PASSAGES, 10)
    texts, labels = list(task.train["text"]), np.array(task.train["label"])
    n, c = answers.report["n_grams"], answers.report["C"]
    folds, right = models._folds(texts, labels), 0
    assert sorted(row for _, test in folds for row in test.tolist()) == list(range(len(texts)))
    for train, test in folds:
        features = TfidfVectorizer(token_pattern=r"(?u)\w+|[^\w\s]", ngram_range=(1, n), sublinear_tf=True)
        model = LogisticRegression(C=c, max_iter=300).fit(features.fit_transform([texts[i] for i in train]), labels[train])
        expected = model.predict_proba(features.transform([texts[i] for i in test]))
        right += (correct := expected.argmax(1) == labels[test]).sum()
        expected[~correct] = np.eye(3)[labels[test][~correct]]
        np.testing.assert_allclose(answers.train[test], expected, atol=2e-3)
    np.testing.assert_allclose(answers.train.sum(1), 1, atol=1e-5)
    np.testing.assert_allclose(answers.passages.sum(1), 1, atol=1e-5)
    assert answers.report["held_out_accuracy"] == round(right / len(labels), 4) > 0.5
    assert (answers.train.argmax(1) == labels).all()


def test_many_classes_count_only_single_words(task, monkeypatch, caplog):
    before = answers_of_teacher(task, PASSAGES, 10)
    monkeypatch.setattr(models, "MOST_CLASSES_FOR_PAIRS", 2)
    made = answers_of_teacher(task, PASSAGES, 10)  # Not the earlier answers from the cache.
    assert before.report["settings_tried"] == 2 * made.report["settings_tried"] == 8
    assert made.report["n_grams"] == 1
    assert "has 3 classes, more than 2: its linear teacher counts only single words" in caplog.text


def test_wrong_answer_becomes_the_label():
    probabilities = np.array([[0.6, 0.3, 0.1], [0.6, 0.3, 0.1], [0.1, 0.2, 0.7]])
    assert replace_wrong_answers(probabilities, np.array([0, 1, 2])).tolist() == [
        [0.6, 0.3, 0.1],
        [0, 1, 0],
        [0.1, 0.2, 0.7],
    ]


def test_equal_texts_are_held_out_together():
    texts = [f"text number {i // 2}" if i % 2 else f"Text  number {i // 2}" for i in range(40)]
    for train, test in models._folds(texts, np.arange(40) // 2 % 2):
        assert not {i // 2 for i in train.tolist()} & {i // 2 for i in test.tolist()}


def test_class_missing_from_a_fold_is_improbable_not_impossible():
    rows = sentences(30) + [{"text": "a rare one", "label": "rare"}]
    data = {name: Dataset.from_list(rows) for name in ("train", "validation")}
    made = answers_of_teacher(task_from_datasets(TaskSpec(name="rare", path="memory", metric="macro_f1"), data), [], 10)
    assert made.train[-1].tolist() == [0, 0, 1, 0]  # The teacher was sure that it is of another class.
    assert 0 < made.train[made.train.max(1) < 1].min() < 1e-4
    assert len(made.rows) == 0 and "passages" not in made.report


def test_most_certain_passages_of_each_class_are_chosen():
    generator = np.random.default_rng(0)
    probabilities = generator.dirichlet([1, 1, 1], 200)
    shares = np.array([0.5, 0.3, 0.2])
    chosen = most_certain(probabilities, shares, 20)
    expected = []
    for label, count in enumerate((10, 6, 4)):
        of_class = [row for row in range(200) if probabilities[row].argmax() == label]
        expected += sorted(of_class, key=lambda row: -probabilities[row, label])[:count]
    assert chosen.tolist() == sorted(expected)
    assert most_certain(probabilities[:3], shares, 1000).tolist() == [0, 1, 2]


def test_teacher_candidates_limits_the_passages_to_the_first(task, runs, monkeypatch):
    """The answers are as if there were no other passages, with any teacher; row numbers remain those of the subset."""
    asked_of = []
    before = models._ask_model

    def count_rows(predictor, one, rows, *others):
        asked_of.append(len(rows))
        return before(predictor, one, rows, *others)

    monkeypatch.setattr(models, "_ask_model", count_rows)
    for teacher in ("linear", str(runs[0])):
        made, alone = (
            answers_of_teacher(task, PASSAGES, 8, teacher, teacher_candidates=15),
            answers_of_teacher(task, PASSAGES[:15], 8, teacher),
        )
        assert made.rows.max() < 15 and 0 < len(made.rows) < 12
        np.testing.assert_array_equal(made.rows, alone.rows)
        np.testing.assert_array_equal(made.passages, alone.passages)
        assert made.report["passages_by_class"] == alone.report["passages_by_class"]
        assert made.texts(Dataset.from_dict({"text": PASSAGES}))["text"][:] == [PASSAGES[row] for row in alone.rows]
        assert answers_of_teacher(task, PASSAGES, 8, teacher).rows.max() >= 15
        assert answers_of_teacher(task, PASSAGES[:10], 8, teacher, teacher_candidates=15).rows.max() < 10, (
            "there are no more"
        )
    assert asked_of.count(15) == 1 and len(PASSAGES) in asked_of


def test_texts_are_repeated_until_passages_are_few_enough():
    for texts, passages, share in ((300, 2909, 0.5), (20000, 4000, 0.5), (7, 3, 0.25), (10, 90, 0.9), (1, 1, 0.5)):
        times = repeats(texts, passages, share)
        assert passages / (passages + times * texts) <= share + 1e-9
        assert times == 1 or passages / (passages + (times - 1) * texts) > share


def test_texts_and_passages_are_joined_with_their_answers(task, tokenizer):
    made = answers_of_teacher(task, PASSAGES, 12)
    texts = tokenize(task.train, tokenizer, 32)
    passages = tokenize(made.texts(Dataset.from_dict({"text": PASSAGES})), tokenizer, 32)
    rows = made.answered(texts, passages, 0.15)
    assert len(made.rows) == 12 and len(rows) == 2 * 48 + 12
    assert rows["label"][:] == [*texts["label"], *texts["label"], *[-100] * 12]
    np.testing.assert_allclose(rows["teacher_probs"][:], np.concatenate([made.train, made.train, made.passages]))
    assert rows["input_ids"][-1] == passages["input_ids"][-1]
    alone = made.answered(texts, None, 0.5)
    assert len(alone) == 48 and alone["label"][:] == texts["label"][:]
    assert class_weights(rows["label"][:], 3, 1.0) == pytest.approx(class_weights(texts["label"][:], 3, 1.0))


def test_cache_is_used_and_rebuilt_when_damaged(task, cache, monkeypatch):
    first = answers_of_teacher(task, PASSAGES, 10)
    calls, call = [], models.LinearTeacher.__call__
    monkeypatch.setattr(models.LinearTeacher, "__call__", lambda *args: calls.append(1) or call(*args))
    again = answers_of_teacher(task, PASSAGES, 10)
    assert not calls and (again.train == first.train).all() and again.report == first.report
    answers_of_teacher(task, PASSAGES, 11, teacher_trust="entropy")
    assert not calls, "how many are taught, and which, is no question to the teacher"
    answers_of_teacher(task, PASSAGES[1:], 10)
    assert len(calls) == 1, "other passages are asked for"
    for damage in (b"", b"PK\x03\x04 not an archive"):
        for folder in cache.glob("teacher-*"):
            (folder / "answers.npz").write_bytes(damage)
        healed = answers_of_teacher(task, PASSAGES, 10)
        assert (healed.train == first.train).all() and (healed.rows == first.rows).all()
    assert len(calls) == 3


def test_chunks_of_passages_give_the_same_answers(task, cache, monkeypatch):
    whole = answers_of_teacher(task, PASSAGES, 10)
    for folder in cache.glob("teacher-*"):
        (folder / "seal.json").unlink()
    monkeypatch.setattr(models, "PASSAGES_TOGETHER", 7)
    parts = answers_of_teacher(task, PASSAGES, 10)
    assert parts.rows.tolist() == whole.rows.tolist()
    np.testing.assert_allclose(parts.passages, whole.passages, atol=1e-6)


def test_pairs_and_too_few_texts_are_refused(task):
    pairs = make_task()
    pairs.splits["train"] = pairs.train.add_column("text_pair", ["a"] * len(pairs.train))
    with pytest.raises(ArgumentsError, match="single texts; this task has pairs"):
        answers_of_teacher(pairs, [], 0)
    few = make_task(train=3)
    with pytest.raises(ArgumentsError, match="these 3 .3 different ones. are too few. Remove --teacher"):
        answers_of_teacher(few, [], 0)
    same = make_task()
    same.splits["train"] = same.train.remove_columns("text").add_column("text", ["the same"] * len(same.train))
    with pytest.raises(ArgumentsError, match="these 48 .1 different ones. are too few"):
        answers_of_teacher(same, [], 0)


@pytest.mark.parametrize(
    "options, message",
    [
        ({"teacher_weight": 2.0}, "teacher_weight 2.0 has no effect without a teacher"),
        ({"teacher_passages": 10}, "teacher_passages 10 has no effect without a teacher"),
        ({"teacher_share": 0.1}, "teacher_share 0.1 has no effect without a teacher"),
        ({"teacher": "linear", "teacher_passages": 0, "teacher_share": 0.1}, "no effect with teacher_passages 0"),
        ({"teacher": "linear", "teacher_passages": 0, "teacher_trust": "entropy"}, "no effect with teacher_passages 0"),
        ({"teacher": "linear", "teacher_passages": 0, "teacher_output": "x"}, "no effect with teacher_passages 0"),
        (
            {"teacher": "linear", "teacher_passages": 0, "stage2_teacher_passages": False},
            "no effect with teacher_passages 0",
        ),
        ({"teacher": "linear", "teacher_weight": 0.0}, "teacher_weight 0 ignores the teacher"),
        ({"teacher": "linear", "teacher_weight": float("nan")}, "teacher_weight"),
        ({"teacher": "linear", "teacher_share": 1.0}, "teacher_share"),
        ({"teacher": "linear", "teacher_passages": -1}, "teacher_passages"),
        ({"teacher": "linear", "stage2_rdrop": 1.0}, "stage2_rdrop 1.0 compares two passes"),
        ({"teacher": "linear", "teacher_temperature": 0.0}, "teacher_temperature"),
        ({"teacher_candidates": 9}, "teacher_candidates 9 has no effect without a teacher"),
        ({"teacher": "linear", "teacher_passages": 0, "teacher_candidates": 9}, "no effect with teacher_passages 0"),
        ({"teacher": "linear", "teacher_candidates": 9}, "teacher_candidates 9 are fewer than teacher_passages 4000"),
        ({"teacher": "linear", "teacher_candidates": 0}, "teacher_candidates"),
        ({"teacher": "linear", "teacher_trust": "spread"}, "teacher_trust: expected one of confidence, entropy; received"),
        ({"teacher": "linear", "teacher_passage_length": None}, "teacher_passage_length: expected one of whole, task;"),
        ({"teacher_rounds": 2}, "teacher_rounds 2 has no effect without a teacher"),
        ({"stage2_teacher_passages": False}, "stage2_teacher_passages False has no effect without a teacher"),
        ({"teacher": ["linear", "runs/a"]}, "teacher linear cannot be combined with others"),
        ({"teacher": ["runs/a", "self"]}, "teacher self cannot be combined with others"),
    ],
)
def test_invalid_teacher_options_are_refused(tmp_path, options, message):
    with pytest.raises(ValueError, match=message):
        TlmArguments(output_dir=str(tmp_path), **QUIET, **options)


@pytest.mark.parametrize("none", [None, []])
def test_null_means_no_teacher(tmp_path, none):
    args = TlmArguments(output_dir=str(tmp_path), **QUIET, teacher=none)
    assert not args.taught and args.teacher == ["none"]
    with pytest.raises(ValueError, match="no effect without a teacher"):
        TlmArguments(output_dir=str(tmp_path), **QUIET, teacher=none, teacher_weight=2.0)


def model_file(folder):
    values = {name: value for name, value in TINY_CONFIGS["bert"].items() if name not in ("vocab_size", "num_labels")}
    (folder / "model.json").write_text(json.dumps({"model_type": "bert", **values}))
    return ModelArguments(model_config=str(folder / "model.json"), vocab_size=120)


@pytest.mark.parametrize(
    "option",
    [
        {"teacher_passages": 7},
        {"teacher_candidates": 5000},
        {"teacher_trust": "entropy"},
        {"teacher_output": "out"},
        {"stage2_teacher_passages": False},
    ],
)
def test_passage_options_without_passages_are_refused(tmp_path, task, option):
    args = TlmArguments(output_dir=str(tmp_path / "run"), **{**FAST, "rho1": 0}, teacher="linear", **option)
    with pytest.raises(ArgumentsError, match=f"{next(iter(option))} .* has no effect without a subset"):
        run_tlm(task, None, args, model_file(tmp_path))
    assert not (tmp_path / "run").exists()
    pairs = {name: rows.add_column("text_pair", rows["text"][:]) for name, rows in task.splits.items()}
    with pytest.raises(ArgumentsError, match="has no effect for pairs of texts"):
        check_passage_options(dataclasses.replace(task, splits=pairs), True, args)
    check_passage_options(task, True, args)


def test_unusable_teacher_output_is_refused(tmp_path, task, corpus):
    """Before the teacher is asked, and only a subset with answers may be replaced."""
    subset = retrieve(task, corpus, top_k=4)
    subset.save(tmp_path / "subset")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "notes.txt").write_text("mine")
    for name, message in (("subset", "would be lost"), ("other", "something other than a"), ("run", "of the run itself")):
        options = {"teacher": "linear", "teacher_output": str(tmp_path / name)}
        args = TlmArguments(output_dir=str(tmp_path / "run"), **FAST, **options)
        with pytest.raises(HfTlmError, match=message):
            run_tlm(task, subset, args, model_file(tmp_path))
        assert not (tmp_path / "run").exists()
    teacher = ask_teacher(task, subset.dataset, args)
    answered_subset(subset, teacher, task.label_names).save(tmp_path / "answered")
    args.teacher_output = str(tmp_path / "answered")
    check_passage_options(task, True, args)


@pytest.mark.slow
def test_second_round_is_taught_by_the_seeds_of_the_first(tmp_path, task, corpus):
    """The best round becomes the run's result, and interrupted rounds resume."""
    model_args, subset = model_file(tmp_path), retrieve(task, corpus, top_k=4)
    options = {**FAST, "teacher": "linear", "teacher_passages": 20, "seeds": [0, 1], "save_strategy": "no"}

    def rounds(folder):
        return run_tlm(
            task, subset, TlmArguments(output_dir=str(tmp_path / folder), **options, teacher_rounds=2), model_args
        )

    run = rounds("run")
    record = json.loads((tmp_path / "run" / "results.json").read_text())
    first, second = (json.loads((tmp_path / "run" / f"round-{n}" / "results.json").read_text()) for n in (1, 2))
    means = [round_record["summary"]["validation"]["macro_f1"]["mean"] for round_record in (first, second)]
    assert [round_record["validation"] for round_record in record["rounds"]] == means
    best = (first, second)[record["round"] - 1]
    assert record["summary"] == best["summary"] and record["round"] == 1 + (means[1] > means[0])
    assert second["teacher"]["model"] == "the average of 2 models (round-1/seed-0/model, round-1/seed-1/model)"
    assert [round_record["model"] for round_record in second["teacher"]["earlier"]] == ["logistic regression on TF-IDF"]
    weights = tmp_path / "run" / f"round-{record['round']}" / "model.safetensors"
    assert (tmp_path / "run" / "model.safetensors").read_bytes() == weights.read_bytes()
    assert f"round        {record['round']} is the best of 2 on validation" in run.to_text()
    report = read_run(tmp_path / "run")
    assert report.started_seeds == [0, 1] and "The teacher" in report_page(report)
    assert f"This is round {record['round']} of 2" in (tmp_path / "run" / "README.md").read_text()
    shutil.rmtree(tmp_path / "run" / "round-2" / "seed-1")
    (tmp_path / "run" / "results.json").unlink()
    shutil.move(tmp_path / "run", tmp_path / "moved")
    rounds("moved")
    assert json.loads((tmp_path / "moved" / "results.json").read_text())["summary"] == record["summary"]


@pytest.mark.slow
def test_self_taught_run_repeats_the_untaught_run_first(tmp_path, task, corpus):
    """The first round equals the untaught run bit for bit; its seeds together teach the second."""
    model_args, subset = model_file(tmp_path), retrieve(task, corpus, top_k=4)
    options = {**FAST, "seeds": [0, 1], "save_strategy": "no"}
    taught = {"teacher": "self", "teacher_passages": 0, "teacher_temperature": 2.0}
    run_tlm(task, subset, TlmArguments(output_dir=str(tmp_path / "plain"), **options), model_args)
    run_tlm(task, subset, TlmArguments(output_dir=str(tmp_path / "run"), **options, **taught), model_args)
    weights = [
        tmp_path / name / "seed-1" / "model" / "model.safetensors" for name in ("plain", "run/round-1", "run/round-2")
    ]
    plain, first, second = (path.read_bytes() for path in weights)
    assert plain == first != second
    record, plain, first, second = (
        json.loads((tmp_path / name / "results.json").read_text()) for name in ("run", "plain", "run/round-1", "run/round-2")
    )
    assert "teacher" not in first and first["summary"] == plain["summary"]
    assert {**first["arguments"], "output_dir": ""} == {**plain["arguments"], "output_dir": ""}
    assert second["teacher"]["model"] == "the average of 2 models (round-1/seed-0/model, round-1/seed-1/model)"
    assert second["arguments"]["teacher_temperature"] == 2.0 and "passages" not in second["teacher"]
    costs = [sum(seed["cost"]["flops"] for seed in one["seeds"]) for one in (first, second)]
    assert [one["flops"] for one in record["rounds"]] == [costs[0], costs[1] + second["teacher"]["flops"]]
    assert len(record["rounds"]) == 2 and record["summary"] == (first, second)[record["round"] - 1]["summary"]
    assert ("teacher" in record) == (record["round"] == 2)
    assert (
        f"This is round {record['round']} of 2, the best round on validation" in (tmp_path / "run" / "README.md").read_text()
    )
    assert "The teacher" in report_page(read_run(tmp_path / "run" / "round-2"))


def test_self_taught_run_has_two_rounds_by_default(tmp_path, task):
    args = TlmArguments(output_dir=str(tmp_path), **QUIET, teacher="self")
    assert args.teacher_rounds == 2 and args.taught and args.taught_by_itself
    assert TlmArguments(output_dir=str(tmp_path), **QUIET, teacher="self", teacher_rounds=3).teacher_rounds == 3
    plain, untaught = TlmArguments(output_dir=str(tmp_path), **QUIET), args.untaught()
    assert {entry.name: getattr(untaught, entry.name) for entry in dataclasses.fields(plain)} == {
        entry.name: getattr(plain, entry.name) for entry in dataclasses.fields(plain)
    }
    with pytest.raises(ArgumentsError, match="only `hf-tlm train` has rounds. Pass the folder of a finished run"):
        FinetuneArguments(output_dir=str(tmp_path), report_to="none", use_cpu=True, teacher="self")
    with pytest.raises(ArgumentsError, match="teacher_labels has no effect"):
        open_teacher(task, TlmArguments(output_dir=str(tmp_path), **QUIET, teacher="self", teacher_labels=["a=b"]))


@pytest.mark.slow
@pytest.mark.parametrize("stage", [1, 2])
def test_interrupted_run_resumes_bit_for_bit(tmp_path, task, corpus, monkeypatch, stage):
    """With dropout and micro-batches, within either stage; the teacher is not asked again."""
    model_args, subset, step = model_file(tmp_path), retrieve(task, corpus, top_k=4), TlmTrainer.training_step
    options = {**FAST, "save_strategy": "steps", "save_steps": 2, "per_device_train_batch_size": 4}
    options |= {"gradient_accumulation_steps": 2, "teacher": "linear", "teacher_temperature": 2.0, "teacher_passages": 20}

    def run(folder):
        return run_tlm(task, subset, TlmArguments(output_dir=str(tmp_path / folder), **options), model_args)

    def interrupt(self, *given, **named):
        if self.state.global_step == 3 and f"stage{stage}" in str(self.args.output_dir):
            raise KeyboardInterrupt
        return step(self, *given, **named)

    whole = run("whole")
    monkeypatch.setattr(models.LinearTeacher, "__call__", lambda *_: pytest.fail("its answers are in the cache"))
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(TlmTrainer, "training_step", interrupt)
        run("run")
    assert [path.name for path in (tmp_path / f"run/seed-0/stage{stage}").glob("checkpoint-*")] == ["checkpoint-2"]
    again = run("run")
    assert again.seeds[0]["test"] == whole.seeds[0]["test"]
    weights = [(tmp_path / name / "model.safetensors").read_bytes() for name in ("whole", "run")]
    assert weights[0] == weights[1]


@pytest.mark.slow
def test_teacher_is_recorded_in_results_card_and_report(tmp_path, task, corpus, caplog):
    subset = retrieve(task, corpus, top_k=4)
    args = TlmArguments(output_dir=str(tmp_path / "run"), **FAST, teacher="linear", teacher_passages=20)
    with caplog.at_level(logging.INFO, "hf_tlm.runs.teachers.ask"):
        run = run_tlm(task, subset, args, model_file(tmp_path))
    record = json.loads((tmp_path / "run" / "results.json").read_text())
    assert record["teacher"]["passages"] == sum(record["teacher"]["passages_by_class"].values()) > 0
    assert "The teacher: logistic regression on TF-IDF" in caplog.text
    card = (tmp_path / "run" / "README.md").read_text()
    assert "logistic regression on TF-IDF" in card and f"{record['teacher']['passages']:,} passages" in card
    shown = json.loads((tmp_path / "run" / "teacher.json").read_text())
    examples = shown.pop("examples")
    assert shown == record["teacher"]
    page = report_page(read_run(tmp_path / "run"))
    assert "Predicted classes of the passages" in page and "logistic regression on TF-IDF, " in page
    assert html.escape(next(iter(examples.values()))[0]["text"]) in page
    (tmp_path / "run" / "teacher.json").write_text(json.dumps({"model": "x", "passages": -1}))
    with pytest.raises(AnalysisError, match="passages must be a whole number"):
        report_page(read_run(tmp_path / "run"))
    (line,) = [
        line for line in run.to_text().splitlines() if line.startswith("teacher      logistic regression on TF-IDF, ")
    ]
    assert line.endswith(f"; cost {record['teacher']['seconds']:,.0f} s")


@pytest.fixture(scope="module")
def runs(tmp_path_factory, tokenizer):
    """Two seeds of a fine-tuned classifier."""
    folder = tmp_path_factory.mktemp("runs")
    base = pretrained(folder / "base", tokenizer)
    go(folder / "out", base, num_train_epochs=6, seeds=[0, 1])
    return [folder / "out" / f"seed-{seed}" / "model" for seed in (0, 1)]


def softmaxes(folder, texts):
    model = AutoModelForSequenceClassification.from_pretrained(folder).eval()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    with torch.inference_mode():
        rows = [model(**tokenizer(text, truncation=True, max_length=32, return_tensors="pt")).logits[0] for text in texts]
    return torch.stack(rows).softmax(-1).numpy()


def test_answers_of_several_models_are_averaged(task, runs):
    answers = answers_of_teacher(task, PASSAGES, 12, [str(folder) for folder in runs])
    expected = sum(softmaxes(folder, PASSAGES) for folder in runs) / 2
    assert answers.rows.tolist() == most_certain(expected, np.bincount(task.train["label"][:]) / 48, 12).tolist()
    np.testing.assert_allclose(answers.passages, expected[answers.rows], atol=1e-5)
    of_train = sum(softmaxes(folder, task.train["text"]) for folder in runs) / 2
    np.testing.assert_allclose(answers.train, replace_wrong_answers(of_train, np.array(task.train["label"][:])), atol=1e-5)
    of_validation = sum(softmaxes(folder, task.validation["text"]) for folder in runs) / 2
    right = (of_validation.argmax(1) == task.validation["label"][:]).mean()
    assert answers.report["held_out"] == "validation texts" and answers.report["held_out_accuracy"] == round(right, 4)
    assert "the average of 2 models (out/seed-0/model, out/seed-1/model)" in answers.report["model"]
    assert answers.report["flops"] > 0 and len(answers.report["teachers"]) == 2
    costs = [json.loads((folder.parent / "results.json").read_text())["cost"]["flops"] for folder in runs]
    assert answers.report["training"]["flops"] == sum(costs) > 0


def test_export_is_a_teacher(task, runs, tmp_path):
    """Its 8-bit graph answers, or the float32 one if there is no other; its cost is that of the model and the answers."""
    (tmp_path / "passages.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in PASSAGES))
    found, digests = {}, set()
    for dtypes in (["fp32", "int8"], ["fp32"]):
        folder = tmp_path / dtypes[-1]
        export_onnx(str(runs[0]), folder, task=task, dtypes=dtypes, max_drop=100)
        answers = found[dtypes[-1]] = answers_of_teacher(task, PASSAGES, 12, str(folder))
        options = {"backend": "onnx", "onnx_dtype": dtypes[-1]}
        file = predict(str(folder), str(tmp_path / "passages.jsonl"), folder.with_suffix(".jsonl"), **options)
        predictions = [json.loads(line)["probabilities"] for line in file.read_text().splitlines()]
        expected = np.array([[row[name] for name in task.label_names] for row in predictions])
        np.testing.assert_allclose(answers.passages, expected[answers.rows], atol=1e-5)
        assert answers.report["model"].endswith(f"{dtypes[-1]} ({dtypes[-1]} export)")
        digests |= {entry["digest"] for entry in answers.report["teachers"]}
    assert len(digests) == 2
    plain = answers_of_teacher(task, PASSAGES, 12, str(runs[0]))
    np.testing.assert_allclose(found["fp32"].passages, plain.passages, atol=1e-4)
    assert not np.allclose(found["int8"].train, plain.train, atol=1e-5)
    for name in ("parameters", "tokens", "flops", "training"):
        assert found["int8"].report[name] == plain.report[name] and plain.report[name]
    (tmp_path / "int8/onnx/model_quantized.onnx").unlink()
    (tmp_path / "int8/seal.json").unlink()
    with pytest.raises(HfTlmError, match="int8 is an export without onnx/model_quantized.onnx. Export it again"):
        answers_of_teacher(task, PASSAGES, 12, str(tmp_path / "int8"))


def test_teachers_of_a_teacher_are_recorded_with_licence_and_cost(task, runs, tmp_path):
    """Each cost is counted once, whether the run, a seed or all seeds are named as the teacher."""
    run = shutil.copytree(runs[0].parent.parent, tmp_path / "run")
    path, seed = run / "results.json", run / "seed-0" / "model"
    first = {"model": "me/<b>", "teachers": [{"name": "me/<b>", "revision": "0f", "license": "mit"}], "flops": 3e20}
    earlier = {"model": "it", "teachers": [], "flops": 1.0, "seconds": 2.0}
    odd = {"model": "odd", "teachers": [], "flops": 10**400}
    taught = {**first, "seconds": 5.0, "training": {"flops": 4e20, "seconds": 6.0}, "earlier": [earlier, odd, "damaged", {}]}
    path.write_text(json.dumps(json.loads(path.read_text()) | {"teacher": taught}))
    costs = [one["cost"] for one in json.loads(path.read_text())["seeds"]]
    links = [{**first, "flops": 7e20, "seconds": 11.0}, earlier, {"model": "odd", "teachers": []}]
    seeds = [str(seed), str(run / "seed-1" / "model")]
    for names, counted in ((str(run), costs), (str(seed), costs[:1]), (seeds, costs)):
        report = answers_of_teacher(task, PASSAGES, 10, names).report
        assert report["earlier"] == links
        assert report["training"]["flops"] == pytest.approx(7e20 + sum(cost["flops"] for cost in counted), rel=1e-12)
        assert report["training"]["seconds"] == pytest.approx(11 + sum(cost["seconds"] for cost in counted))
    assert cost_line(taught) == "; cost 11 s and 7e+20 FLOPs, including its training"
    assert lineage(report)[1:] == links and "(itself taught by me/<b>, it, odd)" in described(report)
    card = tlm_card({**RUN, "arguments": {**RUN["arguments"], "teacher_weight": 1.0}, "teacher": report}, 1)
    assert "The teacher was itself taught by `me/<b>`. `me/<b>` at revision `0f`: licence `mit`. That" in card
    assert "That teacher was taught by `it`." in card
    assert "; its training, including its own teachers, took" in card and "7e+20 FLOPs" in card
    seeds = [{**one, "cost": {"flops": 10**400, "seconds": 1}} for one in json.loads(path.read_text())["seeds"]]
    path.write_text(json.dumps(json.loads(path.read_text()) | {"seeds": seeds}))
    report = answers_of_teacher(task, PASSAGES, 10, str(run)).report
    assert report["earlier"] == links and "training" not in report, "what no float holds is no cost"
    path.unlink()
    (run / "teacher.json").write_text(json.dumps(taught))
    assert answers_of_teacher(task, PASSAGES, 10, str(seed)).report["earlier"] == links, (
        "the run of a finished seed is unfinished"
    )


def test_other_class_names_need_a_mapping(task, runs, tmp_path):
    """The same names in another order need none; several names may be mapped to one class."""
    model = AutoModelForSequenceClassification.from_pretrained(runs[0])
    model.config.id2label, model.config.label2id = {0: "lowers", 1: "nothing", 2: "raises"}, None
    other = tmp_path / "other"
    model.save_pretrained(other)
    AutoTokenizer.from_pretrained(runs[0]).save_pretrained(other)
    with pytest.raises(ArgumentsError, match="expected the same names. Pass --teacher_labels"):
        answers_of_teacher(task, PASSAGES, 10, str(other))
    with pytest.raises(ArgumentsError, match="has no class 'up'"):
        answers_of_teacher(task, PASSAGES, 10, str(other), teacher_labels=["up=up"])
    with pytest.raises(ArgumentsError, match="received 'lowers'"):
        answers_of_teacher(task, PASSAGES, 10, str(other), teacher_labels=["lowers"])
    names = ["lowers=down", "nothing=none", "raises=up"]
    made, same = (
        answers_of_teacher(task, PASSAGES, 10, str(other), teacher_labels=names),
        answers_of_teacher(task, PASSAGES, 10, str(runs[0])),
    )
    np.testing.assert_allclose(made.passages, same.passages, atol=1e-5)
    made = class_matrix(["1", "2", "3"], ["good", "bad"], {"1": "bad", "2": "bad", "3": "good"}, "it")
    assert made.tolist() == [[0, 1], [0, 1], [1, 0]]


def test_digest_ignores_files_that_a_run_rewrites(runs, tmp_path):
    folder = shutil.copytree(runs[0], tmp_path / "again")
    digest = models._digest(folder)
    for name in ("teacher.json", ".places.json", "settings.json"):
        (folder / name).write_text("{}")
    assert models._digest(folder) == digest
    (folder / "tokenizer_config.json").write_text("{}")
    assert models._digest(folder) != digest


def test_base_of_an_adapter_is_part_of_the_teacher(task, tokenizer, tmp_path):
    base = pretrained(tmp_path / "base", tokenizer)
    go(tmp_path / "out", base, model={"use_peft": True}, max_steps=1)
    before = answers_of_teacher(task, PASSAGES, 10, str(tmp_path / "out"))
    model = AutoModel.from_pretrained(base)
    model.embeddings.word_embeddings.weight.data.mul_(-1)
    model.save_pretrained(base)
    after = answers_of_teacher(task, PASSAGES, 10, str(tmp_path / "out"))
    assert before.report["teachers"][0]["digest"] != after.report["teachers"][0]["digest"]
    assert before.rows.tolist() != after.rows.tolist() or (before.passages != after.passages).any()
    torch.save(model.state_dict(), base / "pytorch_model.bin")
    (base / "model.safetensors").unlink()
    with pytest.raises(ArgumentsError, match="The base of the adapter .* has no weights in the safetensors format"):
        answers_of_teacher(task, PASSAGES, 10, str(tmp_path / "out"))
    base.rename(tmp_path / "moved")
    told = "The adapter in .*out needs the base model .*base, which does not exist. Restore it"
    with pytest.raises(ModelError, match=told):
        answers_of_teacher(task, PASSAGES, 10, str(tmp_path / "out"))
    with pytest.raises(ModelError, match=told):
        load_finished(tmp_path / "out", AUTO_CLASS)


def test_name_and_licence_are_not_taken_from_the_cache(task, runs, tmp_path):
    answers_of_teacher(task, PASSAGES, 10, str(runs[0]))
    copy = shutil.copytree(runs[0], tmp_path / "another")
    (copy / "README.md").write_text("---\nlicense: mit\n---\n")
    (copy / "seal.json").unlink(missing_ok=True)
    report = answers_of_teacher(task, PASSAGES, 10, str(copy)).report
    assert report["model"].endswith("/another") and report["teachers"][0]["license"] == "mit"


def test_digest_covers_the_names_of_many_classes(task, monkeypatch, tmp_path):
    """NumPy prints such a large matrix only in part."""
    names = [f"c{i}" for i in range(40)]
    swapped = [*names[:18], names[19], names[18], *names[20:]]
    matrices = [class_matrix(names, names, dict(zip(names, own, strict=True)), "it") for own in (names, swapped)]
    digests = []
    for matrix in matrices:
        one = models._Model("runs/a", SimpleNamespace(folder=tmp_path), matrix, "same")
        monkeypatch.setattr(models, "_open_model", lambda *_, one=one: one)
        monkeypatch.setattr(models, "_describe_model", lambda _: {})
        monkeypatch.setattr(models, "training_costs", lambda _: (None, []))
        digests.append(models.ModelTeacher(task, ["runs/a"], {}, {}).digest)
    assert digests[0] != digests[1]


def test_interrupted_teacher_resumes(task, runs, cache, monkeypatch):
    monkeypatch.setattr(models, "CHUNK", 16)
    whole = answers_of_teacher(task, PASSAGES, 10, str(runs[0]))
    shutil.rmtree(cache)
    chunks, numbers = [], models._convert_predictions

    def fail_after_four(predictions, one):
        if len(chunks) == 4:
            raise HfTlmError("the machine is gone")
        chunks.append(len(predictions))
        return numbers(predictions, one)

    monkeypatch.setattr(models, "_convert_predictions", fail_after_four)
    with pytest.raises(HfTlmError, match="gone"):
        answers_of_teacher(task, PASSAGES, 10, str(runs[0]))
    (parts,) = cache.glob("teacher-*.parts")
    files = sorted(parts.iterdir())
    files[0].write_bytes(b"cut off")
    with np.load(files[1]) as kept:
        part = dict(kept)
    np.savez(files[1], **{**part, "seconds": 1000.0})
    monkeypatch.setattr(models, "_convert_predictions", lambda *given: chunks.append(0) or numbers(*given))
    again = answers_of_teacher(task, PASSAGES, 10, str(runs[0]))
    assert len(files) == 4 and len(chunks) == 4 + 1 + 8 - 4, "one part was damaged, four of eight were missing"
    assert 1000 <= again.report["seconds"] < 1100, "what was asked before the interruption is on the bill"
    assert again.report["tokens"] == whole.report["tokens"] and again.report["flops"] == whole.report["flops"]
    assert (again.passages == whole.passages).all() and (again.train == whole.train).all() and not parts.exists()


def test_each_split_has_one_progress_bar(task, runs, capfd, monkeypatch):
    tqdm_module = sys.modules["datasets.utils.tqdm"]  # The package also has a class of that name.
    monkeypatch.setattr(tqdm_module, "HF_DATASETS_DISABLE_PROGRESS_BARS", None)
    monkeypatch.setattr(tqdm_module, "_hf_datasets_progress_bars_disabled", False)
    answers_of_teacher(task, PASSAGES, 10, str(runs[0]))
    bars = capfd.readouterr().err.replace("\r", "\n")
    assert all(
        f"Asking the teacher about {split}: 100%" in bars for split in ("validation texts", "training texts", "passages")
    )
    assert "Tokenising" not in bars and is_progress_bar_enabled()


def test_models_that_cannot_teach_are_refused(task, runs, tmp_path):
    with pytest.raises(ModelError, match="Model 'nowhere' not found"):
        answers_of_teacher(task, PASSAGES, 10, "nowhere")
    pairs = make_task()
    pairs.splits["train"] = pairs.train.add_column("text_pair", ["a"] * len(pairs.train))
    with pytest.raises(ArgumentsError, match="was trained on single texts, but this task has pairs"):
        answers_of_teacher(pairs, PASSAGES, 10, str(runs[0]))
    pickled = tmp_path / "pickled"
    shutil.copytree(runs[0], pickled)
    torch.save({}, pickled / "pytorch_model.bin")
    (pickled / "model.safetensors").unlink()
    (pickled / "seal.json").unlink(missing_ok=True)
    with pytest.raises(ArgumentsError, match="no weights in the safetensors format"):
        answers_of_teacher(task, PASSAGES, 10, str(pickled))
    for other in ("crf", "adapter_model"):  # With such a file beside it, the pickle would be read.
        save_file({"other": torch.zeros(1)}, pickled / f"{other}.safetensors")
        with pytest.raises(ArgumentsError, match="no weights in the safetensors format"):
            answers_of_teacher(task, PASSAGES, 10, str(pickled))
    diverged = shutil.copytree(runs[0], tmp_path / "diverged")
    model = AutoModelForSequenceClassification.from_pretrained(runs[0])
    model.classifier.weight.data.fill_(float("nan"))
    model.save_pretrained(diverged)
    for names in ([str(diverged)], [str(runs[0]), str(diverged)]):
        with pytest.raises(ArgumentsError, match="The teacher .*diverged cannot answer. .* not finite"):
            answers_of_teacher(task, PASSAGES, 10, names)
    tags = dataclasses.replace(task, spec=TaskSpec(name="tags", path="", kind="tagging"))
    with pytest.raises(ArgumentsError, match="tags is a tagging task"):
        answers_of_teacher(tags, None, 10, str(runs[0]))


def test_subset_is_saved_with_the_answers(task, corpus, runs, tmp_path):
    subset = retrieve(task, corpus, top_k=4)
    args = TlmArguments(output_dir="unused", **QUIET, teacher=str(runs[0]), teacher_passages=12)
    teacher = ask_teacher(task, subset.dataset, args)
    answered_subset(subset, teacher, task.label_names).save(tmp_path / "answered")
    loaded = Subset.load(tmp_path / "answered")
    said = loaded.dataset["teacher_probs"][:]
    assert [row for row, answer in enumerate(said) if answer is not None] == teacher.rows.tolist()
    np.testing.assert_allclose([answer for answer in said if answer is not None], teacher.passages)
    assert loaded.dataset["text"][:] == subset.dataset["text"][:] and loaded.manifest["teacher"]["passages"] == len(
        teacher.rows
    )
    card = (tmp_path / "answered" / "README.md").read_text()
    assert "probabilities of down, none, up by the teacher `out/seed-0/model`" in card and "licence unknown" in card
    again = ask_teacher(task, loaded.dataset, args)
    assert (again.passages == teacher.passages).all()


def scores_of_teacher(task, subset, method, teacher, **options):
    args = ScoreModelArguments(output_dir="unused", report_to="none", use_cpu=True, teacher=teacher, **options)
    return teacher_scores(task, subset, method, args)


def test_selection_by_confidence_keeps_the_most_certain_passages(task, corpus, tmp_path, monkeypatch, caplog):
    """Equals a plain loop over the answers; balanced, it has the most confident passages of every class in equal
    number."""
    subset = retrieve(task, corpus, top_k=4)
    answers = answers_of_teacher(task, subset.dataset.to_dict(), len(subset) * 3)  # Enough that all of them are chosen.
    monkeypatch.setattr(models.LinearTeacher, "__call__", lambda *_: pytest.fail("the answers are in the cache"))
    assert answers.rows.tolist() == list(range(len(subset)))
    for trust in ("confidence", "entropy"):
        idle = {"teacher_weight": 2.0, "teacher_candidates": 5000, "teacher_output": "answers"}
        scores = scores_of_teacher(task, subset, "confidence", "linear", teacher_trust=trust, **idle)
        certainty = {"confidence": lambda p: p.max(), "entropy": lambda p: (p * np.log(p)).sum()}[trust]
        expected = [certainty(row) for row in answers.passages.astype(float)]
        np.testing.assert_allclose(scores.values, expected, atol=1e-5)
        best = sorted(range(len(subset)), key=lambda row: -scores.values[row])
        smaller = select(task, subset, method="confidence", num_passages=9, scores=scores)
        assert smaller.dataset["id"][:] == [subset.dataset["id"][row] for row in sorted(best[:9])]
        each = [[row for row in best if answers.passages[row].argmax() == label][:3] for label in range(3)]
        assert [len(rows) for rows in each] == [3, 3, 3]
        balanced = select(task, subset, method="confidence", num_passages=9, balance="class", scores=scores)
        assert balanced.dataset["id"][:] == [subset.dataset["id"][row] for row in sorted(sum(each, []))]
    idle = "teacher_weight 2.0, teacher_candidates 5000, teacher_output answers"
    assert f"With method confidence these options have no effect: {idle}." in caplog.text
    balanced.save(tmp_path / "saved")
    loaded = Subset.load(tmp_path / "saved")
    assert loaded.manifest["selection"] == {
        "size": 9, "of": len(subset), "method": "confidence", "num_passages": 9, "balance": "class", "trust": "entropy",
        "passages_without_score": 0, "teacher": {"model": "logistic regression on TF-IDF"},
    }  # fmt: skip
    assert loaded.dataset.features["teacher_score"].dtype == "float32"
    card = (tmp_path / "saved" / "README.md").read_text()
    assert "negative entropy, in nats, of the probabilities of the teacher `logistic regression on TF-IDF`" in card
    assert "by how certain a teacher is of them (" in card and "the labels that the teacher was trained with" in card


def test_selection_by_disagreement_keeps_the_most_disputed_passages(task, corpus, runs):
    subset = retrieve(task, corpus, top_k=4)
    scores = scores_of_teacher(task, subset, "disagreement", [str(folder) for folder in runs])
    probabilities = np.stack([softmaxes(folder, subset.dataset["text"][:]) for folder in runs]).astype(float)
    mean = probabilities.mean(0)
    divergences = np.array(
        [np.mean([(p * np.log(p / mean[row])).sum() for p in probabilities[:, row]]) for row in range(len(subset))]
    )
    np.testing.assert_allclose(scores.values, divergences, atol=1e-5)
    assert scores.classes.tolist() == mean.argmax(1).tolist() and scores.about["teacher"]["flops"] > 0
    smaller = select(task, subset, method="disagreement", fraction=0.2, scores=scores)
    best = sorted(sorted(range(len(subset)), key=lambda row: -scores.values[row])[: round(0.2 * len(subset))])
    assert smaller.dataset["id"][:] == [subset.dataset["id"][row] for row in best]
    report = retrieval_report(smaller)
    assert "by how much teachers differ on them" in report and "teacher the average of 2 models (out/seed-0/model" in report


def test_selections_without_a_suitable_teacher_are_refused(task, corpus, runs, tmp_path):
    subset = retrieve(task, corpus, top_k=4)
    for none in ("none", "self"):
        with pytest.raises(ArgumentsError, match=f"Selection by confidence needs a --teacher .* received {none}"):
            scores_of_teacher(task, subset, "confidence", none)
    for one in ("linear", str(runs[0]), [str(runs[0])] * 2):
        with pytest.raises(ArgumentsError, match="Disagreement needs several different teachers"):
            scores_of_teacher(task, subset, "disagreement", one)
    with pytest.raises(ArgumentsError, match="teacher_trust has no effect on disagreement"):
        scores_of_teacher(task, subset, "disagreement", [str(folder) for folder in runs], teacher_trust="entropy")
    pairs = {name: rows.add_column("text_pair", rows["text"][:]) for name, rows in task.splits.items()}
    with pytest.raises(ArgumentsError, match="(pairs|single texts)"):
        scores_of_teacher(dataclasses.replace(task, splits=pairs), subset, "confidence", str(runs[0]))
    texts = subset.dataset["text"][:4]
    answers = write_table(tmp_path / "a.csv", {"text": texts, **{name: BY_NAME[name][:4] for name in BY_NAME}})
    scores = scores_of_teacher(task, subset, "confidence", answers)
    assert np.isfinite(scores.values).sum() == 4
    assert select(task, subset, method="confidence", num_passages=4, scores=scores).dataset["text"][:] == texts
    with pytest.raises(InfluenceError, match=f"5 passages were asked for, and 4 of {len(subset)} have a score"):
        select(task, subset, method="confidence", num_passages=5, scores=scores)


def write_table(path, columns):
    rows = Dataset.from_dict(columns)
    {".csv": rows.to_csv, ".jsonl": rows.to_json, ".parquet": rows.to_parquet}[path.suffix](str(path))
    return str(path)


SHARES = np.random.default_rng(1).dirichlet([1, 1, 1], 40).round(4)
BY_NAME = dict(zip(("down", "none", "up"), SHARES.T.tolist(), strict=True))


@pytest.mark.parametrize("suffix", [".csv", ".jsonl", ".parquet"])
def test_file_of_answers_is_a_teacher(task, tmp_path, suffix):
    expected = SHARES / SHARES.sum(1, keepdims=True)
    by_text = answers_of_teacher(task, PASSAGES, 30, write_table(tmp_path / f"a{suffix}", {"text": PASSAGES, **BY_NAME}))
    np.testing.assert_allclose(by_text.passages, expected[by_text.rows], atol=1e-5)
    assert not by_text.train.any() and "held_out_accuracy" not in by_text.report
    ids = [f"p{i}" for i in range(40)]
    named = {"id": ids, **{f"probability_{name}": shares for name, shares in BY_NAME.items()}}
    by_id = answers_of_teacher(task, {"id": ids, "text": PASSAGES}, 30, write_table(tmp_path / f"b{suffix}", named))
    np.testing.assert_allclose(by_id.passages, by_text.passages)


def test_rows_with_different_classes_are_refused(task, tmp_path):
    objects = [dict(zip(BY_NAME, shares, strict=True)) for shares in SHARES.tolist()]
    for changed in ({"down": 0.5, "none": 0.5}, {**objects[3], "more": 0.0}):
        lines = [{"text": text, "probabilities": one} for text, one in zip(PASSAGES, objects, strict=True)]
        lines[3]["probabilities"] = changed
        path = tmp_path / f"{len(changed)}.jsonl"
        path.write_text("".join(json.dumps(line) + "\n" for line in lines))
        with pytest.raises(ArgumentsError, match="row 3 .counted from 0. has"):
            answers_of_teacher(task, PASSAGES, 10, str(path))


@pytest.mark.parametrize("written", ["{:03}", "{}"])
def test_csv_ids_keep_leading_zeros(task, tmp_path, written):
    """They also match the passages of an older subset, whose ids were read as numbers (7 for 007)."""
    path = write_table(tmp_path / "a.csv", {"id": [f"{i:03}" for i in range(40)], **BY_NAME})
    made = answers_of_teacher(task, {"id": [written.format(i) for i in range(40)], "text": PASSAGES}, 30, path)
    np.testing.assert_allclose(made.passages, (SHARES / SHARES.sum(1, keepdims=True))[made.rows], atol=1e-5)
    assert len(made.rows) > 20


def test_id_of_both_a_passage_and_a_text_is_refused(task, tmp_path):
    ids = [*task.train["id"][:1], *(f"p{i}" for i in range(39))]
    path = write_table(tmp_path / "a.jsonl", {"id": ids, **BY_NAME})
    with pytest.raises(ArgumentsError, match=f"the id '{ids[0]}' is in train and in the passages"):
        answers_of_teacher(task, {"id": ids, "text": PASSAGES}, 30, path)


def test_output_of_predict_is_a_teacher(task, runs, tmp_path):
    rows = [*task.train["text"], *task.validation["text"], *PASSAGES]
    texts = write_table(tmp_path / "texts.jsonl", {"text": list(dict.fromkeys(rows))})
    for suffix in (".jsonl", ".csv", ".parquet"):
        written = predict(str(runs[0]), texts, tmp_path / f"answers{suffix}", use_cpu=True)
        made, same = (
            answers_of_teacher(task, PASSAGES, 10, str(written)),
            answers_of_teacher(task, PASSAGES, 10, str(runs[0])),
        )
        np.testing.assert_allclose(made.train, same.train, atol=1e-5)
        np.testing.assert_allclose(made.passages, same.passages, atol=1e-5)
        assert made.report["held_out_accuracy"] == same.report["held_out_accuracy"]


@pytest.mark.parametrize(
    "columns, message",
    [
        ({"words": PASSAGES, **BY_NAME}, "expected a column text, or id; it has words"),
        ({"text": PASSAGES}, "expected a column for every class"),
        ({"text": PASSAGES, "down": [0.5] * 40, "up": [0.5] * 40}, "are down, up, and the task's are down, none, up"),
        ({"text": PASSAGES, **BY_NAME, "up": [float("nan")] * 40}, "a number in every row; row 0 .counted from 0. has none"),
        ({"text": PASSAGES, **BY_NAME, "up": [None] * 40}, "a number in every row; row 0 .counted from 0. has none"),
        ({"text": PASSAGES, **BY_NAME, "up": [3.0] * 40}, "that add up to 1; row 0 .counted from 0. has .* 3 "),
        (
            {"text": PASSAGES, "down": [1.5] * 40, "none": [-0.5] * 40, "up": [0.0] * 40},
            "row 0 .counted from 0. has 1.5, -0.5, 0 .40 such",
        ),
        ({"text": PASSAGES, **BY_NAME, "up": [float("inf")] * 40}, "a number in every row; row 0 .counted from 0. has none"),
        ({"text": PASSAGES, **BY_NAME, "up": ["much"] * 40}, "expected numbers; .*much"),
        ({"text": [*PASSAGES[:39], None], **BY_NAME}, "row 39 .counted from 0. has no text .1 such"),
        ({"id": [None, *"bc" * 19, "d"], **BY_NAME}, "row 0 .counted from 0. has no id .1 such"),
        ({"text": PASSAGES, "probability_a": [0.5] * 40, "probability_b": [0.5] * 40}, "are a, b, and the task's are"),
        ({"text": ["other"] * 2 + PASSAGES[2:], **BY_NAME}, "two answers for 'other'"),
        ({"text": [f"other {i}" for i in range(40)], **BY_NAME}, "for no training text and no passage"),
    ],
)
def test_invalid_files_of_answers_are_refused(task, tmp_path, columns, message):
    with pytest.raises(ArgumentsError, match=message):
        answers_of_teacher(task, PASSAGES, 10, write_table(tmp_path / "a.jsonl", columns))


def test_file_with_only_some_training_texts_is_refused(task, tmp_path):
    rows = {"text": list(dict.fromkeys(task.train["text"]))[:10], **{name: BY_NAME[name][:10] for name in BY_NAME}}
    with pytest.raises(ArgumentsError, match="of the task's 48 training texts. Add answers for all"):
        answers_of_teacher(task, PASSAGES, 10, write_table(tmp_path / "a.csv", rows))
    with pytest.raises(ArgumentsError, match="teacher_passage_length task asks about parts of passages"):
        answers_of_teacher(task, PASSAGES, 10, write_table(tmp_path / "a.csv", rows), teacher_passage_length="task")


@pytest.mark.parametrize("name", ["answers.csv", "answers/teacher.jsonl"])
def test_missing_file_is_not_looked_up_on_the_hub(task, name):
    with pytest.raises(ArgumentsError, match=f"teacher {name}: this file does not exist"):
        answers_of_teacher(task, PASSAGES, 10, name)


def test_passages_are_cut_to_the_lengths_of_the_task_texts():
    texts = [" ".join(["word"] * count) for count in (3, 5, 5, 9)]
    passages = [f"a  passage of\nmany words, number {i}, and then some more of them" for i in range(200)]
    ends = task_lengths(texts, [*passages, "short"])
    lengths = Counter(len(passage[:end].split()) for passage, end in zip(passages, ends, strict=False))
    assert set(lengths) == {3, 5, 9} and 90 < lengths[5] < 110 and ends[-1] == 5
    for passage, end in zip(passages, ends, strict=False):
        assert passage.startswith(passage[:end]) and passage[:end].split()[-1] in passage.split()


def test_passages_without_spaces_are_cut_by_characters():
    assert task_lengths(["今天北京很冷吗"], ["我们 昨天在北京看见了雪", "很冷"]).tolist() == [8, 2]


def test_teacher_and_student_see_the_same_cut_passages(task):
    long = [f"{text} and {text} and {text}" for text in PASSAGES]
    made = answers_of_teacher(task, long, 12, teacher_passage_length="task")
    texts = made.texts(Dataset.from_dict({"text": long}))["text"][:]
    longest = max(len(text.split()) for text in task.train["text"])
    assert len(texts) == 12 and all(len(text.split()) <= longest for text in texts)
    cut = answers_of_teacher(
        task, [text[:end] for text, end in zip(long, task_lengths(task.train["text"], long), strict=True)], 12
    )
    assert made.rows.tolist() == cut.rows.tolist() and (made.passages == cut.passages).all()


def test_trust_by_entropy_or_confidence():
    probabilities = np.array([[0.6, 0.4, 0.0], [0.62, 0.19, 0.19], [0.5, 0.5, 0.0]])
    assert most_certain(probabilities, np.array([1.0, 0, 0]), 1, "confidence").tolist() == [1]
    assert most_certain(probabilities, np.array([1.0, 0, 0]), 1, "entropy").tolist() == [0]


@pytest.mark.parametrize("odd", [10**400, -1, "x"])
def test_invalid_cost_is_dropped_from_the_lineage(odd):
    who = {"model": "it", "teachers": [{"name": "me/b", "revision": None, "license": "gpl-3.0"}]}
    assert lineage({**who, "flops": odd, "seconds": 1.0}) == [who]


def test_doubts_about_a_teacher(tmp_path):
    """Each doubt is raised only where it applies, and the report shows all of them."""
    good = {"held_out_accuracy": 0.9, "largest_class": 0.4, "class_shares": {"a": 0.5, "b": 0.5}}
    counts = {"passages_by_class": {"a": 3, "b": 3}, "subset_by_class": {"a": 40, "b": 60}}
    assert doubts({**good, **counts}) == []
    # Not to remove --teacher, which a selection by teachers needs.
    assert "nothing to teach. Choose another" in doubts({**good, **counts, "held_out_accuracy": 0.45})[0]
    assert "the shares differ by 45%" in doubts({**good, **counts, "subset_by_class": {"a": 95, "b": 5}})[0]
    for marks, kind in (({}, "passage of the subset"), ({"marks": ["<<", ">>"]}, "marked sentence")):
        assert f"labels no {kind} as b" in doubts({**good, **counts, **marks, "passages_by_class": {"a": 3, "b": 0}})[0]
    alike = {
        **good,
        "model": "it",
        "passages": 3,
        "passages_by_class": {"a": 3, "b": 0},
        "subset_by_class": {"a": 9, "b": 0},
    }
    (doubt,) = doubts(alike)
    assert doubt.startswith("The teacher labels every passage of the subset as a: it does not distinguish them.")
    assert described(alike).endswith("; 3 passages: all a: the teacher does not distinguish them")
    tenths = [0, 0, 0, 0, 0, 10, 10, 10, 10, 60]
    assert doubts({**good, **counts, "confidence_by_tenth": tenths}) == []
    sure = doubts({**good, **counts, "confidence_by_tenth": tenths, "held_out_accuracy": 0.7, "held_out": "texts"})
    assert len(sure) == 1 and "is 85% certain of the class of a passage, but 70% right on texts" in sure[0]
    marked = {**good, **counts, "marks_without_passages": ["<<", "[["], "passages": 6}
    assert "have the marks << [[ and no passage of the subset has" in doubts(marked)[0]
    assert "--teacher_passages 0" in doubts(marked)[0]
    bad = {**marked, "model": "it", "held_out_accuracy": 0.41, "subset_by_class": {"a": 95, "b": 5}}
    (tmp_path / "teacher.json").write_text(json.dumps(bad))
    shown = teacher_and_subset.teacher(SimpleNamespace(home=tmp_path, best_seed=None, record={"teacher": bad}))
    for left_out in ("model", "largest_class"):  # A file that the report did not write.
        (tmp_path / "teacher.json").write_text(json.dumps({k: v for k, v in bad.items() if k != left_out}))
        if left_out == "model":
            with pytest.raises(AnalysisError, match="model must be a text"):
                teacher_and_subset.teacher(SimpleNamespace(home=tmp_path, best_seed=None, record={"teacher": bad}))
        else:
            assert (
                teacher_and_subset.teacher(SimpleNamespace(home=tmp_path, best_seed=None, record={"teacher": bad}))
                .blocks[0]
                .text.startswith("it; 6")
            )
    assert len(doubts(bad)) == 3 and [block.text for block in shown.blocks[1:4]] == doubts(bad)


def test_report_has_examples_of_every_class(task):
    made = answers_of_teacher(task, PASSAGES, 12)
    examples = made.report["examples"]
    assert set(examples) == {"down", "none", "up"} and sum(made.report["confidence_by_tenth"]) == 40
    for shown in examples.values():
        probabilities = [one["probability"] for one in shown]
        assert probabilities == sorted(probabilities, reverse=True) and all(one["text"] in PASSAGES for one in shown)
