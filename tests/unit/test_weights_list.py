"""The list of tensors: published parameter counts, dead tensors, names, parts, and the bytes that follow from them."""

from __future__ import annotations

import re
from typing import get_args

import pytest

from gemwright.memory.dtypes import ComputeDtype
from gemwright.memory.footprint import plan_footprint
from gemwright.memory.holding import REFERENCE
from gemwright.memory.kv_layout import plan_layout
from gemwright.memory.workspace import plan_workspace
from gemwright.spec.families import read_config
from gemwright.spec.model_spec import ModelSpec
from gemwright.spec.weights import Part, count_parameters, is_buffer, list_tensors, list_unused_tensors
from gemwright.testing import TINY_CONFIGS
from tests.published_configs import DRAFTERS, SUPPORTED, load_config

# The language model alone: a tied head once, no layer scalars, no towers; drafters without their token ordering.
COUNTS = {
    "gemma-2-2b": 2_614_341_888,
    "gemma-2-9b": 9_241_705_984,
    "gemma-2-27b": 27_227_128_320,
    "gemma-3-270m": 268_098_176,
    "gemma-3-1b": 999_885_952,
    "gemma-3-4b": 3_880_263_168,
    "gemma-3-12b": 11_766_034_176,
    "gemma-3-27b": 27_009_346_304,
    "gemma-4-E2B": 4_628_569_344,
    "gemma-4-E4B": 7_463_013_376,
    "gemma-4-12B": 11_907_350_272,
    "gemma-4-26B-A4B": 25_233_141_760,
    "gemma-4-31B": 30_697_345_280,
    "gemma-4-E2B-it-assistant": 77_731_328,
    "gemma-4-E4B-it-assistant": 78_517_760,
    "gemma-4-12B-it-assistant": 422_856_960,
    "gemma-4-26B-A4B-it-assistant": 419_711_232,
    "gemma-4-31B-it-assistant": 469_518_592,
}
DTYPES: tuple[ComputeDtype, ...] = ("float32", "bfloat16")


def published(name: str) -> ModelSpec:
    return read_config(load_config(name))


def base_name(name: str) -> str:
    return name if name in DRAFTERS else name.removesuffix("-it").removesuffix("-pt")


def test_there_are_31_configs() -> None:
    assert len(SUPPORTED) == 31


@pytest.mark.parametrize("name", SUPPORTED)
def test_parameter_counts_are_the_published_ones(name: str) -> None:
    assert count_parameters(list_tensors(published(name))) == COUNTS[base_name(name)]


@pytest.mark.parametrize("name", SUPPORTED)
def test_only_layer_scalars_and_token_orderings_are_no_parameters(name: str) -> None:
    spec = published(name)
    buffers = [tensor for tensor in list_tensors(spec) if is_buffer(tensor)]
    scalars = [tensor for tensor in buffers if re.fullmatch(r"layers\.\d+\.layer_scalar", tensor.name)]
    assert len(scalars) == (spec.num_layers if spec.family == "gemma4" else 0)
    orderings = [tensor.num_elements for tensor in buffers if tensor not in scalars]
    assert orderings == ([262_144] if name in ("gemma-4-E2B-it-assistant", "gemma-4-E4B-it-assistant") else [])


def test_cards_count_the_effective_parameters_of_e2b_without_its_second_table() -> None:
    """The published "2.3B effective": the language model less the per-layer embedding table."""
    tensors = list_tensors(published("gemma-4-E2B"))
    table = next(tensor for tensor in tensors if tensor.name == "per_layer_embedding")
    assert table.shape == (262_144, 35 * 256)
    assert count_parameters(tensors) - table.num_elements == 2_279_759_104


