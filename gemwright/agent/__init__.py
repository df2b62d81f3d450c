"""A loop of think, call, observe and answer over any server that speaks OpenAI's chat interface.

from gemwright.agent import Agent, tool_of
transcript = Agent([tool_of(add)], base_url="http://127.0.0.1:8000/v1").run("What is 3 + 4?")
"""

from __future__ import annotations

from gemwright.agent.loop import Agent, Limits
from gemwright.agent.tools import Tool, load_tool, tool_of
from gemwright.agent.transcript import Step, Transcript

__all__ = ["Agent", "Limits", "Step", "Tool", "Transcript", "load_tool", "tool_of"]
