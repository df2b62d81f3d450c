"""Every published config gives the numbers of its model; the expected ones are written out here (facts a.1 to a.3)."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import pytest

from gemwright.errors import UnsupportedError
from gemwright.spec.families import read_config
from gemwright.spec.model_spec import (
    DrafterSpec,
    ExpertSpec,
    LayerKind,
    ModelSpec,
    PerLayerInputSpec,
    RopeSpec,
)
from tests.published_configs import ALL_NAMES, DRAFTERS, GEMMA_3N, SUPPORTED, load_config


@dataclass(frozen=True)
class Expected:
    names: tuple[str, ...]
    num_layers: int
    full_layers: tuple[int, ...]
    hidden: int
    width: int
    query_heads: int
    sliding_kv: tuple[int, int]
    """KV heads, head size."""
    full_kv: tuple[int, int]
    window: int
    context: int
    vocabulary: int
    scale: float
    full_rope: RopeSpec
    softcaps: tuple[float | None, float | None]
    """Attention, final."""


PLAIN = RopeSpec("default", 1e4)
LONG = RopeSpec("default", 1e6)
SCALED = RopeSpec("linear", 1e6, factor=8.0)
PARTIAL = RopeSpec("proportional", 1e6, partial_rotary_factor=0.25)


def both(name: str, *suffixes: str) -> tuple[str, ...]:
    return tuple(f"{name}{suffix}" for suffix in suffixes)


def every(period: int, num_layers: int) -> tuple[int, ...]:
    return tuple(range(period - 1, num_layers, period))


G2, G3, G4 = (50.0, 30.0), (None, None), (None, 30.0)
ROWS = [
    Expected(both("gemma-2-2b", "", "-it"), 26, every(2, 26), 2304, 9216, 8, (4, 256), (4, 256), 4096, 8192, 256000,
             256**-0.5, PLAIN, G2),
    Expected(both("gemma-2-9b", "", "-it"), 42, every(2, 42), 3584, 14336, 16, (8, 256), (8, 256), 4096, 8192, 256000,
             256**-0.5, PLAIN, G2),
    Expected(both("gemma-2-27b", "", "-it"), 46, every(2, 46), 4608, 36864, 32, (16, 128), (16, 128), 4096, 8192,
             256000, 144**-0.5, PLAIN, G2),
    Expected(both("gemma-3-270m", "", "-it"), 18, (5, 11, 17), 640, 2048, 4, (1, 256), (1, 256), 512, 32768, 262144,
             256**-0.5, LONG, G3),
    Expected(both("gemma-3-1b", "-pt", "-it"), 26, (5, 11, 17, 23), 1152, 6912, 4, (1, 256), (1, 256), 512, 32768,
             262144, 256**-0.5, LONG, G3),
    Expected(both("gemma-3-4b", "-pt", "-it"), 34, (5, 11, 17, 23, 29), 2560, 10240, 8, (4, 256), (4, 256), 1024,
             131072, 262208, 256**-0.5, SCALED, G3),
    Expected(both("gemma-3-12b", "-pt", "-it"), 48, every(6, 48), 3840, 15360, 16, (8, 256), (8, 256), 1024, 131072,
             262208, 256**-0.5, SCALED, G3),
    Expected(both("gemma-3-27b", "-pt", "-it"), 62, (5, 11, 17, 23, 29, 35, 41, 47, 53, 59), 5376, 21504, 32,
             (16, 128), (16, 128), 1024, 131072, 262208, 168**-0.5, SCALED, G3),
    Expected(both("gemma-4-E2B", "", "-it"), 35, (4, 9, 14, 19, 24, 29, 34), 1536, 6144, 8, (1, 256), (1, 512), 512,
             131072, 262144, 1.0, PARTIAL, G4),
    Expected(both("gemma-4-E4B", "", "-it"), 42, every(6, 42), 2560, 10240, 8, (2, 256), (2, 512), 512, 131072,
             262144, 1.0, PARTIAL, G4),
    Expected(both("gemma-4-12B", "", "-it"), 48, every(6, 48), 3840, 15360, 16, (8, 256), (1, 512), 1024, 262144,
             262144, 1.0, PARTIAL, G4),
    Expected(both("gemma-4-26B-A4B", "", "-it"), 30, every(6, 30), 2816, 2112, 16, (8, 256), (2, 512), 1024, 262144,
             262144, 1.0, PARTIAL, G4),
    Expected(both("gemma-4-31B", "", "-it"), 60, every(6, 60), 5376, 21504, 32, (16, 256), (4, 512), 1024, 262144,
             262144, 1.0, PARTIAL, G4),
    Expected(("gemma-4-E2B-it-assistant",), 4, (3,), 256, 2048, 4, (1, 256), (1, 512), 512, 131072, 262144, 1.0,
             PARTIAL, G3),
    Expected(("gemma-4-E4B-it-assistant",), 4, (3,), 256, 2048, 4, (2, 256), (2, 512), 512, 131072, 262144, 1.0,
             PARTIAL, G3),
    Expected(("gemma-4-12B-it-assistant",), 4, (3,), 1024, 8192, 16, (8, 256), (1, 512), 1024, 262144, 262144, 1.0,
             PARTIAL, G3),
    Expected(("gemma-4-26B-A4B-it-assistant",), 4, (3,), 1024, 8192, 16, (8, 256), (2, 512), 1024, 262144, 262144,
             1.0, PARTIAL, G3),
    Expected(("gemma-4-31B-it-assistant",), 4, (3,), 1024, 8192, 32, (16, 256), (4, 512), 1024, 262144, 262144, 1.0,
             PARTIAL, G3),
]  # fmt: skip
CASES = [pytest.param(name, row, id=name) for row in ROWS for name in row.names]


def spec_of(name: str) -> ModelSpec:
    return read_config(load_config(name))


def test_all_published_configs_are_here_and_each_supported_one_has_its_numbers_written_out():
    assert len(ALL_NAMES) == 35
    assert len(SUPPORTED) == 31
    assert sorted(name for row in ROWS for name in row.names) == sorted(SUPPORTED)


@pytest.mark.parametrize(("name", "row"), CASES)
def test_model_numbers(name: str, row: Expected):
    spec = spec_of(name)
    assert spec.family == f"gemma{name.split('-')[1]}"
    assert spec.num_layers == row.num_layers
    assert (spec.hidden_size, spec.vocab_size, spec.max_context) == (row.hidden, row.vocabulary, row.context)
    assert spec.embedding_scale == math.sqrt(row.hidden)
    assert spec.norm_eps == 1e-6
    assert spec.norm_weight_offset == (0.0 if spec.family == "gemma4" else 1.0)
    assert spec.final_softcap == row.softcaps[1]
    assert spec.tied_head
    assert spec.stored_dtype == "bfloat16"
    assert (spec.bos_token_id, spec.pad_token_id) == (2, 0)


@pytest.mark.parametrize(("name", "row"), CASES)
def test_layer_numbers(name: str, row: Expected):
    spec = spec_of(name)
    assert tuple(layer.index for layer in spec.layers if layer.kind is LayerKind.FULL) == row.full_layers
    for index, layer in enumerate(spec.layers):
        full = index in row.full_layers
        assert layer.index == index
        assert layer.window == (None if full else row.window)
        assert layer.num_query_heads == row.query_heads
        assert (layer.num_kv_heads, layer.head_dim) == (row.full_kv if full else row.sliding_kv)
        assert layer.rope == (row.full_rope if full else PLAIN)
        assert layer.attention_scale == row.scale
        assert layer.attention_softcap == row.softcaps[0]
        assert layer.query_key_norm == (spec.family != "gemma2")
        assert layer.value_norm == layer.has_layer_scalar == (spec.family == "gemma4")


@pytest.mark.parametrize("name", SUPPORTED)
def test_key_equals_value_on_the_full_layers_of_12b_26b_31b_and_nowhere_else(name: str):
    key_is_value = any(size in name for size in ("4-12B", "26B", "31B"))
    for layer in spec_of(name).layers:
        assert layer.k_equals_v == (key_is_value and layer.kind is LayerKind.FULL)


@pytest.mark.parametrize(
    ("name", "first_shared", "sliding_source", "full_source"),
    [("gemma-4-E2B-it", 15, 13, 14), ("gemma-4-E4B-it", 24, 22, 23)],
)
def test_shared_layers_read_the_last_owner_of_their_kind(
    name: str, first_shared: int, sliding_source: int, full_source: int
):
    spec = spec_of(name)
    assert spec.first_layer_after_kv == first_shared
    for layer in spec.layers[:first_shared]:
        assert layer.owns_kv
    for layer in spec.layers[first_shared:]:
        assert layer.kv_source == (full_source if layer.kind is LayerKind.FULL else sliding_source)
        assert not layer.owns_kv


@pytest.mark.parametrize("name", [name for name in SUPPORTED if not any(part in name for part in ("E2B", "E4B"))])
def test_without_sharing_every_layer_owns_its_kv_and_a_drafter_owns_none(name: str):
    for layer in spec_of(name).layers:
        assert layer.kv_source == (None if name in DRAFTERS else layer.index)


@pytest.mark.parametrize(("name", "row"), CASES)
def test_feed_forward_is_double_wide_in_the_shared_layers_of_e2b_alone(name: str, row: Expected):
    for layer in spec_of(name).layers:
        doubled = name in ("gemma-4-E2B", "gemma-4-E2B-it") and layer.index >= 15
        assert layer.feed_forward_width == row.width * (2 if doubled else 1)


@pytest.mark.parametrize("name", SUPPORTED)
def test_experts_and_per_layer_inputs_stand_where_they_belong(name: str):
    spec = spec_of(name)
    moe = name in ("gemma-4-26B-A4B", "gemma-4-26B-A4B-it")
    assert {layer.experts for layer in spec.layers} == {ExpertSpec(128, 8, 704) if moe else None}
    per_layer = name.removesuffix("-it") in ("gemma-4-E2B", "gemma-4-E4B")
    assert spec.per_layer_inputs == (PerLayerInputSpec(256, 262144) if per_layer else None)


@pytest.mark.parametrize(
    ("name", "drafter"),
    [
        ("gemma-4-E2B-it-assistant", DrafterSpec(1536, 2048, 32)),
        ("gemma-4-E4B-it-assistant", DrafterSpec(2560, 2048, 32)),
        ("gemma-4-12B-it-assistant", DrafterSpec(3840, None, None)),
        ("gemma-4-26B-A4B-it-assistant", DrafterSpec(2816, None, None)),
        ("gemma-4-31B-it-assistant", DrafterSpec(5376, None, None)),
        ("gemma-4-E2B-it", None),
    ],
)
def test_drafters_name_their_target_width_and_centroids(name: str, drafter: DrafterSpec | None):
    assert spec_of(name).drafter == drafter


@pytest.mark.parametrize("name", SUPPORTED)
def test_stop_ids_are_those_at_the_top_or_else_of_the_text_config(name: str):
    expected: tuple[int, ...] = (1,)
    if any(part in name for part in ("3-4b", "3-12b", "3-27b")):
        expected = (1, 106)  # the base models too
    elif name.endswith("-it"):
        expected = (1, 107) if "-2-" in name else (1, 106)
    assert spec_of(name).eos_token_ids == expected


@pytest.mark.parametrize("name", SUPPORTED)
def test_images_see_both_ways_in_all_layers_of_gemma_3_and_the_sliding_ones_of_large_gemma_4(name: str):
    expected = "causal"
    if any(part in name for part in ("3-4b", "3-12b", "3-27b")):
        expected = "all_layers"
    elif any(part in name for part in ("4-12B", "26B", "31B")) and name not in DRAFTERS:
        expected = "sliding_layers"
    assert spec_of(name).image_attention == expected


def test_towers_are_known_by_their_tensor_names():
    towers = {name: spec_of(name).towers for name in SUPPORTED}
    prefixes_of = {name: {tower.name: tower.prefixes for tower in found} for name, found in towers.items()}
    assert towers["gemma-3-270m"] == towers["gemma-2-2b"] == towers["gemma-4-31B-it-assistant"] == ()
    assert prefixes_of["gemma-3-4b-it"] == {"vision": ("vision_tower.",), "projector": ("multi_modal_projector.",)}
    large = {"vision": ("vision_tower.",), "projector": ("embed_vision.",)}
    assert prefixes_of["gemma-4-31B"] == prefixes_of["gemma-4-26B-A4B-it"] == large
    assert prefixes_of["gemma-4-E2B"] == {
        "vision": ("vision_tower.",),
        "audio": ("audio_tower.",),
        "projector": ("embed_vision.", "embed_audio."),
    }
    # The 12B has no towers, only embedders; published and re-saved files name them differently.
    assert list(prefixes_of["gemma-4-12B"]) == ["vision", "projector"]
    prefixes = [prefix for known in prefixes_of["gemma-4-12B"].values() for prefix in known]
    for tensor, hits in (
        ("vision_embedder.patch_dense.weight", 1),
        ("vision_embedder.pos_embedding", 1),
        ("embed_vision.embedding_projection.weight", 1),
        ("embed_vision.multimodal_embedder.embedding_projection.weight", 1),
        ("embed_vision.patch_ln1.weight", 1),
        ("embed_vision.pos_norm.bias", 1),
        ("embed_audio.embedding_projection.weight", 1),
        ("language_model.embed_tokens.weight", 0),
    ):
        assert sum(tensor.startswith(prefix) for prefix in prefixes) == hits, tensor


@pytest.mark.parametrize("name", GEMMA_3N)
def test_gemma_3n_is_refused_by_name(name: str):
    with pytest.raises(UnsupportedError, match="Gemma 3n is not supported") as caught:
        read_config(load_config(name))
    assert caught.value.exit_code == 3
    assert "gemma-4-E2B" in (caught.value.remedy or "")


@pytest.mark.parametrize(
    ("name", "model_type"),
    [
        ("gemma-3-4b-it", "gemma3_text"),
        ("gemma-4-E2B-it", "gemma4_text"),
        ("gemma-4-12B-it", "gemma4_unified_text"),
    ],
)
def test_the_text_part_alone_reads_as_the_same_language_model(name: str, model_type: str):
    whole = spec_of(name)
    config = load_config(name)
    text = config["text_config"] | {"model_type": model_type, "eos_token_id": [1, 106], "dtype": "bfloat16"}
    alone = read_config(text)
    image_attention = "causal" if model_type == "gemma3_text" else whole.image_attention
    assert alone == replace(whole, towers=(), image_attention=image_attention)
