"""Options of the analysis of cost."""

from dataclasses import dataclass, field

SPLITS = ("validation", "test")


@dataclass
class Options:
    """Average score against training FLOPs (--what cost)."""

    cost_split: str = field(default="test", metadata={"help": f"Whose scores: {' or '.join(SPLITS)}.", "choices": SPLITS})
    cost_tasks: list[str] | None = field(
        default=None, metadata={"help": "Tasks to average over. Default: those that all compared runs have."}
    )
    pretraining_flops: list[str] | None = field(
        default=None,
        metadata={
            "help": "`checkpoint=FLOPs` of checkpoints that runs started from, by the last part of their names, where their "
            "own results are not at hand."
        },
    )
    published: bool = field(default=True, metadata={"help": "Draw the papers' published points too, hollow."})
