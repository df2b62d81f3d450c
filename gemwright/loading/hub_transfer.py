"""Fetches files whole: goes on where a connection broke, tries again a bounded number of times, checks the result.

A file that is not whole yet lies beside its place as `.incomplete` and outlives the process; the next one goes on with
it. Refuses to know what the files are.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import math
import os
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from operator import attrgetter
from pathlib import Path
from typing import TypeVar

import httpx2
from huggingface_hub import constants, get_session, hf_raise_for_status
from huggingface_hub.errors import HfHubHTTPError

from gemwright.errors import CheckpointError
from gemwright.loading.hub_errors import may_pass, told_wait_seconds

Result = TypeVar("Result")

_PRIMING_BYTES = 1 << 22
_LOCK_POLL_SECONDS = 0.2


@dataclass(frozen=True, slots=True)
class Patience:
    """How often and after which waits a request is made again."""

    attempts: int = 6
    """Attempts in a row that may fail without bringing `progress_bytes`; one that brings more starts the count anew."""
    progress_bytes: int = 16 << 20
    first_wait_seconds: float = 1.0
    longest_wait_seconds: float = 16.0
    longest_told_wait_seconds: float = 60.0
    """A longer wait asked for by the hub is not waited for: the error names it."""
    silence_seconds: float | None = None
    """How long the hub may send nothing; None: what huggingface_hub is set to."""
    answer_seconds: float = math.inf
    """How long one answer may take to come, when it is read into memory."""


PATIENCE = Patience()


class StoppedError(Exception):
    """The transfer was told to stop."""


@dataclass(frozen=True, slots=True)
class Remote:
    """A file as the hub names it."""

    url: str
    size_bytes: int
    digest: str
    """SHA-256 (64 hex digits) of the content, or Git's SHA-1 of a blob (40)."""


@dataclass(frozen=True, slots=True)
class Transfer:
    """Fetches with one set of headers until it is told to stop."""

    headers: dict[str, str]
    stop: threading.Event
    count: Callable[[int], None]
    """Told of bytes as they are written; of fewer than none where a file begins anew."""
    patience: Patience | None = None
    """None: PATIENCE."""

    def fetch_bytes(self, url: str, limit_bytes: int, first_bytes: int | None = None) -> bytes:
        """Return the content of a small file, or its beginning; CheckpointError where it is larger than the limit."""
        return self.retry(lambda: self._read(url, limit_bytes, first_bytes))

    def fetch_range(self, url: str, begin: int, end: int) -> bytes:
        """Return bytes begin..end of a file, and read no further should the hub send more than was asked for."""
        return self.retry(lambda: self._read_range(url, begin, end))

    def fetch_file(self, remote: Remote, target: Path, lock: Path) -> None:
        """Bring `target` about, unless it is there: whole, checked, and seen by no one before.

        Raises CheckpointError for content that is not what the hub says it is, OSError where it cannot be written,
        httpx2.HTTPError where the hub fails for good; what has come by then is kept.
        """
        begun = target.with_name(f"{target.name}.incomplete")
        target.parent.mkdir(parents=True, exist_ok=True)
        with self._only_one(lock), _no_empty(begun):
            if target.exists() and target.stat().st_size == remote.size_bytes:
                self.count(remote.size_bytes)
                return
            for is_last in (False, True):
                with _Partial(begun, remote, self.count) as file:
                    was_begun = file.size_bytes > 0
                    self.retry(partial(self._receive, remote, file), partial(attrgetter("size_bytes"), file))
                    is_right = file.is_right()
                    size_bytes = file.size_bytes
                if is_right:
                    begun.replace(target)
                    return
                self.count(-size_bytes)
                begun.unlink()
                if is_last or not was_begun:
                    break
        raise CheckpointError(
            "the hub sent a file that does not have the checksum it names",
            value=remote.url,
            limit=remote.digest,
            remedy="give the same command again; if it stays, a proxy or mirror between spoils the file",
        )

    def retry(self, action: Callable[[], Result], progress: Callable[[], int] = lambda: 0) -> Result:
        """Return what `action` returns, trying again where that may help. Raises its last error, or StoppedError."""
        patience = self.patience or PATIENCE
        failures, wait_seconds = 0, patience.first_wait_seconds
        while True:
            before = progress()
            try:
                return action()
            except (httpx2.HTTPError, ConnectionError) as error:
                if progress() - before >= patience.progress_bytes:
                    failures, wait_seconds = 0, patience.first_wait_seconds
                failures += 1
                told = told_wait_seconds(error)
                if not may_pass(error) or failures >= patience.attempts:
                    raise
                if told is not None and told > patience.longest_told_wait_seconds:
                    raise
            if self.stop.wait(wait_seconds if told is None else told):
                raise StoppedError
            wait_seconds = min(2 * wait_seconds, patience.longest_wait_seconds)

    def _read(self, url: str, limit_bytes: int, first_bytes: int | None) -> bytes:
        wanted = {} if first_bytes is None else {"Range": f"bytes=0-{first_bytes - 1}"}
        content = bytearray()
        with self._open(url, wanted) as response:
            for piece in self._pieces(response):
                content += piece
                if first_bytes is not None and len(content) >= first_bytes:
                    return bytes(content[:first_bytes])
                if len(content) > limit_bytes:
                    raise CheckpointError(
                        f"{url}: too large for a file of its kind", value=f"over {limit_bytes} bytes", limit=limit_bytes
                    )
        return bytes(content)

    def _read_range(self, url: str, begin: int, end: int) -> bytes:
        content = bytearray()
        with self._open(url, {"Range": f"bytes={begin}-{end - 1}"}) as response:
            # An answer that ignores the range begins at the first byte of the file.
            skipped_bytes = 0 if _continues(response, begin) else begin
            if response.status_code == 206 and skipped_bytes:
                raise httpx2.RemoteProtocolError(f"another range was sent: {response.headers.get('Content-Range')}")
            for piece in self._pieces(response):
                content += piece
                if len(content) - skipped_bytes >= end - begin:
                    return bytes(content[skipped_bytes : skipped_bytes + end - begin])
        raise httpx2.RemoteProtocolError(f"the answer ended at byte {begin - skipped_bytes + len(content)} of {end}")

    def _pieces(self, response: httpx2.Response) -> Iterator[bytes]:
        """Yield an answer as it comes; httpx2.ReadTimeout where it takes longer than patience lasts."""
        begun_at = time.monotonic()
        for piece in response.iter_bytes():
            yield piece
            if time.monotonic() - begun_at > (self.patience or PATIENCE).answer_seconds:
                raise httpx2.ReadTimeout("the answer takes too long")

    def _receive(self, remote: Remote, file: _Partial) -> None:
        """Ask for what is still missing of a file and write it as it comes."""
        if file.size_bytes == remote.size_bytes:
            return
        wanted = {"Range": f"bytes={file.size_bytes}-"} if file.size_bytes else {}
        try:
            with self._open(remote.url, wanted) as response:
                if file.size_bytes and not _continues(response, file.size_bytes):
                    file.begin_anew()
                for piece in response.iter_bytes():
                    if self.stop.is_set():
                        raise StoppedError
                    file.write(piece)
                    if file.size_bytes > remote.size_bytes:
                        break
        except HfHubHTTPError as error:
            if error.response.status_code != 416:
                raise
            file.begin_anew()
            raise httpx2.RemoteProtocolError("the range was refused") from error
        if file.size_bytes < remote.size_bytes:
            raise httpx2.RemoteProtocolError(f"the answer ended at byte {file.size_bytes} of {remote.size_bytes}")

    @contextlib.contextmanager
    def _open(self, url: str, headers: dict[str, str]) -> Iterator[httpx2.Response]:
        silence_seconds = (self.patience or PATIENCE).silence_seconds
        timeout = httpx2.Timeout(constants.HF_HUB_DOWNLOAD_TIMEOUT if silence_seconds is None else silence_seconds)
        # Compressed answers have neither ranges nor a length.
        headers = {**self.headers, "Accept-Encoding": "identity", **headers}
        with get_session().stream("GET", url, headers=headers, timeout=timeout, follow_redirects=True) as response:
            hf_raise_for_status(response)
            yield response

    @contextlib.contextmanager
    def _only_one(self, lock: Path) -> Iterator[None]:
        """Hold the lock under which huggingface_hub fetches the same file too.

        On a file system without locks two processes may write one file; the checksum then tells.
        """
        lock.parent.mkdir(parents=True, exist_ok=True)
        while True:
            with lock.open("a") as file:
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except OSError as error:
                    if error.errno in (errno.EWOULDBLOCK, errno.EAGAIN):
                        if self.stop.wait(_LOCK_POLL_SECONDS):
                            raise StoppedError from None
                        continue
                else:
                    if os.fstat(file.fileno()).st_nlink == 0:
                        continue  # whoever held it has removed it, and the next one makes a new one
                yield
                return


