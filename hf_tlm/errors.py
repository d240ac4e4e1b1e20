"""The errors that users can mend, of which every other one of hf_tlm is a kind."""

from __future__ import annotations


class HfTlmError(ValueError):
    """An error meant for the user: it names what was expected, what was received and what to do.

    Recipes print it as one message without a traceback (see `hf_tlm.config.run`).
    """


class HubError(HfTlmError):
    """Something that the Hub refused, does not have, or could not be asked for."""
