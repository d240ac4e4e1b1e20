"""Search a grid's lists and ranges with Optuna, through the Trainer's own `hyperparameter_search`."""

from __future__ import annotations

import copy
import json
import logging
import shutil
from dataclasses import asdict
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import nn
from transformers import set_seed

from hf_tlm.errors import HfTlmError
from hf_tlm.runs.finetuning import CheckpointArguments, FinetuneArguments, draw_fraction, kind_module
from hf_tlm.runs.finetuning.kinds import EvaluationSet, label_names
from hf_tlm.runs.finetuning.models import FinetuneTrainer, load_model, load_pretrained
from hf_tlm.runs.grid_points import Grid, GridError, Range
from hf_tlm.runs.sharing import run_once
from hf_tlm.tasks import Task
from hf_tlm.utils.files import atomic_write
from hf_tlm.utils.json_files import read_object
from hf_tlm.utils.problems import disk_problem

if TYPE_CHECKING:
    import optuna

logger = logging.getLogger(__name__)

STUDY_FILE, TRIALS_FILE, STUDY = "study.db", "trials.json", "search"
# Options that the Trainer reads again for each trial; the data, the config and the evaluation schedule are set up before.
SEARCHABLE = (
    *("learning_rate", "num_train_epochs", "max_steps", "total_batch_size", "warmup_steps", "weight_decay"),
    *("layerwise_lr_decay", "lr_scheduler_type", "max_grad_norm", "adam_beta1", "adam_beta2", "adam_epsilon"),
)
LOWEST = -1.0  # The score of a trial whose training diverged: no metric is lower.


def check_search(grid: Grid) -> None:
    """Check that Optuna is installed and that all options of a grid can be searched, or raise a GridError."""
    if find_spec("optuna") is None:
        raise GridError("optuna_trials needs the package optuna: pip install 'hf-tlm[search]'.")
    if other := [name for name in grid.values if name not in SEARCHABLE]:
        raise GridError(
            f"{', '.join(other)} cannot be searched, only {', '.join(SEARCHABLE)}. Remove them from the grid, or remove "
            "--optuna_trials to run every combination."
        )


