"""From a ModelSpec to the K/V cache in bytes: groups of equal layers, page bytes, aliases, block counts.

The planner adds these numbers up and the backend allocates exactly them. Layers that read another layer's cache own
nothing and appear as aliases only.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from gemwright.errors import CapacityError, UnsupportedError, show_both_bytes
from gemwright.memory.dtypes import DTYPE_BYTES, ComputeDtype
from gemwright.spec.model_spec import LayerKind, LayerSpec, ModelSpec


@dataclass(frozen=True, slots=True)
class KVGroup:
    """Layers that own K/V of one shape and one reach; they share one block table a request.

    A block holds `block_size` tokens of every layer of the group.
    """

    index: int
    kind: LayerKind
    window: int | None
    layers: tuple[int, ...]
    num_kv_heads: int
    head_dim: int
    block_size: int
    dtype: ComputeDtype
    num_blocks: int
    stores_keys: bool = True
    """False where keys are rebuilt from values: K equals V, and only V is kept."""

    @property
    def token_bytes(self) -> int:
        """Bytes of one token's K and V (or V alone) in one layer."""
        return (1 + self.stores_keys) * self.num_kv_heads * self.head_dim * DTYPE_BYTES[self.dtype]

    @property
    def page_bytes(self) -> int:
        """Bytes of one block in one layer, K and V together."""
        return self.block_size * self.token_bytes

    @property
    def block_bytes(self) -> int:
        """Bytes of one block over all layers of the group."""
        return len(self.layers) * self.page_bytes

    @property
    def total_bytes(self) -> int:
        """Bytes of the whole group."""
        return self.num_blocks * self.block_bytes

    def blocks_for_request(self, num_tokens: int, step_tokens: int) -> int:
        """Return the most blocks a request of `num_tokens` holds at once when a step adds up to `step_tokens`.

        A full layer keeps every token. A sliding layer keeps the window before the last whole block (see
        BlockManager), and from that block on the step's own tokens.
        """
        whole = -(-num_tokens // self.block_size)
        if self.window is None:
            return whole
        before = -(-(self.window - 1) // self.block_size)
        return min(whole, before + (self.block_size - 1 + step_tokens - 1) // self.block_size + 1)


@dataclass(frozen=True, slots=True)
class KVLayout:
    """The whole cache: its groups, and for every layer which group and which place in it it reads."""

    groups: tuple[KVGroup, ...]
    block_size: int
    group_of_layer: tuple[int, ...]
    """For every layer the index of the group it reads, its own or the one of the layer it shares with."""
    slot_of_layer: tuple[int, ...]
    """For every layer its place among the layers of that group."""

    @property
    def total_bytes(self) -> int:
        """Bytes of all groups."""
        return sum(group.total_bytes for group in self.groups)

    def request_bytes(self, num_tokens: int, step_tokens: int) -> int:
        """Return the bytes that one request of `num_tokens` holds at most."""
        return sum(group.blocks_for_request(num_tokens, step_tokens) * group.block_bytes for group in self.groups)


def group_layers(spec: ModelSpec, block_size: int, dtype: ComputeDtype, *, keys_from_values: bool = False) -> KVLayout:
    """Return the layout of `spec` with empty groups (num_blocks 0): shapes, page bytes and aliases alone.

    With `keys_from_values` layers whose K equals V before the norms keep V alone: V is normed without a weight, so
    K is RoPE(V times the key norm's weight), and can be rebuilt wherever V is read.
    """
    keys: list[tuple[object, ...]] = []
    members: list[list[LayerSpec]] = []
    for layer in spec.layers:
        if layer.kv_source is None:
            raise UnsupportedError(
                f"layer {layer.index} reads the cache of another model",
                remedy="a drafter has no cache of its own; load its target",
            )
        if not layer.owns_kv:
            continue
        stores_keys = _stores_keys(layer, keys_from_values)
        key = (layer.kind, layer.window, layer.num_kv_heads, layer.head_dim, stores_keys)
        if key not in keys:
            keys.append(key)
            members.append([])
        members[keys.index(key)].append(layer)
    groups = tuple(
        KVGroup(
            index=index,
            kind=layers[0].kind,
            window=layers[0].window,
            layers=tuple(layer.index for layer in layers),
            num_kv_heads=layers[0].num_kv_heads,
            head_dim=layers[0].head_dim,
            block_size=block_size,
            dtype=dtype,
            num_blocks=0,
            stores_keys=_stores_keys(layers[0], keys_from_values),
        )
        for index, layers in enumerate(members)
    )
    place = {layer: (group.index, slot) for group in groups for slot, layer in enumerate(group.layers)}
    sources = [place[layer.kv_source] for layer in spec.layers if layer.kv_source is not None]
    return KVLayout(
        groups=groups,
        block_size=block_size,
        group_of_layer=tuple(group for group, _ in sources),
        slot_of_layer=tuple(slot for _, slot in sources),
    )


def _stores_keys(layer: LayerSpec, keys_from_values: bool) -> bool:
    return not (keys_from_values and layer.k_equals_v and layer.value_norm)


def plan_layout(
    spec: ModelSpec,
    *,
    block_size: int,
    dtype: ComputeDtype,
    max_model_len: int,
    max_num_seqs: int,
    step_tokens: int,
    budget_bytes: int | None,
    keys_from_values: bool = False,
) -> KVLayout:
    """Return the layout that serves requests of up to `max_model_len` tokens.

    Without a budget every one of `max_num_seqs` requests can be that long at once. With one, the number of requests
    for which sliding groups are laid out is lowered until they and one request of full length fit, and full groups
    take what is left. Raises CapacityError when one request does not fit, naming the bytes it needs.
    """
    layout = group_layers(spec, block_size, dtype, keys_from_values=keys_from_values)
    if budget_bytes is None:
        return _with_blocks(layout, max_model_len, step_tokens, num_sliding=max_num_seqs, num_full=max_num_seqs)
    needed = layout.request_bytes(max_model_len, step_tokens)
    if needed > budget_bytes:
        value, limit = show_both_bytes(needed, budget_bytes)
        raise CapacityError(
            f"the K/V cache cannot hold one request of {max_model_len} tokens",
            value=f"{value} needed",
            limit=f"{limit} allowed",
            remedy="lower --max-model-len or --max-num-batched-tokens, or raise --kv-cache-memory-bytes",
        )
    sliding_bytes = sum(
        group.blocks_for_request(max_model_len, step_tokens) * group.block_bytes
        for group in layout.groups
        if group.window is not None
    )
    num_more = (budget_bytes - needed) // sliding_bytes if sliding_bytes else max_num_seqs
    num_sliding = min(max_num_seqs, 1 + num_more)
    layout = _with_blocks(layout, max_model_len, step_tokens, num_sliding=num_sliding, num_full=1)
    return _grow_full(layout, budget_bytes, max_model_len, step_tokens, max_num_seqs)


def longest_request(layout: KVLayout, budget_bytes: int, limit: int, step_tokens: int) -> int:
    """Return the longest request, at most `limit` tokens, whose blocks fit in `budget_bytes`; 0 when none does."""
    low, high = 0, limit
    while low < high:
        middle = (low + high + 1) // 2
        if layout.request_bytes(middle, step_tokens) <= budget_bytes:
            low = middle
        else:
            high = middle - 1
    return low


def _with_blocks(layout: KVLayout, length: int, step_tokens: int, *, num_sliding: int, num_full: int) -> KVLayout:
    return replace(
        layout,
        groups=tuple(
            replace(
                group,
                num_blocks=group.blocks_for_request(length, step_tokens)
                * (num_full if group.window is None else num_sliding),
            )
            for group in layout.groups
        ),
    )


def _grow_full(layout: KVLayout, budget_bytes: int, length: int, step_tokens: int, max_num_seqs: int) -> KVLayout:
    """Give the rest of the budget to the full groups, the same number of blocks each, up to what can be used."""
    full = [group for group in layout.groups if group.window is None]
    if not full:
        return layout
    rest = budget_bytes - layout.total_bytes
    more = rest // sum(group.block_bytes for group in full)
    return replace(
        layout,
        groups=tuple(
            group
            if group.window is not None
            else replace(
                group,
                num_blocks=min(group.num_blocks + more, group.blocks_for_request(length, step_tokens) * max_num_seqs),
            )
            for group in layout.groups
        ),
    )
