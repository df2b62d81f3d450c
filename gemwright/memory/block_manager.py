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

    `num_takeback` tokens at the end of a request can be taken back at any time (rejected drafts), so sliding blocks
    are given back only behind window + num_takeback.
    """

    def __init__(self, layout: KVLayout, num_takeback: int = 0) -> None:
        self.layout = layout
        self.num_takeback = num_takeback
        self.pools = tuple(BlockPool(group.num_blocks) for group in layout.groups)
        self._tables: dict[int, tuple[_Table, ...]] = {}
        self._num_tokens: dict[int, int] = {}
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
        return True

    def missing_blocks(self, request_id: int, num_tokens: int) -> tuple[int, ...]:
        """Return for every group how many blocks `grow` to `num_tokens` would take from its pool."""
        wanted = -(-num_tokens // self.layout.block_size)
        return tuple(max(0, wanted - len(table.blocks)) for table in self._tables[request_id])

    def grow(self, request_id: int, num_tokens: int) -> None:
        """Make room for positions below `num_tokens`, first giving back what this step cannot see any more.

        Raises CapacityError, with every table as before, when a pool is short.
        """
        self.free_behind_window(request_id)
        missing = self.missing_blocks(request_id, num_tokens)
        for group, pool, count in zip(self.layout.groups, self.pools, missing, strict=True):
            if count > pool.num_free:
                raise CapacityError(
                    f"not enough free {group.kind} blocks for request {request_id}",
                    value=f"{count} wanted",
                    limit=f"{pool.num_free} free of {group.num_blocks}",
                )
        for table, pool, count in zip(self._tables[request_id], self.pools, missing, strict=True):
            table.blocks.extend(pool.take(count))
        self._num_tokens[request_id] = num_tokens

    def free_behind_window(self, request_id: int) -> None:
        """Give back sliding blocks that no query at or after the request's end, less num_takeback, can see."""
        end = self._num_tokens[request_id] - self.num_takeback
        for group, table, pool in zip(self.layout.groups, self._tables[request_id], self.pools, strict=True):
            first = _first_visible(group, end) // group.block_size
            if first > table.num_freed:
                pool.release(table.blocks[table.num_freed : first])
                table.blocks[table.num_freed : first] = [NO_BLOCK] * (first - table.num_freed)
                table.num_freed = first

    def take_back(self, request_id: int, num_tokens: int) -> None:
        """Drop the request's last `num_tokens` tokens (at most num_takeback) and the blocks only they used."""
        if not 0 <= num_tokens <= min(self.num_takeback, self._num_tokens[request_id]):
            raise ValueError(f"cannot take back {num_tokens} tokens, at most {self.num_takeback} can be")
        length = self._num_tokens[request_id] - num_tokens
        wanted = -(-length // self.layout.block_size)
        for table, pool in zip(self._tables[request_id], self.pools, strict=True):
            pool.release(table.blocks[wanted:])
            del table.blocks[wanted:]
        self._num_tokens[request_id] = length

    def remove(self, request_id: int) -> None:
        """Give back everything a request holds."""
        for table, pool in zip(self._tables.pop(request_id), self.pools, strict=True):
            pool.release(table.held)
        del self._num_tokens[request_id], self._promised[request_id]

    def table(self, request_id: int, group: int) -> list[int]:
        """Return the block table of one group: block numbers by position // block_size, NO_BLOCK where given back."""
        return self._tables[request_id][group].blocks

    def num_tokens(self, request_id: int) -> int:
        """Return for how many tokens the request has room."""
        return self._num_tokens[request_id]

    def check(self) -> None:
        """Raise AssertionError unless every pool's counts are those of the tables."""
        for index, pool in enumerate(self.pools):
            pool.check(block for tables in self._tables.values() for block in tables[index].held)


def _first_visible(group: KVGroup, position: int) -> int:
    """Return the first key that a query at `position` or later can see."""
    return 0 if group.window is None else max(0, position - group.window + 1)
