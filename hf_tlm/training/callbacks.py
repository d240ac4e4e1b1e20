"""What watches a training: the progress bar, trackers of experiments, SIGTERM, losses that are not finite."""

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

# What the summary and `trainer_state.json` say: a line of a log is for whoever looks on.
_SILENT = re.compile(
    r"epoch|total_flos|tokens|real_tokens|(measured_)?flops|flops_ratio|seconds|.*_runtime|.*_(samples|steps)_per_second"
)
_STAGE = re.compile(r"seed-(\d+)(?:/stage(\d))?$")
_POINT = re.compile(r"split-(\d+)/(lr[^/]+)/")
# Clusters signal every process, and torch's launcher then passes its own on: two signals so close are one request.
ECHO_SECONDS = 5.0


class ProgressLines(ProgressCallback):
    """The Trainer's bar; the only changes: it has a name, and logs are short lines above it.

    Args:
        name: before the bar; see `bar_name`.
    """

    def __init__(self, name: str):
        super().__init__()
        self.name = name

    # Bars are made here with their names: the Trainer's would be drawn once without.
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
    """What the Trainer prints without bars (`disable_tqdm`); the only changes: what is trained, and logs as short lines.

    Args:
        name: of the training; see `bar_name`.
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
    """The end of a training whose validation score has not become better in so many evaluations.

    transformers' EarlyStoppingCallback keeps a count of its own, which a resumed run would begin anew. The log that it is
    read from here is in every checkpoint.

    Args:
        patience: evaluations after the best one.
        name: of the training; see `bar_name`.
    """

    def __init__(self, patience: int, name: str):
        self.patience, self.name = patience, name

    def on_train_begin(self, args, state, control, **kwargs):
        if self._is_over(args, state):  # A run that was killed after its last checkpoint.
            control.should_training_stop = True

    def on_evaluate(self, args, state, control, **kwargs):
        if not self._is_over(args, state) or control.should_training_stop:
            return
        control.should_training_stop = True
        if state.is_world_process_zero and state.global_step < state.max_steps:
            tqdm.write(
                f"{self.name}: stopped at step {state.global_step:,} of {state.max_steps:,}; {args.metric_for_best_model} "
                f"has not become better in {self.patience} evaluations."
            )

    def _is_over(self, args: TrainingArguments, state: TrainerState) -> bool:
        name = f"eval_{args.metric_for_best_model}"
        scores = [entry[name] for entry in state.log_history if name in entry]
        best = max(range(len(scores)), key=scores.__getitem__, default=0)  # The first of them.
        return len(scores) > best + self.patience


def opening(model: Any, args: TrainingArguments) -> str:
    """What is trained, on what, in which precision."""
    config, count = getattr(model, "config", None), getattr(model, "num_parameters", None)
    name = getattr(config, "model_type", None) or type(model).__name__
    size = f" of {count():,} parameters" if callable(count) else ""
    precision = "bfloat16" if args.bf16 else "float16" if args.fp16 else "float32"
    processes = f" x {args.world_size}" if args.world_size > 1 else ""
    return f"{name}{size} on {args.device.type}{processes} in {precision}"


def log_line(logs: Mapping[str, Any]) -> str:
    """The losses, scores and rates of a log, in four digits; empty where it has none."""
    shown = ((name, value) for name, value in logs.items() if not _SILENT.fullmatch(name))
    return "  ".join(f"{name} {value:.4g}" if isinstance(value, float) else f"{name} {value}" for name, value in shown)


def bar_name(output_dir: str | os.PathLike) -> str:
    """What is trained in a folder: the seed and stage of a run that has them, the split and point of a few-shot run."""
    folder = os.fspath(output_dir).replace(os.sep, "/").rstrip("/")
    if point := _POINT.search(folder):
        return f"Split {point[1]}, {point[2]}"
    found = _STAGE.search(folder)
    if found is None:
        return "Training"
    return f"Seed {found[1]}" + (f", stage {found[2]}" if found[2] else "")


class WandbRuns(WandbCallback):
    """W&B's callback; the only changes: a training ends the run of the one before it, and its own is in a group.

    A run that is not of another training here, such as one that a program began itself, goes on. So does the one that
    `WANDB_RUN_ID` names.
    """

    _begun: Any = None

    def __init__(self, group: str | None):
        super().__init__()
        self._group = group

    def setup(self, args, state, model, **kwargs):
        """Begin the run, on the first process."""
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
        """Begin the run; that of a search's trial by its name and in its group, which the callback would forget."""
        if self._wandb is None or not (state.is_hyper_param_search and args.run_name):
            return super().on_train_begin(args, state, control, model, **kwargs)
        return self.setup(args, state, model, **kwargs)


