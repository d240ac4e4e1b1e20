"""A linear teacher: held-out answers, the passages it is sure of, and what a run makes of them."""

import json
import logging

import numpy as np
import pytest
import torch
from datasets import Dataset
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression

from hf_tlm.data import tokenize
from hf_tlm.objectives.task import class_weights
from hf_tlm.retrieval import retrieve
from hf_tlm.runs import run_tlm
from hf_tlm.tasks import TaskSpec, task_from_datasets
from hf_tlm.training import ModelArguments, TlmArguments
from hf_tlm.training import teacher as teaching
from hf_tlm.training.errors import ArgumentsError
from hf_tlm.training.teacher import corrected, linear_teacher, marks_without_passages, most_certain, repeats
from support.toys import FAST, TINY_CONFIGS, make_task, sentences
from support.training_runs import QUIET, trainer


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")
    return tmp_path / "cache" / "hf_tlm"


PASSAGES = [row["text"] for row in sentences(40, 9)]


def test_answers_are_those_of_a_model_that_has_not_seen_the_text(task):
    made = linear_teacher(task, PASSAGES, 10)
    texts, labels = list(task.train["text"]), np.array(task.train["label"])
    n, c = made.report["n_grams"], made.report["C"]
    folds, right = teaching._folds(texts, labels), 0
    assert sorted(row for _, test in folds for row in test.tolist()) == list(range(len(texts)))
    for train, test in folds:
        features = TfidfVectorizer(token_pattern=r"(?u)\w+|[^\w\s]", ngram_range=(1, n), sublinear_tf=True)
        model = LogisticRegression(C=c, max_iter=300).fit(features.fit_transform([texts[i] for i in train]), labels[train])
        expected = model.predict_proba(features.transform([texts[i] for i in test]))
        right += (correct := expected.argmax(1) == labels[test]).sum()
        expected[~correct] = np.eye(3)[labels[test][~correct]]
        np.testing.assert_allclose(made.train[test], expected, atol=2e-3)
    np.testing.assert_allclose(made.train.sum(1), 1, atol=1e-5)
    np.testing.assert_allclose(made.passages.sum(1), 1, atol=1e-5)
    assert made.report["held_out_accuracy"] == round(right / len(labels), 4) > 0.5
    assert (made.train.argmax(1) == labels).all()


def test_a_mistaken_answer_is_the_label():
    said = np.array([[0.6, 0.3, 0.1], [0.6, 0.3, 0.1], [0.1, 0.2, 0.7]])
    assert corrected(said, np.array([0, 1, 2])).tolist() == [[0.6, 0.3, 0.1], [0, 1, 0], [0.1, 0.2, 0.7]]


