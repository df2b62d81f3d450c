"""Many requests at once: the answers of one at a time, bounded memory, and errors and aborts that stay with their own
request."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from gemwright import LLM, SamplingParams
from gemwright.engine.request import Request
from gemwright.engine.result import Completion
from gemwright.errors import CapacityError, GemwrightError, show_both_bytes
from gemwright.memory.block_manager import NO_BLOCK
from gemwright.memory.machine import process_bytes
from gemwright.testing import write_tiny_checkpoint
from tests.end_to_end.conftest import TinyLLM

GREEDY = SamplingParams(max_tokens=8, temperature=0, logprobs=1, ignore_eos=True)
SAMPLED = SamplingParams(max_tokens=8, temperature=1.0, seed=9, logprobs=1, ignore_eos=True)
# Windows are 16 and 20 tokens: lengths below, at, just above, at 1.1 and at 3 windows.
LENGTHS = (1, 9, 15, 16, 17, 18, 20, 21, 22, 48, 60, 110)


def prompt_of(length: int, own: int = 0) -> list[int]:
    return [2, *(20 + (7 * place + 13 * own) % 400 for place in range(length - 1))]


def bits(completions: list[Completion]) -> Any:
    return [[(choice.token_ids, choice.logprobs) for choice in completion.choices] for completion in completions]


def assert_idle(llm: LLM) -> None:
    assert not llm.core.scheduler.has_work
    assert llm.core.blocks.request_ids == ()
    assert [pool.num_free for pool in llm.core.blocks.pools] == [g.num_blocks for g in llm.engine.layout.groups]
    llm.core.blocks.check()


@pytest.mark.parametrize("name", ["gemma2", "gemma4-e"])
def test_twelve_at_once_answer_as_one_after_the_other(name: str, tiny_llm: TinyLLM) -> None:
    """Field case 122: different lengths, temperature 0."""
    prompts = [prompt_of(length, own) for own, length in enumerate(LENGTHS)]
    serial = tiny_llm(name, prefix_caching=False)
    expected = [bits(serial.generate([prompt], GREEDY))[0] for prompt in prompts]
    assert bits(tiny_llm(name).generate(prompts, GREEDY)) == expected


@pytest.mark.slow
def test_however_many_run_and_however_short_blocks_are_the_answers_are_the_same(tiny_llm: TinyLLM) -> None:
    """Mixed prompts, many of which begin alike, in small steps and in large ones, in a pool that forces preemption,
    with and without the prefix cache."""
    prompts = [[*prompt_of(1 + 37 * index % 80, index % 2), 3 + index] for index in range(18)]
    params = SamplingParams(max_tokens=16, temperature=1.0, seed=9, logprobs=2, ignore_eos=True)
    alone = tiny_llm("gemma3", max_num_seqs=1, max_num_batched_tokens=4096, prefix_caching=False)
    expected = bits(alone.generate(prompts, params))

    def run(**options: Any) -> LLM:
        llm = tiny_llm("gemma3", **options)
        assert bits(llm.generate(prompts, params)) == expected, options
        assert_idle(llm)
        return llm

    few = run(max_num_batched_tokens=7, max_num_seqs=3, block_size=8)
    assert few.core.counters.max_running <= 3
    many = run(max_num_batched_tokens=4096, max_num_seqs=64, block_size=32)
    assert many.core.counters.max_running >= 16
    assert many.core.counters.num_steps <= alone.core.counters.num_steps / 4
    run(max_num_batched_tokens=4096, max_num_seqs=64, prefix_caching=False)
    options: dict[str, Any] = {"max_num_batched_tokens": 32, "block_size": 8, "max_model_len": 128}
    quarter = tiny_llm("gemma3", **options).engine.layout.total_bytes // 4
    short = run(**options, kv_cache_memory_bytes=quarter)
    assert short.engine.layout.total_bytes <= quarter
    assert short.core.counters.num_preemptions > 0
    assert short.core.counters.num_evictions > 0


@pytest.mark.slow
def test_sixteen_prompts_at_once_on_the_default_model() -> None:
    llm = LLM(max_model_len=256, prefix_caching=False)
    capitals = ["France", "Japan", "Sweden", "Italy", "Kenya", "Peru", "Chile", "Norway"]
    prompts = [
        *(f"The capital of {country} is" for country in capitals),
        *("one two three four five six seven eight"[:length] for length in (3, 7, 13, 18, 23, 27, 33, 39)),
    ]
    params = llm.sampling_params(max_tokens=16, temperature=0, logprobs=1)
    expected = [bits(llm.generate(prompt, params))[0] for prompt in prompts]
    assert bits(llm.generate(prompts, params)) == expected
    assert llm.core.counters.max_running == len(prompts) == 16


def test_two_engines_in_one_process_do_not_meet(tiny_llm: TinyLLM) -> None:
    prompt = prompt_of(40)
    engines = [tiny_llm("gemma3"), tiny_llm("gemma4-e"), tiny_llm("gemma3")]
    expected = [bits(llm.generate(prompt, GREEDY)) for llm in engines]
    streams = [llm.stream(prompt, GREEDY) for llm in engines]
    ended: dict[int, Completion] = {}
    while len(ended) < len(streams):
        for index, stream in enumerate(streams):
            piece = next(stream, None)
            if isinstance(piece, Completion):
                ended[index] = piece
    assert [bits([ended[index]]) for index in range(len(engines))] == expected
    assert expected[0] == expected[2] != expected[1]


def test_logits_that_are_no_numbers_end_their_request_alone(tmp_path: Path) -> None:
    """One token id overflows: its row of the per-layer table is at the end of what float32 holds. Prompts with it fail;
    those beside them, and those that get their blocks afterwards, do not notice."""
    bad_id = 77
    folder = write_tiny_checkpoint("gemma4-e", tmp_path)
    tensors = load_file(folder / "model.safetensors")
    tensors["model.embed_tokens_per_layer.weight"][bad_id] = 3e38
    save_file(tensors, folder / "model.safetensors")
    llm = LLM(folder, threads=1, max_model_len=128, max_num_seqs=4, block_size=8)
    good = [[token_id for token_id in prompt_of(length, length) if token_id != bad_id] for length in (30, 5, 61)]
    bad = [*good[0][:20], bad_id, *good[0][20:]]
    expected = [bits(llm.generate([prompt], GREEDY))[0] for prompt in good]
    for prompts in (bad, [good[1], bad, bad], [bad, good[0]]):
        with pytest.raises(GemwrightError, match="not finite"):
            llm.generate(prompts, GREEDY)
        assert_idle(llm)
    requests = [llm.core.add(prompt, GREEDY, seed=0)[0] for prompt in (good[0], bad, good[1], good[2])]
    while llm.core.scheduler.has_work:
        llm.core.step()
    assert [request.error is None for request in requests] == [True, False, True, True]
    assert [tuple(request.token_ids) for request in requests if request.error is None] == [
        choices[0][0] for choices in expected
    ]
    for own in range(20, 32):  # every block that the failed requests held is used again
        llm.generate([token_id for token_id in prompt_of(100, own) if token_id != bad_id], SAMPLED)
    assert llm.core.counters.num_evictions > 0
    assert [bits(llm.generate([prompt], GREEDY))[0] for prompt in good] == expected


@pytest.mark.parametrize("state", ["waiting", "in its prompt", "answering", "preempted"])
def test_a_request_aborted_in_any_state_leaves_nothing_and_the_others_go_on(state: str, tiny_llm: TinyLLM) -> None:
    """Field case 121."""
    options = {"max_model_len": 128, "block_size": 8, "max_num_batched_tokens": 16}
    roomy = tiny_llm("gemma3", **options)
    params = SamplingParams(max_tokens=50, temperature=0, logprobs=1, ignore_eos=True)
    first, second = prompt_of(50), prompt_of(45, 3)
    expected = bits([roomy.generate(first, params)[0]])[0][0]
    layout = roomy.engine.layout
    pool_bytes = sum(
        group.block_bytes * (16 if group.window is None else 2 * group.blocks_for_request(128, 16))
        for group in layout.groups
    )
    llm = tiny_llm("gemma3", **options, max_num_seqs=1 if state == "waiting" else 2, kv_cache_memory_bytes=pool_bytes)
    (kept,) = llm.core.add(first, params, seed=0)
    (aborted,) = llm.core.add(second, params, seed=0)

    def reached(request: Request) -> bool:
        return {
            "waiting": llm.core.counters.num_steps == 3,
            "in its prompt": 0 < request.num_computed < len(second),
            "answering": len(request.token_ids) == 3,
            "preempted": llm.core.counters.num_preemptions > 0,
        }[state]

    while not reached(aborted):
        llm.core.step()
    assert (aborted in llm.core.scheduler.waiting) is (state in ("waiting", "preempted"))
    llm.core.forget(aborted)
    assert set(llm.core.blocks.request_ids) == {kept.request_id}
    llm.core.blocks.check()
    while not kept.is_done:
        llm.core.step()
    llm.core.forget(kept)
    assert (tuple(kept.token_ids), tuple(kept.logprobs)) == expected
    assert len(aborted.token_ids) < 50
    assert_idle(llm)


@pytest.mark.parametrize("name", ["gemma3", "gemma4-e", "gemma4-k-equals-v"])
@pytest.mark.parametrize("step_tokens", [1, 30])
def test_sliding_layers_hold_a_window_a_step_and_a_block(name: str, step_tokens: int, tiny_llm: TinyLLM) -> None:
    llm = tiny_llm(name, block_size=8, max_num_batched_tokens=step_tokens)
    (request,) = llm.core.add(prompt_of(120), GREEDY, seed=0)
    most = [0] * len(llm.engine.layout.groups)
    while not request.is_done:
        llm.core.scheduler.schedule()  # the blocks of the next step, asked for once more by the step itself
        for group in llm.engine.layout.groups:
            table = llm.core.blocks.table(request.request_id, group.index)
            most[group.index] = max(most[group.index], len(table) - table.count(NO_BLOCK))
        llm.core.step()
    for group in llm.engine.layout.groups:
        if group.window is None:
            assert most[group.index] == -(-(120 + GREEDY.max_tokens - 1) // 8)
        else:
            assert most[group.index] <= -(-(group.window - 1) // 8) + -(-step_tokens // 8) + 1


@pytest.mark.parametrize("name", ["gemma2", "gemma4-e", "gemma4-k-equals-v"])
def test_the_cache_takes_the_bytes_of_its_formula(name: str, tiny_llm: TinyLLM) -> None:
    llm = tiny_llm(name, block_size=8)
    decoder = llm.core.runner.decoder
    total = 0
    for group in llm.engine.layout.groups:
        layers = [llm.spec.layers[index] for index in group.layers]
        assert all(layer.owns_kv for layer in layers)
        num_tensors = 1 if layers[0].k_equals_v else 2
        total += group.num_blocks * 8 * num_tensors * sum(layer.num_kv_heads * layer.head_dim * 4 for layer in layers)
    assert sum(llm.core.runner.ops.cache_bytes(decoder.cache)) == llm.engine.layout.total_bytes == total


@pytest.mark.parametrize("pool_bytes", [1, 16_383])
def test_a_pool_without_a_block_for_every_group_is_refused_naming_the_bytes(pool_bytes: int, tiny_llm: TinyLLM) -> None:
    layout = tiny_llm("gemma4-e").engine.layout
    smallest = sum(group.block_bytes for group in layout.groups)
    assert pool_bytes < smallest == 16_384
    for context in (None, 256):
        with pytest.raises(CapacityError, match="K/V") as caught:
            tiny_llm("gemma4-e", kv_cache_memory_bytes=pool_bytes, max_model_len=context)
        needed = layout.request_bytes(context or 1, context or 1)
        for shown in show_both_bytes(needed, pool_bytes):
            assert shown in str(caught.value)


@pytest.mark.slow
def test_thousands_of_short_requests_leave_memory_as_it_was(tmp_path: Path) -> None:
    folder = write_tiny_checkpoint("gemma3", tmp_path, overrides={"num_hidden_layers": 2, "sliding_window_pattern": 2})
    llm = LLM(folder, threads=1, max_model_len=64, max_num_seqs=50, max_num_batched_tokens=256)
    generator = np.random.default_rng(0)

    def serve(count: int) -> None:
        for _ in range(count // 50):
            prompts = [generator.integers(3, 400, generator.integers(1, 40)).tolist() for _ in range(50)]
            llm.generate(prompts, SamplingParams(max_tokens=4, temperature=1.0, ignore_eos=True))

    serve(400)
    gc.collect()
    before = process_bytes()
    serve(2000)
    gc.collect()
    grown = process_bytes() - before
    assert llm.core.counters.num_requests == 2400
    assert grown < 20 << 20
    assert len(llm.core._answers) == 0
    assert llm.core.counters.num_evictions > 0
    assert_idle(llm)
