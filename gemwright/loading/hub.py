"""Fetches a model from the hub into the local cache: looks at it first, refuses early, takes only what is needed."""

from __future__ import annotations

import contextlib
import os
import queue
import shutil
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import httpx2
from huggingface_hub import HfApi, constants, get_token, hf_hub_url

from gemwright.errors import CapacityError, CheckpointError, UnsupportedError, show_bytes
from gemwright.loading import hub_cache
from gemwright.loading.hub_errors import explain, explain_disk
from gemwright.loading.hub_files import CONFIG_NAME, Choice, choose_files
from gemwright.loading.hub_gguf import BEGINNING_BYTES, check_beginning
from gemwright.loading.hub_name import HubName
from gemwright.loading.hub_transfer import Patience, Remote, StoppedError, Transfer
from gemwright.loading.json_files import CONFIG_LIMIT_BYTES, parse_json_object
from gemwright.loading.safetensors import INDEX_LIMIT_BYTES, INDEX_NAME
from gemwright.spec.families import read_config
from gemwright.spec.model_spec import ModelSpec

Progress = Callable[[int, int], None]
"""Called with the bytes that are there and the bytes of the whole model."""

_CONNECTIONS = 4
_LEAVE_SECONDS = 1
_REQUEST_TIMEOUT_SECONDS = 30.0
_HEX_DIGITS = frozenset("0123456789abcdef")


@dataclass(frozen=True, slots=True)
class Listing:
    """What a repository holds at one commit, as the hub says."""

    repository: str
    revision: str
    commit: str
    files: Mapping[str, Remote]
    license: str | None


@dataclass(frozen=True, slots=True)
class Pulled:
    """A model that is in the cache now."""

    name: HubName
    commit: str
    format: str
    path: Path
    """What the loader opens, a folder or a GGUF file."""
    files: tuple[str, ...]
    total_bytes: int
    fetched_bytes: int
    """Those of them that were not here before."""
    seconds: float


@dataclass(slots=True)
class _Counter:
    """Adds up what the threads fetch, and shows it."""

    total_bytes: int
    progress: Progress | None
    done_bytes: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, num_bytes: int) -> None:
        with self.lock:
            self.done_bytes += num_bytes
            if self.progress is not None:
                self.progress(max(0, self.done_bytes), self.total_bytes)


