"""What a request finds of earlier ones: past the window, across turns and tenants, in a batch, and what it reports."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from gemwright import LLM, SamplingParams
from gemwright.engine.request import Request
from gemwright.engine.result import Completion
from gemwright.memory.block_keys import MediaSpan
from gemwright.ops.protocol import StepInputs
from tests.end_to_end.conftest import TinyLLM
from tests.needles import needle_ids

FAMILIES = ["gemma2", "gemma3", "gemma4-e", "gemma4-k-equals-v", "gemma4-moe"]
PROMPT = [2, *(20 + 7 * place % 400 for place in range(99))]
"""100 tokens, some five windows: six whole blocks of 16 and four tokens more."""
GREEDY = SamplingParams(max_tokens=14, temperature=0, logprobs=2, ignore_eos=True)


@contextmanager
def counted_tokens(llm: LLM) -> Iterator[list[int]]:
    """Yield a list to which every step adds the number of tokens it computed."""
    run, counts = llm.core.runner.run, list[int]()

    def counting(step: StepInputs, *rest: Any) -> Any:
        counts.append(len(step.token_ids))
        return run(step, *rest)

    llm.core.runner.run = counting
    try:
        yield counts
    finally:
        llm.core.runner.run = run


def bits(completion: Completion) -> Any:
    return completion.token_ids, completion.logprobs


@pytest.mark.parametrize("name", FAMILIES)
def test_the_same_prompt_is_found_past_the_window_and_answers_the_same(name: str, tiny_llm: TinyLLM) -> None:
    """Also in models whose last layers read other layers' caches. Counts of the prompt never change (field case 126),
    and what is cached is what was not computed (074)."""
    llm = tiny_llm(name)
    assert all(group.window is None or 5 * group.window <= len(PROMPT) for group in llm.engine.layout.groups)
    completions = []
    for cached in (0, 96, 96):
        with counted_tokens(llm) as counts:
            completions += llm.generate(PROMPT, GREEDY)
        assert completions[-1].usage.cached_tokens == cached
        assert sum(counts) == len(PROMPT) - cached + GREEDY.max_tokens - 1
    assert {completion.usage.prompt_tokens for completion in completions} == {len(PROMPT)}
    assert bits(completions[0]) == bits(completions[1]) == bits(completions[2])
    assert llm.core.counters.cached_tokens == 192
    assert llm.core.counters.prompt_tokens == 300


@pytest.mark.parametrize("name", FAMILIES)
def test_the_next_turn_goes_on_from_the_answer(name: str, tiny_llm: TinyLLM) -> None:
    llm, fresh = tiny_llm(name), tiny_llm(name, prefix_caching=False)
    turn, cached = PROMPT, []
    for question in ([31, 32, 33], list(range(60, 85)), [9]):
        (answer,) = llm.generate(turn, GREEDY)
        cached.append(answer.usage.cached_tokens)
        assert bits(answer) == bits(fresh.generate(turn, GREEDY)[0])
        turn = [*turn, *answer.token_ids, *question]
    # Of 113 computed tokens seven blocks, of 130 eight: the last token of an answer is never computed.
    assert cached == [0, 112, 128]
    assert fresh.core.counters.cached_tokens == 0


def test_a_shorter_beginning_is_found_where_its_window_is_still_there(tiny_llm: TinyLLM) -> None:
    """Nothing is kept for the past of a sliding layer on purpose, but what was let go stays until its place is used."""
    llm = tiny_llm("gemma3")
    llm.generate(PROMPT, GREEDY)
    (other,) = llm.generate([*PROMPT[:50], *range(300, 340)], GREEDY)
    assert other.usage.cached_tokens == 48
    (fresh,) = tiny_llm("gemma3", prefix_caching=False).generate([*PROMPT[:50], *range(300, 340)], GREEDY)
    assert bits(other) == bits(fresh)


@pytest.mark.parametrize("block_size", [8, 16, 32])
def test_equal_prompts_that_start_together_are_computed_once(block_size: int, tiny_llm: TinyLLM) -> None:
    llm = tiny_llm("gemma3", block_size=block_size)
    prompt = PROMPT[:64]
    with counted_tokens(llm) as counts:
        completions = llm.generate([prompt, prompt, prompt], GREEDY)
    found = 64 - block_size
    assert [completion.usage.cached_tokens for completion in completions] == [0, found, found]
    assert sum(counts) == 64 + 2 * block_size + 3 * (GREEDY.max_tokens - 1)
    assert len({bits(completion) for completion in completions}) == 1


def test_several_answers_share_their_prompt(tiny_llm: TinyLLM) -> None:
    """The prompt of one request is no cached prompt of its own: the count stays 0."""
    llm = tiny_llm("gemma4-e")
    params = SamplingParams(max_tokens=6, temperature=1.5, seed=4, n=4, ignore_eos=True)
    with counted_tokens(llm) as counts:
        (completion,) = llm.generate(PROMPT, params)
    assert sum(counts) == 100 + 3 * 4 + 4 * 5
    assert completion.usage.cached_tokens == llm.core.counters.cached_tokens == 0
    assert len({choice.token_ids for choice in completion.choices}) > 1


def test_tenants_with_different_salts_share_nothing(tiny_llm: TinyLLM) -> None:
    llm = tiny_llm("gemma3")
    cached = [
        llm.generate(PROMPT, GREEDY, cache_salt=salt)[0].usage.cached_tokens
        for salt in ("a", "b", None, "", "a", "b", None, "")
    ]
    assert cached == [0, 0, 0, 0, 96, 96, 96, 96]


def with_media(llm: LLM, *media: MediaSpan) -> Request:
    (request,) = llm.core.add(PROMPT, GREEDY, seed=0, media=media)
    while not request.is_done:
        llm.core.step()
    llm.core.forget(request)
    return request


def test_another_picture_under_the_same_ids_is_not_found(tiny_llm: TinyLLM) -> None:
    """Field case 076: all placeholders of pictures have one id, so the content counts."""
    llm = tiny_llm("gemma3")
    first, second = MediaSpan(40, 56, b"a harbor"), MediaSpan(40, 56, b"a mill")
    assert with_media(llm, first).num_cached == 0
    assert with_media(llm, second).num_cached == 32
    assert with_media(llm, first).num_cached == 96
    assert with_media(llm, second).num_cached == 96
    assert with_media(llm).num_cached == 32
    assert with_media(llm, MediaSpan(41, 57, b"a harbor")).num_cached == 32


def test_a_hit_never_ends_inside_media(tiny_llm: TinyLLM) -> None:
    """Their tokens may see each other in both directions, so none is taken from the cache without the others."""
    llm = tiny_llm("gemma3")
    last = MediaSpan(90, 98, b"a bridge")
    assert with_media(llm, last).num_cached == 0
    assert with_media(llm, last).num_cached == 80
    whole = MediaSpan(80, 96, b"a bridge")
    assert with_media(llm, whole).num_cached == 80
    assert with_media(llm, whole).num_cached == 96


def test_prompt_logprobs_read_every_position_so_nothing_is_taken_from_the_cache(tiny_llm: TinyLLM) -> None:
    llm = tiny_llm("gemma4-e")
    llm.generate(PROMPT, GREEDY)
    params = SamplingParams(max_tokens=2, temperature=0, prompt_logprobs=2, n=2, ignore_eos=True)
    completions = [llm.generate(PROMPT, params)[0] for _ in range(2)]
    for completion in completions:
        assert completion.usage.cached_tokens == 0
        assert completion.prompt_logprobs is not None
        assert len(completion.prompt_logprobs) == len(PROMPT)
    assert completions[0].prompt_logprobs == completions[1].prompt_logprobs
    assert llm.generate(PROMPT, GREEDY)[0].usage.cached_tokens == 96


def test_the_cache_can_be_turned_off(tiny_llm: TinyLLM) -> None:
    llm = tiny_llm("gemma3", prefix_caching=False)
    completions = [*llm.generate([PROMPT, PROMPT], GREEDY), *llm.generate(PROMPT, GREEDY)]
    assert {completion.usage.cached_tokens for completion in completions} == {0}
    assert all(pool.num_kept == 0 for pool in llm.core.blocks.pools)


@pytest.mark.slow
def test_the_second_turn_of_a_long_chat_on_the_default_model_computes_the_new_text_only() -> None:
    """A window of 512 and a first turn of 3,000 tokens: less than two blocks of it are computed again."""
    llm = LLM(max_model_len=4096, max_num_seqs=1)
    assert {group.window for group in llm.engine.layout.groups} == {512, None}
    params = llm.sampling_params(max_tokens=12, temperature=0, ignore_eos=True)
    first_turn = needle_ids(llm.encode, 3000)
    (first,) = llm.generate(first_turn, params)
    question = llm.encode("\n\nWho wrote it down, and on which page?")[1:]
    second_turn = [*first_turn, *first.token_ids, *question]
    with counted_tokens(llm) as counts:
        (second,) = llm.generate(second_turn, params)
    old = len(first_turn) + len(first.token_ids)
    assert first.usage.cached_tokens == 0
    assert old - second.usage.cached_tokens < 2 * llm.engine.layout.block_size
    assert sum(counts) == len(second_turn) - second.usage.cached_tokens + params.max_tokens - 1
    print(f"first token after {first.timing.ttft_s:.2f} s, in the second turn after {second.timing.ttft_s:.2f} s")
    assert second.timing.ttft_s < first.timing.ttft_s / 5
