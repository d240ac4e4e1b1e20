"""Values of the wrong type for every option that recipes add, read from the fields of the recipes' classes."""

import pytest

from attacks.attack import assert_refused, attack_often
from attacks.bad_input.recipe_classes import CLASSES
from attacks.bad_input.wrong_types import CASES, NO_OPTIONS


def assert_all_refused(toys, recipe, cases):
    """Check pairs of arguments added to a valid command line, and part of the message."""
    command = next(line for key, line in toys.commands.items() if key.split()[0] == recipe)
    outcomes = attack_often(recipe, [(*command, *arguments) for arguments, _ in cases])
    for (_, expected), outcome in zip(cases, outcomes, strict=True):
        assert_refused(outcome, expected)
    assert not toys.out.exists()


@pytest.mark.slow
@pytest.mark.parametrize("recipe", sorted({recipe for recipe, _, _ in CASES}))
def test_value_of_the_wrong_type_is_refused_with_the_option(toys, recipe):
    of_recipe = sorted((name, value) for name_of_recipe, name, value in CASES if name_of_recipe == recipe)
    assert_all_refused(toys, recipe, [((f"--{name}", value), f"--{name}: ") for name, value in of_recipe])


@pytest.mark.parametrize("recipe", sorted(CLASSES))
def test_unknown_options_are_refused(toys, recipe):
    assert_all_refused(toys, recipe, NO_OPTIONS)
