"""Base classes of the trainers: resumable runs, and batches that depend only on the seed and the step."""

from __future__ import annotations

import contextlib
import logging
import math
import re
import shutil
import time
from abc import abstractmethod
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import torch
from accelerate.state import AcceleratorState
from accelerate.utils import broadcast_object_list
from datasets import Dataset
from safetensors import SafetensorError
from torch import nn
from torch.utils.data import DataLoader
from transformers import Trainer, TrainerCallback
from transformers.trainer import TRAINING_ARGS_NAME
from transformers.trainer_callback import PrinterCallback, ProgressCallback
from transformers.trainer_utils import SaveStrategy

from hf_tlm.data.interleave import InterleavedBatchSampler, InterleavedDataset
from hf_tlm.data.streaming import StreamedBlocks
from hf_tlm.errors import ArgumentsError, HfTlmError
from hf_tlm.models import gather_fsdp
from hf_tlm.models.cpu_kernels import faster_kernels
from hf_tlm.models.loading import reading_pickles
from hf_tlm.training.base_arguments import BaseArguments
from hf_tlm.training.callbacks import (
    EarlyStopping,
    NonFiniteLossCallback,
    PrintedLines,
    ProgressLines,
    SigtermCallback,
    bar_name,
    track_by_training,
)
from hf_tlm.training.checkpoints import (
    CheckpointError,
    best_of,
    check_checkpoint,
    checkpoints_in,
    last_complete_checkpoint,
    remove_local_paths,
    rotate,
    warn_of_other_processes,
)
from hf_tlm.training.cost import TimeBudgetCallback
from hf_tlm.training.optimizers import grouped_optimizer
from hf_tlm.utils.problems import disk_problem
from hf_tlm.utils.process import give_back_freed_memory, ignore_sigterm, keep_freed_memory
from hf_tlm.utils.seals import SEAL, write_seal

logger = logging.getLogger(__name__)
# Messages of torch.save for a path that cannot be written: it has no error type for it.
_TORCH_WRITE_ERROR = re.compile(r"inline_container|cannot be opened|Parent directory .* does not exist")

# After so many seconds the memory that steps on a CPU have freed is returned to the system: usually, and while the machine
# has used more than this percentage of its memory.
SECONDS_OF_KEPT_MEMORY, SECONDS_IF_SCARCE = 60.0, 10.0
SCARCE_PERCENT = 75.0
# Key in a checkpoint's trainer state, beside `Clock`, of the sum of the losses of all steps.
_LOSS = "Loss"


