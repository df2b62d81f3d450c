"""A pseudo-terminal with a program in it: type, wait for what appears, press Ctrl-C, look at what was shown."""

from __future__ import annotations

import os
import pty
import re
import select
import signal
import sys
import termios
import time
from collections.abc import Mapping, Sequence
from types import TracebackType

from tests.programs import PROGRAM

_ESCAPES = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b\][^\x07]*\x07|\x1b[()][A-Z0-9]|\x1b[=>78]")


class Terminal:
    """`gemwright` with these words on a terminal of its own, 100 columns wide. Use it as a context manager."""

    def __init__(self, words: Sequence[str], environment: Mapping[str, str], *, seconds: float = 60.0) -> None:
        self.seconds = seconds
        self.raw = ""
        self._read_to = 0
        self._code: int | None = None
        self._pid, self._screen = pty.fork()
        if self._pid == 0:  # the program's own process
            os.execve(sys.executable, [sys.executable, "-c", PROGRAM, *words], {"TERM": "xterm", **environment})
        termios.tcsetwinsize(self._screen, (40, 100))

    def __enter__(self) -> Terminal:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._code is None:
            os.kill(self._pid, signal.SIGKILL)
            os.waitpid(self._pid, 0)
        os.close(self._screen)

    def type(self, text: str) -> None:
        """Press these keys; "\\r" is Enter, "\\x03" Ctrl-C, "\\x04" Ctrl-D."""
        os.write(self._screen, text.encode())

    def paste(self, text: str) -> None:
        """Paste, as terminals do it that mark what is pasted."""
        self.type(f"\x1b[200~{text}\x1b[201~")

    def wait_for(self, pattern: str) -> str:
        """Return the text shown since the last call, up to the end of what the pattern matches."""
        deadline = time.monotonic() + self.seconds
        while True:
            shown = self.shown[self._read_to :]
            match = re.search(pattern, shown)
            if match is not None:
                self._read_to += match.end()
                return shown[: match.end()]
            if time.monotonic() > deadline or not self._read(deadline):
                raise AssertionError(f"{pattern!r} did not appear; the terminal shows:\n{self.shown}")

    def wait_for_end(self) -> int:
        """Return the program's exit code."""
        deadline = time.monotonic() + self.seconds
        while self._read(deadline):
            if time.monotonic() > deadline:
                raise AssertionError(f"the program goes on; the terminal shows:\n{self.shown}")
        _, status = os.waitpid(self._pid, 0)
        self._code = os.waitstatus_to_exitcode(status)
        return self._code

    @property
    def shown(self) -> str:
        """All text so far, without the escapes that color it and move the cursor."""
        return _ESCAPES.sub("", self.raw).replace("\r\n", "\n")

    def _read(self, deadline: float) -> bool:
        """Take what the program wrote; returns whether it may write more."""
        ready, _, _ = select.select([self._screen], [], [], max(0.0, min(0.2, deadline - time.monotonic())))
        if not ready:
            return True
        try:
            data = os.read(self._screen, 1 << 16)
        except OSError:  # the other end is closed
            return False
        for _ in range(data.count(b"\x1b[6n")):  # the program asks where the cursor is, as terminals answer
            self.type("\x1b[1;1R")
        self.raw += data.decode("utf-8", "replace")
        return bool(data)
