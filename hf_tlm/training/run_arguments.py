"""The arguments of runs that train a language model (TLM, pretraining, score models), and checks of their combinations."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass, fields
from typing import Annotated, Any, Self

from hf_tlm.errors import ArgumentsError
from hf_tlm.objective_specs import OBJECTIVES, takers
from hf_tlm.training.base_arguments import PublishedArguments
from hf_tlm.utils.options import NoEffect, option

DEFAULT_MAX_STEPS = 10_000
_MASKING = ("mlm_probability", "mlm_probability_end", "whole_word_mask")
OF_STAGE_1 = (
    *"rho1 rho2 loss_normalization corpus_max_length total_batch_size total_batch_tokens max_steps num_train_epochs".split(),
    *"max_flops max_tokens max_hours learning_rate weight_decay layerwise_lr_decay warmup_steps".split(),
    *_MASKING,
)
_ALL_TOKEN = NoEffect("clm", ("all_token",), "with clm all_token. Remove it.")
_WITHOUT_ENERGY = NoEffect("track_energy", (False,), "without track_energy. Remove it.")
_WITHOUT_SCL = NoEffect("scl", (False,), "with scl false. Remove it.")
_WITH_SCL = NoEffect("scl", (True,), "with scl, which logs them in any case. Remove it, or pass --scl false.")
_WITHOUT_RTD = NoEffect("clm", ("full", "no_copy", "all_token"), "with this clm, which detects no tokens. Remove it.")


# repr=False keeps the Trainer's repr, which leaves access tokens out.
@dataclass(repr=False)
class RunArguments(PublishedArguments):
    """Options of every run that trains a language model, including options of the Trainer with other defaults.

    Use its subclasses `TlmArguments` and `PretrainArguments`. Defaults are those of TLM's released scripts where they have
    one, for a single device. In a TLM run these options hold for stage 1; stage 2 has its own.
    """

    # Overridden defaults.
    max_steps: int = option(
        0,
        "Number of optimizer steps (TLM: of stage 1). 0: 10,000, or as many as the budget allows. -1: by num_train_epochs.",
    )
    learning_rate: float = option(1e-4, "Peak learning rate (TLM: of stage 1).")

    # The language-modelling loss, and the size of a step.
    objective: str = option(
        "mlm",
        "Language-modelling loss. mlm: predict masked tokens. span: masked spans of 1-10 tokens. electra: a small auxiliary "
        "model predicts and replaces masked tokens, the model detects replaced ones. ale: the same on an ALBERT body. "
        "cocolm: the model corrects replaced tokens and aligns two views of a text.",
        choices=list(OBJECTIVES),
    )
    rtd_weight: Annotated[float, _ALL_TOKEN] = option(
        50.0,
        "electra, ale: weight of replaced token detection, beside the auxiliary model's loss. cocolm: weight of the "
        "copy loss (lambda_copy), or with clm rtd of the detection.",
    )
    clm: str = option(
        "full",
        "cocolm: token-level loss of the model. full: corrective language modelling. no_copy: without the copy "
        "probability in its LM loss. all_token: its LM loss alone, on all tokens. rtd: replaced token detection.",
        choices=["full", "no_copy", "all_token", "rtd"],
    )
    rtd_head: Annotated[str | None, _WITHOUT_RTD] = option(
        None,
        "cocolm with clm rtd: head that detects replaced tokens. linear (default): one layer, as in the paper. "
        "electra: with a dense layer and an activation before it.",
        choices=["linear", "electra"],
    )
    stop_gradient: bool = option(True, "cocolm with clm full: the LM loss does not train the copy head.")
    scl: bool = option(
        True, "cocolm: add sequence contrastive learning; negatives are the texts of a micro-batch on all processes."
    )
    scl_cosines: Annotated[bool, _WITH_SCL] = option(
        False,
        "cocolm with scl false: log the cosines of a text's two views nevertheless (Figure 7a), at the cost of a "
        "forward pass without gradient; training does not change.",
    )
    scl_temperature: Annotated[float, _WITHOUT_SCL] = option(
        1.0, "cocolm with scl: temperature by which the cosines are divided."
    )
    scl_projection: Annotated[str, _WITHOUT_SCL] = option(
        "none",
        "cocolm with scl: vectors whose cosines are used. none: [CLS] (the paper). mlp: [CLS] after a dense layer, "
        "GELU and LayerNorm (the published code); this head is trained but not exported, and starts anew from a "
        "checkpoint.",
        choices=["none", "mlp"],
    )
    crop_fraction: Annotated[float, _WITHOUT_SCL] = option(
        0.9, "cocolm with scl: share of a text that its second view keeps, in (0, 1]."
    )
    mlm_probability: float = option(0.15, "Share of tokens chosen for prediction.")
    mlm_probability_end: float | None = option(
        None,
        "Share at the end of training (TLM: of stage 1), to which mlm_probability changes linearly. Default: no change.",
    )
    whole_word_mask: bool = option(False, "Choose all tokens of a word together, instead of each token independently.")
    max_length: int = option(
        128, "Maximum length of texts in tokens: longer ones are truncated. In pretraining, the length of a block."
    )
    total_batch_size: int | None = option(
        None, "Texts per optimizer step over all processes; sets gradient_accumulation_steps."
    )
    total_batch_tokens: int | None = option(
        None,
        "Tokens per optimizer step over all processes, instead of total_batch_size; a micro-batch holds at "
        "most per_device_train_batch_size x max_length of them.",
    )
    max_flops: float | None = option(
        None, "Budget of FLOPs (6 x tokens x parameters): the step that reaches it is the last one (TLM: of stage 1)."
    )
    max_tokens: float | None = option(
        None, "Budget of tokens, padding not counted: the step that reaches it is the last one (TLM: of stage 1)."
    )
    max_hours: float | None = option(
        None, "Budget of hours, after which training ends (TLM: stage 1); the learning rate schedule follows the clock."
    )
    track_energy: bool = option(
        False, "Measure the machine's electricity during training (codecarbon, no network; extra `energy`)."
    )
    energy_country: Annotated[str | None, _WITHOUT_ENERGY] = option(
        None, "Three-letter ISO code of a country, such as FRA: also report the CO2 by its energy mix."
    )
    packing: str = option(
        "auto",
        "Treatment of padding. pack: several texts share a row without attending to each other. group: texts of "
        "similar length share a step. none: texts are padded to the longest of their batch. auto: group on CPUs, "
        "else pack.",
        choices=["auto", "none", "group", "pack"],
    )
    max_logits: int = option(
        1 << 25,
        "Maximum number of vocabulary logits in memory at any time, forward or backward; 2^25 are 128 MiB of float32.",
    )

    # Without type annotations, so that they are not options: values of stage 2 of TLM (`TlmArguments.for_stage`), and the
    # values that pretraining has for options of TLM.
    rdrop = ema_decay = class_balance = 0.0
    rho1, rho2, loss_normalization = math.inf, 0.0, "sum"
    teacher_weight = teacher_temperature = 1.0

    @property
    def taught(self) -> bool:
        """Whether there is a teacher, see `TeacherArguments`."""
        return False

    @property
    def corpus_max_length(self) -> int | None:
        """Longest passage in tokens; None: `max_length`."""
        return None

    def __post_init__(self):
        super().__post_init__()
        check_applicable(self, self.objective)
        if not self.stop_gradient and self.clm != "full":
            raise ArgumentsError(
                f"stop_gradient false is for clm full, whose LM loss has a copy probability; received clm {self.clm}. "
                "Remove it."
            )
        if OBJECTIVES[self.objective].corrects and self.clm == "full" and self.stop_gradient and self.rtd_weight == 0:
            raise ArgumentsError(
                "rtd_weight 0 leaves the copy head of clm full untrained. Give another --rtd_weight, --stop_gradient false, "
                "or another --clm."
            )
        if self.train_sampling_strategy != "random":
            raise ArgumentsError(
                f"train_sampling_strategy {self.train_sampling_strategy!r} has no effect: runs draw their own batches. "
                "Remove it."
            )
        self._check_budget()
        if self.track_energy:
            check_energy(self.energy_country)
        if self.total_batch_tokens is not None and self.total_batch_size is not None:
            raise ArgumentsError(
                f"Give total_batch_size (texts) or total_batch_tokens, not both; received {self.total_batch_size} and "
                f"{self.total_batch_tokens}."
            )
        # The classifier has no gradient in corpus batches, the masked-LM head none in stage 2.
        if self.ddp_find_unused_parameters is None:
            self.ddp_find_unused_parameters = True

    def _check_budget(self) -> None:
        if self.num_train_epochs != type(self).num_train_epochs and (self.max_steps == 0 or self.has_budget):
            reason = "the budget ends the run" if self.has_budget else "max_steps ends the run"
            raise ArgumentsError(
                f"num_train_epochs {self.num_train_epochs} has no effect: {reason}. Remove it, or set --max_steps -1 and no "
                "budget (max_flops, max_tokens, max_hours)."
            )
        if self.max_steps == 0:
            # With a budget, the trainer computes the number of steps, as it knows the texts and the model.
            self.max_steps = -1 if self.has_budget else DEFAULT_MAX_STEPS
        if self.max_hours is None:
            return
        if self.warmup_steps >= 1:
            raise ArgumentsError(
                f"With max_hours, warmup_steps must be a share of the time, below 1; received {self.warmup_steps}."
            )
        if self.max_steps < 1 and self.max_flops is None and self.max_tokens is None:
            for name in ("logging_steps", "save_steps", "eval_steps"):
                if getattr(self, name) is not None and getattr(self, name) < 1:
                    raise ArgumentsError(
                        f"{name} {getattr(self, name)} is a share of the number of steps, which is unknown with max_hours. "
                        "Pass a number of steps."
                    )

    @property
    def detecting_head(self) -> str:
        """The value of `heads` for a `GeneratorDiscriminator` that detects replaced tokens."""
        return "rtd_linear" if OBJECTIVES[self.objective].corrects and self.rtd_head != "electra" else "rtd"

    @property
    def has_budget(self) -> bool:
        return any(limit is not None for limit in (self.max_flops, self.max_tokens, self.max_hours))

    @property
    def layout(self) -> str:
        """`packing`, with `auto` resolved to `group` on CPUs and `pack` elsewhere.

        On CPUs the attention kernel with dropout accepts no mask, and the wide rows of packed texts cost more than the
        padding that grouping leaves (benchmarks/results/training.md).
        """
        if self.packing != "auto":
            return self.packing
        return "group" if self.device.type == "cpu" else "pack"

    @property
    def row_length(self) -> int:
        """Tokens per packed row: the maximum length of a text, and at least 128."""
        return max(self.max_length, self.corpus_max_length or 0, 128)

    @property
    def micro_batch_tokens(self) -> int | None:
        """Tokens per micro-batch and process if `total_batch_tokens` is set, else None."""
        if self.total_batch_tokens is None:
            return None
        return self.total_batch_tokens // (self.world_size * self.gradient_accumulation_steps)

    def _token_accumulation(self) -> int:
        """Return the smallest number of gradient accumulation steps for `total_batch_tokens`.

        A micro-batch has at most per_device_train_batch_size x max_length tokens.
        """
        share, remainder = divmod(self.total_batch_tokens, self.world_size)
        if remainder:
            raise ArgumentsError(
                f"total_batch_tokens {self.total_batch_tokens} cannot be split evenly over {self.world_size} processes. "
                f"Choose a multiple of {self.world_size}."
            )
        longest = max(self.max_length, self.corpus_max_length or 0)
        batch_limit = self.per_device_train_batch_size * longest
        min_accumulation = -(-share // batch_limit)
        # With more micro-batches, each would be too small for the longest text.
        for count in range(min_accumulation, max(min_accumulation, share // longest) + 1):
            if share % count == 0:
                return count
        raise ArgumentsError(
            f"total_batch_tokens {self.total_batch_tokens}: {share} tokens per process cannot be divided into equal "
            f"micro-batches of {longest} (the longest text) to {batch_limit} tokens (per_device_train_batch_size such "
            f"texts). Choose {max(1, round(share / batch_limit)) * batch_limit * self.world_size}, or another multiple of "
            "them."
        )

    def for_trainer(self, output_dir: str | os.PathLike, seed: int) -> Self:
        args = super().for_trainer(output_dir, seed)
        if self.total_batch_tokens is not None:
            args.gradient_accumulation_steps = self._token_accumulation()
            self._check_accumulation("total_batch_tokens", args.gradient_accumulation_steps)
        return args


def other_stage_options(args: Any) -> list[str]:
    """List the options of the other stage that are not at their default, in a run of one stage of TLM, as "name value".

    They are not an error, because one config serves runs of both stages and of either.
    """
    masking_options = _MASKING if args.stage2_rho2 else ()  # Stage 2 masks texts too.
    settings = [setting for setting in training_options(args) if setting.partition(" ")[0] not in masking_options]
    return [setting for setting in settings if args.stage == ("1" if setting.startswith("stage2_") else "2")]


def training_options(args: Any) -> list[str]:
    """List the options of either stage that are not at their default, as "name value"."""
    entries = [entry for entry in fields(args) if entry.name in OF_STAGE_1 or entry.name.startswith("stage2_")]
    # Values that replace the default of 0 steps.
    replaced_defaults = {"max_steps": (DEFAULT_MAX_STEPS, -1)}
    values = ((entry, getattr(args, entry.name)) for entry in entries)
    return [
        f"{entry.name} {value}"
        for entry, value in values
        if value not in (entry.default, *replaced_defaults.get(entry.name, ()))
    ]


def check_applicable(options: Any, objective: str) -> None:
    """Check that `objective` uses every field of `options` that is not at its default, or raise an ArgumentsError."""
    for entry in fields(options):
        objectives, value = takers(entry.name), getattr(options, entry.name)
        if objectives and objective not in objectives and value != entry.default:
            raise ArgumentsError(
                f"{entry.name} {value} has no effect with objective {objective}: it is for {', '.join(objectives)}. Remove "
                "it, or change --objective."
            )


def check_together(args: Any, model_args: Any) -> None:
    """Check that no option of a run (`RunArguments`) or its model is set beside one that makes it useless.

    Raises:
        ArgumentsError: an option is set that has no effect.
    """
    # ELECTRA's main model has no masked-LM head; COCO-LM's, which corrects tokens, has an output bias to initialise.
    headless = model_args.freeze_auxiliary and not (OBJECTIVES[args.objective].corrects and args.clm != "rtd")
    for name, useless, because in (
        ("temperature", model_args.replacements == "random", "replacements random"),
        ("lm_head_init", headless, "freeze_auxiliary: no head that predicts tokens learns"),
    ):
        if useless and getattr(model_args, name) != getattr(type(model_args), name):
            raise ArgumentsError(f"{name} {getattr(model_args, name)} has no effect with {because}. Remove it.")


def check_rdrop(weight: float, drops: bool) -> None:
    """Check that R-Drop with a nonzero `weight` has a model with dropout (`drops`), or raise an ArgumentsError.

    Without dropout the two passes that R-Drop compares would be the same.
    """
    if weight and not drops:
        raise ArgumentsError(
            f"stage2_rdrop {weight} has no effect on a model without dropout: both passes would be the same. Add "
            "--stage2_dropout 0.1, or remove stage2_rdrop."
        )


def check_energy(country: str | None) -> None:
    """Check that codecarbon is installed and has data for the country, or raise an ArgumentsError."""
    try:
        from codecarbon.input import DataSource
    except ImportError as error:
        raise ArgumentsError(
            "track_energy needs codecarbon: pip install 'hf-tlm[energy]', or remove track_energy."
        ) from error
    if country is not None and country not in DataSource().get_global_energy_mix_data():
        raise ArgumentsError(
            f"energy_country must be the three-letter ISO code of a country that codecarbon knows, such as FRA or USA; "
            f"received {country!r}."
        )
