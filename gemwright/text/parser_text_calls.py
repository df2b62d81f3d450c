"""Calls in plain text, as Gemma 2 and 3 write them: a JSON object, bare or fenced, or Python in a `tool_code` fence.

It is a call only if the tool is one of the request's; any other text goes through unchanged.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from gemwright.text.parser_arguments import ArgumentReader
from gemwright.text.parser_json import compact_json
from gemwright.text.parser_schema import ANYWHERE, Place, bare_to_json

Call = tuple[str, str]
"""A tool's name and the JSON of its arguments."""

_KEYS = frozenset({"name", "parameters", "arguments", "id", "type", "function"})
_LANGUAGES = frozenset({"", "json", "tool_code", "tool_call"})
_FIRST_KEY = re.compile(r'\s*(?:\[\s*)?\{\s*"(\w{1,16})"\s*:\s*(?:"([^"\\]{0,256})"|[^\s"])')
_FIRST_KEY_BEGUN = re.compile(r'\s*(?:\[\s*)?(?:\{\s*(?:"(?:\w{0,16}(?:"(?:\s*(?::\s*(?:"[^"\\]{0,256})?)?)?)?)?)?)?')
_PYTHON_CALL = re.compile(r"\s*([^\W\d][\w.]{0,255})\s*\(")
_PYTHON_CALL_BEGUN = re.compile(r"\s*(?:[^\W\d][\w.]{0,255}\s*)?")
_NEXT_STATEMENT = re.compile(r"[ \t]*[\n;]")
_OUTSIDE = re.compile(r'["{}\[\]]')
_INSIDE = re.compile(r'["\\]')
_FENCE_END = re.compile(r"\n[ \t]{0,64}```")
_MAX_HEAD = 1024
_SLICE = 1024


class JsonScanner:
    """Finds where a JSON object or array ends, in text that comes in pieces."""

    def __init__(self) -> None:
        self._depth = 0
        self._is_in_string = False
        self._skips = 0

    def end_in(self, text: str) -> int | None:
        """Return where in this next piece the value ends, None if it goes on."""
        at = self._skips
        self._skips = 0
        while at < len(text):
            match = (_INSIDE if self._is_in_string else _OUTSIDE).search(text, at)
            if match is None:
                return None
            character, at = match[0], match.end()
            if character == '"':
                self._is_in_string = not self._is_in_string
            elif character == "\\":
                at += 1
            else:
                self._depth += 1 if character in "{[" else -1
                if self._depth <= 0:
                    return at
        self._skips = at - len(text)
        return None


def read_json_calls(text: str, tools: Mapping[str, Place], *, only_known: bool = True) -> list[Call] | None:
    """Return the calls that JSON text is, None if it is not only calls (of these tools, if only_known)."""
    try:
        value = json.loads(text)
        entries = value if isinstance(value, list) else [value]
        calls = [_read_entry(entry, tools, only_known) for entry in entries]
    except (ValueError, RecursionError):
        return None
    found = [call for call in calls if call is not None]
    return found if found and len(found) == len(calls) else None


def _read_entry(entry: Any, tools: Mapping[str, Place], only_known: bool) -> Call | None:
    if not isinstance(entry, dict) or not _KEYS.issuperset(entry):
        return None
    function = entry.get("function", entry)
    if not isinstance(function, dict):
        return None
    name = function.get("name")
    if not isinstance(name, str) or not name or (only_known and name not in tools):
        return None
    given = [function[key] for key in ("parameters", "arguments") if key in function]
    if len(given) != 1:
        return None
    arguments = json.loads(given[0]) if isinstance(given[0], str) else given[0]
    if not isinstance(arguments, dict):
        return None
    return name, compact_json(_keep_to_schema(arguments, tools.get(name, ANYWHERE)))


def _keep_to_schema(value: Any, place: Place) -> Any:
    """Return the value with literals as text where the schema wants text."""
    if isinstance(value, dict):
        return {key: _keep_to_schema(item, place.member(key)) for key, item in value.items()}
    if isinstance(value, list):
        return [_keep_to_schema(item, place.element(index)) for index, item in enumerate(value)]
    if value is None or isinstance(value, str) or place.types is None:
        return value
    return json.loads(bare_to_json(compact_json(value), place.types))


def read_python_calls(text: str, tools: Mapping[str, Place]) -> list[Call] | None:
    """Return the calls of Python text, one after the other; None if it holds anything else."""
    calls: list[Call] = []
    while text.strip():
        match = _PYTHON_CALL.match(text)
        if match is None or match[1] not in tools:
            return None
        reader = ArgumentReader("(", tools[match[1]], hold=0, python=True)
        reader.feed_text(text[match.end() :])
        reader.end(is_closed=False)
        if not reader.is_done or reader.warnings:
            return None
        text = "".join(piece.text for piece in reader.rest)
        if text.strip() and not _NEXT_STATEMENT.match(text):
            return None
        text = text.lstrip(" \t\n;")
        calls.append((match[1], reader.writer.take()))
    return calls or None


