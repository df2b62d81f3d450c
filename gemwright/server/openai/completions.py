"""POST /v1/completions: one prompt or several, each answered as plain text."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import aclosing, contextmanager
from dataclasses import dataclass, field
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from gemwright.engine.llm import Prompt
from gemwright.engine.pieces import Piece
from gemwright.engine.request import FinishReason
from gemwright.engine.result import Choice, Logprobs
from gemwright.errors import PromptTooLongError, RequestError
from gemwright.server.errors import BusyError, FieldError, error_body
from gemwright.server.openai.completions_schema import CompletionBody
from gemwright.server.openai.logprobs import TextPlaces, prompt_logprobs, shown, text_logprobs
from gemwright.server.openai.usage import added, usage_of
from gemwright.server.route import CompactJson, body_of, read_body, request_id_of, service_of
from gemwright.server.service import Answering, Asked, Service
from gemwright.server.streaming import EVENT_STREAM, Stream, event, while_connected

router = APIRouter()

DONE = b"data: [DONE]\n\n"


@router.post(
    "/v1/completions",
    tags=["OpenAI"],
    openapi_extra=body_of(CompletionBody, {"prompt": "The sky is", "max_tokens": 16}, stream=EVENT_STREAM),
)
async def completions(request: Request) -> Response:
    """Go on with one or more prompts, whole or as it comes."""
    service = service_of(request)
    body = await read_body(request, CompletionBody)
    name = service.check_model(body.model)
    fields = body.fields()
    _require_room(service, body)
    asked = []
    for index, prompt in enumerate(body.prompts):
        field_name = body.field_of_prompt(index)
        with _naming_prompt(field_name):
            ids = await service.prompt_ids(prompt)
        with body.naming_constraints(), _naming_ids(field_name):
            asked.append(await service.ask(ids, fields, priority=body.priority or 0, cache_salt=body.cache_salt))
    writer = CompletionWriter(service, body, name, body.request_id or request_id_of(request), asked)
    if body.stream:
        return Stream(writer.stream(), keep_alive_s=service.settings.keep_alive_s)
    return CompactJson(await while_connected(request, writer.whole))


def _require_room(service: Service, body: CompletionBody) -> None:
    """Raise FieldError for more answers than one request may ask for or without a text to send, BusyError where its
    prompts would be too many to wait."""
    settings, num_prompts = service.settings, len(body.prompts)
    if body.num_written > settings.max_answers:
        name = "n" if body.best_of is None else "best_of"
        raise FieldError(name, "is too large", value=body.num_written, limit=settings.max_answers)
    if num_prompts * body.num_written > settings.max_answers:
        raise FieldError(
            "prompt",
            "asks for too many answers",
            value=f"{num_prompts} prompts, {body.num_written} answers to each",
            limit=f"{settings.max_answers} answers in all",
            remedy="send several requests, or start the server with a larger --max-answers",
        )
    if num_prompts > settings.max_num_queued_requests:
        raise FieldError(
            "prompt", "has more prompts than may wait", value=num_prompts, limit=settings.max_num_queued_requests
        )
    if service.llm.tokenizer is None and (body.echo or not body.return_token_ids):
        raise FieldError(
            "echo" if body.echo else "return_token_ids",
            "this checkpoint has no tokenizer files, so nothing can be sent as text",
            remedy="send return_token_ids true, and no echo",
        )
    waiting = service.engine.num_waiting
    if waiting + num_prompts > settings.max_num_queued_requests:
        raise BusyError(
            "too many requests wait",
            value=f"{waiting}, and {num_prompts} prompts would follow",
            limit=f"{settings.max_num_queued_requests} waiting",
        )


@contextmanager
def _naming_prompt(name: str) -> Iterator[None]:
    """Raise what is wrong with a prompt under the name of the field that it came in."""
    try:
        yield
    except RequestError as error:
        raise FieldError(name, error.what, value=error.value, limit=error.limit, remedy=error.remedy) from error


@contextmanager
def _naming_ids(name: str) -> Iterator[None]:
    """Raise what the engine says against a prompt's ids, and nothing else, as `_naming_prompt` does."""
    try:
        yield
    except PromptTooLongError as error:
        what = f"{name}: {error.what}"
        raise PromptTooLongError(what, value=error.value, limit=error.limit, remedy=error.remedy) from error
    except RequestError as error:
        if error.what != "prompt_token_ids":
            raise
        raise FieldError(name, "holds what is no token id", value=error.value, limit=error.limit) from error


@dataclass(slots=True)
class _Echo:
    """One prompt as its answers' texts begin with it."""

    text: str
    logprobs: dict[str, Any] | None = None
    prompt_logprobs: Any = None


