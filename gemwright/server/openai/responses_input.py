"""A response's input items, made into the engine's ChatRequest, and its errors under the names of the request's fields.

Renders nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from gemwright.engine.chat_request import ChatRequest
from gemwright.errors import PromptTooLongError, RequestError, UnsupportedError
from gemwright.server.errors import FieldError
from gemwright.server.fields import Part, parse_part
from gemwright.server.openai.responses_schema import (
    AllowedTools,
    FunctionCallItem,
    FunctionCallOutputItem,
    FunctionChoice,
    FunctionTool,
    MessageItem,
    ReasoningItem,
    ReasoningText,
    RefusalContent,
    ResponsesBody,
    TextContent,
)

_ITEMS: dict[str, type[Part]] = {
    "message": MessageItem,
    "function_call": FunctionCallItem,
    "function_call_output": FunctionCallOutputItem,
    "reasoning": ReasoningItem,
}
_TEXTS: dict[str, type[Part]] = {"input_text": TextContent, "output_text": TextContent}
_SAID_BY_ASSISTANT: dict[str, type[Part]] = {**_TEXTS, "refusal": RefusalContent}
_MEDIA = ("input_image", "input_file", "input_audio", "input_video")
_BETWEEN_THOUGHTS = "\n"

_MESSAGE = re.compile(r"messages\[(\d+)\](?:\.tool_calls\[(\d+)\](?:\.function)?)?(\S*?)(?=: | |$)", re.ASCII)
_TOOL = re.compile(r"tools\[(\d+)\](?:\.function)?(\S*?)(?=: | |$)", re.ASCII)
_NAMES = {
    "messages": "input",
    "json_schema": "text.format.schema",
    "json_object": "text.format",
    "max_tokens": "max_output_tokens",
    "logprobs": "top_logprobs",
}
"""Fields of the engine by the word that its errors begin with, and what they are called here."""
_SENTENCES = {
    "two constraints": ("text.format", "stands beside tools that must be called or are strict"),
    "this model has no thinking switch": ("reasoning.effort", "this model has no thinking switch"),
    "this model has no thoughts": ("reasoning.effort", "this model has no thoughts"),
}


@dataclass(slots=True)
class Said:
    """A message for the engine, and where each part of it stands in the request.

    `places` are the paths by the name of the message's field, `content[0]` for a part of its content; `calls` those of
    its calls.
    """

    message: dict[str, Any]
    places: dict[str, str]
    calls: list[str] = field(default_factory=list)

    def place(self, call: str | None, rest: str) -> str:
        """Return the path in the request of a path in the message: behind one of its calls, if `call` is a number."""
        if call is not None:
            return self.calls[int(call)] + (".call_id" if rest == ".id" else rest)
        path = rest.lstrip(".").removesuffix(".text")
        return self.places.get(path) or self.places.get(path.partition("[")[0]) or self.places[""] + rest


@dataclass(slots=True)
class Conversation:
    """What was read of a body: the request for the engine, and what is needed to name its errors."""

    request: ChatRequest
    said: list[Said]
    tool_places: list[int]
    """The number of each tool among the request's own, as some may have been left out."""

    @contextmanager
    def naming_fields(self) -> Iterator[None]:
        """Raise what the engine says against the conversation under the names of the request's own fields."""
        try:
            yield
        except PromptTooLongError:
            raise
        except (RequestError, UnsupportedError) as error:
            named = None if isinstance(error, FieldError) else self._named(error.what)
            if named is None:
                raise
            path, what = named
            facts = {"value": error.value, "limit": error.limit, "remedy": error.remedy}
            raise FieldError(path, what or "cannot be used", **facts) from error

    def _named(self, what: str) -> tuple[str, str] | None:
        """Return the field, and what is wrong with it."""
        for start, named in _SENTENCES.items():
            if what.startswith(start):
                return named
        if found := _MESSAGE.match(what):
            return self.said[int(found[1])].place(found[2], found[3]), _behind(what, found)
        if found := _TOOL.match(what):
            return f"tools[{self.tool_places[int(found[1])]}]{found[2]}", _behind(what, found)
        found = re.match(r"(\w+)(?=: | |$)", what)
        return (_NAMES[found[1]], _behind(what, found)) if found is not None and found[1] in _NAMES else None


