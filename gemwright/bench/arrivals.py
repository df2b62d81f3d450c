"""When requests arrive: gaps drawn from a gamma distribution, at a steady rate or at one that rises.

Burstiness is the shape of the distribution: 1 is a Poisson process, below it requests come in bunches, above it more
evenly. The variance of a gap is 1 / (rate^2 burstiness) whatever the shape.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from gemwright.errors import RequestError

Strategy = Literal["linear", "exponential"]


@dataclass(frozen=True, slots=True)
class Ramp:
    """A rate that rises, or falls, from the first request to the last."""

    strategy: Strategy
    start_rate: float
    """Requests a second."""
    end_rate: float

    def __post_init__(self) -> None:
        if self.strategy not in ("linear", "exponential"):
            raise RequestError("--ramp-up-strategy", value=self.strategy, limit="linear or exponential")
        for name, rate in (("start", self.start_rate), ("end", self.end_rate)):
            if not (rate > 0 and math.isfinite(rate)):
                raise RequestError(f"--ramp-up-{name}-rps", value=rate, limit="finite and above 0 requests a second")

    def rate(self, progress: float) -> float:
        """Return the rate where `progress` of the requests (0 to 1) have come."""
        if self.strategy == "linear":
            return self.start_rate + (self.end_rate - self.start_rate) * progress
        return float(self.start_rate * (self.end_rate / self.start_rate) ** progress)


@dataclass(frozen=True, slots=True)
class Arrivals:
    """How requests arrive."""

    rate: float = math.inf
    """Requests a second; infinite: all at once. With a ramp it is not looked at."""
    burstiness: float = 1.0
    ramp: Ramp | None = None

    def __post_init__(self) -> None:
        if not self.rate > 0:
            raise RequestError("--request-rate", value=self.rate, limit="above 0 requests a second, or inf")
        if not (self.burstiness > 0 and math.isfinite(self.burstiness)):
            raise RequestError("--burstiness", value=self.burstiness, limit="finite and above 0")

    def rates(self, num_requests: int) -> Sequence[float]:
        """Return the rate at which each request but the first follows."""
        if self.ramp is None:
            return [self.rate] * (num_requests - 1)
        return [self.ramp.rate(place / (num_requests - 1)) for place in range(1, num_requests)]

    def times(self, num_requests: int, seed: int) -> list[float]:
        """Return the second at which each request arrives; the first arrives at 0.

        The same seed gives the same times; another burstiness or rate does not change the order of the draws.
        """
        draws = np.random.default_rng([seed, 1]).gamma(self.burstiness, 1 / self.burstiness, max(0, num_requests - 1))
        gaps = [float(draw) / rate for draw, rate in zip(draws, self.rates(num_requests), strict=True)]
        times = [0.0]
        for gap in gaps:
            times.append(times[-1] + gap)
        return times[:num_requests]
