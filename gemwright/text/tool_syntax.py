"""Gemma 4's own syntax for tool calls: its marks, and arguments written in it. Knows nothing of templates."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from typing import Any

from gemwright.errors import RequestError

QUOTE = '<|"|>'
"""Opens and closes a string; between two of them every character stands for itself."""
CALL_OPEN = "<|tool_call>"
CALL_CLOSE = "<tool_call|>"

_MAX_INTEGER = 10**1000
_PLAIN_KEY = re.compile(r"[^\s:,=(){}\[\]\"'<]+(?: +[^\s:,=(){}\[\]\"'<]+)*")


def format_call(name: str, arguments: Mapping[str, Any]) -> str:
    """Return one call with its marks, `<|tool_call>call:NAME{key:value,...}<tool_call|>` (facts c.4).

    Raises RequestError as `format_value`, and for a name that the syntax cannot hold.
    """
    if not name or re.search(r"[\s{}()<]", name):
        raise RequestError("the name of a tool", value=repr(name), limit="no spaces, brackets or `<`, and not empty")
    return f"{CALL_OPEN}call:{name}{format_arguments(arguments)}{CALL_CLOSE}"


def format_arguments(arguments: Mapping[str, Any]) -> str:
    """Return `{key:value,...}`: keys sorted without regard to case at every depth, as the official template does."""
    return format_value(arguments)


def format_value(value: Any) -> str:
    """Return a JSON value in the syntax of calls: strings in `<|"|>` without escapes, numbers as Python prints them.

    Keys stand bare, except those that could not be read back; these are quoted. There is no way to write `<|"|>` inside
    a string: it becomes `"`, which is also what the parser reads there. So no text can end its own string.

    Raises RequestError for what JSON cannot hold: keys that are not strings, infinities, other types.
    """
    return "".join(_pieces(value))


def _pieces(value: Any) -> Iterator[str]:
    """Yield the text of a value of any depth, with the containers that are still open on a stack of our own."""
    waiting: list[tuple[Iterator[tuple[str | None, Any]], str]] = [(iter([(None, value)]), "")]
    is_first = True
    while waiting:
        items, closer = waiting[-1]
        key, item = next(items, (None, _END))
        if item is _END:
            yield closer
            waiting.pop()
            is_first = False
            continue
        if not is_first:
            yield ","
        is_first = False
        if key is not None:
            yield f"{key if _PLAIN_KEY.fullmatch(key) else _quoted(key)}:"
        if isinstance(item, Mapping):
            yield "{"
            waiting.append((iter(_sorted_items(item)), "}"))
            is_first = True
        elif isinstance(item, list | tuple):
            yield "["
            waiting.append((iter([(None, element) for element in item]), "]"))
            is_first = True
        else:
            yield _scalar(item)


_END = object()


def _sorted_items(mapping: Mapping[str, Any]) -> list[tuple[str, Any]]:
    for key in mapping:
        if not isinstance(key, str):
            raise RequestError("a key of a tool's arguments", value=repr(key), limit="strings")
    return sorted(mapping.items(), key=lambda item: item[0].lower())


def _quoted(text: str) -> str:
    return f"{QUOTE}{text.replace(QUOTE, chr(34))}{QUOTE}"


def _scalar(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return _quoted(value)
    if isinstance(value, int) and abs(value) < _MAX_INTEGER:
        return repr(int(value))
    if isinstance(value, float) and math.isfinite(value):
        return repr(float(value))
    raise RequestError(
        "a value of a tool's arguments", value=type(value).__name__, limit="what JSON can hold, of at most 1,000 digits"
    )