def _behind(what: str, found: re.Match[str]) -> str:
    return what[found.end() :].lstrip(": ")


def read_conversation(body: ResponsesBody) -> Conversation:
    """Return the conversation of a body. Raises FieldError for what this server cannot do, naming its place."""
    reader = _Reader()
    if body.instructions is not None:
        reader.add({"role": "system", "content": body.instructions}, {"content": "instructions", "": "instructions"})
    if isinstance(body.input, str):
        reader.add({"role": "user", "content": body.input}, {"content": "input", "": "input"})
    else:
        for number, item in enumerate(body.input):
            reader.read(item, f"input[{number}]")
    tools = [_tool(tool, f"tools[{number}]") for number, tool in enumerate(body.tools or ())]
    places, choice = _chosen(body, [tool["function"]["name"] for tool in tools])
    effort = None if body.reasoning is None else body.reasoning.effort
    request = ChatRequest(
        messages=[said.message for said in reader.said],
        tools=[tools[place] for place in places] or None,
        tool_choice=choice,
        parallel_tool_calls=body.parallel_tool_calls,
        enable_thinking=None if effort is None else effort != "none",
    )
    return Conversation(request, reader.said, places)


class _Reader:
    """Reads items in order.

    The items of one answer become one message: a thought, text, and calls. A thought or text behind text begins another
    message, unless there were calls, which what was given to them must follow.
    """

    def __init__(self) -> None:
        self.said: list[Said] = []
        self.call_ids: set[str] = set()
        self._answer: Said | None = None
        """The assistant's message that may still grow."""

    def add(self, message: dict[str, Any], places: dict[str, str]) -> Said:
        said = Said(message, places)
        self.said.append(said)
        self._answer = said if message["role"] == "assistant" else None
        return said

    def read(self, item: Any, where: str) -> None:
        """Read one item. Raises FieldError."""
        kind = item.get("type") if isinstance(item, dict) else None
        if kind is None and isinstance(item, dict) and "role" in item:
            kind = "message"
        if isinstance(item, dict) and (not isinstance(kind, str) or kind not in _ITEMS):
            is_reference = kind == "item_reference"
            raise FieldError(
                f"{where}.type",
                "nothing is stored here" if is_reference else "no such item is read here",
                value=repr(kind)[:80],
                limit=", ".join(_ITEMS),
                remedy="send the item itself (a client's `store: false` does so)" if is_reference else "leave it out",
            )
        read = parse_part(_ITEMS[kind or "message"], item, where)
        if isinstance(read, MessageItem):
            self._message(read, where)
        elif isinstance(read, ReasoningItem):
            self._thought(read, where)
        elif isinstance(read, FunctionCallItem):
            self._call(read, where)
        elif isinstance(read, FunctionCallOutputItem):
            self._output(read, where)

    def _message(self, item: MessageItem, where: str) -> None:
        here = f"{where}.content"
        if item.role != "assistant":
            content, places = _content(item.content, here)
            self.add({"role": item.role, "content": content}, {**places, "": where})
            return
        parts, origins = [{"type": "text", "text": item.content}], [here]
        if not isinstance(item.content, str):
            parts, origins = _texts(item.content, here, _SAID_BY_ASSISTANT)
        answer = self._growing(where)
        content = answer.message.setdefault("content", [])
        for part, origin in zip(parts, origins, strict=True):
            answer.places[f"content[{len(content)}]"] = origin
            content.append(part)
        answer.places.setdefault("content", here)

    def _thought(self, item: ReasoningItem, where: str) -> None:
        name = "content" if item.content else "summary"
        parts = [
            parse_part(ReasoningText, part, f"{where}.{name}[{number}]")
            for number, part in enumerate(item.content or item.summary or ())
        ]
        text = _BETWEEN_THOUGHTS.join(part.text for part in parts)
        if not text:
            return
        answer = self._growing(where)
        before = answer.message.get("reasoning_content")
        answer.message["reasoning_content"] = text if before is None else f"{before}{_BETWEEN_THOUGHTS}{text}"
        answer.places.setdefault("reasoning_content", f"{where}.{name}")

    def _call(self, item: FunctionCallItem, where: str) -> None:
        answer = self._answer or self.add({"role": "assistant"}, {"": where})
        function = {"name": item.name, "arguments": item.arguments}
        calls = answer.message.setdefault("tool_calls", [])
        calls.append({"id": item.call_id, "type": "function", "function": function})
        answer.calls.append(where)
        self.call_ids.add(item.call_id)

    def _output(self, item: FunctionCallOutputItem, where: str) -> None:
        if item.call_id not in self.call_ids and item.name is None:
            raise FieldError(
                f"{where}.call_id",
                "is the id of no function_call before it",
                value=repr(item.call_id)[:80],
                remedy="send the function_call item before it, or the tool's name",
            )
        content, places = _content(item.output, f"{where}.output")
        message = {"role": "tool", "tool_call_id": item.call_id, "name": item.name, "content": content}
        self.add(message, {**places, "": where})

    def _growing(self, where: str) -> Said:
        """Return the assistant's message that text or a thought belongs to."""
        answer = self._answer
        if answer is not None and ("tool_calls" in answer.message or "content" not in answer.message):
            return answer
        return self.add({"role": "assistant"}, {"": where})


