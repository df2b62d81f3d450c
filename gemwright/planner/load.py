"""A load as a distribution: what many requests of different lengths hold together, and how often that is too much.

Refuses to know how requests arrive: it looks at a moment at which a number of them run, each at its full length.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from gemwright.errors import RequestError, UnsupportedError
from gemwright.planner.estimate import Estimate, KVGroupFacts
from gemwright.planner.settings import PlanSettings

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Counts = npt.NDArray[np.int64]

NUM_DRAWS: Final = 10_000
"""Moments that are drawn."""

MOST_LOAD_USERS: Final = 10_000
"""Where counting users stops: more would be drawn for minutes, and no engine runs so many."""

_SEED: Final = 20_240_229
_NUM_QUANTILES: Final = 1 << 15
"""Lengths are drawn from a table of so many equally likely ones."""
_DEFAULT_BLOCK_SIZE: Final = 16
_EXAMPLE: Final = "write p50=2000,p95=8000,max=32000"
_PAGED_ENGINES: Final = ("gemwright", "vllm")


@dataclass(frozen=True, slots=True)
class LoadMix:
    """How long requests are, prompt and answer together."""

    quantiles: tuple[tuple[float, int], ...]
    """(share of requests that are at most this long, tokens), both rising, the last share 1. Between two of them the
    logarithm of the length rises evenly. Below the first every request counts as that long: never too short."""
    shared_prefix_tokens: int = 0
    """Tokens that all requests begin with, held once."""

    def __post_init__(self) -> None:
        if not self.quantiles or self.quantiles[-1][0] != 1:
            raise RequestError(
                "the lengths have no maximum",
                value=_show(self.quantiles) or "nothing",
                limit="max=...",
                remedy=_EXAMPLE,
            )
        for share, tokens in self.quantiles:
            if not 0 <= share <= 1:
                raise RequestError(
                    "a quantile of the lengths", value=f"p{100 * share:g}", limit="p0 to p100", remedy=_EXAMPLE
                )
            if type(tokens) is not int or tokens < 1:
                raise RequestError("a length", value=tokens, limit="an integer of at least 1", remedy=_EXAMPLE)
        for (share, tokens), (next_share, next_tokens) in zip(self.quantiles, self.quantiles[1:], strict=False):
            if next_share <= share or next_tokens < tokens:
                raise RequestError(
                    "the lengths do not rise with their shares",
                    value=_show(self.quantiles),
                    limit="each larger than the one before",
                    remedy=_EXAMPLE,
                )
        shared, longest = self.shared_prefix_tokens, self.quantiles[-1][1]
        if type(shared) is not int or not 0 <= shared <= longest:
            raise RequestError(
                "the tokens that all requests begin with",
                value=f"--shared-prefix {shared}",
                limit=f"0 to {longest}, the longest request",
                remedy="lower --shared-prefix, or raise max= of --mix",
            )

    @property
    def max_tokens(self) -> int:
        """The longest request."""
        return self.quantiles[-1][1]

    def lengths(self, num: int) -> Counts:
        """Return `num` equally likely lengths, shortest first."""
        import numpy as np

        shares = [share for share, _ in self.quantiles]
        logarithms = [math.log(tokens) for _, tokens in self.quantiles]
        middles = (np.arange(num) + 0.5) / num
        # Rounded up to a whole token, but not by the last bit of a logarithm.
        return np.ceil(np.exp(np.interp(middles, shares, logarithms)) - 1e-6).astype(np.int64)


@dataclass(frozen=True, slots=True)
class LoadUse:
    """What a number of requests hold at a moment, over many such moments."""

    num_users: int
    p50_bytes: int
    p95_bytes: int
    p99_bytes: int
    largest_bytes: int
    """What no moment goes beyond: all requests at the greatest length, or just short of the shared prefix."""
    pool_bytes: int
    preemption_probability: float
    """Share of moments at which more than the pool is wanted, so that a request has to give way."""
    error: float
    """Of that share, either way: two standard errors of the draw; at least 3 / draws, the bound where none did."""
    num_draws: int
    method: str

    def to_dict(self) -> dict[str, object]:
        """Return the fields of the JSON output."""
        return {
            "num_users": self.num_users,
            "p50_bytes": self.p50_bytes,
            "p95_bytes": self.p95_bytes,
            "p99_bytes": self.p99_bytes,
            "largest_bytes": self.largest_bytes,
            "pool_bytes": self.pool_bytes,
            "preemption_probability": self.preemption_probability,
            "error": self.error,
            "num_draws": self.num_draws,
            "method": self.method,
        }


def parse_mix(text: str, shared_prefix_tokens: int = 0) -> LoadMix:
    """Return the lengths written as "p50=2000,p95=8000,max=32000"; min is p0, max is p100, in any order.

    Raises RequestError for what is not so written, for a quantile said twice, and where there is no maximum.
    """
    found: dict[float, int] = {}
    for entry in text.split(","):
        name, _, value = entry.strip().partition("=")
        share, tokens = _share(name.strip()), _tokens(value.strip())
        if share is None or tokens is None:
            raise RequestError("cannot read a length", value=entry.strip() or "nothing", remedy=_EXAMPLE)
        if share in found:
            raise RequestError("a quantile of the lengths is given twice", value=name.strip(), remedy="give it once")
        found[share] = tokens
    return LoadMix(tuple(sorted(found.items())), shared_prefix_tokens)


def sequence_bytes(estimate: Estimate, settings: PlanSettings, num_tokens: int) -> int:
    """Return what one request of a length holds in the cache, in whole blocks.

    Full layers keep every token. Sliding layers keep no more than their reservation; Gemwright's pool sets that aside
    for every request that may run, whatever its length.
    """
    import numpy as np

    alone, _ = _bytes_of(estimate, settings, np.array([num_tokens], dtype=np.int64), 0)
    return int(alone[0])


def load_use(mix: LoadMix, estimate: Estimate, settings: PlanSettings, num_users: int, pool_bytes: int) -> LoadUse:
    """Return what `num_users` requests hold, and how likely it is that they want more than a pool of K/V.

    Monte Carlo with a fixed seed: NUM_DRAWS moments, each with its own lengths; the same lengths are drawn again with
    one user more. Raises RequestError where the mix is longer than the plan, UnsupportedError for engines that reserve
    every slot whole at start-up.
    """
    import numpy as np

    _check_users(num_users)
    total = next(use for count, use in _uses(mix, estimate, settings) if count == num_users)
    p50, p95, p99 = (int(value) for value in np.quantile(total, (0.5, 0.95, 0.99), method="inverted_cdf"))
    probability = float(np.mean(total > pool_bytes))
    return LoadUse(
        num_users=num_users,
        p50_bytes=p50,
        p95_bytes=p95,
        p99_bytes=p99,
        largest_bytes=_largest(mix, estimate, settings, num_users),
        pool_bytes=pool_bytes,
        preemption_probability=probability,
        error=max(2 * math.sqrt(probability * (1 - probability) / NUM_DRAWS), 3 / NUM_DRAWS),
        num_draws=NUM_DRAWS,
        method=f"Monte Carlo, {NUM_DRAWS} draws, seed {_SEED}",
    )


def users_for(
    mix: LoadMix, estimate: Estimate, settings: PlanSettings, pool_bytes: int, probability: float = 0.01
) -> int:
    """Return how many requests may run at once so that the chance of preemption stays at or below `probability`.

    0 when one request is too much; MOST_LOAD_USERS means at least that many. Raises as load_use does.
    """
    import numpy as np

    if not 0 <= probability < 1:
        raise RequestError("the chance of preemption", value=probability, limit="from 0 to below 1", remedy="use 0.01")
    allowed = math.floor(probability * NUM_DRAWS)
    for num_users, total in _uses(mix, estimate, settings):
        if np.count_nonzero(total > pool_bytes) > allowed:
            return num_users - 1
    return MOST_LOAD_USERS


def _uses(mix: LoadMix, estimate: Estimate, settings: PlanSettings) -> Iterator[tuple[int, Counts]]:
    """Yield 1, 2, 3... users with the bytes they hold at each drawn moment.

    Each moment keeps its users when one more comes, so that nothing ever falls from one number to the next.
    """
    import numpy as np

    if estimate.engine not in _PAGED_ENGINES:
        raise UnsupportedError(
            f"{estimate.engine} takes the same memory whatever the lengths: every slot is reserved whole at start-up",
            value=estimate.engine,
            limit=", ".join(_PAGED_ENGINES),
            remedy="plan for the greatest length alone, with --max-model-len",
        )
    if mix.max_tokens > estimate.max_model_len:
        raise RequestError(
            "the longest request of the load is longer than the plan",
            value=f"{mix.max_tokens} tokens",
            limit=f"{estimate.max_model_len} tokens",
            remedy=f"add --max-model-len {mix.max_tokens}, or lower max=",
        )
    lengths = mix.lengths(_NUM_QUANTILES)
    alone, shared = _bytes_of(estimate, settings, lengths, mix.shared_prefix_tokens)
    random = np.random.default_rng(_SEED)
    total = np.zeros(NUM_DRAWS, dtype=np.int64)
    held_once = np.zeros(NUM_DRAWS, dtype=np.int64)
    for num_users in range(1, MOST_LOAD_USERS + 1):
        drawn = random.integers(0, _NUM_QUANTILES, NUM_DRAWS)
        total += alone[drawn]
        np.maximum(held_once, shared[drawn], out=held_once)
        yield num_users, total + held_once


def _largest(mix: LoadMix, estimate: Estimate, settings: PlanSettings, num_users: int) -> int:
    """Return the most that so many requests can hold: one has the longest part that is shared, and the others have
    the most for themselves that goes with it. A request that ends inside the prefix has its last block alone."""
    import numpy as np

    lengths = np.append(mix.lengths(_NUM_QUANTILES), mix.max_tokens)
    alone, shared = _bytes_of(estimate, settings, lengths, mix.shared_prefix_tokens)
    return int(np.max(alone + shared + (num_users - 1) * np.maximum.accumulate(alone)))


def _bytes_of(
    estimate: Estimate, settings: PlanSettings, lengths: Counts, shared_prefix_tokens: int
) -> tuple[Counts, Counts]:
    """Return for each length the bytes that a request holds for itself, and those that it shares with all others."""
    import numpy as np

    alone, shared = np.zeros_like(lengths), np.zeros_like(lengths)
    for group, block_size in _block_sizes(estimate, settings):
        block_bytes = group.num_layers * group.token_bytes * block_size
        num_blocks = -(-lengths // block_size)
        if group.window is None:
            num_shared = np.minimum(lengths, shared_prefix_tokens) // block_size
            alone += (num_blocks - num_shared) * block_bytes
            shared += num_shared * block_bytes
        else:
            # Rounded up: a reservation is a number of whole blocks.
            reserved = -(-group.tokens_per_sequence // block_size)
            is_reserved = estimate.engine == "gemwright"
            alone += (reserved if is_reserved else np.minimum(num_blocks, reserved)) * block_bytes
    return alone, shared


def _block_sizes(estimate: Estimate, settings: PlanSettings) -> Iterator[tuple[KVGroupFacts, int]]:
    """Yield the groups with the tokens of one block.

    vLLM gives all its groups pages of one size, so that a layer with less a token has more tokens in a block.
    """
    block_size = settings.block_size or _DEFAULT_BLOCK_SIZE
    most = max(group.token_bytes for group in estimate.kv.groups)
    for group in estimate.kv.groups:
        yield group, block_size * most // group.token_bytes if estimate.engine == "vllm" else block_size


def _check_users(num_users: int) -> None:
    if not 1 <= num_users <= MOST_LOAD_USERS:
        raise RequestError(
            "requests of a load at once",
            value=num_users,
            limit=f"1 to {MOST_LOAD_USERS}",
            remedy="lower --max-num-seqs, or leave --mix out",
        )


def _share(name: str) -> float | None:
    if name in ("min", "max"):
        return float(name == "max")
    digits = name.removeprefix("p")
    if digits == name or not digits.replace(".", "", 1).isdecimal() or not digits.isascii():
        return None
    share = round(float(digits) / 100, 12)  # 99.9 / 100 is not 0.999
    return share if share <= 1 else None


def _tokens(value: str) -> int | None:
    # Longer numbers are no lengths, and would be slow to read.
    return int(value) if value.isdecimal() and value.isascii() and len(value) < 16 else None


def _show(quantiles: tuple[tuple[float, int], ...]) -> str:
    return ",".join(f"p{100 * share:g}={tokens}" for share, tokens in quantiles)
