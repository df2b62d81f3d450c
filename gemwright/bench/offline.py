"""Load on the engine itself, without a server: many requests of one shape, a number of them at once."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np

from gemwright.bench.knee import Knee, Point, bends, doublings, find_knee
from gemwright.bench.latency import Spread, percentile, spread
from gemwright.engine.llm import LLM
from gemwright.engine.request import Request, SamplingParams
from gemwright.errors import RequestError

NUM_PROMPTS: Final = 16
CONCURRENCY: Final = 4
"""Of a load where nothing is said."""
_FIRST_ID = 3
"""Below it are control tokens."""


@dataclass(frozen=True, slots=True)
class Load:
    """Requests of one shape."""

    num_prompts: int = NUM_PROMPTS
    input_len: int = 128
    output_len: int = 64
    concurrency: int = CONCURRENCY
    """Asked for at once; the next one comes when one has ended. The engine runs at most its `max_num_seqs` of them, and
    the others wait."""
    seed: int = 0
    """Loads of different seeds have no prompt in common."""

    def __post_init__(self) -> None:
        for name in ("num_prompts", "input_len", "output_len", "concurrency"):
            if getattr(self, name) < 1:
                remedy = f"raise --{name.replace('_', '-')}"
                raise RequestError(name, value=getattr(self, name), limit="at least 1", remedy=remedy)
        if self.concurrency > self.num_prompts:
            raise RequestError(
                "fewer requests than are to be at once",
                value=f"--concurrency {self.concurrency}",
                limit=f"--num-prompts {self.num_prompts}",
                remedy=f"raise --num-prompts to {self.concurrency} and more, or lower --concurrency",
            )
        if self.seed < 0:
            raise RequestError("seed", value=self.seed, limit="at least 0", remedy="change --seed")


@dataclass(frozen=True, slots=True)
class Measured:
    """What a load took."""

    load: Load
    seconds: float
    num_tokens: int
    ttft: Spread
    inter_token: Spread | None
    """None where every answer is one token."""
    num_preemptions: int
    pool_share: float
    num_full_steps: int
    """Steps in which a request waited because the K/V pool had no room for it."""
    max_running: int
    """The most requests that were in one step: fewer than were asked for at once where others waited."""

    @property
    def tokens_per_s(self) -> float:
        """Generated, of all requests together."""
        return self.num_tokens / self.seconds

    def to_point(self) -> Point:
        """Return what the search for the knee looks at."""
        between = 0.0 if self.inter_token is None else self.inter_token.p95
        return Point(
            self.load.concurrency,
            self.tokens_per_s,
            between,
            self.ttft.p95,
            self.num_preemptions,
            self.pool_share,
            num_full_steps=self.num_full_steps,
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the fields of the JSON output."""
        return {
            "num_prompts": self.load.num_prompts,
            "input_len": self.load.input_len,
            "output_len": self.load.output_len,
            "concurrency": self.load.concurrency,
            "seconds": round(self.seconds, 4),
            "tokens_per_s": round(self.tokens_per_s, 3),
            "ttft": self.ttft.to_dict(),
            "inter_token": None if self.inter_token is None else self.inter_token.to_dict(),
            "num_preemptions": self.num_preemptions,
            "pool_share": round(self.pool_share, 4),
            "num_full_steps": self.num_full_steps,
            "max_running": self.max_running,
        }


