"""A server's life: health while it loads, serves and drains, its metrics, and how signals end it."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import httpx2
import pytest
import uvicorn

from gemwright import LLM
from gemwright.engine.async_engine import AsyncEngine
from gemwright.errors import CapacityError
from gemwright.server.app import make_app
from gemwright.server.serve import DrainingServer
from gemwright.server.service import Service
from gemwright.server.settings import ServerSettings
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
    return write_folder(tmp_path_factory.mktemp("operation"))


@pytest.fixture(scope="module")
def llm(folder: Path) -> LLM:
    return quick_model(folder)


@pytest.fixture(scope="module")
def slow_llm(folder: Path) -> LLM:
    return slow_model(folder)


# Health.


@contextlib.asynccontextmanager
async def connected(service: Service) -> AsyncIterator[httpx2.AsyncClient]:
    transport = httpx2.ASGITransport(make_app(service))
    async with httpx2.AsyncClient(transport=transport, base_url="http://test") as client:
        yield client


def test_health_follows_the_life_of_a_model(llm: LLM) -> None:
    async def main() -> None:
        service = Service(ServerSettings(), "gemma")
        async with connected(service) as client:

            async def states() -> set[tuple[int, str]]:
                found = [await client.get(path) for path in ("/health", "/ready", "/ping")]
                return {(each.status_code, each.json()["state"] if each.content else "") for each in found}

            assert await states() == {(503, "loading")}
            for path in (CHAT, MESSAGES, OLLAMA):
                early = await client.post(path, json=asked(path))
                assert (early.status_code, early.headers["retry-after"]) == (503, "5")
                assert "being loaded" in error_of(path, early)
            assert (await client.get("/metrics")).status_code == 200
            engine = AsyncEngine(llm)
            service.set_engine(engine)
            assert await states() == {(200, "")}
            assert (await client.post(CHAT, json=asked(CHAT))).status_code == 200
            await service.drain()
            assert await states() == {(503, "draining")}
            assert (await client.post(CHAT, json=asked(CHAT))).status_code == 503
            await engine.stop()

    asyncio.run(main())


def test_health_says_why_no_model_came() -> None:
    async def main() -> None:
        service = Service(ServerSettings(), "gemma")
        service.set_failure(CapacityError("the weights do not fit"))
        async with connected(service) as client:
            found = await client.get("/health")
            assert (found.status_code, found.json()) == (503, {"state": "failed", "problem": "the weights do not fit"})
            assert "could not be loaded" in (await client.post(CHAT, json=asked(CHAT))).text

    asyncio.run(main())


# Metrics.


VLLM_NAMES = """num_requests_running num_requests_waiting kv_cache_usage_perc prompt_tokens_total
generation_tokens_total num_preemptions_total prefix_cache_queries_total prefix_cache_hits_total
time_to_first_token_seconds_count inter_token_latency_seconds_count e2e_request_latency_seconds_count
request_queue_time_seconds_count request_inference_time_seconds_count request_prefill_time_seconds_count
request_decode_time_seconds_count request_prompt_tokens_sum request_generation_tokens_sum
request_params_n_sum request_params_max_tokens_sum request_time_per_output_token_seconds_count cache_config_info"""


def test_metrics_move_by_what_was_done_under_the_names_of_vllm(llm: LLM) -> None:
    with serving(llm) as server, httpx2.Client(base_url=server.url, timeout=60) as client:
        client.post(CHAT, json=asked(CHAT, max_tokens=100))
        before = samples(client)
        for name in VLLM_NAMES.split():
            assert f"vllm:{name}" in before, name
        whole = client.post(CHAT, json=asked(CHAT, max_tokens=100)).json()["usage"]
        client.post(CHAT, json=asked(CHAT, max_tokens=5, stream=True)).read()
        with client.stream("POST", CHAT, json=asked(CHAT, "long", stream=True)) as gone:
            next(gone.iter_lines())
        until(lambda: not server.service.live and not server.engine.num_running)
        after = samples(client)

    def moved(name: str, reason: str | None = None) -> float:
        key = (f"vllm:{name}", reason) if reason else f"vllm:{name}"
        return after.get(key, 0) - before.get(key, 0)

    assert moved("request_success_total", "stop") == moved("request_success_total", "length") == 1
    assert moved("request_success_total", "abort") == 1
    assert moved("request_success_total", "error") == 0
    num_prompt = whole["prompt_tokens"]
    assert moved("prompt_tokens_total") == moved("prefix_cache_queries_total") == 3 * num_prompt - 1
    assert moved("prefix_cache_hits_total") >= 2 * whole["prompt_tokens_details"]["cached_tokens"] > 0
    assert moved("generation_tokens_total") >= whole["completion_tokens"] + 5 + 1
    # What is counted at the end of an answer does not know of the one that was left.
    assert moved("request_generation_tokens_sum") == whole["completion_tokens"] + 5
    assert moved("request_prompt_tokens_sum") == 2 * num_prompt
    assert moved("request_params_max_tokens_sum") == 105
    assert moved("e2e_request_latency_seconds_count") == moved("request_params_n_sum") == 2
    assert moved("time_to_first_token_seconds_count") == 3
    assert after["vllm:num_requests_running"] == after["vllm:num_requests_waiting"] == 0
    assert after["vllm:kv_cache_usage_perc"] == 0


def test_the_wait_for_a_first_step_is_told_apart_from_the_steps(slow_llm: LLM) -> None:
    """5 ms a step and one request at a time: who comes second waits for all steps of the first."""
    with serving(slow_llm) as server, httpx2.Client(base_url=server.url, timeout=60) as client:
        with client.stream("POST", CHAT, json=asked(CHAT, "long", max_tokens=100, stream=True)) as first:
            until(lambda: server.engine.num_running)
            client.post(CHAT, json=asked(CHAT, max_tokens=1))
            first.read()
        until(lambda: samples(client)["vllm:request_queue_time_seconds_count"] == 2)
        found = samples(client)
    parts = [found[f"vllm:request_{part}_time_seconds_sum"] for part in ("queue", "prefill", "decode")]
    # A sleep may last longer than asked, never shorter: two prompts, and 99 later tokens.
    assert parts[0] > 0
    assert parts[1] >= 2 * 0.005
    assert parts[2] >= 99 * 0.005 - 0.001
    assert found["vllm:request_inference_time_seconds_sum"] >= parts[1] + parts[2]
    assert sum(parts) <= found["vllm:e2e_request_latency_seconds_sum"]


def test_names_of_metrics_begin_as_the_settings_say(llm: LLM) -> None:
    with serving(llm, ServerSettings(metrics_prefix="gemwright_")) as server:
        text = httpx2.get(f"{server.url}/metrics").text
    assert "gemwright_num_requests_running" in text
    assert "vllm:" not in text


# Draining.


@contextlib.contextmanager
def draining_server(llm: LLM, settings: ServerSettings) -> Iterator[tuple[DrainingServer, str, threading.Thread]]:
    service = Service(settings, "gemma")
    engine = AsyncEngine(llm)
    service.set_engine(engine)
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        server = DrainingServer(uvicorn.Config(make_app(service), log_level="critical", lifespan="off"), service)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
        thread.start()
        until(lambda: server.started)
        yield server, url, thread
        thread.join(20)
    asyncio.run(engine.stop())
    assert not thread.is_alive()


def test_a_signal_lets_what_runs_end_and_refuses_what_is_new(slow_llm: LLM) -> None:
    with draining_server(slow_llm, ServerSettings()) as (server, url, thread), httpx2.Client(timeout=60) as client:
        with client.stream("POST", url + CHAT, json=asked(CHAT, "long", max_tokens=200, stream=True)) as running:
            lines = running.iter_lines()
            next(lines)
            server.handle_exit(signal.SIGTERM, None)
            refused = client.post(url + CHAT, json=asked(CHAT))
            assert (refused.status_code, refused.headers["retry-after"]) == (503, "5")
            rest = [line for line in lines if line]
        assert rest[-1] == "data: [DONE]"
        assert sum('"content":"x' in line for line in rest) >= 198
        thread.join(20)
        assert not server.force_exit


def test_a_drain_does_not_wait_longer_than_it_may(slow_llm: LLM) -> None:
    with (
        draining_server(slow_llm, ServerSettings(drain_timeout_s=0.1)) as (server, url, thread),
        httpx2.Client(timeout=60) as client,
        client.stream("POST", url + CHAT, json=asked(CHAT, "long", stream=True)) as running,
    ):
        lines = running.iter_lines()
        next(lines)
        server.handle_exit(signal.SIGTERM, None)
        with contextlib.suppress(httpx2.HTTPError):  # it is broken off
            assert "data: [DONE]" not in list(lines)
        thread.join(20)
        assert not thread.is_alive()
    assert slow_llm.core.blocks.request_ids == ()


def test_a_second_signal_ends_at_once(slow_llm: LLM) -> None:
    with (
        draining_server(slow_llm, ServerSettings(drain_timeout_s=600)) as (server, url, thread),
        httpx2.Client(timeout=60) as client,
        client.stream("POST", url + CHAT, json=asked(CHAT, "long", stream=True)) as running,
    ):
        next(running.iter_lines())
        server.handle_exit(signal.SIGTERM, None)
        server.handle_exit(signal.SIGTERM, None)
        thread.join(20)
        assert not thread.is_alive()
