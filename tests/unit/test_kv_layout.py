"""The K/V cache in bytes: published sizes, which layer reads which cache, what a budget buys, what is allocated."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gemwright.errors import CapacityError, UnsupportedError, show_both_bytes
from gemwright.memory.kv_layout import KVGroup, KVLayout, group_layers, longest_request, plan_layout
from gemwright.ops.reference import ReferenceOps
from gemwright.spec.families import read_config
from gemwright.spec.model_spec import ModelSpec
from gemwright.testing import TINY_CONFIGS
from tests.published_configs import DRAFTERS, SUPPORTED, load_config

# Bytes in bfloat16: of a token in all full layers, of a cached token in all sliding layers, and the window.
PUBLISHED = {
    "gemma-2-2b": (53_248, 53_248, 4096),
    "gemma-2-9b": (172_032, 172_032, 4096),
    "gemma-2-27b": (188_416, 188_416, 4096),
    "gemma-3-270m": (3_072, 15_360, 512),
    "gemma-3-1b": (4_096, 22_528, 512),
    "gemma-3-4b": (20_480, 118_784, 1024),
    "gemma-3-12b": (65_536, 327_680, 1024),
    "gemma-3-27b": (81_920, 425_984, 1024),
    "gemma-4-E2B": (6_144, 12_288, 512),
    "gemma-4-E4B": (16_384, 40_960, 512),
    "gemma-4-12B": (16_384, 327_680, 1024),
    "gemma-4-26B-A4B": (20_480, 204_800, 1024),
    "gemma-4-31B": (81_920, 819_200, 1024),
}
TARGETS = tuple(name for name in SUPPORTED if name not in DRAFTERS)


def base_name(name: str) -> str:
    return name.removesuffix("-it").removesuffix("-pt")


def published(name: str) -> ModelSpec:
    return read_config(load_config(name))


def token_bytes(layout: KVLayout, *, sliding: bool) -> int:
    return sum(
        group.token_bytes * len(group.layers) for group in layout.groups if (group.window is not None) == sliding
    )


def sliding_groups(layout: KVLayout) -> list[KVGroup]:
    return [group for group in layout.groups if group.window is not None]


@pytest.mark.parametrize("name", TARGETS)
def test_bytes_a_token_are_the_published_ones(name: str) -> None:
    full, sliding, window = PUBLISHED[base_name(name)]
    layout = group_layers(published(name), 16, "bfloat16")
    assert token_bytes(layout, sliding=False) == full
    assert token_bytes(layout, sliding=True) == sliding
    assert {group.window for group in sliding_groups(layout)} == {window}
    wide = group_layers(published(name), 16, "float32")
    assert (token_bytes(wide, sliding=False), token_bytes(wide, sliding=True)) == (2 * full, 2 * sliding)


@pytest.mark.parametrize(
    ("name", "growth_bytes", "constant_bytes"),
    [
        ("gemma-4-31B-it", 81_920, 838_860_800),
        ("gemma-4-26B-A4B-it", 20_480, 209_715_200),
        ("gemma-4-12B-it", 16_384, 335_544_320),
        ("gemma-4-E4B-it", 16_384, 20_971_520),
        ("gemma-3-12b-it", 65_536, 335_544_320),
        ("gemma-3-27b-it", 81_920, 436_207_616),
    ],
)
def test_a_sequence_is_a_constant_and_a_growth(name: str, growth_bytes: int, constant_bytes: int) -> None:
    """The window's own bytes as published; a request holds up to a block more, since a window may begin inside one."""
    layout = group_layers(published(name), 16, "bfloat16")
    assert sum(group.token_bytes * len(group.layers) * (group.window or 0) for group in layout.groups) == constant_bytes
    ragged = sum(group.block_bytes for group in sliding_groups(layout))
    for num_tokens in (8_192, 32_768):
        needed = layout.request_bytes(num_tokens, step_tokens=1)
        assert needed == constant_bytes + ragged + growth_bytes * num_tokens
    assert layout.request_bytes(8_192, 1) - layout.request_bytes(4_096, 1) == 4_096 * growth_bytes


