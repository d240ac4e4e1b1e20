"""Options of the analysis of attention heads."""

from dataclasses import dataclass, field

from hf_tlm.analysis.errors import AnalysisError
from hf_tlm.utils.ranges import check_ranges


@dataclass
class Options:
    """Attention heads (--what heads)."""

    heads_text: str | None = field(
        default=None, metadata={"help": "Text whose attention maps are drawn. Default: the first that is short enough."}
    )
    heads_tokens: int = field(default=24, metadata={"help": "Tokens of that text at most: longer ones are truncated."})

    def __post_init__(self):
        check_ranges(self, AnalysisError)
        if self.heads_text is not None and not self.heads_text.strip():
            raise AnalysisError("--heads_text is blank. Give a text, or leave it out.")
