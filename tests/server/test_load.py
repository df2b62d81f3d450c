"""Two hundred clients at once, some slow, some gone: nobody gets another's answer, and nothing is left of them.

Field case 121, and 122 over HTTP.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import random
import re
import socket
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from gemwright import LLM
from gemwright.memory.machine import process_bytes
from gemwright.server.settings import ServerSettings
from gemwright.testing.scripted import scripted_llm
from tests.operation import CHAT, MESSAGES, OLLAMA, asked, samples, until, write_folder
from tests.serving import Served, serving

NUM_CLIENTS = 200
KINDS = ("reads", "reads slowly", "vanishes", "vanishes unread", "waits for the whole", "vanishes from the whole")


def own_answer(prompt: str, answer_index: int) -> str:
    """Something that only the client of this number may get."""
    found = re.findall(r"client (\d+)", prompt)
    return " ".join(f"for {found[-1]}" for _ in range(12)) if found else "hello"


def expected(number: int) -> str:
    return own_answer(f"client {number}", 0)


@pytest.fixture(scope="module")
def llm(tmp_path_factory: pytest.TempPathFactory) -> LLM:
    folder = write_folder(tmp_path_factory.mktemp("load"))
    options: dict[str, Any] = {"threads": 1, "max_model_len": 1024, "max_num_seqs": 32, "chat_template": "gemma4"}
    return scripted_llm(folder, own_answer, **options)


@pytest.fixture(scope="module")
def served(llm: LLM) -> Iterator[Served]:
    with serving(llm, ServerSettings(max_num_queued_requests=NUM_CLIENTS)) as server:
        yield server


def request(server: Served, content: dict[str, Any], path: str = CHAT) -> bytes:
    """A request as it goes over the wire."""
    body = json.dumps(content).encode()
    host = server.url.removeprefix("http://")
    head = f"POST {path} HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\ncontent-length: {len(body)}\r\n\r\n"
    return head.encode() + body


def streamed_text(answer: bytes) -> str:
    assert answer.startswith(b"HTTP/1.1 200 ")
    events = [json.loads(found) for found in re.findall(rb"^data: (\{.*\})\r?$", answer, re.MULTILINE)]
    assert b"data: [DONE]" in answer
    return "".join(event["choices"][0]["delta"].get("content") or "" for event in events if event["choices"])


async def visit(server: Served, number: int, kind: str, chance: random.Random) -> None:
    """Be one client. Those that stay check what they got."""
    place = server.url.removeprefix("http://").partition(":")
    reader, writer = await asyncio.open_connection(place[0], int(place[2]), limit=1024)
    try:
        writer.write(request(server, asked(CHAT, f"client {number}", stream="whole" not in kind)))
        await writer.drain()
        if kind == "reads":
            assert streamed_text(await reader.read()) == expected(number)
        elif kind == "reads slowly":
            answer = b""
            while part := await reader.read(400):
                answer += part
                await asyncio.sleep(0.001)
            assert streamed_text(answer) == expected(number)
        elif kind == "waits for the whole":
            head, _, body = (await reader.read()).partition(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 200 ")
            assert json.loads(body)["choices"][0]["message"]["content"] == expected(number)
        elif kind == "vanishes":
            await reader.readexactly(chance.randrange(1, 3000))
        else:
            await asyncio.sleep(chance.random() * 0.3)
    finally:
        writer.transport.abort()  # a reset, not a farewell
        with contextlib.suppress(OSError):
            await writer.wait_closed()


def crowd(server: Served, seed: int) -> Counter[str]:
    """Let all clients come at once and go; returns how many there were of each kind."""
    chance = random.Random(seed)
    kinds = [chance.choice(KINDS) for _ in range(NUM_CLIENTS)]

    async def main() -> None:
        visits = (visit(server, number, kind, chance) for number, kind in enumerate(kinds))
        async with asyncio.timeout(120):
            await asyncio.gather(*visits)

    asyncio.run(main())
    until(lambda: not server.service.live and not server.engine._live)
    until(lambda: not server.engine.llm.core.scheduler.has_work)
    return Counter(kinds)


def server_loop(server: Served) -> asyncio.AbstractEventLoop:
    """The server's own loop, as a request that is being answered knows it."""
    found: list[asyncio.AbstractEventLoop] = []
    service = server.service

    def watch(*_: Any) -> None:
        found.append(asyncio.get_running_loop())

    service.watchers.append(watch)
    httpx2.post(server.url + CHAT, json=asked(CHAT))
    service.watchers.remove(watch)
    return found[0]


