"""What an engine will hold, line by line: weights, K/V cache, workspace. The plan that the engine allocates."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from gemwright.memory.dtypes import DTYPE_BYTES, ComputeDtype
from gemwright.memory.kv_layout import KVGroup, KVLayout
from gemwright.memory.workspace import Workspace
from gemwright.spec.model_spec import ModelSpec
from gemwright.spec.weights import TensorSpec, list_tensors


@dataclass(frozen=True, slots=True)
class FootprintLine:
    """One line of the plan."""

    name: str
    planned_bytes: int
    key: tuple[str, str]
    """What it is for machines: ("weights", part), ("cache", group) or ("workspace", "buffers")."""
    formula: str
    """How the size comes about, with its numbers."""
    source: str
    """The keys of config.json, or the settings, that the numbers come from."""


def packed_bytes(tensor: TensorSpec, dtype: ComputeDtype) -> int:
    """Return the bytes of one packed weight: norm weights stay float32, all else has the engine's dtype."""
    return tensor.num_elements * (4 if tensor.role == "norm" else DTYPE_BYTES[dtype])


def plan_footprint(
    spec: ModelSpec, layout: KVLayout, workspace: Workspace, dtype: ComputeDtype
) -> tuple[FootprintLine, ...]:
    """Return the lines that sum to what the engine allocates and keeps."""
    lines = [*_weights_lines(spec, dtype)]
    lines += [_cache_line(group) for group in layout.groups]
    lines.append(
        FootprintLine(
            "workspace: buffers of a step",
            workspace.buffer_bytes,
            ("workspace", "buffers"),
            _buffers_formula(workspace),
            "max_num_batched_tokens; the widths of the widest layer",
        )
    )
    return tuple(lines)


def _buffers_formula(workspace: Workspace) -> str:
    """Return the sizes of the buffers, those of equal rows together."""
    widths: dict[tuple[int, int], int] = {}
    for buffer in workspace.buffers:
        key = (buffer.rows, DTYPE_BYTES[buffer.dtype])
        widths[key] = widths.get(key, 0) + buffer.width
    return " + ".join(f"{rows:,} rows x {width:,} x {size} B" for (rows, size), width in widths.items())


_PART_KEYS = {
    "embedding": "vocab_size, hidden_size",
    "per_layer_embedding": "vocab_size_per_layer_input, num_hidden_layers, hidden_size_per_layer_input",
    "attention": "layer_types, num_attention_heads, num_key_value_heads, head_dim, hidden_size",
    "feed_forward": "intermediate_size, hidden_size",
    "experts": "num_experts, moe_intermediate_size, hidden_size",
    "norm": "hidden_size, head_dim",
    "head": "vocab_size, hidden_size",
    "drafter": "backbone_hidden_size, hidden_size",
}


@lru_cache(maxsize=8)
def _weights_lines(spec: ModelSpec, dtype: ComputeDtype) -> tuple[FootprintLine, ...]:
    """Return the lines of the weights, which a planner that tries many lengths asks for again and again."""
    parts: dict[str, list[TensorSpec]] = {}
    for tensor in list_tensors(spec):
        parts.setdefault(tensor.part, []).append(tensor)
    return tuple(_weights_line(part, tensors, dtype) for part, tensors in parts.items())


def _weights_line(part: str, tensors: list[TensorSpec], dtype: ComputeDtype) -> FootprintLine:
    elements = {True: 0, False: 0}
    for tensor in tensors:
        elements[tensor.role == "norm"] += tensor.num_elements
    if len(tensors) == 1:
        counts = [" x ".join(f"{size:,}" for size in tensors[0].shape) + f" x {DTYPE_BYTES[dtype]} B"]
    else:
        counts = [f"{elements[False]:,} values x {DTYPE_BYTES[dtype]} B"] if elements[False] else []
        counts += [f"{elements[True]:,} norm weights x 4 B"] if elements[True] else []
        counts[0] = f"{len(tensors)} tensors: {counts[0]}"
    return FootprintLine(
        f"weights: {part.replace('_', ' ')}",
        sum(packed_bytes(tensor, dtype) for tensor in tensors),
        ("weights", part),
        " + ".join(counts),
        _PART_KEYS[part],
    )


def _cache_line(group: KVGroup) -> FootprintLine:
    kept = "K and V" if group.stores_keys else "V alone"
    heads = f"{group.num_kv_heads} heads x {group.head_dim}"
    return FootprintLine(
        f"K/V cache: {len(group.layers)} {group.kind} layers x {group.num_blocks} blocks",
        group.total_bytes,
        ("cache", str(group.index)),
        f"{len(group.layers)} layers x {group.num_blocks:,} blocks x {group.block_size} tokens x {kept} of {heads} x "
        f"{DTYPE_BYTES[group.dtype]} B",
        "layer_types, num_key_value_heads, head_dim, sliding_window; max_model_len, max_num_seqs, block_size",
    )
