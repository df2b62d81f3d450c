"""JSON as text that grows: written piece by piece, and read however deep it is."""

from __future__ import annotations

import json
import re
from typing import Any

_SURROGATE = re.compile("[\ud800-\udfff]")
_DECODER = json.JSONDecoder()
_SKIP = re.compile(r"[ \t\r\n,:]*")
_SCALAR = re.compile(r"[^ \t\r\n,:{}\[\]\"]+")


def escape(text: str) -> str:
    """Return the text as it stands between the quotes of a JSON string; half surrogate pairs become escapes."""
    return escape_surrogates(json.dumps(text, ensure_ascii=False)[1:-1])


def escape_surrogates(json_text: str) -> str:
    """Return JSON text with half surrogate pairs, which UTF-8 cannot hold, written as escapes."""
    if json_text.isascii():
        return json_text
    return _SURROGATE.sub(lambda match: f"\\u{ord(match[0]):04x}", json_text)


def compact_json(value: Any) -> str:
    """Return a value as JSON without spaces. Raises ValueError for an infinity, RecursionError if nested too deep."""
    return escape_surrogates(json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":")))


def quote(text: str) -> str:
    """Return the text as a JSON string."""
    return f'"{escape(text)}"'


def read_json(text: str) -> Any:
    """Return the value of JSON text that is known to be right, nested as deep as memory allows."""
    try:
        return json.loads(text)
    except RecursionError:
        return _read_deep(text)


def _read_deep(text: str) -> Any:
    # Containers that are open lie in a list, and in `keys` the key that waits for its value in each of them.
    root: list[Any] = []
    stack: list[list[Any] | dict[str, Any]] = [root]
    keys: list[str | None] = [None]
    at = 0
    while (at := _SKIP.match(text, at).end()) < len(text):  # type: ignore[union-attr]  # it matches nothing, too
        character = text[at]
        if character in "}]":
            stack.pop()
            keys.pop()
            at += 1
            continue
        value: Any
        if character == '"':
            value, at = _DECODER.raw_decode(text, at)
            if isinstance(stack[-1], dict) and keys[-1] is None:
                keys[-1] = value
                continue
        elif character in "{[":
            value, at = ({} if character == "{" else []), at + 1
        else:
            match = _SCALAR.match(text, at)
            assert match is not None
            value, at = json.loads(match[0]), match.end()
        holder = stack[-1]
        if isinstance(holder, dict):
            holder[str(keys[-1])] = value
            keys[-1] = None
        else:
            holder.append(value)
        if character in "{[":
            stack.append(value)
            keys.append(None)
    return root[0]


class _Container:
    """An object or array that is open: whether it has given out a member, and where its members began and ended."""

    __slots__ = ("closer", "current", "has_members", "members")

    def __init__(self, closer: str) -> None:
        self.closer = closer
        self.has_members = False
        self.members: dict[str, tuple[int, int]] = {}
        self.current: str | None = None


class JsonWriter:
    """Writes one JSON value of which everything given out is final.

    Of a key that comes twice the last value counts, so what is complete is held back until `hold` characters wait:
    within these the earlier member is taken out. Later it is too late, and the key stands twice, which readers take as
    the last one; `has_late_duplicate` says so. A string that has begun to go out goes out as it comes.
    """

    def __init__(self, hold: int) -> None:
        self._hold = hold
        self._pending: list[tuple[_Container | None, str] | None] = []
        self._pending_length = 0
        self._base = 0
        """How many pieces have been given out: the number of the first pending one."""
        self._open: list[_Container] = []
        self._string_start: int | None = None
        self._ready: list[str] = []
        self.has_late_duplicate = False
        self.num_replaced = 0

    def take(self) -> str:
        """Return the text that has become final since the last call."""
        if not self._ready:
            return ""
        text = "".join(self._ready)
        self._ready.clear()
        return text

    def open(self, opener: str) -> None:
        """Begin an object or an array."""
        self._add(opener, is_member=True)
        self._open.append(_Container("}" if opener == "{" else "]"))

    def close(self) -> None:
        """End the innermost container; after the outermost nothing is held back."""
        container = self._open.pop()
        self._end_member(container)
        self._add(container.closer)
        if not self._open:
            self._flush()

    def key(self, text: str) -> None:
        """Write the key of the next member; an earlier member of the same key goes."""
        container = self._open[-1]
        self._end_member(container)
        earlier = container.members.get(text)
        if earlier is not None:
            self.num_replaced += 1
            begin, end = earlier
            if begin >= self._base:
                for place in range(begin - self._base, end - self._base):
                    piece = self._pending[place]
                    if piece is not None:
                        self._pending_length -= len(piece[1])
                        self._pending[place] = None
            else:
                self.has_late_duplicate = True
        here = self._base + len(self._pending)
        container.members[text] = (here, here)
        container.current = text
        self._add_piece(container, f"{quote(text)}:")

    def scalar(self, text: str) -> None:
        """Write a whole value, given as JSON text."""
        self._add(text, is_member=True)

    def begin_string(self) -> None:
        """Begin a string value."""
        self._string_start = self._base + len(self._pending)
        self._add('"', is_member=True)

    def string_piece(self, text: str) -> None:
        """Write more of the string that is open."""
        if not text:
            return
        self._add(escape(text))
        if self._string_start is not None and self._string_start < self._base:
            self._flush()

    def end_string(self) -> None:
        """End the string that is open."""
        self._string_start = None
        self._add('"')

    def _add(self, text: str, *, is_member: bool = False) -> None:
        """Add a piece; a value in an array is a member and may need a comma, a value of an object has its key's."""
        container = self._open[-1] if is_member and self._open and self._open[-1].closer == "]" else None
        self._add_piece(container, text)

    def _add_piece(self, container: _Container | None, text: str) -> None:
        self._pending.append((container, text))
        self._pending_length += len(text)
        if self._pending_length >= self._hold:
            self._flush()

    def _end_member(self, container: _Container) -> None:
        if container.current is not None:
            begin, _ = container.members[container.current]
            container.members[container.current] = (begin, self._base + len(self._pending))
            container.current = None

    def _flush(self) -> None:
        for piece in self._pending:
            if piece is None:
                continue
            container, text = piece
            if container is not None:
                if container.has_members:
                    self._ready.append(",")
                container.has_members = True
            self._ready.append(text)
        self._base += len(self._pending)
        self._pending.clear()
        self._pending_length = 0
