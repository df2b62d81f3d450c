"""What a config may not say: each refusal names the key and exits with the code of unsupported models."""

from __future__ import annotations

import itertools
import json
import math
from typing import Any

import pytest

from gemwright.errors import CheckpointError, GemwrightError, UnsupportedError
from gemwright.spec.families import CONFIG_READERS, read_config
from gemwright.spec.families.refused import REFUSED_MODELS, RefusedModel
from tests.published_configs import load_config

G2, G3, G3M = "gemma-2-2b-it", "gemma-3-1b-it", "gemma-3-4b-it"
G4, G4U, MOE, DRAFT = "gemma-4-E2B-it", "gemma-4-12B-it", "gemma-4-26B-A4B-it", "gemma-4-E2B-it-assistant"
ABSENT = object()


def changed(name: str, **changes: Any) -> dict[str, Any]:
    """Return a published config with keys changed; `a__b` stands for key b inside a, ABSENT takes a key away."""
    config = load_config(name)
    for path, value in changes.items():
        *parents, last = path.split("__")
        place = config
        for parent in parents:
            place = place[parent]
        if value is ABSENT:
            place.pop(last, None)
        else:
            place[last] = value
    return config


def refused(config: dict[str, Any], *, kind: type[GemwrightError] = UnsupportedError) -> str:
    with pytest.raises(kind) as caught:
        read_config(config, source="config.json")
    message = str(caught.value)
    assert message.startswith("config.json: ")
    assert len(message) < 700
    return message


@pytest.mark.parametrize(
    ("model_type", "name"),
    [
        ("gemma", "Gemma 1"),
        ("gemma3n", "Gemma 3n"),
        ("gemma3n_text", "Gemma 3n"),
        ("paligemma", "PaliGemma"),
        ("t5gemma", "T5Gemma"),
        ("t5gemma2", "T5Gemma"),
        ("diffusion_gemma", "DiffusionGemma"),
        ("diffusiongemma", "DiffusionGemma"),
        ("recurrent_gemma", "RecurrentGemma"),
        ("shieldgemma2", "ShieldGemma 2"),
        ("embedding_gemma2", "EmbeddingGemma"),
        ("vaultgemma", "VaultGemma"),
    ],
)
def test_relatives_that_are_no_decoder_of_ours_are_refused_by_name(model_type: str, name: str):
    message = refused({"model_type": model_type})
    assert f"{name}" in message
    assert "not supported" in message
    assert "remedy:" in message


def test_any_other_model_type_is_refused_with_the_list_of_those_that_can_be_run():
    message = refused({"model_type": "llama"})
    assert "'llama'" in message
    listed = message.partition("supported: ")[2].split(", ")
    assert listed == sorted(name for name, reader in CONFIG_READERS.items() if reader.can_answer)
    assert not [name for name in listed if "assistant" in name]


@pytest.mark.parametrize("model", REFUSED_MODELS, ids=lambda model: model.name)
def test_every_refused_model_is_named_by_each_of_its_types(model: RefusedModel):
    for model_type in model.types:
        message = refused({"model_type": model_type})
        assert model.name in message
        assert model.reason in message
        assert message.endswith(f"remedy: {model.remedy}")
    if model.part is not None:
        assert model.name in refused({"model_type": f"new-{model.part.upper().replace('_', '-')}-2"})


def test_a_config_without_a_model_type_is_incomplete():
    assert "must be an object" in refused([])  # type: ignore[arg-type]
    assert "model_type is missing" in refused({"hidden_size": 8}, kind=CheckpointError)
    for value in (5, True, ["gemma2"]):
        assert "model_type must be a text" in refused({"model_type": value})


@pytest.mark.parametrize(
    ("name", "architecture", "words"),
    [
        (G3, "Gemma3TextModel", "EmbeddingGemma"),
        (G3M, "ShieldGemma2ForImageClassification", "ShieldGemma 2"),
        (G2, "Gemma2ForSequenceClassification", "classifier"),
        (G4, "Gemma5ForCausalLM", "class that is not known"),
    ],
)
def test_classes_that_are_no_language_model_are_refused(name: str, architecture: str, words: str):
    message = refused(changed(name, architectures=[architecture]))
    assert words in message
    assert architecture in message


