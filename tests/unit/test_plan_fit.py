"""The inverse questions: the answer fits and one more does not, in few estimates; changes that make it fit; reasons."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import click
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gemwright.cli.options import Settings
from gemwright.cli.program import program
from gemwright.errors import RequestError, UnsupportedError
from gemwright.planner.answers import make_plan
from gemwright.planner.changes import cheapest_change
from gemwright.planner.compare import compare
from gemwright.planner.estimate import Estimate, KVFacts, KVGroupFacts, estimate
from gemwright.planner.fit import MOST_USERS, Fit, curve, held_bytes, largest, longest_context, marginal, most_users
from gemwright.planner.ledger import Ledger, Line
from gemwright.planner.placement import placement, sizes_that_work
from gemwright.planner.settings import PlanSettings
from gemwright.spec.model_header import ModelHeader
from tests.planned_models import GIB, header_of, spec_of

KIB = 1 << 10
SMALL = header_of("gemma-3-270m")
"""A context of 32,768 tokens."""


def simple(header: ModelHeader, settings: PlanSettings) -> Estimate:
    """An engine with 1 MiB of weights and 1 KiB for every token of every user; it refuses more than 900 users."""
    users, length = settings.max_num_seqs or 1, settings.max_model_len or 1000
    if users > 900:
        raise UnsupportedError("too many users")
    needed = 1024 * KIB + users * length * KIB
    group = KVGroupFacts("full", 1, 1, 256, None, KIB, length)
    ledger = Ledger((Line("weights: all", needed, "ram", "steady", "", ""),))
    return Estimate("gemwright", ledger, KVFacts((group,)), (), length, users, needed, {})


def test_answers_by_hand() -> None:
    settings = PlanSettings(max_model_len=100)
    assert longest_context(SMALL, settings, 1024 * KIB + 5000 * KIB + 1, simple) == 5000
    assert longest_context(SMALL, settings, 1024 * KIB + 5000 * KIB - 1, simple) == 4999
    assert most_users(SMALL, settings, 1024 * KIB + 5000 * KIB, simple) == 50
    gained = marginal(SMALL, settings, 1024 * KIB + 5000 * KIB, 1000 * KIB, simple)
    assert (gained.num_more_context_tokens, gained.num_more_users) == (1000, 10)


def test_nothing_fits_and_all_fits() -> None:
    settings = PlanSettings(max_model_len=100)
    assert longest_context(SMALL, settings, 1024 * KIB, simple) == 0
    assert most_users(SMALL, settings, 1024 * KIB, simple) == 0
    assert longest_context(SMALL, settings, 1 << 60, simple) == SMALL.spec.max_context


def test_what_an_engine_refuses_bounds_the_answer() -> None:
    assert most_users(SMALL, PlanSettings(max_model_len=1), 1 << 60, simple) == 900


@pytest.mark.parametrize(("version", "limit"), [(None, 256), ("2025-08", 64)])
def test_llama_server_has_no_more_slots_than_it_allows(version: str | None, limit: int) -> None:
    asked = PlanSettings(engine="llama.cpp", engine_version=version, max_model_len=256)
    assert most_users(SMALL, asked, 1 << 50) == limit


def test_counting_users_stops_at_a_million() -> None:
    assert most_users(SMALL, PlanSettings(max_model_len=16), 1 << 50) == MOST_USERS


def test_settings_that_are_wrong_are_refused_and_not_answered_with_0() -> None:
    with pytest.raises(RequestError):
        longest_context(SMALL, PlanSettings(max_model_len=SMALL.spec.max_context + 1), GIB)


def test_curve_has_powers_of_two_and_ends_with_the_context_or_with_nobody() -> None:
    settings = PlanSettings(max_model_len=100)
    room = 1024 * KIB + 40_000 * KIB
    assert curve(SMALL, settings, room, simple) == (
        (1024, 39), (2048, 19), (4096, 9), (8192, 4), (16_384, 2), (32_768, 1)
    )  # fmt: skip
    assert curve(SMALL, settings, 1024 * KIB + 3000 * KIB, simple)[-2:] == ((2048, 1), (4096, 0))


def test_a_pool_of_fixed_size_bounds_both_answers() -> None:
    settings = PlanSettings(max_model_len=100, kv_cache_memory_bytes=1000 * KIB)
    assert longest_context(SMALL, settings, 1 << 60, simple) == 1000
    assert most_users(SMALL, settings, 1 << 60, simple) == 10


@given(
    limit=st.integers(1, 2_000_000),
    base=st.integers(0, 1 << 30),
    rate=st.integers(1, 1 << 20),
    extra=st.integers(0, 1 << 20),
    window=st.integers(0, 1 << 16),
    step=st.sampled_from([1, 16, 256]),
    refused_from=st.integers(1, 2_000_000),
    budget=st.integers(0, 1 << 41),
)
@example(limit=2, base=0, rate=1, extra=0, window=0, step=1, refused_from=9, budget=1)
@example(limit=1_000_000, base=0, rate=1, extra=0, window=0, step=256, refused_from=700_001, budget=1 << 40)
def test_search_finds_the_edge_of_any_line_with_kinks_and_steps(
    limit: int, base: int, rate: int, extra: int, window: int, step: int, refused_from: int, budget: int
) -> None:
    seen: set[int] = set()

    def size(number: int) -> int | None:
        seen.add(number)
        whole = -(-number // step) * step
        return None if number >= refused_from else base + rate * whole + extra * min(whole, window)

    found = largest(size, limit, budget)
    assert len(seen) <= 4 + 3 * math.log2(limit)
    for number, fits in ((found, True), (found + 1, False)):
        if 1 <= number <= limit:
            held = size(number)
            assert (held is not None and held <= budget) is fits


REAL = [
    ("gemma-3-270m", {}),
    ("gemma-4-E4B-it", {"max_num_seqs": 4}),
    ("gemma-4-31B-it", {"engine": "vllm"}),
    ("gemma-4-26B-A4B-it", {"engine": "llama.cpp", "ctx_size": 65_536, "parallel": 4}),
    ("gemma-3-27b-it", {"engine": "ollama", "quantization": "q4_0", "max_num_seqs": 2}),
]


@pytest.mark.parametrize(("name", "asked"), REAL, ids=lambda value: value if isinstance(value, str) else "")
def test_real_answers_are_tight_and_take_few_estimates(name: str, asked: dict[str, Any]) -> None:
    header, settings = header_of(name), PlanSettings(**asked)
    planned = estimate(header, settings)
    budget = planned.needed_bytes + planned.needed_bytes // 10
    fit = Fit(header, settings)
    context, users = fit.longest_context(budget), fit.most_users(budget)
    assert context >= planned.max_model_len
    assert users >= (settings.parallel or settings.max_num_seqs or 1)
    fit.curve(budget)
    fit.marginal(budget)
    assert fit.num_estimates < 150  # of a millisecond or less
    plain = replace(settings, ctx_size=None)
    if context < header.spec.max_context:
        assert estimate(header, replace(plain, max_model_len=context)).needed_bytes <= budget
        assert estimate(header, replace(plain, max_model_len=context + 1)).needed_bytes > budget
    plain = replace(plain, parallel=None, max_model_len=planned.max_model_len)
    assert estimate(header, replace(plain, max_num_seqs=users)).needed_bytes <= budget
    assert estimate(header, replace(plain, max_num_seqs=users + 1)).needed_bytes > budget


@pytest.mark.parametrize("memory", [28, 30, 33, 40, 80])
@pytest.mark.parametrize("share", [None, 0.8])
def test_vllm_share_is_counted_once(memory: int, share: float | None) -> None:
    """Whether it fits, how long and how many agree with vLLM's own count of blocks in its share of the memory."""
    asked = PlanSettings(
        engine="vllm", max_model_len=8192, memory_bytes=memory * GIB, gpu_memory_utilization=share, max_num_seqs=1
    )
    planned = make_plan(header_of("gemma-4-12B-it"), asked)
    facts = planned.estimate.engine_facts["vllm"]
    assert planned.fits is (facts["max_concurrency"] >= 1)
    # A larger number of requests has a larger step of sampling, so that a few fewer may fit.
    assert planned.max_num_seqs <= int(facts["max_concurrency"]) <= planned.max_num_seqs + 2
    assert planned.max_context_tokens == facts["max_model_len_that_fits"]


