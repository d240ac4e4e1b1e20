"""What a training run can be asked for: fields, defaults and help texts, without what it takes to train."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from hf_tlm.errors import HfTlmError
from hf_tlm.objective_specs import OBJECTIVES
from hf_tlm.training.hub_options import HubOptions


class ArgumentsError(HfTlmError):
    """Arguments that contradict each other or that TLM cannot honour."""


@dataclass(repr=False)
class RunOptions(HubOptions):
    """Options of every training run, and those of the Trainer whose defaults they change.

    Defaults are those of TLM's released scripts where they have one, for a single device. In a TLM run they hold for stage
    1, and stage 2 has its own.
    """

    extends: ClassVar[str] = "transformers.TrainingArguments"

    output_dir: str | None = field(
        default=None, metadata={"help": "Folder of the run: its model and results. Default: trainer_output."}
    )

    # Overridden defaults.
    max_steps: int = field(
        default=0,
        metadata={
            "help": "Optimizer steps (TLM: of stage 1). 0: 10,000, or as many as the budget allows. -1: by num_train_epochs."
        },
    )
    learning_rate: float = field(default=1e-4, metadata={"help": "Peak learning rate (TLM: of stage 1)."})
    weight_decay: float = field(default=0.01, metadata={"help": "Weight decay (TLM: of stage 1)."})
    layerwise_lr_decay: float = field(
        default=1.0,
        metadata={
            "help": "Every layer learns at so many times the rate of the one above it; 1: at the same (TLM: in stage 1)."
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
            "help": "optim muon: peak learning rate of the matrices, whose steps are as long as AdamW's (TLM: of stage 1). "
            "Default: learning_rate."
        },
    )
    per_device_train_batch_size: int = field(default=32, metadata={"help": "Texts per device and micro-batch."})
    per_device_eval_batch_size: int = field(default=64, metadata={"help": "Texts per device when evaluating."})
    logging_steps: float = field(default=50, metadata={"help": "Log every so many optimizer steps, in both stages of TLM."})
    save_total_limit: int | None = field(
        default=2, metadata={"help": "Checkpoints to keep, the best one among them; 2: there is one before the newest."}
    )
    logging_nan_inf_filter: bool = field(default=False, metadata={"help": "Not here: such a loss ends the run."})
    seed: int = field(default=0, metadata={"help": "Seed; `seeds` of TLM takes precedence."})

    # The language-modelling loss, and what a step holds.
    objective: str = field(
        default="mlm",
        metadata={
            "help": "Language-modelling loss. mlm: masked tokens are predicted. electra: a small auxiliary model predicts "
            "and replaces them, and the model tells which tokens were replaced. ale: the same on an ALBERT body. cocolm: "
            "the model corrects the replaced tokens, and two views of a text are drawn together.",
            "choices": list(OBJECTIVES),
        },
    )
    rtd_weight: float = field(
        default=50.0,
        metadata={
            "help": "electra, ale: weight of replaced token detection beside the auxiliary model's loss. cocolm: of the "
            "copy loss (lambda_copy), or with clm rtd of the detection."
        },
    )
    clm: str = field(
        default="full",
        metadata={
            "help": "cocolm: token-level loss of the model. full: corrective language modelling. no_copy: its LM loss does "
            "without the copy probability. all_token: its LM loss on all tokens, alone. rtd: replaced token detection.",
            "choices": ["full", "no_copy", "all_token", "rtd"],
        },
    )
    stop_gradient: bool = field(
        default=True, metadata={"help": "cocolm with clm full: the LM loss does not train the copy head."}
    )
    scl: bool = field(
        default=True,
        metadata={"help": "cocolm: sequence contrastive learning too; negatives are all processes' texts of a micro-batch."},
    )
    scl_temperature: float = field(default=1.0, metadata={"help": "cocolm with scl: what the cosines are divided by."})
    scl_projection: str = field(
        default="none",
        metadata={
            "help": "cocolm with scl. none: cosines are of [CLS] (the paper). mlp: of what a dense layer, GELU and LayerNorm"
            " make of it (the published code); that head is trained, not exported, and begins anew from a checkpoint.",
            "choices": ["none", "mlp"],
        },
    )
    crop_fraction: float = field(
        default=0.9, metadata={"help": "cocolm with scl: how much of a text its second view keeps, in (0, 1]."}
    )
    mlm_probability: float = field(default=0.15, metadata={"help": "Share of tokens chosen for prediction."})
    max_length: int = field(
        default=128,
        metadata={"help": "Longest text in tokens: longer ones are truncated. In pretraining the length of a block."},
    )
    total_batch_size: int | None = field(
        default=None,
        metadata={"help": "Texts per optimizer step over all processes; sets gradient_accumulation_steps."},
    )
    total_batch_tokens: int | None = field(
        default=None,
        metadata={
            "help": "Tokens per optimizer step over all processes, instead of total_batch_size; a micro-batch holds at "
            "most per_device_train_batch_size x max_length of them."
        },
    )
    max_flops: float | None = field(
        default=None,
        metadata={"help": "The step that reaches so many FLOPs (6 x tokens x parameters) is the last (TLM: of stage 1)."},
    )
    max_tokens: float | None = field(
        default=None,
        metadata={"help": "The step that reaches so many tokens, padding not counted, is the last (TLM: of stage 1)."},
    )
    max_hours: float | None = field(
        default=None, metadata={"help": "Training (TLM: stage 1) ends after so many hours; the schedule follows the clock."}
    )
    track_energy: bool = field(
        default=False,
        metadata={"help": "Read the machine's electricity during training (codecarbon, no network; extra `energy`)."},
    )
    energy_country: str | None = field(
        default=None, metadata={"help": "Three-letter ISO code, such as FRA: tell the CO2 by that country's energy mix too."}
    )
    packing: str = field(
        default="auto",
        metadata={
            "help": "What is done about padding. pack: several texts share a row and do not see each other. group: texts "
            "of similar length share a step. none: texts are padded to the longest of their batch. auto: group on CPUs, "
            "else pack.",
            "choices": ["auto", "none", "group", "pack"],
        },
    )
    max_logits: int = field(
        default=1 << 25,
        metadata={"help": "Most vocabulary logits in memory at any time, forward or backward; 2^25 are 128 MiB of float32."},
    )


@dataclass(repr=False)
class TlmOptions(RunOptions):
    """TLM's own options, and those of the Trainer whose defaults it changes.

    Recipes hand this class to `parse` and receive a `TlmArguments`.
    """

    stands_for: ClassVar[str] = "hf_tlm.training.arguments.TlmArguments"

    # The method (TLM, section 3.1; Table B.1).
    rho1: float = field(
        default=3,
        metadata={"help": "Corpus batches per task batch in stage 1: 0 is task data only, inf corpus data only."},
    )
    rho2: float = field(default=20, metadata={"help": "Weight of the masked-LM loss on task data in stage 1."})
    loss_normalization: str = field(
        default="mean",
        metadata={
            "help": "Task batches: mean is (rho2 L_mlm + L_task)/(rho2 + 1), the released code's; sum is the paper's.",
            "choices": ["mean", "sum"],
        },
    )
    corpus_max_length: int | None = field(
        default=None, metadata={"help": "Longest corpus passage in tokens. Default: max_length."}
    )
    stage: str = field(
        default="both",
        metadata={
            "help": "1: joint training only. 2: fine-tuning only (give --model_name_or_path a stage-1 model). both.",
            "choices": ["1", "2", "both"],
        },
    )
    teacher: str = field(
        default="none",
        metadata={
            "help": "Who answers for the task's texts and for passages of the subset, which then are training texts of both "
            "stages too. linear: a linear model on TF-IDF, on the task's texts out of fold; for tasks whose texts are like "
            "passages.",
            "choices": ["none", "linear"],
        },
    )
    teacher_weight: float = field(
        default=1.0, metadata={"help": "Weight of the cross-entropy against the teacher's answers beside the task loss."}
    )
    teacher_passages: int = field(
        default=4000,
        metadata={
            "help": "Passages that the teacher answers for: those it is most certain of, in proportion to the task's "
            "classes. 0: the task's texts alone."
        },
    )
    teacher_share: float = field(
        default=0.5, metadata={"help": "Of the texts of task batches at most so many, below 1, are the teacher's passages."}
    )
    seeds: list[int] | None = field(
        default=None, metadata={"help": "One whole run per seed, then mean and standard deviation.", "nargs": "+"}
    )

    # Stage 2: the task loss alone, on unmasked task texts; the checkpoint best on validation is kept.
    stage2_max_steps: int = field(default=-1, metadata={"help": "Stage 2: optimizer steps. -1: by epochs."})
    stage2_num_train_epochs: float = field(default=10.0, metadata={"help": "Stage 2: passes over the training split."})
    stage2_min_steps: int = field(
        default=0, metadata={"help": "Stage 2 by epochs: at least so many optimizer steps, for tasks of few texts."}
    )
    stage2_learning_rate: float = field(default=2e-5, metadata={"help": "Stage 2: peak learning rate."})
    stage2_muon_learning_rate: float | None = field(
        default=None, metadata={"help": "Stage 2: as muon_learning_rate. Default: stage2_learning_rate."}
    )
    stage2_weight_decay: float = field(default=0.0, metadata={"help": "Stage 2: weight decay."})
    stage2_layerwise_lr_decay: float = field(
        default=1.0, metadata={"help": "Stage 2: as layerwise_lr_decay; ELECTRA's fine-tuning has 0.8, its large model 0.9."}
    )
    stage2_warmup_steps: float = field(default=0, metadata={"help": "Stage 2: warm-up steps, or a share below 1."})
    stage2_total_batch_size: int = field(default=32, metadata={"help": "Stage 2: texts per optimizer step."})
    stage2_eval_steps: float = field(
        default=0.05,
        metadata={"help": "Stage 2: evaluate and save every so many steps, or a share of all steps below 1."},
    )
    stage2_reset_classifier: bool = field(
        default=False,
        metadata={"help": "Start stage 2 from a fresh classification head, as the released scripts do."},
    )
    stage2_max_length: int | None = field(
        default=None,
        metadata={
            "help": "Stage 2 and scoring: longest text in tokens. 0: the task's own, which 99%% of its training texts keep "
            "to. Default: max_length."
        },
    )
    stage2_rho2: float = field(
        default=0.0,
        metadata={
            "help": "Stage 2: weight of the language-modelling loss on the task's texts, which are then masked as in stage "
            "1; 0: the task loss alone, on unmasked texts."
        },
    )
    stage2_class_balance: float = field(
        default=0.0,
        metadata={
            "help": "Stage 2: classes count by their frequency to the power of minus this: 0 as frequent as they are, 1 all "
            "alike, which macro-averaged scores do."
        },
    )
    stage2_dropout: float | None = field(
        default=None, metadata={"help": "Stage 2: all dropout probabilities of the model. Default: those of stage 1."}
    )
    stage2_label_smoothing: float | None = field(
        default=None,
        metadata={
            "help": "Stage 2: so much of each label's weight goes to all classes alike. Default: label_smoothing_factor."
        },
    )
    stage2_rdrop: float = field(
        default=0.0,
        metadata={
            "help": "Stage 2: every text passes twice under other dropout, and so many times their divergence is added to "
            "the loss (R-Drop's alpha)."
        },
    )
    stage2_ema_decay: float = field(
        default=0.0,
        metadata={
            "help": "Stage 2: weights are scored and kept as their exponential moving average, of which so much is left "
            "after a step; 0.99 for some 2,000 steps."
        },
    )
    stage2_classifier_pooling: str | None = field(
        default=None,
        metadata={
            "help": "Stage 2 and after: what the classifier reads, the first token (cls) or the mean over tokens; bodies of "
            "the type modernbert. Default: as in stage 1.",
            "choices": ["cls", "mean"],
        },
    )


@dataclass(repr=False)
class PretrainOptions(RunOptions):
    """Options of pretraining on a corpus alone, and those of the Trainer whose defaults it changes.

    Recipes hand this class to `parse` and receive a `PretrainArguments`.
    """

    stands_for: ClassVar[str] = "hf_tlm.training.arguments.PretrainArguments"
