"""GGUF metadata of the architectures gemma2, gemma3 and gemma4 -> ModelSpec. Facts f and j.

What the metadata leaves out is decided here as llama.cpp does: attention scales, the RoPE factor of Gemma 3, layer
patterns. It cannot say which layers see images in both directions, nor which towers belong to the model: a spec read
from GGUF is that of a text model.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

from gemwright.errors import CheckpointError, UnsupportedError
from gemwright.spec.families import bookkeeping, gemma2, gemma3, gemma4
from gemwright.spec.families.gguf_parts import (
    GgufModel,
    GgufSizes,
    assemble,
    key_is_value,
    proportional_rope,
    read_gguf_experts,
    read_gguf_head_dim,
    read_gguf_kinds,
    read_gguf_per_layer_inputs,
    read_gguf_sizes,
    refuse_rope_freqs,
    scaled_rope,
)
from gemwright.spec.families.keys import KeyReader, shown
from gemwright.spec.families.refused import refuse_type
from gemwright.spec.families.shared import assign_kv_sources, read_softcap, read_window
from gemwright.spec.model_spec import LayerKind, LayerSpec, ModelSpec, RopeSpec

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_WINDOW: Final = "attention.sliding_window"
# Gemma 3 files of these depths mean linear scaling by 8 on full layers where they do not say (field case 063).
_GEMMA3_SCALED_DEPTHS: Final = frozenset({34, 48, 62})


def read_gguf_metadata(
    metadata: Mapping[str, Any],
    *,
    tensor_shapes: Mapping[str, tuple[int, ...]],
    rope_freqs: NDArray[np.float32] | None,
    source: str,
    allow_unknown_keys: bool = False,
) -> ModelSpec:
    """Return the spec that a GGUF file describes.

    `metadata` holds the file's keys with Python values, lists or numpy arrays; `tensor_shapes` the logical shape of
    every tensor, rows first; `rope_freqs` the values of the tensor rope_freqs.weight, None where there is none.
    Raises UnsupportedError for architectures and values that cannot be run, naming the key, and CheckpointError where
    a key or tensor that is needed is missing.
    """
    architecture = metadata.get("general.architecture")
    if not isinstance(architecture, str):
        raise CheckpointError(f"{source}: general.architecture is missing", remedy="give a GGUF file of a model")
    file_type = metadata.get("general.type", "model")
    if file_type != "model":
        architecture = "clip" if file_type == "mmproj" else architecture
        if architecture in ARCHITECTURES:
            raise UnsupportedError(
                f"{source}: this is no whole model",
                value=f"general.type {shown(file_type)}",
                limit="model",
                remedy="give the GGUF file of the model itself",
            )
    read = ARCHITECTURES.get(architecture)
    if read is None:
        raise refuse_type(source, "general.architecture", architecture, ARCHITECTURES)
    keys = _reader(metadata, f"{architecture}.", source, bookkeeping.GGUF)
    tokens = _reader(metadata, "tokenizer.ggml.", source, frozenset())
    spec = read(GgufModel(keys, tokens, tensor_shapes, rope_freqs, source))
    keys.finish(allow_unknown_keys=allow_unknown_keys)
    return spec


def _reader(metadata: Mapping[str, Any], prefix: str, source: str, ignored: frozenset[str]) -> KeyReader:
    """Return a reader of the keys under `prefix`; long token lists are left as they are, nobody reads them here."""
    values = {
        key.removeprefix(prefix): _plain(value) if prefix != "tokenizer.ggml." or key.endswith("_id") else None
        for key, value in metadata.items()
        if key.startswith(prefix)
    }
    return KeyReader(values, source=source, path=prefix, ignored=ignored)


def _plain(value: Any) -> Any:
    """Return a Python value: arrays as lists, and a float32 as the shortest decimal that rounds to it (1e-06)."""
    import numpy as np

    if isinstance(value, np.ndarray | np.generic):
        value = value.tolist()
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, float) and math.isfinite(value):
        with np.errstate(over="ignore"):
            single = np.float32(value)
        return float(str(single)) if float(single) == value else value
    return value


def _plain_layers(
    sizes: GgufSizes,
    kinds: tuple[LayerKind, ...],
    window: int | None,
    ropes: Mapping[LayerKind, RopeSpec],
    *,
    scale_from_width_at: int,
    softcap: float | None,
    query_key_norm: bool,
) -> tuple[LayerSpec, ...]:
    """Return the layers of Gemma 2 and 3, which differ in window and RoPE alone.

    The largest model of each, known by its depth `scale_from_width_at`, scales scores by (hidden / heads)^-0.5 where
    all others use head_dim^-0.5 (facts j).
    """
    from_width = sizes.num_layers == scale_from_width_at
    return tuple(
        LayerSpec(
            index=index,
            kind=kind,
            window=window if kind is LayerKind.SLIDING else None,
            num_query_heads=sizes.query_heads[index],
            num_kv_heads=sizes.kv_heads[index],
            head_dim=sizes.head_dim,
            kv_source=index,
            k_equals_v=False,
            query_key_norm=query_key_norm,
            value_norm=False,
            attention_scale=(sizes.hidden_size / sizes.query_heads[index] if from_width else sizes.head_dim) ** -0.5,
            attention_softcap=softcap,
            rope=ropes[kind],
            feed_forward_width=sizes.widths[index],
        )
        for index, kind in enumerate(kinds)
    )


def _gemma2(model: GgufModel) -> ModelSpec:
    keys = model.keys
    refuse_rope_freqs(model)
    sizes = read_gguf_sizes(model)
    kinds = read_gguf_kinds(model, sizes.num_layers, gemma2.PERIOD)
    full = scaled_rope(model, keys.number("rope.freq_base", gemma2.THETA))
    sliding = RopeSpec(full.kind, keys.number("rope.freq_base_swa", full.theta), full.factor)
    layers = _plain_layers(
        sizes,
        kinds,
        read_window(keys, kinds, gemma2.DEFAULTS.sliding_window, _WINDOW),
        {LayerKind.FULL: full, LayerKind.SLIDING: sliding},
        scale_from_width_at=46,
        softcap=read_softcap(keys, "attn_logit_softcapping", gemma2.ATTENTION_SOFTCAP),
        query_key_norm=False,
    )
    return assemble(model, "gemma2", sizes, layers, norm_weight_offset=1.0, default_final_softcap=gemma2.FINAL_SOFTCAP)


def _gemma3(model: GgufModel) -> ModelSpec:
    keys = model.keys
    refuse_rope_freqs(model)
    sizes = read_gguf_sizes(model)
    kinds = read_gguf_kinds(model, sizes.num_layers, gemma3.PERIOD)
    default_factor = 8.0 if sizes.num_layers in _GEMMA3_SCALED_DEPTHS else 1.0
    ropes = {
        LayerKind.FULL: scaled_rope(model, keys.number("rope.freq_base"), default_factor),
        LayerKind.SLIDING: RopeSpec("default", keys.number("rope.freq_base_swa", gemma3.SLIDING_THETA)),
    }
    window = read_window(keys, kinds, None, _WINDOW)
    layers = _plain_layers(sizes, kinds, window, ropes, scale_from_width_at=62, softcap=None, query_key_norm=True)
    return assemble(model, "gemma3", sizes, layers, norm_weight_offset=1.0, default_final_softcap=None)


def _gemma4(model: GgufModel) -> ModelSpec:
    keys = model.keys
    sizes = read_gguf_sizes(model, head_dim_default=False)
    kinds = read_gguf_kinds(model, sizes.num_layers, None)
    window = read_window(keys, kinds, None, _WINDOW)
    head_dims = {LayerKind.FULL: sizes.head_dim, LayerKind.SLIDING: read_gguf_head_dim(keys, "_swa", None)}
    ropes = {
        LayerKind.FULL: proportional_rope(model, keys.number("rope.freq_base"), sizes.head_dim),
        LayerKind.SLIDING: RopeSpec("default", keys.number("rope.freq_base_swa", gemma4.SLIDING_ROPE.theta)),
    }
    num_shared = keys.integer("attention.shared_kv_layers", 0, minimum=0, maximum=sizes.num_layers)
    sources = assign_kv_sources(keys, "attention.shared_kv_layers", kinds, num_shared)
    keys_are_values = key_is_value(model, kinds, sources)
    experts = read_gguf_experts(model)
    layers = tuple(
        LayerSpec(
            index=index,
            kind=kind,
            window=window if kind is LayerKind.SLIDING else None,
            num_query_heads=sizes.query_heads[index],
            num_kv_heads=sizes.kv_heads[index],
            head_dim=head_dims[kind],
            kv_source=sources[index],
            k_equals_v=keys_are_values and kind is LayerKind.FULL,
            query_key_norm=True,
            value_norm=True,
            attention_scale=1.0,
            attention_softcap=None,
            rope=ropes[kind],
            feed_forward_width=sizes.widths[index],
            experts=experts,
            has_layer_scalar=True,
        )
        for index, kind in enumerate(kinds)
    )
    for layer, source in zip(layers, sources, strict=True):
        if layer.num_kv_heads != layers[source].num_kv_heads:
            raise keys.refusal(
                "attention.head_count_kv",
                f"gives layer {layer.index} other K/V than layer {source}, whose K/V it shares",
                limit=layers[source].num_kv_heads,
            )
    return assemble(
        model,
        "gemma4",
        sizes,
        layers,
        norm_weight_offset=0.0,
        # No published Gemma 4 has another cap, and llama.cpp takes this one where the key is absent.
        default_final_softcap=30.0,
        per_layer_inputs=read_gguf_per_layer_inputs(model, sizes.num_layers),
    )


ARCHITECTURES: Final[Mapping[str, Callable[[GgufModel], ModelSpec]]] = {
    "gemma2": _gemma2,
    "gemma3": _gemma3,
    "gemma4": _gemma4,
}
