"""Logit bias, allowed ids and bad words: what each does, in which order, and that a bad value is named."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gemwright.engine import sampler
from gemwright.engine.request import Request, SamplingParams
from gemwright.engine.sampler import choose_token
from gemwright.errors import RequestError

LOGITS = np.array([2.0, -1.0, 0.5, 2.0, 3.0, 1.0], dtype=np.float32)


def choose(*, seed: int = 0, tokens: Sequence[int] = (), forbidden: Sequence[int] = (), **params: Any) -> int:
    return choose_token(
        LOGITS,
        SamplingParams(**params),
        seed=seed,
        answer_index=0,
        prompt_token_ids=[],
        token_ids=tokens,
        forbidden=forbidden,
    )


def test_a_bias_is_added_to_its_logits_alone() -> None:
    before = LOGITS.copy()
    assert choose(temperature=0, logit_bias={0: 1.25}) == 0
    assert choose(temperature=0, logit_bias={0: 0.75}) == 4
    assert choose(temperature=0, logit_bias={4: -100, 3: 0.5}) == 3
    assert {choose(seed=seed, logit_bias={1: 100}) for seed in range(50)} == {1}
    assert 4 not in {choose(seed=seed, logit_bias={4: -100}) for seed in range(200)}
    assert np.array_equal(LOGITS, before)


def test_penalties_see_the_biased_logit() -> None:
    """(2 + 4) / 1.5 = 4 is above 3; 2 / 1.5 + 4 would be above 5, and (2 + 4) / 2.5 is below 3."""
    assert choose(temperature=0, logit_bias={0: 4}, repetition_penalty=1.5, tokens=[0]) == 0
    assert choose(temperature=0, logit_bias={0: 4}, repetition_penalty=2.5, tokens=[0]) == 4


@pytest.mark.parametrize("settings", [{"temperature": 0}, {"temperature": 5.0}, {"temperature": 5.0, "top_p": 0.999}])
def test_only_allowed_tokens_are_chosen(settings: dict[str, Any]) -> None:
    found = {choose(seed=seed, allowed_token_ids=[1, 3, 5], **settings) for seed in range(200)}
    assert found == ({3} if settings["temperature"] == 0 else {1, 3, 5})
    assert choose(allowed_token_ids=[1, 3], forbidden=[3], **settings) == 1
    assert choose(allowed_token_ids=[1, 3], logit_bias={1: 100, 4: 100}, **settings) == 1


def test_where_nothing_may_be_chosen_the_request_is_refused() -> None:
    with pytest.raises(RequestError, match="not allowed") as caught:
        choose(allowed_token_ids=[3], forbidden=[3])
    assert caught.value.remedy is not None


def request(answer: Sequence[int], *sequences: tuple[int, ...], prompt: tuple[int, ...] = (7,)) -> Request:
    made = Request(0, prompt, SamplingParams(), 0, 100, bad_sequences=sequences)
    made.token_ids.extend(answer)
    return made


@pytest.mark.parametrize(
    ("answer", "forbidden"),
    [
        ([], {9}),
        ([1], {9, 2}),
        ([1, 2], {9, 3}),
        ([5, 1, 2], {9, 3}),
        ([1, 1], {9, 2}),
        ([2], {9}),
        ([1, 2, 4], {9}),
    ],
)
def test_the_last_token_of_a_bad_sequence_is_forbidden_after_those_before_it(
    answer: list[int], forbidden: set[int]
) -> None:
    assert request(answer, (9,), (1, 2), (1, 2, 3)).bad_next_tokens() == forbidden
    # The prompt is not the answer: what it ends with begins no bad word.
    assert request([], (1, 2), prompt=(1,)).bad_next_tokens() == set()


@pytest.mark.parametrize(
    ("name", "bad"),
    [
        *[("logit_bias", value) for value in (None, 5, "1", [1], {1}, {"x": 1}, {-1: 1}, {1.0: 1}, {True: 1})],
        *[("logit_bias", value) for value in ({1: None}, {1: "2"}, {1: True}, {1: 101}, {1: -100.5}, {1: math.nan})],
        *[("logit_bias", value) for value in ({1: 1, "1": 2}, {"²": 1}, {"": 1}, ((1, 2, 3),), (1, 2))],
        *[("allowed_token_ids", value) for value in (5, "1", [], [-1], [1.0], [True], {1})],
        *[("bad_words", value) for value in (None, 5, "a", [""], ["  "], [1], {"a"})],
        *[(name, ["ok", half]) for name in ("bad_words", "stop") for half in ("\ud800", "a\udc00b")],
    ],
)
def test_bad_values_are_named(name: str, bad: Any) -> None:
    with pytest.raises(RequestError) as caught:
        SamplingParams(**{name: bad})
    assert caught.value.what == name
    assert caught.value.limit is not None


def test_biases_are_kept_as_pairs_so_that_parameters_stay_comparable() -> None:
    params = SamplingParams(logit_bias={"12": -100, 3: 0.5}, allowed_token_ids=[3, 12], bad_words=["a b"])  # type: ignore[arg-type,dict-item]
    assert params.logit_bias == ((3, 0.5), (12, -100))
    assert params.biases == {3: 0.5, 12: -100}
    again = SamplingParams(logit_bias=params.logit_bias, allowed_token_ids=(3, 12), bad_words=("a b",))
    assert again == params
    assert hash(again) == hash(params)


@given(
    weights=st.lists(st.sampled_from([0.0, 1e-9, 0.5, 1.0]) | st.floats(0, 1), min_size=1, max_size=60),
    top_p=st.floats(0.01, 1, exclude_max=True),
    first=st.sampled_from([1, 2, 5]),
)
def test_top_p_sorted_in_part_is_top_p_sorted_in_full(weights: list[float], top_p: float, first: int) -> None:
    probabilities = np.array([1.0, *weights])
    ids = np.arange(len(probabilities)) * 3
    full = sampler._most_likely(ids, probabilities, top_p)  # 64 and more are sorted at once
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sampler, "FIRST_SORTED", first)
        part = sampler._most_likely(ids, probabilities, top_p)
    assert [array.tobytes() for array in part] == [array.tobytes() for array in full]
    order = sorted(range(len(probabilities)), key=lambda place: (-probabilities[place], place))
    assert part[0].tolist() == [3 * place for place in order[: len(part[0])]]
