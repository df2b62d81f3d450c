"""What can go wrong between us and the hub, in words: what, value, remedy; and what is worth another try."""

from __future__ import annotations

import errno
import re
from pathlib import Path

import httpx2
from huggingface_hub import constants, get_token
from huggingface_hub.errors import (
    GatedRepoError,
    HfHubHTTPError,
    OfflineModeIsEnabled,
    RemoteEntryNotFoundError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)

from gemwright.errors import CapacityError, CheckpointError, GemwrightError, RequestError

PASSING_STATUSES = frozenset({408, 429, 500, 502, 503, 504})
_SPENT = re.compile(r"\br\s*=\s*0\s*;\s*t\s*=\s*(\d+)")  # no requests remain, for t seconds
_NO_HUB = "what answers is not a hub"
_TOKEN_REMEDY = "set HF_TOKEN to a valid token, or run: hf auth login"


def may_pass(error: Exception) -> bool:
    """Whether the same request may succeed a little later."""
    if isinstance(error, HfHubHTTPError):
        return error.response.status_code in PASSING_STATUSES
    return isinstance(error, httpx2.TimeoutException | httpx2.NetworkError | httpx2.RemoteProtocolError)


def told_wait_seconds(error: Exception) -> int | None:
    """Return how long the hub asks us to wait, None where it does not say."""
    if not isinstance(error, HfHubHTTPError):
        return None
    headers = error.response.headers
    spent = _SPENT.search(headers.get("RateLimit", "")) if error.response.status_code == 429 else None
    if spent is not None:
        return int(spent[1])
    told = headers.get("Retry-After", "").strip()
    return int(told) if told.isdigit() else None


def explain(error: Exception, repository: str, revision: str) -> GemwrightError:
    """Return the error to raise for what a request about a repository ran into."""
    model = f"{repository} at revision {revision}"
    if isinstance(error, GemwrightError):
        return error
    if isinstance(error, OfflineModeIsEnabled):
        return CheckpointError(
            "offline mode is on, so the hub is not asked", value=model, remedy="unset HF_HUB_OFFLINE to fetch the model"
        )
    if isinstance(error, HfHubHTTPError):
        return _explain_status(error, repository, model)
    if isinstance(error, httpx2.NetworkError | httpx2.ReadTimeout | httpx2.RemoteProtocolError) and not isinstance(
        error, httpx2.ConnectError
    ):
        return CheckpointError(
            "the connection to the hub breaks off again and again",
            value=f"{constants.ENDPOINT}: {_first_line(error)}",
            remedy="look at the network and the proxy",
        )
    if isinstance(error, httpx2.TransportError):
        return CheckpointError(
            "the hub cannot be reached",
            value=f"{constants.ENDPOINT}: {_first_line(error)}",
            remedy="look at the network, the proxy and HF_ENDPOINT; a model that is in the cache runs without",
        )
    return CheckpointError(
        _NO_HUB,
        value=f"{constants.ENDPOINT}: {_first_line(error)}",
        remedy="look at HF_ENDPOINT, and whether a proxy or a login page stands between",
    )


def why_unanswered(error: CheckpointError) -> str | None:
    """Return in words what kept the hub from telling of a model; None where it told, or there is no such model."""
    cause = error.__cause__
    if isinstance(cause, HfHubHTTPError):
        status = cause.response.status_code
        if status in (401, 403):
            return f"the hub refused access ({status})"
        return None if status < 500 and status not in PASSING_STATUSES else f"the hub answered with an error ({status})"
    if isinstance(cause, httpx2.HTTPError | httpx2.InvalidURL | ConnectionError):
        return "the hub could not be reached"
    return error.what if error.what == _NO_HUB else None


def explain_disk(error: OSError, folder: Path) -> GemwrightError:
    """Return the error to raise where the cache cannot be written."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return CapacityError(
            f"{folder}: the disk is full",
            remedy="free space, or set HF_HOME to a folder on another disk; the same command then goes on",
        )
    return CheckpointError(
        f"{error.filename or folder}: cannot be written",
        value=error.strerror or error,
        remedy="change the permissions of the hub cache, or set HF_HOME to another folder",
    )


def _explain_status(error: HfHubHTTPError, repository: str, model: str) -> GemwrightError:
    response = error.response
    status = response.status_code
    told = response.headers.get("X-Error-Message") or ""
    has_token = get_token() is not None
    if isinstance(error, GatedRepoError):
        return _gated(repository, has_token)
    if status == 401 and "credentials" in told.lower():
        return CheckpointError("the hub refuses the token", value=told, remedy=_TOKEN_REMEDY)
    if isinstance(error, RevisionNotFoundError):
        return CheckpointError(
            "the hub has no such revision of this model", value=model, remedy="name a branch, a tag or a commit it has"
        )
    if isinstance(error, RepositoryNotFoundError) or (
        status in (401, 404) and not isinstance(error, RemoteEntryNotFoundError)
    ):
        return CheckpointError(
            "the hub has no such model, or does not show it to you",
            value=repository,
            remedy="look at the spelling; for a private model "
            + ("see that the token may read it" if has_token else _TOKEN_REMEDY),
        )
    if isinstance(error, RemoteEntryNotFoundError):
        return CheckpointError("a file of the model is gone from the hub", value=response.url, remedy="pull it again")
    if status == 403:
        return CheckpointError(
            "the hub forbids this", value=told or model, remedy="use a token that may read this model (HF_TOKEN)"
        )
    if status == 429:
        seconds = told_wait_seconds(error)
        return CheckpointError(
            "the hub answers no more for now: too many requests",
            value=None if seconds is None else f"again in {seconds} s",
            remedy="wait, then give the same command again" + ("" if has_token else "; a token (HF_TOKEN) allows more"),
        )
    if status == 400:
        return RequestError("the hub does not understand the request", value=told or model)
    return CheckpointError(
        "the hub answers with an error",
        value=f"{status} {response.reason_phrase}, {model}",
        remedy="give the same command again later; it goes on from what is there",
    )


def _gated(repository: str, has_token: bool) -> CheckpointError:
    page = f"{constants.ENDPOINT}/{repository}"
    if has_token:
        return CheckpointError(
            f"{repository} is gated, and the account of your token has no access to it",
            value=page,
            remedy="accept the terms on that page with this account; its token must be allowed to read gated models",
        )
    return CheckpointError(
        f"{repository} is gated: it takes an account that has accepted its terms",
        value=page,
        remedy="accept the terms on that page, then set HF_TOKEN or run: hf auth login",
    )


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[0][:200] if lines else type(error).__name__