@pytest.mark.parametrize(("available", "fits"), [(9 * GIB, False), (15 * GIB, True)])
def test_vllm_with_its_bytes_for_kv_fits_when_they_hold_a_request(available: int, fits: bool) -> None:
    asked = PlanSettings(engine="vllm", max_model_len=131_072, available_kv_bytes=available)
    planned = make_plan(header_of("gemma-4-31B-it"), asked)
    facts = planned.estimate.engine_facts["vllm"]
    assert (facts["max_concurrency"] >= 1) is fits
    # Without a memory there is no verdict, but a pool that holds no request fits in none.
    assert planned.fits is (None if fits else False)
    assert (planned.pool_reason is None) is fits
    assert planned.max_context_tokens == facts["max_model_len_that_fits"]
    assert planned.max_num_seqs == int(facts["max_concurrency"])
    assert planned.pool_bytes == available


CHANGES: list[tuple[str, dict[str, Any], float, list[str]]] = [
    (
        "gemma-3-27b-it",
        {"engine": "llama.cpp", "max_model_len": 32_768, "quantization": "q4_0", "swa_full": True},
        20,
        ["without --swa-full", "--max-model-len", "--tensor-parallel-size 2"],
    ),
    (
        "gemma-3-27b-it",
        {"engine": "llama.cpp", "ctx_size": 65_536, "parallel": 4, "quantization": "q4_0"},
        20,
        ["--max-num-seqs", "--max-model-len", "--cache-type-k q8_0 --cache-type-v q8_0", "--tensor-parallel-size 2"],
    ),
    (
        "gemma-3-4b-it",
        {"engine": "ollama", "max_model_len": 131_072, "max_num_seqs": 4},
        17,
        ["--max-num-seqs", "--max-model-len", "--cache-type-k q8_0 --cache-type-v q8_0", "--quantization q8_0"],
    ),
    (
        "gemma-4-E4B-it",
        {"max_model_len": 131_072, "dtype": "float32", "memory_bytes": 24 * GIB, "kernels": "reference"},
        24,
        ["--dtype bfloat16"],
    ),
    (
        "gemma-4-12B-it",
        {"engine": "vllm", "max_model_len": 8192, "gpu_memory_utilization": 0.9},
        28,
        ["--in-flight-batches 1", "--max-num-batched-tokens 1024", "--max-model-len", "--kv-cache-dtype fp8",
         "--quantization fp8", "--tensor-parallel-size 2"],
    ),
]  # fmt: skip


