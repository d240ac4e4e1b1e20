"""The arguments of fine-tuning, on top of `transformers.TrainingArguments`."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any, ClassVar

from hf_tlm.runs.finetuning.options import FinetuneOptions
from hf_tlm.training.base_arguments import BaseArguments
from hf_tlm.training.options import ArgumentsError

# What predictions do not depend on, but for rounding: the machine's.
MACHINE = ("per_device_eval_batch_size", "use_cpu", "bf16_full_eval", "fp16_full_eval", "dataloader_num_workers")


@dataclass(repr=False)
class FinetuneArguments(FinetuneOptions, BaseArguments):
    """`TrainingArguments` plus those of fine-tuning."""

    fits_micro_batch: ClassVar[bool] = True

    def __post_init__(self):
        if self.load_best_model_at_end or self.metric_for_best_model is not None:
            raise ArgumentsError(
                "The checkpoint that is kept is chosen by the task's metric: leave load_best_model_at_end and "
                "metric_for_best_model out, and give --select_by best or last, and the task another --metric if wanted."
            )
        super().__post_init__()
        if self.select_by not in ("best", "last"):
            raise ArgumentsError(f"select_by must be best or last; received {self.select_by!r}.")
        if self.select_by == "best" and self.eval_strategy == "no":
            raise ArgumentsError(
                "select_by best needs validation scores during training, and eval_strategy is no. Give --eval_strategy "
                "epoch or steps, or --select_by last."
            )
        own = type(self)
        saves = self.save_strategy in (own.save_strategy, self.eval_strategy)
        saves = saves and self.save_steps in (own.save_steps, self.eval_steps)
        if self.select_by == "best" and not saves:
            raise ArgumentsError(
                "select_by best saves a checkpoint whenever it evaluates: give eval_strategy and eval_steps, and leave "
                f"save_strategy {self.save_strategy.value} and save_steps {self.save_steps:g} out; or give --select_by last."
            )
        if self.train_sampling_strategy not in ("group_by_length", "random"):
            raise ArgumentsError(
                f"train_sampling_strategy must be group_by_length or random; received {self.train_sampling_strategy!r}."
            )
        if self.gradient_accumulation_steps != 1:
            raise ArgumentsError(
                f"gradient_accumulation_steps {self.gradient_accumulation_steps} follows from total_batch_size "
                f"{self.total_batch_size} and per_device_train_batch_size {self.per_device_train_batch_size}. Leave it out."
            )
        self._check_seeds()

    def for_predicting(self) -> dict[str, Any]:
        """Further arguments of `predict` on the machine of this run."""
        return {name: getattr(self, name) for name in MACHINE}

    def for_seed(self, output_dir: str | os.PathLike, seed: int, metric: str, label_names: list[str]) -> FinetuneArguments:
        """A copy for the Trainer of one seed.

        Args:
            output_dir: folder of the checkpoints.
            metric: the task's metric on validation, by which the best checkpoint is chosen.
            label_names: the columns of a batch that are labels.

        Raises:
            ArgumentsError: the total batch size does not fit the processes.
        """
        args = self.ready(output_dir, seed)
        args.label_names = list(label_names)
        args.metric_for_best_model, args.greater_is_better = metric, True
        if self.select_by == "best":
            # The Trainer loads only what was saved when it was evaluated.
            args.save_strategy, args.save_steps = args.eval_strategy, args.eval_steps or args.save_steps
            args.load_best_model_at_end = True
        return args
