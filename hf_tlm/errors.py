"""The errors that users can fix: `HfTlmError`, and subclasses that more than one package raises."""

from __future__ import annotations


class HfTlmError(ValueError):
    """Raised for an error that a user can fix; the message says what was expected, what was received and what to do.

    Recipes print it as one message without a traceback (see `hf_tlm.config.run`).
    """


class HubError(HfTlmError):
    """Raised when the Hub refuses a request, lacks what was requested, or cannot be reached."""


class AnalysisError(HfTlmError):
    """Raised when runs, models, subsets, texts or options cannot be analysed."""


class BlocksError(HfTlmError):
    """Raised when blocks of tokens cannot be built, or not with the given options."""


class InfluenceError(HfTlmError):
    """Raised when influence cannot be computed for parameters, texts or settings, or passages cannot be selected."""


class ModelError(HfTlmError):
    """Raised when a model, config or tokenizer cannot be used as requested."""


class ArgumentsError(HfTlmError):
    """Raised when arguments contradict each other, or are not supported by TLM."""
