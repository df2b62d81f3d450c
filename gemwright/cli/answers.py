"""Answers as `run` shows them: the text on stdout as it comes, thoughts on stderr. Knows no flags and loads nothing."""

from __future__ import annotations

import os
import sys
from contextlib import closing
from typing import TYPE_CHECKING

from gemwright.text.parser_events import EventType

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gemwright.engine.llm import LLM, Prompt
    from gemwright.engine.request import SamplingParams
    from gemwright.engine.result import Choice, Completion

_DIM, _PLAIN = "\x1b[2m", "\x1b[0m"


def show_answer(llm: LLM, prompt: Prompt, params: SamplingParams, cache_salt: str | None) -> Completion:
    """Write an answer as it comes and return the completion.

    Text goes to stdout, without a tokenizer ids; what a model writes as a call is text too, since it has no tools.
    A thought goes to stderr, dim where that is a terminal.
    """
    writer = _Writer()
    try:
        with closing(llm.pieces(prompt, params, cache_salt=cache_salt)) as pieces:
            for piece in pieces:
                if piece.events is None:
                    writer.say(piece.text or "")
                for event in piece.events or ():
                    if event.type is EventType.REASONING:
                        writer.think(event.text or "")
                    elif event.type is EventType.CONTENT:
                        writer.say(event.text or "")
                if piece.completion is not None:
                    (choice,) = piece.completion.choices
                    writer.end(_closing_lines(choice))
                    return piece.completion
    except KeyboardInterrupt:
        writer.break_off()
        raise
    raise AssertionError("a stream ends with its completion")


def show_answers(llm: LLM, prompt: Prompt, params: SamplingParams, cache_salt: str | None) -> Completion:
    """Write several answers, each whole and under a heading, and return the completion."""
    (completion,) = llm.generate([prompt], params, cache_salt=cache_salt)
    for number, choice in enumerate(completion.choices, start=1):
        writer = _Writer()
        print(f"--- {number} of {len(completion.choices)}", flush=True)
        if choice.message is not None:
            writer.think(choice.message.reasoning_content or "")
        writer.say(choice.text or "")
        writer.end(_closing_lines(choice))
    return completion


def _closing_lines(choice: Choice) -> list[str]:
    """Return what stands behind the text of an answer."""
    if choice.text is None:
        return [",".join(map(str, choice.token_ids))]
    return []


class _Writer:
    """Writes one answer to the two streams; a line that was begun is ended before the other one goes on."""

    def __init__(self) -> None:
        self._is_dim = sys.stderr.isatty() and not os.environ.get("NO_COLOR")
        self._thinks = False
        self._has_said = False

    def think(self, text: str) -> None:
        """Write a piece of a thought."""
        if text:
            self._thinks = True
            sys.stdout.flush()
            print(f"{_DIM}{text}{_PLAIN}" if self._is_dim else text, end="", file=sys.stderr, flush=True)

    def say(self, text: str) -> None:
        """Write a piece of the answer."""
        if text:
            self._end_thought()
            self._has_said = True
            sys.stdout.write(text)
            sys.stdout.flush()

    def end(self, lines: Iterable[str]) -> None:
        """End the answer, these lines behind it; an empty one is an empty line."""
        self._end_thought()
        rest = list(lines)
        if self._has_said or not rest:
            print()
        for line in rest:
            print(line)
        sys.stdout.flush()

    def break_off(self) -> None:
        """End the line that was begun, if one was."""
        self._end_thought()
        if self._has_said:
            print(flush=True)

    def _end_thought(self) -> None:
        if self._thinks:
            print(file=sys.stderr, flush=True)
        self._thinks = False
