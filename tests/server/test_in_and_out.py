"""Requests on their way in and out: ids that come twice, a signal that comes meanwhile, a client that does not read."""

from __future__ import annotations

import asyncio
import json
import signal
import socket
from collections.abc import AsyncGenerator, Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
import uvicorn
from starlette.types import Message, Receive, Scope, Send

from gemwright import LLM
from gemwright.engine.async_engine import AsyncEngine
from gemwright.engine.chat_request import ChatRequest
from gemwright.server.app import make_app
from gemwright.server.door import Door
from gemwright.server.serve import DrainingServer, limit_stalls
from gemwright.server.service import Service
from gemwright.server.settings import ServerSettings
from gemwright.server.streaming import Stream
from tests.operation import (
    CHAT,
    MESSAGES,
    OLLAMA,
    asked,
    error_of,
    quick_model,
    samples,
    slow_model,
    until,
    write_folder,
)
from tests.serving import serving


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_folder(tmp_path_factory.mktemp("in_and_out"))


@pytest.fixture
def llm(folder: Path) -> LLM:
    return quick_model(folder)


# Ids.


def test_two_requests_of_one_id_are_two(folder: Path) -> None:
    """An id is its client's own word, and clients try again with the same one."""
    fields = {**asked(CHAT, "long"), "stream": True, "request_id": "mine"}
    with (
        serving(slow_model(folder)) as server,
        httpx2.Client(base_url=server.url, headers={"x-request-id": "mine"}, timeout=60) as client,
    ):
        with client.stream("POST", CHAT, json=fields) as first:
            lines = first.iter_lines()
            next(lines)
            with client.stream("POST", CHAT, json=fields):
                until(lambda: len(server.service.live) == 2)
                assert client.get("/load").json()["server_load"] == 2
                assert [entry["has_begun"] for entry in client.get("/v1/ledger").json()["live"]] == [True, False]
            # The second one went away, and the first is still here.
            until(lambda: len(server.service.live) == 1)
            assert client.get("/load").json()["server_load"] == 1
            assert client.get("/v1/ledger").json()["live"][0]["has_begun"]
            while not next(lines).startswith("data: "):
                pass
        until(lambda: not server.service.live)
        assert client.get("/v1/ledger").json()["live"] == []


# A signal while a request is on its way in.


