"""A tensor as it lies in a file: read row by row, decoded on the way, and never held whole.

Refuses to know file formats: safetensors and GGUF readers say where a tensor lies and how it is encoded.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from gemwright.errors import CheckpointError, UnsupportedError
from gemwright.loading.encodings import READABLE_NAMES, Encoding, decode, first_non_finite_row
from gemwright.loading.mapped_file import MappedFile, shown

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_ELEMENTS_PER_PIECE = 1 << 20


class StoredTensor:
    """A tensor in a mapped file. Satisfies `ops.protocol.TensorSource`.

    Rows are the first axis; a tensor without axes has one row. `name` is its name in the file, `encoding` how its
    rows are stored.
    """

    def __init__(self, file: MappedFile, name: str, shape: tuple[int, ...], encoding: Encoding, begin: int) -> None:
        """The reader has checked that the tensor lies inside `file` from byte `begin` and fills whole blocks."""
        self.file = file
        self.name = name
        self.shape = shape
        self.stored_as = encoding
        self.begin = begin
        self.num_bytes = encoding.num_bytes(math.prod(shape))

    @property
    def encoding(self) -> str:
        """How the rows are stored: "float32", "bfloat16", "q4_0"..."""
        return self.stored_as.name

    @property
    def num_rows(self) -> int:
        """Length of the first axis; 1 where there is none."""
        return self.shape[0] if self.shape else 1

    def describe(self) -> str:
        """Return "file: tensor 'name'" for messages."""
        return f"{self.file.path}: tensor {shown(self.name)}"

    def require_readable(self) -> None:
        """Raise UnsupportedError when the encoding cannot be decoded here to weights."""
        if not self.stored_as.readable:
            raise UnsupportedError(
                f"{self.describe()} is stored as {self.encoding}, which is not supported",
                limit=", ".join(READABLE_NAMES),
                remedy="use a checkpoint of this model in one of these encodings",
            )
        if len(self.shape) < 2 and self.stored_as.block_elements > 1:
            raise UnsupportedError(
                f"{self.describe()} has one axis and is stored in blocks", value=self.encoding, limit="float types"
            )

    def stored_rows(self, begin: int, end: int) -> NDArray[Any]:
        """Return the stored bytes of rows begin..end, uint8 [end - begin, bytes per row], as a read-only view.

        Raises CheckpointError when they hold an infinity or NaN, UnsupportedError for an encoding that has no decoder.
        """
        self._check_range(begin, end)
        row_bytes = self.num_bytes // self.num_rows if self.num_rows else 0
        first = self.begin + begin * row_bytes
        rows = self.file.array(first, first + (end - begin) * row_bytes).reshape(end - begin, row_bytes)
        step = max(1, _ELEMENTS_PER_PIECE // max(1, row_bytes))
        for piece in range(0, end - begin, step):
            bad_row = first_non_finite_row(self.stored_as, rows[piece : piece + step])
            if bad_row is not None:
                raise self.non_finite(begin + piece + bad_row)
        return rows

    def read_rows(self, begin: int, end: int) -> NDArray[np.float32]:
        """Return rows begin..end decoded to a new float32 array [end - begin, *shape[1:]].

        Raises CheckpointError when a value is not finite, UnsupportedError for an encoding that has no decoder.
        """
        import numpy as np

        stored = self.stored_rows(begin, end)
        width = self.shape[-1] if len(self.shape) > 1 else 1
        lines = stored.reshape(-1, self.stored_as.num_bytes(width)) if stored.size else stored
        values = np.empty((end - begin, *self.shape[1:]), dtype=np.float32)
        flat = values.reshape(-1, width) if values.size else values
        step = max(1, _ELEMENTS_PER_PIECE // max(1, width))
        for piece in range(0, len(lines) if values.size else 0, step):
            flat[piece : piece + step] = decode(self.stored_as, lines[piece : piece + step])
        return values

    def release(self) -> None:
        """Drop this tensor's pages from the resident set; reading it again reads the file again."""
        if self.num_bytes:
            self.file.release(self.begin, self.begin + self.num_bytes)

    def non_finite(self, row: int) -> CheckpointError:
        """Return the error for an infinity or NaN in `row`."""
        return CheckpointError(
            f"{self.describe()} holds a value that is not finite, first in row {row}",
            remedy="the file is damaged or the model diverged in training: fetch it again",
        )

    def _check_range(self, begin: int, end: int) -> None:
        if not self.stored_as.index:
            self.require_readable()
        if not 0 <= begin <= end <= self.num_rows:
            raise IndexError(f"rows {begin}..{end} of {self.describe()} with {self.num_rows} rows")
