"""The published model configs that tests read; SOURCES.md beside them says where each comes from.

Those of supported models are part of the package (gemwright/planner/published), those of Gemma 3n, which is refused by
name, lie in tests/data/configs.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

_TESTS = Path(__file__).parent
_FOLDERS = (_TESTS.parent / "gemwright" / "planner" / "published", _TESTS / "data" / "configs")
_PATHS = {path.stem: path for folder in _FOLDERS for path in folder.glob("*.json")}

ALL_NAMES = tuple(sorted(_PATHS))
GEMMA_3N = tuple(name for name in ALL_NAMES if name.startswith("gemma-3n"))
SUPPORTED = tuple(name for name in ALL_NAMES if name not in GEMMA_3N)
DRAFTERS = tuple(name for name in SUPPORTED if name.endswith("-assistant"))


def load_config(name: str) -> dict[str, Any]:
    """Return a fresh copy of a published config, such as "gemma-4-E2B-it"."""
    loaded: dict[str, Any] = json.loads(config_path(name).read_text(encoding="utf-8"))
    return loaded


def config_path(name: str) -> Path:
    """Return the file of a published config."""
    return _PATHS[name]
