"""The pieces of GGUF metadata that several architectures share: sizes, layer patterns, RoPE tables, the whole spec.

Facts f and j. Refuses to know an architecture: what differs comes in as arguments.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

from gemwright.errors import CheckpointError, UnsupportedError
from gemwright.spec.families.keys import KeyReader
from gemwright.spec.families.shared import (
    MAX_EXPERTS,
    MAX_HEAD_DIM,
    MAX_HEADS,
    MAX_LAYERS,
    MAX_WIDTH,
    check_head_dim,
    check_heads,
    periodic_kinds,
    read_softcap,
)
from gemwright.spec.model_spec import ExpertSpec, LayerKind, LayerSpec, ModelSpec, PerLayerInputSpec, RopeSpec

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_TOKEN_EMBEDDING: Final = "token_embd.weight"
_PER_LAYER_EMBEDDING: Final = "per_layer_token_embd.weight"
_ROPE_FREQS: Final = "rope_freqs.weight"
_PATTERN: Final = "attention.sliding_window_pattern"


@dataclass(frozen=True, slots=True)
class GgufModel:
    """A GGUF file as the architecture readers see it: its keys, and the shapes of its tensors (rows first)."""

    keys: KeyReader
    tokens: KeyReader
    tensor_shapes: Mapping[str, tuple[int, ...]]
    rope_freqs: NDArray[np.float32] | None
    source: str

    def missing_tensor(self, name: str) -> CheckpointError:
        """Return the error that says a tensor is absent; the caller raises it."""
        return CheckpointError(f"{self.source}: tensor {name} is missing", remedy="download or convert the file again")


@dataclass(frozen=True, slots=True)
class GgufSizes:
    """What every architecture says under the same keys; per-layer numbers have one entry a layer."""

    hidden_size: int
    num_layers: int
    query_heads: tuple[int, ...]
    kv_heads: tuple[int, ...]
    widths: tuple[int, ...]
    head_dim: int


def read_gguf_sizes(model: GgufModel, *, head_dim_default: bool = True) -> GgufSizes:
    """Return the sizes; an absent key length is hidden size / heads where `head_dim_default`, else required."""
    keys = model.keys
    hidden_size = keys.integer("embedding_length", maximum=MAX_WIDTH)
    num_layers = keys.integer("block_count", maximum=MAX_LAYERS)
    query_heads = keys.integers("attention.head_count", num_layers, maximum=MAX_HEADS)
    kv_heads = query_heads
    if keys.has("attention.head_count_kv"):
        kv_heads = keys.integers("attention.head_count_kv", num_layers, maximum=MAX_HEADS)
    for num_query_heads, num_kv_heads in zip(query_heads, kv_heads, strict=True):
        check_heads(keys, "attention.head_count_kv", num_query_heads, num_kv_heads)
    default = hidden_size // query_heads[0] if head_dim_default and hidden_size % query_heads[0] == 0 else None
    return GgufSizes(
        hidden_size=hidden_size,
        num_layers=num_layers,
        query_heads=query_heads,
        kv_heads=kv_heads,
        widths=keys.integers("feed_forward_length", num_layers, maximum=MAX_WIDTH),
        head_dim=read_gguf_head_dim(keys, "", default),
    )


def read_gguf_head_dim(keys: KeyReader, suffix: str, default: int | None) -> int:
    """Return the head size, which must hold for keys, values and RoPE alike."""
    head_dim = keys.integer(f"attention.key_length{suffix}", default, maximum=MAX_HEAD_DIM)
    check_head_dim(keys, f"attention.key_length{suffix}", head_dim)
    for name in (f"attention.value_length{suffix}", f"rope.dimension_count{suffix}"):
        if keys.integer(name, head_dim) != head_dim:
            raise keys.refusal(name, "differs from the key length", limit=head_dim, remedy="use an unchanged Gemma")
    return head_dim


def read_gguf_kinds(model: GgufModel, num_layers: int, default_period: int | None) -> tuple[LayerKind, ...]:
    """Return the kind of every layer from a list (true: sliding), from a period, or from the default period."""
    keys = model.keys
    if keys.has(_PATTERN) and isinstance(keys.raw(_PATTERN), list):
        # A list of booleans, which some writers store as 0 and 1.
        pattern = [bool(item) if item in (0, 1) else None for item in keys.items(_PATTERN) or []]
        if len(pattern) != num_layers or None in pattern:
            raise keys.refusal(_PATTERN, "must have one true or false a layer", limit=f"{num_layers} layers")
        return tuple(LayerKind.SLIDING if slides else LayerKind.FULL for slides in pattern)
    return periodic_kinds(num_layers, keys.integer(_PATTERN, default_period))


def scaled_rope(model: GgufModel, theta: float, default_factor: float = 1.0) -> RopeSpec:
    """Return the plain or linearly scaled table that the rope.scaling keys describe."""
    keys = model.keys
    kind = keys.text("rope.scaling.type")
    if kind is None and not keys.has("rope.scaling.factor"):
        factor = default_factor
    elif kind == "none":
        keys.allow_only("rope.scaling.factor", 0.0, 1.0)
        factor = 1.0
    elif kind in (None, "linear"):
        factor = keys.number("rope.scaling.factor")
    else:
        raise keys.refusal(
            "rope.scaling.type", "is not supported", limit="none, linear", remedy="use an unchanged Gemma"
        )
    return RopeSpec("default", theta) if factor == 1.0 else RopeSpec("linear", theta, factor=factor)


def proportional_rope(model: GgufModel, theta: float, head_dim: int) -> RopeSpec:
    """Return the table of Gemma 4's full layers, whose part that turns is the ones at the start of rope_freqs.

    The tensor holds divisors, one a pair: ones, then numbers so large (1e30) that the rest stands still (facts f).
    """
    import numpy as np

    if model.rope_freqs is None:
        raise model.missing_tensor(_ROPE_FREQS)
    divisors = np.asarray(model.rope_freqs)
    num_pairs = head_dim // 2
    num_rotated = int(np.count_nonzero(divisors == 1.0))
    if (
        divisors.shape != (num_pairs,)
        or not np.all(divisors[:num_rotated] == 1.0)
        or not np.all(divisors[num_rotated:] >= 1e30)
    ):
        raise UnsupportedError(
            f"{model.source}: {_ROPE_FREQS} does not hold ones followed by 1e30",
            value=f"shape {divisors.shape}, {num_rotated} ones",
            limit=f"{num_pairs} values",
            remedy="use a GGUF file of an unchanged Gemma 4",
        )
    scaled = scaled_rope(model, theta)
    part = num_rotated / num_pairs
    rope = RopeSpec("proportional", theta, factor=scaled.factor, partial_rotary_factor=part)
    if rope.num_rotated_pairs(head_dim) < num_rotated:  # n / pairs * head_dim can round below 2 n
        part = math.nextafter(part, 2.0)
        rope = RopeSpec("proportional", theta, factor=scaled.factor, partial_rotary_factor=part)
    return rope


def assemble(
    model: GgufModel,
    family: Literal["gemma2", "gemma3", "gemma4"],
    sizes: GgufSizes,
    layers: tuple[LayerSpec, ...],
    *,
    norm_weight_offset: float,
    default_final_softcap: float | None,
    per_layer_inputs: PerLayerInputSpec | None = None,
) -> ModelSpec:
    """Return the whole spec from what all architectures have in common."""
    keys, tokens = model.keys, model.tokens
    if keys.has("attention.causal"):
        keys.allow_only("attention.causal", True, remedy="use a causal Gemma")
    vocab_size, width = _matrix_shape(model, _TOKEN_EMBEDDING)
    if width != sizes.hidden_size:
        raise _bad_shape(model, _TOKEN_EMBEDDING, f"{vocab_size} x {sizes.hidden_size} (embedding_length)")
    if keys.optional_integer("vocab_size") not in (None, vocab_size):
        raise _bad_shape(model, _TOKEN_EMBEDDING, f"{keys.raw('vocab_size')} rows (vocab_size)")
    eos_names = ("eos_token_id", "eot_token_id", "eom_token_id")
    eos_ids = [tokens.optional_integer(name, minimum=0) for name in eos_names]
    bos_id = tokens.optional_integer("bos_token_id", minimum=0)
    pad_id = tokens.optional_integer("padding_token_id", minimum=0)
    return ModelSpec(
        family=family,
        hidden_size=sizes.hidden_size,
        vocab_size=vocab_size,
        max_context=keys.integer("context_length"),
        layers=layers,
        norm_eps=keys.number("attention.layer_norm_rms_epsilon"),
        norm_weight_offset=norm_weight_offset,
        embedding_scale=math.sqrt(sizes.hidden_size),
        final_softcap=read_softcap(keys, "final_logit_softcapping", default_final_softcap),
        tied_head="output.weight" not in model.tensor_shapes,
        per_layer_inputs=per_layer_inputs,
        bos_token_id=2 if bos_id is None else bos_id,
        eos_token_ids=tuple(dict.fromkeys(token_id for token_id in eos_ids if token_id is not None)) or (1,),
        pad_token_id=0 if pad_id is None else pad_id,
    )


def _matrix_shape(model: GgufModel, name: str) -> tuple[int, int]:
    shape = model.tensor_shapes.get(name)
    if shape is None:
        raise model.missing_tensor(name)
    if len(shape) != 2 or min(shape) < 1:
        raise _bad_shape(model, name, "a matrix")
    return shape[0], shape[1]


def _bad_shape(model: GgufModel, name: str, limit: str) -> CheckpointError:
    return CheckpointError(
        f"{model.source}: tensor {name} has the wrong shape",
        value=" x ".join(str(size) for size in model.tensor_shapes[name]),
        limit=limit,
        remedy="download or convert the file again",
    )


def refuse_rope_freqs(model: GgufModel) -> None:
    """Refuse RoPE divisors in an architecture that has none."""
    if model.rope_freqs is not None:
        raise UnsupportedError(
            f"{model.source}: {_ROPE_FREQS} is not supported in this architecture", remedy="use an unchanged Gemma"
        )


def key_is_value(model: GgufModel, kinds: tuple[LayerKind, ...], sources: tuple[int, ...]) -> bool:
    """Return whether the full layers have no value projection; a file where only some lack it is damaged."""
    owners = [index for index, source in enumerate(sources) if index == source]
    lacking = [index for index in owners if f"blk.{index}.attn_v.weight" not in model.tensor_shapes]
    full = [index for index in owners if kinds[index] is LayerKind.FULL]
    if lacking == full and lacking:
        return True
    if lacking:
        raise model.missing_tensor(f"blk.{lacking[0]}.attn_v.weight")
    return False


def read_gguf_experts(model: GgufModel) -> ExpertSpec | None:
    """Return the experts of every layer, None where expert_count is 0 or absent."""
    keys = model.keys
    if keys.integer("expert_count", 0, minimum=0, maximum=MAX_EXPERTS) == 0:
        keys.optional_integer("expert_used_count", minimum=0)
        keys.optional_integer("expert_feed_forward_length", minimum=0)
        return None
    experts = ExpertSpec(
        num_experts=keys.integer("expert_count"),
        num_experts_per_token=keys.integer("expert_used_count", maximum=MAX_EXPERTS),
        width=keys.integer("expert_feed_forward_length", maximum=MAX_WIDTH),
    )
    if experts.num_experts_per_token > experts.num_experts:
        raise keys.refusal("expert_used_count", "is more than expert_count", limit=experts.num_experts)
    return experts


def read_gguf_per_layer_inputs(model: GgufModel, num_layers: int) -> PerLayerInputSpec | None:
    """Return the per-layer embeddings, whose rows are counted in their table; None where their width is 0."""
    width = model.keys.integer("embedding_length_per_layer_input", 0, minimum=0, maximum=MAX_WIDTH)
    if width == 0:
        return None
    vocab_size, table_width = _matrix_shape(model, _PER_LAYER_EMBEDDING)
    if table_width != width * num_layers:
        raise _bad_shape(model, _PER_LAYER_EMBEDDING, f"{vocab_size} x {width * num_layers} (layers x width)")
    return PerLayerInputSpec(width, vocab_size)
