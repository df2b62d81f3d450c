"""A small hub on this machine, for tests: the routes that huggingface_hub uses, over real HTTP, with faults to order.

It serves model repositories from memory: what they hold (`/api/models/...`), and their files by name and revision with
ETag, length and byte ranges (`/OWNER/NAME/resolve/...`). Files of LFS can be served by a redirect to another host, as
the real hub does. Every request is recorded.
"""

from __future__ import annotations

import hashlib
import json
import re
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import pytest
from huggingface_hub import close_session, constants

from gemwright.loading import hub_transfer

LFS_SUFFIXES = (".safetensors", ".gguf", ".bin", ".pt", ".model")

_API = re.compile(r"/api/models/(?P<repository>[^/]+/[^/]+?)(?:/(?P<what>revision|tree)/(?P<revision>[^/]+))?(?:/.*)?")
_RESOLVE = re.compile(r"/(?P<repository>[^/]+/[^/]+)/resolve/(?P<revision>[^/]+)/(?P<file>.+)")
_RANGE = re.compile(r"bytes=(\d+)-(\d*)")


@dataclass(frozen=True)
class Asked:
    """One request and what it got."""

    method: str
    path: str
    range: str | None
    authorization: str | None
    status: int
    sent_bytes: int
    """Of the content, if the client stayed to read them."""


@dataclass
class Fault:
    """What is to go wrong with one request for a file."""

    cut_after: int | None = None
    """Break the connection after so many bytes of the content."""
    status: int | None = None
    headers: dict[str, str] = field(default_factory=dict)
    spoil: bool = False
    """Send other bytes than the file's, as many."""
    ignore_range: bool = False
    """Send the whole file, whatever part was asked for."""
    hold: bool = False
    """After `cut_after` bytes, send no more until the hub closes."""


@dataclass
class Repository:
    """A model repository: its commits, the names that stand for them, and who may read it."""

    commits: dict[str, dict[str, bytes]] = field(default_factory=dict)
    references: dict[str, str] = field(default_factory=dict)
    is_gated: bool = False
    is_private: bool = False
    license: str | None = None


class Hub:
    """The server. `url` is what HF_ENDPOINT should be; tokens in `tokens` open private and gated repositories."""

    def __init__(self) -> None:
        self.repositories: dict[str, Repository] = {}
        self.tokens: set[str] = set()
        self.asked: list[Asked] = []
        self.faults: dict[str, list[Fault]] = {}
        """For a file's name, or "api", what goes wrong with the next requests, one each."""
        self.always: dict[str, Fault] = {}
        """For a file's name, or "api", what goes wrong with every request."""
        self.redirects = False
        """Whether LFS files come from another host."""
        self.closing = threading.Event()
        self.holding = threading.Event()
        """Set once a request is held."""
        self._lock = threading.Lock()
        hub = self

        class Handler(_Handler):
            server_hub = hub

        self._server = _Server(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True)

    @property
    def url(self) -> str:
        """Where it listens."""
        return f"http://127.0.0.1:{self._server.server_port}"

    @property
    def other_url(self) -> str:
        """The same under another host's name."""
        return f"http://localhost:{self._server.server_port}"

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        self.closing.set()
        self._server.shutdown()
        self._server.server_close()

    def add(self, name: str, files: Mapping[str, bytes] | Path, *, reference: str = "main", **settings: Any) -> str:
        """Publish files, or those of a folder, as a new commit and return it."""
        if isinstance(files, Path):
            files = {
                path.relative_to(files).as_posix(): path.read_bytes() for path in files.rglob("*") if path.is_file()
            }
        repository = self.repositories.setdefault(name, Repository())
        for key, value in settings.items():
            setattr(repository, key, value)
        seed = repr((name, len(repository.commits), sorted(files))).encode()
        commit = hashlib.sha1(seed, usedforsecurity=False).hexdigest()
        repository.commits[commit] = dict(files)
        repository.references[reference] = commit
        return commit

    def requests_for(self, file: str) -> list[Asked]:
        """Return the GET requests for a file's content, in order."""
        return [
            asked
            for asked in self.asked
            if asked.method == "GET" and (asked.path.endswith(f"/{file}") or asked.path.endswith(f"?{file}"))
        ]

    def sent_bytes(self, file: str) -> int:
        """Return how many bytes of a file's content went out in all."""
        return sum(asked.sent_bytes for asked in self.requests_for(file))

    def take_fault(self, key: str) -> Fault | None:
        with self._lock:
            waiting = self.faults.get(key)
            return waiting.pop(0) if waiting else self.always.get(key)

    def record(self, asked: Asked) -> None:
        with self._lock:
            self.asked.append(asked)


