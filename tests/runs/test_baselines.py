"""Baselines: scores equal those of scikit-learn's pipeline, settings are chosen on validation, and results are cached."""

import json
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.metrics import f1_score
from sklearn.pipeline import make_pipeline
from sklearn.svm import LinearSVC

from hf_tlm.errors import HfTlmError
from hf_tlm.runs import baselines as module
from hf_tlm.runs import linear_model, majority_class, make_baselines
from hf_tlm.runs.linear import TOKENS, tfidf
from hf_tlm.runs.price import linear_price
from hf_tlm.runs.records import to_beat_line
from hf_tlm.tasks import TaskError
from support.toys import make_task


@pytest.fixture(scope="module")
def task():
    return make_task()


def test_linear_model_has_size_and_speed(task, tmp_path):
    """The size is that of its saved files."""
    model = linear_model(task).model
    price = linear_price(model, task)
    model.save(tmp_path)
    assert price["megabytes"] == pytest.approx(sum(file.stat().st_size for file in tmp_path.iterdir()) / 1e6, abs=6e-4)
    assert set(price["milliseconds"]) == {"32", "128"} and min(price["milliseconds"].values()) > 0
    paired = replace(
        task, splits={name: rows.add_column("text_pair", rows["text"][:]) for name, rows in task.splits.items()}
    )
    assert set(linear_price(linear_model(paired).model, paired)["texts_per_second"]) == {"32", "128"}


def test_majority_class_is_the_most_frequent_in_training(task):
    made = majority_class(task)
    (largest, _), *_ = Counter(task.train["label"][:]).most_common()
    assert made.settings == {"class": task.id2label[largest]} and made.name == "majority class"
    labels = np.asarray(task.validation["label"][:])
    assert made.scores["validation"]["accuracy"] == pytest.approx((labels == largest).mean())
    assert set(made.scores) == {"validation", "test"} and set(made.predictions["test"].tolist()) == {largest}


def test_linear_model_is_the_best_of_its_grid(task):
    """Each point is computed by scikit-learn's pipeline; the first best on validation is kept, and test plays no part."""
    expected = {}
    for n in (1, 2, 3):
        for weight in (None, "balanced"):
            for c in module.C:
                vectorizer = TfidfVectorizer(ngram_range=(1, n), sublinear_tf=True, token_pattern=TOKENS)
                model = make_pipeline(vectorizer, LinearSVC(C=c, class_weight=weight, random_state=0))
                model.fit(task.train["text"][:], task.train["label"][:])
                expected[n, weight, c] = [
                    f1_score(rows["label"][:], model.predict(rows["text"][:]), average="macro")
                    for rows in (task.validation, task.test)
                ]
    made = linear_model(task)
    best = max(expected, key=lambda point: expected[point][0])
    assert (made.settings["n_grams"], made.settings["class_weight"], made.settings["C"]) == best
    assert [made.scores[split]["macro_f1"] for split in ("validation", "test")] == pytest.approx(expected[best])
    other = replace(task, splits={**task.splits, "test": task.test.map(lambda row: {"label": 0})})
    assert linear_model(other).settings == made.settings


def test_punctuation_is_a_feature_and_trigrams_need_few_words(task, monkeypatch):
    marks = [f"one [[ {name} ]] two" for name in "abc"]
    vectorizer = TfidfVectorizer(token_pattern=TOKENS).fit(marks)
    assert "[" in vectorizer.vocabulary_ and "]" in vectorizer.vocabulary_
    monkeypatch.setattr(module, "MOST_WORDS_FOR_TRIGRAMS", 10)
    assert [n for n, *_ in module._features(task, module._max_n_gram(task))] == [1, 2]


def test_features_equal_those_of_a_vectorizer_per_n(task):
    """Bit for bit, although the texts are tokenised once: the chosen settings depend on it."""
    for n, fitted, matrices in module._features(task, 3):
        vectorizer = tfidf(n).fit(task.train["text"])
        assert fitted["text"][0] == vectorizer.get_feature_names_out().tolist()
        assert np.array_equal(fitted["text"][1], vectorizer.idf_)
        assert set(matrices) == set(task.splits)
        for split, rows in task.splits.items():
            expected, found = vectorizer.transform(rows["text"]), matrices[split]
            assert found.dtype == np.float32
            for part in ("indptr", "indices", "data"):
                assert np.array_equal(getattr(found, part), getattr(expected, part)), (n, split, part)


