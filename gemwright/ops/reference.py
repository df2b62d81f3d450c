"""The plain torch backend: defines what every operation means, on CPU and GPU, and obeys the row law bit for bit.

What makes torch obey (measured, docs/log.md): MKL's strict reproducibility for float32 products, a fixed tile of rows
for bfloat16 ones, gelu written out with tanh, attention summed over key tiles at fixed absolute positions.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from gemwright.ops.backends import MKL_STRICT

# MKL reads this at its first product: it makes a float32 product's row independent of the number of rows and threads.
os.environ.setdefault(*MKL_STRICT)

import numpy as np
import torch
from numpy.typing import NDArray

from gemwright.errors import UnsupportedError
from gemwright.memory.dtypes import ComputeDtype
from gemwright.memory.kv_layout import KVLayout
from gemwright.memory.workspace import LOAD_CHUNK_BYTES, Workspace
from gemwright.ops.protocol import Indices, KeyRanges, KeysFromValues
from gemwright.ops.reference_attention import attend
from gemwright.spec.model_spec import RopeSpec
from gemwright.spec.tensor_source import TensorSource

TORCH_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}

ROW_TILE = {torch.float32: 8, torch.bfloat16: 16}
"""Rows of one matrix product where a row's bits would otherwise depend on the number of rows."""

NORM_ROWS = 64
"""Rows whose float32 copies exist at once."""


@dataclass(frozen=True, slots=True)
class TorchCache:
    """K and V of every group as [layers of the group, slots, kv_heads, head_dim], and where each layer reads.

    `keys` has None for a group that keeps V alone.
    """

    keys: tuple[torch.Tensor | None, ...]
    values: tuple[torch.Tensor, ...]
    layout: KVLayout

    def layer(self, layer: int) -> tuple[torch.Tensor | None, torch.Tensor]:
        """Return K (or None) and V that `layer` reads: [slots, kv_heads, head_dim] each."""
        group, slot = self.layout.group_of_layer[layer], self.layout.slot_of_layer[layer]
        keys = self.keys[group]
        return None if keys is None else keys[slot], self.values[group][slot]