class TrackioRuns(TrackioCallback):
    """Trackio's callback; the only changes: runs are in a group, and only what goes on continues a run of its name."""

    _begun: set[str | None] = set()

    def __init__(self, group: str | None):
        super().__init__()
        self._group = group

    def setup(self, args, state, model, **kwargs):
        """Begin the run, on the first process, or go on with it: after a checkpoint, or for what is evaluated later."""
        goes_on = state.global_step > 0 or args.run_name in self._begun
        options = {"group": self._group, "resume": "allow" if goes_on else "never"}
        self._begun.add(args.run_name)
        trackio, self._trackio = self._trackio, _With(self._trackio, options)
        try:
            super().setup(args, state, model, **kwargs)
        finally:
            self._trackio = trackio


class _With:
    """A module whose `init` is called with some options more."""

    def __init__(self, module: ModuleType, options: dict[str, Any]):
        self._module, self._options = module, options

    def init(self, **options: Any) -> Any:
        return self._module.init(**options | self._options)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._module, name)


def track_by_training(trainer: Trainer, group: str | None) -> None:
    """Have the trackers that a trainer reports to keep a run for each training, by `args.run_name`, in a group."""
    ours: dict[type[TrainerCallback], type[WandbRuns | TrackioRuns]]
    ours = {WandbCallback: WandbRuns, TrackioCallback: TrackioRuns}
    for callback in list(trainer.callback_handler.callbacks):
        if (made := ours.get(type(callback))) is not None:
            trainer.remove_callback(callback)
            trainer.add_callback(made(group))
        elif isinstance(callback, TensorBoardCallback) and trainer.args.run_name:
            name = relative_name(trainer.args.run_name)
            # TENSORBOARD_LOGGING_DIR, or a folder in the training's own: transformers names it by the clock, anew when a
            # training goes on, and has none for what is evaluated alone, which is then logged where the program was started.
            callback.logging_dir = (
                os.path.join(str(trainer.args.output_dir), "runs", os.path.basename(name))
                if callback.logging_dir is None
                else os.path.join(callback.logging_dir, name)
            )


class SigtermCallback(TrainerCallback):
    """Ends a run at SIGTERM after the current step, its evaluation if one is due, and a checkpoint.

    Processes get the signal at different moments, or only some of them do. They agree on the step in the exchange that
    `NonFiniteLossCallback` makes before every optimizer step, so it costs nothing of its own.

    agreed: all processes stop after this step.
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
        """Take SIGTERM as a request within the block.

        A second one ends the process at once, and one that came too late for a step is handed to the previous handler.
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
        # At the end of an epoch there may be an evaluation to come, which a resumed run would leave out.
        if self.agreed and state.epoch != int(state.epoch):
            self._save(args, control)

    def on_epoch_end(self, args, state, control, **kwargs):
        if self.agreed:
            self._save(args, control)

    def _save(self, args, control) -> None:
        self._saving = True
        # The log too, as sums over steps not yet logged are not in a checkpoint.
        control.should_save = control.should_log = True
        # The model alone would not do to continue.
        args.save_only_model = False

    def on_save(self, args, state, control, **kwargs):
        if self._saving:
            raise Terminated(f"Stopped by SIGTERM after step {state.global_step}; saved. The same command continues.")


class NonFiniteLossError(HfTlmError):
    """The loss of a step is infinite or not a number."""


