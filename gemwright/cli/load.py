"""Loads a model, with progress bars on stderr where that is a terminal."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gemwright.engine.llm import LLM

Progress = Callable[[int, int | None], None]
"""Called with how much is done and how much there is, None where nobody knows."""


def load_model(model: str | None, *, revision: str | None, options: dict[str, Any]) -> LLM:
    """Return the loaded model; `options` are fields of EngineConfig."""
    from gemwright.cli.interrupts import import_backend
    from gemwright.config import EngineConfig
    from gemwright.engine.llm import LLM
    from gemwright.loading.resolve import resolve_model

    started_at = time.perf_counter()
    # Settings that are wrong are refused before anything large is imported.
    EngineConfig(**options)
    import_backend()
    if model is None:
        with progress_bar("joining the default model") as progress:
            resolve_model(None, revision=revision, progress=progress)
    with progress_bar("loading weights") as progress:
        llm = LLM(model, revision=revision, progress=progress, **options)
    llm.load_seconds = time.perf_counter() - started_at  # with the backend's own start
    return llm


@contextmanager
def progress_bar(title: str) -> Iterator[Progress | None]:
    """Yield what draws a bar that goes away when the block ends; None where stderr is no terminal."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, TaskProgressColumn, TextColumn
    from rich.progress import Progress as Bars

    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn())
    with Bars(*columns, console=Console(stderr=True), transient=True) as bars:
        task = bars.add_task(title, total=None, visible=False)
        yield lambda done, total: bars.update(task, completed=done, total=total, visible=True)
