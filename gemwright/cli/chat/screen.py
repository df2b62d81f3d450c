"""What the user sees of an answer: the thought dim or folded, the text as it comes, a closing line.

The answer goes to stdout. All else goes to stderr, or to stdout where that is a terminal, so that the two never mix up.
"""

from __future__ import annotations

import os
import sys
import time
from typing import TextIO

_DIM, _PLAIN, _ERASE_LINE = "\x1b[2m", "\x1b[0m", "\r\x1b[K"

_UNSEEN = {code: "\ufffd" for code in (*range(0x20), 0x7F, *range(0x80, 0xA0)) if chr(code) not in "\n\t"}
"""Control characters: a model must not move the cursor of a terminal."""


class Screen:
    """Shows answers one after the other."""

    def __init__(self) -> None:
        self._is_terminal = sys.stdout.isatty()
        self._beside: TextIO = sys.stdout if self._is_terminal else sys.stderr
        self._has_color = self._is_terminal and "NO_COLOR" not in os.environ and os.environ.get("TERM") != "dumb"
        self.folds_thoughts = False
        self._begin()

    def _begin(self) -> None:
        self._thought: list[str] = []
        self._thought_began_at: float | None = None
        self._is_in_thought = False
        self._has_text = False
        self._ends_line = True

    def reasoning(self, text: str) -> None:
        """Show more of the thought, or that there is one."""
        if self._thought_began_at is None:
            self._thought_began_at = time.perf_counter()
        if not self._is_in_thought:
            self._is_in_thought = True
            if self._is_terminal and self.folds_thoughts:
                self._write(self._dim("thinking ... (Ctrl-C stops)"))
        self._thought.append(text)
        if self._is_terminal and not self.folds_thoughts:
            self._write(self._dim(text.translate(_UNSEEN)))
            self._ends_line = text.endswith("\n")

    def content(self, text: str) -> None:
        """Show more of the answer."""
        self._end_thought()
        if not self._has_text:
            text = text.lstrip("\n")
        if text:
            self._has_text = True
            self._ends_line = text.endswith("\n")
            self._write(text.translate(_UNSEEN) if self._is_terminal else text)

    def aside(self, text: str) -> None:
        """Show a line that is neither thought nor answer: a call of a tool, a warning."""
        self._end_thought()
        self._end_line()
        self.note(text)

    def end(self, closing: str) -> None:
        """End the answer with its closing line, and be ready for the next."""
        self._end_thought()
        self._end_line()
        self.note(closing)
        self._begin()

    def note(self, text: str) -> None:
        """Show a line of the program's own."""
        print(self._dim(text), file=self._beside, flush=True)

    def say(self, text: str) -> None:
        """Show what a command answers."""
        print(text.translate(_UNSEEN), file=self._beside, flush=True)

    def _end_thought(self) -> None:
        if not self._is_in_thought:
            return
        self._is_in_thought = False
        seconds = time.perf_counter() - (self._thought_began_at or 0.0)
        self._thought_began_at = None
        num_words = len("".join(self._thought).split())
        folded = f"[thought for {seconds:.1f} s, {num_words} words; /thought shows it]"
        if not self._is_terminal:
            self.note(folded)
        elif self.folds_thoughts:
            self._write(_ERASE_LINE + self._dim(folded) + "\n" if self._has_color else "\n" + folded + "\n")
        else:
            self._end_line()
            self._write("\n")
        self._thought.clear()
        self._ends_line = True

    def _end_line(self) -> None:
        if not self._ends_line:
            self._write("\n")
            self._ends_line = True

    def _write(self, text: str) -> None:
        sys.stdout.write(text)
        sys.stdout.flush()

    def _dim(self, text: str) -> str:
        return f"{_DIM}{text}{_PLAIN}" if self._has_color and text else text
