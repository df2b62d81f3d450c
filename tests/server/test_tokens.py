"""Tokenize and detokenize as vLLM's clients ask for them, what is refused by name, and that there are no embeddings."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import openai
import pytest

from gemwright import LLM
from gemwright.server.settings import ServerSettings
from gemwright.testing import write_tiny_checkpoint
from tests.openai_script import THINKING, TOOL, ask, user
from tests.serving import Served, serving

CHAT_FIELDS: list[dict[str, Any]] = [
    {},
    {"tools": [TOOL]},
    THINKING,
    {"tools": [TOOL], **THINKING},
]


@pytest.fixture(scope="module")
def http(served: Served) -> Iterator[httpx2.Client]:
    with httpx2.Client(base_url=served.url, headers={"x-api-key": "secret"}, timeout=60) as found:
        yield found


def tokenize(http: httpx2.Client, **fields: Any) -> dict[str, Any]:
    found = http.post("/tokenize", json={"model": "gemma", **fields})
    assert found.status_code == 200, found.text
    content: dict[str, Any] = found.json()
    return content


def detokenize(http: httpx2.Client, tokens: list[int]) -> str:
    found = http.post("/detokenize", json={"model": "gemma", "tokens": tokens})
    assert found.status_code == 200, found.text
    (name,) = found.json()
    assert name == "prompt"
    return str(found.json()["prompt"])


def refusal(http: httpx2.Client, path: str, body: dict[str, Any], status: int = 400) -> tuple[str | None, str]:
    """Which field is wrong, and what is said of it."""
    found = http.post(path, json=body)
    assert found.status_code == status, found.text
    error = found.json()["error"]
    assert "remedy: " in error["message"]
    return error["param"], error["message"]


def test_a_text_has_the_ids_that_its_completion_would_begin_with(http: httpx2.Client, served: Served) -> None:
    tokenizer = served.engine.llm.tokenizer
    assert tokenizer is not None
    found = tokenize(http, prompt="Once upon")
    assert found == {
        "count": len(found["tokens"]),
        "max_model_len": 4096,
        "tokens": served.engine.llm.encode("Once upon"),
        "token_strs": None,
    }
    assert found["tokens"][0] == tokenizer.bos_token_id
    # A BOS that the text spells is not doubled, and without special tokens none is added.
    assert tokenize(http, prompt="<bos>Once upon")["tokens"] == found["tokens"]
    assert tokenize(http, prompt="Once upon", add_special_tokens=False)["tokens"] == found["tokens"][1:]
    assert tokenize(http, prompt="")["tokens"] == [tokenizer.bos_token_id]
    assert tokenize(http, prompt="", add_special_tokens=False)["tokens"] == []


def test_pieces_are_spelled_as_the_vocabulary_does(http: httpx2.Client) -> None:
    found = tokenize(http, prompt="A b€<turn|>", return_token_strs=True)
    assert len(found["token_strs"]) == found["count"]
    assert found["token_strs"][0] == "<bos>"
    assert "\u2581" in "".join(found["token_strs"])
    assert found["token_strs"][-1] == "<turn|>"


@pytest.mark.parametrize("fields", CHAT_FIELDS)
def test_a_conversation_has_as_many_tokens_as_its_answer_is_charged(
    http: httpx2.Client, client: openai.OpenAI, fields: dict[str, Any]
) -> None:
    charged = ask(client, "greet", max_tokens=1, extra_body=fields).usage
    assert charged is not None
    assert tokenize(http, messages=user("greet"), **fields)["count"] == charged.prompt_tokens


def test_a_conversation_may_end_with_its_last_message(http: httpx2.Client) -> None:
    turn_open, turn_closed = (
        detokenize(http, tokenize(http, messages=user("greet"), **fields)["tokens"])
        for fields in ({}, {"add_generation_prompt": False})
    )
    assert turn_open.startswith("<bos>")
    assert turn_open == f"{turn_closed}<|turn>model\n"
    begun = [*user("greet"), {"role": "assistant", "content": "It is"}]
    for fields in ({}, {"add_generation_prompt": False}):
        found = tokenize(http, messages=begun, continue_final_message=True, **fields)
        assert detokenize(http, found["tokens"]).endswith("model\nIt is")


@pytest.mark.parametrize("text", ["Zwölf €, 🙂.", "  two  spaces\n\ttab", "<|turn>user\n", "\u0000", "a\ufeffb"])
def test_ids_give_back_the_text(http: httpx2.Client, text: str) -> None:
    assert detokenize(http, tokenize(http, prompt=text, add_special_tokens=False)["tokens"]) == text
    assert detokenize(http, tokenize(http, prompt=text)["tokens"]) == f"<bos>{text}"
    assert detokenize(http, []) == ""


def test_half_a_character_is_shown_as_none(http: httpx2.Client) -> None:
    ids = tokenize(http, prompt="🙂", add_special_tokens=False)["tokens"]
    assert len(ids) > 1
    assert set(detokenize(http, ids[:-1])) == {"\ufffd"}


def test_a_text_longer_than_the_context_is_counted(http: httpx2.Client) -> None:
    """Who asks wants to know before sending it."""
    found = tokenize(http, prompt="word " * 100_000)
    assert found["count"] > 100_000 > found["max_model_len"]
    assert tokenize(http, messages=user("word " * 20_000))["count"] > 20_000


def test_ids_that_the_model_has_not_are_refused_with_the_limit(http: httpx2.Client, served: Served) -> None:
    tokenizer = served.engine.llm.tokenizer
    assert tokenizer is not None
    largest = max(served.engine.llm.spec.vocab_size, tokenizer.vocab_size) - 1
    assert detokenize(http, [largest]) is not None
    for token_id in (largest + 1, -1, 10**400):
        field, message = refusal(http, "/detokenize", {"tokens": [2, token_id]})
        assert field == "tokens.1"
        assert f"limit: 0 to {largest}" in message
        assert len(message) < 300
    for value in (True, "2", 2.0, None):
        assert refusal(http, "/detokenize", {"tokens": [2, value]})[0] == "tokens.1"
    assert refusal(http, "/detokenize", {})[0] == "tokens"
    assert refusal(http, "/detokenize", {"tokens": "2"})[0] == "tokens"


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({}, "prompt"),
        ({"prompt": None, "messages": None}, "prompt"),
        ({"prompt": "x", "messages": user("greet")}, "messages"),
        ({"prompt": ["x"]}, "prompt"),
        ({"prompt": [2, 3]}, "prompt"),
        ({"prompt": "x", "tools": [TOOL]}, "tools"),
        ({"prompt": "x", "add_generation_prompt": True}, "add_generation_prompt"),
        ({"prompt": "x", "continue_final_message": False}, "continue_final_message"),
        ({"prompt": "x", **THINKING}, "chat_template_kwargs"),
        ({"prompt": "x", "text": "y"}, "text"),
        ({"messages": user("greet"), "add_special_tokens": True}, "add_special_tokens"),
        ({"messages": user("greet"), "chat_template": "{{ messages }}"}, "chat_template"),
        (
            {"messages": user("greet"), "continue_final_message": True, "add_generation_prompt": True},
            "continue_final_message",
        ),
        ({"messages": user("greet"), "continue_final_message": True}, "continue_final_message"),
        ({"messages": user("greet"), "chat_template_kwargs": {"no_such": 1}}, "chat_template_kwargs"),
        ({"messages": user("greet"), "tools": [{"type": "function"}]}, None),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]}, None),
    ],
)
def test_what_cannot_be_tokenized_is_refused_by_name(
    http: httpx2.Client, body: dict[str, Any], field: str | None
) -> None:
    found, message = refusal(http, "/tokenize", body)
    assert field is None or found == field, message


def test_lone_surrogates_are_refused(http: httpx2.Client) -> None:
    for body in ({"prompt": "a\ud800b"}, {"messages": user("a\ud800b")}):
        content = str(body).replace("'", '"').encode()
        assert http.post("/tokenize", content=content).status_code == 400


@pytest.mark.parametrize("path", ["/tokenize", "/detokenize", "/v1/embeddings"])
def test_these_routes_want_the_key_too(served: Served, path: str) -> None:
    assert httpx2.post(served.url + path, json={}).status_code == 401


def test_another_model_is_not_known(http: httpx2.Client) -> None:
    assert "limit: gemma" in refusal(http, "/tokenize", {"model": "other", "prompt": "x"}, 404)[1]
    assert "limit: gemma" in refusal(http, "/detokenize", {"model": "other", "tokens": []}, 404)[1]


def test_a_body_that_is_too_large_is_not_read(served: Served) -> None:
    with serving(served.engine.llm, ServerSettings(max_body_bytes=1000)) as small:
        assert httpx2.post(f"{small.url}/tokenize", json={"prompt": "x" * 1001}).status_code == 413


def test_a_model_without_a_tokenizer_says_so(tmp_path: Path) -> None:
    folder = write_tiny_checkpoint("gemma4-e", tmp_path / "bare")
    (folder / "tokenizer.json").unlink()
    with serving(LLM(folder, threads=1, max_model_len=64)) as bare, httpx2.Client(base_url=bare.url) as http:
        for path, body in (
            ("/tokenize", {"prompt": "x"}),
            ("/tokenize", {"messages": user("greet")}),
            ("/detokenize", {"tokens": [2]}),
        ):
            assert "no tokenizer" in refusal(http, path, body)[1]


def test_a_base_model_counts_texts_and_renders_no_conversation(tmp_path: Path) -> None:
    folder = write_tiny_checkpoint("gemma3", tmp_path / "base", tokenizer_family="gemma3")
    with serving(LLM(folder, threads=1, max_model_len=64)) as base, httpx2.Client(base_url=base.url) as http:
        assert tokenize(http, prompt="x")["count"] == 2
        assert "base model" in refusal(http, "/tokenize", {"messages": user("greet")})[1]


# What is not here.


def test_there_are_no_embeddings(client: openai.OpenAI, http: httpx2.Client) -> None:
    with pytest.raises(openai.BadRequestError, match="makes no embeddings") as caught:
        client.embeddings.create(model="gemma", input="x")
    assert caught.value.type == "invalid_request_error"
    assert caught.value.param is None
    for path in ("/api/embed", "/api/embeddings"):
        found = http.post(path, json={"model": "gemma", "input": "x"})
        assert found.status_code == 400
        assert "makes no embeddings; remedy: ask a server with an embedding model" in found.json()["error"]


@pytest.mark.parametrize("name", ["pull", "push", "create", "copy", "delete"])
def test_models_are_managed_elsewhere(http: httpx2.Client, name: str) -> None:
    found = http.request("DELETE" if name == "delete" else "POST", f"/api/{name}", json={"model": "gemma"})
    assert found.status_code == 501
    assert "remedy: " in found.json()["error"]
