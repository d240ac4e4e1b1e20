"""The arguments that all runs have in common, whatever they train."""

from __future__ import annotations

import copy
import logging
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, ClassVar, Self

import torch
from transformers import TrainingArguments
from transformers.utils import is_torch_bf16_gpu_available, is_torch_xla_available

from hf_tlm.errors import ArgumentsError
from hf_tlm.hub.repo_id import find_repo
from hf_tlm.training.optimizers import OWN, check_optimizer
from hf_tlm.training.trainer_options import check_trainer_options
from hf_tlm.utils.files import check_writable
from hf_tlm.utils.options import OnlyWith, check_effects, check_ranges, option
from hf_tlm.utils.run_files import RESULTS_FILE
from hf_tlm.utils.shown import relative_name, shown_path

logger = logging.getLogger(__name__)
# Options of the Trainer that would break a run, and why.
_UNSUPPORTED = {
    "auto_find_batch_size": "batches are drawn before the first step. Set per_device_train_batch_size "
    "instead, which does not change results if a total batch size is set",
    "batch_eval_metrics": "metrics are computed on a complete split",
    "dataloader_drop_last": "all batches of a run have the same number of texts",
    "ignore_data_skip": "a resumed run reads the same batches as an uninterrupted one, for the same weights",
    "enable_jit_checkpoint": "a run saves a checkpoint at SIGTERM by itself",
    "include_for_metrics": "metrics are computed from predictions and labels alone",
    "logging_nan_inf_filter": "it would hide a loss that is not finite, which ends a run",
    "prediction_loss_only": "checkpoints are chosen by the task's metric",
    "restore_callback_states_from_checkpoint": "a run restores the states that it needs by itself",
}
_WITH_MUON = OnlyWith("optim", ("muon",))