def test_equal_texts_are_held_out_together():
    texts = [f"text number {i // 2}" if i % 2 else f"Text  number {i // 2}" for i in range(40)]
    for train, test in teaching._folds(texts, np.arange(40) // 2 % 2):
        assert not {i // 2 for i in train.tolist()} & {i // 2 for i in test.tolist()}


def test_a_class_that_a_part_has_not_seen_is_improbable_not_impossible():
    rows = sentences(30) + [{"text": "a rare one", "label": "rare"}]
    data = {name: Dataset.from_list(rows) for name in ("train", "validation")}
    made = linear_teacher(task_from_datasets(TaskSpec(name="rare", path="memory", metric="macro_f1"), data), [], 10)
    assert made.train[-1].tolist() == [0, 0, 1, 0]  # Of which the teacher was sure that it is another.
    assert 0 < made.train[made.train.max(1) < 1].min() < 1e-4
    assert len(made.rows) == 0 and "passages" not in made.report


def test_the_most_certain_passages_of_each_class():
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


def test_texts_are_repeated_until_passages_are_few_enough():
    for texts, passages, share in ((300, 2909, 0.5), (20000, 4000, 0.5), (7, 3, 0.25), (10, 90, 0.9), (1, 1, 0.5)):
        times = repeats(texts, passages, share)
        assert passages / (passages + times * texts) <= share + 1e-9
        assert times == 1 or passages / (passages + (times - 1) * texts) > share


def test_rows_with_answers(task, tokenizer):
    made = linear_teacher(task, PASSAGES, 12)
    texts = tokenize(task.train, tokenizer, 32)
    passages = tokenize(Dataset.from_dict({"text": [PASSAGES[i] for i in made.rows]}), tokenizer, 32)
    rows = made.answered(texts, passages, 0.15)
    assert len(made.rows) == 12 and len(rows) == 2 * 48 + 12
    assert rows["label"][:] == [*texts["label"], *texts["label"], *[-100] * 12]
    np.testing.assert_allclose(rows["teacher_probs"][:], np.concatenate([made.train, made.train, made.passages]))
    assert rows["input_ids"][-1] == passages["input_ids"][-1]
    alone = made.answered(texts, None, 0.5)
    assert len(alone) == 48 and alone["label"][:] == texts["label"][:]
    assert class_weights(rows["label"][:], 3, 1.0) == pytest.approx(class_weights(texts["label"][:], 3, 1.0))


def test_the_cache_is_used_and_made_again_when_damaged(task, cache, monkeypatch):
    first = linear_teacher(task, PASSAGES, 10)
    asked = []
    monkeypatch.setattr(teaching, "_ask", lambda *args, ask=teaching._ask: asked.append(1) or ask(*args))
    again = linear_teacher(task, PASSAGES, 10)
    assert not asked and (again.train == first.train).all() and again.report == first.report
    linear_teacher(task, PASSAGES, 11)
    linear_teacher(task, PASSAGES[1:], 10)
    assert len(asked) == 2, "other passages or another number of them are asked for"
    for damage in (b"", b"PK\x03\x04 not an archive"):
        for folder in cache.glob("teacher-*"):
            (folder / "answers.npz").write_bytes(damage)
        healed = linear_teacher(task, PASSAGES, 10)
        assert (healed.train == first.train).all() and (healed.rows == first.rows).all()
    assert len(asked) == 4


def test_marks_that_passages_lack():
    texts = [f"<< aspirin >> inhibits [[ cox {i} ]] -- it seems" for i in range(10)]
    assert marks_without_passages(texts, ["a passage -- without marks"] * 200) == ["<<", ">>", "[[", "]]"]
    assert marks_without_passages(texts, ["<< so >> [[ these ]] -- have"] * 5) == []
    assert marks_without_passages(["plain text, this."] * 3, ["other"]) == []


def test_passages_in_chunks_are_passages_at_once(task, cache, monkeypatch):
    whole = linear_teacher(task, PASSAGES, 10)
    for folder in cache.glob("teacher-*"):
        (folder / "seal.json").unlink()
    monkeypatch.setattr(teaching, "CHUNK", 7)
    parts = linear_teacher(task, PASSAGES, 10)
    assert parts.rows.tolist() == whole.rows.tolist()
    np.testing.assert_allclose(parts.passages, whole.passages, atol=1e-6)


def test_pairs_and_too_few_texts_are_refused(task):
    pairs = make_task()
    pairs.splits["train"] = pairs.train.add_column("text_pair", ["a"] * len(pairs.train))
    with pytest.raises(ArgumentsError, match="single texts, and this task's are pairs"):
        linear_teacher(pairs, [], 0)
    few = make_task(train=3)
    with pytest.raises(ArgumentsError, match="teacher linear .* Leave --teacher out"):
        linear_teacher(few, [], 0)


@pytest.mark.parametrize(
    "options, message",
    [
        ({"teacher_weight": 2.0}, "teacher_weight 2.0 has no effect without a teacher"),
        ({"teacher_passages": 10}, "teacher_passages 10 has no effect without a teacher"),
        ({"teacher_share": 0.1}, "teacher_share 0.1 has no effect without a teacher"),
        ({"teacher": "linear", "teacher_weight": 0.0}, "teacher_weight 0 leaves the teacher unheard"),
        ({"teacher": "linear", "teacher_weight": float("nan")}, "teacher_weight"),
        ({"teacher": "linear", "teacher_share": 1.0}, "teacher_share"),
        ({"teacher": "linear", "teacher_passages": -1}, "teacher_passages"),
        ({"teacher": "linear", "stage2_rdrop": 1.0}, "stage2_rdrop 1.0 compares two passes"),
    ],
)
def test_options(tmp_path, options, message):
    with pytest.raises(ValueError, match=message):
        TlmArguments(output_dir=str(tmp_path), **QUIET, **options)


@pytest.fixture
def answered(data, task, tokenizer):
    """Texts of the trainers' data, with answers, and passages."""
    made = linear_teacher(task, PASSAGES, 30)
    texts = tokenize(task.train, tokenizer, 32)
    passages = tokenize(Dataset.from_dict({"text": [PASSAGES[i] for i in made.rows]}), tokenizer, 32)
    return {**data, "train": made.answered(texts, passages, 0.5)}


@pytest.mark.slow
@pytest.mark.parametrize("options", [{"rho1": 1}, {"rho1": 0, "loss_normalization": "sum", "mlm_probability": 0.3}])
def test_1x8_equals_8x1(tmp_path, answered, tokenizer, options):
    weights = []
    for batch_size, accumulation in ((8, 1), (1, 8), (2, 4)):
        sizes = {"per_device_train_batch_size": batch_size, "gradient_accumulation_steps": accumulation}
        run = trainer(
            tmp_path / str(batch_size), answered, tokenizer, teacher="linear", teacher_weight=2.0, **sizes, **options
        )
        run.train()
        assert any("task/teacher_loss" in entry for entry in run.state.log_history)
        weights.append(torch.cat([p.detach().flatten() for p in run.model.parameters()]))
    torch.testing.assert_close(weights[0], weights[1], rtol=1e-4, atol=2e-5)
    torch.testing.assert_close(weights[0], weights[2], rtol=1e-4, atol=2e-5)


def test_the_loss_is_the_sum_of_its_parts(tmp_path, answered, tokenizer):
    run = trainer(
        tmp_path, answered, tokenizer, teacher="linear", teacher_weight=0.5, rho1=0, rho2=2, loss_normalization="sum"
    )
    batch = next(iter(run.get_train_dataloader()))
    loss = run.compute_loss(run.model.train(), dict(batch))
    outputs = run.model(**{name: values for name, values in batch.items() if name != "teacher_probs"})
    logs, own = outputs.logits.log_softmax(-1), batch["labels"] >= 0
    assert 0 < own.sum() < len(own)
    task_loss = -logs[own].gather(1, batch["labels"][own, None]).mean()
    teacher_loss = -(batch["teacher_probs"] * logs).sum(-1).mean()
    masked = (batch["mlm_labels"] != -100).sum()
    torch.testing.assert_close(loss, 2 * outputs.mlm_loss / masked + task_loss + 0.5 * teacher_loss, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_a_run_learns_from_its_teacher_and_says_so(tmp_path, task, corpus, caplog):
    config = {
        "model_type": "bert",
        **{k: v for k, v in TINY_CONFIGS["bert"].items() if k not in ("vocab_size", "num_labels")},
    }
    (tmp_path / "model.json").write_text(json.dumps(config))
    subset = retrieve(task, corpus, top_k=4)
    args = TlmArguments(output_dir=str(tmp_path / "run"), **FAST, teacher="linear", teacher_passages=20)
    with caplog.at_level(logging.INFO, "hf_tlm.training.teacher"):
        run = run_tlm(task, subset, args, ModelArguments(model_config=str(tmp_path / "model.json"), vocab_size=120))
    record = json.loads((tmp_path / "run" / "results.json").read_text())
    assert record["teacher"]["passages"] == sum(record["teacher"]["passages_by_class"].values()) > 0
    assert "The teacher: logistic regression on TF-IDF" in caplog.text
    card = (tmp_path / "run" / "README.md").read_text()
    assert "a linear model on TF-IDF" in card and f"{record['teacher']['passages']:,} passages" in card
    assert "teacher      logistic regression on TF-IDF, " in run.to_text()
