"""OpenAI's own client against /v1/responses of a live server: whole and streamed, thoughts, tools, JSON, usage."""

from __future__ import annotations

import json
from typing import Any, Literal

import openai
import pytest
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import BaseModel

from tests.openai_script import CALL, SCHEMA, Told
from tests.responses_script import (
    CLOCK,
    PERSON_FORMAT,
    THINK,
    TOOL,
    calls_of,
    events_of,
    kinds_of,
    output_of,
    respond,
)

LOGPROBS = {"include": ["message.output_text.logprobs"], "top_logprobs": 2}


class Person(BaseModel):
    """What an answer is parsed into."""

    name: Literal["Ann"]
    age: Literal[3]


def test_a_response_has_the_shape_that_the_client_reads(client: openai.OpenAI) -> None:
    found = respond(client, "greet", instructions="Be brief.", metadata={"a": "b"}, temperature=0, max_output_tokens=99)
    assert Response.model_validate(found.to_dict()) is not None
    assert found.output_text == "Hello! STOP there."
    assert (found.object, found.status, found.model) == ("response", "completed", "gemma")
    assert (found.error, found.incomplete_details, found.previous_response_id) == (None, None, None)
    assert (found.instructions, found.metadata, found.temperature) == ("Be brief.", {"a": "b"}, 0)
    assert (found.max_output_tokens, found.tool_choice, found.tools) == (99, "auto", [])
    assert found.parallel_tool_calls is True
    assert found.to_dict()["store"] is False
    assert found.text is not None
    assert found.text.format is not None
    assert found.text.format.type == "text"
    assert found.id == f"resp_{found._request_id}"
    assert (found.completed_at or 0) >= found.created_at
    (message,) = output_of(found)
    part = {"type": "output_text", "text": "Hello! STOP there.", "annotations": [], "logprobs": []}
    assert message == {"type": "message", "role": "assistant", "status": "completed", "content": [part]}


@pytest.mark.parametrize(
    ("given", "fields"),
    [
        ("greet", {}),
        ("greet", {"max_output_tokens": 4}),
        ("round", LOGPROBS),
        ("think", LOGPROBS),
        ("think", {"reasoning": THINK}),
        ("think", {"reasoning": THINK, "max_output_tokens": 12}),
        ("think", {"reasoning": {**THINK, "summary": "concise"}}),
        ("think", {"reasoning": {**THINK, "summary": "auto"}, "max_output_tokens": 12}),
        ("weather", {"tools": [TOOL], "reasoning": THINK}),
        ("weather", {"tools": [TOOL], "max_output_tokens": 70}),
        ("distant", {"tools": [TOOL]}),
        ("distant", {"tools": [TOOL], "max_output_tokens": 500}),
        ("twice", {"tools": [TOOL]}),
        ("person", {"text": PERSON_FORMAT}),
        ("person", {"text": PERSON_FORMAT, "reasoning": THINK}),
    ],
)
def test_a_stream_says_what_the_whole_response_says(client: openai.OpenAI, given: str, fields: dict[str, Any]) -> None:
    whole = respond(client, given, **fields)
    events = events_of(client, given, **fields)
    check_order(events)
    last = events[-1]
    assert last.type in ("response.completed", "response.incomplete")
    streamed = last.response
    assert output_of(streamed) == output_of(whole)
    changes = ("id", "created_at", "completed_at", "output", "usage")
    assert streamed.model_dump(exclude=set(changes)) == whole.model_dump(exclude=set(changes))
    assert streamed.usage is not None
    assert whole.usage is not None
    assert streamed.usage.input_tokens == whole.usage.input_tokens
    assert streamed.usage.output_tokens == whole.usage.output_tokens
    assert streamed.usage.output_tokens_details == whole.usage.output_tokens_details
    # What the deltas and the closed items add up to is the same again.
    texts: dict[int, str] = {}
    done = {}
    for event in events:
        if event.type in DELTAS:
            texts[event.output_index] = texts.get(event.output_index, "") + event.delta
        elif event.type == "response.output_item.done":
            done[event.output_index] = event.item
    closed = [done[index] for index in sorted(done)]
    assert [item.id for item in closed if item.to_dict() in [one.to_dict() for one in streamed.output]] == [
        item.id for item in streamed.output
    ]
    for index, item in enumerate(streamed.output):
        content = item.to_dict()
        assert texts[index] == (content.get("arguments") or content["content"][0]["text"])  # type: ignore[index]


DELTAS = (
    "response.output_text.delta",
    "response.reasoning_text.delta",
    "response.function_call_arguments.delta",
)