@pytest.mark.parametrize(
    ("name", "key", "value", "words"),
    [
        # What we do not compute.
        (G3, "use_bidirectional_attention", True, "EmbeddingGemma"),
        (G2, "use_bidirectional_attention", True, "causal"),
        (G4, "text_config__use_bidirectional_attention", "all", "'vision'"),
        (G2, "hidden_activation", "silu", "gelu_pytorch_tanh"),
        (G3, "hidden_activation", "gelu", "gelu_pytorch_tanh"),
        (G3, "hidden_act", "silu", "gelu_pytorch_tanh"),
        (G4, "text_config__hidden_activation", "relu", "gelu_pytorch_tanh"),
        (G2, "attention_bias", True, "attention_bias"),
        (G4, "text_config__attention_bias", True, "attention_bias"),
        (G4, "text_config__attn_logit_softcapping", 50.0, "no attention softcap"),
        (G4U, "text_config__enable_moe_block", True, "enable_moe_block"),
        (G4U, "text_config__hidden_size_per_layer_input", 256, "hidden_size_per_layer_input"),
        (DRAFT, "text_config__hidden_size_per_layer_input", 256, "hidden_size_per_layer_input"),
        (DRAFT, "text_config__enable_moe_block", True, "enable_moe_block"),
        (DRAFT, "text_config__use_double_wide_mlp", True, "use_double_wide_mlp"),
        (DRAFT, "text_config__num_kv_shared_layers", 2, "all layers of a drafter"),
        (G2, "is_encoder_decoder", True, "decoder-only"),
        (G3, "pruned_heads", {"0": [1]}, "pruned_heads"),
        (G4, "vision_config__model_type", "vit", "tower that is not known"),
        (G3M, "vision_config__model_type", "vit", "tower that is not known"),
        (G4, "text_config__model_type", "gemma3_text", "model_type"),
        (G2, "torch_dtype", "int8", "bfloat16"),
        # RoPE.
        (G3, "rope_scaling", {"rope_type": "yarn", "factor": 4.0}, "default, linear, proportional"),
        (G3, "rope_scaling", {"rope_type": "dynamic", "factor": 4.0}, "default, linear, proportional"),
        (G3, "rope_scaling", {"type": "longrope"}, "default, linear, proportional"),
        (G2, "rope_parameters", {"rope_type": "llama3", "factor": 8.0}, "default, linear, proportional"),
        (G4, "text_config__rope_parameters__full_attention__rope_type", "yarn", "default, linear, proportional"),
        (G4, "text_config__rope_parameters__full_attention__partial_rotary_factor", 1.5, "from 0 to 1"),
        (G4, "text_config__rope_parameters__full_attention__rope_theta", 0, "above 0"),
        (G4, "text_config__rope_parameters__sliding_attention__partial_rotary_factor", 0.5, "partial_rotary_factor"),
        (G3, "rope_scaling", {"rope_type": "linear", "factor": -8.0}, "above 0"),
        (G3, "rope_scaling", {"rope_type": "linear", "type": "default", "factor": 8.0}, "disagrees"),
        (G3, "rope_scaling", 8.0, "object"),
        (G2, "rope_parameters", {"rope_theta": 5e5, "rope_type": "default"}, "rope_theta disagrees"),
        # Softcaps.
        (G2, "attn_logit_softcapping", -50.0, "above 0"),
        (G2, "final_logit_softcapping", 0.0, "above 0"),
        (G4, "text_config__final_logit_softcapping", -30, "above 0"),
        # Windows and layer lists.
        (G3, "sliding_window", None, "there are sliding layers"),
        (G2, "sliding_window", 0, "sliding_window"),
        (G4, "text_config__sliding_window", -512, "sliding_window"),
        (G4, "text_config__sliding_window", None, "there are sliding layers"),
        (G2, "sliding_window_size", 2048, "disagrees with sliding_window"),
        (G2, "layer_types", ["full_attention"] * 25, "25 names"),
        (G2, "layer_types", ["chunked_attention"] * 26, "chunked_attention"),
        (G2, "layer_types", [1] * 26, "not a text"),
        (G3, "sliding_window_pattern", 0, "sliding_window_pattern"),
        (G3, "_sliding_window_pattern", 4, "disagrees"),
        # Sizes.
        (G2, "num_key_value_heads", 3, "8 query heads, 3 KV heads"),
        (G4U, "text_config__num_global_key_value_heads", 3, "16 query heads, 3 KV heads"),
        (G2, "head_dim", 255, "odd"),
        (G4, "text_config__global_head_dim", 511, "odd"),
        (G2, "hidden_size", 0, "hidden_size"),
        (G2, "hidden_size", -8, "hidden_size"),
        (G3, "vocab_size", "262144", "must be an integer"),
        (G3, "vocab_size", None, "must be an integer"),
        (G3, "num_hidden_layers", True, "must be an integer"),
        (G3, "intermediate_size", 2048.0, "must be an integer"),
        (G3, "num_hidden_layers", 1001, "from 1 to 1000"),
        (G3, "hidden_size", 10**9, "out of range"),
        (G3, "vocab_size", 10**4000, "out of range"),
        (G3, "rms_norm_eps", 0.0, "above 0"),
        (G3, "rms_norm_eps", -1e-6, "above 0"),
        (G3, "rms_norm_eps", math.nan, "rms_norm_eps"),
        (G3, "rms_norm_eps", math.inf, "rms_norm_eps"),
        (G3, "query_pre_attn_scalar", 0, "query_pre_attn_scalar"),
        (G3, "rope_theta", 10**400, "too large"),
        (G3, "rope_theta", True, "must be a number"),
        (G3, "eos_token_id", [1, -1], "eos_token_id"),
        (G3, "eos_token_id", True, "eos_token_id"),
        (G3, "eos_token_id", list(range(65)), "too many"),
        (G3, "attention_bias", "false", "true or false"),
        (G3, "architectures", "Gemma3ForCausalLM", "must be a list"),
        (G3M, "text_config", [], "must be an object"),
        (G3M, "text_config__tie_word_embeddings", False, "disagrees with the top"),
        # K/V sharing, experts, per-layer inputs, centroids.
        (G4, "text_config__num_kv_shared_layers", 35, "no sliding layer that owns K/V"),
        (G4, "text_config__num_kv_shared_layers", 31, "no full layer that owns K/V"),
        (G4, "text_config__num_kv_shared_layers", 36, "from 0 to 35"),
        (MOE, "text_config__top_k_experts", 129, "more than num_experts"),
        (MOE, "text_config__num_experts", None, "must be an integer"),
        (G4, "text_config__vocab_size_per_layer_input", 0, "vocab_size_per_layer_input"),
        (DRAFT, "num_centroids", 2047, "does not divide"),
        (DRAFT, "centroid_intermediate_top_k", 4096, "more than num_centroids"),
        # The spelling of transformers.
        (G4, "text_config__per_layer_config", {"35": {"head_dim": 512}}, "0 to 34"),
        (G4, "text_config__per_layer_config", {"x": {"head_dim": 512}}, "0 to 34"),
        (G4, "text_config__per_layer_config", {"4": {}, "04": {}}, "names one twice"),
        (G4, "text_config__per_layer_config", {"4": {"head_dim": 511}}, "odd"),
        (G4, "text_config__per_layer_config", {"4": {"num_key_value_heads": 3}}, "3 KV heads"),
        (G4, "text_config__per_layer_config", {"4": {"head_dim": 512}}, "global_head_dim disagrees"),
    ],
)  # fmt: skip
def test_a_value_that_cannot_be_right_is_refused_by_its_key(name: str, key: str, value: Any, words: str):
    message = refused(changed(name, **{key: value}))
    last = key.split("__")[-1]
    assert last in message
    assert words in message
    assert "value:" in message


