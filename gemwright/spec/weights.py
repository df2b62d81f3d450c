"""Every tensor of a ModelSpec, once: name, shape, part, its name in each file format, and its shard axis.

The loader, the test checkpoints and the planner read this list; nothing else knows a tensor's name. Names of
safetensors files stand without the prefix under which a checkpoint keeps its language model (facts g.1 to g.3),
names of GGUF files stand in full (facts f).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from math import prod
from typing import Literal

from gemwright.spec.model_spec import ExpertSpec, LayerSpec, ModelSpec, TowerTensor

Part = Literal["embedding", "per_layer_embedding", "attention", "feed_forward", "experts", "norm", "head", "drafter"]
Role = Literal["embedding", "linear", "experts", "norm", "vector", "index"]


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """One tensor as the engine wants it.

    `role` says how a backend packs it: an embedding table, a linear weight [out, in], stacked expert weights
    [experts, out, in], a norm weight (to which ModelSpec.norm_weight_offset is added once it has the engine's dtype),
    a plain vector, or an index table of integers. `gguf` lists alternatives, the first one present counts; a name of
    several tensors means that they stand stacked along `gguf_stack_axis`. `gguf_offset` is what a GGUF reader must add
    to get the value a safetensors file would hold (the converter adds one to Gemma 2 and 3 norms, facts f).
    """

    name: str
    shape: tuple[int, ...]
    part: Part
    role: Role
    layer: int | None
    safetensors: str
    gguf: tuple[tuple[str, ...], ...]
    gguf_offset: float = 0.0
    gguf_stack_axis: int = 0
    shard_axis: int | None = None
    at_root: bool = False
    """Whether a safetensors file keeps it beside the language model, not below it (parts of a drafter)."""
    is_looked_up_only: bool = False
    """Whether a step takes rows of it and never multiplies by it: a table that is no head too."""

    @property
    def num_elements(self) -> int:
        """Number of values."""
        return prod(self.shape)


@dataclass(frozen=True, slots=True)
class UnusedTensor:
    """A tensor that published files may hold and that no computation reads (facts a.5)."""

    safetensors: str
    gguf: str
    shape: tuple[int, ...]
    reason: str

    @property
    def num_elements(self) -> int:
        """Number of values."""
        return prod(self.shape)


@dataclass(frozen=True, slots=True)
class ParameterCounts:
    """How much a published checkpoint of a model holds, towers included (facts a.5)."""

    num_parameters: int
    """As the reference class counts: a tied head once, without buffers."""
    num_buffer_elements: int
    """Stored values that are no parameters: layer scalars, bounds of clipped linears, a drafter's token ordering."""
    num_unused_elements: int
    """K/V of layers that share another layer's cache; some files hold them, some do not."""
    num_tensors: int
    """Stored tensors without the unused ones."""
    num_unused_tensors: int

    @property
    def num_stored_elements(self) -> int:
        """Values of a file that holds the unused tensors too."""
        return self.num_parameters + self.num_buffer_elements + self.num_unused_elements

    @property
    def num_stored_tensors(self) -> int:
        """Tensors of a file that holds the unused ones too."""
        return self.num_tensors + self.num_unused_tensors


@lru_cache(maxsize=32)
def list_tensors(spec: ModelSpec) -> tuple[TensorSpec, ...]:
    """Return every tensor of the language model (or drafter) in the order in which a step reads them."""
    return tuple(_list_tensors(spec))


def list_unused_tensors(spec: ModelSpec) -> tuple[UnusedTensor, ...]:
    """Return the K/V tensors of layers that share another layer's cache: present in some files, never read."""
    return tuple(
        UnusedTensor(
            safetensors=f"layers.{layer.index}.self_attn.{name}.weight",
            gguf=f"blk.{layer.index}.{gguf}.weight",
            shape=(layer.head_dim,) if name == "k_norm" else (layer.kv_width, spec.hidden_size),
            reason=f"layer {layer.index} reads the cache of layer {layer.kv_source}",
        )
        for layer in spec.layers
        if not layer.owns_kv and layer.kv_source is not None
        for name, gguf in (("k_proj", "attn_k"), ("v_proj", "attn_v"), ("k_norm", "attn_k_norm"))
        if not (name == "v_proj" and layer.k_equals_v)
    )


def list_tower_tensors(spec: ModelSpec) -> tuple[TowerTensor, ...]:
    """Return every tensor beside the language model (towers and projectors), as published files name them."""
    return tuple(tensor for tower in spec.towers for tensor in tower.tensors)


def count_all_parameters(spec: ModelSpec) -> ParameterCounts:
    """Return what a checkpoint of the whole model holds, with its towers; buffers and unused tensors apart."""
    tensors, towers, unused = list_tensors(spec), list_tower_tensors(spec), list_unused_tensors(spec)
    num_elements = sum(tensor.num_elements for tensor in tensors) + sum(tensor.num_elements for tensor in towers)
    num_parameters = count_parameters(tensors) + sum(tensor.num_elements for tensor in towers if not tensor.is_buffer)
    return ParameterCounts(
        num_parameters=num_parameters,
        num_buffer_elements=num_elements - num_parameters,
        num_unused_elements=sum(tensor.num_elements for tensor in unused),
        num_tensors=len(tensors) + len(towers),
        num_unused_tensors=len(unused),
    )


def count_parameters(tensors: Iterable[TensorSpec]) -> int:
    """Return the number of parameters, counted as the reference classes count: buffers (layer scalars and a
    drafter's token ordering) are not parameters."""
    return sum(tensor.num_elements for tensor in tensors if not is_buffer(tensor))


def is_buffer(tensor: TensorSpec) -> bool:
    """Whether the reference class holds this tensor as a buffer, not as a parameter."""
    return tensor.role == "index" or tensor.safetensors.endswith(".layer_scalar")


def _list_tensors(spec: ModelSpec) -> Iterator[TensorSpec]:
    hidden = spec.hidden_size
    if spec.drafter is not None:
        yield from _drafter_tensors(spec)
    yield TensorSpec(
        "embedding",
        (spec.vocab_size, hidden),
        "embedding",
        "embedding",
        None,
        "embed_tokens.weight",
        (("token_embd.weight",),),
        shard_axis=0,
        is_looked_up_only=not spec.tied_head,
    )
    if spec.per_layer_inputs is not None:
        width = spec.per_layer_inputs.width
        packed = spec.num_layers * width
        for name, stored, gguf, shape, role in (
            (
                "per_layer_embedding",
                "embed_tokens_per_layer",
                "per_layer_token_embd",
                (spec.per_layer_inputs.vocab_size, packed),
                "embedding",
            ),
            (
                "per_layer_model_projection",
                "per_layer_model_projection",
                "per_layer_model_proj",
                (packed, hidden),
                "linear",
            ),
            ("per_layer_projection_norm", "per_layer_projection_norm", "per_layer_proj_norm", (width,), "norm"),
        ):
            yield TensorSpec(
                name,
                shape,
                "norm" if role == "norm" else "per_layer_embedding",
                role,  # type: ignore[arg-type]  # a literal that the tuple above widens to str
                None,
                f"{stored}.weight",
                ((f"{gguf}.weight",),),
                is_looked_up_only=role == "embedding",
            )
    for layer in spec.layers:
        yield from _layer_tensors(spec, layer)
    yield _norm(spec, None, "final_norm", "norm", "output_norm", hidden)
    if not spec.tied_head:
        yield TensorSpec(
            "head",
            (spec.vocab_size, hidden),
            "head",
            "linear",
            None,
            "lm_head.weight",
            (("output.weight",),),
            shard_axis=0,
            at_root=True,
        )


def _layer_tensors(spec: ModelSpec, layer: LayerSpec) -> Iterator[TensorSpec]:
    hidden = spec.hidden_size
    yield _norm(spec, layer, "input_norm", "input_layernorm", "attn_norm", hidden)
    yield _linear(layer, "query", "self_attn.q_proj", "attn_q", (layer.query_width, hidden), "attention", 0)
    if layer.owns_kv:
        yield _linear(layer, "key", "self_attn.k_proj", "attn_k", (layer.kv_width, hidden), "attention", 0)
        if not layer.k_equals_v:
            yield _linear(layer, "value", "self_attn.v_proj", "attn_v", (layer.kv_width, hidden), "attention", 0)
    if layer.query_key_norm:
        yield _norm(spec, layer, "query_norm", "self_attn.q_norm", "attn_q_norm", layer.head_dim)
        if layer.owns_kv:
            yield _norm(spec, layer, "key_norm", "self_attn.k_norm", "attn_k_norm", layer.head_dim)
    yield _linear(
        layer, "attention_output", "self_attn.o_proj", "attn_output", (hidden, layer.query_width), "attention", 1
    )
    yield _norm(spec, layer, "post_attention_norm", "post_attention_layernorm", "post_attention_norm", hidden)
    yield _norm(spec, layer, "pre_feed_forward_norm", "pre_feedforward_layernorm", "ffn_norm", hidden)
    width = layer.feed_forward_width
    yield _linear(layer, "gate", "mlp.gate_proj", "ffn_gate", (width, hidden), "feed_forward", 0)
    yield _linear(layer, "up", "mlp.up_proj", "ffn_up", (width, hidden), "feed_forward", 0)
    yield _linear(layer, "down", "mlp.down_proj", "ffn_down", (hidden, width), "feed_forward", 1)
    if layer.experts is not None:
        yield from _expert_tensors(spec, layer, layer.experts)
    yield _norm(spec, layer, "post_feed_forward_norm", "post_feedforward_layernorm", "post_ffw_norm", hidden)
    if spec.per_layer_inputs is not None:
        ple = spec.per_layer_inputs.width
        yield _linear(layer, "per_layer_gate", "per_layer_input_gate", "inp_gate", (ple, hidden), "per_layer_embedding")
        yield _linear(
            layer, "per_layer_projection", "per_layer_projection", "proj", (hidden, ple), "per_layer_embedding"
        )
        yield _norm(spec, layer, "post_per_layer_norm", "post_per_layer_input_norm", "post_norm", hidden)
    if layer.has_layer_scalar:
        yield TensorSpec(
            f"layers.{layer.index}.layer_scalar",
            (1,),
            "norm",
            "vector",
            layer.index,
            f"layers.{layer.index}.layer_scalar",
            ((f"blk.{layer.index}.layer_output_scale.weight",),),
        )


def _expert_tensors(spec: ModelSpec, layer: LayerSpec, experts: ExpertSpec) -> Iterator[TensorSpec]:
    hidden, count, width = spec.hidden_size, experts.num_experts, experts.width
    stored, block = f"layers.{layer.index}", f"blk.{layer.index}"
    yield _norm(spec, layer, "post_dense_norm", "post_feedforward_layernorm_1", "post_ffw_norm_1", hidden)
    yield _linear(layer, "router", "router.proj", "ffn_gate_inp", (count, hidden), "experts")
    for name, shape, source, gguf in (
        ("router_scale", (hidden,), "router.scale", "ffn_gate_inp.scale"),
        ("per_expert_scale", (count,), "router.per_expert_scale", "ffn_down_exps.scale"),
    ):
        yield TensorSpec(
            f"{stored}.{name}", shape, "experts", "vector", layer.index, f"{stored}.{source}", ((f"{block}.{gguf}",),)
        )
    yield _norm(spec, layer, "pre_experts_norm", "pre_feedforward_layernorm_2", "pre_ffw_norm_2", hidden)
    yield TensorSpec(
        f"{stored}.experts_gate_up",
        (count, 2 * width, hidden),
        "experts",
        "experts",
        layer.index,
        f"{stored}.experts.gate_up_proj",
        (
            (f"{block}.ffn_gate_up_exps.weight",),
            (f"{block}.ffn_gate_exps.weight", f"{block}.ffn_up_exps.weight"),
        ),
        gguf_stack_axis=1,
        shard_axis=0,
    )
    yield TensorSpec(
        f"{stored}.experts_down",
        (count, hidden, width),
        "experts",
        "experts",
        layer.index,
        f"{stored}.experts.down_proj",
        ((f"{block}.ffn_down_exps.weight",),),
        shard_axis=0,
    )
    yield _norm(spec, layer, "post_experts_norm", "post_feedforward_layernorm_2", "post_ffw_norm_2", hidden)


def _drafter_tensors(spec: ModelSpec) -> Iterator[TensorSpec]:
    drafter = spec.drafter
    assert drafter is not None
    hidden, target = spec.hidden_size, drafter.target_hidden_size
    rows: list[tuple[str, tuple[int, ...], Role]] = [
        ("pre_projection.weight", (hidden, 2 * target), "linear"),
        ("post_projection.weight", (target, hidden), "linear"),
    ]
    if drafter.num_centroids is not None:
        rows.append(("masked_embedding.centroids.weight", (drafter.num_centroids, hidden), "linear"))
        rows.append(("masked_embedding.token_ordering", (spec.vocab_size,), "index"))
    for stored, shape, role in rows:
        name = stored.removesuffix(".weight").replace("masked_embedding.", "")
        yield TensorSpec(name, shape, "drafter", role, None, stored, ((),), at_root=True)


def _linear(
    layer: LayerSpec,
    name: str,
    stored: str,
    gguf: str,
    shape: tuple[int, int],
    part: Part,
    shard_axis: int | None = None,
) -> TensorSpec:
    return TensorSpec(
        f"layers.{layer.index}.{name}",
        shape,
        part,
        "linear",
        layer.index,
        f"layers.{layer.index}.{stored}.weight",
        ((f"blk.{layer.index}.{gguf}.weight",),),
        shard_axis=shard_axis,
    )


def _norm(spec: ModelSpec, layer: LayerSpec | None, name: str, stored: str, gguf: str, width: int) -> TensorSpec:
    prefix = "" if layer is None else f"layers.{layer.index}."
    block = "" if layer is None else f"blk.{layer.index}."
    return TensorSpec(
        f"{prefix}{name}",
        (width,),
        "norm",
        "norm",
        None if layer is None else layer.index,
        f"{prefix}{stored}.weight",
        ((f"{block}{gguf}.weight",),),
        gguf_offset=-spec.norm_weight_offset,
    )
