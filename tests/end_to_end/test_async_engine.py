"""AsyncEngine: streams beside each other, who goes away, limits, draining, stopping, and an engine that fails."""

from __future__ import annotations

import asyncio
import gc
import logging
from collections.abc import Awaitable, Callable, Iterator
from contextlib import aclosing
from typing import Any

import pytest

import gemwright
from gemwright import AsyncEngine, SamplingParams
from gemwright.engine.async_engine import Piece
from gemwright.errors import CapacityError, GemwrightError, RequestError
from tests.end_to_end.conftest import TinyLLM

PROMPTS = [[2, *((7 * place + 31 * length) % 480 + 20 for place in range(length - 1))] for length in (1, 61, 19, 3)]
SAMPLED = SamplingParams(max_tokens=9, temperature=12.0, seed=5, logprobs=2, ignore_eos=True)
ENDLESS = SamplingParams(max_tokens=10_000, temperature=0, ignore_eos=True)


@pytest.fixture
def engine(tiny_llm: TinyLLM) -> Iterator[AsyncEngine]:
    made = AsyncEngine(tiny_llm("gemma3", max_model_len=4096, kv_cache_memory_bytes=64 << 20, max_num_seqs=8))
    yield made
    asyncio.run(made.stop())
    assert not made._worker.is_alive()


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(60):
        while not condition():
            await asyncio.sleep(0.002)


def is_empty(engine: AsyncEngine) -> bool:
    core = engine.llm.core
    return not core.scheduler.has_work and not engine._live and not engine._ticket_of and not core._answers


def assert_all_blocks_free(engine: AsyncEngine) -> None:
    engine.llm.core.blocks.check()
    assert engine.llm.core.blocks.request_ids == ()


async def first(engine: AsyncEngine, params: SamplingParams = ENDLESS, **options: Any) -> tuple[Any, Piece]:
    stream = engine.stream(PROMPTS[3], params, **options)
    return stream, await anext(stream)


async def collect(engine: AsyncEngine, prompt: list[int], params: SamplingParams) -> list[Piece]:
    return [piece async for piece in engine.stream(prompt, params)]


def test_the_public_name_is_the_engine() -> None:
    assert gemwright.AsyncEngine is AsyncEngine


def test_streams_beside_each_other_give_what_each_gives_alone(engine: AsyncEngine, tiny_llm: TinyLLM) -> None:
    alone = tiny_llm("gemma3", max_num_seqs=1)
    expected = [alone.generate(prompt, SAMPLED)[0] for prompt in PROMPTS]

    async def main() -> list[list[Piece]]:
        return await asyncio.gather(*(collect(engine, prompt, SAMPLED) for prompt in PROMPTS))

    for pieces, wanted in zip(asyncio.run(main()), expected, strict=True):
        assert tuple(token for piece in pieces for token in piece.token_ids) == wanted.token_ids
        assert "".join(piece.text or "" for piece in pieces) == wanted.text
        assert wanted.logprobs is not None
        assert tuple(entry for piece in pieces for entry in piece.logprobs or ()) == wanted.logprobs
        assert [piece.finish_reason for piece in pieces] == [*[None] * (len(pieces) - 1), "length"]
        assert [piece.usage is None for piece in pieces] == [*[True] * (len(pieces) - 1), False]
        assert pieces[-1].completion is not None
        assert pieces[-1].completion.choices == wanted.choices
        assert len(pieces) == 9
    assert engine.counters.max_running == 4
    assert_all_blocks_free(engine)


def test_text_and_several_answers(engine: AsyncEngine) -> None:
    params = SamplingParams(max_tokens=6, temperature=12.0, seed=5, n=3, ignore_eos=True)

    async def main() -> tuple[list[Piece], Any]:
        pieces = [piece async for piece in engine.stream("Wie geht's?", params)]
        return pieces, await engine.generate("Wie geht's?", params)

    pieces, completion = asyncio.run(main())
    for index, choice in enumerate(completion.choices):
        mine = [piece for piece in pieces if piece.answer_index == index]
        assert "".join(piece.text or "" for piece in mine) == choice.text
        assert mine[-1].finish_reason == "length"
    assert [piece.completion is not None for piece in pieces] == [*[False] * (len(pieces) - 1), True]


def test_what_a_stop_string_cuts_is_never_given_out(engine: AsyncEngine) -> None:
    async def main() -> None:
        whole = (await engine.generate(PROMPTS[1], SAMPLED)).text
        assert whole is not None
        stop = whole[3:6]
        params = SamplingParams(max_tokens=9, temperature=12.0, seed=5, stop=(stop,), ignore_eos=True)
        pieces = await collect(engine, PROMPTS[1], params)
        assert "".join(piece.text or "" for piece in pieces) == whole[: whole.index(stop)]
        assert pieces[-1].finish_reason == "stop"

    asyncio.run(main())


