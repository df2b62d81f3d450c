"""What an absent key means, and which spelling of a key counts."""

from __future__ import annotations

from typing import Any

import pytest

from gemwright.spec.families import read_config
from gemwright.spec.model_spec import LayerKind, PerLayerInputSpec, RopeSpec
from tests.published_configs import load_config


def without(config: dict[str, Any], *names: str) -> dict[str, Any]:
    return {name: value for name, value in config.items() if name not in names}


def test_gemma_2_by_its_type_alone_is_the_2b():
    spec = read_config({"model_type": "gemma2"})
    published = read_config(load_config("gemma-2-2b"))
    assert spec.layers == published.layers
    assert (spec.hidden_size, spec.vocab_size, spec.max_context) == (2304, 256000, 8192)
    assert spec.stored_dtype is None


def test_the_short_text_config_published_with_gemma_3_4b_is_complete():
    config = load_config("gemma-3-4b-it")
    names = ("hidden_size", "intermediate_size", "model_type", "num_hidden_layers", "rope_scaling", "sliding_window")
    short = config | {"text_config": {name: config["text_config"][name] for name in names}}
    assert read_config(short) == read_config(config)


@pytest.mark.parametrize(
    ("name", "context"), [("gemma-3-4b-it", 131_072), ("gemma-3-1b-it", 32_768), ("gemma-3-270m", 32_768)]
)
def test_gemma_3_context_where_the_config_does_not_say(name: str, context: int):
    config = load_config(name)
    if "text_config" in config:
        config["text_config"].pop("max_position_embeddings")
    else:
        config.pop("max_position_embeddings")
    assert read_config(config).max_context == context


def test_gemma_4_text_defaults_are_those_of_its_branch():
    plain = read_config({"model_type": "gemma4_text"})
    unified = read_config({"model_type": "gemma4_unified_text"})
    assert plain.per_layer_inputs == PerLayerInputSpec(256, 262_144)
    assert unified.per_layer_inputs is None
    assert (plain.max_context, plain.layers[0].window, plain.image_attention) == (131_072, 512, "causal")
    assert (unified.max_context, unified.layers[0].window) == (262_144, 1024)
    assert unified.image_attention == "sliding_layers"
    for spec in (plain, unified):
        assert spec.num_layers == 30
        assert [layer.index for layer in spec.layers if layer.kind is LayerKind.FULL] == [5, 11, 17, 23, 29]
        assert (spec.layers[0].head_dim, spec.layers[5].head_dim) == (256, 512)
        assert spec.layers[0].rope == RopeSpec("default", 1e4)
        assert spec.layers[5].rope == RopeSpec("proportional", 1e6, partial_rotary_factor=0.25)
        assert spec.final_softcap is None


@pytest.mark.parametrize("name", ["gemma-4-E2B-it-assistant", "gemma-4-12B-it-assistant"])
def test_a_drafter_shares_all_layers_and_has_no_per_layer_inputs_where_it_does_not_say(name: str):
    config = load_config(name)
    bare = ("num_kv_shared_layers", "hidden_size_per_layer_input", "vocab_size_per_layer_input", "enable_moe_block")
    config["text_config"] = without(config["text_config"], *bare)
    assert read_config(config) == read_config(load_config(name))


def test_global_kv_heads_count_only_where_keys_equal_values():
    config = load_config("gemma-4-31B")
    config["text_config"]["attention_k_eq_v"] = False
    spec = read_config(config)
    assert {layer.num_kv_heads for layer in spec.layers} == {16}
    assert not any(layer.k_equals_v for layer in spec.layers)


def test_the_last_gemma_4_layer_is_full_whatever_the_list_says():
    config = load_config("gemma-4-31B")
    config["text_config"]["layer_types"][-1] = "sliding_attention"
    assert read_config(config) == read_config(load_config("gemma-4-31B"))