def check_order(events: list[ResponseStreamEvent]) -> None:
    """Numbers count up, the response frames its items, and each item its part and deltas, one item after the other."""
    assert [event.sequence_number for event in events] == list(range(len(events)))
    kinds = [event.type for event in events]
    assert kinds[:2] == ["response.created", "response.in_progress"]
    indices = [event.output_index for event in events[2:-1]]
    assert indices == sorted(indices)
    for index in set(indices):
        own = [event for event in events[2:-1] if event.output_index == index]
        first, last = own[0], own[-1]
        assert first.type == "response.output_item.added"
        assert last.type == "response.output_item.done"
        assert first.item.id == last.item.id
        assert {event.item_id for event in own[1:-1]} <= {first.item.id}
        # Summaries are checked apart.
        inner = list(dict.fromkeys(event.type for event in own[1:-1] if "_summary_" not in event.type))
        name = {"message": "output_text", "reasoning": "reasoning_text"}.get(first.item.type)
        if name is None:
            begun = "response.function_call_arguments"
            assert inner == ([f"{begun}.delta", f"{begun}.done"] if last.item.status == "completed" else inner[:1])
            continue
        assert inner == [
            "response.content_part.added",
            f"response.{name}.delta",
            f"response.{name}.done",
            "response.content_part.done",
        ]
        assert [event.type for event in own].count(f"response.{name}.done") == 1


def test_the_clients_own_helper_follows_a_stream(client: openai.OpenAI) -> None:
    asked: dict[str, Any] = {"model": "gemma", "input": "weather", "tools": [TOOL], "reasoning": THINK}
    snapshots = []
    with client.responses.stream(**asked) as helper:
        for event in helper:
            if event.type in ("response.output_text.delta", "response.function_call_arguments.delta"):
                snapshots.append(event.snapshot)
        final = helper.get_final_response()
    assert kinds_of(final) == ["reasoning", "message", "function_call"]
    assert "I will ask." in snapshots
    assert json.loads(snapshots[-1]) == {"city": "Paris", "days": 2}
    with client.responses.stream(model="gemma", input="person", text_format=Person) as helper:
        assert helper.get_final_response().output_parsed == Person(name="Ann", age=3)


def test_the_client_parses_an_answer_into_its_own_class(client: openai.OpenAI) -> None:
    """Field cases 115 and 116: the model would fence its JSON, thinking or not."""
    for reasoning in ({"effort": "none"}, THINK):
        found = client.responses.parse(model="gemma", input="person", text_format=Person, reasoning=reasoning)  # type: ignore[arg-type]
        assert found.output_parsed == Person(name="Ann", age=3)
        assert kinds_of(found) == (["message"] if reasoning is not THINK else ["reasoning", "message"])
    tool = openai.pydantic_function_tool(Person)
    called = client.responses.parse(
        model="gemma",
        input="person",
        tools=[{"type": "function", **tool["function"]}],  # type: ignore[list-item]
        tool_choice="required",
        max_output_tokens=300,
    )
    assert called.output[0].type == "function_call"
    assert called.output[0].parsed_arguments == {"name": "Ann", "age": 3}


@pytest.mark.parametrize("effort", [None, "none", "minimal", "low", "medium", "high", "xhigh", "max"])
def test_a_model_thinks_when_asked_and_keeps_to_json_either_way(
    client: openai.OpenAI, told: Told, effort: str | None
) -> None:
    thinks = effort not in (None, "none")
    for text in ({}, PERSON_FORMAT, {"format": {"type": "json_object"}}):
        found = respond(client, "person", text=text, reasoning={"effort": effort}, max_output_tokens=100)
        assert ("<|think|>" in told.prompts[-1]) is thinks
        assert kinds_of(found) == (["reasoning", "message"] if thinks else ["message"])
        if thinks:
            thought = found.output[0].to_dict()
            assert thought["content"] == [{"type": "reasoning_text", "text": "The sky must be asked."}]
            assert thought["summary"] == []
        if text is PERSON_FORMAT:
            assert json.loads(found.output_text) == {"name": "Ann", "age": 3}
            assert found.text is not None
            assert found.text.format is not None
            assert found.text.format.to_dict() == PERSON_FORMAT["format"]
        else:
            assert found.output_text.lstrip().startswith("{" if text else "```")
        assert found.reasoning is not None
        assert found.reasoning.effort == effort


