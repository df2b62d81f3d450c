"""What the parser's tests share: running it, joining its events, and texts that are hard on it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

from gemwright.text.parser import OutputParser
from gemwright.text.parser_dialects import DIALECTS, prompt_leaves_thought_open
from gemwright.text.parser_events import Event, EventType, ParsedOutput
from gemwright.text.parser_json import read_json

CASES: list[dict[str, Any]] = json.loads((Path(__file__).parent / "data" / "parser_cases.json").read_text())

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "f",
            "parameters": {
                "type": "object",
                "properties": {
                    "a": {"type": "string"},
                    "n": {"type": "integer"},
                    "flag": {"type": ["boolean", "null"]},
                    "list": {"type": "array", "items": {"type": "string"}},
                    "o": {"type": "object", "properties": {"a": {"anyOf": [{"type": "string"}, {"type": "null"}]}}},
                },
            },
        },
    },
    {"name": "g", "parameters": {"type": "object", "properties": {}}},
]

MARKS = {name: [*dialect.words] for name, dialect in DIALECTS.items()}
FRAGMENTS = (
    *("call:f{", "call:g(", "f(", "{", "}", "[", "]", "(", ")", ",", ":", "=", '"', "'", "\\", "<", ">"),
    *(
        "thought\n",
        "model\n",
        "call:",
        "\n",
        " ",
        "a:",
        "n:5",
        "a:1,",
        "true",
        "null",
        "None",
        "-3.5e2",
        "007",
        "x",
        "é",
    ),
    *(
        "```json\n",
        "```tool_code\n",
        "```",
        '{"name":"f","arguments":{',
        '"}}',
        'f(a="x")',
        '"a": "b"',
        "STOP",
        "ST",
        "OP",
    ),
    *('<|"|>', "<|channel>", "<channel|>", "<|tool_call>", "<tool_call|>", "<|tool_call>call:f{", "}<tool_call|>"),
)
DIALECT_NAMES = st.sampled_from(sorted(DIALECTS))


def hostile_text(max_fragments: int = 40) -> st.SearchStrategy[str]:
    """Return texts made of what the parser looks for, in any order."""
    words = sorted({word for marks in MARKS.values() for word in marks})
    fragment = st.sampled_from(FRAGMENTS) | st.sampled_from(words) | st.text(max_size=3)
    return st.lists(fragment, max_size=max_fragments).map("".join)


def cut(text: str, cuts: Iterable[int]) -> list[str]:
    """Cut a text at these offsets, as far as it reaches."""
    ends = sorted({place for place in cuts if 0 < place < len(text)})
    return [text[begin:end] for begin, end in zip([0, *ends], [*ends, len(text)], strict=True)]


@dataclass(frozen=True)
class Parsed:
    """Events by chunk, those of the end last, and the result."""

    by_chunk: list[list[Event]]
    output: ParsedOutput
    stop_found: str | None = None

    @property
    def events(self) -> list[Event]:
        return [event for events in self.by_chunk for event in events]


def run(chunks: Iterable[str], dialect: str = "gemma4", *, reason: str = "stop", **options: Any) -> Parsed:
    """Parse an output given in these chunks."""
    parser = OutputParser(dialect, **options)
    by_chunk = [parser.push_text(chunk) for chunk in chunks]
    by_chunk.append(parser.finish(reason))
    assert parser.finish(reason) == parser.push_text("more") == []
    return Parsed(by_chunk, parser.output, parser.stop_found)


def parse(text: str, dialect: str = "gemma4", **options: Any) -> ParsedOutput:
    """Parse an output given at once."""
    return run([text], dialect, **options).output


def call(text: str, **options: Any) -> dict[str, Any]:
    """Return the arguments of the one call of this Gemma 4 output."""
    output = parse(text, **options)
    assert len(output.tool_calls) == 1, output
    return output.tool_calls[0].arguments


def arguments(text: str, **options: Any) -> dict[str, Any]:
    """Return what the arguments `text`, brackets included, of a Gemma 4 call of `f` are read as."""
    return call(f"<|tool_call>call:f{text}<tool_call|>", **options)


def joined(events: Sequence[Event]) -> dict[str, Any]:
    """Return what the events say, joined as a client would, and check that they come in an order it can follow."""
    texts: dict[EventType, list[str]] = {EventType.REASONING: [], EventType.CONTENT: []}
    calls: list[tuple[str, list[str]]] = []
    ended: list[int] = []
    for event in events[:-1]:
        if event.type in texts:
            assert event.text
            texts[event.type].append(event.text)
        elif event.type is EventType.TOOL_CALL:
            assert event.index == len(calls)
            assert event.name
            calls.append((event.name, []))
        elif event.type is EventType.ARGUMENTS:
            assert event.index == len(calls) - 1
            assert event.index not in ended
            assert event.text
            calls[-1][1].append(event.text)
        else:
            assert event.type is EventType.TOOL_CALL_END
            assert event.index == len(calls) - 1
            ended.append(event.index)
    assert events[-1].type is EventType.FINISH
    return {
        "reasoning": "".join(texts[EventType.REASONING]) or None,
        "content": "".join(texts[EventType.CONTENT]) or None,
        "calls": [(name, "".join(parts)) for index, (name, parts) in enumerate(calls) if index in ended],
        "reason": events[-1].text,
    }


def fields(output: ParsedOutput) -> dict[str, Any]:
    """Return the result's fields in the form of `joined`."""
    return {
        "reasoning": output.reasoning_content,
        "content": output.content,
        "calls": [(one.name, one.arguments_json) for one in output.tool_calls],
        "reason": output.finish_reason,
    }


def case_options(case: dict[str, Any]) -> dict[str, Any]:
    """Return the options that a case's context asks for."""
    context = case.get("context", {})
    return {
        "tools": context.get("tools", ()),
        "opens_thought": prompt_leaves_thought_open(context.get("prompt_tail", "")),
        "reason": "length" if case.get("finish_reason") == "length" else "stop",
    }


def check_calls(output: ParsedOutput) -> None:
    """The arguments of every call are a JSON object."""
    for one in output.tool_calls:
        assert isinstance(read_json(one.arguments_json), dict)
