"""A scripted model behind OpenAI's own client and what is built upon it: what it says, and how tests ask it."""

from __future__ import annotations

from typing import Any

from gemwright.testing.scripted import answers

CALL = '<|tool_call>call:get_weather{city:<|"|>Paris<|"|>,days:2}<tool_call|>'
OTHER_CALL = '<|tool_call>call:get_weather{city:<|"|>Rome<|"|>,days:3}<tool_call|>'
THOUGHT = "<|channel>thought\nThe sky must be asked.<channel|>"
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
REPLIES: dict[str, str | list[str]] = {
    "greet": "Hello! STOP there.",
    "weather": f"{THOUGHT}I will ask.{CALL}",
    "twice": f"{CALL}{OTHER_CALL}",
    "clock": CALL.replace("get_weather", "get_time"),
    "sunny": "It is sunny.",
    "person": FENCED,
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
        return THOUGHT + reply if "<|think|>" in prompt and reply is FENCED else reply


def user(text: str) -> list[dict[str, Any]]:
    """A conversation of one message."""
    return [{"role": "user", "content": text}]
