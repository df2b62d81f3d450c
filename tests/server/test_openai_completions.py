"""/v1/completions through OpenAI's own client: prompts of all forms, echoes, logprobs, streams."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import openai
import pytest

from gemwright import LLM, SamplingParams
from tests.completions_script import choices_of, complete, ids_of, joined, scripted_server, stream
from tests.serving import Served

USAGE = {"stream_options": {"include_usage": True}}


@pytest.fixture(scope="module")
def scoring(completions_folder: Path) -> Iterator[openai.OpenAI]:
    """A client of one that computes prompts too, in several steps, so that they have logprobs."""
    with (
        scripted_server(completions_folder, computes=True, max_num_batched_tokens=16) as server,
        openai.OpenAI(base_url=f"{server.url}/v1", api_key="any", max_retries=0) as found,
    ):
        yield found


@pytest.fixture(scope="module")
def reference(completions_folder: Path) -> LLM:
    """The same model, asked without a server."""
    return LLM(completions_folder, threads=1, max_model_len=512)


def test_an_answer_has_the_shape_that_the_client_reads(client: openai.OpenAI) -> None:
    found = complete(client, "Once upon", extra_body={"request_id": "mine"})
    assert (found.object, found.model, found.id) == ("text_completion", "gemma", "cmpl-mine")
    assert found.created > 1_700_000_000
    (choice,) = found.choices
    assert (choice.index, choice.text, choice.finish_reason, choice.logprobs) == (0, " a time.", "stop", None)
    assert found.usage is not None
    assert (found.usage.prompt_tokens, found.usage.completion_tokens) == (len("<Once upon"), len(" a time.") + 1)
    assert found.usage.total_tokens == found.usage.prompt_tokens + found.usage.completion_tokens
    assert found._request_id


def test_without_a_limit_an_answer_has_sixteen_tokens_as_everywhere(client: openai.OpenAI) -> None:
    (choice,) = complete(client, "greet").choices
    assert (choice.text, choice.finish_reason) == ("Hello! STOP ther", "length")
    assert complete(client, "greet", max_tokens=50).choices[0].text == "Hello! STOP there."


@pytest.mark.parametrize(
    ("prompt", "fields"),
    [
        ("Once upon", {}),
        ("round", {"max_tokens": 40}),
        ("round", {"max_tokens": 9}),
        ("Count", {"n": 3}),
        (["Once upon", "Count", "round"], {"n": 2, "max_tokens": 30, "stop": ["o."]}),
        (["Count", "Once upon"], {"echo": True, "n": 2}),
        ("round", {"logprobs": 2, "max_tokens": 40}),
        ("round", {"logprobs": 0, "echo": True, "max_tokens": 40}),
        (["A round", "Count"], {"logprobs": 3, "echo": True, "n": 2, "max_tokens": 40}),
        ("Count", {"n": 2, "echo": True, "extra_body": {"return_token_ids": True}}),
        ("Count", {"logprobs": 1, "extra_body": {"return_token_ids": True}}),
        ([[2, 70, 71], [2, 72]], {"echo": True, "logprobs": 1, "max_tokens": 3}),
        ("Once upon", {"temperature": 5, "seed": 3, "n": 2, "logprobs": 1}),
        ("Once upon", {"extra_body": {"structured_outputs": {"choice": [" a time"]}}}),
    ],
)
def test_a_stream_joins_to_the_whole_answer(
    request: pytest.FixtureRequest, prompt: Any, fields: dict[str, Any]
) -> None:
    client = request.getfixturevalue("scoring" if "echo" in fields and "logprobs" in fields else "asking")
    whole = complete(client, prompt, **fields)
    chunks = stream(client, prompt, **fields, **USAGE)
    assert joined(chunks) == choices_of(whole)
    assert all(len(chunk.choices) == 1 for chunk in chunks[:-1])
    assert (chunks[-1].choices, [chunk.usage for chunk in chunks[:-1]]) == ([], [None] * (len(chunks) - 1))
    first, last = whole.usage, chunks[-1].usage
    assert first is not None
    assert last is not None
    assert (last.prompt_tokens, last.completion_tokens) == (first.prompt_tokens, first.completion_tokens)
    assert len({(chunk.id, chunk.object, chunk.created) for chunk in chunks}) == 1


def test_choices_are_numbered_prompt_by_prompt(asking: openai.OpenAI) -> None:
    found = complete(asking, ["Count", "Once upon"], n=3)
    assert [choice.index for choice in found.choices] == list(range(6))
    assert [choice.text for choice in found.choices] == [" One.", " Two.", " Three.", *[" a time."] * 3]
    assert found.usage is not None
    assert found.usage.prompt_tokens == len("<Count") + len("<Once upon")
    assert found.usage.completion_tokens == len(" One. Two. Three.") + 3 + 3 * len(" a time.") + 3


def test_ids_are_prompts_as_text_is(asking: openai.OpenAI, plain: Served) -> None:
    """Of text and ids, one or several; ids are used as given."""
    ids = [ids_of(plain, text) for text in ("Once upon", "Count")]
    texts = complete(asking, ["Once upon", "Count"], extra_body={"return_token_ids": True})
    assert choices_of(texts) == choices_of(complete(asking, ids, extra_body={"return_token_ids": True}))
    assert [choice["prompt_token_ids"] for choice in choices_of(texts)] == ids
    assert [choice.text for choice in complete(asking, ids[1]).choices] == [" One."]
    assert [choice.text for choice in complete(asking, [ids[1]]).choices] == [" One."]
    assert [choice.text for choice in complete(asking, ["Count"]).choices] == [" One."]
    (bare,) = choices_of(complete(asking, ids[1][1:], extra_body={"return_token_ids": True}))
    assert bare["prompt_token_ids"] == ids[1][1:]


def test_an_echo_is_the_prompt_before_its_answer(asking: openai.OpenAI, plain: Served) -> None:
    assert complete(asking, "Once upon", echo=True).choices[0].text == "Once upon a time."
    spelled = "<bos>Ein €, Count<end_of_turn>"
    assert complete(asking, spelled, echo=True).choices[0].text == f"{spelled} One."
    # Ids have no other spelling than their own.
    assert complete(asking, ids_of(plain, "Count"), echo=True).choices[0].text == "<bos>Count One."


def test_logprobs_have_the_form_of_text_completions(asking: openai.OpenAI) -> None:
    (choice,) = complete(asking, "round", logprobs=2, max_tokens=40).choices
    found = choice.logprobs
    assert found is not None
    assert found.tokens is not None
    assert found.text_offset is not None
    assert found.token_logprobs is not None
    assert found.top_logprobs is not None
    # A character of several tokens has its place with each of them; the last token ends the answer.
    widths = [len(character.encode()) for character in choice.text]
    assert found.text_offset == [
        *(place for place, width in enumerate(widths) for _ in range(width)), len(choice.text)
    ]  # fmt: skip
    assert found.tokens[:2] == ["Z", "w"]
    assert all(value is not None and -1e-6 < value <= 0 for value in found.token_logprobs)
    assert all(len(top) == 2 and max(top.values()) > -1e-6 for top in found.top_logprobs)
    bare = complete(asking, "round", logprobs=0, max_tokens=2).choices[0].logprobs
    assert bare is not None
    assert [list(top) for top in bare.top_logprobs or []] == [["Z"], ["w"]]
    # The one that came stands beside the likeliest where it is none of them.
    unlikely = complete(asking, "round", logprobs=1, max_tokens=1, logit_bias={"300": -100}, temperature=50, seed=1)
    top = (unlikely.choices[0].logprobs or found).top_logprobs or []
    assert set(top[0]) == {"Z", *((unlikely.choices[0].logprobs or found).tokens or [])}


def test_an_echo_has_the_logprobs_of_the_prompt(scoring: openai.OpenAI, plain: Served, reference: LLM) -> None:
    """What evaluations score texts by: the numbers are those of the engine; nothing predicts the first token."""
    prompt = "<bos>Ein €, Count"
    ids = ids_of(plain, prompt)
    (known,) = reference.generate([ids], SamplingParams(prompt_logprobs=2, max_tokens=1))
    assert known.prompt_logprobs is not None
    assert reference.tokenizer is not None
    (choice,) = complete(scoring, prompt, echo=True, logprobs=2, max_tokens=1).choices
    found = choice.logprobs
    assert found is not None
    assert found.token_logprobs is not None
    assert found.top_logprobs is not None
    assert found.text_offset is not None
    assert found.token_logprobs[0] is None
    assert found.top_logprobs[0] is None
    expected = [
        next(item.logprob for item in entry if item.token_id == token_id)
        for token_id, entry in zip(ids[1:], known.prompt_logprobs[1:], strict=True)
        if entry is not None
    ]
    assert found.token_logprobs[1:-1] == expected
    for top, entry in zip(found.top_logprobs[1:-1], known.prompt_logprobs[1:], strict=True):
        # Parts of characters have one text, and the likeliest of them stands for all.
        texts = [
            (reference.tokenizer.decode([item.token_id], skip_special=False), item.logprob) for item in entry or ()
        ]
        assert top == {text: max(value for other, value in texts if other == text) for text, _ in texts}
    assert len(found.tokens or []) == len(ids) + 1
    assert found.text_offset[:3] == [0, 5, 6]
    assert (found.text_offset[-1], choice.text) == (len(prompt), f"{prompt} ")
    # A BOS that was added has no place of its own.
    added = complete(scoring, "Count", echo=True, logprobs=0, max_tokens=1).choices[0].logprobs
    assert added is not None
    assert added.text_offset == [0, 0, 1, 2, 3, 4, 5]


def test_logprobs_of_a_prompt_can_be_had_without_an_echo(scoring: openai.OpenAI, plain: Served) -> None:
    found = choices_of(complete(scoring, ["Count", "Once upon"], extra_body={"prompt_logprobs": 1}))
    assert [choice["text"] for choice in found] == [" One.", " a time."]
    for choice, text in zip(found, ("Count", "Once upon"), strict=True):
        ids = ids_of(plain, text)
        assert choice["prompt_logprobs"][0] is None
        for token_id, entry in zip(ids[1:], choice["prompt_logprobs"][1:], strict=True):
            assert str(token_id) in entry
            assert 1 <= len(entry) <= 2
    # Beside an echo each shows as many as it was asked for.
    (both,) = choices_of(complete(scoring, "Count", echo=True, logprobs=0, extra_body={"prompt_logprobs": 4}))
    assert {len(entry) for entry in both["prompt_logprobs"][1:]} <= {4, 5}
    assert {len(top) for top in both["logprobs"]["top_logprobs"][1:]} == {1}


def test_the_best_of_several_is_the_likeliest_per_token(asking: openai.OpenAI) -> None:
    """At this temperature the script's certainty is little, and other tokens come."""
    asked: dict[str, Any] = {"temperature": 6, "seed": 5, "max_tokens": 12, "logprobs": 0}
    all_of_them = complete(asking, "Count", n=4, **asked)
    means = [float(np.mean([*choice.logprobs.token_logprobs])) for choice in all_of_them.choices]  # type: ignore[union-attr, misc]
    order = sorted(range(4), key=lambda place: -means[place])
    assert order[:2] != [0, 1]
    best = complete(asking, "Count", n=2, best_of=4, **asked)
    assert [choice.text for choice in best.choices] == [all_of_them.choices[place].text for place in order[:2]]
    assert [choice.index for choice in best.choices] == [0, 1]
    assert best.usage == all_of_them.usage
    del asked["logprobs"]
    (hidden,) = complete(asking, "Count", best_of=4, **asked).choices
    assert (hidden.text, hidden.logprobs) == (best.choices[0].text, None)
    assert [choice.text for choice in complete(asking, "Count", n=2, best_of=2).choices] == [" One.", " Two."]