def search(
    task: Task, checkpoint: CheckpointArguments, args: FinetuneArguments, grid: Grid, trials: int, seed: int
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Run trials in `output_dir/trials` up to the requested number, and return the values of the best on validation.

    A trial is one training run with `seed`; its score is the task's metric on validation, of the best or the last evaluation
    according to `args.select_by`. Optuna's TPE sampler draws its values based on the scores of the earlier trials. The study
    is stored in `study.db` (SQLite): the same call continues it, and draws the values of an interrupted trial again.

    Args:
        grid: lists are categorical choices, ranges are sampled; see `check_search`.
        trials: their total number, those of earlier calls included.

    Returns:
        The values of the best trial, and `values` and `score` of all trials in the order they were run; the score of a
        failed one is None.

    Raises:
        GridError: the folder holds a study of another grid, or a damaged one; or training failed in all trials.
    """
    space = {name: asdict(value) if isinstance(value, Range) else value for name, value in grid.values.items()}
    # As JSON values, by which the study is recognised.
    folder, study_settings = args.folder / "trials", json.loads(json.dumps({"grid": space, "seed": seed}))

    def run() -> None:
        import optuna

        study = None
        with args.main_process_first(desc="opening the study"):
            if args.process_index == 0:
                study = _open_study(folder, len(_read_trials(folder, study_settings)))
                _write_trials(study, folder, study_settings)
        make_trainer = _trainer_factory(task, checkpoint, args, seed, folder)
        for trial_index in range(len(_read_trials(folder, study_settings)), trials):
            trainer = make_trainer(trial_index)
            trainer.hyperparameter_search(
                hp_space=lambda trial: _suggest_values(trial, grid, args),
                compute_objective=trainer.score_of,
                n_trials=1,
                direction="maximize",
                backend="optuna",
                study_name=STUDY,
                storage=_storage_url(folder),
                load_if_exists=True,
                # Seeded by the trial's number, so that an interrupted study continues exactly as without interruption.
                sampler=optuna.samplers.TPESampler(seed=seed + trial_index),
                pruner=optuna.pruners.NopPruner(),
            )
            if study is not None:
                _write_trials(study, folder, study_settings)
                for leftover in folder.glob("trial-*"):
                    shutil.rmtree(leftover, ignore_errors=True)
            trainer.accelerator.wait_for_everyone()

    # Each trial depends on the earlier ones, so processes cannot share them: one works while the others wait.
    run_once(folder, lambda: len(_read_trials(folder, study_settings)) >= trials, run)
    completed = _read_trials(folder, study_settings)[:trials]
    successful = [trial for trial in completed if trial["score"] is not None]
    if not successful:
        if args.process_index == 0:
            shutil.rmtree(folder, ignore_errors=True)  # A search without a result must not block another grid.
        raise GridError(f"Training failed in all {trials} trials. Lower the learning rates of the grid, or warm up longer.")
    return max(successful, key=lambda trial: trial["score"])["values"], completed


def _read_trials(folder: Path, study_settings: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the completed trials, or raise a GridError if they belong to another grid or seed."""
    path = folder / TRIALS_FILE
    if not path.is_file():
        return []
    advice = "Choose another --output_dir, or delete that file to start a new search."
    content = read_object(path, GridError, advice)
    if not isinstance(content.get("trials"), list):
        raise GridError(f"{path} is damaged: it has no list of trials. {advice}")
    if content.get("asked") != study_settings:
        raise GridError(
            f"{folder} contains a search with {content.get('asked')}, but this search has {study_settings}. Choose another "
            "--output_dir, or delete that folder."
        )
    return content["trials"]


def _storage_url(folder: Path) -> str:
    return f"sqlite:///{(folder / STUDY_FILE).absolute()}"


def _open_study(folder: Path, num_trials: int) -> optuna.Study:
    """Open the study of a folder, or raise a GridError; trials that a killed process left running are marked as failed.

    It has at least `num_trials` completed ones, those in `TRIALS_FILE`, which is written after them.
    """
    import optuna
    from sqlalchemy.exc import DatabaseError

    folder.mkdir(parents=True, exist_ok=True)
    problem = None
    try:
        study = optuna.create_study(
            study_name=STUDY, storage=_storage_url(folder), direction="maximize", load_if_exists=True
        )
        num_completed = len(study.get_trials(states=[optuna.trial.TrialState.COMPLETE]))
        if num_completed < num_trials:
            problem = f"it has only {num_completed} of {num_trials} trials"
    except DatabaseError as error:
        if disk_problem(error) is not None:
            raise
        problem = str(error.orig)
    if problem is not None:
        raise GridError(
            f"{folder / STUDY_FILE} is damaged: {problem}. Choose another --output_dir, or delete {folder} to start a new "
            "search."
        )
    for trial in study.get_trials(states=[optuna.trial.TrialState.RUNNING]):
        study.tell(trial.number, state=optuna.trial.TrialState.FAIL)
    return study


def _write_trials(study: optuna.Study, folder: Path, study_settings: dict[str, Any]) -> None:
    import optuna

    completed = study.get_trials(states=[optuna.trial.TrialState.COMPLETE])
    trials = [
        {"values": trial.params, "score": None if trial.value is None or trial.value <= LOWEST else trial.value}
        for trial in completed
    ]
    atomic_write(folder / TRIALS_FILE, json.dumps({"asked": study_settings, "trials": trials}, indent=2) + "\n")


def _suggest_values(trial: optuna.Trial, grid: Grid, args: FinetuneArguments) -> dict[str, Any]:
    """Draw the values of a trial, and return them as arguments for the Trainer to set."""
    values = {}
    for name, value in grid.values.items():
        if not isinstance(value, Range):
            values[name] = trial.suggest_categorical(name, value)
        elif isinstance(value.min, int) and isinstance(value.max, int):
            values[name] = trial.suggest_int(name, value.min, value.max, log=value.log)
        else:
            values[name] = trial.suggest_float(name, value.min, value.max, log=value.log)
    args = copy.copy(args)
    args.total_batch_size = values.get("total_batch_size", args.total_batch_size)
    trainer_args = args.for_trainer(args.folder, args.seed)
    return values | {
        name: getattr(trainer_args, name) for name in ("per_device_train_batch_size", "gradient_accumulation_steps")
    }


class TrialTrainer(FinetuneTrainer):
    """A `FinetuneTrainer` for one trial, which computes the same as `finetune` with the trial's values.

    It differs in two points: failed training gets the lowest score instead of ending the search, and of several evaluations
    the best one counts.
    """

    model: nn.Module  # It is built before the first step.

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.scores: list[float] = []

    def call_model_init(self, trial=None):
        model = super().call_model_init(trial)
        set_seed(self.args.seed)  # Dropout is drawn from this state on, as after the construction of any Trainer.
        return model

    def train(self, *args, **kwargs):
        try:
            return super().train(*args, **kwargs)
        except HfTlmError as error:
            logger.warning("The trial failed: %s", error)
            self.objective = LOWEST

    def score_of(self, metrics: dict[str, float]) -> float:
        """Add the score of an evaluation, and return the best so far."""
        self.scores.append(metrics[f"eval_{self.args.metric_for_best_model}"])
        return max(self.scores)


def _trainer_factory(task: Task, checkpoint: CheckpointArguments, args: FinetuneArguments, seed: int, folder: Path):
    """Return a function that builds the trainer of the n-th trial; what all trials share is prepared once."""
    kind = kind_module(task.spec.kind)
    config, tokenizer = load_pretrained(task, checkpoint, args.max_length)
    row_indices = draw_fraction(task.train, args.train_fraction, seed, task.spec.kind)
    with args.main_process_first(desc="tokenising"):
        features = kind.encode(task.train.select(row_indices), tokenizer, args)
        validation = EvaluationSet(kind, task.validation, tokenizer, args)
    loss_terms = getattr(kind, "loss_terms", None)
    base_args = args.for_seed(folder, seed, task.metric, label_names(task.spec.kind))
    base_args.load_best_model_at_end, base_args.save_strategy = False, "no"
    if args.select_by == "last":
        base_args.eval_strategy = "no"  # The search evaluates at the end.

    def make_trainer(trial_index: int) -> TrialTrainer:
        trial_args = copy.copy(base_args)
        trial_args.output_dir = str(folder / f"trial-{trial_index}")
        trial_args.run_name = f"{base_args.run_name}/{trial_index}"  # A run of its own in trackers.
        trainer: TrialTrainer = TrialTrainer(
            None,
            trial_args,
            model_init=lambda: load_model(task, checkpoint, config, args),
            train_dataset=features,
            eval_dataset=validation.by_length,
            data_collator=partial(kind.collate, tokenizer),
            processing_class=tokenizer,
            loss_terms=loss_terms and partial(loss_terms, args=args),
            compute_metrics=lambda output: validation.score(
                task, validation.in_order(output.predictions), trainer.model, args
            ),
        )
        return trainer

    return make_trainer
