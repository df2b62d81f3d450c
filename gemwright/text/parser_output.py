"""What an output has turned out to be so far, and the events not yet handed over. Reads nothing itself."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from gemwright.text.parser_events import Event, EventType, ParsedOutput, ToolCall, UnfinishedCall
from gemwright.text.parser_schema import Place
from gemwright.text.parser_stops import StopFilter
from gemwright.text.parser_text_calls import Call, TextCalls
from gemwright.text.parser_words import MarkGuard, WordFinder


class OutputBuilder:
    """Takes thoughts, answer and calls in order, and makes events of them.

    The answer is searched for stop strings, and for calls in its text where `text_call_tools` are given.
    """

    def __init__(self, stop: Sequence[str], text_call_tools: Mapping[str, Place] | None) -> None:
        self.stops = StopFilter([text for text in stop if text])
        self.may_stop = True
        """Whether a stop string that becomes complete ends the answer."""
        self.warnings: dict[str, None] = {}
        self.unfinished: list[UnfinishedCall] = []
        self.finish_reason: str | None = None
        self.calls: list[ToolCall] = []
        self._text_calls = TextCalls(text_call_tools) if text_call_tools else None
        self._num_calls = 0
        self._reasoning: list[str] = []
        self._content: list[str] = []
        self._reasoning_guard = MarkGuard()
        self._content_guard = MarkGuard()
        self.hidden_words: WordFinder | None = None
        """The words that must not show, as the input last read spells them."""
        self._is_new_thought = False
        self._newline = ""
        """A line's end in a thought, which is not shown if the thought ends behind it."""
        self._events: list[tuple[EventType, int | None, str | None, list[str]]] = []

    @property
    def parsed(self) -> ParsedOutput:
        """All of it so far."""
        return ParsedOutput(
            reasoning_content="".join(self._reasoning) or None,
            content="".join(self._content) or None,
            tool_calls=tuple(self.calls),
            finish_reason=self.finish_reason,
            unfinished_calls=tuple(self.unfinished),
            warnings=tuple(self.warnings),
        )

    def take_events(self) -> list[Event]:
        """Return the events since the last call; neighbors of one kind are one event."""
        if not self._events:
            return []
        events = [Event(kind, index, name, "".join(texts) or None) for kind, index, name, texts in self._events]
        self._events.clear()
        return events

    def warn(self, text: str) -> None:
        """Note what was repaired or left out."""
        self.warnings[text] = None

    def begin_thought(self) -> None:
        """A thought begins, or begins again: it is set off from an earlier one by a line's end."""
        self._newline = ""
        self._is_new_thought = True

    def think(self, text: str) -> None:
        """Add to the thought."""
        text = self._newline + text
        self._newline = "\n" if text.endswith("\n") else ""
        if self._newline:
            text = text[:-1]
        if not text:
            return
        if self._is_new_thought and self._reasoning and not self._reasoning[-1].endswith("\n"):
            text = f"\n{text}"
        self._is_new_thought = False
        text = self._break_words(self._reasoning_guard, text)
        self._reasoning.append(text)
        self._emit(EventType.REASONING, text)

    def end_thought(self, *, is_cut: bool) -> None:
        """End the thought, if one is open; a last line's end is shown only if it was cut."""
        newline, self._newline = self._newline, ""
        if is_cut and newline:
            self._reasoning.append(newline)
            self._emit(EventType.REASONING, newline)

    def answer(self, text: str) -> None:
        """Add to the answer, up to a stop string."""
        if self._text_calls is not None:
            self._take_found(self._text_calls.push(text))
        else:
            self._show(self.stops.push(text, may_stop=self.may_stop))

    def settle_answer(self) -> None:
        """Something else follows, or nothing: what may have begun a call or a stop string is text."""
        if self._text_calls is not None:
            self._take_found(self._text_calls.finish())
        self._show(self.stops.flush())

    def _take_found(self, found: Iterable[str | list[Call]]) -> None:
        for item in found:
            if self.stops.found is not None:
                return
            if isinstance(item, str):
                self._show(self.stops.push(item, may_stop=self.may_stop))
            else:
                self._show(self.stops.flush())
                for name, arguments in item:
                    self.whole_call(name, arguments)

    def _show(self, text: str) -> None:
        if text:
            text = self._break_words(self._content_guard, text)
            self._content.append(text)
            self._emit(EventType.CONTENT, text)

    def _break_words(self, guard: MarkGuard, text: str) -> str:
        """Return the text with a space in any word that only came to be because what stood inside it was left out."""
        shown = guard.push(text, self.hidden_words)
        if len(shown) > len(text):
            self.warn("what would read as a mark without what was left out inside it got a space")
        return shown

    def whole_call(self, name: str, arguments_json: str) -> None:
        """Add a complete call."""
        index = self.begin_call(name)
        self.add_arguments(index, arguments_json)
        self.end_call(index, ToolCall(name, arguments_json))

    def begin_call(self, name: str) -> int:
        """Announce a call; returns its number."""
        self._num_calls += 1
        self._emit(EventType.TOOL_CALL, "", self._num_calls - 1, name)
        return self._num_calls - 1

    def add_arguments(self, index: int, json_text: str) -> None:
        """Give out the next piece of a call's arguments."""
        self._emit(EventType.ARGUMENTS, json_text, index)

    def end_call(self, index: int, call: ToolCall) -> None:
        """A call is complete."""
        self.calls.append(call)
        self._emit(EventType.TOOL_CALL_END, "", index)

    def finish(self, reason: str) -> None:
        """End the output: `stop` becomes `tool_calls` where a call is complete."""
        self.finish_reason = "tool_calls" if self.calls and reason == "stop" else reason
        self._emit(EventType.FINISH, self.finish_reason)

    def _emit(self, kind: EventType, text: str, index: int | None = None, name: str | None = None) -> None:
        last = self._events[-1] if self._events else None
        if last is not None and name is None and last[0] is kind and last[1] == index:
            last[3].append(text)
        else:
            self._events.append((kind, index, name, [text]))
