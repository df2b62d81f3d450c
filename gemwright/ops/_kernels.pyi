"""The compiled kernels, built from csrc/: arrays of numpy in place, every shape and index checked.

Rows of float32 may lie apart, but not the values of a row; indices, tables and caches are contiguous. What does not fit
raises ValueError, an index that lies outside IndexError.
"""

from collections.abc import Sequence

import numpy
from numpy.typing import NDArray

PANEL_OUTPUTS: int
"""Outputs in a panel, the unit in which a weight is packed."""

def runnable_levels() -> list[str]:
    """Levels of kernels that this processor runs, best first."""

def panel_bytes(encoding: str, width: int) -> int:
    """Bytes of a panel of `width` inputs; negative where the encoding does not hold such a width."""

def stored_row_bytes(encoding: str, width: int) -> int:
    """Bytes of a row as files store it."""

def allocate(num_bytes: int) -> NDArray[numpy.uint8]:
    """Zeroed bytes in pages of their own, huge ones where the system gives them."""

class Panels:
    """Matrices of one width in panels, their outputs side by side; filled by Operations.pack."""

    def __init__(self, matrices: Sequence[tuple[str, int]], width: int) -> None:
        """Each matrix is an encoding and a number of outputs."""
    @property
    def nbytes(self) -> int: ...
    @property
    def num_outputs(self) -> int: ...

class StoredRows:
    """A table of rows as files store them, to be looked up by Operations.embed_rows."""

    def __init__(self, encoding: str, num_rows: int, width: int) -> None: ...
    @property
    def nbytes(self) -> int: ...
    def fill(self, first: int, stored: NDArray[numpy.uint8]) -> None:
        """Copy rows as stored, from row `first` on."""

class Operations:
    """One level of kernels, a way of rounding, and the threads that run both."""

    def __init__(self, level: str, rounds_activations: bool, num_threads: int) -> None: ...
    @property
    def level(self) -> str: ...
    @property
    def num_threads(self) -> int: ...
    @property
    def scratch_bytes(self) -> int: ...
    def pack(self, panels: Panels, matrix: int, first: int, stored: NDArray[numpy.uint8]) -> None:
        """Pack rows as stored into outputs `first` and on of a matrix; `first` begins a panel."""
    def linear(self, x: NDArray[numpy.float32], panels: Panels, out: NDArray[numpy.float32]) -> None: ...
    def embed(self, table: Panels, ids: NDArray[numpy.int32], scale: float, out: NDArray[numpy.float32]) -> None: ...
    def embed_rows(
        self, table: StoredRows, ids: NDArray[numpy.int32], scale: float, out: NDArray[numpy.float32]
    ) -> None: ...
    def gather_rows(
        self, x: NDArray[numpy.float32], rows: NDArray[numpy.int32], out: NDArray[numpy.float32]
    ) -> None: ...
    def rms_norm(
        self,
        x: NDArray[numpy.float32],
        weight: NDArray[numpy.float32] | None,
        eps: float,
        width: int,
        out: NDArray[numpy.float32],
    ) -> None: ...
    def rotary_angles(
        self, frequencies: NDArray[numpy.float32], positions: NDArray[numpy.int32], out: NDArray[numpy.float32]
    ) -> None: ...
    def rotary(self, x: NDArray[numpy.float32], angles: NDArray[numpy.float32]) -> None:
        """Turn x in place."""
    def gelu_gate(
        self, gate: NDArray[numpy.float32], up: NDArray[numpy.float32], out: NDArray[numpy.float32]
    ) -> None: ...
    def add(self, x: NDArray[numpy.float32], y: NDArray[numpy.float32], out: NDArray[numpy.float32]) -> None: ...
    def multiply(self, x: NDArray[numpy.float32], factors: NDArray[numpy.float32], out: NDArray[numpy.float32]) -> None:
        """One factor for all, or one for each column."""
    def softcap(self, x: NDArray[numpy.float32], cap: float) -> None:
        """Bend x in place."""
    def write_cache(
        self,
        x: NDArray[numpy.float32],
        slots: NDArray[numpy.int32],
        cache: NDArray[numpy.float32] | NDArray[numpy.uint16],
    ) -> None:
        """Write rows to slots of a cache of float32, or of bfloat16 as uint16."""
    def attention(
        self,
        query: NDArray[numpy.float32],
        keys: NDArray[numpy.float32] | NDArray[numpy.uint16] | None,
        values: NDArray[numpy.float32] | NDArray[numpy.uint16],
        num_heads: int,
        num_kv_heads: int,
        query_start: NDArray[numpy.int32],
        key_begin: NDArray[numpy.int32],
        key_end: NDArray[numpy.int32],
        block_table: NDArray[numpy.int32],
        block_size: int,
        scale: float,
        softcap: float,
        out: NDArray[numpy.float32],
        rebuild_norm: NDArray[numpy.float32] | None,
        rebuild_frequencies: NDArray[numpy.float32] | None,
    ) -> None:
        """Keys are stored, or None and rebuilt from the values with a norm and frequencies. A softcap of 0 is none."""
    def route(
        self,
        scores: NDArray[numpy.float32],
        expert_scales: NDArray[numpy.float32],
        ids: NDArray[numpy.int32],
        weights: NDArray[numpy.float32],
    ) -> None:
        """Fill ids and weights with the chosen experts of each row; as many as ids has columns."""
    def experts(
        self,
        x: NDArray[numpy.float32],
        ids: NDArray[numpy.int32],
        weights: NDArray[numpy.float32],
        gate_up: Panels,
        down: Panels,
        out: NDArray[numpy.float32],
    ) -> None: ...
