"""Trying again after failures that pass: a busy or failing server, a broken connection."""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable
from time import monotonic
from typing import TypeVar

from hf_tlm.errors import HubError
from hf_tlm.hub.errors import asked_wait, explain, is_passing
from hf_tlm.hub.repo_id import Repo

logger = logging.getLogger(__name__)
Result = TypeVar("Result")
# Seconds of waiting after the first failure, beyond which no other try begins. The client tries most requests again itself,
# six times in 23 seconds: together that is at most four times as often, in 100 seconds. Which failures it has tried again
# cannot be told from its errors. So a try that fails within QUICK seconds counts as waiting; a longer one was at work, such
# as at an upload, unless the server asks to wait, which the client has then done in it.
PATIENCE, QUICK = 60.0, 30.0


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

    Before the n-th try after the first one it waits 2 ** (n - 1) seconds, or as long as the server asks for. After a minute
    of waiting, not counting what the server asked for here or what tries were at work, there is no further one (`PATIENCE`).

    Args:
        starts_over: whether an error means that the call is to be made anew, soon, because somebody else was faster.

    Raises:
        HubError: it failed for good, or `retries` times more than once, or for too long; the message has how often it was
            tried, in what time.
    """
    tries, begun, waited = 0, monotonic(), 0.0
    while True:
        try_begun = monotonic()
        try:
            return call()
        except HubError:
            raise
        except client_errors() as error:
            if starts_over(error):
                logger.warning("%s was changed by somebody else meanwhile; starting over from what they wrote.", repo)
                time.sleep(random.uniform(0.1, 1.0))  # Else two that meet once meet again.
                continue
            now, asked = monotonic(), asked_wait(error)
            if tries and (asked or now - try_begun <= QUICK):
                waited += now - try_begun
            if not is_passing(error) or tries == retries or waited > PATIENCE:
                tried = f" It was tried {tries + 1} times in {now - begun:,.0f} seconds." if tries else ""
                # Not chained: a token might be in the request that the client's error refers to.
                raise HubError(explain(error, repo) + tried) from None
            wait = asked or 2.0**tries
            waited += 0 if asked else wait
            tries += 1
            logger.warning("%s Trying again in %g s (%d of %d).", explain(error, repo), wait, tries, retries)
            time.sleep(wait)
