"""The lines of `gemwright parse`: read, checked, run through the output parser, written."""

from __future__ import annotations

import codecs
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from gemwright.errors import GemwrightError, RequestError
from gemwright.text.parser import OutputParser
from gemwright.text.parser_dialects import dialect_named, prompt_leaves_thought_open
from gemwright.text.parser_events import ParsedOutput, ToolCall
from gemwright.text.parser_json import compact_json

_ENGINE_REASONS = {"stop": "stop", "length": "length", "tool_calls": "stop", None: "stop"}


@dataclass(frozen=True, slots=True)
class ParseLine:
    """What a line asks: the output in chunks, what the engine reported, and what was known beforehand."""

    line_id: Any
    chunks: list[str]
    finish_reason: str
    opens_thought: bool = False
    tools: list[Mapping[str, Any]] = field(default_factory=list)


def parse_lines(lines: Iterable[bytes], family: str) -> Iterator[str]:
    """Yield the answer to each line that is not blank, itself a line.

    Raises UnsupportedError for an unknown family, and after the last line RequestError if any could not be read.
    """
    dialect_named(family)
    failed = []
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        line_id = None
        try:
            asked = read_object(line)
            line_id = asked.get("id")
            yield answer(read_line(asked), family)
        except GemwrightError as error:
            failed.append(number)
            yield _error_line(line_id, number, error)
    if failed:
        named = ", ".join(map(str, failed[:10])) + (", ..." if len(failed) > 10 else "")
        raise RequestError(
            f"{len(failed)} of the lines could not be read",
            value=f"line {named}",
            remedy="their answers say what is wrong with each",
        )


def read_object(line: bytes) -> dict[str, Any]:
    """Return a line's JSON object. Raises RequestError for anything else."""
    try:
        asked = json.loads(line.decode())
    except UnicodeDecodeError as error:
        raise RequestError(
            "the line is not UTF-8", value=f"byte {line[error.start]:#04x} at {error.start}", remedy="write it as UTF-8"
        ) from None
    except (ValueError, RecursionError) as error:
        raise RequestError(
            "the line is no JSON", value=str(error)[:200], remedy="write one JSON object a line"
        ) from None
    if not isinstance(asked, dict):
        raise RequestError("the line is no JSON object", value=line[:80].decode(errors="replace"))
    return asked


def read_line(asked: Mapping[str, Any]) -> ParseLine:
    """Return what a line asks. Raises RequestError naming the field that is wrong."""
    line_id = asked.get("id")
    if isinstance(line_id, bool) or not isinstance(line_id, str | int | None):
        raise RequestError("id", value=repr(line_id)[:80], limit="a text or an integer")
    text = asked.get("text")
    if not isinstance(text, str):
        raise RequestError("text", value=repr(text)[:80], limit="a text, the model's output")
    context = {} if asked.get("context") is None else asked["context"]
    if not isinstance(context, dict):
        raise RequestError("context", value=repr(context)[:80], limit="an object")
    prompt_tail = "" if context.get("prompt_tail") is None else context["prompt_tail"]
    if not isinstance(prompt_tail, str):
        raise RequestError("context.prompt_tail", value=repr(prompt_tail)[:80], limit="a text")
    tools = [] if context.get("tools") is None else context["tools"]
    if not isinstance(tools, list) or not all(isinstance(tool, dict) for tool in tools):
        raise RequestError("context.tools", value=repr(tools)[:80], limit="a list of objects")
    reason = asked.get("finish_reason")
    if not isinstance(reason, str | None) or reason not in _ENGINE_REASONS:
        raise RequestError("finish_reason", value=repr(reason)[:80], limit="stop or length")
    return ParseLine(
        line_id, _chunks(asked, text), _ENGINE_REASONS[reason], prompt_leaves_thought_open(prompt_tail), tools
    )


def _chunks(asked: Mapping[str, Any], text: str) -> list[str]:
    """Return the text in the chunks that the line asks for."""
    by_character, by_byte = asked.get("stream_splits"), asked.get("stream_byte_splits")
    if by_character is not None and by_byte is not None:
        raise RequestError("stream_splits and stream_byte_splits are both given", remedy="give one of them")
    if by_byte is None:
        ends = _read_splits("stream_splits", by_character, len(text))
        return [text[begin:end] for begin, end in zip([0, *ends], [*ends, len(text)], strict=True)]
    try:
        data = text.encode()
    except UnicodeEncodeError as error:
        raise RequestError("text holds half of a surrogate pair", value=f"at character {error.start}") from None
    ends = _read_splits("stream_byte_splits", by_byte, len(data))
    decoder = codecs.getincrementaldecoder("utf-8")()
    return [decoder.decode(data[begin:end]) for begin, end in zip([0, *ends], [*ends, len(data)], strict=True)]


def _read_splits(name: str, splits: Any, length: int) -> list[int]:
    if splits is None:
        return []
    if not isinstance(splits, list) or not all(isinstance(end, int) and not isinstance(end, bool) for end in splits):
        raise RequestError(name, value=repr(splits)[:80], limit="a list of integers")
    for before, end in zip([0, *splits], splits, strict=False):
        if not before <= end <= length:
            raise RequestError(f"{name}: offsets in order", value=end, limit=f"{before} to {length}")
    return splits


def answer(line: ParseLine, family: str) -> str:
    """Return the line out."""
    parser = OutputParser(family, tools=line.tools, opens_thought=line.opens_thought)
    events = [
        {"chunk": number, **event.to_dict()}
        for number, chunk in enumerate(line.chunks)
        for event in parser.push_text(chunk)
    ]
    events += [{"chunk": len(line.chunks), **event.to_dict()} for event in parser.finish(line.finish_reason)]
    return _write(line.line_id, parser.output, events)


def _write(line_id: Any, output: ParsedOutput, events: list[dict[str, Any]]) -> str:
    """Return the object as JSON; arguments go in as the text they are, however deep."""
    calls = ",".join(
        f'{{"name":{compact_json(call.name)},"arguments":{_arguments(call)}}}' for call in output.tool_calls
    )
    cut = [{"name": call.name, "text": call.text} for call in output.unfinished_calls]
    fields = {
        "id": compact_json(line_id),
        "reasoning_content": compact_json(output.reasoning_content),
        "content": compact_json(output.content),
        "tool_calls": f"[{calls}]",
        "finish_reason": compact_json(output.finish_reason),
        "unfinished_calls": compact_json(cut),
        "warnings": compact_json(list(output.warnings)),
        "events": compact_json(events),
    }
    return "{" + ",".join(f'"{name}":{text}' for name, text in fields.items()) + "}\n"


def _arguments(call: ToolCall) -> str:
    if call.has_duplicate_keys:
        try:
            return compact_json(call.arguments)
        except (RecursionError, ValueError):  # too deep, or a number that only JSON can hold: readers take the last key
            pass
    return call.arguments_json


def _error_line(line_id: Any, number: int, error: GemwrightError) -> str:
    is_id = isinstance(line_id, str | int | None) and not isinstance(line_id, bool)
    described = {"what": error.what, "value": error.value, "limit": error.limit, "remedy": error.remedy}
    shown = {name: value if value is None else str(value) for name, value in described.items()}
    return compact_json({"id": line_id if is_id else None, "line": number, "error": shown}) + "\n"
