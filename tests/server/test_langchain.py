"""LangChain's ChatOpenAI against a live server: its messages, streams, tools, structured output, counts and errors."""

from __future__ import annotations

import asyncio
import json
import math
import time
from typing import Any, Literal

import openai
import pytest
from langchain_core.exceptions import ContextOverflowError, ModelAuthenticationError, ModelNotFoundError
from langchain_core.messages import AIMessage, AIMessageChunk, HumanMessage, SystemMessage, ToolMessage
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from pydantic import BaseModel

from tests.openai_script import CALL, CALL_AS_TEXT, OTHER_CALL, THINKING, Told
from tests.serving import Served

NOT_THINKING = {"chat_template_kwargs": {"enable_thinking": False}}
THOUGHT = "The sky must be asked."
EXPECTED = {"greet": "Hello! STOP there.", "think": "It is blue.", "round": "Zwölf €, 🙂."}


class Person(BaseModel):
    """A person."""

    name: str
    age: int


class File(BaseModel):
    """Where a file lies."""

    absolutePath: Literal["a.txt", "b.txt"]  # noqa: N815  # the name is the case
    isFolder: bool  # noqa: N815


@tool
def get_weather(city: str, days: int) -> str:
    """The weather of a city."""
    return f"sunny in {city} for {days} days"


@tool
def get_time(city: str, days: int) -> str:
    """The time of a city."""
    return f"noon in {city}, {days}"


def model(served: Served, **fields: Any) -> ChatOpenAI:
    """LangChain's model of the server; counts of streams have to be asked for where the server is not OpenAI's own."""
    asked = {"model": "gemma", "api_key": "secret", "max_retries": 0, "stream_usage": True, **fields}
    return ChatOpenAI(base_url=f"{served.url}/v1", **asked)


def joined(chunks: list[AIMessageChunk]) -> AIMessageChunk:
    """The chunks of a stream as LangChain adds them up."""
    total = chunks[0]
    for chunk in chunks[1:]:
        total += chunk
    return total


def calls(message: AIMessage) -> list[tuple[str, dict[str, Any]]]:
    """What is called with what; ids are new each time."""
    assert not message.invalid_tool_calls
    assert all(call["id"] for call in message.tool_calls)
    return [(call["name"], call["args"]) for call in message.tool_calls]


def counts(message: AIMessage) -> tuple[int, int, int, int]:
    """Input, output, all, and reasoning tokens."""
    usage = message.usage_metadata
    assert usage is not None
    reasoning = usage["output_token_details"]["reasoning"]
    return usage["input_tokens"], usage["output_tokens"], usage["total_tokens"], reasoning


def test_an_answer_becomes_langchains_message(served: Served) -> None:
    found = model(served).invoke("greet")
    assert (found.content, found.tool_calls) == (EXPECTED["greet"], [])
    about = found.response_metadata
    assert (about["finish_reason"], about["model_name"], about["logprobs"]) == ("stop", "gemma", None)
    assert about["id"].startswith("chatcmpl-")
    assert counts(found)[1:] == (19, counts(found)[0] + 19, 0)
    assert model(served, max_tokens=3).invoke("greet").response_metadata["finish_reason"] == "length"
    assert model(served).invoke("greet", stop=["STOP"]).content == "Hello! "


@pytest.mark.parametrize(
    ("text", "fields", "has_tools"),
    [
        ("greet", {}, False),
        ("greet", {"max_tokens": 3}, False),
        ("round", {}, False),
        ("think", {"reasoning_effort": "low"}, False),
        ("weather", {}, True),
        ("weather", {"extra_body": THINKING}, True),
        ("twice", {}, True),
    ],
)
def test_the_chunks_of_a_stream_add_up_to_the_message(
    served: Served, text: str, fields: dict[str, Any], has_tools: bool
) -> None:
    asked: Any = model(served, **fields)
    asked = asked.bind_tools([get_weather]) if has_tools else asked
    whole = asked.invoke(text)
    chunks = list(asked.stream(text))
    found = joined(chunks)
    assert found.content == whole.content
    assert calls(found) == calls(whole)
    assert counts(found) == counts(whole)
    assert found.response_metadata["finish_reason"] == whole.response_metadata["finish_reason"]
    assert found.response_metadata["model_name"] == "gemma"
    assert sum(bool(chunk.content) for chunk in chunks) == len(str(whole.content))  # letter by letter


