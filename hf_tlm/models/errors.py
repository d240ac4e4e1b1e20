"""What is wrong with a model."""

from __future__ import annotations

from hf_tlm.errors import HfTlmError


class ModelError(HfTlmError):
    """A model, config or tokenizer that cannot be used as asked."""
