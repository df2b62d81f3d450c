"""Models with weights and caches as a test says them, for predictions of speed."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

from gemwright.planner.devices import Device, find_device
from gemwright.planner.estimate import Estimate, KVFacts, KVGroupFacts
from gemwright.planner.ledger import Ledger
from gemwright.planner.settings import PlanSettings
from gemwright.planner.time import TimeEstimate, predict
from gemwright.planner.traffic import Traffic
from gemwright.planner.weights import WeightPart
from gemwright.spec.families import read_config
from gemwright.spec.model_header import ModelHeader
from gemwright.spec.model_spec import ModelSpec
from tests.published_configs import load_config

GIB = 1 << 30
MIB = 1 << 20
EMBEDDING = 262_144 * 640
LAYERS = 18 * 640 * (1024 + 2 * 256 + 1024 + 3 * 2048)
"""Gemma 3 270M: 18 layers with 4 heads of 256, one of K and V, a feed-forward of 2,048; a window of 512 on 15."""


@cache
def spec_of(name: str) -> ModelSpec:
    return read_config(load_config(name), source=name)


def header_of(name: str) -> ModelHeader:
    return ModelHeader(name, spec_of(name), "config", "published")


def part(name: Any, num_parameters: int, size_bytes: float) -> WeightPart:
    return WeightPart(name, num_parameters, round(size_bytes), "as the test says", "test")


def estimate_of(spec: ModelSpec, *weights: WeightPart, needed_bytes: int = 0, parts: int = 1) -> Estimate:
    """An estimate of these weights, with K and V in two bytes a value, over `parts` devices."""
    own = [
        (layer.window, max(1, layer.num_kv_heads // parts), layer.head_dim) for layer in spec.layers if layer.owns_kv
    ]
    groups = tuple(
        KVGroupFacts(
            kind="full" if window is None else "sliding",
            num_layers=own.count((window, heads, size)),
            num_kv_heads=heads,
            head_dim=size,
            window=window,
            token_bytes=4 * heads * size,
            tokens_per_sequence=1,
        )
        for window, heads, size in dict.fromkeys(own)
    )
    return Estimate("any", Ledger(()), KVFacts(groups), weights, spec.max_context, 1, needed_bytes, {})


TINY = estimate_of(
    spec_of("gemma-3-270m"),
    part("embedding", EMBEDDING, 2 * EMBEDDING),
    part("layers", LAYERS, 2 * LAYERS),
    part("vision", 10**9, 10**9),
    part("unused", 10**9, 10**9),
)
VLLM = PlanSettings(engine="vllm")
H100 = find_device("h100")


def traffic(settings: PlanSettings = VLLM, estimate: Estimate = TINY, name: str = "gemma-3-270m") -> Traffic:
    return Traffic(spec_of(name), settings, estimate)


def predict_tiny(settings: PlanSettings = VLLM, device: Device | Sequence[Device] = H100, **asked: Any) -> TimeEstimate:
    return predict(header_of("gemma-3-270m"), settings, TINY, device, **{"context": 1000, **asked})