def test_a_shared_layer_with_another_head_size_than_its_source_is_refused():
    config = changed(G4, text_config__global_head_dim=ABSENT, text_config__num_global_key_value_heads=ABSENT)
    config["text_config"]["per_layer_config"] = {str(layer): {"head_dim": 512} for layer in (4, 9, 14)}
    assert "layer 19 other K/V than layer 14" in refused(config)


@pytest.mark.parametrize("key", ["num_experts", "top_k_experts", "moe_intermediate_size"])
def test_experts_without_their_sizes_are_incomplete(key: str):
    message = refused(changed(MOE, **{f"text_config__{key}": ABSENT}), kind=CheckpointError)
    assert f"text_config.{key} is missing" in message


@pytest.mark.parametrize("name", [G3M, G4, G4U, DRAFT])
def test_a_multimodal_config_without_a_text_config_is_incomplete(name: str):
    assert "text_config is missing" in refused(changed(name, text_config=ABSENT), kind=CheckpointError)
    assert "text_config is missing" in refused(changed(name, text_config=None), kind=CheckpointError)


@pytest.mark.parametrize(
    ("key", "section", "method"),
    [
        (
            "quantization_config",
            {"quant_method": "compressed-tensors", "format": "pack-quantized"},
            "compressed-tensors",
        ),
        ("quantization_config", {"quant_method": "gemma", "module_quant_configs": {}}, "gemma"),
        ("quantization_config", {"bits": 4}, "not named"),
        ("quantization", {"bits": 4, "group_size": 64}, "mlx"),
        ("text_config__quantization_config", {"quant_method": "bitsandbytes"}, "bitsandbytes"),
    ],
)
def test_quantized_checkpoints_are_refused_by_their_method(key: str, section: dict[str, Any], method: str):
    message = refused(changed(G4, **{key: section}))
    assert f"quant_method {method!r}" in message
    assert "GGUF" in message
    read_config(changed(G4, **{key: None}))


