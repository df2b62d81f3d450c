"""What every test shares: quiet, offline libraries, one thread a worker, hypothesis settings, the parity marker."""

from __future__ import annotations

import os
import shutil
from importlib.util import find_spec
from pathlib import Path

import pytest
from hypothesis import settings

from gemwright.cli.completion import SHELLS

# Before any library reads them. No test may reach a network; parallel workers must not fight for the cores.
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
# What a process full of test libraries takes says nothing about later plans.
os.environ["GEMWRIGHT_NO_CALIBRATION"] = "1"
if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ.setdefault("OMP_NUM_THREADS", "1")

PARITY = Path(__file__).parent / "parity"
HAS_ORACLE = find_spec("transformers") is not None

# Without the oracle the parity tests cannot even be imported; the header below says that they are missing.
collect_ignore = [] if HAS_ORACLE else [str(PARITY)]

# Shared machines stall, so no deadline; under CI the drawn examples are fixed, so that a red run can be had again.
settings.register_profile("gemwright", deadline=None, print_blob=True, derandomize="CI" in os.environ)
settings.load_profile("gemwright")


def pytest_report_header() -> list[str]:
    """Say it where a part of the tests cannot run."""
    lines = [] if HAS_ORACLE else ["transformers is not installed: tests/parity is left out"]
    lines += [
        f"{shell} is not installed: its completion is left out" for shell in SHELLS if shutil.which(shell) is None
    ]
    return lines


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark every test under tests/parity."""
    for item in items:
        if PARITY in item.path.parents:
            item.add_marker(pytest.mark.parity)
