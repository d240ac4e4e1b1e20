"""Resuming: after any interruption the same command ends with the same losses and weights."""

import json
import random
import signal
from functools import partial
from pathlib import Path

import pytest
import torch
from safetensors import SafetensorError

from hf_tlm.training import TlmArguments
from hf_tlm.training.checkpoints import CheckpointError, last_complete_checkpoint, resume_problem
from hf_tlm.utils.process import Terminated
from hf_tlm.utils.seals import read_seal, write_seal
from support.training_runs import (
    OBJECTIVES,
    At,
    StopAfter,
    both_stages,
    die_in_rotation,
    die_in_write,
    history,
    outcome,
    pair,
    run_processes,
    sigterm,
    stopped_in_each_stage,
    streamed,
    trainer,
    weights,
)

NAMES = ("step", "loss", "grad_norm", "learning_rate", "corpus/mlm_loss", "task/mlm_loss", "task/task_loss", "real_tokens")
# With dropout, beyond the end of an epoch (5 steps), and ending within an epoch.
COMMON = {"rho1": 1, "max_steps": 8, "per_device_train_batch_size": 12, "config": {}, "gradient_accumulation_steps": 2}
SAVING = {**COMMON, "save_strategy": "steps", "save_steps": 3}
# The masked LM with batches measured in tokens (four steps an epoch), and a decreasing share of masked words.
WORDS = {"mlm_probability": 0.4, "mlm_probability_end": 0.1, "whole_word_mask": True}
CASES = {
    **OBJECTIVES,
    "mlm": {"total_batch_tokens": 480, **WORDS},
    "cocolm": {**OBJECTIVES["cocolm"], "scl_projection": "mlp"},
}


@pytest.fixture(scope="module")
def whole(tmp_path_factory, data, tokenizer):
    """An uninterrupted run."""
    run = trainer(tmp_path_factory.mktemp("whole"), data, tokenizer, **COMMON)
    run.train()
    assert run.batch_sampler.steps_per_epoch == 5
    return history(run, *NAMES), weights(run), run.cost()


def check_equal(run, whole):
    log, expected, cost = whole
    assert history(run, *NAMES) == log
    for name, value in weights(run).items():
        assert torch.equal(value, expected[name]), name
    assert (run.cost().tokens, run.cost().real_tokens) == (cost.tokens, cost.real_tokens)


def resume(folder, data, tokenizer, **changes):
    run = trainer(folder, data, tokenizer, **{**SAVING, **changes})
    run.train(resume_from_checkpoint=True)
    return run


@pytest.mark.slow
@pytest.mark.parametrize("last", [3, 5, 8])
def test_resume_is_exact(tmp_path, data, tokenizer, whole, last):
    """Within an epoch, at its end, and at the end of the run, where no step is left."""
    part = trainer(tmp_path, data, tokenizer, **{**SAVING, "save_steps": last}, callbacks=[StopAfter(last)])
    part.train()
    assert last_complete_checkpoint(tmp_path).endswith(f"checkpoint-{last}")
    check_equal(resume(tmp_path, data, tokenizer, save_steps=last), whole)


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_every_objective_resumes_exactly(tmp_path, data, tokenizer, case):
    """Stopped between two evaluations: every term and weight, which checkpoint is the best, and what is tied."""
    best = {"load_best_model_at_end": True, "metric_for_best_model": "macro_f1", "eval_strategy": "steps", "eval_steps": 2}
    settings = {**COMMON, **CASES[case], **best, "max_steps": 6, "save_strategy": "steps", "save_steps": 2}
    whole = trainer(tmp_path / "whole", data, tokenizer, **settings)
    whole.train()
    with pytest.raises(Terminated, match="after step 3"):
        trainer(tmp_path / "cut", data, tokenizer, **settings, callbacks=[At(3, sigterm)]).train()
    run = trainer(tmp_path / "cut", data, tokenizer, **settings)
    run.train(resume_from_checkpoint=True)
    ends = [outcome(tmp_path / name / "checkpoint-6", "model.safetensors") for name in ("cut", "whole")]
    assert ends[0] == ends[1]
    expected = weights(whole)  # Those of the best checkpoint.
    for name, value in weights(run).items():
        assert torch.equal(value, expected[name]), name
    ties = []
    for model in (run.model, whole.model):
        table = model.get_input_embeddings().weight
        ties.append({name for name, p in model.named_parameters(remove_duplicate=False) if p is table})
    assert ties[0] == ties[1] and len(ties[0]) > 1