def _content(content: str | list[Any], where: str) -> tuple[Any, dict[str, str]]:
    """Return text or parts as a chat's content, and the places of both."""
    if isinstance(content, str):
        return content, {"content": where}
    parts, places = _texts(content, where, _TEXTS)
    return parts, {"content": where, **{f"content[{number}]": place for number, place in enumerate(places)}}


def _texts(parts: list[Any], where: str, known: dict[str, type[Part]]) -> tuple[list[dict[str, Any]], list[str]]:
    """Return parts as a chat's, and the place of each."""
    found, places = [], []
    for number, part in enumerate(parts):
        here = f"{where}[{number}]"
        kind = part.get("type") if isinstance(part, dict) else None
        if isinstance(part, dict) and (not isinstance(kind, str) or kind not in known):
            is_media = kind in _MEDIA
            raise FieldError(
                here,
                f"{kind}: this version reads text alone" if is_media else "no such part is read here",
                value=repr(kind)[:80],
                limit=", ".join(known),
                remedy="leave it out, or send its text" if is_media else "change it",
            )
        read = parse_part(known[kind or "input_text"], part, here)
        text = read.refusal if isinstance(read, RefusalContent) else getattr(read, "text", "")
        found.append({"type": "text", "text": text})
        places.append(here)
    return found, places


def _tool(tool: Any, where: str) -> dict[str, Any]:
    kind = tool.get("type") if isinstance(tool, dict) else None
    if isinstance(tool, dict) and kind != "function":
        raise FieldError(
            f"{where}.type",
            "this tool is known to OpenAI's models and servers alone",
            value=repr(kind)[:80],
            limit="function",
            remedy="declare it as a function with parameters, and run it yourself",
        )
    read = parse_part(FunctionTool, tool, where)
    function: dict[str, Any] = {"name": read.name}
    for name in ("description", "parameters"):
        if getattr(read, name) is not None:
            function[name] = getattr(read, name)
    if read.strict:
        function["strict"] = True
    return {"type": "function", "function": function}


def _chosen(body: ResponsesBody, names: list[str]) -> tuple[list[int], Any]:
    """Return the numbers of the tools that the model is told of, and a chat's tool_choice."""
    choice = body.tool_choice
    everything = list(range(len(names)))
    if not isinstance(choice, dict):
        return everything, choice
    kind = choice.get("type")
    if kind == "function":
        name = parse_part(FunctionChoice, choice, "tool_choice").name
        _require(name, names, "tool_choice.name")
        return everything, {"type": "function", "function": {"name": name}}
    if kind != "allowed_tools":
        raise FieldError(
            "tool_choice.type",
            "no such choice is known here",
            value=repr(kind)[:80],
            limit="function, allowed_tools",
            remedy="name a function, or send auto, none or required",
        )
    allowed = parse_part(AllowedTools, choice, "tool_choice")
    chosen = set()
    for number, tool in enumerate(allowed.tools):
        here = f"tool_choice.tools[{number}]"
        name = parse_part(FunctionChoice, tool, here).name
        _require(name, names, f"{here}.name")
        chosen.add(name)
    return [place for place in everything if names[place] in chosen], allowed.mode


def _require(name: str, names: list[str], where: str) -> None:
    if name not in names:
        raise FieldError(where, "is none of the request's tools", value=name[:80], limit=", ".join(names) or "none")
