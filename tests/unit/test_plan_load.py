"""A mix of lengths: read as written, drawn as said, held in whole blocks; more users never hold less."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gemwright.errors import RequestError, UnsupportedError
from gemwright.planner.answers import make_plan
from gemwright.planner.estimate import Estimate, estimate
from gemwright.planner.load import NUM_DRAWS, LoadMix, load_use, parse_mix, sequence_bytes, users_for
from gemwright.planner.settings import PlanSettings
from tests.planned_models import GIB, header_of

OWN = PlanSettings(max_model_len=32_768)
VLLM = PlanSettings(engine="vllm", max_model_len=32_768)
MIX = "p50=2000,p95=8000,max=32000"
FULL_TOKEN = 3 * 2 * 256 * 2
"""Gemma 3 270M: bytes of one token in its 3 full layers; the 15 sliding ones have a window of 512."""


def planned(asked: PlanSettings, name: str = "gemma-3-270m") -> Estimate:
    return estimate(header_of(name), asked)


def same(length: int, shared: int = 0) -> LoadMix:
    return LoadMix(((1.0, length),), shared)


def test_a_mix_is_read_as_written() -> None:
    assert parse_mix(MIX, 100) == LoadMix(((0.5, 2000), (0.95, 8000), (1.0, 32_000)), 100)
    assert parse_mix(" max=10 , min=1,p99.9=8 ").quantiles == ((0.0, 1), (0.999, 8), (1.0, 10))


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("", "cannot read"),
        ("p50", "cannot read"),
        ("p50=,max=3", "cannot read"),
        ("50=3,max=3", "cannot read"),
        ("p101=3,max=4", "cannot read"),
        ("p50=2k,max=4", "cannot read"),
        ("p50=-2,max=4", "cannot read"),
        ("p5.0.=2,max=4", "cannot read"),
        ("pp50=2,max=4", "cannot read"),
        ("max=3,", "cannot read"),
        ("p50=9999999999999999,max=3", "cannot read"),
        ("p50=2000", "no maximum"),
        ("max=3,p100=4", "twice"),
        ("p50=9,max=3", "do not rise"),
        ("p50=0,max=3", "a length"),
    ],
)
def test_what_is_no_mix_is_refused_with_an_example(text: str, word: str) -> None:
    with pytest.raises(RequestError) as caught:
        parse_mix(text)
    assert word in caught.value.what
    assert caught.value.remedy


@given(st.text(alphabet="pmaxin=,.0123456789 ", max_size=40))
def test_any_text_is_a_mix_or_a_request_error(text: str) -> None:
    try:
        mix = parse_mix(text)
    except RequestError:
        return
    assert mix.lengths(8)[-1] <= mix.max_tokens


def test_a_shared_prefix_below_zero_is_refused() -> None:
    with pytest.raises(RequestError, match="--shared-prefix"):
        parse_mix(MIX, -1)


def test_lengths_have_the_quantiles_asked_for_and_their_logarithm_rises_evenly_between() -> None:
    lengths = parse_mix(MIX).lengths(100_000)
    assert lengths[0] == 2000  # what lies below the first counts as that long
    assert np.quantile(lengths, [0.5, 0.95, 1]) == pytest.approx([2000, 8000, 32_000], rel=1e-3)
    assert np.quantile(lengths, 0.725) == pytest.approx((2000 * 8000) ** 0.5, rel=1e-3)
    assert parse_mix("min=10,max=1000").lengths(1001)[500] == 100


def test_a_request_holds_whole_blocks_and_our_engine_sets_its_windows_aside() -> None:
    found = planned(OWN)
    sliding = found.kv.sliding_bytes_per_sequence
    assert sequence_bytes(found, OWN, 1) == 16 * FULL_TOKEN + sliding
    assert sequence_bytes(found, OWN, 16) == 16 * FULL_TOKEN + sliding
    assert sequence_bytes(found, OWN, 17) == 32 * FULL_TOKEN + sliding
    assert sequence_bytes(found, OWN, 32_768) == found.kv.bytes_per_sequence


def test_vllm_windows_grow_until_they_are_full() -> None:
    found = planned(VLLM)
    per_token = FULL_TOKEN + 15 * 2 * 256 * 2
    assert sequence_bytes(found, VLLM, 160) == 160 * per_token
    assert sequence_bytes(found, VLLM, 32_768) == found.kv.bytes_per_sequence


def test_vllm_blocks_of_small_tokens_have_more_of_them() -> None:
    """Gemma 4 12B: a full layer's token is a quarter of a sliding layer's, so that its block has 64 instead of 16."""
    found = planned(VLLM, "gemma-4-12B-it")
    full, sliding = 8 * 2 * 512 * 2, 40 * 2 * 8 * 256 * 2
    assert sequence_bytes(found, VLLM, 17) == 64 * full + 32 * sliding


@pytest.mark.parametrize("asked", [OWN, VLLM], ids=["gemwright", "vllm"])
@pytest.mark.parametrize("length", [1, 700, 32_768])
@pytest.mark.parametrize("num_users", [1, 7])
def test_requests_of_one_length_hold_exactly_their_number_times_it(
    asked: PlanSettings, length: int, num_users: int
) -> None:
    found = planned(asked)
    held = num_users * sequence_bytes(found, asked, length)
    use = load_use(same(length), found, asked, num_users, held)
    assert use.p50_bytes == use.p95_bytes == use.p99_bytes == use.largest_bytes == held
    assert use.preemption_probability == 0
    assert 0 < use.error < 0.001
    assert load_use(same(length), found, asked, num_users, held - 1).preemption_probability == 1
    assert users_for(same(length), found, asked, held) == num_users
    assert users_for(same(length), found, asked, held - 1) == num_users - 1


def test_a_shared_prefix_is_held_once_in_whole_blocks() -> None:
    found = planned(OWN)
    alone = load_use(same(1000), found, OWN, 5, GIB).largest_bytes
    # 100 tokens fill 6 blocks; 4 of the 5 users find them there.
    assert load_use(same(1000, 100), found, OWN, 5, GIB).largest_bytes == alone - 4 * 96 * FULL_TOKEN
    assert load_use(same(1000, 100), found, OWN, 5, GIB).p50_bytes == alone - 4 * 96 * FULL_TOKEN
    assert load_use(same(1000, 15), found, OWN, 5, GIB).largest_bytes == alone


def test_a_request_that_ends_inside_the_prefix_has_its_last_block_alone() -> None:
    """Lengths of 31 and 32 with a prefix of 32: both share a block or two, and the shorter one holds one of its own."""
    found = planned(OWN)
    mix = LoadMix(((0.5, 31), (1.0, 32)), 32)
    sliding = found.kv.sliding_bytes_per_sequence
    assert load_use(mix, found, OWN, 4, GIB).largest_bytes == 4 * sliding + (2 + 3) * 16 * FULL_TOKEN
    assert load_use(same(32, 32), found, OWN, 4, GIB).largest_bytes == 4 * sliding + 2 * 16 * FULL_TOKEN


def test_the_draw_agrees_with_what_can_be_worked_out() -> None:
    """Half the requests have 160 tokens and half 320: with 3 users more than 640 in 4 cases of 8."""
    found = planned(OWN)
    mix = parse_mix("p50=160,p50.0001=320,max=320")
    one, two = sequence_bytes(found, OWN, 160), sequence_bytes(found, OWN, 320)
    use = load_use(mix, found, OWN, 3, 2 * one + two)
    assert abs(use.preemption_probability - 0.5) < 1.5 * use.error
    assert use.error == pytest.approx(0.01, rel=0.01)
    assert use.largest_bytes == 3 * two
    assert use.p99_bytes == 3 * two
    assert use.p50_bytes in (2 * one + two, one + 2 * two)
    rare = load_use(mix, found, OWN, 3, one + 2 * two)
    assert abs(rare.preemption_probability - 0.125) < 1.5 * rare.error


def test_the_same_question_has_the_same_answer() -> None:
    found = planned(VLLM)
    assert load_use(parse_mix(MIX), found, VLLM, 20, GIB) == load_use(parse_mix(MIX), found, VLLM, 20, GIB)
    assert load_use(parse_mix(MIX), found, VLLM, 20, GIB).to_dict()["num_draws"] == NUM_DRAWS


MIXES = st.lists(st.integers(1, 32_768), min_size=1, max_size=4).map(
    lambda lengths: tuple((share, length) for share, length in zip((0.5, 0.9, 0.99, 1), sorted(lengths), strict=False))
)


@settings(max_examples=25, deadline=None)
@given(
    quantiles=MIXES,
    shared=st.integers(0, 5000),
    num_users=st.integers(1, 12),
    pool=st.integers(0, 1 << 30),
    asked=st.sampled_from([OWN, VLLM]),
)
def test_more_users_hold_more_and_a_shared_prefix_never_costs(
    quantiles: Any, shared: int, num_users: int, pool: int, asked: PlanSettings
) -> None:
    found = planned(asked)
    longest = quantiles[-1][1]
    mix = LoadMix((*quantiles[:-1], (1.0, longest)), min(shared, longest))
    plain = LoadMix(mix.quantiles)
    use, more = (load_use(mix, found, asked, number, pool) for number in (num_users, num_users + 1))
    alone = load_use(plain, found, asked, num_users, pool)
    for field in ("p50_bytes", "p95_bytes", "p99_bytes", "largest_bytes", "preemption_probability"):
        assert getattr(use, field) <= getattr(more, field)
        assert getattr(use, field) <= getattr(alone, field)
    assert use.p50_bytes <= use.p95_bytes <= use.p99_bytes <= use.largest_bytes


def test_users_for_is_the_last_number_below_the_chance() -> None:
    found = planned(VLLM)
    mix = parse_mix(MIX)
    users = users_for(mix, found, VLLM, GIB, 0.05)
    assert load_use(mix, found, VLLM, users, GIB).preemption_probability <= 0.05
    assert load_use(mix, found, VLLM, users + 1, GIB).preemption_probability > 0.05
    assert users_for(mix, found, VLLM, GIB, 0.0) <= users_for(mix, found, VLLM, GIB) <= users
    assert users_for(mix, found, VLLM, 0) == 0
    # More than if every request were the longest, fewer than if all were the shortest.
    assert GIB // sequence_bytes(found, VLLM, 32_000) < users < GIB // sequence_bytes(found, VLLM, 2000)


@pytest.mark.parametrize("probability", [-0.1, 1, float("nan")])
def test_a_chance_that_is_none_is_refused(probability: float) -> None:
    with pytest.raises(RequestError):
        users_for(same(10), planned(OWN), OWN, GIB, probability)


@pytest.mark.parametrize("num_users", [0, 10_001])
def test_numbers_of_users_out_of_range_are_refused(num_users: int) -> None:
    with pytest.raises(RequestError):
        load_use(same(10), planned(OWN), OWN, num_users, GIB)


def test_a_load_longer_than_the_plan_is_refused_with_the_flag() -> None:
    with pytest.raises(RequestError, match="longer than the plan") as caught:
        load_use(same(32_769), planned(OWN), OWN, 1, GIB)
    assert "--max-model-len 32769" in caught.value.remedy


@pytest.mark.parametrize("engine", ["llama.cpp", "ollama"])
def test_engines_that_reserve_slots_whole_have_no_distribution(engine: Any) -> None:
    asked = PlanSettings(engine=engine, max_model_len=4096)
    with pytest.raises(UnsupportedError, match="reserved whole"):
        load_use(same(100), planned(asked), asked, 1, GIB)


def test_a_plan_answers_for_its_mix() -> None:
    asked = PlanSettings(engine="vllm", max_model_len=32_768, max_num_seqs=8, memory_bytes=24 * GIB)
    found = make_plan(header_of("gemma-4-E4B-it"), asked, mix=parse_mix(MIX, 500))
    content = found.to_dict()["load"]
    assert content["num_users"] == 8
    assert content["pool_bytes"] == found.estimate.engine_facts["vllm"]["available_kv_bytes"]
    assert content["p50_bytes"] < content["p99_bytes"]
    assert content["max_users"] >= found.max_num_seqs
