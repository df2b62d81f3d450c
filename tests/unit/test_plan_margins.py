"""Answers that agree with each other: margins in all of them, K/V bytes given beside a memory named, columns side by
side that each have their own memory, and changes that do what they say when they are asked for."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from gemwright.cli.plan import _require_fit
from gemwright.cli.plan.show import _answers
from gemwright.errors import CapacityError, RequestError
from gemwright.planner.answers import Plan, known_engine, make_plan, show_fact, unknown_engine
from gemwright.planner.compare import compare
from gemwright.planner.devices import find_device
from gemwright.planner.estimate import estimate
from gemwright.planner.load import parse_mix
from gemwright.planner.margins import cache_bytes, estimate_with_margin
from gemwright.planner.report import settings_text
from gemwright.planner.settings import PlanSettings
from tests.planned_models import GIB, MIB, header_of

LARGE, SMALL = header_of("gemma-4-31B-it"), header_of("gemma-4-E4B-it")
VLLM = PlanSettings(engine="vllm", max_model_len=8192)
WITH_MARGIN = PlanSettings(margin={"weights": 1.1, "kv": 1.5}, memory_bytes=80 * GIB)
NEWCOMER = PlanSettings(memory_bytes=16 * GIB)


def around_bytes(planned: Plan) -> int:
    return planned.ledger.total_bytes - cache_bytes(planned.ledger)


# K/V bytes given to vLLM, and the memory they must fit into


def test_bytes_for_kv_and_all_around_them_are_compared_with_the_memory_named() -> None:
    planned = make_plan(LARGE, replace(VLLM, available_kv_bytes=100 * GIB, memory_bytes=10 * GIB))
    assert planned.estimate.weights_bytes > 58 * GIB
    assert planned.held_bytes == pytest.approx(around_bytes(planned) + 100 * GIB, abs=4 * MIB)
    assert planned.fits is False
    assert (planned.max_context_tokens, planned.max_num_seqs) == (0, 0)
    with pytest.raises(CapacityError) as caught:
        _require_fit(planned)
    assert caught.value.exit_code == 4
    assert caught.value.limit == "10.00 GiB allowed"


def test_bytes_for_kv_fit_where_the_memory_holds_them_and_the_weights() -> None:
    # From 70 GiB on vLLM's defaults are larger ones, so that they are named here.
    asked = replace(VLLM, available_kv_bytes=20 * GIB, max_num_batched_tokens=2048, max_num_seqs=4)
    held = make_plan(LARGE, asked).held_bytes
    fits = [make_plan(LARGE, replace(asked, memory_bytes=memory)).fits for memory in (held - 1, held, held + 1)]
    assert fits == [False, True, True]


def test_a_device_is_a_memory_named() -> None:
    planned = make_plan(LARGE, replace(VLLM, available_kv_bytes=20 * GIB, device=find_device("T4")))
    assert (planned.memory_bytes, planned.fits) == (find_device("T4").memory_bytes, False)


def test_bytes_for_kv_without_a_memory_have_no_verdict() -> None:
    planned = make_plan(LARGE, replace(VLLM, available_kv_bytes=100 * GIB))
    content = planned.to_dict()
    assert (content["fits"], content["memory_bytes"], content["spare_bytes"]) == (None, None, None)
    assert "fits" not in dict(_answers(planned))
    assert planned.max_num_seqs == int(content["vllm"]["max_concurrency"])


def test_bytes_for_kv_that_hold_no_request_fit_in_no_memory() -> None:
    for memory in (None, 200 * GIB):
        planned = make_plan(LARGE, PlanSettings(engine="vllm", available_kv_bytes=5 * GIB, memory_bytes=memory))
        longest = planned.estimate.engine_facts["vllm"]["max_model_len_that_fits"]
        assert planned.fits is False
        assert f"it holds one of {longest:,} (raise --kv-cache-memory-bytes)" in (planned.pool_reason or "")
        assert planned.max_context_tokens == longest


def test_smaller_bytes_for_kv_are_offered_where_they_are_what_is_too_much() -> None:
    asked = replace(VLLM, available_kv_bytes=40 * GIB, memory_bytes=80 * GIB)
    (change, *_) = (change for change in make_plan(LARGE, asked).changes if "--kv-cache" in change.flags)
    size = int(change.flags.removeprefix("--kv-cache-memory-bytes ").removesuffix("MiB")) * MIB
    then = make_plan(LARGE, replace(asked, available_kv_bytes=size))
    assert (then.fits, then.held_bytes) == (True, change.total_bytes)


# Margins


@pytest.mark.parametrize("users", [None, 1, 3])
@pytest.mark.parametrize("engine", ["gemwright", "vllm", "llama.cpp"])
def test_answers_under_a_margin_are_tight(engine: Any, users: int | None) -> None:
    """What is said to fit fits when it is asked for, and a token or a user more does not."""
    asked = replace(WITH_MARGIN, engine=engine, max_model_len=4096, max_num_seqs=users, memory_bytes=110 * GIB)
    planned = make_plan(LARGE, asked)
    longest, most = planned.max_context_tokens, planned.max_num_seqs
    assert longest > 4096
    assert most >= (users or 1)

    def needed(**changed: int) -> int:
        return estimate_with_margin(LARGE, replace(asked, **changed)).needed_bytes

    budget = asked.memory_bytes or 0
    assert needed(max_model_len=longest) <= budget
    assert longest == LARGE.spec.max_context or needed(max_model_len=longest + 1) > budget
    assert needed(max_num_seqs=most) <= budget < needed(max_num_seqs=most + 1)


def test_the_pool_of_the_engine_itself_does_not_shorten_what_one_user_may_ask() -> None:
    """The longest context is one answer, whether one user is named or left to be the default of that question."""
    unasked, one = make_plan(LARGE, WITH_MARGIN), make_plan(LARGE, replace(WITH_MARGIN, max_num_seqs=1))
    assert unasked.max_context_tokens == one.max_context_tokens > 250_000
    assert make_plan(LARGE, replace(WITH_MARGIN, max_num_seqs=1, max_model_len=250_000)).fits is True


def test_margins_by_hand() -> None:
    """Weights and K/V grow by their factors, what is needed by that of the requests asked for alone."""
    asked = PlanSettings(max_model_len=4096, max_num_seqs=2, memory_bytes=200 * GIB)
    plain, more = make_plan(LARGE, asked), make_plan(LARGE, replace(asked, margin=WITH_MARGIN.margin))
    weights, pool = plain.estimate.ledger.select("weights"), 2 * plain.estimate.kv.bytes_per_sequence
    added = sum(line.size_bytes for line in weights) // 10 + pool // 2
    assert more.needed_bytes - plain.needed_bytes == pytest.approx(added, abs=100)
    assert more.ledger.total_bytes - plain.ledger.total_bytes == pytest.approx(added, abs=100)


def test_what_vllm_leaves_for_kv_shrinks_by_what_margins_add() -> None:
    asked = replace(VLLM, memory_bytes=100 * GIB)
    plain, more = make_plan(LARGE, asked), make_plan(LARGE, replace(asked, margin={"weights": 1.1}))
    assert more.ledger.total_bytes == plain.ledger.total_bytes
    added = around_bytes(more) - around_bytes(plain)
    assert added == pytest.approx(0.1 * plain.estimate.weights_bytes, rel=1e-6)
    assert cache_bytes(plain.ledger) - cache_bytes(more.ledger) == added


def test_changes_under_a_margin_fit_with_it() -> None:
    planned = make_plan(LARGE, WITH_MARGIN)
    assert planned.fits is False
    assert planned.changes
    for change in planned.changes:
        assert change.total_bytes <= 80 * GIB


@pytest.mark.parametrize("factor", [1e308, 101.0])
def test_a_margin_beyond_all_reason_is_refused(factor: float) -> None:
    with pytest.raises(RequestError):
        PlanSettings(margin={"weights": factor})
    with pytest.raises(RequestError, match="factor"):
        estimate(SMALL, PlanSettings()).ledger.with_margin({"weights": factor})


# Side by side


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ({"memory_bytes": 24 * GIB}, {"memory_bytes": 8 * GIB}),
        ({"device": find_device("T4")}, {"device": find_device("H100")}),
        ({"margin": {"weights": 1.5}}, {"memory_bytes": 24 * GIB}),
        ({}, {"margin": {"weights": 1.5, "kv": 2.0}}),
    ],
)
def test_a_column_says_what_its_plan_alone_says(first: dict[str, Any], second: dict[str, Any]) -> None:
    plans = [make_plan(SMALL, PlanSettings(**asked)) for asked in (first, second)]
    columns = compare(plans).to_dict()["models"]
    for planned, column in zip(plans, columns, strict=True):
        alone = planned.to_dict()
        names = {"total_bytes", "needed_bytes", "memory_bytes", "fits", "weights_bytes"}
        names |= {"max_context_tokens", "max_num_seqs"} if planned.memory_bytes is not None else set()
        assert {name: column[name] for name in names} == {name: alone[name] for name in names}
    assert columns[0]["total_bytes"] != columns[1]["total_bytes"]


def test_a_memory_and_a_margin_are_reasons_people_can_read() -> None:
    plans = [
        make_plan(SMALL, PlanSettings(memory_bytes=24 * GIB)),
        make_plan(SMALL, PlanSettings(memory_bytes=8 * GIB, margin={"kv": 1.5})),
    ]
    reasons = {reasoned.reason for reasoned in compare(plans).differences}
    assert any("--memory 24.00 GiB -> 8.00 GiB" in reason for reason in reasons)
    assert any("--margin none -> kv=1.5" in reason for reason in reasons)


# Changes that a newcomer is offered


def test_a_newcomers_first_line_is_offered_a_smaller_pool_and_a_shorter_context() -> None:
    planned = make_plan(SMALL, NEWCOMER)
    assert planned.fits is False
    pool, context = planned.changes[:2]
    size = int(pool.flags.removeprefix("--kv-cache-memory-bytes ").removesuffix("MiB")) * MIB
    with_pool = make_plan(SMALL, replace(NEWCOMER, kv_cache_memory_bytes=size))
    assert (with_pool.fits, with_pool.held_bytes) == (True, pool.total_bytes)
    assert with_pool.lowered_from == SMALL.spec.max_context
    assert f"to the {with_pool.estimate.max_model_len:,} tokens that the pool holds" in pool.cost
    # As long as it may be, with the pool that the engine takes for all of its users.
    length = int(context.flags.removeprefix("--max-model-len "))
    assert length >= 2048
    shorter = make_plan(SMALL, replace(NEWCOMER, max_model_len=length))
    assert (shorter.fits, shorter.held_bytes) == (True, context.total_bytes)
    assert shorter.estimate.max_num_seqs == planned.estimate.max_num_seqs
    assert make_plan(SMALL, replace(NEWCOMER, max_model_len=length + 256)).fits is False


def test_nothing_is_offered_that_the_engine_would_not_start_with() -> None:
    """A pool smaller than one request of the length asked for is none."""
    planned = make_plan(SMALL, replace(NEWCOMER, max_model_len=131_072))
    assert planned.fits is False
    assert not any("--kv-cache-memory-bytes" in change.flags for change in planned.changes)


# A mix of lengths


def test_a_mix_is_planned_for_its_longest_request() -> None:
    mix = parse_mix("p50=2000,p95=8000,max=32000")
    planned = make_plan(SMALL, PlanSettings(max_num_seqs=8, memory_bytes=24 * GIB), mix=mix)
    assert (planned.estimate.max_model_len, planned.fits) == (32_000, True)
    assert make_plan(SMALL, PlanSettings(max_model_len=64_000), mix=mix).estimate.max_model_len == 64_000


def test_a_verdict_beside_a_mix_says_what_it_is_for() -> None:
    mix = parse_mix("p50=2000,p95=8000,max=32000")
    planned = make_plan(SMALL, PlanSettings(max_num_seqs=30, memory_bytes=24 * GIB), mix=mix)
    assert planned.fits is False
    assert (planned.users_of_mix or 0) >= 30
    said = [text for _, text in _answers(planned)]
    assert "these share a pool; the verdict is for 30 users of 32,000 tokens" in said


@pytest.mark.parametrize(
    ("mix", "asked", "remedy"),
    [
        ("max=200000", {}, "write max=131072 or less"),
        ("max=200000", {"max_model_len": 8192}, "write max=131072 or less"),
        ("max=32000", {"max_model_len": 8192}, "add --max-model-len 32000, or lower max="),
        ("max=32000", {"max_num_seqs": 100_000}, "lower --max-num-seqs"),
    ],
)
def test_a_mix_that_cannot_be_is_refused_before_anything_is_shown(mix: str, asked: Any, remedy: str) -> None:
    with pytest.raises(RequestError) as caught:
        make_plan(SMALL, PlanSettings(**asked), mix=parse_mix(mix))
    assert caught.value.remedy == remedy


# Words


def test_facts_are_for_people() -> None:
    found = (None, True, 2.5, {"full": 32, "sliding": 16}, 107_374_182_400, "q8_0")
    assert [show_fact(value) for value in found] == [
        "not known", "yes", "2.50", "full 32, sliding 16", "107,374,182,400", "q8_0"
    ]  # fmt: skip
    said = [text for _, text in _answers(make_plan(LARGE, VLLM))]
    assert not any("None" in text for text in said)


def test_one_user_holds_and_many_hold() -> None:
    mix = parse_mix("p50=2000,max=8000")
    for users, start in ((1, "1 user holds "), (2, "2 users hold ")):
        planned = make_plan(SMALL, PlanSettings(max_num_seqs=users), mix=mix)
        assert dict(_answers(planned))["mix of lengths"].startswith(start)


def test_rows_of_the_table_of_plans_name_the_memory() -> None:
    rows = {settings_text(make_plan(SMALL, PlanSettings(memory_bytes=memory))) for memory in (None, 24 * GIB, 80 * GIB)}
    assert len(rows) == 3
    assert any("--memory 24.00GiB" in row for row in rows)


@pytest.mark.parametrize(
    ("name", "known"),
    [("VLLM", "vllm"), ("llamacpp", "llama.cpp"), ("llama-cpp", "llama.cpp"), ("Ollama", "ollama"), ("exo", "exo")],
)
def test_an_engine_is_known_however_it_is_spelled(name: str, known: str) -> None:
    assert known_engine(name) == known


def test_engines_without_a_formula_are_known_however_they_are_spelled() -> None:
    assert unknown_engine("TGI") == unknown_engine("tgi") is not None
    assert unknown_engine("LM_Studio") == unknown_engine("lmstudio") is not None
    assert unknown_engine("vllm") is None
