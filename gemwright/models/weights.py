"""The packed weights of a decoder, layer by layer, built from a checkpoint's sources."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from gemwright.ops.protocol import Ops, Weight
from gemwright.spec.model_spec import LayerSpec, ModelSpec
from gemwright.spec.tensor_source import TensorSource
from gemwright.spec.weights import Part, list_tensors

Progress = Callable[[int, int], None]
"""Called with the number of tensors packed and their total."""


@dataclass(frozen=True, slots=True)
class ExpertWeights:
    """Router and experts of a layer."""

    router: Weight
    router_scale: Weight
    per_expert_scale: Weight
    gate_up: Weight
    down: Weight
    post_dense_norm: Weight
    pre_experts_norm: Weight
    post_experts_norm: Weight


@dataclass(frozen=True, slots=True)
class PerLayerWeights:
    """What feeds a layer its per-layer input."""

    gate: Weight
    projection: Weight
    post_norm: Weight


@dataclass(frozen=True, slots=True)
class LayerWeights:
    """One layer. `projections` stacks the rows of query, key and value, as far as the layer has them."""

    input_norm: Weight
    projections: Weight
    query_norm: Weight | None
    key_norm: Weight | None
    attention_output: Weight
    post_attention_norm: Weight
    pre_feed_forward_norm: Weight
    gate_up: Weight
    down: Weight
    experts: ExpertWeights | None
    post_feed_forward_norm: Weight
    per_layer: PerLayerWeights | None
    scalar: Weight | None


@dataclass(frozen=True, slots=True)
class ModelWeights:
    """All weights, and the bytes they take."""

    embedding: Weight
    per_layer_embedding: Weight | None
    per_layer_model_projection: Weight | None
    per_layer_projection_norm: Weight | None
    layers: tuple[LayerWeights, ...]
    final_norm: Weight
    head: Weight
    """The embedding table itself where the head is tied to it."""
    part_bytes: Mapping[Part, int]
    """By part, as spec.weights names them, the bytes that the backend counts."""

    @property
    def total_bytes(self) -> int:
        """Bytes of all parts."""
        return sum(self.part_bytes.values())


class _Packer:
    """Packs tensors by name, counts them, and lets their pages go."""

    def __init__(
        self, spec: ModelSpec, ops: Ops, sources: Mapping[str, TensorSource], progress: Progress | None
    ) -> None:
        self.spec = spec
        self.ops = ops
        self.sources = sources
        self.progress = progress
        self.tensors = {tensor.name: tensor for tensor in list_tensors(spec)}
        self.num_done = 0
        self.part_bytes: dict[Part, int] = {}

    def has(self, name: str) -> bool:
        return name in self.tensors

    def __call__(self, *names: str) -> Weight:
        sources = [self.sources[name] for name in names]
        role, part = self.tensors[names[0]].role, self.tensors[names[0]].part
        if role == "norm":
            weight = self.ops.pack_norm(sources[0], self.spec.norm_weight_offset)
        elif role == "vector":
            weight = self.ops.pack_vector(sources[0])
        else:
            weight = self.ops.pack(sources)
        for source in sources:
            source.release()
        self.part_bytes[part] = self.part_bytes.get(part, 0) + self.ops.weight_bytes(weight)
        self.num_done += len(names)
        if self.progress is not None:
            self.progress(self.num_done, len(self.tensors))
        return weight

    def optional(self, name: str) -> Weight | None:
        return self(name) if self.has(name) else None


def pack_weights(
    spec: ModelSpec, ops: Ops, sources: Mapping[str, TensorSource], progress: Progress | None = None
) -> ModelWeights:
    """Pack every tensor of `spec`; `sources` holds one for each name of spec.weights.list_tensors."""
    pack = _Packer(spec, ops, sources, progress)
    embedding = pack("embedding")
    weights = {
        "embedding": embedding,
        "per_layer_embedding": pack.optional("per_layer_embedding"),
        "per_layer_model_projection": pack.optional("per_layer_model_projection"),
        "per_layer_projection_norm": pack.optional("per_layer_projection_norm"),
        "layers": tuple(_pack_layer(pack, layer) for layer in spec.layers),
        "final_norm": pack("final_norm"),
        "head": embedding if spec.tied_head else pack("head"),
    }
    return ModelWeights(**weights, part_bytes=pack.part_bytes)


def _pack_layer(pack: _Packer, layer: LayerSpec) -> LayerWeights:
    prefix = f"layers.{layer.index}."
    projections = [prefix + name for name in ("query", "key", "value") if pack.has(prefix + name)]
    experts = None
    if layer.experts is not None:
        experts = ExpertWeights(
            router=pack(prefix + "router"),
            router_scale=pack(prefix + "router_scale"),
            per_expert_scale=pack(prefix + "per_expert_scale"),
            gate_up=pack(prefix + "experts_gate_up"),
            down=pack(prefix + "experts_down"),
            post_dense_norm=pack(prefix + "post_dense_norm"),
            pre_experts_norm=pack(prefix + "pre_experts_norm"),
            post_experts_norm=pack(prefix + "post_experts_norm"),
        )
    per_layer = None
    if pack.has(prefix + "per_layer_gate"):
        per_layer = PerLayerWeights(
            gate=pack(prefix + "per_layer_gate"),
            projection=pack(prefix + "per_layer_projection"),
            post_norm=pack(prefix + "post_per_layer_norm"),
        )
    return LayerWeights(
        input_norm=pack(prefix + "input_norm"),
        projections=pack(*projections),
        query_norm=pack.optional(prefix + "query_norm"),
        key_norm=pack.optional(prefix + "key_norm"),
        attention_output=pack(prefix + "attention_output"),
        post_attention_norm=pack(prefix + "post_attention_norm"),
        pre_feed_forward_norm=pack(prefix + "pre_feed_forward_norm"),
        gate_up=pack(prefix + "gate", prefix + "up"),
        down=pack(prefix + "down"),
        experts=experts,
        post_feed_forward_norm=pack(prefix + "post_feed_forward_norm"),
        per_layer=per_layer,
        scalar=pack.optional(prefix + "layer_scalar"),
    )
