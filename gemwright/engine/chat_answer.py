"""The answer to a chat: its tokens read by the output machine into thought, content and tool calls."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gemwright.engine.request import FinishReason
from gemwright.text.parser import OutputParser, TokenReader
from gemwright.text.parser_events import Event, EventType, ParsedOutput
from gemwright.text.tokenizer import Tokenizer


class ChatAnswer:
    """Reads one answer. `dialect`, `tools` and `opens_thought` are those the prompt was rendered with; without tools
    what the model writes as a call is content. `stop` strings end the answer where they appear in its content."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        dialect: str,
        *,
        tools: Sequence[Mapping[str, Any]],
        opens_thought: bool,
        stop: Sequence[str],
    ) -> None:
        self._parser = OutputParser(dialect, tools=tools, may_call=bool(tools), opens_thought=opens_thought, stop=stop)
        self._reader = TokenReader(tokenizer, self._parser)
        self._events: list[Event] = []
        self._content: list[str] = []
        self._num_taken = 0

    @property
    def text(self) -> str:
        """The content: what is neither thought nor call."""
        return "".join(self._content)

    @property
    def message(self) -> ParsedOutput:
        """All of it."""
        return self._parser.output

    @property
    def stop_found(self) -> str | None:
        """The stop string that ended it; None as long as none has."""
        return self._parser.stop_found

    @property
    def num_thought_tokens(self) -> int:
        """Tokens so far between the marks of thoughts; what counts is said in TokenReader."""
        return self._reader.num_thought_tokens

    def take_text(self) -> str:
        """Return what `text` gained since the last call."""
        begin, self._num_taken = self._num_taken, len(self._content)
        return "".join(self._content[begin:])

    def take_events(self) -> tuple[Event, ...]:
        """Return what has become certain since the last call."""
        events, self._events = tuple(self._events), []
        return events

    def push(self, token_id: int, *, may_stop: bool) -> bool:
        """Add a token; returns whether a stop string is now complete."""
        self._parser.may_stop = may_stop
        self._add(self._reader.push((token_id,)))
        return self._parser.stop_found is not None

    def finish(self, reason: FinishReason, *, may_stop: bool) -> FinishReason:
        """End it; the reason becomes "tool_calls" where a call is complete."""
        self._parser.may_stop = may_stop
        given = FinishReason.STOP if self._parser.stop_found is not None else reason
        self._add(self._reader.finish(given))
        return FinishReason(self._parser.output.finish_reason or given)

    def _add(self, events: list[Event]) -> None:
        self._events += events
        self._content += [event.text or "" for event in events if event.type is EventType.CONTENT]