@contextmanager
def running_hub() -> Iterator[Hub]:
    """Yield a hub that listens until the block ends."""
    hub = Hub()
    hub.start()
    try:
        yield hub
    finally:
        hub.close()


def use_hub(monkeypatch: pytest.MonkeyPatch, hub: Hub, home: Path) -> None:
    """Make huggingface_hub in this process talk to `hub`, with its cache below `home`, no token and no long waits."""
    for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    use_endpoint(monkeypatch, hub.url)
    for name, value in {
        "HF_HOME": str(home),
        "HF_HUB_CACHE": str(home / "hub"),
        "HF_TOKEN_PATH": str(home / "token"),
        "HF_STORED_TOKENS_PATH": str(home / "stored_tokens"),
        "HF_HUB_OFFLINE": False,
        "HF_HUB_DISABLE_TELEMETRY": True,
        "HF_HUB_DOWNLOAD_TIMEOUT": 5,
    }.items():
        monkeypatch.setattr(constants, name, value)
    patience = hub_transfer.Patience(attempts=3, progress_bytes=1 << 40, first_wait_seconds=0.01)
    monkeypatch.setattr(hub_transfer, "PATIENCE", patience)
    close_session()


def use_endpoint(monkeypatch: pytest.MonkeyPatch, url: str) -> None:
    """Make huggingface_hub in this process ask another address."""
    monkeypatch.setattr(constants, "ENDPOINT", url)
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", url + "/{repo_id}/resolve/{revision}/{filename}")


