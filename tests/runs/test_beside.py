"""A run's results compared with the baselines without a network, and averaged with the linear model."""

import json
from dataclasses import replace

import numpy as np
import pytest
from sklearn.metrics import f1_score

from hf_tlm.metrics import paired_bootstrap, scorer
from hf_tlm.runs import linear_model
from hf_tlm.runs.averaging import baseline_entries, class_indices, one_class_entry
from hf_tlm.runs.baselines import linear_predictions, to_beat
from hf_tlm.runs.records import logits_to_predictions, to_beat_line
from hf_tlm.utils.run_files import predictions_file
from support.report_runs import classified as answers_of
from support.report_runs import write_lines
from support.toys import make_task


@pytest.fixture
def task(tmp_path, monkeypatch):
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")
    return make_task()


def write_run_predictions(task, folder, wrong):
    """Write the predictions of seeds. wrong: seed -> the rows of every split that it gets wrong."""
    for seed, rows in wrong.items():
        for split in ("validation", "test"):
            write_lines(folder / f"seed-{seed}" / "predictions" / f"{split}.jsonl", answers_of(task, split, rows))
    return folder, [{"seed": seed} for seed in wrong]


def test_linear_predictions_are_cached(task, monkeypatch):
    """They equal the predictions that `hf-tlm baseline` writes."""
    cached, linear = linear_predictions(task), linear_model(task)
    assert list(cached) == list(linear.predictions) == ["validation", "test"]
    for split, classes in linear.predictions.items():
        assert class_indices(task, cached[split]) == classes.tolist()
        assert cached[split] == logits_to_predictions(linear.model.logits(task.splits[split]), task.label_names)
    monkeypatch.setattr("hf_tlm.runs.baselines.make_baselines", None)
    assert linear_predictions(task) == cached and to_beat(task)


def test_lead_over_the_linear_model_is_recorded_per_split(task, tmp_path):
    """On both splits, for the mean over seeds."""
    majority, linear = baseline_entries(
        task, *write_run_predictions(task, tmp_path / "run", {0: {0, 1}, 3: {2}}), to_beat(task)
    )["baselines"]
    assert [majority["name"], linear["name"]] == ["majority class", "linear"] and "lead" not in majority
    assert set(linear["lead"]) == {"validation", "test"}
    for split, lead in linear["lead"].items():
        labels = np.array(task.splits[split]["label"][:])
        ours = []
        for wrong in ([0, 1], [2]):
            predicted = labels.copy()
            predicted[wrong] = (labels[wrong] + 1) % task.num_labels
            ours.append(scorer(task.metric, labels, predicted))
        theirs = [scorer(task.metric, labels, class_indices(task, linear_predictions(task)[split]))]
        assert lead == paired_bootstrap(ours, theirs, len(labels)).to_dict()
    json.dumps(linear)


def test_seeds_that_predict_a_single_class_are_recorded(task, tmp_path):
    folder, records = write_run_predictions(task, tmp_path / "run", {0: {1}, 3: {2}})
    assert one_class_entry(task, folder, records) == {}
    path, name = predictions_file(folder / "seed-3", "validation"), task.label_names[1]
    write_lines(path, [{**json.loads(line), "prediction": name} for line in path.open()])
    assert one_class_entry(task, folder, records) == {"one_class": {"3": name}}
    alike = replace(task, splits={**task.splits, "validation": task.validation.select([0])})
    assert one_class_entry(alike, *write_run_predictions(alike, tmp_path / "alike", {0: set()})) == {}


def test_each_seed_is_averaged_with_the_linear_model(task, tmp_path):
    folder, records = write_run_predictions(task, tmp_path / "run", {0: {0, 1, 2, 3}, 3: {4}})
    with_linear = baseline_entries(task, folder, records, to_beat(task))["with_linear"]
    linear = linear_predictions(task)
    for split in ("validation", "test"):
        labels, scores = np.array(task.splits[split]["label"][:]), []
        for seed in (0, 3):
            predictions = [json.loads(line) for line in predictions_file(folder / f"seed-{seed}", split).open()]
            shares = [
                [one["probabilities"][name] + other["probabilities"][name] for name in task.label_names]
                for one, other in zip(predictions, linear[split], strict=True)
            ]
            scores.append(f1_score(labels, np.argmax(shares, axis=1), average="macro"))
        assert with_linear[split]["macro_f1"]["values"] == pytest.approx(scores)
        assert with_linear[split]["macro_f1"]["mean"] == pytest.approx(np.mean(scores))
    assert set(with_linear["test"]) == {"macro_f1", "accuracy"}
    one = baseline_entries(task, *write_run_predictions(task, tmp_path / "one", {0: {1}}), to_beat(task))
    assert one["with_linear"]["test"]["accuracy"]["std"] is None and "averaged_with_linear" not in one


