"""What a Gemma is, as data: a ModelSpec holds one LayerSpec a layer.

Refuses to know where the numbers came from (spec.families reads configs), how tensors are named (spec.weights),
and how anything is computed.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from math import prod
from typing import Literal


class LayerKind(StrEnum):
    """How far back a layer's attention may look."""

    SLIDING = "sliding"
    FULL = "full"


@dataclass(frozen=True, slots=True)
class RopeSpec:
    """One rotary table: pair j of a head of size D turns by position * frequency(j) radians, pairs are (j, j + D/2).

    default: theta^(-2j/D). linear: the same divided by `factor`. proportional: the same for the first
    int(partial_rotary_factor * D // 2) pairs and 0 for the rest, all divided by `factor`.
    """

    kind: Literal["default", "linear", "proportional"]
    theta: float
    factor: float = 1.0
    partial_rotary_factor: float = 1.0

    def num_rotated_pairs(self, head_dim: int) -> int:
        """Return how many of the head_dim // 2 pairs turn at all."""
        if self.kind != "proportional":
            return head_dim // 2
        return int(self.partial_rotary_factor * head_dim // 2)


@dataclass(frozen=True, slots=True)
class ExpertSpec:
    """A mixture of experts beside the dense feed-forward of a layer."""

    num_experts: int
    num_experts_per_token: int
    width: int


@dataclass(frozen=True, slots=True)
class LayerSpec:
    """One decoder layer. Everything in which two Gemma layers can differ stands here."""

    index: int
    kind: LayerKind
    window: int | None
    """Keys a query sees, itself included; None on full layers."""
    num_query_heads: int
    num_kv_heads: int
    head_dim: int
    kv_source: int | None
    """Index of the layer whose K/V this layer reads: its own, an earlier one of its kind, or None for a drafter,
    which reads the cache of its target."""
    k_equals_v: bool
    """The value projection is the key projection: V is the normed raw key, and no V weight exists."""
    query_key_norm: bool
    value_norm: bool
    attention_scale: float
    attention_softcap: float | None
    rope: RopeSpec
    feed_forward_width: int
    experts: ExpertSpec | None = None
    has_layer_scalar: bool = False

    @property
    def owns_kv(self) -> bool:
        """Whether this layer projects, writes and owns its K/V."""
        return self.kv_source == self.index

    @property
    def query_width(self) -> int:
        """Width of all query heads together."""
        return self.num_query_heads * self.head_dim

    @property
    def kv_width(self) -> int:
        """Width of all key heads together (the values are as wide)."""
        return self.num_kv_heads * self.head_dim


@dataclass(frozen=True, slots=True)
class PerLayerInputSpec:
    """Per-layer embeddings: a second table that feeds `width` values to every layer."""

    width: int
    vocab_size: int


@dataclass(frozen=True, slots=True)
class TowerTensor:
    """One tensor of a tower, named as published safetensors files name it, without the prefix of the whole model."""

    name: str
    shape: tuple[int, ...]
    is_buffer: bool = False
    """Stored, but not counted as a parameter by the reference class (the bounds of clipped linears, for one)."""

    @property
    def num_elements(self) -> int:
        """Number of values; a tensor of rank 0 holds one."""
        return prod(self.shape)


@dataclass(frozen=True, slots=True)
class TowerSizes:
    """What one image, or one clip of sound, meets in a tower; with these its activations can be estimated.

    Counts are those of one item at its usual size: the image budget that the config names, or 30 s of sound.
    """

    hidden_size: int
    feed_forward_width: int
    """0 where the tower has no layers (the 12B's embedder)."""
    num_heads: int
    num_layers: int
    num_positions: int
    """Patches or frames of one item that the layers see."""
    num_soft_tokens: int
    """Positions of the language model that one item fills."""
    num_front_values: int
    """Values of the largest tensor before the first layer: all pixels, or what the first convolution over sound
    gives."""


@dataclass(frozen=True, slots=True)
class TowerSpec:
    """A part of a checkpoint beside the language model, known by the tensor names it starts with.

    `tensors` lists what a published file of this config holds of it; `sizes` is None for projectors.
    """

    name: Literal["vision", "audio", "projector"]
    prefixes: tuple[str, ...]
    tensors: tuple[TowerTensor, ...] = ()
    sizes: TowerSizes | None = None


@dataclass(frozen=True, slots=True)
class DrafterSpec:
    """What makes a model a drafter: it reads its target's hidden state and cache."""

    target_hidden_size: int
    num_centroids: int | None
    """Ordered embeddings (E2B, E4B): the number of centroids; None where all rows are scored."""
    num_centroids_scored: int | None


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """A whole model. The decoder, the cache, the planner, the loader and the sharding rules read this alone."""

    family: Literal["gemma2", "gemma3", "gemma4"]
    """For labels, templates and file formats; the forward pass never looks at it."""
    hidden_size: int
    vocab_size: int
    max_context: int
    layers: tuple[LayerSpec, ...]
    norm_eps: float
    norm_weight_offset: float
    """What safetensors files leave out of a stored norm weight: 1.0 (Gemma 2, 3) or 0.0 (Gemma 4)."""
    embedding_scale: float
    """sqrt(hidden_size), rounded to the engine's dtype before it is multiplied (facts b.0)."""
    final_softcap: float | None
    tied_head: bool
    per_layer_inputs: PerLayerInputSpec | None = None
    image_attention: Literal["causal", "sliding_layers", "all_layers"] = "causal"
    """On which layers the positions of one image see each other in both directions."""
    towers: tuple[TowerSpec, ...] = ()
    drafter: DrafterSpec | None = None
    bos_token_id: int = 2
    eos_token_ids: tuple[int, ...] = (1,)
    pad_token_id: int = 0
    stored_dtype: str | None = None
    """The checkpoint's own dtype as its config names it, such as "bfloat16"; None where it does not say."""

    @property
    def num_layers(self) -> int:
        """Number of decoder layers."""
        return len(self.layers)

    @property
    def first_layer_after_kv(self) -> int:
        """Index of the first layer from which on no layer owns K/V (num_layers where the last one does)."""
        owners = [layer.index for layer in self.layers if layer.owns_kv]
        return owners[-1] + 1 if owners else 0