def test_unknown_keys_are_refused_by_their_dotted_names_and_accepted_on_request():
    config = changed(G4, text_config__attention_sink=4, text_config__rope_parameters__full_attention__beta_fast=32.0)
    config["logit_scale"] = 0.5
    message = refused(config)
    assert "3 unknown keys" in message
    for name in ("logit_scale", "text_config.attention_sink", "text_config.rope_parameters.full_attention.beta_fast"):
        assert name in message
    assert "--allow-unknown-config-keys" in message
    assert read_config(config, allow_unknown_keys=True) == read_config(load_config(G4))


def test_a_single_unknown_key_in_a_layer_override_is_named_with_its_layer():
    config = changed(G4, text_config__global_head_dim=ABSENT, text_config__num_global_key_value_heads=ABSENT)
    config["text_config"]["per_layer_config"] = {"04": {"head_dim": 512, "sliding_window": 7}}
    config["text_config"]["num_kv_shared_layers"] = 0
    assert "unknown key text_config.per_layer_config.04.sliding_window" in refused(config)


def test_the_unknown_key_flag_lets_no_bad_value_pass():
    with pytest.raises(UnsupportedError, match="attention_bias"):
        read_config(changed(G2, attention_bias=True, whatever=1), allow_unknown_keys=True)


@pytest.mark.parametrize("name", [G2, G3, G3M, G4, DRAFT])
def test_bookkeeping_of_the_library_changes_nothing(name: str):
    config = load_config(name) | {
        "transformers_version": "5.5.0.dev0",
        "_name_or_path": "somewhere",
        "use_cache": False,
        "attention_dropout": 0.1,
        "temperature": 1.0,
        "top_k": 64,
        "return_dict": True,
        "chunk_size_feed_forward": 0,
        "is_encoder_decoder": False,
        "pruned_heads": {},
        "unsloth_fixed": True,
        "problem_type": None,
    }
    assert read_config(config) == read_config(load_config(name))


def test_gemma_2_computes_with_hidden_activation_whatever_the_old_key_says():
    assert read_config(changed(G2, hidden_act="gelu")) == read_config(load_config(G2))


def test_null_activation_softcap_and_bias_mean_the_family_default_or_none():
    spec = read_config(changed(G2, hidden_activation=None, attention_bias=None, attn_logit_softcapping=None))
    assert spec.layers[0].attention_softcap is None
    assert spec.final_softcap == 30.0


def test_a_window_is_not_asked_for_where_no_layer_slides():
    spec = read_config(changed(G2, sliding_window=None, layer_types=["full_attention"] * 26))
    assert all(layer.window is None for layer in spec.layers)


HOSTILE = (10**5000, "x" * 10**6, [[]] * 10**5, {"a": 1}, math.inf, None, True)


@pytest.mark.parametrize("name", [G2, G3M, G4, DRAFT])
def test_whatever_a_hostile_config_holds_it_reads_or_gets_one_short_message(name: str):
    messages = []
    config = load_config(name)
    text = config.get("text_config", {})
    cases = [config | {key: value} for key, value in itertools.product(config, HOSTILE)]
    cases += [config | {"text_config": text | {key: value}} for key, value in itertools.product(text, HOSTILE)]
    for bad in cases:
        try:
            read_config(bad)
        except GemwrightError as error:
            messages.append(str(error))
    assert len(messages) > 40
    assert max(len(message) for message in messages) < 900


def test_configs_survive_json():
    assert read_config(json.loads(json.dumps(load_config(G4)))) == read_config(load_config(G4))
