"""Who computes how many tokens: oldest first, within the budget, and only with blocks that nobody else may need."""

from __future__ import annotations

import pytest

from gemwright.engine.request import Request, SamplingParams
from gemwright.engine.scheduler import Scheduler
from gemwright.errors import CapacityError
from gemwright.memory.block_manager import BlockManager
from gemwright.memory.kv_layout import KVLayout, plan_layout
from gemwright.spec.families import read_config
from gemwright.testing import TINY_CONFIGS


def layout(num_seqs: int = 3) -> KVLayout:
    """Room for `num_seqs` requests of 64 tokens in steps of up to 16."""
    return plan_layout(
        read_config(TINY_CONFIGS["gemma3"]),
        block_size=4,
        dtype="float32",
        max_model_len=64,
        max_num_seqs=num_seqs,
        step_tokens=16,
        budget_bytes=None,
    )


def request(request_id: int, num_prompt: int, max_num_tokens: int) -> Request:
    return Request(request_id, tuple(range(num_prompt)), SamplingParams(), 0, max_num_tokens)


def run(scheduler: Scheduler) -> list[tuple[int, int]]:
    """Schedule and pretend to compute: the prompt's end makes a token known. Returns (request, tokens) pairs."""
    pairs = []
    for item in scheduler.schedule():
        item.request.num_computed += item.num_tokens
        if item.request.num_computed == item.request.num_known:
            item.request.token_ids.append(9)
        pairs.append((item.request.request_id, item.num_tokens))
    return pairs


def test_the_oldest_request_is_served_first_and_the_budget_is_spent() -> None:
    scheduler = Scheduler(BlockManager(layout()), step_tokens=16, max_num_seqs=2)
    for request_id, num_prompt in enumerate((20, 14, 5)):
        scheduler.add(request(request_id, num_prompt, num_prompt + 4))
    assert run(scheduler) == [(0, 16)]
    assert run(scheduler) == [(0, 4), (1, 12)]
    assert run(scheduler) == [(0, 1), (1, 2)]
    assert run(scheduler) == [(0, 1), (1, 1)]
    scheduler.finish(scheduler.running[0])
    assert run(scheduler) == [(1, 1), (2, 5)]


def test_a_request_waits_until_its_blocks_are_not_promised() -> None:
    blocks = BlockManager(layout(1))
    scheduler = Scheduler(blocks, step_tokens=16, max_num_seqs=8)
    long, short = request(0, 40, 64), request(1, 4, 8)
    scheduler.add(long)
    scheduler.add(short)
    assert run(scheduler) == [(0, 16)]
    assert list(scheduler.waiting) == [short]
    scheduler.finish(long)
    assert run(scheduler) == [(1, 4)]
    scheduler.finish(short)
    assert not scheduler.has_work
    assert blocks.request_ids == ()


def test_a_request_that_can_never_run_is_refused_and_not_waited_for() -> None:
    scheduler = Scheduler(BlockManager(layout(1)), step_tokens=16, max_num_seqs=8)
    scheduler.add(request(5, 40, 65))
    with pytest.raises(CapacityError, match="request 5 can never run"):
        scheduler.schedule()


def test_finishing_twice_does_nothing() -> None:
    scheduler = Scheduler(BlockManager(layout()), step_tokens=16, max_num_seqs=1)
    running, waiting = request(0, 4, 8), request(1, 4, 8)
    scheduler.add(running)
    scheduler.add(waiting)
    scheduler.schedule()
    for finished in (running, waiting, running, waiting):
        scheduler.finish(finished)
    assert not scheduler.has_work


def test_known_tokens_run_from_the_prompt_into_the_answer() -> None:
    item = request(0, 3, 8)
    item.token_ids = [7, 8]
    assert item.num_known == 5
    for begin in range(6):
        for end in range(begin, 6):
            assert item.known_tokens(begin, end) == [0, 1, 2, 7, 8][begin:end]
