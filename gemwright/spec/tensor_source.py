"""What a stored tensor offers to whoever packs it. Loaders provide it, backends read it; neither knows the other."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


class TensorSource(Protocol):
    """A stored tensor that can be read row by row (rows are the first axis), without holding all of it.

    `loading` provides these; `ops` packs them into weights. `encoding` is how rows are stored: "float32", "float16",
    "bfloat16" or a GGUF block type in lower case such as "q4_0".
    """

    @property
    def name(self) -> str:
        """The tensor's name in its file, for messages."""
        ...

    @property
    def shape(self) -> tuple[int, ...]:
        """Logical shape, rows first."""
        ...

    @property
    def encoding(self) -> str:
        """How the rows are stored."""
        ...

    def read_rows(self, begin: int, end: int) -> NDArray[np.float32]:
        """Return rows begin..end decoded to float32, shape [end - begin, *shape[1:]].

        Raises CheckpointError when a value is not finite.
        """
        ...

    def stored_rows(self, begin: int, end: int) -> NDArray[Any]:
        """Return the stored bytes of rows begin..end as uint8 [end - begin, bytes per row], not decoded."""
        ...

    def release(self) -> None:
        """Say that the stored bytes will not be read again soon, so that the system may drop their pages."""
        ...
