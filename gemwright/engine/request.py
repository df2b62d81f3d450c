"""A request from its first token to its result: what was asked, how far it is, why it ended."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

from gemwright.errors import GemwrightError, RequestError
from gemwright.memory.block_keys import MediaSpan, extend_block_keys, root_key, uncut_length
from gemwright.text.constraint import (
    Constraint,
    choice_constraint,
    grammar_constraint,
    object_constraint,
    regex_constraint,
    schema_constraint,
    schema_text,
)

MAX_TEMPERATURE = 1e9
"""All tokens are equally likely long before."""

MAX_LOGIT_BIAS = 100.0
"""Largest logit bias either way, as in the OpenAI interface."""

MAX_REPETITION_PENALTY = 100.0
"""Beyond it, and below its inverse, a penalized logit could leave the range of float32."""


CONSTRAINT_FIELDS = ("json_schema", "json_object", "regex", "choice", "grammar", "constraint")
"""Of these a request may set one."""


class FinishReason(StrEnum):
    """Why a request ended: it stopped by itself, at max_tokens or the context's end, or to have its tools called."""

    STOP = "stop"
    LENGTH = "length"
    TOOL_CALLS = "tool_calls"


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """How to choose tokens. The names and meanings are those of the OpenAI and vLLM interfaces.

    temperature 0 is greedy. top_k 0 and top_p 1 are off. Without a seed one is drawn at random. `stop` strings end the
    answer before them, `stop_token_ids` after them; `ignore_eos` goes on past the model's own stop ids. The first
    `min_tokens` tokens neither are stop ids nor complete a stop string. `logprobs` 0 gives the chosen token's alone.

    `logit_bias` is added to the logits of its ids; given as a mapping (keys may be decimal strings, as in JSON), it is
    kept as pairs by rising id. `allowed_token_ids` are the only ones that may be chosen. A text of `bad_words` never
    comes about in the answer token by token as the tokenizer writes it, alone or after a space: its last token is
    forbidden wherever the answer ends with those before it. The order in which all this acts is that of the sampler.

    At most one of `json_schema` (a mapping, kept as its JSON text), `json_object`, `regex`, `choice` and `grammar`
    (Lark or GBNF) says what the whole answer must look like; it then ends at the model's own stop ids, where it is
    complete, and nowhere else. `constraint` is the same as an object that a caller made, for tools or after a thought.
    """

    max_tokens: int = 256
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    seed: int | None = None
    n: int = 1
    min_tokens: int = 0
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    logit_bias: Mapping[int, float] | tuple[tuple[int, float], ...] = ()
    allowed_token_ids: tuple[int, ...] | None = None
    bad_words: tuple[str, ...] = ()
    json_schema: Mapping[str, Any] | str | None = None
    json_object: bool = False
    regex: str | None = None
    choice: tuple[str, ...] | None = None
    grammar: str | None = None
    constraint: Constraint | None = None

    def __post_init__(self) -> None:
        stop: Any = self.stop
        object.__setattr__(self, "stop", (stop,) if isinstance(stop, str) else _as_tuple("stop", stop))
        object.__setattr__(self, "stop_token_ids", _as_tuple("stop_token_ids", self.stop_token_ids))
        object.__setattr__(self, "logit_bias", _as_biases(self.logit_bias))
        if self.allowed_token_ids is not None:
            object.__setattr__(self, "allowed_token_ids", _as_tuple("allowed_token_ids", self.allowed_token_ids))
        object.__setattr__(self, "bad_words", _as_tuple("bad_words", self.bad_words))
        _in_range("max_tokens", self.max_tokens, 1, math.inf, int)
        _in_range("temperature", self.temperature, 0, MAX_TEMPERATURE)
        _in_range("top_k", self.top_k, 0, math.inf, int)
        _in_range("top_p", self.top_p, 0, 1)
        if self.top_p == 0:
            raise RequestError("top_p", value=self.top_p, limit="above 0, up to 1", remedy="use temperature 0")
        _in_range("min_p", self.min_p, 0, 1)
        _in_range("repetition_penalty", self.repetition_penalty, 1 / MAX_REPETITION_PENALTY, MAX_REPETITION_PENALTY)
        _in_range("presence_penalty", self.presence_penalty, -2, 2)
        _in_range("frequency_penalty", self.frequency_penalty, -2, 2)
        _in_range("n", self.n, 1, 128, int)
        _in_range("min_tokens", self.min_tokens, 0, self.max_tokens, int)
        for name in ("logprobs", "prompt_logprobs"):
            if getattr(self, name) is not None:
                _in_range(name, getattr(self, name), 0, 1000, int)
        if type(self.ignore_eos) is not bool:
            raise RequestError("ignore_eos", value=self.ignore_eos, limit="true or false")
        if self.seed is not None:
            _in_range("seed", self.seed, 0, 2**64 - 1, int)
        if any(type(text) is not str or not text for text in self.stop):
            raise RequestError("stop", value=list(self.stop), limit="strings that are not empty")
        for name, ids in (("stop_token_ids", self.stop_token_ids), ("allowed_token_ids", self.allowed_token_ids or ())):
            if any(type(token_id) is not int or token_id < 0 for token_id in ids):
                raise RequestError(name, value=list(ids), limit="token ids, 0 or more")
        if self.allowed_token_ids == ():
            raise RequestError("allowed_token_ids", value=[], limit="at least one id", remedy="leave it out")
        if any(type(text) is not str or not text.strip() for text in self.bad_words):
            raise RequestError("bad_words", value=list(self.bad_words), limit="strings that are more than spaces")
        for name, texts in (("stop", self.stop), ("bad_words", self.bad_words)):
            for text in texts:
                _require_whole_characters(name, text)
        self._check_constraint()

    def _check_constraint(self) -> None:
        if type(self.json_object) is not bool:
            raise RequestError("json_object", value=self.json_object, limit="true or false")
        if self.json_schema is not None:
            object.__setattr__(self, "json_schema", schema_text("json_schema", self.json_schema))
        if self.choice is not None:
            object.__setattr__(self, "choice", _as_tuple("choice", self.choice))
        named = [name for name in CONSTRAINT_FIELDS if getattr(self, name) not in (None, False)]
        if len(named) > 1:
            raise RequestError("two constraints at once", value=" and ".join(named), limit="one")
        if named and self.ignore_eos:
            raise RequestError(
                f"ignore_eos has no meaning with {named[0]}: a constrained answer ends where it is complete",
                remedy="leave one of them out",
            )
        if self.constraint is not None and not isinstance(self.constraint, Constraint):
            raise RequestError("constraint", value=repr(self.constraint)[:80], limit="a Constraint")
        self.wanted_constraint()

    def wanted_constraint(self) -> Constraint | None:
        """Return what the answer must look like, None if anything goes."""
        if self.json_schema is not None:
            return schema_constraint(self.json_schema)
        if self.json_object:
            return object_constraint()
        if self.regex is not None:
            return regex_constraint(self.regex)
        if self.choice is not None:
            return choice_constraint(self.choice)
        return self.constraint if self.grammar is None else grammar_constraint(self.grammar)

    @property
    def has_constraint(self) -> bool:
        """Whether anything is asked of what the answer looks like."""
        return any(getattr(self, name) not in (None, False) for name in CONSTRAINT_FIELDS)

    def with_thinking(self, thinking: bool, opens_thought: bool = False) -> SamplingParams:
        """Return the parameters for a prompt rendered so: a constraint then lets the model think before it answers.

        opens_thought: the prompt ends inside a thought, which the answer goes on with.
        """
        wanted = self.wanted_constraint()
        if wanted is None:
            return self
        flat: dict[str, Any] = {"json_schema": None, "json_object": False, "regex": None, "choice": None}
        return replace(self, **flat, grammar=None, constraint=wanted.with_thinking(thinking, opens_thought))

    @property
    def biases(self) -> dict[int, float]:
        """What is added to the logits of which ids."""
        return dict(self.logit_bias)


