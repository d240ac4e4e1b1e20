"""Options of the report."""

from dataclasses import dataclass, field

from hf_tlm.analysis.errors import AnalysisError
from hf_tlm.utils.ranges import check_ranges


@dataclass
class Options:
    """One page for any browser about a run, alone or beside a second (--what report)."""

    report_rows: int = field(default=300, metadata={"help": "Rows of a table of texts, at most."})
    report_characters: int = field(default=500, metadata={"help": "Characters after which the page cuts a text."})
    rare_below: int = field(
        default=5,
        metadata={"help": "Fewer training texts than these have a rare word: errors are told apart by them."},
    )

    def __post_init__(self):
        check_ranges(self, AnalysisError)
