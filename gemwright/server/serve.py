"""Runs a server until a signal: listens at once, loads the model beside, drains before it ends."""

from __future__ import annotations

import asyncio
import logging
import math
import signal
import socket
import threading
import time
from collections.abc import Callable
from types import FrameType

import uvicorn

from gemwright.engine.async_engine import AsyncEngine
from gemwright.errors import CheckpointError, RequestError
from gemwright.server.app import make_app
from gemwright.server.logs import log_answers, set_up_logs
from gemwright.server.service import Service
from gemwright.server.settings import ServerSettings

LOG = logging.getLogger("gemwright.server")

_BACKLOG = 2048
_MAX_INT = (1 << 31) - 1


class DrainingServer(uvicorn.Server):
    """From the first signal on it refuses requests and lets those that run end; a second signal ends it at once.

    While it drains it still listens, so that a new request is told where it stands instead of finding nobody.
    """

    def __init__(self, config: uvicorn.Config, service: Service) -> None:
        super().__init__(config)
        self.service = service
        self.signal: int | None = None
        """The last signal that came."""
        self._drain_until: float | None = None
        self._has_told = False

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Begin to drain; end at once where nothing is served yet, and at a second signal."""
        # Uvicorn's own would send the signal again at the end, and the process would die of it.
        is_first, self.signal = self.signal is None, sig
        if is_first and self.service.state == "ready":
            self.service.state = "draining"
            self._drain_until = time.monotonic() + self.service.settings.drain_timeout_s
        else:
            self.should_exit = True
            self.force_exit = not is_first

    async def on_tick(self, counter: int) -> bool:
        """Look whether it is time to end; called ten times a second."""
        if self._drain_until is not None and not self.should_exit:
            if not self._has_told:  # not in the handler, which may interrupt another line of the log
                self._has_told = True
                LOG.info("draining", extra={"facts": {"running": len(self.service.live)}})
            left_s = self._drain_until - time.monotonic()
            if not self.service.live or left_s <= 0:
                # What is left for clients to take what was written for them.
                self.config.timeout_graceful_shutdown = max(1, math.ceil(left_s))
                self.should_exit = True
        return await super().on_tick(counter)


def serve(
    settings: ServerSettings,
    model: str,
    load: Callable[[], AsyncEngine],
    on_ready: Callable[[AsyncEngine, str], None],
) -> int:
    """Serve a model until SIGTERM and return the exit code; SIGINT ends it alike, as KeyboardInterrupt.

    `load` makes the engine in a thread of its own, so that /health can answer 503 meanwhile; `on_ready` is told of
    the engine and of the address. Raises RequestError for an address that cannot be listened on and CheckpointError
    for a certificate that is none, both before anything is loaded; what `load` raises, after the server has ended.
    """
    service = Service(settings, model)
    config = _config(settings, service)
    listeners = listen(settings.host, settings.port)
    for listener in listeners:
        limit_stalls(listener, settings.request_timeout_s)
    set_up_logs()
    log_answers(service)
    address = _address(settings, listeners[0])
    server = DrainingServer(config, service)
    failures: list[BaseException] = []

    def load_and_announce() -> None:
        try:
            engine = load()
        except BaseException as error:
            failures.append(error)
            service.set_failure(error)
            server.should_exit = True
            return
        service.set_engine(engine)
        on_ready(engine, address)

    loader = threading.Thread(target=load_and_announce, name="gemwright-loader", daemon=True)
    loader.start()
    try:
        server.run(sockets=listeners)
    finally:
        for listener in listeners:
            listener.close()
    found = service.loaded_engine
    if found is not None:
        asyncio.run(found.stop())
    if failures:
        raise failures[0]
    if server.signal == signal.SIGINT:
        raise KeyboardInterrupt
    return 0 if server.started else 1


def listen(host: str, port: int) -> list[socket.socket]:
    """Return sockets that listen on every address of a host, all on one port; port 0 is any that is free.

    Raises RequestError naming the address and what the system says.
    """
    listeners: list[socket.socket] = []
    try:
        found = socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        for family, kind, protocol, _, place in dict.fromkeys(found):
            listener = socket.socket(family, kind, protocol)
            listeners.append(listener)
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            chosen = port or (listeners[0].getsockname()[1] if len(listeners) > 1 else 0)
            try:
                listener.bind((place[0], chosen, *place[2:]))
            except OSError:
                # A name may stand for ::1 as well on a machine that has no IPv6.
                if len(listeners) == 1 or family != socket.AF_INET6:
                    raise
                listeners.pop().close()
                continue
            listener.listen(_BACKLOG)
    except OSError as error:
        for listener in listeners:
            listener.close()
        raise RequestError(
            "the server cannot listen there",
            value=f"{host}:{port}: {error.strerror or error}",
            remedy="change --host or --port, or end what listens there already",
        ) from error
    return listeners


def limit_stalls(listener: socket.socket, seconds: float) -> None:
    """Have the system end a connection whose client has not taken what was sent for so long, where it can (Linux).

    The door breaks off an answer that is not read; this frees the connection, which would else wait to send its rest.
    """
    if hasattr(socket, "TCP_USER_TIMEOUT"):
        milliseconds = max(1, round(min(seconds * 1000, _MAX_INT)))
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, milliseconds)


def _config(settings: ServerSettings, service: Service) -> uvicorn.Config:
    config = uvicorn.Config(
        make_app(service),
        host=settings.host,
        port=settings.port,
        log_config=None,
        access_log=False,
        lifespan="off",
        ssl_keyfile=None if settings.ssl_keyfile is None else str(settings.ssl_keyfile),
        ssl_certfile=None if settings.ssl_certfile is None else str(settings.ssl_certfile),
        # A key that wants a password is refused; without this the start would stop and ask for it at the terminal.
        ssl_keyfile_password="none",
        timeout_graceful_shutdown=1,
        server_header=False,
    )
    try:
        config.load()
    except OSError as error:  # ssl.SSLError is one
        raise CheckpointError(
            "TLS cannot be set up",
            value=f"{settings.ssl_keyfile}, {settings.ssl_certfile}: {error.strerror or error}",
            remedy="give a certificate and its key without a password, both as PEM",
        ) from error
    return config


def _address(settings: ServerSettings, listener: socket.socket) -> str:
    """Return where it listens; port 0 is whatever the system gave."""
    scheme = "http" if settings.ssl_certfile is None else "https"
    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    return f"{scheme}://{host}:{listener.getsockname()[1]}"
