"""docs/api.md is what the schemas say now, and what it calls ignored or refused is: each such field is tried."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import httpx2
import pytest

from docs import api_rows as rows
from docs.api_rows import OTHER, Row
from docs.write_api import DOCUMENT, document
from gemwright.server.fields import Part
from tests.openai_script import SCHEMA
from tests.serving import Served

Fields = dict[str, Any]

CHAT, RESPONSES, MESSAGES, OLLAMA = "/v1/chat/completions", "/v1/responses", "/v1/messages", "/api/chat"
SAID: Fields = {"role": "user", "content": "greet"}
PLAIN: dict[str, Fields] = {
    CHAT: {"messages": [SAID]},
    RESPONSES: {"input": "greet"},
    MESSAGES: {"model": "gemma", "max_tokens": 64, "messages": [SAID]},
    OLLAMA: {"model": "gemma", "messages": [SAID], "stream": False},
}
USED: Fields = {"type": "tool_use", "id": "1", "name": "f", "input": {}}
GAVE: Fields = {"type": "tool_result", "tool_use_id": "1", "content": "greet"}
THOUGHT: Fields = {"type": "thinking", "thinking": "Hm."}
CALL: Fields = {"type": "function_call", "call_id": "1", "name": "f", "arguments": "{}"}
OUTPUT: Fields = {"type": "function_call_output", "call_id": "1", "output": "greet"}
CHAT_CALL: Fields = {"id": "1", "function": {"name": "f", "arguments": "{}"}}


def said(*messages: Fields) -> Fields:
    return {"messages": [SAID, *messages]}


def items(*found: Fields) -> Fields:
    return {"input": [SAID, *found]}


# For each part: the route, the part with what it must have, and the fields of a body in which it stands.
PLACES: dict[str, tuple[str, Fields, Callable[[Fields], Fields]]] = {
    "ChatBody": (CHAT, {}, lambda part: part),
    "CompletionBody": ("/v1/completions", {"prompt": "greet"}, lambda part: part),
    "ResponsesBody": (RESPONSES, {}, lambda part: part),
    "MessagesBody": (MESSAGES, {}, lambda part: part),
    "CountTokensBody": ("/v1/messages/count_tokens", {"model": "gemma", "messages": [SAID]}, lambda part: part),
    "OllamaChatBody": (OLLAMA, {}, lambda part: part),
    "GenerateBody": ("/api/generate", {"model": "gemma", "prompt": "greet", "stream": False}, lambda part: part),
    "ShowBody": ("/api/show", {"model": "gemma"}, lambda part: part),
    "TokenizeBody": ("/tokenize", {"prompt": "greet"}, lambda part: part),
    "DetokenizeBody": ("/detokenize", {"tokens": [3]}, lambda part: part),
    "StreamOptions": (CHAT, {}, lambda part: {"stream_options": part}),
    "ResponseFormat": (CHAT, {"type": "text"}, lambda part: {"response_format": part}),
    "JsonSchemaFormat": (
        CHAT,
        {"schema": SCHEMA},
        lambda part: {"response_format": {"type": "json_schema", "json_schema": part}, "temperature": 0},
    ),
    "StructuredOutputs": (CHAT, {"choice": ["Hello."]}, lambda part: {"structured_outputs": part}),
    "Message": (CHAT, SAID, lambda part: {"messages": [part]}),
    "ContentPart": (CHAT, {"type": "text", "text": "greet"}, lambda part: said({"role": "user", "content": [part]})),
    "Call": (
        CHAT,
        CHAT_CALL,
        lambda part: said(
            {"role": "assistant", "tool_calls": [part]}, {"role": "tool", "tool_call_id": "1", "content": "greet"}
        ),
    ),
    "TextPart": (RESPONSES, {}, lambda part: {"text": part}),
    "FormatPart": (
        RESPONSES,
        {"type": "json_schema", "schema": SCHEMA},
        lambda part: {"text": {"format": part}, "temperature": 0},
    ),
    "ReasoningPart": (RESPONSES, {}, lambda part: {"reasoning": part}),
    "StreamPart": (RESPONSES, {}, lambda part: {"stream_options": part}),
    "MessageItem": (RESPONSES, {"type": "message", **SAID}, lambda part: {"input": [part]}),
    "TextContent": (
        RESPONSES,
        {"type": "input_text", "text": "greet"},
        lambda part: items({"role": "user", "content": [part]}),
    ),
    "RefusalContent": (
        RESPONSES,
        {"type": "refusal", "refusal": "No."},
        lambda part: items({"role": "assistant", "content": [part]}, SAID),
    ),
    "FunctionCallItem": (RESPONSES, CALL, lambda part: items(part, OUTPUT)),
    "FunctionCallOutputItem": (RESPONSES, OUTPUT, lambda part: items(CALL, part)),
    "ReasoningItem": (
        RESPONSES,
        {"type": "reasoning", "content": [{"type": "reasoning_text", "text": "Hm."}]},
        lambda part: items(part, CALL, OUTPUT),
    ),
    "ReasoningText": (
        RESPONSES,
        {"type": "reasoning_text", "text": "Hm."},
        lambda part: items({"type": "reasoning", "content": [part]}, CALL, OUTPUT),
    ),
    "FunctionTool": (RESPONSES, {"type": "function", "name": "f"}, lambda part: {"tools": [part]}),
    "FunctionChoice": (
        RESPONSES,
        {"type": "function", "name": "f"},
        lambda part: {"tools": [{"type": "function", "name": "f"}], "tool_choice": part},
    ),
    "AllowedTools": (
        RESPONSES,
        {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "f"}]},
        lambda part: {"tools": [{"type": "function", "name": "f"}], "tool_choice": part},
    ),
    "AnthropicMessage": (MESSAGES, SAID, lambda part: {"messages": [part]}),
    "TextBlock": (MESSAGES, {"type": "text", "text": "greet"}, lambda part: said({"role": "user", "content": [part]})),
    "ToolUseBlock": (
        MESSAGES,
        USED,
        lambda part: said({"role": "assistant", "content": [part]}, {"role": "user", "content": [GAVE]}),
    ),
    "ToolResultBlock": (
        MESSAGES,
        GAVE,
        lambda part: said({"role": "assistant", "content": [USED]}, {"role": "user", "content": [part]}),
    ),
    **dict.fromkeys(
        ("ThinkingBlock", "RedactedThinkingBlock"),
        (
            MESSAGES,
            THOUGHT,
            lambda part: said({"role": "assistant", "content": [part, USED]}, {"role": "user", "content": [GAVE]}),
        ),
    ),
    "CustomTool": (MESSAGES, {"name": "f", "input_schema": {"type": "object"}}, lambda part: {"tools": [part]}),
    "ToolChoicePart": (MESSAGES, {"type": "none"}, lambda part: {"tool_choice": part}),
    "ThinkingPart": (MESSAGES, {"type": "enabled"}, lambda part: {"thinking": part}),
    "OutputConfigPart": (MESSAGES, {}, lambda part: {"output_config": part}),
    "OutputFormatPart": (
        MESSAGES,
        {"type": "json_schema", "schema": SCHEMA},
        lambda part: {"output_format": part, "temperature": 0},
    ),
    "OllamaMessage": (OLLAMA, SAID, lambda part: {"messages": [part]}),
    "Options": (OLLAMA, {}, lambda part: {"options": part}),
}
PLACES["RedactedThinkingBlock"] = (MESSAGES, {"type": "redacted_thinking"}, PLACES["ThinkingBlock"][2])

ROWS = rows.all_rows()
SAMPLES = {"text": "x", "true or false": True, "integer, from 1": 5}
UNKNOWN = "no_such_field"


@pytest.fixture(scope="module")
def http(served: Served) -> Iterator[httpx2.Client]:
    headers = {"authorization": "Bearer secret"}
    with httpx2.Client(base_url=served.url, headers=headers, timeout=60) as client:
        yield client


def ask(client: httpx2.Client, part: str, fields: Fields) -> httpx2.Response:
    path, needed, place = PLACES[part]
    return client.post(path, json={**PLAIN.get(path, {}), **place({**needed, **fields})})


def answer_of(response: httpx2.Response) -> Any:
    """What the model read and said, without ids and times."""
    assert response.status_code == 200, response.text
    content = response.json()
    if "count" in content or "input_tokens" in content or "model_info" in content:
        return content
    usage = content.get("usage", {})
    read = [usage.get(name, 0) for name in ("prompt_tokens", "input_tokens", "cache_read_input_tokens")]
    if "output" in content:
        return sum(read), [{**item, "id": None} for item in content["output"]]
    said = {name: content.get(name) for name in ("choices", "content", "message", "response", "prompt_eval_count")}
    return sum(read), said


def name_of(row: Row) -> str:
    return f"{row.part}.{row.name}"


def test_the_page_is_what_the_schemas_say() -> None:
    assert DOCUMENT.read_text(encoding="utf-8") == document(), "write it anew: python -m docs.write_api"


def test_no_part_of_a_request_is_left_out() -> None:
    def below(part: type[Part]) -> list[type[Part]]:
        return [part, *(found for inner in part.__subclasses__() for found in below(inner))]

    # What bodies have in common stands in each of them.
    whole = [part for part in below(Part) if part.__module__.startswith("gemwright.") and not part.__subclasses__()]
    assert len(whole) > 35
    assert set(whole) == set(rows.all_parts())
    assert {row.part for row in ROWS} - {"Tool"} == PLACES.keys()
    titles = [rows.title(part) for part in rows.all_parts()]
    assert len(set(titles)) == len(titles)


def test_no_field_stands_twice() -> None:
    named = [name_of(row) for row in ROWS]
    assert len(set(named)) == len(named)


@pytest.mark.parametrize("row", [row for row in ROWS if row.handling == "ignored"], ids=name_of)
def test_an_ignored_field_changes_nothing(http: httpx2.Client, row: Row) -> None:
    name = UNKNOWN if row.name == OTHER else row.name
    plain = answer_of(ask(http, row.part, {}))
    assert answer_of(ask(http, row.part, {name: SAMPLES.get(row.kind, {"a": 1})})) == plain


@pytest.mark.parametrize("row", [row for row in ROWS if row.handling == "refused"], ids=name_of)
def test_a_refused_field_is_named_and_its_harmless_values_pass(http: httpx2.Client, row: Row) -> None:
    name = UNKNOWN if row.name == OTHER else row.name
    found = ask(http, row.part, {name: {"a": 1}})
    assert found.status_code == 400
    assert f"{name}: {row.note}" in found.text or row.name == OTHER
    assert name in found.text
    plain = answer_of(ask(http, row.part, {}))
    for value in (None, *row.harmless):
        assert answer_of(ask(http, row.part, {name: value})) == plain


@pytest.mark.parametrize("part", sorted({rows.title(part) for part in rows.all_parts()}))
def test_an_unknown_field_is_refused_in_every_part(http: httpx2.Client, part: str) -> None:
    assert ask(http, part, {}).status_code == 200
    found = ask(http, part, {UNKNOWN: 1})
    assert found.status_code == 400
    assert f"{UNKNOWN}: is no field that this server knows" in found.text
