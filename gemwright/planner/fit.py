"""The inverse questions: how long a context, how many users, and what more memory would buy.

Refuses to know any engine's rules: it asks for estimates and compares what must fit with a budget.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

from gemwright.errors import RequestError, UnsupportedError
from gemwright.planner.estimate import Estimate
from gemwright.planner.margins import estimate_with_margin
from gemwright.planner.settings import PlanSettings
from gemwright.spec.model_header import ModelHeader

Estimator = Callable[[ModelHeader, PlanSettings], Estimate]

MOST_USERS: Final = 1_000_000
"""Where counting users stops: an answer of this many means at least as many."""

_SHORTEST_ON_CURVE: Final = 1024
_GIBIBYTE: Final = 1 << 30
_NUM_GUESSES: Final = 2
"""Straight lines through the ends before the search turns to doubling and halving."""


@dataclass(frozen=True, slots=True)
class Marginal:
    """What a step of memory more would buy."""

    step_bytes: int
    num_more_context_tokens: int
    """Longer requests, with as many of them."""
    num_more_users: int
    """More requests of the planned length."""


class Fit:
    """The questions about one model under one set of settings; sizes once estimated are kept between them."""

    def __init__(
        self, header: ModelHeader, settings: PlanSettings, estimator: Estimator = estimate_with_margin
    ) -> None:
        self.header = header
        self.settings = settings
        self.planned = estimator(header, settings)
        """The estimate of the settings as they are."""
        self._estimator = estimator
        self._sizes: dict[tuple[int, int | None], int | None] = {}

    @property
    def num_estimates(self) -> int:
        """How many estimates were made so far."""
        return 1 + len(self._sizes)

    def longest_context(self, memory_bytes: int) -> int:
        """Return the longest request, in tokens, of which as many as the settings name fit, one where they name none.

        At most the model's own context; 0 when nothing fits.
        """
        return largest(lambda length: self._size(length, None), self.header.spec.max_context, memory_bytes)

    def most_users(self, memory_bytes: int, max_model_len: int | None = None) -> int:
        """Return how many requests of a length fit at once: of the planned length where none is named.

        0 when not even one fits; MOST_USERS stands for as many and more.
        """
        length = max_model_len or self.planned.max_model_len
        return largest(lambda num_users: self._size(length, num_users), MOST_USERS, memory_bytes)

    def curve(self, memory_bytes: int) -> tuple[tuple[int, int], ...]:
        """Return context against users, for powers of two from 1024 tokens up to the model's context, and for that.

        Ends with the first context that not even one user can have.
        """
        points: list[tuple[int, int]] = []
        limit = self.header.spec.max_context
        length = min(_SHORTEST_ON_CURVE, limit)
        while True:
            points.append((length, self.most_users(memory_bytes, length)))
            if length == limit or points[-1][1] == 0:
                return tuple(points)
            length = min(2 * length, limit)

    def marginal(self, memory_bytes: int, step_bytes: int = _GIBIBYTE) -> Marginal:
        """Return what `step_bytes` more than `memory_bytes` buy."""
        more = memory_bytes + step_bytes
        return Marginal(
            step_bytes,
            self.longest_context(more) - self.longest_context(memory_bytes),
            self.most_users(more) - self.most_users(memory_bytes),
        )

    def _size(self, max_model_len: int, num_users: int | None) -> int | None:
        """Return the bytes needed for a length and a number of users (None: as planned); None where it is refused."""
        key = (max_model_len, num_users)
        if key not in self._sizes:
            try:
                settings = with_length_and_users(self.settings, max_model_len, num_users)
                found = self._estimator(self.header, settings)
                self._sizes[key] = _size_bytes(found, settings) if is_within_pool(found, settings) else None
            except (RequestError, UnsupportedError):
                # The settings as they are were estimated without a word, so this length or number is what it refuses.
                self._sizes[key] = None
        return self._sizes[key]


def with_length_and_users(settings: PlanSettings, max_model_len: int, num_users: int | None = None) -> PlanSettings:
    """Return settings for requests of another length and, where named, for another number of them.

    `ctx_size` and `parallel`, the other way to say the same, give way.
    """
    changed = replace(settings, max_model_len=max_model_len, ctx_size=None)
    return changed if num_users is None else replace(changed, max_num_seqs=num_users, parallel=None)


def fixed_pool_bytes(settings: PlanSettings) -> int | None:
    """Return the K/V pool's size where the settings fix it; None where the engine decides."""
    return settings.kv_cache_memory_bytes or settings.available_kv_bytes


