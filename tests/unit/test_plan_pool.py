"""K/V pools of a fixed size: the verdict says what the engine does with one that is too small for what was asked."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gemwright.cli.plan import _require_fit
from gemwright.cli.plan.show import _answers, _head
from gemwright.config import EngineConfig
from gemwright.errors import CapacityError
from gemwright.memory.engine_plan import plan_memory
from gemwright.planner.answers import Plan, make_plan
from gemwright.planner.report import report
from gemwright.planner.settings import PlanSettings
from tests.planned_models import GIB, MIB, header_of

POOLED = PlanSettings(max_model_len=65_536, memory_bytes=80 * GIB)
ONE = 97 * 16 * 40 * 8 * 256 * 4 + 65_536 * 8 * 512 * 2
"""Gemma 4 12B at 65,536 tokens: 40 sliding layers, 97 blocks of 16 tokens (1,023 before, 512 of a step, both ends), K
and V of 8 heads of 256; 8 full layers, V alone of one head of 512."""


def report_of(planned: Plan) -> str:
    return report(planned, date="2026-12-03", machine="any", bar="bar.svg", curve=None, load_test=None)


@pytest.mark.parametrize("memory", [None, 80 * GIB])
def test_a_pool_that_holds_no_request_of_the_length_does_not_fit(memory: int | None) -> None:
    """In whatever memory the engine refuses to start, as memory.engine_plan does; with no length it would lower it."""
    asked = replace(POOLED, memory_bytes=memory, kv_cache_memory_bytes=ONE - 1)
    header = header_of("gemma-4-12B-it")
    planned = make_plan(header, asked)
    config = EngineConfig(max_model_len=65_536, kv_cache_memory_bytes=ONE - 1)
    with pytest.raises(CapacityError, match="cannot hold one request of 65536 tokens"):
        plan_memory(header.spec, config, stored_dtype="bfloat16", free_bytes=0)
    lowered = plan_memory(
        header.spec, replace(config, max_model_len=None), stored_dtype="bfloat16", free_bytes=0
    ).max_model_len
    # One block of 16 tokens less.
    assert lowered == 65_520
    assert planned.fits is False
    assert not planned.is_close
    assert planned.max_context_tokens == lowered
    assert planned.max_num_seqs == 0
    assert planned.pool_reason is not None
    assert planned.pool_reason.startswith("the engine would refuse to start: a K/V pool of")
    assert planned.pool_reason.endswith(
        "without --max-model-len it would lower the context to the 65,520 tokens that it holds"
    )
    assert f"NO: {planned.pool_reason}" in dict(_answers(planned)).values()
    assert f"**It does NOT fit: {planned.pool_reason}.**" in report_of(planned)
    assert planned.to_dict()["fits_not_because"] == planned.pool_reason


def test_asking_that_it_fits_names_the_pool_and_not_the_memory() -> None:
    asked = replace(POOLED, kv_cache_memory_bytes=ONE - 1)
    with pytest.raises(CapacityError, match="does not fit: the engine would refuse to start: a K/V pool of") as caught:
        _require_fit(make_plan(header_of("gemma-4-12B-it"), asked))
    assert caught.value.exit_code == 4


def test_a_pool_that_holds_one_request_fits() -> None:
    planned = make_plan(header_of("gemma-4-12B-it"), replace(POOLED, kv_cache_memory_bytes=ONE))
    assert planned.estimate.kv.bytes_per_sequence == ONE
    assert (planned.fits, planned.pool_reason, planned.lowered_from) == (True, None, None)
    assert dict(_answers(planned))["fits"].startswith("yes: ")


def test_a_pool_for_fewer_requests_than_asked_names_how_many_it_holds() -> None:
    asked = replace(POOLED, max_num_seqs=4, kv_cache_memory_bytes=3 * ONE)
    planned = make_plan(header_of("gemma-4-12B-it"), asked)
    assert planned.fits is False
    assert planned.max_num_seqs == 3
    assert "holds 3 of 4 requests of 65,536 tokens at once" in (planned.pool_reason or "")
    (head,) = (text for name, text in _head(planned) if name == "planned for")
    assert head == "4 requests of 65,536 tokens, of which the K/V pool holds 3 at once"


@pytest.mark.parametrize("memory", [None, 80 * GIB])
def test_a_pool_that_is_too_small_is_made_to_fit_by_a_larger_one(memory: int | None) -> None:
    asked = replace(POOLED, memory_bytes=memory, max_num_seqs=4, kv_cache_memory_bytes=3 * ONE)
    header = header_of("gemma-4-12B-it")
    planned = make_plan(header, asked)
    wanted = -(-4 * ONE // MIB)
    first, *others = planned.changes
    assert first.flags == f"--kv-cache-memory-bytes {wanted}MiB"
    assert "the pool holds 4 requests of 65,536 tokens at once" in first.cost
    assert f"{first.flags}  takes " in first.describe()
    assert first.describe() in dict(_answers(planned))["to make it fit"]
    then = make_plan(header, replace(asked, kv_cache_memory_bytes=wanted * MIB))
    assert then.fits is not False
    assert then.ledger.total_bytes == first.total_bytes == planned.ledger.total_bytes - first.saved_bytes
    assert {change.flags for change in others} >= {"--max-num-seqs 3"}


def test_a_pool_that_no_memory_would_hold_is_not_offered() -> None:
    asked = replace(POOLED, memory_bytes=30 * GIB, max_num_seqs=400, kv_cache_memory_bytes=3 * ONE)
    planned = make_plan(header_of("gemma-4-12B-it"), asked)
    assert planned.fits is False
    assert not any("--kv-cache-memory-bytes" in change.flags for change in planned.changes)


def test_a_pool_without_a_length_lowers_the_context_and_says_to_how_much() -> None:
    planned = make_plan(header_of("gemma-4-12B-it"), replace(POOLED, max_model_len=None, kv_cache_memory_bytes=ONE))
    assert (planned.fits, planned.lowered_from, planned.estimate.max_model_len) == (True, 262_144, 65_536)
    start = "yes with the context lowered from 262,144 to the 65,536 tokens that the K/V pool holds: "
    assert dict(_answers(planned))["fits"].startswith(start)
    assert planned.to_dict()["context_lowered_from"] == 262_144


def test_a_pool_without_room_for_one_block_is_too_small_for_any_length() -> None:
    planned = make_plan(header_of("gemma-4-12B-it"), replace(POOLED, max_model_len=None, kv_cache_memory_bytes=1 << 20))
    assert planned.fits is False
    assert planned.max_context_tokens == 0
    assert "nor one of any length" in (planned.pool_reason or "")


def test_a_length_beyond_the_engines_own_share_fits_with_a_pool_that_is_asked_for() -> None:
    """Gemma 3 4B at its whole context in 11 GiB: weights and one request fit, but a quarter of what is free is less."""
    header = header_of("gemma-3-4b-it")
    asked = PlanSettings(max_model_len=131_072, memory_bytes=11 * GIB, kernels="reference")
    planned = make_plan(header, asked)
    assert planned.fits is True
    assert planned.estimate.is_refused
    assert planned.pool_to_ask_for == planned.estimate.kv.bytes_per_sequence
    assert f"yes with --kv-cache-memory-bytes {planned.pool_to_ask_for} " in dict(_answers(planned))["fits"]
    given = make_plan(header, replace(asked, kv_cache_memory_bytes=planned.pool_to_ask_for))
    assert (given.fits, given.estimate.is_refused, given.pool_to_ask_for) == (True, False, None)
