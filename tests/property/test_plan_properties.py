"""What holds for every plan of our own engine: lines add up, nothing falls as more is asked, and answers are tight."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from gemwright.planner.answers import make_plan
from gemwright.planner.estimate import Estimate, estimate
from gemwright.planner.fit import Fit, with_length_and_users
from gemwright.planner.settings import PlanSettings
from gemwright.spec.model_header import ModelHeader
from tests.planned_models import GIB, header_of

NAMES = (
    "gemma-2-2b", "gemma-3-270m", "gemma-3-27b-it", "gemma-4-E2B-it", "gemma-4-E4B-it", "gemma-4-12B-it",
    "gemma-4-26B-A4B-it", "gemma-4-31B-it",
)  # fmt: skip
HEADERS = st.sampled_from(NAMES).map(header_of)
BLOCKS = st.sampled_from([1, 4, 16, 64, 256])
WHILE_IT_RUNS = ("K/V cache", "workspace", "host")
"""What is not there yet while the model is loaded."""
LENGTHS = st.one_of(st.integers(1, 2000), st.integers(1, 8192))
"""All models of the table have at least this much context."""


@st.composite
def asked(draw: Any, **fixed: Any) -> PlanSettings:
    values = {
        "max_model_len": draw(LENGTHS),
        "max_num_seqs": draw(st.integers(1, 64)),
        "max_num_batched_tokens": draw(st.one_of(st.none(), st.integers(1, 4096))),
        "block_size": draw(BLOCKS),
        "dtype": draw(st.sampled_from(["auto", "bfloat16", "float32"])),
        "kv_layout": draw(st.sampled_from(["auto", "both", "v"])),
        "memory_bytes": draw(st.one_of(st.none(), st.integers(GIB, 200 * GIB))),
    }
    return PlanSettings(**{**values, **fixed})


def kv_bytes(header: ModelHeader, given: PlanSettings) -> int:
    return estimate(header, given).kv.bytes_per_sequence


@settings(max_examples=60, deadline=None)
@given(HEADERS, asked())
def test_totals_are_the_sums_of_lines(header: ModelHeader, given: PlanSettings) -> None:
    found = estimate(header, given)
    lines = [line for line in found.ledger.lines if line.place == found.ledger.place]
    steady, load, step = (
        sum(line.size_bytes for line in lines if line.phase == phase) for phase in ("steady", "load", "step")
    )
    not_yet = sum(line.size_bytes for line in lines if line.phase == "steady" and line.section in WHILE_IT_RUNS)
    assert found.ledger.steady_bytes() == steady
    assert found.ledger.total_bytes == max(steady + step, steady - not_yet + load)
    assert all(line.size_bytes >= 0 and line.error_bytes >= 0 for line in found.ledger.lines)
    sections = found.ledger.sections()
    assert sum(len(found.ledger.select(section)) for section in sections) == len(found.ledger.lines)
    held = sum(line.size_bytes for line in found.ledger.select("weights"))
    assert held == sum(part.size_bytes for part in found.weights if part.name not in ("vision", "audio", "projector"))


@settings(max_examples=60, deadline=None)
@given(HEADERS, asked(memory_bytes=None))
def test_a_pool_for_all_users_is_their_number_times_one_request(header: ModelHeader, given: PlanSettings) -> None:
    found = estimate(header, given)
    pool = sum(line.size_bytes for line in found.ledger.select("K/V cache"))
    assert pool == found.max_num_seqs * found.kv.bytes_per_sequence
    assert found.needed_bytes == found.ledger.total_bytes


@settings(max_examples=60, deadline=None)
@given(HEADERS, asked(), st.integers(1, 2000))
def test_kv_is_a_line_in_the_length_once_windows_are_full(header: ModelHeader, given: PlanSettings, more: int) -> None:
    """Beyond the window and a step, each block of tokens costs what it costs in the full layers, and nothing else."""
    block = given.block_size or 16
    window = max(layer.window or 0 for layer in header.spec.layers)
    start = window + (given.max_num_batched_tokens or 512) + 3 * block
    start += -start % block
    longer = start + more * block
    assume(longer <= header.spec.max_context)
    found = estimate(header, replace(given, max_model_len=start))
    change = kv_bytes(header, replace(given, max_model_len=longer)) - found.kv.bytes_per_sequence
    assert change == more * block * found.kv.bytes_per_token_full
    # Within a block a token more is free.
    assert kv_bytes(header, replace(given, max_model_len=longer - block + 1)) == found.kv.bytes_per_sequence + change


@settings(max_examples=60, deadline=None)
@given(HEADERS, asked(), st.integers(1, 8192), st.integers(1, 64))
def test_longer_and_more_never_need_less(header: ModelHeader, given: PlanSettings, length: int, users: int) -> None:
    base = estimate(header, given)
    longer = estimate(header, replace(given, max_model_len=max(length, base.max_model_len)))
    more = estimate(header, replace(given, max_num_seqs=max(users, base.max_num_seqs)))
    assert longer.kv.bytes_per_sequence >= base.kv.bytes_per_sequence
    assert more.kv.bytes_per_sequence == base.kv.bytes_per_sequence
    if given.memory_bytes is None:
        # Below a limit records of blocks follow the pool that the limit gives, and may fall by a few KiB.
        assert longer.needed_bytes >= base.needed_bytes
        assert more.needed_bytes >= base.needed_bytes


@settings(max_examples=60, deadline=None)
@given(HEADERS, asked())
def test_larger_blocks_never_hold_less(header: ModelHeader, given: PlanSettings) -> None:
    sizes = [kv_bytes(header, replace(given, block_size=block)) for block in (1, 2, 4, 16, 64, 256, 1024)]
    assert sizes == sorted(sizes)


@settings(max_examples=40, deadline=None)
@given(HEADERS, asked(memory_bytes=None), st.floats(0.5, 3))
@example(header_of("gemma-4-E4B-it"), PlanSettings(max_num_seqs=3, max_model_len=100), 1.0)
def test_answers_are_tight(header: ModelHeader, given: PlanSettings, factor: float) -> None:
    budget = int(estimate(header, given).needed_bytes * factor)
    fit = Fit(header, given)

    def needed(length: int, users: int) -> int:
        return estimate(header, with_length_and_users(given, length, users)).needed_bytes

    users, length = fit.planned.max_num_seqs, fit.planned.max_model_len
    longest, most = fit.longest_context(budget), fit.most_users(budget)
    assert longest == 0 or needed(longest, users) <= budget
    assert longest == header.spec.max_context or needed(longest + 1, users) > budget
    assert most == 0 or needed(length, most) <= budget
    assert needed(length, most + 1) > budget
    assert (longest >= length) == (most >= users) == (factor >= 1 or needed(length, users) <= budget)


@settings(max_examples=25, deadline=None)
@given(HEADERS, asked(), st.integers(1, 200))
def test_a_plan_agrees_with_itself(header: ModelHeader, given: PlanSettings, gib: int) -> None:
    """Whether it fits, the answers, the curve and the changes say the same."""
    found = make_plan(header, replace(given, memory_bytes=gib * GIB))
    serves = found.estimate.needed_bytes <= gib * GIB
    assert (found.max_context_tokens >= found.estimate.max_model_len) == serves
    assert (found.max_num_seqs >= found.estimate.max_num_seqs) == serves
    if found.fits:
        assert serves
        assert found.changes == ()
    users = [count for _, count in found.curve]
    assert users == sorted(users, reverse=True)
    for change in found.changes:
        assert change.total_bytes <= gib * GIB
        assert change.saved_bytes > 0
    gain = found.marginal
    assert gain is not None
    assert gain.num_more_context_tokens >= 0
    assert gain.num_more_users >= 0


def test_the_estimate_of_a_pool_with_room_for_one_is_that_of_one() -> None:
    def plan(**values: Any) -> Estimate:
        return estimate(header_of("gemma-4-E4B-it"), PlanSettings(max_model_len=1000, **values))

    one = plan(max_num_seqs=1)
    pool = plan(max_num_seqs=1, kv_cache_memory_bytes=one.kv.bytes_per_sequence)
    assert pool.ledger.total_bytes == one.ledger.total_bytes
