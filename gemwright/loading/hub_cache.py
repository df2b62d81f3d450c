"""What lies in the local hub cache: snapshots, what they lack, where their model is. Never asks the network.

The cache is huggingface_hub's, in its folders and its layout, so that what other programs fetched is found here and
what is fetched here is found by them. `trees/COMMIT.json`, in that library's format, says what a repository holds.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gemwright.errors import CheckpointError
from gemwright.loading.hub_files import CONFIG_NAME, UNREAD, Choice, choose_files, gguf_models
from gemwright.loading.json_files import parse_json_object, read_json_object
from gemwright.loading.safetensors import INDEX_NAME

COMMIT = re.compile(r"[0-9a-f]{40}")
_SHORT_COMMIT = re.compile(r"[0-9a-f]{7,39}")
_PREFIX = "models--"
_TREE_VERSION = 1
_INDEX_LIMIT_BYTES = 100_000_000
_TOKENIZER_NAME = "tokenizer.json"


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One commit of a repository, as far as it is in the cache."""

    repository: str
    commit: str
    references: tuple[str, ...]
    """The branches and tags that stand for the commit here."""
    folder: Path
    files: Mapping[str, int]
    """What is here, with its bytes."""
    listing: Mapping[str, int] | None
    """What the repository holds at the commit, with its bytes; None where nobody wrote that down."""

    def has(self, name: str) -> bool:
        """Whether a file is here and as long as it should be."""
        return name in self.files and (self.listing is None or self.listing.get(name) == self.files[name])


@dataclass(frozen=True, slots=True)
class Located:
    """A model of a snapshot."""

    choice: Choice | None
    """None where too little is here to tell what the model consists of."""
    path: Path | None
    """What the loader opens, a folder or a GGUF file."""
    missing: tuple[str, ...]
    """Files without which the model cannot be loaded, or is not what was published."""
    doubtful: tuple[str, ...] = ()
    """Files of which nobody noted whether the repository has them."""


def cache_folder() -> Path:
    """Return the hub cache: $HF_HUB_CACHE, else $HF_HOME/hub, else ~/.cache/huggingface/hub."""
    from huggingface_hub import constants

    return Path(constants.HF_HUB_CACHE).expanduser()


def is_offline() -> bool:
    """Whether $HF_HUB_OFFLINE forbids asking the hub."""
    from huggingface_hub import constants

    return constants.is_offline_mode()


def repository_folder(repository: str) -> Path:
    """Return where a repository lies in the cache, or would."""
    return cache_folder() / (_PREFIX + repository.replace("/", "--"))


def find_snapshot(repository: str, revision: str) -> Snapshot | None:
    """Return the cached snapshot for which a branch, a tag or a commit (or its beginning) stands, None where none is.

    Raises CheckpointError for a cache that cannot be read.
    """
    folder = repository_folder(repository)
    with _reading(folder):
        commit = _referenced(folder, revision)
        snapshots = folder / "snapshots"
        if commit is None and COMMIT.fullmatch(revision):
            commit = revision
        if commit is None and _SHORT_COMMIT.fullmatch(revision) and snapshots.is_dir():
            begun = [entry.name for entry in snapshots.iterdir() if entry.name.startswith(revision)]
            commit = begun[0] if len(begun) == 1 else None
        if commit is None or not (snapshots / commit).is_dir():
            return None
        return _read_snapshot(repository, folder, commit)


def repository_snapshots(repository: str) -> tuple[Snapshot, ...]:
    """Return every snapshot of a repository that is here; CheckpointError for a cache that cannot be read."""
    folder = repository_folder(repository)
    with _reading(folder):
        if not (folder / "snapshots").is_dir():
            return ()
        commits = sorted(entry.name for entry in (folder / "snapshots").iterdir() if COMMIT.fullmatch(entry.name))
        return tuple(_read_snapshot(repository, folder, commit) for commit in commits)


def cached_repositories() -> tuple[list[str], int]:
    """Return the model repositories in the cache, and how many repositories of other kinds lie there.

    Raises CheckpointError for a cache that cannot be read.
    """
    folder = cache_folder()
    with _reading(folder):
        names = sorted(entry.name for entry in folder.iterdir() if entry.is_dir()) if folder.is_dir() else []
    models = [name.removeprefix(_PREFIX).replace("--", "/") for name in names if name.startswith(_PREFIX)]
    others = [name for name in names if name.startswith(("datasets--", "spaces--", "kernels--"))]
    return models, len(others)


