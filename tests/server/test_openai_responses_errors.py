"""What /v1/responses refuses and under which name, what it takes as harmless, and how a stream ends badly."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import openai
import pytest

from gemwright.server.openai.responses_input import read_conversation
from gemwright.server.openai.responses_schema import ResponsesBody
from gemwright.server.settings import ServerSettings
from gemwright.testing import write_tiny_checkpoint
from gemwright.testing.scripted import answers, scripted_llm
from tests.openai_script import SCHEMA, Told
from tests.operation import endings, until
from tests.responses_script import PERSON_FORMAT, THINK, TOOL, events_of, respond
from tests.serving import Served, serving

HELLO = {"role": "user", "content": "greet"}
CALL = {"type": "function_call", "call_id": "a", "name": "get_weather", "arguments": "{}"}
OUTPUT = {"type": "function_call_output", "call_id": "a", "output": "sunny"}
IMAGE = {"type": "input_image", "image_url": "data:image/png;base64,aGk=", "detail": "auto"}
NOT = {"type": "object", "properties": {"a": {"not": {"type": "string"}}}}
"""A schema that no grammar can hold an answer to."""


def text(*parts: dict[str, Any], role: str = "user") -> dict[str, Any]:
    return {"type": "message", "role": role, "content": list(parts)}


def words(content: Any, kind: str = "input_text") -> dict[str, Any]:
    return {"type": kind, "text": content}


def json_format(schema: Any) -> dict[str, Any]:
    return {"text": {"format": {"type": "json_schema", "name": "a", "schema": schema}}}


def choice(**fields: Any) -> dict[str, Any]:
    return {"tools": [TOOL], "tool_choice": fields}


REFUSED: list[tuple[dict[str, Any], str]] = [
    # What would need a memory, or something else that this server does not have.
    ({"previous_response_id": "resp_1"}, "previous_response_id"),
    ({"conversation": "conv_1"}, "conversation"),
    ({"conversation": {"id": "conv_1"}}, "conversation"),
    ({"prompt": {"id": "pmpt_1"}}, "prompt"),
    ({"background": True}, "background"),
    ({"truncation": "auto"}, "truncation"),
    ({"context_management": [{"type": "compaction"}]}, "context_management"),
    ({"moderation": {"model": "m"}}, "moderation"),
    ({"stop": ["x"]}, "stop"),
    ({"messages": []}, "messages"),
    ({"colour": 1}, "colour"),
    ({"stream_options": {"include_usage": True}}, "stream_options.include_usage"),
    ({"include": ["file_search_call.results"]}, "include[0]"),
    ({"include": ["reasoning.encrypted_content", "x"]}, "include[1]"),
    ({"top_logprobs": 2}, "top_logprobs"),
    ({"text": {"verbosity": "low"}}, "text.verbosity"),
    ({"reasoning": {"context": "all_turns"}}, "reasoning.context"),
    ({"reasoning": {"mode": "pro"}}, "reasoning.mode"),
    # Values that are out of range or of another type.
    ({"reasoning": {"effort": "extreme"}}, "reasoning.effort"),
    ({"temperature": -1}, "temperature"),
    ({"top_p": 0}, "top_p"),
    ({"max_output_tokens": 0}, "max_output_tokens"),
    ({"metadata": {"a": 1}}, "metadata.a"),
    ({"store": "yes"}, "store"),
    ({"instructions": ["x"]}, "instructions"),
    ({"instructions": "\ud800"}, "instructions"),
    ({"parallel_tool_calls": 1}, "parallel_tool_calls"),
    # Items.
    ({"input": 5}, "input"),
    ({"input": []}, "input"),
    ({"input": "\ud800"}, "input"),
    ({"input": ["x"]}, "input[0]"),
    ({"input": [HELLO, {"type": "item_reference", "id": "msg_1"}]}, "input[1].type"),
    ({"input": [HELLO, {"id": "msg_1"}]}, "input[1].type"),
    ({"input": [{"type": "web_search_call", "id": "a", "status": "completed"}]}, "input[0].type"),
    ({"input": [{"type": "custom_tool_call", "call_id": "a"}]}, "input[0].type"),
    ({"input": [{"role": "wizard", "content": "x"}]}, "input[0].role"),
    ({"input": [{"role": "tool", "content": "x"}]}, "input[0].role"),
    ({"input": [{"role": "user"}]}, "input[0].content"),
    ({"input": [{**HELLO, "colour": 1}]}, "input[0].colour"),
    ({"input": [HELLO, {"role": "user", "content": "\ud800"}]}, "input[1].content"),
    ({"input": [HELLO, text(words("x"), words("\ud800"))]}, "input[1].content[1]"),
    ({"input": [text(words(5))]}, "input[0].content[0].text"),
    ({"input": [text({"type": "input_text"})]}, "input[0].content[0].text"),
    ({"input": [text(words("x"), IMAGE)]}, "input[0].content[1]"),
    ({"input": [text({"type": "input_file", "file_id": "a"})]}, "input[0].content[0]"),
    ({"input": [text({"type": "text", "text": "x"})]}, "input[0].content[0]"),
    ({"input": [text("x")]}, "input[0].content[0]"),
    ({"input": [text({"type": "refusal", "refusal": "x"})]}, "input[0].content[0]"),
    ({"input": [HELLO, text(words("\ud800", "output_text"), role="assistant")]}, "input[1].content[0]"),
    ({"input": [HELLO, CALL, {"role": "assistant", "content": "\ud800"}, OUTPUT]}, "input[2].content"),
    ({"input": [HELLO, {"type": "reasoning", "content": ["x"]}]}, "input[1].content[0]"),
    ({"input": [HELLO, {"type": "reasoning", "summary": [{"type": "x", "text": "y"}]}]}, "input[1].summary[0].type"),
    ({"input": [HELLO, {"type": "reasoning", "content": [words("\ud800", "reasoning_text")]}]}, "input[1].content"),
    ({"input": [HELLO, {**CALL, "arguments": "{bad"}, OUTPUT]}, "input[1].arguments"),
    ({"input": [HELLO, CALL, {**CALL, "call_id": "b", "arguments": "[1]"}, OUTPUT]}, "input[2].arguments"),
    ({"input": [HELLO, {**CALL, "arguments": {}}, OUTPUT]}, "input[1].arguments"),
    ({"input": [HELLO, {**CALL, "name": "a b"}, OUTPUT]}, "input[1].name"),
    ({"input": [HELLO, {**CALL, "async": True}, OUTPUT]}, "input[1].async"),
    ({"input": [HELLO, {**CALL, "namespace": "x"}, OUTPUT]}, "input[1].namespace"),
    ({"input": [HELLO, OUTPUT]}, "input[1].call_id"),
    ({"input": [HELLO, {"type": "function_call_output", "name": "a b", "output": ""}]}, "input[1].name"),
    ({"input": [HELLO, CALL, {**OUTPUT, "output": [IMAGE]}]}, "input[2].output[0]"),
    ({"input": [HELLO, CALL, {**OUTPUT, "output": "\ud800"}]}, "input[2].output"),
    # Tools and what an answer must look like.
    ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
    ({"tools": [TOOL, {"type": "custom", "name": "f"}]}, "tools[1].type"),
    ({"tools": [{"type": "mcp", "server_label": "a"}]}, "tools[0].type"),
    ({"tools": ["x"]}, "tools[0]"),
    ({"tools": [{"type": "function"}]}, "tools[0].name"),
    ({"tools": [{"type": "function", "function": TOOL}]}, "tools[0].name"),
    ({"tools": [{**TOOL, "name": "a b"}]}, "tools[0].name"),
    ({"tools": [{**TOOL, "defer_loading": True}]}, "tools[0].defer_loading"),
    ({"tools": [{**TOOL, "async": True}]}, "tools[0].async"),
    ({"tools": [{**TOOL, "parameters": "x"}]}, "tools[0].parameters"),
    ({"tools": [TOOL, TOOL]}, "tools[1].name"),
    ({"tools": [{**TOOL, "parameters": NOT, "strict": True}]}, "tools"),
    ({"tool_choice": "required"}, "tool_choice"),
    ({"tools": [TOOL], "tool_choice": "get_weather"}, "tool_choice"),
    (choice(type="function", name="get_time"), "tool_choice.name"),
    (choice(type="function"), "tool_choice.name"),
    (choice(type="web_search"), "tool_choice.type"),
    (choice(type="allowed_tools", mode="auto", tools=[]), "tool_choice.tools"),
    (choice(type="allowed_tools", tools=[{"type": "function", "name": "get_weather"}]), "tool_choice.mode"),
    (
        choice(type="allowed_tools", mode="auto", tools=[{"type": "function", "name": "get_time"}]),
        "tool_choice.tools[0].name",
    ),
    (
        choice(type="allowed_tools", mode="auto", tools=[{"type": "mcp", "name": "x"}]),
        "tool_choice.tools[0].type",
    ),
    ({"tools": [TOOL], "tool_choice": "required", "text": {"format": {"type": "json_object"}}}, "text.format"),
    ({"text": {"format": {"type": "xml"}}}, "text.format.type"),
    ({"text": {"format": {"type": "json_schema", "name": "a"}}}, "text.format.schema"),
    ({"text": {"format": {"type": "text", "schema": SCHEMA}}}, "text.format.schema"),
    (json_format({"type": "nothing"}), "text.format.schema"),
    (json_format(NOT), "text.format.schema"),
]


@pytest.mark.parametrize(("fields", "param"), REFUSED)
def test_what_cannot_be_done_is_refused_by_the_name_of_its_field(
    served: Served, fields: dict[str, Any], param: str
) -> None:
    body = {"model": "gemma", "input": "greet", **fields}
    found = httpx.post(
        f"{served.url}/v1/responses", content=json.dumps(body), headers={"Authorization": "Bearer secret"}
    )
    assert found.status_code == 400
    error = found.json()["error"]
    assert (error["type"], error["param"], error["code"]) == ("invalid_request_error", param, None)
    # The text names it too, and nothing that this route calls otherwise.
    assert error["message"].startswith(param) or param in ("tools", "tool_choice")
    assert "messages" not in error["message"].partition("remedy")[0] or param == "messages"
    assert "remedy: " in error["message"]
    assert len(error["message"]) < 1500


def test_a_stream_is_refused_before_it_begins(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        events_of(client, [HELLO, OUTPUT])
    assert caught.value.param == "input[1].call_id"


def test_input_must_come(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        client.responses.create(model="gemma")
    assert caught.value.param == "input"


def test_what_changes_nothing_is_taken(client: openai.OpenAI, told: Told) -> None:
    plain = respond(client, "greet")
    asked = told.prompts[-1]
    harmless: dict[str, Any] = {
        "store": True,
        "truncation": "disabled",
        "background": False,
        "user": "u",
        "safety_identifier": "s",
        "prompt_cache_key": "k",
        "prompt_cache_retention": "24h",
        "service_tier": "auto",
        "max_tool_calls": 3,
        "include": ["reasoning.encrypted_content"],
        "text": {"verbosity": "medium", "format": {"type": "text"}},
        "reasoning": {"summary": "auto"},
        "parallel_tool_calls": True,
        "previous_response_id": None,
        "tools": [],
    }
    found = respond(client, "greet", **harmless)
    assert found.output_text == plain.output_text
    assert told.prompts[-1] == asked
    # What is reported is what happened, not what was asked for.
    assert (found.to_dict()["store"], found.service_tier) == (False, None)
    events = events_of(client, "greet", stream_options={"include_obfuscation": True}, store=False)
    assert not any(hasattr(event, "obfuscation") for event in events)


def test_a_stored_response_is_asked_for_in_vain(client: openai.OpenAI) -> None:
    found = respond(client, "greet", store=True)
    for call in (
        lambda: client.responses.retrieve(found.id),
        lambda: client.responses.delete(found.id),
        lambda: client.responses.cancel(found.id),
        lambda: client.responses.input_items.list(found.id),
    ):
        with pytest.raises(openai.NotFoundError, match="not stored") as caught:
            call()
        assert found.id in str(caught.value)
        assert caught.value.code is None


def test_instructions_and_roles_come_into_the_prompt(client: openai.OpenAI, told: Told) -> None:
    given = [
        {"role": "developer", "content": [words("No jokes.")]},
        {"role": "user", "content": "think"},
        {"type": "message", "id": "m", "status": "completed", **text(words("It is", "output_text"), role="assistant")},
        {"role": "assistant", "content": [{"type": "refusal", "refusal": "I will not say."}], "phase": "commentary"},
        {"role": "user", "content": [words("gre"), words("et")]},
    ]
    assert respond(client, given, instructions="Be brief.").output_text == "Hello! STOP there."
    prompt = told.prompts[-1]
    assert prompt.startswith("<bos><|turn>system\nBe brief.<turn|>\n")
    said = ["Be brief.", "No jokes.", "think", "It is", "I will not say.", "<|turn>user\ngreet<turn|>"]
    places = [prompt.index(word) for word in said]
    assert places == sorted(places)


def messages_of(*items: dict[str, Any]) -> list[dict[str, Any]]:
    body = ResponsesBody.model_validate({"input": list(items)})
    return list(read_conversation(body).request.messages)


def thought(content: str, name: str = "content") -> dict[str, Any]:
    kind = {"content": "reasoning_text", "summary": "summary_text"}[name]
    return {"type": "reasoning", "id": "rs", "summary": [], name: [{"type": kind, "text": content}]}


def test_items_of_one_answer_become_one_message() -> None:
    said = {"role": "assistant", "content": "I will ask."}
    (_, answer, result) = messages_of(HELLO, thought("Hm."), said, CALL, OUTPUT)
    assert answer["reasoning_content"] == "Hm."
    assert answer["content"] == [{"type": "text", "text": "I will ask."}]
    assert [call["id"] for call in answer["tool_calls"]] == ["a"]
    assert (result["role"], result["tool_call_id"], result["content"]) == ("tool", "a", "sunny")
    # What an answer says behind its calls stays with it, as results must follow the calls.
    (_, answer, _) = messages_of(HELLO, CALL, thought("Hm."), said, thought("So.", "summary"), OUTPUT)
    assert (answer["reasoning_content"], len(answer["content"])) == ("Hm.\nSo.", 1)
    # Without calls, a text or a thought behind a text is another answer's.
    for second in (said, thought("So.")):
        roles = [message["role"] for message in messages_of(HELLO, said, second)]
        assert roles == ["user", "assistant", "assistant"]
    # A thought that only another server can read is none.
    sealed = {"type": "reasoning", "id": "rs", "summary": [], "encrypted_content": "x"}
    assert messages_of(HELLO, sealed, HELLO) == [HELLO, HELLO]


@pytest.fixture(scope="module")
def slow(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """5 ms a token, and one second for an answer; a Gemma 3, which has no thinking switch."""
    path = tmp_path_factory.mktemp("slow")
    folder = write_tiny_checkpoint(
        "gemma3", path, overrides={"max_position_embeddings": 4096}, tokenizer_family="gemma3"
    )
    script = answers({"long": "x" * 3000})
    llm = scripted_llm(folder, script, seconds_per_step=0.005, threads=1, max_model_len=4096, chat_template="gemma3")
    with serving(llm, ServerSettings(request_timeout_s=1.0)) as server:
        yield server


@pytest.fixture(scope="module")
def slow_client(slow: Served) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{slow.url}/v1", api_key="any", max_retries=0) as found:
        yield found


def test_an_error_in_the_middle_ends_as_a_failed_response(slow_client: openai.OpenAI) -> None:
    events = events_of(slow_client, "long")
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert events[0].type == "response.created"
    last = events[-1]
    assert last.type == "response.failed"
    assert last.response.status == "failed"
    assert last.response.error is not None
    assert last.response.error.code == "server_error"
    assert "too long" in last.response.error.message
    assert set(last.response.output_text) == {"x"}
    assert last.response.usage is not None
    assert last.response.usage.output_tokens == len(last.response.output_text)
    (closed,) = (event.item for event in events if event.type == "response.output_item.done")
    assert closed.to_dict() == last.response.output[0].to_dict()
    assert closed.to_dict()["status"] == "incomplete"
    with pytest.raises(openai.APIStatusError, match="too long") as caught:
        respond(slow_client, "long")
    assert caught.value.status_code == 504


def test_who_goes_away_leaves_nothing_behind(slow: Served, slow_client: openai.OpenAI) -> None:
    """Field case 121."""
    with endings(slow.service) as ended:
        stream = slow_client.responses.create(model="gemma", input="long", stream=True)
        assert next(iter(stream)).type == "response.created"
        until(lambda: slow.service.live or ended)
        stream.close()
        until(lambda: ended and not slow.service.live and not slow.engine.num_running)
    assert ended[0].completion is None


def test_a_model_that_cannot_think_is_not_asked_to(slow_client: openai.OpenAI) -> None:
    assert respond(slow_client, "hello", reasoning={"effort": "none"}).output_text == "Hello."
    with pytest.raises(openai.BadRequestError, match="no thinking switch") as caught:
        respond(slow_client, "hello", reasoning=THINK)
    assert caught.value.param == "reasoning.effort"


def test_errors_come_as_the_clients_own(client: openai.OpenAI, served: Served) -> None:
    with pytest.raises(openai.NotFoundError) as unknown:
        client.responses.create(model="llama", input="greet")
    assert unknown.value.code == "model_not_found"
    for more in ({}, {"stream": True}, {"text": PERSON_FORMAT}):
        with pytest.raises(openai.BadRequestError) as caught:
            respond(client, "x" * 5000, **more)
        assert caught.value.code == "context_length_exceeded"
    with pytest.raises(openai.AuthenticationError):
        openai.OpenAI(base_url=f"{served.url}/v1", api_key="other", max_retries=0).responses.create(model="gemma")
    for content in (b"", b"{", b"[]", b'{"input": ' + b"[" * 100_000 + b"]" * 100_000 + b"}"):
        found = httpx.post(f"{served.url}/v1/responses", content=content, headers={"Authorization": "Bearer secret"})
        assert (found.status_code, found.json()["error"]["type"]) == (400, "invalid_request_error")
