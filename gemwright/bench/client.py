"""A client that times answers of any server with OpenAI's routes: one streamed request, and what became of it.

Tokens are those that the server counts. What goes wrong ends its own request alone and is told by kind.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Final, Literal, Self

import httpx2

from gemwright.errors import GemwrightError, RequestError

Endpoint = Literal["/v1/completions", "/v1/chat/completions"]

ENDPOINTS: Final[tuple[Endpoint, ...]] = ("/v1/completions", "/v1/chat/completions")
_LOCAL: Final = ("localhost", "127.0.0.1", "::1")
_SHOWN_CHARACTERS: Final = 200
_SPOKEN: Final = ("content", "reasoning", "reasoning_content", "tool_calls", "refusal")
"""Fields of a chat's delta that hold something of the answer."""


@dataclass(frozen=True, slots=True)
class Prompt:
    """One request of a load."""

    text: str
    max_tokens: int


@dataclass(frozen=True, slots=True)
class Target:
    """What is measured, and what every request asks besides its prompt."""

    base_url: str
    endpoint: Endpoint = "/v1/completions"
    model: str | None = None
    """None: the first one that the server lists."""
    api_key: str | None = None
    temperature: float = 0.0
    ignore_eos: bool = False
    """Not every server knows it; one that does not may refuse it."""
    request_timeout_s: float = 600.0

    def __post_init__(self) -> None:
        try:
            url = httpx2.URL(self.base_url)
        except httpx2.InvalidURL as error:
            raise RequestError("--base-url", value=self.base_url, limit=str(error)) from error
        if url.scheme not in ("http", "https") or not url.host:
            raise RequestError("--base-url", value=self.base_url, remedy="give it as http://HOST:PORT")
        if self.endpoint not in ENDPOINTS:
            raise RequestError("--endpoint", value=self.endpoint, limit=" or ".join(ENDPOINTS))
        if not self.temperature >= 0:
            raise RequestError("--temperature", value=self.temperature, limit="0 or more")
        if not self.request_timeout_s > 0:
            raise RequestError("--request-timeout", value=self.request_timeout_s, limit="above 0 seconds")

    def url(self, path: str) -> str:
        """Return the address of a path; a base URL may end in /v1, as clients of OpenAI are given it."""
        return self.base_url.rstrip("/").removesuffix("/v1") + path

    def body(self, prompt: Prompt) -> dict[str, Any]:
        """Return the JSON of a request."""
        asked: dict[str, Any] = {"model": self.model}
        if self.endpoint == "/v1/completions":
            asked["prompt"] = prompt.text
        else:
            asked["messages"] = [{"role": "user", "content": prompt.text}]
        asked |= {
            "max_tokens": prompt.max_tokens,
            "temperature": self.temperature,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        return asked | {"ignore_eos": True} if self.ignore_eos else asked


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one request. Times are seconds; those of a clock are perf_counter's."""

    sent_at: float
    ended_at: float
    held_back_s: float = 0.0
    """How long it waited here, since it arrived, for the limit of requests at once."""
    failure: str | None = None
    """Its kind, such as "http 429" or "timeout"; None where the answer came to its end."""
    detail: str = ""
    """What the server or the network said."""
    ttft_s: float | None = None
    """Until the first piece of the answer that says something."""
    gaps_s: tuple[float, ...] = ()
    """Between the pieces after it."""
    num_prompt_tokens: int = 0
    num_tokens: int = 0
    finish_reason: str | None = None

    @property
    def e2e_s(self) -> float:
        """From sending to the end."""
        return self.ended_at - self.sent_at

    @property
    def tpot_s(self) -> float | None:
        """From the first piece to the last, shared among the tokens after the first; None where there are none."""
        return None if self.num_tokens < 2 else sum(self.gaps_s) / (self.num_tokens - 1)


class _FailedError(Exception):
    """One request has failed: kind and detail."""

    def __init__(self, kind: str, detail: str = "") -> None:
        super().__init__(kind)
        self.kind = kind
        self.detail = detail


@dataclass(slots=True)
class _Reading:
    """An answer as far as it has come."""

    sent_at: float
    spoken_at: list[float] = field(default_factory=list)
    usage: Mapping[str, Any] | None = None
    finish_reason: str | None = None
    is_done: bool = False

    def take(self, content: dict[str, Any], now: float) -> None:
        """Take one event into account. Raises _FailedError where it is an error."""
        if content.get("error"):
            error = content["error"]
            raise _FailedError("error event", str(error.get("message", error) if isinstance(error, dict) else error))
        if isinstance(content.get("usage"), dict):
            self.usage = content["usage"]
        for choice in content.get("choices") or ():
            delta = choice.get("delta") or {}
            if choice.get("text") or any(delta.get(name) for name in _SPOKEN):
                self.spoken_at.append(now)
            if choice.get("finish_reason") is not None:
                self.finish_reason = choice["finish_reason"]
                if not self.spoken_at:  # an answer without any text
                    self.spoken_at.append(now)

    def outcome(self, ended_at: float, failure: str | None = None, detail: str = "") -> Outcome:
        """Return what became of it."""
        spoken = self.spoken_at
        usage = self.usage or {}
        return Outcome(
            self.sent_at,
            ended_at,
            failure=failure,
            detail=detail[:_SHOWN_CHARACTERS],
            ttft_s=spoken[0] - self.sent_at if spoken else None,
            gaps_s=tuple(after - before for before, after in pairwise(spoken)),
            num_prompt_tokens=int(usage.get("prompt_tokens") or 0),
            num_tokens=int(usage.get("completion_tokens") or 0),
            finish_reason=self.finish_reason,
        )


class Client:
    """Asks one server. To be entered before use; it keeps its connections open."""

    def __init__(self, target: Target) -> None:
        self.target = target
        host = httpx2.URL(target.base_url).host
        self._http = httpx2.AsyncClient(
            headers={} if target.api_key is None else {"Authorization": f"Bearer {target.api_key}"},
            limits=httpx2.Limits(max_connections=None, max_keepalive_connections=None),
            timeout=target.request_timeout_s,
            # No proxy of the environment stands between this machine and itself.
            trust_env=host not in _LOCAL,
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._http.aclose()

    async def first_model(self) -> str:
        """Return the first model that the server lists. Raises GemwrightError where it lists none."""
        try:
            reply = await self._http.get(self.target.url("/v1/models"))
            reply.raise_for_status()
            return str(reply.json()["data"][0]["id"])
        except (httpx2.HTTPError, ValueError, LookupError, TypeError) as error:
            raise GemwrightError(
                "the server does not say which models it has",
                value=f"{self.target.url('/v1/models')}: {str(error)[:_SHOWN_CHARACTERS] or type(error).__name__}",
                remedy="name one with --model, or see whether the server runs at --base-url",
            ) from error

    async def read_metrics(self) -> str | None:
        """Return the server's metrics as Prometheus reads them; None where it has none."""
        try:
            reply = await self._http.get(self.target.url("/metrics"))
        except httpx2.HTTPError:
            return None
        return reply.text if reply.status_code == 200 else None

    async def ask(self, prompt: Prompt) -> Outcome:
        """Ask and read the answer to its end; what goes wrong is in the outcome."""
        body = json.dumps(self.target.body(prompt)).encode()
        reading = _Reading(time.perf_counter())
        try:
            async with asyncio.timeout(self.target.request_timeout_s):
                await self._read(body, reading)
        except _FailedError as error:
            return reading.outcome(time.perf_counter(), error.kind, error.detail)
        except (TimeoutError, httpx2.TimeoutException):
            return reading.outcome(time.perf_counter(), "timeout", f"{self.target.request_timeout_s:g} seconds")
        except httpx2.ConnectError as error:
            return reading.outcome(time.perf_counter(), "not connected", str(error))
        except httpx2.HTTPError as error:
            return reading.outcome(time.perf_counter(), "connection lost", str(error) or type(error).__name__)
        return reading.outcome(time.perf_counter())

    async def _read(self, body: bytes, reading: _Reading) -> None:
        headers = {"Content-Type": "application/json"}
        async with self._http.stream(
            "POST", self.target.url(self.target.endpoint), content=body, headers=headers
        ) as reply:
            if reply.status_code != 200:
                text = (await reply.aread()).decode("utf-8", "replace")
                raise _FailedError(f"http {reply.status_code}", _message_of(text))
            async for data in _events(reply.aiter_raw()):
                now = time.perf_counter()
                if data == b"[DONE]":
                    reading.is_done = True
                    continue
                try:
                    content = json.loads(data)
                except ValueError:
                    content = None
                if not isinstance(content, dict):
                    raise _FailedError("not an event", data.decode("utf-8", "replace"))
                reading.take(content, now)
        if not (reading.is_done or reading.finish_reason):
            raise _FailedError("cut off", "the stream ended before the answer did")
        if reading.usage is None:
            raise _FailedError("no usage", "the stream has no token counts")


async def _events(chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Yield the data of server-sent events, each of one line, as OpenAI's are."""
    rest = b""
    async for chunk in chunks:
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            if line.startswith(b"data:"):
                yield line[5:].strip()


def _message_of(text: str) -> str:
    """Return the message of an error's body, or its beginning where it is none of OpenAI's."""
    try:
        return str(json.loads(text)["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return text
