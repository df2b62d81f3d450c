"""The blocks of a group: what the free ones keep, and in which order their places are used again."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gemwright.errors import CapacityError
from gemwright.memory.block_pool import BlockPool


@given(st.integers(1, 8), st.lists(st.tuples(st.sampled_from(["take", "hold", "name", "release"]), st.integers(0, 30))))
@settings(max_examples=300)
def test_what_was_let_go_longest_ago_makes_room_and_nothing_held_ever_does(
    num_blocks: int, steps: list[tuple[str, int]]
) -> None:
    """The model: a queue of free blocks, a list of held ones with repeats, and the key of each block."""
    pool = BlockPool(num_blocks)
    free, held = list(range(num_blocks)), list[int]()
    keys: dict[int, bytes] = {}
    num_evictions = 0
    for action, number in steps:
        if action == "take":
            count = number % (num_blocks + 2)
            if count > len(free):
                with pytest.raises(CapacityError, match=f"{count} wanted"):
                    pool.take(count)
                continue
            expected, free = free[:count], free[count:]
            num_evictions += sum(keys.pop(block, None) is not None for block in expected)
            assert pool.take(count) == expected
            held += expected
        elif action == "hold":
            block = number % num_blocks
            pool.hold(block)
            free = [other for other in free if other != block]
            held.append(block)
        elif held and action == "name":
            block, key = held[number % len(held)], bytes([number])
            pool.name(block, key)
            if key not in keys.values():
                keys.setdefault(block, key)
        elif held:
            block = held.pop(number % len(held))
            pool.release([block])
            if block not in held:
                free.append(block)
        pool.check(held)
        assert pool.num_free == len(free)
        assert pool.num_kept == sum(block in keys for block in free)
        assert pool.num_evictions == num_evictions
        assert {number: pool.find(bytes([number])) for number in range(31)} == {
            number: next((block for block, key in keys.items() if key == bytes([number])), None) for number in range(31)
        }
        assert [pool.is_free(block) for block in range(num_blocks)] == [block in free for block in range(num_blocks)]


def test_a_shared_block_is_free_when_its_last_owner_lets_go() -> None:
    pool = BlockPool(3)
    first, second = pool.take(2)
    pool.hold(first)
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
        pool.name(block, b"key")
    with pytest.raises(CapacityError, match="3 wanted"):
        pool.take(3)
    pool.check([held[1]])


def test_wrong_books_do_not_pass_the_check() -> None:
    pool = BlockPool(3)
    (block,) = pool.take(1)
    for wrong in ([block, block], []):
        with pytest.raises(AssertionError, match="reference counts differ"):
            pool.check(wrong)
    pool.name(block, b"key")
    pool._key_of_block[block] = b"another"
    with pytest.raises(AssertionError, match="keys and blocks differ"):
        pool.check([block])
    pool = BlockPool(1)
    pool._free.clear()
    with pytest.raises(AssertionError, match="free \\+ used"):
        pool.check([])
