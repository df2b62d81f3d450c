"""The one output machine: what a model writes, as text or token by token, to thoughts, answer and calls.

It follows the table in `parser_dialects.py`. Every event is final, and does not depend on how the output was cut. It
knows nothing of engines and servers, and runs no tool.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from gemwright.text.detokenizer import Detokenizer
from gemwright.text.parser_arguments import ArgumentReader, Piece
from gemwright.text.parser_dialects import DIALECTS, TABLE, Act, Dialect, State, Step, Terminal, dialect_named
from gemwright.text.parser_events import Event, EventType, ParsedOutput, ToolCall, UnfinishedCall
from gemwright.text.parser_schema import ANYWHERE, read_tools
from gemwright.text.parser_stops import StopFilter
from gemwright.text.parser_text_calls import Call, JsonScanner, TextCalls, read_json_calls
from gemwright.text.tool_syntax import QUOTE

if TYPE_CHECKING:
    from gemwright.text.tokenizer import Tokenizer

HOLD_ARGUMENTS = 256
"""Characters of arguments that wait in case a key comes again, or the call is cut: shorter calls come whole."""
MAX_GUESS = 1 << 16
"""How long a text may be that could be a call without opening mark."""
_MAX_BLANK = 64
_MAX_RETURNS = 16
"""How often text behind a string without end is read again."""
_SLICE = 1024

_CALL_HEAD = re.compile(r"\s*(?:call\s{0,8}:\s{0,8})?([^\s{}()\[\]<>\"'`,=]{1,256})\s{0,8}([{(])")
_CALL_HEAD_BEGUN = re.compile(r"\s*(?:call\s{0,8}:?\s{0,8})?[^\s{}()\[\]<>\"'`,=]{0,256}\s{0,8}")
_CALL_NAME_ALONE = re.compile(r"\s*call\s{0,8}:\s{0,8}([^\s{}()\[\]<>\"'`,=]{1,256})\s*")
_GUESS_HEAD = re.compile(r"call:\s{0,8}([^\s{}()\[\]<>\"'`,=]{1,256})\s{0,8}[{(]")
_GUESS_HEAD_BEGUN = re.compile(r"c|ca|cal|call|call:\s{0,8}(?:[^\s{}()\[\]<>\"'`,=]{1,256}\s{0,8})?")


class _Words:
    """Control words of a dialect in text that comes in pieces."""

    def __init__(self, words: Mapping[str, Terminal]) -> None:
        self.terminals = words
        self._pattern = re.compile("|".join(re.escape(word) for word in sorted(words, key=len, reverse=True)))
        self._beginnings = frozenset(word[:length] for word in words for length in range(1, len(word)))
        self._longest = max(map(len, words))

    def split(self, text: str) -> tuple[list[tuple[str, bool]], str]:
        """Return texts and words (True) in order, and the tail that may begin a word."""
        parts: list[tuple[str, bool]] = []
        done = 0
        if "<" in text:
            for match in self._pattern.finditer(text):
                if match.start() > done:
                    parts.append((text[done : match.start()], False))
                parts.append((match[0], True))
                done = match.end()
        keep = len(text)
        place = text.rfind("<", max(done, len(text) - self._longest + 1))
        while place >= 0:
            if text[place:] in self._beginnings:
                keep = place
            place = text.rfind("<", max(done, len(text) - self._longest + 1), place)
        if keep > done:
            parts.append((text[done:keep], False))
        return parts, text[keep:]


class _Call:
    """The call that is being read."""

    def __init__(self, name: str, reader: ArgumentReader, raw: list[str]) -> None:
        self.name = name
        self.reader = reader
        self.raw = raw
        """Its text, for as long as none of it has been given out."""
        self.index: int | None = None
        self.given: list[str] = []


class OutputParser:
    """Reads one output.

    dialect: `gemma2`, `gemma3` or `gemma4`. tools: the request's, in OpenAI's form, or `name` with `parameters`; their
    schemas decide types. opens_thought: the prompt ends inside a thought (`prompt_leaves_thought_open`). stop: strings
    that end the output where they appear in the answer; in thoughts and calls they do not count. hold_arguments: see
    HOLD_ARGUMENTS; 0 gives everything out as early as it can.

    After `push_text` or `push_control` look at `stop_found`: if it names a string the request should end. Raises
    UnsupportedError for an unknown dialect.
    """

    def __init__(
        self,
        dialect: str,
        *,
        tools: Iterable[Mapping[str, Any]] = (),
        opens_thought: bool = False,
        stop: Sequence[str] = (),
        hold_arguments: int = HOLD_ARGUMENTS,
    ) -> None:
        self.dialect: Dialect = dialect_named(dialect)
        self._tools = read_tools(tools)
        self._hold = hold_arguments
        self._stops = StopFilter([text for text in stop if text])
        self.may_stop = True
        """Whether stop strings count that are complete in what comes next."""
        self._text_calls = TextCalls(self._tools) if self.dialect.has_text_calls and self._tools else None
        self._words = _WORDS[self.dialect.name]
        self._marks = _MARKS[self.dialect.name]
        self._tail = ""
        self._queue: deque[Piece] = deque()
        self._state = State.START if self.dialect.label is not None else State.ANSWER
        self._is_label_certain = False
        if opens_thought and self.dialect.label is not None:
            self._state = State.LABEL
        self._held = ""
        """The beginning of what a state reads, until it is known what it is."""
        self._json_parts: list[str] = []
        self._scanner = JsonScanner()
        self._guess: list[Piece] = []
        self._guess_length = 0
        self._call: _Call | None = None
        self._has_mark_before = False
        """A mark came right before: blanks alone between marks are no answer."""
        self._is_new_thought = False
        self._newline = ""
        """A line's end in a thought, which is not shown if the thought ends behind it."""
        self._returns = 0
        self._events: list[tuple[EventType, int | None, str | None, list[str]]] = []
        self._reasoning: list[str] = []
        self._content: list[str] = []
        self._calls: list[ToolCall] = []
        self._num_calls = 0
        self._unfinished: UnfinishedCall | None = None
        self._warnings: dict[str, None] = {}
        self._finish_reason: str | None = None

    @property
    def stop_found(self) -> str | None:
        """The stop string that ended the output; None as long as none has."""
        return self._stops.found

    @property
    def is_in_thought(self) -> bool:
        """Whether the output is inside a thought, as far as it is known."""
        return self._state in (State.LABEL, State.THOUGHT)

    @property
    def output(self) -> ParsedOutput:
        """All that has become certain so far."""
        return ParsedOutput(
            reasoning_content="".join(self._reasoning) or None,
            content="".join(self._content) or None,
            tool_calls=tuple(self._calls),
            finish_reason=self._finish_reason,
            unfinished_call=self._unfinished,
            warnings=tuple(self._warnings),
        )

    def push_text(self, text: str) -> list[Event]:
        """Take text in which control words may be spelled; return what is now certain."""
        return self._push(text, self._words)

    def push_decoded(self, text: str) -> list[Event]:
        """Take text of ordinary tokens, control tokens coming by `push_control`.

        Marks of thoughts, calls and turns count here too, since models spell them; other control words are text.
        """
        return self._push(text, self._marks)

    def push_control(self, word: str) -> list[Event]:
        """Take one control token by its name; it is a mark for certain. Names that no dialect has are left out."""
        if self._is_over:
            return []
        self._settle_tail()
        self._queue.append(Piece(word, is_word=True, is_certain=True))
        self._run()
        return self._take_events()

    def finish(self, reason: str) -> list[Event]:
        """End the output with the engine's reason; return what was held back, and the finish.

        `stop` becomes `tool_calls` where a call is complete. A call that is not is never given as one: with `stop` its
        text is shown if none of it has been given out, otherwise it is `output.unfinished_call`.
        """
        if self._finish_reason is not None:
            return []
        if self.stop_found is None:
            self._settle_tail()
            self._run()
            self._settle_end(reason)
        has_calls = bool(self._calls) and reason == "stop"
        self._finish_reason = "tool_calls" if has_calls else reason
        self._emit(EventType.FINISH, self._finish_reason)
        return self._take_events()

    # Input

    @property
    def _is_over(self) -> bool:
        return self._finish_reason is not None or self.stop_found is not None

    def _push(self, text: str, words: _Words) -> list[Event]:
        if self._is_over or not text:
            return []
        parts, self._tail = words.split(self._tail + text if self._tail else text)
        self._queue.extend(Piece(part, is_word=is_word) for part, is_word in parts)
        self._run()
        return self._take_events()

    def _settle_tail(self) -> None:
        """What looked like the beginning of a control word is text."""
        if self._tail:
            self._queue.append(Piece(self._tail))
            self._tail = ""

    def _run(self) -> None:
        """Read what waits. A state may put something back in front, and each time has read some of it."""
        queue = self._queue
        while queue and self.stop_found is None:
            piece = queue.popleft()
            if piece.is_word:
                self._read_word(piece)
            elif piece.text:
                _TEXT_READERS[self._state](self, piece.text)
        if self.stop_found is not None:
            queue.clear()

    def _back(self, *pieces: Piece) -> None:
        self._queue.extendleft(reversed(pieces))

    # Words: the table

    def _read_word(self, piece: Piece) -> None:
        terminal = self.dialect.words.get(piece.text, Terminal.OTHER)
        step = TABLE[self._state][terminal]
        _ACTS[step.act](self, piece, step)

    def _move(self, piece: Piece, step: Step) -> None:
        """Leave the state for the next, with what was held back settled."""
        self._settle_state(then=step.then)
        self._state = step.then
        self._has_mark_before = True
        if step.then is State.LABEL:
            self._is_new_thought = True
            self._is_label_certain = True

    def _leave_out(self, piece: Piece, step: Step) -> None:
        self._warn(f"{piece.text} out of place was left out")
        if self._state is State.CALL_NAME:
            return
        self._move(piece, step)

    def _settle_state(self, *, then: State | None) -> None:
        """Give out what the state held back: a mark (to state `then`) or the end shows that it was nothing special."""
        held, self._held = self._held, ""
        if self._state in (State.START, State.AFTER_THOUGHT):
            if then is not None and self._state is State.START and self.dialect.label == f"{held.strip()}\n":
                self._warn("a thought's opening mark was missing")
            elif held.strip() or not self._has_mark_before:
                self._answer(held)
        elif self._state is State.AFTER_CALL and held.strip():
            self._warn("a bracket was out of place")
        elif self._state is State.LABEL:
            is_label = f"{held}\n" == self.dialect.label if then is not None else self._is_label_certain
            if not is_label or not (self.dialect.label or "").startswith(held):
                self._think(held)
        elif self._state is State.TURN_LABEL:
            self._answer(held)
        if self._newline and then is not State.THOUGHT:
            newline, self._newline = self._newline, ""
            if then is None:
                self._think(newline, is_last=True)
        self._settle_answer()

    def _settle_answer(self) -> None:
        """What may have begun a call or a stop string is text."""
        if self._text_calls is not None:
            self._take_text_calls(self._text_calls.finish())
        if self.stop_found is None:
            self._content_event(self._stops.flush())

    def _settle_end(self, reason: str) -> None:
        """Settle whatever the machine is in at the end of the output."""
        while self._state is State.ARGUMENTS:
            self._end_arguments(is_closed=False, reason=reason)
            self._run()
        if self._state in (State.CALL_NAME, State.CALL_JSON, State.CALL_GUESS):
            self._give_up_text(reason)
        self._settle_state(then=None)

    # Text for the reader, and thoughts

    def _text_at_start(self, text: str) -> None:
        """Look for a thought's label or a call without opening mark; anything else is the answer."""
        held = self._held + text
        body = held.lstrip()
        label = self.dialect.label if self._state is State.START else None
        if len(held) - len(body) <= _MAX_BLANK:
            if not body or (label is not None and len(body) < len(label) and label.startswith(body)):
                self._held = held
                return
            if label is not None and body.startswith(label):
                self._warn("a thought's opening mark was missing")
                self._held = ""
                self._state = State.THOUGHT
                self._is_new_thought = True
                self._back(Piece(body[len(label) :]))
                return
            head = _GUESS_HEAD.match(body)
            if head is not None and (not self._tools or head[1] in self._tools):
                self._held = ""
                self._state = State.CALL_NAME if self._tools else State.CALL_GUESS
                self._warn("a call's opening mark was missing")
                self._guess, self._guess_length = [], 0
                self._back(Piece(body))
                return
            if head is None and _GUESS_HEAD_BEGUN.fullmatch(body):
                self._held = held
                return
        self._held = ""
        self._state = State.ANSWER
        self._back(Piece(held))

    def _text_in_answer(self, text: str) -> None:
        self._has_mark_before = False
        self._answer(text)

    def _text_after_call(self, text: str) -> None:
        """Blanks and surplus brackets before a call's closing mark are no answer."""
        held = self._held + text
        body = held.lstrip(" \t\r\n}])")
        if not body and len(held) <= _MAX_BLANK:
            self._held = held
            return
        self._warn("a call's closing mark was missing")
        self._held = ""
        self._state = State.START
        self._back(Piece(held))

    def _text_label(self, text: str) -> None:
        self._read_label(text, self.dialect.label or "", State.THOUGHT, State.THOUGHT)

    def _text_turn_label(self, text: str) -> None:
        self._read_label(text, self.dialect.role, State.START, State.ANSWER)

    def _read_label(self, text: str, label: str, then: State, otherwise: State) -> None:
        held = self._held + text
        if len(held) < len(label) and label.startswith(held):
            self._held = held
            return
        self._held = ""
        is_label = held.startswith(label)
        self._state = then if is_label else otherwise
        self._back(Piece(held[len(label) :] if is_label else held))

    def _text_in_thought(self, text: str) -> None:
        self._think(text)

    def _think(self, text: str, *, is_last: bool = False) -> None:
        text = self._newline + text
        self._newline = ""
        if text.endswith("\n") and not is_last:
            self._newline = "\n"
            text = text[:-1]
        if not text:
            return
        if self._is_new_thought:
            self._is_new_thought = False
            if self._reasoning and not self._reasoning[-1].endswith("\n"):
                text = f"\n{text}"
        self._reasoning.append(text)
        self._emit(EventType.REASONING, text)

    def _answer(self, text: str) -> None:
        if not text:
            return
        if self._text_calls is not None:
            self._take_text_calls(self._text_calls.push(text))
        else:
            self._content_event(self._stops.push(text, may_stop=self.may_stop))

    def _take_text_calls(self, found: list[str | list[Call]]) -> None:
        for item in found:
            if isinstance(item, str):
                self._content_event(self._stops.push(item, may_stop=self.may_stop))
            else:
                self._content_event(self._stops.flush())
                for name, arguments in item:
                    self._whole_call(name, arguments)
            if self.stop_found is not None:
                return

    def _content_event(self, text: str) -> None:
        if text:
            self._content.append(text)
            self._emit(EventType.CONTENT, text)

    # Calls

    def _text_call_name(self, text: str) -> None:
        held = self._held + text
        first = held.lstrip()[:1]
        if first and first in "{[":
            self._held = ""
            self._state = State.CALL_JSON
            self._json_parts, self._scanner = [], JsonScanner()
            self._back(Piece(held))
            return
        match = _CALL_HEAD.match(held)
        if match is not None:
            self._held = ""
            self._begin_call(match[1], match[2], held[: match.end()])
            self._back(Piece(held[match.end() :]))
        elif _CALL_HEAD_BEGUN.fullmatch(held) and len(held) <= _SLICE:
            self._held = held
        else:
            self._held = held
            self._give_up_text("stop")

    def _begin_call(self, name: str, opener: str, raw: str) -> None:
        if not self._tools:
            place = ANYWHERE
        else:
            place = self._tools.get(name, ANYWHERE)
            if name not in self._tools:
                self._warn("a call names a tool that the request does not have")
        self._call = _Call(name, ArgumentReader(opener, place, hold=self._hold), [raw])
        self._state = State.ARGUMENTS

    def _text_in_arguments(self, text: str) -> None:
        assert self._call is not None
        for start in range(0, len(text), _SLICE):  # so that cutting what has been read off is cheap
            part = text[start : start + _SLICE]
            if not self._call.given:
                self._call.raw.append(part)
            self._call.reader.feed_text(part)
            if self._after_arguments():
                self._queue.appendleft(Piece(text[start + _SLICE :]))
                self._move_rest()
                return

    def _ask_arguments(self, piece: Piece, step: Step) -> None:
        assert self._call is not None
        reader = self._call.reader
        terminal = self.dialect.words.get(piece.text, Terminal.OTHER)
        if not self._call.given and terminal in (Terminal.QUOTE, Terminal.OTHER):
            self._call.raw.append('"' if terminal is Terminal.QUOTE else "")
        if terminal is Terminal.QUOTE:
            reader.feed_quote(is_certain=piece.is_certain)
        elif terminal is Terminal.OTHER or (
            reader.is_in_string and not (terminal is Terminal.CALL_OPEN and piece.is_certain and reader.may_begin_next)
        ):
            reader.feed_word(piece.text, is_certain=piece.is_certain)
        else:
            self._back(piece)
            self._end_arguments(is_closed=terminal is Terminal.CALL_OPEN, reason="stop")
            return
        if self._after_arguments():
            self._move_rest()

    def _close_call(self, piece: Piece, step: Step) -> None:
        assert self._call is not None
        if self._call.reader.is_in_string:
            self._call.reader.suspend(piece.text, is_certain=piece.is_certain)
        else:
            self._end_arguments(is_closed=True, reason="stop")

    def _end_arguments(self, *, is_closed: bool, reason: str) -> None:
        """End the call that is open: it is complete, or shown as text, or left unfinished."""
        call = self._call
        assert call is not None
        is_lost_end = reason == "stop" and call.reader.is_suspended and self._returns < _MAX_RETURNS
        self._returns += is_lost_end
        call.reader.end(is_closed=is_closed or is_lost_end)
        self._warnings.update(call.reader.warnings)
        if self._after_arguments():
            self._state = State.START if is_closed or is_lost_end else State.AFTER_CALL
            self._has_mark_before = True
            self._move_rest()
            return
        self._call = None
        self._state = State.ANSWER
        if reason == "stop" and not call.given:
            self._warn("a call without end is shown as text")
            self._answer("".join(call.raw))
            return
        self._warn("a call was cut")
        self._unfinished = UnfinishedCall(call.name, call.reader.writer.text)

    def _after_arguments(self) -> bool:
        """Give out what has become certain of the arguments; returns whether the call is complete."""
        call = self._call
        assert call is not None
        text = call.reader.writer.take()
        if text:
            if call.index is None:
                call.index = self._num_calls
                self._num_calls += 1
                self._emit(EventType.TOOL_CALL, None, call.index, call.name)
                call.raw = []
            call.given.append(text)
            self._emit(EventType.ARGUMENTS, text, call.index)
        if call.reader.is_done:
            self._warnings.update(call.reader.warnings)
            self._calls.append(ToolCall(call.name, "".join(call.given), call.reader.writer.has_late_duplicate))
            self._emit(EventType.TOOL_CALL_END, None, call.index)
            self._finished_call = call
            self._call = None
            self._state = State.AFTER_CALL
            self._has_mark_before = True
        return call.reader.is_done

    def _move_rest(self) -> None:
        """What the arguments did not take is read next."""
        self._back(*self._finished_call.reader.rest)

    def _whole_call(self, name: str, arguments: str) -> None:
        index = self._num_calls
        self._num_calls += 1
        self._calls.append(ToolCall(name, arguments))
        self._emit(EventType.TOOL_CALL, None, index, name)
        self._emit(EventType.ARGUMENTS, arguments, index)
        self._emit(EventType.TOOL_CALL_END, None, index)

    def _text_in_json(self, text: str) -> None:
        end = self._scanner.end_in(text)
        self._json_parts.append(text if end is None else text[:end])
        if end is None:
            return
        whole, self._json_parts = "".join(self._json_parts), []
        calls = read_json_calls(whole, None)
        if calls is None:
            self._held = whole
            self._state = State.CALL_NAME
            self._give_up_text("stop")
        else:
            self._warn("a call was written as JSON")
            for name, arguments in calls:
                self._whole_call(name, arguments)
            self._state = State.AFTER_CALL
        self._back(Piece(text[end:]))

    def _name_alone(self, piece: Piece, step: Step) -> None:
        match = _CALL_NAME_ALONE.fullmatch(self._held)
        if match is None:
            self._give_up_call(piece, step)
            return
        self._warn("a call's brackets were missing")
        self._held = ""
        self._whole_call(match[1], "{}")
        self._move(piece, step)

    def _give_up_call(self, piece: Piece, step: Step) -> None:
        self._give_up_text("stop")
        self._back(piece)

    def _give_up_text(self, reason: str) -> None:
        """Show as text what looked like a call; a call that was cut by a limit is not shown."""
        text = self._held + "".join(self._json_parts)
        shown = ('"' if piece.text == QUOTE else "" if piece.is_word else piece.text for piece in self._guess)
        text += "".join(shown)
        is_guess = self._state is State.CALL_GUESS
        self._held, self._json_parts, self._guess = "", [], []
        self._state = State.ANSWER
        if reason != "stop" and not is_guess:
            self._warn("a call was cut")
            self._unfinished = UnfinishedCall(text.strip().removeprefix("call:"), "")
            return
        if not is_guess:
            self._warn("what is no call is shown as text")
        self._answer(text)

    def _text_in_guess(self, text: str) -> None:
        self._guess.append(Piece(text))
        self._guess_length += len(text)
        if self._guess_length > MAX_GUESS:
            self._give_up_text("stop")

    def _add_to_guess(self, piece: Piece, step: Step) -> None:
        self._guess.append(piece)

    def _close_guess(self, piece: Piece, step: Step) -> None:
        pieces, self._guess = self._guess, []
        self._state = step.then
        self._back(*pieces, piece)

    # Output

    def _warn(self, text: str) -> None:
        self._warnings[text] = None

    def _emit(self, kind: EventType, text: str | None, index: int | None = None, name: str | None = None) -> None:
        if self._events and text is not None and kind is not EventType.FINISH:
            last = self._events[-1]
            if last[0] is kind and last[1] == index:
                last[3].append(text)
                return
        self._events.append((kind, index, name, [] if text is None else [text]))

    def _take_events(self) -> list[Event]:
        events = [
            Event(kind, index, name, "".join(texts) if texts else None) for kind, index, name, texts in self._events
        ]
        self._events.clear()
        return events


