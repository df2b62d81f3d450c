"""Conversations in the turns of Gemma 4, for checkpoints without a template of their own (facts c.3, c.4)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from gemwright.text.messages import SYSTEM_ROLES, Message
from gemwright.text.tool_syntax import format_call, format_value

_MEDIA_WORDS = {"image": "<|image|>", "audio": "<|audio|>", "video": "<|video|>"}
_QUOTE = '<|"|>'
_OPEN_THOUGHT = "<|channel>thought\n"
_STANDARD = ("description", "type", "properties", "required", "nullable")
_NO_THOUGHT = "<|channel>thought\n<channel|>"


def strip_thinking(text: str) -> str:
    """Return an assistant's text without its thoughts, trimmed: each span from `<|channel>` to `<channel|>`, what
    stands behind an opening mark that nothing closes, and closing marks that nothing opened."""
    return "".join(part.partition("<|channel>")[0] for part in text.split("<channel|>")).strip()


def without_thoughts(messages: Sequence[Message]) -> list[Message]:
    """Return the messages with the thoughts taken out of what the assistant said."""
    return [
        replace(
            message,
            parts=tuple(
                replace(part, text=strip_thinking(part.text)) if part.kind == "text" else part for part in message.parts
            ),
        )
        if message.role == "assistant"
        else message
        for message in messages
    ]


def text_before_calls(messages: Sequence[Message]) -> list[Message]:
    """Return the messages with the text of one that also calls tools as a message of its own before it.

    The model writes it so. The published template would put the text behind what the tools gave, and end the turn
    there, so that the model would have to open the next by itself.
    """
    found: list[Message] = []
    for message in messages:
        if message.calls and message.text.strip():
            found += [replace(message, calls=()), replace(message, parts=(), reasoning=None)]
        else:
            found.append(message)
    return found


def render_gemma4(
    messages: Sequence[Message],
    tools: Sequence[Mapping[str, Any]],
    *,
    thinking: bool,
    preserve_thinking: bool,
    closes_thought: bool,
    add_generation_prompt: bool,
    continues: bool,
) -> str:
    """Return the text of a conversation, control words spelled out.

    closes_thought: the generation prompt of 12B, 26B-A4B and 31B, which writes an empty thought where thinking is off.
    preserve_thinking: thoughts before calls are kept in older turns too. continues: the last message, the assistant's,
    is left open to be gone on with.
    """
    text = ["<bos>"]
    has_system = bool(messages) and messages[0].role in SYSTEM_ROLES
    if thinking or tools or has_system:
        text += ["<|turn>system\n", "<|think|>\n" * thinking]
        text += [_system(messages[0])] if has_system else []
        text += [f"<|tool>{declaration(tool['function'])}<tool|>" for tool in tools]
        text.append("<turn|>\n")
    turns = list(messages[has_system:])
    last_user = max((place for place, message in enumerate(turns) if message.role == "user"), default=-1)
    last_rendered = ""
    in_model_turn = False
    for place, message in enumerate(turns):
        if message.role == "tool":
            if not answers_a_call(turns, place):
                text += [*_opened(in_model_turn), *_response(message)]
                in_model_turn, last_rendered = True, "response"
            continue
        if message.role != "assistant":
            text.append("<turn|>\n" * in_model_turn)
            text.append(f"<|turn>{message.role}\n{_content(message)}<turn|>\n")
            in_model_turn, last_rendered = False, "content"
            continue
        text += _opened(in_model_turn)
        keeps = place > last_user or (preserve_thinking and bool(message.calls))
        if message.reasoning and keeps:
            text.append(f"{_OPEN_THOUGHT}{message.reasoning}\n<channel|>")
        text += [format_call(call.name, call.arguments) for call in message.calls]
        responses = _responses(turns, place) if message.calls else []
        for response in responses:
            text += _response(response)
        content = _content(message)
        text.append(content)
        last_rendered = "content" if content else "response" if responses else "call" if message.calls else "content"
        follower = turns[place + 1 + len(responses)] if place + 1 + len(responses) < len(turns) else None
        if message.calls and not responses:
            text.append("<|tool_response>")
            last_rendered = "call"
            in_model_turn = follower is not None and follower.role == "assistant"
        else:
            stays_open = continues or last_rendered == "response" if follower is None else follower.role == "assistant"
            text.append("" if stays_open else "<turn|>\n")
            in_model_turn = stays_open
    if add_generation_prompt:
        text.append(_generation_prompt(last_rendered, thinking, closes_thought))
    return "".join(text)


def _generation_prompt(last_rendered: str, thinking: bool, closes_thought: bool) -> str:
    if last_rendered == "response":
        return _OPEN_THOUGHT if thinking else ""
    if last_rendered == "call":
        return ""
    return "<|turn>model\n" + (_NO_THOUGHT if closes_thought and not thinking else "")


def _opened(in_model_turn: bool) -> list[str]:
    return [] if in_model_turn else ["<|turn>model\n"]


def _system(message: Message) -> str:
    """Return a first system message; behind each of its parts, if it has parts, stands a space."""
    if not message.in_parts:
        return _content(message)
    return "".join(part.text.strip() + " " for part in message.parts)


def _content(message: Message) -> str:
    return "".join(part.text.strip() if part.kind == "text" else _MEDIA_WORDS[part.kind] for part in message.parts)


def _responses(turns: Sequence[Message], place: int) -> list[Message]:
    """Return the tool messages right behind a message."""
    found = []
    for message in turns[place + 1 :]:
        if message.role != "tool":
            break
        found.append(message)
    return found


def answers_a_call(turns: Sequence[Message], place: int) -> bool:
    """Whether a tool message stands behind the calls of an assistant message, which then prints it."""
    asked = next((message for message in reversed(turns[:place]) if message.role != "tool"), None)
    return asked is not None and bool(asked.calls)


def _response(message: Message) -> list[str]:
    given = message.given if message.result is not None else {"value": message.given}
    media = [_MEDIA_WORDS[part.kind] for part in message.parts if part.kind != "text"]
    return [f"<|tool_response>response:{message.tool_name}{format_value(given)}<tool_response|>", *media]


def declaration(function: Mapping[str, Any]) -> str:
    """Return a tool's declaration, `declaration:NAME{description:...,parameters:{...}}`, from a function with simple
    schemas (`tool_schemas.simplified`)."""
    text = f"declaration:{function['name']}{{description:{_text(function['description'])}"
    parameters = function.get("parameters")
    if parameters:
        text += f",parameters:{{{','.join(_object_fields(parameters, is_top=True))}}}"
    response = function.get("response")
    if isinstance(response, Mapping):
        described = response.get("description")
        fields = [f"description:{_text(described)}"] if isinstance(described, str) and described else []
        fields.append(f"type:{_type(response.get('type') or 'object')}")
        text += f",response:{{{','.join(fields)}}}"
    return text + "}"


def _object_fields(schema: Mapping[str, Any], *, is_top: bool = False) -> list[str]:
    """Return the fields of an object's schema: properties, required, and at the top its type."""
    fields = []
    properties = schema.get("properties")
    if not is_top and not isinstance(properties, Mapping):
        # As the published template has it: what else the schema says stands where its properties would.
        properties = {key: value for key, value in schema.items() if key not in _STANDARD}
    if properties or not is_top:
        fields.append(f"properties:{{{_properties(properties or {})}}}")
    if schema.get("required"):
        fields.append(f"required:{_list(schema['required'])}")
    return [*fields, f"type:{_type(schema['type'])}"] if is_top else fields


