"""What processes of the engine took beside their ledgers on this machine: measured after runs, read by later plans.

One small JSON file a machine, set of versions and backend. A file that is damaged, foreign or cannot be written is no
reason for a command to fail.
"""

from __future__ import annotations

import contextlib
import json
import os
import statistics
import tempfile
from pathlib import Path
from typing import Any, Final

from gemwright.planner.devices import machine_fingerprint
from gemwright.planner.settings import Calibration

OFF_VARIABLE: Final = "GEMWRIGHT_NO_CALIBRATION"
"""Set to anything but 0, runs are neither noted nor read."""

_KEPT_RUNS: Final = 20
_LEAST_ERROR_BYTES: Final = 8 << 20
_LARGEST_BYTES: Final = 1 << 40


def is_off() -> bool:
    """Whether the user switched calibration off."""
    return os.environ.get(OFF_VARIABLE, "0") not in ("", "0")


def calibration_path(folder: Path, backend: str) -> Path:
    """Return the file of this machine and a backend (the name of a Holding) below our own cache folder."""
    return folder / "calibration" / f"{machine_fingerprint()}-{backend}.json"


def load_calibration(folder: Path, backend: str) -> Calibration | None:
    """Return what was measured of a backend on this machine, None where nothing was: the median, and an error bar that
    holds the runs seen, at least 8 MiB."""
    if is_off():
        return None
    path = calibration_path(folder, backend)
    runs = _read_runs(path)
    if not runs:
        return None
    middle = round(statistics.median(runs))
    error = max(_LEAST_ERROR_BYTES, max(runs) - middle, middle - min(runs))
    return Calibration(path.stem, middle, error, len(runs))


def note_run(folder: Path, backend: str, runtime_bytes: int) -> None:
    """Keep what a run measured. Nothing happens where calibration is off, the number is no size, or the file cannot
    be written."""
    if is_off() or not 0 < runtime_bytes < _LARGEST_BYTES:
        return
    path = calibration_path(folder, backend)
    runs = [*_read_runs(path), runtime_bytes][-_KEPT_RUNS:]
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        # Beside its place and then moved, so that nobody ever reads half of it.
        with tempfile.NamedTemporaryFile("w", dir=path.parent, delete=False, encoding="utf-8") as file:
            json.dump({"version": 1, "runtime_bytes": runs}, file)
        Path(file.name).replace(path)


def _read_runs(path: Path) -> list[int]:
    try:
        content: Any = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return []
    runs = content.get("runtime_bytes") if isinstance(content, dict) and content.get("version") == 1 else None
    if not isinstance(runs, list):
        return []
    return [run for run in runs if type(run) is int and 0 < run < _LARGEST_BYTES][-_KEPT_RUNS:]