def hub_variables(hub: Hub, home: Path) -> dict[str, str]:
    """Return the variables with which a child process talks to `hub`."""
    return {
        "HF_ENDPOINT": hub.url,
        "HF_HOME": str(home),
        "HF_HUB_OFFLINE": "0",
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "NO_PROXY": "127.0.0.1,localhost",
    }


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing of clients that went away."""
        if not isinstance(sys.exc_info()[1], ConnectionError):
            super().handle_error(request, client_address)


class _Handler(BaseHTTPRequestHandler):
    server_hub: Hub
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *arguments: Any) -> None:
        """Say nothing."""

    def do_HEAD(self) -> None:
        self._answer()

    def do_GET(self) -> None:
        self._answer()

    def _answer(self) -> None:
        path = unquote(urlsplit(self.path).path)
        try:
            if path == "/cdn":
                self._blob()
            elif (found := _API.fullmatch(path)) is not None:
                self._api(found)
            elif (found := _RESOLVE.fullmatch(path)) is not None:
                self._resolve(found)
            else:
                self._refuse(404, "", "no such route")
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = True

    def _api(self, found: re.Match[str]) -> None:
        if self._fails("api"):
            return
        opened = self._open(found["repository"], found["revision"] or "main", is_content=False)
        if opened is None:
            return
        repository, commit = opened
        entries = [(name, content, _blob_id(content)) for name, content in repository.commits[commit].items()]
        if found["what"] == "tree":
            body: Any = [
                {"type": "file", "path": name, "size": len(content), "oid": oid, **_lfs(name, content)}
                for name, content, oid in entries
            ]
        else:
            has_blobs = "blobs" in parse_qs(urlsplit(self.path).query)
            body = {
                "id": found["repository"],
                "sha": commit,
                "private": repository.is_private,
                "gated": "manual" if repository.is_gated else False,
                "cardData": {"license": repository.license} if repository.license else None,
                "siblings": [
                    {"rfilename": name}
                    | ({"size": len(content), "blobId": oid, **_lfs(name, content)} if has_blobs else {})
                    for name, content, oid in entries
                ],
            }
        self._send(200, json.dumps(body).encode(), {"Content-Type": "application/json"})

    def _resolve(self, found: re.Match[str]) -> None:
        name = found["file"]
        opened = self._open(found["repository"], found["revision"], is_content=True)
        if opened is None:
            return
        repository, commit = opened
        content = repository.commits[commit].get(name)
        if content is None:
            self._refuse(404, "EntryNotFound", "Entry not found", {"X-Repo-Commit": commit})
            return
        is_lfs = name.endswith(LFS_SUFFIXES)
        etag = hashlib.sha256(content).hexdigest() if is_lfs else _blob_id(content)
        headers = {"ETag": f'"{etag}"', "X-Repo-Commit": commit}
        if is_lfs and self.server_hub.redirects:
            headers |= {"X-Linked-Etag": f'"{etag}"', "X-Linked-Size": str(len(content))}
            target = f"{self.server_hub.other_url}/cdn?{found['repository']}/{commit}/{name}"
            self._send(302, b"", {**headers, "Location": target})
            return
        if not self._fails(name):
            self._content(name, content, headers)

    def _blob(self) -> None:
        owner, title, commit, name = unquote(urlsplit(self.path).query).split("/", 3)
        if not self._fails(name):
            self._content(name, self.server_hub.repositories[f"{owner}/{title}"].commits[commit][name], {})

    def _content(self, name: str, content: bytes, headers: dict[str, str]) -> None:
        fault = self.fault
        wanted = _RANGE.fullmatch(self.headers.get("Range", ""))
        begin, end, status = 0, len(content), 200
        if wanted is not None and not (fault and fault.ignore_range):
            begin = int(wanted[1])
            end = min(end, int(wanted[2]) + 1) if wanted[2] else end
            if begin >= len(content):
                self._refuse(416, "", "range", {"Content-Range": f"bytes */{len(content)}"})
                return
            status = 206
            headers = {**headers, "Content-Range": f"bytes {begin}-{end - 1}/{len(content)}"}
        part = content[begin:end]
        if fault and fault.spoil:
            part = bytes(byte ^ 255 for byte in part)
        self._send(status, part, {**headers, "Accept-Ranges": "bytes"}, fault)

    def _open(self, name: str, revision: str, *, is_content: bool) -> tuple[Repository, str] | None:
        """Return a repository and the commit of a revision, or refuse as the real hub does."""
        authorization = self.headers.get("Authorization")
        token = (authorization or "").removeprefix("Bearer ")
        if authorization is not None and token not in self.server_hub.tokens:
            self._refuse(401, "", "Invalid credentials in Authorization header")
            return None
        repository = self.server_hub.repositories.get(name)
        if repository is None or (repository.is_private and authorization is None):
            self._refuse(404 if authorization else 401, "RepoNotFound", "Repository not found")
            return None
        if is_content and repository.is_gated and not token.endswith("accepted"):
            self._refuse(403 if authorization else 401, "GatedRepo", f"Access to model {name} is restricted.")
            return None
        commit = revision if revision in repository.commits else repository.references.get(revision)
        if commit is None:
            self._refuse(404, "RevisionNotFound", f"Invalid rev id: {revision}")
            return None
        return repository, commit

    def _fails(self, key: str) -> bool:
        """Take the next fault of a file; whether it is an answer in itself."""
        self.fault = self.server_hub.take_fault(key) if self.command == "GET" else None
        if self.fault is None or self.fault.status is None:
            return False
        self._send(self.fault.status, b"{}", self.fault.headers)
        return True

    def _refuse(self, status: int, code: str, message: str, headers: Mapping[str, str] | None = None) -> None:
        names = {"X-Error-Code": code} if code else {}
        self._send(
            status, json.dumps({"error": message}).encode(), {**names, "X-Error-Message": message, **(headers or {})}
        )

    def _send(self, status: int, body: bytes, headers: Mapping[str, str], fault: Fault | None = None) -> None:
        cut = None if fault is None else fault.cut_after
        part = body if cut is None else body[:cut]
        sent_bytes = 0 if self.command == "HEAD" else len(part)
        wanted, authorization = self.headers.get("Range"), self.headers.get("Authorization")
        # Before the client can know of it, so that a test that counts requests misses none.
        self.server_hub.record(Asked(self.command, self.path, wanted, authorization, status, sent_bytes))
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "HEAD":
            return
        self.wfile.write(part)
        self.wfile.flush()
        if fault is not None and fault.hold:
            self.server_hub.holding.set()
            self.server_hub.closing.wait(60)
        if len(part) < len(body):
            self.close_connection = True


def _blob_id(content: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()


def _lfs(name: str, content: bytes) -> dict[str, Any]:
    if not name.endswith(LFS_SUFFIXES):
        return {}
    digest = hashlib.sha256(content).hexdigest()
    return {"lfs": {"oid": digest, "sha256": digest, "size": len(content), "pointerSize": 130}}
