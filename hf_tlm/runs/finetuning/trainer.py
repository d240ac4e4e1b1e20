"""The Trainer of fine-tuning."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property

import numpy as np
import torch
from datasets import Dataset
from torch import nn
from torch.utils.data import SequentialSampler

from hf_tlm.data.interleave import TASK, InterleavedBatchSampler
from hf_tlm.models import applied_parameters
from hf_tlm.objectives import WeightedSum
from hf_tlm.runs.finetuning.arguments import FinetuneArguments
from hf_tlm.runs.finetuning.kinds import feature_lengths, texts_per_feature
from hf_tlm.training import Cost, training_flops
from hf_tlm.training.averages import LossAverages, in_pairs
from hf_tlm.training.base_trainer import SampledTrainer


class FinetuneTrainer(SampledTrainer):
    """`transformers.Trainer` of stock models, whose losses are their own.

    The only changes over `SampledTrainer`: all batches are of the task, and all steps have the same number of examples;
    evaluation is in the order given. The loss of a step is the mean over its whole batch, however that is divided into
    micro-batches.

    Args:
        args: from `FinetuneArguments.for_seed`.
        train_dataset: features of the task's kind; a trainer that only predicts has none.
        eval_dataset: features by length, see `EvaluationSet`.
        loss_terms: batch -> int64 [], what its loss is the mean of; None where all batches have as many.
        objective: of training batches instead of the model's own loss, which then gets no labels (`hf_tlm.objectives`): with
            a teacher the task loss, and the teacher's beside it.
    """

    args: FinetuneArguments

    def __init__(
        self,
        model: nn.Module,
        args: FinetuneArguments,
        *,
        loss_terms: Callable[[dict[str, torch.Tensor]], torch.Tensor] | None = None,
        objective: WeightedSum | None = None,
        **kwargs,
    ):
        super().__init__(model, args, **kwargs)
        # Stock models differ in what they make of a count of labels; none is given to them.
        self.model_accepts_loss_kwargs = False
        self.loss_terms = loss_terms
        self.text_loss: WeightedSum | None = objective
        self._logged = LossAverages()

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
            seed=self.args.seed if self.args.data_seed is None else self.args.data_seed,
        )

    def _get_eval_sampler(self, eval_dataset: Dataset) -> SequentialSampler:
        return SequentialSampler(eval_dataset)

    def get_batch_samples(self, epoch_iterator, num_batches, device):
        batches, _ = super().get_batch_samples(epoch_iterator, num_batches, device)
        self.watch.begin(TASK, batches)
        if self.loss_terms is not None:
            terms = torch.stack([self.loss_terms(batch) for batch in batches]).to(device)
            # Of a micro-batch on average, here and on the other processes.
            terms = self.accelerator.gather(terms).float()
            self.average_terms = terms.mean().clamp(min=1 / len(terms))
        if self.text_loss is not None and batches:
            found = [self.text_loss.count(batch) for batch in batches]
            counts = torch.stack([torch.stack(list(one.values())) for one in found]).to(device).float()
            # Of a micro-batch on average, over all of the step; the Trainer takes the mean over micro-batches.
            self.average_counts = dict(zip(found[0], self.accelerator.reduce(counts.mean(0), reduction="mean"), strict=True))
        return batches, None

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        if model.training and self.text_loss is not None:
            texts = {name: values for name, values in inputs.items() if name not in ("labels", "teacher_probs")}
            outputs = model(**texts)
            terms = self.text_loss(outputs, inputs, self.average_counts)
            loss = terms.pop("loss")
            self.watch.add(loss, terms)
            self._logged.add(in_pairs(terms, lambda name, value: (value, 1.0)))
            return (loss, outputs) if return_outputs else loss
        loss, outputs = super().compute_loss(model, inputs, return_outputs=True)
        if model.training and self.loss_terms is not None:
            terms = self.loss_terms(inputs)
            # A mean of nothing is not a number.
            loss = loss if terms > 0 or loss.isfinite() else 0 * outputs["logits"].sum()
            loss = loss * (terms / self.average_terms)
        if model.training:
            self.watch.add(loss, {"task_loss": loss.detach()})
        return (loss, outputs) if return_outputs else loss

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        if "loss" in logs:
            logs |= self._logged.read(self.accelerator)
        super().log(logs, start_time)

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
