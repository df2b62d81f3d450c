"""POST /v1/chat/completions."""

from __future__ import annotations

import secrets
import time
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from gemwright.engine.pieces import Piece
from gemwright.engine.result import Choice
from gemwright.server.errors import error_body
from gemwright.server.openai.chat_schema import ChatBody
from gemwright.server.openai.logprobs import chat_logprobs, prompt_logprobs
from gemwright.server.openai.usage import usage_of
from gemwright.server.route import CompactJson, body_of, read_body, request_id_of, service_of
from gemwright.server.service import Answering, Asked, Service
from gemwright.server.streaming import EVENT_STREAM, Stream, event, while_connected
from gemwright.text.parser_events import Event, EventType

router = APIRouter()

DONE = b"data: [DONE]\n\n"


@router.post(
    "/v1/chat/completions",
    tags=["OpenAI"],
    openapi_extra=body_of(
        ChatBody,
        {"messages": [{"role": "user", "content": "Why is the sky blue?"}], "max_tokens": 64},
        stream=EVENT_STREAM,
    ),
)
async def chat_completions(request: Request) -> Response:
    """Answer a conversation, whole or as it comes."""
    service = service_of(request)
    body = await read_body(request, ChatBody)
    name = service.check_model(body.model)
    with body.naming_constraints():
        asked = await service.ask_chat(
            body.chat_request(), body.fields(), priority=body.priority or 0, cache_salt=body.cache_salt
        )
    request_id = body.request_id or request_id_of(request)
    writer = ChatWriter(service, body, name, request_id, asked)
    if body.stream:
        return Stream(writer.stream(), keep_alive_s=service.settings.keep_alive_s)
    answering = await while_connected(request, lambda: service.answer(asked, request_id))
    return CompactJson(writer.whole(answering))