class ReferenceOps:
    """Implements ops.protocol.Ops with torch."""

    name = "reference"

    def __init__(self, dtype: ComputeDtype, device: str = "cpu", threads: int | None = None) -> None:
        self.dtype: ComputeDtype = dtype
        self.torch_dtype = TORCH_DTYPES[dtype]
        if device != "cpu":
            _require_cuda(device)
        self.device = torch.device(device)
        if threads is not None:
            torch.set_num_threads(threads)

    def notes(self) -> tuple[str, ...]:
        """Say where this machine keeps less than the backend promises; see Ops.notes."""
        if self.device.type == "cpu" and self.dtype == "float32" and not float32_rows_are_independent():
            return (
                "this process's float32 products depend on the number of threads (no MKL in strict mode): results are "
                "the same in any company, but only for one number of threads",
            )
        return ()

    # Packing and memory

    def pack(self, sources: Sequence[TensorSource]) -> torch.Tensor:
        """Pack one matrix, its sources stacked by rows; see Ops.pack."""
        rows = sum(source.shape[0] for source in sources)
        packed = torch.empty((rows, *sources[0].shape[1:]), dtype=self.torch_dtype, device=self.device)
        at = 0
        for source in sources:
            row_bytes = 4 * int(np.prod(source.shape[1:], dtype=np.int64))
            step = max(1, LOAD_CHUNK_BYTES // max(1, row_bytes))
            for begin in range(0, source.shape[0], step):
                end = min(begin + step, source.shape[0])
                packed[at + begin : at + end].copy_(torch.from_numpy(source.read_rows(begin, end)))
            at += source.shape[0]
        return packed

    def pack_vector(self, source: TensorSource) -> torch.Tensor:
        """Pack a vector in the engine's dtype."""
        return self.pack([source])

    def pack_norm(self, source: TensorSource, offset: float) -> torch.Tensor:
        """Pack a norm weight in float32; see Ops.pack_norm."""
        return self.pack([source]).float() + offset

    @property
    def is_on_cpu(self) -> bool:
        """Whether weights, cache and buffers lie in the memory of the process."""
        return self.device.type == "cpu"

    def weight_bytes(self, weight: torch.Tensor) -> int:
        """Return the bytes of a packed weight."""
        return weight.nbytes

    def allocate_cache(self, layout: KVLayout) -> TorchCache:
        """Allocate K and V of every group; pages the system has not touched yet cost nothing until written."""
        shapes = [
            (len(group.layers), group.num_blocks * group.block_size, group.num_kv_heads, group.head_dim)
            for group in layout.groups
        ]

        def make(shape: tuple[int, ...]) -> torch.Tensor:
            return torch.empty(shape, dtype=self.torch_dtype, device=self.device)

        return TorchCache(
            keys=tuple(
                make(shape) if group.stores_keys else None for shape, group in zip(shapes, layout.groups, strict=True)
            ),
            values=tuple(make(shape) for shape in shapes),
            layout=layout,
        )

    def cache_bytes(self, cache: TorchCache) -> tuple[int, ...]:
        """Return the bytes of each group of a cache."""
        return tuple(
            values.nbytes + (0 if keys is None else keys.nbytes)
            for keys, values in zip(cache.keys, cache.values, strict=True)
        )

    def allocate_workspace(self, workspace: Workspace) -> dict[str, torch.Tensor]:
        """Allocate the buffers of a step, flat."""
        return {
            buffer.name: torch.empty(buffer.rows * buffer.width, dtype=TORCH_DTYPES[buffer.dtype], device=self.device)
            for buffer in workspace.buffers
        }

    def buffer_bytes(self, buffer: torch.Tensor) -> int:
        """Return the bytes of a buffer."""
        return buffer.nbytes

    def view(self, buffer: torch.Tensor, rows: int, width: int) -> torch.Tensor:
        """Return the head of a flat buffer as [rows, width]."""
        return buffer[: rows * width].view(rows, width)

    def split(self, x: torch.Tensor, widths: Sequence[int]) -> tuple[torch.Tensor, ...]:
        """Return views of neighboring columns."""
        return x[:, : sum(widths)].split(list(widths), dim=-1)

    def to_numpy(self, x: torch.Tensor) -> NDArray[np.float32]:
        """Return a float32 copy."""
        return np.array(x.detach().float().cpu().numpy())

    # Primitives

    def rotary_table(self, rope: RopeSpec, head_dim: int) -> torch.Tensor:
        """Return the frequencies [D / 2] in float32 (facts b.4), computed in torch as the reference does."""
        pairs = rope.num_rotated_pairs(head_dim)
        exponents = torch.arange(0, 2 * pairs, 2, dtype=torch.int64).float() / head_dim
        frequencies = 1.0 / (rope.theta**exponents)
        if pairs < head_dim // 2:
            frequencies = torch.cat((frequencies, torch.zeros(head_dim // 2 - pairs)))
        return (frequencies / rope.factor).to(self.device)

    def embed(self, table: torch.Tensor, ids: Indices, scale: float, out: torch.Tensor) -> None:
        """Look up and scale rows; see Ops.embed."""
        torch.index_select(table, 0, self._indices(ids), out=out)
        out.mul_(torch.tensor(scale).to(self.torch_dtype).item())

    def gather_rows(self, x: torch.Tensor, rows: Indices, out: torch.Tensor) -> None:
        """Copy chosen rows."""
        torch.index_select(x, 0, self._indices(rows), out=out)

    def rms_norm(self, x: torch.Tensor, weight: torch.Tensor | None, eps: float, width: int, out: torch.Tensor) -> None:
        """Normalize in float32, round once at the end; see Ops.rms_norm."""
        for begin in range(0, x.shape[0], NORM_ROWS):
            rows = x[begin : begin + NORM_ROWS].unflatten(-1, (-1, width)).float()
            rows = rows * torch.rsqrt(rows.pow(2).mean(-1, keepdim=True) + eps)
            if weight is not None:
                rows = rows * weight
            out[begin : begin + NORM_ROWS].unflatten(-1, (-1, width)).copy_(rows)

    def linear(self, x: torch.Tensor, weight: torch.Tensor, out: torch.Tensor) -> None:
        """Multiply in row tiles of a fixed size, the last one padded with zeros; see Ops.linear."""
        transposed = weight.t()
        if x.dtype == torch.float32 and x.device.type == "cpu" and float32_rows_are_independent():
            torch.mm(x, transposed, out=out) if out.is_contiguous() else out.copy_(torch.mm(x, transposed))
            return
        tile = ROW_TILE[x.dtype]
        whole = x.shape[0] - x.shape[0] % tile
        contiguous = out.is_contiguous() and x.is_contiguous()
        for begin in range(0, whole, tile):
            if contiguous:
                torch.mm(x[begin : begin + tile], transposed, out=out[begin : begin + tile])
            else:
                out[begin : begin + tile] = torch.mm(x[begin : begin + tile].contiguous(), transposed)
        if whole < x.shape[0]:
            padded = x.new_zeros((tile, x.shape[1]))
            padded[: x.shape[0] - whole] = x[whole:]
            out[whole:] = torch.mm(padded, transposed)[: x.shape[0] - whole]

    def rotary(self, x: torch.Tensor, table: torch.Tensor, positions: Indices) -> None:
        """Rotate halves in place, cosine and sine rounded to the engine's dtype as the reference does."""
        angles = torch.from_numpy(positions).to(self.device).float()[:, None] * table
        cosine = angles.cos().to(self.torch_dtype)[:, None]
        sine = angles.sin().to(self.torch_dtype)[:, None]
        heads = x.unflatten(-1, (-1, 2 * table.shape[0]))
        low, high = heads.chunk(2, dim=-1)
        turned_low = low * cosine - high * sine
        high.copy_(high * cosine + low * sine)
        low.copy_(turned_low)

    def write_cache(
        self, cache: TorchCache, layer: int, key: torch.Tensor | None, value: torch.Tensor, slots: Indices
    ) -> None:
        """Store K and V; see Ops.write_cache."""
        keys, values = cache.layer(layer)
        index = self._indices(slots)
        if keys is not None and key is not None:
            keys.index_copy_(0, index, key.reshape(-1, *keys.shape[1:]))
        values.index_copy_(0, index, value.reshape(-1, *values.shape[1:]))

    def attention(
        self,
        query: torch.Tensor,
        cache: TorchCache,
        layer: int,
        ranges: KeyRanges,
        scale: float,
        softcap: float | None,
        out: torch.Tensor,
        rebuild: KeysFromValues | None = None,
    ) -> None:
        """Attend sequence by sequence; see Ops.attention."""
        keys, values = cache.layer(layer)

        def rebuild_keys(tile: torch.Tensor, positions: Indices) -> torch.Tensor:
            assert rebuild is not None
            rows = (tile.float() * rebuild.norm_weight).to(tile.dtype).flatten(1)
            self.rotary(rows, rebuild.table, positions)
            return rows.unflatten(1, tile.shape[1:])

        attend(query, keys, values, ranges, scale, softcap, out, rebuild_keys)

    def gelu_gate(self, gate: torch.Tensor, up: torch.Tensor, out: torch.Tensor) -> None:
        """Compute gelu_tanh(gate) * up, each rounded once."""
        for begin in range(0, gate.shape[0], NORM_ROWS):
            rows = slice(begin, begin + NORM_ROWS)
            torch.mul(gelu_tanh(gate[rows]), up[rows], out=out[rows])

    def add(self, x: torch.Tensor, y: torch.Tensor, out: torch.Tensor) -> None:
        """Add."""
        torch.add(x, y, out=out)

    def multiply(self, x: torch.Tensor, factor: float | torch.Tensor, out: torch.Tensor) -> None:
        """Multiply by a number or a vector."""
        torch.mul(x, factor, out=out)

    def route(
        self, x: torch.Tensor, projection: torch.Tensor, per_expert_scale: torch.Tensor, num_chosen: int
    ) -> tuple[Any, Any]:
        """Softmax over all experts in float32, the best ones renormalized, then scaled (facts b.4)."""
        scores = x.new_empty((x.shape[0], projection.shape[0]))
        self.linear(x, projection, scores)
        weights, ids = torch.topk(torch.softmax(scores.float(), dim=-1), num_chosen, dim=-1)
        weights = weights / weights.sum(dim=-1, keepdim=True)
        return ids, weights * per_expert_scale[ids]

    def experts(
        self, x: torch.Tensor, chosen: tuple[Any, Any], gate_up: torch.Tensor, down: torch.Tensor, out: torch.Tensor
    ) -> None:
        """Run every expert on the rows that chose it and add in ascending order of experts; see Ops.experts."""
        ids, weights = chosen
        out.zero_()
        for expert in torch.unique(ids).tolist():
            rows, place = torch.where(ids == expert)
            inner = x.new_empty((len(rows), gate_up.shape[1]))
            self.linear(x[rows], gate_up[expert], inner)
            gate, up = inner.chunk(2, dim=-1)
            gated = torch.empty_like(gate, memory_format=torch.contiguous_format)
            self.gelu_gate(gate, up, gated)
            result = x.new_empty((len(rows), down.shape[1]))
            self.linear(gated, down[expert], result)
            out.index_add_(0, rows, (result * weights[rows, place, None]).to(out.dtype))

    def head(self, x: torch.Tensor, table: torch.Tensor, softcap: float | None, out: torch.Tensor) -> None:
        """Score the vocabulary; see Ops.head."""
        logits = out if self.torch_dtype == torch.float32 else x.new_empty(out.shape)
        self.linear(x, table, logits)
        if softcap is not None:
            logits.div_(softcap).tanh_().mul_(softcap)
        if logits is not out:
            out.copy_(logits)

    def _indices(self, indices: Indices) -> torch.Tensor:
        return torch.from_numpy(indices).to(self.device, torch.int64)


def _require_cuda(device: str) -> None:
    """Raise UnsupportedError for a CUDA device that is not here."""
    num_devices = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if int(device.partition(":")[2] or 0) >= num_devices:
        raise UnsupportedError(
            "this CUDA device is not usable", value=device, limit=f"{num_devices} devices", remedy="use --device cpu"
        )


@cache
def float32_rows_are_independent() -> bool:
    """Whether this process's float32 products give a row the same bits in any number of rows and threads: true with
    MKL's strict mode, false where torch has another BLAS or had used MKL before this module was imported."""
    threads = torch.get_num_threads()
    generator = torch.Generator().manual_seed(0)
    try:
        for inner, width in ((640, 1152), (1152, 72), (40, 576)):
            weight = torch.randn(width, inner, generator=generator).t()
            rows = torch.randn(64, inner, generator=generator)
            whole = rows @ weight
            for num_threads in (1, threads):
                torch.set_num_threads(num_threads)
                if not all(torch.equal(rows[:count] @ weight, whole[:count]) for count in (1, 2, 7, 16, 17, 64)):
                    return False
    finally:
        torch.set_num_threads(threads)
    return True


def gelu_tanh(x: torch.Tensor) -> torch.Tensor:
    """Return gelu in its tanh form, computed in float32 and rounded once. Written out: torch's own gelu treats the
    tail of a row of a width that is no multiple of 16 by another formula, which breaks the row law."""
    wide = x.float()
    inner = wide * wide * wide
    inner = (wide + 0.044715 * inner) * 0.7978845608028654
    return (0.5 * wide * (1.0 + torch.tanh(inner))).to(x.dtype)
