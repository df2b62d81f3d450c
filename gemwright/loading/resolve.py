"""From what a user calls a model to where it lies: a folder, a .gguf file, a model of the hub, the default.

A model of the hub that is whole in the local cache is used as it is, without a request: the same name gives the same
model until `pull` fetches what is new. Only what is not here is fetched, unless offline.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from gemwright.errors import CheckpointError, RequestError
from gemwright.loading.default_model import default_model_path
from gemwright.loading.hub_name import SPELLING, HubName, is_hub_name, parse_hub_name

_SHOWN_FILES = 5


def looks_like_model(text: str) -> bool:
    """Whether a lone word on the command line names a model: an existing folder, a .gguf file, or owner/name."""
    if text.endswith(".gguf") or is_hub_name(text):
        return True
    try:
        return bool(text) and Path(text).is_dir()
    except OSError:  # longer than a name may be, so it is no folder
        return False


def resolve_model(
    model: str | None,
    *,
    revision: str | None = None,
    offline: bool = False,
    allow_unknown_config_keys: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> Path:
    """Return the path of a model: a folder or a GGUF file; None is the default model, joined on first use.

    A model of the hub is fetched where it is not whole in the cache, unless `offline` or $HF_HUB_OFFLINE forbids that.
    `progress` is told of bytes done and bytes in all, of joining and of fetching. Raises CheckpointError for what does
    not exist, is missing offline or cannot be fetched, RequestError for two revisions and for a name that leaves open
    which GGUF model is meant, UnsupportedError and CapacityError for what is refused before it is fetched.
    """
    if model is None:
        if revision is not None:
            raise RequestError("the default model has one revision", value=revision, remedy="leave --revision out")
        return default_model_path(progress)
    found = local_path_or_name(model, revision)
    if isinstance(found, Path):
        return found
    return _hub_model(found, offline, allow_unknown_config_keys, progress)


def local_path_or_name(model: str, revision: str | None = None) -> Path | HubName:
    """Return the path of a model on this machine, or what a name of the hub says. Raises as `resolve_model`."""
    if not model:
        raise RequestError("the model's name is empty", remedy="leave it out for the default model, or name one")
    path = _local_path(model)
    if path is not None:
        if revision is not None:
            raise RequestError(
                "a local path has no revisions", value=revision, remedy="leave --revision out, or give a hub id"
            )
        return path
    name = parse_hub_name(model, revision)
    if name is None:
        raise _no_such_model(model)
    return name


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
        remedy=f"give a folder, a .gguf file, or a model of the hub such as google/gemma-3-1b-it ({SPELLING})",
    )


def _hub_model(
    name: HubName, offline: bool, allow_unknown_config_keys: bool, progress: Callable[[int, int], None] | None
) -> Path:
    from gemwright.loading.hub_cache import find_snapshot, is_offline, locate_model

    is_forbidden = offline or is_offline()
    snapshot = find_snapshot(name.repository, name.revision)
    if snapshot is not None:
        located = locate_model(snapshot, name.quantization)
        is_whole = not located.missing and (is_forbidden or not located.doubtful)
        if is_whole and located.path is not None:
            return located.path
    if is_forbidden:
        switch = "--offline" if offline else "HF_HUB_OFFLINE"
        if snapshot is None:
            raise CheckpointError(
                "this model is not in the local cache, and offline mode forbids fetching it",
                value=f"{name.model} at revision {name.revision}",
                remedy=f"leave {switch} out, or fetch it where there is a network: gemwright pull {name}",
            )
        missing = located.missing
        more = f" and {len(missing) - _SHOWN_FILES} more" if len(missing) > _SHOWN_FILES else ""
        raise CheckpointError(
            "this model is in the local cache in part, and offline mode forbids fetching the rest",
            value=f"{name.model} at revision {name.revision} lacks {', '.join(missing[:_SHOWN_FILES])}{more}",
            remedy=f"leave {switch} out, or fetch it where there is a network: gemwright pull {name}",
        )
    from gemwright.loading.hub import pull

    # A snapshot that was begun is completed, even if its branch has moved on since.
    commit = None if snapshot is None else snapshot.commit
    return pull(name, commit=commit, progress=progress, allow_unknown_config_keys=allow_unknown_config_keys).path
