"""Selecting from a subset: what is kept, what manifest, report and card say, and what is refused."""

import logging
from dataclasses import replace

import numpy as np
import pytest
import yaml
from datasets import Dataset

from hf_tlm.corpora import load_corpus
from hf_tlm.data import tokenize
from hf_tlm.influence import InfluenceError, SelectionArguments, select, select_rows
from hf_tlm.influence.selection import log_importance_weights, resample
from hf_tlm.retrieval import RetrievalError, Subset, retrieval_report, retrieve
from hf_tlm.retrieval.subset_files import CARD_FILE, COLUMNS, DATA_FILE
from hf_tlm.tasks import Task
from support.fake_scorer import FakeScorer
from support.toys import make_task


@pytest.fixture(scope="module")
def subset(corpus_rows, tmp_path_factory):
    """Return a subset of about 52 passages for the toy task; two have no token to mask."""
    rows = [{**row, "id": f"p{number}"} for number, row in enumerate(corpus_rows)]
    corpus = load_corpus(Dataset.from_list(rows), id_column="id")
    found = retrieve(make_task(), corpus, top_k=8, cache_dir=str(tmp_path_factory.mktemp("cache")))
    texts = found.dataset["text"][:]
    texts[3] = texts[30] = ""
    columns = {name: texts if name == "text" else found.dataset[name][:] for name in COLUMNS}
    return Subset(Dataset.from_dict(columns, features=found.dataset.features), found.manifest)


@pytest.fixture
def scorer(tokenizer):
    return FakeScorer(tokenizer)


@pytest.fixture
def by_influence(task, subset, scorer, tmp_path):
    def make(**options):
        return select(task, subset, scorer=scorer, work_dir=tmp_path / "work", max_length=32, **options)

    return make


def all_scores(task_rows, subset, scorer, batch_size, folder):
    rows = tokenize(subset.dataset.select_columns("text"), scorer.tokenizer, 32)
    fresh = FakeScorer(scorer.tokenizer)
    fresh.fit(task_rows, batch_size, folder)
    return fresh.score(rows.add_column("id", subset.dataset["id"][:]))


@pytest.mark.parametrize("size", [{"fraction": 0.2}, {"num_passages": 11}, {"top_k": 5}], ids=lambda size: next(iter(size)))
def test_iss_keeps_the_most_influential(task, subset, scorer, by_influence, tmp_path, size):
    found = by_influence(corpus_batch_size=2, task_batch_size=3, **size)
    scores = all_scores(tokenize(task.validation, scorer.tokenizer, 32), subset, scorer, 3, tmp_path / "fitted")
    number = {"fraction": round(0.2 * len(subset)), "num_passages": 11}.get(next(iter(size)))
    expected = select_rows(scores, corpus_batch_size=2, num_passages=number, top_k=size.get("top_k"))
    assert len(found) == (number or len(expected.rows)) < len(subset)
    kept = subset.dataset.select(expected.rows)
    assert found.dataset.select_columns(list(COLUMNS)).to_dict() == kept.to_dict()
    assert found.dataset["influence"][:] == expected.influence.tolist()
    assert found.dataset["influence_rank"][:] == expected.rank.tolist()
    kinds = {name: feature.dtype for name, feature in found.dataset.features.items()}
    assert kinds == {**COLUMNS, "influence": "float32", "influence_rank": "int32"}
    assert found.manifest["selection"] == {
        "size": len(found),
        "of": len(subset),
        "method": "iss",
        **size,
        "corpus_batch_size": 2,
        "task_batch_size": 3,
        "task_batches": 8,
        "balance": None,
        "validation_examples_left_out": 0,
        "passages_without_score": 2,
        "passages_not_finite": 0,
        "max_length": 32,
        "score_model": None,
        "scorer_fingerprint": "fake-2-0",
        "layer": 2,
        "parameters": ["attention.output.dense.weight"],
        "mlm_probability": 0.1,
        "projection_dim": None,
        "seed": 0,
    }


