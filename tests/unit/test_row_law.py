"""The row law: a row's result has the same bits alone, in any company, at any place, with any number of threads."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import pytest
import torch

from gemwright.memory.dtypes import ComputeDtype
from gemwright.memory.kv_layout import KVGroup, KVLayout
from gemwright.ops.protocol import KeyRanges
from gemwright.ops.reference import ReferenceOps
from gemwright.spec.model_spec import LayerKind, RopeSpec

DTYPES: tuple[ComputeDtype, ...] = ("float32", "bfloat16")
NUM_ROWS = 61


@pytest.fixture(params=[1, 2], ids=lambda n: f"{n}-threads", autouse=True)
def threads(request: pytest.FixtureRequest) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield
    torch.set_num_threads(before)


def random(ops: ReferenceOps, *shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(ops.torch_dtype)


def assert_rows_stand_alone(
    run: Callable[[torch.Tensor, torch.Tensor], None], x: torch.Tensor, width: int, dtype: torch.dtype
) -> None:
    """Compare each row of run(x) with the same row alone, in pieces of odd sizes, and shuffled."""
    whole = torch.full((x.shape[0], width), torch.nan).to(dtype)
    run(x, whole)
    assert torch.isfinite(whole).all()
    for size in (1, 7, 33):
        for begin in range(0, x.shape[0], size):
            part = x[begin : begin + size]
            out = torch.full((part.shape[0], width), torch.nan).to(dtype)
            run(part.clone(), out)
            assert torch.equal(out, whole[begin : begin + size]), f"rows {begin}.. in pieces of {size}"
    order = torch.randperm(x.shape[0], generator=torch.Generator().manual_seed(1))
    out = torch.full_like(whole, torch.nan)
    run(x[order], out)
    assert torch.equal(out, whole[order])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("inner", "width"), [(640, 2048), (2048, 640), (90, 72), (12, 40), (1152, 704), (64, 5000)])
def test_linear(dtype: ComputeDtype, inner: int, width: int) -> None:
    ops = ReferenceOps(dtype)
    weight = random(ops, width, inner, seed=3)
    x = random(ops, NUM_ROWS, inner)
    assert_rows_stand_alone(lambda rows, out: ops.linear(rows, weight, out), x, width, ops.torch_dtype)


@pytest.mark.parametrize("dtype", DTYPES)
def test_linear_has_the_same_bits_with_one_thread_and_two(dtype: ComputeDtype) -> None:
    ops = ReferenceOps(dtype)
    weight, x = random(ops, 1152, 640, seed=3), random(ops, NUM_ROWS, 640)
    results = []
    for count in (1, 2):
        torch.set_num_threads(count)
        out = torch.empty(NUM_ROWS, 1152, dtype=ops.torch_dtype)
        ops.linear(x, weight, out)
        results.append(out)
    assert torch.equal(*results)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("width", [640, 90, 24, 1152])
def test_norm_gelu_head_and_embedding(dtype: ComputeDtype, width: int) -> None:
    ops = ReferenceOps(dtype)
    x, up = random(ops, NUM_ROWS, width), random(ops, NUM_ROWS, width, seed=5)
    weight = torch.rand(width)
    assert_rows_stand_alone(lambda rows, out: ops.rms_norm(rows, weight, 1e-6, width, out), x, width, ops.torch_dtype)
    both = torch.cat((x, up), dim=-1)
    assert_rows_stand_alone(
        lambda rows, out: ops.gelu_gate(rows[:, :width], rows[:, width:], out), both, width, ops.torch_dtype
    )
    table = random(ops, 515, width, seed=7)
    assert_rows_stand_alone(lambda rows, out: ops.head(rows, table, 30.0, out), x, 515, torch.float32)


@pytest.mark.parametrize("dtype", DTYPES)
def test_rotary(dtype: ComputeDtype) -> None:
    ops = ReferenceOps(dtype)
    table = ops.rotary_table(RopeSpec("proportional", 1e6, partial_rotary_factor=0.25), 24)
    x = random(ops, NUM_ROWS, 72)
    positions = np.arange(NUM_ROWS, dtype=np.int32) * 37
    whole = x.clone()
    ops.rotary(whole, table, positions)
    for row in range(NUM_ROWS):
        alone = x[row : row + 1].clone()
        ops.rotary(alone, table, positions[row : row + 1])
        assert torch.equal(alone[0], whole[row])


@pytest.mark.parametrize("dtype", DTYPES)
def test_experts(dtype: ComputeDtype) -> None:
    ops = ReferenceOps(dtype)
    hidden, width, count, chosen = 48, 20, 8, 3
    projection, scale = random(ops, count, hidden, seed=1), random(ops, count, seed=2).abs()
    gate_up, down = random(ops, count, 2 * width, hidden, seed=3), random(ops, count, hidden, width, seed=4)

    def run(rows: torch.Tensor, out: torch.Tensor) -> None:
        ops.experts(rows, ops.route(rows, projection, scale, chosen), gate_up, down, out)

    assert_rows_stand_alone(run, random(ops, NUM_ROWS, hidden), hidden, ops.torch_dtype)


def make_cache(ops: ReferenceOps, block_size: int, num_blocks: int, kv_heads: int, head_dim: int) -> KVLayout:
    group = KVGroup(0, LayerKind.FULL, None, (0,), kv_heads, head_dim, block_size, ops.dtype, num_blocks)
    return KVLayout((group,), block_size, (0,), (0,))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("softcap", [None, 50.0])
@pytest.mark.parametrize(
    ("heads", "kv_heads", "head_dim", "window"),
    [(4, 1, 24, 50), pytest.param(4, 2, 256, 10**6, marks=pytest.mark.slow), (6, 6, 16, 130)],
)
def test_attention_does_not_depend_on_chunks_block_size_or_other_requests(
    dtype: ComputeDtype, softcap: float | None, heads: int, kv_heads: int, head_dim: int, window: int
) -> None:
    ops = ReferenceOps(dtype)
    length = 301
    query = random(ops, length, heads * head_dim)
    key, value = (random(ops, length, kv_heads * head_dim, seed=seed) for seed in (8, 9))
    results = []
    for block_size, chunk, poison in ((16, 301, 0.0), (8, 77, torch.nan), (32, 1, torch.inf)):
        num_blocks = 2 * (-(-length // block_size))
        cache = ops.allocate_cache(make_cache(ops, block_size, num_blocks, kv_heads, head_dim))
        for stored in (*cache.keys, *cache.values):
            stored.fill_(poison)  # whatever other requests left behind
        table = np.random.default_rng(block_size).permutation(num_blocks).astype(np.int32)[None]
        positions = np.arange(length, dtype=np.int32)
        slots = table[0][positions // block_size] * block_size + positions % block_size
        ops.write_cache(cache, 0, key, value, slots.astype(np.int32))
        out = torch.full((length, heads * head_dim), torch.nan).to(ops.torch_dtype)
        for begin in range(0, length, chunk):
            rows = slice(begin, min(begin + chunk, length))
            ranges = KeyRanges(
                query_start=np.array([0, rows.stop - begin], dtype=np.int32),
                key_begin=np.maximum(0, positions[rows] - window + 1),
                key_end=positions[rows] + 1,
                block_table=table,
                block_size=block_size,
            )
            ops.attention(query[rows], cache, 0, ranges, 0.25, softcap, out[rows])
        results.append(out)
    assert torch.isfinite(results[0]).all()
    assert all(torch.equal(result, results[0]) for result in results[1:])


def test_attention_is_softmax_over_the_key_range() -> None:
    """Against the formula written out in float64, with and without softcap, which must differ (field case 058)."""
    ops = ReferenceOps("float32")
    length, heads, head_dim, window = 150, 4, 32, 40
    query = random(ops, length, heads * head_dim) * 3
    key, value = (random(ops, length, 2 * head_dim, seed=seed) * 3 for seed in (8, 9))
    cache = ops.allocate_cache(make_cache(ops, 16, 10, 2, head_dim))
    positions = np.arange(length, dtype=np.int32)
    ops.write_cache(cache, 0, key, value, positions)
    ranges = KeyRanges(
        np.array([0, length], dtype=np.int32),
        np.maximum(0, positions - window + 1),
        positions + 1,
        np.arange(10, dtype=np.int32)[None],
        16,
    )
    outputs = []
    for softcap in (None, 5.0):
        out = torch.empty(length, heads * head_dim)
        ops.attention(query, cache, 0, ranges, 0.05, softcap, out)
        outputs.append(out)
        q = query.double().view(length, 2, 2, head_dim)
        k, v = key.double().view(length, 2, head_dim), value.double().view(length, 2, head_dim)
        scores = torch.einsum("thgd,shd->hgts", q, k) * 0.05
        if softcap is not None:
            scores = softcap * torch.tanh(scores / softcap)
        distance = torch.arange(length)[:, None] - torch.arange(length)
        scores = scores.masked_fill((distance < 0) | (distance >= window), -torch.inf)
        expected = torch.einsum("hgts,shd->thgd", scores.softmax(-1), v).reshape(length, -1)
        assert (out - expected).abs().max() < 1e-5
    assert (outputs[0] - outputs[1]).abs().max() > 0.1
