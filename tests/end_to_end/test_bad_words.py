"""Bad words, bias and allowed ids in the engine: resolved by the model's tokenizer, and blind to company."""

from __future__ import annotations

import pytest

from gemwright import SamplingParams
from gemwright.errors import RequestError
from tests.end_to_end.conftest import TinyLLM

PROMPT = [2, 40, 300, 77, 41]
GREEDY = {"max_tokens": 12, "temperature": 0.0, "ignore_eos": True}


def test_a_bad_word_of_an_answer_goes_and_what_came_before_it_stays(tiny_llm: TinyLLM) -> None:
    llm = tiny_llm("gemma3")
    assert llm.tokenizer is not None
    params = SamplingParams(max_tokens=40, temperature=12.0, seed=3, ignore_eos=True)
    (plain,) = llm.generate(PROMPT, params)
    # Of the answer, two letters that the tokenizer writes as two tokens which follow each other in it.
    pairs = [
        (place, text)
        for place in range(1, len(plain.token_ids))
        if (text := llm.tokenizer.decode(plain.token_ids[place - 1 : place + 1])).strip() == text
        and llm.tokenizer.encode(text) == list(plain.token_ids[place - 1 : place + 1])
    ]
    place, word = pairs[0]
    (without,) = llm.generate(PROMPT, SamplingParams(**{**as_dict(params), "bad_words": (word,)}))
    sequence = plain.token_ids[place - 1 : place + 1]
    made = without.token_ids
    assert made[:place] == plain.token_ids[:place]
    assert made[place] != plain.token_ids[place]
    assert sequence not in {made[begin : begin + 2] for begin in range(len(made))}


def test_extras_of_one_request_leave_its_neighbors_alone(tiny_llm: TinyLLM) -> None:
    llm = tiny_llm("gemma3", prefix_caching=False)
    plain = SamplingParams(**GREEDY)
    (expected,) = llm.generate(PROMPT, plain)
    best = expected.token_ids[0]
    extras = [
        SamplingParams(**GREEDY, logit_bias={best: -100}),
        SamplingParams(**GREEDY, allowed_token_ids=(77, 78)),
        SamplingParams(**GREEDY, bad_words=("a", "b")),
    ]
    alone = [llm.generate(PROMPT, params)[0].token_ids for params in extras]
    assert best not in alone[0]
    assert set(alone[1]) <= {77, 78}
    requests = [llm.core.add(PROMPT, params, seed=0)[0] for params in (plain, *extras, plain)]
    while llm.core.scheduler.has_work:
        llm.core.step()
    assert [tuple(request.token_ids) for request in requests] == [expected.token_ids, *alone, expected.token_ids]


def test_ids_outside_the_vocabulary_are_refused(tiny_llm: TinyLLM) -> None:
    llm = tiny_llm("gemma3")
    for params in (SamplingParams(logit_bias={10**6: 1}), SamplingParams(allowed_token_ids=(3, 10**6))):
        with pytest.raises(RequestError, match="1000000"):
            llm.generate(PROMPT, params)


def test_where_only_a_stop_id_is_allowed_before_min_tokens_that_request_alone_fails(tiny_llm: TinyLLM) -> None:
    llm = tiny_llm("gemma3")
    stuck = SamplingParams(temperature=0, allowed_token_ids=(50,), stop_token_ids=(50,), min_tokens=2)
    (bad,) = llm.core.add(PROMPT, stuck, seed=0)
    (good,) = llm.core.add(PROMPT, SamplingParams(**GREEDY), seed=0)
    while llm.core.scheduler.has_work:
        llm.core.step()
    assert isinstance(bad.error, RequestError)
    assert len(good.token_ids) == 12


def as_dict(params: SamplingParams) -> dict[str, object]:
    return {name: getattr(params, name) for name in SamplingParams.__dataclass_fields__}
