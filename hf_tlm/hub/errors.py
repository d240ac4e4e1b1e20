"""Explanations of errors from the Hub and the network, and retries of the temporary ones."""

from __future__ import annotations

import json
import logging
import os
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
from hf_tlm.utils.shown import suggested_path

logger = logging.getLogger(__name__)
Result = TypeVar("Result")


class UnansweredError(HubError):
    """Raised when the Hub gives no answer: no network, HF_HUB_OFFLINE, or a server that is busy or fails."""


def log_in() -> str:
    """Return the advice on how to log in, a sentence without its full stop."""
    from huggingface_hub import constants

    return f"Log in with `hf auth login`, or set HF_TOKEN to a token of {constants.ENDPOINT}/settings/tokens"


def status_of(error: BaseException) -> int | None:
    """Return the HTTP status of the response behind an error, even if the client wrapped it; None without a response."""
    response = getattr(_cause(error), "response", None)
    return None if response is None else response.status_code


def is_temporary(error: BaseException) -> bool:
    """Return whether a retry may help: a busy or failing server, a broken connection, an interrupted upload."""
    import httpx2

    cause = _cause(error)
    if is_offline(error):
        return False
    if isinstance(error, RuntimeError):  # raised by the client when the Hub's storage refused or cut an upload
        return True
    if (status := status_of(error)) is not None:
        return status in (408, 429) or status >= 500
    # JSONDecodeError: a gateway sent a page instead of the Hub's response.
    return isinstance(cause, (httpx2.TransportError, ConnectionError, TimeoutError, json.JSONDecodeError))


def tried_by_client(error: BaseException | None) -> bool:
    """Return whether the Hub's client retried before it gave up: most requests it retries five times, in 23 seconds.

    Its errors do not contain this, but the frames of their tracebacks do: the frame of its retry loop has the number of
    tries, and uploads to Xet are retried by the library hf_xet (five times, within six minutes).
    """
    while error is not None:
        for frame, _ in walk_tb(error.__traceback__):
            if frame.f_locals.get("nb_tries", 0) > 1 or frame.f_code.co_name == "_upload_xet_files":
                return True
        error = error.__cause__
    return False


def is_offline(error: BaseException | None) -> bool:
    """Return whether an error was raised because HF_HUB_OFFLINE is set."""
    from huggingface_hub import constants
    from huggingface_hub.errors import LocalEntryNotFoundError, OfflineModeIsEnabled

    while error is not None:
        if isinstance(error, (LocalEntryNotFoundError, OfflineModeIsEnabled)):
            return constants.HF_HUB_OFFLINE
        error = error.__cause__
    return False


def unfound_reason(error: BaseException, name: str | os.PathLike) -> str | None:
    """Return why transformers found nothing under a name, and what to do.

    None if the reason is neither that no repository of the Hub can have this name nor HF_HUB_OFFLINE.
    """
    from huggingface_hub.errors import HFValidationError

    if isinstance(error.__cause__ or error, HFValidationError):
        return (
            "There is no local path of this name, and a repository of the Hub is named owner/name. Correct the path or "
            f"the name.{suggested_path(os.fspath(name))}"
        )
    if not is_offline(error):
        return None
    return (
        "There is no local path of this name, and HF_HUB_OFFLINE is set, so only the cache was searched. "
        f"Unset HF_HUB_OFFLINE, or pass a local path.{suggested_path(os.fspath(name))}"
    )


def requested_wait(error: BaseException) -> float | None:
    """Return the seconds to wait that a busy server asked for in Retry-After or RateLimit; None if it did not."""
    from huggingface_hub.utils import parse_ratelimit_headers

    headers = getattr(getattr(_cause(error), "response", None), "headers", {})
    retry_after = headers.get("Retry-After", "").strip()
    if retry_after.isdigit():
        return float(retry_after)
    limit = parse_ratelimit_headers(headers)
    return float(limit.reset_in_seconds) if limit is not None and limit.remaining == 0 else None


