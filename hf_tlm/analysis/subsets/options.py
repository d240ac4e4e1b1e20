"""Options of the views of subsets."""

from dataclasses import dataclass, field

from hf_tlm.analysis.errors import AnalysisError
from hf_tlm.utils.ranges import check_ranges


@dataclass
class Options:
    """Views of subsets: case study, size against K, sources, rank against influence, overlap (--what subsets)."""

    case_studies: int = field(default=10, metadata={"help": "Task texts of the case study; 0 leaves it out. Needs --task."})
    case_passages: int = field(default=2, metadata={"help": "Passages that are shown of a task text at most."})
    top_sources: int = field(default=10, metadata={"help": "Sources that are shown; the others are one."})
    rank_bins: int = field(default=10, metadata={"help": "Groups of BM25 ranks that influence is averaged over."})

    def __post_init__(self):
        check_ranges(self, AnalysisError)
