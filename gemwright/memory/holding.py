"""How a backend holds what it is given: in which form a weight lies in memory, what a step's values are kept in, and
what its process takes beside.

Two forms: the reference backend holds every weight as one array in the engine's dtype; the native one keeps matrices
in panels of 32 outputs, quantized ones in the encoding of their file (docs/kernels.md). Refuses to know backends: which
of them computes is decided above.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import Final, Literal

from gemwright.memory.dtypes import DTYPE_BYTES, ComputeDtype
from gemwright.memory.process import (
    NATIVE_RUNTIME_BYTES,
    NATIVE_RUNTIME_ERROR_BYTES,
    RUNTIME_BYTES,
    RUNTIME_ERROR_BYTES,
)
from gemwright.spec.weights import TensorSpec

PANEL_OUTPUTS: Final = 32
"""Outputs (rows of a matrix) that lie side by side in a panel; the last panel of a matrix is padded to as many."""


@dataclass(frozen=True, slots=True)
class _Blocks:
    """A quantized encoding that is held as it is stored."""

    num_inputs: int
    """Neighbors of a row that make a block."""
    stored_bytes: int
    """A block in the file, and in a table whose rows are only looked up."""
    packed_bytes: int
    """A block in a panel."""


_BLOCKS: Final[Mapping[str, _Blocks]] = {
    "q4_0": _Blocks(32, 18, 18),
    "q4_1": _Blocks(32, 20, 20),
    "q5_0": _Blocks(32, 22, 22),
    "q5_1": _Blocks(32, 24, 24),
    "q8_0": _Blocks(32, 34, 34),
    # In panels the 6-bit scales and minimums of a block's 8 groups have a byte each: 16 bytes instead of 12.
    "q4_k": _Blocks(256, 144, 148),
    "q5_k": _Blocks(256, 176, 180),
    "q6_k": _Blocks(256, 210, 210),
}

Form = Literal["array", "table", "panels"]
"""array: one value beside the other. table: rows as they are stored, to be looked up. panels: to be multiplied."""


@dataclass(frozen=True, slots=True)
class HeldTensor:
    """One weight in memory."""

    form: Form
    encoding: str
    num_pieces: int
    """Values of an array, rows of a table, panels of all matrices."""
    piece_bytes: int

    @property
    def total_bytes(self) -> int:
        """Size in bytes."""
        return self.num_pieces * self.piece_bytes


@dataclass(frozen=True, slots=True)
class Holding:
    """How one kind of backend holds weights and values. `encodings` everywhere maps names of spec.weights to how these
    tensors are stored; None, or no entry, is a float of any kind."""

    name: str
    """The name of the backend, or of the one that its kernels belong to."""
    has_panels: bool
    """Whether matrices lie in panels, in their own encoding; else everything is an array in the engine's dtype."""
    runtime: str
    """What its process consists of beside the model."""
    runtime_bytes: int
    """Resident set of such a process before a model."""
    runtime_error_bytes: int

    def activation_dtype(self, dtype: ComputeDtype) -> ComputeDtype:
        """Return what the buffers of a step hold in an engine of this dtype."""
        return "float32" if self.has_panels else dtype

    def held(self, tensor: TensorSpec, encoding: str | None, dtype: ComputeDtype) -> HeldTensor:
        """Return how a tensor that is stored in `encoding` lies in memory, in an engine of this dtype."""
        if tensor.role == "norm" or (self.has_panels and tensor.role == "vector"):
            return HeldTensor("array", "float32", tensor.num_elements, 4)
        if not self.has_panels or tensor.role == "index":
            return HeldTensor("array", dtype, tensor.num_elements, DTYPE_BYTES[dtype])
        kept = encoding if encoding is not None and encoding in _BLOCKS else dtype
        *matrices, num_outputs, num_inputs = tensor.shape
        if tensor.is_looked_up_only:
            return HeldTensor("table", kept, prod(matrices) * num_outputs, stored_row_bytes(kept, num_inputs))
        num_panels = prod(matrices) * -(-num_outputs // PANEL_OUTPUTS)
        return HeldTensor("panels", kept, num_panels, panel_bytes(kept, num_inputs))

    def weight_bytes(self, tensor: TensorSpec, encoding: str | None, dtype: ComputeDtype) -> int:
        """Return the bytes of a tensor that is stored in `encoding`, in an engine of this dtype."""
        return self.held(tensor, encoding, dtype).total_bytes

    def is_decoded(self, tensor: TensorSpec, encoding: str | None, dtype: ComputeDtype) -> bool:
        """Whether rows of a matrix pass through float32 while it is loaded; else they are taken as they are stored."""
        return not self.has_panels or self.held(tensor, encoding, dtype).encoding != (encoding or dtype)


REFERENCE: Final = Holding("reference", False, "Python, torch, tokenizer", RUNTIME_BYTES, RUNTIME_ERROR_BYTES)
NATIVE: Final = Holding("native", True, "Python, kernels, tokenizer", NATIVE_RUNTIME_BYTES, NATIVE_RUNTIME_ERROR_BYTES)

_IS_NATIVE_ON_CPU: bool = False
"""Whether a CPU is planned with native kernels where nobody says which."""


def holding_of(backend: str) -> Holding:
    """Return how a backend holds a model, by the backend's name; all but the reference one are native."""
    return REFERENCE if backend == REFERENCE.name else NATIVE


def expected_holding(kernels: str, device: str) -> Holding:
    """Return how a model will be held on a machine that is not asked: as `kernels` says, else natively on a CPU."""
    if not device.startswith("cpu"):
        return REFERENCE
    if kernels == "auto":
        return NATIVE if _IS_NATIVE_ON_CPU else REFERENCE
    return holding_of(kernels)


def panel_bytes(encoding: str, num_inputs: int) -> int:
    """Return the bytes of a panel of 32 outputs; bfloat16 inputs go in pairs, the last one padded."""
    if encoding == "float32":
        return PANEL_OUTPUTS * num_inputs * 4
    if encoding == "bfloat16":
        return PANEL_OUTPUTS * -(-num_inputs // 2) * 4
    blocks = _BLOCKS[encoding]
    assert num_inputs % blocks.num_inputs == 0, f"{encoding} rows of {num_inputs}"
    return PANEL_OUTPUTS * (num_inputs // blocks.num_inputs) * blocks.packed_bytes


def stored_row_bytes(encoding: str, num_inputs: int) -> int:
    """Return the bytes of a row as files store it."""
    if encoding in _BLOCKS:
        blocks = _BLOCKS[encoding]
        return num_inputs // blocks.num_inputs * blocks.stored_bytes
    return num_inputs * (4 if encoding == "float32" else 2)
