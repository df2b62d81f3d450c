"""Ollama's own client against a live server: chat, generate, thoughts, tools, options, models."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import ollama
import pytest

from gemwright.server.settings import ServerSettings
from gemwright.testing import write_tiny_checkpoint
from gemwright.testing.scripted import answers, scripted_llm
from tests.operation import endings, until
from tests.serving import Served, serving

CALL = '<|tool_call>call:get_weather{city:<|"|>Paris<|"|>}<tool_call|>'
THOUGHT = "<|channel>thought\nThe sky must be asked.<channel|>"
FENCED = '```json\n{"name":"Ann","age":3}\n```'
REPLIES = {
    "greet": "Hello! STOP there.",
    "weather": f"{THOUGHT}I will ask.{CALL}",
    "twice": f"{CALL}{CALL.replace('Paris', 'Rome')}",
    "sunny": "It is sunny.",
    "person": FENCED,
    "Once upon": " a time.",
}
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"name": {"const": "Ann"}, "age": {"const": 3}},
    "required": ["name", "age"],
    "additionalProperties": False,
}


def get_weather(city: str) -> str:
    """Tell the weather.

    Args:
        city: where
    """
    return f"sunny in {city}"


class Told:
    """A script that keeps the prompts it was asked for."""

    def __init__(self) -> None:
        self.prompts: list[str] = []

    def __call__(self, prompt: str, answer_index: int) -> str:
        self.prompts.append(prompt)
        reply = answers(REPLIES)(prompt, answer_index)
        if prompt.endswith("<|channel>thought\n"):
            return f"It is known now.<channel|>{reply}"
        return THOUGHT + reply if "<|think|>" in prompt and reply is FENCED else reply


@pytest.fixture(scope="module")
def told() -> Told:
    return Told()


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory, told: Told) -> Iterator[Served]:
    path = tmp_path_factory.mktemp("ollama")
    folder = write_tiny_checkpoint("gemma4-e", path, overrides={"max_position_embeddings": 4096})
    llm = scripted_llm(folder, told, threads=1, max_model_len=4096, chat_template="gemma4")
    with serving(llm) as server:
        yield server


@pytest.fixture(scope="module")
def client(served: Served) -> ollama.Client:
    return ollama.Client(host=served.url)


def user(text: str) -> list[dict[str, Any]]:
    return [{"role": "user", "content": text}]


@pytest.mark.parametrize(
    ("text", "fields"),
    [
        ("greet", {}),
        ("greet", {"options": {"stop": ["STOP"], "temperature": 0, "top_k": 40, "num_ctx": 2048, "num_thread": 4}}),
        ("greet", {"options": ollama.Options(num_predict=4, seed=-1, mirostat=0, tfs_z=1.0)}),
        ("greet", {"logprobs": True, "top_logprobs": 2}),
        ("weather", {"think": True, "tools": [get_weather]}),
        ("weather", {"think": "low", "tools": [get_weather], "options": {"num_predict": 16}}),
        ("twice", {"tools": [get_weather]}),
        ("person", {"format": SCHEMA}),
    ],
)
def test_a_stream_joins_to_the_whole_answer(client: ollama.Client, text: str, fields: dict[str, Any]) -> None:
    whole = client.chat("gemma", messages=user(text), **fields)
    parts = list(client.chat("gemma", messages=user(text), stream=True, **fields))
    assert [part.done for part in parts] == [False] * (len(parts) - 1) + [True]
    assert "".join(part.message.content or "" for part in parts) == whole.message.content
    assert "".join(part.message.thinking or "" for part in parts) == (whole.message.thinking or "")
    assert [call for part in parts for call in part.message.tool_calls or []] == (whole.message.tool_calls or [])
    assert [entry.token for part in parts for entry in part.logprobs or []] == [
        entry.token for entry in whole.logprobs or []
    ]
    last = parts[-1]
    for name in ("done_reason", "prompt_eval_count", "eval_count", "load_duration"):
        assert getattr(last, name) == getattr(whole, name)
    assert all(part.created_at and part.model == "gemma" for part in parts)


def test_counts_and_durations_say_what_was_done(client: ollama.Client) -> None:
    found = client.chat("gemma", messages=user("greet"))
    assert found.message.content == "Hello! STOP there."
    assert found.done_reason == "stop"
    assert found.eval_count == len("Hello! STOP there.") + 1
    assert client.chat("gemma", messages=user("greet")).prompt_eval_count == found.prompt_eval_count  # cached or not
    assert found.total_duration is not None
    assert found.prompt_eval_duration is not None
    assert found.eval_duration is not None
    assert 0 < found.prompt_eval_duration + found.eval_duration <= found.total_duration < 60_000_000_000
    assert client.chat("gemma", messages=user("greet"), options={"num_predict": 3}).done_reason == "length"


@pytest.mark.parametrize(("think", "thinks"), [(None, False), (False, False), (True, True), ("low", True)])
@pytest.mark.parametrize("form", [SCHEMA, "json"])
def test_a_format_is_kept_to_whether_or_not_the_model_thinks(
    client: ollama.Client, think: Any, thinks: bool, form: Any
) -> None:
    """Field cases 115 and 116: the model would fence its JSON, and may not."""
    found = client.chat("gemma", messages=user("person"), format=form, think=think, options={"num_predict": 300})
    assert (found.message.thinking == "The sky must be asked.") is thinks
    if form is SCHEMA:
        assert json.loads(found.message.content or "") == {"name": "Ann", "age": 3}
    assert (found.message.content or "").lstrip().startswith("{")
    generated = client.generate("gemma", "person", format=form, think=think, options={"num_predict": 300})
    assert (generated.response, generated.thinking) == (found.message.content, found.message.thinking)


def test_tools_go_there_and_back(client: ollama.Client, told: Told) -> None:
    messages: list[Any] = user("weather")
    first = client.chat("gemma", messages=messages, tools=[get_weather], think=True)
    assert first.message.content == "I will ask."
    (call,) = first.message.tool_calls or []
    assert call.function.name == "get_weather"
    assert call.function.arguments == {"city": "Paris"}
    messages += [
        first.message,
        {"role": "tool", "content": get_weather(**call.function.arguments), "tool_name": "get_weather"},
    ]
    second = client.chat("gemma", messages=messages, tools=[get_weather], think=True)
    assert (second.message.content, second.message.thinking) == ("It is sunny.", "It is known now.")
    assert f'{CALL}<|tool_response>response:get_weather{{value:<|"|>sunny in Paris<|"|>}}' in told.prompts[-1]
    assert "The sky must be asked." in told.prompts[-1]


def test_results_without_a_name_answer_the_calls_in_order(client: ollama.Client, told: Told) -> None:
    messages: list[Any] = user("twice")
    first = client.chat("gemma", messages=messages, tools=[get_weather])
    messages += [first.message, {"role": "tool", "content": "sunny"}, {"role": "tool", "content": "cloudy"}]
    assert client.chat("gemma", messages=messages, tools=[get_weather]).done
    assert told.prompts[-1].count("response:get_weather") == 2
    with pytest.raises(ollama.ResponseError, match=r"messages\.1\.tool_name"):
        client.chat("gemma", messages=[*user("x"), {"role": "tool", "content": "sunny"}])


def test_a_prompt_is_answered_with_its_system_or_raw(client: ollama.Client, told: Told) -> None:
    found = client.generate("gemma", "greet", system="Be brief.")
    assert (found.response, found.done_reason, found.context) == ("Hello! STOP there.", "stop", None)
    assert "<|turn>system\nBe brief.<turn|>" in told.prompts[-1]
    raw = client.generate("gemma", "<|turn>user\ngreet<turn|>\n<|turn>model\n", raw=True, stream=True)
    assert "".join(part.response or "" for part in raw) == "Hello! STOP there."
    assert told.prompts[-1] == "<bos><|turn>user\ngreet<turn|>\n<|turn>model\n"
    assert client.chat(
        "gemma", messages=[*user("Tell."), {"role": "assistant", "content": "Once upon"}]
    ).message.content
    assert told.prompts[-1].endswith("<|turn>model\nOnce upon")


def test_asking_nothing_tells_that_the_model_is_loaded(client: ollama.Client) -> None:
    assert client.generate("gemma", keep_alive=-1).done_reason == "load"
    assert client.chat("gemma", messages=[]).done_reason == "load"


def test_a_seed_repeats_an_answer(client: ollama.Client) -> None:
    options = {"temperature": 2.0, "seed": 7, "num_predict": 8}
    first, second = (client.generate("gemma", "greet", options=options, logprobs=True) for _ in range(2))
    assert first.response == second.response
    assert first.logprobs == second.logprobs


def test_models_are_listed_as_ollama_lists_them(client: ollama.Client, served: Served) -> None:
    (listed,) = client.list().models
    (running,) = client.ps().models
    assert listed.model == running.model == running.name == "gemma:latest"
    assert listed.size == sum(line.planned_bytes for line in served.engine.llm.engine.lines if line.key[0] == "weights")
    assert running.context_length == 4096
    assert listed.details is not None
    assert (listed.details.family, listed.details.quantization_level) == ("gemma4", "F32")
    for name in ("gemma", "gemma:latest"):
        shown = client.show(name)
        assert shown.capabilities == ["completion", "tools", "thinking"]
        assert shown.modelinfo is not None
        assert shown.modelinfo["gemma4.context_length"] == 4096
        assert client.chat(name, messages=user("greet")).model == name
    version = httpx.get(f"{served.url}/api/version").json()["version"]
    assert all(part.isdigit() for part in version.split("."))


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"options": {"num_ctx": 9000}}, "options.num_ctx: is more than this server has; value: 9000; limit: 4096"),
        ({"options": {"mirostat": 1}}, "options.mirostat"),
        ({"options": {"typical_p": 0.5}}, "options.typical_p"),
        ({"options": {"repeat_penalty": 1.1, "repeat_last_n": 64}}, "options.repeat_last_n"),
        ({"options": {"top_p": 2.0}}, "options.top_p"),
        ({"options": {"dry_base": 2.0}}, "options.dry_base"),
        ({"format": "yaml"}, "format"),
        ({"think": "deeply"}, "think"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"images": ["aGk="]}, "messages.0.images"),
        ({"suffix": "b"}, "suffix"),
        ({"template": "{{ .Prompt }}"}, "template"),
        ({"context": [1, 2]}, "context"),
        ({"raw": True, "system": "s"}, "raw"),
        ({"raw": True, "think": True}, "think"),
        ({"colour": 1}, "colour"),
    ],
)
def test_what_cannot_be_done_is_refused_by_name(served: Served, fields: dict[str, Any], field: str) -> None:
    is_generate = bool({"suffix", "template", "context", "raw"} & fields.keys())
    if is_generate:
        path, body = "/api/generate", {"prompt": "greet", **fields}
    else:
        images = {name: value for name, value in fields.items() if name == "images"}
        others = {name: value for name, value in fields.items() if name != "images"}
        path, body = "/api/chat", {"messages": [{"role": "user", "content": "greet", **images}], **others}
    found = httpx.post(f"{served.url}{path}", json={"model": "gemma", **body})
    assert found.status_code == 400
    assert list(found.json()) == ["error"]
    assert found.json()["error"].startswith(field)


def test_penalties_may_be_switched_off_and_look_at_everything(client: ollama.Client) -> None:
    for options in (
        {"repeat_penalty": 1.2, "repeat_last_n": -1},
        {"repeat_penalty": 1.2, "repeat_last_n": 0},
        {"repeat_last_n": 64},
    ):
        assert client.generate("gemma", "greet", options={**options, "num_predict": 3}).done


def test_errors_come_as_the_clients_own(client: ollama.Client) -> None:
    asked: list[tuple[Any, int, str]] = [
        (lambda: client.chat("llama", messages=user("x")), 404, "llama"),
        (lambda: list(client.chat("llama", messages=user("x"), stream=True)), 404, "llama"),
        (lambda: client.show("llama"), 404, "llama"),
        (lambda: client.generate("gemma", "x" * 5000), 400, "4096"),
        (lambda: client.embed("gemma", "x"), 400, "embeddings"),
        (lambda: client.embeddings("gemma", "x"), 400, "embeddings"),
        (lambda: client.pull("gemma3"), 501, "gemwright pull"),
        (lambda: client.push("gemma3"), 501, "manage"),
        (lambda: client.create("x", from_="gemma"), 501, "manage"),
        (lambda: client.copy("gemma", "x"), 501, "--served-model-name"),
        (lambda: client.delete("gemma"), 501, "gemwright rm"),
    ]
    for ask, status, words in asked:
        with pytest.raises(ollama.ResponseError) as caught:
            ask()
        assert caught.value.status_code == status
        assert words in caught.value.error


@pytest.fixture(scope="module")
def slow(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """5 ms a token, three seconds an answer, small bodies."""
    path = tmp_path_factory.mktemp("slow")
    folder = write_tiny_checkpoint("gemma4-e", path, overrides={"max_position_embeddings": 4096})
    script = answers({"long": "x" * 3000})
    llm = scripted_llm(folder, script, seconds_per_step=0.005, threads=1, max_model_len=4096, chat_template="gemma4")
    with serving(llm, ServerSettings(request_timeout_s=3.0, keep_alive_s=0.002, max_body_bytes=5000)) as server:
        yield server


def test_an_error_in_the_middle_of_a_stream_is_raised_by_the_client(slow: Served) -> None:
    """Silence is no line either: these clients read every line as JSON."""
    client = ollama.Client(host=slow.url)
    texts: list[str | None] = []
    stream = client.generate("gemma", "long", stream=True)
    with pytest.raises(ollama.ResponseError, match="too long"):
        texts.extend(part.response for part in stream)
    assert set(texts) == {"x"}
    with pytest.raises(ollama.ResponseError, match="too long") as caught:
        client.generate("gemma", "long")
    assert caught.value.status_code == 504
    with pytest.raises(ollama.ResponseError, match="too large") as caught:
        client.generate("gemma", "x" * 6000)
    assert caught.value.status_code == 413


def test_who_goes_away_leaves_nothing_behind(slow: Served) -> None:
    body = {"model": "gemma", "prompt": "long"}
    with endings(slow.service) as ended:
        with httpx.stream("POST", f"{slow.url}/api/generate", json=body) as response:
            assert response.headers["content-type"] == "application/x-ndjson"
            next(response.iter_lines())
        until(lambda: ended and not slow.service.live and not slow.engine.num_running)
    (answering,) = ended
    assert answering.error is None  # it was not its time that was over
    assert answering.completion is None