def read_by_the_command_line(flags: str) -> None:
    """Parse with the verb itself what is to be added, and what is to be left out."""
    added, _, gone = flags.partition("without ")
    plan = program.get_command(click.Context(program), "plan")
    assert plan is not None
    plan.make_context("plan", added.split(), obj=Settings()).close()
    known = {name for parameter in plan.params for name in (*parameter.opts, *parameter.secondary_opts)}
    assert set(gone.replace(" and ", " ").split()) <= known


@pytest.mark.parametrize(("name", "asked", "memory", "starts"), CHANGES)
def test_changes_fit_and_come_in_the_order_of_what_they_cost(
    name: str, asked: dict[str, Any], memory: int, starts: list[str]
) -> None:
    header, settings = header_of(name), PlanSettings(**asked)
    before = held_bytes(estimate(header, settings), settings)
    found = cheapest_change(header, settings, memory * GIB)
    assert len(found) == len(starts)
    for change, start in zip(found, starts, strict=True):
        assert change.flags.startswith(start)
        assert change.total_bytes <= memory * GIB < before
        assert change.saved_bytes == before - change.total_bytes
        assert change.cost
        read_by_the_command_line(change.flags)


def test_our_engine_is_never_offered_what_it_lacks() -> None:
    settings = PlanSettings(
        max_model_len=32_768, kv_layout="both", dtype="float32", max_num_seqs=4, kernels="reference"
    )
    found = [
        change.flags.split()[0]
        for gib in range(30, 130, 5)
        for change in cheapest_change(header_of("gemma-4-31B-it"), settings, gib * GIB)
    ]
    known = {"--kv-layout", "--max-num-batched-tokens", "--kv-cache-memory-bytes", "--max-num-seqs"}
    assert {"--dtype"} <= set(found) <= known | {"--max-model-len", "--dtype"}


def test_keys_are_rebuilt_from_values_before_anything_is_given_up() -> None:
    header = header_of("gemma-4-31B-it")
    settings = PlanSettings(max_model_len=65_536, kv_layout="both", max_num_seqs=2)
    both = held_bytes(estimate(header, settings), settings)
    (first, *_) = cheapest_change(header, settings, both - 1)
    assert first.flags == "--kv-layout auto"
    # 2 users, 10 full layers of 4 heads of 512: 2 bytes a value of K.
    assert first.saved_bytes == pytest.approx(2 * 65_536 * 10 * 4 * 512 * 2, rel=1e-3)


