"""Latencies as people compare them: percentiles, mean and standard deviation, in milliseconds."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Spread:
    """How a quantity is spread over many measurements, in milliseconds."""

    mean: float
    deviation: float
    p50: float
    p95: float
    p99: float

    def to_dict(self) -> dict[str, float]:
        """Return the fields, rounded to a microsecond."""
        return {
            "mean_ms": round(self.mean, 3),
            "std_ms": round(self.deviation, 3),
            "p50_ms": round(self.p50, 3),
            "p95_ms": round(self.p95, 3),
            "p99_ms": round(self.p99, 3),
        }


def spread(seconds: Sequence[float]) -> Spread | None:
    """Return the spread of some durations; None where there are none."""
    if not seconds:
        return None
    values = sorted(1000 * value for value in seconds)
    return Spread(
        statistics.fmean(values),
        statistics.pstdev(values),
        percentile(values, 50),
        percentile(values, 95),
        percentile(values, 99),
    )


def percentile(ordered: Sequence[float], percent: float) -> float:
    """Return a percentile of sorted values, between neighbors in proportion."""
    place = (len(ordered) - 1) * percent / 100
    low = math.floor(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


def summary(seconds: Sequence[float], percentiles: Sequence[float]) -> dict[str, float] | None:
    """Return mean, deviation and chosen percentiles of durations under the names of JSON outputs; None for none."""
    if not seconds:
        return None
    values = sorted(1000 * value for value in seconds)
    found = {"mean_ms": round(statistics.fmean(values), 3), "std_ms": round(statistics.pstdev(values), 3)}
    return found | {f"p{percent:g}_ms": round(percentile(values, percent), 3) for percent in percentiles}
