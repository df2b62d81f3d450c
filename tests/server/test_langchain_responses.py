"""LangChain's ChatOpenAI against /v1/responses of a live server: thoughts, tools and structured output."""

from __future__ import annotations

from typing import Any, Literal

from langchain_core.messages import HumanMessage, ToolMessage
from langchain_openai import ChatOpenAI
from pydantic import BaseModel

from tests.openai_script import Told
from tests.responses_script import TOOL
from tests.serving import Served


class Person(BaseModel):
    """What an answer is parsed into."""

    name: Literal["Ann"]
    age: Literal[3]


def test_langchain_keeps_the_thought_of_a_stream_over_responses(served: Served, told: Told) -> None:
    """Of a stream LangChain reads summaries of thoughts, and their text in no other form."""
    fields: dict[str, Any] = {"reasoning": {"effort": "low", "summary": "auto"}, "use_responses_api": True}
    model = ChatOpenAI(model="gemma", base_url=f"{served.url}/v1", api_key="secret", max_retries=0, **fields)
    tooled = model.bind_tools([TOOL])
    first = None
    for chunk in tooled.stream("weather"):
        first = chunk if first is None else first + chunk
    assert first is not None
    thoughts = [block for block in first.content_blocks if block["type"] == "reasoning"]
    assert "".join(block.get("reasoning", "") for block in thoughts) == "The sky must be asked."
    (call,) = first.tool_calls
    second = tooled.invoke([HumanMessage("weather"), first, ToolMessage("sunny", tool_call_id=call["id"])])
    assert second.text == "It is sunny."
    assert told.prompts[-1].count("The sky must be asked.") == 1


def test_langchain_goes_there_and_back_over_responses(served: Served, told: Told) -> None:
    fields: dict[str, Any] = {"reasoning": {"effort": "low", "summary": "auto"}, "use_responses_api": True}
    model = ChatOpenAI(model="gemma", base_url=f"{served.url}/v1", api_key="secret", max_retries=0, **fields)
    tooled = model.bind_tools([TOOL])
    first = tooled.invoke("weather")
    (call,) = first.tool_calls
    assert (call["name"], call["args"]) == ("get_weather", {"city": "Paris", "days": 2})
    second = tooled.invoke([HumanMessage("weather"), first, ToolMessage("sunny", tool_call_id=call["id"])])
    assert second.text == "It is sunny."
    assert "The sky must be asked." in told.prompts[-1]
    assert "".join(chunk.text for chunk in model.stream("round")) == "Zwölf €, 🙂."
    assert model.with_structured_output(Person).invoke("person") == Person(name="Ann", age=3)
