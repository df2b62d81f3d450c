"""Gemma 4: config.json of E2B, E4B, 26B-A4B, 31B (gemma4) and 12B (gemma4_unified). Facts a.1, b.4, g.3."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Final, Literal

from gemwright.spec.families.bookkeeping import COMMON, IMAGE_TOKEN_COUNTS, MEDIA_TOKENS
from gemwright.spec.families.keys import KeyReader
from gemwright.spec.families.refused import check_architectures
from gemwright.spec.families.shared import (
    MAX_EXPERTS,
    MAX_HEAD_DIM,
    MAX_HEADS,
    MAX_VOCABULARY,
    MAX_WIDTH,
    TextDefaults,
    TextSizes,
    assign_kv_sources,
    check_head_dim,
    check_heads,
    layer_kinds,
    read_rope,
    read_sizes,
    read_softcap,
    read_top_level,
    read_window,
)
from gemwright.spec.families.towers import read_gemma4_towers, read_unified_towers
from gemwright.spec.model_spec import (
    ExpertSpec,
    LayerKind,
    LayerSpec,
    ModelSpec,
    PerLayerInputSpec,
    RopeSpec,
)

IGNORED_TEXT: Final = COMMON
IGNORED_MULTIMODAL: Final = COMMON | MEDIA_TOKENS | (IMAGE_TOKEN_COUNTS - {"vision_soft_tokens_per_image"})

PERIOD: Final = 6
SLIDING_ROPE: Final = RopeSpec("default", 10_000.0)
FULL_ROPE: Final = RopeSpec("proportional", 1_000_000.0, partial_rotary_factor=0.25)
_GLOBAL_HEAD_DIM: Final = 512
_DEFAULTS: Final = TextDefaults(
    vocab_size=262_144,
    hidden_size=2304,
    intermediate_size=9216,
    num_hidden_layers=30,
    num_attention_heads=8,
    num_key_value_heads=4,
    head_dim=256,
    max_position_embeddings=131_072,
    sliding_window=512,
)


@dataclass(frozen=True, slots=True)
class Variant:
    """In what the text configs of one branch differ: defaults, and whether per-layer inputs and experts exist."""

    text_type: str
    defaults: TextDefaults
    bidirectional: Literal["vision"] | None
    per_layer_width: int
    has_experts: bool


# An absent hidden_size_per_layer_input is 0 wherever the model class has none (facts j).
PLAIN: Final = Variant("gemma4_text", _DEFAULTS, bidirectional=None, per_layer_width=256, has_experts=True)
UNIFIED: Final = Variant(
    "gemma4_unified_text",
    replace(_DEFAULTS, max_position_embeddings=262_144, sliding_window=1024),
    bidirectional="vision",
    per_layer_width=0,
    has_experts=False,
)


def read_text(top: KeyReader) -> ModelSpec:
    """Return the spec of a text-only Gemma 4 config (gemma4_text)."""
    check_architectures(top, frozenset({"Gemma4ForCausalLM", "Gemma4TextModel"}))
    return read_language_model(top, top, PLAIN)


def read_unified_text(top: KeyReader) -> ModelSpec:
    """Return the spec of a text-only config of the 12B branch (gemma4_unified_text)."""
    check_architectures(top, frozenset({"Gemma4UnifiedForCausalLM", "Gemma4UnifiedTextModel"}))
    return read_language_model(top, top, UNIFIED)


def read_multimodal(top: KeyReader) -> ModelSpec:
    """Return the spec of a Gemma 4 config with a text_config (gemma4)."""
    check_architectures(top, frozenset({"Gemma4ForConditionalGeneration", "Gemma4Model", "Gemma4ForCausalLM"}))
    spec = read_language_model(top, text_config(top, PLAIN), PLAIN)
    return replace(spec, towers=read_gemma4_towers(top, spec.hidden_size))


def read_unified_multimodal(top: KeyReader) -> ModelSpec:
    """Return the spec of a 12B config with a text_config (gemma4_unified)."""
    check_architectures(
        top,
        frozenset({"Gemma4UnifiedForConditionalGeneration", "Gemma4UnifiedModel", "Gemma4UnifiedForCausalLM"}),
    )
    spec = read_language_model(top, text_config(top, UNIFIED), UNIFIED)
    return replace(spec, towers=read_unified_towers(top, spec.hidden_size))


def text_config(top: KeyReader, variant: Variant) -> KeyReader:
    """Return the reader of `text_config`, whose model_type must be the branch's."""
    text = top.child("text_config", ignored=IGNORED_TEXT)
    if text is None:
        raise top.missing("text_config")
    text.allow_only("model_type", variant.text_type)
    return text


