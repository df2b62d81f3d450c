"""The blocks of one K/V group: who holds them, what the free ones still contain, which is reused next.

Knows no request and no token. Retention, in one rule: a block that is let go keeps its content until its place is
needed, and the place needed next is that of the block let go longest ago.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable

from gemwright.errors import CapacityError


class BlockPool:
    """`num_blocks` block numbers, each free or held by one or more owners, some with a key that names their content."""

    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        self.num_evictions = 0
        self.num_touched = 0
        """Blocks that were ever handed out: those before the highest number, since fresh ones go first, in order."""
        self._free: OrderedDict[int, None] = OrderedDict.fromkeys(range(num_blocks))
        self._num_references = [0] * num_blocks
        self._block_of_key: dict[bytes, int] = {}
        self._key_of_block: dict[int, bytes] = {}

    @property
    def num_free(self) -> int:
        """Blocks that nobody holds, with or without content."""
        return len(self._free)

    @property
    def num_kept(self) -> int:
        """Free blocks whose content can still be found."""
        return sum(block in self._key_of_block for block in self._free)

    def take(self, count: int) -> list[int]:
        """Hand out `count` blocks, each with one reference; their old content can no longer be found.

        Raises CapacityError, and takes none, for too few.
        """
        if count > len(self._free):
            raise CapacityError("not enough free K/V blocks", value=f"{count} wanted", limit=f"{len(self._free)} free")
        blocks = [self._free.popitem(last=False)[0] for _ in range(count)]
        self.num_touched = max(self.num_touched, max(blocks, default=-1) + 1)
        for block in blocks:
            self._num_references[block] = 1
            key = self._key_of_block.pop(block, None)
            if key is not None:
                del self._block_of_key[key]
                self.num_evictions += 1
        return blocks

    def find(self, key: bytes) -> int | None:
        """Return the block that holds the content named by `key`, free or held."""
        return self._block_of_key.get(key)

    def is_free(self, block: int) -> bool:
        """Whether nobody holds the block."""
        return block in self._free

    def hold(self, block: int) -> None:
        """Add a reference to a block, held or free, keeping its content."""
        self._free.pop(block, None)
        self._num_references[block] += 1

    def name(self, block: int, key: bytes) -> bool:
        """Say what a held block contains; the first block of a key stays the one that is found. Returns whether it is
        this one."""
        self._require_held(block)
        is_first = key not in self._block_of_key and block not in self._key_of_block
        if is_first:
            self._block_of_key[key] = block
            self._key_of_block[block] = key
        return is_first

    def forget_content(self) -> None:
        """Let no block be found by what it contains: somebody else has written into the pool."""
        self._block_of_key.clear()
        self._key_of_block.clear()

    def release(self, blocks: Iterable[int]) -> None:
        """Drop one reference of each block; the last one frees it, its content kept for now."""
        for block in blocks:
            self._require_held(block)
            self._num_references[block] -= 1
            if self._num_references[block] == 0:
                self._free[block] = None

    def count_last_references(self, blocks: Iterable[int]) -> int:
        """Return how many of these different blocks `release` would free."""
        return sum(self._num_references[block] == 1 for block in blocks)

    def check(self, held: Iterable[int]) -> None:
        """Raise AssertionError unless the counts are exactly those of `held` (each holder's blocks, with repeats), free
        and held blocks make up the pool, and the table of keys is true."""
        counts = [0] * self.num_blocks
        for block in held:
            counts[block] += 1
        assert counts == self._num_references, "reference counts differ from the tables"
        assert set(self._free) == {block for block, count in enumerate(counts) if count == 0}, (
            "free + used is not the pool"
        )
        assert self._block_of_key == {key: block for block, key in self._key_of_block.items()}, "keys and blocks differ"

    def _require_held(self, block: int) -> None:
        if not 0 <= block < self.num_blocks or self._num_references[block] == 0:
            raise ValueError(f"block {block} of {self.num_blocks} is held by nobody")