def test_batches_are_answered_as_each_alone(served: Served) -> None:
    """Field case 122: answers that are computed together are those of each alone."""
    asked = list(EXPECTED) * 4
    assert [found.content for found in model(served).batch(asked)] == list(EXPECTED.values()) * 4


def test_coroutines_ask_stream_and_batch(served: Served) -> None:
    async def run() -> tuple[AIMessage, list[AIMessageChunk], list[AIMessage]]:
        asked = model(served).bind_tools([get_weather])
        chunks = [chunk async for chunk in asked.astream("weather")]
        return await asked.ainvoke("weather"), chunks, await model(served).abatch(list(EXPECTED) * 4)

    whole, chunks, several = asyncio.run(run())  # one loop: LangChain keeps its connections for all models
    assert calls(whole) == calls(joined(chunks)) == [("get_weather", {"city": "Paris", "days": 2})]
    assert (whole.content, counts(whole)) == (joined(chunks).content, counts(joined(chunks)))
    assert [found.content for found in several] == list(EXPECTED.values()) * 4


def test_a_chain_formats_asks_and_parses(served: Served, told: Told) -> None:
    prompt = ChatPromptTemplate.from_messages([("system", "Be {how}."), ("human", "{what}")])
    chain = prompt | model(served, temperature=0, seed=1, top_p=0.9) | StrOutputParser()
    assert chain.invoke({"how": "kind", "what": "greet"}) == EXPECTED["greet"]
    assert "Be kind." in told.prompts[-1]
    assert "".join(chain.stream({"how": "kind", "what": "greet"})) == EXPECTED["greet"]


def test_streamed_calls_come_as_chunks_with_name_and_id_first(served: Served) -> None:
    """Field case 014, through the chunks that LangChain makes of it."""
    chunks = list(model(served).bind_tools([get_weather]).stream("twice"))
    deltas = [found for chunk in chunks for found in chunk.tool_call_chunks]
    for index, city in ((0, "Paris"), (1, "Rome")):
        own = [found for found in deltas if found["index"] == index]
        assert own[0]["name"] == "get_weather"
        assert own[0]["id"]
        assert all(found["name"] is None and found["id"] is None for found in own[1:])
        assert json.loads("".join(found["args"] or "" for found in own)) == {"city": city, "days": 2 + index}


def test_tools_go_there_and_back(served: Served, told: Told) -> None:
    """The loop of every agent: ask, run what is called, give it back, until nothing is called."""
    asked = model(served).bind_tools([get_weather, get_time])
    messages: list[Any] = [SystemMessage("Use tools."), HumanMessage("twice")]
    first = asked.invoke(messages)
    assert calls(first) == [("get_weather", {"city": "Paris", "days": 2}), ("get_weather", {"city": "Rome", "days": 3})]
    results = [get_weather.invoke(call) for call in first.tool_calls]
    assert all(isinstance(result, ToolMessage) for result in results)
    messages += [first, *results]
    second = asked.invoke(messages)
    assert (second.content, second.tool_calls) == ("It is sunny.", [])
    answers = [
        f'response:get_weather{{value:<|"|>sunny in {place} days<|"|>}}' for place in ("Paris for 2", "Rome for 3")
    ]
    places = [told.prompts[-1].index(text) for text in (CALL, OTHER_CALL, *answers)]
    assert len(set(places)) == 4
    assert places[2] < places[3]
    assert second.usage_metadata is not None
    assert second.usage_metadata["input_token_details"]["cache_read"] >= counts(first)[0] // 16 * 16
    messages += [second, HumanMessage("weather")]
    streamed = joined(list(asked.stream(messages)))
    assert (streamed.content, [name for name, _ in calls(streamed)]) == ("I will ask.", ["get_weather"])


