"""Between the routes and the engine: is it ready, what is the model called, and one answer at a time from start to end.

Knows frozen data of the engine, and no protocol.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from gemwright.engine.async_engine import AsyncEngine
from gemwright.engine.chat_request import ChatRequest
from gemwright.engine.llm import LLM, Prompt
from gemwright.engine.pieces import Piece
from gemwright.engine.request import CONSTRAINT_FIELDS, SamplingParams
from gemwright.engine.result import Completion
from gemwright.errors import GemwrightError
from gemwright.server.errors import BusyError, FieldError, NotFoundError, NotReadyError, TimedOutError
from gemwright.server.settings import ServerSettings
from gemwright.text.template import RenderedPrompt

_SHORT_PROMPT: Final = 4096
"""Characters or ids that are looked at in the event loop: a thread would take longer to begin."""

State = Literal["loading", "ready", "draining", "failed"]


@dataclass(frozen=True, slots=True)
class Asked:
    """A prompt that was checked, and how to answer it."""

    prompt: RenderedPrompt | list[int]
    params: SamplingParams
    priority: int = 0
    cache_salt: str | None = None

    @property
    def num_prompt_tokens(self) -> int:
        """Tokens of the prompt."""
        return len(self.prompt.token_ids if isinstance(self.prompt, RenderedPrompt) else self.prompt)

    @property
    def prompt_token_ids(self) -> list[int]:
        """The prompt's ids."""
        return list(self.prompt.token_ids if isinstance(self.prompt, RenderedPrompt) else self.prompt)


@dataclass(slots=True, eq=False)
class Answering:
    """One request being answered: counts for usage and metrics, filled as pieces come. Times are perf_counter's.

    `request_id` may be its client's own, so that several have the same.
    """

    asked: Asked
    request_id: str
    arrived_at: float = field(default_factory=time.perf_counter)
    started_at: float | None = None
    """When its first step began."""
    first_piece_at: float | None = None
    first_token_at: float | None = None
    last_token_at: float | None = None
    num_tokens: int = 0
    num_reasoning_tokens: int = 0
    """Of `num_tokens`, those inside thoughts: the opening and the closing mark are not counted."""
    completion: Completion | None = None
    error: Exception | None = None
    kept_tokens: dict[int, int] = field(default_factory=dict)
    """Tokens of the prompt that each answer was the first to leave in the prefix cache."""

    def count(self, piece: Piece) -> None:
        """Take a piece into account."""
        self.num_tokens += len(piece.token_ids)
        self.num_reasoning_tokens += piece.num_thought_tokens
        self.kept_tokens[piece.answer_index] = piece.num_kept_tokens


Watcher = Callable[[Answering, Piece | None], None]
"""Told of every piece that came, and with None of the end."""


