"""OpenAI's own client against a live server: chats, streams, thoughts, tools, structured output, usage, choices."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import httpx
import openai
import pytest

from tests.openai_script import JSON_FORMAT, THINKING, TOOL, Told, ask, joined, stream, user
from tests.serving import Served


def test_an_answer_has_the_shape_that_the_client_reads(client: openai.OpenAI) -> None:
    found = ask(client, "greet")
    assert (found.object, found.model) == ("chat.completion", "gemma")
    assert found.id.startswith("chatcmpl-")
    assert found.created > 1_700_000_000
    (choice,) = found.choices
    assert (choice.index, choice.finish_reason, choice.logprobs) == (0, "stop", None)
    assert (choice.message.role, choice.message.content) == ("assistant", "Hello! STOP there.")
    assert choice.message.tool_calls is None
    assert found._request_id
    assert ask(client, "round").choices[0].message.content == "Zwölf €, 🙂."


def test_models_are_listed_and_described(client: openai.OpenAI) -> None:
    (listed,) = client.models.list().data
    assert (listed.id, listed.object) == ("gemma", "model")
    assert client.models.retrieve("gemma") == listed
    assert listed.to_dict()["max_model_len"] == 4096


@pytest.mark.parametrize(
    ("text", "fields"),
    [
        ("greet", {}),
        ("greet", {"stop": ["never", "STOP"]}),
        ("greet", {"max_tokens": 4}),
        ("greet", {"max_completion_tokens": 4}),
        ("round", {}),
        ("think", {"reasoning_effort": "low"}),
        ("think", {"reasoning_effort": "low", "max_tokens": 12}),
        ("weather", {"tools": [TOOL]}),
        ("weather", {"tools": [TOOL], "extra_body": THINKING}),
        ("twice", {"tools": [TOOL]}),
        ("person", {"response_format": JSON_FORMAT}),
    ],
)
def test_a_stream_joins_to_the_whole_answer(client: openai.OpenAI, text: str, fields: dict[str, Any]) -> None:
    whole = ask(client, text, **fields)
    message = whole.choices[0].message
    chunks = stream(client, text, stream_options={"include_usage": True}, **fields)
    found = joined(chunks)
    assert found["content"] == (message.content or "")
    assert found["reasoning"] == found["reasoning_content"] == (message.to_dict()["reasoning_content"] or "")
    calls = [call.function for call in message.tool_calls or () if call.type == "function"]
    assert found["calls"] == [{"name": call.name, "arguments": call.arguments} for call in calls]
    assert found["reasons"] == [whole.choices[0].finish_reason]
    assert len({(chunk.id, chunk.created, chunk.object) for chunk in chunks}) == 1
    if whole.choices[0].finish_reason == "length":
        return  # the helper below raises for answers that were cut
    asked: dict[str, Any] = {"model": "gemma", "messages": user(text), **fields}
    with client.chat.completions.stream(**asked) as helper:
        final = helper.get_final_completion().choices[0]
    assert (final.message.content or None, final.finish_reason) == (message.content, whole.choices[0].finish_reason)
    put_together = [call.function for call in final.message.tool_calls or ()]
    assert [(call.name, call.arguments) for call in put_together] == [(call.name, call.arguments) for call in calls]


def test_the_streaming_helper_tells_content_and_arguments_as_they_come(client: openai.OpenAI) -> None:
    with client.chat.completions.stream(model="gemma", messages=user("greet")) as helper:  # type: ignore[arg-type]
        kinds = [event.type for event in helper]
        assert helper.get_final_completion().choices[0].message.content == "Hello! STOP there."
    assert kinds.count("content.delta") > 5
    assert "content.done" in kinds
    with client.chat.completions.stream(model="gemma", messages=user("weather"), tools=[TOOL]) as calling:  # type: ignore[list-item, arg-type]
        done = [event for event in calling if event.type == "tool_calls.function.arguments.done"]
    assert [(event.name, json.loads(event.arguments)) for event in done] == [
        ("get_weather", {"city": "Paris", "days": 2})
    ]


def test_the_first_chunk_says_who_speaks_and_the_last_why_it_ends(client: openai.OpenAI) -> None:
    """Field case 014 and its like: one finish reason an answer, no chunk without choices that nobody asked for."""
    chunks = stream(client, "greet")
    assert all(len(chunk.choices) == 1 and chunk.usage is None for chunk in chunks)
    assert (chunks[0].choices[0].delta.role, chunks[0].choices[0].delta.content) == ("assistant", "")
    assert [chunk.choices[0].finish_reason for chunk in chunks] == [None] * (len(chunks) - 1) + ["stop"]
    assert all(chunk.choices[0].delta.role is None for chunk in chunks[1:])


def test_a_stream_ends_with_done_and_silence_is_a_comment(client: openai.OpenAI, served: Served) -> None:
    """At this server's 1 ms of silence comments come all the time, and no client above noticed."""
    body = {"model": "gemma", "messages": user("greet"), "stream": True, "stream_options": {"include_usage": True}}
    response = httpx.post(f"{served.url}/v1/chat/completions", json=body, headers={"Authorization": "Bearer secret"})
    assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
    events = response.text.split("\n\n")
    assert events[-2:] == ["data: [DONE]", ""]
    assert all(event.startswith(("data: ", ": keep-alive")) for event in events[:-1])
    last = json.loads(events[-3].removeprefix("data: "))
    assert (last["choices"], last["usage"]["completion_tokens"]) == ([], len("Hello! STOP there.") + 1)


