"""What can go wrong in an analysis."""

from hf_tlm.errors import HfTlmError


class AnalysisError(HfTlmError):
    """Runs, models, subsets, texts or options that cannot be analysed."""
