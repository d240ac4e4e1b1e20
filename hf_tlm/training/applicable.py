"""Which objectives have a use for an option: one that is given to another is refused, as it would change nothing."""

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