@dataclass(slots=True)
class _Answer:
    """One answer of a stream as far as it was sent."""

    places: TextPlaces
    is_begun: bool = False


@dataclass(slots=True)
class _Streamed:
    """One prompt of a stream. Where logprobs of the prompt are to be sent, nothing of its answers goes out before the
    first of them has come, with which they come."""

    usage: dict[str, Any]
    echo: _Echo | None = None
    held_back: list[Piece] = field(default_factory=list)
    answers: dict[int, _Answer] = field(default_factory=dict)


class CompletionWriter:
    """Writes the answers to all prompts of a request in OpenAI's shapes; `asked` are the prompts of `body`, checked.

    Choices are numbered prompt by prompt: those of the first prompt, then those of the second.
    """

    def __init__(
        self, service: Service, body: CompletionBody, model: str, request_id: str, asked: Sequence[Asked]
    ) -> None:
        self.service = service
        self.body = body
        self.model = model
        self.request_id = request_id
        self.asked = asked
        self.id = f"cmpl-{request_id}"
        self.created = int(time.time())
        self.tokenizer = service.llm.tokenizer

    async def whole(self) -> dict[str, Any]:
        """Return the whole answer. Where one prompt fails, the others end too, and its error is raised."""
        try:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(self.service.answer(asked, self.request_id)) for asked in self.asked]
        except BaseExceptionGroup as errors:
            raise errors.exceptions[0] from None
        answerings = [task.result() for task in tasks]
        return {
            **self._head(),
            "choices": [
                choice for index, answering in enumerate(answerings) for choice in self._choices(index, answering)
            ],
            "usage": added([usage_of(answering) for answering in answerings]),
        }

    async def stream(self) -> AsyncGenerator[bytes, None]:
        """Yield the answers as they come; an error in the middle ends all of them, as an event of its own."""
        options = self.body.stream_options
        wants_usage = options is not None and bool(options.include_usage)
        each_usage = options is not None and bool(options.continuous_usage_stats)
        prompts = [_Streamed(usage_of(Answering(asked, self.request_id))) for asked in self.asked]
        pieces = self._pieces()
        try:
            async with aclosing(pieces):
                async for index, answering, piece in pieces:
                    prompts[index].usage = usage_of(answering, piece.num_cached_tokens)
                    for choice in self._streamed(index, prompts[index], piece):
                        chunk = {**self._head(), "choices": [choice]}
                        if each_usage:
                            chunk["usage"] = added([prompt.usage for prompt in prompts])
                        elif wants_usage:
                            chunk["usage"] = None
                        yield event(chunk)
        except Exception as error:
            yield event(error_body(error, "openai"))
            yield DONE
            return
        if wants_usage:
            yield event({**self._head(), "choices": [], "usage": added([prompt.usage for prompt in prompts])})
        yield DONE

    async def _pieces(self) -> AsyncGenerator[tuple[int, Answering, Piece], None]:
        """Yield the pieces of all prompts as they come, each with its prompt's number. The first error of a prompt is
        raised; it aborts all of them, as closing the generator does."""
        if len(self.asked) == 1:  # without a task and a queue, which take their time
            async with aclosing(self.service.pieces(self.asked[0], self.request_id)) as only:
                async for answering, piece in only:
                    yield 0, answering, piece
            return
        queue: asyncio.Queue[tuple[int, Answering, Piece] | Exception | None] = asyncio.Queue()

        async def read(index: int, asked: Asked) -> None:
            try:
                async with aclosing(self.service.pieces(asked, self.request_id)) as pieces:
                    async for answering, piece in pieces:
                        queue.put_nowait((index, answering, piece))
                queue.put_nowait(None)
            except Exception as error:
                queue.put_nowait(error)

        tasks = [asyncio.ensure_future(read(index, asked)) for index, asked in enumerate(self.asked)]
        num_running = len(tasks)
        try:
            while num_running:
                item = await queue.get()
                if isinstance(item, Exception):
                    raise item
                if item is None:
                    num_running -= 1
                else:
                    yield item
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def _head(self) -> dict[str, Any]:
        return {
            "id": self.id,
            "object": "text_completion",
            "created": self.created,
            "model": self.model,
            "system_fingerprint": None,
        }

    def _choices(self, index: int, answering: Answering) -> Iterator[dict[str, Any]]:
        """Yield the choices of one prompt."""
        completion = answering.completion
        assert completion is not None
        echo = self._echo(index, completion.prompt_logprobs)
        answers = completion.choices
        if self.body.num_written > self.body.num_answers:
            answers = tuple(sorted(answers, key=_mean_logprob, reverse=True)[: self.body.num_answers])
        for number, answer in enumerate(answers):
            choice = self._choice(index, number, answer.text, answer.finish_reason)
            choice["text"] = echo.text + choice["text"]
            if self.body.logprobs is not None and answer.logprobs is not None:
                places = TextPlaces(self.tokenizer, len(echo.text))
                found = self._logprobs(answer.token_ids, answer.logprobs, places)
                before = echo.logprobs
                choice["logprobs"] = found if before is None else {key: before[key] + found[key] for key in found}
            choice |= self._of_prompt(index, echo)
            if self.body.return_token_ids:
                choice["token_ids"] = list(answer.token_ids)
            yield choice

    def _streamed(self, index: int, prompt: _Streamed, piece: Piece) -> Iterator[dict[str, Any]]:
        """Yield what a piece adds to the choices, one an event; an answer's first one brings what is of the prompt."""
        prompt.held_back.append(piece)
        if prompt.echo is None:
            if piece.prompt_logprobs is None and self.body.num_prompt_logprobs is not None:
                return
            prompt.echo = self._echo(index, piece.prompt_logprobs)
        pieces, prompt.held_back = prompt.held_back, []
        for held in pieces:
            yield from self._chunks(index, prompt, prompt.echo, held)

    def _chunks(self, index: int, prompt: _Streamed, echo: _Echo, piece: Piece) -> Iterator[dict[str, Any]]:
        number = piece.answer_index
        answer = prompt.answers.setdefault(number, _Answer(TextPlaces(self.tokenizer, len(echo.text))))
        of_prompt = {} if answer.is_begun else self._of_prompt(index, echo)
        if not answer.is_begun and (echo.text or of_prompt):
            yield {**self._choice(index, number, echo.text, None), "logprobs": echo.logprobs, **of_prompt}
        answer.is_begun = True
        choice = self._choice(index, number, piece.text, piece.finish_reason)
        if piece.logprobs:
            choice["logprobs"] = self._logprobs(piece.token_ids, piece.logprobs, answer.places)
        if self.body.return_token_ids:
            choice["token_ids"] = list(piece.token_ids)
        if piece.text or piece.finish_reason is not None or piece.logprobs or self.body.return_token_ids:
            yield choice

    def _choice(self, index: int, number: int, text: str | None, reason: FinishReason | None) -> dict[str, Any]:
        return {
            "index": index * self.body.num_answers + number,
            "text": text or "",
            "logprobs": None,
            "finish_reason": None if reason is None else str(reason),
        }

    def _of_prompt(self, index: int, echo: _Echo) -> dict[str, Any]:
        """Return the fields of a choice that are its prompt's."""
        fields: dict[str, Any] = {}
        if self.body.prompt_logprobs is not None:
            fields["prompt_logprobs"] = echo.prompt_logprobs
        if self.body.return_token_ids:
            fields["prompt_token_ids"] = self.asked[index].prompt_token_ids
        return fields

    def _echo(self, index: int, entries: Sequence[Logprobs | None] | None) -> _Echo:
        """Return what of a prompt goes before its answers; `entries` are the logprobs of its tokens, if asked for."""
        ids = self.asked[index].prompt_token_ids
        found = _Echo("")
        if entries is not None and self.body.prompt_logprobs is not None:
            best = [shown(entry, self.body.prompt_logprobs, chosen) for entry, chosen in zip(entries, ids, strict=True)]
            found.prompt_logprobs = prompt_logprobs(self.tokenizer, best)
        if self.body.echo:
            num_hidden = self._num_added(self.body.prompts[index], ids)
            places = TextPlaces(self.tokenizer, control_words=True, num_hidden=num_hidden)
            offsets = places.of(ids)
            found.text = places.finish()
            if self.body.logprobs is not None and entries is not None:
                found.logprobs = text_logprobs(self.tokenizer, ids, entries, self.body.logprobs, offsets)
        return found

    def _num_added(self, prompt: Prompt, ids: Sequence[int]) -> int:
        """Return how many first tokens of a prompt are not in its text: the BOS, unless it is spelled there."""
        assert self.tokenizer is not None  # as there is an echo
        bos = self.tokenizer.bos_token_id
        if not isinstance(prompt, str) or bos is None or ids[0] != bos:
            return 0
        return 0 if prompt.startswith(self.tokenizer.id_to_token(bos) or "\0") else 1

    def _logprobs(self, token_ids: Sequence[int], entries: Sequence[Logprobs], places: TextPlaces) -> dict[str, Any]:
        return text_logprobs(self.tokenizer, token_ids, entries, self.body.logprobs or 0, places.of(token_ids))


def _mean_logprob(answer: Choice) -> float:
    """Return how likely an answer is per token."""
    entries = answer.logprobs or ()
    values = [
        next(item.logprob for item in entry if item.token_id == token_id)
        for token_id, entry in zip(answer.token_ids, entries, strict=True)
    ]
    return sum(values) / len(values)
