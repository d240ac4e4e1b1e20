"""The Trainer of fine-tuning."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property

import numpy as np
from datasets import Dataset
from torch import nn
from torch.utils.data import DataLoader, SequentialSampler
from transformers import PreTrainedTokenizerBase

from hf_tlm.data.interleave import TASK, InterleavedBatchSampler, InterleavedDataset
from hf_tlm.evaluation.finetuning.arguments import FinetuneArguments
from hf_tlm.evaluation.finetuning.evaluation_set import feature_lengths, texts_per_feature
from hf_tlm.memory import keep_freed_memory
from hf_tlm.models import applied_parameters
from hf_tlm.signals import ignore_sigterm
from hf_tlm.training import Cost, training_flops
from hf_tlm.training.budget import Clock
from hf_tlm.training.nonfinite import LossWatch
from hf_tlm.training.optimizers import grouped_optimizer
from hf_tlm.training.sharded import ShardedTrainer
from hf_tlm.training.trainer import Epochs


class FinetuneTrainer(ShardedTrainer):
    """`transformers.Trainer` of stock models, whose losses are their own.

    The only changes: batches are a pure function of seed and step (`InterleavedBatchSampler`), so that they do not depend
    on the number of processes or on interruptions, and all steps have the same number of examples; learning rates can fall
    from the model's top to its bottom; evaluation is in the order given. A loss that is not finite ends the run, and
    checkpoints and SIGTERM are as in `TlmTrainer`. The loss of a step is the mean of its micro-batches' means.

    Args:
        args: from `FinetuneArguments.for_seed`.
        train_dataset: features of the task's kind; None for a trainer that only predicts.
        eval_dataset: features by length, see `EvaluationSet`.
    """

    def __init__(
        self,
        model: nn.Module,
        args: FinetuneArguments,
        *,
        data_collator: Callable,
        processing_class: PreTrainedTokenizerBase,
        train_dataset: Dataset | None = None,
        **kwargs,
    ):
        super().__init__(
            model=model,
            args=args,
            train_dataset=train_dataset,
            data_collator=data_collator,
            processing_class=processing_class,
            **kwargs,
        )
        # Stock models differ in what they make of a count of labels; none is given to them.
        self.model_accepts_loss_kwargs = False
        self.add_callback(Epochs(self))
        self.clock = Clock()
        self.add_callback(self.clock)
        self.watch = LossWatch(self.accelerator, lambda: self.batch_sampler, self.interruption)
        self.add_callback(self.watch)

    def train(self, *args, **kwargs):
        if self.args.device.type == "cpu":
            keep_freed_memory()
        return super().train(*args, **kwargs)

    @cached_property
    def batch_sampler(self) -> InterleavedBatchSampler:
        return InterleavedBatchSampler(
            feature_lengths(self.train_dataset),
            np.zeros(0, np.int32),
            rho1=0,
            batch_size=self._train_batch_size,
            group_by_length=self.args.train_sampling_strategy == "group_by_length",
            world_size=self.args.world_size,
            gradient_accumulation_steps=self.args.gradient_accumulation_steps,
            seed=self.args.seed,
        )

    def get_train_dataloader(self) -> DataLoader:
        args = self.args
        loader = DataLoader(
            InterleavedDataset(self.train_dataset),
            batch_sampler=self.batch_sampler,
            collate_fn=self.data_collator,
            num_workers=args.dataloader_num_workers,
            pin_memory=args.dataloader_pin_memory,
            persistent_workers=args.dataloader_persistent_workers,
            prefetch_factor=args.dataloader_prefetch_factor,
            worker_init_fn=ignore_sigterm,
        )
        return self.accelerator.prepare(loader)

    def _get_eval_sampler(self, eval_dataset: Dataset) -> SequentialSampler:
        return SequentialSampler(eval_dataset)

    def get_optimizer_cls_and_kwargs(self, args, model=None):
        decaying, theirs = self.get_decay_parameter_names(model), super().get_optimizer_cls_and_kwargs
        return grouped_optimizer(args, model, decaying, theirs, apart=self.is_deepspeed_enabled)

    def get_batch_samples(self, epoch_iterator, num_batches, device):
        batches, _ = super().get_batch_samples(epoch_iterator, num_batches, device)
        self.watch.begin(TASK, batches)
        return batches, None

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        loss, outputs = super().compute_loss(model, inputs, return_outputs=True)
        if model.training:
            self.watch.add(loss, {"task_loss": loss.detach()})
            if self.is_deepspeed_enabled and self.accelerator.sync_gradients:
                self.watch.look(self.args, self.state.global_step, self.optimizer)  # It steps at the end of backward.
        return (loss, outputs) if return_outputs else loss

    def cost(self) -> Cost:
        """The cost up to now, from the step number alone, so that a resumed run counts every step once."""
        sampler, step = self.batch_sampler, self.state.global_step
        examples = step * sampler.batches_per_step * sampler.amount
        tokens = examples * texts_per_feature(self.train_dataset) * self.args.max_length
        return Cost(
            steps=step,
            tokens=tokens,
            real_tokens=sampler.count_tokens(TASK, step),
            flops=training_flops(tokens, applied_parameters(self.accelerator.unwrap_model(self.model))),
            seconds=round(self.clock.seconds, 3),
        )

    def create_model_card(self, *args, **kwargs) -> None:
        """Nothing: the card is written with the finished run's scores and cost, see `hf_tlm.hub.cards`."""
