"""LiteLLM against a live server: as an OpenAI-compatible one, as vLLM, as Anthropic's and as Ollama's."""

from __future__ import annotations

import asyncio
import json
import os
import socket
from collections.abc import Iterator
from typing import Any

import pytest
from pydantic import BaseModel

from tests.openai_script import CLOCK, JSON_FORMAT, SCHEMA, THINKING, TOOL, Told, user
from tests.serving import Served

pytestmark = pytest.mark.filterwarnings("ignore:Accessing the 'model_")  # LiteLLM's own, of pydantic

THOUGHT = "The sky must be asked."
PARIS = {"city": "Paris", "days": 2}
ROME = {"city": "Rome", "days": 3}


class Person(BaseModel):
    """What an answer is parsed into."""

    name: str
    age: int


@pytest.fixture(scope="module")
def hosts() -> Iterator[set[str]]:
    """Every host that was looked up while this module ran; others than this machine are not found."""
    found: set[str] = set()
    look_up = socket.getaddrinfo

    def only_here(host: Any, *rest: Any, **more: Any) -> Any:
        found.add(str(host))
        if host not in ("127.0.0.1", "localhost"):
            raise socket.gaierror(f"{host} is outside this machine")
        return look_up(host, *rest, **more)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(socket, "getaddrinfo", only_here)
        yield found


@pytest.fixture(scope="module")
def litellm(hosts: set[str]) -> Any:
    """LiteLLM, imported here because that takes seconds, with the table of prices that came along."""
    os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"
    import litellm as found

    found.suppress_debug_info = True
    return found


class Asking:
    """Asks as users of LiteLLM do, and takes streams apart."""

    def __init__(self, litellm: Any, served: Served) -> None:
        self.litellm = litellm
        self.url = served.url

    def fields(self, text: str, **more: Any) -> dict[str, Any]:
        base = {"model": "openai/gemma", "messages": user(text), "api_base": f"{self.url}/v1", "api_key": "secret"}
        return {**base, "max_retries": 0, **more}

    def whole(self, text: str, **more: Any) -> Any:
        return self.litellm.completion(**self.fields(text, **more))

    def stream(self, text: str, **more: Any) -> list[Any]:
        more = {"stream_options": {"include_usage": True}, **more}
        return list(self.litellm.completion(**self.fields(text, stream=True, **more)))

    def joined(self, text: str, **more: Any) -> Any:
        return self.litellm.stream_chunk_builder(self.stream(text, **more), messages=user(text))


@pytest.fixture(scope="module")
def asking(litellm: Any, served: Served) -> Asking:
    return Asking(litellm, served)


def said(response: Any) -> dict[str, Any]:
    """Everything of an answer that does not differ from one time to the next."""
    (choice,) = response.choices
    message = choice.message
    usage = response.usage
    return {
        "content": message.content or None,
        "reasoning": getattr(message, "reasoning_content", None),
        "calls": calls(message),
        "finish_reason": choice.finish_reason,
        "model": response.model,
        "tokens": (usage.prompt_tokens, usage.completion_tokens, usage.total_tokens),
        "reasoning_tokens": usage.completion_tokens_details.reasoning_tokens,
    }


def calls(message: Any) -> list[tuple[str, dict[str, Any]]]:
    assert all(call.id and call.type == "function" for call in message.tool_calls or ())
    return [(call.function.name, json.loads(call.function.arguments)) for call in message.tool_calls or ()]


@pytest.mark.parametrize("provider", ["openai", "hosted_vllm"])
@pytest.mark.parametrize(
    ("text", "fields"),
    [
        ("greet", {}),
        ("greet", {"max_tokens": 3}),
        ("greet", {"stop": ["STOP"]}),
        ("round", {}),
        ("think", {"reasoning_effort": "low"}),
        ("think", {"extra_body": THINKING}),
        ("weather", {"tools": [TOOL]}),
        ("weather", {"tools": [TOOL], "extra_body": THINKING}),
        ("twice", {"tools": [TOOL]}),
        ("clock", {"tools": [TOOL, CLOCK], "tool_choice": "required"}),
        ("person", {"response_format": JSON_FORMAT}),
        ("person", {"response_format": JSON_FORMAT, "reasoning_effort": "low"}),
    ],
)
def test_the_chunk_builder_makes_the_whole_answer(
    asking: Asking, provider: str, text: str, fields: dict[str, Any]
) -> None:
    fields = {"model": f"{provider}/gemma", **fields}
    assert said(asking.joined(text, **fields)) == said(asking.whole(text, **fields))


