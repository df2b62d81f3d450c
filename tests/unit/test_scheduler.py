"""Who computes how many tokens: by rank, within the budget; who gives way when blocks run short; who waits for whom."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gemwright.engine.request import Request, SamplingParams
from gemwright.engine.scheduler import AGING_STEPS, Scheduler
from gemwright.errors import CapacityError, GemwrightError, show_both_bytes
from gemwright.memory.block_keys import MediaSpan
from gemwright.memory.block_manager import BlockManager
from gemwright.memory.kv_layout import KVLayout, plan_layout
from gemwright.spec.families import read_config
from gemwright.testing import TINY_CONFIGS


def layout(num_seqs: int = 3) -> KVLayout:
    """Room for `num_seqs` requests of 64 tokens in steps of up to 16, in blocks of 4."""
    return plan_layout(
        read_config(TINY_CONFIGS["gemma3"]),
        block_size=4,
        dtype="float32",
        max_model_len=64,
        max_num_seqs=num_seqs,
        step_tokens=16,
        budget_bytes=None,
    )


def tight_layout(num_full_blocks: int) -> KVLayout:
    """Like layout(), the full group alone being smaller."""
    roomy = layout()
    groups = tuple(group if group.window else replace(group, num_blocks=num_full_blocks) for group in roomy.groups)
    return replace(roomy, groups=groups)


def make_scheduler(shape: KVLayout, max_num_seqs: int = 8, *, prefix_caching: bool = True) -> Scheduler:
    return Scheduler(BlockManager(shape), step_tokens=16, max_num_seqs=max_num_seqs, prefix_caching=prefix_caching)


def request(
    request_id: int,
    num_prompt: int,
    max_num_tokens: int,
    *,
    priority: int = 0,
    first_token: int | None = None,
    params: SamplingParams | None = None,
    media: tuple[MediaSpan, ...] = (),
    answer_index: int = 0,
) -> Request:
    """A prompt that begins like no other, unless it is given the first token of another."""
    prompt = (100 + request_id if first_token is None else first_token, *range(num_prompt - 1))
    item = Request(request_id, prompt, params or SamplingParams(), 0, max_num_tokens, answer_index, priority)
    item.media = media
    item.extend_block_keys(4)
    return item


def run(scheduler: Scheduler) -> list[tuple[int, int]]:
    """Schedule and pretend to compute: the prompt's end makes a token known. Returns (request, tokens) pairs."""
    pairs = run_unchecked(scheduler)
    scheduler.blocks.check()
    return pairs


def run_unchecked(scheduler: Scheduler) -> list[tuple[int, int]]:
    pairs = []
    for item in scheduler.schedule():
        item.request.num_computed += item.num_tokens
        scheduler.blocks.note_computed(item.request.request_id, item.request.num_computed, item.request.block_keys)
        if item.request.num_computed == item.request.num_known:
            item.request.token_ids.append(9)
            item.request.extend_block_keys(4)
        pairs.append((item.request.request_id, item.num_tokens))
    return pairs


def test_the_oldest_request_is_served_first_and_the_budget_is_spent() -> None:
    scheduler = make_scheduler(layout(), max_num_seqs=2)
    for request_id, num_prompt in enumerate((20, 14, 5)):
        scheduler.add(request(request_id, num_prompt, num_prompt + 4))
    assert run(scheduler) == [(0, 16)]
    assert run(scheduler) == [(0, 4), (1, 12)]
    assert run(scheduler) == [(0, 1), (1, 2)]
    assert run(scheduler) == [(0, 1), (1, 1)]
    scheduler.finish(scheduler.running[0])
    assert run(scheduler) == [(1, 1), (2, 5)]


def test_answers_go_on_before_prompts_do() -> None:
    """One token each for the requests that lack one, also for the younger; the prompt takes the rest."""
    scheduler = make_scheduler(layout())
    scheduler.add(request(0, 4, 20))
    run(scheduler)
    scheduler.add(request(1, 50, 60, priority=-1))
    assert run(scheduler) == [(0, 1), (1, 15)]
    assert run(scheduler) == [(0, 1), (1, 15)]


def test_a_lower_priority_number_goes_first_and_equal_ones_by_arrival() -> None:
    scheduler = make_scheduler(layout(), max_num_seqs=1)
    for request_id, priority in enumerate((3, 1, 1, -2)):
        scheduler.add(request(request_id, 4, 8, priority=priority))
    order = []
    while scheduler.has_work:
        order += run(scheduler)
        scheduler.finish(scheduler.running[0])
    assert order == [(3, 4), (1, 4), (2, 4), (0, 4)]


