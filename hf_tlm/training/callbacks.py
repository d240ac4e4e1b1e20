"""Callbacks of training: progress bars, experiment trackers, early stopping, SIGTERM, and non-finite losses."""

from __future__ import annotations

import contextlib
import json
import math
import os
import platform
import re
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from importlib.metadata import version
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from accelerate import Accelerator
from safetensors.torch import save
from tqdm.auto import tqdm
from transformers import Trainer, TrainerCallback, TrainerState, TrainingArguments
from transformers.integrations import TensorBoardCallback, TrackioCallback, WandbCallback
from transformers.trainer_callback import PrinterCallback, ProgressCallback
from transformers.trainer_utils import has_length

from hf_tlm.data.interleave import CORPUS, TASK, InterleavedBatchSampler
from hf_tlm.errors import HfTlmError
from hf_tlm.utils.files import atomic_write
from hf_tlm.utils.process import Terminated, end_at_once, on_sigterm
from hf_tlm.utils.shown import relative_name
from hf_tlm.version import __version__

# Values left out of log lines on the console; the summary and `trainer_state.json` have them.
_SILENT = re.compile(
    r"epoch|total_flos|tokens|real_tokens|(measured_)?flops|flops_ratio|seconds|.*_runtime|.*_(samples|steps)_per_second"
)
_STAGE = re.compile(r"(score_model-\w+/)?seed-(\d+)(?:/stage(\d))?$")
_POINT = re.compile(r"split-(\d+)/(lr[^/]+)/")
_TRIAL = re.compile(r"trials/trial-(\d+)$")
_GRID_POINT = re.compile(r"points/([^/]+)/seed-(\d+)$")
# Clusters signal every process, and torch's launcher forwards its own signal too: signals closer than this are one request.
ECHO_SECONDS = 5.0


class ProgressLines(ProgressCallback):
    """The Trainer's progress bar with two changes: it has a name, and logs are short lines above it.

    Args:
        name: label in front of the bar; see `bar_name`.
    """

    def __init__(self, name: str):
        super().__init__()
        self.name = name

    # Bars are created here with their names: the Trainer's would first be drawn without one.
    def on_train_begin(self, args, state, control, **kwargs):
        self.current_step = 0
        if state.is_world_process_zero:
            tqdm.write(f"{self.name}: {opening(kwargs.get('model'), args)}, {state.max_steps:,} steps")
            self.training_bar = tqdm(total=state.max_steps, desc=self.name, dynamic_ncols=True)

    def on_prediction_step(self, args, state, control, eval_dataloader=None, **kwargs):
        if self.prediction_bar is None and state.is_world_process_zero and has_length(eval_dataloader):
            alone = self.training_bar is None
            name, total = "Predicting" if alone else "Evaluating", len(eval_dataloader)
            self.prediction_bar = tqdm(total=total, desc=name, leave=alone, dynamic_ncols=True)
        super().on_prediction_step(args, state, control, eval_dataloader=eval_dataloader, **kwargs)

    def on_log(self, args, state, control, logs=None, **kwargs):
        if state.is_world_process_zero and self.training_bar is not None and (line := log_line(logs or {})):
            self.training_bar.write(f"step {state.global_step:,}  {line}")


class PrintedLines(PrinterCallback):
    """The Trainer's printed logs (`disable_tqdm`) with two changes: an opening line, and logs as short lines.

    Args:
        name: name of the training; see `bar_name`.
    """

    def __init__(self, name: str):
        self.name = name

    def on_train_begin(self, args, state, control, **kwargs):
        if state.is_world_process_zero:
            print(f"{self.name}: {opening(kwargs.get('model'), args)}, {state.max_steps:,} steps")

    def on_log(self, args, state, control, logs=None, **kwargs):
        if state.is_world_process_zero and (line := log_line(logs or {})):
            print(f"step {state.global_step:,}  {line}")


class EarlyStopping(TrainerCallback):
    """Early stopping of a training whose validation score has not improved in a number of evaluations.

    transformers' EarlyStoppingCallback keeps a counter, which a resumed run would start from 0. Here the count is derived
    from the log history, which is in every checkpoint.

    Args:
        patience: number of evaluations after the best one.
        name: name of the training; see `bar_name`.
    """

    def __init__(self, patience: int, name: str):
        self.patience, self.name = patience, name

    def on_train_begin(self, args, state, control, **kwargs):
        if self._is_over(args, state):  # The run was killed after its last checkpoint.
            control.should_training_stop = True

    def on_evaluate(self, args, state, control, **kwargs):
        if not self._is_over(args, state) or control.should_training_stop:
            return
        control.should_training_stop = True
        if state.is_world_process_zero and state.global_step < state.max_steps:
            tqdm.write(
                f"{self.name}: stopped at step {state.global_step:,} of {state.max_steps:,}; {args.metric_for_best_model} "
                f"has not improved in {self.patience} evaluations."
            )

    def _is_over(self, args: TrainingArguments, state: TrainerState) -> bool:
        name = f"eval_{args.metric_for_best_model}"
        scores = [entry[name] for entry in state.log_history if name in entry]
        best = max(range(len(scores)), key=scores.__getitem__, default=0)  # The first, if several are equal.
        return len(scores) > best + self.patience


