"""The layers that own K/V, gathered by shape and reach: what every engine's cache is computed from."""

from __future__ import annotations

from dataclasses import dataclass

from gemwright.errors import RequestError, UnsupportedError
from gemwright.planner.drafters import find_drafter
from gemwright.planner.settings import PlanSettings
from gemwright.planner.weights import WeightPart, lora_bytes, weigh_drafter
from gemwright.spec.model_header import ModelHeader
from gemwright.spec.model_spec import ModelSpec


@dataclass(frozen=True, slots=True)
class KindOfLayer:
    """Layers that own K/V of one shape and one reach."""

    window: int | None
    """Keys that a query sees; None on full layers."""
    num_layers: int
    num_kv_heads: int
    head_dim: int

    @property
    def kind(self) -> str:
        """Return "full" or "sliding"."""
        return "full" if self.window is None else "sliding"

    @property
    def kv_width(self) -> int:
        """Values of one token's keys (its values are as many)."""
        return self.num_kv_heads * self.head_dim


def kinds_of_layers(spec: ModelSpec) -> tuple[KindOfLayer, ...]:
    """Return the kinds of layers that own K/V, full ones first.

    Layers that read another layer's cache own nothing. Raises UnsupportedError for a drafter alone: none of its layers
    owns any.
    """
    counts: dict[tuple[int | None, int, int], int] = {}
    for layer in spec.layers:
        if layer.owns_kv:
            key = (layer.window, layer.num_kv_heads, layer.head_dim)
            counts[key] = counts.get(key, 0) + 1
    if not counts:
        raise UnsupportedError(
            "a drafter cannot be planned alone: it owns no K/V and reads its target's",
            value=f"{spec.num_layers} layers, none of which owns K/V",
            remedy="plan its target, with --draft",
        )
    kinds = [KindOfLayer(window, count, heads, head_dim) for (window, heads, head_dim), count in counts.items()]
    return tuple(sorted(kinds, key=lambda kind: (kind.window is not None, kind.window or 0)))


def check_length(spec: ModelSpec, length: int, flag: str) -> int:
    """Return the length. Raises RequestError where it is beyond the model's context."""
    if length > spec.max_context:
        raise RequestError(
            "the planned length is beyond the model's context",
            value=f"{length} tokens",
            limit=f"{spec.max_context} tokens",
            remedy=f"lower {flag}",
        )
    return length


def drafter_part(header: ModelHeader, settings: PlanSettings) -> WeightPart | None:
    """Return the weights of the model's drafter, None where none was asked for.

    Raises UnsupportedError for models that have none.
    """
    if not settings.draft:
        return None
    hub_id, spec = find_drafter(header.spec)
    return weigh_drafter(ModelHeader(hub_id, spec, "config", "published"), settings)


def adapter_bytes(spec: ModelSpec, settings: PlanSettings, dtype: str) -> tuple[int, str]:
    """Return the bytes of all LoRA adapters beside the model, 0 where none was asked for, and how they come about."""
    if settings.lora_rank is None:
        return 0, ""
    size, formula = lora_bytes(spec, settings.lora_rank, dtype)
    count = settings.num_loras or 1
    return count * size, f"{count} x ({formula})"