def test_irregular_layer_types_are_taken_as_they_are():
    config = load_config("gemma-3-270m")
    kinds = ["full_attention"] * 3 + ["sliding_attention"] * 15
    spec = read_config(config | {"layer_types": kinds})
    assert [f"{layer.kind}_attention" for layer in spec.layers] == kinds


def test_overrides_by_layer_count_alone_where_they_stand():
    config = load_config("gemma-4-31B")
    text = without(config["text_config"], "global_head_dim", "num_global_key_value_heads")
    spec = read_config(config | {"text_config": text | {"per_layer_config": {}}})
    assert {(layer.num_kv_heads, layer.head_dim) for layer in spec.layers} == {(16, 256)}
    spec = read_config(config | {"text_config": text | {"per_layer_config": {"07": {"head_dim": 64}}}})
    assert spec.layers[7].head_dim == 64
    assert {layer.head_dim for layer in spec.layers if layer.index != 7} == {256}


def test_gemma_2_scaling_holds_for_all_layers_and_gemma_3_scaling_for_the_full_ones():
    scaling = {"rope_type": "linear", "factor": 4.0}
    gemma2 = read_config(load_config("gemma-2-2b") | {"rope_scaling": scaling})
    assert {layer.rope for layer in gemma2.layers} == {RopeSpec("linear", 1e4, factor=4.0)}
    gemma3 = read_config(load_config("gemma-3-1b-it") | {"rope_scaling": scaling})
    assert gemma3.layers[5].rope == RopeSpec("linear", 1e6, factor=4.0)
    assert gemma3.layers[0].rope == RopeSpec("default", 1e4)


def test_the_old_name_of_a_rope_type_is_read():
    config = load_config("gemma-3-4b-it")
    config["text_config"]["rope_scaling"] = {"type": "linear", "factor": 8.0}
    assert read_config(config) == read_config(load_config("gemma-3-4b-it"))


def test_both_rope_spellings_may_stand_side_by_side_where_they_agree():
    config = load_config("gemma-3-4b-it")
    config["text_config"]["rope_parameters"] = {
        "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
        "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
    }
    assert read_config(config) == read_config(load_config("gemma-3-4b-it"))


@pytest.mark.parametrize("factor", [0.0, 0.3, 0.5, 1.0])
def test_other_partial_factors_and_a_factor_of_proportional_rope(factor: float):
    config = load_config("gemma-4-31B")
    full = config["text_config"]["rope_parameters"]["full_attention"]
    full |= {"partial_rotary_factor": factor, "factor": 2.0}
    rope = read_config(config).layers[5].rope
    assert rope == RopeSpec("proportional", 1e6, factor=2.0, partial_rotary_factor=factor)
    assert rope.num_rotated_pairs(512) == int(factor * 512 // 2)


def test_an_untied_head_and_other_token_ids():
    config = load_config("gemma-3-1b-it")
    spec = read_config(config | {"tie_word_embeddings": False, "eos_token_id": [1, 106, 1], "pad_token_id": 5})
    assert not spec.tied_head
    assert spec.eos_token_ids == (1, 106)
    assert spec.pad_token_id == 5
    spec = read_config(config | {"eos_token_id": None, "bos_token_id": None, "pad_token_id": None})
    assert (spec.bos_token_id, spec.eos_token_ids, spec.pad_token_id) == (2, (1,), 0)


@pytest.mark.parametrize("name", ["float16", "bfloat16", "float32", "torch.float32"])
def test_dtype_in_either_spelling(name: str):
    config = without(load_config("gemma-3-1b-it"), "torch_dtype")
    expected = name.removeprefix("torch.")
    assert read_config(config | {"dtype": name}).stored_dtype == expected
    assert read_config(config | {"torch_dtype": name}).stored_dtype == expected
    assert read_config(config | {"dtype": name, "torch_dtype": "bfloat16"}).stored_dtype == expected
    assert read_config(config).stored_dtype is None
