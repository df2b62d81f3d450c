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


def load_model(
    model: str | None,
    *,
    revision: str | None,
    offline: bool = False,
    chat_template: str | None = None,
    must_chat: bool = False,
    options: dict[str, Any],
) -> LLM:
    """Return the loaded model, fetched first where it is not here; `options` are fields of EngineConfig, the rest as
    LLM takes it."""
    from gemwright.cli.interrupts import import_backend
    from gemwright.config import EngineConfig
    from gemwright.engine.llm import LLM

    started_at = time.perf_counter()
    # Settings that are wrong are refused before anything large is imported.
    EngineConfig(**options)
    fetch_model(model, revision=revision, offline=offline, options=options)
    import_backend()
    with progress_bar("loading weights") as progress:
        llm = LLM(
            model,
            revision=revision,
            offline=offline,
            chat_template=chat_template,
            must_chat=must_chat,
            progress=progress,
            **options,
        )
    llm.load_seconds = time.perf_counter() - started_at  # with the backend's own start
    return llm


def fetch_model(model: str | None, *, revision: str | None, offline: bool, options: dict[str, Any]) -> None:
    """Bring a model onto this machine where it is not: join the default model, fetch one of the hub."""
    from gemwright.loading.resolve import resolve_model

    title = "joining the default model" if model is None else f"fetching {model}"
    with progress_bar(title, in_bytes=True) as progress:
        resolve_model(
            model,
            revision=revision,
            offline=offline,
            allow_unknown_config_keys=options.get("allow_unknown_config_keys", False),
            progress=progress,
        )


@contextmanager
def progress_bar(title: str, *, in_bytes: bool = False) -> Iterator[Progress | None]:
    """Yield what draws a bar that goes away when the block ends; None where stderr is no terminal.

    With `in_bytes` it shows sizes, speed and the time that is left.
    """
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        ProgressColumn,
        TaskProgressColumn,
        TextColumn,
        TimeRemainingColumn,
        TransferSpeedColumn,
    )
    from rich.progress import Progress as Bars

    columns: list[ProgressColumn] = [TextColumn("{task.description}"), BarColumn(), TaskProgressColumn()]
    if in_bytes:
        columns += [DownloadColumn(binary_units=True), TransferSpeedColumn(), TimeRemainingColumn(compact=True)]
    with Bars(*columns, console=Console(stderr=True), transient=True) as bars:
        task = bars.add_task(title, total=None, visible=False)
        yield lambda done, total: bars.update(task, completed=done, total=total, visible=True)