def read_language_model(top: KeyReader, text: KeyReader, variant: Variant, *, drafter: bool = False) -> ModelSpec:
    """Return the spec of the text part; `drafter` makes every layer one that reads another model's cache."""
    bidirectional = text.text("use_bidirectional_attention", None)
    if bidirectional is None and "use_bidirectional_attention" not in text.names():
        bidirectional = variant.bidirectional
    if bidirectional not in (None, "vision"):
        raise text.refusal(
            "use_bidirectional_attention", "is not supported", limit="null, 'vision'", remedy="use a causal Gemma 4"
        )
    text.allow_only("attn_logit_softcapping", remedy="Gemma 4 has no attention softcap")
    text.allow_only("hidden_act", "gelu_pytorch_tanh", remedy="use an unchanged Gemma")
    sizes = read_sizes(text, variant.defaults)
    kinds = layer_kinds(text, sizes.num_layers, PERIOD)
    # The config class of transformers does the same, with a warning (facts a.1).
    kinds = (*kinds[:-1], LayerKind.FULL)
    head = read_top_level(top, text)
    return ModelSpec(
        family="gemma4",
        hidden_size=sizes.hidden_size,
        vocab_size=sizes.vocab_size,
        max_context=sizes.max_context,
        layers=_layers(text, sizes, kinds, variant, drafter),
        norm_eps=sizes.norm_eps,
        norm_weight_offset=0.0,
        embedding_scale=math.sqrt(sizes.hidden_size),
        final_softcap=read_softcap(text, "final_logit_softcapping"),
        tied_head=head.tied_head,
        per_layer_inputs=_per_layer_inputs(text, variant, drafter),
        # A drafter never sees an image: blocks reach it through its target's cache alone (facts e).
        image_attention="sliding_layers" if bidirectional == "vision" and not drafter else "causal",
        bos_token_id=head.bos_token_id,
        eos_token_ids=head.eos_token_ids,
        pad_token_id=head.pad_token_id,
        stored_dtype=head.stored_dtype,
    )


def _layers(
    text: KeyReader, sizes: TextSizes, kinds: tuple[LayerKind, ...], variant: Variant, drafter: bool
) -> tuple[LayerSpec, ...]:
    window = read_window(text, kinds, variant.defaults.sliding_window)
    num_shared = text.integer("num_kv_shared_layers", 0, minimum=0, maximum=sizes.num_layers)
    if drafter and num_shared not in (0, sizes.num_layers):
        raise text.refusal("num_kv_shared_layers", "must cover all layers of a drafter", limit=sizes.num_layers)
    sources = None if drafter else assign_kv_sources(text, "num_kv_shared_layers", kinds, num_shared)
    first_shared = 0 if drafter else sizes.num_layers - num_shared
    double_wide = text.flag("use_double_wide_mlp", False)
    if double_wide and drafter:
        raise text.refusal("use_double_wide_mlp", "is not supported in a drafter", limit="false")
    key_is_value = text.flag("attention_k_eq_v", False)
    shapes = _attention_shapes(text, sizes, kinds, key_is_value)
    parameters = text.child("rope_parameters")
    ropes = {
        LayerKind.SLIDING: read_rope(parameters and parameters.child("sliding_attention"), SLIDING_ROPE),
        LayerKind.FULL: read_rope(parameters and parameters.child("full_attention"), FULL_ROPE),
    }
    experts = _experts(text, variant, drafter)
    layers = tuple(
        LayerSpec(
            index=index,
            kind=kind,
            window=window if kind is LayerKind.SLIDING else None,
            num_query_heads=sizes.num_query_heads,
            num_kv_heads=shapes[index][1],
            head_dim=shapes[index][0],
            kv_source=None if sources is None else sources[index],
            k_equals_v=key_is_value and kind is LayerKind.FULL,
            query_key_norm=True,
            value_norm=True,
            attention_scale=1.0,
            attention_softcap=None,
            rope=ropes[kind],
            feed_forward_width=sizes.intermediate_size * (2 if double_wide and index >= first_shared else 1),
            experts=experts,
            has_layer_scalar=True,
        )
        for index, kind in enumerate(kinds)
    )
    for layer in layers:
        source = layers[layer.kv_source] if layer.kv_source is not None else layer
        if (layer.num_kv_heads, layer.head_dim) != (source.num_kv_heads, source.head_dim):
            raise text.refusal(
                "per_layer_config",
                f"gives layer {layer.index} other K/V than layer {source.index}, whose K/V it shares",
                value=f"{layer.num_kv_heads} x {layer.head_dim}",
                limit=f"{source.num_kv_heads} x {source.head_dim}",
            )
    return layers


