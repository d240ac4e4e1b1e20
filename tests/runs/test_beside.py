"""What a run's record and its last line say of its lead over the models without a network."""

import json

import numpy as np
import pytest

from hf_tlm.metrics import paired_bootstrap, scorer
from hf_tlm.runs import linear_model, majority_class
from hf_tlm.runs.baselines import said_to_beat, to_beat, to_beat_line
from hf_tlm.runs.beside import beside
from support.report_runs import classified, write_lines
from support.toys import make_task


@pytest.fixture
def task(tmp_path, monkeypatch):
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")
    return make_task()


def run_of(task, folder, wrong):
    """Predictions of seeds. wrong: seed -> rows of every split that it gets wrong."""
    for seed, rows in wrong.items():
        for split in ("validation", "test"):
            write_lines(folder / f"seed-{seed}" / "predictions" / f"{split}.jsonl", classified(task, split, rows))
    return folder, [{"seed": seed} for seed in wrong]


def test_what_baselines_say_is_kept(task, monkeypatch):
    said = said_to_beat(task)
    for maker in (majority_class, linear_model):
        made = maker(task)
        assert said[made.name] == {split: one.tolist() for split, one in made.predictions.items()}
    monkeypatch.setattr("hf_tlm.runs.baselines.make_baselines", None)
    assert said_to_beat(task) == said and to_beat(task)


def test_leads_of_a_run(task, tmp_path):
    """Of both splits, over both baselines, of the mean over seeds."""
    found = beside(task, *run_of(task, tmp_path / "run", {0: {0, 1}, 3: {2}}), to_beat(task))
    assert [one["name"] for one in found] == ["majority class", "linear"]
    said = said_to_beat(task)
    for one in found:
        assert set(one["lead"]) == {"validation", "test"}
        for split, lead in one["lead"].items():
            labels = np.array(task.splits[split]["label"][:])
            ours = []
            for wrong in ([0, 1], [2]):
                predicted = labels.copy()
                predicted[wrong] = (labels[wrong] + 1) % task.num_labels
                ours.append(scorer(task.metric, labels, predicted))
            theirs = [scorer(task.metric, labels, said[one["name"]][split])]
            assert lead == paired_bootstrap(ours, theirs, len(labels)).to_dict()
    json.dumps(found)


def test_what_is_not_there_has_no_lead(task, tmp_path):
    """A split that a seed has not predicted, or of other rows; nothing else of the record changes."""
    folder, records = run_of(task, tmp_path / "run", {0: {0}, 3: {2}})
    (folder / "seed-3" / "predictions" / "test.jsonl").unlink()
    lines = classified(task, "validation", {1})
    assert [list(one["lead"]) for one in beside(task, folder, records, to_beat(task))] == [["validation"]] * 2
    write_lines(folder / "seed-3" / "predictions" / "validation.jsonl", lines[:-1])
    assert beside(task, folder, records, to_beat(task)) == to_beat(task)
    assert beside(task, folder, [], to_beat(task)) == to_beat(task)


@pytest.mark.parametrize(
    "lead,mean,said",
    [
        (None, 0.60, "; the linear model is ahead"),
        (None, 0.80, ""),
        ((-0.1, -0.2, -0.05), 0.60, "; the linear model is ahead by 10.00 points (95% interval 5.00 to 20.00)"),
        (
            (-0.1, -0.2, 0.05),
            0.60,
            "; the linear model is ahead by 10.00 points, which may be chance of these texts (95% interval -5.00 to 20.00)",
        ),
        ((0.1, 0.02, 0.2), 0.80, "; the run is ahead of the linear model by 10.00 points (95% interval 2.00 to 20.00)"),
        (
            (0.1, -0.02, 0.2),
            0.80,
            "; the run is ahead of the linear model by 10.00 points, which may be chance of these texts (95% interval "
            "-2.00 to 20.00)",
        ),
        ((0.0, -0.02, 0.2), 0.70, "; the linear model is as good"),
    ],
)
def test_the_last_line(lead, mean, said):
    of_linear = {"name": "linear", "scores": {"test": {"macro_f1": 0.7}}}
    if lead is not None:
        of_linear["lead"] = {"test": dict(zip(("difference", "low", "high"), lead, strict=True))}
    found = [{"name": "majority class", "scores": {"test": {"macro_f1": 0.1}}}, of_linear]
    line = to_beat_line(found, "macro_f1", {"test": {"macro_f1": {"mean": mean}}})
    assert line == f"majority class 10.00, linear 70.00 (macro_f1 on test){said}"
