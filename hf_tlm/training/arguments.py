"""The arguments of a run, on top of `transformers.TrainingArguments`."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from typing import ClassVar

from hf_tlm.objective_specs import OBJECTIVES
from hf_tlm.training.applicable import DEFAULT_MAX_STEPS, check_applicable
from hf_tlm.training.base_arguments import BaseArguments
from hf_tlm.training.energy import check_energy
from hf_tlm.training.options import ArgumentsError, PretrainOptions, RunOptions, TlmOptions
from hf_tlm.training.score_model_options import ScoreModelOptions


# The Trainer's repr leaves tokens out; a generated one would show them.
@dataclass(repr=False)
class RunArguments(RunOptions, BaseArguments):
    """What the arguments of TLM and of pretraining have in common. Made as `TlmArguments` or `PretrainArguments`."""

    corpus_max_length: ClassVar[int | None] = None
    # Of stage 2 of TLM alone, see `TlmArguments.for_stage`.
    rdrop: ClassVar[float] = 0.0
    ema_decay: ClassVar[float] = 0.0
    class_balance: ClassVar[float] = 0.0

    def __post_init__(self):
        super().__post_init__()
        check_applicable(self, self.objective)
        for name in ("scl_temperature", "scl_projection", "crop_fraction"):
            if not self.scl and getattr(self, name) != getattr(RunOptions, name):
                raise ArgumentsError(f"{name} {getattr(self, name)} has no effect with scl false. Leave it out.")
        if not self.stop_gradient and self.clm != "full":
            raise ArgumentsError(
                f"stop_gradient false is for clm full, whose LM loss has a copy probability; received clm {self.clm}. Leave "
                "it out."
            )
        if OBJECTIVES[self.objective].corrects and self.clm == "full" and self.stop_gradient and self.rtd_weight == 0:
            raise ArgumentsError(
                "rtd_weight 0 leaves the copy head of clm full untrained. Give another --rtd_weight, --stop_gradient false, "
                "or another --clm."
            )
        if self.train_sampling_strategy != "random":
            raise ArgumentsError(
                f"Runs draw their own batches; train_sampling_strategy {self.train_sampling_strategy!r} has no effect. "
                "Leave it at random."
            )
        self._check_budget()
        if self.energy_country is not None and not self.track_energy:
            raise ArgumentsError(f"energy_country {self.energy_country!r} has no effect without track_energy.")
        if self.track_energy:
            check_energy(self.energy_country)
        if self.total_batch_tokens is not None and self.total_batch_size is not None:
            raise ArgumentsError(
                f"Give total_batch_size (texts) or total_batch_tokens, not both; received {self.total_batch_size} and "
                f"{self.total_batch_tokens}."
            )
        # Corpus batches leave the classifier without a gradient, stage 2 the masked-LM head.
        if self.ddp_find_unused_parameters is None:
            self.ddp_find_unused_parameters = True

    def _check_budget(self) -> None:
        if self.num_train_epochs != type(self).num_train_epochs and (self.max_steps == 0 or self.has_budget):
            ends = "the budget ends the run" if self.has_budget else "max_steps ends the run"
            raise ArgumentsError(
                f"num_train_epochs {self.num_train_epochs} has no effect: {ends}. Leave it out, or give --max_steps -1 and "
                "no budget (max_flops, max_tokens, max_hours)."
            )
        if self.max_steps == 0:
            # As many as a budget allows is settled by the trainer, which knows the texts and the model.
            self.max_steps = -1 if self.has_budget else DEFAULT_MAX_STEPS
        if self.max_hours is None:
            return
        if self.warmup_steps >= 1:
            raise ArgumentsError(
                f"With max_hours warm-up is a share of the time, below 1; received warmup_steps {self.warmup_steps}."
            )
        if self.max_steps < 1 and self.max_flops is None and self.max_tokens is None:
            for name in ("logging_steps", "save_steps", "eval_steps"):
                if getattr(self, name) is not None and getattr(self, name) < 1:
                    raise ArgumentsError(
                        f"{name} {getattr(self, name)} is a share of a number of steps that max_hours leaves open. Give "
                        "it in steps."
                    )

    @property
    def has_budget(self) -> bool:
        return any(limit is not None for limit in (self.max_flops, self.max_tokens, self.max_hours))

    @property
    def layout(self) -> str:
        """`packing`, with auto settled.

        On CPUs the kernel for attention with dropout takes no mask, and the wide rows of a pack cost more than the last
        padding of a group (benchmarks/results/training.md).
        """
        if self.packing != "auto":
            return self.packing
        return "group" if self.device.type == "cpu" else "pack"

    @property
    def row_length(self) -> int:
        """Tokens of a packed row: the longest text's, and not less than 128."""
        return max(self.max_length, self.corpus_max_length or 0, 128)

    @property
    def micro_batch_tokens(self) -> int | None:
        """Tokens of one micro-batch of one process where `total_batch_tokens` is set."""
        if self.total_batch_tokens is None:
            return None
        return self.total_batch_tokens // (self.world_size * self.gradient_accumulation_steps)

    def _token_accumulation(self) -> int:
        """The fewest accumulated micro-batches that keep each within per_device_train_batch_size x max_length tokens."""
        share, rest = divmod(self.total_batch_tokens, self.world_size)
        if rest:
            raise ArgumentsError(
                f"total_batch_tokens {self.total_batch_tokens} cannot be split evenly over {self.world_size} processes. "
                "Choose a multiple."
            )
        most = self.per_device_train_batch_size * max(self.max_length, self.corpus_max_length or 0)
        longest = max(self.max_length, self.corpus_max_length or 0)
        fewest = -(-share // most)
        # More micro-batches would be too small for the longest text.
        for count in range(fewest, max(fewest, share // longest) + 1):
            if share % count == 0:
                return count
        raise ArgumentsError(
            f"total_batch_tokens {self.total_batch_tokens}: {share} tokens of a process cannot be cut into equal "
            f"micro-batches of {longest} (the longest text) to {most} tokens (per_device_train_batch_size such texts). Give "
            f"{max(1, round(share / most)) * most * self.world_size}, or another multiple of them."
        )

    def ready(self, output_dir: str | os.PathLike, seed: int) -> RunArguments:
        args = super().ready(output_dir, seed)
        if self.total_batch_tokens is not None:
            args.gradient_accumulation_steps = self._token_accumulation()
        return args


@dataclass(repr=False)
class TlmArguments(TlmOptions, RunArguments):
    """`TrainingArguments` plus TLM's. The inherited ones hold for stage 1; stage 2 takes its own from `stage2_*`."""

    def __post_init__(self):
        super().__post_init__()
        if math.isfinite(self.rho1) and self.rho1 != int(self.rho1):
            raise ArgumentsError(f"rho1 must be 0, 1, 2, ... or inf; received {self.rho1}.")
        self._check_teacher()
        if self.stage2_rdrop and self.stage2_rho2:
            raise ArgumentsError(
                f"stage2_rdrop compares two passes over a text, and stage2_rho2 {self.stage2_rho2} masks it. Leave one of "
                "them out."
            )
        self._check_rate("stage2_muon_learning_rate")
        sharded = self.fsdp or os.environ.get("ACCELERATE_USE_FSDP") == "true" or self.deepspeed_plugin is not None
        if self.stage2_ema_decay and sharded:
            raise ArgumentsError(
                "stage2_ema_decay works neither with FSDP nor with DeepSpeed, whose processes do not hold whole weights "
                "between steps. Use DDP, or leave it out."
            )
        if self.stage2_min_steps and self.stage2_max_steps > 0:
            raise ArgumentsError(
                "stage2_min_steps is for a stage 2 by epochs (stage2_max_steps -1); received "
                f"{self.stage2_min_steps} with stage2_max_steps {self.stage2_max_steps}. Leave one of them out."
            )
        self._check_seeds()

    def _check_teacher(self) -> None:
        if self.teacher == "none":
            for name in ("teacher_weight", "teacher_passages", "teacher_share"):
                if getattr(self, name) != getattr(TlmOptions, name):
                    raise ArgumentsError(f"{name} {getattr(self, name)} has no effect without a teacher. Leave it out.")
            return
        if self.teacher_weight == 0:
            raise ArgumentsError("teacher_weight 0 leaves the teacher unheard. Give another one, or --teacher none.")
        if self.stage2_rdrop:
            raise ArgumentsError(
                f"stage2_rdrop {self.stage2_rdrop} compares two passes over texts with labels, and a teacher's passages "
                "have none. Leave one of them out."
            )

    @property
    def stages(self) -> tuple[int, ...]:
        """Those that are run, in order."""
        return (1, 2) if self.stage == "both" else (int(self.stage),)

    def for_stage(self, stage: int, output_dir: str | os.PathLike, seed: int, metric: str) -> TlmArguments:
        """A copy with the values of one stage (1 or 2), for `TlmTrainer`.

        What depends on the task's texts is settled before, see `with_task_defaults`.

        Args:
            output_dir: the stage's own folder of checkpoints.
            metric: the task's metric on validation, by which the best checkpoint is chosen.

        Raises:
            ArgumentsError: the total batch size does not fit the processes and the per-device batch size.
        """
        args = (self.ready if stage == 1 else self._copy)(output_dir, seed)
        args.metric_for_best_model = metric
        args.greater_is_better = True
        if stage == 1:
            return args
        args.total_batch_size = args.total_batch_tokens = None
        args.max_flops = args.max_tokens = args.max_hours = None
        if self.stage2_max_length is not None:
            args.max_length = self.stage2_max_length
        args.rdrop, args.ema_decay = self.stage2_rdrop, self.stage2_ema_decay
        if self.stage2_label_smoothing is not None:
            args.label_smoothing_factor = self.stage2_label_smoothing
        args.max_steps = self.stage2_max_steps
        args.num_train_epochs = self.stage2_num_train_epochs
        args.learning_rate = self.stage2_learning_rate
        args.muon_learning_rate = self.stage2_muon_learning_rate
        args.weight_decay = self.stage2_weight_decay
        args.layerwise_lr_decay = self.stage2_layerwise_lr_decay
        args.warmup_steps = self.stage2_warmup_steps
        args.per_device_train_batch_size, args.gradient_accumulation_steps = self._accumulation(
            self.stage2_total_batch_size, self.per_device_train_batch_size, fitting=True, name="stage2_total_batch_size"
        )
        args.rho1, args.rho2, args.class_balance = 0, self.stage2_rho2, self.stage2_class_balance
        if args.rho2 == 0:
            args.mlm_probability = 0.0
        args.eval_strategy = args.save_strategy = "steps"
        args.eval_steps = args.save_steps = self.stage2_eval_steps
        args.load_best_model_at_end = True
        return args


@dataclass(repr=False)
class ScoreModelArguments(ScoreModelOptions, TlmArguments):
    """`TlmArguments` with the defaults of a score model."""

    hub_id_name: ClassVar[str] = "hub_dataset_id"


@dataclass(repr=False)
class PretrainArguments(PretrainOptions, RunArguments):
    """`TrainingArguments` plus what pretraining on a corpus alone takes. To `TlmTrainer` it is rho1 = inf."""

    rho1: ClassVar[float] = math.inf
    rho2: ClassVar[float] = 0.0
    teacher: ClassVar[str] = "none"
    loss_normalization: ClassVar[str] = "sum"

    def __post_init__(self):
        super().__post_init__()
        if self.label_smoothing_factor:
            raise ArgumentsError(
                f"label_smoothing_factor {self.label_smoothing_factor} is for a task's labels, and pretraining has none. "
                "Leave it out."
            )