def test_nothing_is_offered_where_no_single_change_is_enough() -> None:
    assert cheapest_change(header_of("gemma-4-31B-it"), PlanSettings(), GIB) == ()


def test_two_models_differ_by_fields_of_their_specs() -> None:
    settings = PlanSettings(max_model_len=8192, memory_bytes=80 * GIB)
    found = compare([make_plan(header_of(name), settings) for name in ("gemma-4-E4B-it", "gemma-4-12B-it")])
    reasons = {reasoned.difference.name: reasoned.reason for reasoned in found.differences}
    sliding = next(reason for name, reason in reasons.items() if "sliding" in name)
    full = next(reason for name, reason in reasons.items() if "full" in name)
    assert "sliding layers with a cache 20 -> 40" in sliding
    assert "window 512 -> 1024" in sliding
    assert "K/V heads of full layers 2 -> 1" in full
    assert "two projections -> one projection" in full
    assert reasons["weights: embedding"] == "hidden size 2560 -> 3840"
    assert "per-layer width 42 x 256 -> none" in reasons["weights: per layer embedding"]
    before, after = found.models
    change = after.plan.ledger.steady_bytes() - before.plan.ledger.steady_bytes()
    rows = [reasoned.difference for reasoned in found.differences]
    steady = [
        row for row in rows if (line := row.after or row.before) and (line.phase, line.place) == ("steady", "ram")
    ]
    assert sum(row.change_bytes for row in steady) == change
    assert before.longest_context == 131_072
    assert after.to_dict()["max_num_seqs"] == after.most_users > 0


def test_one_model_under_two_settings_differs_by_the_flag() -> None:
    header = header_of("gemma-4-12B-it")
    plain = PlanSettings(engine="vllm", max_model_len=8192)
    found = compare([make_plan(header, plain), make_plan(header, replace(plain, kv_cache_dtype="fp8"))])
    assert [(row.difference.name.partition(":")[0], row.reason) for row in found.differences] == [
        ("K/V cache", "--kv-cache-dtype auto -> fp8")
    ]
    assert found.models[0].longest_context is None


def test_three_models_stand_side_by_side_without_differences() -> None:
    columns = [
        make_plan(header_of(name), PlanSettings(max_model_len=512)) for name in ("gemma-3-270m", "gemma-3-1b-it")
    ]
    found = compare([*columns, columns[0]])
    assert len(found.to_dict()["models"]) == 3
    assert found.differences == ()


def test_placement_by_hand() -> None:
    """Gemma 4 12B: 16 query heads; 40 sliding layers with 8 K/V heads of 256, 8 full ones with 1 of 512."""
    found = placement(spec_of("gemma-4-12B-it"), 4)
    sliding, full = found.kinds
    assert (sliding.num_query_heads, sliding.num_kv_heads, sliding.num_copies) == (4, 2, 1)
    assert sliding.replicated_token_bytes == 0
    assert (full.num_query_heads, full.num_kv_heads, full.num_copies) == (4, 1, 4)
    assert full.replicated_token_bytes == 3 * 8 * 512 * 2 * 2
    assert full.replicated_weights == 3 * 8 * 512 * 3840  # one projection: K equals V
    assert found.replicated_token_bytes == full.replicated_token_bytes


def test_layers_that_share_own_nothing_to_place() -> None:
    found = placement(spec_of("gemma-4-E4B-it"), 1)
    assert sorted((kind.kind, kind.num_layers) for kind in found.kinds) == [("full", 4), ("sliding", 20)]


def test_a_size_that_does_not_divide_is_refused_with_those_that_do() -> None:
    with pytest.raises(UnsupportedError) as caught:
        placement(spec_of("gemma-4-12B-it"), 3)
    assert str(caught.value.value).startswith("3, with 16 query heads")
    assert caught.value.limit == "1, 2, 4, 8, 16"
    assert sizes_that_work(spec_of("gemma-3-270m")) == (1, 2, 4)
    with pytest.raises(RequestError):
        placement(spec_of("gemma-3-270m"), 0)


@pytest.mark.parametrize("make", [longest_context, most_users])
def test_more_memory_never_buys_less(make: Callable[..., int]) -> None:
    header, settings = header_of("gemma-4-E4B-it"), PlanSettings(engine="vllm", max_model_len=4096)
    answers = [make(header, settings, gib * GIB) for gib in range(12, 40, 2)]
    assert answers == sorted(answers)
    assert answers[0] < answers[-1]