class ResumableTrainer(Trainer):
    """A `transformers.Trainer` with safe checkpoints, controlled stops, faster kernels and short logs.

    These are the only changes:

    - A checkpoint is sealed (`hf_tlm.training.checkpoints`) once every process has written its part, and older ones are
      removed only then, so that there is always a complete one. `train(resume_from_checkpoint=True)` resumes from the
      newest complete one, and starts from the beginning if there is none; `train_loss` at the end covers all steps.
    - Before every optimizer step the processes exchange two flags: SIGTERM stops a run, and a non-finite loss ends it.
    - Progress bars have names, logs are short lines, and trackers have one run per training. These and the stops are
      callbacks of `hf_tlm.training.callbacks`.
    - Steps use the faster kernels of a device (`hf_tlm.models.cpu_kernels`).

    A subclass must call `watch.begin` with the micro-batches of each step in `get_batch_samples`, and `watch.add` with
    every training loss in `compute_loss`.
    """

    args: BaseArguments

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        # Here, because transformers' own error comes with the first step.
        if self.args.gradient_checkpointing and not any(hasattr(m, "gradient_checkpointing") for m in self.model.modules()):
            raise ArgumentsError(
                f"gradient_checkpointing: transformers cannot recompute layers of the type {self.model.config.model_type}. "
                "Remove it, or choose another body; a smaller per_device_train_batch_size takes less memory too."
            )
        if self.args.device.type == "cpu":
            self.args.dataloader_pin_memory = False  # It has no effect on CPUs, and torch warns of it for every loader.
        self.interruption = SigtermCallback()
        self.watch = NonFiniteLossCallback(self.accelerator, lambda: self.batch_sampler, self.interruption)
        self.add_callback(self.interruption)
        self.add_callback(self.watch)
        name = bar_name(self.args.output_dir)
        if self.pop_callback(ProgressCallback) is not None:
            self.add_callback(ProgressLines(name))
        if self.pop_callback(PrinterCallback) is not None:
            self.add_callback(PrintedLines(name))
        if patience := self.args.early_stopping_patience:
            self.add_callback(EarlyStopping(patience, name))
        track_by_training(self, self.args.run_group or None)
        self._failure: Exception | None = None
        self._resumed_from: str | None = None
        # Sum over the steps before a resume; None if an older version wrote the checkpoint without it.
        self._previous_loss_sum: float | None = 0.0

    def create_accelerator_and_postprocess(self):
        # accelerate keeps one state per process, and refuses a precision other than that of the previous trainer.
        if AcceleratorState._shared_state.get("_mixed_precision", self.args.mixed_precision) != self.args.mixed_precision:
            AcceleratorState._reset_state()
        super().create_accelerator_and_postprocess()
        self._process_state = dict(AcceleratorState._shared_state)

    def _take_process(self) -> None:
        """Restore this trainer's state of accelerate, if training arguments created since have cleared it."""
        if "_mixed_precision" not in AcceleratorState._shared_state:
            AcceleratorState._shared_state.update(self._process_state)

    @property
    def batch_sampler(self) -> InterleavedBatchSampler | None:
        """The sampler of the training batches, if they depend only on the seed and the step; None in this class."""
        return None

    def train(self, resume_from_checkpoint: str | bool | None = None, trial=None, ignore_keys_for_eval=None):
        """Train as the Trainer does, optionally resuming from a checkpoint.

        Args:
            resume_from_checkpoint: True for the newest complete checkpoint of the output folder, if there is one, or the
                path of one.

        Raises:
            CheckpointError: the path is not a complete checkpoint, or a file of it holds more than tensors and numbers; or
                a checkpoint cannot be written.
            NonFiniteLossError: the loss of a step is not finite on one of the processes.
            Terminated: SIGTERM stopped the run, with a checkpoint of the last step.
        """
        self._take_process()
        self._resumed_from = checkpoint = self._checkpoint_to_resume(resume_from_checkpoint)
        with self.interruption.listening(), reading_pickles(checkpoint, CheckpointError):
            output = super().train(checkpoint, trial, ignore_keys_for_eval)
        return output._replace(training_loss=output.metrics.get("train_loss", output.training_loss))

    def training_step(self, model, *args, **kwargs):
        recomputing = any(getattr(module, "gradient_checkpointing", False) for module in model.modules())
        with faster_kernels(self.args.device, products=not (recomputing or self.args.torch_compile)):
            return super().training_step(model, *args, **kwargs)

    def prediction_step(self, *args, **kwargs):
        with faster_kernels(self.args.device, products=not self.args.torch_compile):
            return super().prediction_step(*args, **kwargs)

    def _checkpoint_to_resume(self, requested: str | bool | None) -> str | None:
        """Return the checkpoint to resume from, or None. The main process chooses and checks it for all processes."""
        if not requested:
            return None
        path, problem = None, None
        if self.is_world_process_zero():
            try:
                path = last_complete_checkpoint(self.args.folder) if requested is True else check_checkpoint(requested)
                if path is not None:
                    _check_readable(Path(path))
                    warn_of_other_processes(path, self.args.world_size)
            except CheckpointError as error:
                problem = str(error)
        path, problem = broadcast_object_list([path, problem])
        if problem is not None:
            raise CheckpointError(problem)
        return path

    def _get_dataloader(self, *args, **kwargs):
        self._take_process()
        loader = super()._get_dataloader(*args, **kwargs)
        # Instead of the Trainer's seeding: random numbers of our workers depend only on the seed and a text's position.
        loader.base_dataloader.worker_init_fn = ignore_sigterm
        return loader

    def _init_training_state(self, *args, **kwargs):
        result = super()._init_training_state(*args, **kwargs)
        # The Trainer would log and save at the checkpoint's intervals, also if the command has others now.
        self.state.compute_steps(self.args, self.state.max_steps)
        # A checkpoint records the name of the best one, not its path.
        if self._resumed_from is not None and (best := best_of(Path(self._resumed_from))) is not None and best.is_dir():
            self.state.best_model_checkpoint = str(best)
        self._previous_loss_sum = self.state.stateful_callbacks.get(_LOSS, {}).get("sum") if self.state.global_step else 0.0
        return result

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        if "train_loss" in logs and (initial_step := self._initial_global_step):
            if self._previous_loss_sum is None:
                del logs["train_loss"]
            else:  # The Trainer's value is the mean over the steps since the resume.
                mean_loss, steps = logs["train_loss"], self.state.global_step
                logs["train_loss"] = (self._previous_loss_sum + mean_loss * (steps - initial_step)) / steps
        super().log(logs, start_time)

    def _determine_best_metric(self, *args, **kwargs):
        # The Trainer would take the score of a step without a checkpoint for that of the model which it loads at the end.
        step, by_steps = self.state.global_step, self.args.save_strategy == SaveStrategy.STEPS
        if self.args.load_best_model_at_end and by_steps and step % self.state.save_steps and step < self.state.max_steps:
            return False
        return super()._determine_best_metric(*args, **kwargs)

    def _run_epoch(self, *args, **kwargs):
        # Otherwise a run killed between its last checkpoint and its end would train one more step when it resumes.
        if self.control.should_training_stop or self.state.global_step >= self.state.max_steps:
            self.control.should_training_stop = True
            return
        super()._run_epoch(*args, **kwargs)

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        if not _internal_call:
            super().save_model(output_dir)
            return
        # A failure is kept for `_check_all_saved`, as other processes may be waiting in `_save_checkpoint` for this one.
        with self._store_failures():
            super().save_model(output_dir, _internal_call=True)
        # From here to the end of `_save_checkpoint`: no older checkpoint is removed before the new one is sealed.
        self.args.save_total_limit = None

    def _save_checkpoint(self, model, trial) -> None:
        step, limit = self.state.global_step, self.args.save_total_limit
        folder = Path(self._get_output_dir(trial)) / f"checkpoint-{step}"
        if self.args.should_save:
            # Files that a killed run left of the same checkpoint must not mix with the new ones.
            shutil.rmtree(folder, ignore_errors=True)
        self.accelerator.wait_for_everyone()
        if self._previous_loss_sum is not None:
            loss_sum = self._total_loss_scalar + self.accelerator.gather(self._tr_loss[None]).mean().item()
            callback_states: Any = self.state.stateful_callbacks  # A mapping, once the state is initialised.
            callback_states[_LOSS] = {"sum": self._previous_loss_sum + loss_sum}
        self._failure = None
        try:
            with self._store_failures():
                super()._save_checkpoint(model, trial)
        finally:
            self.args.save_total_limit = limit
        self._check_all_saved(folder)
        if self.args.should_save:
            with self._store_failures():
                # Checkpoints may be published, and these files, which nothing reads, contain paths of this machine: the
                # Trainer's pickled arguments, and peft's card of an adapter.
                for name in (TRAINING_ARGS_NAME, "README.md"):
                    (folder / name).unlink(missing_ok=True)
                remove_local_paths(folder)
                best = self.state.best_model_checkpoint
                write_seal(
                    folder,
                    step=step,
                    world_size=self.args.world_size,
                    resumable=not self.args.save_only_model,
                    best=None if best is None else Path(best).name,
                )
        self._check_all_saved(folder)
        if self.args.should_save:
            rotate(folder, limit=limit)

    def create_model_card(self, *args, **kwargs) -> None:
        """Do nothing: `hf_tlm.hub.cards` writes the card, with the scores and cost of the finished run."""

    def save_state(self) -> None:
        super().save_state()
        if self.args.should_save:
            remove_local_paths(self.args.folder)

    @contextlib.contextmanager
    def _store_failures(self) -> Iterator[None]:
        """Store the first error of writing files in the block in `_failure`, instead of raising it."""
        try:
            yield
        except Exception as error:  # tokenizers raises plain Exceptions.
            is_write_error = isinstance(error, (OSError, SafetensorError, HfTlmError)) or _TORCH_WRITE_ERROR.search(
                str(error)
            )
            if not is_write_error and disk_problem(error) is None:
                raise
            self._failure = self._failure or error

    def _check_all_saved(self, folder: Path) -> None:
        """Check that every process has written its part of the checkpoint, or remove it and raise a CheckpointError."""
        failed = torch.tensor([self._failure is not None], dtype=torch.int64, device=self.args.device)
        if not self.accelerator.gather(failed).any():
            return
        problem = None if self._failure is None else disk_problem(self._failure, folder)
        # After `gather`, no process is writing any more.
        if self.args.should_save:
            shutil.rmtree(folder, ignore_errors=True)
        sealed = [path for _, path in checkpoints_in(folder.parent) if (path / SEAL).is_file()]
        previous = f"The previous checkpoint, {sealed[-1]}, is intact" if sealed else "There is no earlier checkpoint"
        cause = problem or self._failure or "another process could not write its part"
        instruction = "Then run" if problem else "Free or enlarge the disk, or make the folder writable, then run"
        raise CheckpointError(
            f"Could not save {folder}: {cause}. {previous}. {instruction} the same command to continue."
        ) from self._failure


