"""The one output machine: what a model writes, as text or token by token, to thoughts, answer and calls.

It follows the table in `parser_dialects.py`. Every event is final, and does not depend on how the output was cut. It
knows nothing of engines and servers, and runs no tool.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from gemwright.text.detokenizer import Detokenizer
from gemwright.text.parser_calls import GUESS_HEAD, GUESS_HEAD_BEGUN, CallReader
from gemwright.text.parser_dialects import DIALECTS, TABLE, Act, State, Terminal, dialect_named
from gemwright.text.parser_events import Event, ParsedOutput
from gemwright.text.parser_output import OutputBuilder
from gemwright.text.parser_schema import read_tools
from gemwright.text.parser_words import Piece, WordFinder

if TYPE_CHECKING:
    from gemwright.text.tokenizer import Tokenizer

HOLD_ARGUMENTS = 256
"""Characters of arguments that wait in case a key comes again or the call is cut: shorter calls come whole."""
_MAX_BLANKS = 64

_WORDS = {name: WordFinder(dialect.words) for name, dialect in DIALECTS.items()}
_MARKS = {
    name: WordFinder(word for word, terminal in dialect.words.items() if terminal is not Terminal.OTHER)
    for name, dialect in DIALECTS.items()
}
_IN_THOUGHT = (State.LABEL, State.THOUGHT)
_IN_CALL = (State.CALL_NAME, State.CALL_JSON, State.CALL_GUESS, State.ARGUMENTS)


class OutputParser:
    """Reads one output.

    dialect: `gemma2`, `gemma3` or `gemma4`. tools: the request's, in OpenAI's form, or `name` with `parameters`; their
    schemas decide types. may_call: False says that no call may come, as where a request has no tools: what the model
    writes as one is answer. opens_thought: the prompt ends inside a thought (`prompt_leaves_thought_open`). stop:
    strings that end the output where they appear in the answer; in thoughts and calls they do not count.
    hold_arguments: as HOLD_ARGUMENTS; 0 gives everything out as early as it can.

    Look at `stop_found` after each push: if it names a string the request should end. Raises UnsupportedError for an
    unknown dialect.
    """

    def __init__(
        self,
        dialect: str,
        *,
        tools: Iterable[Mapping[str, Any]] = (),
        may_call: bool = True,
        opens_thought: bool = False,
        stop: Sequence[str] = (),
        hold_arguments: int = HOLD_ARGUMENTS,
    ) -> None:
        self.dialect = dialect_named(dialect)
        self._tools = read_tools(tools)
        self._may_call = may_call
        self._is_call_text = False
        """What comes is a call that is shown as text."""
        self._out = OutputBuilder(stop, self._tools if self.dialect.has_text_calls and may_call else None)
        self._call = CallReader(self._tools, self._out, hold=hold_arguments)
        self._tail = ""
        """The beginning of a control word, perhaps."""
        self._queue: deque[Piece] = deque()
        self._state = State.START if self.dialect.label is not None else State.ANSWER
        self._is_label_certain = False
        """The label belongs to a thought that the output itself opened."""
        if opens_thought and self.dialect.label is not None:
            self._state = State.LABEL
        self._held = ""
        """The beginning of what a state reads, until it is known what it is."""
        self._has_mark_before = False
        """A mark came right before: blanks alone between marks are no answer."""
        self.num_moves = 0
        """Marks so far that had a place and were followed."""

    @property
    def stop_found(self) -> str | None:
        """The stop string that ended the output; None as long as none has."""
        return self._out.stops.found

    @property
    def may_stop(self) -> bool:
        """Whether stop strings count: set it to False while a request has too few tokens to stop."""
        return self._out.may_stop

    @may_stop.setter
    def may_stop(self, is_on: bool) -> None:
        self._out.may_stop = is_on

    @property
    def is_in_thought(self) -> bool:
        """Whether the output is inside a thought, as far as it is known."""
        return self._state in _IN_THOUGHT

    @property
    def output(self) -> ParsedOutput:
        """All that has become certain so far."""
        return self._out.parsed

    def push_text(self, text: str) -> list[Event]:
        """Take text in which control words may be spelled; return what is now certain."""
        return self._push(text, _WORDS[self.dialect.name])

    def push_decoded(self, text: str) -> list[Event]:
        """Take text of ordinary tokens, while control tokens come by `push_control`.

        Marks of thoughts, calls and turns count here too, since models spell them; other control words are text.
        """
        return self._push(text, _MARKS[self.dialect.name])

    def push_control(self, word: str) -> list[Event]:
        """Take one control token by its name; it is a mark for certain. Names without a place are left out."""
        if self._is_over:
            return []
        self._settle_tail()
        self._queue.append(Piece(word, is_word=True, is_certain=True))
        self._run()
        return self._out.take_events()

    def finish(self, reason: str) -> list[Event]:
        """End the output with the engine's reason; return what was held back, and the finish. Then nothing comes.

        `stop` becomes `tool_calls` where a call is complete. A call that is not is never given as one: with `stop` its
        text is shown if none of it has been given out, otherwise it is in `output.unfinished_calls`.
        """
        if self._out.finish_reason is not None:
            return []
        if self.stop_found is None:
            self._settle_tail()
            self._run()
            self._settle_end(reason)
        self._out.finish(reason)
        return self._out.take_events()

    # Input

    @property
    def _is_over(self) -> bool:
        return self._out.finish_reason is not None or self.stop_found is not None

    def _push(self, text: str, words: WordFinder) -> list[Event]:
        if self._is_over or not text:
            return []
        self._out.hidden_words = words
        pieces, self._tail = words.cut(self._tail + text)
        self._queue.extend(pieces)
        self._run()
        return self._out.take_events()

    def _settle_tail(self) -> None:
        """What looked like the beginning of a control word is text."""
        if self._tail:
            self._queue.append(Piece(self._tail))
            self._tail = ""

    def _run(self) -> None:
        """Read what waits. A state may put some of it back in front, to be read in another state."""
        while self._queue and self.stop_found is None:
            piece = self._queue.popleft()
            if piece.is_word:
                self._read_word(piece)
            elif piece.text:
                _TEXT_READERS[self._state](self, piece.text)
        if self.stop_found is not None:
            self._queue.clear()

    def _back(self, *pieces: Piece) -> None:
        self._queue.extendleft(reversed(pieces))

    # Words

    def _read_word(self, word: Piece) -> None:
        terminal = self.dialect.words.get(word.text, Terminal.OTHER)
        if not self._may_call and self._show_call_mark(terminal):
            return
        step = TABLE[self._state][terminal]
        if step.act is Act.LEAVE_OUT:
            self._out.warn(f"{word.text[:40]} out of place was left out")
        if step.act not in (Act.MOVE, Act.LEAVE_OUT):
            self._call.word(step.act, word)
            self._follow_call()
        elif self._state is not State.CALL_NAME:
            self.num_moves += step.act is Act.MOVE
            self._move(step.then)

    def _show_call_mark(self, terminal: Terminal) -> bool:
        """Follow a call where none may come, whose text is answer; returns whether the mark was a part of it."""
        if terminal is Terminal.CALL_OPEN:
            self._out.warn("a call is shown as text, since none may come")
            self.num_moves += 1
            self._move(State.ANSWER)
            self._is_call_text = True
        elif not self._is_call_text or terminal not in (Terminal.QUOTE, Terminal.CALL_CLOSE):
            return False
        elif terminal is Terminal.QUOTE:
            self._back(Piece('"'))
        else:
            self._is_call_text = False
        return True

    def _move(self, then: State) -> None:
        """Settle what the state held back, and go on to the next."""
        self._is_call_text = self._is_call_text and then is State.ANSWER
        self._settle(then=then)
        self._state = then
        self._has_mark_before = True
        if then is State.LABEL:
            self._out.begin_thought()
            self._is_label_certain = True
        elif then is State.CALL_NAME:
            self._call.begin()

    def _settle(self, *, then: State | None) -> None:
        """Give out what the state held back: a mark, to the state `then`, or the end shows that it is mere text."""
        held, self._held = self._held, ""
        label = self.dialect.label or ""
        if self._state in (State.START, State.AFTER_THOUGHT):
            if then is not None and self._state is State.START and f"{held.strip()}\n" == label:
                self._out.warn("a thought's opening mark was missing")
            elif held.strip() or not self._has_mark_before:
                self._out.answer(held)
        elif self._state is State.AFTER_CALL and held.strip():
            self._out.warn("a bracket was out of place")
        elif self._state is State.TURN_LABEL:
            self._out.answer(held)
        elif self._state is State.LABEL:
            # At the end a part of the label is one too, unless the prompt had the label already.
            is_label = label.startswith(held) and self._is_label_certain if then is None else f"{held}\n" == label
            if not is_label:
                self._out.think(held)
        if then not in _IN_THOUGHT:
            self._out.end_thought(is_cut=then is None)
        self._out.settle_answer()

    def _settle_end(self, reason: str) -> None:
        """Settle whatever the machine is in at the end of the output."""
        while self._state in _IN_CALL:
            self._call.cut(reason)
            self._follow_call()
            self._run()
        self._settle(then=None)

    # Text

    def _text_at_start(self, text: str) -> None:
        """Look for a thought's label or a call without opening mark; anything else is the answer."""
        held, self._held = self._held + text, ""
        body = held.lstrip()
        label = self.dialect.label if self._state is State.START else None
        if len(held) - len(body) <= _MAX_BLANKS:
            if label is not None and body.startswith(label):
                self._out.warn("a thought's opening mark was missing")
                self._out.begin_thought()
                self._state = State.THOUGHT
                self._back(Piece(body[len(label) :]))
                return
            head = GUESS_HEAD.match(body) if self._may_call else None
            if head is not None and (not self._tools or head[1] in self._tools):
                if self._tools:
                    self._out.warn("a call's opening mark was missing")
                self._call.begin(is_guess=not self._tools)
                self._state = State.CALL_NAME if self._tools else State.CALL_GUESS
                self._back(Piece(body))
                return
            may_be_label = label is not None and label.startswith(body)
            may_be_call = self._may_call and head is None and GUESS_HEAD_BEGUN.fullmatch(body)
            if not body or may_be_label or may_be_call:
                self._held = held
                return
        self._state = State.ANSWER
        self._back(Piece(held))

    def _text_in_answer(self, text: str) -> None:
        self._has_mark_before = False
        self._out.answer(text)

    def _text_in_label(self, text: str) -> None:
        self._read_label(text, self.dialect.label or "", State.THOUGHT, State.THOUGHT)

    def _text_in_turn_label(self, text: str) -> None:
        self._read_label(text, self.dialect.role, State.START, State.ANSWER)

    def _read_label(self, text: str, label: str, then: State, otherwise: State) -> None:
        held, self._held = self._held + text, ""
        if len(held) < len(label) and label.startswith(held):
            self._held = held
            return
        is_label = held.startswith(label)
        self._state = then if is_label else otherwise
        self._back(Piece(held[len(label) :] if is_label else held))

    def _text_in_thought(self, text: str) -> None:
        self._out.think(text)

    def _text_in_call(self, text: str) -> None:
        self._call.text(text)
        self._follow_call()

    def _follow_call(self) -> None:
        """Follow the call into its next part, and out of it with what it did not take."""
        self._state = self._call.state
        if self._state not in _IN_CALL:
            self._has_mark_before = True
        self._back(*self._call.take_rest())

    def _text_after_call(self, text: str) -> None:
        """Blanks and surplus brackets before a call's closing mark are no answer."""
        held, self._held = self._held + text, ""
        body = held.lstrip(" \t\r\n}])")
        if not body and len(held) <= _MAX_BLANKS:
            self._held = held
            return
        self._out.warn("a call's closing mark was missing")
        self._state = State.START
        self._back(Piece(held))