@contextlib.contextmanager
def _no_empty(path: Path) -> Iterator[None]:
    """Remove a file that nothing has come of by the end of the block."""
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            if path.stat().st_size == 0:
                path.unlink()


class _Partial:
    """A file on its way: what has come, and the checksum of that."""

    def __init__(self, path: Path, remote: Remote, count: Callable[[int], None]) -> None:
        self.size_bytes = 0
        self._remote = remote
        self._count = count
        self._file = path.open("a+b", buffering=0)
        self._digest = self._new_digest()
        self._read_what_is_there()

    def __enter__(self) -> _Partial:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def write(self, piece: bytes) -> None:
        """Add to the end of the file."""
        rest = memoryview(piece)
        while rest:
            written = self._file.write(rest) or 0
            self._take(bytes(rest[:written]))
            rest = rest[written:]

    def begin_anew(self) -> None:
        """Forget all that has come."""
        self._file.truncate(0)
        self._count(-self.size_bytes)
        self.size_bytes = 0
        self._digest = self._new_digest()

    def is_right(self) -> bool:
        """Whether the whole file is here, as the hub has it."""
        return self.size_bytes == self._remote.size_bytes and self._digest.hexdigest() == self._remote.digest

    def _new_digest(self) -> hashlib._Hash:
        if len(self._remote.digest) == 64:
            return hashlib.sha256()
        return hashlib.sha1(b"blob %d\0" % self._remote.size_bytes, usedforsecurity=False)

    def _read_what_is_there(self) -> None:
        self._file.seek(0)
        while piece := self._file.read(_PRIMING_BYTES):
            self._take(piece)
        if self.size_bytes > self._remote.size_bytes:
            self.begin_anew()

    def _take(self, piece: bytes) -> None:
        self._digest.update(piece)
        self.size_bytes += len(piece)
        self._count(len(piece))


def _continues(response: httpx2.Response, begin: int) -> bool:
    """Whether an answer begins at the byte that was asked for; one that ignored the range begins at the first."""
    return response.status_code == 206 and response.headers.get("Content-Range", "").startswith(f"bytes {begin}-")
