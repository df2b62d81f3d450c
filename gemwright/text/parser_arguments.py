"""The arguments of one call, from Gemma 4's syntax to JSON as they come, with what is malformed repaired.

Every text becomes some JSON object, and no word of it is lost. What could turn out otherwise is held back.
"""

from __future__ import annotations

import re
from enum import Enum, auto

from gemwright.text.parser_runs import MAX_BEYOND, MAX_SPACE, Run, Surroundings, Verdict, unescape
from gemwright.text.parser_schema import ANYWHERE, Place
from gemwright.text.parser_strings import StringReader
from gemwright.text.parser_tree import ArgumentTree
from gemwright.text.parser_words import Piece
from gemwright.text.tool_syntax import QUOTE

MAX_RETURNS = 32
MAX_RETURNED = 1 << 20
"""How often in a call, and how many characters, text may be read a second time to mend it."""
_BLANK = re.compile(r"\s*")


class _At(Enum):
    """What comes next, or what is being read."""

    KEY = auto()
    COLON = auto()
    VALUE = auto()
    STRING = auto()
    RUN = auto()
    """A key or a value that does not stand between string marks."""
    AFTER = auto()
    DONE = auto()


class ArgumentReader:
    """Reads what follows a call's opening bracket, up to the bracket that closes it.

    opener: `{`, or `(` where the model wrote that. hold: as JsonWriter has it. python: bare True, False and None are
    literals, as in the Python that Gemma 3 writes. `warnings` says what was repaired; `is_done` when the last bracket
    has closed, and `rest` is then what came after it.
    """

    def __init__(self, opener: str, place: Place, *, hold: int, python: bool = False) -> None:
        self._tree = ArgumentTree(opener, place, hold=hold, python=python)
        self.writer = self._tree.writer
        self.warnings = self._tree.warnings
        self.rest: list[Piece] = []
        self._at = _At.KEY
        self._buffer = ""
        self._is_ended = False
        """No more text comes before the end of the call."""
        self._run = Run(is_key=True, place=ANYWHERE, is_loose=False)
        self._mark: str | None = None
        """A string mark that may close what is read, and the blanks behind it; what follows will tell."""
        self._is_mark_certain = False
        self._string = StringReader(self._tree, None, is_certain=False)
        self._num_returns = 0
        self._num_returned = 0

    @property
    def is_done(self) -> bool:
        """Whether the outermost bracket has closed."""
        return self._at is _At.DONE

    @property
    def is_in_string(self) -> bool:
        """Whether a control word here is data of a string."""
        return self._at is _At.STRING and self._mark is None

    @property
    def is_suspended(self) -> bool:
        """Whether a call's closing word came inside a string that has not ended since."""
        return self.is_in_string and self._string.is_suspended

    @property
    def may_begin_next(self) -> bool:
        """Whether such a word, one token, came last: then the word that opens a call ends the string."""
        return self.is_in_string and self._string.may_begin_next

    def feed_text(self, text: str) -> None:
        """Take ordinary text."""
        if not text:
            return
        if self._at is _At.DONE:
            self.rest.append(Piece(text))
        elif self._mark is not None:
            self._look_behind_mark(text)
        elif self._at is _At.STRING:
            self._string.text(text)
        else:
            self._buffer += text
            self._advance()

    def feed_quote(self, *, is_certain: bool) -> None:
        """Take the string mark."""
        if self._mark is not None:
            self._resolve_mark(closes=False)
        if self._at is _At.RUN and self._buffer:
            self._settle_before_mark()
        if self._at is _At.STRING:
            if self._string.is_certain and not is_certain:
                self._string.text(QUOTE)
            else:
                self._mark = ""
        elif self._at in (_At.KEY, _At.VALUE, _At.COLON):
            self._begin_string(is_certain)
        elif self._at in (_At.RUN, _At.AFTER):
            self._mark, self._is_mark_certain = "", is_certain
        else:
            self.rest.append(Piece(QUOTE, is_word=True, is_certain=is_certain))

    def feed_word(self, word: Piece) -> None:
        """Take another control word: data of a string, and left out elsewhere."""
        if self._mark is not None:
            self._resolve_mark(closes=False)
        if self._at is _At.DONE:
            self.rest.append(word)
        elif self._at is _At.STRING:
            self._string.word(word)
        else:
            self._tree.warn(f"{word.text[:40]} out of place was left out")

    def suspend(self, word: Piece) -> None:
        """Take the call's closing word inside a string."""
        self._string.suspend(word)

    def end(self, *, is_closed: bool) -> None:
        """End the call: at its closing word or another sure sign (is_closed), else because the output ends.

        Afterwards `is_done` says whether it is complete; what is not closed then stays as it is.
        """
        self._is_ended = True
        if self._mark is not None:
            self._resolve_mark(closes=True)
        if is_closed and self.is_suspended:
            self._buffer, rest = self._string.end_before_word()
            self._at = _At.COLON if self._string.is_key else _At.AFTER
            self._advance()
            self.rest.extend(rest)
        self._advance()
        while self._at is _At.RUN and (self._run.bracket is not None or self._run.quote) and self._may_go_back:
            self._go_back()
        if is_closed and self._at is not _At.DONE:
            self._close_all()

    # Moving on

    def _advance(self) -> None:
        """Read the buffer as far as it is certain."""
        while self._buffer and self._mark is None:
            if self._at is _At.RUN:
                if not self._advance_run():
                    return
            elif self._at is _At.STRING:
                text, self._buffer = self._buffer, ""
                self._string.text(text)
            elif self._at is _At.DONE:
                self.rest.append(Piece(self._buffer))
                self._buffer = ""
            else:
                self._buffer = self._buffer.lstrip()
                if self._buffer:
                    self._read_character(self._buffer[0])

    def _read_character(self, character: str) -> None:
        """Read one character where no text is being collected; it is not a blank."""
        at, tree = self._at, self._tree
        is_value = at is _At.VALUE and not tree.is_in_array
        if at is _At.COLON:
            if character in ":=":
                self._skip()
            elif character in ",}])":
                self._write_empty(has_colon=False)
                return
            else:
                self._tree.warn("a colon was missing")
            self._at = _At.VALUE
        elif is_value and (character == "," or tree.closes(character)):
            self._write_empty(has_colon=True)
        elif character == ",":
            self._skip()
            self._expect_next()
        elif tree.closes(character):
            self._skip()
            tree.close(character)
            self._at = _At.AFTER if tree.depth else _At.DONE
        elif character in "}]" or (character == ")" and at is _At.AFTER):
            self._tree.warn("a bracket was out of place")
            self._skip()
        elif at is _At.AFTER:
            self._tree.warn("a comma was missing")
            self._expect_next()
        elif character in "{[":
            self._skip()
            self._open(character)
        else:
            self._begin_run(character)

    def _skip(self) -> None:
        self._buffer = self._buffer[1:]

    def _expect_next(self) -> None:
        self._at = _At.VALUE if self._tree.is_in_array else _At.KEY

    def _open(self, opener: str) -> None:
        if self._at is _At.KEY:
            if opener == "{" and self._tree.take_braces():
                return
            self._tree.warn("a key was missing")
            self._tree.key("")
        self._tree.open(opener)
        self._expect_next()

    def _close_all(self) -> None:
        """Close whatever is open at the end of a call that says it is one."""
        if self._at is _At.RUN:
            self._finish_run()
        if self._at is _At.STRING:
            self._tree.warn("a string's closing mark was missing")
            self._end_string()
        if self._at is _At.COLON or (self._at is _At.VALUE and not self._tree.is_in_array):
            self._tree.empty(has_colon=self._at is _At.VALUE)
        self._tree.close_all()
        self._at = _At.DONE

    def _write_key(self, text: str) -> None:
        self._tree.key(text)
        self._at = _At.COLON

    def _write_quoted(self, text: str, place: Place) -> None:
        self._tree.quoted(text, place)
        self._at = _At.AFTER

    def _write_empty(self, *, has_colon: bool) -> None:
        self._tree.empty(has_colon=has_colon)
        self._at = _At.AFTER

    def _begin_string(self, is_certain: bool) -> None:
        if self._at is _At.COLON:
            self._tree.warn("a colon was missing")
        place = None if self._at is _At.KEY else self._tree.value_place()
        self._string = StringReader(self._tree, place, is_certain=is_certain)
        self._at = _At.STRING

    def _end_string(self) -> None:
        self._string.end()
        self._at = _At.COLON if self._string.is_key else _At.AFTER

    # A mark that may close something

    def _look_behind_mark(self, text: str) -> None:
        assert self._mark is not None
        match = _BLANK.match(text)
        num_blanks = match.end() if match is not None else 0
        if len(self._mark) + num_blanks > MAX_SPACE:
            self._resolve_mark(closes=False)
        elif num_blanks == len(text):
            self._mark += text
            return
        else:
            is_key = self._run.is_key if self._at is _At.RUN else self._at is _At.STRING and self._string.is_key
            closing = ",}]" + (")" if self._tree.has_parenthesis else "") + (":=" if is_key else "")
            self._resolve_mark(closes=text[num_blanks] in closing)
        self.feed_text(text)

    def _resolve_mark(self, *, closes: bool) -> None:
        """Say what the mark was, and read the blanks behind it."""
        blanks, self._mark = self._mark or "", None
        if self._at is _At.STRING:
            if closes:
                self._end_string()
            else:
                self._string.inner_mark(blanks)
            return
        if self._at is _At.RUN and not self._run.is_key and not closes:
            self._run.collect('"' + blanks)
            return
        if self._at is _At.RUN:
            if closes:
                self._tree.warn("a string's opening mark was missing")
            if self._run.is_key:
                self._write_key(self._run.text.strip())
            else:
                self._write_quoted(self._run.text, self._run.place)
        elif closes:
            self._tree.warn("a string mark was out of place")
        else:
            self._tree.warn("a comma was missing")
            self._expect_next()
        if not closes:
            self._begin_string(self._is_mark_certain)
            self._string.text(blanks)

    def _settle_before_mark(self) -> None:
        """Decide about characters of a run that waited for the next one, knowing that it is a string mark."""
        text = self._buffer
        if not self._run.quote and text[0] == "," and not text[1:].strip():
            self._finish_run()  # a comma right before a mark: the next key begins
            self._advance()
            return
        self._buffer = ""
        if not self._run.quote and not self._run.is_key and text[0] in "}])" and self._may_go_back:
            self._run.note_bracket()
        self._run.collect(text)

    # Keys and values without marks

    def _begin_run(self, character: str) -> None:
        is_key = self._at is _At.KEY
        place = ANYWHERE if is_key else self._tree.value_place()
        quote = character if character in "\"'" else ""
        self._run = Run(is_key=is_key, place=place, is_loose=self._tree.is_python, quote=quote)
        self._at = _At.RUN
        if quote:
            self._run.collect(quote)
            self._skip()

    def _advance_run(self) -> bool:
        """Read on in a run; returns whether to go on, False to wait for more."""
        tree = self._tree
        where = Surroundings(
            closing=tree.closing,
            is_in_array=tree.is_in_array,
            is_outermost=tree.depth == 1,
            keys=tree.keys,
            separators=":=" if tree.has_parenthesis else ":",
            may_go_back=self._may_go_back,
            is_ended=self._is_ended,
        )
        taken, verdict = self._run.advance(self._buffer, where)
        self._buffer = self._buffer[taken:]
        if verdict is Verdict.END:
            self._finish_run()
        elif verdict is Verdict.END_QUOTED:
            text = unescape(self._run.text[1:])
            if self._run.is_key:
                self._write_key(text)
            else:
                self._write_quoted(text, self._run.place)
        elif verdict is Verdict.GO_BACK:
            self._go_back()
        return verdict is not Verdict.WAIT

    def _finish_run(self) -> None:
        """Write what was collected as a key or a bare value."""
        text = self._run.text.strip()
        if self._run.is_key:
            self._write_key(text)
        else:
            self._tree.bare(text, self._run.place)
            self._at = _At.AFTER

    @property
    def _may_go_back(self) -> bool:
        return self._num_returns < MAX_RETURNS and self._num_returned < MAX_RETURNED

    def _go_back(self) -> None:
        """Read a run again from the bracket that was its end, or from its quote, which was a letter."""
        has_bracket = self._run.bracket is not None
        text = self._run.go_back() + self._buffer
        self._buffer = ""
        self._num_returns += 1
        self._num_returned += len(text)
        if has_bracket:
            self._finish_run()
        is_ended, self._is_ended = self._is_ended, False
        for start in range(0, len(text), MAX_BEYOND):
            self.feed_text(text[start : start + MAX_BEYOND])
        self._is_ended = is_ended
        self._advance()
