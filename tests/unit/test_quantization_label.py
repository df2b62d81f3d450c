"""What a config says about quantization gets one word, and is passed over where a reader asks for that."""

from __future__ import annotations

from typing import Any

import pytest

from gemwright.errors import UnsupportedError
from gemwright.spec.families import quantization_label, read_config
from tests.published_configs import SUPPORTED, load_config


def compressed(stored: str | None, *weights: dict[str, Any], **more: Any) -> dict[str, Any]:
    groups = {f"group_{index}": {"targets": ["Linear"], "weights": group} for index, group in enumerate(weights)}
    return {
        "quant_method": "compressed-tensors",
        "format": stored,
        "config_groups": groups,
        "ignore": ["lm_head"],
    } | more


INT4 = {"num_bits": 4, "type": "int", "symmetric": True, "strategy": "group", "group_size": 32}
FP8 = {"num_bits": 8, "type": "float", "strategy": "channel", "group_size": None}
NVFP4 = {"num_bits": 4, "type": "float", "strategy": "tensor_group", "group_size": 16}
MIXED = {"group_0": {"format": "nvfp4-pack-quantized", "weights": NVFP4}, "group_1": {"weights": FP8}}

SECTIONS: list[tuple[dict[str, Any], str]] = [
    (compressed("pack-quantized", INT4), "w4a16"),
    (compressed("pack-quantized", INT4 | {"group_size": 128}), "w4a16-g128"),
    (compressed("pack-quantized", INT4 | {"group_size": None, "strategy": "channel"}), "w4a16-channel"),
    (compressed("pack-quantized", INT4 | {"num_bits": 8}), "w8a16"),
    (compressed("float-quantized", FP8), "fp8"),
    (compressed("float-quantized", FP8 | {"strategy": "block", "block_structure": [128, 128]}), "fp8"),
    (compressed("naive-quantized", FP8), "fp8"),
    (compressed("nvfp4-pack-quantized", NVFP4), "nvfp4"),
    (compressed("int-quantized", {"num_bits": 8, "type": "int"}), "int8"),
    (compressed("float-quantized"), "fp8"),
    (compressed("pack-quantized", INT4, INT4 | {"num_bits": 2}), "compressed-tensors"),
    (compressed("mixed-precision", config_groups=MIXED), "compressed-tensors"),
    (compressed("marlin-24", INT4), "compressed-tensors"),
    (compressed(None), "compressed-tensors"),
    (compressed("pack-quantized", INT4, quant_method=None), "w4a16"),
    ({"quant_method": "modelopt", "quant_algo": "NVFP4", "kv_cache_scheme": {"num_bits": 8}}, "nvfp4"),
    ({"quant_method": "modelopt", "quantization": {"quant_algo": "FP8"}}, "fp8"),
    ({"quant_method": "modelopt_fp4"}, "nvfp4"),
    ({"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION"}, "modelopt"),
    ({"quant_method": "fp8", "weight_block_size": [128, 128]}, "fp8"),
    ({"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": "nf4"}, "nf4"),
    ({"quant_method": "bitsandbytes", "load_in_4bit": True}, "fp4"),
    ({"quant_method": "bitsandbytes", "load_in_8bit": True}, "int8"),
    ({"quant_method": "awq", "bits": 4, "group_size": 128, "version": "gemm"}, "awq"),
    ({"quant_method": "gptq", "bits": 4, "group_size": 128}, "gptq"),
    ({"quant_method": "gptq", "bits": 8}, "gptq-8bit"),
    ({"quant_method": "gemma", "module_quant_configs": {}}, "gemma"),
    ({"quant_method": "torchao"}, "torchao"),
    ({"bits": 4, "group_size": 64}, "mlx-4bit"),
    ({"bits": 8, "group_size": 32, "model.layers.0.mlp": {"bits": 8}}, "mlx-8bit-g32"),
    ({"bits": 4, "group_size": 32, "mode": "mxfp4"}, "mlx-mxfp4"),
    ({}, "not named"),
]


@pytest.mark.parametrize(("section", "label"), SECTIONS)
def test_each_way_of_quantizing_has_a_word(section: dict[str, Any], label: str):
    assert quantization_label({"quantization_config": section}) == label
    assert quantization_label({"model_type": "gemma4", "text_config": {"quantization_config": section}}) == label


def test_other_names_of_the_section():
    assert quantization_label({"compression_config": compressed("pack-quantized", INT4)}) == "w4a16"
    assert quantization_label({"quantization": {"bits": 4, "group_size": 64}}) == "mlx-4bit"
    assert quantization_label({"quantization": {}}) == "mlx-4bit"


@pytest.mark.parametrize("name", SUPPORTED)
def test_published_models_are_not_quantized(name: str):
    config = load_config(name)
    assert quantization_label(config) is None
    assert quantization_label(config | {"quantization_config": None}) is None


@pytest.mark.parametrize("section", [section for section, _ in SECTIONS])
def test_a_quantized_config_reads_as_the_model_it_is_made_from_where_that_is_asked_for(section: dict[str, Any]):
    config = load_config("gemma-4-E2B-it")
    for changed in (
        config | {"quantization_config": section},
        config | {"quantization": section, "compression_config": section},
        config | {"text_config": config["text_config"] | {"quantization_config": section}},
    ):
        assert read_config(changed, allow_quantized=True) == read_config(config)
        with pytest.raises(UnsupportedError, match="quantized safetensors"):
            read_config(changed)
        with pytest.raises(UnsupportedError, match="quantized safetensors"):
            read_config(changed, allow_unknown_keys=True)


def test_other_unknown_keys_are_refused_all_the_same():
    config = load_config("gemma-4-E2B-it") | {"quantization_config": {"quant_method": "awq"}, "new_key": 1}
    with pytest.raises(UnsupportedError, match="unknown key new_key"):
        read_config(config, allow_quantized=True)


@pytest.mark.parametrize(
    ("config", "key"),
    [
        ({"quantization_config": "awq"}, "quantization_config"),
        ({"quantization_config": {"quant_method": 4}}, r"quantization_config\.quant_method"),
        ({"quantization_config": {"quant_method": "gptq", "bits": "four"}}, r"quantization_config\.bits"),
        ({"quantization": {"bits": 4, "group_size": -1}}, r"quantization\.group_size"),
        ({"quantization_config": compressed("pack-quantized", INT4 | {"num_bits": 10**9})}, "num_bits"),
        ({"quantization_config": compressed("pack-quantized", config_groups=[1])}, "config_groups"),
        ({"text_config": 3}, "text_config"),
    ],
)
def test_a_section_that_makes_no_sense_is_refused_by_its_key(config: dict[str, Any], key: str):
    with pytest.raises(UnsupportedError, match=key):
        quantization_label(config)
