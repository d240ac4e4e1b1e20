"""Tiny trainings: complete runs and single stages, in this process and in others, and helpers that inspect them."""

import json
import math
import multiprocessing.connection
import os
import resource
import shutil
import signal
import time
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from datasets import Dataset
from transformers import AutoConfig, AutoTokenizer, TrainerCallback, TrainerState, modeling_utils, set_seed

from hf_tlm.corpora import load_corpus
from hf_tlm.data import BlockArguments, tokenize
from hf_tlm.errors import HfTlmError
from hf_tlm.metrics import compute_metrics_for
from hf_tlm.models import GeneratorDiscriminator, TlmModel, generator_config
from hf_tlm.runs import run_pretraining
from hf_tlm.training import (
    ModelArguments,
    PretrainArguments,
    StageData,
    TlmArguments,
    TlmTrainer,
    base_trainer,
    checkpoints,
    run_stage,
)
from hf_tlm.training.teacher import Teacher
from hf_tlm.utils import seals
from hf_tlm.utils.process import Terminated
from support import warm
from support.toys import TINY_CONFIGS, make_task, sentences

QUIET = {"report_to": "none", "disable_tqdm": True, "use_cpu": True, "save_strategy": "no", "logging_steps": 1}
NO_DROPOUT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
# Arguments of `trainer` for each objective.
OBJECTIVES = {
    "mlm": {"model_type": "bert", "objective": "mlm"},
    "span": {"model_type": "bert", "objective": "span"},
    "electra": {"model_type": "electra", "objective": "electra"},
    "ale": {"model_type": "albert", "objective": "ale"},
    "cocolm": {"model_type": "cocolm", "objective": "cocolm"},
}


def network(args, tokenizer, model_type, config):
    """Build the model that an objective trains, with the tokenizer's vocabulary size."""
    config = AutoConfig.for_model(model_type, **{**TINY_CONFIGS[model_type], "vocab_size": len(tokenizer), **config})
    if args.objective in ("mlm", "span"):
        return TlmModel.from_config(config)
    if args.objective == "cocolm":
        options = {
            "heads": args.detecting_head if args.clm == "rtd" else "clm",
            "apart": True,
            "scl_projection": args.scl_projection,
        }
        return GeneratorDiscriminator.from_config(config, generator_config(config, 1, 1), 1.0, **options)
    return GeneratorDiscriminator.from_config(config, generator_config(config, 0.5))


def trainer(
    tmp_path, data, tokenizer, model_type="bert", config=NO_DROPOUT, objectives=None, callbacks=None, metrics=True, **changes
):
    args = TlmArguments(output_dir=str(tmp_path), **{**QUIET, "max_steps": 4, "learning_rate": 1e-2, **changes})
    set_seed(7)
    return TlmTrainer(
        network(args, tokenizer, model_type, config),
        args,
        train_dataset=data["train"],
        corpus_dataset=data["corpus"] if args.rho1 > 0 else None,
        eval_dataset=data["validation"],
        processing_class=tokenizer,
        compute_metrics=compute_metrics_for("macro_f1") if metrics else None,
        objectives=objectives,
        callbacks=callbacks,
    )


def history(run, *names):
    return [[entry[name] for name in names if name in entry] for entry in run.state.log_history if "loss" in entry]


def weights(run):
    return {name: value.clone() for name, value in run.model.state_dict().items()}


class At(TrainerCallback):
    """A callback that applies an action to the model when a step (counted from 1) begins."""

    def __init__(self, step, action):
        self.step, self.action = step, action

    def on_step_begin(self, args, state, control, model=None, **kwargs):
        if state.global_step + 1 == self.step:
            self.action(model)


class StopAfter(TrainerCallback):
    """A callback that ends training after a step, as if the run had been that short."""

    def __init__(self, step):
        self.step = step

    def on_step_end(self, args, state, control, **kwargs):
        control.should_training_stop = state.global_step >= self.step


