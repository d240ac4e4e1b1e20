"""Values of the wrong type for every own option of every recipe, from the fields of the recipes' own classes."""

from dataclasses import fields
from typing import get_args, get_type_hints

import pytest
from transformers import TrainingArguments

from attacks.attack import assert_refused, attack
from attacks.test_numbers import CLASSES

# Trainer's own options are another's to check; those that it checks late are in `test_trainer_options`.
NOT_OURS = {entry.name for entry in fields(TrainingArguments)}


def wrong_values(hint, entry):
    """Texts that no value of this type is written as."""
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


@pytest.mark.parametrize("recipe,name,value", sorted(CASES))
def test_it_is_refused_with_the_option(toys, recipe, name, value):
    command = next(line for key, line in toys.commands.items() if key.split()[0] == recipe)
    assert_refused(attack(recipe, *command, f"--{name}", value), f"--{name}: ")
    assert not toys.out.exists()


@pytest.mark.parametrize("recipe", sorted(CLASSES))
@pytest.mark.parametrize(
    "arguments,expected",
    [
        (("--no_such_option", "1"), "unknown argument --no_such_option"),
        (("stray",), "unknown argument stray"),
        (("--output_dri", "x"), "unknown argument --output_dri"),
        (("--config",), "--config: expected at least one argument"),
    ],
)
def test_what_is_no_option_is_refused(toys, recipe, arguments, expected):
    command = next(line for key, line in toys.commands.items() if key.split()[0] == recipe)
    assert_refused(attack(recipe, *command, *arguments), expected)
    assert not toys.out.exists()