def test_a_thought_is_what_litellm_calls_reasoning_content(asking: Asking) -> None:
    found = said(asking.whole("think", reasoning_effort="low"))
    assert found["reasoning"] == THOUGHT
    assert (found["content"], found["finish_reason"], found["model"]) == ("It is blue.", "stop", "gemma")
    chunks = asking.stream("think", reasoning_effort="low")
    thought = [getattr(chunk.choices[0].delta, "reasoning_content", None) or "" for chunk in chunks if chunk.choices]
    assert "".join(thought) == THOUGHT
    assert sum(map(bool, thought)) == len(THOUGHT)
    reasons = [choice.finish_reason for chunk in chunks for choice in chunk.choices]
    assert [reason for reason in reasons if reason is not None] == ["stop"]


def test_counts_know_of_the_cache_and_of_thoughts(asking: Asking) -> None:
    """Field case 126: a cached prompt counts as much as a new one."""
    text = "think, of a sentence that no one has asked of this server before LiteLLM did"
    first, second = (find(text, extra_body=THINKING).usage for find in (asking.whole, asking.joined))
    assert first.prompt_tokens == second.prompt_tokens > len(text)
    assert first.total_tokens == first.prompt_tokens + first.completion_tokens
    assert first.completion_tokens_details.reasoning_tokens == len("thought\n" + THOUGHT)
    assert second.completion_tokens_details == first.completion_tokens_details
    assert first.prompt_tokens_details.cached_tokens < second.prompt_tokens_details.cached_tokens
    assert second.prompt_tokens_details.cached_tokens >= (first.prompt_tokens - 1) // 16 * 16


def test_tools_go_there_and_back(asking: Asking, told: Told) -> None:
    first = asking.whole("twice", tools=[TOOL]).choices[0].message
    assert calls(first) == [("get_weather", PARIS), ("get_weather", ROME)]
    results = [
        {"role": "tool", "tool_call_id": call.id, "name": call.function.name, "content": answer}
        for call, answer in zip(first.tool_calls, ("cloudy", "sunny"), strict=True)
    ]
    second = asking.whole("", messages=[*user("twice"), first, *results], tools=[TOOL])
    assert second.choices[0].message.content == "It is sunny."
    assert told.prompts[-1].index("cloudy") < told.prompts[-1].index("sunny")
    thoughtful = asking.joined("weather", tools=[TOOL], extra_body=THINKING).choices[0].message
    result = {"role": "tool", "tool_call_id": thoughtful.tool_calls[0].id, "content": "sunny"}
    asking.whole("", messages=[*user("weather"), thoughtful, result], tools=[TOOL], extra_body=THINKING)
    assert THOUGHT in told.prompts[-1]  # a thought before a call is read again


def test_tool_choice_decides_what_may_come(asking: Asking, told: Told) -> None:
    tools = [TOOL, CLOCK]
    named = {"type": "function", "function": {"name": "get_time"}}
    for choice in ("required", named):
        found = asking.whole("clock", tools=tools, tool_choice=choice).choices[0]
        assert (calls(found.message), found.finish_reason) == ([("get_time", PARIS)], "tool_calls")
    against = asking.whole("twice", tools=tools, tool_choice=named, max_tokens=400).choices[0].message
    assert {name for name, _ in calls(against)} == {"get_time"}
    assert len(calls(asking.whole("twice", tools=tools, parallel_tool_calls=False).choices[0].message)) == 1
    assert asking.whole("greet", tools=tools, tool_choice="none").choices[0].message.tool_calls is None
    assert "get_time" not in told.prompts[-1]


@pytest.mark.parametrize("fields", [{}, {"reasoning_effort": "none"}, {"reasoning_effort": "low"}])
def test_structured_output_whether_or_not_the_model_thinks(asking: Asking, told: Told, fields: dict[str, Any]) -> None:
    """Field cases 115 and 116: the model would fence its JSON, and may not."""
    for form in (JSON_FORMAT, Person, {"type": "json_object"}):
        found = asking.whole("person", response_format=form, max_tokens=200, **fields).choices[0].message
        thinks = fields.get("reasoning_effort") == "low"
        assert ("<|think|>" in told.prompts[-1]) is thinks
        assert getattr(found, "reasoning_content", None) == (THOUGHT if thinks else None)
        assert Person.model_validate_json(found.content) == Person(name="Ann", age=3)


def test_coroutines_ask_and_stream(litellm: Any, asking: Asking) -> None:
    """Field case 122: answers that are computed together are those of each alone."""

    async def run() -> tuple[list[str], str]:
        texts = ("greet", "think", "round") * 4
        found = await asyncio.gather(*(litellm.acompletion(**asking.fields(text)) for text in texts))
        stream = await litellm.acompletion(**asking.fields("greet", stream=True))
        parts = [chunk.choices[0].delta.content or "" async for chunk in stream]
        return [one.choices[0].message.content for one in found], "".join(parts)

    several, streamed = asyncio.run(run())
    assert several == ["Hello! STOP there.", "It is blue.", "Zwölf €, 🙂."] * 4
    assert streamed == "Hello! STOP there."


