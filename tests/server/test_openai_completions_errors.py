"""What /v1/completions refuses, and what is left where prompts fail or clients go."""

from __future__ import annotations

import json
import socket
import time
from typing import Any

import httpx
import openai
import pytest

from tests.completions_script import complete, stream
from tests.serving import Served


def wait_until_idle(server: Served) -> None:
    deadline = time.monotonic() + 20
    while server.service.live or server.engine.num_running or server.engine.num_waiting:
        assert time.monotonic() < deadline
        time.sleep(0.002)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"suffix": "the end"}, "suffix"),
        ({"colour": 1}, "colour"),
        ({"messages": []}, "messages"),
        ({"prompt_embeds": "AAAA"}, "prompt_embeds"),
        ({"add_special_tokens": False}, "add_special_tokens"),
        ({"skip_special_tokens": False}, "skip_special_tokens"),
        ({"return_tokens_as_token_ids": True}, "return_tokens_as_token_ids"),
        ({"truncate_prompt_tokens": 5}, "truncate_prompt_tokens"),
        ({"use_beam_search": True}, "use_beam_search"),
        ({"prompt": None}, "prompt"),
        ({"prompt": 5}, "prompt"),
        ({"prompt": ""}, "prompt"),
        ({"prompt": []}, "prompt"),
        ({"prompt": [[]]}, "prompt"),
        ({"prompt": ["a", ""]}, "prompt[1]"),
        ({"prompt": [[5], []]}, "prompt[1]"),
        ({"prompt": ["a", 5]}, "prompt[1]"),
        ({"prompt": [True]}, "prompt.0"),
        ({"prompt": [[5, "a"]]}, "prompt.0.1"),
        ({"prompt": [[5], "a"]}, "prompt[1]"),
        ({"prompt": ["a", [5]]}, "prompt[1]"),
        ({"prompt": ["a", "b", [5], "c"]}, "prompt[2]"),
        ({"prompt": [5, 6, "a"]}, "prompt[2]"),
        ({"prompt": [5, [6]]}, "prompt[1]"),
        ({"prompt": {"text": "a"}}, "prompt"),
        ({"prompt": [10**9]}, "prompt"),
        ({"prompt": [-1]}, "prompt"),
        ({"prompt": [[5], [10**9]]}, "prompt[1]"),
        ({"prompt": "\ud800"}, "prompt"),
        ({"prompt": ["a", "b\udc00"]}, "prompt[1]"),
        ({"prompt": ["a"] * 3, "n": 6}, "prompt"),
        ({"prompt": ["a"] * 17}, "prompt"),
        ({"n": 17}, "n"),
        ({"n": 0}, "n"),
        ({"best_of": 17}, "best_of"),
        ({"best_of": 0}, "best_of"),
        ({"n": 2, "best_of": 1}, "best_of"),
        ({"best_of": 2, "stream": True}, "best_of"),
        ({"logprobs": True}, "logprobs"),
        ({"logprobs": -1}, "logprobs"),
        ({"logprobs": 1001}, "logprobs"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"echo": "yes"}, "echo"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"min_tokens": 17}, "min_tokens"),
        ({"temperature": -1}, "temperature"),
        ({"stop": [""]}, "stop"),
        ({"prompt_logprobs": 1, "stream": True}, "prompt_logprobs"),
        ({"stream_options": {"colour": 1}}, "stream_options.colour"),
        ({"structured_outputs": {"regex": "("}}, "structured_outputs.regex"),
        ({"response_format": {"type": "xml"}}, "response_format.type"),
    ],
)
def test_what_cannot_be_done_is_refused_by_the_name_of_its_field(
    served: Served, fields: dict[str, Any], param: str
) -> None:
    body = {"model": "gemma", "prompt": "Once upon", **fields}
    found = httpx.post(
        f"{served.url}/v1/completions", content=json.dumps(body), headers={"Authorization": "Bearer secret"}
    )
    assert found.status_code == 400
    error = found.json()["error"]
    assert (error["type"], error["param"], error["code"]) == ("invalid_request_error", param, None)
    assert "remedy: " in error["message"]
    assert len(error["message"]) < 1500


def test_a_prompt_that_is_missing_is_named(served: Served) -> None:
    found = httpx.post(f"{served.url}/v1/completions", json={}, headers={"Authorization": "Bearer secret"})
    assert (found.status_code, found.json()["error"]["param"]) == (400, "prompt")


def test_errors_come_as_the_clients_own(client: openai.OpenAI, served: Served) -> None:
    with pytest.raises(openai.NotFoundError) as unknown:
        complete(client, "Once upon", model="llama")
    assert unknown.value.code == "model_not_found"
    other = openai.OpenAI(base_url=f"{served.url}/v1", api_key="other", max_retries=0)
    with pytest.raises(openai.AuthenticationError):
        complete(other, "Once upon")


@pytest.mark.parametrize(("prompt", "param"), [("x" * 5000, "prompt"), (["a", "x" * 5000], "prompt[1]")])
@pytest.mark.parametrize("more", [{}, {"stream": True}])
def test_a_prompt_over_the_context_is_refused_with_both_numbers(
    client: openai.OpenAI, prompt: Any, param: str, more: dict[str, Any]
) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        complete(client, prompt, **more)
    assert (caught.value.code, caught.value.param) == ("context_length_exceeded", param)
    assert "value: 5001 tokens" in str(caught.value)
    assert "4095 tokens (max_model_len 4096)" in str(caught.value)


def test_prompts_are_bounded_by_the_limits_of_the_server(asking: openai.OpenAI) -> None:
    """This one gives six answers to a request, and lets five prompts wait."""
    assert len(complete(asking, ["Count"] * 2, n=3).choices) == 6
    with pytest.raises(openai.BadRequestError, match="--max-answers") as caught:
        complete(asking, ["Count"] * 4, n=2)
    assert caught.value.param == "prompt"
    with pytest.raises(openai.BadRequestError, match="limit: 5"):
        complete(asking, ["Count"] * 6)
    assert len(complete(asking, ["Count"] * 5).choices) == 5


@pytest.mark.parametrize("is_streamed", [False, True])
def test_the_error_of_one_prompt_ends_all_of_them(asking: openai.OpenAI, plain: Served, is_streamed: bool) -> None:
    before = plain.engine.counters.completion_tokens
    ask = stream if is_streamed else complete
    with pytest.raises(openai.APIError, match="not finite"):
        ask(asking, ["long", "poison", "long"], max_tokens=3000)
    wait_until_idle(plain)
    assert plain.engine.counters.completion_tokens - before < 3000
    assert complete(asking, "Once upon").choices[0].text == " a time."


@pytest.mark.parametrize("is_streamed", [False, True])
def test_who_goes_away_leaves_none_of_the_prompts_behind(plain: Served, is_streamed: bool) -> None:
    """Field case 121."""
    before = plain.engine.counters.completion_tokens
    body = json.dumps({"prompt": ["long", "long"], "max_tokens": 3000, "n": 2, "stream": is_streamed})
    address = httpx.URL(plain.url)
    with socket.create_connection((address.host, address.port)) as connection:
        head = f"POST /v1/completions HTTP/1.1\r\nhost: {address.host}\r\ncontent-length: {len(body)}\r\n\r\n"
        connection.sendall((head + body).encode())
        deadline = time.monotonic() + 20
        while len(plain.service.live) < 2 or plain.engine.counters.completion_tokens == before:
            assert time.monotonic() < deadline
            time.sleep(0.002)
    wait_until_idle(plain)
    assert plain.engine.counters.completion_tokens - before < 4 * 3000
