"""Values of the wrong type for every own option of every recipe, from the fields of the recipes' own classes."""

import pytest

from attacks.attack import assert_refused, attack_often
from attacks.bad_input.recipe_classes import CLASSES
from attacks.bad_input.wrong_types import CASES, NO_OPTIONS


def assert_all_refused(toys, recipe, cases):
    """cases: pairs of what is added to a line that ends well, and what the refusal says."""
    command = next(line for key, line in toys.commands.items() if key.split()[0] == recipe)
    outcomes = attack_often(recipe, [(*command, *arguments) for arguments, _ in cases])
    for (_, expected), outcome in zip(cases, outcomes, strict=True):
        assert_refused(outcome, expected)
    assert not toys.out.exists()


@pytest.mark.slow
@pytest.mark.parametrize("recipe", sorted({recipe for recipe, _, _ in CASES}))
def test_they_are_refused_with_the_option(toys, recipe):
    of_recipe = sorted((name, value) for of, name, value in CASES if of == recipe)
    assert_all_refused(toys, recipe, [((f"--{name}", value), f"--{name}: ") for name, value in of_recipe])


@pytest.mark.parametrize("recipe", sorted(CLASSES))
def test_what_is_no_option_is_refused(toys, recipe):
    assert_all_refused(toys, recipe, NO_OPTIONS)