def test_all_seeds_as_one_are_averaged_with_the_linear_model(task, tmp_path):
    """The linear model has half of the weight, however many seeds there are."""
    folder, records = write_run_predictions(task, tmp_path / "run", {0: {0, 1, 2}, 3: {2, 4}, 5: {1, 5}})
    both = baseline_entries(task, folder, records, to_beat(task))["averaged_with_linear"]
    assert both.pop("n") == 3 and set(both) == {"validation", "test"}
    for split, scores in both.items():
        seeds = [
            [json.loads(line) for line in predictions_file(folder / f"seed-{seed}", split).open()] for seed in (0, 3, 5)
        ]
        shares = [
            [
                np.mean([one["probabilities"][name] for one in rows]) + other["probabilities"][name]
                for name in task.label_names
            ]
            for *rows, other in zip(*seeds, linear_predictions(task)[split], strict=True)
        ]
        labels = task.splits[split]["label"][:]
        assert scores["macro_f1"] == pytest.approx(f1_score(labels, np.argmax(shares, axis=1), average="macro"))


def test_splits_with_missing_or_other_predictions_are_not_compared(task, tmp_path, monkeypatch):
    """A split that a seed has not predicted, or whose rows or classes differ, is left out; the record is otherwise the
    same."""
    folder, records = write_run_predictions(task, tmp_path / "run", {0: {0}, 3: {2}})
    (folder / "seed-3" / "predictions" / "test.jsonl").unlink()
    found = baseline_entries(task, folder, records, to_beat(task))
    assert list(found["baselines"][1]["lead"]) == ["validation"]
    assert list(found["with_linear"]) == ["validation"]
    lines = answers_of(task, "validation", {1})
    for damage in (lines[:-1], [{**line, "prediction": "another"} for line in lines]):
        write_lines(folder / "seed-3" / "predictions" / "validation.jsonl", damage)
        assert baseline_entries(task, folder, records, to_beat(task)) == {"baselines": to_beat(task)}
    assert baseline_entries(task, folder, [], to_beat(task)) == {"baselines": to_beat(task)}


def test_without_a_linear_model_nothing_is_compared(task, tmp_path, monkeypatch):
    monkeypatch.setattr("hf_tlm.runs.baselines.MOST_WORDS", 3)
    found = to_beat(task)
    assert [one["name"] for one in found] == ["majority class"]
    assert baseline_entries(task, *write_run_predictions(task, tmp_path / "run", {0: {0}}), found) == {"baselines": found}


@pytest.mark.parametrize(
    "lead,mean,said",
    [
        (None, 0.60, "; the linear model is ahead"),
        (None, 0.80, ""),
        ((-0.1, -0.2, -0.05), 0.60, "; the linear model is ahead by 10.00 points (95% interval 5.00 to 20.00)"),
        (
            (-0.1, -0.2, 0.05),
            0.60,
            "; the linear model is ahead by 10.00 points, which may be due to the choice of these texts (95% interval "
            "-5.00 to 20.00)",
        ),
        ((0.1, 0.02, 0.2), 0.80, "; the run is ahead of the linear model by 10.00 points (95% interval 2.00 to 20.00)"),
        (
            (0.1, -0.02, 0.2),
            0.80,
            "; the run is ahead of the linear model by 10.00 points, which may be due to the choice of these texts (95% "
            "interval -2.00 to 20.00)",
        ),
        ((0.0, -0.02, 0.2), 0.70, "; the linear model has the same score"),
    ],
)
def test_last_line_compares_the_run_with_the_linear_model(lead, mean, said):
    linear = {"name": "linear", "scores": {"test": {"macro_f1": 0.7}}}
    if lead is not None:
        linear["lead"] = {"test": dict(zip(("difference", "low", "high"), lead, strict=True))}
    found = [{"name": "majority class", "scores": {"test": {"macro_f1": 0.1}}}, linear]
    line = to_beat_line(found, "macro_f1", {"test": {"macro_f1": {"mean": mean}}})
    assert line == f"majority class 10.00, linear 70.00 (macro_f1 on test){said}"
