"""One call at a time, from behind its opening mark to its end: its name, its arguments, and what if it is none."""

from __future__ import annotations

import re
from collections.abc import Mapping

from gemwright.text.parser_arguments import ArgumentReader
from gemwright.text.parser_dialects import Act, State
from gemwright.text.parser_events import ToolCall, UnfinishedCall
from gemwright.text.parser_output import OutputBuilder
from gemwright.text.parser_schema import ANYWHERE, Place
from gemwright.text.parser_text_calls import JsonScanner, read_json_calls
from gemwright.text.parser_words import Piece
from gemwright.text.tool_syntax import QUOTE

MAX_GUESS = 1 << 16
"""How long a text may be that could be a call without opening mark."""
MAX_RETURNS = 16
MAX_RETURNED = 1 << 20
"""How often, and how many characters, text behind a string without end is read a second time."""
_SLICE = 1024

_NAME = r"([^\s{}()\[\]<>\"'`,=]{1,256})"
_HEAD = re.compile(rf"\s{{0,64}}(?!call\s{{0,8}}:\s{{0,8}}[{{(])(?:call\s{{0,8}}:\s{{0,8}})?{_NAME}\s{{0,8}}([{{(])")
_HEAD_BEGUN = re.compile(rf"\s{{0,64}}(?:call\s{{0,8}}:?\s{{0,8}})?{_NAME}?\s{{0,8}}")
_NAME_ALONE = re.compile(rf"\s{{0,64}}call\s{{0,8}}:\s{{0,8}}{_NAME}\s{{0,8}}")
GUESS_HEAD = re.compile(rf"call:\s{{0,8}}{_NAME}\s{{0,8}}[{{(]")
"""How a call begins whose opening mark is missing."""
GUESS_HEAD_BEGUN = re.compile(rf"c|ca|cal|call|call:\s{{0,8}}(?:{_NAME}\s{{0,8}})?")