@pytest.mark.parametrize("as_dicts", [False, True])
def test_tools_go_there_and_back_with_the_items_as_they_came(client: openai.OpenAI, told: Told, as_dicts: bool) -> None:
    given: list[Any] = [{"role": "user", "content": "weather"}]
    first = respond(client, given, tools=[TOOL], reasoning=THINK)
    assert first.status == "completed"
    (call,) = calls_of(first)
    assert (call.name, json.loads(call.arguments)) == ("get_weather", {"city": "Paris", "days": 2})
    given += [item.model_dump() for item in first.output] if as_dicts else first.output
    given.append({"type": "function_call_output", "call_id": call.call_id, "output": "sunny"})
    second = respond(client, given, tools=[TOOL], reasoning=THINK)
    assert second.output_text == "It is sunny."
    prompt = told.prompts[-1]
    assert f'{CALL}<|tool_response>response:get_weather{{value:<|"|>sunny<|"|>}}<tool_response|>' in prompt
    places = [prompt.index(text) for text in ("The sky must be asked.", "I will ask.", CALL)]
    assert places == sorted(places)
    assert second.usage is not None
    assert first.usage is not None
    # All of the first prompt is still in the cache, but for the block that its last tokens do not fill.
    assert second.usage.input_tokens_details.cached_tokens > first.usage.input_tokens - 16
    # The third turn: the thought is of an older one, and not read again.
    given += [*second.output, {"role": "user", "content": "greet"}]
    assert respond(client, given, tools=[TOOL], reasoning=THINK).output_text == "Hello! STOP there."
    assert "The sky must be asked." not in told.prompts[-1]
    assert CALL in told.prompts[-1]


def test_two_calls_are_answered_together(client: openai.OpenAI, told: Told) -> None:
    first = respond(client, "twice", tools=[TOOL])
    one, two = calls_of(first)
    assert len({one.id, two.id, one.call_id, two.call_id}) == 4
    results = [
        {"type": "function_call_output", "call_id": one.call_id, "output": [{"type": "input_text", "text": "cloudy"}]},
        {"type": "function_call_output", "call_id": two.call_id, "output": "sunny"},
    ]
    given = [{"role": "user", "content": [{"type": "input_text", "text": "twice"}]}, *first.output, *results]
    second = respond(client, given, tools=[TOOL])
    assert second.output_text == "It is sunny."
    places = [told.prompts[-1].index(text) for text in ("Paris", "Rome", "cloudy", "sunny")]
    assert places == sorted(places)


def test_a_result_may_name_its_tool_instead_of_its_call(client: openai.OpenAI, told: Told) -> None:
    call = {"type": "function_call", "call_id": "a", "name": "get_weather", "arguments": "{}"}
    output = {"type": "function_call_output", "name": "get_weather", "output": "sunny"}
    assert respond(client, [{"role": "user", "content": "x"}, call, output]).output_text == "It is sunny."
    assert "response:get_weather" in told.prompts[-1]


def test_tool_choice_decides_what_may_come(client: openai.OpenAI, told: Told) -> None:
    tools = [TOOL, CLOCK]

    def names(text: str, **fields: Any) -> list[str]:
        return [call.name for call in calls_of(respond(client, text, tools=tools, max_output_tokens=400, **fields))]

    assert names("greet", tool_choice="auto") == []
    assert names("clock", tool_choice="required") == ["get_time"]
    assert set(names("weather", tool_choice={"type": "function", "name": "get_time"})) == {"get_time"}
    assert names("twice") == ["get_weather", "get_weather"]
    assert names("twice", parallel_tool_calls=False) == ["get_weather"]
    assert names("greet", tool_choice="none") == []
    assert "get_weather" not in told.prompts[-1]
    allowed: dict[str, Any] = {"type": "allowed_tools", "tools": [{"type": "function", "name": "get_time"}]}
    assert names("greet", tool_choice={**allowed, "mode": "auto"}) == []
    assert "get_weather" not in told.prompts[-1]
    assert "get_time" in told.prompts[-1]
    assert set(names("weather", tool_choice={**allowed, "mode": "required"})) == {"get_time"}
    strict = respond(client, "greet", tools=[{**TOOL, "strict": True}], tool_choice="required", max_output_tokens=400)
    for call in calls_of(strict):
        assert set(json.loads(call.arguments)) == {"city", "days"}


@pytest.mark.parametrize(
    ("given", "fields", "limit", "items"),
    [
        ("greet", {}, 12, [("message", "incomplete")]),
        ("think", {"reasoning": THINK}, 12, [("reasoning", "incomplete")]),
        ("weather", {"tools": [TOOL]}, 70, [("reasoning", "completed"), ("message", "incomplete")]),
        ("distant", {"tools": [TOOL]}, 500, [("message", "completed")]),
    ],
)
def test_what_the_limit_cuts_is_incomplete(
    client: openai.OpenAI, given: str, fields: dict[str, Any], limit: int, items: list[tuple[str, str]]
) -> None:
    """Field case 004: a thought that is cut is no content; a call that is cut is none to carry out."""
    found = respond(client, given, max_output_tokens=limit, **fields)
    assert found.status == "incomplete"
    assert found.completed_at is None
    assert found.incomplete_details is not None
    assert found.incomplete_details.reason == "max_output_tokens"
    assert found.usage is not None
    assert found.usage.output_tokens == limit
    assert [(item["type"], item["status"]) for item in output_of(found)] == items