def test_usage_is_whole_and_the_same_in_streams(client: openai.OpenAI) -> None:
    """Field case 126: a cached prompt counts as much as a new one."""
    text = "greet, with a few words more so that whole blocks of it are kept"
    first, second = ask(client, text).usage, ask(client, text).usage
    assert first is not None
    assert second is not None
    assert first.prompt_tokens == second.prompt_tokens > len(text)
    assert first.total_tokens == first.prompt_tokens + first.completion_tokens
    assert first.completion_tokens == len("Hello! STOP there.") + 1
    assert first.prompt_tokens_details is not None
    assert second.prompt_tokens_details is not None
    assert (first.prompt_tokens_details.cached_tokens or 0) < 16  # the start that all prompts share
    assert (second.prompt_tokens_details.cached_tokens or 0) >= (first.prompt_tokens - 1) // 16 * 16
    # Written are the whole blocks of 16 tokens that were not there; the end of the prompt fills none.
    details = [usage.prompt_tokens_details.to_dict() for usage in (first, second)]
    assert details[0]["cache_write_tokens"] == first.prompt_tokens // 16 * 16 - int(str(details[0]["cached_tokens"]))
    assert details[1]["cache_write_tokens"] == 0
    assert [found["created_cache_tokens"] for found in details] == [found["cache_write_tokens"] for found in details]
    chunks = stream(client, text, stream_options={"include_usage": True})
    assert [chunk.usage for chunk in chunks] == [None] * (len(chunks) - 1) + [second]
    assert chunks[-1].choices == []
    each = stream(client, text, stream_options={"include_usage": True, "continuous_usage_stats": True})
    counts = [chunk.usage.completion_tokens for chunk in each if chunk.usage is not None]
    assert counts == sorted(counts)
    assert len(counts) == len(each)
    for chunk in each:
        assert chunk.usage is not None
        assert chunk.usage.prompt_tokens_details == second.prompt_tokens_details


def test_a_salt_keeps_prompts_apart(client: openai.OpenAI) -> None:
    text = "greet, and let nobody know that it was asked"
    for salt, is_cached in (("a", False), ("a", True), ("b", False)):
        usage = ask(client, text, extra_body={"cache_salt": salt}).usage
        assert usage is not None
        assert usage.prompt_tokens_details is not None
        assert bool(usage.prompt_tokens_details.cached_tokens) is is_cached


def test_several_answers_come_in_one_stream(client: openai.OpenAI) -> None:
    whole = ask(client, "several", n=3, tools=[TOOL])
    assert [choice.index for choice in whole.choices] == [0, 1, 2]
    assert [choice.message.content for choice in whole.choices] == ["One.", "Two.", None]
    assert [choice.finish_reason for choice in whole.choices] == ["stop", "stop", "tool_calls"]
    chunks = stream(client, "several", n=3, tools=[TOOL])
    assert [joined(chunks, index)["content"] for index in range(3)] == ["One.", "Two.", ""]
    assert [joined(chunks, index)["reasons"] for index in range(3)] == [["stop"], ["stop"], ["tool_calls"]]
    assert joined(chunks, 1)["reasoning"] == "The sky must be asked."
    assert joined(chunks, 2)["calls"][0]["name"] == "get_weather"
    assert [chunk.choices[0].delta.role for chunk in chunks[:4]] == ["assistant"] * 3 + [None]


