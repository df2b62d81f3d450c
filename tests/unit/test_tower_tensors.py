"""The tensors of image and sound towers: counted from config.json alone, they meet the published totals."""

from __future__ import annotations

from typing import Any

import pytest

from gemwright.errors import UnsupportedError
from gemwright.spec.families import read_config
from gemwright.spec.model_spec import ModelSpec, TowerSizes, TowerSpec, TowerTensor
from gemwright.spec.weights import count_all_parameters, list_tensors, list_tower_tensors, list_unused_tensors
from gemwright.testing import TINY_CONFIGS
from tests.published_configs import SUPPORTED, load_config


def published(name: str) -> ModelSpec:
    return read_config(load_config(name))


def tower_of(spec: ModelSpec, name: str) -> TowerSpec:
    (found,) = [tower for tower in spec.towers if tower.name == name]
    return found


def count(tensors: tuple[TowerTensor, ...]) -> int:
    return sum(tensor.num_elements for tensor in tensors if not tensor.is_buffer)


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("gemma-3-4b-it", 4_300_079_472),
        ("gemma-3-12b-pt", 12_187_325_040),
        ("gemma-3-27b-it", 27_432_406_640),
        ("gemma-4-E2B-it", 5_104_297_504),
        ("gemma-4-E4B", 7_941_100_832),
        ("gemma-4-12B-it", 11_959_730_176),
        ("gemma-4-26B-A4B-it", 25_805_933_872),
        ("gemma-4-31B", 31_273_086_512),
        ("gemma-2-2b", 2_614_341_888),
        ("gemma-3-270m-it", 268_098_176),
        ("gemma-4-31B-it-assistant", 469_518_592),
    ],
)
def test_parameters_of_the_whole_model_are_those_of_the_reference_class(name: str, parameters: int):
    assert count_all_parameters(published(name)).num_parameters == parameters


@pytest.mark.parametrize(
    ("name", "stored", "tensors", "buffers", "unused"),
    [
        ("gemma-4-E2B-it", 5_123_178_979, 2011, 35 + 928, 18_880_512),
        ("gemma-4-E4B-it", 7_996_157_418, 2130, 42 + 928, 55_055_616),
        ("gemma-4-12B", 11_959_730_224, 677, 48, 0),
        ("gemma-4-26B-A4B", 25_805_936_206, 1013, 30 + 2304, 0),
        ("gemma-4-31B-it", 31_273_088_876, 1188, 60 + 2304, 0),
    ],
)
def test_stored_elements_and_tensors_are_those_of_the_published_files(
    name: str, stored: int, tensors: int, buffers: int, unused: int
):
    counts = count_all_parameters(published(name))
    assert (counts.num_stored_elements, counts.num_stored_tensors) == (stored, tensors)
    assert (counts.num_buffer_elements, counts.num_unused_elements) == (buffers, unused)


def test_later_files_of_the_e_models_lack_the_unused_tensors():
    counts = count_all_parameters(published("gemma-4-E2B-it"))
    # The hub's total for the QAT files, which leaves out the 928 bounds of rank 0.
    assert counts.num_parameters + counts.num_buffer_elements - 928 == 5_104_297_539
    assert counts.num_tensors == counts.num_stored_tensors - 3 * 20


def test_each_tower_has_its_published_size():
    e2b, large = published("gemma-4-E2B"), published("gemma-4-31B")
    assert count(tower_of(e2b, "vision").tensors) == 167_364_608
    assert count(tower_of(e2b, "audio").tensors) == 304_824_608
    # std_bias and std_scale, 1152 values each, are buffers.
    assert count(tower_of(large, "vision").tensors) == 569_550_384 - 2304
    unified = list_tower_tensors(published("gemma-4-12B"))
    assert len([tensor for tensor in unified if "vision" in tensor.name]) == 10
    assert len([tensor for tensor in unified if "audio" in tensor.name]) == 1


@pytest.mark.parametrize("name", SUPPORTED)
def test_names_are_unique_and_belong_to_the_tower_that_lists_them(name: str):
    spec = published(name)
    names = [tensor.name for tensor in list_tower_tensors(spec)]
    assert len(set(names)) == len(names)
    for tower in spec.towers:
        assert tower.tensors
        assert all(tensor.name.startswith(tower.prefixes) for tensor in tower.tensors)
    counts = count_all_parameters(spec)
    assert counts.num_tensors == len(list_tensors(spec)) + len(names)
    assert counts.num_unused_tensors == len(list_unused_tensors(spec))


def test_sizes_say_what_one_image_or_clip_meets():
    gemma3, e2b, unified = published("gemma-3-4b-it"), published("gemma-4-E2B"), published("gemma-4-12B")
    assert tower_of(gemma3, "vision").sizes == TowerSizes(
        hidden_size=1152,
        feed_forward_width=4304,
        num_heads=16,
        num_layers=27,
        num_positions=64 * 64,
        num_soft_tokens=256,
        num_front_values=3 * 896 * 896,
    )
    assert tower_of(e2b, "vision").sizes == TowerSizes(768, 3072, 12, 16, 9 * 280, 280, 9 * 280 * 16 * 16 * 3)
    # 30 s: 3000 frames of 128 bins, halved to 1500 x 64 with 128 channels, halved again to 750 positions.
    assert tower_of(e2b, "audio").sizes == TowerSizes(1024, 4096, 8, 12, 750, 750, 1500 * 64 * 128)
    assert tower_of(unified, "vision").sizes == TowerSizes(3840, 0, 0, 0, 280, 280, 280 * 48 * 48 * 3)
    assert [tower.sizes for tower in e2b.towers if tower.name == "projector"] == [None]