class TextCalls:
    """Finds calls in text that comes in pieces. What may become one is held back, all else goes through at once."""

    def __init__(self, tools: Mapping[str, Place]) -> None:
        self._tools = tools
        self._buffer = ""
        self._is_line_start = True
        self._is_other_fence = False
        self._parts: list[str] = []
        """What is held back of a call, from its first character."""
        self._scanner: JsonScanner | None = None
        self._language: str | None = None
        """Of the fence that may hold a call."""
        self._is_likely = False
        """What is held back begins as a call does."""

    def push(self, text: str) -> list[str | list[Call]]:
        """Take text; return text to show and calls, in order."""
        out: list[str | list[Call]] = []
        for start in range(0, len(text), _SLICE):  # so that cutting what has been read off is cheap
            self._buffer += text[start : start + _SLICE]
            while self._buffer and self._advance(out, is_end=False):
                pass
        return out

    def finish(self) -> list[str | list[Call]]:
        """End the text (or interrupt it by a control word); return what was held back."""
        out: list[str | list[Call]] = []
        while (self._buffer or self._parts) and self._advance(out, is_end=True):
            pass
        self._show(out, "".join(self._parts) + self._buffer)
        self._parts, self._buffer = [], ""
        self._scanner = self._language = None
        self._is_line_start, self._is_other_fence = True, False
        return out

    def _advance(self, out: list[str | list[Call]], *, is_end: bool) -> bool:
        """Read on; returns whether to go on, False to wait for more."""
        if self._scanner is not None:
            return self._advance_json(out, is_end)
        if self._language is not None:
            return self._advance_fence(out, is_end)
        if not self._is_line_start:
            end = self._buffer.find("\n") + 1
            self._show(out, self._buffer[:end] if end else self._buffer)
            self._buffer = self._buffer[end:] if end else ""
            self._is_line_start = end > 0
            return True
        return self._advance_line_start(out, is_end)

    def _advance_line_start(self, out: list[str | list[Call]], is_end: bool) -> bool:
        head = self._buffer.lstrip(" \t")
        indent = len(self._buffer) - len(head)
        if indent <= 8 and not is_end and "```".startswith(head):
            return False
        if indent <= 8 and head.startswith("```"):
            end = head.find("\n")
            if end < 0 and len(head) <= 40 and not is_end:
                return False
            language = head[3:end].strip().lower() if 0 <= end <= 40 else None
            if self._is_other_fence or language not in _LANGUAGES:
                self._is_other_fence = not self._is_other_fence
                self._is_line_start = False
            else:
                self._language = language
                self._is_likely = False
                end += indent + 1
                self._parts, self._buffer = [self._buffer[:end]], self._buffer[end:]
            return True
        if indent <= 8 and head[:1] in ("{", "[") and not self._is_other_fence:
            likely = self._is_call_begun(self._buffer, is_end)
            if likely is None:
                return False
            if likely:
                self._scanner = JsonScanner()
                return True
        self._is_line_start = False
        return True

    def _is_call_begun(self, text: str, is_end: bool) -> bool | None:
        """Whether JSON text begins as a call does; None if too little of it is there."""
        match = _FIRST_KEY.match(text, 0, _MAX_HEAD)
        if match is not None:
            return match[1] in _KEYS and (match[1] != "name" or match[2] in self._tools)
        if not is_end and len(text) < _MAX_HEAD and _FIRST_KEY_BEGUN.fullmatch(text):
            return None
        return False

    def _advance_json(self, out: list[str | list[Call]], is_end: bool) -> bool:
        assert self._scanner is not None
        end = self._scanner.end_in(self._buffer)
        if end is None:
            self._parts.append(self._buffer)
            self._buffer = ""
            return False
        text = "".join(self._parts) + self._buffer[:end]
        self._parts, self._buffer, self._scanner = [], self._buffer[end:], None
        self._give(out, text, read_json_calls(text, self._tools))
        self._is_line_start = False
        return True

    def _advance_fence(self, out: list[str | list[Call]], is_end: bool) -> bool:
        if not self._is_likely:
            likely = self._is_fenced_call_begun(is_end)
            if likely is None:
                return False
            if not likely:
                self._show(out, "".join(self._parts))
                self._parts, self._language, self._is_other_fence = [], None, True
                return True
            self._is_likely = True
        # The closing fence begins a line: the last line, while it may be one, stays in the buffer.
        match = _FENCE_END.search(self._buffer)
        if match is None and not is_end:
            last = self._buffer.rfind("\n")
            line = self._buffer[last + 1 :]
            may_end = last >= 0 and len(line) <= 66 and "```".startswith(line.lstrip(" \t"))
            keep = last if may_end else len(self._buffer)
            self._parts.append(self._buffer[:keep])
            self._buffer = self._buffer[keep:]
            return False
        body_end = match.start() if match is not None else len(self._buffer)
        end = match.end() if match is not None else len(self._buffer)
        body = "".join([*self._parts[1:], self._buffer[:body_end]])
        raw = "".join([*self._parts, self._buffer[:end]])
        calls = read_json_calls(body, self._tools)
        if calls is None and self._language == "tool_code":
            calls = read_python_calls(body, self._tools)
        self._parts, self._buffer, self._language = [], self._buffer[end:], None
        self._give(out, raw, calls)
        self._is_line_start = False
        return True

    def _is_fenced_call_begun(self, is_end: bool) -> bool | None:
        text = self._buffer
        body = text.lstrip()
        first = body[:1]
        if len(text) - len(body) > 64:
            return False
        if not first:
            return False if is_end else None
        if first in "{[":
            return self._is_call_begun(text, is_end)
        if self._language != "tool_code":
            return False
        match = _PYTHON_CALL.match(text)
        if match is not None:
            return match[1] in self._tools
        return None if not is_end and _PYTHON_CALL_BEGUN.fullmatch(text) else False

    @staticmethod
    def _show(out: list[str | list[Call]], text: str) -> None:
        if text:
            out.append(text)

    def _give(self, out: list[str | list[Call]], text: str, calls: list[Call] | None) -> None:
        if calls is None:
            self._show(out, text)
        else:
            out.append(calls)