class Hub:
    """The hub at $HF_ENDPOINT, asked with $HF_TOKEN or the token of `hf auth login`."""

    def __init__(self, patience: Patience | None = None) -> None:
        self.stop = threading.Event()
        token = None if constants.HF_HUB_DISABLE_IMPLICIT_TOKEN else get_token()
        self.headers = {"User-Agent": "gemwright"}
        if token is not None:
            self.headers["Authorization"] = f"Bearer {token}"
        self.silence_seconds = _REQUEST_TIMEOUT_SECONDS
        if patience is not None and patience.silence_seconds is not None:
            self.silence_seconds = patience.silence_seconds
        self._transfer = Transfer(self.headers, self.stop, lambda _: None, patience)
        self._small_files: dict[str, bytes] = {}

    def look_up(self, repository: str, revision: str) -> Listing:
        """Return what a repository holds. Raises CheckpointError for whatever keeps the hub from saying so."""
        api = HfApi(endpoint=constants.ENDPOINT, library_name="gemwright")
        with _explained(repository, revision):
            info = self._transfer.retry(
                lambda: api.model_info(repository, revision=revision, files_metadata=True, timeout=self.silence_seconds)
            )
            if info.sha is None or hub_cache.COMMIT.fullmatch(info.sha) is None:
                raise ValueError(f"its answer names no commit: {info.sha!r}")
            files = {
                entry.rfilename: Remote(
                    hf_hub_url(repository, entry.rfilename, revision=info.sha, endpoint=constants.ENDPOINT),
                    -1 if entry.size is None else entry.size,
                    (entry.lfs.sha256 if entry.lfs is not None else entry.blob_id) or "",
                )
                for entry in info.siblings or []
                if _is_safe(entry.rfilename)
            }
        license_name = getattr(info.card_data, "license_name", None) or getattr(info.card_data, "license", None)
        return Listing(repository, revision, info.sha, files, license_name if isinstance(license_name, str) else None)

    def choose(self, listing: Listing, quantization: str | None) -> Choice:
        """Return the files of the model.

        Raises as `choose_files`, CheckpointError where the hub leaves a size or a checksum out.
        """

        def read_shards() -> tuple[str, ...]:
            index = self.read_json(listing, INDEX_NAME, INDEX_LIMIT_BYTES)
            return hub_cache.parse_shards(index, f"{listing.repository}/{INDEX_NAME}")

        choice = choose_files(
            listing.files, source=listing.repository, quantization=quantization, read_shards=read_shards
        )
        for name in choice.files:
            remote = listing.files[name]
            if remote.size_bytes < 0 or len(remote.digest) not in (40, 64) or not _HEX_DIGITS.issuperset(remote.digest):
                raise CheckpointError(
                    f"{constants.ENDPOINT} does not say how large a file is, or gives no checksum",
                    value=f"{listing.repository}/{name}",
                    remedy="set HF_ENDPOINT to a hub that does, or leave it unset",
                )
        return choice

    def check(self, listing: Listing, choice: Choice, *, allow_unknown_config_keys: bool = False) -> ModelSpec | None:
        """Refuse a model that cannot be run, from a few KB of it; return its spec, None for GGUF.

        Raises UnsupportedError for models that are understood and refused, CheckpointError for damaged ones.
        """
        if choice.format == "safetensors":
            return read_config(
                self.read_json(listing, CONFIG_NAME),
                source=f"{listing.repository}/{CONFIG_NAME}",
                allow_unknown_keys=allow_unknown_config_keys,
            )
        with _explained(listing.repository, listing.revision):
            beginning = self._transfer.fetch_bytes(
                listing.files[choice.weights[0]].url, BEGINNING_BYTES, BEGINNING_BYTES
            )
        check_beginning(beginning, choice.quantization, f"{listing.repository}/{choice.weights[0]}")
        return None

    def read_json(self, listing: Listing, name: str, limit_bytes: int = CONFIG_LIMIT_BYTES) -> dict[str, Any]:
        """Return the object in a JSON file of a repository, read into memory alone."""
        with _explained(listing.repository, listing.revision):
            url = listing.files[name].url
            if url not in self._small_files:
                self._small_files[url] = self._transfer.fetch_bytes(url, limit_bytes)
        return parse_json_object(self._small_files[url], f"{listing.repository}/{name}")

    def read_range(self, listing: Listing, name: str, begin: int, end: int) -> bytes:
        """Return bytes begin..end of a file of a repository. Raises as `look_up`."""
        with _explained(listing.repository, listing.revision):
            return self._transfer.fetch_range(listing.files[name].url, begin, end)

    def fetch(self, listing: Listing, choice: Choice, progress: Progress | None) -> int:
        """Bring all files of a model into the cache and return how many bytes had to be fetched.

        Raises CapacityError before anything is fetched where the disk has no room, and where it runs full;
        CheckpointError for all else that keeps a file from coming. What has come is kept, and the next call goes on.
        """
        lacking = {name: listing.files[name] for name in choice.files if not _is_linked(listing, name)}
        for name, remote in lacking.items():
            if remote.size_bytes > constants.MAX_HTTP_DOWNLOAD_SIZE:
                raise UnsupportedError(
                    f"{listing.repository}/{name} is larger than the hub sends over HTTP",
                    value=show_bytes(remote.size_bytes),
                    limit=show_bytes(constants.MAX_HTTP_DOWNLOAD_SIZE),
                    remedy=f"hf download {listing.repository} {name} brings it; then give the same command again",
                )
        total_bytes = sum(listing.files[name].size_bytes for name in choice.files)
        lacking_bytes = sum(remote.size_bytes for remote in lacking.values())
        counter = _Counter(total_bytes, progress, total_bytes - lacking_bytes)
        here_bytes = sum(_bytes_here(listing.repository, remote) for remote in lacking.values())
        _require_room(listing, lacking_bytes - here_bytes, lacking_bytes)
        transfer = Transfer(self.headers, self.stop, counter.add)
        jobs = {name: partial(_fetch_one, transfer, listing, name, remote) for name, remote in lacking.items()}
        try:
            with _explained(listing.repository, listing.revision):
                # Before the reference, which must not stand for nothing.
                _snapshot_folder(listing).mkdir(parents=True, exist_ok=True)
                hub_cache.write_listing(listing.repository, listing.commit, _entries(listing))
                if not (hub_cache.repository_folder(listing.repository) / "refs" / listing.revision).exists():
                    hub_cache.write_reference(listing.repository, listing.revision, listing.commit)
                # Small files first: what is left of a transfer that breaks off is weights alone.
                run_all([job for name, job in jobs.items() if name not in choice.weights], self.stop)
                run_all([job for name, job in jobs.items() if name in choice.weights], self.stop)
                hub_cache.write_reference(listing.repository, listing.revision, listing.commit)
        except CheckpointError as error:
            if isinstance(error.__cause__, httpx2.HTTPError) and counter.done_bytes:
                there = f"{show_bytes(counter.done_bytes)} of {show_bytes(total_bytes)}"
                error.what = f"{error.what}, after {there} of {listing.repository}"
                error.remedy = f"{error.remedy}; the same command goes on from there"
            raise
        return max(0, lacking_bytes - here_bytes)


