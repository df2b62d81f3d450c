"""A file seen through a read-only memory map, whose pages can be handed back once they are read."""

from __future__ import annotations

import mmap
import os
import stat
from pathlib import Path
from typing import TYPE_CHECKING

from gemwright.errors import CheckpointError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_CLIP_CHARACTERS = 200


def shown(name: str) -> str:
    """Return a name from a file as it may be printed: quoted, escaped, and clipped when it is absurdly long."""
    return repr(name if len(name) <= _CLIP_CHARACTERS else name[:_CLIP_CHARACTERS] + "...")


class MappedFile:
    """A regular file, mapped whole. Arrays taken from it stay valid as long as they are referenced.

    The file must not shrink while it is in use: the operating system ends a process that reads past the new end.
    """

    def __init__(self, path: Path) -> None:
        """Map `path`; CheckpointError when it is missing, empty, unreadable or not a regular file."""
        self.path = path
        try:
            # Without O_NONBLOCK, opening a named pipe would wait for a writer.
            descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0))
        except FileNotFoundError as error:
            raise CheckpointError(f"{path}: no such file") from error
        except (OSError, ValueError) as error:
            raise CheckpointError(f"{path}: cannot be opened", value=error) from error
        try:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode):
                raise CheckpointError(f"{path}: not a regular file")
            if status.st_size == 0:
                raise CheckpointError(f"{path}: the file is empty", remedy="fetch or copy it again")
            self.size_bytes = status.st_size
            self.map = mmap.mmap(descriptor, status.st_size, access=mmap.ACCESS_READ)
        except OSError as error:
            raise CheckpointError(f"{path}: cannot be mapped", value=error) from error
        finally:
            os.close(descriptor)

    def array(self, begin: int, end: int) -> NDArray[np.uint8]:
        """Return bytes begin..end as a read-only uint8 view; the caller has checked that they lie inside the file."""
        import numpy as np

        return np.frombuffer(self.map, dtype=np.uint8, count=end - begin, offset=begin)

    def bring(self, end: int) -> int:
        """Make sure that the bytes before `end` are here and return how many are; here, all of the file.

        Readers of headers call it before they look at bytes, so that a file can be read while it comes.
        """
        return self.size_bytes

    def release(self, begin: int = 0, end: int | None = None) -> None:
        """Take the pages of begin..end out of the resident set. They are read again should someone look again."""
        if not hasattr(mmap, "MADV_DONTNEED"):
            return
        end = self.size_bytes if end is None else end
        begin -= begin % mmap.PAGESIZE
        if end > begin:
            self.map.madvise(mmap.MADV_DONTNEED, begin, end - begin)
