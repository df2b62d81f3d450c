"""What weights take: types and recipes by hand, each engine's part of them, and what no file is named after."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from gemwright.errors import UnsupportedError
from gemwright.planner.answers import unknown_engine
from gemwright.planner.quantization import RECIPES, TENSOR_TYPES, find_embedding_type, find_recipe, fitting_type
from gemwright.planner.settings import PlanSettings
from gemwright.planner.weight_names import PartNames
from gemwright.planner.weights import lora_bytes, num_language_parameters, num_parameters, stored_file, weigh
from gemwright.spec.model_header import HeaderTensor, ModelHeader
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


def test_the_reference_backend_holds_the_engines_dtype_whatever_the_file() -> None:
    """Matrices in bfloat16, norms in float32."""
    for quantization in (None, "q4_0", "q8_0"):
        found = weights_of(engine="gemwright", kernels="reference", quantization=quantization)
        assert (found["embedding"], found["layers"], found["norms"]) == (2 * TABLE, 2 * LINEARS, 4 * NORMS)
    assert weights_of(engine="gemwright", kernels="reference", dtype="float32")["layers"] == 4 * LINEARS


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


@pytest.mark.parametrize(
    ("quantization", "values", "downs", "outputs", "others"),
    [
        # Blocks of 256 values have 110 bytes in q3_k, 144 in q4_k, 176 in q5_k, 210 in q6_k. Of 34 layers:
        ("q3_k_s", 34 * 110, 34 * 110, 34 * 110, 110),
        # the first two have V in q5_k and the first sixteenth (two) down projections, the others q4_k;
        ("q3_k_m", 2 * 176 + 32 * 144, 2 * 176 + 32 * 144, 34 * 144, 110),
        ("q3_k_l", 34 * 176, 34 * 176, 34 * 176, 110),
        # the first four V and the first eighth (four) down projections;
        ("q4_k_s", 4 * 176 + 30 * 144, 4 * 176 + 30 * 144, 34 * 144, 144),
        ("q5_k_s", 34 * 176, 34 * 176, 34 * 176, 176),
        # as many as of q4_k_m.
        ("q5_k_m", 17 * 210 + 17 * 176, 17 * 210 + 17 * 176, 34 * 176, 176),
    ],
)
def test_the_mixes_of_k_quants(quantization: str, values: int, downs: int, outputs: int, others: int) -> None:
    """Gemma 3 4B: the table in q6_k; V of 1,024, down of 10,240 and attention output of 2,048 inputs by 2,560."""
    found = weights_of("gemma-3-4b-it", quantization=quantization)
    rest = 34 * 2560 * (2048 + 1024 + 2 * 10_240)
    assert found["embedding"] == 262_208 * 2560 * 210 // 256
    assert found["layers"] == (
        values * (2560 * 1024 // 256) + downs * (2560 * 10_240 // 256) + outputs * (2048 * 2560 // 256)
        + others * (rest // 256)
    )  # fmt: skip


def test_rows_of_1152_are_stored_in_another_type() -> None:
    """Gemma 3 1B as q4_k: inputs of 1,152 do not divide into 256, so q5_0 (22 bytes for 32); 1,024 and 6,912 do."""
    found = weights_of("gemma-3-1b-it", quantization="q4_k")
    assert found["embedding"] == 262_144 * 1152 * 22 // 32
    inputs, output, down = 1152 * (1024 + 2 * 256 + 2 * 6912), 1024 * 1152, 6912 * 1152
    assert found["layers"] == 26 * (inputs * 22 // 32 + (output + down) * 144 // 256)


def test_experts_fall_back_where_their_rows_do_not_divide() -> None:
    """26B-A4B: 30 layers of 128 experts; gate and up have inputs of 2,816 (11 x 256), down of 704, so q5_0."""
    found = weights_of("gemma-4-26B-A4B-it", quantization="q4_k")
    assert found["experts"] == 30 * 128 * 704 * 2816 * (2 * 144 * 32 + 22 * 256) // (256 * 32)


def test_what_vllm_loads_of_packed_checkpoints() -> None:
    """Gemma 3 270M: tables and norms in two bytes; 18 x 7 matrices."""
    rows = 18 * (1024 + 2 * 256 + 640 + 2 * 2048 + 640)
    plain = {"embedding": 2 * TABLE, "norms": 2 * NORMS}
    # fp8 and int8: a byte, and a scale of two bytes for every row.
    for name in ("fp8", "int8"):
        assert weights_of(engine="vllm", quantization=name) == {**plain, "layers": LINEARS + 2 * rows}
    # Four bits and a scale of two bytes for 32, and the shape; Google's have the head once more.
    four = LINEARS // 2 + 2 * LINEARS // 32 + 18 * 7 * 16
    assert weights_of(engine="vllm", quantization="int4") == {**plain, "layers": four}
    assert weights_of(engine="vllm", quantization="w4a16") == {**plain, "layers": four, "head": 2 * TABLE}
    # A byte of scale for 16, and two float32 scales of the whole.
    assert weights_of(engine="vllm", quantization="nvfp4")["layers"] == LINEARS // 2 + LINEARS // 16 + 18 * 7 * 8
    # MLX: scale and bias of 16 bits each for 64, in the table too.
    assert weights_of(engine="vllm", quantization="mlx-4bit")["embedding"] == TABLE // 2 + TABLE * 4 // 64


def test_a_headers_sizes_are_taken_as_they_are() -> None:
    """Whatever a header says of a tensor is what llama.cpp loads, to the byte."""
    spec = spec_of("gemma-3-270m")
    tensors = (
        HeaderTensor("token_embd.weight", (262_144, 640), "q6_k", 1001),
        HeaderTensor("blk.0.attn_q.weight", (1024, 640), "q4_k", 102),
        HeaderTensor("blk.0.attn_norm.weight", (640,), "float32", 13),
        HeaderTensor("output.weight", (262_144, 640), "q6_k", 7),
    )
    header = ModelHeader("file.gguf", spec, "gguf", "file", tensors, "q4_k_m")
    found = weigh(header, PlanSettings(engine="llama.cpp"))
    assert {part.name: (part.size_bytes, part.error_bytes) for part in found} == {
        "embedding": (1001, 0), "layers": (102, 0), "norms": (13, 0), "head": (7, 0)
    }  # fmt: skip
    # As if its table were another: the whole table of the config, and nothing else.
    other = weigh(header, PlanSettings(engine="llama.cpp", embedding_quantization="q8_0"))
    assert {part.name: part.size_bytes for part in other}["embedding"] == TABLE * 34 // 32
    assert {part.name: part.size_bytes for part in other}["layers"] == 102


def test_vllm_halves_a_float32_checkpoint_unless_it_is_told_not_to() -> None:
    spec = replace(spec_of("gemma-3-270m"), stored_dtype="float32")
    tensors = (HeaderTensor("model.embed_tokens.weight", (262_144, 640), "float32", 4 * TABLE),)
    header = ModelHeader("folder", spec, "safetensors", "folder", tensors)
    (half,) = weigh(header, PlanSettings(engine="vllm"))
    (whole,) = weigh(header, PlanSettings(engine="vllm", dtype="float32"))
    assert (half.size_bytes, whole.size_bytes) == (2 * TABLE, 4 * TABLE)


def test_an_unused_projection_stands_apart() -> None:
    """E4B has K and V in its own layers 0 to 23; what a file has of them above is counted as unused."""
    spec = spec_of("gemma-4-E4B-it")
    names = PartNames(spec)
    assert names.part_of("model.language_model.layers.23.self_attn.k_proj.weight") == "layers"
    assert names.part_of("model.language_model.layers.24.self_attn.k_proj.weight") == "unused"
    assert names.part_of("blk.24.attn_v.weight") == "unused"


def test_llama_cpp_leaves_what_no_layer_uses_in_the_file_and_vllm_loads_it() -> None:
    spec = spec_of("gemma-4-E4B-it")
    for engine, names in (("llama.cpp", ["blk.23.attn_v.weight", "blk.24.attn_v.weight"]), ("vllm", None)):
        names = names or [f"model.language_model.layers.{layer}.self_attn.v_proj.weight" for layer in (23, 24)]
        tensors = tuple(HeaderTensor(name, (512, 2560), "bfloat16", 2 * 512 * 2560) for name in names)
        header = ModelHeader("folder", spec, "gguf" if engine == "llama.cpp" else "safetensors", "folder", tensors)
        parts = {part.name: part.size_bytes for part in weigh(header, PlanSettings(engine=engine))}
        size = 2 * 512 * 2560
        assert parts == ({"layers": size} if engine == "llama.cpp" else {"layers": size, "unused": size})
        assert stored_file(header, PlanSettings(engine=engine)).size_bytes > 2 * size


@pytest.mark.parametrize(
    ("stored", "part"),
    [
        ("model.embed_tokens.weight", "embedding"),
        ("token_embd.weight", "embedding"),
        ("model.language_model.embed_tokens_per_layer.weight", "per-layer embedding"),
        ("lm_head.weight", "head"),
        ("output_norm.weight", "norms"),
        ("model.layers.3.mlp.gate_proj.weight_packed", "layers"),
        ("model.layers.3.mlp.gate_proj.weight_scale", "layers"),
        ("model.layers.3.experts.gate_up_proj", "experts"),
        ("blk.3.ffn_down_exps.weight", "experts"),
        ("blk.3.ffn_gate_inp.weight", "layers"),
        ("blk.3.post_ffw_norm.weight", "norms"),
        ("model.vision_tower.patch_embedder.input_proj.weight", "vision"),
        ("v.blk.0.attn_q.weight", "vision"),
        ("model.embed_vision.embedding_projection.weight", "projector"),
        ("mm.input_projection.weight", "projector"),
    ],
)
def test_the_part_of_a_stored_name(stored: str, part: str) -> None:
    assert PartNames(spec_of("gemma-4-26B-A4B-it")).part_of(stored) == part


def test_files_that_may_hold_what_no_layer_uses_have_room_for_it_in_their_error_bar() -> None:
    """E4B: K and V of 15 sliding layers of 512 and 3 full ones of 1,024 values, and their norms of 256 and 512."""
    settings = PlanSettings(engine="vllm", quantization="bf16")
    header = header_of("gemma-4-E4B-it")
    unused = 2 * 2560 * (15 * 512 + 3 * 1024) + 15 * 256 + 3 * 512
    may, without = stored_file(header, settings), stored_file(replace(header, has_unused_tensors=False), settings)
    assert may.size_bytes == without.size_bytes
    assert may.error_bytes - without.error_bytes == 2 * unused


def test_a_per_layer_table_of_a_mix_may_be_the_type_of_a_plain_matrix() -> None:
    """E4B in q4_k_m: 42 x 256 values an id in q6_k (210 bytes for 256), before 2026 in q4_k (144)."""
    settings = PlanSettings(engine="llama.cpp", quantization="q4_k_m")
    parts = {part.name: part for part in weigh(header_of("gemma-4-E4B-it"), settings)}
    blocks = 262_144 * 42
    assert parts["per-layer embedding"].size_bytes == blocks * 210
    assert parts["per-layer embedding"].error_bytes == blocks * (210 - 144)


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("tgi", "warm-up run"), ("TGI", "warm-up run"), ("sglang", "fraction"), ("SGLang", "fraction"),
        ("TensorRT_LLM", "engine files"), ("tensorrt-llm", "engine files"), ("LM Studio", "40 to 67 %"),
        ("lm-studio", "40 to 67 %"), ("mlx", "wired memory"), ("transformers", "attention implementation"),
    ],
)  # fmt: skip
def test_engines_without_a_formula_are_unknown_with_the_reason(name: str, reason: str) -> None:
    assert reason in (unknown_engine(name) or "")


@pytest.mark.parametrize("name", ["vllm", "llama.cpp", "ollama", "gemwright", "exo", ""])
def test_engines_with_a_formula_and_words_that_are_none_are_not_unknown(name: str) -> None:
    assert unknown_engine(name) is None
