"""From a schedule to flat arrays: written-out examples, the window, and that freed blocks are never addressed."""

from __future__ import annotations

import numpy as np
import pytest

from gemwright.engine.step import SequenceChunk, build_step, key_begin
from gemwright.memory.block_manager import NO_BLOCK, BlockManager
from gemwright.memory.kv_layout import KVLayout, plan_layout
from gemwright.ops.protocol import StepInputs
from gemwright.spec.families import read_config
from gemwright.testing import TINY_CONFIGS


def layout(*, block_size: int = 4, window: int = 5) -> KVLayout:
    """Group 0 slides, group 1 is full."""
    spec = read_config({**TINY_CONFIGS["gemma3"], "sliding_window": window})
    return plan_layout(
        spec,
        block_size=block_size,
        dtype="float32",
        max_model_len=64,
        max_num_seqs=3,
        step_tokens=16,
        budget_bytes=None,
    )


def test_one_sequence_written_out() -> None:
    """Positions 6 to 8 with blocks of 4 and a window of 5; the sliding group has given block 0 back."""
    step = build_step([SequenceChunk([30, 31, 32], 6, [[NO_BLOCK, 7, 2], [5, 1, 9]], 1)], layout())
    assert step.token_ids.tolist() == [30, 31, 32]
    assert step.positions.tolist() == [6, 7, 8]
    assert step.logit_rows.tolist() == [2]
    sliding, full = step.ranges
    assert sliding.query_start.tolist() == full.query_start.tolist() == [0, 3]
    assert sliding.key_end.tolist() == full.key_end.tolist() == [7, 8, 9]
    assert sliding.key_begin.tolist() == [2, 3, 4]
    assert full.key_begin.tolist() == [0, 0, 0]
    assert sliding.block_table.tolist() == [[NO_BLOCK, 7, 2]]
    assert full.block_table.tolist() == [[5, 1, 9]]
    assert step.slots[0].tolist() == [7 * 4 + 2, 7 * 4 + 3, 2 * 4]
    assert step.slots[1].tolist() == [1 * 4 + 2, 1 * 4 + 3, 9 * 4]


def test_three_sequences_lie_flat_in_their_order() -> None:
    """A prompt's middle without logits, an answer's next token, and a whole prompt with logits for each token."""
    chunks = [
        SequenceChunk([10, 11], 4, [[0, 3], [0, 3]], 0),
        SequenceChunk([20], 9, [[NO_BLOCK, 1, 6], [1, 2, 8]], 1),
        SequenceChunk([40, 41, 42], 0, [[5], [4]], 3),
    ]
    step = build_step(chunks, layout())
    assert step.token_ids.tolist() == [10, 11, 20, 40, 41, 42]
    assert step.positions.tolist() == [4, 5, 9, 0, 1, 2]
    assert step.logit_rows.tolist() == [2, 3, 4, 5]
    assert step.ranges[0].query_start.tolist() == [0, 2, 3, 6]
    assert step.ranges[0].key_begin.tolist() == [0, 1, 5, 0, 0, 0]
    assert step.ranges[0].key_end.tolist() == [5, 6, 10, 1, 2, 3]
    assert step.ranges[1].key_begin.tolist() == [0] * 6
    assert step.ranges[1].block_table.tolist() == [[0, 3, -1], [1, 2, 8], [4, -1, -1]]
    assert step.slots[0].tolist() == [12, 13, 25, 20, 21, 22]
    assert step.slots[1].tolist() == [12, 13, 33, 16, 17, 18]


def test_the_wanted_rows_alone_keep_their_sequences_and_ranges() -> None:
    """What is left once all K/V is written; the first sequence wants nothing and has no query any more."""
    chunks = [
        SequenceChunk([10, 11], 4, [[0, 3], [0, 3]], 0),
        SequenceChunk([20, 21], 8, [[NO_BLOCK, 1, 6], [1, 2, 8]], 1),
        SequenceChunk([40, 41, 42], 0, [[5], [4]], 3),
    ]
    step = build_step(chunks, layout())
    wanted = step.only_logit_rows()
    assert wanted.token_ids.tolist() == [21, 40, 41, 42]
    assert wanted.positions.tolist() == [9, 0, 1, 2]
    assert wanted.logit_rows.tolist() == [0, 1, 2, 3]
    assert wanted.slots[0].tolist() == [25, 20, 21, 22]
    for before, after in zip(step.ranges, wanted.ranges, strict=True):
        assert after.query_start.tolist() == [0, 0, 1, 4]
        assert after.key_begin.tolist() == before.key_begin[step.logit_rows].tolist()
        assert after.key_end.tolist() == [10, 1, 2, 3]
        assert after.block_table is before.block_table
        assert {after.query_start.dtype, after.key_begin.dtype} == {np.dtype(np.int32)}


def test_arrays_are_int32() -> None:
    step = build_step([SequenceChunk([1, 2], 0, [[0], [0]], 1)], layout())
    arrays = [step.token_ids, step.positions, step.logit_rows, *step.slots]
    for ranges in step.ranges:
        arrays += [ranges.query_start, ranges.key_begin, ranges.key_end, ranges.block_table]
    assert {array.dtype for array in arrays} == {np.dtype(np.int32)}


@pytest.mark.parametrize("window", [1, 2, 5, 16])
def test_a_window_counts_the_query_itself(window: int) -> None:
    """A query at p sees min(window, p + 1) keys, the last of them its own."""
    sliding, full = layout(window=window).groups
    positions = np.arange(40, dtype=np.int32)
    seen = positions + 1 - key_begin(sliding, positions)
    assert seen.tolist() == [min(window, position + 1) for position in range(40)]
    assert key_begin(full, positions).tolist() == [0] * 40


def slots_in_ranges(step: StepInputs, block_size: int) -> list[int]:
    """Return every slot that a query reads."""
    found = []
    for ranges in step.ranges:
        for sequence in range(len(ranges.query_start) - 1):
            for row in range(ranges.query_start[sequence], ranges.query_start[sequence + 1]):
                for position in range(ranges.key_begin[row], ranges.key_end[row]):
                    block = int(ranges.block_table[sequence, position // block_size])
                    found.append(block * block_size + position % block_size if block >= 0 else NO_BLOCK)
    return found


@pytest.mark.parametrize("block_size", [1, 4, 16])
@pytest.mark.parametrize("window", [1, 5, 16])
@pytest.mark.parametrize("chunk", [1, 3, 16])
def test_freed_blocks_are_never_addressed(window: int, block_size: int, chunk: int) -> None:
    shape = layout(block_size=block_size, window=window)
    blocks = BlockManager(shape)
    assert blocks.try_add(0, 60, chunk)
    assert blocks.try_add(1, 60, chunk)
    for begin in range(0, 60, chunk):
        end = min(begin + chunk, 60)
        chunks = []
        for request_id in (0, 1):
            blocks.grow(request_id, begin, end)
            tables = [blocks.table(request_id, group.index) for group in shape.groups]
            chunks.append(SequenceChunk(range(begin, end), begin, tables, 0))
        step = build_step(chunks, shape)
        assert NO_BLOCK not in slots_in_ranges(step, block_size)
        for group, slots in zip(shape.groups, step.slots, strict=True):
            assert slots.min() >= 0
            assert slots.max() < group.num_blocks * block_size
            assert len(set(slots.tolist())) == len(slots)
    last_whole = (60 - (59 % chunk) - 1) // block_size * block_size
    assert blocks.table(0, 0).count(NO_BLOCK) == max(0, last_whole - window + 1) // block_size
