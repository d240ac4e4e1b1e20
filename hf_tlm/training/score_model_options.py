"""What the training of a score model can be asked for."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from hf_tlm.training.options import TlmOptions


@dataclass(repr=False)
class ScoreModelOptions(TlmOptions):
    """Options of training a score model (ISS, section 3.2): TLM's stage 1 on task data only.

    Defaults are those of ISS's released code where it has one. Recipes hand this class to `parse` and receive a
    `ScoreModelArguments`.
    """

    stands_for: ClassVar[str] = "hf_tlm.training.arguments.ScoreModelArguments"

    output_dir: str | None = field(default="", metadata={"help": "Folder of the smaller subset."})
    push_to_hub: bool = field(default=False, metadata={"help": "Publish the smaller subset as a dataset of the Hub."})
    hub_dataset_id: str | None = field(default=None, metadata={"help": "push_to_hub: the repository, owner/name."})
    max_steps: int = field(
        default=-1,
        metadata={"help": "Score model: optimizer steps. -1: by num_train_epochs. 0: by a budget."},
    )
    num_train_epochs: float = field(default=3.0, metadata={"help": "Score model: passes over the training split."})
    learning_rate: float = field(default=2e-5, metadata={"help": "Score model: peak learning rate."})
    mlm_probability: float = field(default=0.1, metadata={"help": "Score model: share of tokens chosen for prediction."})
    rho1: float = field(default=0, metadata={"help": "Score model: corpus batches per task batch; 0 is task data only."})
    rho2: float = field(default=5, metadata={"help": "Score model: weight of the masked-LM loss."})
    stage: str = field(default="1", metadata={"help": "Score model: 1, joint training; both, fine-tuning after it too."})
