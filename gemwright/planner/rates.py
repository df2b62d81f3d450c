"""Several devices as one: what a tensor split and a split by layers make of their bandwidths and peaks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from gemwright.errors import RequestError
from gemwright.planner.devices import Device

Split = Literal["tensor", "layer"]
"""tensor: every device computes a part of every layer. layer: each has some of the layers, and they take turns."""


@dataclass(frozen=True, slots=True)
class Rates:
    """Several devices as one."""

    num_devices: int
    split: Split
    bandwidth: float | None
    peak: float | None
    dtype: str | None
    """Of the peak."""
    slowest: Device


def combine(devices: Sequence[Device], split: Split, dtypes: Sequence[str]) -> Rates:
    """Return several devices as one.

    tensor: equal parts, so that all wait for the slowest: its rates times their number. layer: parts in proportion to
    memory, one after the other: the harmonic mean of rates, weighted by memory.
    """
    if not devices:
        raise RequestError("a prediction needs a device", value=0, limit="at least one")
    slowest = min(devices, key=lambda device: device.bandwidth_bytes_per_s or math.inf)
    dtype = next((name for name in dtypes if all(name in device.peak_flops for device in devices)), None)
    bandwidths = [device.bandwidth_bytes_per_s for device in devices]
    peaks = [None if dtype is None else device.peak_flops[dtype] for device in devices]
    if split == "tensor":
        combined = [_all_as_slowest(values) for values in (bandwidths, peaks)]
    else:
        sizes = [device.memory_bytes for device in devices]
        weights = [1.0] * len(sizes) if None in sizes else [float(size or 0) for size in sizes]
        combined = [_harmonic_mean(values, weights) for values in (bandwidths, peaks)]
    return Rates(len(devices), split, combined[0], combined[1], dtype, slowest)


def _all_as_slowest(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return None if len(known) < len(values) else len(known) * min(known)


def _harmonic_mean(values: Sequence[float | None], weights: Sequence[float]) -> float | None:
    known = [value for value in values if value is not None]
    if len(known) < len(values):
        return None
    return sum(weights) / sum(weight / value for weight, value in zip(weights, known, strict=True))
