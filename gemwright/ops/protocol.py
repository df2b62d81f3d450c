"""What a backend must offer, and nothing about how.

Buffers, weights, caches and tables are opaque outside `ops`. T tokens, R rows, H hidden, D head size. Results are
written to `out`, a buffer the engine announced (memory.workspace); index arguments are numpy int32.

Row law: row t of a result depends, bit for bit, on row t of the inputs and on cached keys in its key range, and on
nothing else: not on T, the other rows, the block size or the number of threads.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from gemwright.memory.dtypes import ComputeDtype
from gemwright.memory.kv_layout import KVLayout
from gemwright.memory.workspace import Workspace
from gemwright.spec.model_spec import RopeSpec
from gemwright.spec.tensor_source import TensorSource

Buffer = Any
Weight = Any
Cache = Any
RotaryTable = Any
Indices = NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class KeyRanges:
    """Where the queries of a step find their keys in one K/V group.

    Query t sees the keys at positions key_begin[t] <= p < key_end[t] of its own sequence: no window, no mask. Sequence
    s owns the queries query_start[s]..query_start[s + 1]; its key at position p lies in slot
    block_table[s, p // block_size] * block_size + p % block_size.
    """

    query_start: Indices
    key_begin: Indices
    key_end: Indices
    block_table: Indices
    block_size: int


@dataclass(frozen=True, slots=True)
class KeysFromValues:
    """How a layer's keys come from its cached values: K = RoPE(V * norm_weight) at the key's own position."""

    norm_weight: Weight
    table: RotaryTable


@dataclass(frozen=True, slots=True)
class StepInputs:
    """One step as a backend sees it: the new tokens of one or more sequences, laid flat.

    `ranges` and `slots` have one entry a K/V group: where the queries find their keys, and where each token's K and V
    are written. `logit_rows` are the rows whose logits somebody wants, in rising order.
    """

    token_ids: Indices
    positions: Indices
    ranges: tuple[KeyRanges, ...]
    slots: tuple[Indices, ...]
    logit_rows: Indices

    def only_logit_rows(self) -> StepInputs:
        """Return the step of the wanted rows alone: what is left to do once every K/V is written."""
        rows = self.logit_rows
        return StepInputs(
            token_ids=self.token_ids[rows],
            positions=self.positions[rows],
            ranges=tuple(
                replace(
                    ranges,
                    query_start=np.searchsorted(rows, ranges.query_start).astype(np.int32),
                    key_begin=ranges.key_begin[rows],
                    key_end=ranges.key_end[rows],
                )
                for ranges in self.ranges
            ),
            slots=tuple(slots[rows] for slots in self.slots),
            logit_rows=np.arange(len(rows), dtype=np.int32),
        )


class Ops(Protocol):
    """A backend: packs weights, holds the cache, computes the primitives."""

    @property
    def name(self) -> str:
        """Which backend this is, as shown to users."""
        ...

    @property
    def dtype(self) -> ComputeDtype:
        """What buffers, weights and the cache are held in."""
        ...

    def notes(self) -> tuple[str, ...]:
        """Return one line for each promise that cannot be kept in full on this machine."""
        ...

    def pack(self, sources: Sequence[TensorSource]) -> Weight:
        """Pack a matrix (or stacked expert matrices) in the engine's dtype; several sources stack their rows."""
        ...

    def pack_vector(self, source: TensorSource) -> Weight:
        """Pack a vector, rounded to the engine's dtype."""
        ...

    def pack_norm(self, source: TensorSource, offset: float) -> Weight:
        """Pack a norm weight: rounded to the engine's dtype, then `offset` added in float32 (facts b.0)."""
        ...

    @property
    def is_on_cpu(self) -> bool:
        """Whether weights, cache and buffers lie in the memory of the process."""
        ...

    def weight_bytes(self, weight: Weight) -> int:
        """Return the bytes a packed weight takes."""
        ...

    def allocate_cache(self, layout: KVLayout) -> Cache:
        """Allocate exactly layout.total_bytes."""
        ...

    def cache_bytes(self, cache: Cache) -> tuple[int, ...]:
        """Return the bytes that each group of a cache takes."""
        ...

    def allocate_workspace(self, workspace: Workspace) -> dict[str, Buffer]:
        """Allocate every buffer of the workspace, by name."""
        ...

    def buffer_bytes(self, buffer: Buffer) -> int:
        """Return the bytes a workspace buffer takes."""
        ...

    def view(self, buffer: Buffer, rows: int, width: int) -> Buffer:
        """Return the first rows * width values of a workspace buffer as [rows, width]."""
        ...

    def split(self, x: Buffer, widths: Sequence[int]) -> tuple[Buffer, ...]:
        """Return views of neighboring columns of x."""
        ...

    def to_numpy(self, x: Buffer) -> NDArray[np.float32]:
        """Return a copy of x as float32."""
        ...

    def rotary_table(self, rope: RopeSpec, head_dim: int) -> RotaryTable:
        """Prepare a rotary table."""
        ...

    def embed(self, table: Weight, ids: Indices, scale: float, out: Buffer) -> None:
        """out[T,H] = table[ids] * scale, the scale rounded to the engine's dtype first (facts b.0)."""
        ...

    def gather_rows(self, x: Buffer, rows: Indices, out: Buffer) -> None:
        """out[R,H] = x[rows]."""
        ...

    def rms_norm(self, x: Buffer, weight: Weight | None, eps: float, width: int, out: Buffer) -> None:
        """Normalize every `width` neighboring values of a row of x; out may be x (facts b.0)."""
        ...

    def linear(self, x: Buffer, weight: Weight, out: Buffer) -> None:
        """out[T,N] = x[T,K] times weight[N,K] transposed, accumulated in float32."""
        ...

    def rotary(self, x: Buffer, table: RotaryTable, positions: Indices) -> None:
        """Turn every head of x[T, heads * D] in place by its position."""
        ...

    def write_cache(self, cache: Cache, layer: int, key: Buffer | None, value: Buffer, slots: Indices) -> None:
        """Store key and value [T, kv_heads * D] of a layer in the slots of its group; no key where it is rebuilt."""
        ...

    def attention(
        self,
        query: Buffer,
        cache: Cache,
        layer: int,
        ranges: KeyRanges,
        scale: float,
        softcap: float | None,
        out: Buffer,
        rebuild: KeysFromValues | None = None,
    ) -> None:
        """out[T, heads * D] = softmax(softcap(query . keys * scale)) . values over each query's key range, grouped
        heads, K and V read from the cache that the layer reads; keys by `rebuild` where the cache keeps V alone."""
        ...

    def gelu_gate(self, gate: Buffer, up: Buffer, out: Buffer) -> None:
        """out = gelu_tanh(gate) * up."""
        ...

    def add(self, x: Buffer, y: Buffer, out: Buffer) -> None:
        """out = x + y; out may be x or y."""
        ...

    def multiply(self, x: Buffer, factor: float | Weight, out: Buffer) -> None:
        """out = x * factor, a number or a vector of one element or of x's width; out may be x."""
        ...

    def route(self, x: Buffer, projection: Weight, per_expert_scale: Weight, num_chosen: int) -> tuple[Any, Any]:
        """Return the chosen experts' ids and weights [T, num_chosen] (facts b.4), opaque, for `experts`."""
        ...

    def experts(self, x: Buffer, chosen: tuple[Any, Any], gate_up: Weight, down: Weight, out: Buffer) -> None:
        """out = sum over the chosen experts, in ascending order of their ids, of weight * down(gelu(gate) * up)."""
        ...

    def head(self, x: Buffer, table: Weight, softcap: float | None, out: Buffer) -> None:
        """out float32 [R,V] = softcap(x times table transposed), rounded to the engine's dtype where it rounds."""
        ...
