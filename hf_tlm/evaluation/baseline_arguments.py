"""The options of scores without a network, light to import."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hf_tlm.evaluation.baselines import Baseline
    from hf_tlm.tasks import Task

MAJORITY, LINEAR = "majority class", "linear"


@dataclass
class BaselineArguments:
    """Which baselines."""

    baseline: str = field(
        default="all",
        metadata={
            "help": "majority class: the training split's largest. linear: a support vector machine on TF-IDF, chosen on "
            "validation.",
            "choices": ["all", MAJORITY, LINEAR],
        },
    )

    def make(self, task: Task) -> list[Baseline]:
        """Raises:
        TaskError: the task is of another kind than classification.
        """
        from hf_tlm.evaluation.baselines import linear_model, majority_class

        makers = {MAJORITY: majority_class, LINEAR: linear_model}
        return [maker(task) for name, maker in makers.items() if self.baseline in ("all", name)]