@pytest.mark.parametrize("name", TARGETS)
def test_v_alone_halves_what_grows_where_k_equals_v_and_changes_nothing_else(name: str) -> None:
    full, sliding, _ = PUBLISHED[base_name(name)]
    layout = group_layers(published(name), 16, "bfloat16", keys_from_values=True)
    has_equal = base_name(name) in ("gemma-4-12B", "gemma-4-26B-A4B", "gemma-4-31B")
    assert token_bytes(layout, sliding=False) == (full // 2 if has_equal else full)
    assert token_bytes(layout, sliding=True) == sliding
    assert [group.stores_keys for group in layout.groups] == [
        group.window is not None or not has_equal for group in layout.groups
    ]


def test_31b_at_8192_tokens_takes_1440_mib() -> None:
    layout = group_layers(published("gemma-4-31B-it"), 1, "bfloat16")
    assert layout.request_bytes(8_192, step_tokens=1) == 1440 << 20


def test_12b_at_32768_tokens_takes_832_mib() -> None:
    layout = group_layers(published("gemma-4-12B-it"), 1, "bfloat16")
    assert layout.request_bytes(32_768, step_tokens=1) == 872_415_232


@pytest.mark.parametrize(
    ("name", "num_own", "sliding_source", "full_source"), [("gemma-4-E4B", 24, 22, 23), ("gemma-4-E2B", 15, 13, 14)]
)
def test_shared_layers_own_nothing_and_read_the_last_cache_of_their_kind(
    name: str, num_own: int, sliding_source: int, full_source: int
) -> None:
    spec = published(name)
    layout = group_layers(spec, 16, "bfloat16")
    owners = sorted(layer for group in layout.groups for layer in group.layers)
    assert owners == list(range(num_own))

    def read_by(layer: int) -> int:
        return layout.groups[layout.group_of_layer[layer]].layers[layout.slot_of_layer[layer]]

    assert [read_by(layer) for layer in range(num_own)] == list(range(num_own))
    for layer in spec.layers[num_own:]:
        assert read_by(layer.index) == (full_source if layer.window is None else sliding_source)


@pytest.mark.parametrize("name", TARGETS)
def test_a_group_holds_layers_of_one_shape(name: str) -> None:
    spec = published(name)
    for group in group_layers(spec, 16, "bfloat16").groups:
        for index in group.layers:
            layer = spec.layers[index]
            assert (layer.kind, layer.window, layer.num_kv_heads, layer.head_dim) == (
                group.kind,
                group.window,
                group.num_kv_heads,
                group.head_dim,
            )


def test_a_drafter_has_no_cache() -> None:
    with pytest.raises(UnsupportedError, match="layer 0 reads the cache of another model"):
        group_layers(published(DRAFTERS[0]), 16, "bfloat16")


def group(window: int | None, block_size: int) -> KVGroup:
    layout = group_layers(read_config(TINY_CONFIGS["gemma3"]), block_size, "float32")
    chosen = layout.groups[1] if window is None else layout.groups[0]
    return replace(chosen, window=window)


@pytest.mark.parametrize("block_size", [1, 4, 16])
@pytest.mark.parametrize("window", [1, 5, 16, 33])
@pytest.mark.parametrize("step", [1, 3, 16, 40])
def test_a_request_may_hold_what_its_worst_step_touches_and_no_more(window: int, step: int, block_size: int) -> None:
    """A step's own tokens and the window before the last whole block. Every place where a step may begin is tried; the
    bound is reached, so it cannot be lowered."""
    length = 150
    worst = 0
    for begin in range(length - step + 1):
        first = max(0, begin // block_size * block_size - window + 1)
        worst = max(worst, (begin + step - 1) // block_size - first // block_size + 1)
    assert group(window, block_size).blocks_for_request(length, step) == worst
    assert group(None, block_size).blocks_for_request(length, step) == -(-length // block_size)


def test_a_short_request_holds_no_more_than_its_length() -> None:
    assert group(16, 4).blocks_for_request(3, 512) == 1
    assert group(16, 4).blocks_for_request(9, 512) == 3


@pytest.mark.parametrize("name", ["gemma2", "gemma3", "gemma4-e", "gemma4-k-equals-v", "gemma4-irregular"])
@pytest.mark.parametrize("block_size", [1, 16])
def test_a_budget_is_never_exceeded_and_always_holds_one_long_request(name: str, block_size: int) -> None:
    spec = read_config(TINY_CONFIGS[name])
    length, step, num_seqs = 300, 64, 5
    one = group_layers(spec, block_size, "bfloat16").request_bytes(length, step)

    def plan(budget_bytes: int | None) -> KVLayout:
        return plan_layout(
            spec,
            block_size=block_size,
            dtype="bfloat16",
            max_model_len=length,
            max_num_seqs=num_seqs,
            step_tokens=step,
            budget_bytes=budget_bytes,
        )

    most = plan(None)
    assert most.total_bytes == num_seqs * one
    for budget_bytes in (one, one + 1, 2 * one - 1, 2 * one, 3 * one + 777, 5 * one, 50 * one):
        layout = plan(budget_bytes)
        assert layout.total_bytes <= min(budget_bytes, most.total_bytes)
        for planned, bound in zip(layout.groups, most.groups, strict=True):
            assert planned.blocks_for_request(length, step) <= planned.num_blocks <= bound.num_blocks
    assert plan(5 * one) == most
    with pytest.raises(CapacityError) as caught:
        plan(one - 1)
    needed, allowed = show_both_bytes(one, one - 1)
    assert f"value: {needed} needed" in str(caught.value)
    assert f"limit: {allowed} allowed" in str(caught.value)
    assert "--kv-cache-memory-bytes" in str(caught.value)


def test_no_byte_is_left_that_would_hold_another_block() -> None:
    spec = read_config(TINY_CONFIGS["gemma4-irregular"])
    one = group_layers(spec, 8, "float32").request_bytes(500, 32)
    budget_bytes = 3 * one + one // 2
    layout = plan_layout(
        spec,
        block_size=8,
        dtype="float32",
        max_model_len=500,
        max_num_seqs=6,
        step_tokens=32,
        budget_bytes=budget_bytes,
    )
    full = [planned for planned in layout.groups if planned.window is None]
    assert budget_bytes - layout.total_bytes < sum(planned.block_bytes for planned in full)


def test_planning_does_not_take_longer_for_many_requests() -> None:
    spec = read_config(TINY_CONFIGS["gemma3"])
    layout = plan_layout(
        spec,
        block_size=16,
        dtype="float32",
        max_model_len=4096,
        max_num_seqs=10**12,
        step_tokens=512,
        budget_bytes=100 << 20,
    )
    assert layout.total_bytes <= 100 << 20


@pytest.mark.parametrize("name", ["gemma2", "gemma4-e"])
def test_the_longest_request_is_exact(name: str) -> None:
    layout = group_layers(read_config(TINY_CONFIGS[name]), 16, "float32")
    for length in (1, 16, 17, 200, 1000):
        needed = layout.request_bytes(length, 64)
        held = longest_request(layout, needed, 5000, 64)
        assert held >= length
        assert layout.request_bytes(held, 64) <= needed < layout.request_bytes(held + 1, 64)
        assert longest_request(layout, needed, length, 64) == length
    smallest = layout.request_bytes(1, 64)
    assert longest_request(layout, smallest, 5000, 64) == 16
    assert longest_request(layout, smallest - 1, 5000, 64) == 0


@pytest.mark.parametrize("keys_from_values", [False, True])
@pytest.mark.parametrize("name", sorted(TINY_CONFIGS))
def test_the_plan_is_what_a_backend_allocates(name: str, keys_from_values: bool) -> None:
    layout = plan_layout(
        read_config(TINY_CONFIGS[name]),
        block_size=16,
        dtype="bfloat16",
        max_model_len=100,
        max_num_seqs=3,
        step_tokens=32,
        budget_bytes=None,
        keys_from_values=keys_from_values,
    )
    ops = ReferenceOps("bfloat16")
    cache = ops.allocate_cache(layout)
    assert sum(ops.cache_bytes(cache)) == layout.total_bytes > 0
    for layer in range(len(layout.group_of_layer)):
        keys, values = cache.layer(layer)
        read = layout.groups[layout.group_of_layer[layer]]
        assert values.shape == (read.num_blocks * 16, read.num_kv_heads, read.head_dim)
        assert (keys is not None) == read.stores_keys
        assert keys is None or keys.shape == values.shape
