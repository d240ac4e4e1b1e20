"""The one table of objectives: each has losses, and each option that belongs to one is an option."""

from dataclasses import fields

import pytest

from hf_tlm.objective_specs import OBJECTIVES, takers
from hf_tlm.training import ModelArguments, TlmArguments
from hf_tlm.training.objectives import LANGUAGE_OBJECTIVES


def test_every_objective_has_losses():
    assert set(LANGUAGE_OBJECTIVES) == set(OBJECTIVES)


def test_options_of_objectives_are_fields():
    known = {entry.name for cls in (ModelArguments, TlmArguments) for entry in fields(cls)}
    assert {option for spec in OBJECTIVES.values() for option in spec.options} <= known


@pytest.mark.parametrize("option, of", [("scl", ("cocolm",)), ("rtd_weight", ("electra", "ale", "cocolm")), ("rho2", ())])
def test_who_takes_an_option(option, of):
    assert takers(option) == of
