"""Values of the wrong type for every option that a recipe adds, and command lines with unknown options."""

from dataclasses import fields
from typing import get_args, get_type_hints

from transformers import TrainingArguments

from attacks.bad_input.recipe_classes import CLASSES

# The Trainer checks its own options; those that it checks late are in `trainer_options`.
NOT_OURS = {entry.name for entry in fields(TrainingArguments)}


def wrong_values(hint, entry):
    """Return texts that are not valid for an option of this type."""
    types = {hint, *get_args(hint), *(inner for outer in get_args(hint) for inner in get_args(outer))}
    if "choices" in entry.metadata:
        return ["bogus", ""]
    if bool in types:
        return ["perhaps"]
    if int in types or float in types:
        return ["many", ""]
    return []


CASES = {
    (recipe, entry.name, value)
    for recipe, classes in CLASSES.items()
    for cls in classes
    for entry in fields(cls)
    if entry.init and entry.name not in NOT_OURS
    for value in wrong_values(get_type_hints(cls)[entry.name], entry)
}
# Unknown options, and the message about each.
NO_OPTIONS = [
    (("--no_such_option", "1"), "unknown argument --no_such_option"),
    (("stray",), "unknown argument stray"),
    (("--output_dri", "x"), "unknown argument --output_dri"),
    (("--config",), "--config: expected at least one argument"),
]
