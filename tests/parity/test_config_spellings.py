"""The published spelling of a config and the one transformers writes give one spec, and absent keys mean one thing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from transformers import AutoConfig

from gemwright.spec.families import read_config
from gemwright.spec.model_spec import ModelSpec
from tests.published_configs import SUPPORTED, config_path, load_config


def as_transformers_writes_it(config: Any, folder: Path) -> dict[str, Any]:
    config.save_pretrained(folder)
    written: dict[str, Any] = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    return written


def through_transformers(config: dict[str, Any], folder: Path) -> ModelSpec:
    """Let transformers load a config and write it again, and read what it wrote."""
    source = folder / "source"
    source.mkdir(exist_ok=True)
    (source / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return read_config(as_transformers_writes_it(AutoConfig.from_pretrained(source), folder / "written"))


@pytest.mark.parametrize("name", SUPPORTED)
def test_both_spellings_of_every_published_config_give_one_spec(name: str, tmp_path: Path):
    written = as_transformers_writes_it(AutoConfig.from_pretrained(config_path(name)), tmp_path)
    text = written.get("text_config", written)
    assert "rope_parameters" in text
    assert ("per_layer_config" in text) == ("-4-" in name)
    assert not {"global_head_dim", "num_global_key_value_heads", "rope_local_base_freq", "rope_scaling"} & set(text)
    assert read_config(written) == read_config(load_config(name))


@pytest.mark.parametrize(
    "class_name",
    ["Gemma2Config", "Gemma3TextConfig", "Gemma3Config", "Gemma4TextConfig", "Gemma4UnifiedTextConfig"],
)
def test_a_config_of_nothing_but_its_type_has_the_defaults_of_its_class(class_name: str, tmp_path: Path):
    written = as_transformers_writes_it(getattr(transformers, class_name)(), tmp_path)
    bare: dict[str, Any] = {"model_type": written["model_type"]}
    if "text_config" in written:
        bare["text_config"] = {}
    assert read_config(written) == read_config(bare)


# Without one of these the rest of a published config contradicts itself.
STRUCTURAL = {
    "layer_types",
    "model_type",
    "moe_intermediate_size",
    "num_attention_heads",
    "num_experts",
    "num_hidden_layers",
    "num_key_value_heads",
    "top_k_experts",
}


@pytest.mark.parametrize(
    "name", ["gemma-2-27b-it", "gemma-3-4b-it", "gemma-4-31B", "gemma-4-12B-it", "gemma-4-26B-A4B-it"]
)
def test_each_absent_key_means_what_it_means_to_transformers(name: str, tmp_path: Path):
    config = load_config(name)
    text = config.get("text_config", config)
    keys = sorted(set(text) - STRUCTURAL)
    assert len(keys) > 15
    for key in keys:
        shorter = {other: value for other, value in text.items() if other != key}
        if "text_config" in config:
            shorter = config | {"text_config": shorter}
        assert read_config(shorter) == through_transformers(shorter, tmp_path), key


@pytest.mark.parametrize(
    "changes",
    [
        {"head_dim": 64, "global_head_dim": 64},
        {"head_dim": 64, "global_head_dim": 128},
        {"attention_k_eq_v": True, "num_global_key_value_heads": 2},
        {"attention_k_eq_v": False, "num_global_key_value_heads": 2},
        {"layer_types": ["full_attention"] * 6},
        {"layer_types": ["full_attention", "sliding_attention"] * 3},
        {"num_kv_shared_layers": 2, "layer_types": ["sliding_attention", "full_attention"] * 3},
        {"enable_moe_block": True, "num_experts": 4, "top_k_experts": 2, "moe_intermediate_size": 32},
        {"hidden_size_per_layer_input": 0},
        {"use_bidirectional_attention": "vision"},
        {"final_logit_softcapping": 30.0, "sliding_window": 7, "rms_norm_eps": 1e-5},
    ],
)
def test_odd_gemma_4_shapes_survive_the_way_through_transformers(changes: dict[str, Any], tmp_path: Path):
    config = {"model_type": "gemma4_text", "num_hidden_layers": 6, "hidden_size": 64, "vocab_size": 128} | changes
    assert read_config(config) == through_transformers(config, tmp_path)


@pytest.mark.parametrize("name", ["gemma-3-4b-it", "gemma-4-E2B-it", "gemma-4-12B-it", "gemma-4-31B"])
def test_every_tensor_outside_the_language_model_belongs_to_one_tower(name: str):
    config = AutoConfig.from_pretrained(config_path(name))
    with torch.device("meta"):
        model = getattr(transformers, config.architectures[0])(config)
    towers = read_config(load_config(name)).towers
    prefixes = [prefix for tower in towers for prefix in tower.prefixes]
    outside = [tensor.removeprefix("model.") for tensor in model.state_dict() if "language_model" not in tensor]
    assert len(outside) > 10
    for tensor in outside:
        assert sum(tensor.startswith(prefix) for prefix in prefixes) == (tensor != "lm_head.weight"), tensor
