"""Options of the analysis of words."""

from dataclasses import dataclass, field

from hf_tlm.analysis.errors import AnalysisError


@dataclass
class Options:
    """Task-influential words (--what words)."""

    top_words: int = field(default=5, metadata={"help": "Words of a label."})
    min_count: int = field(default=10, metadata={"help": "Leave out words that are rarer in the training texts."})

    def __post_init__(self):
        for name in ("top_words", "min_count"):
            if getattr(self, name) < 1:
                raise AnalysisError(f"--{name} must be at least 1; received {getattr(self, name)}.")