def explain(error: BaseException, repo: Repo, reading: bool = False) -> str:
    """Return what went wrong with a repository, and what to do about it.

    Args:
        reading: the repository was being read, so the message may also suggest a local path or mention the cache.
    """
    import httpx2
    from huggingface_hub import constants
    from huggingface_hub.errors import (
        GatedRepoError,
        LocalEntryNotFoundError,
        RepositoryNotFoundError,
        RevisionNotFoundError,
        RevisionResolutionError,
    )

    cause, status = _cause(error), status_of(error)
    name = f"{repo.type} repository {repo.id}"
    # Usually a misspelt path: a name that is no local path is looked for on the Hub.
    absent = f"There is no local path {repo.id}, and " * reading
    hint = suggested_path(repo.id) if reading else ""
    if isinstance(cause, GatedRepoError):
        page = f"{constants.ENDPOINT}/{repo.page}"
        return f"The {name} is gated: ask for access at {page}, with the account of your token. {log_in()}."
    if isinstance(cause, RevisionNotFoundError):
        if not reading:
            return f"The {name} has no branch {repo.revision!r}, and only a branch can be published to. Pass another name."
        return f"The {name} has no branch, tag or commit {repo.revision!r}. Correct the part after the @."
    if isinstance(cause, RepositoryNotFoundError):
        here = ", and no local path of this name" * reading
        return f"There is no {name} that you may see{here}. Correct the name; if it is private: l{log_in()[1:]}.{hint}"
    if status == 401:
        return f"The Hub does not accept your token. {log_in()}."
    if status == 403 and reading:
        return f"Access to the {name} was refused (status 403): it is disabled, or your token or a proxy does not allow it."
    if status == 403:
        return f"Your token may not write to the {name}. Use a token with write access, or a repository of your own."
    if status == 413:
        return (
            f"The upload is larger than the {name} accepts (status 413). Check the limits of your account at "
            f"{constants.ENDPOINT}, or of a proxy in between."
        )
    if isinstance(cause, (httpx2.TransportError, ConnectionError, LocalEntryNotFoundError, RevisionResolutionError)):
        # The error of `datasets` has lost its cause, so this asks for the setting: with it no request is sent.
        if constants.HF_HUB_OFFLINE:
            return (
                f"{absent}HF_HUB_OFFLINE is set, so the {name} cannot be requested. "
                f"Unset it{', or pass a local path' * reading}.{hint}"
            )
        return (
            f"{absent}{constants.ENDPOINT} cannot be reached for the {name}{', which is not in the cache either' * reading} "
            f"({type(cause).__name__}). Check the network (and HF_ENDPOINT, if set)"
            f"{', or pass a local path' * reading}.{hint}"
        )
    if isinstance(cause, json.JSONDecodeError):
        return f"The response of {constants.ENDPOINT} for the {name} is not that of a Hub. Check HF_ENDPOINT, or a proxy."
    if reading and (problem := cache_problem(cause, constants.HF_HUB_CACHE)):
        return f"The {name} could not be fetched. {problem}."
    return f"The {name} could not be used: {redacted(cause).rstrip('.')}."


def redacted(error: BaseException) -> str:
    """Return an error's message without possible tokens, and without the client's link that explains the HTTP status."""
    message = re.sub(r" For more information check: \S+", "", " ".join(str(error).split()))
    return re.sub(r"\bhf_(oauth_|jwt_)?[A-Za-z0-9]{8,}\S*|(?<=Bearer )\S+", "<token>", message)


@contextmanager
def explaining(repo: Repo) -> Iterator[None]:
    """Convert errors of the Hub's client within the block to a `HubError` with an explanation."""
    import httpx2
    from huggingface_hub.errors import RevisionResolutionError

    try:
        yield
    except (httpx2.HTTPError, OSError, RevisionResolutionError, json.JSONDecodeError) as error:
        # Not chained, because the request in the client's error may contain a token.
        raise HubError(explain(error, repo, reading=True)) from None


def _cause(error: BaseException) -> BaseException:
    """Return the HTTP or offline error in an error's chain of causes; the error itself if there is none."""
    from httpx2 import HTTPError
    from huggingface_hub.errors import OfflineModeIsEnabled

    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, (HTTPError, OfflineModeIsEnabled)):
            return cause
        cause = cause.__cause__
    return error


def client_errors() -> tuple[type[Exception], ...]:
    """Return the exception types that the Hub's client raises."""
    import httpx2
    from huggingface_hub.errors import RevisionResolutionError

    return httpx2.HTTPError, OSError, RuntimeError, ValueError, RevisionResolutionError


def with_retries(
    call: Callable[[], Result],
    repo: Repo,
    retries: int = 5,
    starts_over: Callable[[Exception], bool] = lambda error: False,
) -> Result:
    """Call a function, retry it after temporary failures, and return its result.

    Before the n-th retry it waits 2 ** (n - 1) seconds (31 seconds in total for five retries), or as long as the server
    asks for. Calls that the client has already retried by itself (`tried_by_client`) are not retried here.

    Args:
        starts_over: whether an error means that another writer was faster, so that the call is repeated soon; this does
            not count as a retry.

    Raises:
        UnansweredError: there was no answer after `retries` retries, or after those of the client.
        HubError: it failed permanently; the message says how many times it was tried here, in how many seconds.
    """
    tries, begun = 0, monotonic()
    while True:
        try:
            return call()
        except HubError:
            raise
        except client_errors() as error:
            if starts_over(error):
                logger.warning("%s was changed by another writer in the meantime; starting again from their commit.", repo)
                time.sleep(random.uniform(0.1, 1.0))  # Otherwise two writers that collide once would collide again.
                continue
            if not is_temporary(error) or tries == retries or tried_by_client(error):
                tried = f" It was tried {tries + 1} times in {monotonic() - begun:,.0f} seconds." if tries else ""
                # Not chained, because the request in the client's error may contain a token.
                unanswered = is_temporary(error) or is_offline(error)
                raise (UnansweredError if unanswered else HubError)(explain(error, repo) + tried) from None
            wait = requested_wait(error) or 2.0**tries
            tries += 1
            logger.warning("%s Trying again in %g s (%d of %d).", explain(error, repo), wait, tries, retries)
            time.sleep(wait)