def test_26b_keeps_most_of_its_parameters_in_experts_of_which_8_of_128_run() -> None:
    tensors = list_tensors(published("gemma-4-26B-A4B"))
    experts = sum(tensor.num_elements for tensor in tensors if tensor.role == "experts")
    assert experts == 22_837_985_280
    assert round((count_parameters(tensors) - experts * 120 // 128) / 1e9, 1) == 3.8


@pytest.mark.parametrize(
    ("name", "num_elements", "num_layers"), [("gemma-4-E2B", 18_880_512, 20), ("gemma-4-E4B", 55_055_616, 18)]
)
def test_dead_tensors_of_the_e_models(name: str, num_elements: int, num_layers: int) -> None:
    unused = list_unused_tensors(published(name))
    sizes = [tensor.shape[0] * (tensor.shape[1] if len(tensor.shape) > 1 else 1) for tensor in unused]
    assert sum(sizes) == num_elements
    assert len(unused) == 3 * num_layers
    first_shared = published(name).num_layers - num_layers
    kept = list_tensors(published(name))
    for tensor in unused:
        match = re.fullmatch(r"layers\.(\d+)\.self_attn\.(k_proj|v_proj|k_norm)\.weight", tensor.safetensors)
        assert match is not None
        assert int(match[1]) >= first_shared
        assert tensor.safetensors not in {wanted.safetensors for wanted in kept}
        assert tensor.gguf.startswith(f"blk.{match[1]}.attn_")
        source = published(name).layers[int(match[1])].kv_source
        assert tensor.reason == f"layer {match[1]} reads the cache of layer {source}"


@pytest.mark.parametrize("name", [name for name in SUPPORTED if not name.startswith(("gemma-4-E2B", "gemma-4-E4B"))])
def test_no_other_model_has_dead_tensors(name: str) -> None:
    assert list_unused_tensors(published(name)) == ()


@pytest.mark.parametrize("name", [*SUPPORTED, *TINY_CONFIGS])
def test_names_are_unique_in_every_format_and_every_tensor_has_a_part(name: str) -> None:
    spec = read_config(TINY_CONFIGS[name]) if name in TINY_CONFIGS else published(name)
    tensors = list_tensors(spec)
    dead = list_unused_tensors(spec)
    for names in (
        [tensor.name for tensor in tensors],
        [*(tensor.safetensors for tensor in tensors), *(tensor.safetensors for tensor in dead)],
        [
            *(part for tensor in tensors for parts in tensor.gguf for part in parts),
            *(tensor.gguf for tensor in dead),
        ],
    ):
        assert len(set(names)) == len(names)
    for tensor in tensors:
        assert tensor.part in get_args(Part)
        assert all(size > 0 for size in tensor.shape)
        assert tensor.layer is None or tensor.name.startswith(f"layers.{tensor.layer}.")
        assert tensor.shard_axis is None or tensor.shard_axis < len(tensor.shape)
    parts = {tensor.part for tensor in tensors}
    assert ("experts" in parts) == any(layer.experts is not None for layer in spec.layers)
    assert ("per_layer_embedding" in parts) == (spec.per_layer_inputs is not None)
    assert ("drafter" in parts) == (spec.drafter is not None)
    assert ("head" in parts) == (not spec.tied_head)


@pytest.mark.parametrize(("name", "tensor", "shape"), [
    ("gemma-3-270m", "layers.5.query", (1024, 640)),
    ("gemma-3-270m", "layers.5.key", (256, 640)),
    ("gemma-3-270m", "layers.5.attention_output", (640, 1024)),
    ("gemma-4-12B", "layers.5.key", (512, 3840)),
    ("gemma-4-12B", "layers.0.value", (2048, 3840)),
    ("gemma-4-E2B", "layers.14.gate", (6144, 1536)),
    ("gemma-4-E2B", "layers.15.gate", (12288, 1536)),
    ("gemma-4-26B-A4B", "layers.0.experts_gate_up", (128, 1408, 2816)),
    ("gemma-4-26B-A4B", "layers.29.experts_down", (128, 2816, 704)),
])  # fmt: skip
def test_shapes_of_published_tensors(name: str, tensor: str, shape: tuple[int, ...]) -> None:
    assert {spec.name: spec.shape for spec in list_tensors(published(name))}[tensor] == shape


def test_full_layers_with_k_equals_v_have_no_value_projection() -> None:
    names = {tensor.name for tensor in list_tensors(published("gemma-4-31B"))}
    assert "layers.5.key" in names
    assert "layers.5.value" not in names
    assert "layers.4.value" in names


@pytest.mark.parametrize(("name", "offset"), [("gemma-2-2b", -1.0), ("gemma-3-1b-pt", -1.0), ("gemma-4-E2B", 0.0)])
def test_gguf_norms_are_shifted_where_the_family_stores_them_so(name: str, offset: float) -> None:
    for tensor in list_tensors(published(name)):
        assert tensor.gguf_offset == (offset if tensor.role == "norm" else 0.0)


@pytest.mark.parametrize("dtype", DTYPES)
def test_norm_weights_stay_float32_and_all_else_has_the_engines_dtype(dtype: ComputeDtype) -> None:
    item_bytes = {"float32": 4, "bfloat16": 2}[dtype]
    for tensor in list_tensors(published("gemma-4-26B-A4B")):
        expected = 4 if tensor.role == "norm" else item_bytes
        assert REFERENCE.weight_bytes(tensor, None, dtype) == tensor.num_elements * expected


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", ["gemma-3-270m", "gemma-4-E2B", "gemma-4-26B-A4B", "gemma-4-31B"])
def test_the_footprint_is_weights_cache_and_buffers(name: str, dtype: ComputeDtype) -> None:
    spec = published(name)
    layout = plan_layout(
        spec, block_size=16, dtype=dtype, max_model_len=8192, max_num_seqs=4, step_tokens=512, budget_bytes=None
    )
    workspace = plan_workspace(spec, step_tokens=512, dtype=dtype)
    lines = plan_footprint(spec, layout, workspace, dtype)
    tensors = list_tensors(spec)
    weights = sum(REFERENCE.weight_bytes(tensor, None, dtype) for tensor in tensors)
    assert sum(line.planned_bytes for line in lines if line.name.startswith("weights: ")) == weights
    assert sum(line.planned_bytes for line in lines if line.name.startswith("K/V cache: ")) == layout.total_bytes
    assert lines[-1].planned_bytes == workspace.buffer_bytes
    assert sum(line.planned_bytes for line in lines) == weights + layout.total_bytes + workspace.buffer_bytes
    assert len({line.name for line in lines}) == len(lines)
    norms = sum(tensor.num_elements for tensor in tensors if tensor.role == "norm")
    all_elements = sum(tensor.num_elements for tensor in tensors)
    assert weights == (4 * all_elements if dtype == "float32" else 2 * all_elements + 2 * norms)


def test_buffers_of_a_step_of_the_270m() -> None:
    """512 tokens in bfloat16: four of the hidden size, q|k|v, attention, gate|up, their product; 16 rows of logits."""
    workspace = plan_workspace(published("gemma-3-270m"), step_tokens=512, dtype="bfloat16")
    rows = 4 * 640 + (1024 + 512) + 1024 + 2 * 2048 + 2048
    assert workspace.buffer_bytes == 2 * 512 * rows + 2 * 16 * 640 + 4 * 16 * 262_144
