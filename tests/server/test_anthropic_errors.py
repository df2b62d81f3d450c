"""What Anthropic's routes refuse, and how it reaches Anthropic's own client; clients that go away."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anthropic
import pytest

from gemwright.server.settings import ServerSettings
from gemwright.testing import write_tiny_checkpoint
from gemwright.testing.scripted import answers, scripted_llm
from tests.anthropic_script import TOOL, Told, ask
from tests.operation import endings
from tests.serving import Served, serving


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("anthropic")
    return write_tiny_checkpoint("gemma4-e", path, overrides={"max_position_embeddings": 4096})


@pytest.fixture(scope="module")
def served(folder: Path) -> Iterator[Served]:
    llm = scripted_llm(folder, Told(), threads=1, max_model_len=4096, chat_template="gemma4")
    with serving(llm, ServerSettings(api_keys=("secret",), max_body_bytes=20_000)) as server:
        yield server


@pytest.fixture(scope="module")
def slow(folder: Path) -> Iterator[Served]:
    """One request at a time, 5 ms a token, one that may wait, and little time."""
    llm = scripted_llm(
        folder,
        answers({"long": "x" * 3000}),
        seconds_per_step=0.005,
        threads=1,
        max_model_len=4096,
        max_num_seqs=1,
        chat_template="gemma4",
    )
    with serving(llm, ServerSettings(max_num_queued_requests=1, request_timeout_s=2.0)) as server:
        yield server


@pytest.fixture(scope="module")
def client(served: Served) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(base_url=served.url, api_key="secret", max_retries=0) as found:
        yield found


def test_what_changes_nothing_is_taken(client: anthropic.Anthropic) -> None:
    """Fields that Claude Code sends with every request among them."""
    edits = {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]}
    message = client.beta.messages.create(
        model="gemma",
        max_tokens=50,
        messages=[{"role": "user", "content": "greet"}],
        metadata={"user_id": "me"},
        service_tier="auto",
        output_config={"effort": "high"},
        context_management=edits,  # type: ignore[arg-type]
        betas=["context-management-2025-06-27"],
        extra_body={"temperature": 0, "top_k": 0, "top_p": 0.9},
    )
    assert message.stop_reason == "end_turn"


def user(*content: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": list(content)}]}


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        (user({"type": "image", "source": {"type": "url", "url": "http://x/y.png"}}), "messages.0.content.0.type"),
        (user({"type": "text", "text": "a"}, {"type": "document", "source": {}}), "messages.0.content.1.type"),
        (user({"type": "tool_result", "tool_use_id": "toolu_none"}), "messages.0.content.0.tool_use_id"),
        (user({"type": "text"}), "messages.0.content.0.text"),
        (user({"type": "text", "text": "a", "color": 1}), "messages.0.content.0.color"),
        ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, "tools.0.type"),
        ({"tools": [{**TOOL, "defer_loading": True}]}, "tools.0.defer_loading"),
        ({"tools": [{"name": "f"}]}, "tools.0.input_schema"),
        ({"tool_choice": {"type": "tool"}}, "tool_choice.name"),
        ({"tool_choice": {"type": "any"}}, "tool_choice"),
        ({"thinking": {"type": "between_tools"}}, "thinking.type"),
        ({"extra_body": {"temperature": -1}}, "temperature"),
        ({"max_tokens": -1}, "max_tokens"),
        ({"extra_body": {"max_tokens": "many"}}, "max_tokens"),
        ({"container": "c"}, "container"),
        ({"extra_body": {"mcp_servers": [{}]}}, "mcp_servers"),
        ({"extra_body": {"colour": 1}}, "colour"),
        ({"extra_body": {"context_management": {"edits": [{"type": "compact_20260112"}]}}}, "context_management.edits"),
        ({"messages": []}, "messages"),
        ({"output_config": {"format": {"type": "json_schema", "schema": {"type": "nothing"}}}}, "type"),
    ],
)
def test_what_cannot_be_done_is_refused_by_name(
    client: anthropic.Anthropic, fields: dict[str, Any], field: str
) -> None:
    with pytest.raises(anthropic.BadRequestError) as caught:
        ask(client, "greet", **fields)
    body: Any = caught.value.body
    assert body["type"] == "error"
    assert body["error"]["type"] == "invalid_request_error"
    assert field in body["error"]["message"]


def test_errors_come_as_the_clients_own(client: anthropic.Anthropic, served: Served) -> None:
    with pytest.raises(anthropic.NotFoundError, match="claude"):
        client.messages.create(model="claude", max_tokens=5, messages=[{"role": "user", "content": "x"}])
    with pytest.raises(anthropic.APIStatusError) as caught:
        ask(client, "x" * 30_000)
    assert caught.value.status_code == 413
    other = anthropic.Anthropic(base_url=served.url, api_key="wrong", max_retries=0)
    with pytest.raises(anthropic.AuthenticationError):
        ask(other, "greet")
    # What Claude Code reads to shorten a conversation: these words with both numbers.
    with pytest.raises(anthropic.BadRequestError, match=r"prompt is too long: 50\d\d tokens > 4095 tokens"):
        ask(client, "x" * 5000)


def wait_for(condition: Any) -> None:
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.002)


def test_who_comes_when_too_many_wait_is_told_so(slow: Served) -> None:
    client = anthropic.Anthropic(base_url=slow.url, api_key="any", max_retries=0)

    def run() -> None:
        with pytest.raises(anthropic.APIStatusError):  # the time is up before its end
            ask(client, "long", max_tokens=2000)

    threads = []
    for num_running, num_waiting in ((1, 0), (1, 1)):
        threads.append(threading.Thread(target=run))
        threads[-1].start()
        wait_for(lambda r=num_running, w=num_waiting: (slow.engine.num_running, slow.engine.num_waiting) == (r, w))
    with pytest.raises(anthropic.RateLimitError) as caught:
        ask(client, "long")
    assert caught.value.response.headers["retry-after"] == "1"
    for thread in threads:
        thread.join()


def test_an_error_in_the_middle_of_a_stream_is_raised_by_the_client(slow: Served) -> None:
    client = anthropic.Anthropic(base_url=slow.url, api_key="any", max_retries=0)
    stream = client.messages.create(
        model="gemma", max_tokens=2000, messages=[{"role": "user", "content": "long"}], stream=True
    )
    begun = next(iter(stream))
    assert begun.type == "message_start"
    with pytest.raises(anthropic.APIError, match="too long"):
        list(stream)


def test_who_goes_away_leaves_nothing_behind(slow: Served) -> None:
    client = anthropic.Anthropic(base_url=slow.url, api_key="any", max_retries=0)
    with endings(slow.service) as ended:
        stream = client.messages.create(
            model="gemma", max_tokens=2000, messages=[{"role": "user", "content": "long"}], stream=True
        )
        next(iter(stream))
        stream.close()
        wait_for(lambda: ended and not slow.service.live and slow.engine.num_running == 0)
    (answering,) = ended
    assert answering.error is None  # it was not its time that was over
    assert answering.completion is None
