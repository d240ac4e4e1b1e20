"""The arguments of a run of TLM, of a score model and of pretraining, on top of `transformers.TrainingArguments`."""

from __future__ import annotations

import copy
import math
import os
from dataclasses import MISSING, dataclass, fields
from typing import Annotated, ClassVar

from transformers import SchedulerType

from hf_tlm.errors import ArgumentsError
from hf_tlm.training.base_arguments import SeedsArguments
from hf_tlm.training.run_arguments import RunArguments
from hf_tlm.training.teacher_arguments import NONE, WITHOUT_PASSAGES, WITHOUT_TEACHER, TeacherArguments
from hf_tlm.training.trainer_options import check_scheduler
from hf_tlm.utils.options import OnlyWith, option
from hf_tlm.utils.process import uses_fsdp

# Defined again, because `--help` would import all of training for the one of `base_arguments`.
_WITH_MUON = OnlyWith("optim", ("muon",))
# Options with a value of their own in stage 2, stage2_<name>.
_STAGE_2_OPTIONS = (
    "max_steps num_train_epochs learning_rate muon_learning_rate weight_decay layerwise_lr_decay warmup_steps eval_steps "
    "early_stopping_patience rdrop ema_decay rho2 class_balance"
).split()


@dataclass(repr=False)
class TlmArguments(TeacherArguments, RunArguments, SeedsArguments):
    """Options of a run of TLM, including options of the Trainer with other defaults.

    Inherited options (`TrainingArguments`) hold for stage 1; options named `stage2_*` replace them in stage 2.
    """

    # The method (TLM, section 3.1; Table B.1).
    rho1: float = option(3, "Corpus batches per task batch in stage 1: 0 is task data only, inf corpus data only.")
    rho2: float = option(20, "Weight of the masked-LM loss on task data in stage 1.")
    loss_normalization: str = option(
        "mean",
        "Loss of task batches. mean: (rho2 L_mlm + L_task)/(rho2 + 1), as in the released code. sum: without the "
        "division, as in the paper.",
        choices=["mean", "sum"],
    )
    corpus_max_length: int | None = option(None, "Maximum length of corpus passages in tokens. Default: max_length.")
    stage: str = option(
        "both",
        "Stages to run. 1: joint training only. 2: fine-tuning only, with a stage-1 model as --model_name_or_path. "
        "both: one after the other.",
        choices=["1", "2", "both"],
    )
    teacher_output: Annotated[str | None, WITHOUT_TEACHER, WITHOUT_PASSAGES] = option(
        None,
        "Folder to write the subset to, with the teacher's answers in a column teacher_probs; it can be published "
        "like any subset.",
    )
    teacher_rounds: Annotated[int, WITHOUT_TEACHER] = option(
        1,
        "Number of complete runs, each taught by the previous one; the result is the one that is best on validation. "
        "With teacher self, the first run has no teacher, and there are at least two.",
    )

    # Stage 2: the task loss alone, on unmasked task texts; the checkpoint best on validation is kept.
    stage2_max_steps: int = option(-1, "Stage 2: number of optimizer steps. -1: by stage2_num_train_epochs.")
    stage2_num_train_epochs: float = option(10.0, "Stage 2: epochs over the training split.")
    stage2_min_steps: int = option(0, "Stage 2 by epochs: minimum number of optimizer steps, for tasks with few texts.")
    stage2_learning_rate: float = option(2e-5, "Stage 2: peak learning rate.")
    stage2_muon_learning_rate: Annotated[float | None, _WITH_MUON] = option(
        None, "Stage 2: the value of muon_learning_rate. Default: stage2_learning_rate."
    )
    stage2_weight_decay: float = option(0.0, "Stage 2: weight decay.")
    stage2_layerwise_lr_decay: float = option(
        1.0, "Stage 2: the value of layerwise_lr_decay; ELECTRA is fine-tuned with 0.8, its large model with 0.9."
    )
    stage2_warmup_steps: float = option(0, "Stage 2: number of warm-up steps; below 1, a share of all steps.")
    stage2_lr_scheduler_type: str | None = option(
        None,
        "Stage 2: learning rate schedule, a value of lr_scheduler_type that needs no lr_scheduler_kwargs. Default: "
        "that of stage 1, with its kwargs.",
    )
    stage2_total_batch_size: int = option(32, "Stage 2: texts per optimizer step.")
    stage2_eval_steps: float = option(
        0.05, "Stage 2: number of steps between evaluations, each with a checkpoint; below 1, a share of all steps."
    )
    stage2_early_stopping_patience: int = option(
        0, "Stage 2: number of evaluations without a better validation score after which training stops; 0: take all steps."
    )
    stage2_reset_classifier: bool = option(
        False, "Start stage 2 with a newly initialised classification head, as the released scripts do."
    )
    stage2_max_length: int | None = option(
        None,
        "Stage 2 and scoring: maximum length of texts in tokens. 0: the length that 99%% of the task's training "
        "texts do not exceed. Default: max_length.",
    )
    stage2_rho2: float = option(
        0.0,
        "Stage 2: weight of the language-modelling loss on the task's texts, which are then masked as in stage 1. 0: "
        "the task loss alone, on unmasked texts.",
    )
    stage2_class_balance: float = option(
        0.0,
        "Stage 2: exponent a of the class weights, which are frequency^-a. 0: no weights. 1: all classes count "
        "equally, as in macro-averaged scores.",
    )
    stage2_dropout: float | None = option(
        None, "Stage 2: all dropout probabilities of the model. Default: those of stage 1."
    )
    stage2_label_smoothing: float | None = option(
        None,
        "Stage 2: share of each label's weight that is spread evenly over all classes. Default: label_smoothing_factor.",
    )
    stage2_rdrop: float = option(
        0.0,
        "Stage 2: weight of R-Drop (its alpha): every text is passed through the model twice with different dropout, "
        "and this many times the divergence of the two outputs is added to the loss.",
    )
    stage2_ema_decay: float = option(
        0.0,
        "Stage 2: decay per step of an exponential moving average of the weights, which is evaluated and saved "
        "instead of the weights; 0.99 suits some 2,000 steps. 0: no average.",
    )
    stage2_classifier_pooling: str | None = option(
        None,
        "Stage 2 and later: input of the classifier, the first token (cls) or the mean over tokens (mean); for "
        "bodies of the type modernbert. Default: as in stage 1.",
        choices=["cls", "mean"],
    )
    stage2_teacher_passages: Annotated[bool, WITHOUT_TEACHER, WITHOUT_PASSAGES] = option(
        True, "Stage 2: train on the teacher's passages too."
    )

    def __post_init__(self):
        self.stage = str(self.stage)  # Python code and YAML may give the integer 1.
        super().__post_init__()
        if math.isfinite(self.rho1) and self.rho1 != int(self.rho1):
            raise ArgumentsError(f"rho1 must be 0, 1, 2, ... or inf; received {self.rho1}.")
        self._check_teacher()
        if self.stage2_lr_scheduler_type not in (None, self.lr_scheduler_type):
            check_scheduler(self.stage2_lr_scheduler_type, name="stage2_lr_scheduler_type")
        if self.stage2_rdrop and self.stage2_rho2:
            raise ArgumentsError(
                f"stage2_rdrop compares two passes over a text, and stage2_rho2 {self.stage2_rho2} masks the text. Remove "
                "one of the two."
            )
        if self.stage2_ema_decay and uses_fsdp(self):
            raise ArgumentsError(
                "stage2_ema_decay does not work with FSDP, whose processes do not hold complete weights between steps. Use "
                "DDP, or remove stage2_ema_decay."
            )
        if self.stage2_min_steps and self.stage2_max_steps > 0:
            raise ArgumentsError(
                "stage2_min_steps needs a stage 2 whose length is set in epochs (stage2_max_steps -1); received "
                f"{self.stage2_min_steps} with stage2_max_steps {self.stage2_max_steps}. Remove one of the two."
            )

    def _check_teacher(self) -> None:
        if not self.taught:
            return
        if self.stage == "1" and self.rho1 == math.inf:
            raise ArgumentsError(
                "teacher has no effect with stage 1 and rho1 inf, without a batch of the task. Remove it, or change --stage "
                "or --rho1."
            )
        if self.taught_by_itself:
            self.teacher_rounds = max(2, self.teacher_rounds)
        if self.teacher_rounds > 1 and (self.hub_strategy == "checkpoint" or self.resume_from_checkpoint is not None):
            raise ArgumentsError(
                "Rounds are complete runs, whose checkpoints are not on the Hub: remove hub_strategy checkpoint and "
                "resume_from_checkpoint. Run the same command to continue the rounds."
            )
        if self.stage2_rdrop:
            raise ArgumentsError(
                f"stage2_rdrop {self.stage2_rdrop} compares two passes over texts with labels, and a teacher's passages "
                "have none. Remove stage2_rdrop or --teacher."
            )

    def untaught(self) -> TlmArguments:
        """Return a copy without a teacher, with the defaults of all options of a teacher."""
        plain = copy.copy(self)
        for entry in fields(self):
            if entry.name.startswith(("teacher", "stage2_teacher")):
                setattr(plain, entry.name, entry.default if entry.default is not MISSING else [NONE])
        return plain

    @property
    def stages(self) -> tuple[int, ...]:
        """The stages to run, in order."""
        return (1, 2) if self.stage == "both" else (int(self.stage),)

    def for_stage(self, stage: int, output_dir: str | os.PathLike, seed: int, metric: str) -> TlmArguments:
        """Return the copy of `for_trainer` with the values of one stage (1 or 2).

        Values that depend on the task's texts must be set before, see `with_task_defaults`.

        Args:
            metric: the task's metric, by which the best checkpoint is chosen.
        """
        args = self.for_trainer(output_dir, seed) if stage == 1 else self._copy(output_dir, seed)
        args.metric_for_best_model = metric
        args.greater_is_better = True
        if stage == 1:
            return args
        args.total_batch_size = args.total_batch_tokens = None
        args.max_flops = args.max_tokens = args.max_hours = None
        if self.stage2_max_length is not None:
            args.max_length = self.stage2_max_length
        for name in _STAGE_2_OPTIONS:
            setattr(args, name, getattr(self, f"stage2_{name}"))
        if self.stage2_label_smoothing is not None:
            args.label_smoothing_factor = self.stage2_label_smoothing
        if self.stage2_lr_scheduler_type not in (None, self.lr_scheduler_type):
            args.lr_scheduler_type, args.lr_scheduler_kwargs = SchedulerType(self.stage2_lr_scheduler_type), None
        args.per_device_train_batch_size, args.gradient_accumulation_steps = self._accumulation(
            self.stage2_total_batch_size, self.per_device_train_batch_size, fitting=True, name="stage2_total_batch_size"
        )
        args.rho1 = 0
        # Masking continues with the share at the end of stage 1, if stage 2 masks texts at all.
        args.mlm_probability = 0.0 if args.rho2 == 0 else args.mlm_probability_end or args.mlm_probability
        args.mlm_probability_end = None
        args.eval_strategy = args.save_strategy = "steps"
        args.save_steps = self.stage2_eval_steps
        args.load_best_model_at_end = True
        return args


