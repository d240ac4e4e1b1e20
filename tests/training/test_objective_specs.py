"""The one table of objectives: each has losses, and each option that belongs to one is an option."""

from dataclasses import fields

import pytest

from hf_tlm.objective_specs import OBJECTIVES, takers
from hf_tlm.training import ModelArguments, TlmArguments
from hf_tlm.training.objectives import tlm_objectives


@pytest.mark.parametrize(
    "objective, terms",
    [
        ("mlm", {"mlm"}),
        ("span", {"mlm"}),
        ("electra", {"mlm", "rtd"}),
        ("ale", {"mlm", "rtd"}),
        ("cocolm", {"mlm", "clm", "scl"}),
    ],
)
def test_losses_of_every_objective(objective, terms):
    losses = tlm_objectives(TlmArguments(output_dir="unused", report_to="none", use_cpu=True, objective=objective))
    parts = getattr(losses["corpus"], "parts", [(1.0, losses["corpus"])])
    assert {part.name for _, part in parts} == terms


def test_no_objective_is_left_out():
    (cases,) = (mark.args[1] for mark in test_losses_of_every_objective.pytestmark)
    assert {name for name, _ in cases} == set(OBJECTIVES)


def test_options_of_objectives_are_fields():
    known = {entry.name for cls in (ModelArguments, TlmArguments) for entry in fields(cls)}
    assert {option for spec in OBJECTIVES.values() for option in spec.options} <= known


@pytest.mark.parametrize("option, of", [("scl", ("cocolm",)), ("rtd_weight", ("electra", "ale", "cocolm")), ("rho2", ())])
def test_who_takes_an_option(option, of):
    assert takers(option) == of
