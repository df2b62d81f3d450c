"""Tensor sources made of stored tensors: a constant added, or several stacked into one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from gemwright.loading.encodings import FLOAT32
from gemwright.loading.stored_tensor import StoredTensor

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


class OffsetSource:
    """A float32 source that adds a constant to a stored tensor: GGUF norms of Gemma 2 and 3, less one (facts f)."""

    encoding = FLOAT32.name

    def __init__(self, tensor: StoredTensor, offset: float) -> None:
        import numpy as np

        self._tensor = tensor
        self._offset = np.float32(offset)
        self.name = tensor.name
        self.shape = tensor.shape

    def read_rows(self, begin: int, end: int) -> NDArray[np.float32]:
        """Return rows begin..end with the constant added, float32."""
        values = self._tensor.read_rows(begin, end)
        values += self._offset
        return values

    def stored_rows(self, begin: int, end: int) -> NDArray[Any]:
        """Return the bytes of `read_rows`, as if they were stored so."""
        return _as_bytes(self.read_rows(begin, end))

    def release(self) -> None:
        """Drop the tensor's pages from the resident set."""
        self._tensor.release()


class StackedSource:
    """Several stored tensors as one, joined along axis 1: the experts' gate and up matrices of a GGUF file.

    All have the same first axis and the same last one. Parts in different encodings come out as float32.
    """

    def __init__(self, parts: Sequence[StoredTensor]) -> None:
        self._parts = tuple(parts)
        first = parts[0].shape
        assert all(part.shape[0] == first[0] and part.shape[2:] == first[2:] for part in parts)
        encodings = {part.encoding for part in parts}
        self.name = " + ".join(part.name for part in parts)
        self.shape = (first[0], sum(part.shape[1] for part in parts), *first[2:])
        self.encoding = encodings.pop() if len(encodings) == 1 else FLOAT32.name

    def read_rows(self, begin: int, end: int) -> NDArray[np.float32]:
        """Return rows begin..end of all parts side by side, float32."""
        import numpy as np

        return np.concatenate([part.read_rows(begin, end) for part in self._parts], axis=1)

    def stored_rows(self, begin: int, end: int) -> NDArray[Any]:
        """Return the stored bytes of all parts side by side, or those of float32 where their encodings differ."""
        import numpy as np

        if any(part.encoding != self.encoding for part in self._parts):
            return _as_bytes(self.read_rows(begin, end))
        return np.concatenate([part.stored_rows(begin, end) for part in self._parts], axis=1)

    def release(self) -> None:
        """Drop the pages of all parts from the resident set."""
        for part in self._parts:
            part.release()


def _as_bytes(values: NDArray[np.float32]) -> NDArray[np.uint8]:
    import numpy as np

    return np.ascontiguousarray(values).reshape(len(values), -1).view(np.uint8)
