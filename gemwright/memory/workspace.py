"""The buffers of a step: what the decoder writes into, sized once for the largest step allowed.

The engine allocates these and nothing else while it runs; `scratch_bytes` bounds what the backend takes for the
duration of one operation.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

from gemwright.memory.dtypes import DTYPE_BYTES, ComputeDtype
from gemwright.memory.holding import PANEL_OUTPUTS, REFERENCE, Holding
from gemwright.spec.model_spec import LayerSpec, ModelSpec
from gemwright.spec.weights import list_tensors

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
    spec: ModelSpec,
    *,
    step_tokens: int,
    dtype: ComputeDtype,
    holding: Holding = REFERENCE,
    threads: int = 1,
    max_model_len: int | None = None,
) -> Workspace:
    """Return the buffers of a step of up to `step_tokens` tokens, in an engine of this dtype that holds its values so
    and computes in so many threads; no request is longer than `max_model_len`, None: the model's context."""
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
        scratch_bytes=native_scratch_bytes(spec, step_tokens, threads, max_model_len or spec.max_context)
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


def native_scratch_bytes(spec: ModelSpec, step_tokens: int, threads: int, max_model_len: int) -> int:
    """Bound what the native backend takes beside the buffers. It keeps memory for each purpose at the largest size that
    was needed (csrc/operations.cpp), so that this is a sum: rows rounded to int16, with the sums of each 16 inputs and
    a scale; rows of an expert, its gate and up, their product, its result; a panel of each thread for rows of a table;
    pieces of attention; what each thread unpacks; sines, cosines and the router's scores."""
    layers = spec.layers
    experts = [layer.experts for layer in layers if layer.experts is not None]
    widest, table = _input_widths(spec)
    widest = _round_up(widest, PANEL_OUTPUTS)
    rounded = step_tokens * (2 * widest + widest // 16 * 4 + 4)
    expert = max((each.width for each in experts), default=0)
    inner = max(step_tokens * 2 * expert * 4, threads * PANEL_OUTPUTS * table * 4)
    routed = step_tokens * (2 * spec.hidden_size + expert) * 4 if experts else 0
    scores = step_tokens * max((4 * each.num_experts + 8 * each.num_experts_per_token for each in experts), default=0)
    wave = min(-(-max_model_len // _KEY_CHUNK), 8 * threads)
    together = max(_partials_bytes(layer, wave + 1) for layer in layers)
    alone = max(_partials_bytes(layer, 2) for layer in layers)
    attend = max(_attend_bytes(layer.head_dim, _tile_rows(layer)) for layer in layers)
    angles = 2 * step_tokens * max(layer.head_dim for layer in layers) * 4
    return rounded + inner + routed + scores + together + threads * (alone + attend + _UNPACKED_BYTES) + angles


@lru_cache(maxsize=32)
def _input_widths(spec: ModelSpec) -> tuple[int, int]:
    """Return the most inputs of a matrix that is multiplied, and the longest row of a table that is not (0: none)."""
    matrices = [tensor for tensor in list_tensors(spec) if tensor.role in ("embedding", "linear", "experts")]
    widths = {False: 0, True: 0}
    for tensor in matrices:
        widths[tensor.is_looked_up_only] = max(widths[tensor.is_looked_up_only], tensor.shape[-1])
    return widths[False], widths[True]


_UNPACKED_BYTES = (256 + 64) * PANEL_OUTPUTS * 4 + 4096
"""A block of a panel as a thread of the native backend unpacks it, and sums of rows: multiply_scratch_bytes."""

_ATTEND_ROWS, _KEY_CHUNK, _TILE_KEYS, _CACHE_LINE = 64, 256, 24, 64
"""csrc/kernels.hpp: rows times heads at work at once, keys of a piece, keys at work at once; bytes of a cache line."""


def _round_up(value: int, unit: int) -> int:
    return -(-value // unit) * unit


def _tile_rows(layer: LayerSpec) -> int:
    """Return the rows times heads of a group that a thread attends for at once."""
    group = layer.num_query_heads // layer.num_kv_heads
    return max(1, _ATTEND_ROWS // group) * group


def _partials_bytes(layer: LayerSpec, num_pieces: int) -> int:
    """Return what so many pieces of a tile's attention take: a record of 16 bytes each, and the values they sum."""
    num_rows = num_pieces * _tile_rows(layer)
    return _round_up(num_rows * 16, _CACHE_LINE) + num_rows * (layer.head_dim + _CACHE_LINE) * 4


def _attend_bytes(head_dim: int, num_rows: int) -> int:
    """Return what a thread takes for one piece of attention: attend_scratch_bytes."""
    padded = _round_up(head_dim, 16)
    return _round_up((num_rows * (2 * padded + _KEY_CHUNK + 16) + _TILE_KEYS * padded) * 4, _CACHE_LINE)