def test_balanced_classes_skip_class_weights(task, monkeypatch):
    tried = []
    monkeypatch.setattr(module, "LinearSVC", lambda **given: tried.append(given["class_weight"]) or LinearSVC(**given))
    labels = np.asarray(task.train["label"][:])
    chosen = np.concatenate([np.flatnonzero(labels == label)[: np.bincount(labels).min()] for label in range(3)])
    for rows, weights in ((chosen, {None}), (chosen[1:], {None, "balanced"})):
        tried.clear()
        linear_model(replace(task, splits={**task.splits, "train": task.train.select(rows)}))
        assert set(tried) == weights
    features, labels = tfidf(1).fit_transform(task.train.select(chosen)["text"]), labels[chosen]
    plain, weighed = (LinearSVC(class_weight=weight, random_state=0).fit(features, labels) for weight in (None, "balanced"))
    assert np.array_equal(plain.coef_, weighed.coef_)


@pytest.mark.parametrize("longest", [3, 2, 1])
def test_many_classes_choose_n_grams_last(task, monkeypatch, caplog, capsys, longest):
    """C and weights are chosen with single words, then n-grams grow while they improve; few classes use the full grid."""
    tried, best = [], (module.C[1], "balanced")
    uneven = replace(task, splits={**task.splits, "train": task.train.select(range(1, len(task.train)))})

    class Metric:
        def compute(self, predictions, references):
            n = 1 + max(0, len(tried) - 2 * len(module.C))
            return {task.metric: min(n, longest) + (tried[-1] == best), "accuracy": 0.5}

    def record_svc(**given):
        tried.append((given["C"], given["class_weight"]))
        return LinearSVC(**given)

    monkeypatch.setattr(module, "LinearSVC", record_svc)
    linear_model(uneven)
    assert len(tried) == 3 * 2 * len(module.C) and not caplog.messages
    assert f" {len(tried)}/{len(tried)} " in capsys.readouterr().err  # The bar counts models.
    tried.clear()
    monkeypatch.setattr(module, "MOST_CLASSES_FOR_GRID", 2)
    monkeypatch.setattr(module, "load_metric", lambda name: Metric())
    chosen = linear_model(uneven)
    # One more n-gram length is tried to see that it is no better.
    assert len(tried) == 2 * len(module.C) + min(2, longest) and set(tried[2 * len(module.C) :]) == {best}
    assert (chosen.settings["C"], chosen.settings["class_weight"]) == best
    assert chosen.settings["n_grams"] == chosen.model.n_grams == longest
    assert [message for message in caplog.messages if "3 classes, more than 2: C and the class weights of its" in message]


def test_columns_of_a_pair_have_separate_features(task):
    """The label depends on a word in one of two columns that have the same words."""

    def pairs(rows):
        return rows.map(lambda row: {"text": f"{row['label']} no", "text_pair": f"{(row['label'] + 1) % 3} yes"})

    paired = replace(task, splits={split: pairs(rows) for split, rows in task.splits.items()})
    made = linear_model(paired)
    assert made.scores["test"]["accuracy"] == 1.0
    assert made.settings["features"] == 2 * (3 + 1), "three digits and a word in each"


def test_saved_baseline_has_results_and_predictions(task, tmp_path):
    made = make_baselines(task)
    assert [one.name for one in made] == ["majority class", "linear"]
    made[1].save(tmp_path, task)
    record = json.loads((tmp_path / "results.json").read_text())
    assert record["scores"] == made[1].scores and record["task_fingerprint"] == task.fingerprint
    lines = [json.loads(line) for line in (tmp_path / "predictions" / "test.jsonl").read_text().splitlines()]
    assert [line["id"] for line in lines] == task.test["id"][:]
    right = np.mean([line["label"] == line["prediction"] for line in lines])
    assert right == pytest.approx(made[1].scores["test"]["accuracy"])
    assert [one.name for one in make_baselines(task, "linear")] == ["linear"]
    before = (tmp_path / "results.json").read_bytes()
    (tmp_path / "settings.json").write_text("{}")
    with pytest.raises(HfTlmError, match="holds a run, whose results would be replaced. Choose another folder"):
        made[0].save(tmp_path, task)
    assert (tmp_path / "results.json").read_bytes() == before


def test_other_kinds_are_refused(task):
    tagging = replace(task, spec=replace(task.spec, kind="tagging", metric="tag_accuracy"))
    for maker in (majority_class, linear_model):
        with pytest.raises(TaskError, match="supports classification tasks"):
            maker(tagging)


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")
    return tmp_path / "cache"


def test_baselines_to_beat_are_cached(task, cache, monkeypatch):
    found = module.to_beat(task)
    assert [one["name"] for one in found] == ["majority class", "linear"]
    assert found[1]["scores"] == linear_model(task).scores and set(found[1]["scores"]) == {"validation", "test"}
    json.dumps(found)
    monkeypatch.setattr(module, "make_baselines", None)
    assert module.to_beat(task) == found


