"""Training a prompt stops like any other: SIGTERM saves a checkpoint, and a non-finite loss ends it before the update."""

import json
import math
import multiprocessing
import signal

import pytest
import torch
from safetensors.torch import load_file

from hf_tlm.runs import PromptClassifier
from hf_tlm.runs.few_shot import draw_episode, load_masked_lm, prompt_for
from hf_tlm.runs.few_shot.points import PromptTrainer
from hf_tlm.runs.sharing import PointsError
from hf_tlm.training.callbacks import NonFiniteLossError
from hf_tlm.training.checkpoints import resume_problem
from hf_tlm.utils.process import Terminated
from support.prompts import LABEL_WORDS, TEMPLATE, go, save, wordpiece

# Two points of four steps, each of two micro-batches, with dropout.
SETTINGS = {"splits": 1, "learning_rates": [1e-2, 1e-3], "per_device_train_batch_size": 2}
FIRST, SECOND = "split-13/lr0.01-batch4", "split-13/lr0.001-batch4"


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    dropout = {"hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.1}
    return save(tmp_path_factory.mktemp("masked-lm"), wordpiece(), max_position_embeddings=80, **dropout)


@pytest.fixture
def before_step(monkeypatch):
    """Return a function before_step(n, action) that calls action(model) in the n-th micro-batch, counted from 1 over
    all points; it returns the list of the micro-batches so far as (folder, steps before it)."""
    training_step = PromptTrainer.training_step

    def set_up(number, action):
        steps = []

        def training_step_with_action(self, model, *args, **kwargs):
            steps.append((self.args.output_dir, self.state.global_step))
            if len(steps) == number:
                action(model)
            return training_step(self, model, *args, **kwargs)

        monkeypatch.setattr(PromptTrainer, "training_step", training_step_with_action)
        return steps

    return set_up


def sigterm(model):
    signal.raise_signal(signal.SIGTERM)


def poison(model):
    with torch.no_grad():
        model.get_input_embeddings().weight[2] = math.nan


@pytest.mark.slow
@pytest.mark.parametrize("step", [3, 4])
def test_sigterm_saves_and_the_run_continues(task, checkpoint, tmp_path, before_step, step):
    """In the second point, within its training and at its end."""
    whole = go(tmp_path / "whole", task, checkpoint, **SETTINGS)
    out, before = tmp_path / "out", signal.getsignal(signal.SIGTERM)
    steps = before_step(2 * (4 + step) - 1, sigterm)
    with pytest.raises(
        Terminated, match=f"Stopped by SIGTERM after step {step}; a checkpoint was saved. Run the same command"
    ) as caught:
        go(out, task, checkpoint, **SETTINGS)
    assert caught.value.code == 143 and signal.getsignal(signal.SIGTERM) is before
    assert len(steps) == 2 * (4 + step), "the step was not finished, or others followed"
    assert (out / FIRST / "results.json").is_file() and not (out / SECOND / "results.json").exists()
    assert resume_problem(out / SECOND / f"training/checkpoint-{step}") is None
    steps.clear()
    again = go(out, task, checkpoint, **SETTINGS)
    # The measured cost of a prediction differs.
    assert [one | {"price": None} for one in again.splits] == [one | {"price": None} for one in whole.splits]
    assert steps == [(str(out / SECOND / "training"), n) for n in range(step, 4) for _ in range(2)]


@pytest.mark.slow
@pytest.mark.parametrize("method", ["training_step", "prediction_step"])
def test_workers_ignore_sigterm(task, checkpoint, tmp_path, monkeypatch, method):
    """Clusters also signal the workers, which the current step and a due evaluation need until they end."""
    original, workers = getattr(PromptTrainer, method), []

    def terminate_workers_once(self, *args, **kwargs):
        if not workers:
            workers.extend(multiprocessing.active_children())
            for worker in workers:
                worker.terminate()
        return original(self, *args, **kwargs)

    monkeypatch.setattr(PromptTrainer, method, terminate_workers_once)
    settings = {**SETTINGS, "learning_rates": [1e-2], "per_device_eval_batch_size": 1, "dataloader_num_workers": 1}
    run = go(tmp_path / "out", task, checkpoint, **settings)
    assert workers and len(run.splits) == 1


@pytest.mark.slow
def test_nonfinite_loss_ends_only_its_point(task, checkpoint, tmp_path, before_step):
    """In the second micro-batch of the first point's third step."""
    out, models = tmp_path / "out", []
    steps = before_step(6, lambda model: (poison(model), models.append(model)))
    with pytest.raises(PointsError) as caught:
        go(out, task, checkpoint, **SETTINGS)
    # Three steps of the first point, four of the second.
    assert len(steps) == 2 * (3 + 4) and (out / SECOND / "results.json").is_file()
    error, dump = caught.value.failures[out / FIRST], out / FIRST / "training/nonfinite-step-3"
    assert isinstance(error, NonFiniteLossError) and str(dump) in str(error)
    assert "The loss of step 3 is not finite. Stream: task; loss nan; learning rate 0.005. The optimizer" in str(error)
    # The step was not applied: one row is poisoned, and no other parameter.
    bad = [value for value in models[0].parameters() if not torch.isfinite(value).all()]
    assert len(bad) == 1 and bad[0] is models[0].get_input_embeddings().weight

    record = json.loads((dump / "process-0.json").read_text())
    assert [math.isfinite(float(part["loss"])) for part in record["micro_batches"]] == [True, False]
    tensors = load_file(dump / "process-0.safetensors")
    prompt = prompt_for("toy", task.label_names, TEMPLATE, LABEL_WORDS)
    classifier = PromptClassifier(load_masked_lm(checkpoint), wordpiece(), prompt, max_length=32, seed=13)
    inputs = classifier.training_inputs(draw_episode(task, 4, 13).train, 16)
    for number, index in enumerate((8, 10)):
        batch = classifier.collator([inputs[index], inputs[index + 1]])
        assert set(batch) == {name.split(".")[1] for name in tensors if name.startswith(f"{number}.")}
        for name, value in batch.items():
            assert torch.equal(value, tensors[f"{number}.{name}"]), name