class NonFiniteLossCallback(TrainerCallback):
    """Looks at the losses of a step before the optimizer does, on all processes together.

    It gathers two integers a process, whether a loss is not finite and whether SIGTERM came, and waits once for the
    device: that is the cost of a step. Only losses count: gradients that overflow in float16 are the gradient scaler's to
    skip.

    Args:
        sampler: gives what the batches come from, if it is one that knows their texts.
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
        """A step of these micro-batches."""
        self.stream, self.batches, self.losses, self.terms = stream, batches, [], []

    def add(self, loss: torch.Tensor, terms: Mapping[str, torch.Tensor]) -> None:
        """The loss of the next micro-batch, and its named terms, scalars."""
        self.losses.append(loss.detach())
        self.terms.append(dict(terms))

    def on_step_begin(self, args, state, control, **kwargs):
        # Dropout's generators, from which the step can be repeated.
        self.rng = {"cpu": torch.get_rng_state()}
        if args.device.type == "cuda":
            self.rng["cuda"] = torch.cuda.get_rng_state(args.device)

    def on_pre_optimizer_step(self, args, state, control, optimizer=None, **kwargs):
        """Look at the losses of all processes; raise a NonFiniteLossError if one is not finite."""
        finite = torch.isfinite(torch.stack(self.losses)).all()
        flags = torch.stack([~finite, torch.full((), self.interruption.requested, device=finite.device)])
        flags = self.accelerator.gather(flags.to(torch.int64)[None]).tolist()
        self.interruption.agreed = any(requested for _, requested in flags)
        bad = [process for process, (nonfinite, _) in enumerate(flags) if nonfinite]
        if bad:
            self._stop(args, state.global_step, bad, optimizer.param_groups[0]["lr"])

    def _stop(self, args, step: int, bad: list[int], learning_rate: float) -> None:
        folder = Path(args.output_dir) / f"nonfinite-step-{step + 1}"
        where = f"The micro-batches and generators are in {folder}"
        if args.process_index in bad:
            try:
                self._dump(folder, args, step, learning_rate)
            except HfTlmError as error:
                where = f"The micro-batches could not be written: {error}"
        processes = f" on process {', '.join(map(str, bad))}" if args.world_size > 1 else ""
        sums = {"loss": sum(map(float, self.losses))}
        sums |= {name: sum(float(part[name]) for part in self.terms) for name in self.terms[0]}
        values = "; ".join(f"{name} {value:g}" for name, value in sums.items())
        raise NonFiniteLossError(
            f"The loss of step {step + 1} is not finite{processes}. Stream: {self.stream}; {values}; learning rate "
            f"{learning_rate:g}. The optimizer step was not taken. {where}. The same command would come to the same step: "
            "start in another output folder with a lower learning rate, more warm-up, or bf16 in place of fp16."
        )

    def _dump(self, folder: Path, args, step: int, learning_rate: float) -> None:
        """`process-<n>.safetensors`: `<micro-batch>.<tensor>` and `rng.<device>`; `process-<n>.json`: all the rest."""
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
                    "loss": _number(loss),
                    "terms": {name: _number(value) for name, value in terms.items()},
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
        """Return which texts are in every micro-batch of this process, where a sampler knows it.

        Of each there are the texts' `rows` in the tokenised task or corpus data, and their `draws`, which their masks were
        derived from.
        """
        sampler = self.sampler()
        if sampler is None:
            return [{} for _ in self.losses]
        sizes = {name: stream.size for name, stream in sampler.streams.items()}
        first, size = 0 if self.stream == TASK else sizes[TASK], sizes[TASK] + sizes[CORPUS]
        # accelerate deals a step's micro-batches out to the processes in turn.
        dealt = list(sampler.batches_of(step))[args.process_index :: args.world_size]
        return [{"draws": draws, "rows": [draw % size - first for draw in draws]} for draws in dealt]


def _number(value: Any) -> float | str:
    """A number for JSON, which has no nan and no inf."""
    number = float(value)
    return number if math.isfinite(number) else str(number)
