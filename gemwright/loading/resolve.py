"""From what a user calls a model to where it lies: a folder, a .gguf file, a hub id in the local cache, the default."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

from gemwright.errors import CheckpointError, RequestError
from gemwright.loading.default_model import default_model_path

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*(@[\w./-]+)?")


def looks_like_model(text: str) -> bool:
    """Whether a lone word on the command line names a model: an existing folder, a .gguf file, or owner/name."""
    if text.endswith(".gguf") or _HUB_ID.fullmatch(text) is not None:
        return True
    try:
        return bool(text) and Path(text).is_dir()
    except OSError:  # longer than a name may be, so it is no folder
        return False


def resolve_model(
    model: str | None, *, revision: str | None = None, progress: Callable[[int, int], None] | None = None
) -> Path:
    """Return the path of a model; None is the default model, joined from its packages on first use.

    A hub id may carry `@revision`. Raises CheckpointError for what does not exist, RequestError for two revisions.
    """
    if model is None:
        if revision is not None:
            raise RequestError("the default model has one revision", value=revision, remedy="leave --revision out")
        return default_model_path(progress)
    if not model:
        raise RequestError("the model's name is empty", remedy="leave it out for the default model, or name one")
    path = _local_path(model)
    if path is not None:
        if revision is not None:
            raise RequestError(
                "a local path has no revisions", value=revision, remedy="leave --revision out, or give a hub id"
            )
        return path
    if _HUB_ID.fullmatch(model) is None or model.endswith(".gguf"):
        raise _no_such_model(model)
    name, _, named = model.partition("@")
    if named and revision is not None and named != revision:
        raise RequestError("two revisions are named", value=f"{named} and {revision}", remedy="name one")
    return _cached_snapshot(name, named or revision or "main")


def _local_path(model: str) -> Path | None:
    """Return the path of a model that lies on this machine, else None. Raises CheckpointError where that cannot be
    seen."""
    try:
        path = Path(model).expanduser()
        return path if path.exists() else None
    except PermissionError as error:
        raise CheckpointError(
            "the model cannot be read", value=model, limit=error.strerror, remedy="change the permissions of the path"
        ) from error
    except (OSError, RuntimeError, ValueError):  # too long, a home of nobody, a NUL: not the name of a path
        return None


def _no_such_model(model: str) -> CheckpointError:
    return CheckpointError(
        "no such model",
        value=model if len(model) <= 200 else f"{model[:200]}...",
        remedy="give a folder, a .gguf file, or a hub id such as google/gemma-3-1b-it",
    )


def _cached_snapshot(name: str, revision: str) -> Path:
    from huggingface_hub import try_to_load_from_cache

    try:
        found = try_to_load_from_cache(name, "config.json", revision=revision)
    except ValueError:  # no name that the hub would take
        raise _no_such_model(name) from None
    if isinstance(found, str):
        return Path(found).parent
    raise CheckpointError(
        "this model is not in the local hub cache, and this version does not download",
        value=f"{name} at revision {revision}",
        remedy=f"fetch it first, for example: hf download {name} --revision {revision}",
    )
