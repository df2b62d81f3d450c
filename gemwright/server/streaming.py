"""Answers on the wire: events or lines of JSON, with keep-alives, and an end as soon as the client is gone."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import suppress
from typing import Any, TypeVar

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

Result = TypeVar("Result")

EVENT_STREAM = "text/event-stream"
JSON_LINES = "application/x-ndjson"


class ClientGoneError(Exception):
    """The client closed the connection; nobody reads an answer any more."""


class ClientStoppedReadingError(ConnectionError):
    """The client holds the connection and has not read what was sent when the time for it was over."""


def event(content: dict[str, Any], name: str | None = None) -> bytes:
    """Return one server-sent event."""
    head = "" if name is None else f"event: {name}\n"
    return f"{head}data: {dump(content)}\n\n".encode()


def line(content: dict[str, Any]) -> bytes:
    """Return one line of JSON."""
    return f"{dump(content)}\n".encode()


def dump(content: Any) -> str:
    """Return JSON text; a lone surrogate, which no UTF-8 has, is written as an escape."""
    try:
        text = json.dumps(content, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
        text.encode()
    except UnicodeEncodeError:
        return json.dumps(content, separators=(",", ":"), allow_nan=False)
    return text


class Stream(Response):
    """Sends chunks as they come. After `keep_alive_s` of silence it sends `keep_alive`, unless that is empty.

    When the client goes, or does not read until the door breaks off, the generator is closed at once, which aborts the
    request it reads from.
    """

    def __init__(
        self,
        chunks: AsyncGenerator[bytes, None],
        *,
        media_type: str = EVENT_STREAM,
        keep_alive_s: float,
        keep_alive: bytes = b": keep-alive\n\n",
    ) -> None:
        self.chunks = chunks
        self.keep_alive_s = keep_alive_s
        self.keep_alive = keep_alive
        self.status_code = 200
        self.background = None
        self.init_headers(
            {
                "content-type": f"{media_type}; charset=utf-8" if media_type == EVENT_STREAM else media_type,
                "cache-control": "no-cache",
                "x-accel-buffering": "no",
            }
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the response."""
        gone = asyncio.ensure_future(_wait_until_gone(receive))
        waiting: asyncio.Future[bytes] | None = asyncio.ensure_future(anext(self.chunks))
        try:
            # The generator hands its request to the engine, which can work while the head is sent.
            await asyncio.sleep(0)
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            while True:
                waiting = waiting or asyncio.ensure_future(anext(self.chunks))
                both: set[asyncio.Future[Any]] = {waiting, gone}
                done, _ = await asyncio.wait(both, timeout=self.keep_alive_s, return_when=asyncio.FIRST_COMPLETED)
                if gone in done:
                    return
                if waiting not in done:
                    if self.keep_alive:
                        await send({"type": "http.response.body", "body": self.keep_alive, "more_body": True})
                    continue
                try:
                    chunk = waiting.result()
                except StopAsyncIteration:
                    break
                waiting = None
                await send({"type": "http.response.body", "body": chunk, "more_body": True})
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        except OSError:  # the connection broke while something was being sent, or ClientStoppedReadingError
            return
        finally:
            gone.cancel()
            if waiting is not None:
                waiting.cancel()
                with suppress(asyncio.CancelledError, StopAsyncIteration, Exception):
                    await waiting
            await self.chunks.aclose()


async def while_connected(request: Request, work: Callable[[], Awaitable[Result]]) -> Result:
    """Return what `work` gives; where the client goes first, cancel it and raise ClientGoneError."""
    task = asyncio.ensure_future(work())
    gone = asyncio.ensure_future(_wait_until_gone(request.receive))
    try:
        await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        raise ClientGoneError
    finally:
        gone.cancel()
        if not task.done():
            task.cancel()
            with suppress(asyncio.CancelledError, Exception):
                await task


async def _wait_until_gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
