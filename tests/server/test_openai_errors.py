"""What OpenAI's routes refuse, and how it reaches OpenAI's own client; bodies that are damaged; errors in streams."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from typing import Any

import httpx
import openai
import pytest

from gemwright.errors import CapacityError, PromptTooLongError, RequestError
from gemwright.server.errors import BusyError, FieldError, error_body, field_of
from gemwright.server.settings import ServerSettings
from gemwright.testing import write_tiny_checkpoint
from gemwright.testing.scripted import answers, scripted_llm
from tests.openai_script import TOOL, ask, user
from tests.operation import endings, until
from tests.serving import Served, serving

IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,aGk="}}


def schema_format(schema: Any) -> dict[str, Any]:
    return {"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": schema}}}


def tool(parameters: Any, **more: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": "f", "parameters": parameters, **more}}


NOT = {"type": "object", "properties": {"a": {"not": {"type": "string"}}}}
"""A schema that no grammar can hold an answer to."""
BAD_CALL = {"id": "a", "type": "function", "function": {"name": "f", "arguments": "{bad"}}


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        # Fields that this server does not have, or refuses unless they ask for nothing.
        ({"colour": 1}, "colour"),
        ({"functions": [{"name": "f"}]}, "functions"),
        ({"function_call": "auto"}, "function_call"),
        ({"audio": {"voice": "alloy"}}, "audio"),
        ({"modalities": ["text", "audio"]}, "modalities"),
        ({"verbosity": "low"}, "verbosity"),
        ({"web_search_options": {}}, "web_search_options"),
        ({"thinking_token_budget": 5}, "thinking_token_budget"),
        ({"best_of": 2}, "best_of"),
        ({"use_beam_search": True}, "use_beam_search"),
        ({"truncate_prompt_tokens": 5}, "truncate_prompt_tokens"),
        ({"chat_template": "{{ messages }}"}, "chat_template"),
        ({"skip_special_tokens": False}, "skip_special_tokens"),
        ({"response_format": {"type": "text", "colour": 1}}, "response_format.colour"),
        ({"stream_options": {"colour": 1}}, "stream_options.colour"),
        ({"structured_outputs": {"structural_tag": "x"}}, "structured_outputs.structural_tag"),
        # Values that are out of range or of another type.
        ({"temperature": -1}, "temperature"),
        ({"temperature": "1"}, "temperature"),
        ({"temperature": 10**400}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": True}, "max_tokens"),
        ({"max_tokens": 5, "max_completion_tokens": 6}, "max_tokens"),
        ({"n": 0}, "n"),
        ({"n": 17}, "n"),
        ({"seed": 1.5}, "seed"),
        ({"stop": 5}, "stop"),
        ({"stop": [""]}, "stop"),
        ({"min_tokens": 10, "max_tokens": 5}, "min_tokens"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"logprobs": True, "top_logprobs": -1}, "top_logprobs"),
        ({"logit_bias": {"a": 1}}, "logit_bias"),
        ({"logit_bias": {"5": 1000}}, "logit_bias"),
        ({"logit_bias": {"99999999": 1}}, "logit_bias"),
        ({"allowed_token_ids": [99999999]}, "allowed_token_ids"),
        ({"stop_token_ids": [-1]}, "stop_token_ids"),
        ({"reasoning_effort": "extreme"}, "reasoning_effort"),
        ({"chat_template_kwargs": {"enable_thinking": "yes"}}, "chat_template_kwargs.enable_thinking"),
        ({"chat_template_kwargs": {"colour": 1}}, "chat_template_kwargs"),
        ({"prompt_logprobs": 1, "stream": True}, "prompt_logprobs"),
        ({"model": 5}, "model"),
        # Conversations.
        ({"messages": []}, "messages"),
        ({"messages": "x"}, "messages"),
        ({"messages": [1]}, "messages.0"),
        ({"messages": [{"content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "wizard", "content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "user"}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": 5}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "messages[0].content[0].text"),
        ({"messages": [{"role": "user", "content": [{"type": "file"}]}]}, "messages[0].content[0].type"),
        ({"messages": [{"role": "user", "content": "x", "colour": 1}]}, "messages[0].colour"),
        ({"messages": [{"role": "user", "content": "\ud800"}]}, "messages[0].content"),
        ({"messages": [*user("x"), {"role": "tool", "tool_call_id": "no", "content": "x"}]}, "messages[1]"),
        (
            {"messages": [*user("x"), {"role": "assistant", "tool_calls": [BAD_CALL]}]},
            "messages[1].tool_calls[0].function.arguments",
        ),
        (
            {"messages": [*user("x"), {"role": "assistant", "reasoning": "a", "reasoning_content": "b"}]},
            "messages[1]",
        ),
        ({"continue_final_message": True}, "continue_final_message"),
        ({"add_generation_prompt": False}, "add_generation_prompt"),
        # Tools and what an answer must look like.
        ({"tools": [{"type": "web_search"}]}, "tools[0]"),
        ({"tools": [{"type": "function", "function": {}}]}, "tools[0].function.name"),
        ({"tools": [TOOL, TOOL]}, "tools[1].function.name"),
        ({"tools": [tool({"type": "nothing"})], "tool_choice": "required"}, "tools"),
        ({"tools": [tool(NOT, strict=True)]}, "tools"),
        ({"tool_choice": "required"}, "tool_choice"),
        # Half of a surrogate pair, which no UTF-8 holds.
        ({"stop": "\ud800"}, "stop"),
        ({"stop": ["a", "\ud800"]}, "stop"),
        ({"bad_words": ["a", "\ud800b"]}, "bad_words"),
        ({"cache_salt": "\ud800"}, "cache_salt"),
        ({"tools": [tool({"title": "\ud800"})]}, "tools[0].function"),
        ({"tools": [TOOL], "tool_choice": "\ud800"}, "tool_choice"),
        ({"structured_outputs": {"regex": "\ud800"}}, "structured_outputs.regex"),
        ({"structured_outputs": {"grammar": "root ::= '\ud800'"}}, "structured_outputs.grammar"),
        ({"structured_outputs": {"choice": ["a", "\ud800"]}}, "structured_outputs.choice"),
        ({"structured_outputs": {"json": {"const": "\ud800"}}}, "structured_outputs.json"),
        (schema_format({"const": "\ud800"}), "response_format.json_schema.schema"),
        ({"tools": [TOOL], "tool_choice": "get_time"}, "tool_choice"),
        ({"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "get_time"}}}, "tool_choice"),
        ({"tools": [TOOL], "tool_choice": "required", "response_format": {"type": "json_object"}}, "response_format"),
        ({"tools": [TOOL], "tool_choice": "required", "structured_outputs": {"regex": "a"}}, "structured_outputs"),
        ({"response_format": {"type": "xml"}}, "response_format.type"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema.schema"),
        ({"response_format": {"type": "text", "json_schema": {"schema": {}}}}, "response_format.json_schema"),
        (schema_format({"type": "nothing"}), "response_format.json_schema.schema"),
        (schema_format(NOT), "response_format.json_schema.schema"),
        (schema_format(True), "response_format.json_schema.schema"),
        ({"structured_outputs": {"regex": "("}}, "structured_outputs.regex"),
        ({"structured_outputs": {"grammar": "root ::= ("}}, "structured_outputs.grammar"),
        ({"structured_outputs": {"choice": []}}, "structured_outputs.choice"),
        ({"structured_outputs": {"json": {"type": "nothing"}}}, "structured_outputs.json"),
        ({"structured_outputs": {"json": "{"}}, "structured_outputs.json"),
        ({"structured_outputs": {"regex": "a", "choice": ["a"]}}, "structured_outputs"),
        ({"structured_outputs": {"regex": "a"}, "response_format": {"type": "json_object"}}, "structured_outputs"),
    ],
)
def test_what_cannot_be_done_is_refused_by_the_name_of_its_field(
    served: Served, fields: dict[str, Any], param: str
) -> None:
    body = {"model": "gemma", "messages": user("greet"), **fields}
    found = httpx.post(
        f"{served.url}/v1/chat/completions", content=json.dumps(body), headers={"Authorization": "Bearer secret"}
    )
    assert found.status_code == 400
    error = found.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert (error["type"], error["param"], error["code"]) == ("invalid_request_error", param, None)
    assert "remedy: " in error["message"]
    assert len(error["message"]) < 1500


DEEP = b'{"messages": ' + b"[" * 100_000 + b"]" * 100_000 + b"}"
DEEP_PART = b'{"messages": [{"role": "user", "content": "x"}], "tools": ' + b'[{"a":' * 500 + b"1" + b"}]" * 500 + b"}"


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"hello",
        b"{",
        b'{"messages": [}',
        b"[]",
        b"null",
        b'"text"',
        b'{"messages": [{"role": "user", "content": "\xff\xfe"}]}',
        b"\xef\xbb\xbf{",
        b'{"messages": [{"role": "user", "content": "x"}], "temperature": NaN}',
        b'{"messages": [{"role": "user", "content": "x"}], "temperature": Infinity}',
        b'{"messages": [{"role": "user", "content": "x"}], "temperature": 1e999}',
        b'{"messages": [{"role": "user", "content": "x"}], "max_tokens": ' + b"9" * 5000 + b"}",
        b'{"messages": [{"role": "user", "content": "x"}]} {}',
        DEEP,
        DEEP_PART,
        b"\x00" * 100,
    ],
)
def test_a_damaged_body_is_refused_and_the_server_lives_on(
    served: Served, client: openai.OpenAI, content: bytes
) -> None:
    found = httpx.post(f"{served.url}/v1/chat/completions", content=content, headers={"Authorization": "Bearer secret"})
    assert found.status_code == 400
    assert found.json()["error"]["type"] == "invalid_request_error"
    assert len(found.content) < 1500
    assert ask(client, "greet").choices[0].message.content == "Hello! STOP there."


def test_media_are_refused_by_a_model_that_reads_text(client: openai.OpenAI) -> None:
    content = [{"type": "text", "text": "greet"}, IMAGE]
    with pytest.raises(openai.BadRequestError, match="image in a message"):
        ask(client, "", messages=[{"role": "user", "content": content}])


def test_a_schema_that_cannot_be_enforced_is_taken_for_a_tool_that_is_not_strict(client: openai.OpenAI) -> None:
    assert ask(client, "greet", tools=[tool(NOT)]).choices[0].message.content == "Hello! STOP there."


def test_errors_come_as_the_clients_own(client: openai.OpenAI, served: Served) -> None:
    with pytest.raises(openai.NotFoundError) as unknown:
        ask(client, "greet", model="llama")
    assert (unknown.value.code, unknown.value.type) == ("model_not_found", "not_found_error")
    assert "llama" in str(unknown.value)
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("llama")
    for key in ("other", "Secret", "secret2"):
        other = openai.OpenAI(base_url=f"{served.url}/v1", api_key=key, max_retries=0)
        with pytest.raises(openai.AuthenticationError) as refused:
            ask(other, "greet")
        assert refused.value.code == "invalid_api_key"
        assert key not in str(refused.value.body)
    with pytest.raises(openai.BadRequestError) as refused_field:
        ask(client, "greet", extra_body={"colour": 1})
    assert refused_field.value.param == "colour"
    with pytest.raises(openai.NotFoundError) as no_route:
        client.images.generate(model="gemma", prompt="x")
    assert no_route.value.code is None
    assert "/v1/images/generations" in str(no_route.value)


def test_a_prompt_over_the_context_is_refused_with_both_numbers(client: openai.OpenAI) -> None:
    """Whole or as a stream: before anything of it is sent."""
    num_around = len("<bos><|turn>user\n<turn|>\n<|turn>model\n")
    for more in ({}, {"stream": True}):
        with pytest.raises(openai.BadRequestError) as caught:
            ask(client, "x" * 5000, **more)
        assert caught.value.code == "context_length_exceeded"
        message = str(caught.value)
        value = int(message.partition("value: ")[2].split()[0])
        assert 5000 < value < 5000 + num_around
        assert "4095 tokens (max_model_len 4096)" in message


@pytest.mark.parametrize("num_words", [200_000, pytest.param(1_500_000, marks=pytest.mark.slow)])
def test_megabytes_are_read_and_refused_and_others_are_answered_meanwhile(
    client: openai.OpenAI, served: Served, num_words: int
) -> None:
    """1.4 and 10.5 MB; while their tokens are counted, the server has time for others."""
    refused: list[openai.BadRequestError] = []

    def run() -> None:
        with pytest.raises(openai.BadRequestError) as caught:
            ask(client, "hello, " * num_words)
        refused.append(caught.value)

    thread = threading.Thread(target=run)
    thread.start()
    num_answered = 0
    while thread.is_alive():
        assert httpx.get(f"{served.url}/health").status_code == 200
        num_answered += 1
    thread.join()
    assert num_answered > 5
    (error,) = refused
    assert error.code == "context_length_exceeded"
    assert str(num_words * 7)[:3] in str(error)
    assert len(str(error)) < 1000


@pytest.fixture(scope="module")
def slow(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """One answer at a time, 5 ms a token, two seconds for it, small bodies, one name for thoughts."""
    path = tmp_path_factory.mktemp("slow")
    folder = write_tiny_checkpoint("gemma4-e", path, overrides={"max_position_embeddings": 4096})
    script = answers({"long": "x" * 3000, "think": "<|channel>thought\nHm.<channel|>Blue."})
    llm = scripted_llm(
        folder, script, seconds_per_step=0.005, threads=1, max_model_len=4096, max_num_seqs=1, chat_template="gemma4"
    )
    settings = ServerSettings(
        request_timeout_s=2.0,
        max_body_bytes=5000,
        reasoning_field="reasoning",
        served_model_names=("first", "second"),
    )
    with serving(llm, settings) as server:
        yield server


@pytest.fixture(scope="module")
def slow_client(slow: Served) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{slow.url}/v1", api_key="any", max_retries=0) as found:
        yield found


def test_an_error_in_the_middle_of_a_stream_is_raised_by_the_client(slow: Served, slow_client: openai.OpenAI) -> None:
    texts = []
    stream = slow_client.chat.completions.create(model="first", messages=user("long"), stream=True)  # type: ignore[call-overload]
    with pytest.raises(openai.APIError, match="too long"):
        texts.extend(chunk.choices[0].delta.content for chunk in stream)
    assert set(texts) == {"", "x"}
    with pytest.raises(openai.APIStatusError, match="too long") as caught:
        ask(slow_client, "long", model="first")
    assert caught.value.status_code == 504
    body = {"messages": user("long"), "stream": True}
    events = httpx.post(f"{slow.url}/v1/chat/completions", json=body).text.split("\n\n")
    assert json.loads(events[-3].removeprefix("data: "))["error"]["type"] == "timeout_error"
    assert events[-2:] == ["data: [DONE]", ""]


def test_bodies_over_the_limit_are_refused(slow_client: openai.OpenAI) -> None:
    with pytest.raises(openai.APIStatusError, match="5000 bytes") as caught:
        ask(slow_client, "x" * 6000, model="first")
    assert caught.value.status_code == 413


def test_names_and_the_field_of_thoughts_are_as_the_server_was_told(slow_client: openai.OpenAI) -> None:
    assert [model.id for model in slow_client.models.list()] == ["first", "second"]
    found = ask(slow_client, "think", model="second")
    assert found.model == "second"
    assert found.choices[0].message.to_dict()["reasoning"] == "Hm."
    assert "reasoning_content" not in found.choices[0].message.to_dict()


def test_who_goes_away_leaves_nothing_behind(slow: Served, slow_client: openai.OpenAI) -> None:
    """Field case 121."""
    with endings(slow.service) as ended:
        stream = slow_client.chat.completions.create(model="first", messages=user("long"), stream=True)  # type: ignore[call-overload]
        next(iter(stream))
        stream.close()
        until(lambda: ended and not slow.service.live and not slow.engine.num_running)
    assert ended[0].completion is None


@pytest.mark.parametrize(
    ("error", "param", "code"),
    [
        (FieldError("a.0.b", "is wrong"), "a.0.b", None),
        (RequestError("stop"), "stop", None),
        (RequestError("stop strings need a tokenizer"), None, None),
        (RequestError("tool_choice names no tool"), "tool_choice", None),
        (RequestError("tools: two have one name"), "tools", None),
        (RequestError("messages[0].content[1].text: half of a pair"), "messages[0].content[1].text", None),
        (RequestError("the parameters of tool f: type is wrong"), "tools", None),
        (RequestError("the prompt is empty"), None, None),
        (PromptTooLongError("the prompt leaves no room"), None, "context_length_exceeded"),
        (CapacityError("memory: not enough"), None, None),
        (BusyError("too many requests wait"), None, "rate_limit_exceeded"),
        (ValueError("secret: 5"), None, None),
    ],
)
def test_an_error_names_its_field_where_it_has_one(error: Exception, param: str | None, code: str | None) -> None:
    found = error_body(error, "openai")["error"]
    assert (found["param"], found["code"]) == (param, code)
    assert field_of(error) == param
    assert "secret" not in found["message"]