async def close(engine: AsyncEngine) -> None:
    stream, _ = await first(engine)
    await stream.aclose()


async def leave_the_loop(engine: AsyncEngine) -> None:
    async for _ in engine.stream(PROMPTS[3], ENDLESS):
        break
    gc.collect()


async def cancel_the_reader(engine: AsyncEngine) -> None:
    task = asyncio.create_task(engine.generate(PROMPTS[3], ENDLESS))
    await until(lambda: engine.num_running)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def time_out(engine: AsyncEngine) -> None:
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.1):
            await engine.generate(PROMPTS[3], ENDLESS)


async def fail_in_the_reader(engine: AsyncEngine) -> None:
    async def read() -> None:
        async with aclosing(engine.stream(PROMPTS[3], ENDLESS)) as stream:
            async for piece in stream:
                assert piece.answer_index / 0

    with pytest.raises(ZeroDivisionError):
        await read()


@pytest.mark.parametrize("go_away", [close, leave_the_loop, cancel_the_reader, time_out, fail_in_the_reader])
def test_a_reader_that_goes_away_ends_its_request_alone(
    engine: AsyncEngine, go_away: Callable[[AsyncEngine], Awaitable[None]]
) -> None:
    async def main() -> None:
        other = asyncio.create_task(engine.generate(PROMPTS[2], SamplingParams(max_tokens=60, temperature=0)))
        await go_away(engine)
        steps = engine.counters.num_steps
        assert (await other).usage.completion_tokens > 0
        await until(lambda: is_empty(engine))
        assert engine.counters.num_steps - steps < 70
        assert_all_blocks_free(engine)

    asyncio.run(main())


def test_an_abort_takes_effect_within_two_steps(engine: AsyncEngine) -> None:
    async def main() -> None:
        stream, _ = await first(engine)
        await stream.aclose()
        steps = engine.counters.num_steps
        await until(lambda: is_empty(engine))
        assert engine.counters.num_steps - steps <= 2

    asyncio.run(main())


def test_a_loop_that_is_closed_is_a_reader_gone(engine: AsyncEngine) -> None:
    loop = asyncio.new_event_loop()
    stream, _ = loop.run_until_complete(first(engine))
    loop.close()
    asyncio.run(until(lambda: is_empty(engine)))
    assert_all_blocks_free(engine)
    del stream


def test_requests_that_cannot_be_served_fail_alone(engine: AsyncEngine) -> None:
    bad: list[tuple[Any, SamplingParams, dict[str, Any], type[GemwrightError]]] = [
        ([], SAMPLED, {}, RequestError),
        ([2, 10**6], SAMPLED, {}, RequestError),
        ("\ud800", SAMPLED, {}, RequestError),
        (5, SAMPLED, {}, RequestError),
        ([2], SAMPLED, {"priority": "high"}, RequestError),
        ([2], SAMPLED, {"cache_salt": 5}, RequestError),
        ([2] * 5000, SAMPLED, {}, RequestError),
    ]

    async def main() -> None:
        good = asyncio.create_task(engine.generate(PROMPTS[1], SAMPLED))
        for prompt, params, options, kind in bad:
            with pytest.raises(kind):
                await engine.generate(prompt, params, **options)
        assert len((await good).token_ids) == 9
        assert engine.failure is None
        await until(lambda: is_empty(engine))

    asyncio.run(main())


