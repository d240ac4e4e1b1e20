"""Options of the analysis of attention heads."""

from dataclasses import dataclass, field

from hf_tlm.analysis.errors import AnalysisError


@dataclass
class Options:
    """Attention heads (--what heads)."""

    heads_text: str | None = field(
        default=None, metadata={"help": "Text whose attention maps are drawn. Default: the first that is short enough."}
    )
    heads_tokens: int = field(default=24, metadata={"help": "Tokens of that text at most: longer ones are truncated."})

    def __post_init__(self):
        if self.heads_tokens < 3:
            raise AnalysisError(f"--heads_tokens must be at least 3; received {self.heads_tokens}.")
        if self.heads_text is not None and not self.heads_text.strip():
            raise AnalysisError("--heads_text is blank. Give a text, or leave it out.")
