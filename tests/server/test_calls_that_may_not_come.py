"""Calls that a model would write where none may come: in every protocol they are text or nothing."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anthropic
import ollama
import openai
import pytest

from gemwright.testing import write_tiny_checkpoint
from gemwright.testing.scripted import scripted_llm
from gemwright.text.parser import OutputParser
from tests.openai_script import CALL_AS_TEXT, Told
from tests.responses_script import TOOL, events_of, kinds_of, respond
from tests.serving import Served, serving

TWO_CALLS_AS_TEXT = CALL_AS_TEXT + CALL_AS_TEXT.replace("Paris", "Rome").replace("2", "3")
ANTHROPIC_TOOL = {"name": TOOL["name"], "description": TOOL["description"], "input_schema": TOOL["parameters"]}


@pytest.fixture(scope="module")
def open_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A server without keys, as Ollama's client sends none."""
    path: Path = tmp_path_factory.mktemp("calls")
    folder = write_tiny_checkpoint("gemma4-e", path, overrides={"max_position_embeddings": 4096})
    with serving(scripted_llm(folder, Told(), threads=1, max_model_len=4096, chat_template="gemma4")) as server:
        yield server


@pytest.mark.parametrize("fields", [{"tool_choice": "none"}, {"tools": [TOOL], "tool_choice": "none"}, {}])
def test_responses_have_no_call(client: openai.OpenAI, fields: dict[str, Any]) -> None:
    found = respond(client, "twice", **fields)
    assert (found.status, kinds_of(found)) == ("completed", ["message"])
    last = events_of(client, "twice", **fields)[-1]
    assert last.type == "response.completed"
    assert last.response.output_text == found.output_text
    if not fields:
        assert found.output_text == TWO_CALLS_AS_TEXT


@pytest.mark.parametrize(
    "fields",
    [{"tools": [ANTHROPIC_TOOL], "tool_choice": {"type": "none"}}, {"tool_choice": {"type": "none"}}, {}],
)
def test_messages_have_no_call(open_server: Served, fields: dict[str, Any]) -> None:
    with anthropic.Anthropic(base_url=open_server.url, api_key="any", max_retries=0) as client:
        asked: Any = {"model": "gemma", "max_tokens": 200, "messages": [{"role": "user", "content": "twice"}], **fields}
        whole = client.messages.create(**asked)
        with client.messages.stream(**asked) as stream:
            streamed = stream.get_final_message()
    assert (whole.stop_reason, [block.type for block in whole.content]) == ("end_turn", ["text"])
    assert streamed.stop_reason == "end_turn"
    assert [block.text for block in streamed.content] == [block.text for block in whole.content]  # type: ignore[union-attr]
    if not fields:
        assert whole.content[0].to_dict()["text"] == TWO_CALLS_AS_TEXT


def test_ollamas_chats_without_tools_have_no_call(open_server: Served) -> None:
    client = ollama.Client(open_server.url)
    messages = [{"role": "user", "content": "twice"}]
    whole = client.chat("gemma", messages=messages)
    assert (whole.message.tool_calls, whole.message.content, whole.done_reason) == (None, TWO_CALLS_AS_TEXT, "stop")
    parts = list(client.chat("gemma", messages=messages, stream=True))
    assert not any(part.message.tool_calls for part in parts)
    assert "".join(part.message.content or "" for part in parts) == TWO_CALLS_AS_TEXT
    assert client.generate("gemma", "twice").response == TWO_CALLS_AS_TEXT


@pytest.mark.parametrize("dialect", ["gemma2", "gemma3"])
def test_families_that_write_calls_as_text_give_them_as_text(dialect: str) -> None:
    """They have no mark to forbid: what they write is content where no call may come."""
    written = '```json\n{"name": "get_weather", "parameters": {"city": "Paris", "days": 2}}\n```'
    for may_call in (True, False):
        parser = OutputParser(dialect, tools=[TOOL], may_call=may_call)
        parser.push_text(written)
        parser.finish("stop")
        assert (len(parser.output.tool_calls), parser.output.content) == ((1, None) if may_call else (0, written))
