"""Runs a server until a signal: listens at once, loads the model beside, drains before it ends."""

from __future__ import annotations

import asyncio
import logging
import signal
import threading
from collections.abc import Callable
from types import FrameType

import uvicorn

from gemwright.engine.async_engine import AsyncEngine
from gemwright.server.app import make_app
from gemwright.server.logs import log_answers, set_up_logs
from gemwright.server.service import Service
from gemwright.server.settings import ServerSettings

LOG = logging.getLogger("gemwright.server")


class DrainingServer(uvicorn.Server):
    """Takes no more requests from the first signal on, and lets those that run end; a second signal ends at once."""

    def __init__(self, config: uvicorn.Config, service: Service) -> None:
        super().__init__(config)
        self.service = service

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Begin to drain."""
        if self.service.state == "ready":
            self.service.state = "draining"
        if sig == signal.SIGTERM and not self.should_exit:
            LOG.info("draining", extra={"facts": {"running": len(self.service.live)}})
        super().handle_exit(sig, frame)


def serve(
    settings: ServerSettings,
    model: str,
    load: Callable[[], AsyncEngine],
    on_ready: Callable[[AsyncEngine, str], None],
) -> int:
    """Serve a model until SIGINT or SIGTERM and return the exit code.

    `load` makes the engine in a thread of its own, so that /health can answer 503 meanwhile; `on_ready` is told of
    the engine and of the address. Raises what `load` raises, after the server has ended.
    """
    set_up_logs()
    service = Service(settings, model)
    log_answers(service)
    config = uvicorn.Config(
        make_app(service),
        host=settings.host,
        port=settings.port,
        log_config=None,
        access_log=False,
        lifespan="off",
        ssl_keyfile=None if settings.ssl_keyfile is None else str(settings.ssl_keyfile),
        ssl_certfile=None if settings.ssl_certfile is None else str(settings.ssl_certfile),
        timeout_graceful_shutdown=int(settings.drain_timeout_s),
        server_header=False,
    )
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
        on_ready(engine, _address(settings, server))

    loader = threading.Thread(target=load_and_announce, name="gemwright-loader", daemon=True)
    loader.start()
    server.run()
    found = service.loaded_engine
    if found is not None:
        asyncio.run(found.stop())
    if failures:
        raise failures[0]
    return 0 if server.started else 1


def _address(settings: ServerSettings, server: uvicorn.Server) -> str:
    """Return where it listens; port 0 is whatever the system gave."""
    scheme = "http" if settings.ssl_certfile is None else "https"
    port = settings.port
    for listener in server.servers:
        for socket in listener.sockets:
            port = socket.getsockname()[1]
    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    return f"{scheme}://{host}:{port}"
