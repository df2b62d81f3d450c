"""Runs a step: decoder, then logits of the wanted rows in slices. Knows no request."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from gemwright.memory.kv_layout import KVLayout
from gemwright.memory.workspace import LOGIT_ROWS
from gemwright.models.decoder import Decoder, OnLayer
from gemwright.ops.protocol import Ops, StepInputs


class Runner:
    """A decoder and the layout of the cache it writes."""

    def __init__(self, ops: Ops, decoder: Decoder, layout: KVLayout) -> None:
        self.ops = ops
        self.decoder = decoder
        self.layout = layout

    def run(self, step: StepInputs, on_layer: OnLayer | None = None) -> Iterator[tuple[int, NDArray[np.float32]]]:
        """Compute the step and yield (place in step.logit_rows, logits [V]) of every wanted row, in order."""
        residual = self.decoder.forward(step, on_layer)
        for begin in range(0, len(step.logit_rows), LOGIT_ROWS):
            rows = np.arange(begin, min(begin + LOGIT_ROWS, len(step.logit_rows)), dtype=np.int32)
            logits = self.ops.to_numpy(self.decoder.logits(residual, rows))
            yield from enumerate(logits, start=begin)
