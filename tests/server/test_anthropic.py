"""Anthropic's own client against a live server: messages, streams, thoughts, tools, the prefix cache, errors."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anthropic
import pytest
from anthropic.types import ToolUseBlock
from pydantic import BaseModel

from gemwright.server.anthropic.markers import without_markers
from gemwright.server.settings import ServerSettings
from gemwright.testing import write_tiny_checkpoint
from gemwright.testing.scripted import scripted_llm
from tests.anthropic_script import CALL, SCHEMA, TOOL, Told, all_input, ask, blocks
from tests.serving import Served, serving

THINKING: dict[str, Any] = {"type": "enabled", "budget_tokens": 1024}


class Person(BaseModel):
    """What an answer is parsed into."""

    name: str
    age: int


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("anthropic")
    return write_tiny_checkpoint("gemma4-e", path, overrides={"max_position_embeddings": 4096})


@pytest.fixture(scope="module")
def told() -> Told:
    return Told()


@pytest.fixture(scope="module")
def served(folder: Path, told: Told) -> Iterator[Served]:
    llm = scripted_llm(folder, told, threads=1, max_model_len=4096, chat_template="gemma4")
    with serving(llm, ServerSettings(api_keys=("secret",), max_body_bytes=20_000)) as server:
        yield server


@pytest.fixture(scope="module")
def client(served: Served) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(base_url=served.url, api_key="secret", max_retries=0) as found:
        yield found


def test_a_message_has_the_shape_that_the_client_reads(client: anthropic.Anthropic) -> None:
    message = ask(client, "greet")
    assert (message.type, message.role, message.model) == ("message", "assistant", "gemma")
    assert message.content[0].type == "text"
    assert message.content[0].text == "Hello! STOP there."
    assert (message.stop_reason, message.stop_sequence) == ("end_turn", None)
    assert message.usage.output_tokens == len("Hello! STOP there.") + 1
    assert message._request_id


@pytest.mark.parametrize(
    ("text", "fields"),
    [
        ("greet", {}),
        ("greet", {"stop_sequences": ["never", "STOP"]}),
        ("greet", {"max_tokens": 4}),
        ("weather", {"thinking": THINKING, "tools": [TOOL]}),
        ("weather", {"thinking": {**THINKING, "display": "omitted"}, "tools": [TOOL]}),
        ("weather", {"thinking": THINKING, "tools": [TOOL], "max_tokens": 12}),
        ("twice", {"tools": [TOOL]}),
        ("far", {"tools": [TOOL], "max_tokens": 1000}),
        ("person", {"output_config": {"format": {"type": "json_schema", "schema": SCHEMA}}}),
    ],
)
def test_a_stream_joins_to_the_whole_message(client: anthropic.Anthropic, text: str, fields: dict[str, Any]) -> None:
    whole = ask(client, text, **fields)
    asked: dict[str, Any] = {"max_tokens": 200, "messages": [{"role": "user", "content": text}], **fields}
    with client.messages.stream(model="gemma", **asked) as stream:
        joined = stream.get_final_message()
    assert blocks(joined) == blocks(whole)
    assert (joined.stop_reason, joined.stop_sequence) == (whole.stop_reason, whole.stop_sequence)
    assert joined.usage.output_tokens == whole.usage.output_tokens
    assert joined.usage.output_tokens_details == whole.usage.output_tokens_details
    assert all_input(joined) == all_input(whole)


def test_the_events_of_a_stream_come_in_anthropics_order(client: anthropic.Anthropic) -> None:
    stream = client.messages.create(
        model="gemma",
        max_tokens=200,
        thinking={"type": "enabled", "budget_tokens": 1024},
        tools=[TOOL],  # type: ignore[list-item]
        messages=[{"role": "user", "content": "weather"}],
        stream=True,
    )
    events = [event.model_dump() for event in stream]
    kinds = [event["type"] for event in events]
    assert kinds[0] == "message_start"
    assert kinds[-2:] == ["message_delta", "message_stop"]
    assert events[0]["message"]["content"] == []
    assert events[0]["message"]["stop_reason"] is None
    begun = [event["content_block"]["type"] for event in events if event["type"] == "content_block_start"]
    assert begun == ["thinking", "text", "tool_use"]
    for index in range(3):
        own = [event for event in events if event.get("index") == index]
        assert own[0]["type"] == "content_block_start"
        assert own[-1]["type"] == "content_block_stop"
        assert {event["type"] for event in own[1:-1]} == {"content_block_delta"}
    deltas = [event["delta"]["type"] for event in events if event["type"] == "content_block_delta"]
    assert list(dict.fromkeys(deltas)) == ["thinking_delta", "signature_delta", "text_delta", "input_json_delta"]


def test_the_stop_sequence_that_ended_an_answer_is_named(client: anthropic.Anthropic) -> None:
    message = ask(client, "greet", stop_sequences=["there", "STOP"])
    assert (message.stop_reason, message.stop_sequence) == ("stop_sequence", "STOP")
    assert blocks(message) == [{"type": "text", "text": "Hello! "}]
    assert ask(client, "greet", max_tokens=3).stop_reason == "max_tokens"


@pytest.mark.parametrize(
    ("thinking", "thinks"),
    [(None, False), ({"type": "disabled"}, False), (THINKING, True), ({"type": "adaptive"}, True)],
)
def test_a_schema_is_kept_to_whether_or_not_the_model_thinks(
    client: anthropic.Anthropic, thinking: dict[str, Any] | None, thinks: bool
) -> None:
    """Field cases 115 and 116: the model would fence its JSON, and may not."""
    fields: dict[str, Any] = {} if thinking is None else {"thinking": thinking}
    form = {"type": "json_schema", "schema": SCHEMA}
    for more in ({"output_config": {"format": form}}, {"extra_body": {"output_format": form}}):
        message = ask(client, "person", **fields, **more)
        assert [block.type for block in message.content] == ["thinking", "text"] if thinks else ["text"]
        last = message.content[-1]
        assert last.type == "text"
        assert Person.model_validate_json(last.text) == Person(name="Ann", age=3)


def test_the_client_parses_an_answer_into_its_own_class(client: anthropic.Anthropic) -> None:
    parsed = client.messages.parse(
        model="gemma", max_tokens=100, messages=[{"role": "user", "content": "person"}], output_format=Person
    )
    assert isinstance(parsed.parsed_output, Person)


def test_a_thought_may_be_left_out(client: anthropic.Anthropic) -> None:
    shown = ask(client, "weather", thinking=THINKING, tools=[TOOL]).content[0]
    assert shown.type == "thinking"
    assert shown.thinking == "The sky must be asked."
    assert shown.signature
    hidden = ask(client, "weather", thinking={**THINKING, "display": "omitted"}, tools=[TOOL]).content[0]
    assert hidden.type == "thinking"
    assert hidden.thinking == ""
    assert hidden.signature


@pytest.mark.parametrize(
    ("given", "printed", "answer"),
    [
        ({"content": "sunny"}, '{value:<|"|>sunny<|"|>}', "It is sunny."),
        (
            {"content": [{"type": "text", "text": "very"}, {"type": "text", "text": "sunny"}]},
            '{value:<|"|>very\n\nsunny<|"|>}',
            "It is sunny.",
        ),
        ({"content": "broken", "is_error": True}, '{error:<|"|>broken<|"|>}', "The service is down."),
    ],
)
def test_tools_go_there_and_back(
    client: anthropic.Anthropic, told: Told, given: dict[str, Any], printed: str, answer: str
) -> None:
    first = ask(client, "weather", thinking=THINKING, tools=[TOOL])
    assert first.stop_reason == "tool_use"
    call = first.content[-1]
    assert isinstance(call, ToolUseBlock)
    assert (call.name, call.input) == ("get_weather", {"city": "Paris"})
    messages = [
        {"role": "user", "content": "weather"},
        {"role": "assistant", "content": first.content},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": call.id, **given}]},
    ]
    second = ask(client, "", messages=messages, thinking=THINKING, tools=[TOOL])
    assert second.content[-1].type == "text"
    assert second.content[-1].text == answer
    assert f"{CALL}<|tool_response>response:get_weather{printed}<tool_response|>" in told.prompts[-1]
    assert "The sky must be asked." in told.prompts[-1]  # a thought before a call is read again
    assert (second.usage.cache_read_input_tokens or 0) > all_input(first) * 0.8


@anthropic.beta_tool
def get_weather(city: str) -> str:
    """The weather of a city.

    Args:
        city: where
    """
    return f"sunny in {city}"


def test_the_clients_runner_calls_tools_until_it_is_answered(client: anthropic.Anthropic, told: Told) -> None:
    """It asks for a thread on the server first, and does without one."""
    asked: dict[str, Any] = {"model": "gemma", "max_tokens": 300, "tools": [get_weather]}
    for fields in ({}, {"stream": True}):
        runner = client.beta.messages.tool_runner(messages=[{"role": "user", "content": "weather"}], **asked, **fields)
        last = runner.until_done().content[-1]
        assert (last.type, last.text) == ("text", "It is sunny.")
        assert "sunny in Paris" in told.prompts[-1]


def test_text_and_several_results_in_one_message_keep_their_places(client: anthropic.Anthropic, told: Told) -> None:
    first = ask(client, "twice", tools=[TOOL])
    assert [block.type for block in first.content] == ["tool_use", "tool_use"]
    one, two = (block.id for block in first.content if block.type == "tool_use")
    assert one != two
    content = [
        {"type": "text", "text": "Now answer."},
        {"type": "tool_result", "tool_use_id": one, "content": "cloudy"},
        {"type": "tool_result", "tool_use_id": two, "content": "sunny"},
    ]
    said = [{"role": "user", "content": "twice"}, {"role": "assistant", "content": first.content}]
    ask(client, "", messages=[*said, {"role": "user", "content": content}], tools=[TOOL])
    places = [told.prompts[-1].index(text) for text in ("cloudy", "sunny", "<|turn>user\nNow answer.")]
    assert places == sorted(places)


def test_tool_choice_decides_what_may_come(client: anthropic.Anthropic, told: Told) -> None:
    other = {**TOOL, "name": "get_time"}
    auto = ask(client, "greet", tools=[TOOL], tool_choice={"type": "auto"})
    assert auto.stop_reason == "end_turn"
    chosen: dict[str, Any] = {"type": "tool", "name": "get_time"}
    forced = ask(client, "clock", tools=[TOOL, other], tool_choice=chosen)
    assert [block.name for block in forced.content if block.type == "tool_use"] == ["get_time"]
    against = ask(client, "weather", tools=[TOOL, other], tool_choice=chosen)
    assert {block.name for block in against.content if block.type == "tool_use"} == {"get_time"}
    ask(client, "greet", tools=[TOOL], tool_choice={"type": "none"})
    assert "get_weather" not in told.prompts[-1]
    alone = ask(client, "twice", tools=[TOOL], tool_choice={"type": "auto", "disable_parallel_tool_use": True})
    assert sum(block.type == "tool_use" for block in alone.content) == 1
    must = {"type": "any", "disable_parallel_tool_use": True}
    assert sum(block.type == "tool_use" for block in ask(client, "twice", tools=[TOOL], tool_choice=must).content) == 1


def system_of(turn: int, *, as_text: bool = False) -> Any:
    """What Claude Code sends: a billing line that is new with each request, its instructions, marks of a cache."""
    billing = f"x-anthropic-billing-header: cc_version=2.1.177.{turn:03x}; cc_entrypoint=cli; cch={turn * 7919:05x};"
    instructions = "You are a careful programmer. " * 5
    left = f"<total_tokens>{14_999_436 - turn} tokens left</total_tokens>"
    if as_text:
        return f"{billing}\n{instructions}\n{left}" + f"\n{left}" * turn
    cached = {"cache_control": {"type": "ephemeral"}} if turn % 2 else {}
    return [{"type": "text", "text": billing}, {"type": "text", "text": instructions, **cached}]


@pytest.mark.parametrize("as_text", [False, True])
def test_what_claude_code_changes_with_each_request_does_not_hide_the_prefix(
    client: anthropic.Anthropic, told: Told, as_text: bool
) -> None:
    messages: list[dict[str, Any]] = [{"role": "user", "content": f"greet {as_text}"}]
    first = ask(client, "", messages=messages, system=system_of(1, as_text=as_text))
    assert "billing" not in told.prompts[-1]
    assert "total_tokens" not in told.prompts[-1]
    reminder = {"role": "system", "content": "<total_tokens>14990000 tokens left</total_tokens>"}
    messages += [
        {"role": "assistant", "content": first.content},
        reminder,
        {"role": "user", "content": [{"type": "text", "text": "greet", "cache_control": {"type": "ephemeral"}}]},
    ]
    second = ask(client, "", messages=messages, system=system_of(2, as_text=as_text))
    assert "billing" not in told.prompts[-1]
    assert "total_tokens" not in told.prompts[-1]
    # All of the first prompt, but for the block that its last tokens do not fill.
    assert (second.usage.cache_read_input_tokens or 0) > all_input(first) - 16


def test_marks_are_taken_from_the_head_alone_and_other_text_stays() -> None:
    billing = "x-anthropic-billing-header: cc_version=2.1; cch=1;"
    assert without_markers(f"{billing}\nYou are.") == "You are."
    assert without_markers(billing) == ""
    kept = f"Explain what {billing} is for.\n  "
    assert without_markers(kept) == kept
    assert without_markers("A.\n<total_tokens>12 tokens left</total_tokens>\nB.") == "A.\nB."
    assert without_markers("<total_tokens>N</total_tokens>") == "<total_tokens>N</total_tokens>"


def test_a_mark_of_the_cache_changes_no_prompt(client: anthropic.Anthropic, told: Told) -> None:
    mark = {"cache_control": {"type": "ephemeral", "ttl": "1h"}}
    for extra in ({}, mark):
        ask(
            client,
            "",
            system=[{"type": "text", "text": "Be brief.", **extra}],
            tools=[{**TOOL, **extra}],
            messages=[{"role": "user", "content": [{"type": "text", "text": "greet", **extra}]}],
            **extra,
        )
    assert told.prompts[-1] == told.prompts[-2]


def test_tokens_are_counted_as_they_are_used(client: anthropic.Anthropic) -> None:
    asked: dict[str, Any] = {
        "system": system_of(3),
        "tools": [TOOL],
        "messages": [{"role": "user", "content": "greet"}],
        "thinking": {"type": "enabled", "budget_tokens": 1024},
    }
    counted = client.messages.count_tokens(model="gemma", **asked).input_tokens
    assert counted == all_input(ask(client, "", **asked))
    longer = {"messages": [{"role": "user", "content": "x" * 9000}]}  # more than the context holds
    assert client.messages.count_tokens(model="gemma", **longer).input_tokens > 9000  # type: ignore[arg-type]


def test_an_answer_that_is_begun_is_gone_on_with(client: anthropic.Anthropic, told: Told) -> None:
    begun = [{"role": "user", "content": "Tell."}, {"role": "assistant", "content": "Once upon"}]
    assert blocks(ask(client, "", messages=begun)) == [{"type": "text", "text": " a time."}]
    assert told.prompts[-1].endswith("<|turn>model\nOnce upon")


def test_no_tokens_at_all_reads_the_prompt_into_the_cache(client: anthropic.Anthropic) -> None:
    text = "greet, after all of this was read beforehand"
    warmed = ask(client, text, max_tokens=0)
    assert (warmed.content, warmed.stop_reason, warmed.usage.output_tokens) == ([], "max_tokens", 0)
    assert (ask(client, text).usage.cache_read_input_tokens or 0) > 0