def test_usage_of_a_stream_grows_with_its_chunks(client: openai.OpenAI) -> None:
    prompts = ["Once upon", "greet"]
    options = {"include_usage": True, "continuous_usage_stats": True}
    chunks = stream(client, prompts, stream_options=options)
    counts = []
    for chunk in chunks:
        assert chunk.usage is not None
        assert chunk.usage.prompt_tokens == len("<Once upon") + len("<greet")
        counts.append(chunk.usage.completion_tokens)
    assert counts == sorted(counts)
    assert counts[-1] == len(" a time.") + 1 + 16


def test_a_cached_prompt_is_counted_and_salts_keep_prompts_apart(client: openai.OpenAI) -> None:
    text = "Once upon a very long time, long enough for whole blocks of it: Once upon"
    for salt, is_cached in (("a", False), ("a", True), ("b", False)):
        usage = complete(client, text, extra_body={"cache_salt": salt, "priority": 3}).usage
        assert usage is not None
        assert usage.prompt_tokens_details is not None
        assert bool(usage.prompt_tokens_details.cached_tokens) is is_cached


def test_stops_and_least_lengths_are_kept_to(client: openai.OpenAI, served: Served) -> None:
    stopped = complete(client, "greet", stop="STOP").choices[0]
    assert (stopped.text, stopped.finish_reason) == ("Hello! ", "stop")
    longer = complete(client, "Once upon", max_tokens=12, extra_body={"min_tokens": 12}).choices[0]
    assert (longer.text[:8], longer.finish_reason) == (" a time.", "length")
    on = complete(client, "Once upon", max_tokens=11, extra_body={"ignore_eos": True, "return_token_ids": True})
    assert len(choices_of(on)[0]["token_ids"]) == 11
    (token_id,) = ids_of(served, "t")[1:]
    found = complete(client, "Once upon", extra_body={"stop_token_ids": [token_id]}).choices[0]
    assert (found.text, found.finish_reason) == (" a ", "stop")


def test_an_answer_can_be_held_to_a_form(asking: openai.OpenAI) -> None:
    found = complete(asking, "Once upon", extra_body={"structured_outputs": {"regex": "[0-9]{3}"}}).choices[0]
    assert len(found.text) == 3
    assert found.text.isdigit()
    schema = {"type": "object", "properties": {"a": {"const": 1}}, "required": ["a"], "additionalProperties": False}
    response_format = {"type": "json_schema", "json_schema": {"name": "a", "schema": schema}}
    formed = complete(asking, "form", extra_body={"response_format": response_format}).choices[0]
    assert json.loads(formed.text) == {"a": 1}


def test_what_changes_nothing_is_taken(client: openai.OpenAI) -> None:
    found = complete(
        client,
        "Once upon",
        user="me",
        suffix="",
        best_of=1,
        temperature=0,
        top_p=0.9,
        seed=3,
        stream_options=None,
        extra_body={"metadata": {"a": "b"}, "add_special_tokens": True, "skip_special_tokens": True, "top_k": 5},
    )
    assert found.choices[0].text == " a time."