@dataclass(repr=False)
class BaseArguments(TrainingArguments):
    """`TrainingArguments` of a run that resumes by itself, ends at a non-finite loss, and publishes a finished folder."""

    hub_id_name: ClassVar[str] = "hub_model_id"
    # Whether a micro-batch that does not divide the total batch is reduced to one that does.
    fits_micro_batch: ClassVar[bool] = False
    # In the copy for a part of a run: the run's name, by which trackers group its parts. Without annotation: not an option.
    run_group = ""
    # Evaluations without a better score after which training stops; 0: never. An option in classes that have such scores.
    early_stopping_patience = 0
    # Learning rate of a layer divided by that of the layer above it. An option of most runs.
    layerwise_lr_decay = 1.0

    output_dir: str | None = option(None, "Folder of the run: its model and results. Default: trainer_output.")
    per_device_eval_batch_size: int = option(64, "Texts per device when evaluating.")
    logging_nan_inf_filter: bool = option(False, "Not supported: a loss that is not finite ends the run.")
    # The Trainer's columns of labels, which a run sets itself; the option of this name is the task's, for class names.
    label_names: list[str] | None = field(default=None, init=False)

    def __post_init__(self):
        check_ranges(self, ArgumentsError)
        # A score model's default is "": its directory is chosen later.
        if self.output_dir not in (None, type(self).output_dir) and not str(self.output_dir).strip():
            raise ArgumentsError("output_dir is empty. Pass a folder, or remove the option.")
        # Without it, processes on CPUs do not form a group, and each would train the complete run into one directory. It is
        # not `use_cpu`, so that a run can continue with another number of processes.
        if int(os.environ.get("WORLD_SIZE", "1")) > 1 and not torch.accelerator.is_available():
            os.environ["ACCELERATE_USE_CPU"] = "true"
        _check_deepspeed(self)
        _check_half_precision(self)
        check_optimizer(self)
        optim = self.optim
        if optim in OWN:
            self.optim = "adamw_torch"  # The Trainer knows its own optimizers only; see `grouped_optimizer`.
        super().__post_init__()
        if optim in OWN:
            self.optim = optim
        if self.output_dir and not (self.folder / RESULTS_FILE).exists():  # A finished run's folder may be read-only.
            check_writable(self.folder)
        check_trainer_options(self)
        check_effects(self, ArgumentsError)
        # A precision set in accelerate's config counts as set here, so that settings and cards state the one that was used.
        self.bf16, self.fp16 = (self.mixed_precision == name for name in ("bf16", "fp16"))
        _check_hub(self, self.hub_id_name)
        if str(self.resume_from_checkpoint).lower() == "true":
            self.resume_from_checkpoint = None  # A run resumes in any case.
            if self.process_index == 0 and next(self.folder.rglob("*.safetensors"), None) is None:
                logger.warning(
                    "resume_from_checkpoint: %s has nothing to resume from; the run starts from the beginning.", self.folder
                )
        if self.resume_from_checkpoint is not None and find_repo(self.resume_from_checkpoint, "model") is None:
            raise ArgumentsError(
                "A run resumes by itself: run the same command with the same --output_dir. resume_from_checkpoint can be "
                "true, or the repository of a run on the Hub (owner/name@main-checkpoints); received "
                f"{self.resume_from_checkpoint!r}."
            )
        if self.n_gpu > 1:
            raise ArgumentsError(
                f"This process sees {self.n_gpu} GPUs, which it would use with torch's DataParallel, which is not "
                f"supported. Start one process per GPU (--num_processes {self.n_gpu}), or make one GPU visible "
                "(CUDA_VISIBLE_DEVICES=0)."
            )
        for name, reason in _UNSUPPORTED.items():
            if getattr(self, name):
                raise ArgumentsError(f"{name} is not supported: {reason}. Remove {name}.")
        if not self.eval_do_concat_batches:
            raise ArgumentsError(
                "eval_do_concat_batches false is not supported: metrics are computed on a complete split. Remove it."
            )
        # By default the Trainer expects every model argument with "label" in its name in a batch.
        self.label_names = ["labels"]
        # The collator also needs columns that the model does not use.
        self.remove_unused_columns = False

    @property
    def folder(self) -> Path:
        """`output_dir` as a path."""
        assert self.output_dir is not None
        return Path(self.output_dir)

    @property
    def muon_learning_rate(self) -> float | None:
        """Peak learning rate of the matrices that Muon optimizes; None: `learning_rate`."""
        return None

    @property
    def total_batch_size(self) -> int | None:
        """Texts per optimizer step over all processes; None: the sum of the micro-batches."""
        return None

    def _accumulation(
        self, total_batch_size: int, per_device: int, *, fitting: bool | None = None, name: str = "total_batch_size"
    ) -> tuple[int, int]:
        """Return (per-device batch size, gradient accumulation steps) for a total batch size.

        Args:
            fitting: use the largest micro-batch of at most `per_device` texts that divides the total batch; default
                `fits_micro_batch`.
            name: name of the option, for errors.
        """
        world = max(1, self.world_size)
        if total_batch_size % world:
            raise ArgumentsError(
                f"{name}: a batch of {total_batch_size} texts cannot be split evenly over {world} processes. Choose a "
                f"multiple of {world}."
            )
        share = total_batch_size // world
        per_device = min(per_device, share)
        if self.fits_micro_batch if fitting is None else fitting:
            per_device = max(size for size in range(1, per_device + 1) if share % size == 0)
        accumulation, rest = divmod(total_batch_size, per_device * world)
        if rest:
            raise ArgumentsError(
                f"{name}: a batch of {total_batch_size} texts is not a multiple of per_device_train_batch_size "
                f"{per_device} x {world} processes. Change one of them."
            )
        return per_device, accumulation

    def for_trainer(self, output_dir: str | os.PathLike, seed: int) -> Self:
        """Return a copy for the Trainer, with checkpoints in `output_dir` and micro-batches that add up to the total batch.

        Raises:
            ArgumentsError: the total batch does not fit the number of processes and the per-device batch size, or
                gradient_accumulation_steps is another number than these give.
        """
        args = self._copy(output_dir, seed)
        if self.total_batch_size is not None:
            args.per_device_train_batch_size, args.gradient_accumulation_steps = self._accumulation(
                self.total_batch_size, self.per_device_train_batch_size
            )
            self._check_accumulation("total_batch_size", args.gradient_accumulation_steps)
        return args

    def _check_accumulation(self, option: str, steps: int) -> None:
        """Raise an ArgumentsError if `option`, which gives the accumulation steps, overrides a given number of them."""
        if self.gradient_accumulation_steps not in (1, steps):
            raise ArgumentsError(
                f"gradient_accumulation_steps {self.gradient_accumulation_steps} has no effect: {option} "
                f"{getattr(self, option)} and per_device_train_batch_size {self.per_device_train_batch_size} make it "
                f"{steps}. Remove it; a smaller per_device_train_batch_size takes less memory."
            )

    def track_as_part(self, args: BaseArguments, folder: str | os.PathLike) -> None:
        """Set the name and group under which trackers show the part of this run that `args` train in `folder`.

        The group is this run's name: `run_name`, or its directory relative to the working directory, or the end of its path
        with a digest. The part's name appends the path of `folder` within the run's directory.
        """
        run_dir = os.path.abspath(self.folder)
        name = self.run_name or relative_name(shown_path(run_dir), run_dir)
        subfolder = os.path.relpath(folder, run_dir)
        args.run_group, args.run_name = self.run_group or name, name if subfolder == os.curdir else f"{name}/{subfolder}"

    def _copy(self, output_dir: str | os.PathLike, seed: int) -> Self:
        args = copy.copy(self)
        self.track_as_part(args, output_dir)
        args.output_dir = str(output_dir)
        args.push_to_hub = False  # The Trainer would push the contents of a directory of checkpoints.
        args.resume_from_checkpoint = None
        args.hub_token = None  # The Trainer pickles its arguments beside every checkpoint.
        args.seed = seed
        if self.data_seed is None:
            args.data_seed = seed
        return args


