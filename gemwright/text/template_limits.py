"""What a program from a stranger may use: a budget of time and data for one run. Knows nothing of templates.

Work is bounded without signals, so that this holds on any thread: steps are counted as they happen, each value is
measured as it is made, and what would be large is foreseen. A single step works on at most MAX_VALUE bytes and is not
cut short: it may overrun MAX_SECONDS by a second or so (by about a minute where a dict is built of numbers chosen to
collide), and need some hundred MiB for a moment.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Mapping
from contextvars import ContextVar
from sys import getsizeof
from types import GeneratorType
from typing import Any

from gemwright.errors import show_bytes

MAX_VALUE = 32 << 20
"""Largest value that may be made or given, bytes with all it holds."""
MAX_MADE = 1 << 30
"""Most that all values made in one run may take together, bytes."""
MAX_SECONDS = 10.0
"""Processor time of one run, on its thread."""
MAX_DEPTH = 100
"""Deepest nesting of lists and dicts."""
MAX_BITS = 1 << 14
"""Largest whole number."""
MAX_WIDTH = 1000
"""Largest width to fill, count of parts, and set of characters to look for."""

CONTAINERS: Any = (
    *(list, tuple, dict, set, frozenset),
    *(type({}.keys()), type({}.values()), type({}.items())),
)
_SLOW_METHODS = frozenset(
    ("center", "ljust", "rjust", "zfill", "strip", "lstrip", "rstrip", "rfind", "rindex", "rsplit", "rpartition")
)
"""They fill to a width, or search from the right or for many characters, which CPython does in time of a product."""


class LimitError(Exception):
    """The template would do more than it may: what, and the limit."""


class Budget:
    """What one rendering has used, and the weights of the values it was given."""

    def __init__(self) -> None:
        self.deadline = time.thread_time() + MAX_SECONDS
        self.made_bytes = 0
        self.known: dict[int, int] = {}

    def tick(self) -> bool:
        """Count a step."""
        if time.thread_time() > self.deadline:
            raise LimitError("takes too long", f"{MAX_SECONDS:g} seconds of processor time")
        return True

    def admit(self, value: Any, depth: int = 0) -> tuple[Any, int]:
        """Return a copy in plain types, and its weight; anything else becomes its type's name, as transformers does."""
        if value is None or isinstance(value, (bool, float)):
            return (value if value is None or isinstance(value, bool) else float(value)), 32
        if isinstance(value, (int, str)):
            plain = int.__int__(value) if isinstance(value, int) else str.__str__(value)
            return plain, self.weigh(plain)
        if not isinstance(value, (Mapping, list, tuple)):
            return f"<{type(value).__name__}>", 64
        if depth >= MAX_DEPTH:
            raise LimitError("is given data nested too deeply", f"{MAX_DEPTH} levels")
        weight = 0
        if isinstance(value, Mapping):
            copy: Any = {}
            for key, item in value.items():
                kept, size = self.admit(key, depth + 1)
                copy[kept], more = self.admit(item, depth + 1)
                weight += size + more
        else:
            pairs = [self.admit(item, depth + 1) for item in value]
            copy, weight = [item for item, _ in pairs], sum(size for _, size in pairs)
            if isinstance(value, tuple):
                copy = tuple(copy)
        weight += getsizeof(copy)
        fit(weight, what="is given too much data")
        self.known[id(copy)] = weight
        return copy, weight

    def weigh(self, value: Any) -> int:
        """Return the bytes of a value with all it holds, what is shared counted each time it is reached."""
        total, stack = 0, list[tuple[Any, int]]([(value, 0)])
        while stack:
            item, depth = stack.pop()
            if isinstance(item, str):
                total += getsizeof(item)
            elif isinstance(item, int):
                total += 32
                if item.bit_length() > MAX_BITS:
                    raise LimitError("makes too large a number", f"{MAX_BITS} bits")
            elif not isinstance(item, CONTAINERS):
                total += 32
            elif (known := self.known.get(id(item))) is not None:
                total += known
            else:
                total += getsizeof(item) + 8 * len(item)
                if depth >= MAX_DEPTH:
                    raise LimitError("nests data too deeply", f"{MAX_DEPTH} levels")
                fit(total)
                stack += [(held, depth + 1) for held in item]
                if isinstance(item, dict):
                    stack += [(held, depth + 1) for held in item.values()]
            if total > MAX_VALUE:
                fit(total)
        return total

    def made(self, value: Any) -> Any:
        """Return a value that was just made, after counting it."""
        if value is None or isinstance(value, (bool, float)):
            return value
        self.weigh(value)
        if not isinstance(value, int):
            self.made_bytes += max(getsizeof(value), 256 if not isinstance(value, (str, *CONTAINERS)) else 0)
            if self.made_bytes > MAX_MADE:
                raise LimitError("makes too much data", f"{show_bytes(MAX_MADE)} in all")
        return _Items(value) if isinstance(value, GeneratorType) else value


class _Items:
    """What a lazy filter yields, measured item by item."""

    __slots__ = ("_source",)

    def __init__(self, source: Iterator[Any]) -> None:
        self._source = source

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        item, budget = next(self._source), active.get()
        budget.tick()
        return budget.made(item)


active: ContextVar[Budget] = ContextVar("rendering")
"""The rendering of this thread; none while a template is compiled, when nothing that counts is worked out ahead."""


def fit(size: int, limit: int | None = None, what: str = "makes too large a value") -> None:
    """Refuse a size over the limit, MAX_VALUE where none is named."""
    limit = limit or MAX_VALUE
    if size > limit:
        raise LimitError(what, f"{limit >> 20} MiB" if limit >= 1 << 20 else limit)


def narrow(*widths: Any) -> None:
    """Refuse widths, counts and needles of no sensible size."""
    for width in widths:
        if (isinstance(width, int) and abs(width) > MAX_WIDTH) or (isinstance(width, str) and len(width) > MAX_WIDTH):
            raise LimitError("asks for too large a width, count or set of characters", MAX_WIDTH)


def foresee(text: str, method: str, arguments: list[Any], named: Mapping[str, Any]) -> None:
    """Refuse a call of a method of str whose result would be too large, or whose work is more than linear."""
    if method == "replace" and len(arguments) > 1 and all(isinstance(item, str) for item in arguments[:2]):
        old, new = arguments[:2]
        fit(len(text) + text.count(old) * max(len(new) - len(old), 0))
    elif method == "join" and arguments:
        arguments[0] = list(arguments[0])
        fit(sum(len(item) + len(text) for item in arguments[0] if isinstance(item, str)))
    elif method in _SLOW_METHODS:
        narrow(*arguments, *named.values())


def foresee_percent(text: str, values: Any) -> None:
    """Refuse "text" % values whose result would be too large."""
    if "%(" in text:
        # A name may hold anything, parentheses and signs too: any number in the text counts as a width.
        widths = re.findall(r"\d+", text)
    else:
        widths = [part for pair in re.findall(r"%[-+ #0]*(\*|\d*)(?:\.(\*|\d*))?", text) for part in pair if part]
    if "*" in widths or any(len(width) > 4 for width in widths):
        raise LimitError("formats to too large a width", MAX_WIDTH)
    narrow(*map(int, widths))
    size = active.get().weigh(values)
    fit(len(text) + MAX_WIDTH * len(widths) + size * (text.count("%(") or 1))
