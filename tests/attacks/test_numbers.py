"""Extreme numbers for every numeric option of every recipe, read from the fields of the recipes' classes."""

import math
from dataclasses import MISSING, fields
from functools import cache
from typing import get_args, get_type_hints

import pytest

from attacks.attack import assert_refused, attack
from attacks.bad_input.numbers import SAMPLE
from attacks.bad_input.recipe_classes import CLASSES, RECIPES
from hf_tlm import config as parser
from hf_tlm.errors import HfTlmError
from hf_tlm.utils.options import RANGES, Range

EXTREMES = (math.nan, math.inf, -math.inf, -1, 0, 1e308, 2**63, -(2**63))
# Values that a class needs to be created.
NEEDED = {"SelectionArguments": {"fraction": 0.5}, "GridArguments": {"grid": "{learning_rate: [1e-4]}"}}


hints = cache(get_type_hints)


def numeric(cls):
    """Return name -> int or float for the fields that hold a number or a list of numbers."""
    found = {}
    for name, hint in hints(cls).items():
        types = {hint, *get_args(hint), *(inner for outer in get_args(hint) for inner in get_args(outer))}
        if name in {entry.name for entry in fields(cls) if entry.init} and types & {int, float}:
            found[name] = float if float in types else int
    return found


@pytest.mark.parametrize("recipe", RECIPES)
def test_every_numeric_field_has_a_range(recipe):
    assert not [name for cls in CLASSES[recipe] for name in numeric(cls) if name not in RANGES]


def test_every_default_is_in_its_range():
    for cls in {cls for classes in CLASSES.values() for cls in classes}:
        for entry in fields(cls):
            default = entry.default if entry.default_factory is MISSING else entry.default_factory()
            if entry.name in numeric(cls) and default not in (MISSING, None):
                for value in default if isinstance(default, list) else [default]:
                    assert RANGES[entry.name].holds(value), (cls, entry.name, value)


def test_every_range_belongs_to_a_field():
    assert set(RANGES) == {name for classes in CLASSES.values() for cls in classes for name in numeric(cls)}


@pytest.mark.slow
@pytest.mark.parametrize("recipe", RECIPES)
def test_extremes_are_in_range_or_refused_by_the_command_line(recipe):
    """Values from YAML are refused alike, in one line."""
    for cls in CLASSES[recipe]:
        for name, kind in numeric(cls).items():
            for value in EXTREMES:
                typed = int(value) if kind is int and isinstance(value, int) else value
                if RANGES[name].holds(float(typed) if kind is float else typed):
                    continue
                with pytest.raises(HfTlmError, match=f"{name}: expected .*; received") as refusal:
                    parser.typed_values(cls, {name: [value]}, "the values")
                assert "\n" not in str(refusal.value)


def is_list(cls, name):
    return "list" in str(hints(cls)[name])


def required_values(cls):
    return NEEDED.get(cls.__name__, {}) | {
        entry.name: ["x"] if is_list(cls, entry.name) else "x"
        for entry in fields(cls)
        if entry.init and entry.default is MISSING and entry.default_factory is MISSING
    }


@pytest.mark.parametrize("cls", sorted({cls for found in CLASSES.values() for cls in found}, key=str), ids=str)
def test_extremes_are_in_range_or_refused_from_python(cls):
    if cls.__module__.startswith("hf_tlm."):  # A class within a recipe is only filled by the parser.
        for name in numeric(cls):
            for value in EXTREMES:
                if not RANGES[name].holds(value):
                    with pytest.raises(HfTlmError, match=name):
                        cls(**required_values(cls) | {name: [value] if is_list(cls, name) else value})


@pytest.mark.parametrize("value", [None, True, "3", 2.0, [3]])
def test_value_that_is_no_whole_number_is_refused_from_python(value):
    from hf_tlm.corpora import CorpusArguments
    from hf_tlm.data import BlockArguments

    with pytest.raises(HfTlmError, match="shard_size: expected a whole number from 1 to 16,777,216"):
        BlockArguments(shard_size=value)
    assert CorpusArguments(passage_words=None).passage_words is None


@pytest.mark.parametrize(
    "of,text",
    [
        (Range(0, 1), "a number from 0 to 1"),
        (Range(0, 1, above=True), "a number above 0 and at most 1"),
        (Range(1, 2000, whole=True), "a whole number from 1 to 2,000"),
        (Range(3, 9, whole=True, also=(0,)), "a whole number from 3 to 9 or 0"),
        (Range(0, math.inf), "a number, 0 or more"),
    ],
)
def test_range_is_described_in_words(of, text):
    assert str(of) == text


@pytest.mark.parametrize("recipe,name,value,expected", SAMPLE, ids=[f"{row[0]}-{row[1]}-{row[2]}" for row in SAMPLE])
def test_recipe_refuses_number_out_of_range_before_any_work(toys, recipe, name, value, expected):
    assert_refused(attack(recipe, *toys.commands[recipe], f"--{name}", value), f"--{name}: expected", expected)
    assert not toys.out.exists()
