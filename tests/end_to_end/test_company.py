"""Tokens do not depend on company: tokens and logprob bits of every prompt are those of the prompt alone, whatever runs
beside it, however it is cut into steps, for any block size and number of threads."""

from __future__ import annotations

from typing import Any

import pytest

from gemwright import LLM, SamplingParams
from gemwright.engine.request import TokenLogprob
from gemwright.engine.result import Completion
from gemwright.ops.reference import float32_rows_are_independent
from tests.end_to_end.conftest import TinyLLM

# The windows are 16 and 20 tokens: the longest prompts are more than three of them.
LENGTHS = (1, 61, 19, 3)
PROMPTS = [[2, *((7 * place + 31 * length) % 480 + 20 for place in range(length - 1))] for length in LENGTHS]
SAMPLED = SamplingParams(max_tokens=6, temperature=1.0, seed=5, logprobs=3, ignore_eos=True)
ALONE: dict[str, Any] = {"max_num_batched_tokens": 512, "block_size": 16, "max_num_seqs": 1}
# Two threads only where steps are few: on a busy machine they wait for each other at every operation. Without MKL's
# strict mode the engine itself says that results hold for one number of threads.
TWO = 2 if float32_rows_are_independent() else 1
TOGETHER: list[dict[str, Any]] = [
    {"max_num_batched_tokens": 1, "block_size": 8, "max_num_seqs": 3},
    {"max_num_batched_tokens": 7, "block_size": 16, "max_num_seqs": 2},
    {"max_num_batched_tokens": 64, "block_size": 32, "max_num_seqs": 16},
    {"max_num_batched_tokens": 512, "block_size": 8, "max_num_seqs": 16, "threads": TWO},
]

Answer = tuple[tuple[int, ...], tuple[tuple[TokenLogprob, ...], ...]]


def answers(completions: list[Completion]) -> list[Answer]:
    found = []
    for completion in completions:
        for choice in completion.choices:
            assert choice.logprobs is not None
            found.append((choice.token_ids, choice.logprobs))
    return found


def alone(llm: LLM, params: SamplingParams) -> list[Answer]:
    return [answer for prompt in PROMPTS for answer in answers(llm.generate(prompt, params))]


@pytest.mark.parametrize("name", ["gemma2", "gemma3-linear", "gemma4-e", "gemma4-moe", "gemma4-k-equals-v"])
def test_a_prompt_in_any_company_is_the_prompt_alone(name: str, tiny_llm: TinyLLM) -> None:
    expected = alone(tiny_llm(name, **ALONE), SAMPLED)
    assert len({tokens for tokens, _ in expected}) == len(PROMPTS)
    for options in TOGETHER:
        llm = tiny_llm(name, **options)
        assert answers(llm.generate(PROMPTS, SAMPLED)) == expected, options
        llm.core.blocks.check()
        assert llm.core.blocks.request_ids == ()


def test_bfloat16_keeps_the_promise_too(tiny_llm: TinyLLM) -> None:
    expected = alone(tiny_llm("gemma4-e", dtype="bfloat16", **ALONE), SAMPLED)
    for options in TOGETHER[2:]:
        llm = tiny_llm("gemma4-e", dtype="bfloat16", **options)
        assert answers(llm.generate(PROMPTS, SAMPLED)) == expected, options


def test_several_answers_of_one_seed_differ_and_do_not_depend_on_company(tiny_llm: TinyLLM) -> None:
    params = SamplingParams(max_tokens=6, temperature=2.0, seed=5, logprobs=1, n=3, ignore_eos=True)
    expected = alone(tiny_llm("gemma3", **ALONE), params)
    assert len({tokens for tokens, _ in expected[3:6]}) == 3
    assert answers(tiny_llm("gemma3", **TOGETHER[1]).generate(PROMPTS, params)) == expected
    first_of_each = alone(tiny_llm("gemma3", **ALONE), SamplingParams(**{**as_dict(params), "n": 1}))
    assert expected[::3] == first_of_each


def test_another_seed_gives_another_answer_and_no_seed_a_new_one(tiny_llm: TinyLLM) -> None:
    llm = tiny_llm("gemma3")

    def tokens(seed: int | None) -> tuple[int, ...]:
        params = SamplingParams(max_tokens=12, temperature=2.0, seed=seed, ignore_eos=True)
        return llm.generate(PROMPTS[0], params)[0].token_ids

    assert tokens(1) == tokens(1)
    assert tokens(1) != tokens(2)
    assert tokens(None) != tokens(None)


def as_dict(params: SamplingParams) -> dict[str, Any]:
    return {name: getattr(params, name) for name in SamplingParams.__dataclass_fields__}


@pytest.mark.parametrize("name", ["gemma2", "gemma4-e"])
def test_prompt_logprobs_are_those_of_generation_however_the_prompt_is_cut(name: str, tiny_llm: TinyLLM) -> None:
    """What an answer's tokens were given when they were made is what they are given when they are read."""
    prompt = PROMPTS[2]
    greedy = SamplingParams(max_tokens=20, temperature=0, logprobs=3, ignore_eos=True)
    (made,) = tiny_llm(name).generate(prompt, greedy)
    whole = [*prompt, *made.token_ids]
    readings = []
    for num_tokens in (1, 7, 64, 512):
        llm = tiny_llm(name, max_num_batched_tokens=num_tokens, block_size=8)
        reading = SamplingParams(max_tokens=1, temperature=0, prompt_logprobs=3)
        (beside, read) = llm.generate([PROMPTS[1], whole], reading)
        assert beside.prompt_logprobs is not None
        assert len(beside.prompt_logprobs) == len(PROMPTS[1])
        readings.append(read.prompt_logprobs)
    first = readings[0]
    assert first is not None
    assert all(reading == first for reading in readings)
    assert len(first) == len(whole)
    assert first[0] is None
    assert first[len(prompt) :] == made.logprobs
    assert all(
        entry is not None and token in [row.token_id for row in entry]
        for token, entry in zip(whole[1:], first[1:], strict=True)
    )


def test_answers_in_turns_through_streams_are_the_answers_alone(tiny_llm: TinyLLM) -> None:
    """Three streams read in turns: a step serves all of them, and one may end in another's step."""
    llm = tiny_llm("gemma3")
    lengths = (9, 3, 6)
    params = [SamplingParams(max_tokens=length, temperature=0, ignore_eos=True) for length in lengths]
    expected = [llm.generate(prompt, one)[0] for prompt, one in zip(PROMPTS, params, strict=False)]
    streams = [llm.stream(prompt, one) for prompt, one in zip(PROMPTS, params, strict=False)]
    received: list[list[str]] = [[], [], []]
    ended: dict[int, Completion] = {}
    while len(ended) < len(streams):
        for index, stream in enumerate(streams):
            piece = next(stream, None)
            if isinstance(piece, str):
                received[index].append(piece)
            elif piece is not None:
                ended[index] = piece
    for index, completion in enumerate(expected):
        assert ended[index].token_ids == completion.token_ids
        assert "".join(received[index]) == ended[index].text == completion.text
        assert ended[index].timing.ttft_s > 0
