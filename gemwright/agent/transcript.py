"""What an agent did: every thought, call, observation and answer, in order, with times and tokens."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

Kind = Literal["task", "thought", "call", "observation", "answer", "stopped"]
Ending = Literal["answered", "steps", "tokens", "time", "cut"]


@dataclass(frozen=True, slots=True)
class Step:
    """One thing that happened."""

    kind: Kind
    text: str
    seconds: float
    """Since the run began."""
    tool: str | None = None
    call_id: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return the fields that are set."""
        fields = {"kind": self.kind, "tool": self.tool, "call_id": self.call_id, "text": self.text}
        return {
            **{name: value for name, value in fields.items() if value is not None},
            "seconds": round(self.seconds, 3),
        }


@dataclass(slots=True)
class Transcript:
    """A whole run."""

    model: str
    steps: list[Step] = field(default_factory=list)
    messages: list[dict[str, Any]] = field(default_factory=list)
    """The conversation as the server saw it, to go on from."""
    ending: Ending = "answered"
    num_rounds: int = 0
    """Answers asked of the model."""
    prompt_tokens: int = 0
    completion_tokens: int = 0

    @property
    def answer(self) -> str | None:
        """What the agent answered; None where it was stopped before."""
        return next((step.text for step in reversed(self.steps) if step.kind == "answer"), None)

    def lines(self) -> Iterator[str]:
        """Yield the transcript as lines of JSON, the summary last."""
        for step in self.steps:
            yield json.dumps(step.to_dict(), ensure_ascii=False)
        yield json.dumps(self.summary(), ensure_ascii=False)

    def summary(self) -> dict[str, Any]:
        """Return how it ended and what it cost."""
        return {
            "kind": "summary",
            "model": self.model,
            "ending": self.ending,
            "num_rounds": self.num_rounds,
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completion_tokens,
            "answer": self.answer,
        }