def test_options_of_the_released_script_are_recorded(task, subset, tokenizer, tmp_path):
    """Task gradients of masked training texts and groups by masked tokens are in the manifest, the report and the card."""
    scorer = FakeScorer(tokenizer)
    scorer.masked_tokens = lambda rows: 1 + np.arange(len(rows)) % 5
    scorer.settings = {**scorer.settings, "mask_task_texts": True}
    options = {"corpus_batch_size": 4, "task_batch_size": 3, "scorer": scorer, "max_length": 32, "num_passages": 11}
    found = select(task, subset, task_split="train", group_loss="tokens", work_dir=tmp_path / "work", **options)
    scores = all_scores(tokenize(task.train, tokenizer, 32), subset, scorer, 3, tmp_path / "fitted")
    weights = 1 + np.arange(len(subset)) % 5
    expected = select_rows(scores, corpus_batch_size=4, num_passages=11, weights=weights)
    assert found.dataset["influence_rank"][:] == expected.rank.tolist()
    assert found.dataset["id"][:] == [subset.dataset["id"][row] for row in expected.rows]
    record = found.manifest["selection"]
    assert (record["task_split"], record["group_loss"]) == ("train", "tokens")
    report = retrieval_report(found)
    assert "influence on the train examples" in report and "group loss tokens" in report and "of the train loss" in report
    assert "mask task texts true" in report
    found.save(tmp_path / "saved")
    card = (tmp_path / "saved" / CARD_FILE).read_text(encoding="utf-8")
    assert "batches of train examples" in card and "validation examples" not in card
    alone = replace(task, splits={"train": task.train})
    with pytest.raises(InfluenceError, match="has no validation examples"):
        select(alone, subset, **options)
    assert len(select(alone, subset, task_split="train", work_dir=tmp_path / "alone", **options)) == 11


def test_other_sizes_reuse_the_scores(by_influence, scorer):
    by_influence(fraction=0.2)
    scored = len(scorer.scored)
    assert len(by_influence(num_passages=3)) == 3 and len(scorer.scored) == scored


def test_saved_subset_gives_the_same_selection(task, subset, by_influence, tokenizer, tmp_path):
    subset.save(tmp_path / "saved")
    scorer = FakeScorer(tokenizer)
    options = {"fraction": 0.2, "scorer": scorer, "max_length": 32, "work_dir": tmp_path / "work"}
    expected = by_influence(fraction=0.2)
    found = select(task, Subset.load(tmp_path / "saved"), **options)
    assert scorer.scored == []
    assert found.dataset.to_dict() == expected.dataset.to_dict() and found.manifest == expected.manifest
    found.save(tmp_path / "a")
    expected.save(tmp_path / "b")
    data = [(tmp_path / name / DATA_FILE).read_bytes() for name in ("a", "b")]
    assert data[0] == data[1]


def test_balance_sorts_validation_by_class(task, subset, scorer, by_influence, tmp_path):
    """24 validation examples, 8 for each of 3 classes; batches of 3 leave out 2 of each."""
    found = by_influence(num_passages=12, corpus_batch_size=1, task_batch_size=3, balance="class")
    rows = tokenize(task.validation, scorer.tokenizer, 32)
    labels = np.array(rows["label"][:])
    order = [row for label in range(3) for row in np.flatnonzero(labels == label)[:6]]
    scores = all_scores(rows.select(order), subset, scorer, 3, tmp_path / "fitted")
    expected = select_rows(scores, num_passages=12, classes=[0, 0, 1, 1, 2, 2])
    assert found.dataset["id"][:] == [subset.dataset["id"][row] for row in expected.rows]
    record = found.manifest["selection"]
    assert (record["balance"], record["validation_examples_left_out"], record["task_batches"]) == ("class", 6, 6)


def test_balance_needs_a_batch_of_every_class(by_influence):
    with pytest.raises(InfluenceError, match="'down' has 8 validation examples, and task_batch_size is 9. Lower"):
        by_influence(num_passages=12, task_batch_size=9, balance="class")


def test_balance_is_checked_before_a_score_model_is_trained(task, subset, tmp_path):
    chosen = SelectionArguments(subset="unused", num_passages=12, task_batch_size=9, balance="class")
    with pytest.raises(InfluenceError, match="'down' has 8 validation examples, and task_batch_size is 9. Lower"):
        chosen.check(task, subset, str(tmp_path / "out"))


def test_balance_with_a_single_class_changes_nothing(subset, scorer, tmp_path):
    task = make_task()
    only = task.validation.filter(lambda row: row["label"] == 1)
    task = Task(task.spec, {**task.splits, "validation": only}, task.label_names)
    options = {"num_passages": 9, "scorer": scorer, "task_batch_size": 4, "work_dir": tmp_path / "work"}
    plain, balanced = select(task, subset, **options), select(task, subset, balance="class", **options)
    assert len(plain) == 9 and plain.dataset.to_dict() == balanced.dataset.to_dict()