@pytest.mark.parametrize(
    ("choice", "names"),
    [
        ("auto", ["get_time"]),
        ("required", ["get_time"]),
        ("any", ["get_time"]),
        (True, ["get_time"]),
        ("get_time", ["get_time"]),
        ({"type": "function", "function": {"name": "get_time"}}, ["get_time"]),
    ],
)
def test_the_choice_of_a_tool_in_each_of_its_spellings(served: Served, choice: Any, names: list[str]) -> None:
    tools = [get_time] if choice is True else [get_weather, get_time]
    asked = model(served).bind_tools(tools, tool_choice=choice)
    arguments = {"city": "Paris", "days": 2}
    assert calls(asked.invoke("clock")) == calls(joined(list(asked.stream("clock")))) == [(*names, arguments)]
    if choice not in ("auto", True):  # against what the model would say
        others = {
            name
            for name, _ in calls(model(served, max_tokens=400).bind_tools(tools, tool_choice=choice).invoke("twice"))
        }
        assert others == ({"get_time"} if "get_time" in str(choice) else {"get_weather"})


def test_one_call_at_a_time_and_none_at_all(served: Served, told: Told) -> None:
    one = model(served).bind_tools([get_weather], parallel_tool_calls=False)
    assert len(calls(one.invoke("twice"))) == 1
    none = model(served).bind_tools([get_weather], tool_choice="none").invoke("greet")
    assert (none.content, none.tool_calls) == (EXPECTED["greet"], [])
    assert "get_weather" not in told.prompts[-1]


def test_arguments_of_a_strict_tool_keep_to_its_schema(served: Served) -> None:
    """Field case 120: the keys of arguments and their types, against a model that writes others."""
    for choice in ("any", "File"):
        asked = model(served, max_tokens=300).bind_tools(
            [File], tool_choice=choice, strict=True, parallel_tool_calls=False
        )
        found = asked.invoke("path")
        ((name, arguments),) = calls(found)
        assert name == "File"
        assert File.model_validate(arguments, strict=True).absolutePath
        assert set(arguments) == {"absolutePath", "isFolder"}


@pytest.mark.parametrize("method", ["json_schema", "function_calling", "json_mode"])
@pytest.mark.parametrize(
    ("fields", "thinks"),
    [
        ({}, False),
        ({"extra_body": NOT_THINKING}, False),
        ({"extra_body": THINKING}, True),
        ({"reasoning_effort": "low"}, True),
    ],
)
@pytest.mark.filterwarnings("ignore:Pydantic serializer warnings")  # LangChain's own, of a class put into `parsed`
def test_structured_output_by_each_method_whether_or_not_the_model_thinks(
    served: Served, told: Told, method: Any, fields: dict[str, Any], thinks: bool
) -> None:
    """Field cases 115, 116 and 124: a thought off, on or not spoken of, and a model that would fence its JSON."""
    text = "register" if method == "function_calling" else "person"
    asked = model(served, max_tokens=300, **fields).with_structured_output(Person, method=method, include_raw=True)
    found = asked.invoke(text)
    assert ("<|think|>" in told.prompts[-1]) is thinks
    assert found["parsing_error"] is None
    assert found["parsed"] == Person(name="Ann", age=3)
    assert (counts(found["raw"])[3] > 0) is thinks
    assert THOUGHT not in found["raw"].content


@pytest.mark.filterwarnings("ignore:Pydantic serializer warnings")
def test_structured_output_streams_and_takes_schemas_as_they_are(served: Served) -> None:
    asked = model(served)
    assert list(asked.with_structured_output(Person).stream("person"))[-1] == Person(name="Ann", age=3)
    schema = {"title": "Person", "description": "A person.", **Person.model_json_schema()}
    for method, text in (("json_schema", "person"), ("function_calling", "register")):
        parts = list(asked.with_structured_output(schema, method=method).stream(text))  # type: ignore[arg-type]
        assert parts[-1] == {"name": "Ann", "age": 3}
    assert asked.with_structured_output(Person, strict=True).invoke("person") == Person(name="Ann", age=3)