@pytest.mark.parametrize("priority", [1, 3])
def test_waiting_is_worth_a_priority_in_time_so_nobody_starves(priority: int) -> None:
    """An endless stream of more urgent requests holds a less urgent one up for a bounded number of steps."""
    scheduler = make_scheduler(layout(), max_num_seqs=1)
    patient = request(0, 4, 8, priority=priority)
    scheduler.add(patient)
    for step in range(1, 1000):
        scheduler.add(request(step, 4, 8))
        ((served, _),) = run(scheduler)
        scheduler.finish(scheduler.running[0])
        if served == 0:
            break
    assert step == priority * AGING_STEPS


def test_a_request_waits_until_its_blocks_are_free_and_nobody_overtakes_it() -> None:
    scheduler = make_scheduler(tight_layout(16))
    long, large, small = request(0, 40, 60), request(1, 30, 34), request(2, 4, 8)
    for item in (long, large, small):
        scheduler.add(item)
    assert run(scheduler) == [(0, 16)]
    assert run(scheduler) == [(0, 16)]
    assert [item for item, _ in run(scheduler)] == [0]
    assert scheduler.waiting == [large, small]
    scheduler.finish(long)
    assert run(scheduler) == [(1, 16)]
    assert run(scheduler) == [(1, 14), (2, 2)]


def test_the_lowest_in_rank_gives_way_keeps_its_tokens_and_comes_back() -> None:
    """Sixteen full blocks; two requests of up to 40 tokens cannot both end there."""
    scheduler = make_scheduler(tight_layout(16))
    first, second = request(0, 24, 40), request(1, 24, 40)
    scheduler.add(first)
    scheduler.add(second)
    while scheduler.num_preemptions == 0:
        run(scheduler)
    assert scheduler.running == [first]
    assert scheduler.waiting == [second]
    kept = list(second.token_ids)
    assert kept
    assert second.num_computed == 0
    while len(first.token_ids) < 16:
        run(scheduler)
        assert first.num_missing == 1
    scheduler.finish(first)
    run(scheduler)
    assert second.token_ids[: len(kept)] == kept
    assert second.num_cached == 0, "what its own first run left is no prompt cached for it"


def test_the_one_that_gives_way_is_not_in_the_step() -> None:
    """Answers are given their token first; then the prompt of a higher rank lacks the blocks they have grown into."""
    scheduler = make_scheduler(tight_layout(16))
    lower = [request(request_id, 3, 40, priority=1) for request_id in range(4)]
    for item in lower:
        scheduler.add(item)
    assert run(scheduler) == [(0, 3), (1, 3), (2, 3), (3, 3)]
    scheduler.add(request(4, 48, 60))
    assert run(scheduler) == [(0, 1), (1, 1), (2, 1), (3, 1), (4, 12)]
    assert run(scheduler) == [(0, 1), (1, 1), (2, 1), (3, 1), (4, 12)]
    assert run(scheduler) == [(0, 1), (1, 1), (2, 1), (4, 12)]
    assert scheduler.waiting == [lower[3]]
    assert run(scheduler) == [(0, 1), (1, 1), (4, 12)]
    assert scheduler.num_preemptions == 2


def test_a_request_that_can_never_run_is_refused_at_once_naming_the_bytes() -> None:
    shape = layout(1)
    scheduler = make_scheduler(shape)
    with pytest.raises(CapacityError, match="up to 65 tokens") as caught:
        scheduler.add(request(5, 40, 65))
    needed, held = show_both_bytes(shape.request_bytes(65, 16), shape.total_bytes)
    assert f"value: {needed} needed" in str(caught.value)
    assert f"limit: {held}" in str(caught.value)
    assert "--kv-cache-memory-bytes" in str(caught.value)
    assert not scheduler.has_work


def test_a_request_waits_for_blocks_another_one_is_computing_and_lets_others_pass() -> None:
    scheduler = make_scheduler(layout())
    scheduler.add(request(0, 30, 34, first_token=7))
    scheduler.add(request(1, 30, 34, first_token=7))
    scheduler.add(request(2, 6, 9))
    assert run(scheduler) == [(0, 16)]
    assert run(scheduler) == [(0, 14), (2, 2)]
    assert run(scheduler) == [(0, 1), (2, 4), (1, 2)]
    assert [item.num_cached for item in scheduler.running] == [0, 0, 28]
    assert scheduler.num_cached_tokens == 28


def test_a_request_does_not_wait_for_one_that_went_away() -> None:
    scheduler = make_scheduler(layout())
    first, second = request(0, 30, 34, first_token=7), request(1, 30, 34, first_token=7)
    scheduler.add(first)
    scheduler.add(second)
    assert run(scheduler) == [(0, 16)]
    scheduler.finish(first)
    assert run(scheduler) == [(1, 14)]
    assert second.num_cached == 16


