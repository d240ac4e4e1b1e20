"""What is wrong with the arguments of a run."""

from __future__ import annotations

from hf_tlm.errors import HfTlmError


class ArgumentsError(HfTlmError):
    """Arguments that contradict each other or that TLM cannot honour."""
