"""POST /api/chat and /api/generate."""

from __future__ import annotations

import secrets
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from datetime import UTC, datetime
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from gemwright.engine.pieces import Piece
from gemwright.engine.request import FinishReason
from gemwright.server.errors import FieldError, error_body
from gemwright.server.ollama.conversation import chat_request, prompt_request
from gemwright.server.ollama.models import check_name
from gemwright.server.ollama.schema import AnswerBody, GenerateBody, OllamaChatBody
from gemwright.server.openai.logprobs import chat_logprobs
from gemwright.server.route import CompactJson, body_of, read_body, request_id_of, service_of
from gemwright.server.service import Answering, Asked, Service
from gemwright.server.streaming import JSON_LINES, Stream, line, while_connected
from gemwright.text.parser_events import Event, EventType, ToolCall

router = APIRouter(tags=["Ollama"])

_NANOSECONDS = 1_000_000_000


@router.post(
    "/api/chat",
    openapi_extra=body_of(
        OllamaChatBody,
        {"model": "gemma", "messages": [{"role": "user", "content": "Why is the sky blue?"}]},
        stream=JSON_LINES,
    ),
)
async def chat(request: Request) -> Response:
    """Answer a conversation, as it comes or whole."""
    service = service_of(request)
    body = await read_body(request, OllamaChatBody)
    name = check_name(service, body.model)
    llm = service.llm
    if not body.messages:
        return CompactJson(_loaded(name, {"message": {"role": "assistant", "content": ""}}))
    asked = await service.ask_chat(chat_request(body), body.fields(llm.engine.max_model_len))
    return await _answer(request, service, body, name, asked)


@router.post(
    "/api/generate",
    openapi_extra=body_of(GenerateBody, {"model": "gemma", "prompt": "Why is the sky blue?"}, stream=JSON_LINES),
)
async def generate(request: Request) -> Response:
    """Answer one prompt, as it comes or whole."""
    service = service_of(request)
    body = await read_body(request, GenerateBody)
    name = check_name(service, body.model)
    fields = body.fields(service.llm.engine.max_model_len)
    if not body.prompt:
        return CompactJson(_loaded(name, {"response": ""}))
    if body.raw:
        if body.system:
            raise FieldError("raw", "sends the prompt as it is, and system stands beside it", remedy="send one of them")
        if body.enable_thinking:
            raise FieldError("think", "is the template's, which raw leaves out", remedy="send one of them")
        asked = await service.ask(body.prompt, fields)
    else:
        asked = await service.ask_chat(prompt_request(body), fields)
    return await _answer(request, service, body, name, asked)


async def _answer(request: Request, service: Service, body: AnswerBody, name: str, asked: Asked) -> Response:
    writer = AnswerWriter(service, body, name, request_id_of(request), asked)
    if body.stream is not False:
        # No keep-alives: clients read every line as JSON.
        keep_alive_s = service.settings.keep_alive_s
        return Stream(writer.stream(), media_type=JSON_LINES, keep_alive_s=keep_alive_s, keep_alive=b"")
    return CompactJson(await while_connected(request, writer.whole))


