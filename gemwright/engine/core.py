"""The step loop: requests in, finished requests out. Schedule, execute, update are three calls.

Knows token ids and rows of logits; neither files nor the shape of a model.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from numbers import Integral

import numpy as np
from numpy.typing import NDArray

from gemwright.engine.answer_text import Answer, AnswerText, TextDecoder
from gemwright.engine.request import FinishReason, Request, SamplingParams
from gemwright.engine.runner import Runner
from gemwright.engine.sampler import best_logprobs, choose_token
from gemwright.engine.scheduler import ScheduledRequest, Scheduler
from gemwright.engine.step import SequenceChunk, build_step
from gemwright.errors import GemwrightError, PromptTooLongError, RequestError
from gemwright.memory.block_keys import MediaSpan, root_key
from gemwright.memory.block_manager import BlockManager
from gemwright.text.grammar import ConstraintCompiler
from gemwright.text.matcher import Matcher
from gemwright.text.parser_events import ParsedOutput


@dataclass(frozen=True, slots=True)
class EngineLimits:
    """What a request must keep to."""

    max_model_len: int
    vocab_size: int
    step_tokens: int
    max_num_seqs: int
    prefix_caching: bool = True


@dataclass(slots=True)
class EngineCounters:
    """What the engine has done since it started."""

    num_steps: int = 0
    num_requests: int = 0
    num_preemptions: int = 0
    num_evictions: int = 0
    max_running: int = 0
    max_step_tokens: int = 0
    """Tokens of the largest step."""
    max_logit_rows: int = 0
    """Rows of logits of the step that wanted most."""
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0


class EngineCore:
    """Runs any number of requests to their end.

    `eos_token_ids` end every answer unless it ignores them. `make_decoder` gives a fresh text decoder an answer and
    `encode` the ids of a piece of text, nothing added; `constraints` compiles what answers must look like. All are None
    where there is no tokenizer. `suppressed_token_ids` are never chosen.
    """

    def __init__(
        self,
        runner: Runner,
        limits: EngineLimits,
        eos_token_ids: Sequence[int],
        make_decoder: Callable[[], TextDecoder] | None,
        encode: Callable[[str], list[int]] | None = None,
        constraints: ConstraintCompiler | None = None,
        suppressed_token_ids: Sequence[int] = (),
    ) -> None:
        self.runner = runner
        self.limits = limits
        self.eos_token_ids = frozenset(token_id for token_id in eos_token_ids if token_id < limits.vocab_size)
        self.suppressed_token_ids = frozenset(i for i in suppressed_token_ids if i < limits.vocab_size)
        self.make_decoder = make_decoder
        self.encode = encode
        self.constraints = constraints
        self.blocks = BlockManager(runner.layout)
        self.scheduler = Scheduler(
            self.blocks,
            step_tokens=limits.step_tokens,
            max_num_seqs=limits.max_num_seqs,
            prefix_caching=limits.prefix_caching,
        )
        self._counters = EngineCounters()
        self._next_id = 0
        self._answers: dict[int, Answer] = {}
        self._matchers: dict[int, Matcher] = {}
        """What follows the constraint of an answer, by its request's id."""

    def check(self, prompt_token_ids: Sequence[int], params: SamplingParams) -> None:
        """Raise RequestError for a request that cannot be served: empty, too long, ids out of range, stop strings, bad
        words or a constraint without a tokenizer, a constraint that cannot be enforced (UnsupportedError for one that
        this model cannot)."""
        if len(prompt_token_ids) == 0:
            raise RequestError("the prompt is empty", limit="at least one token", remedy="give a prompt or ids")
        for name, ids in (
            ("prompt_token_ids", prompt_token_ids),
            ("stop_token_ids", params.stop_token_ids),
            ("allowed_token_ids", params.allowed_token_ids or ()),
            ("logit_bias", tuple(params.biases)),
        ):
            for token_id in ids:
                if not _is_integer(token_id) or not 0 <= token_id < self.limits.vocab_size:
                    limit = f"integers from 0 to {self.limits.vocab_size - 1}, the model's vocabulary"
                    raise RequestError(name, value=repr(token_id), limit=limit)
        if len(prompt_token_ids) >= self.limits.max_model_len:
            raise PromptTooLongError(
                # LiteLLM, LangChain and Claude Code know this case by the words "prompt is too long".
                "the prompt is too long and leaves no room for an answer",
                value=f"{len(prompt_token_ids)} tokens",
                limit=f"{self.limits.max_model_len - 1} tokens (max_model_len {self.limits.max_model_len})",
                remedy="shorten the prompt, or raise --max-model-len up to the model's context",
            )
        if params.stop and self.make_decoder is None:
            raise RequestError("stop strings need a tokenizer, and this checkpoint has none", value=list(params.stop))
        if params.bad_words and self.encode is None:
            raise RequestError("bad words need a tokenizer, and this checkpoint has none", value=list(params.bad_words))
        self.check_constraint(params)

    def check_constraint(self, params: SamplingParams) -> None:
        """Compile what an answer must look like, and keep it; raises as `check`. May take seconds. Of this class's
        methods the one that any thread may call, beforehand, so that `add` finds it done."""
        wanted = params.wanted_constraint()
        if wanted is not None:
            if self.constraints is None:
                raise RequestError("a constraint needs a tokenizer, and this checkpoint has none", value=wanted.kind)
            self.constraints.check(wanted)

    @property
    def counters(self) -> EngineCounters:
        """What has been done so far."""
        return replace(
            self._counters,
            num_preemptions=self.scheduler.num_preemptions,
            num_evictions=self.blocks.num_evictions,
            cached_tokens=self.scheduler.num_cached_tokens,
        )

    def add(
        self,
        prompt_token_ids: Sequence[int],
        params: SamplingParams,
        seed: int,
        *,
        priority: int = 0,
        cache_salt: str | None = None,
        media: Sequence[MediaSpan] = (),
        suppressed_token_ids: Sequence[int] = (),
        make_answer: Callable[[], Answer] | None = None,
    ) -> list[Request]:
        """Queue a prompt and return its requests, one an answer. `make_answer` gives what reads an answer's tokens;
        left out, they are plain text with the stop strings of `params`. None of `suppressed_token_ids` is ever chosen.

        Requests of a lower `priority` run first. Requests share cached blocks only within one `cache_salt`, and never
        a block whose `media` differ. Raises RequestError for what `check` refuses, CapacityError for what the pool
        cannot hold.
        """
        self.check(prompt_token_ids, params)
        if not _is_integer(priority):
            raise RequestError("priority", value=repr(priority)[:80], limit="an integer; lower runs first")
        if cache_salt is not None and not _is_text(cache_salt):
            raise RequestError("cache_salt", value=repr(cache_salt)[:80], limit="a text")
        ids = tuple(int(token_id) for token_id in prompt_token_ids)
        max_num_tokens = min(len(ids) + params.max_tokens, self.limits.max_model_len) - 1
        bad_sequences = (*self._bad_sequences(params), *((token_id,) for token_id in suppressed_token_ids))
        wanted = params.wanted_constraint()
        requests = []
        for answer_index in range(params.n):
            request = Request(
                self._next_id,
                ids,
                params,
                seed,
                max_num_tokens,
                answer_index,
                priority,
                root_key(cache_salt),
                tuple(media),
                bad_sequences,
            )
            self._extend_keys(request)
            self._next_id += 1
            self.scheduler.add(request)
            if make_answer is not None:
                self._answers[request.request_id] = make_answer()
            elif self.make_decoder is not None:
                self._answers[request.request_id] = AnswerText(self.make_decoder(), params.stop)
            if wanted is not None and self.constraints is not None:
                self._matchers[request.request_id] = self.constraints.start(wanted)
            requests.append(request)
        self._counters.num_requests += 1
        self._counters.prompt_tokens += len(ids)
        return requests

    def answer(self, request: Request) -> Answer | None:
        """Return what reads an answer's tokens, or None without a tokenizer."""
        return self._answers.get(request.request_id)

    def text(self, request: Request) -> str | None:
        """Return an answer's text so far, or None without a tokenizer."""
        answer = self._answers.get(request.request_id)
        return None if answer is None else answer.text

    def message(self, request: Request) -> ParsedOutput | None:
        """Return an answer's thought, content and calls so far, or None where it is plain text."""
        answer = self._answers.get(request.request_id)
        return None if answer is None else answer.message

    def stop_string(self, request: Request) -> str | None:
        """Return the stop string that ended an answer, None where none has."""
        answer = self._answers.get(request.request_id)
        return None if answer is None else answer.stop_found

    def forget(self, request: Request) -> None:
        """Drop a request: abort it if it is not finished, and let its text go."""
        self.scheduler.finish(request)
        self._matchers.pop(request.request_id, None)
        self._answers.pop(request.request_id, None)

    def step(self) -> list[Request]:
        """Run one step and return the requests that gained a token or failed; does nothing when there is no work.

        When the last request is done the cache's books are checked.
        """
        scheduled = self.scheduler.schedule()
        if not scheduled:
            return []
        self._counters.num_steps += 1
        self._counters.max_running = max(self._counters.max_running, len(self.scheduler.running))
        self._counters.max_step_tokens = max(self._counters.max_step_tokens, sum(item.num_tokens for item in scheduled))
        advanced = self._update(scheduled, self._execute(scheduled))
        if not self.scheduler.has_work:
            self.blocks.check()
        return advanced

    def _execute(self, scheduled: Sequence[ScheduledRequest]) -> list[NDArray[np.float32] | None]:
        """Compute the step; returns the last row of logits of each request that has one, and reads prompt logprobs
        off the others as they pass."""
        chunks = [
            SequenceChunk(
                token_ids=item.request.known_tokens(
                    item.request.num_computed, item.request.num_computed + item.num_tokens
                ),
                begin=item.request.num_computed,
                tables=[self.blocks.table(item.request.request_id, group.index) for group in self.runner.layout.groups],
                num_logit_rows=_num_logit_rows(item),
            )
            for item in scheduled
        ]
        wanted = [(index, row) for index, chunk in enumerate(chunks) for row in range(chunk.num_logit_rows)]
        self._counters.max_logit_rows = max(self._counters.max_logit_rows, len(wanted))
        last_rows: list[NDArray[np.float32] | None] = [None] * len(scheduled)
        for place, logits in self.runner.run(build_step(chunks, self.runner.layout)):
            index, row = wanted[place]
            chunk, request = chunks[index], scheduled[index].request
            position = chunk.begin + len(chunk.token_ids) - chunk.num_logit_rows + row
            try:
                _note_prompt_logprobs(request, position, logits)
            except GemwrightError as error:
                request.error = error
            if position == request.num_known - 1:
                last_rows[index] = logits
        return last_rows

    def _update(
        self, scheduled: Sequence[ScheduledRequest], rows: Sequence[NDArray[np.float32] | None]
    ) -> list[Request]:
        advanced = []
        for item, logits in zip(scheduled, rows, strict=True):
            request = item.request
            request.num_computed += item.num_tokens
            new = self.blocks.note_computed(request.request_id, request.num_computed, self._keys(request))
            request.note_kept(new, self.runner.layout.block_size)
            try:
                if logits is not None and request.error is None:
                    self._append(request, logits)
            except GemwrightError as error:
                request.error = error
            if request.error is not None:
                self.scheduler.finish(request)
            if logits is not None or request.error is not None:
                advanced.append(request)
        return advanced

    def _append(self, request: Request, logits: NDArray[np.float32]) -> None:
        params = request.params
        stops = {*params.stop_token_ids, *(() if params.ignore_eos else self.eos_token_ids)}
        may_stop = len(request.token_ids) >= params.min_tokens
        matcher = self._matchers.get(request.request_id)
        token = choose_token(
            logits,
            params,
            seed=request.seed,
            answer_index=request.answer_index,
            prompt_token_ids=request.prompt_token_ids,
            token_ids=request.token_ids,
            forbidden=sorted(request.bad_next_tokens() | self.suppressed_token_ids | (set() if may_stop else stops)),
            mask=None if matcher is None else matcher.allowed(),
        )
        request.token_ids.append(token)
        self._extend_keys(request)
        self._counters.completion_tokens += 1
        request.last_token_at = time.perf_counter()
        request.first_token_at = request.first_token_at or request.last_token_at
        if params.logprobs is not None:
            request.logprobs.append(best_logprobs(logits, params.logprobs, token))
        answer = self._answers.get(request.request_id)
        stopped = answer is not None and token not in stops and answer.push(token, may_stop=may_stop)
        is_whole = token in stops or stopped
        if matcher is not None and not is_whole:
            matcher.accept(token)
            is_whole = matcher.is_complete and not self.eos_token_ids
        if is_whole:
            self._finish(request, FinishReason.STOP, may_stop)
        elif len(request.token_ids) == params.max_tokens or request.num_known == self.limits.max_model_len:
            self._finish(request, FinishReason.LENGTH, may_stop)

    def _finish(self, request: Request, reason: FinishReason, may_stop: bool) -> None:
        answer = self._answers.get(request.request_id)
        request.finish_reason = reason if answer is None else answer.finish(reason, may_stop=may_stop)
        self._matchers.pop(request.request_id, None)
        self.scheduler.finish(request)

    def _bad_sequences(self, params: SamplingParams) -> tuple[tuple[int, ...], ...]:
        """Return the token sequences of the bad words, each alone and after a space, in order and once."""
        if self.encode is None:
            return ()
        texts = [begin + word.lstrip(" ") for word in params.bad_words for begin in ("", " ")]
        return tuple(dict.fromkeys(tuple(self.encode(text)) for text in texts))

    def _extend_keys(self, request: Request) -> None:
        if self.limits.prefix_caching:
            request.extend_block_keys(self.runner.layout.block_size)

    def _keys(self, request: Request) -> Sequence[bytes]:
        return request.block_keys if self.limits.prefix_caching else ()