def open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def test_two_hundred_clients_leave_nothing_behind(served: Served) -> None:
    loop, core = server_loop(served), served.engine.llm.core
    crowd(served, seed=0)  # threads of the pool and caches of libraries come with the first crowd, and stay
    gc.collect()
    until(lambda: len(asyncio.all_tasks(loop)) <= 2)
    before = (len(asyncio.all_tasks(loop)), threading.active_count(), open_files())
    bytes_before = process_bytes()
    with httpx2.Client(base_url=served.url) as client:
        counted = samples(client)
    num_staying = 0
    for seed in (1, 2):
        kinds = crowd(served, seed)
        assert len(kinds) == len(KINDS)
        assert min(kinds.values()) > 10
        num_staying += sum(kinds[kind] for kind in ("reads", "reads slowly", "waits for the whole"))
    until(lambda: len(asyncio.all_tasks(loop)) <= before[0])
    gc.collect()
    until(lambda: open_files() <= before[2])
    assert threading.active_count() <= before[1]
    assert process_bytes() - bytes_before < 20 << 20
    core.blocks.check()
    assert core.blocks.request_ids == ()
    assert not core._answers
    assert not served.engine._ticket_of
    with httpx2.Client(base_url=served.url) as client:
        after = samples(client)
    assert after["vllm:num_requests_running"] == after["vllm:num_requests_waiting"] == 0
    assert after["vllm:kv_cache_usage_perc"] == 0
    ended = {
        name[1]: value - counted.get(name, 0)
        for name, value in after.items()
        if name[0] == "vllm:request_success_total"
    }
    assert ended.keys() <= {"stop", "abort"}
    assert num_staying <= ended["stop"] <= sum(ended.values()) <= 2 * NUM_CLIENTS
    assert core.counters.max_running == 32


@pytest.mark.parametrize("path", [CHAT, MESSAGES, OLLAMA])
@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_goes_ends_its_request_within_two_steps(
    served: Served, monkeypatch: pytest.MonkeyPatch, path: str, stream: bool
) -> None:
    """Steps are let through one by one, so that it is they that are counted."""
    core, gate = served.engine.llm.core, threading.Semaphore(0)
    step = core.step

    def step_when_let() -> Any:
        gate.acquire()
        return step()

    monkeypatch.setattr(core, "step", step_when_let)
    place = served.url.removeprefix("http://").partition(":")
    with socket.create_connection((place[0], int(place[2]))) as client:
        client.sendall(request(served, asked(path, "client 7", stream=stream), path))
        until(lambda: served.engine._ticket_of)
        begun = core.counters.completion_tokens
        for _ in range(4):
            gate.release()
        until(lambda: core.counters.completion_tokens > begun)
        if stream:
            assert client.recv(100).startswith(b"HTTP/1.1 200 ")
    until(lambda: not served.service.live)  # the server has seen it
    num_steps = core.counters.num_steps
    gate.release()
    gate.release()
    until(lambda: not served.engine._ticket_of and not core.scheduler.has_work)
    assert core.counters.num_steps - num_steps <= 2
    assert core.blocks.request_ids == ()
    assert core.blocks.share_held == 0
    monkeypatch.undo()
    # Whatever is left of the gate lets the next one through.
    answer = httpx2.post(served.url + CHAT, json=asked(CHAT, "client 8")).json()
    assert answer["choices"][0]["message"]["content"] == expected(8)


def test_a_client_that_never_reads_holds_up_nobody(served: Served) -> None:
    """Its answer is computed and waits in its socket; when it goes, all of it goes."""
    place = served.url.removeprefix("http://").partition(":")
    with socket.socket() as stuck:
        stuck.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1024)
        stuck.connect((place[0], int(place[2])))
        stuck.sendall(request(served, asked(CHAT, "client 3", stream=True)))
        until(lambda: served.engine.num_running)
        for number in range(3):
            answer = httpx2.post(served.url + CHAT, json=asked(CHAT, f"client {number}")).json()
            assert answer["choices"][0]["message"]["content"] == expected(number)
        until(lambda: not served.engine.llm.core.scheduler.has_work)
    until(lambda: not served.service.live)
    assert served.engine.llm.core.blocks.request_ids == ()


def test_folders_of_the_process_can_be_counted() -> None:
    """Without /proc the first test would see nothing."""
    assert Path("/proc/self/fd").is_dir()
    assert open_files() > 2
