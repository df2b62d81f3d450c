"""What the output parser gives: events as the text comes, and all of it at the end."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from gemwright.text.parser_json import read_json


class EventType(StrEnum):
    """The kinds of events, spelled as `gemwright parse` prints them."""

    REASONING = "reasoning"
    CONTENT = "content"
    TOOL_CALL = "tool_call"
    ARGUMENTS = "arguments"
    TOOL_CALL_END = "tool_call_end"
    FINISH = "finish"


@dataclass(frozen=True, slots=True)
class Event:
    """One thing that has become certain.

    index: which call, from 0, of the three kinds that speak of a call.
    name: the tool's name, of TOOL_CALL.
    text: of REASONING and CONTENT the next text; of ARGUMENTS the next piece of the arguments' JSON; of FINISH the
        finish reason.
    """

    type: EventType
    index: int | None = None
    name: str | None = None
    text: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return the fields that are set, for JSON."""
        fields = {"type": self.type.value, "index": self.index, "name": self.name, "text": self.text}
        return {name: value for name, value in fields.items() if value is not None}


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A complete call: the tool's name and the JSON object of its arguments, as text.

    has_duplicate_keys: a key came again when its first value had been given out; readers of JSON take the last.
    """

    name: str
    arguments_json: str
    has_duplicate_keys: bool = False

    @property
    def arguments(self) -> dict[str, Any]:
        """The arguments as Python values, of any depth; of keys given twice the last counts."""
        value = read_json(self.arguments_json)
        assert isinstance(value, dict)
        return value


@dataclass(frozen=True, slots=True)
class UnfinishedCall:
    """A call that was cut: no call to carry out. `text` is what the model wrote of it, string marks as `"`."""

    name: str
    text: str


@dataclass(frozen=True, slots=True)
class ParsedOutput:
    """A whole output. Its texts are those of the events, joined; None where there is none.

    finish_reason: None before the end. warnings: what was repaired, left out or cut, each kind once.
    """

    reasoning_content: str | None
    content: str | None
    tool_calls: tuple[ToolCall, ...]
    finish_reason: str | None
    unfinished_calls: tuple[UnfinishedCall, ...]
    warnings: tuple[str, ...]