def _is_integer(value: object) -> bool:
    """Whether a value is an integer, numpy's included."""
    return isinstance(value, Integral) and not isinstance(value, bool)


def _is_text(value: object) -> bool:
    """Whether a value is a text that UTF-8 can hold."""
    try:
        return isinstance(value, str) and value.encode() is not None
    except UnicodeEncodeError:
        return False


def _num_logit_rows(item: ScheduledRequest) -> int:
    """Return how many of the last tokens of a chunk need logits: all for prompt logprobs, the last one if the chunk
    reaches the end of what is known, else none."""
    request = item.request
    end = request.num_computed + item.num_tokens
    num_prompt = len(request.prompt_token_ids)
    if _wants_prompt_logprobs(request) and len(request.prompt_logprobs) < num_prompt:
        return item.num_tokens
    return 1 if end == request.num_known else 0


def _wants_prompt_logprobs(request: Request) -> bool:
    """Whether this answer is the one that reads the prompt's logprobs: the first one does it for all."""
    return request.params.prompt_logprobs is not None and request.answer_index == 0


def _note_prompt_logprobs(request: Request, position: int, logits: NDArray[np.float32]) -> None:
    """Keep the logprobs that the row at `position` gives the prompt token after it."""
    count = request.params.prompt_logprobs
    if count is None or not _wants_prompt_logprobs(request) or position >= len(request.prompt_token_ids):
        return
    if not request.prompt_logprobs:
        request.prompt_logprobs.append(None)
    # A preempted request computes its prompt again; what was read then stays.
    if len(request.prompt_logprobs) == position + 1 < len(request.prompt_token_ids):
        request.prompt_logprobs.append(best_logprobs(logits, count, request.prompt_token_ids[position + 1]))
