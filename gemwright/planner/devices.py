"""Machines: this one, and a table of known accelerators and processors with memory, bandwidth and peak rates."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class Device:
    """What one device can hold and how fast it can be."""

    name: str
    kind: Literal["gpu", "cpu", "npu"]
    """gpu: memory of its own, or shared with the processor where `is_unified`."""
    memory_bytes: int | None
    bandwidth_bytes_per_s: float | None
    """Of its memory, as published, or as measured on this machine."""
    peak_flops: Mapping[str, float]
    """Dense operations a second by dtype: "float32", "bfloat16", "float16", "fp8", "int8"; absent where unknown."""
    source: str
    """Where these numbers are published."""
    is_unified: bool = False
