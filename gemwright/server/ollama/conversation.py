"""A conversation in Ollama's shape, made into the engine's ChatRequest. Renders nothing."""

from __future__ import annotations

from typing import Any

from gemwright.engine.chat_request import ChatRequest
from gemwright.server.errors import FieldError
from gemwright.server.ollama.schema import GenerateBody, MessagePart, OllamaChatBody


def chat_request(body: OllamaChatBody) -> ChatRequest:
    """Return the conversation of /api/chat. Raises FieldError for a tool's message that answers no call."""
    messages: list[dict[str, Any]] = []
    waiting: list[str] = []
    for place, message in enumerate(body.messages or []):
        if message.role == "tool":
            messages.append(_tool_message(message, waiting, f"messages.{place}"))
            continue
        found: dict[str, Any] = {"role": message.role, "content": message.content or ""}
        if message.role == "assistant":
            found["reasoning_content"] = message.thinking or None
            found["tool_calls"] = message.tool_calls or None
            waiting = [str((call.get("function") or {}).get("name")) for call in message.tool_calls or []]
        messages.append(found)
    last = body.messages[-1] if body.messages else None
    continues = last is not None and last.role == "assistant" and bool((last.content or "").strip())
    return ChatRequest(
        messages=messages,
        tools=body.tools,
        enable_thinking=body.enable_thinking,
        # As Ollama does: an assistant's message at the end is gone on with.
        continue_final_message=(continues and not (last and last.tool_calls)) or None,
    )


def prompt_request(body: GenerateBody) -> ChatRequest:
    """Return the conversation of one turn that /api/generate asks for."""
    system = [{"role": "system", "content": body.system}] if body.system else []
    messages = [*system, {"role": "user", "content": body.prompt}]
    return ChatRequest(messages=messages, enable_thinking=body.enable_thinking)


def _tool_message(message: MessagePart, waiting: list[str], where: str) -> dict[str, Any]:
    """Return what a tool gave, under its name. `waiting` are the calls before it that have no answer yet."""
    name = message.tool_name
    if name is None and message.tool_call_id is None:
        if not waiting:
            raise FieldError(f"{where}.tool_name", "is missing, and no call before it waits", remedy="send it")
        name = waiting[0]
    if name in waiting:
        waiting.remove(name)
    elif waiting:
        waiting.pop(0)
    found = {"role": "tool", "content": message.content or "", "name": name, "tool_call_id": message.tool_call_id}
    return {key: value for key, value in found.items() if value is not None}
