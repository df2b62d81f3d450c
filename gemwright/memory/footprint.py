"""What an engine will hold, line by line: weights, K/V cache, workspace. The plan that the engine allocates."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

from gemwright.memory.dtypes import DTYPE_BYTES, ComputeDtype
from gemwright.memory.holding import REFERENCE, Form, HeldTensor, Holding
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


def plan_footprint(
    spec: ModelSpec,
    layout: KVLayout,
    workspace: Workspace,
    dtype: ComputeDtype,
    holding: Holding = REFERENCE,
    encodings: Mapping[str, str] | None = None,
) -> tuple[FootprintLine, ...]:
    """Return the lines that sum to what the engine allocates and keeps; `encodings` as in `plan_memory`."""
    lines = [*_weights_lines(spec, dtype, holding, tuple((encodings or {}).items()))]
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
def _weights_lines(
    spec: ModelSpec, dtype: ComputeDtype, holding: Holding, encodings: tuple[tuple[str, str], ...]
) -> tuple[FootprintLine, ...]:
    """Return the lines of the weights, which a planner that tries many lengths asks for again and again."""
    stored = dict(encodings)
    parts: dict[str, list[tuple[TensorSpec, HeldTensor]]] = {}
    for tensor in list_tensors(spec):
        held = holding.held(tensor, stored.get(tensor.name), dtype)
        parts.setdefault(tensor.part, []).append((tensor, held))
    return tuple(
        FootprintLine(
            f"weights: {part.replace('_', ' ')}",
            sum(held.total_bytes for _, held in tensors),
            ("weights", part),
            _weights_formula(tensors),
            _PART_KEYS[part],
        )
        for part, tensors in parts.items()
    )


def _weights_formula(tensors: list[tuple[TensorSpec, HeldTensor]]) -> str:
    """Return the sizes of tensors, those that lie in one form and encoding together."""
    if len(tensors) == 1:
        ((tensor, held),) = tensors
        if held.form == "array":
            return " x ".join(f"{size:,}" for size in tensor.shape) + f" x {held.piece_bytes} B"
        return f"{held.num_pieces:,} {_FORM_PIECES[held.form]} x {held.piece_bytes:,} B of {held.encoding}"
    counts: dict[tuple[bool, Form, str, int], int] = {}
    for tensor, held in tensors:
        key = (tensor.role == "norm", held.form, held.encoding, held.piece_bytes)
        counts[key] = counts.get(key, 0) + held.num_pieces
    shown = []
    for (is_norm, form, encoding, piece_bytes), num_pieces in sorted(counts.items(), key=lambda entry: entry[0][0]):
        name = "norm weights" if is_norm else _FORM_PIECES[form]
        ending = "" if form == "array" else f" of {encoding}"
        shown.append(f"{num_pieces:,} {name} x {piece_bytes:,} B{ending}")
    return f"{len(tensors)} tensors: " + " + ".join(shown)


_FORM_PIECES: dict[Form, str] = {"array": "values", "table": "rows", "panels": "panels of 32 outputs"}


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
