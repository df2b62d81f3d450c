"""The buffers of a step: what the decoder writes into, sized once for the largest step allowed.

The engine allocates these and nothing else while it runs; `scratch_bytes` bounds what the backend takes for the
duration of one operation.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from gemwright.memory.dtypes import DTYPE_BYTES, ComputeDtype
from gemwright.memory.holding import REFERENCE, Holding
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


def plan_workspace(
    spec: ModelSpec, *, step_tokens: int, dtype: ComputeDtype, holding: Holding = REFERENCE, threads: int = 1
) -> Workspace:
    """Return the buffers of a step of up to `step_tokens` tokens, in an engine of this dtype that holds its values so
    and computes in so many threads."""
    dtype = holding.activation_dtype(dtype)
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
        scratch_bytes=native_scratch_bytes(spec, step_tokens, threads)
        if holding.has_panels
        else reference_scratch_bytes(spec, step_tokens, DTYPE_BYTES[dtype]),
    )


def reference_scratch_bytes(spec: ModelSpec, step_tokens: int, item_bytes: int) -> int:
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


def native_scratch_bytes(spec: ModelSpec, step_tokens: int, threads: int) -> int:
    """Bound what one operation of the native backend holds for its duration: the largest of a product (inputs as int16,
    the sums of their groups, a scale a row; a block of a panel that each thread unpacks), attention (sums and weights
    of the pieces of each query's keys, sines and cosines of its positions), and the chosen experts' rows."""
    layers = spec.layers
    widest = max(spec.hidden_size, *(max(layer.query_width, layer.feed_forward_width) for layer in layers))
    product = _product_bytes(step_tokens, widest) + threads * _UNPACKED_BYTES
    attention = max(
        (step_tokens * layer.num_query_heads + 4 * threads * _ATTEND_ROWS) * (layer.head_dim + 2) * 4
        + 2 * step_tokens * layer.head_dim * 4
        + threads * _attend_bytes(layer.head_dim)
        for layer in layers
    )
    experts = max(
        (
            step_tokens * (2 * spec.hidden_size + 3 * layer.experts.width) * 4
            + step_tokens * layer.experts.num_experts * 8
            + _product_bytes(step_tokens, max(spec.hidden_size, layer.experts.width))
            + threads * _UNPACKED_BYTES
            for layer in layers
            if layer.experts is not None
        ),
        default=0,
    )
    return max(product, attention, experts)


_UNPACKED_BYTES = 64 << 10
"""A block of a panel as a thread of the native backend unpacks it."""

_ATTEND_ROWS, _SCORE_STRIDE, _TILE_KEYS = 64, 256 + 16, 16
"""csrc/kernels.hpp: rows (times heads of a group) at work at once, floats from one row's scores to the next, keys."""


def _attend_bytes(head_dim: int) -> int:
    """Return what a thread of the native backend takes for a piece of attention: attend_scratch_bytes."""
    padded = -(-head_dim // 16) * 16
    return (_ATTEND_ROWS * (2 * padded + _SCORE_STRIDE) + _TILE_KEYS * padded) * 4


def _product_bytes(num_rows: int, num_inputs: int) -> int:
    """Return the bytes of rows as int16, with the sum of each 16 inputs in float32 and a scale a row."""
    return num_rows * (2 * num_inputs + num_inputs // 4 + 4)
