"""What fine-tuning can be asked for: fields, defaults and help texts, without what it takes to train."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

from hf_tlm.hub.checkpoint import split_revision
from hf_tlm.hub.repo_id import find_repo
from hf_tlm.models.lora_arguments import LoraArguments
from hf_tlm.training.hub_options import HubOptions
from hf_tlm.training.options import ArgumentsError

if TYPE_CHECKING:
    pass


@dataclass
class CheckpointArguments(LoraArguments):
    """The pretrained model."""

    model_name_or_path: str = field(
        kw_only=True,
        metadata={"help": "The pretrained encoder: folder, or Hub id with @revision if wanted."},
    )
    model_revision: str | None = field(
        default=None, metadata={"help": "Branch, tag or commit of the checkpoint, instead of @revision."}
    )
    tokenizer_name: str | None = field(
        default=None,
        metadata={"help": "Tokenizer by folder, or Hub id with @revision if wanted. Default: the checkpoint's."},
    )
    trust_remote_code: bool = field(default=False, metadata={"help": "Run code that comes with the checkpoint."})
    attn_implementation: str | None = field(
        default=None,
        metadata={"help": "sdpa, eager, flash_attention_2, ...; the last needs its package, a GPU and bf16. Default: sdpa."},
    )
    use_peft: bool = field(
        default=False, metadata={"help": "Train a LoRA adapter and the head of the task instead of all weights."}
    )

    def __post_init__(self):
        super().__post_init__()
        # What is recorded, and what a card calls the base model, is the id.
        self.model_name_or_path, self.model_revision = split_revision(self.model_name_or_path, self.model_revision)

    @property
    def tokenizer_source(self) -> dict[str, Any]:
        """The arguments of `load_tokenizer`."""
        # The revision is the checkpoint's: another repository has its own.
        revision = None if self.tokenizer_name else self.model_revision
        name = self.tokenizer_name or self.model_name_or_path
        return {"name_or_path": name, "revision": revision, "trust_remote_code": self.trust_remote_code}


@dataclass(repr=False)
class FinetuneOptions(HubOptions):
    """Options of fine-tuning, and those of the Trainer whose defaults they change.

    Defaults are BERT's (Devlin et al., NAACL 2019, appendix A.3) where they have one. Recipes hand this class to `parse`
    and receive a `FinetuneArguments`.
    """

    extends: ClassVar[str] = "transformers.TrainingArguments"
    stands_for: ClassVar[str] = "hf_tlm.runs.finetuning.arguments.FinetuneArguments"

    output_dir: str | None = field(
        default=None, metadata={"help": "Folder of the run: its model and results. Default: trainer_output."}
    )
    seeds: list[int] | None = field(
        default=None, metadata={"help": "One whole run per seed, then mean and standard deviation.", "nargs": "+"}
    )
    train_fraction: float = field(
        default=1.0,
        metadata={
            "help": "Share of the training examples to learn from, as many of every class as that is (at least one), drawn "
            "by the seed: the same ones for every model."
        },
    )
    select_by: str = field(
        default="best",
        metadata={
            "help": "best: the checkpoint with the best validation score of all evaluations (eval_strategy). last: the "
            "model at the end of training.",
            "choices": ["best", "last"],
        },
    )

    # Overridden defaults.
    max_length: int = field(default=128, metadata={"help": "Longest input in tokens: longer texts are truncated."})
    learning_rate: float = field(default=2e-5, metadata={"help": "Peak learning rate."})
    num_train_epochs: float = field(default=3.0, metadata={"help": "Passes over the training split."})
    max_steps: int = field(default=-1, metadata={"help": "Optimizer steps, instead of num_train_epochs."})
    total_batch_size: int = field(
        default=32,
        metadata={"help": "Examples per optimizer step over all processes; sets gradient_accumulation_steps."},
    )
    warmup_steps: float = field(default=0.1, metadata={"help": "Warm-up steps, or a share of all steps below 1."})
    weight_decay: float = field(default=0.01, metadata={"help": "Weight decay."})
    layerwise_lr_decay: float = field(
        default=1.0,
        metadata={
            "help": "Every layer learns at so many times the rate of the one above it; ELECTRA has 0.8, its large model 0.9."
        },
    )
    optim: str = field(
        default="adamw_torch_fused",
        metadata={
            "help": "Optimizer: muon (matrices of the layers; AdamW for all else), lamb (extra [optim]), or one of the "
            "Trainer's: adamw_torch_fused, adamw_torch, ..."
        },
    )
    muon_learning_rate: float | None = field(
        default=None,
        metadata={
            "help": "optim muon: peak learning rate of the matrices, whose steps are as long as AdamW's. Default: "
            "learning_rate."
        },
    )
    eval_strategy: str = field(
        default="epoch",
        metadata={"help": "When to evaluate: epoch; steps, every eval_steps (a share of all steps below 1); or no."},
    )
    train_sampling_strategy: str = field(
        default="group_by_length",
        metadata={"help": "group_by_length: texts of similar length share a step. random: any do."},
    )
    per_device_train_batch_size: int = field(default=32, metadata={"help": "Examples per device and micro-batch, at most."})
    per_device_eval_batch_size: int = field(default=64, metadata={"help": "Examples per device when evaluating."})
    logging_steps: float = field(default=50, metadata={"help": "Log every so many optimizer steps."})
    save_total_limit: int | None = field(
        default=2, metadata={"help": "Checkpoints to keep, the best one among them; 2: there is one before the newest."}
    )
    logging_nan_inf_filter: bool = field(default=False, metadata={"help": "Not here: such a loss ends the run."})
    seed: int = field(default=0, metadata={"help": "Seed; `seeds` takes precedence."})

    # Question answering.
    doc_stride: int = field(
        default=128,
        metadata={
            "help": "Question answering: tokens that neighbouring windows of a long context have in common; half a "
            "window at most."
        },
    )
    max_query_length: int = field(default=64, metadata={"help": "Question answering: tokens after which a question is cut."})
    max_answer_length: int = field(default=30, metadata={"help": "Question answering: longest answer in tokens."})
    n_best: int = field(
        default=20, metadata={"help": "Question answering: the best answers to a question, which share its probability."}
    )
    null_threshold: float | None = field(
        default=None,
        metadata={
            "help": "Question answering with unanswerable questions: no answer where the score of none is so much above "
            "that of the best answer. Default: the threshold best on validation."
        },
    )

    # Tagging.
    crf: bool = field(
        default=False, metadata={"help": "Tagging: a linear-chain CRF over the tags of a sentence (extra [crf])."}
    )


@dataclass
class PredictArguments:
    """Predictions for unlabelled data."""

    predict: str | None = field(
        default=None,
        metadata={
            "help": "File, or Hub dataset, to predict on with the finished model; it has the columns of the task, and "
            "needs no labels."
        },
    )
    predict_output: str | None = field(
        default=None, metadata={"help": "Where predictions go. Default: a file of that name in output_dir/predictions."}
    )
    predict_format: str = field(
        default="jsonl",
        metadata={
            "help": "jsonl: a line a row, with probabilities. glue: a file for GLUE's leaderboard; predict_output is its "
            "folder. squad: a JSON object, id -> answer.",
            "choices": ["jsonl", "glue", "squad"],
        },
    )

    def __post_init__(self):
        if self.predict is not None and not os.path.isfile(self.predict):
            # Before a training, at whose end it would come out.
            if os.path.exists(self.predict):
                raise ArgumentsError(f"predict: expected a file, or a dataset of the Hub; {self.predict} is no file.")
            if find_repo(self.predict, "dataset") is None:
                raise ArgumentsError(f"predict: expected a file, or a dataset of the Hub; there is no {self.predict}.")
        if self.predict_output and self.predict and os.path.realpath(self.predict_output) == os.path.realpath(self.predict):
            raise ArgumentsError(f"predict_output {self.predict_output} is the file to predict on. Give another.")
        for name in ("predict_output", "predict_format"):
            if self.predict is None and getattr(self, name) != getattr(PredictArguments, name):
                raise ArgumentsError(f"{name} {getattr(self, name)} has no effect without predict. Give --predict a file.")
