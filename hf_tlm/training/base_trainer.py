"""Trainers whose runs are never lost, and whose batches depend on nothing but the seed and the step."""

from __future__ import annotations

import contextlib
import logging
import re
import shutil
from abc import abstractmethod
from collections.abc import Iterator
from pathlib import Path
from typing import Any

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

from hf_tlm.data.interleave import InterleavedBatchSampler, InterleavedDataset
from hf_tlm.data.streaming import StreamedBlocks
from hf_tlm.errors import HfTlmError
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
    leave_out_places,
    rotate,
    warn_of_other_processes,
)
from hf_tlm.training.cost import TimeBudgetCallback
from hf_tlm.training.optimizers import grouped_optimizer
from hf_tlm.utils.problems import disk_problem
from hf_tlm.utils.process import give_back_freed_memory, ignore_sigterm, keep_freed_memory
from hf_tlm.utils.seals import SEAL, write_seal

logger = logging.getLogger(__name__)
# How torch.save says that there is no place to write to: it has no error type for it.
_TORCH_WRITE_ERROR = re.compile(r"inline_container|cannot be opened|Parent directory .* does not exist")

# In a checkpoint's trainer state, beside the `Clock`: the sum of the losses of all steps.
_LOSS = "Loss"


class ResumableTrainer(Trainer):
    """`transformers.Trainer`; the only changes: when checkpoints count, how a run stops, what computes, what is shown.

    A checkpoint is sealed (`hf_tlm.training.checkpoints`) once every process has written its part, and older ones are
    removed only then, so that at every moment there is a complete one. `train(resume_from_checkpoint=True)` takes the
    newest complete one, and starts from the beginning where there is none; `train_loss` at the end is of all steps. Before
    every optimizer step the processes agree on two things in one exchange: SIGTERM stops a run, and a loss that is not
    finite ends it. Bars have names, logs are short lines, and trackers have a run a training (all of these:
    `hf_tlm.training.callbacks`). Steps take the faster kernels of a device (`hf_tlm.models.cpu_kernels`).

    A subclass has `watch` begin with the micro-batches of each step in `get_batch_samples`, and `compute_loss` hands every
    training loss to it, by `add`.
    """

    args: BaseArguments

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
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
        # Sum over the steps before a resume; None where the checkpoint is of a version that did not keep it.
        self._loss_before: float | None = 0.0

    def create_accelerator_and_postprocess(self):
        # accelerate keeps one state a process, and refuses a precision that is not that of the trainer before.
        if AcceleratorState._shared_state.get("_mixed_precision", self.args.mixed_precision) != self.args.mixed_precision:
            AcceleratorState._reset_state()
        super().create_accelerator_and_postprocess()
        self._process_state = dict(AcceleratorState._shared_state)

    def _take_process(self) -> None:
        """Give accelerate this trainer's state of the process where arguments that were made since have emptied it."""
        if "_mixed_precision" not in AcceleratorState._shared_state:
            AcceleratorState._shared_state.update(self._process_state)

    @property
    def batch_sampler(self) -> InterleavedBatchSampler | None:
        """Of a subclass whose batches depend on nothing but the seed and the step."""
        return None

    def train(self, resume_from_checkpoint: str | bool | None = None, trial=None, ignore_keys_for_eval=None):
        """As the Trainer's.

        Args:
            resume_from_checkpoint: True for the newest complete checkpoint of the output folder, if there is one, or the
                path of one.

        Raises:
            CheckpointError: the path is no complete checkpoint, or holds more than tensors and numbers; or a checkpoint
                cannot be written.
            NonFiniteLossError: the loss of a step is not finite on one of the processes.
            Terminated: stopped by SIGTERM, with a checkpoint of the last step.
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

    def _checkpoint_to_resume(self, wanted: str | bool | None) -> str | None:
        """One process reads and checks, so that all take the same."""
        if not wanted:
            return None
        path, problem = None, None
        if self.is_world_process_zero():
            try:
                path = last_complete_checkpoint(self.args.folder) if wanted is True else check_checkpoint(wanted)
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
        # In place of the Trainer's seeding: what our workers draw follows from the seed and a text's place alone.
        loader.base_dataloader.worker_init_fn = ignore_sigterm
        return loader

    def _init_training_state(self, *args, **kwargs):
        begun = super()._init_training_state(*args, **kwargs)
        # Of the best checkpoint, the one that a run resumes from knows the name, not where it is.
        if self._resumed_from is not None and (best := best_of(Path(self._resumed_from))) is not None and best.is_dir():
            self.state.best_model_checkpoint = str(best)
        self._loss_before = self.state.stateful_callbacks.get(_LOSS, {}).get("sum") if self.state.global_step else 0.0
        return begun

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        if "train_loss" in logs and (before := self._initial_global_step):
            if self._loss_before is None:
                del logs["train_loss"]
            else:  # The Trainer's is the mean over the steps since the resume.
                here, steps = logs["train_loss"], self.state.global_step
                logs["train_loss"] = (self._loss_before + here * (steps - before)) / steps
        super().log(logs, start_time)

    def _run_epoch(self, *args, **kwargs):
        # A run killed between its last checkpoint and its end would otherwise train one step more when it resumes.
        if self.control.should_training_stop or self.state.global_step >= self.state.max_steps:
            self.control.should_training_stop = True
            return
        super()._run_epoch(*args, **kwargs)

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        if not _internal_call:
            super().save_model(output_dir)
            return
        # A failure is kept for `_agree`, as other processes may be waiting in `_save_checkpoint` for this one.
        with self._keeping_failures():
            super().save_model(output_dir, _internal_call=True)
        # From here to the end of `_save_checkpoint`: no older checkpoint is removed before the new one is sealed.
        self.args.save_total_limit = None

    def _save_checkpoint(self, model, trial) -> None:
        step, limit = self.state.global_step, self.args.save_total_limit
        folder = Path(self._get_output_dir(trial)) / f"checkpoint-{step}"
        if self.args.should_save:
            # What a killed run left of this very checkpoint must not mix with it.
            shutil.rmtree(folder, ignore_errors=True)
        self.accelerator.wait_for_everyone()
        if self._loss_before is not None:
            here = self._total_loss_scalar + self.accelerator.gather(self._tr_loss[None]).mean().item()
            kept: Any = self.state.stateful_callbacks  # A mapping, once the state is made.
            kept[_LOSS] = {"sum": self._loss_before + here}
        self._failure = None
        try:
            with self._keeping_failures():
                super()._save_checkpoint(model, trial)
        finally:
            self.args.save_total_limit = limit
        self._agree(folder)
        if self.args.should_save:
            with self._keeping_failures():
                # Checkpoints may be published, and these name folders of this machine: the Trainer's pickled arguments, and
                # peft's card of an adapter. Nothing reads them.
                for name in (TRAINING_ARGS_NAME, "README.md"):
                    (folder / name).unlink(missing_ok=True)
                leave_out_places(folder)
                best = self.state.best_model_checkpoint
                write_seal(
                    folder,
                    step=step,
                    world_size=self.args.world_size,
                    resumable=not self.args.save_only_model,
                    best=None if best is None else Path(best).name,
                )
        self._agree(folder)
        if self.args.should_save:
            rotate(folder, limit=limit)

    def create_model_card(self, *args, **kwargs) -> None:
        """Nothing: a card is written with the finished run's scores and cost, see `hf_tlm.hub.cards`."""

    def save_state(self) -> None:
        super().save_state()
        if self.args.should_save:
            leave_out_places(self.args.folder)

    @contextlib.contextmanager
    def _keeping_failures(self) -> Iterator[None]:
        """Keep the first error of the disk instead of raising it."""
        try:
            yield
        except Exception as error:  # That of tokenizers has no type of its own.
            known = isinstance(error, (OSError, SafetensorError, HfTlmError)) or _TORCH_WRITE_ERROR.search(str(error))
            if not known and disk_problem(error) is None:
                raise
            self._failure = self._failure or error

    def _agree(self, folder: Path) -> None:
        """Go on if every process has written its part of the checkpoint; else remove it and raise a CheckpointError."""
        failed = torch.tensor([self._failure is not None], dtype=torch.int64, device=self.args.device)
        if not self.accelerator.gather(failed).any():
            return
        problem = None if self._failure is None else disk_problem(self._failure, folder)
        # Nobody is writing any more.
        if self.args.should_save:
            shutil.rmtree(folder, ignore_errors=True)
        whole = [path for _, path in checkpoints_in(folder.parent) if (path / SEAL).is_file()]
        before = f"The checkpoint before it, {whole[-1]}, is intact" if whole else "There is no checkpoint before it"
        cause = problem or self._failure or "another process could not write its part"
        do = "Then run" if problem else "Free or enlarge the disk, or make the folder writable, then run"
        raise CheckpointError(
            f"Could not save {folder}: {cause}. {before}. {do} the same command: it continues."
        ) from self._failure


