"""Conversations in the turns of Gemma 2 and 3, for checkpoints without a template of their own (facts c.1)."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from gemwright.errors import RequestError
from gemwright.text.messages import SYSTEM_ROLES, Message, Part

BETWEEN = "\n\n"
"""Stands between what was said by one side in several messages, and behind a system message."""

_MEDIA_WORDS = {"image": "<start_of_image>"}

_TOOL_PROMPT = """\
You can call tools. To call one, answer with a JSON object and nothing else: \
{"name": NAME, "parameters": {PARAMETER: VALUE}}. For several calls at once, answer with a list of such objects. \
What a call gives comes back to you. If no tool helps, answer as usual. The tools, each with the JSON schema of its \
parameters:
"""
"""Gemma 2 and 3 know no syntax for tools; this is ours, and the output machine reads the answers."""


_SHOWN = ("name", "description", "parameters")


def alternate(messages: Sequence[Message], tools: Sequence[Mapping[str, Any]]) -> list[Message]:
    """Return the messages as turns of user and assistant in turn, as the templates of Gemma 2 and 3 demand.

    Leading system messages become one, which stays first. A later one counts as the user's. What a tool gave is said by
    the user, a call by the assistant as JSON. Neighbors of one role become one turn. Raises RequestError where the
    first turn is the assistant's.
    """
    num_system = next(
        (place for place, message in enumerate(messages) if message.role not in SYSTEM_ROLES), len(messages)
    )
    system = [message.text for message in messages[:num_system]]
    if any(message.media for message in messages[:num_system]):
        raise RequestError("messages[0].content: a system message holds text alone", remedy="put media in a user turn")
    turns: list[Message] = []
    for message in messages[num_system:]:
        said = _as_said(message)
        if turns and turns[-1].role == said.role:
            turns[-1] = replace(turns[-1], parts=_joined(turns[-1].parts, said.parts))
        else:
            turns.append(said)
    if turns and turns[0].role == "assistant":
        raise RequestError(
            "messages: the first turn is the assistant's", limit="a user turn first", remedy="put one before it"
        )
    if tools:
        shown = ({key: tool["function"][key] for key in _SHOWN if tool["function"].get(key)} for tool in tools)
        system.insert(0, _TOOL_PROMPT + "\n".join(json.dumps(tool, ensure_ascii=False) for tool in shown))
    if not turns:
        return [Message("user", (Part("text", BETWEEN.join(system)),))]
    return [*([Message("system", (Part("text", BETWEEN.join(system)),))] if system else []), *turns]


def fold_system(turns: Sequence[Message]) -> list[Message]:
    """Return the turns with a system message put before the first user turn, a blank line between.

    Gemma 3's own template does that. Gemma 2's refuses system messages, and here they are folded as in Gemma 3.
    """
    if turns[0].role != "system":
        return list(turns)
    first, *rest = turns[1:]
    text, *others = first.parts if first.parts and first.parts[0].kind == "text" else (Part("text"), *first.parts)
    return [replace(first, parts=(Part("text", turns[0].text + BETWEEN + text.text.strip()), *others)), *rest]


def render_gemma(turns: Sequence[Message], *, add_generation_prompt: bool, continues: bool) -> str:
    """Return the text of alternating turns, control words spelled out. `continues` leaves the last turn open."""
    text = ["<bos>"]
    prefix = ""
    for place, turn in enumerate(turns):
        if turn.role == "system":
            prefix = turn.text + BETWEEN
            continue
        role = "model" if turn.role == "assistant" else "user"
        text.append(f"<start_of_turn>{role}\n{prefix}{_content(turn)}")
        prefix = ""
        if not (continues and place == len(turns) - 1):
            text.append("<end_of_turn>\n")
    if add_generation_prompt:
        text.append("<start_of_turn>model\n")
    return "".join(text)


def _content(turn: Message) -> str:
    pieces = []
    for part in turn.parts:
        if part.kind != "text" and part.kind not in _MEDIA_WORDS:
            raise RequestError(f"{part.kind} in a message", limit="text and images", remedy="use a Gemma 4 model")
        pieces.append(part.text.strip() if part.kind == "text" else _MEDIA_WORDS[part.kind])
    return "".join(pieces)


def _as_said(message: Message) -> Message:
    if message.role == "tool":
        result = message.text if message.result is None else json.dumps(message.result, ensure_ascii=False)
        head = Part("text", f"{message.tool_name} gave:\n{result}")
        return Message("user", (head, *(part for part in message.parts if part.kind != "text")))
    if message.role == "assistant" and message.calls:
        calls = [{"name": call.name, "parameters": call.arguments} for call in message.calls]
        written = Part("text", json.dumps(calls[0] if len(calls) == 1 else calls, ensure_ascii=False))
        return Message("assistant", _joined(message.parts, (written,)) if message.text.strip() else (written,))
    return replace(message, role="user" if message.role in SYSTEM_ROLES else message.role, reasoning=None)


def _joined(first: tuple[Part, ...], second: tuple[Part, ...]) -> tuple[Part, ...]:
    """Return the parts of both, texts that meet being made one with a blank line between."""
    if first and second and first[-1].kind == second[0].kind == "text":
        return (*first[:-1], Part("text", f"{first[-1].text.rstrip()}{BETWEEN}{second[0].text.lstrip()}"), *second[1:])
    return (*first, *second)
