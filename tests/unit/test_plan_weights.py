"""What weights take: types and recipes by hand, each engine's part of them, and what no file is named after."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from gemwright.errors import UnsupportedError
from gemwright.planner.quantization import RECIPES, TENSOR_TYPES, find_embedding_type, find_recipe, fitting_type
from gemwright.planner.settings import PlanSettings
from gemwright.planner.weights import lora_bytes, num_language_parameters, num_parameters, stored_file, weigh
from tests.planned_models import header_of, spec_of

TABLE = 262_144 * 640
NORMS = 18 * (4 * 640 + 2 * 256) + 640
LINEARS = 18 * 640 * (4 * 256 + 2 * 256 + 4 * 256 + 3 * 2048)
"""Gemma 3 270M: a table, 18 layers with four heads of 256 and one of K and V, four norms of 640 and two of 256 each."""


def weights_of(name: str = "gemma-3-270m", **asked: Any) -> dict[str, int]:
    settings = replace(PlanSettings(engine="llama.cpp"), **asked)
    return {part.name: part.size_bytes for part in weigh(header_of(name), settings)}


@pytest.mark.parametrize(
    ("name", "bits"),
    [
        ("q4_0", 4.5), ("q4_1", 5.0), ("q5_0", 5.5), ("q8_0", 8.5), ("q4_k", 4.5), ("q5_k", 5.5), ("q6_k", 6.5625),
        ("nvfp4", 4.5), ("mlx 4-bit", 4.5), ("int4 group 32", 4.5), ("bfloat16", 16.0),
    ],
)  # fmt: skip
def test_bits_of_one_weight(name: str, bits: float) -> None:
    assert TENSOR_TYPES[name].bits_per_weight == bits


def test_a_row_is_a_whole_number_of_blocks() -> None:
    """Three rows of 64 values: 2 blocks of 18 bytes each. Of 70 values: 3 blocks."""
    assert TENSOR_TYPES["q4_0"].tensor_bytes((3, 64)) == 3 * 2 * 18
    assert TENSOR_TYPES["q4_0"].tensor_bytes((3, 70)) == 3 * 3 * 18
    # fp8 by channel: a byte each and a 16-bit scale for every row, of both matrices.
    assert TENSOR_TYPES["fp8"].tensor_bytes((2, 3, 64)) == 2 * 3 * (64 + 2)


@pytest.mark.parametrize(
    ("asked", "columns", "given"),
    [
        ("q4_k", 2560, "q4_k"),
        ("q4_k", 1152, "q5_0"),
        ("q5_k", 704, "q5_1"),
        ("q6_k", 2112, "q8_0"),
        ("q2_k", 1152, "q4_0"),
        ("q4_k", 100, "float16"),
        ("q4_0", 100, "float16"),
    ],
)
def test_rows_that_do_not_divide_fall_back(asked: str, columns: int, given: str) -> None:
    assert fitting_type(asked, columns).name == given


def test_the_parts_of_a_16_bit_file() -> None:
    assert weights_of(quantization="bf16") == {
        "embedding": 2 * TABLE,
        "layers": 2 * LINEARS,
        "norms": 4 * NORMS,
    }


def test_q4_0_is_every_matrix_and_the_embedding_may_be_another() -> None:
    found = weights_of(quantization="q4_0")
    assert found == {"embedding": TABLE * 18 // 32, "layers": LINEARS * 18 // 32, "norms": 4 * NORMS}
    # Rows of 640 do not divide into 256: q6_k becomes q8_0.
    assert weights_of(quantization="q4_0", embedding_quantization="q6_k")["embedding"] == TABLE * 34 // 32
    assert weights_of(quantization="q4_0", embedding_quantization="q8_0")["layers"] == found["layers"]


def test_a_k_quant_gives_better_types_to_some_layers() -> None:
    """Gemma 3 4B as q4_k_m: of 34 layers the first and last eighth and every third between have V and down in q6_k:
    4, then layers 6, 9, ... 27 (8), then 29 to 33 (5)."""
    more = [index for index in range(34) if index < 4 or index >= 29 or (index - 4) % 3 == 2]
    assert len(more) == 17
    table = 262_208 * 2560
    value, down = 2560 * 1024, 2560 * 10_240
    other = 34 * 2560 * (2 * 2048 + 1024 + 2 * 10_240)
    found = weights_of("gemma-3-4b-it", quantization="q4_k_m")
    assert found["embedding"] == table * 210 // 256
    assert found["layers"] == (other + 17 * (value + down)) * 144 // 256 + 17 * (value + down) * 210 // 256


def test_only_names_that_mean_several_files_have_an_error_bar() -> None:
    for name in ("bf16", "q8_0", "q4_0"):
        assert RECIPES[name].error_share == 0
    for name in ("q4_k_m", "q5_k_m", "q3_k_l"):
        assert RECIPES[name].error_share == 0.02


@pytest.mark.parametrize(
    ("spelling", "name"), [("Q4_K_M", "q4_k_m"), ("q4-k-m", "q4_k_m"), ("BF16", "bf16"), ("float16", "f16")]
)
def test_spellings(spelling: str, name: str) -> None:
    assert find_recipe(spelling).name == name


@pytest.mark.parametrize("name", ["", "q4", "q7_k", "int3", "q4_k_xl", "４bit"])
def test_an_unknown_quantization_is_refused_with_those_that_are_known(name: str) -> None:
    with pytest.raises(UnsupportedError, match="unknown quantization") as error:
        find_recipe(name)
    assert "q4_k_m" in (error.value.limit or "")
    assert error.value.remedy


def test_an_embedding_type_depends_on_the_file() -> None:
    assert find_embedding_type("q6_k", "gguf").name == "q6_k"
    with pytest.raises(UnsupportedError, match="unknown type of an embedding in a safetensors file"):
        find_embedding_type("q6_k", "safetensors")
    with pytest.raises(UnsupportedError, match="unknown type of an embedding in a gguf file"):
        find_embedding_type("fp8", "gguf")


def test_llama_cpp_loads_no_towers_and_vllm_does() -> None:
    header = header_of("gemma-3-4b-it")
    names = {
        engine: {part.name for part in weigh(header, PlanSettings(engine=engine))}  # type: ignore[arg-type]
        for engine in ("llama.cpp", "vllm", "gemwright")
    }
    assert "vision" in names["vllm"]
    assert "vision" not in names["llama.cpp"] | names["gemwright"]
    alone = {part.name for part in weigh(header, PlanSettings(engine="vllm", language_model_only=True))}
    assert "vision" not in alone


def test_gemwright_holds_its_own_dtype_whatever_the_file() -> None:
    """Matrices in bfloat16, norms in float32."""
    for quantization in (None, "q4_0", "q8_0"):
        found = weights_of(engine="gemwright", quantization=quantization)
        assert (found["embedding"], found["layers"], found["norms"]) == (2 * TABLE, 2 * LINEARS, 4 * NORMS)
    assert weights_of(engine="gemwright", dtype="float32")["layers"] == 4 * LINEARS


def test_what_an_engine_does_not_load_is_refused() -> None:
    with pytest.raises(UnsupportedError, match="Gemwright does not read weights that are stored so"):
        weights_of(engine="gemwright", quantization="nvfp4")
    with pytest.raises(UnsupportedError, match=r"llama\.cpp loads GGUF files"):
        weights_of(quantization="awq")
    with pytest.raises(UnsupportedError, match="holds weights in the types of the file"):
        weights_of(dtype="float16", quantization="q8_0")
    with pytest.raises(UnsupportedError, match="does not compute in this dtype"):
        weights_of(engine="gemwright", dtype="float16")


@pytest.mark.parametrize(
    ("name", "language"),
    [("gemma-3-1b-it", 999_885_952), ("gemma-3-270m", TABLE + LINEARS + NORMS)],
)
def test_parameters(name: str, language: int) -> None:
    assert num_language_parameters(spec_of(name)) == language
    assert num_parameters(spec_of(name)) == language


def test_towers_count_as_parameters_and_not_as_language() -> None:
    spec = spec_of("gemma-3-4b-it")
    assert round(num_language_parameters(spec) / 1e9, 3) == 3.880
    assert num_parameters(spec) > num_language_parameters(spec) + 400_000_000


def test_an_adapter() -> None:
    """Rank 8 on seven linears of 18 layers: the sum of inputs and outputs of each, in two bytes a value."""
    widths = (640 + 1024) + 2 * (640 + 256) + (1024 + 640) + 2 * (640 + 2048) + (2048 + 640)
    assert lora_bytes(spec_of("gemma-3-270m"), 8)[0] == 18 * widths * 8 * 2


def test_a_download_is_the_tensors_and_the_tokenizer() -> None:
    settings = PlanSettings(engine="llama.cpp", quantization="q4_0")
    header = header_of("gemma-3-270m")
    tensors = sum(part.size_bytes for part in weigh(header, settings))
    found = stored_file(header, settings)
    assert found.size_bytes == tensors + 262_144 * 25
    assert found.error_bytes == 262_144 * 5
