"""Keeps Ctrl-C clean where it would not be."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator


def import_backend() -> None:
    """Import what computes, with Ctrl-C held back until that is done: torch aborts the process when an exception
    passes through its start."""
    # Where torch is missing the engine says so, with the remedy.
    with hold_interrupts(), contextlib.suppress(ModuleNotFoundError):
        import gemwright.ops.reference  # noqa: F401  # for its effect


@contextlib.contextmanager
def hold_interrupts() -> Iterator[None]:
    """Let an interrupt wait for the end of the block, where it is raised as KeyboardInterrupt."""
    is_main_thread = threading.current_thread() is threading.main_thread()
    if not is_main_thread or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield
        return
    arrived = threading.Event()
    signal.signal(signal.SIGINT, lambda *_: arrived.set())
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if arrived.is_set():
        raise KeyboardInterrupt
