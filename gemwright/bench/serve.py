"""Load on a server over HTTP: requests that arrive in time, what each took, and what all of them say together."""

from __future__ import annotations

import asyncio
import math
import re
import time
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Final

from gemwright.bench.arrivals import Arrivals
from gemwright.bench.client import Client, Outcome, Prompt
from gemwright.bench.knee import Knee, Point, bends, doublings, find_knee
from gemwright.bench.latency import percentile, summary
from gemwright.errors import RequestError

METRICS: Final = {"ttft": "ttft", "tpot": "tpot", "itl": "inter_token", "e2el": "e2e"}
"""The names of latencies on the command line, and in results."""

WORST_SECONDS: Final = 300.0
"""Length of the worst stretch of a load; a shorter load is one stretch."""

_WATCH_SECONDS: Final = 0.2
_STRETCH_STEP_SECONDS: Final = 10.0
_POOL_SHARE: Final = re.compile(r"^[\w:]*kv_cache_usage_perc(?:\{.*\})? (\S+)", re.MULTILINE)
_PREEMPTIONS: Final = re.compile(r"^[\w:]*num_preemptions_total(?:\{.*\})? (\S+)", re.MULTILINE)
_PROCESS_BYTES: Final = re.compile(r"^process_resident_memory_bytes(?:\{.*\})? (\S+)", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Manner:
    """How prompts are sent."""

    arrivals: Arrivals = field(default_factory=Arrivals)
    max_concurrency: int | None = None
    """At once; others wait here. None: no limit."""
    seed: int = 0
    is_burst: bool = False
    """From nothing to `max_concurrency` at one instant; what comes after the first wave is told apart."""

    def __post_init__(self) -> None:
        if self.max_concurrency is not None and self.max_concurrency < 1:
            raise RequestError("--max-concurrency", value=self.max_concurrency, limit="at least 1")
        if self.seed < 0:
            raise RequestError("--seed", value=self.seed, limit="0 or more")
        if self.is_burst and self.max_concurrency is None:
            raise RequestError("--burst rises to --max-concurrency", remedy="give --max-concurrency")


@dataclass(frozen=True, slots=True)
class View:
    """What of a measurement is shown."""

    metrics: tuple[str, ...] = tuple(METRICS)
    percentiles: tuple[float, ...] = (50, 95, 99)
    goodput_ms: Mapping[str, float] | None = None
    """The most that a good answer takes, by metric: ttft, tpot or e2el."""


@dataclass(frozen=True, slots=True)
class Served:
    """What a load took. Failed requests count among the failures alone."""

    manner: Manner
    outcomes: tuple[Outcome, ...]
    """In the order in which requests arrived."""
    num_preemptions: int | None = None
    pool_share: float | None = None

    @property
    def done(self) -> list[Outcome]:
        """Those with an answer."""
        return [outcome for outcome in self.outcomes if outcome.failure is None]

    @property
    def seconds(self) -> float:
        """From the first request to the end of the last."""
        return max(found.ended_at for found in self.outcomes) - min(found.sent_at for found in self.outcomes)

    @property
    def peak_concurrency(self) -> int:
        """The most requests that were on their way at once."""
        changes = sorted([(found.sent_at, 1) for found in self.outcomes] + [(x.ended_at, -1) for x in self.outcomes])
        running = most = 0
        for _, change in changes:
            running += change
            most = max(most, running)
        return most

    def seconds_of(self, metric: str) -> list[float]:
        """Return the values of a metric, by its name on the command line."""
        if metric == "itl":
            return [gap for found in self.done for gap in found.gaps_s]
        values = [_seconds(found, metric) for found in self.done]
        return [value for value in values if value is not None]

    def worst_stretch(self, length_s: float = WORST_SECONDS) -> tuple[float, list[Outcome]]:
        """Return the stretch of this length whose requests fared worst, as the second it begins at and what was sent in
        it: that with the largest share of failures, or else the largest 95th percentile of the time to the first token.
        """
        ordered = sorted(self.outcomes, key=lambda found: found.sent_at)
        sent = [found.sent_at - ordered[0].sent_at for found in ordered]
        num_steps = math.ceil(max(0.0, sent[-1] - length_s) / _STRETCH_STEP_SECONDS)
        begins = [step * _STRETCH_STEP_SECONDS for step in range(num_steps + 1)]
        stretches = [
            (begin, ordered[bisect_left(sent, begin) : bisect_right(sent, begin + length_s)]) for begin in begins
        ]
        return max((stretch for stretch in stretches if stretch[1]), key=lambda stretch: _badness(stretch[1]))

    def num_good(self, limits_ms: Mapping[str, float]) -> int:
        """Return how many answers kept to all limits; an answer of one token keeps to any between tokens."""
        return sum(all(_within(found, name, limit) for name, limit in limits_ms.items()) for found in self.done)

    def failures(self) -> dict[str, dict[str, Any]]:
        """Return how many requests failed by kind, each with what the first of them was told."""
        kinds = Counter(found.failure for found in self.outcomes if found.failure is not None)
        firsts = {found.failure: found.detail for found in reversed(self.outcomes)}
        return {kind: {"count": count, "first": firsts[kind]} for kind, count in kinds.most_common()}

    def to_point(self) -> Point:
        """Return what the search for the knee looks at."""
        return Point(
            self.manner.max_concurrency or self.peak_concurrency,
            sum(found.num_tokens for found in self.done) / self.seconds,
            _p95(self.seconds_of("itl")),
            _p95(self.seconds_of("ttft")),
            self.num_preemptions,
            self.pool_share,
            len(self.outcomes) - len(self.done),
        )

    def to_dict(self, view: View) -> dict[str, Any]:
        """Return the fields of the JSON output."""
        done, seconds = self.done, self.seconds
        num_input = sum(found.num_prompt_tokens for found in done)
        num_output = sum(found.num_tokens for found in done)
        num_pieces = sum(1 + len(found.gaps_s) for found in done)
        content: dict[str, Any] = {
            **_manner_facts(self.manner),
            "num_prompts": len(self.outcomes),
            "num_completed": len(done),
            "num_failed": len(self.outcomes) - len(done),
            "failures": self.failures(),
            "finish_reasons": dict(Counter(found.finish_reason for found in done)),
            "seconds": round(seconds, 6),
            "peak_concurrency": self.peak_concurrency,
            "input_tokens": num_input,
            "output_tokens": num_output,
            "num_pieces": num_pieces,
            "requests_per_s": round(len(done) / seconds, 4),
            "tokens_per_s": round(num_output / seconds, 3),
            "total_tokens_per_s": round((num_input + num_output) / seconds, 3),
            "goodput": self._goodput(view),
        }
        for name in view.metrics:
            content[METRICS[name]] = summary(self.seconds_of(name), view.percentiles)
        content["held_back"] = summary([found.held_back_s for found in self.outcomes], view.percentiles)
        content["worst_five_minutes"] = self._worst(view)
        content["num_preemptions"] = self.num_preemptions
        content["pool_share"] = None if self.pool_share is None else round(self.pool_share, 4)
        if self.manner.is_burst:
            content["burst"] = self._burst(view)
        return content

    def _goodput(self, view: View) -> dict[str, Any] | None:
        if view.goodput_ms is None:
            return None
        num_good = self.num_good(view.goodput_ms)
        return {
            "limits_ms": dict(view.goodput_ms),
            "num_good": num_good,
            "requests_per_s": round(num_good / self.seconds, 4),
        }

    def _worst(self, view: View) -> dict[str, Any]:
        begin_s, outcomes = self.worst_stretch()
        done = [found for found in outcomes if found.failure is None]
        return {
            "begin_s": round(begin_s, 3),
            "num_requests": len(outcomes),
            "num_failed": len(outcomes) - len(done),
            "ttft": summary([found.ttft_s for found in done if found.ttft_s is not None], view.percentiles),
            "e2e": summary([found.e2e_s for found in done], view.percentiles),
        }

    def _burst(self, view: View) -> dict[str, Any]:
        """Return the first wave, which met an idle server, and what came after it."""
        peak = self.manner.max_concurrency or len(self.outcomes)
        waves = {"first_wave": self.outcomes[:peak], "after_it": self.outcomes[peak:]}
        found: dict[str, Any] = {"peak": min(peak, len(self.outcomes))}
        for name, wave in waves.items():
            firsts = [outcome.ttft_s for outcome in wave if outcome.failure is None and outcome.ttft_s is not None]
            found[name] = {"num_failed": sum(one.failure is not None for one in wave)}
            found[name]["ttft"] = summary(firsts, view.percentiles)
        return found


@dataclass(frozen=True, slots=True)
class KneeFound:
    """A search for the knee: every point, the knee, and the burst from nothing to the peak."""

    points: tuple[Served, ...]
    knee: Knee
    burst: Served

    def to_dict(self, view: View) -> dict[str, Any]:
        """Return the fields of the JSON output."""
        return {
            "points": [{**point.to_dict(view), **point.to_point().to_dict()} for point in self.points],
            "knee": self.knee.to_dict(),
            "burst": self.burst.to_dict(view),
        }


async def run_load(client: Client, prompts: Sequence[Prompt], manner: Manner, *, watches: bool = False) -> Served:
    """Send the prompts as they arrive and return what became of them. With `watches` the server's metrics are read
    meanwhile, for preemptions and the K/V pool."""
    times = manner.arrivals.times(len(prompts), manner.seed)
    room = asyncio.Semaphore(manner.max_concurrency or len(prompts))
    began = time.perf_counter()

    async def send(prompt: Prompt, arrives_s: float) -> Outcome:
        await asyncio.sleep(max(0.0, began + arrives_s - time.perf_counter()))
        arrived = time.perf_counter()
        async with room:
            held_back_s = time.perf_counter() - arrived
            return replace(await client.ask(prompt), held_back_s=held_back_s)

    async with _watching(client, watches) as seen:
        tasks = [asyncio.ensure_future(send(prompt, at)) for prompt, at in zip(prompts, times, strict=True)]
        try:
            outcomes = await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
    return Served(manner, tuple(outcomes), seen.num_preemptions, seen.pool_share)


async def search_knee(
    client: Client,
    make_prompts: Callable[[int, int], Sequence[Prompt]],
    *,
    most: int,
    seed: int,
    on_point: Callable[[Served], None] | None = None,
) -> KneeFound:
    """Raise the number of users from 1, doubling it up to `most`, until something bends; then send the most at once.

    Every point answers each user twice. `make_prompts` gives so many prompts by a seed, none of which it gave before.
    """
    points: list[Served] = []
    for number, concurrency in enumerate(doublings(most)):
        manner = Manner(max_concurrency=concurrency, seed=seed)
        points.append(await run_load(client, make_prompts(2 * concurrency, number), manner, watches=True))
        if on_point is not None:
            on_point(points[-1])
        if bends([point.to_point() for point in points]) != "nothing":
            break
    peak = points[-1].manner.max_concurrency
    assert peak is not None  # as it was set above
    manner = Manner(max_concurrency=peak, seed=seed, is_burst=True)
    burst = await run_load(client, make_prompts(peak, len(points)), manner, watches=True)
    return KneeFound(tuple(points), find_knee([point.to_point() for point in points]), burst)


async def read_process_bytes(client: Client) -> int | None:
    """Return what the server's process holds, where its metrics say so."""
    value = _value(_PROCESS_BYTES, await client.read_metrics())
    return None if value is None else int(value)


@dataclass(slots=True)
class _Seen:
    """What the metrics of a server have shown."""

    num_preemptions: int | None = None
    pool_share: float | None = None
    first_preemptions: int | None = None

    def take(self, text: str | None) -> None:
        """Take the metrics of one moment into account."""
        share, preemptions = _value(_POOL_SHARE, text), _value(_PREEMPTIONS, text)
        if share is not None:
            self.pool_share = max(share, self.pool_share or 0.0)
        if preemptions is not None:
            if self.first_preemptions is None:
                self.first_preemptions = int(preemptions)
            self.num_preemptions = int(preemptions) - self.first_preemptions


@asynccontextmanager
async def _watching(client: Client, watches: bool) -> AsyncIterator[_Seen]:
    seen = _Seen()
    if not watches:
        yield seen
        return

    async def watch() -> None:
        while True:
            seen.take(await client.read_metrics())
            await asyncio.sleep(_WATCH_SECONDS)

    seen.take(await client.read_metrics())
    task = asyncio.ensure_future(watch())
    try:
        yield seen
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        seen.take(await client.read_metrics())


def _value(pattern: re.Pattern[str], text: str | None) -> float | None:
    """Return a metric, all engines of a server together."""
    found = [float(value) for value in pattern.findall(text or "")]
    return (max if pattern is _POOL_SHARE else sum)(found) if found else None


def _seconds(found: Outcome, metric: str) -> float | None:
    return {"ttft": found.ttft_s, "tpot": found.tpot_s, "e2el": found.e2e_s}[metric]


def _within(found: Outcome, metric: str, limit_ms: float) -> bool:
    value = _seconds(found, metric)
    return value is None or 1000 * value <= limit_ms


def _badness(outcomes: Sequence[Outcome]) -> tuple[float, float]:
    """Return what makes a stretch worse than another: share of failures, then time to the first token."""
    done = [found for found in outcomes if found.failure is None]
    return 1 - len(done) / len(outcomes), _p95([found.ttft_s for found in done if found.ttft_s is not None])


def _p95(seconds: Sequence[float]) -> float:
    return percentile(sorted(1000 * value for value in seconds), 95) if seconds else 0.0


def _manner_facts(manner: Manner) -> dict[str, Any]:
    arrivals, ramp = manner.arrivals, manner.arrivals.ramp
    is_rated = ramp is None and arrivals.rate != float("inf")
    return {
        # null: all at once, or by the ramp
        "request_rate": arrivals.rate if is_rated else None,
        "burstiness": arrivals.burstiness,
        "ramp_up": None
        if ramp is None
        else {"strategy": ramp.strategy, "start": ramp.start_rate, "end": ramp.end_rate},
        "max_concurrency": manner.max_concurrency,
        "seed": manner.seed,
    }
