"""Gemwright runs Gemma models: exactly, weighed beforehand, and in plain sight.

from gemwright import LLM, SamplingParams
print(LLM().generate("The capital of France is")[0].text)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gemwright.engine.async_engine import AsyncEngine
    from gemwright.engine.llm import LLM
    from gemwright.engine.request import SamplingParams
    from gemwright.planner import plan

__all__ = ["LLM", "AsyncEngine", "SamplingParams", "__version__", "plan"]
__version__ = "0.1.0"

_PUBLIC = {
    "LLM": "gemwright.engine.llm",
    "AsyncEngine": "gemwright.engine.async_engine",
    "SamplingParams": "gemwright.engine.request",
    "plan": "gemwright.planner",
}


def __getattr__(name: str) -> Any:
    """Import public names on first use, so that `import gemwright` stays light."""
    if name not in _PUBLIC:
        raise AttributeError(f"module 'gemwright' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_PUBLIC[name]), name)
