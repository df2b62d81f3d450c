"""POST /v1/messages and /v1/messages/count_tokens."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from gemwright.engine.llm import LLM
from gemwright.engine.pieces import Piece
from gemwright.engine.request import FinishReason
from gemwright.server.anthropic.blocks import Blocks
from gemwright.server.anthropic.conversation import chat_request
from gemwright.server.anthropic.schema import CountTokensBody, MessagesBody
from gemwright.server.errors import error_body
from gemwright.server.route import CompactJson, body_of, read_body, request_id_of, service_of
from gemwright.server.service import Answering, Asked, Service
from gemwright.server.streaming import EVENT_STREAM, Stream, event, while_connected

router = APIRouter(tags=["Anthropic"])

PING = event({"type": "ping"}, "ping")


@router.post(
    "/v1/messages",
    openapi_extra=body_of(
        MessagesBody,
        {"model": "gemma", "max_tokens": 64, "messages": [{"role": "user", "content": "Why is the sky blue?"}]},
        stream=EVENT_STREAM,
    ),
)
async def messages(request: Request) -> Response:
    """Answer a conversation, whole or as it comes."""
    service = service_of(request)
    body = await read_body(request, MessagesBody)
    name = service.check_model(body.model)
    chat = chat_request(body, can_think=_can_think(service.llm))
    asked = await service.ask_chat(chat, body.fields())
    writer = MessageWriter(service, body, name, request_id_of(request), asked)
    if body.stream:
        return Stream(writer.stream(), keep_alive_s=service.settings.keep_alive_s, keep_alive=PING)
    return CompactJson(await while_connected(request, writer.whole))


@router.post(
    "/v1/messages/count_tokens",
    openapi_extra=body_of(
        CountTokensBody, {"model": "gemma", "messages": [{"role": "user", "content": "Why is the sky blue?"}]}
    ),
)
async def count_tokens(request: Request) -> dict[str, int]:
    """Count the tokens of a conversation's prompt, tools and all."""
    service = service_of(request)
    body = await read_body(request, CountTokensBody)
    service.check_model(body.model)
    llm = service.llm
    chat = chat_request(body, can_think=_can_think(llm))
    prompt, _ = await asyncio.to_thread(llm.prepare_chat, chat, llm.sampling_params())
    return {"input_tokens": len(prompt.token_ids)}


def _can_think(llm: LLM) -> bool:
    return llm.chat_template is not None and llm.chat_template.can_think


class MessageWriter:
    """Writes one message in Anthropic's shapes."""

    def __init__(self, service: Service, body: MessagesBody, model: str, request_id: str, asked: Asked) -> None:
        self.service = service
        self.body = body
        self.model = model
        self.request_id = request_id
        self.asked = asked
        self.blocks = Blocks(shows_thoughts=body.thinking is None or body.thinking.display != "omitted")
        self.is_silent = body.max_tokens == 0
        """Only the prompt is wanted in the cache: the one token that is made for it is not sent."""

    async def whole(self) -> dict[str, Any]:
        """Return the whole message."""
        pieces = self.service.pieces(self.asked, self.request_id)
        async with aclosing(pieces):
            async for answering, piece in pieces:
                self._wire_events(piece)
                if piece.completion is not None:
                    ended = self._ended(answering, piece)
                    return {**self._head(), "content": self.blocks.whole(), **ended["delta"], "usage": ended["usage"]}
        raise AssertionError("a stream ends with its completion")

    async def stream(self) -> AsyncGenerator[bytes, None]:
        """Yield the message as it comes; an error in the middle ends the stream as an event of its own."""
        pieces = self.service.pieces(self.asked, self.request_id)
        is_begun = False
        try:
            async with aclosing(pieces):
                async for answering, piece in pieces:
                    chunks = []
                    if not is_begun:
                        # With the first step, which knows how much of the prompt was cached.
                        chunks = [_sent(self._start(answering, piece)), PING]
                        is_begun = True
                    chunks += [_sent(found) for found in self._wire_events(piece)]
                    if piece.completion is not None:
                        chunks += [_sent(self._ended(answering, piece)), _sent({"type": "message_stop"})]
                    if chunks:
                        yield b"".join(chunks)
        except Exception as error:
            yield event(error_body(error, "anthropic"), "error")

    def _wire_events(self, piece: Piece) -> list[dict[str, Any]]:
        if self.is_silent:
            return []
        found = [sent for part in piece.events or () for sent in self.blocks.add(part)]
        return found if piece.finish_reason is None else [*found, *self.blocks.end()]

    def _head(self) -> dict[str, Any]:
        return {"id": f"msg_{self.request_id}", "type": "message", "role": "assistant", "model": self.model}

    def _start(self, answering: Answering, piece: Piece) -> dict[str, Any]:
        message = {
            **self._head(),
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            "usage": self._usage(answering, piece, num_output=0),
        }
        return {"type": "message_start", "message": message}

    def _ended(self, answering: Answering, piece: Piece) -> dict[str, Any]:
        num_output = 0 if self.is_silent else answering.num_tokens
        reason = self._stop_reason(piece, answering.num_tokens)
        return {
            "type": "message_delta",
            "delta": {
                "stop_reason": reason,
                "stop_sequence": piece.stop_string if reason == "stop_sequence" else None,
            },
            "usage": self._usage(answering, piece, num_output),
        }

    def _stop_reason(self, piece: Piece, num_tokens: int) -> str:
        if self.is_silent:
            return "max_tokens"
        if piece.finish_reason is FinishReason.TOOL_CALLS:
            return "tool_use"
        if piece.finish_reason is FinishReason.LENGTH:
            return "max_tokens" if num_tokens >= self.body.max_tokens else "model_context_window_exceeded"
        return "end_turn" if piece.stop_string is None else "stop_sequence"

    def _usage(self, answering: Answering, piece: Piece, num_output: int) -> dict[str, Any]:
        """Return the counts. Clients take the three of the input together for all of it."""
        return {
            "input_tokens": self.asked.num_prompt_tokens - piece.num_cached_tokens,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": piece.num_cached_tokens,
            "output_tokens": num_output,
            "output_tokens_details": {"thinking_tokens": min(num_output, answering.num_reasoning_tokens)},
            "service_tier": "standard",
        }


def _sent(content: dict[str, Any]) -> bytes:
    return event(content, content["type"])
