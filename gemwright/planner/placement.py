"""Tensor parallelism: which heads lie on which device, and what several devices hold of the same."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from gemwright.errors import RequestError, UnsupportedError
from gemwright.spec.model_spec import LayerSpec, ModelSpec


@dataclass(frozen=True, slots=True)
class KindPlacement:
    """The layers of one kind that own K/V of one shape, over all devices."""

    kind: Literal["sliding", "full"]
    num_layers: int
    num_query_heads: int
    """On each device."""
    num_kv_heads: int
    """On each device."""
    num_copies: int
    """Devices that hold the same K/V head: 1 where every head is held once."""
    replicated_token_bytes: int
    """Bytes of a token's K and V, in all these layers and over all devices, that are copies."""
    replicated_weights: int
    """Values of the K and V projections that are copies."""

    def to_dict(self) -> dict[str, Any]:
        """Return the fields of the JSON output."""
        return {
            "kind": self.kind,
            "num_layers": self.num_layers,
            "num_query_heads": self.num_query_heads,
            "num_kv_heads": self.num_kv_heads,
            "num_copies": self.num_copies,
            "replicated_token_bytes": self.replicated_token_bytes,
            "replicated_weights": self.replicated_weights,
        }


@dataclass(frozen=True, slots=True)
class Placement:
    """A model over several devices."""

    tensor_parallel_size: int
    kinds: tuple[KindPlacement, ...]

    @property
    def replicated_token_bytes(self) -> int:
        """Bytes of a token's K and V that are copies, over all layers and devices, while no window is full."""
        return sum(kind.replicated_token_bytes for kind in self.kinds)

    def to_dict(self) -> dict[str, Any]:
        """Return the fields of the JSON output."""
        return {
            "tensor_parallel_size": self.tensor_parallel_size,
            "replicated_token_bytes": self.replicated_token_bytes,
            "kinds": [kind.to_dict() for kind in self.kinds],
        }


def placement(spec: ModelSpec, tensor_parallel_size: int, value_bytes: int = 2) -> Placement:
    """Return how the heads of a model lie on so many devices; `value_bytes` is the size of one value in the cache.

    Query heads are dealt out evenly. K/V heads are too, and where there are fewer than devices, each is held by as many
    devices as it takes, so that every device has those which its query heads read. Norms, a few vectors, are on all
    devices and not counted. Raises UnsupportedError for a number that does not divide, with those that do.
    """
    if type(tensor_parallel_size) is not int or tensor_parallel_size < 1:
        raise RequestError(
            "tensor_parallel_size",
            value=tensor_parallel_size,
            limit="an integer of at least 1",
            remedy="change --tensor-parallel-size",
        )
    misfits = _misfits(spec, tensor_parallel_size)
    if misfits:
        raise UnsupportedError(
            "this model cannot be split over so many devices",
            value=f"{tensor_parallel_size}, with {misfits[0]}",
            limit=", ".join(map(str, sizes_that_work(spec))),
            remedy="change --tensor-parallel-size",
        )
    members: dict[tuple[object, ...], list[LayerSpec]] = {}
    for layer in spec.layers:
        if layer.owns_kv:
            key = (layer.kind, layer.num_query_heads, layer.num_kv_heads, layer.head_dim, layer.k_equals_v)
            members.setdefault(key, []).append(layer)
    kinds = (_place(spec, layers, tensor_parallel_size, value_bytes) for layers in members.values())
    return Placement(tensor_parallel_size, tuple(kinds))


def sizes_that_work(spec: ModelSpec) -> tuple[int, ...]:
    """Return all numbers of devices over which a model can be split evenly, 1 first."""
    most = min(layer.num_query_heads for layer in spec.layers)
    return tuple(size for size in range(1, most + 1) if not _misfits(spec, size))


def _place(spec: ModelSpec, layers: list[LayerSpec], size: int, value_bytes: int) -> KindPlacement:
    layer = layers[0]
    num_copies = max(1, size // layer.num_kv_heads)
    copied_width = (num_copies - 1) * layer.kv_width * len(layers)
    num_projections = 1 if layer.k_equals_v else 2
    return KindPlacement(
        kind="full" if layer.window is None else "sliding",
        num_layers=len(layers),
        num_query_heads=layer.num_query_heads // size,
        num_kv_heads=max(1, layer.num_kv_heads // size),
        num_copies=num_copies,
        replicated_token_bytes=2 * copied_width * value_bytes,
        replicated_weights=num_projections * copied_width * spec.hidden_size,
    )


def _misfits(spec: ModelSpec, size: int) -> list[str]:
    """Return what of the model does not come out even on so many devices, in words, each thing once."""
    found = []
    for layer in spec.layers:
        counts = [
            (layer.num_query_heads, "query heads", layer.num_query_heads % size == 0),
            (
                layer.num_kv_heads,
                "K/V heads",
                layer.num_kv_heads % size == 0 or size % layer.num_kv_heads == 0,
            ),
            (layer.feed_forward_width, "feed-forward values", layer.feed_forward_width % size == 0),
        ]
        if layer.experts is not None:
            counts.append((layer.experts.width, "values of an expert", layer.experts.width % size == 0))
        found += [f"{count} {name} of a {layer.kind} layer" for count, name, is_even in counts if not is_even]
    return list(dict.fromkeys(found))
