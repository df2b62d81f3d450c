"""Gemma 3: config.json of the text models (gemma3_text) and the multimodal ones (gemma3). Facts a.3, b.0, b.2, g.2."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Final

from gemwright.spec.families.bookkeeping import COMMON, IMAGE_TOKEN_COUNTS, MEDIA_TOKENS
from gemwright.spec.families.keys import KeyReader
from gemwright.spec.families.refused import check_architectures
from gemwright.spec.families.shared import (
    TextDefaults,
    TextSizes,
    layer_kinds,
    read_rope,
    read_sizes,
    read_softcap,
    read_top_level,
    read_window,
)
from gemwright.spec.families.towers import read_gemma3_towers
from gemwright.spec.model_spec import LayerKind, LayerSpec, ModelSpec, RopeSpec

IGNORED_TEXT: Final = COMMON
IGNORED_MULTIMODAL: Final = COMMON | MEDIA_TOKENS | (IMAGE_TOKEN_COUNTS - {"mm_tokens_per_image"})

DEFAULTS: Final = TextDefaults(
    vocab_size=262_208,
    hidden_size=2304,
    intermediate_size=9216,
    num_hidden_layers=26,
    num_attention_heads=8,
    num_key_value_heads=4,
    head_dim=256,
    max_position_embeddings=131_072,
    sliding_window=4096,
)
# The text-only sizes were trained for less than the class default (field case 145): (layers, hidden size) -> context.
_SHORT_CONTEXTS: Final = {(18, 640): 32_768, (26, 1152): 32_768}
PERIOD: Final = 6
FULL_THETA: Final = 1_000_000.0
SLIDING_THETA: Final = 10_000.0
_TEXT_ARCHITECTURES: Final = frozenset({"Gemma3ForCausalLM"})
_MULTIMODAL_ARCHITECTURES: Final = frozenset({"Gemma3ForConditionalGeneration", "Gemma3Model", "Gemma3ForCausalLM"})


def read_text(top: KeyReader) -> ModelSpec:
    """Return the spec of a text-only Gemma 3 config; raises UnsupportedError naming the key that cannot be run."""
    check_architectures(top, _TEXT_ARCHITECTURES)
    return _read(top, top)


def read_multimodal(top: KeyReader) -> ModelSpec:
    """Return the spec of a Gemma 3 config with a text_config and a vision_config."""
    check_architectures(top, _MULTIMODAL_ARCHITECTURES)
    text = top.child("text_config", ignored=IGNORED_TEXT)
    if text is None:
        raise top.missing("text_config")
    text.allow_only("model_type", "gemma3_text")
    spec = _read(top, text)
    return replace(spec, image_attention="all_layers", towers=read_gemma3_towers(top, spec.hidden_size))


def _read(top: KeyReader, text: KeyReader) -> ModelSpec:
    text.allow_only(
        "use_bidirectional_attention",
        False,
        remedy="this is EmbeddingGemma, which gives embeddings and no text: use an embedding server",
    )
    text.allow_only("hidden_act", "gelu_pytorch_tanh", remedy="use an unchanged Gemma")
    sizes = read_sizes(text, DEFAULTS)
    if "max_position_embeddings" not in text.names():
        known = _SHORT_CONTEXTS.get((sizes.num_layers, sizes.hidden_size), sizes.max_context)
        sizes = replace(sizes, max_context=known)
    kinds = layer_kinds(text, sizes.num_layers, _period(text))
    head = read_top_level(top, text)
    return ModelSpec(
        family="gemma3",
        hidden_size=sizes.hidden_size,
        vocab_size=sizes.vocab_size,
        max_context=sizes.max_context,
        layers=_layers(text, sizes, kinds),
        norm_eps=sizes.norm_eps,
        norm_weight_offset=1.0,
        embedding_scale=math.sqrt(sizes.hidden_size),
        final_softcap=read_softcap(text, "final_logit_softcapping"),
        tied_head=head.tied_head,
        bos_token_id=head.bos_token_id,
        eos_token_ids=head.eos_token_ids,
        pad_token_id=head.pad_token_id,
        stored_dtype=head.stored_dtype,
    )


def _layers(text: KeyReader, sizes: TextSizes, kinds: tuple[LayerKind, ...]) -> tuple[LayerSpec, ...]:
    window = read_window(text, kinds, DEFAULTS.sliding_window)
    scale = text.number("query_pre_attn_scalar", 256.0) ** -0.5
    softcap = read_softcap(text, "attn_logit_softcapping")
    ropes = _ropes(text)
    return tuple(
        LayerSpec(
            index=index,
            kind=kind,
            window=window if kind is LayerKind.SLIDING else None,
            num_query_heads=sizes.num_query_heads,
            num_kv_heads=sizes.num_kv_heads,
            head_dim=sizes.head_dim,
            kv_source=index,
            k_equals_v=False,
            query_key_norm=True,
            value_norm=False,
            attention_scale=scale,
            attention_softcap=softcap,
            rope=ropes[kind],
            feed_forward_width=sizes.intermediate_size,
        )
        for index, kind in enumerate(kinds)
    )


def _period(text: KeyReader) -> int:
    """Return how many layers apart the full ones are; transformers writes the number a second time with "_"."""
    period = text.optional_integer("sliding_window_pattern") or PERIOD
    second = text.optional_integer("_sliding_window_pattern")
    if second not in (None, period) and not text.has("layer_types"):
        raise text.refusal("_sliding_window_pattern", "disagrees with sliding_window_pattern", limit=period)
    return period


def _ropes(text: KeyReader) -> dict[LayerKind, RopeSpec]:
    """Return one table a layer kind, from rope_parameters or from rope_theta, rope_scaling and rope_local_base_freq.

    The old scaling counts for full layers alone (facts a.3).
    """
    theta = text.number("rope_theta", FULL_THETA)
    old = {
        LayerKind.FULL: read_rope(text.child("rope_scaling"), RopeSpec("default", theta)),
        LayerKind.SLIDING: RopeSpec("default", text.number("rope_local_base_freq", SLIDING_THETA)),
    }
    parameters = text.child("rope_parameters")
    if parameters is None:
        return old
    ropes = {
        LayerKind.FULL: read_rope(parameters.child("full_attention"), RopeSpec("default", theta)),
        LayerKind.SLIDING: read_rope(parameters.child("sliding_attention"), old[LayerKind.SLIDING]),
    }
    for name, agrees in (
        ("rope_theta", ropes[LayerKind.FULL].theta == theta),
        ("rope_scaling", ropes[LayerKind.FULL] == old[LayerKind.FULL]),
        ("rope_local_base_freq", ropes[LayerKind.SLIDING].theta == old[LayerKind.SLIDING].theta),
    ):
        if text.has(name) and not agrees:
            raise text.refusal(name, "disagrees with rope_parameters", remedy="delete one of the two")
    return ropes
