"""Block tables of running requests, one a group: grow, give back behind the window, take back tokens, free.

A table lists a block number for every `block_size` positions; blocks given back stand as NO_BLOCK. Knows positions
and blocks, never token ids.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from gemwright.errors import CapacityError
from gemwright.memory.block_pool import BlockPool
from gemwright.memory.kv_layout import KVGroup, KVLayout

NO_BLOCK = -1


@dataclass(slots=True)
class _Table:
    blocks: list[int] = field(default_factory=list)
    num_freed: int = 0
    """Leading entries that were given back."""

    @property
    def held(self) -> list[int]:
        return self.blocks[self.num_freed :]


class BlockManager:
    """Owns the pools of a layout and the tables of every running request.

    A request can go back to where its last step began, and `num_takeback` tokens further (rejected drafts, a step that
    failed), so sliding blocks are given back only behind window + num_takeback.
    """

    def __init__(self, layout: KVLayout, num_takeback: int = 0) -> None:
        self.layout = layout
        self.num_takeback = num_takeback
        self.pools = tuple(BlockPool(group.num_blocks) for group in layout.groups)
        self._tables: dict[int, tuple[_Table, ...]] = {}
        self._num_tokens: dict[int, int] = {}
        self._earliest: dict[int, int] = {}
        self._promised: dict[int, tuple[int, ...]] = {}

    @property
    def request_ids(self) -> tuple[int, ...]:
        """Requests that hold tables."""
        return tuple(self._tables)

    def try_add(self, request_id: int, max_num_tokens: int, step_tokens: int) -> bool:
        """Open empty tables for a request of at most `max_num_tokens` that grows by up to `step_tokens` a step, and
        promise it the blocks it may need; False, and nothing done, where too few are not promised to others."""
        if request_id in self._tables:
            raise ValueError(f"request {request_id} already has tables")
        needed = tuple(
            group.blocks_for_request(max_num_tokens, step_tokens + self.num_takeback) for group in self.layout.groups
        )
        for group, count in zip(self.layout.groups, needed, strict=True):
            if count + sum(promised[group.index] for promised in self._promised.values()) > group.num_blocks:
                return False
        self._promised[request_id] = needed
        self._tables[request_id] = tuple(_Table() for _ in self.layout.groups)
        self._num_tokens[request_id] = 0
        self._earliest[request_id] = 0
        return True

    def grow(self, request_id: int, begin: int, end: int) -> None:
        """Make room for a step that computes the positions begin..end, first giving back the blocks that no query at
        `begin`, or up to num_takeback before it, can see.

        Raises CapacityError, with everything as before, when a pool is short. A request that keeps to the lengths it
        was added with never meets that.
        """
        if not self._earliest[request_id] <= begin <= min(end, self._num_tokens[request_id]):
            raise ValueError(
                f"request {request_id} cannot go on with positions {begin} to {end}: it holds the keys that queries "
                f"from {self._earliest[request_id]} to {self._num_tokens[request_id]} see"
            )
        earliest = max(self._earliest[request_id], begin - self.num_takeback)
        wanted = -(-end // self.layout.block_size)
        changes: list[tuple[_Table, BlockPool, int, int]] = []
        for group, table, pool in zip(self.layout.groups, self._tables[request_id], self.pools, strict=True):
            num_freed = _first_visible(group, earliest) // group.block_size
            num_missing = max(0, wanted - len(table.blocks))
            num_usable = pool.num_free + pool.count_last_references(table.blocks[table.num_freed : num_freed])
            if num_missing > num_usable:
                raise CapacityError(
                    f"not enough free {group.kind} blocks for request {request_id}",
                    value=f"{num_missing} wanted",
                    limit=f"{num_usable} free of {group.num_blocks}",
                )
            changes.append((table, pool, num_freed, num_missing))
        for table, pool, num_freed, num_missing in changes:
            if num_freed > table.num_freed:
                pool.release(table.blocks[table.num_freed : num_freed])
                table.blocks[table.num_freed : num_freed] = [NO_BLOCK] * (num_freed - table.num_freed)
                table.num_freed = num_freed
            table.blocks.extend(pool.take(num_missing))
        self._earliest[request_id] = earliest
        self._num_tokens[request_id] = max(end, self._num_tokens[request_id])

    def take_back(self, request_id: int, num_tokens: int) -> None:
        """Drop the request's last `num_tokens` tokens and the blocks only they used. Raises ValueError beyond
        num_takeback tokens before the begin of the last step."""
        length = self._num_tokens[request_id] - num_tokens
        if num_tokens < 0 or length < self._earliest[request_id]:
            raise ValueError(
                f"cannot take back {num_tokens} of request {request_id}'s {self._num_tokens[request_id]} tokens: "
                f"keys are held for queries from {self._earliest[request_id]} on"
            )
        wanted = -(-length // self.layout.block_size)
        for table, pool in zip(self._tables[request_id], self.pools, strict=True):
            pool.release(table.blocks[wanted:])
            del table.blocks[wanted:]
        self._num_tokens[request_id] = length

    def remove(self, request_id: int) -> None:
        """Give back everything a request holds."""
        for table, pool in zip(self._tables.pop(request_id), self.pools, strict=True):
            pool.release(table.held)
        del self._num_tokens[request_id], self._earliest[request_id], self._promised[request_id]

    def table(self, request_id: int, group: int) -> list[int]:
        """Return the block table of one group: block numbers by position // block_size, NO_BLOCK where given back."""
        return self._tables[request_id][group].blocks

    def num_tokens(self, request_id: int) -> int:
        """Return for how many tokens the request has room."""
        return self._num_tokens[request_id]

    def check(self) -> None:
        """Raise AssertionError unless every pool's counts are those of the tables, every table covers its request, and
        none holds more than was promised."""
        for index, pool in enumerate(self.pools):
            pool.check(block for tables in self._tables.values() for block in tables[index].held)
        for request_id, tables in self._tables.items():
            wanted = -(-self._num_tokens[request_id] // self.layout.block_size)
            for table, promised in zip(tables, self._promised[request_id], strict=True):
                assert len(table.blocks) == wanted, f"request {request_id} has a table of another length"
                assert NO_BLOCK not in table.held, f"request {request_id} lacks a block"
                assert len(table.held) <= promised, f"request {request_id} holds more than it was promised"


def _first_visible(group: KVGroup, position: int) -> int:
    """Return the first key that a query at `position` or later can see."""
    return 0 if group.window is None else max(0, position - group.window + 1)