def opening(model: Any, args: TrainingArguments) -> str:
    """Describe a training in one line: model type, parameters, device, processes and precision."""
    config, count = getattr(model, "config", None), getattr(model, "num_parameters", None)
    name = getattr(config, "model_type", None) or type(model).__name__
    size = f" of {count():,} parameters" if callable(count) else ""
    precision = "bfloat16" if args.bf16 else "float16" if args.fp16 else "float32"
    processes = f" x {args.world_size}" if args.world_size > 1 else ""
    return f"{name}{size} on {args.device.type}{processes} in {precision}"


def log_line(logs: Mapping[str, Any]) -> str:
    """Format the losses, scores and rates of a log with four digits; an empty string if it has none."""
    entries = ((name, value) for name, value in logs.items() if not _SILENT.fullmatch(name))
    return "  ".join(f"{name} {value:.4g}" if isinstance(value, float) else f"{name} {value}" for name, value in entries)


def bar_name(output_dir: str | os.PathLike) -> str:
    """Return the name of a training by its folder: seed or score model with stage, split and point, grid point, or trial."""
    folder = os.fspath(output_dir).replace(os.sep, "/").rstrip("/")
    if point := _POINT.search(folder):
        return f"Split {point[1]}, {point[2]}"
    if point := _GRID_POINT.search(folder):
        return f"{point[1]}, seed {point[2]}"
    if trial := _TRIAL.search(folder):
        return f"Trial {trial[1]}"
    match = _STAGE.search(folder)
    if match is None:
        return "Training"
    return ("Score model" if match[1] else f"Seed {match[2]}") + (f", stage {match[3]}" if match[3] else "")


class WandbRuns(WandbCallback):
    """W&B's callback with two changes: every training has a run of its own, and runs have a group.

    A new training finishes the run of the previous one. A run that no training began, such as one that the user's program
    began, is continued, and so is the one that `WANDB_RUN_ID` names.
    """

    _begun: Any = None

    def __init__(self, group: str | None):
        super().__init__()
        self._group = group

    def setup(self, args, state, model, **kwargs):
        """Start the run, on the first process."""
        wandb = self._wandb
        if state.is_world_process_zero and args.run_name and not os.getenv("WANDB_RUN_ID"):
            if wandb.run is not None and wandb.run is WandbRuns._begun and wandb.run.name != args.run_name:
                wandb.finish()
            if wandb.run is None:
                project, group = os.getenv("WANDB_PROJECT", "huggingface"), os.getenv("WANDB_RUN_GROUP", self._group)
                wandb.init(project=project, name=args.run_name, group=group)
                WandbRuns._begun = wandb.run
        super().setup(args, state, model, **kwargs)

    def on_train_begin(self, args, state, control, model=None, **kwargs):
        """Start the run, also for a trial of a hyperparameter search, whose name and group the base class would drop."""
        if self._wandb is None or not (state.is_hyper_param_search and args.run_name):
            return super().on_train_begin(args, state, control, model, **kwargs)
        return self.setup(args, state, model, **kwargs)


class TrackioRuns(TrackioCallback):
    """Trackio's callback with two changes: runs have a group, and a new training never continues a run of its name."""

    _begun: set[str | None] = set()

    def __init__(self, group: str | None):
        super().__init__()
        self._group = group

    def setup(self, args, state, model, **kwargs):
        """Start the run, on the first process, or continue it: after a checkpoint, or for a later evaluation."""
        resumes = state.global_step > 0 or args.run_name in self._begun
        options = {"group": self._group, "resume": "allow" if resumes else "never"}
        self._begun.add(args.run_name)
        trackio, self._trackio = self._trackio, _ModuleWithInitOptions(self._trackio, options)
        try:
            super().setup(args, state, model, **kwargs)
        finally:
            self._trackio = trackio


class _ModuleWithInitOptions:
    """A wrapper of a module that adds options to calls of its `init`."""

    def __init__(self, module: ModuleType, options: dict[str, Any]):
        self._module, self._options = module, options

    def init(self, **options: Any) -> Any:
        return self._module.init(**options | self._options)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._module, name)