def test_logprobs_stand_beside_their_tokens(client: openai.OpenAI) -> None:
    whole = ask(client, "round", logprobs=True, top_logprobs=2).choices[0]
    assert whole.logprobs is not None
    entries = whole.logprobs.content or []
    assert bytes(byte for entry in entries[:-1] for byte in entry.bytes or ()).decode() == whole.message.content
    for entry in entries:
        assert entry.logprob <= 0
        assert len(entry.top_logprobs) == 2
        assert entry.top_logprobs[0].token == entry.token
        assert entry.top_logprobs[0].logprob >= entry.top_logprobs[1].logprob
    bare = ask(client, "round", logprobs=True).choices[0].logprobs
    assert bare is not None
    assert all(entry.top_logprobs == [] for entry in bare.content or [])
    chunks = stream(client, "round", logprobs=True, top_logprobs=2)
    found = [
        entry for chunk in chunks for item in chunk.choices if item.logprobs for entry in item.logprobs.content or []
    ]
    assert found == entries


def test_a_stop_string_is_not_part_of_the_answer(client: openai.OpenAI) -> None:
    for stop in ("STOP", ["never", "STOP"]):
        choice = ask(client, "greet", stop=stop).choices[0]
        assert (choice.message.content, choice.finish_reason) == ("Hello! ", "stop")
    assert ask(client, "greet", max_tokens=3).choices[0].finish_reason == "length"
    assert ask(client, "greet", max_completion_tokens=3).choices[0].message.content == "Hel"


def test_a_seed_repeats_an_answer_and_a_bias_changes_it(client: openai.OpenAI, served: Served) -> None:
    # At this temperature the script's certainty is none.
    wild: dict[str, Any] = {"temperature": 50, "max_tokens": 12, "logprobs": True}
    asked = [ask(client, "greet", seed=seed, **wild).choices[0].logprobs for seed in (7, 7, 8, -1)]
    assert asked[0] == asked[1]
    assert asked[0] != asked[2]
    (token_id,) = _ids(served, "q")
    found = ask(client, "greet", logit_bias={str(token_id): 100}, max_tokens=3).choices[0]
    assert found.message.content == "qqq"


def _ids(served: Served, text: str) -> list[int]:
    tokenizer = served.engine.llm.tokenizer
    assert tokenizer is not None
    return tokenizer.encode(text)


def test_an_answer_that_is_begun_is_gone_on_with(client: openai.OpenAI, told: Told) -> None:
    begun = [*user("Tell."), {"role": "assistant", "content": "Once upon"}]
    found = ask(client, "", messages=begun, extra_body={"continue_final_message": True, "add_generation_prompt": False})
    assert found.choices[0].message.content == " a time."
    assert told.prompts[-1].endswith("<|turn>model\nOnce upon")


def test_ids_are_given_where_asked_for(client: openai.OpenAI, served: Served) -> None:
    whole = ask(client, "greet", extra_body={"return_token_ids": True, "request_id": "mine"})
    assert whole.id == "chatcmpl-mine"
    content = whole.to_dict()
    assert whole.usage is not None
    assert len(content["prompt_token_ids"]) == whole.usage.prompt_tokens  # type: ignore[arg-type]
    ids: Any = whole.choices[0].to_dict()["token_ids"]
    assert ids[:-1] == _ids(served, "Hello! STOP there.")
    chunks = stream(client, "greet", extra_body={"return_token_ids": True})
    streamed = [item for chunk in chunks for item in chunk.choices[0].to_dict().get("token_ids", [])]  # type: ignore[attr-defined]
    assert streamed == ids
    assert chunks[0].to_dict()["prompt_token_ids"] == content["prompt_token_ids"]


def test_what_changes_nothing_is_taken(client: openai.OpenAI) -> None:
    found = ask(
        client,
        "greet",
        user="me",
        metadata={"a": "b"},
        store=True,
        service_tier="auto",
        safety_identifier="me",
        prompt_cache_key="k",
        modalities=["text"],
        verbosity="medium",
        stream_options=None,
        temperature=0,
        top_p=0.9,
        seed=3,
        frequency_penalty=0.0,
        extra_body={"top_k": 40, "skip_special_tokens": True, "use_beam_search": False, "best_of": 1},
    )
    assert found.choices[0].message.content == "Hello! STOP there."


def test_an_asynchronous_client_asks_many_at_once(served: Served) -> None:
    """Field case 122: answers that are computed together are those of each alone."""

    async def run() -> list[str | None]:
        async with openai.AsyncOpenAI(base_url=f"{served.url}/v1", api_key="secret", max_retries=0) as client:
            asked = [
                client.chat.completions.create(model="gemma", messages=user(text))  # type: ignore[call-overload]
                for text in ("greet", "think", "round", "person") * 3
            ]
            return [found.choices[0].message.content for found in await asyncio.gather(*asked)]

    found = asyncio.run(run())
    assert found[:4] == ["Hello! STOP there.", "It is blue.", "Zwölf €, 🙂.", '```json\n{"name":"Ann","age":3}\n```']
    assert found == found[:4] * 3
