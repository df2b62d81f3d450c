"""vLLM's K/V cache (V1, hybrid manager): pages, groups and blocks. Pure numbers; refuses to know weights and devices.

All layers share one pool of pages of one size. Layers of one kind form groups of equal size, and a block is one page
for each layer of a group, so that any block can serve any group.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from math import ceil
from typing import Final

from gemwright.errors import UnsupportedError
from gemwright.planner.engines.layer_kinds import KindOfLayer
from gemwright.planner.engines.versions import Version

DEFAULT_BLOCK_SIZE: Final = 16

_VALUE_BYTES: Final = {
    "bfloat16": 2, "bf16": 2, "float16": 2, "fp16": 2, "half": 2, "float32": 4, "float": 4,
    "fp8": 1, "fp8_e4m3": 1, "fp8_e5m2": 1, "fp8_per_token_head": 1, "int8_per_token_head": 1,
}  # fmt: skip
_SCALE_BYTES: Final = 4
"""Of each token's K, and of its V, in each head: what the per-token-head modes add."""

KV_DTYPES: Final = ("auto", *_VALUE_BYTES, "nvfp4")

TOKENS_BY_CONCURRENCY_SINCE: Final[Version] = (0, 21, 0)
"""From here on "GPU KV cache size" is concurrency times the longest request; before, a count of pages."""
IN_FLIGHT_SINCE: Final[Version] = (0, 26, 0)
"""From here on sliding layers reserve for every batch in flight (vllm-project/vllm, PR 47728)."""


def default_in_flight_batches(version: Version) -> int:
    """Return how many batches sliding layers reserve for: from 0.26.0 two, since the scheduler runs ahead."""
    return 2 if version >= IN_FLIGHT_SINCE else 1


def token_bytes(kind: KindOfLayer, tensor_parallel_size: int, dtype: str) -> int:
    """Return the bytes of one token's K and V in one layer on one device.

    Each device has its share of the heads, at least 1. K equal to V saves nothing: both are stored. nvfp4 keeps half a
    byte a value and a byte of scale for 16; the per-token-head modes keep a float32 scale for each head of K and of V.
    Raises UnsupportedError for a dtype that is not known.
    """
    heads = max(1, kind.num_kv_heads // tensor_parallel_size)
    if dtype == "nvfp4":
        return 2 * heads * (kind.head_dim // 2 + kind.head_dim // 16)
    if dtype not in _VALUE_BYTES:
        raise UnsupportedError(
            "vLLM has no rule for this K/V dtype here",
            value=dtype,
            limit=", ".join(KV_DTYPES),
            remedy="use --kv-cache-dtype auto or fp8",
        )
    scale = _SCALE_BYTES if dtype.endswith("_per_token_head") else 0
    return 2 * heads * (kind.head_dim * _VALUE_BYTES[dtype] + scale)


@dataclass(frozen=True, slots=True)
class PagedKind:
    """One kind of layer in the pool."""

    layers: KindOfLayer
    token_bytes: int
    block_size: int
    """Tokens of one page in one layer."""
    num_groups: int

    def tokens_reserved(self, length: int, batched_tokens: int) -> int:
        """Return the tokens that one request of a length reserves for, before they are rounded up to blocks.

        A sliding layer keeps the window and what the batches in flight may add.
        """
        window = self.layers.window
        return length if window is None else min(window - 1 + batched_tokens, length)

    def blocks_for(self, length: int, batched_tokens: int) -> int:
        """Return the blocks that one request of a length needs in one group.

        A sliding layer's window may begin anywhere in a block, so that one block comes on top.
        """
        blocks = -(-self.tokens_reserved(length, batched_tokens) // self.block_size)
        return blocks if self.layers.window is None else blocks + 1


@dataclass(frozen=True, slots=True)
class PagePool:
    """How vLLM cuts the cache memory of one device for a model."""

    kinds: tuple[PagedKind, ...]
    page_bytes: int
    """Of one block in one layer, the same for all."""
    group_size: int
    """Layers of a group; the last group of a kind is filled up with pages that no layer uses."""

    @property
    def num_groups(self) -> int:
        """Groups of all kinds."""
        return sum(kind.num_groups for kind in self.kinds)

    @property
    def block_bytes(self) -> int:
        """Bytes of one block: a page for each layer of a group."""
        return self.page_bytes * self.group_size

    @property
    def num_padding_layers(self) -> int:
        """Places for layers that are paid for and empty."""
        return sum(kind.num_groups * self.group_size - kind.layers.num_layers for kind in self.kinds)

    def num_blocks(self, available_bytes: int) -> int:
        """Return the blocks that fit in memory."""
        return max(0, available_bytes) // self.page_bytes // self.group_size

    def blocks_per_request(self, length: int, batched_tokens: int) -> int:
        """Return the blocks that one request of a length needs, in all groups; `batched_tokens` of all in-flight
        batches together."""
        return sum(kind.num_groups * kind.blocks_for(length, batched_tokens) for kind in self.kinds)

    def longest_length(self, num_blocks: int, batched_tokens: int, limit: int) -> int:
        """Return the longest request, at most `limit` tokens, that so many blocks serve; 0 when none is."""
        low, high = 0, limit
        while low < high:
            middle = (low + high + 1) // 2
            if self.blocks_per_request(middle, batched_tokens) <= num_blocks:
                low = middle
            else:
                high = middle - 1
        return low

    def printed_tokens(self, num_blocks: int, length: int, batched_tokens: int, version: Version) -> int:
        """Return the "GPU KV cache size" that vLLM prints at start-up, in tokens.

        Until 0.20 the blocks of one group times the smallest block; from 0.21 the concurrency times the length. The
        memory is the same.
        """
        if version >= TOKENS_BY_CONCURRENCY_SINCE:
            # As the engine computes it, in floating point.
            return int(num_blocks / self.blocks_per_request(length, batched_tokens) * length)
        return num_blocks // self.num_groups * min(kind.block_size for kind in self.kinds)


@lru_cache(maxsize=256)
def page_pool(kinds: tuple[KindOfLayer, ...], tensor_parallel_size: int, dtype: str, block_size: int) -> PagePool:
    """Return the pool for kinds of layers.

    The page is that of the kind with the largest; the others' blocks grow until theirs is as large, which must come out
    even. A group has as many layers as the rarest kind, or as the most frequent one where that is less than 1.5 times
    as many. Raises UnsupportedError for pages that cannot be made equal.
    """
    sizes = [token_bytes(kind, tensor_parallel_size, dtype) for kind in kinds]
    page_bytes = max(sizes) * block_size
    counts = [kind.num_layers for kind in kinds]
    group_size = max(counts) if max(counts) < 1.5 * min(counts) else min(counts)
    paged = []
    for kind, size in zip(kinds, sizes, strict=True):
        if page_bytes % (block_size * size):
            raise UnsupportedError(
                "vLLM cannot make the pages of these layers equal",
                value=f"{block_size * size} bytes ({kind.kind} layers, --kv-cache-dtype {dtype})",
                limit=f"a divisor of the largest page, {page_bytes} bytes",
                remedy="use another --kv-cache-dtype, such as auto or fp8",
            )
        paged.append(PagedKind(kind, size, page_bytes // size, ceil(kind.num_layers / group_size)))
    return PagePool(tuple(paged), page_bytes, group_size)