def test_logits_that_are_no_numbers_end_their_request_alone(
    engine: AsyncEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = engine.llm.core.runner.run

    def poisoned(step: Any) -> Any:
        for place, logits in run(step):
            yield place, logits * float("nan") if place == 0 and engine.counters.max_running == 2 else logits

    async def main() -> None:
        stream, _ = await first(engine)
        monkeypatch.setattr(engine.llm.core.runner, "run", poisoned)
        other = asyncio.create_task(collect(engine, PROMPTS[1], SAMPLED))
        with pytest.raises(GemwrightError, match="not finite"):
            async for _ in stream:
                pass
        monkeypatch.setattr(engine.llm.core.runner, "run", run)
        assert engine.failure is None
        results = await asyncio.gather(other, engine.generate(PROMPTS[2], SAMPLED), return_exceptions=True)
        assert not isinstance(results[1], BaseException)

    asyncio.run(main())


def test_too_many_waiting_are_refused_and_running_ones_do_not_count(tiny_llm: TinyLLM) -> None:
    async def main() -> None:
        async with AsyncEngine(tiny_llm("gemma3", max_model_len=4096, max_num_seqs=1), max_waiting=2) as engine:
            stream, _ = await first(engine)
            waiting = [asyncio.create_task(engine.generate(PROMPTS[0], SAMPLED)) for _ in range(2)]
            await until(lambda: engine.num_waiting == 2)
            assert engine.num_running == 1
            with pytest.raises(CapacityError) as caught:
                await engine.generate(PROMPTS[0], SAMPLED)
            assert (caught.value.value, caught.value.limit) == (2, "max_waiting 2")
            assert caught.value.http_status == 503
            await stream.aclose()
            assert [len((await task).token_ids) for task in waiting] == [9, 9]
            assert len((await engine.generate(PROMPTS[0], SAMPLED)).token_ids) == 9

    asyncio.run(main())


def test_a_lower_priority_runs_first(tiny_llm: TinyLLM) -> None:
    async def main() -> None:
        async with AsyncEngine(tiny_llm("gemma3", max_model_len=4096, max_num_seqs=1)) as engine:
            stream, _ = await first(engine)
            finished: list[int] = []

            async def ask(priority: int) -> None:
                await engine.generate(PROMPTS[0], SAMPLED, priority=priority)
                finished.append(priority)

            tasks = [asyncio.create_task(ask(priority)) for priority in (2, 0, 1)]
            await until(lambda: engine.num_waiting == 3)
            await stream.aclose()
            await asyncio.gather(*tasks)
            assert finished == [0, 1, 2]

    asyncio.run(main())


def test_draining_finishes_what_runs_and_takes_no_more(engine: AsyncEngine) -> None:
    async def main() -> None:
        tasks = [asyncio.create_task(engine.generate(prompt, SAMPLED)) for prompt in PROMPTS]
        await until(lambda: engine.num_running)
        await engine.drain()
        assert [len((await task).token_ids) for task in tasks] == [9] * 4
        with pytest.raises(CapacityError, match="stopping"):
            await engine.generate(PROMPTS[0], SAMPLED)
        await engine.drain()
        await engine.stop()
        await engine.stop()

    asyncio.run(main())


def test_stopping_ends_what_runs_with_an_error_and_frees_it(engine: AsyncEngine) -> None:
    async def main() -> None:
        stream, _ = await first(engine)
        await engine.stop()
        with pytest.raises(CapacityError, match="stopping"):
            async for _ in stream:
                pass
        with pytest.raises(CapacityError, match="stopping"):
            await engine.generate(PROMPTS[0], SAMPLED)
        assert engine.failure is None
        assert is_empty(engine)
        assert_all_blocks_free(engine)

    asyncio.run(main())


def test_an_engine_that_fails_tells_every_waiter(
    engine: AsyncEngine, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        streams = [(await first(engine))[0] for _ in range(3)]
        drained = asyncio.create_task(engine.drain())
        await asyncio.sleep(0)

        def broken(step: Any) -> Any:
            raise ZeroDivisionError("the machine is on fire")

        monkeypatch.setattr(engine.llm.core.runner, "run", broken)
        errors = []
        for stream in streams:
            with pytest.raises(GemwrightError, match="the engine has failed") as caught:
                async for _ in stream:
                    pass
            errors.append(caught.value)
        assert len(set(map(id, errors))) == 3
        assert "the machine is on fire" in str(errors[0])
        assert errors[0].http_status == 500
        await drained
        assert engine.failure is not None
        assert isinstance(engine.failure.__cause__, ZeroDivisionError)
        with pytest.raises(GemwrightError, match="the engine has failed"):
            await engine.generate(PROMPTS[0], SAMPLED)

    with caplog.at_level(logging.ERROR, logger="gemwright"):
        asyncio.run(main())
    assert "the engine has failed" in caplog.text
    assert "the machine is on fire" in caplog.text


def test_a_hundred_readers_of_which_half_go_away(engine: AsyncEngine) -> None:
    """A timeout of an even reader would fail the test; of the odd ones none can be done in time."""

    async def read(index: int) -> tuple[int, ...] | None:
        params = SamplingParams(max_tokens=4, temperature=12.0, seed=index, ignore_eos=True)
        if index % 2:
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.01 + index / 100):
                    await engine.generate(PROMPTS[index % 4], SamplingParams(max_tokens=9_000, ignore_eos=True))
            return None
        return (await engine.generate(PROMPTS[index % 4], params)).token_ids

    async def main() -> None:
        answers = await asyncio.gather(*(read(index) for index in range(100)))
        assert all((answers[index] is not None) == (index % 2 == 0) for index in range(100))
        await until(lambda: is_empty(engine))
        assert_all_blocks_free(engine)
        again = await engine.generate(
            PROMPTS[0], SamplingParams(max_tokens=4, temperature=12.0, seed=0, ignore_eos=True)
        )
        assert again.token_ids == answers[0]

    asyncio.run(main())


@pytest.mark.parametrize("bad", [0, -1, True, 1.5, None])
def test_a_bad_limit_is_refused_before_anything_is_loaded(bad: Any) -> None:
    with pytest.raises(RequestError, match="max_waiting"):
        AsyncEngine("/no/such/model", max_waiting=bad)


def test_a_loaded_model_takes_no_options(tiny_llm: TinyLLM) -> None:
    with pytest.raises(RequestError, match="takes no engine options"):
        AsyncEngine(tiny_llm("gemma3"), block_size=8)