class Service:
    """One model behind one server. It takes requests once `set_engine` was called."""

    def __init__(self, settings: ServerSettings, model: str) -> None:
        self.settings = settings
        self.model = model
        """What the user called the model."""
        self.names = settings.served_model_names or (model,)
        self.created = int(time.time())
        self.state: State = "loading"
        self.failure: str | None = None
        self.watchers: list[Watcher] = []
        self.live: dict[int, Answering] = {}
        """Requests being answered in the order they came, each under a number of its own."""
        self._numbers = itertools.count()
        self._engine: AsyncEngine | None = None

    def set_engine(self, engine: AsyncEngine) -> None:
        """Begin to take requests."""
        self._engine = engine
        self.state = "ready"

    def set_failure(self, error: BaseException) -> None:
        """Say why no engine came."""
        self.failure = error.what if isinstance(error, GemwrightError) else type(error).__name__
        self.state = "failed"

    @property
    def engine(self) -> AsyncEngine:
        """The engine. Raises NotReadyError while there is none, and once it has failed or is draining."""
        if self._engine is None:
            if self.state == "failed":
                raise NotReadyError("the model could not be loaded", value=self.failure)
            raise NotReadyError("the model is being loaded")
        if self._engine.failure is not None:
            raise NotReadyError("the engine has failed", value=self._engine.failure.what, remedy="restart the server")
        if self.state == "draining":
            raise NotReadyError("the server is going down", remedy="send the request to another one")
        return self._engine

    @property
    def loaded_engine(self) -> AsyncEngine | None:
        """The engine, whatever state it is in; None before it is loaded."""
        return self._engine

    @property
    def _running_engine(self) -> AsyncEngine:
        """The engine that answers what was let in, while it drains too. Raises NotReadyError where it cannot."""
        if self.state == "draining" and self._engine is not None and self._engine.failure is None:
            return self._engine
        return self.engine

    @property
    def llm(self) -> LLM:
        """The loaded model. Raises as `engine`."""
        return self.engine.llm

    @property
    def is_healthy(self) -> bool:
        """Whether requests are taken."""
        return self.state == "ready" and self._engine is not None and self._engine.failure is None

    async def drain(self) -> None:
        """Take no more requests and return when those that run are done."""
        self.state = "draining"
        if self._engine is not None:
            await self._engine.drain()

    def check_model(self, name: str | None, *, names: tuple[str, ...] = ()) -> str:
        """Return the name to put into an answer. Raises NotFoundError for a model that is not served here."""
        known = (*self.names, *names)
        if name is None or name in known:
            return name or self.names[0]
        raise NotFoundError("no such model is served here", value=name[:200], limit=", ".join(self.names))

    async def ask_chat(
        self,
        chat: ChatRequest,
        fields: dict[str, Any],
        *,
        priority: int = 0,
        cache_salt: str | None = None,
    ) -> Asked:
        """Return a chat as a checked prompt. `fields` are those of SamplingParams that the client set.

        What it returns is let in: a drain that begins later waits for it. Raises RequestError and UnsupportedError for
        what cannot be served, BusyError where too many wait, and NotReadyError where the server went down meanwhile.
        """
        llm = self.llm
        self._require_room(llm, fields)

        def prepare() -> Asked:
            prompt, params = llm.prepare_chat(chat, self._params(llm, fields))
            asked = Asked(prompt, params, priority, cache_salt)
            return self._checked(llm, asked, fields)

        return await self._prepared(prepare)

    async def ask(
        self, prompt: Prompt, fields: dict[str, Any], *, priority: int = 0, cache_salt: str | None = None
    ) -> Asked:
        """Return text or ids as a checked prompt. Arguments and errors are those of `ask_chat`."""
        llm = self.llm
        self._require_room(llm, fields)

        def prepare() -> Asked:
            asked = Asked(llm.prompt_ids(prompt), self._params(llm, fields), priority, cache_salt)
            return self._checked(llm, asked, fields)

        is_quick = _is_short(prompt) and not any(fields.get(name) for name in CONSTRAINT_FIELDS)
        return prepare() if is_quick else await self._prepared(prepare)

    async def prompt_ids(self, prompt: Prompt) -> list[int]:
        """Return the ids of text, or ids as they are. Raises RequestError as LLM.prompt_ids does."""
        find = self.llm.prompt_ids
        return find(prompt) if _is_short(prompt) else await asyncio.to_thread(find, prompt)

    async def pieces(self, asked: Asked, request_id: str) -> AsyncGenerator[tuple[Answering, Piece], None]:
        """Answer and yield what comes; closing the generator aborts within a step.

        Raises TimedOutError after the server's limit, and what the engine raises.
        """
        answering, number = Answering(asked, request_id), next(self._numbers)
        self.live[number] = answering
        deadline = answering.arrived_at + self.settings.request_timeout_s
        try:
            stream = self._running_engine.stream(
                asked.prompt, asked.params, priority=asked.priority, cache_salt=asked.cache_salt
            )
            async with aclosing(stream):
                while True:
                    try:
                        async with asyncio.timeout(max(0.0, deadline - time.perf_counter())):
                            piece = await anext(stream, None)
                    except TimeoutError:
                        raise TimedOutError(
                            "the answer took too long", limit=f"{self.settings.request_timeout_s:g} seconds"
                        ) from None
                    if piece is None:
                        return
                    self._note(answering, piece)
                    yield answering, piece
        except Exception as error:
            answering.error = error
            raise
        finally:
            del self.live[number]
            for watch in self.watchers:
                watch(answering, None)

    async def answer(self, asked: Asked, request_id: str) -> Answering:
        """Answer to the end; `completion` of what is returned is set. Errors are those of `pieces`."""
        stream = self.pieces(asked, request_id)
        async with aclosing(stream):
            async for answering, piece in stream:
                if piece.completion is not None:
                    return answering
        raise AssertionError("a stream ends with its completion")

    async def _prepared(self, prepare: Callable[[], Asked]) -> Asked:
        # Apart, since a long conversation takes its time to render.
        asked = await asyncio.to_thread(prepare)
        # A signal may have come meanwhile, which the status can still tell. From here on the request counts as one that
        # runs: a signal that comes now must not become an error inside an answer that has begun.
        _ = self.engine
        return asked

    def _note(self, answering: Answering, piece: Piece) -> None:
        now = time.perf_counter()
        answering.started_at = answering.started_at or piece.started_at
        answering.first_piece_at = answering.first_piece_at or now
        if piece.token_ids:
            answering.first_token_at = answering.first_token_at or now
            answering.count(piece)
        answering.completion = piece.completion
        for watch in self.watchers:
            watch(answering, piece)
        if piece.token_ids:
            answering.last_token_at = now

    def _require_room(self, llm: LLM, fields: dict[str, Any]) -> None:
        waiting = self.engine.num_waiting
        if waiting >= self.settings.max_num_queued_requests:
            raise BusyError(
                "too many requests wait", value=waiting, limit=f"{self.settings.max_num_queued_requests} waiting"
            )
        if fields.get("n") is not None and fields["n"] > self.settings.max_answers:
            raise FieldError("n", "is too large", value=fields["n"], limit=self.settings.max_answers)

    def _params(self, llm: LLM, fields: dict[str, Any]) -> SamplingParams:
        """Return the model's defaults with what the client set."""
        given = {name: value for name, value in fields.items() if value is not None}
        temperature = given.get("temperature", llm.sampling_defaults()["temperature"])
        if temperature == 0:
            # Greedy: the same tokens whatever these say, and clients send them all the same.
            given = {name: value for name, value in given.items() if name not in ("top_k", "top_p", "min_p", "seed")}
        given.setdefault("max_tokens", llm.engine.max_model_len)
        return llm.sampling_params(**given)

    def _checked(self, llm: LLM, asked: Asked, fields: dict[str, Any]) -> Asked:
        llm.core.check(asked.prompt_token_ids, asked.params)
        return asked


def _is_short(prompt: Prompt) -> bool:
    return len(prompt.token_ids if isinstance(prompt, RenderedPrompt) else prompt) <= _SHORT_PROMPT