def _as_tuple(name: str, value: Any) -> tuple[Any, ...]:
    if not isinstance(value, (list, tuple)):
        raise RequestError(name, value=value, limit="a list")
    return tuple(value)


def _require_whole_characters(name: str, text: str) -> None:
    """Raise RequestError for a text that UTF-8 cannot hold, and so no answer."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise RequestError(
            name,
            value=f"half of a surrogate pair at character {error.start}",
            limit="texts of whole characters",
            remedy="send the whole character",
        ) from None


def _as_biases(value: Any) -> tuple[tuple[int, float], ...]:
    """Return the pairs (id, bias) by rising id. Raises RequestError for what is no such mapping."""
    if isinstance(value, Mapping):
        pairs = list(value.items())
    elif isinstance(value, tuple) and all(isinstance(pair, tuple) and len(pair) == 2 for pair in value):
        pairs = list(value)
    else:
        raise RequestError("logit_bias", value=value, limit="a mapping from token ids to numbers")
    biases: dict[int, float] = {}
    for key, bias in pairs:
        is_decimal = isinstance(key, str) and key.isascii() and key.isdigit() and len(key) < 20
        token_id = int(key) if is_decimal else key
        if type(token_id) is not int or token_id < 0:
            raise RequestError("logit_bias", value=key, limit="token ids, 0 or more")
        if token_id in biases:
            raise RequestError("logit_bias", value=key, limit="each id once")
        _in_range("logit_bias", bias, -MAX_LOGIT_BIAS, MAX_LOGIT_BIAS)
        biases[token_id] = bias
    return tuple(sorted(biases.items()))


def _in_range(name: str, value: Any, low: float, high: float, kind: type = float) -> None:
    """Raise RequestError unless value is a number from low to high, which a NaN never is."""
    allowed = (int,) if kind is int else (int, float)
    if isinstance(value, bool) or not isinstance(value, allowed) or not low <= value <= high:
        bound = f"{'an integer' if kind is int else 'a number'} from {low}"
        raise RequestError(name, value=value, limit=bound + ("" if high == math.inf else f" to {high}"))


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """A token and the logarithm of its probability, from the raw logits after the final softcap."""

    token_id: int
    logprob: float


@dataclass(slots=True, eq=False)
class Request:
    """One answer being made. `known` tokens are prompt and answer so far; `num_computed` of them are in the cache."""

    request_id: int
    prompt_token_ids: tuple[int, ...]
    params: SamplingParams
    seed: int
    max_num_tokens: int
    """The most tokens whose K/V it will ever need: its last token is never fed back."""
    answer_index: int = 0
    priority: int = 0
    """Lower runs first."""
    root_key: bytes = root_key(None)
    media: tuple[MediaSpan, ...] = ()
    bad_sequences: tuple[tuple[int, ...], ...] = ()
    """The token sequences of its bad words, and each token that is never chosen."""
    block_keys: list[bytes] = field(default_factory=list)
    """Names of the full blocks of its known tokens; see memory.block_keys."""
    arrived_at_step: int = 0
    num_cached: int | None = None
    """Prompt tokens found in the prefix cache when it first ran."""
    num_kept: int = 0
    """Prompt tokens that it was the first to leave in the prefix cache: whole blocks of it."""
    _num_prompt_blocks_seen: int = 0
    token_ids: list[int] = field(default_factory=list)
    num_computed: int = 0
    logprobs: list[tuple[TokenLogprob, ...]] = field(default_factory=list)
    prompt_logprobs: list[tuple[TokenLogprob, ...] | None] = field(default_factory=list)
    finish_reason: FinishReason | None = None
    error: GemwrightError | None = None
    """What ended it, where that was not a finish."""
    first_token_at: float | None = None
    """When its first and its last token came, in seconds of time.perf_counter."""
    last_token_at: float | None = None

    @property
    def num_known(self) -> int:
        """Prompt and answer tokens so far."""
        return len(self.prompt_token_ids) + len(self.token_ids)

    @property
    def num_missing(self) -> int:
        """Known tokens that are not computed yet."""
        return self.num_known - self.num_computed

    @property
    def is_done(self) -> bool:
        """Whether it finished or failed."""
        return self.finish_reason is not None or self.error is not None

    def bad_next_tokens(self) -> set[int]:
        """Return the tokens that would complete a bad sequence inside the answer."""
        made = self.token_ids
        return {
            sequence[-1]
            for sequence in self.bad_sequences
            if len(sequence) <= len(made) + 1 and made[len(made) - len(sequence) + 1 :] == list(sequence[:-1])
        }

    def extend_block_keys(self, block_size: int) -> None:
        """Name the blocks that the known tokens have filled."""
        num_blocks = self.num_known // block_size
        if num_blocks > len(self.block_keys):
            known = self.known_tokens(0, num_blocks * block_size)
            extend_block_keys(self.block_keys, known, block_size, self.root_key, self.media)

    def note_kept(self, new_blocks: Iterable[int], block_size: int) -> None:
        """Take note of the blocks that it is the first to have filled; those of the prompt count once each, also where
        it is preempted and computes them again."""
        for index in sorted(new_blocks):
            if self._num_prompt_blocks_seen <= index < len(self.prompt_token_ids) // block_size:
                self.num_kept += block_size
                self._num_prompt_blocks_seen = index + 1

    def max_cached_blocks(self, block_size: int, num_blocks: int | None = None) -> int:
        """Return how many leading blocks, of `num_blocks` if given, may come from a cache: whole ones, none cut inside
        media, and never the last known token, whose logits are wanted."""
        length = self.num_known - 1 if num_blocks is None else num_blocks * block_size
        return uncut_length(length, block_size, self.media) // block_size

    def known_tokens(self, begin: int, end: int) -> list[int]:
        """Return the known tokens at positions begin..end."""
        num_prompt = len(self.prompt_token_ids)
        return [
            *self.prompt_token_ids[begin:end],
            *self.token_ids[max(0, begin - num_prompt) : max(0, end - num_prompt)],
        ]