@pytest.mark.parametrize(
    ("name", "changes", "expected"),
    [
        ("gemma-3-4b-it", {"mm_tokens_per_image": 64}, 64),
        ("gemma-3-4b-it", {"mm_tokens_per_image": None}, 256),
        ("gemma-4-31B-it", {"vision_soft_tokens_per_image": 1120}, 1120),
        ("gemma-4-31B-it", {"vision_soft_tokens_per_image": None}, 280),
        ("gemma-4-12B-it", {"vision_soft_tokens_per_image": 70}, 70),
    ],
)
def test_the_config_names_the_budget_of_an_image(name: str, changes: dict[str, Any], expected: int):
    sizes = tower_of(read_config(load_config(name) | changes), "vision").sizes
    assert sizes is not None
    assert sizes.num_soft_tokens == expected


def multimodal(model_type: str, text: str, **towers: Any) -> dict[str, Any]:
    """A tiny text part under a multimodal config."""
    inner = {key: value for key, value in TINY_CONFIGS[text].items() if key not in ("architectures", "torch_dtype")}
    return {"model_type": model_type, "text_config": inner, **towers}


def test_a_tower_of_nothing_but_its_type_has_the_defaults_of_its_class():
    """The default SigLIP: 12 layers of 768, 224 pixels, 16 a patch, with the pooling head; 92,884,224 parameters."""
    bare = read_config(multimodal("gemma3", "gemma3", vision_config={"model_type": "siglip_vision_model"}))
    assert count(tower_of(bare, "vision").tensors) == 92_884_224
    assert read_config(multimodal("gemma3", "gemma3")).towers == bare.towers
    gemma4 = read_config(
        multimodal(
            "gemma4",
            "gemma4-e",
            vision_config={"model_type": "gemma4_vision"},
            audio_config={"model_type": "gemma4_audio"},
        )
    )
    assert count(tower_of(gemma4, "vision").tensors) == 167_364_608
    assert not any(tensor.is_buffer for tensor in tower_of(gemma4, "vision").tensors)
    assert tower_of(gemma4, "audio") == tower_of(published("gemma-4-E2B"), "audio")


def test_a_model_without_towers_has_no_tower_tensors():
    spec = read_config(multimodal("gemma4", "gemma4-e", vision_config=None, audio_config=None))
    assert spec.towers == list_tower_tensors(spec) == ()


@pytest.mark.parametrize(
    ("name", "section", "key", "value"),
    [
        ("gemma-3-4b-it", "vision_config", "hidden_size", -1152),
        ("gemma-3-4b-it", "vision_config", "num_hidden_layers", 10**9),
        ("gemma-3-4b-it", "vision_config", "image_size", [896, 896]),
        ("gemma-3-4b-it", "vision_config", "patch_size", 1000),
        ("gemma-3-4b-it", "vision_config", "vision_use_head", "no"),
        ("gemma-4-E2B-it", "vision_config", "intermediate_size", "3072"),
        ("gemma-4-E2B-it", "vision_config", "position_embedding_size", 10**30),
        ("gemma-4-E2B-it", "vision_config", "head_dim", None),
        ("gemma-4-E2B-it", "vision_config", "use_clipped_linears", 1),
        ("gemma-4-E2B-it", "vision_config", "default_output_length", 0),
        ("gemma-4-E2B-it", "audio_config", "subsampling_conv_channels", [128]),
        ("gemma-4-E2B-it", "audio_config", "subsampling_conv_channels", [128, True]),
        ("gemma-4-E2B-it", "audio_config", "num_attention_heads", 7),
        ("gemma-4-E2B-it", "audio_config", "conv_kernel_size", 2.5),
        ("gemma-4-12B-it", "vision_config", "model_patch_size", 32),
        ("gemma-4-12B-it", "audio_config", "hidden_size", 1024),
    ],
)
def test_a_bad_value_is_refused_by_its_name(name: str, section: str, key: str, value: object):
    config = load_config(name)
    config[section] = config[section] | {key: value}
    with pytest.raises(UnsupportedError, match=rf"^config.json: {section}\.{key} ") as caught:
        read_config(config)
    assert len(str(caught.value)) < 500


@pytest.mark.parametrize("value", [0, "280", 2**40])
def test_a_bad_budget_is_refused(value: object):
    with pytest.raises(UnsupportedError, match="vision_soft_tokens_per_image"):
        read_config(load_config("gemma-4-31B-it") | {"vision_soft_tokens_per_image": value})


@pytest.mark.parametrize("section", ["vision_config", "audio_config"])
def test_a_key_of_a_tower_that_nobody_knows_is_passed_over(section: str):
    config = load_config("gemma-4-E2B-it")
    changed = config | {section: config[section] | {"some_new_key": {"deep": [1, 2]}}}
    assert read_config(changed) == read_config(config)


def test_a_tower_that_is_no_object_is_refused():
    with pytest.raises(UnsupportedError, match="vision_config"):
        read_config(load_config("gemma-4-31B-it") | {"vision_config": "gemma4_vision"})