class ChatWriter:
    """Writes one chat's answer in OpenAI's shapes."""

    def __init__(self, service: Service, body: ChatBody, model: str, request_id: str, asked: Asked) -> None:
        self.service = service
        self.body = body
        self.model = model
        self.request_id = request_id
        self.asked = asked
        self.id = f"chatcmpl-{request_id}"
        self.created = int(time.time())
        self.tokenizer = service.llm.tokenizer
        self.call_ids: dict[tuple[int, int], str] = {}

    def whole(self, answering: Answering) -> dict[str, Any]:
        """Return the whole answer."""
        completion = answering.completion
        assert completion is not None
        content = {
            "id": self.id,
            "object": "chat.completion",
            "created": self.created,
            "model": self.model,
            "choices": [self._choice(index, choice) for index, choice in enumerate(completion.choices)],
            "service_tier": None,
            "system_fingerprint": None,
            "usage": usage_of(answering),
        }
        if self.body.prompt_logprobs is not None:
            content["prompt_logprobs"] = prompt_logprobs(self.tokenizer, completion.prompt_logprobs)
        if self.body.return_token_ids:
            content["prompt_token_ids"] = self.asked.prompt_token_ids
        return content

    async def stream(self) -> AsyncGenerator[bytes, None]:
        """Yield the answer as it comes; an error in the middle ends the stream as an event of its own."""
        options = self.body.stream_options
        wants_usage = options is not None and bool(options.include_usage)
        each_usage = options is not None and bool(options.continuous_usage_stats)
        num_answers = self.asked.params.n
        begun: set[int] = set()
        pieces = self.service.pieces(self.asked, self.request_id)
        answering: Answering | None = None
        try:
            async with aclosing(pieces):
                async for answering, piece in pieces:
                    chunks = []
                    if not begun:
                        # Every answer says who speaks before any of them says anything.
                        begun.update(range(num_answers))
                        chunks = [
                            self._delta(index, {"role": "assistant", "content": ""}) for index in range(num_answers)
                        ]
                        if self.body.return_token_ids:
                            chunks[0]["prompt_token_ids"] = self.asked.prompt_token_ids
                    chunks += self._chunks(piece)
                    for chunk in chunks:
                        if each_usage:
                            chunk["usage"] = usage_of(answering, piece.num_cached_tokens)
                        elif wants_usage:
                            chunk["usage"] = None
                        yield event(chunk)
        except Exception as error:
            yield event(error_body(error, "openai"))
            yield DONE
            return
        if wants_usage and answering is not None:
            yield event({**self._head(), "choices": [], "usage": usage_of(answering)})
        yield DONE

    def _head(self) -> dict[str, Any]:
        return {
            "id": self.id,
            "object": "chat.completion.chunk",
            "created": self.created,
            "model": self.model,
            "system_fingerprint": None,
        }

    def _delta(self, index: int, delta: dict[str, Any], finish_reason: str | None = None) -> dict[str, Any]:
        choice = {"index": index, "delta": delta, "logprobs": None, "finish_reason": finish_reason}
        return {**self._head(), "choices": [choice]}

    def _chunks(self, piece: Piece) -> list[dict[str, Any]]:
        """Return the chunks of one step, one an event; logprobs and ids go with the first, the reason with the last."""
        index = piece.answer_index
        deltas = [delta for found in piece.events or () for delta in self._deltas(index, found)]
        has_extras = bool(piece.token_ids) and (piece.logprobs is not None or bool(self.body.return_token_ids))
        if not deltas and has_extras:
            deltas = [{}]
        chunks = [self._delta(index, delta) for delta in deltas]
        if has_extras:
            choice = chunks[0]["choices"][0]
            if piece.logprobs is not None:
                choice["logprobs"] = self._logprobs(piece.token_ids, piece.logprobs)
            if self.body.return_token_ids:
                choice["token_ids"] = list(piece.token_ids)
        if piece.finish_reason is not None:
            chunks.append(self._delta(index, {}, str(piece.finish_reason)))
        return chunks

    def _deltas(self, answer: int, found: Event) -> Iterator[dict[str, Any]]:
        if found.type is EventType.REASONING and self.body.include_reasoning is not False:
            yield self._reasoning(found.text)
        elif found.type is EventType.CONTENT:
            yield {"content": found.text}
        elif found.type is EventType.TOOL_CALL:
            call_id = self._call_id(answer, found.index or 0)
            function = {"name": found.name, "arguments": ""}
            yield {"tool_calls": [{"index": found.index, "id": call_id, "type": "function", "function": function}]}
        elif found.type is EventType.ARGUMENTS:
            yield {"tool_calls": [{"index": found.index, "function": {"arguments": found.text}}]}

    def _choice(self, index: int, choice: Choice) -> dict[str, Any]:
        found = choice.message
        assert found is not None
        message: dict[str, Any] = {"role": "assistant", "content": found.content, "refusal": None}
        if self.body.include_reasoning is not False:
            message.update(self._reasoning(found.reasoning_content))
        if found.tool_calls:
            message["tool_calls"] = [
                {
                    "id": self._call_id(index, number),
                    "type": "function",
                    "function": {"name": call.name, "arguments": call.arguments_json},
                }
                for number, call in enumerate(found.tool_calls)
            ]
        content: dict[str, Any] = {
            "index": index,
            "message": message,
            "logprobs": None if choice.logprobs is None else self._logprobs(choice.token_ids, choice.logprobs),
            "finish_reason": str(choice.finish_reason),
        }
        if self.body.return_token_ids:
            content["token_ids"] = list(choice.token_ids)
        return content

    def _logprobs(self, token_ids: Any, entries: Any) -> dict[str, Any]:
        found: dict[str, Any] = chat_logprobs(self.tokenizer, token_ids, entries, self.body.top_logprobs or 0)
        return found

    def _reasoning(self, text: str | None) -> dict[str, Any]:
        field = self.service.settings.reasoning_field
        names = ("reasoning", "reasoning_content") if field == "both" else (field,)
        return dict.fromkeys(names, text)

    def _call_id(self, answer: int, number: int) -> str:
        return self.call_ids.setdefault((answer, number), f"call_{secrets.token_hex(12)}")
