"""Block tables of running requests, one a group: prefix hits, growth, giving back behind the window, taking back.

A table lists a block number for every `block_size` positions; blocks given back stand as NO_BLOCK. Knows positions,
blocks and their keys, never token ids.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
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


@dataclass(slots=True)
class _Held:
    """One request's tables. `earliest` is the first position a query may still be computed at."""

    tables: tuple[_Table, ...]
    num_tokens: int = 0
    earliest: int = 0
    num_named: int = 0
    announced: list[bytes] = field(default_factory=list)


class BlockManager:
    """Owns the pools of a layout and the tables of every running request.

    A request can go back to where its last step began, and `num_takeback` tokens further (rejected drafts, a step that
    failed). Sliding blocks are given back behind window + num_takeback, counted from the last whole block: the last
    window before that block's end stays, so that the next turn of a conversation can go on from there.
    """

    def __init__(self, layout: KVLayout, num_takeback: int = 0) -> None:
        self.layout = layout
        self.num_takeback = num_takeback
        self.pools = tuple(BlockPool(group.num_blocks) for group in layout.groups)
        self._requests: dict[int, _Held] = {}
        self._announced: Counter[bytes] = Counter()

    @property
    def share_held(self) -> float:
        """Bytes of the blocks that requests hold, as a share of all."""
        held = sum(
            (group.num_blocks - pool.num_free) * group.block_bytes
            for group, pool in zip(self.layout.groups, self.pools, strict=True)
        )
        return held / max(1, self.layout.total_bytes)

    @property
    def request_ids(self) -> tuple[int, ...]:
        """Requests that hold tables."""
        return tuple(self._requests)

    @property
    def num_evictions(self) -> int:
        """Blocks whose content was lost to make room."""
        return sum(pool.num_evictions for pool in self.pools)

    def match(self, keys: Sequence[bytes], max_num_blocks: int) -> int:
        """Return how many leading blocks named by `keys` are here, at most `max_num_blocks`: every one of them in full
        groups, and in each sliding group those that the next query sees."""
        longest = min(len(keys), max_num_blocks)
        for group, pool in zip(self.layout.groups, self.pools, strict=True):
            if group.window is None:
                found = next((i for i in range(longest) if pool.find(keys[i]) is None), longest)
                longest = min(longest, found)
        sliding = [
            (group, pool)
            for group, pool in zip(self.layout.groups, self.pools, strict=True)
            if group.window is not None
        ]
        while longest > 0:
            lacking = [
                index
                for group, pool in sliding
                for index in range(self._first_block(group, longest * group.block_size), longest)
                if pool.find(keys[index]) is None
            ]
            if not lacking:
                return longest
            longest = max(lacking)  # no longer prefix can do without that block, so go on below it
        return 0

    def is_being_computed(self, keys: Sequence[bytes], num_matched: int) -> bool:
        """Whether a running request is about to compute the block after the `num_matched` ones that are here."""
        return num_matched < len(keys) and self._announced[keys[num_matched]] > 0

    def try_add(
        self,
        request_id: int,
        num_tokens: int,
        step_tokens: int,
        keys: Sequence[bytes] = (),
        num_matched: int = 0,
    ) -> bool:
        """Open tables for a request that begins with `num_tokens` tokens, its first `num_matched` blocks found here.

        False, and nothing done, unless the blocks it needs beside them to compute those tokens are free now.
        """
        if request_id in self._requests:
            raise ValueError(f"request {request_id} already has tables")
        tables = []
        for group, pool in zip(self.layout.groups, self.pools, strict=True):
            first = self._first_block(group, num_matched * group.block_size)
            found = [pool.find(key) for key in keys[first:num_matched]]
            held = [block for block in found if block is not None]
            if len(held) != num_matched - first:
                raise ValueError(f"request {request_id} was matched with blocks that are not here")
            needed = max(0, group.blocks_for_request(num_tokens, step_tokens + self.num_takeback) - len(held))
            if needed > pool.num_free - sum(pool.is_free(block) for block in held):
                return False
            tables.append(_Table([NO_BLOCK] * first + held, first))
        for table, pool in zip(tables, self.pools, strict=True):
            for block in table.held:
                pool.hold(block)
        length = num_matched * self.layout.block_size
        announced = list(keys[num_matched:])
        self._announced.update(announced)
        self._requests[request_id] = _Held(tuple(tables), length, length, num_matched, announced)
        return True

    def grow(self, request_id: int, begin: int, end: int) -> None:
        """Make room for a step that computes the positions begin..end, first giving back the blocks that no query at
        `begin`, or up to num_takeback before it, can see.

        Raises CapacityError, with everything as before, when a pool is short.
        """
        request = self._requests[request_id]
        if not request.earliest <= begin <= min(end, request.num_tokens):
            raise ValueError(
                f"request {request_id} cannot go on with positions {begin} to {end}: it holds the keys that queries "
                f"from {request.earliest} to {request.num_tokens} see"
            )
        earliest = max(request.earliest, begin - self.num_takeback)
        wanted = -(-end // self.layout.block_size)
        changes: list[tuple[_Table, BlockPool, int, int]] = []
        for group, table, pool in zip(self.layout.groups, request.tables, self.pools, strict=True):
            num_freed = max(table.num_freed, self._first_block(group, earliest))
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
            pool.release(table.blocks[table.num_freed : num_freed])
            table.blocks[table.num_freed : num_freed] = [NO_BLOCK] * (num_freed - table.num_freed)
            table.num_freed = num_freed
            table.blocks.extend(pool.take(num_missing))
        request.earliest = earliest
        request.num_tokens = max(end, request.num_tokens)

    def note_computed(self, request_id: int, num_tokens: int, keys: Sequence[bytes]) -> set[int]:
        """Give the blocks that `num_tokens` computed tokens have filled their keys, so that others find them. Returns
        the places in `keys` of those that no block of some group had before."""
        request = self._requests[request_id]
        filled = min(num_tokens // self.layout.block_size, len(keys))
        new: set[int] = set()
        for table, pool in zip(request.tables, self.pools, strict=True):
            for index in range(max(request.num_named, table.num_freed), filled):
                if pool.name(table.blocks[index], keys[index]):
                    new.add(index)
        if filled > request.num_named:
            self._withdraw(request, filled - request.num_named)
            request.num_named = filled
        return new

    def take_back(self, request_id: int, num_tokens: int) -> None:
        """Drop the request's last `num_tokens` tokens and the blocks only they used. Raises ValueError beyond
        num_takeback tokens before the begin of the last step, and for tokens of blocks that others may have found."""
        request = self._requests[request_id]
        length = request.num_tokens - num_tokens
        earliest = max(request.earliest, request.num_named * self.layout.block_size)
        if num_tokens < 0 or length < earliest:
            raise ValueError(
                f"cannot take back {num_tokens} of request {request_id}'s {request.num_tokens} tokens: "
                f"those before {earliest} are settled"
            )
        wanted = -(-length // self.layout.block_size)
        for table, pool in zip(request.tables, self.pools, strict=True):
            pool.release(table.blocks[wanted:])
            del table.blocks[wanted:]
        request.num_tokens = length

    def remove(self, request_id: int) -> None:
        """Give back everything a request holds, its last blocks first: a prefix outlives what follows it."""
        request = self._requests.pop(request_id)
        self._withdraw(request, len(request.announced))
        for table, pool in zip(request.tables, self.pools, strict=True):
            pool.release(reversed(table.held))

    def forget_content(self) -> None:
        """Let no later request find what the pools contain. Raises ValueError while a request runs."""
        if self._requests:
            raise ValueError(f"{len(self._requests)} requests still rely on the content of the pools")
        for pool in self.pools:
            pool.forget_content()

    def table(self, request_id: int, group: int) -> list[int]:
        """Return the block table of one group: block numbers by position // block_size, NO_BLOCK where given back."""
        return self._requests[request_id].tables[group].blocks

    def num_tokens(self, request_id: int) -> int:
        """Return for how many tokens the request has room."""
        return self._requests[request_id].num_tokens

    def check(self) -> None:
        """Raise AssertionError unless every pool's counts are those of the tables, and every table covers its
        request without a gap."""
        for index, pool in enumerate(self.pools):
            pool.check(block for request in self._requests.values() for block in request.tables[index].held)
        announced = Counter(key for request in self._requests.values() for key in request.announced)
        assert announced == self._announced, "announced keys differ from the requests'"
        for request_id, request in self._requests.items():
            wanted = -(-request.num_tokens // self.layout.block_size)
            for table in request.tables:
                assert len(table.blocks) == wanted, f"request {request_id} has a table of another length"
                assert NO_BLOCK not in table.held, f"request {request_id} lacks a block"

    def _withdraw(self, request: _Held, count: int) -> None:
        """Take back the announcement of the first `count` blocks a request was about to compute."""
        for key in request.announced[:count]:
            self._announced[key] -= 1
            if self._announced[key] == 0:
                del self._announced[key]
        del request.announced[:count]

    @staticmethod
    def _first_block(group: KVGroup, position: int) -> int:
        """Return the first block that stays for queries at `position` or later, counted from the begin of the block
        that holds `position`."""
        if group.window is None:
            return 0
        whole = position // group.block_size * group.block_size
        return max(0, whole - group.window + 1) // group.block_size
