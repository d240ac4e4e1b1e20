"""Options of the analysis of curves."""

from dataclasses import dataclass, field

from hf_tlm.analysis.errors import AnalysisError
from hf_tlm.utils.ranges import check_ranges

# Axes, by what they are called in a picture. Totals since the beginning of the first stage.
AXES = {
    "steps": "steps",
    "tokens": "tokens, padding included",
    "real_tokens": "tokens",
    "flops": "FLOPs",
    "seconds": "seconds of training",
}
SPREADS = ("band", "lines")


@dataclass
class Options:
    """Training curves (--what curves)."""

    x: str = field(default="steps", metadata={"help": f"One of {', '.join(AXES)}.", "choices": tuple(AXES)})
    quantities: list[str] | None = field(
        default=None,
        metadata={
            "help": "What is drawn: names as logged, with or without `corpus/` and `task/`, or patterns such as *_loss."
        },
    )
    smoothing: int = field(default=1, metadata={"help": "Draw means of as many points, those before and after it equally."})
    spread: str = field(
        default="band",
        metadata={
            "help": "Of several seeds: their standard deviation around the mean, or lines of their own.",
            "choices": SPREADS,
        },
    )

    def __post_init__(self):
        check_ranges(self, AnalysisError)
        if self.smoothing % 2 == 0:
            raise AnalysisError(f"--smoothing must be an odd number of points, 1 for none; received {self.smoothing}.")
