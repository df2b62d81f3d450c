"""Gemma 2: config.json (model_type gemma2) -> ModelSpec. Facts a.3, b.0, b.1."""

from __future__ import annotations

import math
from typing import Final

from gemwright.spec.families.bookkeeping import COMMON
from gemwright.spec.families.keys import KeyReader
from gemwright.spec.families.refused import check_architectures
from gemwright.spec.families.shared import (
    TextDefaults,
    layer_kinds,
    read_rope,
    read_sizes,
    read_softcap,
    read_top_level,
    read_window,
)
from gemwright.spec.model_spec import LayerKind, LayerSpec, ModelSpec, RopeSpec

# hidden_act is a leftover of Gemma 1: transformers computes with hidden_activation, whatever this key says.
IGNORED: Final = COMMON | {"hidden_act"}

DEFAULTS: Final = TextDefaults(
    vocab_size=256_000,
    hidden_size=2304,
    intermediate_size=9216,
    num_hidden_layers=26,
    num_attention_heads=8,
    num_key_value_heads=4,
    head_dim=256,
    max_position_embeddings=8192,
    sliding_window=4096,
)
THETA: Final = 10_000.0
PERIOD: Final = 2
ATTENTION_SOFTCAP: Final = 50.0
FINAL_SOFTCAP: Final = 30.0
_ARCHITECTURES: Final = frozenset({"Gemma2ForCausalLM", "Gemma2Model"})


def read(top: KeyReader) -> ModelSpec:
    """Return the spec of a Gemma 2 config; raises UnsupportedError naming the key that cannot be run."""
    check_architectures(top, _ARCHITECTURES)
    top.allow_only("use_bidirectional_attention", False, remedy="Gemwright runs causal models")
    sizes = read_sizes(top, DEFAULTS)
    kinds = layer_kinds(top, sizes.num_layers, PERIOD)
    window = read_window(top, kinds, DEFAULTS.sliding_window)
    # The published 27B config says the window twice.
    second_window = top.optional_integer("sliding_window_size")
    if window is not None and second_window not in (None, window):
        raise top.refusal(
            "sliding_window_size", "disagrees with sliding_window", limit=window, remedy="delete one of the two"
        )
    scale = top.number("query_pre_attn_scalar", 256.0) ** -0.5
    softcap = read_softcap(top, "attn_logit_softcapping", ATTENTION_SOFTCAP)
    rope = _rope(top)
    layers = tuple(
        LayerSpec(
            index=index,
            kind=kind,
            window=window if kind is LayerKind.SLIDING else None,
            num_query_heads=sizes.num_query_heads,
            num_kv_heads=sizes.num_kv_heads,
            head_dim=sizes.head_dim,
            kv_source=index,
            k_equals_v=False,
            query_key_norm=False,
            value_norm=False,
            attention_scale=scale,
            attention_softcap=softcap,
            rope=rope,
            feed_forward_width=sizes.intermediate_size,
        )
        for index, kind in enumerate(kinds)
    )
    head = read_top_level(top, top)
    return ModelSpec(
        family="gemma2",
        hidden_size=sizes.hidden_size,
        vocab_size=sizes.vocab_size,
        max_context=sizes.max_context,
        layers=layers,
        norm_eps=sizes.norm_eps,
        norm_weight_offset=1.0,
        embedding_scale=math.sqrt(sizes.hidden_size),
        final_softcap=read_softcap(top, "final_logit_softcapping", FINAL_SOFTCAP),
        tied_head=head.tied_head,
        bos_token_id=head.bos_token_id,
        eos_token_ids=head.eos_token_ids,
        pad_token_id=head.pad_token_id,
        stored_dtype=head.stored_dtype,
    )


def _rope(top: KeyReader) -> RopeSpec:
    """Return the one table of all layers, from rope_parameters or from rope_theta and rope_scaling."""
    old = read_rope(top.child("rope_scaling"), RopeSpec("default", top.number("rope_theta", THETA)))
    parameters = top.child("rope_parameters")
    if parameters is None:
        return old
    rope = read_rope(parameters, RopeSpec("default", old.theta))
    for name, agrees in (("rope_theta", rope.theta == old.theta), ("rope_scaling", rope == old)):
        if top.has(name) and not agrees:
            raise top.refusal(name, "disagrees with rope_parameters", remedy="delete one of the two")
    return rope
