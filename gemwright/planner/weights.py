"""What a model's weights take, part by part: exactly from a header, else from a named recipe."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

WeightName = Literal[
    "embedding", "per-layer embedding", "layers", "experts", "norms", "head", "vision", "audio", "projector", "drafter",
    "unused",
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class WeightPart:
    """One part of a model's weights."""

    name: WeightName
    num_parameters: int
    size_bytes: int
    formula: str
    """Such as "262144 x 640 x 2 B" or "197 tensors of the header"."""
    source: str
    """Where its numbers stand: "config.json", "header of model.safetensors", "recipe q4_k_m"."""
    error_bytes: int = 0
    """How far off the size may be: 0 from a header, a share of it from a recipe."""
