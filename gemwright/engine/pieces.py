"""What a stream hands out: each step's gain of an answer, cut so that the pieces join to the whole."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from gemwright.engine.core import EngineCore
from gemwright.engine.request import FinishReason, Request
from gemwright.engine.result import Completion, Logprobs, Usage
from gemwright.text.parser_events import Event


@dataclass(frozen=True, slots=True)
class Piece:
    """What one step added to one answer.

    `text` is what no stop string can cut any more, so that the pieces' texts join to the answer's; None without a
    tokenizer. `events` are those of the output machine, None where the answer is plain text. `logprobs` go with
    `token_ids`, None if not asked for. The last piece of an answer has `finish_reason`, the last of all answers has
    `completion`. `num_cached_tokens` is how many of the prompt's came from the prefix cache. `stop_string` comes with
    the finish reason where a stop string was the cause. `started_at` is when the prompt's first step began, in seconds
    of time.perf_counter; None where nobody queues. `num_thought_tokens` of `token_ids` are inside a thought, its marks
    apart. `num_kept_tokens` of the prompt, so far, this answer was the first to leave in the prefix cache.
    `prompt_logprobs`, if asked for, come with the first tokens of the first answer.
    """

    answer_index: int
    token_ids: tuple[int, ...]
    text: str | None
    logprobs: tuple[Logprobs, ...] | None
    finish_reason: FinishReason | None
    completion: Completion | None
    events: tuple[Event, ...] | None = None
    num_cached_tokens: int = 0
    stop_string: str | None = None
    started_at: float | None = None
    num_thought_tokens: int = 0
    num_kept_tokens: int = 0
    prompt_logprobs: tuple[Logprobs | None, ...] | None = None

    @property
    def usage(self) -> Usage | None:
        """Token counts, with the last piece."""
        return None if self.completion is None else self.completion.usage


@dataclass(slots=True)
class PieceCutter:
    """Cuts the answers to one prompt into pieces. `complete` makes the completion when the last one has ended."""

    core: EngineCore
    requests: Sequence[Request]
    complete: Callable[[], Completion]
    _num_tokens: dict[int, int] = field(default_factory=dict)
    _num_thought_tokens: dict[int, int] = field(default_factory=dict)
    _num_ended: int = 0

    @property
    def is_finished(self) -> bool:
        """Whether the last piece of every answer was given."""
        return self._num_ended == len(self.requests)

    def cut(self, request: Request) -> Piece:
        """Return what the request gained since the last call; after its end it is not asked again."""
        begin = self._num_tokens.get(request.request_id, 0)
        answer = self.core.answer(request)
        num_thought = 0 if answer is None else answer.num_thought_tokens
        num_thought_before = self._num_thought_tokens.get(request.request_id, 0)
        self._num_thought_tokens[request.request_id] = num_thought
        is_first = request.answer_index == 0 and begin == 0 and bool(request.token_ids)
        self._num_ended += request.is_done
        self._num_tokens[request.request_id] = len(request.token_ids)
        return Piece(
            request.answer_index,
            tuple(request.token_ids[begin:]),
            None if answer is None else answer.take_text(),
            None if request.params.logprobs is None else tuple(request.logprobs[begin:]),
            request.finish_reason,
            self.complete() if self.is_finished else None,
            None if answer is None else answer.take_events(),
            request.num_cached or 0,
            None if answer is None or request.finish_reason is None else answer.stop_found,
            num_thought_tokens=num_thought - num_thought_before,
            num_kept_tokens=request.num_kept,
            prompt_logprobs=tuple(request.prompt_logprobs) or None if is_first else None,
        )