def test_samples_of_texts_have_the_mean_to_beat(task, cache, monkeypatch):
    """Over the texts of each seed; only as many samples as together stay below the limit of texts."""
    draws = [replace(task, splits={**task.splits, "train": task.train.select(rows)}) for rows in (range(12), range(12, 30))]
    each = [linear_model(one).scores["test"][task.metric] for one in draws]
    found = {one["name"]: one for one in module.to_beat(task, draws)}
    assert found["linear"]["scores"]["test"][task.metric] == pytest.approx(sum(each) / 2)
    assert found["linear"]["settings"] == {"draws": 2} and found["linear"] != module.to_beat(task)[1]
    assert module.to_beat(task, draws) == list(found.values())
    monkeypatch.setattr(module, "MOST_TEXTS", sum(map(len, draws[0].splits.values())))
    first = module.to_beat(task, draws)[1]
    assert first["settings"] == {"draws": 1} and first["scores"]["test"][task.metric] == each[0]


@pytest.mark.parametrize(
    "damage",
    [
        *("{", "[]", '{"baselines": 3}', '{"baselines": [3]}', '{"baselines": [{"name": "x"}]}'),
        *(
            '{"baselines": []}',
            '{"baselines": [], "answers": {"linear": 3}}',
            '{"baselines": [], "answers": {"x": {"test": {}}}}',
        ),
    ],
)
def test_damaged_cache_is_rebuilt(task, cache, damage):
    found = module.to_beat(task)
    (file,) = cache.rglob("baselines-*.json")
    file.write_text(damage)
    assert module.to_beat(task) == found
    assert json.loads(file.read_text())["baselines"] == found


def test_other_tasks_are_cached_separately(task, cache):
    module.to_beat(task)
    module.to_beat(make_task(train=36))
    module.to_beat(replace(task, spec=replace(task.spec, metric="micro_f1")))
    assert len(list(cache.rglob("baselines-*.json"))) == 3


def test_many_words_have_only_the_majority_class_to_beat(task, cache, monkeypatch):
    monkeypatch.setattr(module, "MOST_WORDS", sum(len(text.split()) for text in task.train["text"]) - 1)
    assert [one["name"] for one in module.to_beat(task)] == ["majority class"]


def test_many_texts_choose_on_a_sample_and_fit_to_all(task, monkeypatch, capsys):
    monkeypatch.setattr(module, "MOST_TEXTS", size := len(task.train) // 2)
    fitted = []
    monkeypatch.setattr(module, "LinearSVC", lambda **given: fitted.append(RecordedSVC(**given)) or fitted[-1])
    made = linear_model(task)
    assert f" {len(fitted)}/{len(fitted)} " in capsys.readouterr().err
    sizes = [model.num_texts for model in fitted]
    assert set(sizes[:-1]) == {size} and sizes[-1] == len(task.train)
    n, c, class_weight = (made.settings[name] for name in ("n_grams", "C", "class_weight"))
    assert made.settings["chosen_on"] == f"{size:,} texts"
    vectorizer = tfidf(n)
    model = LinearSVC(C=c, class_weight=class_weight, random_state=0)
    model.fit(vectorizer.fit_transform(task.train["text"]), task.train["label"][:])
    assert made.settings["features"] == len(vectorizer.vocabulary_)
    for split, rows in (("validation", task.validation), ("test", task.test)):
        assert np.array_equal(made.predictions[split], model.predict(vectorizer.transform(rows["text"])))


class RecordedSVC(LinearSVC):
    def fit(self, features, labels):
        self.num_texts = features.shape[0]
        return super().fit(features, labels)


def test_other_kinds_have_nothing_to_beat(task, cache):
    assert module.to_beat(replace(task, spec=replace(task.spec, kind="regression", metric="pearson"))) == []


def summary_of_mean(mean):
    return {split: {"macro_f1": {"mean": mean}} for split in ("validation", "test")}


def test_line_compares_the_run_with_the_baselines():
    found = [
        {"name": "majority class", "scores": {"validation": {"macro_f1": 0.2}, "test": {"macro_f1": 0.1}}},
        {"name": "linear", "scores": {"validation": {"macro_f1": 0.8}, "test": {"macro_f1": 0.7}}},
    ]
    line = "majority class 10.00, linear 70.00 (macro_f1 on test)"
    assert to_beat_line(found, "macro_f1", summary_of_mean(0.71)) == line
    assert to_beat_line(found, "macro_f1", summary_of_mean(0.69)) == f"{line}; the linear model is ahead"
    assert to_beat_line(found, "macro_f1", summary_of_mean(0.70001)) == f"{line}; the linear model has the same score"
    assert to_beat_line(found, "macro_f1", summary_of_mean(float("nan"))) == line
    on_validation = {"validation": summary_of_mean(0.9)["validation"]}
    assert to_beat_line(found, "macro_f1", on_validation) == line.replace("test", "validation").replace(
        "10.00", "20.00"
    ).replace("70.00", "80.00")
    assert to_beat_line([], "macro_f1", summary_of_mean(0.5)) is None
    assert to_beat_line(found, "matthews_correlation", summary_of_mean(0.5)) is None
