"""The free list and reference counts of one K/V group's blocks. Knows no request and no token."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from gemwright.errors import CapacityError


class BlockPool:
    """`num_blocks` block numbers, each free or held by one or more owners."""

    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        self._free: deque[int] = deque(range(num_blocks))
        self._num_references = [0] * num_blocks

    @property
    def num_free(self) -> int:
        """Blocks that nobody holds."""
        return len(self._free)

    def take(self, count: int) -> list[int]:
        """Hand out `count` blocks, each with one reference; raises CapacityError, and takes none, for too few."""
        if count > len(self._free):
            raise CapacityError("not enough free K/V blocks", value=f"{count} wanted", limit=f"{len(self._free)} free")
        blocks = [self._free.popleft() for _ in range(count)]
        for block in blocks:
            self._num_references[block] = 1
        return blocks

    def share(self, block: int) -> None:
        """Add a reference to a block that is held."""
        self._require_held(block)
        self._num_references[block] += 1

    def release(self, blocks: Iterable[int]) -> None:
        """Drop one reference of each block; the last one frees it."""
        for block in blocks:
            self._require_held(block)
            self._num_references[block] -= 1
            if self._num_references[block] == 0:
                self._free.append(block)

    def count_last_references(self, blocks: Iterable[int]) -> int:
        """Return how many of these different blocks `release` would free."""
        return sum(self._num_references[block] == 1 for block in blocks)

    def check(self, held: Iterable[int]) -> None:
        """Raise AssertionError unless the counts are exactly those of `held` (each holder's blocks, with repeats)."""
        counts = [0] * self.num_blocks
        for block in held:
            counts[block] += 1
        assert counts == self._num_references, "reference counts differ from the tables"
        free = set(self._free)
        assert len(free) == len(self._free), "a block is free twice"
        assert free == {block for block, count in enumerate(counts) if count == 0}, "free + used is not the pool"

    def _require_held(self, block: int) -> None:
        if not 0 <= block < self.num_blocks or self._num_references[block] == 0:
            raise ValueError(f"block {block} of {self.num_blocks} is held by nobody")
