"""Early stopping: where a training ends, also after an interruption, and which model is kept."""

import shutil

import pytest
import torch
from transformers import set_seed

from hf_tlm.data import tokenize
from hf_tlm.runs.finetuning.arguments import FinetuneArguments
from hf_tlm.training import ArgumentsError, TlmArguments, TlmTrainer
from support.toys import make_task
from support.training_runs import QUIET, At, network, weights

# The best is the second: with a patience of 3 the fifth evaluation is the last.
SCORES = [0.1, 0.5, 0.4, 0.5, 0.3, 0.9, 0.9, 0.9, 0.9, 0.9]


class Ended(Exception):
    pass


def end(model):
    raise Ended


def stage_2(folder, tokenizer, scores, patience=3, callbacks=()):
    task, remaining_scores = make_task(), iter(scores)
    values = {**QUIET, "stage2_max_steps": 20, "stage2_learning_rate": 1e-3, "stage2_total_batch_size": 4}
    values |= {"stage2_eval_steps": 2, "stage2_early_stopping_patience": patience, "max_length": 32}
    args = TlmArguments(output_dir=str(folder), **values).for_stage(2, folder, 0, "macro_f1")
    set_seed(7)
    return TlmTrainer(
        network(args, tokenizer, "bert", {}),
        args,
        train_dataset=tokenize(task.train, tokenizer, 32),
        eval_dataset=tokenize(task.validation, tokenizer, 32),
        processing_class=tokenizer,
        compute_metrics=lambda found: {"macro_f1": next(remaining_scores)},
        callbacks=list(callbacks),
    )


def same_weights(one, other):
    one, other = weights(one), weights(other)
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def test_training_ends_after_the_patience_and_keeps_the_best(tmp_path, tokenizer, capsys):
    stopped = stage_2(tmp_path / "stopped", tokenizer, SCORES)
    stopped.train()
    assert (stopped.state.global_step, stopped.state.best_global_step) == (10, 4)
    assert "stopped at step 10 of 20; macro_f1 has not improved in 3 evaluations." in capsys.readouterr().out
    whole = stage_2(tmp_path / "whole", tokenizer, [*SCORES[:5], *[0.2] * 5], patience=0)
    whole.train()
    assert (whole.state.global_step, whole.state.best_global_step) == (20, 4)
    assert same_weights(stopped, whole)


def test_improvement_within_the_patience_continues_training(tmp_path, tokenizer, capsys):
    trainer = stage_2(tmp_path, tokenizer, SCORES, patience=4)
    trainer.train()
    assert (trainer.state.global_step, trainer.state.best_global_step) == (20, 12)
    assert "stopped" not in capsys.readouterr().out


@pytest.mark.parametrize("killed", [7, 9])
def test_resumed_training_ends_at_the_same_step(tmp_path, tokenizer, killed):
    """Earlier evaluations count, and a training whose last checkpoint was already the end does no further step."""
    whole = stage_2(tmp_path / "whole", tokenizer, SCORES)
    whole.train()
    broken = stage_2(tmp_path / "broken", tokenizer, SCORES, callbacks=[At(killed + 1, end)])
    with pytest.raises(Ended):
        broken.train()
    resumed = stage_2(tmp_path / "broken", tokenizer, SCORES[killed // 2 :])
    resumed.train(resume_from_checkpoint=True)
    assert (resumed.state.global_step, resumed.state.best_global_step) == (10, 4)
    assert same_weights(resumed, whole)


def test_resuming_a_stopped_training_does_no_step(tmp_path, tokenizer):
    first = stage_2(tmp_path / "first", tokenizer, SCORES)
    first.train()
    shutil.copytree(tmp_path / "first", tmp_path / "again")
    again = stage_2(tmp_path / "again", tokenizer, [])
    again.train(resume_from_checkpoint=True)
    assert again.state.global_step == 10 and again.state.best_global_step == 4
    assert same_weights(again, first)


def test_invalid_patience_is_refused_and_stage_1_has_none(tmp_path):
    with pytest.raises(ArgumentsError, match="stage2_early_stopping_patience: expected a whole number from 0"):
        TlmArguments(output_dir=str(tmp_path), stage2_early_stopping_patience=-1)
    with pytest.raises(ArgumentsError, match="early_stopping_patience 2 ends a training .* select_by last"):
        FinetuneArguments(output_dir=str(tmp_path), early_stopping_patience=2, select_by="last")
    args = FinetuneArguments(output_dir=str(tmp_path), early_stopping_patience=2)
    assert args.for_seed(tmp_path, 0, "accuracy", ["labels"]).early_stopping_patience == 2
    args = TlmArguments(output_dir=str(tmp_path), stage2_early_stopping_patience=2)
    assert args.for_stage(1, tmp_path, 0, "accuracy").early_stopping_patience == 0