@pytest.mark.parametrize("last", [3, 4])
def test_training_loss_after_a_resume_covers_all_steps(tmp_path, data, tokenizer, last):
    """Also where no step is left, and with steps that were not logged before the checkpoint."""
    settings = {**COMMON, "max_steps": 4, "save_strategy": "steps", "save_steps": 1, "logging_steps": 2}
    expected = trainer(tmp_path / "whole", data, tokenizer, **settings).train()
    losses = [entry["loss"] for entry in read_state(tmp_path / "whole/checkpoint-4")["log_history"] if "loss" in entry]
    assert expected.training_loss == pytest.approx(sum(losses) / 2)
    trainer(tmp_path / "cut", data, tokenizer, **settings, callbacks=[StopAfter(last)]).train()
    run = trainer(tmp_path / "cut", data, tokenizer, **settings)
    found = run.train(resume_from_checkpoint=True)
    assert found.training_loss == run.state.log_history[-1]["train_loss"] == pytest.approx(expected.training_loss)


def test_resumed_training_logs_and_saves_as_often_as_it_is_told_now(tmp_path, data, tokenizer):
    settings = {**COMMON, "max_steps": 4, "save_strategy": "steps"}
    trainer(tmp_path, data, tokenizer, **settings, save_steps=2, logging_steps=4, callbacks=[StopAfter(2)]).train()
    run = trainer(tmp_path, data, tokenizer, **settings, save_steps=1, logging_steps=1)
    run.train(resume_from_checkpoint=True)
    assert [entry["step"] for entry in run.state.log_history if "loss" in entry] == [3, 4]
    assert (tmp_path / "checkpoint-3").is_dir()


def test_unknown_training_loss_is_left_out(tmp_path, data, tokenizer):
    """Older checkpoints do not have the sum of the losses."""
    settings = {**COMMON, "max_steps": 2, "save_strategy": "steps", "save_steps": 1}
    trainer(tmp_path, data, tokenizer, **settings, callbacks=[StopAfter(1)]).train()
    state = read_state(tmp_path / "checkpoint-1")
    del state["stateful_callbacks"]["Loss"]
    (tmp_path / "checkpoint-1/trainer_state.json").write_text(json.dumps(state))
    facts = read_seal(tmp_path / "checkpoint-1")
    del facts["files"]
    write_seal(tmp_path / "checkpoint-1", **facts)
    run = trainer(tmp_path, data, tokenizer, **settings)
    run.train(resume_from_checkpoint=True)
    assert run.state.global_step == 2 and not any("train_loss" in entry for entry in run.state.log_history)
    assert "Loss" not in read_state(tmp_path / "checkpoint-2")["stateful_callbacks"]


def read_state(checkpoint):
    return json.loads((checkpoint / "trainer_state.json").read_text())


def test_best_checkpoint_is_found_in_a_moved_folder(tmp_path, data, tokenizer):
    """A run lost after its last checkpoint continues elsewhere, with no step and no save left."""
    best = {"load_best_model_at_end": True, "metric_for_best_model": "macro_f1", "eval_strategy": "steps", "eval_steps": 1}
    settings = {**COMMON, **best, "max_steps": 4, "save_strategy": "steps", "save_steps": 1}

    def make_trainer(folder):
        """A run whose second evaluation is the best."""
        run, scores = trainer(tmp_path / folder, data, tokenizer, **settings), iter([0.1, 0.9, 0.2, 0.3])
        run.compute_metrics = lambda prediction: {"macro_f1": next(scores)}
        return run

    run = make_trainer("there")
    run.train()
    assert run.state.best_global_step == 2
    # No file contains the old path.
    last = tmp_path / "there" / "checkpoint-4"
    state = json.loads((last / "trainer_state.json").read_text())
    assert state["best_global_step"] == 2 and state["best_model_checkpoint"] is None
    assert not [path for path in last.iterdir() if str(tmp_path).encode() in path.read_bytes()]
    (tmp_path / "there").rename(tmp_path / "here")
    moved = make_trainer("here")
    moved.train(resume_from_checkpoint=True)
    assert moved.state.best_model_checkpoint == str(tmp_path / "here" / "checkpoint-2")
    for name, value in weights(run).items():
        assert torch.equal(value, weights(moved)[name]), name


def test_persistent_workers_do_not_use_the_global_generator(tmp_path, data, tokenizer):
    """Otherwise dropout would differ: workers start once in a run, and once more in a resumed one."""
    options = {"dataloader_num_workers": 1, "dataloader_persistent_workers": True}
    loader = trainer(tmp_path, data, tokenizer, **COMMON, **options).get_train_dataloader()
    before = torch.get_rng_state()
    batches = iter(loader.base_dataloader)
    assert next(batches) and torch.equal(torch.get_rng_state(), before)
    batches._shutdown_workers()


def test_resuming_without_a_checkpoint_starts_from_the_beginning(tmp_path, data, tokenizer, whole):
    check_equal(resume(tmp_path, data, tokenizer), whole)
    assert [path.name for path in sorted(tmp_path.iterdir())] == ["checkpoint-6", "checkpoint-8"]


