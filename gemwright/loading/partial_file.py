"""A file of which only the beginning is here, as far as a reader of headers has asked for it.

Refuses to know where the bytes come from.
"""

from __future__ import annotations

import mmap
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from gemwright.errors import CheckpointError, show_bytes
from gemwright.loading.mapped_file import MappedFile

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

HEADER_LIMIT_BYTES = 128 << 20
"""Longer headers are refused; those of Gemma's GGUF files take 6 to 20 MB, most of it the vocabulary."""


class PartialFile(MappedFile):
    """Stands in for a mapped file while its header is read: what a reader asks for is fetched, and little else.

    Its tensors can be described and not read: the bytes of their rows never come.
    """

    def __init__(
        self, path: Path, size_bytes: int, fetch: Callable[[int, int], bytes], *, first_bytes: int | None = None
    ) -> None:
        """`path` names the file in messages. `fetch(begin, end)` returns exactly those bytes of it.

        With `first_bytes` that many are fetched at first, and later at least as many more as are here: for headers
        whose length nobody knows before they are read. Without, no byte comes that was not asked for.
        """
        if size_bytes == 0:
            raise CheckpointError(f"{path}: the file is empty", remedy="name another revision, or another model")
        self.path = path
        self.size_bytes = size_bytes
        self.here_bytes = 0
        self._fetch = fetch
        self._first_bytes = first_bytes
        # Pages that nothing is written to take no memory.
        self.map = mmap.mmap(-1, min(size_bytes, HEADER_LIMIT_BYTES))

    def bring(self, end: int) -> int:
        """Fetch what is lacking of the bytes before `end`; CheckpointError where that is more than a header can be.

        Raises what `fetch` raises.
        """
        if end <= self.here_bytes:
            return self.here_bytes
        if end > len(self.map):
            raise CheckpointError(
                f"{self.path}: its header is too long, or says something that cannot be true",
                value=f"at least {show_bytes(end)}",
                limit=show_bytes(len(self.map)),
                remedy="name another file of this model",
            )
        begin = self.here_bytes
        if self._first_bytes is not None:
            end = min(len(self.map), max(end, begin + max(begin, self._first_bytes)))
        content = self._fetch(begin, end)
        assert len(content) == end - begin
        self.map[begin:end] = content
        self.here_bytes = end
        return end

    def array(self, begin: int, end: int) -> NDArray[np.uint8]:
        """Return bytes begin..end as a read-only uint8 view, fetched where they are not here yet."""
        self.bring(end)
        view = super().array(begin, end)
        view.flags.writeable = False
        return view

    def release(self, begin: int = 0, end: int | None = None) -> None:
        """Keep everything: these pages could not be read again."""
