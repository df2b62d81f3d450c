"""Reading JSON from files nobody vouches for: bounded size, one object, no key twice, no NaN; clear errors."""

from __future__ import annotations

import json
import math
import stat
from pathlib import Path
from typing import Any

from gemwright.errors import CheckpointError, show_both_bytes
from gemwright.loading.mapped_file import shown

CONFIG_LIMIT_BYTES = 16 << 20


def read_json_object(path: Path, limit_bytes: int = CONFIG_LIMIT_BYTES) -> dict[str, Any]:
    """Return the object in the JSON file `path`; CheckpointError when it is missing, too large or no such thing."""
    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):
            raise CheckpointError(f"{path}: not a regular file")
        if status.st_size > limit_bytes:
            value, limit = show_both_bytes(status.st_size, limit_bytes)
            raise CheckpointError(f"{path}: too large for a file of its kind", value=value, limit=limit)
        content = path.read_bytes()
    except FileNotFoundError as error:
        raise CheckpointError(f"{path}: no such file") from error
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        remedy = "look at the path and its permissions"
        raise CheckpointError(f"{path}: cannot be read", value=reason, remedy=remedy) from error
    return parse_json_object(content, str(path))


def parse_json_object(content: bytes, source: str) -> dict[str, Any]:
    """Return the JSON object that `content` spells; CheckpointError, which names `source`, when it spells none."""
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise CheckpointError(f"{source}: not UTF-8 text", value=f"byte {error.start}: {error.reason}") from error
    try:
        value = json.loads(
            text, object_pairs_hook=_unique_pairs, parse_constant=_refuse_constant, parse_float=_finite_float
        )
    except json.JSONDecodeError as error:
        raise CheckpointError(
            f"{source}: not valid JSON", value=f"line {error.lineno}, column {error.colno}: {error.msg}"
        ) from error
    except RecursionError as error:
        raise CheckpointError(f"{source}: JSON nested too deeply") from error
    except ValueError as error:
        raise CheckpointError(f"{source}: not acceptable JSON", value=error) from error
    if not isinstance(value, dict):
        raise CheckpointError(f"{source}: not a JSON object", value=type(value).__name__)
    return value


def _unique_pairs(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                raise ValueError(f"key {shown(key)} stands twice in one object")
            seen.add(key)
    return found


def _refuse_constant(name: str) -> float:
    raise ValueError(f"the constant {name} is not JSON")


def _finite_float(digits: str) -> float:
    value = float(digits)
    if math.isinf(value):
        raise ValueError(f"the number {digits[:40]} is too large")
    return value
