"""POST /v1/responses, without a memory: what is asked for by the id of a response is not here."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Iterable
from contextlib import aclosing
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from gemwright.engine.request import FinishReason
from gemwright.server.errors import BusyError, FieldError, NotFoundError, message_of, status_of
from gemwright.server.openai.responses_events import Items, TextLogprobs
from gemwright.server.openai.responses_input import read_conversation
from gemwright.server.openai.responses_schema import ENCRYPTED_THOUGHTS, LOGPROBS, FormatPart, ResponsesBody
from gemwright.server.openai.usage import usage_of
from gemwright.server.route import CompactJson, body_of, read_body, request_id_of, service_of
from gemwright.server.service import Answering, Asked, Service
from gemwright.server.streaming import EVENT_STREAM, Stream, event, while_connected

router = APIRouter(tags=["OpenAI"])


class NotStoredError(NotFoundError):
    """A response is asked for by its id."""

    default_remedy = "keep the response where it is received, and send its output as input of the next request"


@router.post(
    "/v1/responses", openapi_extra=body_of(ResponsesBody, {"input": "Why is the sky blue?"}, stream=EVENT_STREAM)
)
async def responses(request: Request) -> Response:
    """Answer a conversation of items, whole or as it comes. Nothing is stored."""
    service = service_of(request)
    body = await read_body(request, ResponsesBody)
    name = service.check_model(body.model)
    conversation = read_conversation(body)
    fields = _sampling_fields(body)
    with conversation.naming_fields():
        asked = await service.ask_chat(conversation.request, fields)
    writer = ResponseWriter(service, body, name, request_id_of(request), asked)
    if body.stream:
        return Stream(writer.stream(), keep_alive_s=service.settings.keep_alive_s)
    return CompactJson(await while_connected(request, writer.whole))


@router.get("/v1/responses/{response_id}", status_code=404)
@router.delete("/v1/responses/{response_id}", status_code=404)
@router.get("/v1/responses/{response_id}/input_items", status_code=404)
@router.post("/v1/responses/{response_id}/cancel", status_code=404)
async def stored_response(response_id: str) -> Response:
    """Refuse: responses are not stored."""
    raise NotStoredError("responses are not stored here", value=response_id[:200])


def _sampling_fields(body: ResponsesBody) -> dict[str, Any]:
    """Return the fields of SamplingParams that the client set. Raises FieldError where they contradict each other."""
    for number, name in enumerate(body.include or ()):
        if name not in (LOGPROBS, ENCRYPTED_THOUGHTS):
            raise FieldError(
                f"include[{number}]",
                "is nothing that a response has here",
                value=repr(name)[:80],
                limit=f"{LOGPROBS}, {ENCRYPTED_THOUGHTS}",
                remedy="leave it out",
            )
    wants_logprobs = LOGPROBS in (body.include or ())
    if body.top_logprobs and not wants_logprobs:
        raise FieldError("top_logprobs", "needs the logprobs of the text", remedy=f"send include with {LOGPROBS}")
    return {
        "max_tokens": body.max_output_tokens,
        "temperature": body.temperature,
        "top_p": body.top_p,
        "logprobs": (body.top_logprobs or 0) if wants_logprobs else None,
        **_constraint(None if body.text is None else body.text.format),
    }


def _constraint(form: FormatPart | None) -> dict[str, Any]:
    if form is None:
        return {}
    if (form.type == "json_schema") != (form.schema_ is not None):
        what = "is missing" if form.schema_ is None else f"goes not with type {form.type}"
        remedy = "send the schema" if form.schema_ is None else "send type json_schema"
        raise FieldError("text.format.schema", what, remedy=remedy)
    if form.type == "json_object":
        return {"json_object": True}
    return {} if form.schema_ is None else {"json_schema": form.schema_}


class ResponseWriter:
    """Writes one response in OpenAI's shapes."""

    def __init__(self, service: Service, body: ResponsesBody, model: str, request_id: str, asked: Asked) -> None:
        self.service = service
        self.body = body
        self.model = model
        self.request_id = request_id
        self.asked = asked
        self.id = f"resp_{request_id}"
        self.created = int(time.time())
        has_logprobs = asked.params.logprobs is not None
        logprobs = TextLogprobs(service.llm.tokenizer, body.top_logprobs or 0) if has_logprobs else None
        self.summary = None if body.reasoning is None else body.reasoning.wanted_summary
        self.items = Items(logprobs, has_summaries=self.summary is not None)
        self.num_events = 0
        self.num_cached = 0

    async def whole(self) -> dict[str, Any]:
        """Return the whole response."""
        pieces = self.service.pieces(self.asked, self.request_id)
        async with aclosing(pieces):
            async for answering, piece in pieces:
                for _ in self.items.add(piece):
                    pass
                if piece.completion is not None:
                    return self._ended(answering)
        raise AssertionError("a stream ends with its completion")

    async def stream(self) -> AsyncGenerator[bytes, None]:
        """Yield the response as it comes; an error in the middle ends it as a failed one."""
        begun = self._response("in_progress")
        kinds = ("response.created", "response.in_progress")
        yield self._sent({"type": kind, "response": begun} for kind in kinds)
        pieces = self.service.pieces(self.asked, self.request_id)
        answering: Answering | None = None
        try:
            async with aclosing(pieces):
                async for answering, piece in pieces:
                    self.num_cached = piece.num_cached_tokens
                    chunk = self._sent(self.items.add(piece))
                    if piece.completion is not None:
                        ended = self._ended(answering)
                        chunk += self._sent([{"type": f"response.{ended['status']}", "response": ended}])
                    if chunk:
                        yield chunk
        except Exception as error:
            last = self._sent(self.items.end(is_cut=True))
            failed = self._response("failed", answering, error=_failure(error))
            yield last + self._sent([{"type": "response.failed", "response": failed}])

    def _sent(self, events: Iterable[dict[str, Any]]) -> bytes:
        """Return events as they go out, numbered. Items grow: each event is written before the next is made."""
        written = []
        for found in events:
            written.append(event({**found, "sequence_number": self.num_events}, found["type"]))
            self.num_events += 1
        return b"".join(written)

    def _ended(self, answering: Answering) -> dict[str, Any]:
        assert answering.completion is not None
        is_cut = answering.completion.finish_reason is FinishReason.LENGTH
        return self._response("incomplete" if is_cut else "completed", answering)

    def _response(
        self, status: str, answering: Answering | None = None, error: dict[str, Any] | None = None
    ) -> dict[str, Any]:
        body, params = self.body, self.asked.params
        form = None if body.text is None else body.text.format
        return {
            "id": self.id,
            "object": "response",
            "created_at": self.created,
            "status": status,
            "completed_at": int(time.time()) if status == "completed" else None,
            "error": error,
            # The context's end is told like this too: clients know no other reason.
            "incomplete_details": {"reason": "max_output_tokens"} if status == "incomplete" else None,
            "instructions": body.instructions,
            "metadata": body.metadata or {},
            "model": self.model,
            "output": self.items.whole(),
            "parallel_tool_calls": body.parallel_tool_calls is not False,
            "temperature": params.temperature,
            "top_p": params.top_p,
            "tool_choice": "auto" if body.tool_choice is None else body.tool_choice,
            "tools": body.tools or [],
            "background": False,
            "max_output_tokens": body.max_output_tokens,
            "max_tool_calls": None,
            "previous_response_id": None,
            "reasoning": {
                "effort": None if body.reasoning is None else body.reasoning.effort,
                "summary": self.summary,
            },
            "service_tier": None,
            "store": False,
            "text": {"format": {"type": "text"} if form is None else form.model_dump(by_alias=True, exclude_none=True)},
            "top_logprobs": body.top_logprobs or 0,
            "truncation": "disabled",
            "usage": None if answering is None else _usage(answering, self.num_cached),
            "user": None,
        }


def _usage(answering: Answering, num_cached: int) -> dict[str, Any]:
    counts = usage_of(answering, num_cached)
    prompt = counts["prompt_tokens_details"]
    return {
        "input_tokens": counts["prompt_tokens"],
        "input_tokens_details": {
            "cached_tokens": prompt["cached_tokens"],
            "cache_write_tokens": prompt["cache_write_tokens"],
        },
        "output_tokens": counts["completion_tokens"],
        "output_tokens_details": {"reasoning_tokens": counts["completion_tokens_details"]["reasoning_tokens"]},
        "total_tokens": counts["total_tokens"],
    }


def _failure(error: Exception) -> dict[str, Any]:
    """Return why a response failed, with one of the codes that clients know."""
    if isinstance(error, BusyError):
        code = "rate_limit_exceeded"
    else:
        code = "invalid_prompt" if status_of(error) == 400 else "server_error"
    return {"code": code, "message": message_of(error)}
