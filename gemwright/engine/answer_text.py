"""The text of one answer as its tokens come: decoded piece by piece, cut before a stop string."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from gemwright.engine.request import FinishReason
from gemwright.text.parser_events import Event, ParsedOutput
from gemwright.text.parser_stops import StopFilter


class TextDecoder(Protocol):
    """What turns ids into text without ever giving half a character."""

    def push(self, ids: Sequence[int]) -> str:
        """Return the text that these ids complete."""
        ...

    def finish(self) -> str:
        """Return what was held back."""
        ...


class Answer(Protocol):
    """What reads the tokens of one answer: plain text, or the output machine of a chat."""

    @property
    def text(self) -> str:
        """What it says so far, as far as that is certain; all of it once it has finished."""
        ...

    @property
    def message(self) -> ParsedOutput | None:
        """Thought, answer and calls, where it tells them apart."""
        ...

    @property
    def stop_found(self) -> str | None:
        """The stop string that ended it; None as long as none has."""
        ...

    @property
    def num_thought_tokens(self) -> int:
        """Tokens so far inside thoughts, their marks apart; 0 where it tells nothing apart."""
        ...

    def take_text(self) -> str:
        """Return what `text` gained since the last call."""
        ...

    def take_events(self) -> tuple[Event, ...] | None:
        """Return the events since the last call, None where it makes none."""
        ...

    def push(self, token_id: int, *, may_stop: bool) -> bool:
        """Add a token that ends nothing by itself; returns whether a stop string is now complete."""
        ...

    def finish(self, reason: FinishReason, *, may_stop: bool) -> FinishReason:
        """End it for this reason; returns the reason that holds once all of it is read."""
        ...


class AnswerText:
    """Plain text with stop strings. Where one ends the text does not depend on how it is cut into tokens."""

    message = None
    """It tells nothing apart."""
    num_thought_tokens = 0

    def __init__(self, decoder: TextDecoder, stop: Sequence[str]) -> None:
        self._decoder = decoder
        self._stops = StopFilter(stop)
        self._parts: list[str] = []
        self._num_taken = 0

    @property
    def text(self) -> str:
        """The text that no stop string can cut any more."""
        return "".join(self._parts)

    @property
    def stop_found(self) -> str | None:
        """The stop string that ended it; None as long as none has."""
        return self._stops.found

    def take_text(self) -> str:
        """Return what `text` gained since the last call."""
        begin, self._num_taken = self._num_taken, len(self._parts)
        return "".join(self._parts[begin:])

    def take_events(self) -> None:
        """None: it is plain text."""

    def push(self, token_id: int, *, may_stop: bool) -> bool:
        """Add a token; returns whether a stop string is now complete, in which case `text` ends before it."""
        self._parts.append(self._stops.push(self._decoder.push([token_id]), may_stop=may_stop))
        return self.stop_found is not None

    def finish(self, reason: FinishReason, *, may_stop: bool) -> FinishReason:
        """Add what is still held back; a stop string in it makes the reason "stop"."""
        self._parts += [self._stops.push(self._decoder.finish(), may_stop=may_stop), self._stops.flush()]
        return reason if self.stop_found is None else FinishReason.STOP
