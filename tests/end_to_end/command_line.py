"""Runs the command line in this process, and in a child for what a process alone can show."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import dataclass
from typing import Any

import pytest

from gemwright.cli import main

CHILD = [sys.executable, "-c", "import sys; from gemwright.cli import main; sys.exit(main())"]
"""A program that is `gemwright`, wherever that is installed."""


@dataclass(frozen=True)
class Outcome:
    """How a command ended and what it printed."""

    code: int
    stdout: str
    stderr: str

    def json(self) -> Any:
        """Return the one JSON object on stdout; fails where stdout holds anything else."""
        return json.loads(self.stdout)


class CommandLine:
    """Calls `gemwright` in this process with one thread and none of the user's variables."""

    def __init__(self, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
        self.capsys = capsys
        self.monkeypatch = monkeypatch
        for name in own_variables():
            monkeypatch.delenv(name)
        monkeypatch.setenv("GEMWRIGHT_THREADS", "1")

    def __call__(self, *words: object) -> Outcome:
        self.capsys.readouterr()
        code = main([str(word) for word in words])
        printed = self.capsys.readouterr()
        return Outcome(code, printed.out, printed.err)


def own_variables() -> list[str]:
    """Return our variables that are set, but for the cache's place."""
    return [name for name in os.environ if name.startswith("GEMWRIGHT_") and name != "GEMWRIGHT_CACHE"]


def child_environment() -> dict[str, str]:
    """Return the environment of a child: as in `CommandLine`."""
    kept = {name: value for name, value in os.environ.items() if name not in own_variables()}
    return {**kept, "GEMWRIGHT_THREADS": "1", "PYTHONUNBUFFERED": "1"}
