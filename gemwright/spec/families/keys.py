"""Reads keys of a config by name and type, and remembers which were read, so that no key is passed over in silence.

Refuses to know what any key means: the family files ask for keys, this file checks types and ranges.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

from gemwright.errors import CheckpointError, UnsupportedError

MAX_INTEGER: Final = 2**31 - 1
"""The largest integer any key may hold: positions are int32, and no size of a Gemma comes near it."""


def shown(value: object) -> str:
    """Return `value` as a message may print it: one line, at most 80 characters, however large it is."""
    if value is None:
        return "null"
    if isinstance(value, int) and abs(value) > 10**20:
        return f"an integer of {value.bit_length()} bits"
    if isinstance(value, str):
        value = value[:100]
    elif isinstance(value, Mapping):
        return f"an object of {len(value)} keys"
    elif isinstance(value, Sequence):
        return f"a list of {len(value)} items"
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."


class KeyReader:
    """One object of a config (or the part of GGUF metadata under one prefix), read key by key.

    `path` is put before a key in messages ("text_config."), `ignored` names the keys that change no result.
    A key whose value has the wrong type or lies out of range raises UnsupportedError naming it; a required key that
    is absent raises CheckpointError.
    """

    def __init__(
        self,
        values: Mapping[str, Any],
        *,
        source: str,
        path: str = "",
        ignored: frozenset[str] = frozenset(),
    ) -> None:
        if not isinstance(values, Mapping):
            raise UnsupportedError(
                f"{source}: {path.rstrip('.') or 'the file'} must be an object with named keys", value=shown(values)
            )
        self.source = source
        self.path = path
        self._values = values
        self._ignored = ignored
        self._read: set[str] = set()
        self._children: list[KeyReader] = []

    def has(self, name: str) -> bool:
        """Return whether the key is there with a value other than null. Does not count as reading it."""
        return self._values.get(name) is not None

    def names(self) -> list[str]:
        """Return the names of all keys, in the file's order."""
        return [str(name) for name in self._values]

    def raw(self, name: str) -> Any:
        """Return the value as it is (None where it is absent) and count the key as read."""
        self._read.add(name)
        return self._values.get(name)

    def refusal(
        self, name: str, problem: str, *, value: str | None = None, limit: object = None, remedy: str | None = None
    ) -> UnsupportedError:
        """Return the error that refuses this key, showing `value` or else what it holds; the caller raises it."""
        held = shown(self._values[name]) if name in self._values else "absent"
        return UnsupportedError(
            f"{self.source}: {self.path}{name} {problem}", value=value or held, limit=limit, remedy=remedy
        )

    def missing(self, name: str) -> CheckpointError:
        """Return the error that says a required key is absent; the caller raises it."""
        return CheckpointError(
            f"{self.source}: {self.path}{name} is missing",
            remedy="use the file as its publisher wrote it, or convert the model again",
        )

    def integer(self, name: str, default: int | None = None, *, minimum: int = 1, maximum: int = MAX_INTEGER) -> int:
        """Return an integer key; `default` stands in where it is absent (None: it is required). Null is refused."""
        if name not in self._values:
            self._read.add(name)
            if default is None:
                raise self.missing(name)
            return default
        return self._checked_integer(name, self.raw(name), minimum, maximum)

    def optional_integer(self, name: str, *, minimum: int = 1, maximum: int = MAX_INTEGER) -> int | None:
        """Return an integer key, or None where it is absent or null."""
        value = self.raw(name)
        return None if value is None else self._checked_integer(name, value, minimum, maximum)

    def integers(self, name: str, length: int, *, minimum: int = 1, maximum: int = MAX_INTEGER) -> tuple[int, ...]:
        """Return a required key that holds one integer for all layers or a list of `length`, as `length` integers."""
        if name not in self._values:
            self._read.add(name)
            raise self.missing(name)
        value = self.raw(name)
        if not isinstance(value, list | tuple):
            return (self._checked_integer(name, value, minimum, maximum),) * length
        if len(value) != length:
            raise self.refusal(name, "must have one entry a layer", limit=f"{length} entries")
        return tuple(self._checked_integer(name, item, minimum, maximum) for item in value)

    def _checked_integer(self, name: str, value: Any, minimum: int, maximum: int) -> int:
        if isinstance(value, bool) or not isinstance(value, int):
            raise self.refusal(name, "must be an integer", limit=f"an integer from {minimum} to {maximum}")
        if not minimum <= value <= maximum:
            raise self.refusal(name, "is out of range", limit=f"an integer from {minimum} to {maximum}")
        return value

    def number(self, name: str, default: float | None = None, *, positive: bool = True) -> float:
        """Return a finite number; `default` stands in where it is absent (None: it is required). Null is refused."""
        if name not in self._values:
            self._read.add(name)
            if default is None:
                raise self.missing(name)
            return default
        return self._checked_number(name, self.raw(name), positive)

    def optional_number(self, name: str, default: float | None = None) -> float | None:
        """Return a finite number above 0, None where it is null, `default` where it is absent."""
        if name not in self._values:
            self._read.add(name)
            return default
        value = self.raw(name)
        return None if value is None else self._checked_number(name, value, True)

    def _checked_number(self, name: str, value: Any, positive: bool) -> float:
        limit = "a finite number above 0" if positive else "a finite number, 0 or more"
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self.refusal(name, "must be a number", limit=limit)
        try:
            number = float(value)
        except OverflowError:
            raise self.refusal(name, "is too large", limit=limit) from None
        if not math.isfinite(number) or number < 0 or (positive and number == 0):
            raise self.refusal(name, "is out of range", limit=limit)
        return number

    def flag(self, name: str, default: bool) -> bool:
        """Return a true/false key; `default` where it is absent or null."""
        value = self.raw(name)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self.refusal(name, "must be true or false")
        return value

    def text(self, name: str, default: str | None = None) -> str | None:
        """Return a text key; `default` where it is absent or null."""
        value = self.raw(name)
        if value is None:
            return default
        if not isinstance(value, str):
            raise self.refusal(name, "must be a text")
        return value

    def items(self, name: str) -> list[Any] | None:
        """Return a list key, or None where it is absent or null."""
        value = self.raw(name)
        if value is None:
            return None
        if not isinstance(value, list | tuple):
            raise self.refusal(name, "must be a list")
        return list(value)

    def allow_only(self, name: str, *allowed: object, remedy: str | None = None) -> None:
        """Refuse the key unless it is absent, null or one of `allowed`."""
        value = self.raw(name)
        if value is None or any(type(value) is type(option) and value == option for option in allowed):
            return
        raise self.refusal(
            name,
            "has a value that is not supported",
            limit=", ".join(shown(option) for option in (None, *allowed)),
            remedy=remedy,
        )

    def child(self, name: str, *, ignored: frozenset[str] = frozenset()) -> KeyReader | None:
        """Return a reader of the object under this key, or None where it is absent or null."""
        value = self.raw(name)
        if value is None:
            return None
        if not isinstance(value, Mapping):
            raise self.refusal(name, "must be an object with named keys")
        child = KeyReader(value, source=self.source, path=f"{self.path}{name}.", ignored=ignored)
        self._children.append(child)
        return child

    def unknown(self) -> list[str]:
        """Return the dotted names of all keys, here and in every child, that nobody read and no list ignores."""
        own = [f"{self.path}{name}" for name in self.names() if name not in self._read and name not in self._ignored]
        return own + [name for child in self._children for name in child.unknown()]

    def finish(self, *, allow_unknown_keys: bool, flag: str = "--allow-unknown-config-keys") -> None:
        """Refuse every key that nobody read, unless `allow_unknown_keys`.

        Raises UnsupportedError naming them: a key that is not understood may change what the model computes.
        """
        unknown = [] if allow_unknown_keys else self.unknown()
        if not unknown:
            return
        names = ", ".join(name[:80] for name in unknown[:8]) + (", ..." if len(unknown) > 8 else "")
        raise UnsupportedError(
            f"{self.source}: {'unknown key' if len(unknown) == 1 else f'{len(unknown)} unknown keys'} {names}",
            limit="a key that is not understood may change what the model computes",
            remedy=f"look for a newer Gemwright, or pass {flag} to leave it out of account",
        )
