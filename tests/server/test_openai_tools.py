"""OpenAI's own client against a live server: thoughts, structured output, and tools in all their choices."""

from __future__ import annotations

import json
from typing import Any, Literal

import openai
import pytest
from pydantic import BaseModel

from tests.openai_script import CALL, CALL_AS_TEXT, CLOCK, JSON_FORMAT, THINKING, TOOL, Told, ask, joined, stream, user


class Person(BaseModel):
    """What an answer is parsed into."""

    name: Literal["Ann"]
    age: Literal[3]


@pytest.mark.parametrize(
    ("fields", "thinks"),
    [
        ({}, False),
        ({"reasoning_effort": "none"}, False),
        ({"reasoning_effort": "minimal"}, True),
        ({"reasoning_effort": "high"}, True),
        ({"extra_body": THINKING}, True),
        ({"extra_body": {"chat_template_kwargs": {"enable_thinking": False}}}, False),
        ({"reasoning_effort": "high", "extra_body": {"chat_template_kwargs": {"enable_thinking": False}}}, False),
    ],
)
def test_a_model_thinks_when_asked_and_keeps_to_a_schema_either_way(
    client: openai.OpenAI, told: Told, fields: dict[str, Any], thinks: bool
) -> None:
    """Field cases 115, 116 and 124: thinking is off unless asked for, and the model would fence its JSON."""
    for form in ({}, {"response_format": JSON_FORMAT}, {"response_format": {"type": "json_object"}}):
        message = ask(client, "person", max_tokens=100, **form, **fields).choices[0].message
        assert ("<|think|>" in told.prompts[-1]) is thinks
        thought = "The sky must be asked." if thinks else None
        assert message.to_dict()["reasoning"] == message.to_dict()["reasoning_content"] == thought
        if "json_schema" in str(form):
            assert Person.model_validate_json(message.content or "").age == 3
        elif form:
            assert (message.content or "").lstrip().startswith("{")
        else:
            assert (message.content or "").startswith("```")


def test_a_request_without_a_schema_leaves_the_next_one_alone(client: openai.OpenAI) -> None:
    """Field case 119."""
    for form in ({}, {"response_format": JSON_FORMAT}) * 3:
        content = ask(client, "person", max_tokens=100, **form).choices[0].message.content or ""
        assert (json.loads(content) == {"name": "Ann", "age": 3}) if form else content.startswith("```")


def test_the_client_parses_an_answer_into_its_own_class(client: openai.OpenAI) -> None:
    found = client.chat.completions.parse(model="gemma", messages=user("person"), response_format=Person)  # type: ignore[arg-type]
    assert found.choices[0].message.parsed == Person(name="Ann", age=3)
    further = [*user("person"), found.choices[0].message, *user("greet")]  # what is parsed goes back with it
    assert ask(client, "", messages=further).choices[0].message.content == "Hello! STOP there."
    with client.chat.completions.stream(model="gemma", messages=user("person"), response_format=Person) as helper:  # type: ignore[arg-type]
        assert helper.get_final_completion().choices[0].message.parsed == Person(name="Ann", age=3)
    tool = openai.pydantic_function_tool(Person)
    called = client.chat.completions.parse(
        model="gemma",
        messages=user("person"),  # type: ignore[arg-type]
        tools=[tool],
        tool_choice="required",
        max_tokens=300,
    )
    (call,) = called.choices[0].message.tool_calls or ()
    assert call.function.parsed_arguments == Person(name="Ann", age=3)


def test_a_choice_a_regex_and_a_grammar_decide_the_answer(client: openai.OpenAI) -> None:
    for form, allowed in (
        ({"choice": ["yes", "no"]}, ("yes", "no")),
        ({"regex": "[ab]{3}"}, tuple(a + b + c for a in "ab" for b in "ab" for c in "ab")),
        ({"grammar": 'root ::= "left" | "right"'}, ("left", "right")),
    ):
        found = ask(client, "greet", extra_body={"structured_outputs": form})
        assert found.choices[0].message.content in allowed


def test_a_thought_that_is_cut_is_no_content(client: openai.OpenAI) -> None:
    """Field case 004."""
    found = ask(client, "think", reasoning_effort="low", max_tokens=12)
    choice = found.choices[0]
    assert choice.finish_reason == "length"
    assert not choice.message.content
    assert "The sky".startswith(choice.message.to_dict()["reasoning_content"])  # type: ignore[arg-type]
    assert found.usage is not None
    assert found.usage.completion_tokens == 12


def test_a_thought_may_be_left_out_and_nobody_asked_for_it(client: openai.OpenAI) -> None:
    """Field case 009: a thought is read as one whether or not it was asked for."""
    shown = ask(client, "think")
    assert shown.choices[0].message.content == "It is blue."
    assert shown.choices[0].message.to_dict()["reasoning"] == "The sky must be asked."
    assert shown.usage is not None
    assert shown.usage.completion_tokens_details is not None
    assert (shown.usage.completion_tokens_details.reasoning_tokens or 0) > 0
    hidden = ask(client, "think", extra_body={"include_reasoning": False}).choices[0].message.to_dict()
    assert hidden["content"] == "It is blue."
    assert "reasoning" not in hidden
    chunks = stream(client, "think", extra_body={"include_reasoning": False})
    assert joined(chunks)["content"] == "It is blue."
    assert joined(chunks)["reasoning"] == ""


