"""The options of scores without a network, light to import."""

from __future__ import annotations

from dataclasses import dataclass

from hf_tlm.utils.options import option

MAJORITY, LINEAR = "majority class", "linear"


@dataclass
class BaselineArguments:
    """Which baselines."""

    baseline: str = option(
        "all",
        "majority class: the training split's largest. linear: a support vector machine on TF-IDF, chosen on validation.",
        choices=["all", MAJORITY, LINEAR],
    )


def names_of(baseline: str) -> list[str]:
    """The baselines that one of `BaselineArguments`' choices stands for."""
    return [MAJORITY, LINEAR] if baseline == "all" else [baseline]
