"""The models in the local hub cache, one by one: what each is, how large, whether it is whole and can be run."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from gemwright.errors import CheckpointError, GemwrightError, UnsupportedError
from gemwright.loading.hub_cache import Snapshot, cached_repositories, locate_model, repository_snapshots
from gemwright.loading.hub_files import CONFIG_NAME, gguf_models
from gemwright.loading.hub_gguf import BEGINNING_BYTES, check_beginning, read_architecture
from gemwright.loading.json_files import read_json_object
from gemwright.spec.families import read_config


@dataclass(frozen=True, slots=True)
class CachedModel:
    """One model in the cache."""

    model: str
    """What a command calls it, without its revision."""
    repository: str
    revision: str
    """The branch or tag that stands for it here; a commit where none does."""
    commit: str
    format: str | None
    size_bytes: int
    """Bytes of its files that are here."""
    family: str | None
    last_used: float | None
    """When its weights were last read, in seconds since 1970, as far as the file system notes that."""
    missing: tuple[str, ...]
    path: Path
    refused: str | None = None
    """Why it cannot be run, None where nothing is known against it."""


def cached_models() -> tuple[list[CachedModel], int]:
    """Return the models in the cache, and how many repositories of other kinds (data sets, spaces) lie beside them.

    Raises CheckpointError for a cache that cannot be read.
    """
    repositories, num_others = cached_repositories()
    found = [
        model
        for repository in repositories
        for snapshot in repository_snapshots(repository)
        for model in _models_of(snapshot)
    ]
    return found, num_others


def _models_of(snapshot: Snapshot) -> Iterator[CachedModel]:
    """Yield the model of a snapshot, or every GGUF model of which a file is here."""
    models = [model for model in gguf_models(snapshot.files) if model.files]
    listed = gguf_models(snapshot.files if snapshot.listing is None else snapshot.listing)
    if not any("/" not in name and name.endswith(".safetensors") for name in snapshot.listing or snapshot.files):
        for model in models:
            label = model.label if len(listed) > 1 else None
            yield _describe(snapshot, label)
        if models:
            return
    yield _describe(snapshot, None)


def _describe(snapshot: Snapshot, quantization: str | None) -> CachedModel:
    family = refused = None
    files: tuple[str, ...] = tuple(snapshot.files)
    weights: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    kind = None
    path = snapshot.folder
    try:
        located = locate_model(snapshot, quantization)
        missing = located.missing
        if located.choice is not None:
            kind, files, weights = located.choice.format, located.choice.files, located.choice.weights
            path = located.path or path
        family = _family(snapshot, weights if kind == "gguf" else (), quantization)
    except GemwrightError as error:
        refused = error.what.partition(": ")[2] or error.what
        if not isinstance(error, UnsupportedError):
            missing = missing or ("what can be read",)
    here = [name for name in files if name in snapshot.files]
    used = [(snapshot.folder / name).stat().st_atime for name in weights if name in snapshot.files]
    return CachedModel(
        model=snapshot.repository if quantization is None else f"{snapshot.repository}:{quantization}",
        repository=snapshot.repository,
        revision="main" if "main" in snapshot.references else (*snapshot.references, snapshot.commit)[0],
        commit=snapshot.commit,
        format=kind,
        size_bytes=sum(snapshot.files[name] for name in here),
        family=family,
        last_used=max(used, default=None),
        missing=missing,
        path=path,
        refused=refused,
    )


def _family(snapshot: Snapshot, gguf_weights: tuple[str, ...], quantization: str | None) -> str | None:
    """Return the family of a model, None where too little is here to tell. Raises UnsupportedError for one that cannot
    be run, CheckpointError for a damaged file."""
    if gguf_weights:
        if gguf_weights[0] not in snapshot.files:
            return None
        path = snapshot.folder / gguf_weights[0]
        try:
            with path.open("rb") as file:
                beginning = file.read(BEGINNING_BYTES)
        except OSError as error:
            raise CheckpointError(f"{path}: cannot be read", value=error.strerror) from error
        check_beginning(beginning, quantization, str(path))
        return read_architecture(beginning, str(path))
    if CONFIG_NAME not in snapshot.files:
        return None
    path = snapshot.folder / CONFIG_NAME
    return read_config(read_json_object(path), source=str(path), allow_unknown_keys=True).family