def test_damaged_checkpoint_is_skipped(tmp_path, data, tokenizer, whole, caplog):
    resume(tmp_path, data, tokenizer)
    with open(tmp_path / "checkpoint-8" / "optimizer.pt", "r+b") as file:
        file.seek(1000)
        byte = file.read(1)
        file.seek(1000)
        file.write(bytes([byte[0] ^ 1]))
    with pytest.raises(CheckpointError, match=r"optimizer\.pt has changed since it was saved"):
        trainer(tmp_path, data, tokenizer, **SAVING).train(resume_from_checkpoint=str(tmp_path / "checkpoint-8"))
    check_equal(resume(tmp_path, data, tokenizer), whole)
    assert "optimizer.pt has changed" in caplog.text and "Resuming from" in caplog.text and "checkpoint-6" in caplog.text
    assert resume_problem(tmp_path / "checkpoint-8") is None


def test_checkpoint_with_only_the_model_is_not_resumed(tmp_path, data, tokenizer, caplog):
    resume(tmp_path, data, tokenizer, save_only_model=True, max_steps=3)
    assert last_complete_checkpoint(tmp_path) is None and "contains only the model" in caplog.text


FULL = "No space left on device"


@pytest.mark.parametrize(
    "file,error",
    [
        ("optimizer.pt", RuntimeError("[enforce fail at inline_container.cc:672] . unexpected pos 64 vs 0")),
        ("scheduler.pt", RuntimeError("basic_ios::clear: iostream error")),
        ("rng_state.pth", Exception(f"{FULL} (os error 28)")),  # As raised by tokenizers.
        ("model.safetensors", SafetensorError(FULL)),
        ("seal.json", OSError(28, FULL)),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_failing_save_keeps_the_previous_checkpoint(tmp_path, data, tokenizer, whole, file, error, monkeypatch):
    run = trainer(tmp_path, data, tokenizer, **SAVING, callbacks=[At(4, lambda model: _break(file, error, monkeypatch))])
    with pytest.raises(CheckpointError, match=r"checkpoint-6: The disk of .*checkpoint-6 is full.*checkpoint-3, is intact"):
        run.train(resume_from_checkpoint=True)
    monkeypatch.undo()
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint-3"]
    check_equal(resume(tmp_path, data, tokenizer), whole)


def _break(file, error, monkeypatch):
    """Make every later write of that file fail."""
    from transformers import modeling_utils

    from hf_tlm.utils import seals

    def failing(original):
        def write(*args, **kwargs):
            paths = [Path(argument) for argument in args[:2] if isinstance(argument, str | Path)]
            path = next((path for path in paths if path.name == file), None)
            if path is None:
                return original(*args, **kwargs)
            path.write_bytes(b"half")
            raise error

        return write

    for owner, name in ((torch, "save"), (modeling_utils, "safe_save_file"), (seals, "atomic_write")):
        monkeypatch.setattr(owner, name, failing(getattr(owner, name)))


@pytest.mark.parametrize("step", [4, 5, 8])
def test_run_resumes_after_sigterm(tmp_path, data, tokenizer, whole, step):
    """Within an epoch, at its end, and at the end of the run."""
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(
        Terminated, match=f"Stopped by SIGTERM after step {step}; a checkpoint was saved. Run the same command"
    ) as caught:
        trainer(tmp_path, data, tokenizer, **COMMON, callbacks=[At(step, sigterm)]).train()
    assert caught.value.code == 143 and signal.getsignal(signal.SIGTERM) is before
    assert resume_problem(tmp_path / f"checkpoint-{step}") is None
    check_equal(resume(tmp_path, data, tokenizer, save_strategy="no"), whole)


def test_sigterm_at_the_end_of_an_epoch_waits_for_the_evaluation(tmp_path, data, tokenizer):
    every = {**COMMON, "eval_strategy": "epoch", "save_strategy": "epoch"}
    with pytest.raises(Terminated):
        run = trainer(tmp_path, data, tokenizer, **every, callbacks=[At(5, sigterm)])
        run.train()
    assert [entry["step"] for entry in run.state.log_history if "eval_loss" in entry] == [5]
    resumed = resume(tmp_path, data, tokenizer, **every)
    assert [entry["step"] for entry in resumed.state.log_history if "eval_loss" in entry] == [5, 8]


@pytest.fixture(scope="module")
def toy(tmp_path_factory, tokenizer, corpus_rows):
    """What another process needs to build the same data."""
    folder = tmp_path_factory.mktemp("tokenizer")
    tokenizer.save_pretrained(folder)
    return str(folder), corpus_rows


@pytest.mark.slow
def test_run_resumes_after_repeated_kills(tmp_path, toy):
    """In both stages: while writing files or seals, while removing older checkpoints, and at random moments."""
    assert run_processes(both_stages, str(tmp_path / "whole"), *toy) == [0]
    cut = str(tmp_path / "cut")
    # A save writes 7 files, the seal last; the export of stage 1 two.
    for fault in ((die_in_write, 3), (die_in_write, 13), (die_in_write, 7), (die_in_rotation,), (die_in_write, 16)):
        assert run_processes(both_stages, cut, *toy, *fault) == [-signal.SIGKILL]
    run_processes(both_stages, cut, *toy, kill_after=random.Random(0).uniform(0.5, 3))
    assert run_processes(both_stages, cut, *toy) == [0]
    for stage in ("stage1", "stage2"):
        assert outcome(tmp_path / "cut" / stage) == outcome(tmp_path / "whole" / stage)
        checkpoints = [
            sorted(path.name for path in (tmp_path / run / stage).glob("checkpoint-*")) for run in ("cut", "whole")
        ]
        assert checkpoints[0] == checkpoints[1] and 2 <= len(checkpoints[0]) <= 3


@pytest.mark.slow
def test_two_processes_stop_together(tmp_path, toy):
    """Whichever of them receives SIGTERM, fails to write, or has a non-finite loss."""
    assert run_processes(pair, str(tmp_path), *toy, "all", processes=2) == [0, 0]
    ends = {name: [(tmp_path / name / f"end-{rank}").read_text() for rank in range(2)] for name in ("whole", "nan", "full")}
    assert ends["whole"] == ["finished"] * 2
    expected = outcome(tmp_path / "whole", "model.safetensors")

    stopped = "Terminated: Stopped by SIGTERM after step 5; a checkpoint was saved. Run the same command to continue."
    assert json.loads((tmp_path / "sigterm" / "ends.json").read_text()) == [stopped] * 2
    assert outcome(tmp_path / "sigterm", "model.safetensors") == expected

    for end in ends["nan"]:
        assert end.startswith("NonFiniteLossError: The loss of step 5 is not finite on process 1.")
    dumped = sorted(path.name for path in (tmp_path / "nan" / "nonfinite-step-5").iterdir())
    assert dumped == ["process-1.json", "process-1.safetensors"]

    for end in ends["full"]:
        assert end.startswith("CheckpointError: Could not save") and "checkpoint-4, is intact" in end
    assert not (tmp_path / "full" / "checkpoint-6").exists() and resume_problem(tmp_path / "full" / "checkpoint-4") is None

    # A save writes 8 files, including the random states of the second process, which the first does not write.
    assert -signal.SIGKILL in run_processes(pair, str(tmp_path), *toy, "cut", 11, processes=2)
    assert run_processes(pair, str(tmp_path), *toy, "cut", processes=2) == [0, 0]
    assert outcome(tmp_path / "cut", "model.safetensors") == expected


@pytest.mark.slow
def test_two_processes_resume_every_objective(tmp_path, toy):
    """Stopped in stage 1 and in stage 2."""
    assert run_processes(stopped_in_each_stage, str(tmp_path), *toy, processes=2, patience=240) == [0, 0]
    for objective in OBJECTIVES:
        for stage in ("stage1", "stage2"):
            ends = [outcome(tmp_path / objective / name / stage) for name in ("cut", "whole")]
            assert ends[0] == ends[1], (objective, stage)


@pytest.mark.slow
@pytest.mark.parametrize("processes", [1, 2])
def test_streaming_run_resumes_after_a_kill(tmp_path, toy, processes):
    """Killed during the second checkpoint, while the corpus is being prepared."""
    ends = run_processes(streamed, str(tmp_path), *toy, ("cut", 11), processes=processes)
    assert -signal.SIGKILL in ends and (tmp_path / "cut" / "training" / "checkpoint-2").is_dir()
    prepared = partial(tmp_path.glob, "cut-cache/hf_tlm/*/totals.json")
    assert not [*prepared()]
    runs = (("cut", None), ("whole", None))
    assert run_processes(streamed, str(tmp_path), *toy, *runs, processes=processes) == [0] * processes
    assert [*prepared()]
    ends = [outcome(tmp_path / name / "training", "../*.safetensors") for name in ("cut", "whole")]
    assert ends[0] == ends[1]


def test_resume_from_checkpoint_true_warns_without_a_checkpoint(tmp_path, caplog):
    options = {"output_dir": str(tmp_path / "run"), "use_cpu": True, "report_to": "none", "resume_from_checkpoint": "true"}
    assert TlmArguments(**options).resume_from_checkpoint is None
    assert [line for line in caplog.messages if "run has nothing to resume from; the run starts from the beginning." in line]
    caplog.clear()
    (tmp_path / "run/seed-0/stage1/checkpoint-3").mkdir(parents=True)
    (tmp_path / "run/seed-0/stage1/checkpoint-3/model.safetensors").touch()
    assert TlmArguments(**options).resume_from_checkpoint is None
    assert "starts from the beginning" not in caplog.text
