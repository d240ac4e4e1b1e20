"""What the Hub's refusals and a broken network mean, what to do about them, and which are tried again."""

from __future__ import annotations

import json
import logging
import random
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import monotonic
from traceback import walk_tb
from typing import TypeVar

from hf_tlm.errors import HubError
from hf_tlm.hub.repo_id import Repo
from hf_tlm.utils.problems import cache_problem

logger = logging.getLogger(__name__)
Result = TypeVar("Result")


class UnansweredError(HubError):
    """The Hub gave no answer: no network, HF_HUB_OFFLINE, or a server that is busy or fails."""


def log_in() -> str:
    """What to do for an account, as the end of a sentence."""
    from huggingface_hub import constants

    return f"Log in with `hf auth login`, or set HF_TOKEN to a token of {constants.ENDPOINT}/settings/tokens"


def status_of(error: BaseException) -> int | None:
    """The HTTP status of the answer behind an error, also of one that the client wrapped; None without an answer."""
    response = getattr(_cause(error), "response", None)
    return None if response is None else response.status_code


def is_passing(error: BaseException) -> bool:
    """Whether to try again may help: a busy or failing server, a broken connection, an upload that was cut short."""
    import httpx2

    cause = _cause(error)
    if is_offline(error):
        return False
    if isinstance(error, RuntimeError):  # the client's for an upload: the storage behind the Hub refused or hung up
        return True
    if (status := status_of(error)) is not None:
        return status in (408, 429) or status >= 500
    # JSONDecodeError: a gateway's page instead of the Hub's answer.
    return isinstance(cause, (httpx2.TransportError, ConnectionError, TimeoutError, json.JSONDecodeError))


def tried_by_client(error: BaseException | None) -> bool:
    """Whether the Hub's client has tried again what failed, before it gave up: most requests five times, in 23 seconds.

    Its errors do not tell. The frames of their tracebacks do: that of its loop has the number of tries, and what comes of an
    upload to Xet the library hf_xet has tried again (five times, within six minutes).
    """
    while error is not None:
        for frame, _ in walk_tb(error.__traceback__):
            if frame.f_locals.get("nb_tries", 0) > 1 or frame.f_code.co_name == "_upload_xet_files":
                return True
        error = error.__cause__
    return False


def is_offline(error: BaseException) -> bool:
    """Whether HF_HUB_OFFLINE kept the client from asking."""
    from huggingface_hub.errors import OfflineModeIsEnabled

    return isinstance(_cause(error), OfflineModeIsEnabled)


def asked_wait(error: BaseException) -> float | None:
    """Seconds that a busy server asked for, by Retry-After or RateLimit; None if it did not."""
    from huggingface_hub.utils import parse_ratelimit_headers

    headers = getattr(getattr(_cause(error), "response", None), "headers", {})
    given = headers.get("Retry-After", "").strip()
    if given.isdigit():
        return float(given)
    limit = parse_ratelimit_headers(headers)
    return float(limit.reset_in_seconds) if limit is not None and limit.remaining == 0 else None


def explain(error: BaseException, repo: Repo, reading: bool = False) -> str:
    """What went wrong with a repository, and what to do; `reading`: it could have come from the cache or a path."""
    import httpx2
    from huggingface_hub import constants
    from huggingface_hub.errors import (
        GatedRepoError,
        LocalEntryNotFoundError,
        OfflineModeIsEnabled,
        RepositoryNotFoundError,
        RevisionNotFoundError,
        RevisionResolutionError,
    )

    cause, status = _cause(error), status_of(error)
    name = f"{repo.type} repository {repo.id}"
    # Most often a path that is misspelt: what is no local path is looked for on the Hub.
    absent = f"There is no {repo.id} here, and " * reading
    if isinstance(cause, GatedRepoError):
        page = f"{constants.ENDPOINT}/{repo.page}"
        return f"The {name} is gated: ask for access at {page}, with the account of your token. {log_in()}."
    if isinstance(cause, RevisionNotFoundError):
        return f"The {name} has no branch, tag or commit {repo.revision!r}. Correct the part after the @."
    if isinstance(cause, RepositoryNotFoundError):
        here = ", and nothing of that name here" * reading
        return f"There is no {name} that you may see{here}. Correct its name; if it is private: l{log_in()[1:]}."
    if status == 401:
        return f"The Hub does not accept your token. {log_in()}."
    if status == 403:
        return f"Your token may not write to the {name}. Use a token with write access, or a repository of your own."
    if status == 413:
        return (
            f"What was sent is larger than the {name} may take (status 413). Look at the limits of your account at "
            f"{constants.ENDPOINT}, or of a proxy on the way there."
        )
    if isinstance(cause, OfflineModeIsEnabled):
        return (
            f"{absent}HF_HUB_OFFLINE is set, so the {name} cannot be asked for. "
            f"Unset it{', or give a local path' * reading}."
        )
    if isinstance(cause, (httpx2.TransportError, ConnectionError, LocalEntryNotFoundError, RevisionResolutionError)):
        return (
            f"{absent}{constants.ENDPOINT} cannot be reached for the {name}{', which is not in the cache either' * reading} "
            f"({type(cause).__name__}). Check the network (and HF_ENDPOINT, if set){', or give a local path' * reading}."
        )
    if isinstance(cause, json.JSONDecodeError):
        return (
            f"{constants.ENDPOINT} does not answer as a Hub does when asked for the {name}. Check HF_ENDPOINT, or a proxy."
        )
    if reading and (problem := cache_problem(cause, constants.HF_HUB_CACHE)):
        return f"The {name} could not be fetched. {problem}."
    return f"The {name} could not be used: {redacted(cause)}"


def redacted(error: BaseException) -> str:
    """An error's message without what may be a token, and without the client's advice to read what a status means."""
    message = re.sub(r" For more information check: \S+", "", " ".join(str(error).split()))
    return re.sub(r"\bhf_(oauth_|jwt_)?[A-Za-z0-9]{8,}\S*|(?<=Bearer )\S+", "<token>", message)


@contextmanager
def explaining(repo: Repo) -> Iterator[None]:
    """Raise as a `HubError` with an explanation what the Hub's client raises within the block."""
    import httpx2
    from huggingface_hub.errors import RevisionResolutionError

    try:
        yield
    except (httpx2.HTTPError, OSError, RevisionResolutionError, json.JSONDecodeError) as error:
        # Not chained: a token might be in the request that the client's error refers to.
        raise HubError(explain(error, repo, reading=True)) from None


def _cause(error: BaseException) -> BaseException:
    """The error itself, or the answer or broken connection that it was raised for."""
    from httpx2 import HTTPError
    from huggingface_hub.errors import OfflineModeIsEnabled

    seen: BaseException | None = error
    while seen is not None:
        if isinstance(seen, (HTTPError, OfflineModeIsEnabled)):
            return seen
        seen = seen.__cause__
    return error


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
