"""The sampler beside a slow one written out token by token, with its own Philox generator."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from gemwright.engine.request import SamplingParams
from gemwright.engine.sampler import best_logprobs, choose_token

_WORD = (1 << 64) - 1


def philox(key: tuple[int, int], counter: int) -> int:
    """Return the first word of Philox4x64-10 (Salmon et al., 2011)."""
    words = [counter & _WORD, counter >> 64, 0, 0]
    first, second = key
    for _ in range(10):
        low = 0xD2E7470EE14C6C93 * words[0]
        high = 0xCA5A826395121157 * words[2]
        words = [(high >> 64) ^ words[1] ^ first, high & _WORD, (low >> 64) ^ words[3] ^ second, low & _WORD]
        first = (first + 0x9E3779B97F4A7C15) & _WORD
        second = (second + 0xBB67AE8584CAA73B) & _WORD
    return words[0]


def slow_choice(
    logits: list[float], params: SamplingParams, key: tuple[int, int], prompt: list[int], answer: list[int]
) -> int:
    """Choose by the book; examples where rounding decides are thrown away."""
    scores = []
    for token, value in enumerate(logits):
        score = np.float32(value)
        if token in prompt or token in answer:
            penalty = np.float32(params.repetition_penalty)
            score = score / penalty if score > 0 else score * penalty
        if token in answer:
            score -= np.float32(params.presence_penalty + params.frequency_penalty * answer.count(token))
        scores.append(float(score))
    if params.temperature == 0:
        return scores.index(max(scores))
    ids = list(range(len(scores)))
    if params.top_k:
        kth = sorted(scores, reverse=True)[min(params.top_k, len(scores)) - 1]
        ids = [token for token in ids if scores[token] >= kth]
    weights = {token: math.exp((scores[token] - max(scores)) / params.temperature) for token in ids}
    assume(all(weight == 1.0 or abs(weight - params.min_p) > 1e-12 for weight in weights.values()))
    ids = [token for token in ids if weights[token] >= params.min_p]
    if params.top_p < 1:
        ids.sort(key=lambda token: (-weights[token], token))
        total = math.fsum(weights[token] for token in ids)
        reached, kept = 0.0, []
        for token in ids:
            kept.append(token)
            reached += weights[token] / total
            assume(abs(reached - params.top_p) > 1e-12)
            if reached >= params.top_p:
                break
        ids = kept
    point = (philox(key, len(answer) + 1) >> 11) / 2**53 * math.fsum(weights[token] for token in ids)
    for token in ids:
        assume(abs(point - weights[token]) > 1e-12)
        if point < weights[token]:
            return token
        point -= weights[token]
    raise AssertionError("the point lies beyond the last weight")


@st.composite
def cases(draw: st.DrawFn) -> dict[str, Any]:
    size = draw(st.integers(1, 30))
    # Few distinct values give ties; the others spread.
    value = draw(
        st.sampled_from([st.sampled_from([-2.0, 0.0, 0.5, 3.0]), st.floats(-40, 40, width=32, allow_subnormal=False)])
    )
    token = st.integers(0, size - 1)
    return {
        "logits": draw(st.lists(value, min_size=size, max_size=size)),
        "prompt": draw(st.lists(token, max_size=6)),
        "answer": draw(st.lists(token, max_size=6)),
        "key": (draw(st.integers(0, _WORD)), draw(st.integers(0, 127))),
        "params": SamplingParams(
            temperature=draw(st.one_of(st.just(0.0), st.floats(0.01, 50))),
            top_k=draw(st.integers(0, 35)),
            top_p=draw(st.one_of(st.just(1.0), st.floats(0.01, 1))),
            min_p=draw(st.one_of(st.just(0.0), st.floats(0, 1))),
            repetition_penalty=draw(st.one_of(st.just(1.0), st.floats(0.5, 2))),
            presence_penalty=draw(st.one_of(st.just(0.0), st.floats(-2, 2))),
            frequency_penalty=draw(st.one_of(st.just(0.0), st.floats(-2, 2))),
        ),
    }


@given(cases())
@settings(max_examples=600)
def test_the_choice_is_the_slow_ones(case: dict[str, Any]) -> None:
    seed, answer_index = case["key"]
    chosen = choose_token(
        np.array(case["logits"], dtype=np.float32),
        case["params"],
        seed=seed,
        answer_index=answer_index,
        prompt_token_ids=case["prompt"],
        token_ids=case["answer"],
    )
    assert chosen == slow_choice(case["logits"], case["params"], case["key"], case["prompt"], case["answer"])


@given(
    logits=st.lists(st.floats(-100, 100, width=32), min_size=1, max_size=40),
    count=st.integers(0, 50),
    data=st.data(),
)
def test_logprobs_are_sorted_and_add_up(logits: list[float], count: int, data: st.DataObject) -> None:
    chosen = data.draw(st.integers(0, len(logits) - 1))
    rows = best_logprobs(np.array(logits, dtype=np.float32), count, chosen)
    ranking = sorted(range(len(logits)), key=lambda token: (-logits[token], token))
    best = ranking[:count]
    assert [row.token_id for row in rows] == (best if chosen in best else [*best, chosen])
    total = math.fsum(math.exp(value - max(logits)) for value in logits)
    for row in rows:
        assert math.isclose(row.logprob, logits[row.token_id] - max(logits) - math.log(total), abs_tol=1e-12)


@given(seed=st.integers(0, _WORD), answer_index=st.integers(0, 127), place=st.integers(0, 5))
def test_random_numbers_can_be_made_anywhere(seed: int, answer_index: int, place: int) -> None:
    """With 2**16 equal tokens the choice shows the first 16 bits of the generator's word."""
    chosen = choose_token(
        np.zeros(1 << 16, dtype=np.float32),
        SamplingParams(temperature=1.0),
        seed=seed,
        answer_index=answer_index,
        prompt_token_ids=[],
        token_ids=[0] * place,
    )
    assert chosen == philox((seed, answer_index), place + 1) >> 48
