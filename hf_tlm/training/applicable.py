"""Which objectives and other options have a use for an option: one that would change nothing is refused."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from hf_tlm.training.options import ArgumentsError

COMPOSITES = ("electra", "ale", "cocolm")
OBJECTIVES = {
    "rtd_weight": COMPOSITES,
    "clm": ("cocolm",),
    "stop_gradient": ("cocolm",),
    "scl": ("cocolm",),
    "scl_temperature": ("cocolm",),
    "scl_projection": ("cocolm",),
    "crop_fraction": ("cocolm",),
    "auxiliary_size": COMPOSITES,
    "auxiliary_layers": COMPOSITES,
    "auxiliary_name_or_path": COMPOSITES,
    "freeze_auxiliary": COMPOSITES,
    "temperature": COMPOSITES,
    "replacements": COMPOSITES,
}


def check_applicable(options: Any, objective: str) -> None:
    """Raises:
    ArgumentsError: a field of the dataclass `options` is not at its default, and `objective` has no use for it.
    """
    for entry in fields(options):
        takers, value = OBJECTIVES.get(entry.name), getattr(options, entry.name)
        if takers and objective not in takers and value != entry.default:
            raise ArgumentsError(
                f"{entry.name} {value} has no effect with objective {objective}: it is for {', '.join(takers)}. Leave it "
                "out, or change --objective."
            )


def check_together(args: Any, model_args: Any) -> None:
    """Args: of a run (`RunArguments`) and its model (`ModelArguments`).

    Raises:
        ArgumentsError: an option is not at its default, and another one leaves it without effect.
    """
    without = {
        "rtd_weight": (args, args.clm == "all_token", "clm all_token"),
        "temperature": (model_args, model_args.replacements == "random", "replacements random"),
        "spectral_scale": (model_args, model_args.embedding_init == "random", "embedding_init random"),
    }
    for name, (options, useless, because) in without.items():
        if useless and getattr(options, name) != getattr(type(options), name):
            raise ArgumentsError(f"{name} {getattr(options, name)} has no effect with {because}. Leave it out.")
