"""The errors that users can mend: `HfTlmError`, and kinds of it that more than one package raises."""

from __future__ import annotations


class HfTlmError(ValueError):
    """An error meant for the user: it names what was expected, what was received and what to do.

    Recipes print it as one message without a traceback (see `hf_tlm.config.run`).
    """


class HubError(HfTlmError):
    """Something that the Hub refused, does not have, or could not be asked for."""


class AnalysisError(HfTlmError):
    """Runs, models, subsets, texts or options that cannot be analysed."""


class BlocksError(HfTlmError):
    """Blocks that cannot be made, or not as they were asked for."""


class InfluenceError(HfTlmError):
    """Parameters, texts or settings whose influence cannot be computed, or by which nothing can be selected."""


class ModelError(HfTlmError):
    """A model, config or tokenizer that cannot be used as asked."""


class ArgumentsError(HfTlmError):
    """Arguments that contradict each other or that TLM cannot honour."""
