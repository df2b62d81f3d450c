"""Block tables under any order of adding, growing, failing, taking back and removing.

A model beside the manager knows, for each request, the earliest query that may still come; from it follows what must
lie in a block, and how many blocks at most may be held.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from gemwright.errors import CapacityError
from gemwright.memory.block_manager import NO_BLOCK, BlockManager
from gemwright.memory.block_pool import BlockPool
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


@dataclass
class Known:
    """What the model knows of a request."""

    max_num_tokens: int
    step_tokens: int
    computed: int = 0
    room: int = 0
    earliest: int = 0


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
        windows, counts = [window for window, _ in groups], [count for _, count in groups]
        self.layout = make_layout(windows, block_size, counts)
        self.manager = BlockManager(self.layout, num_takeback)

    def promise(self, known: Known, group: KVGroup) -> int:
        return group.blocks_for_request(known.max_num_tokens, known.step_tokens + self.manager.num_takeback)

    def pick(self, data: st.DataObject, wanted: str = "any") -> int:
        ids = [i for i, k in self.known.items() if wanted == "any" or k.computed < k.max_num_tokens]
        return data.draw(st.sampled_from(sorted(ids)), label="request")

    def snapshot(self) -> Any:
        tables = {
            (request_id, group.index): list(self.manager.table(request_id, group.index))
            for request_id in self.manager.request_ids
            for group in self.layout.groups
        }
        return tables, [pool.num_free for pool in self.manager.pools]

    @rule(max_num_tokens=st.integers(1, 200), step_tokens=st.integers(1, 70))
    def add(self, max_num_tokens: int, step_tokens: int) -> None:
        new = Known(max_num_tokens, step_tokens)
        fits = all(
            self.promise(new, group) + sum(self.promise(old, group) for old in self.known.values()) <= group.num_blocks
            for group in self.layout.groups
        )
        before = self.snapshot()
        assert self.manager.try_add(self.next_id, max_num_tokens, step_tokens) is fits
        if fits:
            self.known[self.next_id] = new
        else:
            assert self.snapshot() == before
        self.next_id += 1

    @precondition(lambda self: any(known.computed < known.max_num_tokens for known in self.known.values()))
    @rule(data=st.data())
    def compute(self, data: st.DataObject) -> None:
        """A step: it never lacks a block, and sees all that its queries need. It may fail, and is then done again."""
        request_id = self.pick(data, "unfinished")
        known = self.known[request_id]
        count = data.draw(st.integers(1, min(known.step_tokens, known.max_num_tokens - known.computed)), label="tokens")
        begin, end = known.computed, known.computed + count
        self.manager.grow(request_id, begin, end)
        known.earliest = max(known.earliest, begin - self.manager.num_takeback)
        known.room = max(known.room, end)
        for group in self.layout.groups:
            table = self.manager.table(request_id, group.index)
            for query in range(begin, end):
                first = 0 if group.window is None else max(0, query - group.window + 1)
                assert all(table[key // group.block_size] != NO_BLOCK for key in range(first, query + 1))
        if data.draw(st.integers(0, 4), label="fails") > 0:
            known.computed = end

    @precondition(lambda self: self.known)
    @rule(data=st.data())
    def take_back(self, data: st.DataObject) -> None:
        request_id = self.pick(data)
        known = self.known[request_id]
        count = data.draw(st.integers(0, known.room - known.earliest), label="tokens")
        self.manager.take_back(request_id, count)
        known.room -= count
        known.computed = min(known.computed, known.room)

    @precondition(lambda self: self.known)
    @rule(data=st.data())
    def take_back_too_much(self, data: st.DataObject) -> None:
        request_id = self.pick(data)
        known = self.known[request_id]
        before = self.snapshot()
        with pytest.raises(ValueError, match="cannot take back"):
            self.manager.take_back(request_id, known.room - known.earliest + 1)
        with pytest.raises(ValueError, match="cannot go on"):
            self.manager.grow(request_id, known.earliest - 1, known.room)
        with pytest.raises(ValueError, match="cannot go on"):
            self.manager.grow(request_id, known.room + 1, known.room + 1)
        assert self.snapshot() == before

    @precondition(lambda self: self.known)
    @rule(data=st.data())
    def grow_past_every_pool(self, data: st.DataObject) -> None:
        request_id = self.pick(data)
        too_many = (1 + max(group.num_blocks for group in self.layout.groups)) * self.layout.block_size
        before, room = self.snapshot(), self.manager.num_tokens(request_id)
        with pytest.raises(CapacityError, match=f"request {request_id}"):
            self.manager.grow(request_id, self.known[request_id].computed, room + too_many)
        assert self.snapshot() == before
        assert self.manager.num_tokens(request_id) == room

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
        for group in self.layout.groups:
            held = {
                request_id: [block for block in self.manager.table(request_id, group.index) if block != NO_BLOCK]
                for request_id in self.known
            }
            everything = [block for blocks in held.values() for block in blocks]
            assert len(set(everything)) == len(everything), "a block lies in two tables"
            assert self.manager.pools[group.index].num_free == group.num_blocks - len(everything)
            for request_id, known in self.known.items():
                assert len(held[request_id]) <= self.promise(known, group)
                assert self.manager.num_tokens(request_id) == known.room
                first = 0 if group.window is None else max(0, known.earliest - group.window + 1)
                table = self.manager.table(request_id, group.index)
                assert all(table[key // group.block_size] != NO_BLOCK for key in range(first, known.room))

    def teardown(self) -> None:
        for request_id in list(self.known):
            self.manager.remove(request_id)
        if hasattr(self, "manager"):
            assert [pool.num_free for pool in self.manager.pools] == [g.num_blocks for g in self.layout.groups]
            self.manager.check()


Tables.TestCase.settings = settings(max_examples=150, stateful_step_count=30)
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
        first = max(0, computed - window + 1) // block_size
        assert sliding == -(-end // block_size) - first
        assert full == -(-end // block_size)
        computed = end


def test_the_promise_is_reached_and_no_larger() -> None:
    """A window of 5 and steps of 4 touch 8 positions, which lie in 3 blocks of 4 at the most."""
    manager = BlockManager(make_layout([5], 4, [3]))
    assert manager.try_add(0, 100, 4)
    most = 0
    for begin, end in ((0, 4), (4, 7), (7, 11), (11, 15), (15, 19)):
        manager.grow(0, begin, end)
        most = max(most, 3 - manager.pools[0].num_free)
    assert most == 3
    assert not BlockManager(make_layout([5], 4, [2])).try_add(0, 100, 4)


def test_adding_twice_is_refused() -> None:
    manager = BlockManager(make_layout([None], 4, [8]))
    assert manager.try_add(3, 8, 8)
    with pytest.raises(ValueError, match="request 3 already has tables"):
        manager.try_add(3, 8, 8)


def test_a_shared_block_is_free_when_its_last_owner_lets_go() -> None:
    pool = BlockPool(3)
    first, second = pool.take(2)
    pool.share(first)
    assert pool.count_last_references([first, second]) == 1
    pool.check([first, second, first])
    pool.release([first, second])
    assert pool.num_free == 2
    pool.release([first])
    assert pool.num_free == 3
    pool.check([])


@pytest.mark.parametrize("block", [0, -1, 3])
def test_a_pool_refuses_blocks_nobody_holds(block: int) -> None:
    pool = BlockPool(3)
    held = pool.take(2)
    pool.release([0])
    with pytest.raises(ValueError, match="held by nobody"):
        pool.release([block])
    with pytest.raises(ValueError, match="held by nobody"):
        pool.share(block)
    with pytest.raises(CapacityError, match="3 wanted"):
        pool.take(3)
    pool.check([held[1]])


def test_a_wrong_count_does_not_pass_the_check() -> None:
    pool = BlockPool(3)
    (block,) = pool.take(1)
    with pytest.raises(AssertionError, match="reference counts differ"):
        pool.check([block, block])
    with pytest.raises(AssertionError, match="reference counts differ"):
        pool.check([])
