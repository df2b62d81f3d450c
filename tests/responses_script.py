"""How tests ask for responses with OpenAI's own client; what the model says is in `openai_script`."""

from __future__ import annotations

from typing import Any

import openai
from openai.types.responses import Response, ResponseStreamEvent

from tests.openai_script import CLOCK as CHAT_CLOCK
from tests.openai_script import SCHEMA
from tests.openai_script import TOOL as CHAT_TOOL

TOOL: dict[str, Any] = {"type": "function", **CHAT_TOOL["function"]}
CLOCK: dict[str, Any] = {"type": "function", **CHAT_CLOCK["function"]}
PERSON_FORMAT: dict[str, Any] = {"format": {"type": "json_schema", "name": "person", "schema": SCHEMA, "strict": True}}
THINK: dict[str, Any] = {"effort": "high"}


def respond(client: openai.OpenAI, given: Any, **fields: Any) -> Response:
    found: Response = client.responses.create(model="gemma", input=given, **fields)
    return found


def events_of(client: openai.OpenAI, given: Any, **fields: Any) -> list[ResponseStreamEvent]:
    return list(client.responses.create(model="gemma", input=given, stream=True, **fields))


def output_of(response: Response) -> list[dict[str, Any]]:
    """Items without their ids, which are new each time."""
    found = []
    for item in response.output:
        content = item.to_dict()
        for name in ("id", "call_id"):
            content.pop(name, None)
        found.append(content)
    return found


def kinds_of(response: Response) -> list[str]:
    return [item.type for item in response.output]


def calls_of(response: Response) -> list[Any]:
    return [item for item in response.output if item.type == "function_call"]
