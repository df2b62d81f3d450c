"""Keys and values that do not stand between string marks: bare words, text in quotes of JSON or Python, and strings
whose opening mark the model forgot. Finds where they end.

Each look ahead has a limit that counts characters, so that how the text was cut never matters.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum, auto

from gemwright.text.parser_schema import Place, literal_of

MAX_SPACE = 64
"""How many blanks may stand before the character that decides about what came before them."""
MAX_BEYOND = 1024
"""How far past a bracket a bare text may go on before that bracket counts as its end."""
_MAX_LITERAL = 1100

_BLANK = re.compile(r"\s*")
_KEY_AHEAD = re.compile(r"\s{0,64}(?:\"([^\"\n]{1,64})\"|'([^'\n]{1,64})'|([\w.$-]{1,64}))\s{0,8}[:=]")
_KEY_AHEAD_BEGUN = re.compile(r"\s{0,64}(?:\"[^\"\n]{0,64}\"?|'[^'\n]{0,64}'?|[\w.$-]{0,64})\s{0,8}")
_KEY_END = re.compile(r"[,}\]):=]")
_VALUE_END = re.compile(r"[,}\])]")
_QUOTED_SPECIAL = {'"': re.compile(r'["\\]'), "'": re.compile(r"['\\]")}
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", "\\": "\\", "/": "/", '"': '"', "'": "'"}
_ESCAPE = re.compile(r"\\u([0-9a-fA-F]{4})(?:\\u([dD][c-fC-F][0-9a-fA-F]{2}))?|\\(.)", re.DOTALL)


class Verdict(Enum):
    """What the next characters say about a run."""

    WAIT = auto()
    """More must come first."""
    GO_ON = auto()
    END = auto()
    """It ends before the next character."""
    END_QUOTED = auto()
    """It ended with its closing quote."""
    GO_BACK = auto()
    """It ended at its first bracket after all."""


@dataclass(frozen=True, slots=True)
class Surroundings:
    """Where a run stands.

    closing: the brackets that would close something here. is_in_array, is_outermost: of the innermost container.
    keys: those it may have, None where any. separators: what may follow a key. may_go_back: whether a bracket may be
    read over at all. is_ended: no character comes after those at hand.
    """

    closing: str
    is_in_array: bool
    is_outermost: bool
    keys: frozenset[str] | None
    separators: str
    may_go_back: bool
    is_ended: bool


class Run:
    """A bare or quoted text that is being read, as a key or as a value of `place`.

    is_loose: literals of Python count too. `quote` is the quote it began with; `bracket` the first bracket that it
    went past and that may have been its end: how many parts and characters stood before it.
    """

    def __init__(self, *, is_key: bool, place: Place, is_loose: bool, quote: str = "") -> None:
        self.is_key = is_key
        self.place = place
        self.quote = quote
        self.bracket: tuple[int, int] | None = None
        self._is_loose = is_loose
        self._parts: list[str] = []
        self._length = 0

    @property
    def text(self) -> str:
        """All that was collected."""
        return "".join(self._parts)

    def collect(self, text: str) -> None:
        """Add text that certainly belongs to the run."""
        self._parts.append(text)
        self._length += len(text)

    def note_bracket(self) -> None:
        """Remember that the next character may have been the end."""
        if self.bracket is None:
            self.bracket = (len(self._parts), self._length)

    def go_back(self) -> str:
        """Cut the run at its bracket and return what is to be read again; without one, at its quote, now a letter."""
        if self.bracket is None:
            text = self.text
            self._parts, self._length, self.quote = [text[:1]], 1, ""
            return text[1:]
        count, self._length = self.bracket
        text = "".join(self._parts[count:])
        del self._parts[count:]
        self.bracket = None
        return text

    def is_literal(self) -> bool:
        """Whether the run so far is a number, true, false or null."""
        if self._length > _MAX_LITERAL:
            return False
        return literal_of(self.text.strip(), loose=self._is_loose or self.place.types is not None) is not None

    def advance(self, buffer: str, where: Surroundings) -> tuple[int, Verdict]:
        """Read on; return how many characters were taken and what they say."""
        return self._advance_quoted(buffer, where) if self.quote else self._advance_bare(buffer, where)

    def _advance_bare(self, buffer: str, where: Surroundings) -> tuple[int, Verdict]:
        limit = len(buffer)
        if self.bracket is not None:
            limit = min(limit, self.bracket[1] + MAX_BEYOND - self._length)
        match = (_KEY_END if self.is_key else _VALUE_END).search(buffer, 0, limit)
        at = match.start() if match is not None else limit
        if at:
            self.collect(buffer[:at])
        if self.bracket is not None and self._length >= self.bracket[1] + MAX_BEYOND:
            return at, Verdict.GO_BACK
        if at == len(buffer):
            return at, Verdict.WAIT
        character = buffer[at]
        if self.is_key:
            is_end = character == "," or character in where.separators or character in where.closing
            verdict = Verdict.END if is_end else Verdict.GO_ON
        elif character == ",":
            verdict = Verdict.END if where.is_in_array else self._judge_comma(buffer[at + 1 :], where)
        else:
            verdict = self._judge_bracket(buffer, at, where)
        if verdict is Verdict.GO_ON:
            self.collect(character)
            at += 1
        return at, verdict

    def _judge_comma(self, ahead: str, where: Surroundings) -> Verdict:
        """A comma ends a value of an object if a key follows, and after a literal."""
        match = _KEY_AHEAD.match(ahead)
        if match is not None:
            key = match[1] or match[2] or match[3]
            is_known = key in where.keys if where.keys is not None else not key[0].isdigit()
            is_key = is_known or self.is_literal()  # behind a literal also one that the schema does not name
            return Verdict.END if is_key and match[0][-1] in where.separators else Verdict.GO_ON
        if not where.is_ended and _KEY_AHEAD_BEGUN.fullmatch(ahead):
            return Verdict.WAIT
        following = ahead.lstrip()[:1]
        return Verdict.END if not following or following in where.closing or self.is_literal() else Verdict.GO_ON

    def _judge_bracket(self, buffer: str, at: int, where: Surroundings) -> Verdict:
        """A bracket ends a value if it closes something and what follows could follow then, and after a literal."""
        if buffer[at] not in where.closing:
            return Verdict.GO_ON
        if not where.may_go_back or self.is_literal():
            return Verdict.END
        following = follower(buffer, at + 1, is_ended=where.is_ended)
        if following is None:
            return Verdict.WAIT
        if not following or following in ("}])" if where.is_outermost else ",}])"):
            return Verdict.END
        self.note_bracket()
        return Verdict.GO_ON

    def _advance_quoted(self, buffer: str, where: Surroundings) -> tuple[int, Verdict]:
        match = _QUOTED_SPECIAL[self.quote].search(buffer)
        at = match.start() if match is not None else len(buffer)
        if at:
            self.collect(buffer[:at])
        if match is None:
            return at, Verdict.WAIT
        if match[0] == "\\":
            if at + 1 == len(buffer) and not where.is_ended:
                return at, Verdict.WAIT
            self.collect(buffer[at : at + 2])
            return at + len(buffer[at : at + 2]), Verdict.GO_ON
        following = follower(buffer, at + 1, is_ended=where.is_ended)
        if following is None:
            return at, Verdict.WAIT
        if not following or following == "," or following in where.closing or (self.is_key and following in ":="):
            return at + 1, Verdict.END_QUOTED
        self.collect(self.quote)
        return at + 1, Verdict.GO_ON


def follower(buffer: str, start: int, *, is_ended: bool) -> str | None:
    """Return the next character that is no blank: "" if none can come, None if it is not known yet."""
    match = _BLANK.match(buffer, start)
    end = match.end() if match is not None else start
    if end - start > MAX_SPACE:
        return " "
    if end < len(buffer):
        return buffer[end]
    return "" if is_ended else None


def unescape(text: str) -> str:
    """Return text of a JSON or Python literal with its escapes read; unknown ones stay as they are."""

    def read(match: re.Match[str]) -> str:
        first, second, letter = match.groups()
        if letter is not None:
            return _ESCAPES.get(letter, match[0])
        code = int(first, 16)
        if second is None:
            return chr(code)
        if 0xD800 <= code < 0xDC00:
            return chr(0x10000 + ((code - 0xD800) << 10) + (int(second, 16) - 0xDC00))
        return chr(code) + chr(int(second, 16))

    return _ESCAPE.sub(read, text) if "\\" in text else text
