"""AsyncEngine: one engine in one worker thread, many coroutines that wait for it. What servers are made of.

Only the worker touches the engine. Coroutines hand it tickets and get pieces back through their own event loops, so an
engine may serve several loops. Knows nothing of protocols.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Any

from gemwright.engine.core import EngineCounters
from gemwright.engine.llm import LLM, Prompt
from gemwright.engine.pieces import Piece, PieceCutter
from gemwright.engine.request import Request, SamplingParams
from gemwright.engine.result import Completion
from gemwright.errors import CapacityError, GemwrightError, RequestError
from gemwright.models.weights import Progress

LOG = logging.getLogger("gemwright")


@dataclass(slots=True, eq=False)
class _Ticket:
    """One call of `stream` on its way through the worker."""

    prompt: Prompt
    params: SamplingParams
    priority: int
    cache_salt: str | None
    loop: asyncio.AbstractEventLoop
    queue: asyncio.Queue[Piece | Exception]
    submitted_at: float
    cutter: PieceCutter | None = None
    """None until it is in the step loop."""
    started_at: float | None = None
    """When the first step that it had a part in began."""

    @property
    def requests(self) -> Sequence[Request]:
        """Its answers."""
        return () if self.cutter is None else self.cutter.requests

    @property
    def is_waiting(self) -> bool:
        """Whether no answer of it has run yet."""
        return all(request.num_cached is None for request in self.requests)

    def give(self, item: Piece | Exception) -> bool:
        """Put an item before the consumer; returns whether its loop still takes any."""
        try:
            self.loop.call_soon_threadsafe(self.queue.put_nowait, item)
        except RuntimeError:  # the loop is closed
            return False
        return True


class AsyncEngine:
    """A loaded model that serves coroutines.

    `model` and the engine options are those of LLM; a loaded LLM is taken too, and from then on belongs to this
    engine. Loading happens here and now. At most `max_waiting` prompts may wait for their first step.

    `failure` is None, or what ended the engine: then every waiter got it as an error, and new requests get it at once.
    """

    def __init__(
        self,
        model: str | Path | LLM | None = None,
        *,
        revision: str | None = None,
        offline: bool = False,
        progress: Progress | None = None,
        max_waiting: int = 1024,
        **engine_options: Any,
    ) -> None:
        if type(max_waiting) is not int or max_waiting < 1:
            raise RequestError("max_waiting", value=max_waiting, limit="an integer of at least 1")
        if isinstance(model, LLM):
            if engine_options or revision is not None or offline or progress is not None:
                raise RequestError("a loaded model takes no engine options", value=", ".join(engine_options) or None)
            self.llm = model
        else:
            self.llm = LLM(model, revision=revision, offline=offline, progress=progress, **engine_options)
        self.max_waiting = max_waiting
        self.failure: GemwrightError | None = None
        # Guards all that follows; the worker waits on it for work.
        self._changed = threading.Condition()
        self._live: set[_Ticket] = set()
        self._waiting: set[_Ticket] = set()
        self._submitted: list[_Ticket] = []
        self._abandoned: list[_Ticket] = []
        self._idle_watchers: list[Callable[[], None]] = []
        self._is_draining = False
        self._is_stopping = False
        # The worker's own.
        self._ticket_of: dict[int, _Ticket] = {}
        self._worker = threading.Thread(target=self._work, name="gemwright-engine", daemon=True)
        self._worker.start()

    @property
    def num_waiting(self) -> int:
        """Prompts that have not run yet."""
        return len(self._waiting)

    @property
    def num_running(self) -> int:
        """Prompts that have, and are not done."""
        return len(self._live) - len(self._waiting)

    @property
    def counters(self) -> EngineCounters:
        """What the engine has done so far."""
        return self.llm.core.counters

    async def stream(
        self,
        prompt: Prompt,
        params: SamplingParams | None = None,
        *,
        priority: int = 0,
        cache_salt: str | None = None,
    ) -> AsyncGenerator[Piece, None]:
        """Answer a prompt (text, or ids used as given) and yield its pieces as they come.

        Closing the generator or cancelling the task that reads it aborts the request within a step. Raises
        RequestError for what cannot be served, CapacityError when too many wait, when the engine drains or is stopped,
        or for what the pool cannot hold; GemwrightError when logits are not finite or the engine has failed.
        """
        params = params or self.llm.sampling_params()
        if params.has_constraint:  # compiled apart, so that a large one holds up neither the loop nor the worker
            await asyncio.to_thread(self.llm.core.check_constraint, params)
        ticket = self._submit(prompt, params, priority, cache_salt)
        try:
            while True:
                item = await ticket.queue.get()
                if isinstance(item, Exception):
                    raise item
                yield item
                if item.completion is not None:
                    return
        finally:
            self._abandon(ticket)

    async def generate(
        self,
        prompt: Prompt,
        params: SamplingParams | None = None,
        *,
        priority: int = 0,
        cache_salt: str | None = None,
    ) -> Completion:
        """Answer a prompt and return the whole; arguments, cancelling and errors are those of `stream`."""
        pieces = self.stream(prompt, params, priority=priority, cache_salt=cache_salt)
        try:
            async for piece in pieces:
                if piece.completion is not None:
                    return piece.completion
        finally:
            await pieces.aclose()
        raise AssertionError("a stream ends with its completion")

    async def drain(self) -> None:
        """Take no new requests and return when those that are here are done."""
        loop = asyncio.get_running_loop()
        idle = asyncio.Event()

        def announce() -> None:
            with suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(idle.set)

        with self._changed:
            self._is_draining = True
            if not self._live:
                return
            self._idle_watchers.append(announce)
        await idle.wait()

    async def stop(self) -> None:
        """End the worker after the step it is in; what still runs gets an error. Returns when it has ended."""
        with self._changed:
            self._is_stopping = True
            self._changed.notify()
        await asyncio.to_thread(self._worker.join)

    async def __aenter__(self) -> AsyncEngine:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.stop()

    def _submit(self, prompt: Prompt, params: SamplingParams, priority: int, cache_salt: str | None) -> _Ticket:
        loop, queue = asyncio.get_running_loop(), asyncio.Queue[Piece | Exception]()
        ticket = _Ticket(prompt, params, priority, cache_salt, loop, queue, time.perf_counter())
        with self._changed:
            if self.failure is not None:
                raise _again(self.failure)
            if self._is_stopping or self._is_draining:
                raise _stopped()
            if len(self._waiting) >= self.max_waiting:
                raise CapacityError(
                    "too many requests wait",
                    value=len(self._waiting),
                    limit=f"max_waiting {self.max_waiting}",
                    remedy="try again later",
                )
            self._live.add(ticket)
            self._waiting.add(ticket)
            self._submitted.append(ticket)
            self._changed.notify()
        return ticket

    def _abandon(self, ticket: _Ticket) -> None:
        """Tell the worker that nobody reads this ticket any more; nothing happens if it is done."""
        with self._changed:
            if ticket in self._live:
                self._abandoned.append(ticket)
                self._changed.notify()

    def _work(self) -> None:
        """The worker's life: take what came, step, hand out."""
        try:
            while True:
                with self._changed:
                    while not self._has_work():
                        self._changed.wait()
                    if self._is_stopping:
                        break
                    submitted, abandoned = self._submitted, self._abandoned
                    self._submitted, self._abandoned = [], []
                for ticket in submitted:
                    self._start(ticket)
                for ticket in abandoned:
                    self._drop(ticket)
                began = time.perf_counter()
                advanced = self.llm.core.step()
                with self._changed:
                    for ticket in [ticket for ticket in self._waiting if not ticket.is_waiting]:
                        ticket.started_at = began
                        self._waiting.remove(ticket)
                for request in advanced:
                    self._hand_out(request)
            for ticket in list(self._ticket_of.values()):
                self._drop(ticket, _stopped())
            self._end_all(_stopped)
        except BaseException as error:  # whatever it was, nobody may wait for ever
            LOG.error("the engine has failed and takes no more requests", exc_info=error)
            failure = error if isinstance(error, GemwrightError) else _failure(error)
            with self._changed:
                self.failure = failure
            self._end_all(lambda: _again(failure))

    def _has_work(self) -> bool:
        return bool(self._is_stopping or self._submitted or self._abandoned or self.llm.core.scheduler.has_work)

    def _start(self, ticket: _Ticket) -> None:
        try:
            requests = self.llm.add(
                ticket.prompt, ticket.params, priority=ticket.priority, cache_salt=ticket.cache_salt
            )
        except Exception as error:  # nothing of it has reached a step, so it concerns nobody else
            self._drop(ticket, error if isinstance(error, GemwrightError) else _failure(error))
        else:
            submitted_at = ticket.submitted_at
            ticket.cutter = PieceCutter(self.llm.core, requests, lambda: self.llm.completion(requests, submitted_at))
            self._ticket_of.update((request.request_id, ticket) for request in requests)

    def _hand_out(self, request: Request) -> None:
        """Give a ticket what a step added to one of its answers."""
        ticket = self._ticket_of.get(request.request_id)
        if ticket is None or ticket.cutter is None:
            return
        if request.error is not None:
            self._drop(ticket, request.error)
            return
        piece = replace(ticket.cutter.cut(request), started_at=ticket.started_at)
        if not ticket.give(piece) or piece.completion is not None:
            self._drop(ticket)

    def _drop(self, ticket: _Ticket, error: Exception | None = None) -> None:
        """Let a ticket go, done or not; its blocks are free afterwards."""
        for request in ticket.requests:
            self.llm.core.forget(request)
            self._ticket_of.pop(request.request_id, None)
        with self._changed:
            self._waiting.discard(ticket)
            if ticket in self._live:
                self._live.remove(ticket)
                if error is not None:
                    ticket.give(error)
            self._announce_idle()

    def _end_all(self, make_error: Callable[[], GemwrightError]) -> None:
        """Give every ticket that is left an error of its own. The engine itself is not asked any more."""
        with self._changed:
            for ticket in self._live:
                ticket.give(make_error())
            self._live.clear()
            self._waiting.clear()
            self._submitted.clear()
            self._announce_idle()

    def _announce_idle(self) -> None:
        if not self._live:
            for announce in self._idle_watchers:
                announce()
            self._idle_watchers.clear()


def _stopped() -> GemwrightError:
    return CapacityError("the engine is stopping and takes no requests", remedy="send it to another one")


def _failure(error: BaseException) -> GemwrightError:
    if isinstance(error, MemoryError):
        return CapacityError("memory ran out", remedy="use a smaller model, --dtype bfloat16 or a shorter context")
    failure = GemwrightError(f"unforeseen {type(error).__name__}", value=str(error)[:200] or None)
    failure.__cause__ = error
    return failure


def _again(failure: GemwrightError) -> GemwrightError:
    """Return the failure as an error of one waiter's own."""
    error = GemwrightError(f"the engine has failed: {failure.what}", value=failure.value, remedy="start it again")
    error.__cause__ = failure
    return error
