"""From the name of a stored tensor to the part of a model it belongs to, in GGUF and safetensors files alike."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal

from gemwright.spec.model_spec import ModelSpec
from gemwright.spec.weights import list_unused_tensors

WeightName = Literal[
    "embedding", "per-layer embedding", "layers", "experts", "norms", "head", "vision", "audio", "projector", "drafter",
    "unused",
]  # fmt: skip
WEIGHT_NAMES: Final[tuple[WeightName, ...]] = (
    "embedding", "per-layer embedding", "layers", "experts", "norms", "head", "vision", "audio", "projector", "drafter",
    "unused",
)  # fmt: skip
"""Every part, in the order in which they are shown."""

# What packed formats append to the name of a weight.
_SUFFIXES: Final = frozenset(
    {
        "weight", "bias", "weight_packed", "weight_scale", "weight_scale_2", "weight_scale_inv", "weight_global_scale",
        "weight_shape", "weight_zero_point", "weight_g_idx", "input_scale", "input_global_scale", "qweight", "qzeros",
        "g_idx", "scales", "biases", "absmax", "quant_map",
    }
)  # fmt: skip
_WORDS: Final[Mapping[str, WeightName]] = {
    "vision_tower": "vision",
    "vision_model": "vision",
    "vision_embedder": "vision",
    "audio_tower": "audio",
    "multi_modal_projector": "projector",
    "embed_vision": "projector",
    "embed_audio": "projector",
    "embed_tokens": "embedding",
    "token_embd": "embedding",
    "embed_tokens_per_layer": "per-layer embedding",
    "per_layer_token_embd": "per-layer embedding",
    "lm_head": "head",
    "output": "head",
    "pre_projection": "drafter",
    "post_projection": "drafter",
    "masked_embedding": "drafter",
}
"""Towers come first: words of the language model stand in their names too."""
_GGUF_TOWERS: Final[Mapping[str, WeightName]] = {"v": "vision", "a": "audio", "mm": "projector"}
_VECTORS: Final = ("norm", "layer_scalar", "layer_output_scale", "rope_freqs")


class PartNames:
    """Tells the part of each tensor of one model."""

    def __init__(self, spec: ModelSpec, left_over: frozenset[str] = frozenset()) -> None:
        """`left_over` are stored names that no layer uses (ModelHeader.left_over)."""
        self.spec = spec
        self._left_over = left_over
        unused = list_unused_tensors(spec)
        self._unused = {_base(name) for tensor in unused for name in (tensor.safetensors, tensor.gguf)}
        self._towers = [(f".{prefix}", tower.name) for tower in spec.towers for prefix in tower.prefixes]

    def part_of(self, name: str) -> WeightName:
        """Return the part of a stored tensor by its name, whatever prefix it has.

        Routers, the scales of experts and the projections of per-layer inputs are read at every step like a layer's
        other matrices, and stand with them. What no rule knows stands there too.
        """
        if name in self._left_over:
            return "unused"
        dotted = f".{name}"
        for prefix, tower in self._towers:
            if prefix in dotted:
                return tower
        base = _base(name)
        words = base.split(".")
        part = next((_WORDS[word] for word in words if word in _WORDS), None) or _GGUF_TOWERS.get(words[0])
        if part is not None:
            return part
        start = next((index for index, word in enumerate(words) if word in ("layers", "blk")), 0)
        if ".".join(words[start:]) in self._unused:
            return "unused"
        if "experts" in words or (words[-1].endswith("_exps") and not name.endswith(".scale")):
            return "experts"
        if any(word in base for word in _VECTORS):
            return "norms"
        return "layers"


def _base(name: str) -> str:
    """Return a stored name without what says which piece of a weight it is."""
    start, dot, last = name.rpartition(".")
    return start if dot and last in _SUFFIXES else name