@dataclass(repr=False)
class ScoreModelArguments(TlmArguments):
    """Options of training a score model (ISS, section 3.2): TLM's stage 1 on task data only.

    Defaults are those of ISS's released script (`train_score_model.sh`, formerly `ft.sh`); that of masking is from its code.
    """

    hub_id_name: ClassVar[str] = "hub_dataset_id"

    output_dir: str | None = option("", "Folder of the smaller subset.")
    push_to_hub: bool = option(False, "Publish the smaller subset as a dataset of the Hub.")
    hub_dataset_id: str | None = option(None, "push_to_hub: the repository, owner/name.")
    max_steps: int = option(
        -1, "Score model: number of optimizer steps. -1: by num_train_epochs. 0: 10,000, or as many as a budget allows."
    )
    num_train_epochs: float = option(15.0, "Score model: epochs over the training split.")
    learning_rate: float = option(5e-5, "Score model: peak learning rate.")
    weight_decay: float = option(0.0, "Score model: weight decay.")
    warmup_steps: float = option(0.1, "Score model: number of warm-up steps; below 1, a share of all steps.")
    per_device_train_batch_size: int = option(16, "Score model: texts per device and micro-batch.")
    mlm_probability: float = option(0.1, "Score model: share of tokens chosen for prediction.")
    rho1: float = option(0, "Score model: corpus batches per task batch; 0 is task data only.")
    rho2: float = option(3, "Score model: weight of the masked-LM loss.")
    stage: str = option("1", "Score model: stages to train. 1: joint training. both: fine-tuning after it too.")

    def __post_init__(self):
        super().__post_init__()
        if self.export_int8:
            raise ArgumentsError("export_int8 measures a model that predicts, and a score model only scores. Remove it.")


@dataclass(repr=False)
class PretrainArguments(RunArguments):
    """Options of pretraining on a corpus alone, including options of the Trainer with other defaults.

    `TlmTrainer` treats pretraining as rho1 = inf.
    """

    def __post_init__(self):
        super().__post_init__()
        if self.label_smoothing_factor:
            raise ArgumentsError(
                f"label_smoothing_factor {self.label_smoothing_factor} applies to labels of a task, and pretraining has "
                "none. Remove it."
            )
