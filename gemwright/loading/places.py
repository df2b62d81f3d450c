"""Where models lie on this machine: the caches, what they take, what is free beside them, and who may write there.

Also the settings that say how the hub is asked, without asking it. Never tells a token, only that there is one.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit, urlunsplit

from gemwright.errors import CheckpointError
from gemwright.loading import default_model, hub_cache

VARIABLES: Final[Mapping[str, tuple[str, ...]]] = {
    "hub cache": ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "HF_HOME", "XDG_CACHE_HOME"),
    "own cache": ("GEMWRIGHT_CACHE", "XDG_CACHE_HOME"),
}
"""By place, the variables that move it, the strongest first."""

_HUB_VARIABLES: Final = (
    "HF_ENDPOINT",
    "HF_HUB_OFFLINE",
    "TRANSFORMERS_OFFLINE",
    "HTTP_PROXY",
    "HTTPS_PROXY",
    "NO_PROXY",
)
_TOKEN_VARIABLES: Final = ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN")


@dataclass(frozen=True, slots=True)
class Place:
    """A folder that holds models, or will."""

    name: str
    """A key of VARIABLES: "hub cache" holds what `pull` fetches, "own cache" the joined default model and more."""
    path: str
    exists: bool
    used_bytes: int
    """What its files take, each counted once."""
    num_models: int
    free_bytes: int | None
    """What is free on its disk."""
    obstacle: str | None
    """Why nothing can be written there, found by writing a file; None where that works."""
    moved_by: Mapping[str, str]
    """The variables that are set among those that move it."""


@dataclass(frozen=True, slots=True)
class HubSettings:
    """How the hub would be asked."""

    endpoint: str
    is_offline: bool
    token_from: str | None
    """The variable or the file that holds a token; None where there is none."""
    variables: Mapping[str, str]
    """What is set among the variables that the hub's library reads, without user names and passwords."""


def model_places() -> tuple[Place, ...]:
    """Return the hub's cache and our own. Raises CheckpointError for a cache that is named but can be no path."""
    own = default_model.cache_folder()
    is_joined = default_model.joined_path() is not None
    return (
        _look_at("hub cache", hub_cache.cache_folder(), _num_cached()),
        _look_at("own cache", own, int(is_joined)),
    )


def hub_settings() -> HubSettings:
    """Return what the hub's library would go by."""
    from huggingface_hub import constants

    token_from = next((name for name in _TOKEN_VARIABLES if os.environ.get(name, "").strip()), None)
    if token_from is None and _size(Path(constants.HF_TOKEN_PATH)):
        token_from = constants.HF_TOKEN_PATH
    return HubSettings(
        endpoint=_without_password(constants.ENDPOINT),
        is_offline=hub_cache.is_offline(),
        token_from=token_from,
        variables={name: _without_password(os.environ[name]) for name in _HUB_VARIABLES if os.environ.get(name)},
    )


def _num_cached() -> int:
    try:
        return len(hub_cache.cached_repositories()[0])
    except CheckpointError:
        return 0


def _look_at(name: str, path: Path, num_models: int) -> Place:
    nearest = next(folder for folder in (path.absolute(), *path.absolute().parents, Path("/")) if _exists(folder))
    try:
        free_bytes = shutil.disk_usage(nearest).free
    except OSError:
        free_bytes = None
    return Place(
        name=name,
        path=str(path),
        exists=nearest == path.absolute(),
        used_bytes=_used_bytes(path),
        num_models=num_models,
        free_bytes=free_bytes,
        obstacle=_obstacle(nearest),
        moved_by={variable: os.environ[variable] for variable in VARIABLES[name] if os.environ.get(variable)},
    )


def _obstacle(folder: Path) -> str | None:
    """Return why no file can be written in `folder`: permission bits do not tell that of a read-only disk."""
    try:
        if not folder.is_dir():
            return f"{folder} is not a folder"
        with tempfile.NamedTemporaryFile(prefix=".gemwright-", dir=folder) as file:
            file.write(b"x")
    except OSError as error:
        return f"{folder}: {error.strerror or error}"
    return None


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except OSError:  # below a folder that may not be looked into
        return False


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _used_bytes(path: Path) -> int:
    """Return the bytes of all files below `path`; links are not followed, since caches link to what they hold."""
    total = 0
    for parent, _, names in os.walk(path):
        for name in names:
            try:
                status = os.lstat(os.path.join(parent, name))  # noqa: PTH118  # thousands of files
            except OSError:
                continue
            total += status.st_size
    return total


def _without_password(address: str) -> str:
    """Return an address without the user name and password that it may hold."""
    if "@" not in address:
        return address
    try:
        parts = urlsplit(address if "//" in address else f"//{address}")
        return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))
    except ValueError:
        return "(not an address)"
