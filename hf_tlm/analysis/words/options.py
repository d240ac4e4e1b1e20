"""Options of the analysis of words."""

from dataclasses import dataclass, field

from hf_tlm.analysis.errors import AnalysisError
from hf_tlm.utils.ranges import check_ranges


@dataclass
class Options:
    """Task-influential words (--what words)."""

    top_words: int = field(default=5, metadata={"help": "Words of a label."})
    min_count: int = field(default=10, metadata={"help": "Leave out words that are rarer in the training texts."})

    def __post_init__(self):
        check_ranges(self, AnalysisError)
