"""The arguments of one call, from Gemma 4's syntax to JSON as they come, with what is malformed repaired.

Every text becomes some JSON object, and no word of it is lost. What could turn out otherwise is held back; each look
ahead has a limit, counted in characters, so that how the text was cut never matters.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum, auto

from gemwright.text.parser_json import JsonWriter
from gemwright.text.parser_schema import ANYWHERE, Place, bare_to_json, literal_of, quoted_to_json
from gemwright.text.tool_syntax import CALL_CLOSE, QUOTE

MAX_SPACE = 64
"""How many blanks may stand between a mark and the character that decides about it."""
MAX_BEYOND = 1024
"""How far past a bracket a bare text may go on before that bracket counts as its end."""
MAX_RETURNS = 32
"""How often in a call the machine may go back to such a bracket; after that the first bracket counts at once."""
_MAX_LITERAL = 1100
_MAX_TAIL = 16

_BLANK = re.compile(r"\s*")
_KEY_AHEAD = re.compile(r"\s{0,64}(?:\"([^\"\n]{1,64})\"|'([^'\n]{1,64})'|([\w.$-]{1,64}))\s{0,8}[:=]")
_KEY_BEGUN = re.compile(r"\s{0,64}(?:\"[^\"\n]{0,64}\"?|'[^'\n]{0,64}'?|[\w.$-]{0,64})\s{0,8}")
_QUOTED_SPECIAL = {'"': re.compile(r'["\\]'), "'": re.compile(r"['\\]")}
_KEY_SPECIAL = re.compile(r"[,}\]):=]")
_VALUE_SPECIAL = re.compile(r"[,}\])]")
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", "\\": "\\", "/": "/", '"': '"', "'": "'"}
_UNICODE_ESCAPE = re.compile(r"\\u([0-9a-fA-F]{4})(?:\\u([dD][c-fC-F][0-9a-fA-F]{2}))?|\\(.)", re.DOTALL)


class _At(Enum):
    """What comes next, or what is being read."""

    KEY = auto()
    KEY_RUN = auto()
    KEY_STRING = auto()
    COLON = auto()
    VALUE = auto()
    RUN = auto()
    STRING = auto()
    AFTER = auto()
    DONE = auto()


_RUNS = (_At.KEY_RUN, _At.RUN)
_STRINGS = (_At.KEY_STRING, _At.STRING)


@dataclass(frozen=True, slots=True)
class Piece:
    """Input that goes back to be read again: text, or a control word, which is certain if it came as one token."""

    text: str
    is_word: bool = False
    is_certain: bool = False


class _Frame:
    """An object or array that is open."""

    __slots__ = ("closer", "count", "place", "value_place")

    def __init__(self, closer: str, place: Place) -> None:
        self.closer = closer
        self.place = place
        self.value_place = ANYWHERE
        self.count = 0


class ArgumentReader:
    """Reads what follows a call's opening bracket, up to the bracket that closes it.

    opener: `{`, or `(` where the model wrote that. hold: as JsonWriter has it. python: bare True, False and None are
    literals, as in the Python that Gemma 3 writes. `warnings` says what was repaired; `is_done` when the last bracket
    has closed, and `rest` is then what came after it.
    """

    def __init__(self, opener: str, place: Place, *, hold: int, python: bool = False) -> None:
        self.writer = JsonWriter(hold)
        self.writer.open("{")
        self.warnings: dict[str, None] = {}
        self.rest: list[Piece] = []
        self._python = python
        self._has_parenthesis = opener == "("
        self._frames = [_Frame(")" if self._has_parenthesis else "}", place)]
        self._num_arrays = 0
        self._at = _At.KEY
        self._buffer = ""
        self._is_ended = False
        """No more text will come before the end of the call, so that a look ahead sees nothing."""
        self._mark: str | None = None
        """A quote mark that may close what is read, and the blanks behind it; what follows will tell."""
        self._is_string_certain = False
        self._string_parts: list[str] | None = None
        """The string's text where it is not streamed."""
        self._tail = ""
        """Closing brackets and blanks at the end of a string: its end if the quote mark is missing."""
        self._suspended: list[Piece] | None = None
        """What came after a call's closing word inside a string: the string's data, or after its end."""
        self._run: list[str] = []
        self._run_length = 0
        self._run_quote = ""
        self._bracket: tuple[int, int] | None = None
        """The first bracket that may have ended the run: how many parts and characters stood before it."""
        self._returns = 0

    @property
    def is_done(self) -> bool:
        """Whether the outermost bracket has closed."""
        return self._at is _At.DONE

    @property
    def is_in_string(self) -> bool:
        """Whether a control word here is data of a string."""
        return self._at in _STRINGS and self._mark is None

    def feed_text(self, text: str) -> None:
        """Take ordinary text."""
        if not text:
            return
        if self._at is _At.DONE:
            self.rest.append(Piece(text))
        elif self._mark is not None:
            self._look_behind_mark(text)
        elif self._at in _STRINGS:
            self._string_text(text)
        else:
            self._buffer += text
            self._advance()

    def feed_quote(self, *, is_certain: bool) -> None:
        """Take the string mark."""
        if self._mark is not None:
            self._resolve_mark(closes=False)
        if self._at in _STRINGS:
            if self._is_string_certain and not is_certain:
                self._string_text(QUOTE)
            else:
                self._mark = ""
            return
        if self._buffer:
            self._settle_before_quote()
        if self._at in (_At.KEY, _At.VALUE, _At.COLON):
            self._begin_string(is_certain)
        elif self._at in (*_RUNS, _At.AFTER):
            self._mark = ""
            self._is_string_certain = is_certain
        else:
            self.rest.append(Piece(QUOTE, is_word=True, is_certain=is_certain))

    def feed_word(self, word: str, *, is_certain: bool) -> None:
        """Take another control word as data."""
        if self._mark is not None:
            self._resolve_mark(closes=False)
        if self._at is _At.DONE:
            self.rest.append(Piece(word, is_word=True, is_certain=is_certain))
        elif self._suspended is not None:
            self._suspended.append(Piece(word, is_word=True, is_certain=is_certain))
        else:
            self.feed_text(word)

    def suspend(self, word: str, *, is_certain: bool) -> None:
        """Take the call's closing word inside a string: what follows decides whether the string ended before it."""
        if self._suspended is None:
            self._suspended = []
        self._suspended.append(Piece(word, is_word=True, is_certain=is_certain))

    @property
    def is_suspended(self) -> bool:
        """Whether a call's closing word came inside a string that has not ended since."""
        return self._suspended is not None and self._mark is None

    @property
    def may_begin_next(self) -> bool:
        """Whether a call's closing word, one token, came last inside a string: then an opening one ends the string."""
        for piece in reversed(self._suspended or ()):
            if piece.is_word or piece.text.strip():
                return piece.is_certain and piece.text == CALL_CLOSE and self._mark is None
        return False

    def end(self, *, is_closed: bool) -> None:
        """End the call: at its closing word or another sure sign (is_closed), else because the output ends.

        Afterwards `is_done` says whether it is complete; what is not closed then stays as it is.
        """
        self._is_ended = True
        if self._mark is not None:
            self._resolve_mark(closes=True)
        if is_closed and self._suspended is not None:
            self._close_suspended()
        self._advance()
        while self._at in _RUNS and (self._bracket is not None or self._run_quote) and self._returns < MAX_RETURNS:
            self._return_to_bracket()
        if is_closed and self._at is not _At.DONE:
            self._close_all()

    # Moving on

    def _advance(self) -> None:
        """Read the buffer as far as it is certain."""
        while self._buffer and self._at not in _STRINGS and self._mark is None:
            if self._at is _At.DONE:
                self.rest.append(Piece(self._buffer))
                self._buffer = ""
            elif self._at in _RUNS:
                if not (self._advance_quoted() if self._run_quote else self._advance_bare()):
                    return
            else:
                self._buffer = self._buffer.lstrip()
                if self._buffer:
                    self._read_character(self._buffer[0])
        if self._buffer and self._at in _STRINGS:
            text, self._buffer = self._buffer, ""
            self._string_text(text)

    def _read_character(self, character: str) -> None:
        """Read one character where no text is being collected."""
        frame = self._frames[-1]
        at = self._at
        if at is _At.COLON:
            if character in (":", "="):
                self._buffer = self._buffer[1:]
            elif character in ",}])":
                self._empty_value("null")
                return
            else:
                self._warn("a colon was missing")
            self._at = _At.VALUE
        elif character == ",":
            self._buffer = self._buffer[1:]
            if at is _At.VALUE and frame.closer != "]":
                self._empty_value(None)
            self._expect_next()
        elif character in "}])" and self._closes(character):
            if at is _At.VALUE and frame.closer != "]":
                self._empty_value(None)
            else:
                self._close(character)
                self._buffer = self._buffer[1:]
        elif character in "}])" and not (character == ")" and at in (_At.KEY, _At.VALUE)):
            self._warn("a bracket was out of place")
            self._buffer = self._buffer[1:]
        elif at is _At.AFTER:
            self._warn("a comma was missing")
            self._expect_next()
        elif character in "{[":
            self._open(character)
        else:
            self._begin_run(character)

    def _expect_next(self) -> None:
        self._at = _At.VALUE if self._frames[-1].closer == "]" else _At.KEY

    def _open(self, opener: str) -> None:
        frame = self._frames[-1]
        self._buffer = self._buffer[1:]
        if self._at is _At.KEY:
            if frame.closer == ")" and frame.count == 0 and opener == "{":
                frame.closer = "}"  # name({...}): the object is the arguments
                return
            self._write_key("")
        place = self._value_place()
        self.writer.open(opener)
        self._frames.append(_Frame("}" if opener == "{" else "]", place))
        self._num_arrays += opener == "["
        self._expect_next()

    def _closes(self, character: str) -> bool:
        """Whether this bracket closes something that is open."""
        if character == "]":
            return self._num_arrays > 0
        if character == ")":
            return self._frames[0].closer == ")"
        return len(self._frames) - self._num_arrays > (self._frames[0].closer == ")")

    def _close(self, character: str) -> None:
        """Close the innermost frame of this bracket, and with a warning those inside it."""
        while self._frames[-1].closer != character:
            self._warn("a bracket was missing")
            self._close_innermost()
        self._close_innermost()

    def _close_innermost(self) -> None:
        frame = self._frames.pop()
        self._num_arrays -= frame.closer == "]"
        self.writer.close()
        self._at = _At.AFTER if self._frames else _At.DONE

    def _close_all(self) -> None:
        """Close whatever is open at the end of a call that says it is one."""
        if self._at in _RUNS:
            self._finish_run()
        if self._at in _STRINGS:
            self._warn("a string's closing mark was missing")
            self._end_string()
        if self._at is _At.COLON:
            self._empty_value("null")
        if self._at is _At.VALUE and self._frames[-1].closer != "]":
            self._empty_value(None)
        self._warn("a bracket was missing")
        while self._frames:
            self._close_innermost()

    # Keys and values

    def _write_key(self, text: str) -> None:
        frame = self._frames[-1]
        frame.count += 1
        frame.value_place = frame.place.member(text)
        replaced = self.writer.num_replaced
        self.writer.key(text)
        if self.writer.num_replaced > replaced:
            self._warn("a key came twice")

    def _value_place(self) -> Place:
        frame = self._frames[-1]
        if frame.closer != "]":
            return frame.value_place
        frame.count += 1
        return frame.place.element(frame.count - 1)

    def _empty_value(self, json_text: str | None) -> None:
        """Write the value that a key lacks: null, or "" where its colon stands (None) and strings are allowed."""
        self._warn("a value was missing")
        if json_text is None:
            types = self._frames[-1].value_place.types
            json_text = '""' if types is None or "string" in types else "null"
        self.writer.scalar(json_text)
        self._at = _At.AFTER

    def _warn(self, text: str) -> None:
        self.warnings[text] = None

    # Strings between marks

    def _begin_string(self, is_certain: bool) -> None:
        self._is_string_certain = is_certain
        self._tail = ""
        if self._at is _At.COLON:
            self._warn("a colon was missing")
            self._at = _At.VALUE
        if self._at is _At.KEY:
            self._at = _At.KEY_STRING
            self._string_parts = []
            return
        self._at = _At.STRING
        place = self._value_place()
        self._string_place = place
        if place.types is None or "string" in place.types:
            self._string_parts = None
            self.writer.begin_string()
        else:
            self._string_parts = []

    def _string_text(self, text: str) -> None:
        if self._suspended is not None:
            self._suspended.append(Piece(text))
            return
        text = self._tail + text
        num_tail = min(len(text) - len(text.rstrip("}]) \n\r\t")), _MAX_TAIL)
        self._tail = text[len(text) - num_tail :]
        self._put(text[: len(text) - num_tail])

    def _put(self, text: str) -> None:
        if self._string_parts is None:
            self.writer.string_piece(text)
        else:
            self._string_parts.append(text)

    def _end_string(self) -> None:
        """End the string with all its text."""
        self._put(self._tail)
        self._tail = ""
        if self._at is _At.KEY_STRING:
            self._write_key("".join(self._string_parts or ()))
            self._at = _At.COLON
        elif self._string_parts is None:
            self.writer.end_string()
            self._at = _At.AFTER
        else:
            self._write_quoted("".join(self._string_parts), self._string_place)
        self._string_parts = None

    def _write_quoted(self, text: str, place: Place) -> None:
        json_text, is_mended = quoted_to_json(text, place.types)
        if is_mended:
            self._warn("a string stood where the schema has another type")
        self.writer.scalar(json_text)
        self._at = _At.AFTER

    def _release_suspended(self) -> None:
        """The string goes on behind a call's closing word: all of it is data."""
        pieces, self._suspended = self._suspended or [], None
        for piece in pieces:
            self._string_text('"' if piece.text == QUOTE and piece.is_word else piece.text)

    def _close_suspended(self) -> None:
        """The string ended, without its mark, before the call's closing word: what came after it is read again."""
        pieces, self._suspended = self._suspended or [], None
        self._warn("a string's closing mark was missing")
        tail, num_closers = self._tail, 0
        text = tail.rstrip()
        while text and text[-1] in "}])" and num_closers < len(self._frames):
            text, num_closers = text[:-1].rstrip(), num_closers + 1
        closers = tail[len(text) :] if num_closers else ""
        self._tail = text if num_closers else tail
        self._end_string()
        self._buffer = closers
        self._advance()
        self.rest.extend(pieces[1:])

    # A quote mark that may close something

    def _look_behind_mark(self, text: str) -> None:
        assert self._mark is not None
        match = _BLANK.match(text)
        num_blank = match.end() if match is not None else 0
        if len(self._mark) + num_blank > MAX_SPACE:
            self._resolve_mark(closes=False)
        elif num_blank == len(text):
            self._mark += text
            return
        else:
            closing = ",}]" + (")" if self._has_parenthesis else "")
            is_key = self._at in (_At.KEY_STRING, _At.KEY_RUN)
            self._resolve_mark(closes=text[num_blank] in closing or (is_key and text[num_blank] in ":="))
        self.feed_text(text)

    def _resolve_mark(self, *, closes: bool) -> None:
        """Say what the quote mark was, and read the blanks behind it."""
        blank, self._mark = self._mark or "", None
        if self._at in _STRINGS:
            if closes:
                if self._suspended is not None:
                    self._release_suspended()
                self._end_string()
                self._buffer = blank
            elif self._suspended is not None:
                self._suspended += [Piece(QUOTE, is_word=True, is_certain=self._is_string_certain), Piece(blank)]
            else:
                self._string_text('"' + blank)
        elif self._at is _At.RUN:
            if closes:
                self._warn("a string's opening mark was missing")
                text, place = "".join(self._run), self._run_place
                self._end_run()
                self._write_quoted(text, place)
                self._buffer = blank
            else:
                self._collect('"' + blank)
        elif self._at is _At.KEY_RUN:
            text = "".join(self._run).strip()
            self._end_run()
            self._write_key(text)
            self._at = _At.COLON
            if closes:
                self._warn("a string's opening mark was missing")
            else:
                self._begin_string(self._is_string_certain)
                self._string_text(blank)
        elif closes:
            self._warn("a quote mark was out of place")
        else:
            self._warn("a comma was missing")
            self._expect_next()
            self._begin_string(self._is_string_certain)
            self._string_text(blank)

    def _settle_before_quote(self) -> None:
        """Decide what waited for the next character, knowing that it is a quote mark."""
        text = self._buffer
        if self._at is _At.RUN and not self._run_quote and text[0] == "," and not text[1:].strip():
            self._finish_run()  # a comma right before a mark: the next key or element begins
            self._advance()
            return
        self._buffer = ""
        if self._at in _RUNS:
            may_end = self._at is _At.RUN and not self._run_quote and self._returns < MAX_RETURNS
            if may_end and text[0] in "}])" and self._bracket is None:
                self._bracket = (len(self._run), self._run_length)
            self._collect(text)

    # Bare words, and text in other quotes

    def _begin_run(self, character: str) -> None:
        self._run = []
        self._run_length = 0
        self._bracket = None
        self._run_quote = ""
        if self._at is _At.KEY:
            self._at = _At.KEY_RUN
        else:
            self._at = _At.RUN
            self._run_place = self._value_place()
        if character in "\"'":
            self._run_quote = character
            self._collect(character)
            self._buffer = self._buffer[1:]

    def _collect(self, text: str) -> None:
        self._run.append(text)
        self._run_length += len(text)

    def _end_run(self) -> None:
        self._run = []
        self._run_quote = ""
        self._bracket = None

    def _finish_run(self) -> None:
        """Write what was collected as a key or a bare value."""
        text = "".join(self._run).strip()
        is_key = self._at is _At.KEY_RUN
        self._end_run()
        if is_key:
            self._write_key(text)
            self._at = _At.COLON
        else:
            self.writer.scalar(bare_to_json(text, self._run_place.types, loose=self._python))
            self._at = _At.AFTER

    def _is_literal(self) -> bool:
        if self._run_length > _MAX_LITERAL:
            return False
        is_loose = self._python or self._run_place.types is not None
        return literal_of("".join(self._run).strip(), loose=is_loose) is not None

    def _advance_bare(self) -> bool:
        """Read on in a bare word; returns whether to go on, False to wait for more."""
        is_key = self._at is _At.KEY_RUN
        limit = len(self._buffer)
        if self._bracket is not None:
            limit = min(limit, self._bracket[1] + MAX_BEYOND - self._run_length)
        match = (_KEY_SPECIAL if is_key else _VALUE_SPECIAL).search(self._buffer, 0, limit)
        place = match.start() if match is not None else limit
        if place:
            self._collect(self._buffer[:place])
            self._buffer = self._buffer[place:]
        if self._bracket is not None and self._run_length >= self._bracket[1] + MAX_BEYOND:
            self._return_to_bracket()
            return True
        if not self._buffer:
            return False
        character = self._buffer[0]
        if is_key:
            is_text = (
                not self._has_parenthesis if character == "=" else character in "}])" and not self._closes(character)
            )
            if is_text:
                self._take_one()
            else:
                self._finish_run()
            return True
        return self._advance_comma() if character == "," else self._advance_bracket(character)

    def _take_one(self) -> None:
        self._collect(self._buffer[0])
        self._buffer = self._buffer[1:]

    def _advance_comma(self) -> bool:
        frame = self._frames[-1]
        if frame.closer == "]":
            self._finish_run()
            return True
        ahead = self._buffer[1:]
        match = _KEY_AHEAD.match(ahead)
        if match is not None:
            key = match[1] or match[2] or match[3]
            known = frame.place.keys
            is_next = key in known if known is not None else not key[0].isdigit() or self._is_literal()
            has_equals = ahead[match.end() - 1] == "="
            is_next = is_next and (not has_equals or self._has_parenthesis)
        elif not self._is_ended and _KEY_BEGUN.fullmatch(ahead):
            return False
        else:
            following = ahead.lstrip()
            is_next = self._is_literal() or not following or (following[0] in "}])" and self._closes(following[0]))
        if is_next:
            self._finish_run()
        else:
            self._take_one()
        return True

    def _advance_bracket(self, character: str) -> bool:
        if not self._closes(character):
            self._take_one()
            return True
        if self._is_literal() or self._returns >= MAX_RETURNS:
            self._finish_run()
            return True
        follower = self._follower(1)
        if follower is None:
            return False
        others = "}])" if len(self._frames) == 1 else ",}])"
        if not follower or follower in others:
            self._finish_run()
        else:
            if self._bracket is None:
                self._bracket = (len(self._run), self._run_length)
            self._take_one()
        return True

    def _follower(self, start: int) -> str | None:
        """Return the next character that is no blank: "" if none can come, None if it is not known yet."""
        match = _BLANK.match(self._buffer, start)
        end = match.end() if match is not None else start
        if end - start > MAX_SPACE:
            return " "
        if end < len(self._buffer):
            return self._buffer[end]
        return "" if self._is_ended else None

    def _return_to_bracket(self) -> None:
        """End the run at the first bracket that may have ended it, or if there is none read its quote as a letter."""
        self._returns += 1
        if self._bracket is None:
            text = "".join(self._run) + self._buffer
            self._run, self._run_length, self._run_quote = [text[:1]], 1, ""
            text = text[1:]
        else:
            count, length = self._bracket
            text = "".join(self._run[count:]) + self._buffer
            self._run, self._run_length = self._run[:count], length
            self._finish_run()
        self._buffer = ""
        is_ended, self._is_ended = self._is_ended, False
        for start in range(0, len(text), MAX_BEYOND):
            self.feed_text(text[start : start + MAX_BEYOND])
        self._is_ended = is_ended
        self._advance()

    def _advance_quoted(self) -> bool:
        """Read on in text between quotes of JSON or Python; returns whether to go on."""
        match = _QUOTED_SPECIAL[self._run_quote].search(self._buffer)
        place = match.start() if match is not None else len(self._buffer)
        if place:
            self._collect(self._buffer[:place])
            self._buffer = self._buffer[place:]
        if match is None:
            return False
        if self._buffer[0] == "\\":
            if len(self._buffer) == 1 and not self._is_ended:
                return False
            self._collect(self._buffer[:2])
            self._buffer = self._buffer[2:]
            return True
        follower = self._follower(1)
        if follower is None:
            return False
        is_key = self._at is _At.KEY_RUN
        closing = ",}]" + (")" if self._has_parenthesis else "") + (":=" if is_key else "")
        if follower and follower not in closing:
            self._take_one()
            return True
        text = unescape("".join(self._run)[1:])
        self._buffer = self._buffer[1:]
        place_of_value = None if is_key else self._run_place
        self._end_run()
        if place_of_value is None:
            self._write_key(text)
            self._at = _At.COLON
        else:
            self._write_quoted(text, place_of_value)
        return True


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

    return _UNICODE_ESCAPE.sub(read, text) if "\\" in text else text
