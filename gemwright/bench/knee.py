"""Where more users stop paying: decides from measured points, and knows nothing of how they were measured.

Concurrency is raised step by step. Behind the knee either memory bends (requests are preempted or wait for room, or the
pool is all but full), or latency (the 95th percentile between tokens has more than doubled since the first point), or
throughput (a doubling of users brings less than a tenth more), or requests fail.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

LATENCY_FACTOR: Final = 2.0
LEAST_GAIN: Final = 0.1
FULL_POOL: Final = 0.95

Bent = Literal["nothing", "latency", "throughput", "memory", "failures"]


@dataclass(frozen=True, slots=True)
class Point:
    """What was measured at one number of users."""

    concurrency: int
    tokens_per_s: float
    """Generated, of all users together."""
    inter_token_ms_p95: float
    ttft_ms_p95: float
    num_preemptions: int | None
    """None where a server does not tell."""
    pool_share: float | None
    """The most of the K/V pool that was held at once, 0 to 1; None where a server does not tell."""
    num_failed: int = 0
    """Requests without an answer."""
    num_full_steps: int = 0
    """Steps in which a request waited for room in the K/V pool; 0 where a server does not tell."""

    def to_dict(self) -> dict[str, Any]:
        """Return the fields of the JSON output."""
        return {
            "concurrency": self.concurrency,
            "tokens_per_s": round(self.tokens_per_s, 3),
            "inter_token_ms_p95": round(self.inter_token_ms_p95, 3),
            "ttft_ms_p95": round(self.ttft_ms_p95, 3),
            "num_preemptions": self.num_preemptions,
            "pool_share": None if self.pool_share is None else round(self.pool_share, 4),
            "num_failed": self.num_failed,
            "num_full_steps": self.num_full_steps,
        }


@dataclass(frozen=True, slots=True)
class Knee:
    """The last point before something bends."""

    point: Point
    bent: Bent
    """What bends behind it; nothing where concurrency was raised as far as it goes."""

    def to_dict(self) -> dict[str, Any]:
        """Return the fields of the JSON output."""
        return {**self.point.to_dict(), "bent": self.bent}


def doublings(most: int) -> Iterator[int]:
    """Yield the numbers of users to try: 1, 2, 4 and so on, and `most` at the end."""
    concurrency = 1
    while concurrency < most:
        yield concurrency
        concurrency *= 2
    yield most


def bends(points: Sequence[Point]) -> Bent:
    """Return what bends at the last of the points, which are in the order of rising concurrency."""
    last = points[-1]
    if last.num_failed:
        return "failures"
    if last.num_preemptions or last.num_full_steps or (last.pool_share or 0.0) >= FULL_POOL:
        return "memory"
    if len(points) == 1:
        return "nothing"
    if last.inter_token_ms_p95 > LATENCY_FACTOR * points[0].inter_token_ms_p95:
        return "latency"
    # Per doubling of users, so that finer steps are not taken for a bend.
    before = points[-2]
    gain = last.tokens_per_s / before.tokens_per_s - 1
    doublings = (last.concurrency / before.concurrency - 1) or 1.0
    return "throughput" if gain / doublings < LEAST_GAIN else "nothing"


def find_knee(points: Sequence[Point]) -> Knee:
    """Return the knee of measured points; where already the first one bends, that one."""
    for end in range(1, len(points) + 1):
        bent = bends(points[:end])
        if bent != "nothing":
            return Knee(points[max(0, end - 2)], bent)
    return Knee(points[-1], "nothing")
