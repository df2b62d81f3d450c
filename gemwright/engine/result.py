"""What a caller gets: a Completion of one or more Choices, with the fields of `gemwright run --json`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from gemwright.engine.request import FinishReason, TokenLogprob
from gemwright.text.parser_events import ParsedOutput

Logprobs = tuple[TokenLogprob, ...]


@dataclass(frozen=True, slots=True)
class Choice:
    """One answer. `text` is None where the checkpoint has no tokenizer. `message` is what the output machine made of a
    chat's answer, and `text` then its content; None for a plain completion. `stop_string` is the one of the request's
    that ended it, None where something else did."""

    token_ids: tuple[int, ...]
    text: str | None
    finish_reason: FinishReason
    logprobs: tuple[Logprobs, ...] | None
    message: ParsedOutput | None = None
    stop_string: str | None = None


@dataclass(frozen=True, slots=True)
class Usage:
    """Token counts; completion tokens over all answers."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds to load the model and to the first token, and decoded tokens per second after it (None below two)."""

    load_s: float
    ttft_s: float
    decode_tokens_per_s: float | None


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes the ledger announced, bytes the engine allocated for them, and the resident set of the process."""

    planned_bytes: int
    measured_bytes: int
    process_bytes: int


@dataclass(frozen=True, slots=True)
class Completion:
    """All answers to one prompt."""

    model: str
    prompt_token_ids: tuple[int, ...]
    choices: tuple[Choice, ...]
    prompt_logprobs: tuple[Logprobs | None, ...] | None
    usage: Usage
    timing: Timing
    memory: Memory

    @property
    def token_ids(self) -> tuple[int, ...]:
        """Tokens of the first answer, the stop id that ended it included."""
        return self.choices[0].token_ids

    @property
    def text(self) -> str | None:
        """Text of the first answer."""
        return self.choices[0].text

    @property
    def finish_reason(self) -> FinishReason:
        """Why the first answer ended."""
        return self.choices[0].finish_reason

    @property
    def message(self) -> ParsedOutput | None:
        """Thought, answer and calls of the first answer, None for a plain completion."""
        return self.choices[0].message

    @property
    def logprobs(self) -> tuple[Logprobs, ...] | None:
        """Logprobs of the first answer."""
        return self.choices[0].logprobs

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON object of the command line: one answer's fields at the top, several in `choices`."""
        answers = [
            {
                "token_ids": list(choice.token_ids),
                "text": choice.text,
                "finish_reason": str(choice.finish_reason),
                **({} if choice.message is None else _message(choice.message)),
                **({} if choice.logprobs is None else {"logprobs": [_rows(entry) for entry in choice.logprobs]}),
            }
            for choice in self.choices
        ]
        return {
            "model": self.model,
            "prompt_token_ids": list(self.prompt_token_ids),
            **(answers[0] if len(answers) == 1 else {"choices": answers}),
            **(
                {}
                if self.prompt_logprobs is None
                else {"prompt_logprobs": [None if entry is None else _rows(entry) for entry in self.prompt_logprobs]}
            ),
            "usage": {
                "prompt_tokens": self.usage.prompt_tokens,
                "completion_tokens": self.usage.completion_tokens,
                "cached_tokens": self.usage.cached_tokens,
            },
            "timing": {
                "load_s": self.timing.load_s,
                "ttft_s": self.timing.ttft_s,
                "decode_tokens_per_s": self.timing.decode_tokens_per_s,
            },
            "memory": {
                "planned_bytes": self.memory.planned_bytes,
                "measured_bytes": self.memory.measured_bytes,
                "process_bytes": self.memory.process_bytes,
            },
        }


def _message(message: ParsedOutput) -> dict[str, Any]:
    return {
        "reasoning_content": message.reasoning_content,
        "content": message.content,
        "tool_calls": [{"name": call.name, "arguments": call.arguments} for call in message.tool_calls],
        **({"warnings": list(message.warnings)} if message.warnings else {}),
    }


def _rows(entry: Logprobs) -> list[dict[str, Any]]:
    return [{"token_id": item.token_id, "logprob": item.logprob} for item in entry]