class Gradients(TrainerCallback):
    """A callback that keeps the gradients of the first optimizer step, as the optimizer sees them (clipping is off)."""

    def __init__(self):
        self.first = None

    def on_pre_optimizer_step(self, args, state, control, model=None, **kwargs):
        if self.first is None:
            self.first = {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}


def sigterm(model):
    signal.raise_signal(signal.SIGTERM)


def poison(model):
    """Set one embedding to NaN: that of a word of every text."""
    with torch.no_grad():
        model.get_input_embeddings().weight[2] = math.nan


def tokenized(tokenizer, corpus_rows):
    task = make_task()
    corpus = Dataset.from_list(corpus_rows).select_columns(["text"])
    return {
        "train": tokenize(task.train, tokenizer, 32),
        "validation": tokenize(task.validation, tokenizer, 32),
        "corpus": tokenize(corpus, tokenizer, 32),
    }


def run_processes(target, *arguments, processes=1, patience=120, kill_after=None):
    """Call `target(*arguments)` in new processes, joined by torch.distributed if there are several; return the exit codes.

    When one process is killed, so are the others.

    Args:
        patience: seconds after which all are killed.
        kill_after: the same if given, for runs that are meant to be killed.
    """
    started = warm.start(partial(target, *arguments), processes)
    deadline = time.monotonic() + (patience if kill_after is None else kill_after)
    while any(process.is_alive() for process in started):
        multiprocessing.connection.wait([p.sentinel for p in started if p.is_alive()], max(0, deadline - time.monotonic()))
        if time.monotonic() >= deadline or any(process.exitcode == -signal.SIGKILL for process in started):
            for process in started:
                process.kill()
                process.join()
    return [process.exitcode for process in started]


def two_are_one(tmp_path, tokenizer, corpus_rows, settings, *names):
    """Train with `settings` for four steps of 8 texts in one process, then in two, and compare their logs."""
    tokenizer.save_pretrained(tmp_path / "tokenizer")
    logs = []
    for processes in (1, 2):
        folder = tmp_path / str(processes)
        arguments = (str(folder), str(tmp_path / "tokenizer"), corpus_rows, settings, names)
        assert run_processes(_four_steps, *arguments, processes=processes) == [0] * processes
        logs.append(json.loads((folder / "log.json").read_text()))
    assert logs[0] and all(logs[0])
    for ours, expected in zip(*logs, strict=True):
        assert ours == pytest.approx(expected, rel=2e-4)


def _four_steps(folder, tokenizer_folder, corpus_rows, settings, names):
    tokenizer = AutoTokenizer.from_pretrained(tokenizer_folder)
    size = 4 if os.environ.get("WORLD_SIZE") == "2" else 8
    data = tokenized(tokenizer, corpus_rows)
    run = trainer(folder, data, tokenizer, **settings, rho1=1, max_steps=4, per_device_train_batch_size=size)
    run.train()
    if run.is_world_process_zero():
        (Path(folder) / "log.json").write_text(json.dumps(history(run, "loss", *names)))


def evaluated(folder, tokenizer_folder, corpus_rows, settings):
    """Evaluate the corpus objective, and write its terms to scores.json.

    The numbers of passages are multiples of the batch size and others, in two batch layouts.
    """
    tokenizer, scores = AutoTokenizer.from_pretrained(tokenizer_folder), {}
    data = tokenized(tokenizer, corpus_rows)
    for packing in ("none", "group"):
        for count in (3, 7, 8, 13):
            held_out = data["corpus"].select(range(count)).add_column("draw", list(range(count)))
            parts = data | {"train": None, "validation": held_out}
            options = {**settings, "packing": packing, "rho1": math.inf, "per_device_eval_batch_size": 4}
            run = trainer(folder, parts, tokenizer, **options, metrics=False)
            found = {name.removeprefix("eval_"): value for name, value in run.evaluate().items()}
            scores |= {
                f"{packing} {count} {name}": found[name] for name in found if name.endswith(("_loss", "y", "fraction"))
            }
    if run.is_world_process_zero():
        (Path(folder) / "scores.json").write_text(json.dumps(scores))