def test_a_request_does_not_wait_for_the_block_of_its_own_last_token() -> None:
    """That one it computes itself, whoever else has it."""
    scheduler = make_scheduler(layout())
    scheduler.step_tokens = 5
    for request_id in (0, 1):
        scheduler.add(request(request_id, 8, 20, first_token=7))
    assert run(scheduler) == [(0, 5)]
    assert run(scheduler) == [(0, 3), (1, 2)]
    assert scheduler.running[1].num_cached == 4


def test_a_request_that_reads_prompt_logprobs_waits_for_nobody() -> None:
    """It computes every position itself, so there is nothing to wait for."""
    scheduler = make_scheduler(layout())
    for request_id in (0, 1):
        scheduler.add(request(request_id, 8, 20, first_token=7, params=SamplingParams(prompt_logprobs=0)))
    assert run(scheduler) == [(0, 8), (1, 8)]


@pytest.mark.parametrize("why", ["no prefix caching", "prompt logprobs"])
def test_hits_are_off_where_they_must_be(why: str) -> None:
    scheduler = make_scheduler(layout(), prefix_caching=why != "no prefix caching")
    params = SamplingParams(prompt_logprobs=0 if why == "prompt logprobs" else None)
    for request_id in (0, 1):
        scheduler.add(request(request_id, 14, 20, first_token=7, params=params))
        assert run(scheduler) == [(request_id, 14)]
        scheduler.finish(scheduler.running[0])
    assert scheduler.num_cached_tokens == 0


def test_a_hit_ends_before_media_it_would_cut_and_before_the_last_token() -> None:
    scheduler = make_scheduler(layout())
    spans = {0: (), 1: (MediaSpan(6, 13, b"picture"),), 2: (MediaSpan(6, 13, b"picture"),), 3: ()}
    found = []
    for request_id, media in spans.items():
        item = request(request_id, 16, 20, first_token=7, media=media)
        scheduler.add(item)
        run(scheduler)
        scheduler.finish(item)
        found.append(item.num_cached)
    # The last one finds what the first one left, but for the block with its last token.
    assert found == [0, 4, 4, 12]


def test_only_the_first_of_several_answers_counts_as_a_cached_prompt() -> None:
    scheduler = make_scheduler(layout())
    for request_id in range(3):
        scheduler.add(request(request_id, 14, 20, first_token=7, answer_index=request_id))
    run(scheduler)
    run(scheduler)
    assert [item.num_cached for item in scheduler.running] == [0, 12, 12]
    assert scheduler.num_cached_tokens == 0


def test_finishing_twice_does_nothing() -> None:
    scheduler = make_scheduler(layout(), max_num_seqs=1)
    running, waiting = request(0, 4, 8), request(1, 4, 8)
    scheduler.add(running)
    scheduler.add(waiting)
    scheduler.schedule()
    for finished in (running, waiting, running, waiting):
        scheduler.finish(finished)
    assert not scheduler.has_work


def test_known_tokens_run_from_the_prompt_into_the_answer() -> None:
    item = Request(0, (0, 1, 2), SamplingParams(), 0, 8)
    item.token_ids = [7, 8]
    assert item.num_known == 5
    for begin in range(6):
        for end in range(begin, 6):
            assert item.known_tokens(begin, end) == [0, 1, 2, 7, 8][begin:end]


# Books that do not add up: an error, and not the same step for ever.


@pytest.mark.parametrize("num_lost", [1, 40])
def test_lost_blocks_end_a_request_that_waits_or_runs_instead_of_being_tried_for_ever(num_lost: int) -> None:
    """All blocks but a few, then some more, belong to nobody."""
    scheduler = make_scheduler(layout())
    pool = scheduler.blocks.pools[-1]
    pool.take(pool.num_free - num_lost)
    scheduler.add(request(0, 40, 60))

    def lose_more() -> None:
        for _ in range(200):
            run_unchecked(scheduler)
            pool.take(min(2, pool.num_free))

    with pytest.raises(GemwrightError, match="books of the K/V pool") as caught:
        lose_more()
    assert "free blocks" in str(caught.value)


def test_a_block_that_nobody_computes_is_not_waited_for_for_ever() -> None:
    scheduler = make_scheduler(layout())
    item = request(0, 20, 30)
    scheduler.blocks._announced[item.block_keys[0]] += 1
    scheduler.add(item)
    with pytest.raises(GemwrightError, match="0 running, 1 waiting"):
        scheduler.schedule()


def test_no_work_is_no_error() -> None:
    assert make_scheduler(layout()).schedule() == []
