"""A conversation in Anthropic's shape, made into the engine's ChatRequest. Renders nothing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from gemwright.engine.chat_request import ChatRequest
from gemwright.server.anthropic.markers import without_markers
from gemwright.server.anthropic.schema import (
    ConversationBody,
    CustomTool,
    RedactedThinkingBlock,
    TextBlock,
    ThinkingBlock,
    ToolResultBlock,
    ToolUseBlock,
)
from gemwright.server.errors import FieldError
from gemwright.server.fields import Part, parse_part

BETWEEN = "\n\n"
"""Stands between blocks of text."""

_MEDIA = ("image", "document", "container_upload")
_BLOCKS: dict[str, dict[str, type[Part]]] = {
    "user": {"text": TextBlock, "tool_result": ToolResultBlock},
    "assistant": {
        "text": TextBlock,
        "tool_use": ToolUseBlock,
        "thinking": ThinkingBlock,
        "redacted_thinking": RedactedThinkingBlock,
    },
    "system": {"text": TextBlock},
    "tool_result": {"text": TextBlock},
}
_HARMLESS_EDITS = ("clear_thinking_20251015",)


def chat_request(body: ConversationBody, *, can_think: bool) -> ChatRequest:
    """Return the conversation; `can_think` says whether the model has a switch for thinking, for "adaptive".

    Raises FieldError for what this server cannot do, and for what contradicts itself.
    """
    _check_edits(body.context_management)
    messages = [*_system(body), *_Messages(body).read()]
    continues = _is_continued(body)
    choice = body.tool_choice
    thinking = None
    if body.thinking is not None:
        thinking = can_think if body.thinking.type == "adaptive" else body.thinking.type == "enabled"
        if continues and body.thinking.type == "enabled":
            raise FieldError(
                "thinking", "comes before an answer, and this one is begun", remedy="end with a user message"
            )
    return ChatRequest(
        messages=messages,
        tools=None if body.tools is None else [_tool(tool, f"tools.{i}") for i, tool in enumerate(body.tools)],
        tool_choice=_tool_choice(body),
        parallel_tool_calls=False if choice is not None and choice.disable_parallel_tool_use else None,
        enable_thinking=thinking,
        continue_final_message=continues or None,
    )


def _system(body: ConversationBody) -> list[dict[str, Any]]:
    text = _system_text(body.system or "", "system")
    return [{"role": "system", "content": text}] if text.strip() else []


def _system_text(content: str | list[dict[str, Any]], where: str) -> str:
    if isinstance(content, str):
        return without_markers(content)
    texts = [
        without_markers(block.text) for _, block in _read(content, where, "system") if isinstance(block, TextBlock)
    ]
    return BETWEEN.join(text for text in texts if text.strip())


def _read(content: list[dict[str, Any]], where: str, place: str) -> Iterator[tuple[str, Part]]:
    """Yield each block with its path."""
    known = _BLOCKS[place]
    for number, block in enumerate(content):
        here = f"{where}.{number}"
        kind = block.get("type")
        if not isinstance(kind, str) or kind not in known:
            what = "this version reads text alone" if kind in _MEDIA else "no such block is read here"
            remedy = "leave it out, or send its text" if kind in _MEDIA else "change it"
            raise FieldError(f"{here}.type", what, value=repr(kind)[:80], limit=", ".join(known), remedy=remedy)
        yield here, parse_part(known[kind], block, here)


class _Messages:
    """Reads messages in order, since results of tools name calls before them."""

    def __init__(self, body: ConversationBody) -> None:
        self.body = body
        self.call_ids: set[str] = set()

    def read(self) -> list[dict[str, Any]]:
        """Return the messages in OpenAI's form."""
        found: list[dict[str, Any]] = []
        for number, message in enumerate(self.body.messages):
            where = f"messages.{number}.content"
            if message.role == "system":
                text = _system_text(message.content, where)
                found += [{"role": "system", "content": text}] if text.strip() else []
            elif isinstance(message.content, str):
                found.append({"role": message.role, "content": message.content})
            elif message.role == "user":
                found += self._user(message.content, where)
            else:
                found.append(self._assistant(message.content, where))
        return found

    def _user(self, content: list[dict[str, Any]], where: str) -> list[dict[str, Any]]:
        """Return what tools gave, which must stand right behind the calls, and then what the user said."""
        results: list[dict[str, Any]] = []
        texts = []
        for here, block in _read(content, where, "user"):
            if isinstance(block, TextBlock):
                texts.append(block.text)
            elif isinstance(block, ToolResultBlock):
                if block.tool_use_id not in self.call_ids:
                    raise FieldError(
                        f"{here}.tool_use_id",
                        "is the id of no tool_use before it",
                        value=repr(block.tool_use_id)[:80],
                        remedy="send the assistant message with that call before it",
                    )
                text = _result_text(block, here)
                given = {"error": text} if block.is_error else text
                results.append({"role": "tool", "tool_call_id": block.tool_use_id, "content": given})
        return [*results, *([{"role": "user", "content": _joined(texts)}] if texts or not results else [])]

    def _assistant(self, content: list[dict[str, Any]], where: str) -> dict[str, Any]:
        texts, thoughts, calls = [], [], []
        for _, block in _read(content, where, "assistant"):
            if isinstance(block, TextBlock):
                texts.append(block.text)
            elif isinstance(block, ThinkingBlock):
                thoughts.append(block.thinking)
            elif isinstance(block, ToolUseBlock):
                self.call_ids.add(block.id)
                function = {"name": block.name, "arguments": block.input}
                calls.append({"id": block.id, "type": "function", "function": function})
        return {
            "role": "assistant",
            "content": _joined(texts),
            "reasoning_content": _joined(thoughts) or None,
            "tool_calls": calls or None,
        }


