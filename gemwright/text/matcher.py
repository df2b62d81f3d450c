"""Follows one answer under a compiled constraint: which tokens may come next. Knows nothing of how it was compiled.

A thought before the answer, text before a call and what may follow a call are followed here, without a grammar: they
cost a constant mask.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum, auto
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from gemwright.errors import RequestError
from gemwright.text.constraint import Constraint
from gemwright.text.free_text import FreeText, Mask

if TYPE_CHECKING:
    from llguidance import LLMatcher

SMALLER = "make it smaller: fewer repetitions and alternatives, lower bounds"
NO_STOP_ID = 0
"""Told to llguidance as the stop id of a model that names none."""


@dataclass(frozen=True, slots=True, eq=False)
class Program:
    """A compiled constraint: the grammar of the answer or that of one call, as they were made, to be copied for each
    answer; and what the model's vocabulary gives.

    thought_label: the ids of the word that a thought begins with.
    """

    answer: LLMatcher | None
    call: LLMatcher | None
    free_text: FreeText
    stop_token_ids: tuple[int, ...]
    thought_open: int | None
    thought_close: int | None
    thought_label: tuple[int, ...]
    call_open: int | None


class _Phase(Enum):
    """Where an answer is."""

    LABEL = auto()
    """Behind the mark that opens a thought."""
    THOUGHT = auto()
    ANSWER = auto()
    """Inside the grammar of the answer."""
    CALL = auto()
    """Inside the grammar of a call."""
    TEXT = auto()
    """Free text, in which a call may begin."""
    BETWEEN = auto()
    """Behind a call that had to come."""


class Matcher:
    """Follows one answer: `allowed` before each token, `accept` after it. Depends on the answer's own tokens alone."""

    def __init__(self, program: Program, constraint: Constraint) -> None:
        self._program = program
        self._constraint = constraint
        self._vocab_size = len(program.free_text.mask)
        self._words = mask_words(self._vocab_size)
        self._tail = b""
        """The end of the free text so far."""
        self._label: list[int] = []
        self._num_calls = 0
        self._is_first = not self._constraint.opens_thought
        self._grammar: LLMatcher | None = None
        self._phase = _Phase.THOUGHT
        if self._is_first:
            self._begin()

    @property
    def is_complete(self) -> bool:
        """Whether the answer is whole and nothing but a stop id may follow."""
        if self._phase is _Phase.ANSWER and self._grammar is not None:
            return bool(self._grammar.is_stopped() and self._grammar.is_accepting())
        return self._phase is _Phase.BETWEEN and not self._may_call

    def allowed(self) -> Mask:
        """Return which tokens may come next. Raises RequestError where the grammar becomes too complex to follow."""
        thought = self._program.thought_open if self._may_think else None
        call = self._program.call_open if self._may_call else None
        stops = self._program.stop_token_ids
        if self._phase is _Phase.LABEL:
            return self._only(self._label[:1])
        if self._phase is _Phase.THOUGHT:
            return _with(self._program.free_text.mask_after(self._tail), self._program.thought_close)
        if self._phase is _Phase.TEXT:
            return _with(self._program.free_text.mask_after(self._tail), call, thought, *stops)
        if self._phase is _Phase.BETWEEN:
            return _with(self._only(stops), call)
        return _with(self._grammar_mask(), thought)

    def accept(self, token_id: int) -> None:
        """Go on by a token that `allowed` allows and that is no stop id."""
        may_think, self._is_first = self._may_think, False
        if self._phase is _Phase.LABEL:
            self._label.pop(0)
            self._phase = _Phase.LABEL if self._label else _Phase.THOUGHT
        elif self._phase is _Phase.THOUGHT:
            self._note_text(token_id)
            if token_id == self._program.thought_close:
                self._begin()
        elif may_think and token_id == self._program.thought_open:
            self._label = list(self._program.thought_label)
            self._phase = _Phase.LABEL
        elif self._phase is _Phase.ANSWER:
            self._consume(token_id)
        elif self._phase is _Phase.CALL or token_id == self._program.call_open:
            if self._phase is not _Phase.CALL:
                self._begin_call()
            self._consume(token_id)
            if self._grammar is not None and self._grammar.is_accepting():
                self._num_calls += 1
                self._phase = _Phase.BETWEEN if self._constraint.must_call else _Phase.TEXT
        else:
            self._note_text(token_id)

    def _note_text(self, token_id: int) -> None:
        """Keep the end of the text; control words between two texts keep them apart."""
        free_text = self._program.free_text
        piece = free_text.piece(token_id)
        self._tail = (self._tail + piece)[-free_text.tail_bytes :] if piece else b""

    @property
    def _may_think(self) -> bool:
        is_free = self._phase is _Phase.TEXT
        is_first = self._is_first and self._phase in (_Phase.ANSWER, _Phase.CALL)
        return self._constraint.thinking and (is_first or is_free)

    @property
    def _may_call(self) -> bool:
        return self._num_calls == 0 or self._constraint.parallel_tool_calls

    def _begin(self) -> None:
        """Begin what comes where no thought is open."""
        if self._program.answer is not None:
            self._phase, self._grammar = _Phase.ANSWER, self._program.answer.deep_copy()
        elif self._constraint.must_call:
            self._begin_call()
        else:
            self._phase = _Phase.TEXT

    def _begin_call(self) -> None:
        assert self._program.call is not None
        self._phase, self._grammar = _Phase.CALL, self._program.call.deep_copy()

    def _consume(self, token_id: int) -> None:
        assert self._grammar is not None
        if not self._grammar.consume_token(token_id):
            raise self._failure()

    def _grammar_mask(self) -> Mask:
        assert self._grammar is not None
        self._grammar.unsafe_compute_mask_ptr(self._words.ctypes.data, self._words.nbytes)
        if self._grammar.is_error():
            raise self._failure()
        bits = np.unpackbits(self._words.view(np.uint8), bitorder="little", count=self._vocab_size)
        if not self._program.stop_token_ids:
            bits[NO_STOP_ID] = 0
        mask: Mask = bits.view(np.bool_)
        return mask

    def _only(self, token_ids: Iterable[int]) -> Mask:
        mask = np.zeros(self._vocab_size, dtype=np.bool_)
        mask[list(token_ids)] = True
        return mask

    def _failure(self) -> RequestError:
        return RequestError(
            f"{self._constraint.kind} became too complex to follow", value=engine_message(self._grammar), remedy=SMALLER
        )


def _with(mask: Mask, *token_ids: int | None) -> Mask:
    """Return a mask that allows some tokens more."""
    more = [token_id for token_id in token_ids if token_id is not None]
    if not more:
        return mask
    mask = mask.copy()
    mask[more] = True
    return mask


def mask_words(vocab_size: int) -> NDArray[np.int32]:
    """Return the buffer that the grammar engine writes one mask into, a bit a token."""
    return np.zeros(-(-vocab_size // 32), dtype=np.int32)


def engine_message(matcher: LLMatcher | None) -> str:
    """Return what the grammar engine has to say, without the parser's state."""
    told = "" if matcher is None else matcher.get_error()
    return " ".join(told.replace("<non-verbose/>", "").split())[:300] or "no token is allowed"
