"""What goes wrong at the door: errors with their HTTP status, and the three shapes in which clients expect them."""

from __future__ import annotations

import re
from http import HTTPStatus
from typing import Any, Literal

from gemwright.errors import CapacityError, GemwrightError, PromptTooLongError, RequestError, UnsupportedError

Style = Literal["openai", "anthropic", "ollama"]


class AuthenticationError(GemwrightError):
    """No API key, or not one of ours."""

    http_status = HTTPStatus.UNAUTHORIZED
    default_remedy = "send one of the server's keys as `Authorization: Bearer KEY` or `x-api-key: KEY`"


class NotFoundError(GemwrightError):
    """No such model or route."""

    http_status = HTTPStatus.NOT_FOUND
    default_remedy = "GET /v1/models lists what is here"


class NoRouteError(NotFoundError):
    """No such route."""

    default_remedy = "docs/api.md lists the routes"


class BodyTooLargeError(GemwrightError):
    """The request's body is over the limit."""

    http_status = HTTPStatus.REQUEST_ENTITY_TOO_LARGE
    default_remedy = "send less, or start the server with a larger --max-body-bytes"


class BusyError(GemwrightError):
    """Too many requests wait already."""

    http_status = HTTPStatus.TOO_MANY_REQUESTS
    default_remedy = "try again later, or start the server with a larger --max-num-queued-reqs"
    retry_after_s = 1


class NotReadyError(GemwrightError):
    """The model is being loaded, or the server is going down."""

    http_status = HTTPStatus.SERVICE_UNAVAILABLE
    default_remedy = "wait until GET /ready answers 200"


class TimedOutError(GemwrightError):
    """The answer took longer than it may."""

    http_status = HTTPStatus.GATEWAY_TIMEOUT
    default_remedy = "ask for fewer tokens, or start the server with a larger --request-timeout"


class NotOfferedError(GemwrightError):
    """A route of another server that this one does not have."""

    http_status = HTTPStatus.NOT_IMPLEMENTED
    default_remedy = "use the command line for it"


class FieldError(RequestError):
    """A field of a request is wrong; `field` is its path, such as messages.0.role."""

    def __init__(self, field: str, what: str, **facts: Any) -> None:
        super().__init__(f"{field}: {what}", **facts)
        self.field = field


def status_of(error: Exception) -> int:
    """Return the HTTP status of an error; 500 for what was not raised on purpose."""
    return int(error.http_status) if isinstance(error, GemwrightError) else 500


def headers_of(error: Exception) -> dict[str, str]:
    """Return the headers that go with an error."""
    if isinstance(error, BusyError):
        return {"Retry-After": str(error.retry_after_s)}
    if isinstance(error, NotReadyError | CapacityError):
        return {"Retry-After": "5"}
    return {"WWW-Authenticate": "Bearer"} if isinstance(error, AuthenticationError) else {}


def style_of(path: str) -> Style:
    """Return the shape of errors that clients of a path expect."""
    if path.startswith("/v1/messages"):
        return "anthropic"
    return "ollama" if path.startswith("/api/") else "openai"


_OPENAI_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    404: "not_found_error",
    405: "invalid_request_error",
    413: "invalid_request_error",
    429: "rate_limit_error",
    501: "not_implemented_error",
    503: "service_unavailable_error",
    504: "timeout_error",
}
_ANTHROPIC_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}
_CODES: dict[type[Exception], str] = {
    AuthenticationError: "invalid_api_key",
    NotFoundError: "model_not_found",
    BusyError: "rate_limit_exceeded",
    PromptTooLongError: "context_length_exceeded",
}
"""Codes that clients look for, by the class of the error itself."""

_PATH = re.compile(r"([a-z]+(?:_[a-z]+)*(?:\[\d+\]|\.[A-Za-z_]+)*)(:|$| )")
_OF_A_TOOL = "the parameters of tool "


def error_body(error: Exception, style: Style) -> dict[str, Any]:
    """Return an error as its clients read it. Nothing of an unforeseen one is told but that it happened."""
    status = status_of(error)
    message = message_of(error)
    if style == "ollama":
        return {"error": message}
    if style == "anthropic":
        if isinstance(error, PromptTooLongError):
            # Claude Code reads both numbers out of Anthropic's own words, and shortens the conversation.
            message = f"prompt is too long: {error.value} > {error.limit}; remedy: {error.remedy}"
        found: dict[str, Any] = {"type": _ANTHROPIC_TYPES.get(status, "api_error"), "message": message}
        if isinstance(error, FieldError) and error.field == "thread":
            # Anthropic's tool runner asks for a thread first; told so, it sends the whole conversation each time.
            found["details"] = {"error_code": "thread_unsupported_request"}
        return {"type": "error", "error": found}
    return {
        "error": {
            "message": message,
            "type": _OPENAI_TYPES.get(status, "internal_server_error"),
            "param": field_of(error),
            "code": _CODES.get(type(error)),
        }
    }


def field_of(error: Exception) -> str | None:
    """Return the path of the field that is wrong; None where the error names none.

    Errors from behind the server's own checks begin with it: `stop`, `messages[0].role: ...`, `tool_choice names ...`.
    """
    if isinstance(error, FieldError):
        return error.field
    if not isinstance(error, RequestError | UnsupportedError):
        return None
    if error.what.startswith(_OF_A_TOOL):
        return "tools"
    found = _PATH.match(error.what)
    # A single word with more text behind it is the beginning of a sentence.
    is_path = found is not None and (found[2] != " " or any(mark in found[1] for mark in "_.["))
    return found[1] if found is not None and is_path else None


def message_of(error: Exception) -> str:
    """Return what is wrong in one line: what, value, limit, remedy."""
    if not isinstance(error, GemwrightError):
        return "internal error; the server's log has it under the id of this request"
    parts = [error.what]
    parts += [] if error.value is None else [f"value: {error.value}"]
    parts += [] if error.limit is None else [f"limit: {error.limit}"]
    parts += [f"remedy: {error.remedy}"]
    return "; ".join(parts)
