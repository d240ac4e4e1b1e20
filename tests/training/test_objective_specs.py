"""The table of objectives: each has losses, and all their options exist."""

from dataclasses import fields

import pytest

from hf_tlm.objective_specs import OBJECTIVES, takers
from hf_tlm.training import ModelArguments, TlmArguments
from hf_tlm.training.objectives import language_objective, term_names, tlm_objectives
from support.training_runs import OBJECTIVES as TRAININGS
from support.training_runs import trainer


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


def test_all_objectives_are_tested():
    (cases,) = (mark.args[1] for mark in test_losses_of_every_objective.pytestmark)
    assert {name for name, _ in cases} == set(OBJECTIVES)


def test_options_of_objectives_are_fields():
    known = {entry.name for cls in (ModelArguments, TlmArguments) for entry in fields(cls)}
    assert {option for spec in OBJECTIVES.values() for option in spec.options} <= known


@pytest.mark.parametrize("option, of", [("scl", ("cocolm",)), ("rtd_weight", ("electra", "ale", "cocolm")), ("rho2", ())])
def test_objectives_that_an_option_belongs_to(option, of):
    assert takers(option) == of


WAYS = {
    **TRAININGS,
    "cocolm, all tokens": {**TRAININGS["cocolm"], "clm": "all_token", "scl": False, "scl_cosines": True},
    "cocolm, detection": {**TRAININGS["cocolm"], "clm": "rtd", "scl": False},
}


@pytest.mark.parametrize("way", WAYS)
def test_logged_terms_are_known_before_training(tmp_path, data, tokenizer, way):
    """One may be the metric for the best model; accuracies over no tokens, as where none was replaced, are not logged."""
    run = trainer(tmp_path, data, tokenizer, **WAYS[way], rho1=4, max_steps=5, logging_steps=5)
    run.train()
    logged = {name.removeprefix("corpus/") for name in run.state.log_history[0] if name.startswith("corpus/")}
    names = set(term_names(language_objective(run.args)))
    assert logged <= names and all("_accuracy_" in name for name in names - logged)