@dataclass(repr=False)
class PublishedArguments(BaseArguments):
    """Options of a run that trains one model, which is pushed once, from its finished directory.

    Help texts also mention TLM, whose runs use some of these options for stage 1.
    """

    weight_decay: float = option(0.01, "Weight decay (TLM: of stage 1).")
    layerwise_lr_decay: float = option(
        1.0,
        "Learning rate of a layer divided by that of the layer above it; ELECTRA is fine-tuned with 0.8, its "
        "large model with 0.9 (TLM: in stage 1).",
    )
    optim: str = option(
        "adamw_torch_fused",
        "Optimizer: muon (for the matrices of the layers; AdamW for all other parameters), lamb (extra [optim]), or "
        "one of the Trainer's: adamw_torch_fused, adamw_torch, ...",
    )
    muon_learning_rate: Annotated[float | None, _WITH_MUON] = option(
        None,
        "optim muon: peak learning rate of the matrices, whose steps have the size of AdamW's (TLM: of stage 1). "
        "Default: learning_rate.",
    )
    per_device_train_batch_size: int = option(32, "Maximum number of texts per device and micro-batch.")
    logging_steps: float = option(50, "Number of optimizer steps between logs (TLM: in both stages).")
    save_total_limit: int | None = option(
        2, "Number of newest checkpoints to keep; the best one is kept too. With 2, there is one before the newest."
    )
    seed: int = option(0, "Random seed; the option `seeds`, if a command has it, takes precedence.")
    push_to_hub: bool = option(False, "Publish the finished model on the Hub.")
    hub_model_id: str | None = option(None, "push_to_hub: the repository, owner/name.")
    hub_private_repo: bool | None = option(None, "push_to_hub: whether a newly created repository is private. Default: yes.")
    hub_revision: str | None = option(None, "push_to_hub: branch to push to, which is created if it does not exist.")
    hub_strategy: str = option(
        "end",
        "push_to_hub: when to push. end: once the run is finished. checkpoint: also after every save, to the branch "
        "<hub_revision or main>-checkpoints, from which --resume_from_checkpoint owner/name@main-checkpoints "
        "continues.",
    )

    @property
    def pushes_checkpoints(self) -> bool:
        """Whether every saved checkpoint is pushed to the Hub."""
        return self.push_to_hub and self.hub_strategy == "checkpoint"