def locate_model(snapshot: Snapshot, quantization: str | None = None) -> Located:
    """Return where the model of a snapshot lies and what it lacks.

    Of several GGUF models in a repository, a single one that is here needs no naming. Raises as `choose_files`.
    """
    source = snapshot.repository
    if snapshot.listing is None and not _has_weights(snapshot):
        config = () if CONFIG_NAME in snapshot.files else (CONFIG_NAME,)
        return Located(None, None, (*config, "its weights"))
    names = set(snapshot.files if snapshot.listing is None else snapshot.listing)
    if snapshot.listing is None and not any(name.endswith(".gguf") for name in names):
        names.add(CONFIG_NAME)
    if quantization is None and len(gguf_models(names)) > 1:
        here = [model for model in gguf_models(names) if all(snapshot.has(name) for name in model.files)]
        kept = {name for model in here for name in model.files}
        names = {name for name in names if not here or name in kept or not name.endswith(".gguf")}
    shards = _read_shards(snapshot)
    choice = choose_files(
        names | set(shards or ()) if snapshot.listing is None else names,
        source=source,
        quantization=quantization,
        read_shards=lambda: shards,
    )
    is_gguf = choice.format == "gguf"
    doubtful: tuple[str, ...] = ()
    if not is_gguf and snapshot.listing is None and not _is_settled(snapshot, _TOKENIZER_NAME):
        doubtful = (_TOKENIZER_NAME,)
    return Located(
        choice,
        snapshot.folder / choice.weights[0] if is_gguf else snapshot.folder,
        tuple(name for name in choice.files if name not in UNREAD and not snapshot.has(name)),
        doubtful,
    )


def write_reference(repository: str, revision: str, commit: str) -> None:
    """Note that `revision` stands for `commit`; nothing for a commit itself. Raises OSError."""
    path = repository_folder(repository) / "refs" / revision
    if revision == commit or _referenced(repository_folder(repository), revision) == commit:
        return
    _write_whole(path, commit.encode())


def write_listing(repository: str, commit: str, entries: Mapping[str, Mapping[str, Any]]) -> None:
    """Note what a repository holds at a commit, unless that is noted already. Raises OSError."""
    path = repository_folder(repository) / "trees" / f"{commit}.json"
    if _read_listing(path) is None:
        content = {"format_version": _TREE_VERSION, "files": dict(sorted(entries.items()))}
        _write_whole(path, json.dumps(content, indent=1).encode())


def parse_shards(index: Mapping[str, Any], source: str) -> tuple[str, ...]:
    """Return the files that a safetensors index lists; CheckpointError where it lists none or something else."""
    listed = index.get("weight_map")
    names = sorted(set(listed.values())) if isinstance(listed, dict) and _are_names(listed.values()) else []
    if not names:
        raise CheckpointError(f"{source}: weight_map names no files", value=str(listed)[:80])
    return tuple(names)


def _are_names(values: Any) -> bool:
    return all(isinstance(value, str) and value.endswith(".safetensors") and "/" not in value for value in values)


def _has_weights(snapshot: Snapshot) -> bool:
    return any(name.endswith((".gguf", ".safetensors")) or name == INDEX_NAME for name in snapshot.files)


def _is_settled(snapshot: Snapshot, name: str) -> bool:
    """Whether a file is here, or was looked for at the hub and not found."""
    return name in snapshot.files or (snapshot.folder.parents[1] / ".no_exist" / snapshot.commit / name).exists()


def _read_shards(snapshot: Snapshot) -> tuple[str, ...] | None:
    if not snapshot.has(INDEX_NAME):
        return None
    path = snapshot.folder / INDEX_NAME
    return parse_shards(read_json_object(path, _INDEX_LIMIT_BYTES), str(path))


def _read_snapshot(repository: str, folder: Path, commit: str) -> Snapshot:
    snapshot = folder / "snapshots" / commit
    files: dict[str, int] = {}
    for parent, _, names in os.walk(snapshot):
        for name in names:
            path = Path(parent, name)
            with contextlib.suppress(OSError):  # a link to nothing
                files[path.relative_to(snapshot).as_posix()] = path.stat().st_size
    references = tuple(sorted(name for name, target in _references(folder) if target == commit))
    return Snapshot(repository, commit, references, snapshot, files, _read_listing(folder / "trees" / f"{commit}.json"))


def _references(folder: Path) -> Iterator[tuple[str, str]]:
    for parent, _, names in os.walk(folder / "refs"):
        for name in names:
            path = Path(parent, name)
            if not name.endswith(".tmp"):
                yield path.relative_to(folder / "refs").as_posix(), path.read_text(errors="replace").strip()


def _referenced(folder: Path, revision: str) -> str | None:
    try:
        commit = (folder / "refs" / revision).read_text(errors="replace").strip()
    except (FileNotFoundError, IsADirectoryError, NotADirectoryError):
        return None
    return commit if COMMIT.fullmatch(commit) else None


def _read_listing(path: Path) -> dict[str, int] | None:
    try:
        content = parse_json_object(path.read_bytes(), str(path))
        if content["format_version"] != _TREE_VERSION:
            return None
        entries = content["files"].items()
        return {name: int(entry.get("lfs_size") or entry["size"]) for name, entry in entries}
    except (OSError, CheckpointError, KeyError, TypeError, ValueError, AttributeError):
        return None  # a note of another version, or a damaged one: as if there were none


def _write_whole(path: Path, content: bytes) -> None:
    """Write a file so that no reader ever sees half of it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, suffix=".tmp")
    try:
        with os.fdopen(descriptor, "wb") as file:
            os.fchmod(descriptor, 0o644)
            file.write(content)
        Path(temporary).replace(path)
    finally:
        Path(temporary).unlink(missing_ok=True)


@contextlib.contextmanager
def _reading(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise CheckpointError(
            f"{folder}: the hub cache cannot be read",
            value=error.strerror or error,
            remedy="change its permissions, or set HF_HOME to another folder",
        ) from error