def held_bytes(found: Estimate, settings: PlanSettings) -> int:
    """Return what must fit: what will be held, or what is needed for what was asked, whichever is more. vLLM takes
    whatever its share leaves, so that there only what is needed counts, unless the bytes for K/V are given."""
    is_rest = found.engine == "vllm" and settings.available_kv_bytes is None
    return found.needed_bytes if is_rest else max(found.needed_bytes, found.ledger.total_bytes)


def _size_bytes(found: Estimate, settings: PlanSettings) -> int:
    """Return what is needed; all that will be held where the pool's size is fixed, as no answer makes it smaller."""
    return found.needed_bytes if fixed_pool_bytes(settings) is None else held_bytes(found, settings)


def is_within_pool(found: Estimate, settings: PlanSettings) -> bool:
    """Return whether a K/V pool of a size that the settings fix holds the requests they ask for, one where they name
    no number. True where the engine sizes its pool."""
    pool = fixed_pool_bytes(settings)
    return pool is None or found.kv.bytes_per_sequence * (settings.max_num_seqs or 1) <= pool


def longest_context(
    header: ModelHeader, settings: PlanSettings, memory_bytes: int, estimator: Estimator = estimate_with_margin
) -> int:
    """Return the longest request, in tokens, that fits in memory as often as the settings ask; 0 when nothing does."""
    return Fit(header, settings, estimator).longest_context(memory_bytes)


def most_users(
    header: ModelHeader, settings: PlanSettings, memory_bytes: int, estimator: Estimator = estimate_with_margin
) -> int:
    """Return how many requests of the planned length fit in memory at once; MOST_USERS means at least that many."""
    return Fit(header, settings, estimator).most_users(memory_bytes)


def curve(
    header: ModelHeader, settings: PlanSettings, memory_bytes: int, estimator: Estimator = estimate_with_margin
) -> tuple[tuple[int, int], ...]:
    """Return context against users for powers of two of the context."""
    return Fit(header, settings, estimator).curve(memory_bytes)


def marginal(
    header: ModelHeader,
    settings: PlanSettings,
    memory_bytes: int,
    step_bytes: int = _GIBIBYTE,
    estimator: Estimator = estimate_with_margin,
) -> Marginal:
    """Return what the next GiB, or another step, buys: tokens of context and users."""
    return Fit(header, settings, estimator).marginal(memory_bytes, step_bytes)


def largest(size: Callable[[int], int | None], limit: int, budget_bytes: int) -> int:
    """Return the largest number from 1 to `limit` whose size is within the budget; 0 when that of 1 is not.

    `size` never falls as its argument grows; None means refused, here and for all larger numbers. Sizes are nearly
    straight lines with steps, so the search guesses along the line between its ends, then doubles its step away from
    the last guess, then halves what is left: about a dozen sizes where there are no kinks, and never more than
    4 + 3 log2(limit).
    """

    def fits(number: int) -> bool:
        found = size(number)
        return found is not None and found <= budget_bytes

    if not fits(1):
        return 0
    if fits(limit):
        return limit
    low, high = 1, limit  # low fits, high does not
    if size(limit) is None:
        # No line leads to what is refused: come up from below, by doubling.
        while 2 * low < high and fits(2 * low):
            low *= 2
        high = min(high, 2 * low)
    is_from_below = False
    for _ in range(_NUM_GUESSES):
        if high - low > 1 and size(high) is not None:
            guess = _guess(size, low, high, budget_bytes)
            low, high = (guess, high) if fits(guess) else (low, guess)
            is_from_below = guess == low
    step = 1
    while 2 * step < high - low and size(high) is not None:
        number = low + step if is_from_below else high - step
        is_still_on_its_side = fits(number) == is_from_below
        low, high = (number, high) if fits(number) else (low, number)
        if not is_still_on_its_side:
            break
        step *= 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def _guess(size: Callable[[int], int | None], low: int, high: int, budget_bytes: int) -> int:
    """Return a number between the two (both left out), where the straight line between their sizes meets the budget;
    `high` is not refused."""
    low_bytes, high_bytes = size(low) or 0, size(high) or 0
    share = (budget_bytes - low_bytes) * (high - low) // (high_bytes - low_bytes)
    return min(max(low + share, low + 1), high - 1)
