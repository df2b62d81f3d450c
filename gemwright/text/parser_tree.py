"""The objects and arrays of a call's arguments that are open, written to JSON as they grow. Reads no syntax."""

from __future__ import annotations

from gemwright.text.parser_json import JsonWriter
from gemwright.text.parser_schema import ANYWHERE, Place, bare_to_json, quoted_to_json


class _Frame:
    """An object or array that is open."""

    __slots__ = ("closer", "count", "place", "value_place")

    def __init__(self, closer: str, place: Place) -> None:
        self.closer = closer
        self.place = place
        self.value_place = ANYWHERE
        self.count = 0


class ArgumentTree:
    """Writes keys, values and brackets in order, each value of the type that its place asks for.

    opener: the bracket that began the arguments, `{` or `(`. hold: as JsonWriter has it. python: bare True, False and
    None are literals. `warnings` says what was repaired.
    """

    def __init__(self, opener: str, place: Place, *, hold: int, python: bool) -> None:
        self.writer = JsonWriter(hold)
        self.writer.open("{")
        self.warnings: dict[str, None] = {}
        self.has_parenthesis = opener == "("
        self.is_python = python
        self._frames = [_Frame(")" if self.has_parenthesis else "}", place)]
        self._num_arrays = 0

    @property
    def depth(self) -> int:
        """How many objects and arrays are open; 0 when the arguments are complete."""
        return len(self._frames)

    @property
    def is_in_array(self) -> bool:
        """Whether the innermost container is an array."""
        return self._frames[-1].closer == "]"

    @property
    def keys(self) -> frozenset[str] | None:
        """The keys that the innermost object may have; None where any."""
        return self._frames[-1].place.keys

    @property
    def closing(self) -> str:
        """The brackets that would close something."""
        return "".join(filter(self.closes, "}])"))

    def warn(self, text: str) -> None:
        """Note a repair."""
        self.warnings[text] = None

    def closes(self, character: str) -> bool:
        """Whether this character is a bracket that closes something."""
        if character == "}":
            return len(self._frames) - self._num_arrays > (self._frames[0].closer == ")")
        if character == "]":
            return self._num_arrays > 0
        return character == ")" and self._frames[0].closer == ")"

    def take_braces(self) -> bool:
        """Take `{` right behind the first bracket, name({...}) or name{{...}}, for the arguments' own; else False."""
        if len(self._frames) > 1 or self._frames[0].count:
            return False
        self.warn("a bracket was doubled")
        self._frames[0].closer = "}"
        return True

    def open(self, opener: str) -> None:
        """Begin an object or an array as the next value."""
        place = self.value_place()
        self.writer.open(opener)
        self._frames.append(_Frame("}" if opener == "{" else "]", place))
        self._num_arrays += opener == "["

    def close(self, bracket: str) -> None:
        """Close the innermost container of this bracket, and with a warning those inside it."""
        while self._frames[-1].closer != bracket:
            self.warn("a bracket was missing")
            self._close_innermost()
        self._close_innermost()

    def close_all(self) -> None:
        """Close whatever is open."""
        self.warn("a bracket was missing")
        while self._frames:
            self._close_innermost()

    def _close_innermost(self) -> None:
        self._num_arrays -= self._frames.pop().closer == "]"
        self.writer.close()

    def key(self, text: str) -> None:
        """Write a key of the innermost object."""
        frame = self._frames[-1]
        frame.count += 1
        frame.value_place = frame.place.member(text)
        num_replaced = self.writer.num_replaced
        self.writer.key(text)
        if self.writer.num_replaced > num_replaced:
            self.warn("a key came twice")

    def value_place(self) -> Place:
        """Return the place of the value that comes next; in an array, each call is for the next element."""
        frame = self._frames[-1]
        if frame.closer != "]":
            return frame.value_place
        frame.count += 1
        return frame.place.element(frame.count - 1)

    def bare(self, text: str, place: Place) -> None:
        """Write a bare word as the value of its place."""
        self.writer.scalar(bare_to_json(text, place.types, loose=self.is_python))

    def quoted(self, text: str, place: Place) -> None:
        """Write a quoted text as the value of its place."""
        json_text, is_mended = quoted_to_json(text, place.types)
        if is_mended:
            self.warn("a string stood where the schema has another type")
        self.writer.scalar(json_text)

    def empty(self, *, has_colon: bool) -> None:
        """Write the value that a key lacks: "" behind a colon where strings are allowed, else null."""
        self.warn("a value was missing")
        types = self._frames[-1].value_place.types
        self.writer.scalar('""' if has_colon and (types is None or "string" in types) else "null")
