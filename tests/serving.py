"""A server for tests: in a thread of this process, with a scripted engine or a real one, on a port of its own."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass

import uvicorn

from gemwright import LLM
from gemwright.engine.async_engine import AsyncEngine
from gemwright.server.app import make_app
from gemwright.server.service import Service
from gemwright.server.settings import ServerSettings


@dataclass
class Served:
    """A running server."""

    url: str
    service: Service
    engine: AsyncEngine


@contextlib.contextmanager
def serving(llm: LLM, settings: ServerSettings | None = None, *, model: str = "gemma") -> Iterator[Served]:
    """Serve a loaded model until the block ends; then it drains, and the port is closed."""
    service = Service(settings or ServerSettings(), model)
    engine = AsyncEngine(llm)
    service.set_engine(engine)
    # Named, or asyncio does not switch off Nagle: each answer would wait 40 ms for an acknowledgment.
    listener = socket.socket(proto=socket.IPPROTO_TCP)
    listener.bind(("127.0.0.1", 0))
    config = uvicorn.Config(make_app(service), log_level="warning", lifespan="off", timeout_graceful_shutdown=2)
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
    thread.start()
    deadline = time.monotonic() + 10
    while not server.started:
        assert time.monotonic() < deadline, "the server did not start"
        time.sleep(0.005)
    try:
        yield Served(f"http://127.0.0.1:{listener.getsockname()[1]}", service, engine)
    finally:
        server.should_exit = True
        thread.join(10)
        listener.close()
        with engine._changed:
            engine._is_stopping = True
            engine._changed.notify()
        engine._worker.join(10)
