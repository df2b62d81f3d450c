"""What every request passes before its route: an id, a key, the size of its body; and a line in the log after it."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import logging
import re
import time
import uuid
from collections.abc import Iterable

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gemwright.errors import GemwrightError
from gemwright.server.errors import (
    AuthenticationError,
    BodyTooLargeError,
    error_body,
    headers_of,
    status_of,
    style_of,
)
from gemwright.server.settings import ServerSettings
from gemwright.server.streaming import ClientStoppedReadingError, dump

LOG = logging.getLogger("gemwright.access")

OPEN_PATHS = frozenset({"/", "/health", "/ready", "/ping", "/metrics", "/favicon.ico"})
"""Paths that need no key: what balancers and monitors ask, and the page, which asks its user for a key."""

OPEN_PREFIXES = ("/page/",)
_REQUEST_ID = re.compile(r"[A-Za-z0-9._:/+=-]{1,128}")


def is_open(path: str) -> bool:
    """Whether a path needs no key."""
    return path in OPEN_PATHS or path.startswith(OPEN_PREFIXES)


class Keys:
    """API keys, kept as digests and compared in constant time."""

    def __init__(self, keys: Iterable[str]) -> None:
        self._digests = tuple(_digest(key.encode("utf-8", "surrogateescape")) for key in keys)

    def admit(self, key: str | None) -> bool:
        """Whether a key is one of these; without any, everybody is let in."""
        if not self._digests:
            return True
        # Headers are read as Latin-1, and so this gives back the bytes that came.
        given = _digest((key or "").encode("latin-1"))
        # All are compared, so that the time does not tell which one was near.
        matches = [hmac.compare_digest(given, digest) for digest in self._digests]
        return any(matches) and key is not None


class Door:
    """The outermost layer of the application.

    An answer that has begun is sent for `request_timeout_s`; then it is broken off where its client does not read.
    """

    def __init__(self, app: ASGIApp, settings: ServerSettings) -> None:
        self.app = app
        self.settings = settings
        self.keys = Keys(settings.api_keys)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let a request in, or answer it here."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        began = time.perf_counter()
        headers = Headers(scope=scope)
        request_id = _request_id(headers)
        scope["gemwright.request_id"] = request_id
        seen = {"status": 0}
        deadline: float | None = None

        async def send_and_note(message: Message) -> None:
            nonlocal deadline
            if message["type"] == "http.response.start":
                seen["status"] = message["status"]
                # Anthropic's clients look under the second name.
                names = (b"x-request-id", b"request-id")
                message["headers"] = [*message["headers"], *((name, request_id.encode()) for name in names)]
                deadline = asyncio.get_running_loop().time() + self.settings.request_timeout_s
            limit = asyncio.timeout_at(deadline)
            try:
                # Past the deadline all that can be sent without waiting for the client still is.
                async with limit:
                    await send(message)
            except TimeoutError:
                if limit.expired():
                    facts = {"request_id": request_id, "limit_s": self.settings.request_timeout_s}
                    LOG.warning("broken off: the client does not read", extra={"facts": facts})
                    raise ClientStoppedReadingError from None
                raise

        try:
            self._check_key(scope, headers)
            self._check_length(headers)
            await self.app(scope, self._limited(receive), send_and_note)
        except ClientStoppedReadingError:
            pass  # it is in the log, and there is nobody to answer
        except Exception as error:
            # What nobody foresaw is answered here too, since whoever answers further out knows no request id.
            if not isinstance(error, GemwrightError):
                LOG.error("request %s failed", request_id, exc_info=error)
            if seen["status"]:
                raise  # an answer has begun, so all that is left is to break off
            await _refuse(error, scope["path"], send_and_note)
        finally:
            LOG.info(
                "request",
                extra={
                    "facts": {
                        "request_id": request_id,
                        "method": scope["method"],
                        "path": scope["path"],
                        "status": seen["status"] or None,
                        "seconds": round(time.perf_counter() - began, 4),
                        "client": scope["client"][0] if scope.get("client") else None,
                    }
                },
            )

    def _check_key(self, scope: Scope, headers: Headers) -> None:
        path = scope["path"]
        if is_open(path) or scope["method"] == "OPTIONS":
            return
        scheme, _, token = headers.get("authorization", "").partition(" ")
        key = token.strip() if scheme.lower() == "bearer" else headers.get("x-api-key")
        if not self.keys.admit(key):
            raise AuthenticationError("no API key came with the request" if key is None else "the API key is wrong")

    def _check_length(self, headers: Headers) -> None:
        length = headers.get("content-length", "0")
        if length.isdigit() and int(length) > self.settings.max_body_bytes:
            raise self._too_large(f"{length} bytes")

    def _limited(self, receive: Receive) -> Receive:
        """Count what comes in pieces without saying beforehand how much it will be."""
        num_bytes = 0

        async def counted() -> Message:
            nonlocal num_bytes
            message = await receive()
            num_bytes += len(message.get("body", b""))
            if num_bytes > self.settings.max_body_bytes:
                raise self._too_large(f"more than {self.settings.max_body_bytes} bytes")
            return message

        return counted

    def _too_large(self, value: str) -> BodyTooLargeError:
        limit = f"{self.settings.max_body_bytes} bytes"
        return BodyTooLargeError("the request's body is too large", value=value, limit=limit)


def _request_id(headers: Headers) -> str:
    given = headers.get("x-request-id", "")
    return given if _REQUEST_ID.fullmatch(given) else uuid.uuid4().hex


def _digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()


async def _refuse(error: Exception, path: str, send: Send) -> None:
    body = dump(error_body(error, style_of(path))).encode()
    headers = {"content-type": "application/json", "content-length": str(len(body)), **headers_of(error)}
    raw = [(name.lower().encode(), value.encode()) for name, value in headers.items()]
    await send({"type": "http.response.start", "status": status_of(error), "headers": raw})
    await send({"type": "http.response.body", "body": body})