@pytest.fixture
def preparing(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> Iterator[DrainingServer]:
    """A server, not listening, that gets SIGTERM while the next prompt is rendered."""
    service = Service(ServerSettings(), "gemma")
    engine = AsyncEngine(llm)
    service.set_engine(engine)
    server = DrainingServer(uvicorn.Config(make_app(service), lifespan="off", log_config=None), service)
    prepare = llm.prepare_chat

    def prepare_and_get_a_signal(chat: ChatRequest, *rest: Any) -> Any:
        found = prepare(chat, *rest)
        server.handle_exit(signal.SIGTERM, None)
        return found

    monkeypatch.setattr(llm, "prepare_chat", prepare_and_get_a_signal)
    yield server
    asyncio.run(engine.stop())


@pytest.mark.parametrize("path", [CHAT, MESSAGES, OLLAMA])
@pytest.mark.parametrize("streams", [True, False])
def test_a_request_that_is_prepared_when_a_signal_comes_is_told_by_its_status(
    preparing: DrainingServer, path: str, streams: bool
) -> None:
    async def main() -> httpx2.Response:
        transport = httpx2.ASGITransport(make_app(preparing.service))
        async with httpx2.AsyncClient(transport=transport, base_url="http://test") as client:
            return await client.post(path, json={**asked(path), "stream": streams})

    found = asyncio.run(main())
    assert (found.status_code, found.headers["retry-after"]) == (503, "5")
    assert found.headers["content-type"] == "application/json"
    assert "going down" in error_of(path, found)
    assert not preparing.service.live


def test_a_request_that_was_let_in_before_the_signal_is_answered(llm: LLM) -> None:
    async def main() -> None:
        service = Service(ServerSettings(), "gemma")
        engine = AsyncEngine(llm)
        service.set_engine(engine)
        let_in = await service.ask_chat(ChatRequest(messages=asked(CHAT)["messages"]), {})
        service.state = "draining"
        answering = await service.answer(let_in, "mine")
        assert answering.completion is not None
        assert answering.completion.text == "Hello there."
        await engine.stop()

    asyncio.run(main())


# A client that does not read.


def test_an_answer_is_broken_off_where_its_client_does_not_read() -> None:
    """The door alone, before a connection that takes the head of an answer and nothing after it."""
    closed: list[str] = []
    sent: list[Message] = []

    async def chunks() -> AsyncGenerator[bytes, None]:
        try:
            while True:
                yield b"x"
        finally:
            closed.append("answer")

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await Stream(chunks(), keep_alive_s=60)(scope, receive, send)

    async def receive() -> Message:
        return await asyncio.Future()

    async def send(message: Message) -> None:
        if message["type"] == "http.response.body":
            await asyncio.Future()
        sent.append(message)

    scope: dict[str, Any] = {"type": "http", "method": "POST", "path": CHAT, "headers": []}
    asyncio.run(Door(app, ServerSettings(request_timeout_s=0.05))(scope, receive, send))
    assert [message["type"] for message in sent] == ["http.response.start"]
    assert closed == ["answer"]


def test_past_its_time_an_answer_still_gets_out_where_the_client_reads() -> None:
    """So that the error that ends it does."""
    sent: list[bytes] = []

    async def chunks() -> AsyncGenerator[bytes, None]:
        yield b"begun"
        await asyncio.sleep(0.05)
        yield b"too long"

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await Stream(chunks(), keep_alive_s=60)(scope, receive, send)

    async def receive() -> Message:
        return await asyncio.Future()

    async def send(message: Message) -> None:
        sent.append(message.get("body", b"head"))

    scope: dict[str, Any] = {"type": "http", "method": "POST", "path": CHAT, "headers": []}
    asyncio.run(Door(app, ServerSettings(request_timeout_s=0.001))(scope, receive, send))
    assert sent == [b"head", b"begun", b"too long", b""]


def test_a_client_that_stops_reading_holds_nothing_for_longer_than_a_request_may_last(llm: LLM) -> None:
    body = asked(CHAT, "long", stream=True, max_tokens=3000, logprobs=True, top_logprobs=250)
    content = json.dumps(body).encode()
    head = (
        f"POST {CHAT} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {len(content)}\r\n\r\n"
    )
    with (
        serving(llm, ServerSettings(request_timeout_s=2)) as server,
        socket.socket() as client,
        httpx2.Client(base_url=server.url, timeout=60) as other,
    ):
        # Tens of megabytes are to come, far more than lies between the two.
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.connect(("127.0.0.1", int(server.url.rpartition(":")[2])))
        client.sendall(head.encode() + content)
        until(lambda: server.engine.num_running == 1)
        until(lambda: not server.service.live and not server.engine.num_running)
        assert llm.core.blocks.request_ids == ()
        # Neither whole nor in time for the server's own error: what was made of it was not taken.
        assert samples(other).get(("vllm:request_success_total", "length"), 0) == 0
        assert other.post(CHAT, json=asked(CHAT)).status_code == 200


@pytest.mark.skipif(not hasattr(socket, "TCP_USER_TIMEOUT"), reason="the system has no such limit")
@pytest.mark.parametrize(("seconds", "milliseconds"), [(600.0, 600_000), (0.0001, 1), (float("inf"), (1 << 31) - 1)])
def test_the_system_is_told_to_end_connections_that_stall(seconds: float, milliseconds: int) -> None:
    with socket.socket() as listener, socket.socket() as client:
        listener.bind(("127.0.0.1", 0))
        limit_stalls(listener, seconds)
        listener.listen()
        client.connect(listener.getsockname())
        accepted, _ = listener.accept()
        with accepted:
            assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == milliseconds


# An engine whose books do not add up.


def test_who_waits_for_lost_blocks_gets_an_error_and_the_server_says_it_is_ill(llm: LLM) -> None:
    with serving(llm) as server, httpx2.Client(base_url=server.url, timeout=60) as client:
        pool = llm.core.blocks.pools[-1]
        pool.take(pool.num_free)
        found = client.post(CHAT, json=asked(CHAT))
        assert found.status_code == 500
        assert "books of the K/V pool" in error_of(CHAT, found)
        assert client.get("/health").status_code == 503
        assert "books of the K/V pool" in client.get("/health").json()["problem"]
