"""The arguments of fine-tuning, on top of `transformers.TrainingArguments`."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import ClassVar

from hf_tlm.errors import ArgumentsError
from hf_tlm.training.base_arguments import SeedsArguments
from hf_tlm.training.teacher_arguments import TeacherArguments
from hf_tlm.utils.options import option
from hf_tlm.utils.run_files import SEED_FIGURES


@dataclass(repr=False)
class FinetuneArguments(TeacherArguments, SeedsArguments):
    """Settings of fine-tuning, including options of the Trainer with other defaults.

    Options of the Trainer are repeated here where their defaults differ. Defaults are those of BERT (Devlin et al., NAACL
    2019, appendix A.3) where it has one.
    """

    fits_micro_batch: ClassVar[bool] = True

    train_fraction: float = option(
        1.0,
        "Share of the training examples to train on: this share of every class (at least one example), drawn by the seed, "
        "and the same examples for every model.",
    )
    select_by: str = option(
        "best",
        "best: the checkpoint with the best validation score of all evaluations (eval_strategy). last: the "
        "model at the end of training.",
        choices=["best", "last"],
    )

    early_stopping_patience: int = option(
        0, "Stop after this number of evaluations without a better validation score; 0: train all steps."
    )

    seed_figure: str = option(
        "mean",
        "Figure to report for several seeds: the mean with its standard deviation, the median (COCO-LM), or the maximum "
        "(ALE), labelled as such in summary, results.json, card, report and tables, with the mean beside it.",
        choices=list(SEED_FIGURES),
    )

    # Overridden defaults.
    max_length: int = option(128, "Longest input in tokens: longer texts are truncated.")
    learning_rate: float = option(2e-5, "Peak learning rate.")
    num_train_epochs: float = option(3.0, "Passes over the training split.")
    max_steps: int = option(-1, "Optimizer steps, instead of num_train_epochs.")
    total_batch_size: int = option(32, "Examples per optimizer step over all processes; sets gradient_accumulation_steps.")
    warmup_steps: float = option(0.1, "Warm-up steps, or a share of all steps below 1.")
    eval_strategy: str = option(
        "epoch", "When to evaluate: epoch; steps, every eval_steps (a share of all steps below 1); or no."
    )
    train_sampling_strategy: str = option(
        "group_by_length", "group_by_length: the texts of a step have similar lengths. random: they are drawn at random."
    )

    # Question answering.
    doc_stride: int = option(
        128, "Question answering: tokens by which neighbouring windows of a long context overlap; at most half a window."
    )
    max_query_length: int = option(64, "Question answering: number of tokens to which questions are truncated.")
    max_answer_length: int = option(30, "Question answering: longest answer in tokens.")
    n_best: int = option(20, "Question answering: number of best answers to a question; the softmax is over their scores.")
    null_threshold: float | None = option(
        None,
        "Question answering with unanswerable questions: predict no answer where its score exceeds that of the best answer "
        "by more than this. Default: the threshold that is best on validation.",
    )

    # Multiple choice.
    option_apart: bool = option(
        False,
        "Multiple choice: encode [CLS] context [SEP] question [SEP] option [SEP] and keep blanks (ALE, for BERT). "
        "Default: question and option are one part, with the option in the question's blank.",
    )

    # Tagging.
    crf: bool = option(False, "Tagging: a linear-chain CRF over the tags of a sentence (extra [crf]).")

    def __post_init__(self):
        if self.load_best_model_at_end or self.metric_for_best_model is not None:
            raise ArgumentsError(
                "The checkpoint to keep is chosen by the task's metric. Remove load_best_model_at_end and "
                "metric_for_best_model, and pass --select_by best or last, and --metric if the task needs another."
            )
        super().__post_init__()
        if self.taught_by_itself:
            raise ArgumentsError(
                "teacher self stands for the seeds of an earlier round, and only `hf-tlm train` has rounds. Pass the "
                "folder of a finished run, which may be one of this command."
            )
        if self.taught and self.train_fraction < 1:
            raise ArgumentsError(
                f"train_fraction {self.train_fraction:g} draws different texts for every seed, but a teacher is asked "
                "once, about all texts. Remove train_fraction or teacher."
            )
        if self.select_by == "best" and self.eval_strategy == "no":
            raise ArgumentsError(
                "select_by best needs validation scores during training, and eval_strategy is no. Give --eval_strategy "
                "epoch or steps, or --select_by last."
            )
        if self.early_stopping_patience and self.select_by == "last":
            raise ArgumentsError(
                f"early_stopping_patience {self.early_stopping_patience} ends a training some evaluations after its best "
                "checkpoint, but select_by last keeps the last one. Remove one of these options."
            )
        defaults = type(self)
        saves_at_evaluations = self.save_strategy in (defaults.save_strategy, self.eval_strategy)
        saves_at_evaluations = saves_at_evaluations and self.save_steps in (defaults.save_steps, self.eval_steps)
        if self.select_by == "best" and not saves_at_evaluations:
            raise ArgumentsError(
                "select_by best saves a checkpoint at every evaluation. Pass eval_strategy and eval_steps, and remove "
                f"save_strategy {self.save_strategy.value} and save_steps {self.save_steps:g}; or pass --select_by last."
            )
        if self.train_sampling_strategy not in ("group_by_length", "random"):
            raise ArgumentsError(
                f"train_sampling_strategy must be group_by_length or random; received {self.train_sampling_strategy!r}."
            )
        if self.max_steps == 0:
            raise ArgumentsError("max_steps: expected 1 or more, or -1 to train num_train_epochs; received 0.")
        if self.gradient_accumulation_steps != 1:
            raise ArgumentsError(
                f"gradient_accumulation_steps {self.gradient_accumulation_steps} is determined by total_batch_size "
                f"{self.total_batch_size} and per_device_train_batch_size {self.per_device_train_batch_size}. Remove it."
            )

    def for_seed(self, output_dir: str | os.PathLike, seed: int, metric: str, label_names: list[str]) -> FinetuneArguments:
        """Return the arguments of a seed's Trainer like `for_trainer`, with the best checkpoint chosen by the task's metric.

        label_names: the label columns of a batch.
        """
        args = self.for_trainer(output_dir, seed)
        args.label_names = list(label_names)
        args.metric_for_best_model, args.greater_is_better = metric, True
        if self.select_by == "best":
            # The Trainer can load the best checkpoint only if it saves at every evaluation.
            args.save_strategy, args.save_steps = args.eval_strategy, args.eval_steps or args.save_steps
            args.load_best_model_at_end = True
        return args