def die_in_write(number):
    """SIGKILL this process when half of its `number`-th checkpoint file is written."""
    count = 0

    def wrap(owner, name, place):
        original = getattr(owner, name)

        def writing(*args, **kwargs):
            nonlocal count
            original(*args, **kwargs)
            count += 1
            if count == number:
                os.truncate(args[place], os.path.getsize(args[place]) // 2)
                os.kill(os.getpid(), signal.SIGKILL)

        setattr(owner, name, writing)

    wrap(torch, "save", 1)
    wrap(modeling_utils, "safe_save_file", 1)
    wrap(TrainerState, "save_to_json", 1)
    wrap(seals, "atomic_write", 0)


def die_in_rotation():
    """SIGKILL this process when half of an older checkpoint is removed."""

    def removing(path, **kwargs):
        for file in sorted(Path(path).iterdir())[::2]:
            file.unlink()
        os.kill(os.getpid(), signal.SIGKILL)

    def rotate(*args, **kwargs):
        rmtree, shutil.rmtree = shutil.rmtree, removing
        checkpoints.rotate(*args, **kwargs)
        shutil.rmtree = rmtree

    base_trainer.rotate = rotate


def both_stages(
    folder, tokenizer_folder, corpus_rows, fault=None, number=None, objective="mlm", max_steps=(7, 9), stop=None
):
    """Train stage 1 and stage 2 with dropout, as `run_tlm` does for one seed.

    Args:
        stop: the stage in which the last process gets SIGTERM at its third step.
    """
    tokenizer = AutoTokenizer.from_pretrained(tokenizer_folder)
    data = StageData(**tokenized(tokenizer, corpus_rows))
    args = TlmArguments(
        output_dir=str(folder),
        **{**QUIET, "save_strategy": "steps", "save_steps": 2, "rho1": 1, "learning_rate": 1e-2},
        max_steps=max_steps[0],
        per_device_train_batch_size=6,
        gradient_accumulation_steps=2,
        stage2_max_steps=max_steps[1],
        stage2_eval_steps=2,
        stage2_total_batch_size=12,
        stage2_learning_rate=1e-2,
        objective=objective,
    )
    last = args.process_index == args.world_size - 1

    def model():
        set_seed(7)
        return network(args, tokenizer, OBJECTIVES[objective]["model_type"], {})

    if fault is not None:
        fault(*([] if number is None else [number]))
    for stage in (1, 2):
        trained, *_ = run_stage(
            stage,
            model,
            args.for_stage(stage, Path(folder) / f"stage{stage}", 0, "macro_f1"),
            data,
            tokenizer,
            compute_metrics=compute_metrics_for("macro_f1"),
            id2label={0: "down", 1: "none", 2: "up"},
            callbacks=[At(3, sigterm)] if stage == stop and last else [],
        )
        model = partial(_same, trained)


def _same(model):
    return model


def stopped_in_each_stage(folder, tokenizer_folder, corpus_rows):
    """Train both stages for every objective, then with a SIGTERM in each stage; run in one of two processes."""
    for objective in OBJECTIVES:
        train = partial(
            both_stages,
            tokenizer_folder=tokenizer_folder,
            corpus_rows=corpus_rows,
            objective=objective,
            max_steps=(4, 4),
        )
        train(f"{folder}/{objective}/whole")
        for stage in (1, 2):
            with pytest.raises(Terminated, match="after step 3"):
                train(f"{folder}/{objective}/cut", stop=stage)
        train(f"{folder}/{objective}/cut")


def streamed(folder, tokenizer_folder, corpus_rows, *runs):
    """Pretrain with dropout, past the end of the corpus, on blocks that a thread of the first process builds meanwhile.

    Args:
        runs: (name, number) of each run, one after another; the first process is killed in the middle of writing the file
            of that number, unless it is None.
    """
    from datasets import config

    for name, number in runs:
        if number is not None and os.environ.get("RANK", "0") == "0":
            die_in_write(number)
        config.HF_DATASETS_CACHE = Path(folder) / f"{name}-cache"
        args = PretrainArguments(
            output_dir=f"{folder}/{name}",
            **{**QUIET, "save_strategy": "steps", "save_steps": 2, "eval_strategy": "steps", "eval_steps": 2},
            **{"max_steps": 10, "max_length": 16, "total_batch_size": 8, "learning_rate": 1e-2},
        )
        model_config = {"model_type": "bert", **TINY_CONFIGS["bert"]}
        run_pretraining(
            load_corpus(Dataset.from_list(corpus_rows)),
            args,
            ModelArguments(model_config=model_config, tokenizer_name=tokenizer_folder),
            BlockArguments(validation_share=0.1, shard_size=8, streaming_blocks=True, shards_ahead=1),
        )


def outcome(stage_folder, weights_files="model/**/*.safetensors"):
    """Return a run's results: its log without times, its best score and step, and the bytes of its weights."""
    state = json.loads((stage_folder / "trainer_state.json").read_text())
    timed = ("runtime", "per_second", "flops", "mfu", "seconds", "train_loss", "epoch")
    log = [
        {name: value for name, value in entry.items() if not any(word in name for word in timed)}
        for entry in state["log_history"]
    ]
    files = [file.read_bytes() for file in sorted(stage_folder.glob(weights_files))]
    assert files and log
    return [entry for entry in log if len(entry) > 1], state["best_metric"], state["best_global_step"], files


# Settings for two processes: with dropout, and a best checkpoint.
PAIR = {
    **{"rho1": 1, "max_steps": 7, "per_device_train_batch_size": 6, "config": {}, "gradient_accumulation_steps": 2},
    **{"save_strategy": "steps", "save_steps": 2, "eval_strategy": "steps", "eval_steps": 2},
    **{"load_best_model_at_end": True, "metric_for_best_model": "macro_f1"},
}


def pair(folder, tokenizer_folder, corpus_rows, case, *details):
    """Train in `folder/case` as the case says, and write how the run ended; run in one of two processes."""
    tokenizer = AutoTokenizer.from_pretrained(tokenizer_folder)
    data, second = tokenized(tokenizer, corpus_rows), os.environ["RANK"] == "1"

    def train(name, action=None, step=5):
        run = trainer(Path(folder) / name, data, tokenizer, **PAIR, callbacks=[At(step, action)] if action else None)
        try:
            run.train(resume_from_checkpoint=True)
            run.save_state()
            if not second:
                run.save_model()
            end = "finished"
        except (HfTlmError, Terminated) as error:
            end = f"{type(error).__name__}: {error}"
        (Path(folder) / name / f"end-{os.environ['RANK']}").write_text(end)
        run.accelerator.wait_for_everyone()

    if case == "cut":
        if details and not second:
            die_in_write(*details)
        train("cut")
        return
    # One after another, as starting processes takes the most time.
    train("whole")
    train("sigterm", sigterm if second else None)
    ends = [(Path(folder) / "sigterm" / f"end-{rank}").read_text() for rank in range(2)]
    train("sigterm")
    (Path(folder) / "sigterm" / "ends.json").write_text(json.dumps(ends))
    train("nan", poison if second else None)

    def fill(model):
        # Enough for the model, too little for the optimizer's state.
        size = (Path(folder) / "whole" / "model.safetensors").stat().st_size
        resource.setrlimit(resource.RLIMIT_FSIZE, (size + 10_000, resource.RLIM_INFINITY))

    train("full", None if second else fill)


def taught(data, tokenizer):
    """Return the trainers' data with a teacher's answers: some texts have none, and passages are added."""
    generator, task = np.random.default_rng(0), make_task()
    train, passage_answers = (generator.dirichlet([1, 1, 1], count).astype(np.float32) for count in (48, 30))
    train[::5] = 0
    passages = Dataset.from_dict({"text": [row["text"] for row in sentences(30, 9)]})
    teacher = Teacher(train, np.arange(30), np.full(30, 1000), passage_answers, {})
    texts = tokenize(task.train, tokenizer, 32)
    return {**data, "train": teacher.answered(texts, tokenize(teacher.texts(passages), tokenizer, 32), 0.5)}