def test_logprobs_and_several_answers(asking: Asking) -> None:
    (choice,) = asking.whole("round", logprobs=True, top_logprobs=2).choices
    entries = choice.logprobs.content
    assert bytes(byte for entry in entries[:-1] for byte in entry.bytes).decode() == choice.message.content
    assert all(len(entry.top_logprobs) == 2 for entry in entries)
    found = asking.whole("several", n=3, tools=[TOOL]).choices
    assert [(choice.message.content, choice.finish_reason) for choice in found] == [
        ("One.", "stop"),
        ("Two.", "stop"),
        (None, "tool_calls"),
    ]


def test_errors_are_those_that_litellm_knows(litellm: Any, asking: Asking) -> None:
    for ask in (asking.whole, asking.stream):
        with pytest.raises(litellm.NotFoundError, match="llama"):
            ask("greet", model="openai/llama")
        with pytest.raises(litellm.ContextWindowExceededError, match="4095"):
            ask("x" * 5000)
        with pytest.raises(litellm.BadRequestError, match="colour") as refused:
            ask("greet", extra_body={"colour": 1})
        assert not isinstance(refused.value, litellm.ContextWindowExceededError)
        with pytest.raises(litellm.AuthenticationError):
            ask("greet", api_key="other")
    assert asking.whole("greet").choices[0].message.content == "Hello! STOP there."


def test_as_anthropics(litellm: Any, asking: Asking) -> None:
    """`anthropic/NAME` against /v1/messages; LiteLLM has to be told that this model can think."""
    thinking = {"thinking": {"type": "enabled", "budget_tokens": 1024}, "allowed_openai_params": ["thinking"]}
    fields = {"model": "anthropic/gemma", "api_base": asking.url, "max_tokens": 2000}
    whole = said(asking.whole("weather", tools=[TOOL], **thinking, **fields))
    assert said(asking.joined("weather", tools=[TOOL], **thinking, **fields)) == whole
    assert (whole["content"], whole["reasoning"]) == ("I will ask.", THOUGHT)
    assert (whole["calls"], whole["finish_reason"]) == ([("get_weather", PARIS)], "tool_calls")
    assert whole["reasoning_tokens"] == len("thought\n" + THOUGHT)
    # What came by one interface goes back by the other, with all that LiteLLM put into it.
    said_first = asking.whole("weather", tools=[TOOL], **thinking, **fields).choices[0].message
    result = {"role": "tool", "tool_call_id": said_first.tool_calls[0].id, "content": "sunny"}
    for more in ({}, fields):
        messages = [*user("weather"), said_first, result]
        found = asking.whole("", tools=[TOOL], **{**more, "messages": messages})
        assert found.choices[0].message.content == "It is sunny."
    assert asking.whole("greet", stop=["STOP"], **fields).choices[0].message.content == "Hello! "
    found = asking.whole("", messages=[{"role": "system", "content": "Be kind."}, *user("greet")], **fields)
    assert found.choices[0].message.content == "Hello! STOP there."
    with pytest.raises(litellm.ContextWindowExceededError):
        asking.whole("x" * 5000, **fields)
    with pytest.raises(litellm.NotFoundError):
        asking.whole("greet", **{**fields, "model": "anthropic/claude"})


def test_as_ollamas(asking: Asking) -> None:
    """`ollama_chat/NAME` against /api/chat."""
    fields = {"model": "ollama_chat/gemma", "api_base": asking.url}
    whole = asking.whole("weather", tools=[TOOL], reasoning_effort="low", **fields)
    message = whole.choices[0].message
    assert (message.content, message.reasoning_content) == ("I will ask.", THOUGHT)
    assert (calls(message), whole.choices[0].finish_reason) == ([("get_weather", PARIS)], "tool_calls")
    streamed = asking.joined("weather", tools=[TOOL], reasoning_effort="low", **fields)
    assert (streamed.choices[0].message.content, calls(streamed.choices[0].message)) == ("I will ask.", calls(message))
    assert streamed.choices[0].message.reasoning_content == THOUGHT
    for name in ("prompt_tokens", "completion_tokens"):
        assert getattr(streamed.usage, name) == getattr(whole.usage, name) > 0
    strict = asking.whole("person", response_format=JSON_FORMAT, **fields).choices[0].message.content
    assert json.loads(strict) == {name: value["const"] for name, value in SCHEMA["properties"].items()}
    assert asking.whole("greet", max_tokens=3, **fields).choices[0].finish_reason == "length"


def test_nothing_outside_this_machine_was_asked(hosts: set[str], asking: Asking) -> None:
    asking.whole("greet")
    assert hosts <= {"127.0.0.1", "localhost"}
