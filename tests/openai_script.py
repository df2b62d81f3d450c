"""A scripted model behind OpenAI's own client and what is built upon it: what it says, and how tests ask it."""

from __future__ import annotations

from typing import Any

import openai
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from gemwright.testing.scripted import answers

CALL = '<|tool_call>call:get_weather{city:<|"|>Paris<|"|>,days:2}<tool_call|>'
CALL_AS_TEXT = 'call:get_weather{city:"Paris",days:2}'
OTHER_CALL = '<|tool_call>call:get_weather{city:<|"|>Rome<|"|>,days:3}<tool_call|>'
LONG_CALL = f'<|tool_call>call:get_weather{{city:<|"|>{"far away " * 60}<|"|>,days:2}}<tool_call|>'
THOUGHT = "<|channel>thought\nThe sky must be asked.<channel|>"
PERSON_CALL = '<|tool_call>call:Person{age:3,name:<|"|>Ann<|"|>}<tool_call|>'
ODD_CALL = '<|tool_call>call:File{absolute.absolutePath:<|"|>a.txt<|"|>,isFolder:<|"|>no<|"|>}<tool_call|>'
FENCED = '```json\n{"name":"Ann","age":3}\n```'
PARAMETERS: dict[str, Any] = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
    "required": ["city", "days"],
    "additionalProperties": False,
}
TOOL: dict[str, Any] = {
    "type": "function",
    "function": {"name": "get_weather", "description": "The weather of a city.", "parameters": PARAMETERS},
}
CLOCK: dict[str, Any] = {
    "type": "function",
    "function": {"name": "get_time", "description": "The time of a city.", "parameters": PARAMETERS},
}
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"name": {"const": "Ann"}, "age": {"const": 3}},
    "required": ["name", "age"],
    "additionalProperties": False,
}
JSON_FORMAT = {"type": "json_schema", "json_schema": {"name": "person", "schema": SCHEMA, "strict": True}}
THINKING = {"chat_template_kwargs": {"enable_thinking": True}}
REPLIES: dict[str, str | list[str]] = {
    "greet": "Hello! STOP there.",
    "weather": f"{THOUGHT}I will ask.{CALL}",
    "twice": f"{CALL}{OTHER_CALL}",
    "clock": CALL.replace("get_weather", "get_time"),
    "distant": f"I will ask.{LONG_CALL}",
    "sunny": "It is sunny.",
    "person": FENCED,
    "register": PERSON_CALL,
    "path": ODD_CALL,
    "several": ["One.", f"{THOUGHT}Two.", CALL],
    "think": f"{THOUGHT}It is blue.",
    "round": "Zwölf €, 🙂.",
    "Once upon": " a time.",
}


class Told:
    """A script that keeps the prompts it was asked for. Where its JSON is to follow a thought, it thinks first."""

    def __init__(self) -> None:
        self.prompts: list[str] = []

    def __call__(self, prompt: str, answer_index: int) -> str:
        self.prompts.append(prompt)
        reply = answers(REPLIES)(prompt, answer_index)
        if prompt.endswith("<|channel>thought\n"):
            return f"It is known now.<channel|>{reply}"
        return THOUGHT + reply if "<|think|>" in prompt and reply in (FENCED, PERSON_CALL) else reply


def user(text: str) -> list[dict[str, Any]]:
    """A conversation of one message."""
    return [{"role": "user", "content": text}]


def ask(client: openai.OpenAI, text: str, **fields: Any) -> ChatCompletion:
    found: ChatCompletion = client.chat.completions.create(**{"model": "gemma", "messages": user(text), **fields})
    return found


def stream(client: openai.OpenAI, text: str, **fields: Any) -> list[ChatCompletionChunk]:
    asked: dict[str, Any] = {"model": "gemma", "messages": user(text), **fields}
    return list(client.chat.completions.create(**asked, stream=True))


def joined(chunks: list[ChatCompletionChunk], index: int = 0) -> dict[str, Any]:
    """What the deltas of one answer add up to, by name; and how often a finish reason came."""
    texts = dict.fromkeys(("content", "reasoning", "reasoning_content"), "")
    calls: dict[int, dict[str, str]] = {}
    reasons = []
    for chunk in chunks:
        for choice in chunk.choices:
            if choice.index != index:
                continue
            for name in texts:
                texts[name] += getattr(choice.delta, name, None) or ""
            for call in choice.delta.tool_calls or ():
                found = calls.setdefault(call.index, {"name": "", "arguments": ""})
                assert call.function is not None
                found["name"] += call.function.name or ""
                found["arguments"] += call.function.arguments or ""
            reasons += [choice.finish_reason] if choice.finish_reason is not None else []
    return {**texts, "calls": [calls[number] for number in sorted(calls)], "reasons": reasons}
