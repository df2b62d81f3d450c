"""The buffers of a step: what the decoder writes into, sized once for the largest step allowed.

The engine allocates these and nothing else while it runs; `scratch_bytes` bounds what the reference backend takes
for the duration of one operation.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from gemwright.memory.dtypes import DTYPE_BYTES, ComputeDtype
from gemwright.spec.model_spec import ModelSpec

LOGIT_ROWS = 16
"""Rows of logits computed at once: a full [tokens, vocabulary] matrix is never built."""

LOAD_CHUNK_BYTES = 16 << 20
"""Float32 bytes decoded at once while weights are packed."""

ATTENTION_ROWS = 128
"""Query positions of one sequence that attention works on at once."""

BufferName = Literal[
    "residual",
    "normed",
    "branch",
    "projected",
    "attended",
    "gate_up",
    "gated",
    "per_layer_inputs",
    "per_layer_scratch",
    "experts",
    "wanted",
    "selected",
    "logits",
]


@dataclass(frozen=True, slots=True)
class BufferSpec:
    """One buffer: at most `rows` rows of at most `width` values."""

    name: BufferName
    rows: int
    width: int
    dtype: ComputeDtype

    @property
    def total_bytes(self) -> int:
        """Size in bytes."""
        return self.rows * self.width * DTYPE_BYTES[self.dtype]


@dataclass(frozen=True, slots=True)
class Workspace:
    """All buffers of a step, and the most an operation takes beside them."""

    buffers: tuple[BufferSpec, ...]
    scratch_bytes: int

    @property
    def buffer_bytes(self) -> int:
        """Bytes of the buffers, held while the engine lives."""
        return sum(buffer.total_bytes for buffer in self.buffers)


def plan_workspace(spec: ModelSpec, *, step_tokens: int, dtype: ComputeDtype) -> Workspace:
    """Return the buffers of a step of up to `step_tokens` tokens."""
    hidden = spec.hidden_size
    layers = spec.layers
    feed_forward = max(layer.feed_forward_width for layer in layers)
    if spec.per_layer_inputs is not None:
        feed_forward = max(feed_forward, spec.per_layer_inputs.width)
    rows: list[tuple[BufferName, int, int, ComputeDtype]] = [
        ("residual", step_tokens, hidden, dtype),
        ("normed", step_tokens, hidden, dtype),
        ("branch", step_tokens, hidden, dtype),
        ("projected", step_tokens, max(layer.query_width + 2 * layer.kv_width for layer in layers), dtype),
        ("attended", step_tokens, max(layer.query_width for layer in layers), dtype),
        ("gate_up", step_tokens, 2 * feed_forward, dtype),
        ("gated", step_tokens, feed_forward, dtype),
    ]
    if spec.per_layer_inputs is not None:
        packed = spec.num_layers * spec.per_layer_inputs.width
        rows += [
            ("per_layer_inputs", step_tokens, packed, dtype),
            ("per_layer_scratch", step_tokens, packed, dtype),
        ]
    if any(layer.experts is not None for layer in layers):
        rows.append(("experts", step_tokens, hidden, dtype))
    rows += [
        ("wanted", step_tokens, hidden, dtype),
        ("selected", LOGIT_ROWS, hidden, dtype),
        ("logits", LOGIT_ROWS, spec.vocab_size, "float32"),
    ]
    return Workspace(
        buffers=tuple(BufferSpec(*row) for row in rows),
        scratch_bytes=_scratch_bytes(spec, step_tokens, DTYPE_BYTES[dtype]),
    )


def _scratch_bytes(spec: ModelSpec, step_tokens: int, item_bytes: int) -> int:
    """Bound what one operation of the reference backend holds for its duration: the largest of attention (queries,
    sums and scores of ATTENTION_ROWS positions in float32), the chosen experts' rows, and the rounded logits."""
    attention = max(
        min(step_tokens, ATTENTION_ROWS) * layer.num_query_heads * (4 * layer.head_dim + 4 * 64) * 4
        for layer in spec.layers
    )
    experts = max(
        (
            step_tokens * (2 * spec.hidden_size + 3 * layer.experts.width) * item_bytes
            + step_tokens * layer.experts.num_experts * 8
            for layer in spec.layers
            if layer.experts is not None
        ),
        default=0,
    )
    logits = 2 * LOGIT_ROWS * spec.vocab_size * 4
    rows = 64 * max(2 * layer.feed_forward_width + layer.query_width for layer in spec.layers) * 4 * 3
    return max(attention, experts, logits, rows)
