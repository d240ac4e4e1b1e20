"""What is wrong with a selection by influence."""

from __future__ import annotations

from hf_tlm.errors import HfTlmError


class InfluenceError(HfTlmError):
    """Parameters, texts or settings whose influence cannot be computed, or by which nothing can be selected."""