def test_control_methods_have_the_size_and_order_of_the_subset(task, subset):
    number = round(0.25 * len(subset))
    weights = log_importance_weights(task.train["text"], subset.dataset["text"])
    drawn = np.sort(np.random.default_rng(7).permutation(len(subset))[:number]).tolist()
    expected = {
        "bm25-rank": list(range(number)),
        "random": drawn,
        "dsir": resample(weights, subset.dataset["id"][:], number, seed=7).tolist(),
    }
    for method, rows in expected.items():
        found = select(task, subset, method=method, fraction=0.25, seed=7)
        assert found.dataset.to_dict() == subset.dataset.select(rows).to_dict()
        assert found.manifest["selection"]["method"] == method and found.manifest["selection"]["size"] == number
        again = select(task, subset, method=method, num_passages=number, seed=7)
        assert again.dataset.to_dict() == found.dataset.to_dict()
    for method in ("random", "dsir"):
        other = select(task, subset, method=method, num_passages=number, seed=8)
        assert other.dataset["id"][:] != subset.dataset.select(expected[method])["id"][:]


def test_numbers_of_numpy_are_as_good_as_python_numbers(task, subset, by_influence, tmp_path):
    seed, size = {"seed": np.int64(7)}, {"num_passages": np.int64(9)}
    for method in ("random", "dsir"):
        select(task, subset, method=method, fraction=np.float32(0.25), **seed).save(tmp_path / method)
        expected = select(task, subset, method=method, fraction=0.25, seed=7)
        assert Subset.load(tmp_path / method).manifest == expected.manifest
    batches = {"corpus_batch_size": np.int64(2), "task_batch_size": np.int64(3)}
    by_influence(**size, **batches).save(tmp_path / "iss")
    assert Subset.load(tmp_path / "iss").manifest["selection"]["num_passages"] == 9


def test_extreme_fractions_select_all_or_one(task, subset):
    assert select(task, subset, method="random", fraction=1.0).dataset.to_dict() == subset.dataset.to_dict()
    assert len(select(task, subset, method="random", fraction=1e-9)) == 1


def test_saved_selection_is_equal_and_described(task, subset, by_influence, tmp_path):
    found = by_influence(fraction=0.2, score_model="scratch")
    found.save(tmp_path / "saved", report=retrieval_report(found, task))
    loaded = Subset.load(tmp_path / "saved")
    assert loaded.dataset.to_dict() == found.dataset.to_dict() and loaded.dataset.features == found.dataset.features
    assert loaded.manifest == found.manifest and loaded.summary() == found.summary()
    description = (
        f"{len(found)} of {len(subset)} passages by influence on the validation examples, ISS (fraction 0.2, layer 2, "
        "parameters attention.output.dense.weight, corpus batch size 4, task batch size 4, task batches 6, "
        "score model scratch, mlm probability 0.1, max length 32, seed 0); 2 had no token to mask, and so no score"
    )
    assert f"selected: {description}" in found.summary()
    assert f"{len(found)} of 60 passages ({len(found) / 60:.1%})" in found.summary()
    report = (tmp_path / "saved" / "report.md").read_text(encoding="utf-8")
    assert f"\n\nSelection: {description}.\n" in report and f"| passages before the selection | {len(subset)} |" in report
    assert (
        f"| passages of the subset | {len(found)} (" in report and f"| {max(found.dataset['influence'][:]):,.3g} |" in report
    )
    card = (tmp_path / "saved" / CARD_FILE).read_text(encoding="utf-8")
    assert f"A part of the passages found was selected: {description}." in card and "`influence_rank`" in card
    assert f"\n{len(found)} of the 60 passages" in card and "iss" in yaml.safe_load(card.split("---")[1])["tags"]
    assert found.manifest["versions"].keys() >= {"torch", "transformers", "hf_tlm"}


def test_score_model_is_described_in_the_summary(task, subset, by_influence):
    record = {"model": "bert_3x128.json", "rho2": 5, "learning_rate": 1e-3, "num_train_epochs": 3.0, "max_steps": -1}
    scores = {"validation": {"macro_f1": 0.3416, "accuracy": 0.525}, "digest": "a87f"}
    found = by_influence(fraction=0.2, score_model=record | scores)
    words = (
        "bert_3x128.json trained on the task (rho2 5, learning rate 0.001, num train epochs 3, macro f1 on validation 34.2"
    )
    assert f"score model {words}, accuracy on validation 52.5), mlm probability" in found.summary()
    found = by_influence(fraction=0.2, score_model=record | {"model": {"model_type": "albert"}, "max_steps": 40})
    assert "score model albert trained on the task (rho2 5, learning rate 0.001, max steps 40), mlm" in found.summary()


