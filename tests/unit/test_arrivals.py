"""When the requests of a load test arrive."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest

from gemwright.bench.arrivals import Arrivals, Ramp
from gemwright.errors import RequestError

MANY = 40_000


def gaps(arrivals: Arrivals, seed: int = 0) -> np.ndarray:
    return np.diff(arrivals.times(MANY + 1, seed))


def test_without_a_rate_all_arrive_at_once() -> None:
    assert Arrivals().times(4, 0) == [0, 0, 0, 0]
    assert Arrivals(rate=5).times(1, 0) == [0]
    assert Arrivals(rate=5).times(0, 0) == []


def test_a_seed_gives_the_same_times_again_and_another_one_does_not() -> None:
    arrivals = Arrivals(rate=3)
    assert arrivals.times(20, 7) == arrivals.times(20, 7)
    assert arrivals.times(20, 7) != arrivals.times(20, 8)


def test_twice_the_rate_is_the_same_pattern_in_half_the_time() -> None:
    slow, fast = Arrivals(rate=2).times(50, 1), Arrivals(rate=4).times(50, 1)
    assert [2 * time for time in fast] == pytest.approx(slow)


@pytest.mark.parametrize("burstiness", [0.25, 1.0, 4.0])
def test_the_mean_gap_is_that_of_the_rate_and_burstiness_sets_its_variance(burstiness: float) -> None:
    """At 5 a second the mean gap is 0.2 s; its variance is 0.04 / burstiness. The bounds are five standard errors."""
    found = gaps(Arrivals(rate=5, burstiness=burstiness))
    deviation = 0.2 / math.sqrt(burstiness)
    assert found.mean() == pytest.approx(0.2, abs=5 * deviation / math.sqrt(MANY))
    # The fourth moment of a gamma distribution gives the standard error of the variance.
    error = deviation**2 * math.sqrt((2 + 6 / burstiness) / MANY)
    assert found.var() == pytest.approx(deviation**2, abs=5 * error)


def test_burstiness_1_is_a_poisson_process() -> None:
    """Gaps are exponential, so that exp(-1) of them exceed the mean, exp(-2) twice the mean; counts in windows have a
    variance as large as their mean."""
    arrivals = Arrivals(rate=10)
    found = gaps(arrivals)
    for times in (1, 2, 3):
        share = math.exp(-times)
        assert (found > 0.1 * times).mean() == pytest.approx(share, abs=5 * math.sqrt(share * (1 - share) / MANY))
    counts, _ = np.histogram(arrivals.times(MANY, 3), bins=np.arange(0, 3900))
    assert counts.var() / counts.mean() == pytest.approx(1, abs=5 * math.sqrt(2 / 3899))


def test_a_linear_ramp_has_its_rates_and_so_its_gaps() -> None:
    """From 1 to 5 a second over five requests: the four that follow come at 2, 3, 4 and 5 a second."""
    arrivals = Arrivals(ramp=Ramp("linear", 1, 5))
    assert arrivals.rates(5) == pytest.approx([2, 3, 4, 5])
    # So even that a gap is its mean to within a thousandth: 1/2, 1/3, 1/4, 1/5 of a second.
    even = Arrivals(burstiness=1e9, ramp=Ramp("linear", 1, 5)).times(5, 0)
    assert [after - before for before, after in pairwise(even)] == pytest.approx([1 / 2, 1 / 3, 1 / 4, 1 / 5], rel=1e-3)


def test_an_exponential_ramp_multiplies_by_the_same_each_time() -> None:
    assert Arrivals(ramp=Ramp("exponential", 1, 16)).rates(5) == pytest.approx([2, 4, 8, 16])
    assert Arrivals(ramp=Ramp("exponential", 16, 1)).rates(3) == pytest.approx([4, 1])


@pytest.mark.parametrize(
    ("make", "flag"),
    [
        (lambda: Arrivals(rate=0), "--request-rate"),
        (lambda: Arrivals(rate=math.nan), "--request-rate"),
        (lambda: Arrivals(burstiness=0), "--burstiness"),
        (lambda: Arrivals(burstiness=math.inf), "--burstiness"),
        (lambda: Ramp("linear", 0, 5), "--ramp-up-start-rps"),
        (lambda: Ramp("exponential", 1, math.inf), "--ramp-up-end-rps"),
        (lambda: Ramp("cubic", 1, 5), "--ramp-up-strategy"),
    ],
)
def test_what_is_no_load_is_refused_by_its_flag(make: object, flag: str) -> None:
    with pytest.raises(RequestError, match=flag):
        make()  # type: ignore[operator]