def _attention_shapes(
    text: KeyReader, sizes: TextSizes, kinds: tuple[LayerKind, ...], key_is_value: bool
) -> list[tuple[int, int]]:
    """Return (head size, KV heads) of every layer.

    Published configs say it for all full layers (global_head_dim, and num_global_key_value_heads where K equals V);
    transformers 5.24 writes overrides layer by layer, and then those alone count.
    """
    per_layer = text.child("per_layer_config")
    full_head_dim = text.integer("global_head_dim", _GLOBAL_HEAD_DIM, maximum=MAX_HEAD_DIM)
    check_head_dim(text, "global_head_dim", full_head_dim)
    full_kv_heads = text.optional_integer("num_global_key_value_heads", maximum=MAX_HEADS)
    if full_kv_heads is None or not key_is_value:
        full_kv_heads = sizes.num_kv_heads
    check_heads(text, "num_global_key_value_heads", sizes.num_query_heads, full_kv_heads)
    sliding = (sizes.head_dim, sizes.num_kv_heads)
    published = [(full_head_dim, full_kv_heads) if kind is LayerKind.FULL else sliding for kind in kinds]
    if per_layer is None:
        return published
    shapes = [sliding] * len(kinds)
    seen: set[int] = set()
    for name in per_layer.names():
        index = int(name) if name.isascii() and name.isdigit() and len(name) <= 6 else -1
        if not 0 <= index < len(kinds) or index in seen:
            raise per_layer.refusal(name, "is not a layer, or names one twice", limit=f"0 to {len(kinds) - 1}")
        seen.add(index)
        override = per_layer.child(name)
        if override is None:
            continue
        head_dim = override.integer("head_dim", sizes.head_dim, maximum=MAX_HEAD_DIM)
        kv_heads = override.integer("num_key_value_heads", sizes.num_kv_heads, maximum=MAX_HEADS)
        check_head_dim(override, "head_dim", head_dim)
        check_heads(override, "num_key_value_heads", sizes.num_query_heads, kv_heads)
        shapes[index] = (head_dim, kv_heads)
    for name in ("global_head_dim", "num_global_key_value_heads"):
        if text.has(name) and shapes != published:
            raise text.refusal(name, "disagrees with per_layer_config", remedy="delete one of the two")
    return shapes


def _experts(text: KeyReader, variant: Variant, drafter: bool) -> ExpertSpec | None:
    enabled = text.flag("enable_moe_block", False)
    if enabled and (drafter or not variant.has_experts):
        raise text.refusal("enable_moe_block", "is not supported in this model type", limit="false")
    if not enabled:
        for name in ("num_experts", "top_k_experts", "moe_intermediate_size"):
            text.optional_integer(name)
        return None
    experts = ExpertSpec(
        num_experts=text.integer("num_experts", maximum=MAX_EXPERTS),
        num_experts_per_token=text.integer("top_k_experts", maximum=MAX_EXPERTS),
        width=text.integer("moe_intermediate_size", maximum=MAX_WIDTH),
    )
    if experts.num_experts_per_token > experts.num_experts:
        raise text.refusal("top_k_experts", "is more than num_experts", limit=experts.num_experts)
    return experts


def _per_layer_inputs(text: KeyReader, variant: Variant, drafter: bool) -> PerLayerInputSpec | None:
    default = 0 if drafter else variant.per_layer_width
    width = default
    if "hidden_size_per_layer_input" in text.names():
        width = text.optional_integer("hidden_size_per_layer_input", minimum=0, maximum=MAX_WIDTH) or 0
    vocab_size = text.integer("vocab_size_per_layer_input", 262_144, minimum=0, maximum=MAX_VOCABULARY)
    if width == 0:
        return None
    if default == 0:
        raise text.refusal("hidden_size_per_layer_input", "is not supported in this model type", limit="0")
    if vocab_size == 0:
        raise text.refusal(
            "vocab_size_per_layer_input", "is needed where hidden_size_per_layer_input is not 0", limit="1 or more"
        )
    return PerLayerInputSpec(width, vocab_size)
