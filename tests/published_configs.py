"""The published model configs that tests read (tests/data/configs; their sources stand in SOURCES.md there)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

_FOLDER = Path(__file__).parent / "data" / "configs"

ALL_NAMES = tuple(sorted(path.stem for path in _FOLDER.glob("*.json")))
GEMMA_3N = tuple(name for name in ALL_NAMES if name.startswith("gemma-3n"))
SUPPORTED = tuple(name for name in ALL_NAMES if name not in GEMMA_3N)
DRAFTERS = tuple(name for name in SUPPORTED if name.endswith("-assistant"))


def load_config(name: str) -> dict[str, Any]:
    """Return a fresh copy of a published config, such as "gemma-4-E2B-it"."""
    loaded: dict[str, Any] = json.loads((_FOLDER / f"{name}.json").read_text(encoding="utf-8"))
    return loaded


def config_path(name: str) -> Path:
    """Return the file of a published config."""
    return _FOLDER / f"{name}.json"
