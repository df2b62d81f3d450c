"""From what a user calls a model to where it lies: a folder, a .gguf file, a hub id in the local cache, the default."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

from gemwright.errors import CheckpointError, RequestError
from gemwright.loading.default_model import default_model_path

_HUB_ID = re.compile(r"[\w.-]+/[\w.-]+(@[\w./-]+)?")


def looks_like_model(text: str) -> bool:
    """Whether a lone word on the command line names a model: an existing folder, a .gguf file, or owner/name."""
    path = Path(text)
    if text.endswith(".gguf") or (path.is_dir() and text):
        return True
    return _HUB_ID.fullmatch(text) is not None


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
    path = Path(model).expanduser()
    if path.exists():
        if revision is not None:
            raise RequestError(
                "a local path has no revisions", value=revision, remedy="leave --revision out, or give a hub id"
            )
        return path
    if _HUB_ID.fullmatch(model) is None or model.endswith(".gguf"):
        raise CheckpointError(
            "no such model", value=model, remedy="give a folder, a .gguf file, or a hub id such as google/gemma-3-1b-it"
        )
    name, _, named = model.partition("@")
    if named and revision is not None and named != revision:
        raise RequestError("two revisions are named", value=f"{named} and {revision}", remedy="name one")
    return _cached_snapshot(name, named or revision or "main")


def _cached_snapshot(name: str, revision: str) -> Path:
    from huggingface_hub import try_to_load_from_cache

    found = try_to_load_from_cache(name, "config.json", revision=revision)
    if isinstance(found, str):
        return Path(found).parent
    raise CheckpointError(
        "this model is not in the local hub cache, and this version does not download",
        value=f"{name} at revision {revision}",
        remedy=f"fetch it first, for example: hf download {name} --revision {revision}",
    )