_TEXT_READERS = {
    State.START: OutputParser._text_at_start,
    State.AFTER_THOUGHT: OutputParser._text_at_start,
    State.ANSWER: OutputParser._text_in_answer,
    State.LABEL: OutputParser._text_in_label,
    State.THOUGHT: OutputParser._text_in_thought,
    State.TURN_LABEL: OutputParser._text_in_turn_label,
    **dict.fromkeys(_IN_CALL, OutputParser._text_in_call),
    State.AFTER_CALL: OutputParser._text_after_call,
}


class TokenReader:
    """Feeds an output parser with token ids: control tokens as marks, other tokens as text, whole characters only."""

    def __init__(self, tokenizer: Tokenizer, parser: OutputParser) -> None:
        self.parser = parser
        self.num_thought_tokens = 0
        """Tokens so far between the marks of thoughts. The marks do not count; the label behind the opening one does,
        and so does what is left out. Where ordinary tokens spell a closing mark, only the one that completes it is a
        mark. How tokens are cut into calls of `push` changes nothing."""
        self._tokenizer = tokenizer
        self._detokenizer = Detokenizer(tokenizer)

    def push(self, token_ids: Iterable[int]) -> list[Event]:
        """Take the next ids; return what is now certain. Raises RequestError for a negative id."""
        events: list[Event] = []
        for token_id in token_ids:
            was_in_thought, num_moves = self.parser.is_in_thought, self.parser.num_moves
            if self._tokenizer.is_special(token_id):
                events += self.parser.push_decoded(self._detokenizer.finish())
                events += self.parser.push_control(self._tokenizer.id_to_token(token_id) or "")
            else:
                events += self.parser.push_decoded(self._detokenizer.push((token_id,)))
            is_mark = self.parser.num_moves != num_moves
            self.num_thought_tokens += was_in_thought and self.parser.is_in_thought and not is_mark
        return events

    def finish(self, reason: str) -> list[Event]:
        """End the output, as `OutputParser.finish`."""
        return [*self.parser.push_decoded(self._detokenizer.finish()), *self.parser.finish(reason)]
