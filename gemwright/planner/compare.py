"""Models or settings side by side, and for two of them what changes and why.

Reasons are read from the specs: the fields in which the two models differ, beside the lines that those fields make.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Final

from gemwright.errors import show_bytes
from gemwright.planner.answers import Plan
from gemwright.planner.devices import Device
from gemwright.planner.ledger import Difference
from gemwright.planner.settings import PlanSettings, flag
from gemwright.spec.model_spec import LayerSpec, ModelSpec


@dataclass(frozen=True, slots=True)
class ComparedModel:
    """One column: what a plan of its own says, in its own memory."""

    plan: Plan

    @property
    def longest_context(self) -> int | None:
        """In the memory that this column names; None where it names none."""
        return None if self.plan.memory_bytes is None else self.plan.max_context_tokens

    @property
    def most_users(self) -> int | None:
        """Of the planned length in that memory; None where none is named."""
        return None if self.plan.memory_bytes is None else self.plan.max_num_seqs

    def to_dict(self) -> dict[str, Any]:
        """Return the fields of the JSON output."""
        found = self.plan.estimate
        return {
            "model": self.plan.header.name,
            "engine": found.engine,
            "memory_bytes": self.plan.memory_bytes,
            "fits": self.plan.fits,
            "needed_bytes": self.plan.needed_bytes,
            "total_bytes": self.plan.ledger.total_bytes,
            "weights_bytes": found.weights_bytes,
            "bytes_per_token_full": found.kv.bytes_per_token_full,
            "sliding_bytes_per_sequence": found.kv.sliding_bytes_per_sequence,
            "bytes_per_sequence": found.kv.bytes_per_sequence,
            "max_context_tokens": self.longest_context,
            "max_num_seqs": self.most_users,
        }


@dataclass(frozen=True, slots=True)
class Reasoned:
    """A line that differs, and the fields that make it differ."""

    difference: Difference
    reason: str
    """Such as "full layers 4 -> 8, K/V heads of full layers 2 -> 1"; the two formulas where no field explains it."""

    def to_dict(self) -> dict[str, Any]:
        """Return the fields of the JSON output."""
        return {"name": self.difference.name, "change_bytes": self.difference.change_bytes, "reason": self.reason}


@dataclass(frozen=True, slots=True)
class Comparison:
    """Columns side by side; the differences from the first to the second where there are just two."""

    models: tuple[ComparedModel, ...]
    differences: tuple[Reasoned, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return the fields of the JSON output."""
        return {
            "models": [model.to_dict() for model in self.models],
            "differences": [reasoned.to_dict() for reasoned in self.differences],
        }


def compare(plans: Sequence[Plan]) -> Comparison:
    """Return plans side by side, each with what fits in its own memory where it names one."""
    models = tuple(ComparedModel(plan) for plan in plans)
    if len(plans) != 2:
        return Comparison(models, ())
    before, after = plans
    changes = spec_changes(before.header.spec, after.header.spec)
    changes["settings"] = _setting_changes(before.settings, after.settings)
    rows = before.ledger.difference(after.ledger)
    return Comparison(models, tuple(Reasoned(row, _reason(row, changes)) for row in rows))


_REASONS: Final = (
    ("per-layer embedding", ("per-layer inputs",)),
    ("per layer embedding", ("per-layer inputs",)),
    ("embedding", ("embedding",)),
    ("head", ("embedding",)),
    ("experts", ("experts",)),
    ("feed forward", ("feed-forward",)),
    ("attention", ("attention",)),
    ("layers", ("attention", "feed-forward")),
    ("norm", ("attention",)),
    ("vision", ("vision",)),
    ("audio", ("audio",)),
    ("projector", ("projector",)),
)
"""Words in the subject of a line of weights, with the topics that explain it; the first that is found counts."""


def _reason(row: Difference, changes: dict[str, list[str]]) -> str:
    line = row.after or row.before
    section, _, subject = ("", "", "") if line is None else line.name.partition(": ")
    topics: tuple[str, ...] = ()
    if section == "weights":
        topics = next((topics for word, topics in _REASONS if word in subject), ())
    elif section == "K/V cache":
        topics = tuple(kind for kind in ("full", "sliding") if kind in subject) or ("full", "sliding")
    elif section == "workspace":
        topics = ("embedding", "attention", "feed-forward", "experts", "per-layer inputs")
    found = [text for topic in (*topics, "settings") for text in changes[topic]]
    return ", ".join(dict.fromkeys(found)) or row.reason