def test_streamed_calls_begin_with_id_type_and_name(client: openai.OpenAI) -> None:
    """Field case 014: what opencode and the SDK of Vercel stumble over."""
    chunks = stream(client, "twice", tools=[TOOL])
    deltas = [call for chunk in chunks for call in chunk.choices[0].delta.tool_calls or ()]
    for index in (0, 1):
        own = [call for call in deltas if call.index == index]
        assert own[0].id
        assert own[0].type == "function"
        assert own[0].function is not None
        assert (own[0].function.name, own[0].function.arguments) == ("get_weather", "")
        assert all(call.id is None and call.function and call.function.name is None for call in own[1:])
    assert len({call.id for call in deltas if call.id}) == 2
    assert [json.loads(call["arguments"]) for call in joined(chunks)["calls"]] == [
        {"city": "Paris", "days": 2},
        {"city": "Rome", "days": 3},
    ]
    assert joined(chunks)["reasons"] == ["tool_calls"]


@pytest.mark.parametrize("name", ["reasoning", "reasoning_content"])
def test_tools_go_there_and_back_with_the_thought(client: openai.OpenAI, told: Told, name: str) -> None:
    first = ask(client, "weather", tools=[TOOL], extra_body=THINKING)
    assert first.choices[0].finish_reason == "tool_calls"
    message = first.choices[0].message
    (call,) = message.tool_calls or ()
    assert call.type == "function"
    assert (call.function.name, json.loads(call.function.arguments)) == ("get_weather", {"city": "Paris", "days": 2})
    sent = message.to_dict()
    thought = sent.pop("reasoning")
    del sent["reasoning_content"]
    for extra in ({name: thought}, {"reasoning": thought, "reasoning_content": thought}):
        messages = [
            *user("weather"),
            {**sent, **extra},
            {"role": "tool", "tool_call_id": call.id, "content": '{"sky":"sunny"}'},
        ]
        second = ask(client, "", messages=messages, tools=[TOOL], extra_body=THINKING)
        assert second.choices[0].message.content == "It is sunny."
        assert CALL in told.prompts[-1]
        assert "The sky must be asked." in told.prompts[-1]
        assert "response:get_weather" in told.prompts[-1]


def test_tool_choice_decides_what_may_come(client: openai.OpenAI, told: Told) -> None:
    tools = [TOOL, CLOCK]

    def names(text: str, **fields: Any) -> list[str]:
        found = ask(client, text, tools=tools, max_tokens=400, **fields).choices[0].message
        return [call.function.name for call in found.tool_calls or () if call.type == "function"]

    assert names("greet", tool_choice="auto") == []
    assert names("clock", tool_choice="required") == ["get_time"]
    named = {"type": "function", "function": {"name": "get_time"}}
    assert set(names("weather", tool_choice=named)) == {"get_time"}
    assert names("twice") == ["get_weather", "get_weather"]
    assert names("twice", parallel_tool_calls=False) == ["get_weather"]
    assert names("twice", parallel_tool_calls=False, tool_choice="required") == ["get_weather"]
    assert names("greet", tool_choice="none") == []
    assert "get_weather" not in told.prompts[-1]
    assert names("twice", tool_choice="none") == []


@pytest.mark.parametrize("fields", [{"tool_choice": "none"}, {"tools": [TOOL], "tool_choice": "none"}, {}])
def test_no_call_comes_back_where_none_may(client: openai.OpenAI, fields: dict[str, Any]) -> None:
    """A model that would write two calls all the same: without tools they are text, and with "none" the mark that
    opens one is never chosen either."""
    whole = ask(client, "twice", **fields).choices[0]
    assert (whole.finish_reason, whole.message.tool_calls) == ("stop", None)
    streamed = joined(stream(client, "twice", **fields))
    assert (streamed["calls"], streamed["reasons"]) == ([], ["stop"])
    assert streamed["content"] == whole.message.content
    if not fields:
        assert whole.message.content == CALL_AS_TEXT + CALL_AS_TEXT.replace("Paris", "Rome").replace("2", "3")
    # A thought is told apart as ever.
    thoughtful = ask(client, "weather", **fields).choices[0].message
    assert thoughtful.to_dict()["reasoning"] == "The sky must be asked."
    assert (thoughtful.content or "").startswith("I will ask.")


def test_the_mark_of_a_call_is_not_chosen_where_none_may_come(client: openai.OpenAI) -> None:
    """The logprobs show the model's own wish; what is chosen is another token."""
    for fields, is_chosen in (({}, True), ({"tools": [TOOL], "tool_choice": "none"}, False)):
        found = ask(client, "twice", logprobs=True, top_logprobs=1, **fields).choices[0].logprobs
        assert found is not None
        assert found.content is not None
        first = found.content[0]
        assert first.top_logprobs[0].token == "<|tool_call>"
        assert (first.token == "<|tool_call>") is is_chosen


def test_arguments_of_a_strict_tool_keep_to_its_schema(client: openai.OpenAI) -> None:
    """Field case 120: the keys of arguments, not just their outer shape."""
    parameters = {
        "type": "object",
        "properties": {"absolutePath": {"type": "string", "enum": ["a.txt", "b.txt"]}},
        "required": ["absolutePath"],
        "additionalProperties": False,
    }
    tool = {"type": "function", "function": {"name": "read", "parameters": parameters, "strict": True}}
    for choice in ("required", {"type": "function", "function": {"name": "read"}}):
        found = ask(client, "greet", tools=[tool], tool_choice=choice, max_tokens=200, parallel_tool_calls=False)
        (call,) = found.choices[0].message.tool_calls or ()
        assert call.type == "function"
        assert json.loads(call.function.arguments)["absolutePath"] in ("a.txt", "b.txt")
