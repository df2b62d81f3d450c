"""Messages and tools of a request, checked and put into one form. Knows neither templates nor models.

The form is that of the OpenAI interface: what it leaves open is decided here once, and what cannot be used is refused
with its place, `messages[3].tool_calls[0].function.arguments`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from gemwright.errors import RequestError

MAX_DEPTH = 100
"""Deepest nesting of arguments and schemas."""

TEXT_PARTS = ("text", "input_text", "output_text")
MEDIA_PARTS = {
    **dict.fromkeys(("image", "image_url", "input_image"), "image"),
    **dict.fromkeys(("audio", "audio_url", "input_audio"), "audio"),
    **dict.fromkeys(("video", "video_url", "input_video"), "video"),
}
"""What parts of a message are called, and what they are."""

_ROLES = ("system", "developer", "user", "assistant", "tool")
_OTHER_ROLES = {"model": "assistant", "function": "tool"}
SYSTEM_ROLES = ("system", "developer")
"""Two names of one role."""
HARMLESS_FIELDS = frozenset(
    (
        *("id", "name", "annotations", "refusal", "audio", "cache_control", "metadata", "status", "type"),
        # Copies of the content and the thought beside them, put there by OpenAI's client and LiteLLM.
        *("parsed", "provider_specific_fields", "thinking_blocks"),
    )
)
"""Fields that no Gemma template prints; clients send back what they were sent."""
FIELDS_OF_ROLE = {
    "system": frozenset(("content",)),
    "developer": frozenset(("content",)),
    "user": frozenset(("content",)),
    "assistant": frozenset(("content", "reasoning", "reasoning_content", "tool_calls", "function_call")),
    "tool": frozenset(("content", "tool_call_id")),
}
"""What a message of a role says, its role apart."""


@dataclass(frozen=True, slots=True)
class Part:
    """A part of a message: text, or a place where media stand. `kind` is "text", "image", "audio" or "video"."""

    kind: str
    text: str = ""


@dataclass(frozen=True, slots=True)
class Call:
    """A call in the history."""

    name: str
    arguments: Mapping[str, Any]
    call_id: str | None = None


@dataclass(frozen=True, slots=True)
class Message:
    """One message. `tool_name` and `result` are of role "tool": what answered, and what it said as a mapping, if so."""

    role: str
    parts: tuple[Part, ...] = ()
    reasoning: str | None = None
    calls: tuple[Call, ...] = ()
    tool_name: str | None = None
    call_id: str | None = None
    result: Mapping[str, Any] | None = None
    in_parts: bool = False
    """Whether its content came as a list of parts."""

    @property
    def media(self) -> tuple[str, ...]:
        """The kinds of its media, in order."""
        return tuple(part.kind for part in self.parts if part.kind != "text")

    @property
    def text(self) -> str:
        """Its texts, joined."""
        return "".join(part.text for part in self.parts)

    @property
    def given(self) -> Mapping[str, Any] | str | None:
        """What a tool gave: a mapping, text, or nothing."""
        return self.result if self.result is not None else self.text if self.parts else None

    def with_texts(self, change: Callable[[str], str]) -> Message:
        """Return the message with every string in it changed, keys and names too."""
        return replace(
            self,
            parts=tuple(replace(part, text=change(part.text)) for part in self.parts),
            reasoning=None if self.reasoning is None else change(self.reasoning),
            calls=tuple(
                replace(call, name=change(call.name), arguments=changed(call.arguments, change)) for call in self.calls
            ),
            tool_name=None if self.tool_name is None else change(self.tool_name),
            result=None if self.result is None else changed(self.result, change),
        )


def changed(value: Any, change: Callable[[str], str]) -> Any:
    """Return a JSON value with every string in it changed, keys too."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, Mapping):
        return {change(key): changed(item, change) for key, item in value.items()}
    return [changed(item, change) for item in value] if isinstance(value, list | tuple) else value


def read_messages(messages: Any) -> list[Message]:
    """Return the messages of a request.

    `function` is `tool`, `model` is `assistant`. Content is text or a list of parts; where it is null it is empty.
    Arguments of calls are a JSON object, as text or as it is. A tool's message names its tool by `tool_call_id` of a
    call before it, or by `name`. Raises RequestError naming the place.
    """
    if isinstance(messages, str | bytes | Mapping) or not isinstance(messages, Sequence):
        raise RequestError("messages", value=_shown(messages), limit="a list of messages")
    if not messages:
        raise RequestError("messages", value="[]", limit="at least one message")
    found: list[Message] = []
    names: dict[str, str] = {}
    for place, message in enumerate(messages):
        read = _read_message(message, f"messages[{place}]", names)
        names.update({call.call_id: call.name for call in read.calls if call.call_id is not None})
        found.append(read)
    return found