def _properties(properties: Mapping[str, Any]) -> str:
    return ",".join(f"{name}:{{{','.join(_property(schema))}}}" for name, schema in _sorted(properties))


def _property(schema: Any) -> list[str]:
    schema = schema if isinstance(schema, Mapping) else {}
    kind = schema.get("type", "")
    fields = [f"description:{_text(schema['description'])}"] if schema.get("description") else []
    if _is(kind, "string") and schema.get("enum"):
        fields.append(f"enum:{_quoted_keys(schema['enum'])}")
    if _is(kind, "array") and schema.get("items"):
        fields.append(f"items:{{{','.join(_items(schema['items']))}}}")
    if schema.get("nullable"):
        fields.append("nullable:true")
    if _is(kind, "object"):
        fields += _object_fields(schema)
    return [*fields, f"type:{_type(kind)}"]


def _items(schema: Mapping[str, Any]) -> list[str]:
    fields = []
    for key, value in _sorted(schema):
        if value is None:
            continue
        if key == "properties" and isinstance(value, Mapping):
            fields.append(f"properties:{{{_properties(value)}}}")
        elif key == "required" and isinstance(value, list):
            fields.append(f"required:{_list(value)}")
        elif key == "type":
            fields.append(f"type:{_type(value)}")
        else:
            fields.append(f"{key}:{_quoted_keys(value)}")
    return fields


def _is(kind: Any, name: str) -> bool:
    return isinstance(kind, str) and kind.lower() == name


def _type(kind: Any) -> str:
    if isinstance(kind, list):
        return f"[{','.join(_text(str(one).upper()) for one in kind)}]"
    return _text(str(kind).upper())


def _list(items: Sequence[str]) -> str:
    return f"[{','.join(_text(str(item)) for item in items)}]"


def _text(text: str) -> str:
    return f"{_QUOTE}{text}{_QUOTE}"


def _quoted_keys(value: Any) -> str:
    """Return a value as declarations spell it: as in calls, but with keys in quotes."""
    if isinstance(value, Mapping):
        return f"{{{','.join(f'{_text(key)}:{_quoted_keys(item)}' for key, item in _sorted(value))}}}"
    if isinstance(value, list):
        return f"[{','.join(_quoted_keys(item) for item in value)}]"
    return format_value(value)


def _sorted(mapping: Mapping[str, Any]) -> list[tuple[str, Any]]:
    return sorted(mapping.items(), key=lambda item: item[0].lower())
