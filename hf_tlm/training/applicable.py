"""Which objectives and other options have a use for an option: one that would change nothing is refused."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from hf_tlm.errors import ArgumentsError
from hf_tlm.objective_specs import OBJECTIVES, takers

DEFAULT_MAX_STEPS = 10_000
_MASKING = ("mlm_probability", "mlm_probability_end", "whole_word_mask")
OF_STAGE_1 = (
    *"rho1 rho2 loss_normalization corpus_max_length total_batch_size total_batch_tokens max_steps num_train_epochs".split(),
    *"max_flops max_tokens max_hours learning_rate weight_decay layerwise_lr_decay warmup_steps".split(),
    *_MASKING,
)


def of_other_stage(args: Any) -> list[str]:
    """Of a run of one stage of TLM alone the options that are not at their default and are the other's, as "name value".

    They are no error: one config serves runs of both stages and of either.
    """
    masked = _MASKING if args.stage2_rho2 else ()  # Stage 2 masks texts, too.
    given = [said for said in of_training(args) if said.partition(" ")[0] not in masked]
    return [said for said in given if args.stage == ("1" if said.startswith("stage2_") else "2")]


def of_training(args: Any) -> list[str]:
    """The options of either stage that are not at their default, as "name value"."""
    own = [entry for entry in fields(args) if entry.name in OF_STAGE_1 or entry.name.startswith("stage2_")]
    # What stands for the default of 0 steps.
    settled = {"max_steps": (DEFAULT_MAX_STEPS, -1)}
    values = ((entry, getattr(args, entry.name)) for entry in own)
    return [f"{entry.name} {it}" for entry, it in values if it not in (entry.default, *settled.get(entry.name, ()))]


def check_applicable(options: Any, objective: str) -> None:
    """Raise an ArgumentsError for a field of `options` that is not at its default and that `objective` has no use for."""
    for entry in fields(options):
        of, value = takers(entry.name), getattr(options, entry.name)
        if of and objective not in of and value != entry.default:
            raise ArgumentsError(
                f"{entry.name} {value} has no effect with objective {objective}: it is for {', '.join(of)}. Leave it "
                "out, or change --objective."
            )


def check_together(args: Any, model_args: Any) -> None:
    """Raise an ArgumentsError for an option of a run (`RunArguments`) or its model that another one leaves idle."""
    without = {
        "temperature": (model_args, model_args.replacements == "random", "replacements random"),
        # ELECTRA's main model has no masked-LM head; of COCO-LM's that corrects tokens the output bias is meant.
        "lm_head_init": (
            model_args,
            model_args.freeze_auxiliary and not (OBJECTIVES[args.objective].corrects and args.clm != "rtd"),
            "freeze_auxiliary: no head that predicts tokens learns",
        ),
    }
    for name, (options, useless, because) in without.items():
        if useless and getattr(options, name) != getattr(type(options), name):
            raise ArgumentsError(f"{name} {getattr(options, name)} has no effect with {because}. Leave it out.")


def check_rdrop(weight: float, drops: bool) -> None:
    """Raise an ArgumentsError if the two passes that R-Drop compares would be the same: the model `drops` nothing."""
    if weight and not drops:
        raise ArgumentsError(
            f"stage2_rdrop {weight} has no effect on a model without dropout: two passes would be the same. Give "
            "--stage2_dropout 0.1 too, or leave it out."
        )