def _read_message(message: Any, where: str, names: Mapping[str, str]) -> Message:
    if not isinstance(message, Mapping):
        raise RequestError(where, value=_shown(message), limit="an object with role and content")
    role = message.get("role")
    role = _OTHER_ROLES.get(role, role) if isinstance(role, str) else role
    if role not in _ROLES:
        raise RequestError(f"{where}.role", value=_shown(role), limit=", ".join((*_ROLES, *_OTHER_ROLES)))
    for name, value in message.items():
        if value is not None and name != "role" and name not in FIELDS_OF_ROLE[role] and name not in HARMLESS_FIELDS:
            raise RequestError(
                f"{where}.{name}: no such field of a message of role {role}",
                value=_shown(value),
                limit=", ".join(sorted(FIELDS_OF_ROLE[role])),
                remedy="leave it out",
            )
    content = message.get("content")
    result = None
    if role == "tool" and isinstance(content, Mapping):
        content, result = None, _json_object(content, f"{where}.content")
    parts = _read_content(content, f"{where}.content")
    if role == "assistant":
        calls = _read_calls(message, where)
        return Message(role, parts, _read_reasoning(message, where), calls)
    if role == "tool":
        name, call_id = _tool_name(message, where, names)
        return Message(role, parts, tool_name=name, call_id=call_id, result=result)
    if content is None:
        raise RequestError(f"{where}.content", value="null", limit="text, or a list of parts")
    return Message(role, parts, in_parts=not isinstance(content, str))


def _read_content(content: Any, where: str) -> tuple[Part, ...]:
    if content is None:
        return ()
    if isinstance(content, str):
        return (Part("text", _utf8(content, where)),)
    if not isinstance(content, list | tuple):
        raise RequestError(where, value=_shown(content), limit="text, or a list of parts")
    return tuple(_read_part(part, f"{where}[{place}]") for place, part in enumerate(content))


def _read_part(part: Any, where: str) -> Part:
    if isinstance(part, str):
        return Part("text", _utf8(part, where))
    kind = part.get("type") if isinstance(part, Mapping) else None
    if isinstance(kind, str) and kind in MEDIA_PARTS:
        return Part(MEDIA_PARTS[kind])
    if kind not in TEXT_PARTS:
        limit = ", ".join((*TEXT_PARTS, *MEDIA_PARTS))
        raise RequestError(f"{where}.type", value=_shown(part if kind is None else kind), limit=limit)
    text = part.get("text")
    if not isinstance(text, str):
        raise RequestError(f"{where}.text", value=_shown(text), limit="text")
    return Part("text", _utf8(text, f"{where}.text"))


def _read_reasoning(message: Mapping[str, Any], where: str) -> str | None:
    given = {name: message[name] for name in ("reasoning", "reasoning_content") if message.get(name) is not None}
    for name, text in given.items():
        if not isinstance(text, str):
            raise RequestError(f"{where}.{name}", value=_shown(text), limit="text")
        _utf8(text, f"{where}.{name}")
    if len(set(given.values())) > 1:
        raise RequestError(f"{where}: reasoning and reasoning_content differ", remedy="give one of them")
    return next(iter(given.values()), None) or None


def _read_calls(message: Mapping[str, Any], where: str) -> tuple[Call, ...]:
    calls, legacy = message.get("tool_calls"), message.get("function_call")
    if calls is not None and legacy is not None:
        raise RequestError(f"{where}: tool_calls and function_call are both given", remedy="give tool_calls")
    if legacy is not None:
        return (_read_call(legacy, f"{where}.function_call", None),)
    if calls is None:
        return ()
    if not isinstance(calls, list | tuple):
        raise RequestError(f"{where}.tool_calls", value=_shown(calls), limit="a list of calls")
    found = []
    for place, call in enumerate(calls):
        here = f"{where}.tool_calls[{place}]"
        if not isinstance(call, Mapping):
            raise RequestError(here, value=_shown(call), limit='{"id", "type": "function", "function": {...}}')
        if call.get("type") not in (None, "function"):
            raise RequestError(f"{here}.type", value=_shown(call.get("type")), limit="function")
        call_id = call.get("id")
        if call_id is not None and not isinstance(call_id, str):
            raise RequestError(f"{here}.id", value=_shown(call_id), limit="text")
        has_function = "function" in call
        found.append(
            _read_call(call["function"] if has_function else call, f"{here}{'.function' * has_function}", call_id)
        )
    return tuple(found)