def test_control_methods_are_described(task, subset):
    found = select(task, subset, method="dsir", num_passages=10, seed=3)
    settings = "passages requested 10, num buckets 10,000, seed 3"
    description = f"10 of {len(subset)} passages by n-gram importance resampling, DSIR ({settings})"
    assert f"selected: {description}" in found.summary() and f"Selection: {description}." in retrieval_report(found)
    assert "## Influence" not in retrieval_report(found)
    assert "bm25-rank" not in select(task, subset, method="bm25-rank", num_passages=10).summary()


def test_input_subset_is_unchanged(task, subset):
    before = (subset.dataset.to_dict(), repr(subset.manifest))
    select(task, subset, method="random", fraction=0.5)
    assert (subset.dataset.to_dict(), repr(subset.manifest)) == before


@pytest.mark.parametrize(
    "options,message",
    [
        ({}, "needs its size as exactly one of fraction, top_k, num_passages; received none"),
        ({"fraction": 0.2, "top_k": 3}, "received fraction 0.2, top_k 3"),
        ({"fraction": 0.0}, "above 0 and at most 1; received 0.0"),
        ({"fraction": 1.5}, "above 0 and at most 1; received 1.5"),
        ({"num_passages": 0}, "num_passages: expected .*; received 0"),
        ({"top_k": 0}, "top_k: expected"),
        ({"fraction": 0.2, "corpus_batch_size": 0}, "corpus_batch_size: expected"),
        ({"fraction": 0.2, "task_batch_size": -1}, "task_batch_size: expected"),
        ({"num_passages": 1000}, "num_passages 1,000 is more than the"),
        ({"top_k": 1000}, "top_k 1,000 is more than the"),
        (
            {"fraction": 0.2, "method": "magic"},
            "one of iss, confidence, disagreement, dsir, bm25-rank, random; received 'magic'",
        ),
        ({"top_k": 3, "method": "random"}, "received method random"),
        ({"fraction": 0.2, "balance": "source"}, "balance must be class, or None; received 'source'"),
        ({"top_k": 3, "balance": "class"}, "needs method iss, confidence or disagreement, and fraction"),
        ({"fraction": 0.2, "method": "dsir", "balance": "class"}, "received method dsir"),
        ({"fraction": 0.2, "scorer": None}, "needs a scorer"),
        ({"fraction": 0.2, "method": "confidence"}, "needs the scores of a teacher for the .* passages, .* received none"),
        ({"fraction": 0.2, "max_length": 2}, "the length is the scorer's to refuse"),
        ({"fraction": 1.0, "max_length": 32}, "55 of 57 have a score; without a token that can be masked: 2,"),
    ],
)
def test_invalid_options_are_refused(task, subset, scorer, tmp_path, options, message):
    with pytest.raises(InfluenceError, match=message):
        select(task, subset, **{"scorer": scorer, "work_dir": tmp_path / "work", **options})


def test_report_that_cannot_quote_texts_is_refused_before_scoring(task, subset, tmp_path):
    other = replace(task, splits={**task.splits, "train": task.train.map(lambda row: {"id": f"other-{row['id']}"})})
    options = {"subset": "not-a-folder", "fraction": 0.5}
    with pytest.raises(RetrievalError, match="The training split of toy has no example 'train-"):
        SelectionArguments(**options, quote_task_texts=True).check(other, subset, str(tmp_path / "out"))
    SelectionArguments(**options).check(other, subset, str(tmp_path / "out"))
    SelectionArguments(**options, quote_task_texts=True).check(task, subset, str(tmp_path / "out"))


def test_unsupported_subsets_and_tasks_are_refused(task, subset, scorer):
    with pytest.raises(InfluenceError, match="Cannot select from an empty subset"):
        select(task, Subset(subset.dataset.select([]), subset.manifest), method="random", fraction=0.5)
    chosen = select(task, subset, method="random", num_passages=20)
    with pytest.raises(InfluenceError, match=rf"a selection already \(20 of {len(subset)} passages by random\)"):
        select(task, chosen, method="random", fraction=0.5)
    without = Task(task.spec, {"train": task.train}, task.label_names)
    with pytest.raises(InfluenceError, match="toy has no validation examples"):
        select(without, subset, fraction=0.5, scorer=scorer)


def test_subset_of_another_task_is_warned_about(subset, caplog):
    with caplog.at_level(logging.WARNING):
        select(make_task(), subset, method="random", fraction=0.5)
        assert not caplog.records
        for _ in range(2):  # A command checks its selection before it makes it.
            select(make_task(train=30, name="other"), subset, method="random", fraction=0.5)
    assert "retrieved for toy" in caplog.text and "not for other" in caplog.text
    assert caplog.text.count("retrieved for toy") == 1
