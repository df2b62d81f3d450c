"""Logits of whole sequences, computed the way the engine computes them: for comparing engines, chunks and company."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from gemwright.engine.llm import LLM
from gemwright.engine.step import SequenceChunk, build_step
from gemwright.memory.block_manager import BlockManager
from gemwright.models.decoder import OnLayer


def compute_logits(
    llm: LLM,
    sequences: Sequence[Sequence[int]],
    *,
    chunk_sizes: Sequence[int] = (64,),
    num_rows: int | None = None,
    on_layer: OnLayer | None = None,
) -> list[NDArray[np.float32]]:
    """Return float32 logits [rows, vocabulary] of every sequence, all of them computed in the same steps.

    Rows are all tokens of a sequence, or its last `num_rows`.

    Sequence s takes chunk_sizes[(s + k) % len(chunk_sizes)] tokens in its k-th step, so several sizes give uneven
    company. The engine must be idle; its cache is used from empty. `on_layer` sees the residual of every layer.
    """
    layout, runner = llm.engine.layout, llm.engine.runner
    blocks = _empty_cache(llm)
    for index, ids in enumerate(sequences):
        if not blocks.try_add(index, len(ids), max(chunk_sizes)):
            raise ValueError("the engine's K/V pool is too small for these sequences together")
    rows: list[list[NDArray[np.float32]]] = [[] for _ in sequences]
    done = [0] * len(sequences)
    num_steps = 0
    while any(done[index] < len(ids) for index, ids in enumerate(sequences)):
        chunks: list[SequenceChunk] = []
        owners: list[int] = []
        for index, ids in enumerate(sequences):
            count = min(len(ids) - done[index], chunk_sizes[(index + num_steps) % len(chunk_sizes)])
            if count == 0:
                continue
            blocks.grow(index, done[index], done[index] + count)
            tables = [blocks.table(index, group.index) for group in layout.groups]
            first_row = 0 if num_rows is None else len(ids) - num_rows
            wanted = max(0, done[index] + count - max(done[index], first_row))
            chunks.append(SequenceChunk(ids[done[index] : done[index] + count], done[index], tables, wanted))
            owners += [index] * wanted
            done[index] += count
        step = build_step(chunks, layout)
        for place, logits in runner.run(step, on_layer):
            rows[owners[place]].append(logits.copy())
        num_steps += 1
    return [np.stack(own) for own in rows]


def logit_rows(llm: LLM, ids: Sequence[int]) -> Iterator[NDArray[np.float32]]:
    """Yield the logits [V] of every position of one sequence, computed in chunks as large as a step.

    Never holds more than a few rows; each is good until the next one is asked for. The engine must be idle.
    """
    layout, step_tokens = llm.engine.layout, llm.core.limits.step_tokens
    blocks = _empty_cache(llm)
    if not blocks.try_add(0, len(ids), step_tokens):
        raise ValueError("the engine's K/V pool is too small for this sequence")
    for begin in range(0, len(ids), step_tokens):
        new = ids[begin : begin + step_tokens]
        blocks.grow(0, begin, begin + len(new))
        tables = [blocks.table(0, group.index) for group in layout.groups]
        for _, row in llm.engine.runner.run(build_step([SequenceChunk(new, begin, tables, len(new))], layout)):
            yield row


def _empty_cache(llm: LLM) -> BlockManager:
    """Return tables over the whole cache; the engine's own forget what it contains, since it will be overwritten."""
    llm.core.blocks.forget_content()
    return BlockManager(llm.engine.layout)
