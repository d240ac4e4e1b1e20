"""A Trainer whose batches depend on nothing but the seed and the step."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

from datasets import Dataset
from torch.utils.data import DataLoader
from transformers import TrainerCallback

from hf_tlm.data.interleave import InterleavedBatchSampler, InterleavedDataset
from hf_tlm.data.streaming import StreamedBlocks
from hf_tlm.training.budget import TimeBudgetCallback
from hf_tlm.training.optimizers import grouped_optimizer
from hf_tlm.training.resumable import ResumableTrainer
from hf_tlm.utils.memory import keep_freed_memory
from hf_tlm.utils.signals import ignore_sigterm


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
    interruptions.

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
        )
        # Every process gets as many batches as the others; accelerate cannot see that when their sizes differ.
        even_batches, self.accelerator.even_batches = self.accelerator.even_batches, False
        try:
            return self.accelerator.prepare(loader)
        finally:
            self.accelerator.even_batches = even_batches

    def create_model_card(self, *args, **kwargs) -> None:
        """Nothing: the card is written with the finished run's scores and cost, see `hf_tlm.hub.cards`."""