def track_by_training(trainer: Trainer, group: str | None) -> None:
    """Make a trainer's experiment trackers use one run per training, named `args.run_name`, in a group."""
    run_callbacks: dict[type[TrainerCallback], type[WandbRuns | TrackioRuns]]
    run_callbacks = {WandbCallback: WandbRuns, TrackioCallback: TrackioRuns}
    for callback in list(trainer.callback_handler.callbacks):
        if (callback_class := run_callbacks.get(type(callback))) is not None:
            trainer.remove_callback(callback)
            trainer.add_callback(callback_class(group))
        elif isinstance(callback, TensorBoardCallback) and trainer.args.run_name:
            name = relative_name(trainer.args.run_name)
            # TENSORBOARD_LOGGING_DIR, or a directory within the training's own. transformers names it by the time, so a
            # resumed training gets another one, and has none for evaluation alone, which then logs to the working directory.
            callback.logging_dir = (
                os.path.join(str(trainer.args.output_dir), "runs", os.path.basename(name))
                if callback.logging_dir is None
                else os.path.join(callback.logging_dir, name)
            )


class SigtermCallback(TrainerCallback):
    """A callback that ends a run at SIGTERM, after the current step, its evaluation if one is due, and a checkpoint.

    Processes get the signal at different times, or only some of them get it. They agree on the step in the exchange of
    `NonFiniteLossCallback` before every optimizer step, so this needs no communication of its own.

    agreed: whether all processes stop after this step.
    """

    def __init__(self):
        self.agreed = self._saving = False
        self._since: float | None = None

    @property
    def requested(self) -> bool:
        """Whether this process got the signal."""
        return self._since is not None

    @contextlib.contextmanager
    def listening(self) -> Iterator[None]:
        """Treat SIGTERM as a request to stop within the block.

        A second signal ends the process at once. A signal that came too late for a step is raised again after the block,
        for the previous handler.
        """
        self.agreed, self._saving, self._since = False, False, None
        with on_sigterm(self._request):
            yield
        if self.requested:
            os.kill(os.getpid(), signal.SIGTERM)

    def _request(self) -> None:
        now = time.monotonic()
        if self._since is None:
            self._since = now
        elif now - self._since >= ECHO_SECONDS:
            end_at_once()

    def on_step_end(self, args, state, control, **kwargs):
        # At the end of an epoch an evaluation may follow, which a resumed run would skip.
        if self.agreed and state.epoch != int(state.epoch):
            self._save(args, control)

    def on_epoch_end(self, args, state, control, **kwargs):
        if self.agreed:
            self._save(args, control)

    def _save(self, args, control) -> None:
        self._saving = True
        # Log too, because a checkpoint does not have the sums over steps that are not logged yet.
        control.should_save = control.should_log = True
        # A run cannot continue from the model alone.
        args.save_only_model = False

    def on_save(self, args, state, control, **kwargs):
        if self._saving:
            raise Terminated(
                f"Stopped by SIGTERM after step {state.global_step}; a checkpoint was saved. Run the same command to "
                "continue."
            )


class NonFiniteLossError(HfTlmError):
    """Raised when the loss of a step is infinite or not a number."""


