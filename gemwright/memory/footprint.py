"""What an engine will hold, line by line: weights, K/V cache, workspace. The plan that the engine allocates."""

from __future__ import annotations

from dataclasses import dataclass

from gemwright.memory.dtypes import DTYPE_BYTES, ComputeDtype
from gemwright.memory.kv_layout import KVLayout
from gemwright.memory.workspace import Workspace
from gemwright.spec.model_spec import ModelSpec
from gemwright.spec.weights import TensorSpec, list_tensors


@dataclass(frozen=True, slots=True)
class FootprintLine:
    """One line of the plan."""

    name: str
    planned_bytes: int


def packed_bytes(tensor: TensorSpec, dtype: ComputeDtype) -> int:
    """Return the bytes of one packed weight: norm weights stay float32, all else has the engine's dtype."""
    return tensor.num_elements * (4 if tensor.role == "norm" else DTYPE_BYTES[dtype])


def plan_footprint(
    spec: ModelSpec, layout: KVLayout, workspace: Workspace, dtype: ComputeDtype
) -> tuple[FootprintLine, ...]:
    """Return the lines that sum to what the engine allocates and keeps."""
    parts: dict[str, int] = {}
    for tensor in list_tensors(spec):
        parts[tensor.part] = parts.get(tensor.part, 0) + packed_bytes(tensor, dtype)
    lines = [FootprintLine(f"weights: {part.replace('_', ' ')}", size) for part, size in parts.items()]
    lines += [
        FootprintLine(
            f"K/V cache: {len(group.layers)} {group.kind} layers x {group.num_blocks} blocks", group.total_bytes
        )
        for group in layout.groups
    ]
    lines.append(FootprintLine("workspace: buffers of a step", workspace.buffer_bytes))
    return tuple(lines)