def test_a_call_that_is_cut_is_closed_as_incomplete(client: openai.OpenAI) -> None:
    """It had begun to go out; its arguments are never said to be done, and the last response does not have it."""
    events = events_of(client, "distant", tools=[TOOL], max_output_tokens=500)
    (closed,) = (event.item for event in events if event.type == "response.output_item.done" and event.output_index)
    assert closed.type == "function_call"
    assert closed.status == "incomplete"
    assert closed.arguments.startswith('{"city":"far away far')
    assert "response.function_call_arguments.done" not in {event.type for event in events}
    with client.responses.stream(
        model="gemma",
        input="distant",
        tools=[TOOL],  # type: ignore[list-item]
        max_output_tokens=500,
    ) as helper:
        last = list(helper)[-1]
    assert last.type == "response.incomplete"
    assert kinds_of(last.response) == ["message"]


def test_tokens_are_counted_with_those_of_the_thought_and_of_the_cache(client: openai.OpenAI) -> None:
    given = "think, and this text is here to fill more than one block of the cache"
    usages = [respond(client, given, reasoning=THINK).usage for _ in range(2)]
    for usage in usages:
        assert usage is not None
        assert usage.total_tokens == usage.input_tokens + usage.output_tokens
        assert 0 < usage.output_tokens_details.reasoning_tokens < usage.output_tokens
    assert usages[1] is not None
    details = usages[1].input_tokens_details
    assert details.cached_tokens > len(given) - 16
    # Whole blocks of 16 tokens: the end of a prompt that fills none is neither read nor written.
    assert details.cached_tokens + details.cache_write_tokens == usages[1].input_tokens // 16 * 16


@pytest.mark.parametrize("given", ["think", "round", "weather"])
def test_logprobs_are_those_of_the_text_alone(client: openai.OpenAI, given: str) -> None:
    found = respond(client, given, tools=[TOOL], **LOGPROBS)
    (message,) = (item for item in found.output if item.type == "message")
    (part,) = message.content
    assert part.type == "output_text"
    assert bytes(value for entry in part.logprobs or () for value in entry.bytes) == part.text.encode()
    assert all(len(entry.top_logprobs) == 2 and entry.logprob > -1e-6 for entry in part.logprobs or ())
    sent = []
    for event in events_of(client, given, tools=[TOOL], **LOGPROBS):
        if event.type == "response.output_text.delta":
            sent += [entry.token for entry in event.logprobs]
    assert sent == [entry.token for entry in part.logprobs or ()]
    none = respond(client, "greet").output[0].to_dict()
    assert none["content"][0]["logprobs"] == []  # type: ignore[index]


def test_a_schema_stands_in_the_answer_as_it_was_sent(client: openai.OpenAI) -> None:
    found = respond(client, "person", text={"format": {**PERSON_FORMAT["format"], "description": "A person."}})
    assert found.to_dict()["text"]["format"]["schema"] == SCHEMA  # type: ignore[index]
    assert found.to_dict()["text"]["format"]["description"] == "A person."  # type: ignore[index]
    called = respond(client, "greet", tools=[TOOL], tool_choice="none")
    assert called.to_dict()["tools"] == [TOOL]
    assert called.tool_choice == "none"


@pytest.mark.parametrize("asked", [{"summary": "auto"}, {"generate_summary": "detailed"}])
def test_a_thought_is_its_own_summary_where_one_is_asked_for(client: openai.OpenAI, asked: dict[str, str]) -> None:
    """No shorter one is made: whoever reads summaries alone has the whole thought."""
    reasoning: Any = {**THINK, **asked}
    found = respond(client, "think", reasoning=reasoning)
    thought = "The sky must be asked."
    assert found.output[0].to_dict()["summary"] == [{"type": "summary_text", "text": thought}]
    assert found.output[0].to_dict()["content"] == [{"type": "reasoning_text", "text": thought}]
    assert found.reasoning is not None
    assert found.reasoning.summary == next(iter(asked.values()))
    events = events_of(client, "think", reasoning=reasoning)
    own = [event for event in events if event.type.startswith("response.reasoning_summary_")]
    deltas = [event.delta for event in own if event.type == "response.reasoning_summary_text.delta"]
    assert "".join(deltas) == thought
    assert [event.type.rpartition("summary_")[2] for event in own] == [
        "part.added",
        *["text.delta"] * len(deltas),
        "text.done",
        "part.done",
    ]
    done = [event.text for event in own if event.type == "response.reasoning_summary_text.done"]
    assert done == [thought]
    assert respond(client, "think", reasoning=THINK).output[0].to_dict()["summary"] == []