_WORDS = {name: _Words(dialect.words) for name, dialect in DIALECTS.items()}
_MARKS = {
    name: _Words({word: what for word, what in dialect.words.items() if what is not Terminal.OTHER})
    for name, dialect in DIALECTS.items()
}
_TEXT_READERS = {
    State.START: OutputParser._text_at_start,
    State.AFTER_THOUGHT: OutputParser._text_at_start,
    State.ANSWER: OutputParser._text_in_answer,
    State.LABEL: OutputParser._text_label,
    State.THOUGHT: OutputParser._text_in_thought,
    State.TURN_LABEL: OutputParser._text_turn_label,
    State.CALL_NAME: OutputParser._text_call_name,
    State.CALL_JSON: OutputParser._text_in_json,
    State.CALL_GUESS: OutputParser._text_in_guess,
    State.ARGUMENTS: OutputParser._text_in_arguments,
    State.AFTER_CALL: OutputParser._text_after_call,
}
_ACTS = {
    Act.NOTHING: OutputParser._move,
    Act.LEAVE_OUT: OutputParser._leave_out,
    Act.ASK_ARGUMENTS: OutputParser._ask_arguments,
    Act.CLOSE_CALL: OutputParser._close_call,
    Act.NAME_ALONE: OutputParser._name_alone,
    Act.GIVE_UP_CALL: OutputParser._give_up_call,
    Act.CLOSE_GUESS: OutputParser._close_guess,
    Act.ADD_TO_GUESS: OutputParser._add_to_guess,
}


class TokenReader:
    """Feeds an output parser with token ids: control tokens as marks, other tokens as text, whole characters only."""

    def __init__(self, tokenizer: Tokenizer, parser: OutputParser) -> None:
        self.parser = parser
        self._tokenizer = tokenizer
        self._detokenizer = Detokenizer(tokenizer)

    def push(self, token_ids: Iterable[int]) -> list[Event]:
        """Take the next ids; return what is now certain. Raises RequestError for a negative id."""
        events: list[Event] = []
        for token_id in token_ids:
            if self._tokenizer.is_special(token_id):
                events += self.parser.push_decoded(self._detokenizer.finish())
                events += self.parser.push_control(self._tokenizer.id_to_token(token_id) or "")
            else:
                events += self.parser.push_decoded(self._detokenizer.push((token_id,)))
        return events

    def finish(self, reason: str) -> list[Event]:
        """End the output, as `OutputParser.finish`."""
        return [*self.parser.push_decoded(self._detokenizer.finish()), *self.parser.finish(reason)]
