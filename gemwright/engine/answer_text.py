"""The text of one answer as its tokens come: decoded piece by piece, cut before a stop string."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from gemwright.engine.request import FinishReason

if TYPE_CHECKING:
    from gemwright.text.parser import Event, ParsedOutput


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
        """What it says so far."""
        ...

    @property
    def settled_text(self) -> str:
        """The part of `text` that can no longer be taken back."""
        ...

    @property
    def message(self) -> ParsedOutput | None:
        """Thought, answer and calls, where it tells them apart."""
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
    """Collects text and watches for stop strings.

    The stop string that is complete first ends the text, the longest one if several are: so where the text ends does
    not depend on how it is cut into tokens.
    """

    def __init__(self, decoder: TextDecoder, stop: Sequence[str]) -> None:
        self._decoder = decoder
        self._stop = tuple(stop)
        self.text = ""
        self.stopped = False
        self.finished = False

    @property
    def settled_text(self) -> str:
        """The text that no stop string can cut any more: all but a tail that begins one."""
        if self.finished or self.stopped:
            return self.text
        for length in range(min(len(self.text), max(map(len, self._stop), default=1) - 1), 0, -1):
            tail = self.text[-length:]
            if any(stop.startswith(tail) for stop in self._stop):
                return self.text[:-length]
        return self.text

    def push(self, token_id: int, *, may_stop: bool) -> bool:
        """Add a token; returns whether a stop string is now complete, in which case `text` ends before it."""
        return self._add(self._decoder.push([token_id]), may_stop)

    @property
    def message(self) -> None:
        """None: it is plain text."""
        return None

    def take_events(self) -> None:
        """None: it is plain text."""
        return None

    def finish(self, reason: FinishReason, *, may_stop: bool) -> FinishReason:
        """Add what the decoder still holds; a stop string in it makes the reason "stop"."""
        if not self.stopped:
            self._add(self._decoder.finish(), may_stop)
        self.finished = True
        return FinishReason.STOP if self.stopped else reason

    def _add(self, piece: str, may_stop: bool) -> bool:
        known = len(self.text)
        self.text += piece
        if may_stop and piece:
            begins = [self.text.find(stop, max(0, known - len(stop) + 1)) for stop in self._stop]
            found = [(begin + len(stop), begin) for begin, stop in zip(begins, self._stop, strict=True) if begin >= 0]
            if found:
                self.text = self.text[: min(found)[1]]
                self.stopped = True
        return self.stopped
