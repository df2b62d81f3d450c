"""Any schedule gives every request the tokens and the logprob bits of its run alone.

Drawn: arrivals between steps, priorities, token budgets from 1 up, block sizes, pools that just hold one request,
aborts in every state, shared beginnings, salts, several answers, prompt logprobs.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st

from gemwright import LLM, SamplingParams
from gemwright.engine.core import EngineCore, EngineLimits
from gemwright.engine.request import Request
from gemwright.engine.runner import Runner
from gemwright.testing import write_tiny_checkpoint

MAX_PROMPT = 80
MAX_LENGTH = 96
FAMILIES = ["gemma3", "gemma4-e", "gemma4-k-equals-v", "gemma4-moe"]
LARGE = ["gemma4-e", "gemma4-k-equals-v", "gemma4-moe"]


@cache
def engine(name: str, block_size: int) -> LLM:
    """One engine a family and block size; its cache is used through smaller pools."""
    with TemporaryDirectory() as folder:
        return LLM(
            write_tiny_checkpoint(name, folder),
            threads=1,
            max_model_len=MAX_LENGTH,
            max_num_seqs=4,
            block_size=block_size,
            max_num_batched_tokens=MAX_LENGTH,
        )


def core_of(
    llm: LLM, step_tokens: int, max_num_seqs: int, *, spare: int, num_sliding: int = 4, prefix_caching: bool = True
) -> EngineCore:
    """A fresh scheduler and empty pools: full groups have room for one request and `spare` blocks more, sliding groups
    for `num_sliding` requests."""
    layout = llm.engine.layout
    groups = []
    for group in layout.groups:
        one = group.blocks_for_request(MAX_LENGTH - 1, step_tokens)
        num_blocks = one * num_sliding if group.window else one + spare
        assert num_blocks <= group.num_blocks
        groups.append(replace(group, num_blocks=num_blocks))
    runner = Runner(llm.engine.runner.ops, llm.engine.runner.decoder, replace(layout, groups=tuple(groups)))
    limits = EngineLimits(MAX_LENGTH, llm.spec.vocab_size, step_tokens, max_num_seqs, prefix_caching)
    return EngineCore(runner, limits, (), None)


@dataclass(frozen=True)
class Asked:
    """A request of a schedule; two of one stem begin with the same `common` tokens."""

    stem: int
    common: int
    length: int
    own: int
    max_tokens: int
    n: int
    temperature: float
    prompt_logprobs: int | None
    priority: int
    salt: str | None

    @property
    def prompt(self) -> tuple[int, ...]:
        return tuple(
            3 + (7 * place + 101 * self.stem) % 490
            if place < self.common
            else 3 + (11 * place + 37 * self.own + 5) % 490
            for place in range(self.length)
        )

    @property
    def params(self) -> SamplingParams:
        return SamplingParams(
            max_tokens=self.max_tokens,
            temperature=self.temperature,
            n=self.n,
            logprobs=1,
            prompt_logprobs=self.prompt_logprobs,
        )


asked = st.builds(
    Asked,
    stem=st.integers(0, 1),
    common=st.sampled_from([0, 33, 64, MAX_PROMPT, MAX_PROMPT]),
    length=st.one_of(st.integers(1, 40), st.integers(1, MAX_PROMPT)),
    own=st.integers(0, 3),
    max_tokens=st.sampled_from([1, 4, 16, 16]),
    n=st.sampled_from([1, 1, 3]),
    temperature=st.sampled_from([0.0, 1.0]),
    prompt_logprobs=st.sampled_from([None, None, None, 1]),
    priority=st.sampled_from([0, 0, -1, 5]),
    salt=st.sampled_from([None, None, None, "another tenant"]),
)
# What happens, in order: a request arrives, some steps run, an earlier arrival is aborted.
happenings = st.lists(
    st.one_of(asked, asked, st.integers(1, 12), st.integers(0, 5).map(lambda index: ("abort", index))),
    min_size=2,
    max_size=8,
)

Answer = tuple[Any, ...]


def answer(request: Request) -> Answer:
    return request.token_ids, request.logprobs, request.prompt_logprobs


@cache
def alone(name: str, prompt: tuple[int, ...], params: SamplingParams) -> list[Answer]:
    """What the request gives with the engine to itself: whole prompt in one step, nothing cached."""
    llm = engine(name, 16)
    found = []
    for answer_index in range(params.n):
        core = core_of(llm, MAX_LENGTH, 1, spare=0, prefix_caching=False)
        requests = core.add(prompt, params, seed=5)
        for request in requests:
            if request.answer_index != answer_index:
                core.forget(request)
        while not requests[answer_index].is_done:
            core.step()
        found.append(answer(requests[answer_index]))
    return found


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] if name in LARGE else []) for name in FAMILIES]
)
@given(
    happenings=happenings,
    step_tokens=st.sampled_from([1, 3, 7, 16, 17, 40, MAX_LENGTH]),
    block_size=st.sampled_from([8, 16, 32]),
    max_num_seqs=st.sampled_from([1, 3, 4, 4]),
    spare=st.sampled_from([0, 0, 1, 5]),
    num_sliding=st.sampled_from([1, 4, 4]),
)
@settings(max_examples=15, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
def test_any_schedule_gives_what_each_request_gives_alone(
    name: str, happenings: list[Any], step_tokens: int, block_size: int, max_num_seqs: int, spare: int, num_sliding: int
) -> None:
    core = core_of(engine(name, block_size), step_tokens, max_num_seqs, spare=spare, num_sliding=num_sliding)
    groups: list[tuple[Asked, list[Request]]] = []
    aborted: set[int] = set()

    def step() -> None:
        num_steps, had_work = core.counters.num_steps, core.scheduler.has_work
        core.step()
        core.blocks.check()
        assert core.counters.num_steps == num_steps + had_work, "work waits, and nothing was scheduled"
        running = core.scheduler.running
        assert len(running) <= max_num_seqs
        assert sorted(request.request_id for request in running) == sorted(core.blocks.request_ids)

    for happening in happenings:
        if isinstance(happening, Asked):
            one = happening
            requests = core.add(one.prompt, one.params, seed=5, priority=one.priority, cache_salt=one.salt)
            groups.append((one, requests))
        elif isinstance(happening, int):
            for _ in range(happening):
                step()
        elif happening[1] < len(groups):
            aborted.add(happening[1])
            for request in groups[happening[1]][1]:
                core.forget(request)
            core.blocks.check()
    while core.scheduler.has_work:
        step()
        assert core.counters.num_steps < 20_000
    for index, (one, requests) in enumerate(groups):
        if index in aborted and not all(request.is_done for request in requests):
            continue
        assert [answer(request) for request in requests] == alone(name, one.prompt, one.params)
        for request in requests:
            assert request.num_cached is not None
            assert request.num_cached % block_size == 0
            assert request.num_cached < one.length
            assert request.num_cached == 0 or one.prompt_logprobs is None or request.answer_index > 0
    assert core.blocks.request_ids == ()
    assert [pool.num_free for pool in core.blocks.pools] == [group.num_blocks for group in core.blocks.layout.groups]
    event(f"preempted: {core.counters.num_preemptions > 0}")
    event(f"evicted: {core.counters.num_evictions > 0}")
    event(f"cached: {core.counters.cached_tokens > 0}")


@pytest.mark.parametrize("name", FAMILIES)
def test_a_pool_that_forces_preemption_and_eviction_changes_nothing(name: str) -> None:
    """Four requests whose answers outgrow the pool together; two of them begin alike."""
    several = [Asked(stem, 64, 30, own, 26, 1, 1.0, None, 0, None) for own, stem in enumerate((0, 1, 0, 1))]
    several = [replace(one, common=40 if one.own < 2 else 17) for one in several]
    core = core_of(engine(name, 8), 16, 4, spare=1)
    requests = [core.add(one.prompt, one.params, seed=5)[0] for one in several]
    while core.scheduler.has_work:
        core.step()
        core.blocks.check()
    for one, request in zip(several, requests, strict=True):
        assert [answer(request)] == alone(name, one.prompt, one.params)
    assert core.counters.num_preemptions > 0
    assert core.counters.num_evictions > 0
    assert core.counters.cached_tokens > 0