def _result_text(block: ToolResultBlock, where: str) -> str:
    if block.content is None or isinstance(block.content, str):
        return block.content or ""
    parts = _read(block.content, f"{where}.content", "tool_result")
    return _joined([part.text for _, part in parts if isinstance(part, TextBlock)])


def _joined(texts: list[str]) -> str:
    return BETWEEN.join(text for text in texts if text)


def _is_continued(body: ConversationBody) -> bool:
    """Whether the answer goes on with the last message. Raises FieldError where that has nothing to go on with."""
    last = body.messages[-1] if body.messages else None
    if last is None or last.role != "assistant":
        return False
    where = f"messages.{len(body.messages) - 1}"
    blocks = [] if isinstance(last.content, str) else last.content
    if any(block.get("type") == "tool_use" for block in blocks):
        raise FieldError(where, "calls tools, and nothing follows", remedy="send a user message with the tool_result")
    texts = [last.content] if isinstance(last.content, str) else [str(block.get("text", "")) for block in blocks]
    if not any(text.strip() for text in texts):
        raise FieldError(where, "is the assistant's, and has no text to go on with", remedy="end with a user message")
    return True


def _tool(tool: Mapping[str, Any], where: str) -> dict[str, Any]:
    kind = tool.get("type")
    if kind not in (None, "custom"):
        raise FieldError(
            f"{where}.type",
            "this tool is known to Anthropic's models and servers alone",
            value=repr(kind)[:80],
            limit="custom",
            remedy="declare it as a custom tool with an input_schema, and run it yourself",
        )
    read = parse_part(CustomTool, tool, where)
    function: dict[str, Any] = {"name": read.name, "parameters": read.input_schema}
    if read.description is not None:
        function["description"] = read.description
    if read.strict:
        function["strict"] = True
    return {"type": "function", "function": function}


def _tool_choice(body: ConversationBody) -> Any:
    choice = body.tool_choice
    if choice is None:
        return None
    if (choice.type == "tool") != (choice.name is not None):
        raise FieldError("tool_choice.name", "goes with type tool", value=choice.name, remedy="send both or none")
    if choice.type == "tool":
        return {"type": "function", "function": {"name": choice.name}}
    return "required" if choice.type == "any" else choice.type


def _check_edits(management: dict[str, Any] | None) -> None:
    for name, value in (management or {}).items():
        if name != "edits" or not isinstance(value, list):
            raise FieldError(f"context_management.{name}", "is no list of edits", remedy="leave it out")
        for number, edit in enumerate(value):
            kind = edit.get("type") if isinstance(edit, dict) else None
            if kind not in _HARMLESS_EDITS:
                raise FieldError(
                    f"context_management.edits.{number}.type",
                    "a prompt is never shortened",
                    value=repr(kind)[:80],
                    limit=", ".join(_HARMLESS_EDITS),
                    remedy="leave it out",
                )
