"""Choosing a token: each setting by its formula, seeds, limits, logprobs, and logits that are no numbers."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest

from gemwright.engine.request import MAX_REPETITION_PENALTY, MAX_TEMPERATURE, SamplingParams
from gemwright.engine.sampler import best_logprobs, choose_token, log_sum_exp
from gemwright.errors import GemwrightError, RequestError

VOCABULARY = np.array([2.0, -1.0, 0.5, 2.0, 3.0, 1.0, -4.0, 0.0, 1.5, 0.5], dtype=np.float32)


def choose(
    logits: list[float] | np.ndarray[Any, Any] = VOCABULARY,
    *,
    seed: int = 0,
    answer: int = 0,
    prompt: tuple[int, ...] = (),
    tokens: tuple[int, ...] = (),
    forbidden: tuple[int, ...] = (),
    **params: Any,
) -> int:
    return choose_token(
        np.asarray(logits, dtype=np.float32),
        SamplingParams(**params),
        seed=seed,
        answer_index=answer,
        prompt_token_ids=prompt,
        token_ids=tokens,
        forbidden=forbidden,
    )


def drawn(num_seeds: int = 300, **arguments: Any) -> Counter[int]:
    return Counter(choose(seed=seed, **arguments) for seed in range(num_seeds))


def test_greedy_takes_the_best_and_the_lowest_id_among_equals() -> None:
    assert choose(temperature=0) == 4
    assert choose([1.0, 3.0, 2.0, 3.0], temperature=0) == 1
    assert choose([0.0] * 7, temperature=0) == 0


def test_greedy_needs_no_luck() -> None:
    assert set(drawn(20, temperature=0)) == {4}


@pytest.mark.parametrize(
    ("settings", "allowed"),
    [
        ({"top_k": 1}, {4}),
        ({"top_k": 2}, {4, 0, 3}),  # the second best score belongs to two tokens
        ({"top_k": 3}, {4, 0, 3}),
        ({"top_k": 4}, {4, 0, 3, 8}),
        ({"top_k": 9}, {0, 1, 2, 3, 4, 5, 7, 8, 9}),
        ({"top_k": 10}, set(range(10))),
        ({"top_k": 11}, set(range(10))),
        ({"top_k": 0}, set(range(10))),
        ({"min_p": 1.0}, {4}),
        ({"min_p": 0.36}, {4, 0, 3}),  # exp(2 - 3) = 0.3679
        ({"min_p": 0.37}, {4}),
        ({"min_p": 0.36, "top_k": 1}, {4}),
        ({"top_p": 0.3}, {4}),
        ({"top_p": 1e-9}, {4}),
    ],
)
def test_what_may_be_drawn(settings: dict[str, Any], allowed: set[int]) -> None:
    assert set(drawn(3000, temperature=1.0, **settings)) == allowed


@pytest.mark.parametrize(
    ("top_p", "allowed"),
    [(0.5, {2}), (0.500001, {2, 0}), (0.75, {2, 0}), (0.76, {2, 0, 1}), (0.875, {2, 0, 1}), (0.9, {2, 0, 1, 3})],
)
def test_top_p_keeps_the_fewest_tokens_that_reach_it(top_p: float, allowed: set[int]) -> None:
    """Probabilities 1/4, 1/8, 1/2, 1/8, exact in binary; of the two equal ones the lower id comes first."""
    logits = np.log2([2.0, 1.0, 4.0, 1.0])
    assert set(drawn(400, logits=logits, temperature=float(np.log2(np.e)), top_p=top_p)) == allowed


def test_top_p_counts_what_top_k_and_min_p_leave() -> None:
    """Of the three best, 4 alone has exp(3) / (exp(3) + 2 exp(2)) = 0.576."""
    assert set(drawn(temperature=1.0, top_k=3, top_p=0.57)) == {4}
    assert set(drawn(temperature=1.0, top_k=3, top_p=0.58)) == {4, 0}
    assert set(drawn(temperature=1.0, min_p=0.36, top_p=0.57)) == {4}


def test_a_temperature_near_zero_is_greedy_and_a_huge_one_is_blind() -> None:
    assert set(drawn(100, temperature=5e-324)) == {4}
    assert set(drawn(100, temperature=1e-6)) == {4}
    counts = drawn(5000, temperature=MAX_TEMPERATURE)
    assert min(counts[token] for token in range(10)) > 400


def test_a_tiny_temperature_still_draws_among_equals() -> None:
    assert set(drawn(100, logits=[1.0, 5.0, 5.0], temperature=1e-300)) == {1, 2}


# Quantiles of chi-square at 0.999, by degrees of freedom.
CHI_SQUARE = {2: 13.816, 9: 27.877}


def assert_distributed(counts: Counter[int], probabilities: dict[int, float]) -> None:
    number = sum(counts.values())
    assert set(counts) <= set(probabilities)
    statistic = sum((counts[token] - number * p) ** 2 / (number * p) for token, p in probabilities.items())
    assert statistic < CHI_SQUARE[len(probabilities) - 1]


@pytest.mark.parametrize("temperature", [0.7, 1.0, 2.5])
def test_draws_follow_the_softmax(temperature: float) -> None:
    weights = np.exp(VOCABULARY.astype(np.float64) / temperature)
    expected = dict(enumerate((weights / weights.sum()).tolist()))
    assert_distributed(drawn(8000, temperature=temperature), expected)


def test_draws_among_the_best_are_in_proportion() -> None:
    weights = np.exp([3.0, 2.0, 2.0])
    expected = dict(zip((4, 0, 3), (weights / weights.sum()).tolist(), strict=True))
    for settings in ({"top_k": 3}, {"min_p": 0.3}, {"top_p": 0.7}):
        assert_distributed(drawn(6000, temperature=1.0, **settings), expected)


def test_draws_of_one_seed_at_its_places_follow_the_softmax() -> None:
    weights = np.exp(VOCABULARY.astype(np.float64))
    expected = dict(enumerate((weights / weights.sum()).tolist()))
    places = Counter(choose(seed=5, tokens=(1,) * place, temperature=1.0) for place in range(5000))
    assert_distributed(places, expected)
    answers = Counter(choose(seed=5, answer=answer, temperature=1.0) for answer in range(5000))
    assert_distributed(answers, expected)


def test_a_choice_depends_on_seed_answer_and_place_and_on_nothing_else() -> None:
    blind = np.zeros(1000, dtype=np.float32)
    first = [choose(blind, seed=seed, temperature=1.0) for seed in range(50)]
    assert first == [choose(blind, seed=seed, temperature=1.0, prompt=(4, 5), tokens=()) for seed in range(50)]
    assert len(set(first)) > 40
    assert first != [choose(blind, seed=seed, temperature=1.0, answer=1) for seed in range(50)]
    assert first != [choose(blind, seed=seed, temperature=1.0, tokens=(3,)) for seed in range(50)]
    assert choose(blind, seed=2**64 - 1, temperature=1.0) == choose(blind, seed=2**64 - 1, temperature=1.0)


def test_the_repetition_penalty_divides_what_is_positive_and_multiplies_the_rest() -> None:
    """Prompt and answer count alike, and once however often a token came."""
    logits = [4.0, -1.0, 3.0, -2.0]
    assert choose(logits, temperature=0, repetition_penalty=1.3, prompt=(0,)) == 0  # 4 / 1.3 > 3
    assert choose(logits, temperature=0, repetition_penalty=1.4, prompt=(0,)) == 2  # 4 / 1.4 < 3
    assert choose(logits, temperature=0, repetition_penalty=1.4, tokens=(0,)) == 2
    assert choose(logits, temperature=0, repetition_penalty=1.3, prompt=(0, 0), tokens=(0,)) == 0
    negative = [-1.0, -1.5]
    assert choose(negative, temperature=0, repetition_penalty=1.4, prompt=(0,)) == 0
    assert choose(negative, temperature=0, repetition_penalty=1.6, prompt=(0,)) == 1
    assert choose(negative, temperature=0, repetition_penalty=0.6, prompt=(1,)) == 1  # below 1 it favors


def test_presence_and_frequency_penalties_count_the_answer_alone() -> None:
    logits = [2.0, 1.4, 0.0]
    assert choose(logits, temperature=0, presence_penalty=0.5, tokens=(0, 0, 0)) == 0
    assert choose(logits, temperature=0, presence_penalty=0.7, tokens=(0,)) == 1
    assert choose(logits, temperature=0, frequency_penalty=0.25, tokens=(0, 0)) == 0
    assert choose(logits, temperature=0, frequency_penalty=0.25, tokens=(0, 0, 0)) == 1
    assert choose(logits, temperature=0, presence_penalty=2.0, frequency_penalty=2.0, prompt=(0, 0)) == 0
    assert choose(logits, temperature=0, presence_penalty=0.3, frequency_penalty=0.2, tokens=(0,)) == 0
    assert choose(logits, temperature=0, presence_penalty=0.3, frequency_penalty=0.2, tokens=(0, 0)) == 1
    assert choose(logits, temperature=0, presence_penalty=-2.0, tokens=(2,)) == 0
    assert choose(logits, temperature=0, frequency_penalty=-1.1, tokens=(2, 2)) == 2


def test_penalties_leave_the_logits_as_they_were() -> None:
    """Logprobs are read off the same row afterwards."""
    logits = VOCABULARY.copy()
    choose_token(
        logits,
        SamplingParams(repetition_penalty=2.0, presence_penalty=1.0),
        seed=0,
        answer_index=0,
        prompt_token_ids=[1, 4],
        token_ids=[4],
        forbidden=[0],
    )
    assert np.array_equal(logits, VOCABULARY)


@pytest.mark.parametrize("penalty", [1 / MAX_REPETITION_PENALTY, MAX_REPETITION_PENALTY])
def test_the_strongest_penalties_stay_finite(penalty: float) -> None:
    logits = [3e36, -3e36, 0.0]
    assert choose(logits, temperature=1.0, repetition_penalty=penalty, prompt=(0, 1, 2)) == 0


@pytest.mark.parametrize("settings", [{"temperature": 0}, {"temperature": 1.0}, {"temperature": 1.0, "top_k": 1}])
def test_forbidden_tokens_are_never_chosen(settings: dict[str, Any]) -> None:
    assert 4 not in drawn(200, forbidden=(4, 0), **settings)
    assert set(drawn(50, forbidden=tuple(range(9)), **settings)) == {9}
    with pytest.raises(RequestError, match="every token is a stop id"):
        choose(forbidden=tuple(range(10)), **settings)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_logits_that_are_no_numbers_are_refused(bad: float) -> None:
    logits = VOCABULARY.copy()
    logits[3] = bad
    for temperature in (0.0, 1.0):
        with pytest.raises(GemwrightError, match="not finite"):
            choose(logits, temperature=temperature)
    with pytest.raises(GemwrightError, match="not finite"):
        best_logprobs(logits, 2, 0)


def test_logprobs_are_the_log_softmax_in_float64() -> None:
    logits = np.random.default_rng(0).normal(0, 10, 5000).astype(np.float32)
    wide = logits.astype(np.longdouble)
    expected = wide - wide.max() - np.log(np.exp(wide - wide.max()).sum())
    rows = best_logprobs(logits, 5000, 17)
    assert len(rows) == 5000
    for row in rows:
        assert abs(row.logprob - float(expected[row.token_id])) < 1e-13 * max(1.0, abs(row.logprob))
    assert [row.token_id for row in rows] == np.argsort(-logits, kind="stable").tolist()
    assert abs(sum(np.exp(row.logprob) for row in rows) - 1) < 1e-12
    assert abs(log_sum_exp(logits) - float(wide.max() + np.log(np.exp(wide - wide.max()).sum()))) < 1e-13 * 50


@pytest.mark.parametrize(
    ("count", "chosen", "expected"),
    [
        (0, 7, [7]),
        (1, 4, [4]),
        (1, 7, [4, 7]),
        (2, 3, [4, 0, 3]),  # of two equal ones the lower id comes first
        (3, 3, [4, 0, 3]),
        (4, 6, [4, 0, 3, 8, 6]),
        (99, 6, [4, 0, 3, 8, 5, 2, 9, 7, 1, 6]),
    ],
)
def test_logprobs_list_the_best_first_and_then_the_chosen(count: int, chosen: int, expected: list[int]) -> None:
    assert [row.token_id for row in best_logprobs(VOCABULARY, count, chosen)] == expected


def test_large_logits_do_not_overflow() -> None:
    rows = best_logprobs(np.array([3e38, -3e38, 3e38], dtype=np.float32), 3, 0)
    assert [row.token_id for row in rows] == [0, 2, 1]
    assert rows[0].logprob == rows[1].logprob == 0.0  # the sum's log 2 is lost beside 3e38
