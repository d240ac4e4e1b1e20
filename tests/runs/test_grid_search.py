"""Searches on tiny models: trials are sampled from the grid, saved and resumed, and the best is run with every seed."""

import json
from dataclasses import replace

import pytest
import torch

from hf_tlm.errors import HfTlmError
from hf_tlm.runs import CheckpointArguments, FinetuneArguments
from hf_tlm.runs import grid_search as search
from hf_tlm.runs.finetuning.models import FinetuneTrainer
from hf_tlm.runs.grid import run_grid
from hf_tlm.runs.grid_points import Grid, GridError
from support.kind_toys import labels_of, rows_of, task_of
from support.tiny_checkpoints import FAST, go, pretrained
from support.toys import make_task

SPACE = {
    "learning_rate": {"min": 1e-3, "max": 3e-2, "log": True},
    "total_batch_size": [8, 12],
    "max_steps": {"min": 6, "max": 9},
}
# In tests with fake training, a higher learning rate scores better.
SEED = 5


@pytest.fixture(scope="module")
def base(tmp_path_factory, tokenizer):
    pytest.importorskip("optuna")
    return pretrained(tmp_path_factory.mktemp("base"), tokenizer)


def search_arguments(folder, base, **changes):
    """Return the first three arguments of a search."""
    args = FinetuneArguments(output_dir=str(folder), **{**FAST, **changes})
    return make_task(train=24, validation=12, test=12), CheckpointArguments(model_name_or_path=str(base)), args


@pytest.fixture
def fake(monkeypatch):
    """Return the numbers of the trained trials and a plan: trial `stop` is killed, those in `fail` diverge."""
    seen, plan = [], {"stop": None, "fail": []}

    def train(self, *args, trial, **kwargs):
        seen.append(trial.number)
        self._hp_search_setup(trial)
        if trial.number == plan["stop"]:
            raise SystemExit
        if trial.number in plan["fail"]:
            raise HfTlmError("diverged")
        self.objective = 10 * self.args.learning_rate

    monkeypatch.setattr(FinetuneTrainer, "train", train)
    monkeypatch.setattr(search, "load_model", lambda *arguments: torch.nn.Linear(1, 1))
    return seen, plan


@pytest.mark.slow
def test_best_of_two_trials_is_run_with_every_seed(tmp_path, base):
    run = run_grid(*search_arguments(tmp_path / "out", base), Grid(SPACE, [SEED, 6]), trials=2)
    trials = run.record["trials"]
    for trial in trials:
        assert 1e-3 <= trial["values"]["learning_rate"] <= 3e-2 and trial["values"]["total_batch_size"] in (8, 12)
        assert type(trial["values"]["max_steps"]) is int and 6 <= trial["values"]["max_steps"] <= 9
    assert trials[0]["values"] != trials[1]["values"]
    best = max(trials, key=lambda trial: trial["score"])
    (point,) = run.record["points"]
    assert point["values"] == best["values"] == run.record["chosen"]["values"]
    # The best trial equals the run of the first seed; the second seed is trained.
    scores = point["validation"]["macro_f1"]["values"]
    assert len(scores) == 2 and scores[0] == pytest.approx(best["score"])
    assert f"2 trials of seed {SEED} (Optuna)" in run.to_text() and "test" in run.record["chosen"]
    assert {path.name for path in (tmp_path / "out/trials").iterdir()} == {"study.db", "trials.json"}


@pytest.mark.slow
def test_trial_of_tagging_computes_what_the_run_computes(tmp_path, base, monkeypatch):
    """Sentences differ in length, so the mean over the tags of a step is not that of the means of its micro-batches."""
    rows = [
        {**row, **{name: row[name][: 1 + number % 5] for name in ("tokens", "tags")}}
        for number, row in enumerate(rows_of("tagging", 24))
    ]
    task, losses = task_of("tagging", rows, labels_of("tagging")), []

    class TrialTrainer(search.TrialTrainer):
        def log(self, logs, start_time=None):
            losses.extend(logs[name] for name in ("eval_loss",) if name in logs)
            super().log(logs, start_time)

    monkeypatch.setattr(search, "TrialTrainer", TrialTrainer)
    checkpoint, changes = CheckpointArguments(model_name_or_path=str(base)), {"per_device_train_batch_size": 2}
    args = FinetuneArguments(output_dir=str(tmp_path / "search"), **{**FAST, **changes}, seed=SEED)
    search.search(task, checkpoint, args, Grid({"num_train_epochs": [2]}), 1, SEED)
    run = go(tmp_path / "run", base, task, num_train_epochs=2, seed=SEED, **changes)
    assert losses == [entry["loss"] for entry in run.seeds[0]["history"]]