def _read_call(function: Any, where: str, call_id: str | None) -> Call:
    if not isinstance(function, Mapping):
        raise RequestError(where, value=_shown(function), limit='{"name", "arguments"}')
    name = _tool_word(function.get("name"), f"{where}.name")
    arguments = function.get("arguments")
    here = f"{where}.arguments"
    if isinstance(arguments, str):
        if not arguments.strip():
            return Call(name, {}, call_id)
        try:
            arguments = json.loads(arguments, parse_constant=_no_constant)
        except (ValueError, RecursionError):
            raise RequestError(here, value=_shown(arguments), limit="the JSON text of an object") from None
    return Call(name, {} if arguments is None else _json_object(arguments, here), call_id)


def _tool_name(message: Mapping[str, Any], where: str, names: Mapping[str, str]) -> tuple[str, str | None]:
    call_id, name = message.get("tool_call_id"), message.get("name")
    if call_id is not None and not isinstance(call_id, str):
        raise RequestError(f"{where}.tool_call_id", value=_shown(call_id), limit="text")
    if call_id is not None and call_id in names:
        return names[call_id], call_id
    if name is None:
        raise RequestError(
            f"{where}: which call it answers is unknown",
            value=f"tool_call_id {_shown(call_id)}",
            limit="the id of a call before it",
            remedy="send the assistant message with that call before it, or the tool's name",
        )
    return _tool_word(name, f"{where}.name"), call_id


def read_tools(tools: Any) -> list[dict[str, Any]]:
    """Return a request's tools in OpenAI's form, `{"type": "function", "function": {"name", "description",
    "parameters", ...}}`; the inner object alone is taken too. Raises RequestError naming the place."""
    if tools is None:
        return []
    if not isinstance(tools, list | tuple):
        raise RequestError("tools", value=_shown(tools), limit="a list of tools")
    found: list[dict[str, Any]] = []
    names: set[str] = set()
    for place, tool in enumerate(tools):
        where = f"tools[{place}]"
        if not isinstance(tool, Mapping) or tool.get("type", "function") != "function":
            raise RequestError(where, value=_shown(tool), limit='{"type": "function", "function": {...}}')
        function = tool.get("function", tool)
        if not isinstance(function, Mapping):
            raise RequestError(f"{where}.function", value=_shown(function), limit='{"name", "parameters"}')
        name = _tool_word(function.get("name"), f"{where}.function.name")
        if name in names:
            raise RequestError(f"{where}.function.name", value=name, limit="each name once")
        names.add(name)
        description = function.get("description")
        if description is not None and not isinstance(description, str):
            raise RequestError(f"{where}.function.description", value=_shown(description), limit="text")
        cleaned = {**_json_object(function, f"{where}.function"), "description": description or ""}
        parameters = cleaned.pop("parameters", None)
        if parameters is not None:
            cleaned["parameters"] = _json_object(parameters, f"{where}.function.parameters")
        found.append({"type": "function", "function": cleaned})
    return found


def read_variables(variables: Any) -> dict[str, Any]:
    """Return a request's variables of the template, a JSON object or None. Raises RequestError for anything else."""
    return {} if variables is None else _json_object(variables, "chat_template_kwargs")


def _tool_word(name: Any, where: str) -> str:
    if not isinstance(name, str) or not name or any(letter.isspace() or letter in "{}()<>\"'`" for letter in name):
        raise RequestError(where, value=_shown(name), limit="a name without spaces, quotes and brackets")
    return _utf8(name, where)


def _json_object(value: Any, where: str) -> dict[str, Any]:
    """Return a JSON object as dicts and lists. Raises RequestError for what JSON cannot hold, and for deep nesting."""
    if not isinstance(value, Mapping):
        raise RequestError(where, value=_shown(value), limit="an object")
    read = _json_value(value, where, 0)
    assert isinstance(read, dict)
    return read


def _json_value(value: Any, where: str, depth: int) -> Any:
    if depth > MAX_DEPTH:
        raise RequestError(f"{where}: nested too deep", limit=f"{MAX_DEPTH} levels")
    if isinstance(value, str):
        return _utf8(value, where)
    if isinstance(value, Mapping):
        for key in value:
            if not isinstance(key, str):
                raise RequestError(where, value=_shown(key), limit="keys that are texts")
            _utf8(key, where)
        return {key: _json_value(item, where, depth + 1) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_json_value(item, where, depth + 1) for item in value]
    is_finite = not isinstance(value, float) or (value == value and abs(value) != float("inf"))
    if value is None or (isinstance(value, bool | int | float) and is_finite):
        return value
    raise RequestError(where, value=_shown(value), limit="what JSON can hold")


def _no_constant(word: str) -> Any:
    raise ValueError(word)


def _utf8(text: str, where: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise RequestError(
            f"{where}: half of a surrogate pair", value=f"character {error.start}", remedy="send the whole character"
        ) from None
    return text


def _shown(value: Any) -> str:
    try:
        return repr(value)[:100]
    except (RecursionError, ValueError):  # nested too deep, or a number of too many digits
        return f"a {type(value).__name__}"
