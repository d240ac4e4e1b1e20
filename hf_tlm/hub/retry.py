"""Trying again after failures that pass: a busy or failing server, a broken connection."""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable
from time import monotonic
from typing import TypeVar

from hf_tlm.errors import HubError
from hf_tlm.hub.errors import UnansweredError, asked_wait, explain, is_offline, is_passing, tried_by_client
from hf_tlm.hub.repo_id import Repo

logger = logging.getLogger(__name__)
Result = TypeVar("Result")


def client_errors() -> tuple[type[Exception], ...]:
    """What calls of the Hub's client raise."""
    import httpx2
    from huggingface_hub.errors import RevisionResolutionError

    return httpx2.HTTPError, OSError, RuntimeError, ValueError, RevisionResolutionError


def with_retries(
    call: Callable[[], Result],
    repo: Repo,
    retries: int = 5,
    starts_over: Callable[[Exception], bool] = lambda error: False,
) -> Result:
    """The result of a call, which is tried again after passing failures.

    Before the n-th try after the first one it waits 2 ** (n - 1) seconds, or as long as the server asks for: 31 seconds in
    all, else. What the client has tried again by itself before it gave up (`tried_by_client`) is not tried again here.

    Args:
        starts_over: whether an error means that the call is to be made anew, soon, because somebody else was faster.

    Raises:
        UnansweredError: nothing answered, `retries` times more than once, or as often as the client tried by itself.
        HubError: it failed for good; the message has how often it was tried here, in what time.
    """
    tries, begun = 0, monotonic()
    while True:
        try:
            return call()
        except HubError:
            raise
        except client_errors() as error:
            if starts_over(error):
                logger.warning("%s was changed by somebody else meanwhile; starting over from what they wrote.", repo)
                time.sleep(random.uniform(0.1, 1.0))  # Else two that meet once meet again.
                continue
            if not is_passing(error) or tries == retries or tried_by_client(error):
                tried = f" It was tried {tries + 1} times in {monotonic() - begun:,.0f} seconds." if tries else ""
                # Not chained: a token might be in the request that the client's error refers to.
                unanswered = is_passing(error) or is_offline(error)
                raise (UnansweredError if unanswered else HubError)(explain(error, repo) + tried) from None
            wait = asked_wait(error) or 2.0**tries
            tries += 1
            logger.warning("%s Trying again in %g s (%d of %d).", explain(error, repo), wait, tries, retries)
            time.sleep(wait)