class CallReader:
    """Reads a call for the output parser, which asks `state` and `take_rest` after each input.

    The state leaves the call's own ones when it is over: then `take_rest` is what was not a part of it.
    """

    def __init__(self, tools: Mapping[str, Place], out: OutputBuilder, *, hold: int) -> None:
        self.state = State.CALL_NAME
        self._tools = tools
        self._out = out
        self._hold = hold
        self._rest: list[Piece] = []
        self._held = ""
        """The call's text up to its first bracket."""
        self._scanner = JsonScanner()
        self._json_parts: list[str] = []
        self._guess: list[Piece] = []
        self._guess_length = 0
        self._name = ""
        self._reader = ArgumentReader("{", ANYWHERE, hold=hold)
        self._raw: list[str] = []
        """The call's text as the model wrote it."""
        self._index: int | None = None
        self._given: list[str] = []
        self._num_returns = 0
        self._num_returned = 0

    def begin(self, *, is_guess: bool = False) -> None:
        """Begin a call behind its opening mark; or, where there was none, what may be one."""
        self.state = State.CALL_GUESS if is_guess else State.CALL_NAME
        self._held = ""
        self._json_parts = []
        self._guess = []
        self._guess_length = 0

    def take_rest(self) -> list[Piece]:
        """Return what is to be read again, outside the call."""
        rest, self._rest = self._rest, []
        return rest

    def text(self, text: str) -> None:
        """Take text."""
        if self.state is State.ARGUMENTS:
            self._text_in_arguments(text)
        elif self.state is State.CALL_NAME:
            self._text_in_name(text)
        elif self.state is State.CALL_JSON:
            self._text_in_json(text)
        else:
            self._guess.append(Piece(text))
            self._guess_length += len(text)
            if self._guess_length > MAX_GUESS:
                self._give_up()

    def word(self, act: Act, word: Piece) -> None:
        """Take a control word, for which the table says what to do."""
        if self.state is State.ARGUMENTS:
            self._word_in_arguments(act, word)
        elif act is Act.KEEP:
            self._guess.append(word)
        elif act is Act.CONFIRM:
            self._out.warn("a call's opening mark was missing")
            self.state = State.CALL_NAME
            self._rest = [*self._guess, word]
            self._guess = []
        elif act is Act.NAME_ALONE and (match := _NAME_ALONE.fullmatch(self._held)):
            self._out.warn("a call's brackets were missing")
            self._out.whole_call(match[1], "{}")
            self.state = State.START
        else:
            self._give_up()
            self._rest = [word]

    def cut(self, reason: str) -> None:
        """End the call since the output ends: with `stop` by the model's own will."""
        if self.state is State.ARGUMENTS:
            self._end(is_closed=False, reason=reason)
        else:
            self._give_up(reason)

    # Before the arguments

    def _text_in_name(self, text: str) -> None:
        self._held += text
        first = self._held.lstrip()[:1]
        match = _HEAD.match(self._held)
        if first and first in "{[":
            self.state = State.CALL_JSON
            self._scanner = JsonScanner()
            self._rest = [Piece(self._held)]
            self._held = ""
        elif match is not None:
            self._begin_arguments(match)
        elif not _HEAD_BEGUN.fullmatch(self._held):
            self._give_up()

    def _begin_arguments(self, head: re.Match[str]) -> None:
        self._name = head[1]
        if self._tools and self._name not in self._tools:
            self._out.warn("a call names a tool that the request does not have")
        self._reader = ArgumentReader(head[2], self._tools.get(self._name, ANYWHERE), hold=self._hold)
        self._raw = [head[0]]
        self._index = None
        self._given = []
        self._rest = [Piece(self._held[head.end() :])]
        self._held = ""
        self.state = State.ARGUMENTS

    def _text_in_json(self, text: str) -> None:
        end = self._scanner.end_in(text)
        self._json_parts.append(text[:end])
        if end is None:
            return
        calls = read_json_calls("".join(self._json_parts), self._tools, only_known=False)
        if calls is None:
            self._give_up()
        else:
            self._out.warn("a call was written as JSON")
            for name, arguments in calls:
                self._out.whole_call(name, arguments)
            self.state = State.AFTER_CALL
        self._rest = [Piece(text[end:])]

    def _give_up(self, reason: str = "stop") -> None:
        """Show as text what looked like a call; one that a limit cut is not shown."""
        is_guess = self.state is State.CALL_GUESS
        guess = ('"' if piece.text == QUOTE else "" if piece.is_word else piece.text for piece in self._guess)
        text = "".join([self._held, *self._json_parts, *guess])
        self.state = State.ANSWER
        if reason == "stop" or is_guess:
            if not is_guess:
                self._out.warn("what is no call is shown as text")
            self._out.answer(text)
        else:
            self._cut_off(UnfinishedCall(text.strip().removeprefix("call:"), text))

    def _cut_off(self, call: UnfinishedCall) -> None:
        self._out.warn("a call was cut")
        self._out.unfinished.append(call)

    # In the arguments

    def _text_in_arguments(self, text: str) -> None:
        for start in range(0, len(text), _SLICE):  # so that cutting off what has been read is cheap
            part = text[start : start + _SLICE]
            self._raw.append(part)
            self._reader.feed_text(part)
            if self._give_out():
                self._rest = [*self._reader.rest, Piece(text[start + _SLICE :])]
                return

    def _word_in_arguments(self, act: Act, word: Piece) -> None:
        reader = self._reader
        if act is Act.QUOTE:
            self._raw.append('"')
            reader.feed_quote(is_certain=word.is_certain)
        elif act is Act.DATA:
            reader.feed_word(word)
        elif not reader.is_in_string or (act is Act.NEXT_CALL and word.is_certain and reader.may_begin_next):
            self._end(is_closed=act in (Act.CLOSE_CALL, Act.NEXT_CALL))
            self._rest += [] if act is Act.CLOSE_CALL else [word]
            return
        elif act is Act.CLOSE_CALL:
            reader.suspend(word)
        else:
            reader.feed_word(word)
        if self._give_out():
            self._rest = list(reader.rest)

    def _end(self, *, is_closed: bool, reason: str = "stop") -> None:
        """End the arguments: the call is complete, or shown as text, or cut off."""
        may_return = self._num_returns < MAX_RETURNS and self._num_returned < MAX_RETURNED
        is_lost_end = reason == "stop" and self._reader.is_suspended and may_return
        self._reader.end(is_closed=is_closed or is_lost_end)
        self._rest = list(self._reader.rest)
        if is_lost_end:
            self._num_returns += 1
            self._num_returned += sum(len(piece.text) for piece in self._rest)
        if self._give_out():
            self.state = State.START if is_closed or is_lost_end else State.AFTER_CALL
            return
        self.state = State.ANSWER
        self._take_warnings()
        if reason == "stop" and self._index is None:
            self._out.warn("a call without end is shown as text")
            self._out.answer("".join(self._raw))
        else:
            self._cut_off(UnfinishedCall(self._name, "".join(self._raw)))

    def _give_out(self) -> bool:
        """Give out what has become certain of the arguments; returns whether the call is complete."""
        text = self._reader.writer.take()
        if text:
            if self._index is None:
                self._index = self._out.begin_call(self._name)
            self._given.append(text)
            self._out.add_arguments(self._index, text)
        if not self._reader.is_done or self._index is None:
            return False
        self._take_warnings()
        has_duplicate_keys = self._reader.writer.has_late_duplicate
        self._out.end_call(self._index, ToolCall(self._name, "".join(self._given), has_duplicate_keys))
        self.state = State.AFTER_CALL
        return True

    def _take_warnings(self) -> None:
        self._out.warnings.update(self._reader.warnings)