class NonFiniteLossCallback(TrainerCallback):
    """A callback that ends training before the optimizer step if the loss is not finite on any process.

    It gathers two integers per process, whether a loss is not finite and whether SIGTERM came, and synchronizes with the
    device once: that is its cost per step. Only losses are checked: steps whose gradients overflow in float16 are skipped
    by the gradient scaler.

    Args:
        sampler: returns the sampler of the batches, or None if it does not know their texts.
        interruption: the callback of SIGTERM; its `agreed` is set if any process got the signal.
    """

    def __init__(
        self, accelerator: Accelerator, sampler: Callable[[], InterleavedBatchSampler | None], interruption: SigtermCallback
    ):
        self.accelerator, self.sampler, self.interruption = accelerator, sampler, interruption
        self.stream = ""
        self.batches: list[Mapping[str, torch.Tensor]] = []
        self.losses: list[torch.Tensor] = []
        self.terms: list[dict[str, torch.Tensor]] = []
        self.rng: dict[str, torch.Tensor] = {}

    def begin(self, stream: str, batches: list[Mapping[str, torch.Tensor]]) -> None:
        """Begin a step with these micro-batches."""
        self.stream, self.batches, self.losses, self.terms = stream, batches, [], []

    def add(self, loss: torch.Tensor, terms: Mapping[str, torch.Tensor]) -> None:
        """Add the loss of the next micro-batch and its named scalar terms."""
        self.losses.append(loss.detach())
        self.terms.append(dict(terms))

    def on_step_begin(self, args, state, control, **kwargs):
        # The states of dropout's random generators, with which the step can be repeated.
        self.rng = {"cpu": torch.get_rng_state()}
        if args.device.type == "cuda":
            self.rng["cuda"] = torch.cuda.get_rng_state(args.device)

    def on_pre_optimizer_step(self, args, state, control, optimizer=None, **kwargs):
        """Check that the losses of all processes are finite, or raise a NonFiniteLossError."""
        finite = torch.isfinite(torch.stack(self.losses)).all()
        flags = torch.stack([~finite, torch.full((), self.interruption.requested, device=finite.device)])
        flags = self.accelerator.gather(flags.to(torch.int64)[None]).tolist()
        self.interruption.agreed = any(requested for _, requested in flags)
        bad = [process for process, (nonfinite, _) in enumerate(flags) if nonfinite]
        if bad:
            self._stop(args, state.global_step, bad, optimizer.param_groups[0]["lr"])

    def _stop(self, args, step: int, bad: list[int], learning_rate: float) -> None:
        folder = Path(args.output_dir) / f"nonfinite-step-{step + 1}"
        location = f"The micro-batches and generators are in {folder}"
        if args.process_index in bad:
            try:
                self._dump(folder, args, step, learning_rate)
            except HfTlmError as error:
                location = f"The micro-batches could not be written: {error}"
        processes = f" on process {', '.join(map(str, bad))}" if args.world_size > 1 else ""
        sums = {"loss": sum(map(float, self.losses))}
        sums |= {name: sum(float(terms[name]) for terms in self.terms) for name in self.terms[0]}
        values = "; ".join(f"{name} {value:g}" for name, value in sums.items())
        raise NonFiniteLossError(
            f"The loss of step {step + 1} is not finite{processes}. Stream: {self.stream}; {values}; learning rate "
            f"{learning_rate:g}. The optimizer step was not taken. {location}. The same command would fail at the same "
            "step: start in another output folder with a lower learning rate, more warm-up, or bf16 in place of fp16."
        )

    def _dump(self, folder: Path, args, step: int, learning_rate: float) -> None:
        """Write this process's micro-batches and random states to a folder, to reproduce the step.

        `process-<n>.safetensors` has `<micro-batch>.<tensor>` and `rng.<device>`; `process-<n>.json` has everything else.
        """
        process = args.process_index
        tensors = {f"{i}.{name}": t for i, batch in enumerate(self.batches) for name, t in batch.items()}
        tensors |= {f"rng.{device}": state for device, state in self.rng.items()}
        record = {
            "step": step + 1,
            "stream": self.stream,
            "process": process,
            "processes": args.world_size,
            "learning_rate": learning_rate,
            "seed": args.seed,
            "micro_batches": [
                {
                    "loss": _json_number(loss),
                    "terms": {name: _json_number(value) for name, value in terms.items()},
                    **texts,
                }
                for loss, terms, texts in zip(self.losses, self.terms, self._texts(args, step), strict=True)
            ],
            "versions": {
                "python": platform.python_version(),
                "hf_tlm": __version__,
                **{name: version(name) for name in ("torch", "transformers", "accelerate")},
            },
        }
        content = save({name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()})
        atomic_write(folder / f"process-{process}.safetensors", content)
        atomic_write(folder / f"process-{process}.json", json.dumps(record, indent=2) + "\n")

    def _texts(self, args, step: int) -> list[dict[str, list[int]]]:
        """Return the texts of every micro-batch of this process, or empty dicts if the sampler does not know them.

        A micro-batch has the texts' `rows` (indices in the tokenised task or corpus data) and their `draws`, from which
        their masks were derived.
        """
        sampler = self.sampler()
        if sampler is None:
            return [{} for _ in self.losses]
        sizes = {name: stream.size for name, stream in sampler.streams.items()}
        offset, num_texts = 0 if self.stream == TASK else sizes[TASK], sizes[TASK] + sizes[CORPUS]
        # accelerate hands the micro-batches of a step to the processes in turn.
        micro_batches = list(sampler.batches_of(step))[args.process_index :: args.world_size]
        return [{"draws": draws, "rows": [draw % num_texts - offset for draw in draws]} for draws in micro_batches]


def _json_number(value: Any) -> float | str:
    """Return a number as JSON can hold it: nan and inf, which JSON lacks, as strings."""
    number = float(value)
    return number if math.isfinite(number) else str(number)
