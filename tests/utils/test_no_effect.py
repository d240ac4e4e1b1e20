"""Options without effect beside others are refused; parsers only see the type."""

from dataclasses import dataclass, field
from typing import Annotated

import pytest
from transformers import HfArgumentParser

from hf_tlm.utils.options import NoEffect, OnlyWith, check_effects


@dataclass
class Toy:
    kind: str = "a"
    on: bool = True
    weight: Annotated[float, NoEffect("on", (False,), "with on false. Remove it.")] = 1.0
    words: Annotated[list[str] | None, NoEffect("kind", ("b", "c"), ": it is for a.")] = field(
        default_factory=lambda: ["x"], metadata={"nargs": "+"}
    )
    both: Annotated[int, NoEffect("kind", ("c",), "with c."), NoEffect("on", (False,), "with on false.")] = 3
    of_a: Annotated[int, OnlyWith("kind", ("a", "b"), ignored=("d",))] = 0

    def __post_init__(self):
        check_effects(self, LookupError, prefix="--")


@pytest.mark.parametrize(
    "values,message",
    [
        ({"on": False, "weight": 2.0}, "--weight 2.0 has no effect with on false. Remove it."),
        ({"kind": "b", "words": ["y"]}, "--words ['y'] has no effect: it is for a."),
        ({"kind": "c", "on": False, "both": 4}, "--both 4 has no effect with c."),
        ({"on": False, "both": 4}, "--both 4 has no effect with on false."),
        (
            {"kind": "c", "of_a": 1},
            "--of_a 1 has no effect with --kind c: it is for a and b. Remove it, or change --kind.",
        ),
    ],
)
def test_option_without_effect_is_refused(values, message):
    with pytest.raises(LookupError) as refusal:
        Toy(**values)
    assert str(refusal.value) == message


@pytest.mark.parametrize(
    "values", [{}, {"weight": 2.0}, {"on": False}, {"kind": "c", "words": ["x"], "both": 3}, {"kind": "d", "of_a": 1}]
)
def test_defaults_and_options_with_an_effect_are_accepted(values):
    toy = Toy(**values)
    assert all(getattr(toy, name) == value for name, value in values.items())


def test_parser_sees_only_the_type():
    (toy,) = HfArgumentParser(Toy).parse_args_into_dataclasses(["--weight", "2", "--words", "y", "z"])
    assert (toy.weight, toy.words) == (2.0, ["y", "z"])