def spec_changes(before: ModelSpec, after: ModelSpec) -> dict[str, list[str]]:
    """Return in words the fields in which two models differ, by topic: embedding, attention, feed-forward, experts,
    full, sliding, per-layer inputs, vision, audio, projector."""
    first, second = _facts(before), _facts(after)
    return {
        topic: [
            f"{name} {first[topic].get(name, 'none')} -> {second[topic].get(name, 'none')}"
            for name in dict.fromkeys([*first[topic], *second[topic]])
            if first[topic].get(name) != second[topic].get(name)
        ]
        for topic in first
    }


def _facts(spec: ModelSpec) -> dict[str, dict[str, str]]:
    """Return what lines of a ledger depend on, by topic, each fact with its name and its value."""
    layers = spec.layers
    size = {"layers": f"{spec.num_layers}", "hidden size": f"{spec.hidden_size}"}
    facts = {
        "embedding": {
            "vocabulary": f"{spec.vocab_size}",
            "hidden size": f"{spec.hidden_size}",
            "head": "tied" if spec.tied_head else "its own",
        },
        "attention": {
            **size,
            "query heads": _values(layers, "num_query_heads"),
            "K/V heads": _values(layers, "num_kv_heads"),
            "head size": _values(layers, "head_dim"),
        },
        "feed-forward": {**size, "feed-forward width": _values(layers, "feed_forward_width")},
        "experts": _experts(spec),
        "full": _cache_facts([layer for layer in layers if layer.window is None], "full"),
        "sliding": _cache_facts([layer for layer in layers if layer.window is not None], "sliding"),
        "per-layer inputs": {},
    }
    if spec.per_layer_inputs is not None:
        facts["per-layer inputs"] = {
            "per-layer width": f"{spec.num_layers} x {spec.per_layer_inputs.width}",
            "per-layer vocabulary": f"{spec.per_layer_inputs.vocab_size}",
        }
    for name in ("vision", "audio", "projector"):
        values = sum(tensor.num_elements for tower in spec.towers if tower.name == name for tensor in tower.tensors)
        facts[name] = {f"{name} tower": f"{values:,} values"} if values else {}
    return facts


def _experts(spec: ModelSpec) -> dict[str, str]:
    experts = next((layer.experts for layer in spec.layers if layer.experts is not None), None)
    if experts is None:
        return {}
    return {
        "experts": f"{spec.num_layers} x {experts.num_experts}",
        "width of an expert": f"{experts.width}",
        "hidden size": f"{spec.hidden_size}",
    }


def _cache_facts(layers: Sequence[LayerSpec], kind: str) -> dict[str, str]:
    owners = [layer for layer in layers if layer.owns_kv]
    facts = {f"{kind} layers with a cache": f"{len(owners)}"}
    if len(owners) < len(layers):
        facts[f"{kind} layers that share one"] = f"{len(layers) - len(owners)}"
    if owners:
        facts[f"K/V heads of {kind} layers"] = _values(owners, "num_kv_heads")
        facts[f"head size of {kind} layers"] = _values(owners, "head_dim")
        is_one = all(layer.k_equals_v for layer in owners)
        facts[f"K and V of {kind} layers"] = "one projection" if is_one else "two projections"
        if kind == "sliding":
            facts["window"] = _values(owners, "window")
    return facts


def _values(layers: Sequence[LayerSpec], name: str) -> str:
    """Return the values of a field over the layers, each once: "8" or "8/16"."""
    return "/".join(dict.fromkeys(str(getattr(layer, name)) for layer in layers))


def _setting_changes(before: PlanSettings, after: PlanSettings) -> list[str]:
    found = []
    for entry in fields(PlanSettings):
        first, second = getattr(before, entry.name), getattr(after, entry.name)
        if first != second:
            is_size = entry.name.endswith("_bytes")
            shown = [show_bytes(value) if is_size and value else _shown(value) for value in (first, second)]
            found.append(f"{flag(entry.name)} {' -> '.join(shown)}")
    return found


def _shown(value: Any) -> str:
    """Return a setting as people read it."""
    if isinstance(value, Device):
        return value.name
    if isinstance(value, Mapping):
        return ",".join(f"{name}={factor:g}" for name, factor in value.items()) or "none"
    return "none" if value is None else str(value)
