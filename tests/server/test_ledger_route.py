"""GET /v1/ledger on a live server: plan beside measurement, blocks, requests as counts, and who may ask."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from gemwright import LLM, SamplingParams
from gemwright.engine.async_engine import AsyncEngine
from gemwright.errors import GemwrightError
from gemwright.server.app import make_app
from gemwright.server.ledger import num_more_users, read_ledger
from gemwright.server.service import Service
from gemwright.server.settings import ServerSettings
from gemwright.testing import write_tiny_checkpoint
from gemwright.testing.scripted import answers, scripted_llm
from tests.serving import Served, serving

SECRET = "the launch code is 0000"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("ledger")
    return str(write_tiny_checkpoint("gemma4-e", path, overrides={"max_position_embeddings": 1024}))


@pytest.fixture(scope="module")
def served(folder: str) -> Iterator[Served]:
    """A real engine, so that what is in use is what a step touched."""
    llm = LLM(folder, threads=1, max_model_len=256, max_num_seqs=4, block_size=16)
    with serving(llm, ServerSettings(api_keys=("key",), planned_runtime_bytes=200 << 20)) as server:
        yield server


def get(served: Served, key: str | None = "key") -> httpx.Response:
    headers = {} if key is None else {"authorization": f"Bearer {key}"}
    return httpx.get(f"{served.url}/v1/ledger", headers=headers)


def wait_until(is_true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not is_true():
        assert time.monotonic() < deadline, "it never came about"
        time.sleep(0.005)


def test_lines_are_those_of_the_plan_and_allocated_as_planned(served: Served) -> None:
    content = get(served).json()
    started = served.engine.llm.engine
    assert [line["name"] for line in content["lines"]] == [line.name for line in started.lines]
    for line, planned, measured in zip(content["lines"], started.lines, started.measured, strict=True):
        assert (line["bytes"], line["measured_bytes"]) == (planned.planned_bytes, measured)
        assert (line["formula"], line["source"]) == (planned.formula, planned.source)
        assert (line["place"], line["phase"], line["error_bytes"]) == ("ram", "steady", 0)
        assert 0 <= line["touched_bytes"] <= line["measured_bytes"]
    assert content["total"]["planned_bytes"] == content["total"]["measured_bytes"] == started.planned_bytes
    assert content["process"]["measured_bytes"] > content["total"]["touched_bytes"]
    assert content["process"]["peak_bytes"] > 0
    assert content["process"]["planned_runtime_bytes"] == 200 << 20
    assert (content["model"], content["state"]) == ("gemma", "ready")


def test_idle_engine_has_room_for_as_many_users_as_it_was_planned_for(served: Served) -> None:
    content = get(served).json()
    assert content["requests"] == {"num_running": 0, "num_waiting": 0}
    assert content["live"] == []
    assert content["max_context_tokens"] == 256
    assert content["num_more_users"] == content["max_num_seqs"] == 4
    assert content["kv"]["share_held"] == 0
    assert sum(group["total_bytes"] for group in content["kv"]["groups"]) == served.engine.llm.engine.layout.total_bytes


def test_it_is_behind_the_key(served: Served) -> None:
    assert get(served, None).status_code == 401
    assert get(served, "wrong").status_code == 401
    assert get(served).status_code == 200


@pytest.fixture
def slow(folder: str) -> Iterator[Served]:
    """A server that takes its time over every token."""
    script = answers({}, otherwise=SECRET * 20)
    llm = scripted_llm(
        folder, script, seconds_per_step=0.02, threads=1, max_model_len=512, max_num_seqs=2, chat_template="gemma4"
    )
    with serving(llm) as server:
        yield server


def ask(served: Served, max_tokens: int = 400) -> httpx.Response:
    body: dict[str, Any] = {
        "model": "gemma",
        "messages": [{"role": "user", "content": SECRET}],
        "max_tokens": max_tokens,
        "ignore_eos": True,
    }
    with httpx.stream("POST", f"{served.url}/v1/chat/completions", json={**body, "stream": True}) as response:
        assert response.status_code == 200, response.read()
        for _ in response.iter_lines():
            if stopping.is_set():
                break
    return response


stopping = threading.Event()


def test_running_and_waiting_requests_show_as_counts_and_never_as_text(slow: Served) -> None:
    stopping.clear()
    with ThreadPoolExecutor(3) as pool:
        tasks = [pool.submit(ask, slow) for _ in range(3)]
        wait_until(lambda: get(slow).json()["requests"] == {"num_running": 2, "num_waiting": 1})
        wait_until(lambda: sum(live["completion_tokens"] > 2 for live in get(slow).json()["live"]) == 2)
        response = get(slow)
        stopping.set()
        for task in tasks:
            task.result()
    content = response.json()
    assert len(content["live"]) == 3
    assert sum(live["has_begun"] for live in content["live"]) == 2
    for live in content["live"]:
        assert live.keys() == {"prompt_tokens", "completion_tokens", "max_tokens", "seconds", "has_begun"}
        assert live["prompt_tokens"] > len(SECRET) / 2
        assert live["max_tokens"] == 400
    assert SECRET not in response.text
    assert "launch" not in response.text
    assert content["num_more_users"] == 0
    assert 0 < content["kv"]["share_held"] <= 1
    assert sum(group["num_held_blocks"] for group in content["kv"]["groups"]) > 0
    wait_until(lambda: get(slow).json()["live"] == [])
    assert get(slow).json()["num_more_users"] == 2


def test_a_user_who_fits_is_one_for_whom_nobody_gives_way(folder: str) -> None:
    """The pool is given room for three requests of full length: with one of half of it, two more fit, not three."""
    probe = LLM(folder, threads=1, max_model_len=256, max_num_seqs=1, block_size=16).engine
    each = probe.layout.request_bytes(256, probe.step_tokens)
    llm = LLM(folder, threads=1, max_model_len=256, max_num_seqs=8, block_size=16, kv_cache_memory_bytes=3 * each)
    assert num_more_users(llm, ()) == min(
        group.num_blocks // group.blocks_for_request(256, llm.engine.step_tokens) for group in llm.engine.layout.groups
    )
    most = num_more_users(llm, ())
    assert 0 < most < 8
    ids = list(range(10, 20))
    llm.core.add(ids, SamplingParams(max_tokens=118, ignore_eos=True), 0)
    assert num_more_users(llm, tuple(llm.core.scheduler.waiting)) == most - 1
    others = [llm.core.add([20 + n, *ids], SamplingParams(max_tokens=245, ignore_eos=True), 0) for n in range(most - 1)]
    assert num_more_users(llm, tuple(llm.core.scheduler.waiting)) == 0
    while llm.core.scheduler.has_work:
        llm.core.step()
    assert llm.core.counters.num_preemptions == 0
    assert all(len(request.token_ids) == 245 for (request,) in others)


def test_ledger_is_read_safely_while_the_worker_steps(served: Served) -> None:
    """Read without pause, from another thread, over many short requests that come and go."""

    async def load() -> int:
        engine = served.engine
        ids = [[10 + number, *range(30, 30 + number)] for number in range(6)]
        tasks = [asyncio.create_task(engine.generate(prompt, SamplingParams(max_tokens=12))) for prompt in ids]
        num_read = 0
        while not all(task.done() for task in tasks):
            content = await asyncio.to_thread(read_ledger, engine)
            assert 0 <= content["num_more_users"] <= 4
            assert 0 <= content["kv"]["share_held"] <= 1
            num_read += 1
        await asyncio.gather(*tasks)
        return num_read

    assert asyncio.run(load()) > 0
    assert get(served).json()["requests"] == {"num_running": 0, "num_waiting": 0}


def answer_without_engine(service: Service) -> httpx.Response:
    async def ask() -> httpx.Response:
        transport = httpx.ASGITransport(app=make_app(service))
        async with httpx.AsyncClient(transport=transport, base_url="http://gemwright") as client:
            return await client.get("/v1/ledger")

    return asyncio.run(ask())


def test_503_until_it_is_loaded_and_where_loading_failed() -> None:
    service = Service(ServerSettings(), "gemma")
    response = answer_without_engine(service)
    assert response.status_code == 503
    assert response.headers["retry-after"] == "5"
    assert "being loaded" in response.json()["error"]["message"]
    service.set_failure(RuntimeError("no"))
    response = answer_without_engine(service)
    assert response.status_code == 503
    assert "could not be loaded" in response.json()["error"]["message"]


def run_out() -> None:
    raise MemoryError


def test_an_engine_that_has_failed_still_shows_what_it_holds(folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    llm = LLM(folder, threads=1, max_model_len=64, max_num_seqs=1)
    service = Service(ServerSettings(), "gemma")
    engine = AsyncEngine(llm)
    service.set_engine(engine)
    monkeypatch.setattr(llm.core, "step", run_out)

    async def ask() -> None:
        await engine.generate([5, 6], SamplingParams(max_tokens=2))

    with pytest.raises(GemwrightError, match="memory ran out"):
        asyncio.run(ask())
    assert engine.failure is not None
    response = answer_without_engine(service)
    assert response.status_code == 200
    content = json.loads(response.text)
    assert content["state"] == "failed"
    assert content["total"]["planned_bytes"] == llm.engine.planned_bytes
