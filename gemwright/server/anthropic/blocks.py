"""From the output machine's events to Anthropic's content blocks: as events of a stream, and whole."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from typing import Any

from gemwright.text.parser_events import Event, EventType, ToolCall

SIGNATURE = "Z2Vtd3JpZ2h0"
"""Stands where Anthropic signs thoughts, since clients demand it: "gemwright" in base64. Nothing is signed here."""

WireEvent = dict[str, Any]


class Blocks:
    """Writes one answer. What `add` yields and what `whole` gives say the same.

    shows_thoughts: False leaves the text of thoughts out, and keeps their blocks.
    """

    def __init__(self, *, shows_thoughts: bool) -> None:
        self._shows_thoughts = shows_thoughts
        self._blocks: list[dict[str, Any]] = []
        self._kind: str | None = None
        """The type of the block that is open."""
        self._parts: list[str] = []
        self._cut_call: dict[str, Any] | None = None

    def add(self, found: Event) -> Iterator[WireEvent]:
        """Yield what an event means on the wire."""
        if found.type is EventType.CONTENT:
            yield from self._text("text", "text", "text_delta", found.text or "")
        elif found.type is EventType.REASONING:
            yield from self._text("thinking", "thinking", "thinking_delta", found.text or "")
        elif found.type is EventType.TOOL_CALL:
            call_id = f"toolu_{secrets.token_hex(12)}"
            yield from self._begin({"type": "tool_use", "id": call_id, "name": found.name, "input": {}})
        elif found.type is EventType.ARGUMENTS:
            self._parts.append(found.text or "")
            yield self._delta({"type": "input_json_delta", "partial_json": found.text})
        elif found.type is EventType.TOOL_CALL_END:
            call = ToolCall(self._blocks[-1]["name"], "".join(self._parts))
            self._blocks[-1]["input"] = call.arguments
            yield self._close()

    def end(self) -> Iterator[WireEvent]:
        """Yield what closes the block that is open, if one is."""
        if self._kind is None:
            return
        block = self._blocks[-1]
        if self._kind == "thinking":
            block["signature"] = SIGNATURE
            yield self._delta({"type": "signature_delta", "signature": SIGNATURE})
        if self._kind == "tool_use":
            self._cut_call = block
        else:
            block[self._kind] = "".join(self._parts)
        yield self._close()

    def whole(self) -> list[dict[str, Any]]:
        """Return the blocks of an answer that has ended. A call that was cut is none to carry out, and left out."""
        return [block for block in self._blocks if block is not self._cut_call]

    def _text(self, kind: str, name: str, delta: str, text: str) -> Iterator[WireEvent]:
        if self._kind != kind:
            yield from self._begin({"type": kind, name: "", **({"signature": ""} if kind == "thinking" else {})})
        if kind == "thinking" and not self._shows_thoughts:
            return
        self._parts.append(text)
        yield self._delta({"type": delta, name: text})

    def _begin(self, block: dict[str, Any]) -> Iterator[WireEvent]:
        yield from self.end()
        self._kind = block["type"]
        self._blocks.append(block)
        # A copy, since the block is filled before the event is read.
        yield {"type": "content_block_start", "index": len(self._blocks) - 1, "content_block": dict(block)}

    def _close(self) -> WireEvent:
        self._kind, self._parts = None, []
        return {"type": "content_block_stop", "index": len(self._blocks) - 1}

    def _delta(self, delta: dict[str, Any]) -> WireEvent:
        return {"type": "content_block_delta", "index": len(self._blocks) - 1, "delta": delta}
