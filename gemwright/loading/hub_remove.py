"""Deletes models from the local hub cache, by huggingface_hub's own plan of what no other revision needs.

Refuses to know any path outside the cache.
"""

from __future__ import annotations

import contextlib
import logging
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from huggingface_hub import HFCacheInfo, scan_cache_dir
from huggingface_hub.errors import CacheNotFound

from gemwright.errors import CheckpointError, RequestError
from gemwright.loading import hub_cache
from gemwright.loading.hub_cache import Snapshot
from gemwright.loading.hub_files import gguf_models
from gemwright.loading.hub_name import HubName

_WEIGHTS = (".gguf", ".safetensors")


@dataclass(frozen=True, slots=True)
class Removal:
    """What would be deleted."""

    what: str
    """In words, for whoever is asked."""
    paths: tuple[Path, ...]
    """Folders and files in the cache that will be gone."""
    freed_bytes: int
    _execute: Callable[[], None]

    def execute(self) -> None:
        """Delete it. Raises CheckpointError where something stays that should be gone."""
        problem: object = None
        try:
            with _silent_library():
                self._execute()
        except OSError as error:
            problem = error.strerror or error
        left = [path for path in self.paths if path.exists()]
        if left or problem is not None:
            raise CheckpointError(
                f"{left[0] if left else hub_cache.cache_folder()}: cannot be deleted",
                value=problem,
                remedy="change the permissions of the hub cache",
            )


@contextlib.contextmanager
def _silent_library() -> Iterator[None]:
    """Keep huggingface_hub from logging tracebacks of what it could not delete: the error says it."""
    logger = logging.getLogger("huggingface_hub")
    before = logger.level
    logger.setLevel(logging.CRITICAL + 1)
    try:
        yield
    finally:
        logger.setLevel(before)


def plan_removal(name: HubName, *, all_revisions: bool) -> Removal:
    """Return what deleting a model means: one GGUF model, one revision, or with `all_revisions` all that is here of it.

    Raises CheckpointError for what is not in the cache, RequestError for a quantization that is not.
    """
    folder = hub_cache.repository_folder(name.repository)
    every = hub_cache.repository_snapshots(name.repository)
    chosen = every if all_revisions else _named_revision(name)
    if not folder.is_dir() or not (chosen or all_revisions):
        raise _not_here(name, all_revisions)
    what = name.model if all_revisions else f"{name.model} at revision {name.revision}"
    if name.quantization is not None:
        files = _files_of(chosen, name)
        kept = [
            snapshot.folder / file
            for snapshot in every
            for file in snapshot.files
            if file.endswith(_WEIGHTS) and snapshot.folder / file not in files
        ]
        if any(path.parents[0].is_relative_to(snapshot.folder) for path in kept for snapshot in chosen):
            return _remove_files(what, files)
    if len(chosen) < len(every):
        strategy = _scan().delete_revisions(*(snapshot.commit for snapshot in chosen))
        folders = tuple(snapshot.folder for snapshot in chosen)
        return Removal(what, folders, strategy.expected_freed_size, strategy.execute)
    if len(every) > 1:
        what += f", {len(every)} revisions"
    return Removal(what, (folder,), _disk_bytes(folder), partial(_remove_repository, folder, every))


def _named_revision(name: HubName) -> tuple[Snapshot, ...]:
    snapshot = hub_cache.find_snapshot(name.repository, name.revision)
    return () if snapshot is None else (snapshot,)


def _files_of(snapshots: tuple[Snapshot, ...], name: HubName) -> set[Path]:
    """Return the files of a GGUF model in the snapshots; RequestError where there are none."""
    wanted = (name.quantization or "").lower()
    models = [(snapshot, model) for snapshot in snapshots for model in gguf_models(snapshot.files)]
    files = {
        snapshot.folder / file for snapshot, model in models if model.label.lower() == wanted for file in model.files
    }
    if not files:
        raise RequestError(
            f"no such GGUF model of {name.repository} is in the local cache",
            value=name.quantization,
            limit=", ".join(sorted({model.label for _, model in models})) or "none at all",
            remedy="gemwright list shows what is there",
        )
    return files


def _remove_files(what: str, paths: set[Path]) -> Removal:
    cache = _scan()
    resolved = {path.parent.resolve() / path.name for path in paths}
    files = [
        file
        for repository in cache.repos
        for revision in repository.revisions
        for file in revision.files
        if file.file_path in resolved
    ]
    strategy = cache.delete_files(*files)
    return Removal(what, tuple(sorted(paths)), strategy.expected_freed_size, strategy.execute)


def _remove_repository(folder: Path, snapshots: tuple[Snapshot, ...]) -> None:
    """Delete a repository with what was begun of it, also one that the library cannot make sense of."""
    _scan().delete_revisions(*(snapshot.commit for snapshot in snapshots)).execute()
    if folder.exists():
        shutil.rmtree(folder)
    with contextlib.suppress(OSError):
        shutil.rmtree(folder.parent / ".locks" / folder.name)


def _scan() -> HFCacheInfo:
    try:
        return scan_cache_dir(hub_cache.cache_folder())
    except CacheNotFound:
        raise CheckpointError(f"{hub_cache.cache_folder()}: no such folder", remedy="set HF_HOME to it") from None


def _disk_bytes(folder: Path) -> int:
    """Return the bytes of all files below a folder, links not followed."""
    return sum(path.lstat().st_size for path in folder.rglob("*") if path.is_file() and not path.is_symlink())


def _not_here(name: HubName, all_revisions: bool) -> CheckpointError:
    return CheckpointError(
        f"this model is not in the local cache, {hub_cache.cache_folder()}",
        value=name.model if all_revisions else f"{name.model} at revision {name.revision}",
        remedy="gemwright list shows what is there",
    )