class AnswerWriter:
    """Writes one answer in Ollama's shapes: a `message` for chats, a `response` for prompts."""

    def __init__(self, service: Service, body: AnswerBody, model: str, request_id: str, asked: Asked) -> None:
        self.service = service
        self.body = body
        self.model = model
        self.request_id = request_id
        self.asked = asked
        self.is_chat = isinstance(body, OllamaChatBody)
        self.tokenizer = service.llm.tokenizer
        self._call_name = ""
        self._arguments: list[str] = []

    async def whole(self) -> dict[str, Any]:
        """Return the whole answer."""
        content: list[str] = []
        thinking: list[str] = []
        calls: list[dict[str, Any]] = []
        logprobs: list[dict[str, Any]] = []
        pieces = self.service.pieces(self.asked, self.request_id)
        async with aclosing(pieces):
            async for answering, piece in pieces:
                self._read(piece, content, thinking, calls)
                logprobs += self._logprobs(piece)
                if piece.completion is not None:
                    said = self._said("".join(content), "".join(thinking), calls, logprobs)
                    return {**said, **self._ended(answering, piece)}
        raise AssertionError("a stream ends with its completion")

    async def stream(self) -> AsyncGenerator[bytes, None]:
        """Yield the answer as it comes; an error in the middle ends the stream as a line of its own."""
        pieces = self.service.pieces(self.asked, self.request_id)
        try:
            async with aclosing(pieces):
                async for answering, piece in pieces:
                    content: list[str] = []
                    thinking: list[str] = []
                    calls: list[dict[str, Any]] = []
                    self._read(piece, content, thinking, calls)
                    logprobs = self._logprobs(piece)
                    chunk = b""
                    if content or thinking or calls or logprobs:
                        said = self._said("".join(content), "".join(thinking), calls, logprobs)
                        chunk = line({**said, "done": False})
                    if piece.completion is not None:
                        chunk += line({**self._said("", "", [], []), **self._ended(answering, piece)})
                    if chunk:
                        yield chunk
        except Exception as error:
            yield line(error_body(error, "ollama"))

    def _read(self, piece: Piece, content: list[str], thinking: list[str], calls: list[dict[str, Any]]) -> None:
        """Put what a piece says where it belongs; a call comes whole."""
        if piece.events is None:
            content += [piece.text] if piece.text else []
            return
        for found in piece.events:
            if found.type is EventType.CONTENT:
                content.append(found.text or "")
            elif found.type is EventType.REASONING:
                thinking.append(found.text or "")
            else:
                calls += self._call(found)

    def _call(self, found: Event) -> list[dict[str, Any]]:
        if found.type is EventType.TOOL_CALL:
            self._call_name, self._arguments = found.name or "", []
        elif found.type is EventType.ARGUMENTS:
            self._arguments.append(found.text or "")
        elif found.type is EventType.TOOL_CALL_END:
            call = ToolCall(self._call_name, "".join(self._arguments))
            function = {"index": found.index, "name": call.name, "arguments": call.arguments}
            return [{"id": f"call_{secrets.token_hex(4)}", "function": function}]
        return []

    def _logprobs(self, piece: Piece) -> list[dict[str, Any]]:
        if piece.logprobs is None or not piece.token_ids:
            return []
        found = chat_logprobs(self.tokenizer, piece.token_ids, piece.logprobs, self.body.top_logprobs or 0)
        content: list[dict[str, Any]] = found["content"]
        return content

    def _said(self, content: str, thinking: str, calls: list[dict[str, Any]], logprobs: list[Any]) -> dict[str, Any]:
        optional: dict[str, Any] = {}
        if thinking:
            optional["thinking"] = thinking
        if calls:
            optional["tool_calls"] = calls
        head: dict[str, Any] = {"model": self.model, "created_at": _now()}
        if self.is_chat:
            head["message"] = {"role": "assistant", "content": content, **optional}
        else:
            head.update({"response": content, **optional})
        return {**head, "logprobs": logprobs} if logprobs else head

    def _ended(self, answering: Answering, piece: Piece) -> dict[str, Any]:
        now = time.perf_counter()
        first = answering.first_token_at or now
        last = answering.last_token_at or now
        return {
            "done": True,
            "done_reason": "length" if piece.finish_reason is FinishReason.LENGTH else "stop",
            "total_duration": _duration(answering.arrived_at, now),
            "load_duration": 0,
            "prompt_eval_count": self.asked.num_prompt_tokens,
            "prompt_eval_duration": _duration(answering.arrived_at, first),
            "eval_count": answering.num_tokens,
            "eval_duration": _duration(first, last),
        }


def _loaded(name: str, said: dict[str, Any]) -> dict[str, Any]:
    return {"model": name, "created_at": _now(), **said, "done": True, "done_reason": "load"}


def _now() -> str:
    return datetime.now(UTC).isoformat().replace("+00:00", "Z")


def _duration(begin: float, end: float) -> int:
    """Return the nanoseconds between two readings of perf_counter."""
    return round((end - begin) * _NANOSECONDS)