def test_a_plain_request_between_structured_ones_changes_none(served: Served) -> None:
    """Field case 119."""
    plain = model(served)
    strict = plain.with_structured_output({"title": "person", **Person.model_json_schema()}, method="json_schema")
    for _ in range(3):
        assert str(plain.invoke("person").content).startswith("```")
        assert strict.invoke("person") == {"name": "Ann", "age": 3}


def test_counts_know_of_the_cache_and_of_thoughts(served: Served) -> None:
    """Field case 126: a cached prompt counts as much as a new one."""
    text = "think, of a sentence that is long enough to fill a block or two of its own"
    asked = model(served, reasoning_effort="high")
    first, second = asked.invoke(text), joined(list(asked.stream(text)))
    assert counts(first) == counts(second)
    assert counts(first)[3] == len("thought\n" + THOUGHT)
    for found, is_cached in ((first, False), (second, True)):
        assert found.usage_metadata is not None
        details = found.usage_metadata["input_token_details"]
        # The end of the prompt, which fills no block of 16 tokens, is neither read nor kept.
        assert details["cache_read"] + details["cache_creation"] == counts(first)[0] // 16 * 16
        assert (details["cache_creation"] == 0) is is_cached
    unasked = list(model(served, stream_usage=False).stream("greet"))
    assert all(chunk.usage_metadata is None for chunk in unasked)


def test_langchain_shows_no_thought_but_counts_it(served: Served) -> None:
    """ChatOpenAI reads OpenAI's own fields alone. A thought is neither content nor lost: its tokens are counted."""
    asked = model(served, reasoning_effort="low")
    for found in (asked.invoke("think"), joined(list(asked.stream("think")))):
        assert found.content == "It is blue."
        assert THOUGHT not in str(found.additional_kwargs)
        assert counts(found)[3] > 0
    cut = model(served, reasoning_effort="low", max_tokens=12).invoke("think")
    assert (cut.content, cut.response_metadata["finish_reason"]) == ("", "length")


def test_several_answers_to_one_prompt(served: Served) -> None:
    (answers,) = model(served, n=3).generate([[HumanMessage("several")]]).generations
    # No tools were given, so what the model writes as a call is text.
    assert [answer.text for answer in answers] == ["One.", "Two.", CALL_AS_TEXT]


def test_logprobs_come_whole_and_streamed(served: Served) -> None:
    asked = model(served, logprobs=True, top_logprobs=2)
    whole = asked.invoke("round").response_metadata["logprobs"]["content"]
    assert bytes(byte for entry in whole[:-1] for byte in entry["bytes"]).decode() == EXPECTED["round"]
    assert all(len(entry["top_logprobs"]) == 2 and math.exp(entry["logprob"]) > 0.99 for entry in whole)
    assert joined(list(asked.stream("round"))).response_metadata["logprobs"]["content"] == whole


def test_errors_are_those_that_langchain_knows(served: Served) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        model(served, extra_body={"colour": 1}).invoke("greet")
    assert refused.value.param == "colour"
    for asked in (model(served).invoke, lambda text: list(model(served).stream(text))):
        with pytest.raises(ContextOverflowError, match="4095"):
            asked("x" * 5000)
    for unknown in (model(served, model="llama").invoke, lambda text: list(model(served, model="llama").stream(text))):
        with pytest.raises(ModelNotFoundError, match="llama"):
            unknown("greet")
    with pytest.raises(ModelAuthenticationError):
        model(served, api_key="other").invoke("greet")
    with pytest.raises(openai.BadRequestError, match="get_time"):
        model(served).bind_tools([get_weather]).bind(tool_choice="get_time").invoke("greet")
    assert model(served).invoke("greet").content == EXPECTED["greet"]


def test_a_stream_that_nobody_reads_on_ends_its_request(served: Served) -> None:
    """Field case 121."""
    for chunk in model(served).stream("greet"):
        if chunk.content:
            break
    deadline = time.monotonic() + 10
    while served.service.live or served.engine.num_running:
        assert time.monotonic() < deadline
        time.sleep(0.002)
