"""A scripted model behind Anthropic's own client: what it says, and how tests ask it."""

from __future__ import annotations

from typing import Any

import anthropic
from anthropic.types import Message

from gemwright.testing.scripted import answers

CALL = '<|tool_call>call:get_weather{city:<|"|>Paris<|"|>}<tool_call|>'
LONG_CALL = f'<|tool_call>call:get_weather{{city:<|"|>{"far away " * 60}<|"|>}}<tool_call|>'
THOUGHT = "<|channel>thought\nThe sky must be asked.<channel|>"
FENCED = '```json\n{"name":"Ann","age":3}\n```'
TOOL: dict[str, Any] = {
    "name": "get_weather",
    "description": "The weather of a city.",
    "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"name": {"const": "Ann"}, "age": {"const": 3}},
    "required": ["name", "age"],
    "additionalProperties": False,
}
REPLIES = {
    "greet": "Hello! STOP there.",
    "weather": f"{THOUGHT}I will ask.{CALL}",
    "twice": f"{CALL}{CALL}",
    "far": LONG_CALL,
    "clock": CALL.replace("get_weather", "get_time"),
    "sunny": "It is sunny.",
    "broken": "The service is down.",
    "Once upon": " a time.",
    "person": FENCED,
}


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


def ask(client: anthropic.Anthropic, text: str, **fields: Any) -> Message:
    fields = {"max_tokens": 200, "messages": [{"role": "user", "content": text}], **fields}
    found: Message = client.messages.create(model="gemma", **fields)
    return found


def all_input(message: Message) -> int:
    """The whole prompt, as clients add it up."""
    usage = message.usage
    return usage.input_tokens + (usage.cache_read_input_tokens or 0) + (usage.cache_creation_input_tokens or 0)


def blocks(message: Message) -> list[dict[str, Any]]:
    """Content without the ids, which are new each time."""
    return [block.model_dump(exclude={"id"}, exclude_none=True) for block in message.content]
