"""What the user types: lines with editing, history and pasted paragraphs on a terminal, plain lines elsewhere."""

from __future__ import annotations

import io
import os
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

FENCE = '"""'
"""Opens and closes a message of several lines."""


class Keyboard(Protocol):
    """Where messages come from."""

    is_terminal: bool
    """Whether somebody sits there."""

    def read(self) -> str | None:
        """Return the next message, None at the end. Raises KeyboardInterrupt for Ctrl-C."""
        ...


def open_keyboard(commands: Sequence[str], *, keep_history: bool) -> Keyboard:
    """Return the keyboard of a terminal, or the lines of whatever stdin is."""
    if sys.stdin is not None and sys.stdin.isatty() and sys.stdout.isatty():
        return _Terminal(commands, _history_path() if keep_history else None)
    return _Lines()


class _Lines:
    """One message a line, or several lines between fences."""

    is_terminal = False

    def __init__(self) -> None:
        if isinstance(sys.stdin, io.TextIOWrapper):  # whatever the locale says
            sys.stdin.reconfigure(encoding="utf-8", errors="strict")

    def read(self) -> str | None:
        from gemwright.errors import RequestError

        if sys.stdin is None:
            return None
        lines: list[str] = []
        try:
            for line in sys.stdin:
                lines.append(line.rstrip("\r\n"))
                if not is_open(lines[0], lines[-1], is_first=len(lines) == 1):
                    break
        except UnicodeDecodeError as error:
            raise RequestError(
                "stdin is not UTF-8 text", value=f"byte {error.object[error.start]:#04x} at {error.start}"
            ) from None
        return unfenced("\n".join(lines)) if lines else None


class _Terminal:
    """A line editor. Pasted line breaks stay, Alt-Enter makes one, arrows go through what was said before."""

    is_terminal = True

    def __init__(self, commands: Sequence[str], history: Path | None) -> None:
        from prompt_toolkit import PromptSession
        from prompt_toolkit.completion import WordCompleter
        from prompt_toolkit.filters import Condition
        from prompt_toolkit.history import FileHistory, History, InMemoryHistory
        from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent

        keys = KeyBindings()

        @keys.add("escape", "enter")
        def _(event: KeyPressEvent) -> None:
            event.current_buffer.insert_text("\n")

        kept: History = InMemoryHistory() if history is None else FileHistory(str(history))
        words = WordCompleter(list(commands), sentence=True)
        session: PromptSession[str] = PromptSession(
            history=kept, key_bindings=keys, completer=words, enable_suspend=True
        )
        starts_command = Condition(lambda: session.default_buffer.text.startswith("/"))
        session.complete_while_typing = starts_command
        self._session = session

    def read(self) -> str | None:
        text = ""
        try:
            text = self._session.prompt(">>> ", prompt_continuation=_continuation)
            line = text
            while is_open(text, line, is_first=line is text):
                line = self._session.prompt("... ", prompt_continuation=_continuation)
                text += "\n" + line
        except EOFError:
            return unfenced(text) if text else None
        return unfenced(text)


def _continuation(width: int, line_number: int, is_soft_wrap: int) -> str:
    return " " * width if is_soft_wrap else "... "


def is_open(first: str, last: str, *, is_first: bool) -> bool:
    """Whether a message that begins with line `first` goes on after line `last`: a fence is open."""
    first, last = first.strip(), last.strip()
    return first.startswith(FENCE) and not (last.endswith(FENCE) and not (is_first and len(last) < 2 * len(FENCE)))


def unfenced(text: str) -> str:
    """Return a message without the fences around it; what was fenced is no command, so its slash is doubled."""
    stripped = text.strip()
    if stripped.startswith(FENCE):
        inner = stripped[len(FENCE) :].removesuffix(FENCE).strip("\n")
        return f"/{inner}" if inner.startswith("/") else inner
    return text


def _history_path() -> Path | None:
    """Return where lines typed before are kept, for this user alone; None where no file can be read and written."""
    base = os.environ.get("XDG_STATE_HOME") or "~/.local/state"
    try:
        path = Path(base).expanduser() / "gemwright" / "chat_history"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch(mode=0o600)
    except (OSError, RuntimeError):
        return None
    return path if path.is_file() and os.access(path, os.R_OK | os.W_OK) else None


class Interruption:
    """Whether Ctrl-C was pressed during an answer."""

    def __init__(self) -> None:
        self._pressed = threading.Event()

    @property
    def is_pressed(self) -> bool:
        """Whether it was."""
        return self._pressed.is_set()

    def press(self, signal_number: int, frame: Any) -> None:
        """Take the first one as the wish to stop the answer; a second one ends the program."""
        if self._pressed.is_set():
            raise KeyboardInterrupt
        self._pressed.set()


@contextmanager
def interruption() -> Iterator[Interruption]:
    """Let Ctrl-C stop what the block does between two steps, and not the program."""
    found = Interruption()
    if threading.current_thread() is not threading.main_thread():  # where no signals arrive
        yield found
        return
    before = signal.signal(signal.SIGINT, found.press)
    try:
        yield found
    finally:
        signal.signal(signal.SIGINT, before)