def _check_readable(checkpoint: Path) -> None:
    """Refuse a checkpoint of DeepSpeed, which earlier versions wrote: the Trainer would go on without its optimizer."""
    if any(checkpoint.glob("global_step*/*_optim_states.pt")):
        raise CheckpointError(
            f"{checkpoint} was saved with DeepSpeed, which runs do not use any more, and its optimizer's state is read by "
            "nothing else. Start in another output folder; the preset accelerate/fsdp shards a model."
        )


def trained_model(trainer: Trainer) -> nn.Module:
    """Return the model that `trainer` trained, whole and free of what distributed it.

    All processes must call this.
    """
    return gather_fsdp(trainer.accelerator.unwrap_model(trainer.model))


class _Epochs(TrainerCallback):
    """Tells the batch sampler which epoch begins: a resumed epoch hides it from the Trainer's own call."""

    def __init__(self, trainer: SampledTrainer):
        self.trainer = trainer

    def on_epoch_begin(self, args, state, control, **kwargs):
        sampler = self.trainer.batch_sampler
        sampler.set_epoch(state.global_step // sampler.steps_per_epoch)


class SampledTrainer(ResumableTrainer):
    """What `TlmTrainer` and the Trainer of fine-tuning have in common.

    The only changes: training batches are those of `batch_sampler`, a pure function of seed and step, whatever the number
    of processes and interruptions; learning rates can fall from the model's top to its bottom; the clock runs on over
    interruptions; on CPUs freed memory is kept from step to step, up to the next evaluation.

    Args:
        max_hours: after which training ends; None for no limit.
    """

    corpus_dataset: Dataset | StreamedBlocks | None = None

    def __init__(self, *args, max_hours: float | None = None, **kwargs):
        super().__init__(*args, **kwargs)
        self.clock = TimeBudgetCallback(max_hours)
        for callback in (_Epochs(self), self.clock):
            self.add_callback(callback)

    @property
    @abstractmethod
    def batch_sampler(self) -> InterleavedBatchSampler:
        """A subclass gives it, as a cached property: a trainer that only evaluates needs none."""

    def train(self, *args, **kwargs):
        if self.args.device.type == "cpu":
            keep_freed_memory()
        return super().train(*args, **kwargs)

    def evaluate(self, *args, **kwargs):
        found = super().evaluate(*args, **kwargs)
        if self.args.device.type == "cpu":
            # Holes that batches of other lengths have left: few steps later there is as much again as steps need.
            give_back_freed_memory()
        return found

    def get_optimizer_cls_and_kwargs(self, args, model=None):
        decaying, theirs = self.get_decay_parameter_names(model), super().get_optimizer_cls_and_kwargs
        rates = {"layerwise_lr_decay": self.args.layerwise_lr_decay, "muon_learning_rate": self.args.muon_learning_rate}
        return grouped_optimizer(args, model, decaying, theirs, **rates)

    def get_train_dataloader(self) -> DataLoader:
        args = self.args
        loader: DataLoader[Any] = DataLoader(
            # It has what a loader needs of a dataset, `__getitems__` and `__len__`.
            InterleavedDataset(self.train_dataset, self.corpus_dataset),  # type: ignore[arg-type]
            batch_sampler=self.batch_sampler,
            collate_fn=self.data_collator,
            num_workers=args.dataloader_num_workers,
            pin_memory=args.dataloader_pin_memory,
            persistent_workers=args.dataloader_persistent_workers,
            prefetch_factor=args.dataloader_prefetch_factor,
            worker_init_fn=ignore_sigterm,
            # Workers are seeded by a draw when they start: those that stay once a run, and once more where it resumes, which
            # must not be of the numbers that dropout is drawn from.
            generator=torch.Generator() if args.dataloader_persistent_workers else None,
        )
        # Every process gets as many batches as the others; accelerate cannot see that when their sizes differ.
        even_batches, self.accelerator.even_batches = self.accelerator.even_batches, False
        try:
            return self.accelerator.prepare(loader)
        finally:
            self.accelerator.even_batches = even_batches
