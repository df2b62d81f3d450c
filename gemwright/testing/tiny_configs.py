"""Configs of tiny Gemmas, one for each family and odd feature, in the published spelling of config.json."""

from __future__ import annotations

from typing import Any

VOCAB_SIZE = 515
"""Room for the special ids, all bytes and some spare ids; no multiple of anything."""

_COMMON: dict[str, Any] = {
    "attention_bias": False,
    "bos_token_id": 2,
    "eos_token_id": 1,
    "hidden_activation": "gelu_pytorch_tanh",
    "max_position_embeddings": 4096,
    "pad_token_id": 0,
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": True,
    "vocab_size": VOCAB_SIZE,
}

_GEMMA2: dict[str, Any] = {
    **_COMMON,
    "architectures": ["Gemma2ForCausalLM"],
    "model_type": "gemma2",
    "attn_logit_softcapping": 50.0,
    "final_logit_softcapping": 30.0,
    "head_dim": 24,
    "hidden_size": 72,
    "intermediate_size": 90,
    "num_attention_heads": 4,
    "num_hidden_layers": 8,
    "num_key_value_heads": 2,
    "query_pre_attn_scalar": 18,
    "rope_theta": 10000.0,
    "sliding_window": 20,
    "torch_dtype": "float32",
}

_GEMMA3: dict[str, Any] = {
    **_COMMON,
    "architectures": ["Gemma3ForCausalLM"],
    "model_type": "gemma3_text",
    "attn_logit_softcapping": None,
    "final_logit_softcapping": None,
    "head_dim": 16,
    "hidden_size": 40,
    "intermediate_size": 104,
    "num_attention_heads": 4,
    "num_hidden_layers": 8,
    "num_key_value_heads": 1,
    "query_pre_attn_scalar": 16,
    "rope_local_base_freq": 10000.0,
    "rope_scaling": None,
    "rope_theta": 1000000.0,
    "sliding_window": 16,
    "sliding_window_pattern": 6,
    "torch_dtype": "float32",
}


def _layer_types(pattern: str) -> list[str]:
    return ["full_attention" if kind == "F" else "sliding_attention" for kind in pattern]


def _gemma4_text(pattern: str, *, partial_rotary_factor: float = 0.25, **fields: Any) -> dict[str, Any]:
    return {
        **_COMMON,
        "attention_k_eq_v": False,
        "dtype": "float32",
        "enable_moe_block": False,
        "final_logit_softcapping": 30.0,
        "global_head_dim": 32,
        "head_dim": 16,
        "hidden_size": 48,
        "hidden_size_per_layer_input": 0,
        "intermediate_size": 64,
        "layer_types": _layer_types(pattern),
        "model_type": "gemma4_text",
        "moe_intermediate_size": None,
        "num_attention_heads": 4,
        "num_experts": None,
        "num_global_key_value_heads": None,
        "num_hidden_layers": len(pattern),
        "num_key_value_heads": 2,
        "num_kv_shared_layers": 0,
        "rope_parameters": {
            "full_attention": {
                "partial_rotary_factor": partial_rotary_factor,
                "rope_theta": 1000000.0,
                "rope_type": "proportional",
            },
            "sliding_attention": {"rope_theta": 10000.0, "rope_type": "default"},
        },
        "sliding_window": 16,
        "top_k_experts": None,
        "use_bidirectional_attention": None,
        "use_double_wide_mlp": False,
        "vocab_size_per_layer_input": VOCAB_SIZE,
        **fields,
    }


def _gemma4(text: dict[str, Any], *, unified: bool = False) -> dict[str, Any]:
    """Wrap a text config as the text-only class of transformers reads it."""
    kind = "Gemma4Unified" if unified else "Gemma4"
    return {**text, "architectures": [f"{kind}ForCausalLM"]}


_E_LIKE: dict[str, Any] = {
    "hidden_size_per_layer_input": 12,
    "num_key_value_heads": 1,
    "num_kv_shared_layers": 4,
}

TINY_CONFIGS: dict[str, dict[str, Any]] = {
    "gemma2": _GEMMA2,
    "gemma3": _GEMMA3,
    "gemma3-linear": {
        **_GEMMA3,
        "num_hidden_layers": 9,
        "num_key_value_heads": 2,
        "rope_scaling": {"rope_type": "linear", "factor": 8.0},
        "sliding_window_pattern": 3,
    },
    "gemma4-e": _gemma4(_gemma4_text("ssFssFsFsF", use_double_wide_mlp=True, **_E_LIKE)),
    "gemma4-e-narrow": _gemma4(_gemma4_text("sFssFsssF", hidden_size=36, intermediate_size=50, **_E_LIKE)),
    "gemma4-k-equals-v": _gemma4(
        _gemma4_text("sssFsssF", attention_k_eq_v=True, num_global_key_value_heads=1, num_key_value_heads=4)
    ),
    "gemma4-moe": _gemma4(
        _gemma4_text(
            "sssFsssF",
            attention_k_eq_v=True,
            enable_moe_block=True,
            moe_intermediate_size=20,
            num_experts=8,
            num_global_key_value_heads=2,
            top_k_experts=3,
        )
    ),
    "gemma4-unified": _gemma4(
        _gemma4_text(
            "sssFsssF",
            attention_k_eq_v=True,
            model_type="gemma4_unified_text",
            num_global_key_value_heads=1,
            use_bidirectional_attention="vision",
        ),
        unified=True,
    ),
    "gemma4-irregular": _gemma4(
        _gemma4_text("FFsFssssFsF", partial_rotary_factor=0.5, global_head_dim=24, hidden_size=44, intermediate_size=52)
    ),
}
"""Every tiny Gemma by name."""
