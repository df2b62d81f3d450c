"""Tiny checkpoints, written once a session, and engines on them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from gemwright import LLM
from gemwright.testing import write_tiny_checkpoint
from tests.end_to_end.command_line import CommandLine
from tests.hub_server import Hub, running_hub, use_hub

TinyFolder = Callable[..., Path]
TinyLLM = Callable[..., LLM]


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory: pytest.TempPathFactory) -> TinyFolder:
    """Return the folder of a tiny checkpoint; it is shared, so tests that change files write their own."""
    folders: dict[tuple[Any, ...], Path] = {}

    def make(name: str, **options: Any) -> Path:
        key = (name, *sorted(options.items()))
        if key not in folders:
            folders[key] = write_tiny_checkpoint(name, tmp_path_factory.mktemp(name), **options)
        return folders[key]

    return make


@pytest.fixture(scope="session")
def tiny_llm(tiny_folder: TinyFolder) -> TinyLLM:
    """Return a fresh engine on a shared tiny checkpoint: one thread and 256 tokens unless told otherwise."""

    def make(name: str, **options: Any) -> LLM:
        return LLM(tiny_folder(name), **{"threads": 1, "max_model_len": 256, **options})

    return make


@pytest.fixture
def gemwright(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> CommandLine:
    """Return what runs `gemwright` in this process."""
    return CommandLine(capsys, monkeypatch)


@pytest.fixture
def files(tiny_folder: TinyFolder) -> dict[str, bytes]:
    """Return the files of a tiny checkpoint by their names."""
    return {path.name: path.read_bytes() for path in tiny_folder("gemma3").iterdir()}


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Hub]:
    """Return an empty hub that this process asks, with an empty cache below tmp_path / "home"."""
    with running_hub() as running:
        use_hub(monkeypatch, running, tmp_path / "home")
        yield running
