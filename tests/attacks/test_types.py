"""Values of the wrong type for every own option of every recipe, from the fields of the recipes' own classes."""

import pytest

from attacks.attack import assert_refused, attack
from attacks.bad_input.recipe_classes import CLASSES
from attacks.bad_input.wrong_types import CASES, NO_OPTIONS


@pytest.mark.slow
@pytest.mark.parametrize("recipe,name,value", sorted(CASES))
def test_it_is_refused_with_the_option(toys, recipe, name, value):
    command = next(line for key, line in toys.commands.items() if key.split()[0] == recipe)
    assert_refused(attack(recipe, *command, f"--{name}", value), f"--{name}: ")
    assert not toys.out.exists()


@pytest.mark.parametrize("recipe", sorted(CLASSES))
@pytest.mark.parametrize("arguments,expected", NO_OPTIONS)
def test_what_is_no_option_is_refused(toys, recipe, arguments, expected):
    command = next(line for key, line in toys.commands.items() if key.split()[0] == recipe)
    assert_refused(attack(recipe, *command, *arguments), expected)
    assert not toys.out.exists()
