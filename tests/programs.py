"""Puts `gemwright` and `python` into a folder for a PATH, so that a shell finds those under test and no others."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

PROGRAM = "import sys; from gemwright.cli import main; sys.exit(main())"


def write_programs(folder: Path) -> Path:
    """Write both and return the folder: `gemwright` is the checked out one, `python` the interpreter of the tests."""
    folder.mkdir(parents=True, exist_ok=True)
    root = shlex.quote(str(Path(__file__).parents[1]))
    python = shlex.quote(sys.executable)
    path = f'PYTHONPATH={root}${{PYTHONPATH:+":$PYTHONPATH"}}'
    _write(folder / "gemwright", f'{path} exec {python} -c {shlex.quote(PROGRAM)} "$@"')
    _write(folder / "python", f'{path} exec {python} "$@"')
    return folder


def _write(path: Path, line: str) -> None:
    path.write_text(f"#!/bin/sh\n{line}\n")
    path.chmod(0o755)
