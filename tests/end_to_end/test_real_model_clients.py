"""Five clients at once on a live server with the default model, real Gemma 3 270M, beside what `LLM` says alone.

It is a base model: texts are its trade, and it takes turns by a template that the server is given.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import anthropic
import ollama
import openai
import pytest
from langchain_core.messages import BaseMessageChunk
from langchain_openai import ChatOpenAI
from langchain_openai import OpenAI as TextOpenAI

from gemwright import LLM, SamplingParams
from tests.serving import Served, serving

pytestmark = pytest.mark.slow

PROMPT = "The capital of France is"
NUM_TOKENS = 8
MESSAGES: list[Any] = [{"role": "user", "content": PROMPT}]
CHAT = f"<start_of_turn>user\n{PROMPT}<end_of_turn>\n<start_of_turn>model\n"


@dataclass(frozen=True)
class Answer:
    """What a client was given, and the counts and the reason of the end that it was told."""

    text: str
    num_prompt_tokens: int
    num_tokens: int
    finish_reason: str


Ask = Callable[[], Answer]


def openai_clients(url: str) -> dict[str, Ask]:
    client = openai.OpenAI(base_url=f"{url}/v1", api_key="any", max_retries=0)
    counted: dict[str, Any] = {"stream": True, "stream_options": {"include_usage": True}}
    text: dict[str, Any] = {"model": "gemma", "prompt": PROMPT, "max_tokens": NUM_TOKENS}
    chat: dict[str, Any] = {"model": "gemma", "messages": MESSAGES, "max_completion_tokens": NUM_TOKENS}

    def answer(found: Any, said: str) -> Answer:
        return Answer(said, found.usage.prompt_tokens, found.usage.completion_tokens, found.choices[0].finish_reason)

    def joined(chunks: list[Any], said: list[str | None]) -> Answer:
        usage = chunks[-1].usage
        reasons = [choice.finish_reason for chunk in chunks for choice in chunk.choices if choice.finish_reason]
        assert len(reasons) == 1
        return Answer("".join(part or "" for part in said), usage.prompt_tokens, usage.completion_tokens, reasons[0])

    def text_whole() -> Answer:
        found = client.completions.create(**text)
        return answer(found, found.choices[0].text)

    def text_stream() -> Answer:
        chunks = list(client.completions.create(**text, **counted))
        return joined(chunks, [choice.text for chunk in chunks for choice in chunk.choices])

    def chat_whole() -> Answer:
        found = client.chat.completions.create(**chat)
        return answer(found, found.choices[0].message.content)

    def chat_stream() -> Answer:
        chunks = list(client.chat.completions.create(**chat, **counted))
        return joined(chunks, [choice.delta.content for chunk in chunks for choice in chunk.choices])

    return {"text whole": text_whole, "text stream": text_stream, "chat whole": chat_whole, "chat stream": chat_stream}


def anthropic_client(url: str) -> dict[str, Ask]:
    client = anthropic.Anthropic(base_url=url, api_key="any", max_retries=0)
    asked: dict[str, Any] = {"model": "gemma", "messages": MESSAGES, "max_tokens": NUM_TOKENS}
    reasons = {"max_tokens": "length", "end_turn": "stop"}

    def answer(found: Any) -> Answer:
        usage = found.usage
        num_prompt = usage.input_tokens + usage.cache_read_input_tokens + usage.cache_creation_input_tokens
        return Answer(found.content[0].text, num_prompt, usage.output_tokens, reasons[found.stop_reason])

    def chat_stream() -> Answer:
        with client.messages.stream(**asked) as stream:
            said = "".join(stream.text_stream)
            found = answer(stream.get_final_message())
        assert found.text == said
        return found

    return {"chat whole": lambda: answer(client.messages.create(**asked)), "chat stream": chat_stream}


def ollama_client(url: str) -> dict[str, Ask]:
    client = ollama.Client(host=url)
    options = {"num_predict": NUM_TOKENS}

    def answer(found: Any, said: str) -> Answer:
        return Answer(said, found.prompt_eval_count, found.eval_count, found.done_reason)

    def text_whole() -> Answer:
        found = client.generate("gemma", PROMPT, raw=True, options=options)
        return answer(found, found.response)

    def text_stream() -> Answer:
        parts = list(client.generate("gemma", PROMPT, raw=True, options=options, stream=True))
        return answer(parts[-1], "".join(part.response for part in parts))

    def chat_whole() -> Answer:
        found = client.chat("gemma", MESSAGES, options=options)
        return answer(found, found.message.content or "")

    def chat_stream() -> Answer:
        parts = list(client.chat("gemma", MESSAGES, options=options, stream=True))
        return answer(parts[-1], "".join(part.message.content or "" for part in parts))

    return {"text whole": text_whole, "text stream": text_stream, "chat whole": chat_whole, "chat stream": chat_stream}


def langchain_clients(url: str) -> dict[str, Ask]:
    fields: dict[str, Any] = {"model": "gemma", "base_url": f"{url}/v1", "api_key": "any", "max_retries": 0}
    texts = TextOpenAI(**fields, max_tokens=NUM_TOKENS, temperature=0)  # its own default is 0.7
    chats = ChatOpenAI(**fields, max_tokens=NUM_TOKENS, stream_usage=True)

    def text_whole() -> Answer:
        result = texts.generate([PROMPT])
        usage = (result.llm_output or {})["token_usage"]
        ((found,),) = result.generations
        reason = (found.generation_info or {})["finish_reason"]
        return Answer(found.text, usage["prompt_tokens"], usage["completion_tokens"], reason)

    def chat(found: Any) -> Answer:
        usage, reason = found.usage_metadata, found.response_metadata["finish_reason"]
        return Answer(found.content, usage["input_tokens"], usage["output_tokens"], reason)

    def chat_stream() -> Answer:
        total: BaseMessageChunk | None = None
        for chunk in chats.stream(PROMPT):
            total = chunk if total is None else total + chunk
        return chat(total)

    return {
        "text whole": text_whole,
        "chat whole": lambda: chat(chats.invoke(PROMPT)),
        "chat stream": chat_stream,
    }


def litellm_client(url: str) -> dict[str, Ask]:
    os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # else it is fetched
    import litellm

    counted: dict[str, Any] = {"stream": True, "stream_options": {"include_usage": True}}
    fields: dict[str, Any] = {"api_base": f"{url}/v1", "api_key": "any", "max_tokens": NUM_TOKENS, "max_retries": 0}
    chat = {"model": "openai/gemma", "messages": MESSAGES, **fields}
    text = {"model": "text-completion-openai/gemma", "prompt": PROMPT, **fields}

    def answer(found: Any, said: str) -> Answer:
        return Answer(said, found.usage.prompt_tokens, found.usage.completion_tokens, found.choices[0].finish_reason)

    def text_whole() -> Answer:
        found = litellm.text_completion(**text)
        return answer(found, found.choices[0].text)

    def chat_whole() -> Answer:
        found = litellm.completion(**chat)
        return answer(found, found.choices[0].message.content)

    def chat_stream() -> Answer:
        found = litellm.stream_chunk_builder(list(litellm.completion(**chat, **counted)), messages=MESSAGES)
        return answer(found, found.choices[0].message.content)

    return {"text whole": text_whole, "chat whole": chat_whole, "chat stream": chat_stream}


CLIENTS = {
    "openai": openai_clients,
    "anthropic": anthropic_client,
    "ollama": ollama_client,
    "langchain": langchain_clients,
    "litellm": litellm_client,
}


@dataclass(frozen=True)
class Heard:
    """What `LLM` says alone, to a text and to a chat, and what each client was answered."""

    alone: dict[str, Answer]
    answers: dict[str, dict[str, Answer]]
    served: Served


@pytest.fixture(scope="module")
def heard() -> Iterator[Heard]:
    """Load the model once, ask it alone, then serve it to all clients at once: they share steps."""
    llm = LLM(dtype="float32", threads=1, max_model_len=64, max_num_seqs=20, chat_template="gemma3")
    params = SamplingParams(max_tokens=NUM_TOKENS, temperature=0)
    alone = {}
    for kind, found in zip(("text", "chat"), llm.generate([PROMPT, llm.encode(CHAT)], params), strict=True):
        (choice,) = found.choices
        alone[kind] = Answer(choice.text, len(found.prompt_token_ids), len(choice.token_ids), str(choice.finish_reason))
    with serving(llm) as served:
        asks = {name: make(served.url) for name, make in CLIENTS.items()}
        with ThreadPoolExecutor(20) as pool:
            futures = {name: {kind: pool.submit(ask) for kind, ask in kinds.items()} for name, kinds in asks.items()}
            answers = {
                name: {kind: future.result() for kind, future in kinds.items()} for name, kinds in futures.items()
            }
        yield Heard(alone, answers, served)


@pytest.mark.parametrize("name", CLIENTS)
def test_a_client_is_answered_as_the_model_alone(heard: Heard, name: str) -> None:
    """Whole and as a stream; text, counts and the reason of the end. Field case 122: in company as alone."""
    answers = heard.answers[name]
    assert {"chat whole", "chat stream"} <= answers.keys()
    for kind, found in answers.items():
        assert found == heard.alone[kind.split()[0]], kind


def test_the_model_goes_on_with_a_text(heard: Heard) -> None:
    assert heard.alone["text"] == Answer(" the capital of the country of France.", 6, NUM_TOKENS, "length")
    assert heard.alone["chat"].text != heard.alone["text"].text


def test_nothing_is_left_of_them(heard: Heard) -> None:
    assert not heard.served.service.live
    assert heard.served.engine.num_running == heard.served.engine.num_waiting == 0