@pytest.mark.slow
def test_killed_search_resumes_with_the_same_trials(tmp_path, base, fake):
    import optuna

    seen, plan = fake
    values, trials = whole = search.search(*search_arguments(tmp_path / "whole", base), Grid(SPACE), 3, SEED)
    assert values == max(trials, key=lambda trial: trial["values"]["learning_rate"])["values"]
    assert len({trial["values"]["learning_rate"] for trial in trials}) == 3
    seen.clear()
    plan["stop"] = 1
    with pytest.raises(SystemExit):
        search.search(*search_arguments(tmp_path / "cut", base), Grid(SPACE), 3, SEED)
    study = optuna.load_study(study_name="search", storage=f"sqlite:///{tmp_path}/cut/trials/study.db")
    assert [trial.state.name for trial in study.trials] == ["COMPLETE", "RUNNING"]
    assert search.search(*search_arguments(tmp_path / "cut", base), Grid(SPACE), 3, SEED) == whole
    assert search.search(*search_arguments(tmp_path / "cut", base), Grid(SPACE), 3, SEED) == whole
    assert seen == [0, 1, 2, 3]
    with pytest.raises(GridError, match="contains a search with .* Choose another --output_dir"):
        search.search(*search_arguments(tmp_path / "cut", base), Grid({**SPACE, "total_batch_size": [8]}), 3, SEED)


@pytest.mark.slow
@pytest.mark.parametrize("damage", [lambda data: b"", lambda data: data[: len(data) // 2], lambda data: b"<html>" * 4000])
def test_damaged_study_is_refused_and_keeps_the_trials(tmp_path, base, fake, damage):
    search.search(*search_arguments(tmp_path, base), Grid(SPACE), 2, SEED)
    study, trials = tmp_path / "trials/study.db", tmp_path / "trials/trials.json"
    before, data = trials.read_bytes(), study.read_bytes()
    study.unlink()  # Create a new file: SQLite has the other one open.
    study.write_bytes(damage(data))
    with pytest.raises(GridError, match="study.db is damaged: .* or delete .*trials to start a new search"):
        search.search(*search_arguments(tmp_path, base), Grid(SPACE), 3, SEED)
    assert trials.read_bytes() == before


@pytest.mark.slow
def test_damaged_list_of_trials_is_refused(tmp_path, base, fake):
    search.search(*search_arguments(tmp_path, base), Grid(SPACE), 1, SEED)
    trials = tmp_path / "trials/trials.json"
    trials.write_text(json.dumps(json.loads(trials.read_text()) | {"trials": 1}))
    with pytest.raises(GridError, match="trials.json is damaged: it has no list of trials. .*delete that file"):
        search.search(*search_arguments(tmp_path, base), Grid(SPACE), 1, SEED)


@pytest.mark.slow
def test_failing_trials_rank_last(tmp_path, base, fake):
    _, plan = fake
    plan["fail"] = [0]
    with pytest.raises(GridError, match="Training failed in all 1 trials"):
        search.search(*search_arguments(tmp_path, base), Grid(SPACE), 1, SEED)
    assert not list(tmp_path.rglob("study.db"))  # The folder is free for another grid.
    values, trials = search.search(*search_arguments(tmp_path, base), Grid(SPACE), 2, SEED)
    assert trials[0]["score"] is None and values == trials[1]["values"]


def test_sampled_batch_size_sets_gradient_accumulation(tmp_path, base):
    _, _, args = search_arguments(tmp_path, base, per_device_train_batch_size=6)

    class Trial:
        def suggest_categorical(self, name, values):
            return values[-1]

    drawn = search._suggest_values(Trial(), Grid({"total_batch_size": [8, 12]}), args)
    assert drawn == {"total_batch_size": 12, "per_device_train_batch_size": 6, "gradient_accumulation_steps": 2}


def test_unsupported_searches_are_refused(tmp_path, base, monkeypatch):
    with pytest.raises(GridError, match="max_length cannot be searched, only learning_rate, "):
        run_grid(*search_arguments(tmp_path / "out", base), Grid({"max_length": [16, 32]}), trials=2)
    monkeypatch.setattr(search, "find_spec", lambda name: None)
    with pytest.raises(GridError, match=r"pip install 'hf-tlm\[search\]'"):
        run_grid(*search_arguments(tmp_path / "out", base), Grid(SPACE), trials=2)
    assert not (tmp_path / "out").exists()


def test_invalid_trial_options_are_refused_before_the_first_trial(tmp_path, base, fake):
    task, checkpoint, args = search_arguments(tmp_path / "out", base, optim="muon")
    with pytest.raises(HfTlmError, match="optim muon is for complete matrices"):
        run_grid(task, replace(checkpoint, use_peft=True), args, Grid(SPACE), trials=2)
    with pytest.raises(HfTlmError, match="doc_stride .* has no effect on a classification task"):
        run_grid(*search_arguments(tmp_path / "out", base, doc_stride=32), Grid(SPACE), trials=2)
    with pytest.raises(HfTlmError, match="weight_decay: expected .*; received -1"):
        run_grid(*search_arguments(tmp_path / "out", base), Grid(SPACE | {"weight_decay": [0.1, -1]}), trials=2)
    assert not (tmp_path / "out").exists() and fake[0] == []