def _check_readable(checkpoint: Path) -> None:
    """Check that DeepSpeed did not write a checkpoint (older versions used it), or raise a CheckpointError.

    The Trainer would continue from such a checkpoint without the state of its optimizer.
    """
    if any(checkpoint.glob("global_step*/*_optim_states.pt")):
        raise CheckpointError(
            f"{checkpoint} was saved with DeepSpeed, which is no longer supported, so its optimizer state cannot be read. "
            "Start in another output folder; the preset accelerate/fsdp shards a model."
        )


def trained_model(trainer: Trainer) -> nn.Module:
    """Return the model that `trainer` trained, with complete weights and without distributed wrappers.

    All processes must call this.
    """
    return gather_fsdp(trainer.accelerator.unwrap_model(trainer.model))


class _EpochCallback(TrainerCallback):
    """A callback that sets the epoch of the batch sampler; in a resumed epoch the Trainer's own call does not reach it."""

    def __init__(self, trainer: SampledTrainer):
        self.trainer = trainer

    def on_epoch_begin(self, args, state, control, **kwargs):
        sampler = self.trainer.batch_sampler
        sampler.set_epoch(state.global_step // sampler.steps_per_epoch)


class _FreedMemoryCallback(TrainerCallback):
    """A callback that returns freed memory to the system once a minute, and more often while memory is scarce.

    Batches of different lengths fragment the memory that is kept between steps. At the scale tlm/night the process held 4 GB
    after 80 steps, 7 GB after 500 and 11 GB after 5,900. Returned once a minute, it grows from 1.3 GB to 9 GB within the
    minute; returned every ten seconds, to at most 6 GB. To return it takes a quarter of a second, and the next steps are
    slower.
    """

    def __init__(self):
        self.returned_at = time.monotonic()

    def on_step_end(self, args, state, control, **kwargs):
        if args.device.type != "cpu":
            return
        is_scarce = psutil.virtual_memory().percent > SCARCE_PERCENT
        if time.monotonic() - self.returned_at >= (SECONDS_IF_SCARCE if is_scarce else SECONDS_OF_KEPT_MEMORY):
            give_back_freed_memory()
            self.returned_at = time.monotonic()


class SampledTrainer(ResumableTrainer):
    """The base class of `TlmTrainer` and the Trainer of fine-tuning.

    Its changes: training batches are those of `batch_sampler`, a pure function of seed and step, whatever the number of
    processes and interruptions; learning rates can decay from the model's top layer to its bottom; training time is counted
    across interruptions; on CPUs freed memory is kept between steps, for a minute or until the next evaluation.

    Args:
        max_hours: hours after which training ends; None for no limit.
    """

    corpus_dataset: Dataset | StreamedBlocks | None = None

    def __init__(self, *args, max_hours: float | None = None, **kwargs):
        super().__init__(*args, **kwargs)
        self.clock = TimeBudgetCallback(max_hours)
        for callback in (_EpochCallback(self), self.clock, _FreedMemoryCallback()):
            self.add_callback(callback)

    @property
    @abstractmethod
    def batch_sampler(self) -> InterleavedBatchSampler:
        """The sampler of the training batches. Subclasses define it as a cached property: evaluation alone needs none."""

    def train(self, *args, **kwargs):
        if self.args.device.type == "cpu":
            keep_freed_memory()
        return super().train(*args, **kwargs)

    def evaluate(self, *args, **kwargs):
        metrics = super().evaluate(*args, **kwargs)
        if self.args.device.type == "cpu":
            # Batches of other lengths have fragmented the memory; a few steps later as much as they need is kept again.
            give_back_freed_memory()
        return metrics

    def get_optimizer_cls_and_kwargs(self, args, model=None):
        decay_names, default_choice = self.get_decay_parameter_names(model), super().get_optimizer_cls_and_kwargs
        rates = {"layerwise_lr_decay": self.args.layerwise_lr_decay, "muon_learning_rate": self.args.muon_learning_rate}
        return grouped_optimizer(args, model, decay_names, default_choice, **rates)

    def _count_steps(self) -> int:
        if self.args.max_steps > 0:
            return self.args.max_steps
        return math.ceil(self.args.num_train_epochs * self.batch_sampler.steps_per_epoch)

    def _report_warmup(self, message: str) -> None:
        logger.warning(message)

    def get_train_dataloader(self) -> DataLoader:
        args = self.args
        if (steps := self._count_steps()) <= args.warmup_steps:
            self._report_warmup(
                f"warmup_steps {args.warmup_steps:,.0f} is not less than the {steps:,} steps of this run: its learning rate "
                "would never reach its peak. Give a share of them below 1, for instance --warmup_steps 0.06 (in stage 2 of "
                "TLM: --stage2_warmup_steps 0.06)."
            )
        loader: DataLoader[Any] = DataLoader(
            # It has the methods that a loader calls, `__getitems__` and `__len__`.
            InterleavedDataset(self.train_dataset, self.corpus_dataset),  # type: ignore[arg-type]
            batch_sampler=self.batch_sampler,
            collate_fn=self.data_collator,
            num_workers=args.dataloader_num_workers,
            pin_memory=args.dataloader_pin_memory,
            persistent_workers=args.dataloader_persistent_workers,
            prefetch_factor=args.dataloader_prefetch_factor,
            worker_init_fn=ignore_sigterm,
            # Starting workers draws a seed: for persistent ones once per run, and again when it resumes. That draw must not
            # come from the generator of dropout, or a resumed run would differ.
            generator=torch.Generator() if args.dataloader_persistent_workers else None,
        )
        # All processes get the same number of batches, which accelerate does not know if batch sizes differ.
        even_batches, self.accelerator.even_batches = self.accelerator.even_batches, False
        try:
            return self.accelerator.prepare(loader)
        finally:
            self.accelerator.even_batches = even_batches