def pull(
    name: HubName,
    *,
    commit: str | None = None,
    progress: Progress | None = None,
    allow_unknown_config_keys: bool = False,
) -> Pulled:
    """Bring a model of the hub into the local cache, all of it, at its revision or at a commit of that revision.

    Asks the hub what the revision is now, and fetches what is not here. Raises RequestError where one of several GGUF
    models must be named, UnsupportedError for a model that cannot be run (before its weights are fetched),
    CapacityError where the disk has no room, CheckpointError for all else that keeps the model from coming.
    """
    started_at = time.perf_counter()
    hub = Hub()
    listing = hub.look_up(name.repository, commit or name.revision)
    choice = hub.choose(listing, name.quantization)
    if not all(_is_linked(listing, file) for file in choice.files):
        hub.check(listing, choice, allow_unknown_config_keys=allow_unknown_config_keys)
    fetched_bytes = hub.fetch(listing, choice, progress)
    folder = _snapshot_folder(listing)
    return Pulled(
        name,
        listing.commit,
        choice.format,
        folder / choice.weights[0] if choice.format == "gguf" else folder,
        choice.files,
        sum(listing.files[file].size_bytes for file in choice.files),
        fetched_bytes,
        time.perf_counter() - started_at,
    )


@contextlib.contextmanager
def _explained(repository: str, revision: str) -> Iterator[None]:
    """Turn what a request runs into, or a write into the cache, into our errors."""
    try:
        yield
    except (httpx2.HTTPError, httpx2.InvalidURL, ConnectionError, ValueError, KeyError, TypeError) as error:
        raise explain(error, repository, revision) from error
    except OSError as error:
        raise explain_disk(error, hub_cache.cache_folder()) from error


def _fetch_one(transfer: Transfer, listing: Listing, name: str, remote: Remote) -> None:
    folder = hub_cache.repository_folder(listing.repository)
    blob = folder / "blobs" / remote.digest
    transfer.fetch_file(remote, blob, folder.parent / ".locks" / folder.name / f"{remote.digest}.lock")
    link = _snapshot_folder(listing) / name
    link.parent.mkdir(parents=True, exist_ok=True)
    if constants.HF_HUB_DISABLE_SYMLINKS:
        blob.replace(link)
        return
    link.unlink(missing_ok=True)
    try:
        link.symlink_to(os.path.relpath(blob, link.parent))
    except FileExistsError:
        pass  # another process was as fast
    except OSError:
        blob.replace(link)  # a file system without links


def run_all(jobs: Sequence[Callable[[], None]], stop: threading.Event) -> None:
    """Run the jobs, a few at a time, until all are done or one has failed; an interrupt stops them within moments."""
    waiting: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
    results: queue.SimpleQueue[BaseException | None] = queue.SimpleQueue()
    for job in jobs:
        waiting.put(job)

    def work() -> None:
        with contextlib.suppress(queue.Empty):
            while not stop.is_set():
                job = waiting.get_nowait()
                try:
                    job()
                    results.put(None)
                except BaseException as error:
                    results.put(error)

    # Daemons: one that waits for a silent server does not keep the program from ending.
    threads = [threading.Thread(target=work, daemon=True) for _ in range(min(_CONNECTIONS, len(jobs)))]
    for thread in threads:
        thread.start()
    try:
        for _ in jobs:
            failure = results.get()
            if failure is not None and not isinstance(failure, StoppedError):
                raise failure
    except BaseException:
        stop.set()
        raise
    finally:
        for thread in threads:
            thread.join(timeout=_LEAVE_SECONDS)


def _require_room(listing: Listing, needed_bytes: int, lacking_bytes: int) -> None:
    folder = hub_cache.cache_folder()
    standing = next((place for place in (folder, *folder.parents) if place.exists()), Path("/"))
    free_bytes = shutil.disk_usage(standing).free
    if needed_bytes > free_bytes:
        here = "" if needed_bytes == lacking_bytes else ", besides what is there of it"
        raise CapacityError(
            f"{folder}: no room for {listing.repository}",
            value=f"{show_bytes(free_bytes)} free",
            limit=f"{show_bytes(needed_bytes)} needed{here}",
            remedy="free space (gemwright rm MODEL), or set HF_HOME to a folder on another disk",
        )


def _bytes_here(repository: str, remote: Remote) -> int:
    """Return how much of a file lies in the cache, whole or on its way."""
    blob = hub_cache.repository_folder(repository) / "blobs" / remote.digest
    for path in (blob, blob.with_name(f"{blob.name}.incomplete")):
        with contextlib.suppress(OSError):
            if (size := path.stat().st_size) <= remote.size_bytes:
                return size
    return 0


def _is_linked(listing: Listing, name: str) -> bool:
    try:
        return (_snapshot_folder(listing) / name).stat().st_size == listing.files[name].size_bytes
    except OSError:
        return False


def _snapshot_folder(listing: Listing) -> Path:
    return hub_cache.repository_folder(listing.repository) / "snapshots" / listing.commit


def _entries(listing: Listing) -> dict[str, dict[str, Any]]:
    """Return the listing as huggingface_hub notes it."""
    found: dict[str, dict[str, Any]] = {}
    for name, remote in listing.files.items():
        found[name] = {"size": remote.size_bytes, "blob_id": remote.digest}
        if len(remote.digest) == 64:
            found[name] |= {"lfs_sha256": remote.digest, "lfs_size": remote.size_bytes}
    return found


def _is_safe(name: str) -> bool:
    """Whether a name from the hub stays inside the folder it is put in."""
    return "\\" not in name and "\0" not in name and all(part not in ("", ".", "..") for part in name.split("/"))
