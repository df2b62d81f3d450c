"""Attention of the torch backend: an online softmax over key tiles at fixed absolute positions."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch

from gemwright.memory.workspace import ATTENTION_ROWS
from gemwright.ops.protocol import Indices, KeyRanges

KEY_TILE = 64
"""Keys summed at once. Tiles begin at multiples of it whatever the KV block size, so that neither the block size nor
the place where a prompt was cut changes the order of a sum."""

QUERY_TILE = 8
"""Query rows (grouped heads folded in) of one product; see ROW_TILE in ops.reference."""


RebuildKeys = Callable[[torch.Tensor, Indices], torch.Tensor]
"""Turns values [keys, kv_heads, D] at their positions into keys of the same shape."""


def attend(
    query: torch.Tensor,
    keys: torch.Tensor | None,
    values: torch.Tensor,
    ranges: KeyRanges,
    scale: float,
    softcap: float | None,
    out: torch.Tensor,
    rebuild_keys: RebuildKeys,
) -> None:
    """Compute attention for every sequence of a step, in float32, rounded once into `out`.

    query [T, heads * D], keys and values [slots, kv_heads, D], out [T, heads * D]. Without `keys` each tile's keys are
    rebuilt from its values.
    """
    for sequence in range(len(ranges.query_start) - 1):
        first, last = int(ranges.query_start[sequence]), int(ranges.query_start[sequence + 1])
        for begin in range(first, last, ATTENTION_ROWS):
            rows = slice(begin, min(begin + ATTENTION_ROWS, last))
            _attend_rows(
                query[rows],
                keys,
                values,
                ranges.key_begin[rows],
                ranges.key_end[rows],
                ranges.block_table[sequence],
                ranges.block_size,
                scale,
                softcap,
                out[rows],
                rebuild_keys,
            )


def _attend_rows(
    query: torch.Tensor,
    keys: torch.Tensor | None,
    values: torch.Tensor,
    key_begin: Indices,
    key_end: Indices,
    block_table: Indices,
    block_size: int,
    scale: float,
    softcap: float | None,
    out: torch.Tensor,
    rebuild_keys: RebuildKeys,
) -> None:
    num_kv_heads, head_dim = values.shape[1:]
    num_rows = query.shape[0]
    # The query heads of one K/V head become rows of one product: [kv_heads, rows * group, D].
    folded = query.unflatten(-1, (num_kv_heads, -1, head_dim)).permute(1, 0, 2, 3).flatten(1, 2)
    group = folded.shape[1] // num_rows
    num_tiles = -(-folded.shape[1] // QUERY_TILE)
    padded = torch.zeros((num_kv_heads, num_tiles * QUERY_TILE, head_dim), device=query.device)
    padded[:, : folded.shape[1]] = folded
    tiles = padded.view(num_kv_heads, num_tiles, QUERY_TILE, head_dim)
    row_begin = np.zeros(num_tiles * QUERY_TILE, dtype=np.int64)
    row_end = np.zeros(num_tiles * QUERY_TILE, dtype=np.int64)
    row_begin[: num_rows * group] = np.repeat(key_begin, group)
    row_end[: num_rows * group] = np.repeat(key_end, group)

    shape = (num_kv_heads, num_tiles, QUERY_TILE)
    highest = torch.full((*shape, 1), -torch.inf, device=query.device)
    total = torch.zeros((*shape, 1), device=query.device)
    summed = torch.zeros((*shape, head_dim), device=query.device)
    for tile in range(int(key_begin.min()) // KEY_TILE, -(-int(key_end.max()) // KEY_TILE)):
        low, high = tile * KEY_TILE, (tile + 1) * KEY_TILE
        seeing = np.flatnonzero((row_begin < high) & (row_end > low))
        if len(seeing) == 0:
            continue
        first, last = seeing[0] // QUERY_TILE, seeing[-1] // QUERY_TILE + 1
        rows = slice(first * QUERY_TILE, last * QUERY_TILE)
        key, value = _gather_tile(
            keys,
            values,
            block_table,
            block_size,
            low,
            int(row_begin[seeing].min()),
            int(row_end[seeing].max()),
            rebuild_keys,
        )
        active = tiles[:, first:last]
        scores = _tile_product(active, key.transpose(-1, -2)) * scale
        if softcap is not None:
            scores = torch.tanh(scores / softcap) * softcap
        if row_begin[rows].max() > low or row_end[rows].min() < high:
            positions = np.arange(low, high)
            outside = (positions < row_begin[rows, None]) | (positions >= row_end[rows, None])
            hidden = torch.from_numpy(outside).to(query.device)
            scores.masked_fill_(hidden.view(last - first, QUERY_TILE, KEY_TILE), -torch.inf)
        # A row that sees nothing in this tile keeps its state to the bit: its factor is exp(0) and it adds zeros.
        before = highest[:, first:last]
        after = torch.maximum(before, scores.amax(-1, keepdim=True))
        anchor = torch.where(after == -torch.inf, 0.0, after)
        weights = torch.exp(scores - anchor)
        factor = torch.exp(before - anchor)
        total[:, first:last] = total[:, first:last] * factor + weights.sum(-1, keepdim=True)
        summed[:, first:last] = summed[:, first:last] * factor + _tile_product(weights, value)
        highest[:, first:last] = after
    result = (summed / torch.where(total == 0, 1.0, total)).flatten(1, 2)[:, : num_rows * group]
    out.unflatten(-1, (num_kv_heads, group, head_dim)).copy_(result.unflatten(1, (num_rows, group)).permute(1, 0, 2, 3))


def _gather_tile(
    keys: torch.Tensor | None,
    values: torch.Tensor,
    block_table: Indices,
    block_size: int,
    low: int,
    begin: int,
    end: int,
    rebuild_keys: RebuildKeys,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Read one tile's keys and values through the block table: float32 [kv_heads, KEY_TILE, D], zero outside
    begin..end, so that whatever lies in slots of other requests cannot reach a sum."""
    first, last = max(low, begin), min(low + KEY_TILE, end)
    positions = np.arange(first, last, dtype=np.int32)
    slots = block_table[positions // block_size].astype(np.int64) * block_size + positions % block_size
    index = torch.from_numpy(slots).to(values.device)
    value_rows = values.index_select(0, index)
    key_rows = rebuild_keys(value_rows, positions) if keys is None else keys.index_select(0, index)
    gathered = []
    for rows in (key_rows, value_rows):
        tile = torch.zeros((rows.shape[1], KEY_TILE, rows.shape[2]), device=rows.device)
        tile[:, first - low : last - low] = rows.transpose(0, 1)
        gathered.append(tile)
    return gathered[0], gathered[1]


def _tile_product(rows: torch.Tensor, matrix: torch.Tensor) -> torch.Tensor:
    """Multiply [kv_heads, tiles, QUERY_TILE, K] by [kv_heads, K, N] tile by tile."""
    if rows.shape[1] == 1:
        return torch.bmm(rows[:, 0], matrix)[:, None]
    return torch.stack(
        [torch.bmm(rows[head], matrix[head].expand(rows.shape[1], -1, -1)) for head in range(rows.shape[0])]
    )
