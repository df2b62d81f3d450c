"""From a schedule to the flat arrays of a step: ids, positions, key ranges, block tables, rows wanted. Pure functions.

Here, and only here, the window is applied: it becomes the begin of each query's key range.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from gemwright.memory.kv_layout import KVGroup, KVLayout
from gemwright.ops.protocol import Indices, KeyRanges, StepInputs


@dataclass(frozen=True, slots=True)
class SequenceChunk:
    """The new tokens of one sequence in a step.

    `begin` is the position of the first of `token_ids`; `tables` holds the block table of every K/V group, covering
    all positions up to the chunk's end; the last `num_logit_rows` tokens get logits.
    """

    token_ids: Sequence[int]
    begin: int
    tables: Sequence[Sequence[int]]
    num_logit_rows: int


def build_step(chunks: Sequence[SequenceChunk], layout: KVLayout) -> StepInputs:
    """Lay the chunks flat, in their order."""
    lengths = [len(chunk.token_ids) for chunk in chunks]
    query_start = np.concatenate(([0], np.cumsum(lengths))).astype(np.int32)
    positions = np.concatenate(
        [np.arange(chunk.begin, chunk.begin + length) for chunk, length in zip(chunks, lengths, strict=True)]
    ).astype(np.int32)
    rows = [
        np.arange(end - chunk.num_logit_rows, end) for chunk, end in zip(chunks, query_start[1:].tolist(), strict=True)
    ]
    tables = [_block_table([chunk.tables[group.index] for chunk in chunks]) for group in layout.groups]
    sequence_of_row = np.repeat(np.arange(len(chunks)), lengths)
    return StepInputs(
        token_ids=np.concatenate([np.asarray(chunk.token_ids, dtype=np.int32) for chunk in chunks]),
        positions=positions,
        ranges=tuple(
            KeyRanges(query_start, key_begin(group, positions), positions + 1, table, layout.block_size)
            for group, table in zip(layout.groups, tables, strict=True)
        ),
        slots=tuple(
            table[sequence_of_row, positions // layout.block_size] * layout.block_size + positions % layout.block_size
            for table in tables
        ),
        logit_rows=np.concatenate(rows).astype(np.int32),
    )


def key_begin(group: KVGroup, positions: Indices) -> Indices:
    """Return the first key each query sees: the window's `window` keys end with the query itself (facts b.0)."""
    if group.window is None:
        return np.zeros_like(positions)
    return np.maximum(0, positions - group.window + 1)


def _block_table(tables: Sequence[Sequence[int]]) -> Indices:
    width = max(len(table) for table in tables)
    padded = np.full((len(tables), width), -1, dtype=np.int32)
    for row, table in zip(padded, tables, strict=True):
        row[: len(table)] = table
    return padded