def run_load(llm: LLM, load: Load, *, burst: bool = False) -> Measured:
    """Answer the load and return what it took. With `burst` all requests come at once, whatever the load's
    `concurrency`, and what is returned counts as that many at once.

    Prompts are random ids, so that no prefix is found. Raises RequestError for a shape beyond the model's context.
    """
    if burst:
        load = replace(load, concurrency=load.num_prompts)
    core, params = llm.core, SamplingParams(max_tokens=load.output_len, temperature=0, ignore_eos=True)
    if load.input_len + load.output_len > llm.engine.max_model_len:
        raise RequestError(
            "a request of this shape is longer than the context",
            value=load.input_len + load.output_len,
            limit=llm.engine.max_model_len,
            remedy="lower --input-len or --output-len",
        )
    prompts = _prompts(llm, load)
    preempted = core.counters.num_preemptions
    begun: dict[int, float] = {}
    last: dict[int, float] = {}
    firsts: list[float] = []
    between: list[float] = []
    share = 0.0
    num_full_steps = num_tokens = max_running = 0
    live: dict[int, Request] = {}
    began = time.perf_counter()
    try:
        while True:
            while len(live) < load.concurrency:
                ids = next(prompts, None)
                if ids is None:
                    break
                (request,) = llm.add(ids, params)
                live[request.request_id] = request
                begun[request.request_id] = time.perf_counter()
            if not live:
                break
            advanced = core.step()
            share = max(share, core.blocks.share_held)
            num_full_steps += _has_no_room(llm, len(advanced))
            # Who is done has left the running ones; who is in the middle of a prompt has not advanced.
            in_step = {request.request_id for request in (*core.scheduler.running, *advanced)}
            max_running = max(max_running, len(in_step))
            for request in advanced:
                now, key = time.perf_counter(), request.request_id
                if request.error is not None:
                    raise request.error
                num_tokens += 1
                if key in last:
                    between.append(now - last[key])
                else:
                    firsts.append(now - begun[key])
                last[key] = now
                if request.is_done:
                    core.forget(live.pop(key))
    finally:
        for request in live.values():
            core.forget(request)
    first = spread(firsts)
    assert first is not None  # at least one prompt was answered
    return Measured(
        load,
        time.perf_counter() - began,
        num_tokens,
        first,
        spread(between),
        core.counters.num_preemptions - preempted,
        share,
        num_full_steps,
        max_running,
    )


def _has_no_room(llm: LLM, num_advanced: int) -> bool:
    """Return whether somebody still waits after a step that had tokens and slots to spare: for blocks, then."""
    scheduler, limits = llm.core.scheduler, llm.core.limits
    # A prompt in the middle may have taken all tokens of the step; then it did not advance, and is still running.
    is_reading = any(request.num_missing > 1 for request in scheduler.running)
    is_free = num_advanced < min(limits.max_num_seqs, llm.engine.step_tokens)
    return bool(scheduler.waiting) and is_free and not is_reading


@dataclass(frozen=True, slots=True)
class KneeFound:
    """A search for the knee: every point, the knee, and the burst from nothing to the peak."""

    points: tuple[Measured, ...]
    knee: Knee
    burst: Measured

    def to_dict(self) -> dict[str, Any]:
        """Return the fields of the JSON output."""
        return {
            "points": [point.to_dict() for point in self.points],
            "knee": self.knee.to_dict(),
            "burst": self.burst.to_dict(),
        }


def search_knee(llm: LLM, load: Load, *, most: int, on_point: Callable[[Measured], None] | None = None) -> KneeFound:
    """Raise the number of users from 1, doubling it up to `most`, until something bends; then send the most at once.

    Every point answers each user twice, the shape of `load` otherwise.
    """
    measured: list[Measured] = []
    for concurrency in doublings(most):
        shape = Load(2 * concurrency, load.input_len, load.output_len, concurrency, load.seed + concurrency)
        measured.append(run_load(llm, shape))
        if on_point is not None:
            on_point(measured[-1])
        if bends([point.to_point() for point in measured]) != "nothing":
            break
    peak = measured[-1].load.concurrency
    # A seed of its own: prompts of an earlier point would be found in the prefix cache.
    burst = run_load(llm, Load(peak, load.input_len, load.output_len, peak, load.seed + most + 1), burst=True)
    return KneeFound(tuple(measured), find_knee([point.to_point() for point in measured]), burst)


def _prompts(llm: LLM, load: Load) -> Iterator[list[int]]:
    generator = np.random.default_rng(load.seed)
    high = llm.spec.vocab_size
    for _ in range(load.num_prompts):
        yield [llm.spec.bos_token_id, *generator.integers(_FIRST_ID, high, load.input_len - 1).tolist()]


__all__ = ["CONCURRENCY", "NUM_PROMPTS", "KneeFound", "Load", "Measured", "percentile", "run_load", "search_knee"]
