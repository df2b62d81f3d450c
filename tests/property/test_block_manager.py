"""Block tables under any order of adding, growing, failing, taking back and removing, with prefixes that are shared.

A model beside the manager writes down what every step would store in which block. From it follows what a query finds,
that a hit is the content its key names, and that no step writes into what another request reads.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from gemwright.errors import CapacityError
from gemwright.memory.block_keys import extend_block_keys, root_key
from gemwright.memory.block_manager import NO_BLOCK, BlockManager
from gemwright.memory.kv_layout import KVGroup, KVLayout
from gemwright.spec.model_spec import LayerKind


def make_layout(windows: list[int | None], block_size: int, num_blocks: list[int]) -> KVLayout:
    groups = tuple(
        KVGroup(
            index=index,
            kind=LayerKind.FULL if window is None else LayerKind.SLIDING,
            window=window,
            layers=(index,),
            num_kv_heads=1,
            head_dim=4,
            block_size=block_size,
            dtype="float32",
            num_blocks=count,
        )
        for index, (window, count) in enumerate(zip(windows, num_blocks, strict=True))
    )
    places = tuple(range(len(groups)))
    return KVLayout(groups=groups, block_size=block_size, group_of_layer=places, slot_of_layer=(0,) * len(groups))


def first_block(window: int | None, position: int, block_size: int) -> int:
    """The first block that a query at the begin of `position`'s block sees."""
    return 0 if window is None else max(0, position // block_size * block_size - window + 1) // block_size


@dataclass
class Known:
    """What the model knows of a request: `prefixes` names the text up to and with each of its tokens."""

    step_tokens: int
    keys: list[bytes]
    prefixes: list[int]
    computed: int
    room: int
    earliest: int
    named: int
    announced: set[bytes]


class Tables(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.known: dict[int, Known] = {}
        self.next_id = 0

    @initialize(
        groups=st.lists(
            st.tuples(st.one_of(st.none(), st.integers(1, 70)), st.integers(1, 60)), min_size=1, max_size=3
        ),
        block_size=st.integers(1, 32),
        num_takeback=st.integers(0, 8),
    )
    def start(self, groups: list[tuple[int | None, int]], block_size: int, num_takeback: int) -> None:
        self.size = block_size
        self.layout = make_layout([window for window, _ in groups], block_size, [count for _, count in groups])
        self.manager = BlockManager(self.layout, num_takeback)
        self.content: list[dict[tuple[int, int], int]] = [{} for _ in groups]

    def pick(self, data: st.DataObject, unfinished: bool = False) -> int:
        ids = [i for i, known in self.known.items() if not unfinished or known.computed < len(known.prefixes)]
        return data.draw(st.sampled_from(sorted(ids)), label="request")

    def snapshot(self) -> Any:
        tables = {
            (request_id, group.index): list(self.manager.table(request_id, group.index))
            for request_id in self.manager.request_ids
            for group in self.layout.groups
        }
        return tables, [pool.num_free for pool in self.manager.pools], self.manager.num_evictions

    def longest_match(self, keys: list[bytes], limit: int) -> int:
        def is_here(length: int) -> bool:
            return all(
                pool.find(keys[index]) is not None
                for group, pool in zip(self.layout.groups, self.manager.pools, strict=True)
                for index in range(first_block(group.window, length * self.size, self.size), length)
            )

        return max(length for length in range(min(len(keys), limit) + 1) if is_here(length))

    @rule(
        num_tokens=st.integers(1, 200),
        step_tokens=st.integers(1, 70),
        stem=st.integers(0, 1),
        common=st.sampled_from([0, 40, 100, 200]),
        data=st.data(),
    )
    def add(self, num_tokens: int, step_tokens: int, stem: int, common: int, data: st.DataObject) -> None:
        """Texts of one stem are equal over their first `common` tokens at least."""
        request_id = self.next_id
        self.next_id += 1
        ids = [stem if place < common else 2 + request_id for place in range(num_tokens)]
        keys: list[bytes] = []
        extend_block_keys(keys, ids, self.size, root_key(None))
        limit = data.draw(st.integers(0, len(keys)), label="limit")
        matched = self.manager.match(keys, limit)
        assert matched == self.longest_match(keys, limit)
        awaited = keys[matched] if matched < len(keys) else None
        is_announced = any(awaited in known.announced for known in self.known.values())
        assert self.manager.is_being_computed(keys, matched) is is_announced
        fits = True
        for group, pool in zip(self.layout.groups, self.manager.pools, strict=True):
            first = first_block(group.window, matched * self.size, self.size)
            found = [pool.find(key) for key in keys[first:matched]]
            needed = group.blocks_for_request(num_tokens, step_tokens + self.manager.num_takeback) - len(found)
            fits = fits and needed <= pool.num_free - sum(block is not None and pool.is_free(block) for block in found)
        before = self.snapshot()
        assert self.manager.try_add(request_id, num_tokens, step_tokens, keys, matched) is fits
        if not fits:
            assert self.snapshot() == before
            return
        prefixes, last = [], 0
        for token_id in ids:
            last = hash((last, token_id))
            prefixes.append(last)
        length = matched * self.size
        self.known[request_id] = Known(
            step_tokens, keys, prefixes, length, length, length, matched, set(keys[matched:])
        )
        if data.draw(st.booleans(), label="at once"):
            while self.known[request_id].computed < num_tokens:
                assert self.compute_some(request_id, step_tokens), "what try_add found free was not enough"

    def compute_some(self, request_id: int, count: int) -> bool:
        """A step, unless blocks are short. Every block it reads holds what the request's own text put there."""
        known = self.known[request_id]
        begin, end = known.computed, min(known.computed + count, len(known.prefixes))
        earliest = max(known.earliest, begin - self.manager.num_takeback)
        before = self.snapshot()
        try:
            self.manager.grow(request_id, begin, end)
        except CapacityError:
            assert self.snapshot() == before
            return False
        known.earliest = earliest
        known.room = max(known.room, end)
        for group in self.layout.groups:
            table, content = self.manager.table(request_id, group.index), self.content[group.index]
            for position in range(begin, end):
                block = table[position // self.size]
                owners = [i for i in self.known if block in self.manager.table(i, group.index)]
                kept = content.get((block, position % self.size))
                assert owners == [request_id] or kept == known.prefixes[position], "a step overwrites another's text"
                content[block, position % self.size] = known.prefixes[position]
            first = 0 if group.window is None else max(0, begin - group.window + 1)
            read = [content[table[key // self.size], key % self.size] for key in range(first, end)]
            assert read == known.prefixes[first:end]
        known.computed = end
        return True

    @precondition(lambda self: any(known.computed < len(known.prefixes) for known in self.known.values()))
    @rule(data=st.data(), is_failure=st.booleans(), is_noted=st.booleans())
    def compute(self, data: st.DataObject, is_failure: bool, is_noted: bool) -> None:
        """A step that fails is done again; one that does not may give its blocks their keys."""
        request_id = self.pick(data, unfinished=True)
        known = self.known[request_id]
        begin = known.computed
        if not self.compute_some(request_id, data.draw(st.integers(1, known.step_tokens), label="tokens")):
            return
        if is_failure:
            known.computed = begin
        elif is_noted:
            self.manager.note_computed(request_id, known.computed, known.keys)
            known.named = max(known.named, known.computed // self.size)
            known.announced = set(known.keys[known.named :])

    @precondition(lambda self: self.known)
    @rule(data=st.data())
    def take_back(self, data: st.DataObject) -> None:
        request_id = self.pick(data)
        known = self.known[request_id]
        settled = max(known.earliest, known.named * self.size)
        with pytest.raises(ValueError, match="cannot take back"):
            self.manager.take_back(request_id, known.room - settled + 1)
        count = data.draw(st.integers(0, known.room - settled), label="tokens")
        self.manager.take_back(request_id, count)
        known.room -= count
        known.computed = min(known.computed, known.room)

    @precondition(lambda self: self.known)
    @rule(data=st.data())
    def grow_wrongly(self, data: st.DataObject) -> None:
        request_id = self.pick(data)
        known = self.known[request_id]
        before = self.snapshot()
        with pytest.raises(ValueError, match="cannot go on"):
            self.manager.grow(request_id, known.earliest - 1, known.room)
        with pytest.raises(ValueError, match="cannot go on"):
            self.manager.grow(request_id, known.room + 1, known.room + 1)
        too_many = (1 + max(group.num_blocks for group in self.layout.groups)) * self.size
        with pytest.raises(CapacityError, match=f"request {request_id}"):
            self.manager.grow(request_id, known.computed, known.room + too_many)
        assert self.snapshot() == before
        assert self.manager.num_tokens(request_id) == known.room

    @precondition(lambda self: self.known)
    @rule(data=st.data())
    def remove(self, data: st.DataObject) -> None:
        request_id = self.pick(data)
        self.manager.remove(request_id)
        del self.known[request_id]

    @invariant()
    def all_is_as_told(self) -> None:
        if not hasattr(self, "manager"):
            return
        self.manager.check()
        assert set(self.manager.request_ids) == set(self.known)
        for group, pool in zip(self.layout.groups, self.manager.pools, strict=True):
            owners: dict[int, set[tuple[int, int]]] = {}
            for request_id, known in self.known.items():
                table = self.manager.table(request_id, group.index)
                held = [(index, block) for index, block in enumerate(table) if block != NO_BLOCK]
                bound = group.blocks_for_request(len(known.prefixes), known.step_tokens + self.manager.num_takeback)
                assert len(held) <= bound
                assert self.manager.num_tokens(request_id) == known.room
                first = 0 if group.window is None else max(0, known.earliest - group.window + 1)
                assert all(table[key // self.size] != NO_BLOCK for key in range(first, known.room))
                for index, block in held:
                    owners.setdefault(block, set()).add((request_id, index))
            assert pool.num_free + len(owners) == group.num_blocks
            for block, places in owners.items():
                if len(places) > 1:
                    (key,) = {self.known[request_id].keys[index] for request_id, index in places}
                    assert pool.find(key) == block
            for known in self.known.values():
                for index, key in enumerate(known.keys):
                    found = pool.find(key)
                    if found is not None:
                        stored = [self.content[group.index][found, offset] for offset in range(self.size)]
                        assert stored == known.prefixes[index * self.size : (index + 1) * self.size]

    def teardown(self) -> None:
        for request_id in list(self.known):
            self.manager.remove(request_id)
        if hasattr(self, "manager"):
            assert [pool.num_free for pool in self.manager.pools] == [g.num_blocks for g in self.layout.groups]
            self.manager.check()


Tables.TestCase.settings = settings(max_examples=100, stateful_step_count=25)
TestTables = Tables.TestCase


@given(
    window=st.integers(1, 40),
    block_size=st.integers(1, 32),
    max_num_tokens=st.integers(1, 300),
    steps=st.lists(st.integers(1, 50), min_size=1, max_size=40),
)
@settings(max_examples=150)
def test_a_sliding_group_holds_little_and_a_full_group_everything(
    window: int, block_size: int, max_num_tokens: int, steps: list[int]
) -> None:
    layout = make_layout([window, None], block_size, [1000, 1000])
    manager = BlockManager(layout)
    assert manager.try_add(7, max_num_tokens, max(steps))
    computed = 0
    for step in steps:
        end = min(computed + step, max_num_tokens)
        manager.grow(7, computed, end)
        sliding, full = (1000 - pool.num_free for pool in manager.pools)
        assert sliding == -(-end // block_size) - first_block(window, computed, block_size)
        assert sliding <= -(-(window - 1) // block_size) + -(-max(steps) // block_size) + 1
        assert full == -(-end // block_size)
        computed = end


def test_the_bound_is_reached_and_no_larger() -> None:
    """A window of 5 takes the block before the last whole one; steps of 4 that begin at its end touch two more."""
    manager = BlockManager(make_layout([5], 4, [3]))
    assert manager.try_add(0, 100, 4)
    most = 0
    for begin, end in ((0, 4), (4, 7), (7, 11), (11, 15), (15, 19)):
        manager.grow(0, begin, end)
        most = max(most, 3 - manager.pools[0].num_free)
    assert most == 3
    assert not BlockManager(make_layout([5], 4, [2])).try_add(0, 100, 4)


def finished(manager: BlockManager, request_id: int, ids: list[int]) -> list[bytes]:
    """Compute a text alone, in one step, and let it go; returns its keys."""
    keys: list[bytes] = []
    extend_block_keys(keys, ids, manager.layout.block_size, root_key(None))
    assert manager.try_add(request_id, len(ids), len(ids), keys)
    manager.grow(request_id, 0, len(ids))
    manager.note_computed(request_id, len(ids), keys)
    manager.remove(request_id)
    return keys


def test_a_hit_needs_all_of_a_full_group_and_the_last_window_of_a_sliding_one() -> None:
    manager = BlockManager(make_layout([None, 5], 4, [20, 20]))
    keys = finished(manager, 0, list(range(40)))
    assert manager.match(keys, 10) == 10
    assert manager.match(keys, 7) == 7
    full, sliding = manager.pools

    def lose(pool: Any, *indices: int) -> None:
        """Reuse everything that nobody has a use for, but the other blocks of this text."""
        blocks = [pool.find(key) for index, key in enumerate(keys) if index not in indices]
        for block in blocks:
            pool.hold(block)
        pool.release(pool.take(pool.num_free))
        pool.release(blocks)

    lose(sliding, 0, 1, 2, 3, 4, 5, 6, 7)
    assert manager.match(keys, 10) == 10
    assert manager.match(keys, 9) == 9
    assert manager.match(keys, 8) == 0
    lose(full, 9)
    assert manager.match(keys, 10) == 9
    assert manager.num_evictions == 9
    lose(full, 3, 9)
    assert manager.match(keys, 10) == 0


def test_a_prefix_outlives_what_follows_it() -> None:
    manager = BlockManager(make_layout([None], 4, [10]))
    keys = finished(manager, 0, list(range(40)))
    finished(manager, 1, [50] * 12)
    assert manager.match(keys, 10) == 7
    assert manager.num_evictions == 3


def test_adding_twice_and_a_match_that_is_gone_are_refused() -> None:
    manager = BlockManager(make_layout([None], 4, [8]))
    keys = finished(manager, 0, list(range(16)))
    assert manager.try_add(3, 8, 8)
    with pytest.raises(ValueError, match="request 3 already has tables"):
        manager.try_add(3, 8, 8)
    with pytest.raises(ValueError, match="blocks that are not here"):
        manager.try_add(4, 8, 8, [*keys, b"unknown"], 5)
    manager.check()


def test_the_check_finds_an_announcement_nobody_made() -> None:
    manager = BlockManager(make_layout([None], 4, [8]))
    assert manager.try_add(0, 8, 8, [b"a", b"b"])
    manager.check()
    manager._announced[b"c"] += 1
    with pytest.raises(AssertionError, match="announced keys differ"):
        manager.check()