@dataclass(repr=False)
class SeedsArguments(PublishedArguments):
    """Options of a run that is repeated with several seeds."""

    seeds: list[int] | None = option(
        None,
        "One complete run per seed, then mean and standard deviation. Several processes of the same command divide "
        "the seeds among them.",
        nargs="+",
    )
    export_int8: bool = option(
        False,
        "At the end, temporarily export the best model to ONNX in 8 bits: summary, card and report have its size, its "
        "score, and the time and memory of a prediction (extra [onnx]).",
    )

    def __post_init__(self):
        super().__post_init__()
        if self.seeds and len(set(self.seeds)) < len(self.seeds):
            raise ArgumentsError(f"seeds contains a seed twice: {self.seeds}. Each seed is one run: remove the duplicate.")
        if self.export_int8:
            from hf_tlm.models.onnx_graph import check_installed  # Slow to import.

            check_installed()

    @property
    def run_seeds(self) -> list[int]:
        """The seeds to run: `seeds`, or the single `seed`."""
        return list(self.seeds) if self.seeds else [self.seed]


def _check_deepspeed(args: BaseArguments) -> None:
    if args.deepspeed or os.environ.get("ACCELERATE_USE_DEEPSPEED", "false").lower() == "true":
        raise ArgumentsError(
            "DeepSpeed is not supported; received "
            + (f"deepspeed {args.deepspeed!r}" if args.deepspeed else "accelerate's distributed_type DEEPSPEED")
            + ". Start the processes with the preset accelerate/ddp, or with accelerate/fsdp, which shards a model."
        )


def _check_half_precision(args: BaseArguments) -> None:
    """Set `use_cpu` for bfloat16 on a processor that supports it, or raise an ArgumentsError if no device does.

    Without it, transformers would refuse bfloat16 on a machine without an accelerator.
    """
    options = [name for name in ("bf16", "bf16_full_eval") if getattr(args, name)]
    if not options or args.use_cpu or is_torch_bf16_gpu_available() or is_torch_xla_available():
        return
    # The oldest torch lacks the function; support is unknown there.
    capabilities: dict[str, Any] = getattr(torch.cpu, "get_capabilities", dict)()
    has_bfloat16 = any(capabilities.get(name, False) for name in ("avx512_bf16", "amx_bf16"))
    if has_bfloat16 and not torch.accelerator.is_available():
        args.use_cpu = True
        return
    raise ArgumentsError(
        f"{options[0]} needs a GPU that supports bfloat16, or, without a GPU, a processor that does, and torch finds "
        f"neither. Remove it (--{options[0]} false), or add --use_cpu true, which may be slow."
    )


def _check_hub(args: BaseArguments, id_name: str) -> None:
    """Check the arguments of publishing in the repository that the argument `id_name` names, or raise an ArgumentsError."""
    strategies = ("end", "checkpoint") if id_name == "hub_model_id" else ("end",)
    if args.hub_strategy not in strategies or args.hub_always_push:
        raise ArgumentsError(
            f"Only finished results are published: hub_strategy must be {' or '.join(strategies)}, and hub_always_push "
            f"false; received {getattr(args.hub_strategy, 'value', args.hub_strategy)} and {args.hub_always_push}."
        )
    if id_name != "hub_model_id" and args.resume_from_checkpoint is not None:
        raise ArgumentsError(
            "resume_from_checkpoint has no effect on this command, which continues when it is run again. Remove it."
        )
    ids = ("hub_model_id", "hub_dataset_id")
    (other_id,) = (name for name in ids if name != id_name)
    if getattr(args, other_id, None) is not None:
        raise ArgumentsError(f"{other_id} {getattr(args, other_id)} has no effect: the repository is set by --{id_name}.")
    options = [name for name in (id_name, "hub_private_repo", "hub_revision") if getattr(args, name) is not None]
    options += ["hub_strategy"] if args.hub_strategy != "end" else []
    if options and not args.push_to_hub:
        verb = "has" if len(options) == 1 else "have"
        raise ArgumentsError(
            f"{' and '.join(options)} {verb} no effect without push_to_hub. Add --push_to_hub, or remove "
            f"{' and '.join(options)}."
        )
    if args.push_to_hub and getattr(args, id_name) is None:
        raise ArgumentsError(f"push_to_hub needs --{id_name} owner/name: the repository to publish to.")
