"""What a backend with native kernels holds, to the byte: panels in the file's encoding, tables, floats, buffers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf import GGMLQuantizationType, quantize

from gemwright.config import EngineConfig
from gemwright.errors import UnsupportedError
from gemwright.loading.checkpoint import Checkpoint, open_checkpoint
from gemwright.loading.default_model import default_model_path
from gemwright.loading.headers import local_header
from gemwright.memory import holding
from gemwright.memory.engine_plan import EnginePlan, plan_memory
from gemwright.memory.holding import NATIVE, REFERENCE, expected_holding, panel_bytes
from gemwright.memory.workspace import native_scratch_bytes
from gemwright.planner.answers import make_plan
from gemwright.planner.own_weights import stored_encodings
from gemwright.planner.settings import PlanSettings
from gemwright.planner.weights import weigh
from gemwright.spec.families import read_config
from gemwright.spec.model_header import ModelHeader
from gemwright.spec.weights import list_tensors
from gemwright.testing import TINY_CONFIGS, write_tiny_checkpoint
from tests.planned_models import header_of
from tests.published_configs import load_config
from tests.tiny_gguf import write_tiny_gguf

SHORT = EngineConfig(max_model_len=64, max_num_seqs=1, max_num_batched_tokens=32)


def native_plan(checkpoint: Checkpoint, **options: Any) -> EnginePlan:
    config = EngineConfig(max_model_len=64, max_num_seqs=1, max_num_batched_tokens=32, **options)
    return plan_memory(
        checkpoint.spec,
        config,
        stored_dtype=checkpoint.stored_dtype,
        free_bytes=0,
        holding=NATIVE,
        encodings=checkpoint.encodings(),
    )


def weights_of(plan: EnginePlan) -> dict[str, int]:
    return {line.key[1]: line.planned_bytes for line in plan.lines if line.key[0] == "weights"}


@pytest.fixture
def planned_natively(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(holding, "_IS_NATIVE_ON_CPU", True)


@pytest.mark.parametrize(("encoding", "num_inputs", "size_bytes"), [
    ("float32", 40, 32 * 160),
    ("bfloat16", 40, 32 * 80),
    ("bfloat16", 41, 32 * 84),  # inputs go in pairs
    ("q4_0", 64, 32 * 2 * 18),
    ("q4_1", 64, 32 * 2 * 20),
    ("q5_0", 64, 32 * 2 * 22),
    ("q5_1", 64, 32 * 2 * 24),
    ("q8_0", 64, 32 * 2 * 34),
    ("q4_k", 512, 32 * 2 * 148),
    ("q5_k", 512, 32 * 2 * 180),
    ("q6_k", 512, 32 * 2 * 210),
])  # fmt: skip
def test_a_panel_is_32_outputs_of_all_inputs(encoding: str, num_inputs: int, size_bytes: int) -> None:
    assert panel_bytes(encoding, num_inputs) == size_bytes


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_270m_in_q4_k_m_to_the_byte(dtype: str) -> None:
    """18 layers of 640; the file has rows of 640 in q5_0 and q8_0 (640 is no multiple of 256), of 1,024 and 2,048 in
    q4_k and q6_k; half of the values and of the downs have the better type. The same in either dtype."""
    plan = native_plan(open_checkpoint(default_model_path()), dtype=dtype)
    q5_0, q8_0 = 32 * 20 * 22, 32 * 20 * 34
    better = 9
    assert weights_of(plan) == {
        "embedding": 262_144 * 20 * 34,
        # Query, key and value: 32, 8 and 8 panels; output: 20 panels of 1,024 inputs.
        "attention": 18 * (32 + 8) * q5_0 + (18 - better) * 8 * q5_0 + better * 8 * q8_0 + 18 * 20 * 32 * 4 * 148,
        "feed_forward": 18 * 2 * 64 * q5_0 + 20 * 32 * 8 * ((18 - better) * 148 + better * 210),
        "norm": 4 * (18 * (4 * 640 + 2 * 256) + 640),
    }


def test_reference_backends_hold_it_in_the_engines_dtype_whatever_the_file() -> None:
    checkpoint = open_checkpoint(default_model_path())
    plain = plan_memory(checkpoint.spec, SHORT, stored_dtype=None, free_bytes=0)
    told = plan_memory(checkpoint.spec, SHORT, stored_dtype=None, free_bytes=0, encodings=checkpoint.encodings())
    assert plain.lines == told.lines
    assert weights_of(plain)["embedding"] == 262_144 * 640 * 2


@pytest.mark.parametrize(("stored", "dtype", "value_bytes"), [
    ("float32", "float32", 4), ("float32", "bfloat16", 2), ("bfloat16", "bfloat16", 2), ("float16", "bfloat16", 2),
])  # fmt: skip
def test_floats_lie_in_panels_of_the_engines_dtype(stored: str, dtype: str, value_bytes: int, tmp_path: Path) -> None:
    """Tiny Gemma 3: 8 layers of 40, a vocabulary of 515, feed-forward of 104, 4 heads of 16 and one of K and V. The
    last panel of a matrix is padded to 32 outputs."""
    folder = write_tiny_checkpoint("gemma3", tmp_path, dtype=stored)
    plan = native_plan(open_checkpoint(folder), dtype=dtype)
    panel = 32 * value_bytes
    assert weights_of(plan) == {
        "embedding": 17 * 40 * panel,
        "attention": 8 * ((2 + 1 + 1) * 40 + 2 * 64) * panel,
        "feed_forward": 8 * (2 * 4 * 40 + 2 * 104) * panel,
        "norm": 4 * (8 * (4 * 40 + 2 * 16) + 40),
    }


def test_buffers_hold_float32_and_the_cache_the_engines_dtype(tmp_path: Path) -> None:
    checkpoint = open_checkpoint(write_tiny_checkpoint("gemma3", tmp_path))
    rounded, exact = native_plan(checkpoint, dtype="bfloat16"), native_plan(checkpoint, dtype="float32")
    assert rounded.workspace == exact.workspace
    assert {buffer.dtype for buffer in rounded.workspace.buffers} == {"float32"}
    assert 2 * rounded.layout.total_bytes == exact.layout.total_bytes


def moe_values() -> tuple[Any, dict[Any, Any]]:
    spec = read_config({**TINY_CONFIGS["gemma4-moe"], "moe_intermediate_size": 32, "hidden_size": 64})
    generator = np.random.default_rng(0)
    return spec, {tensor: generator.standard_normal(tensor.shape, dtype=np.float32) for tensor in list_tensors(spec)}


def test_each_expert_is_a_matrix_of_its_own(tmp_path: Path) -> None:
    """8 experts of 64 by 64 (gate and up stacked) and 64 by 32: two panels each; the router's 8 outputs are a panel."""
    spec, values = moe_values()
    together = open_checkpoint(write_tiny_gguf(tmp_path / "a.gguf", spec, values, encoding="Q8_0"))
    apart = open_checkpoint(write_tiny_gguf(tmp_path / "b.gguf", spec, values, encoding="Q8_0", split_experts=True))
    layers = spec.num_layers
    held = weights_of(native_plan(together))["experts"]
    router = panel_bytes("q8_0", 64) + 4 * (64 + 8)
    assert held == layers * (8 * 2 * 32 * 2 * 34 + 8 * 2 * 32 * 34 + router)
    assert weights_of(native_plan(apart)) == weights_of(native_plan(together))


def test_gate_and_up_of_two_encodings_are_held_as_floats(tmp_path: Path) -> None:
    spec, values = moe_values()
    tensor = next(tensor for tensor in values if tensor.name == "layers.0.experts_gate_up")
    gate, up = tensor.gguf[-1]
    raw = {
        gate: (quantize(values[tensor][:, :32], GGMLQuantizationType.Q4_0), GGMLQuantizationType.Q4_0),
        up: (quantize(values[tensor][:, 32:], GGMLQuantizationType.Q8_0), GGMLQuantizationType.Q8_0),
    }
    path = write_tiny_gguf(
        tmp_path / "a.gguf", spec, values, encoding="Q8_0", split_experts=True, raw=raw, without=frozenset(raw)
    )
    checkpoint = open_checkpoint(path)
    assert checkpoint.encodings()["layers.0.experts_gate_up"] == "float32"
    assert stored_encodings(local_header(path), PlanSettings()).by_name == checkpoint.encodings()
    quantized = 8 * 2 * 32 * 2 * 34
    rounded = 8 * 2 * 32 * 64 * 2
    every = open_checkpoint(write_tiny_gguf(tmp_path / "b.gguf", spec, values, encoding="Q8_0"))
    assert (
        weights_of(native_plan(checkpoint))["experts"] - weights_of(native_plan(every))["experts"]
        == rounded - quantized
    )


def test_tables_that_are_looked_up_alone_keep_the_rows_of_the_file() -> None:
    """The per-layer table of E2B, 8,960 to a row; its embedding is the head too, and lies in panels."""
    tensors = {tensor.name: tensor for tensor in list_tensors(read_config(load_config("gemma-4-E2B-it")))}
    table = tensors["per_layer_embedding"]
    assert NATIVE.weight_bytes(table, "q5_k", "bfloat16") == 262_144 * 35 * 176
    assert NATIVE.weight_bytes(table, "bfloat16", "float32") == 262_144 * 8960 * 4
    assert NATIVE.weight_bytes(tensors["embedding"], "q4_k", "bfloat16") == 262_144 * 6 * 148
    untied = read_config({**TINY_CONFIGS["gemma3"], "tie_word_embeddings": False})
    embedding, *_, head = list_tensors(untied)
    assert embedding.is_looked_up_only
    assert NATIVE.weight_bytes(embedding, "bfloat16", "bfloat16") == 515 * 40 * 2
    assert NATIVE.weight_bytes(head, "bfloat16", "bfloat16") == 17 * 32 * 40 * 2


@pytest.mark.parametrize("encoding", ["q2_k", "q3_k", "float16"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_other_encodings_are_decoded_to_the_engines_dtype(encoding: str, dtype: Any) -> None:
    (down,) = (tensor for tensor in list_tensors(header_of("gemma-3-270m").spec) if tensor.name == "layers.3.down")
    assert NATIVE.held(down, encoding, dtype) == NATIVE.held(down, dtype, dtype)
    assert NATIVE.is_decoded(down, encoding, dtype)
    assert not NATIVE.is_decoded(down, "q4_k", dtype)


def test_a_plan_from_a_header_is_that_of_the_opened_file(planned_natively: None) -> None:
    path = default_model_path()
    checkpoint = open_checkpoint(path)
    settings = PlanSettings(max_model_len=64, max_num_seqs=1, max_num_batched_tokens=32)
    planned = make_plan(local_header(path), settings)
    lines = {line.name: line for line in planned.ledger.lines}
    for line in native_plan(checkpoint).lines:
        assert lines[line.name].size_bytes == line.planned_bytes
        assert lines[line.name].error_bytes == 0
    assert planned.estimate.weights_bytes == sum(weights_of(native_plan(checkpoint)).values())
    assert lines["weights: embedding"].formula == "8,192 panels of 32 outputs x 21,760 B of q8_0"
    assert lines["load: rows decoded at once"].size_bytes == 0
    assert "runtime: Python, kernels, tokenizer" in lines


def test_a_recipe_stands_in_for_a_header_with_its_error(planned_natively: None) -> None:
    """As planned for llama.cpp, the recipe of the default model gives every tensor the type that its file has."""
    opened = native_plan(open_checkpoint(default_model_path()))
    asked = PlanSettings(max_model_len=64, max_num_seqs=1, quantization="q4_k_m", embedding_quantization="q8_0")
    lines = {line.name: line for line in make_plan(header_of("gemma-3-270m"), asked).ledger.lines}
    for line in opened.lines:
        if line.key[0] == "weights":
            assert lines[line.name].size_bytes == line.planned_bytes
            expected = 0 if line.key[1] == "norm" else round(line.planned_bytes * 0.02)
            assert lines[line.name].error_bytes == expected


def test_who_asks_for_the_reference_backend_or_a_gpu_gets_its_plan(planned_natively: None) -> None:
    header = local_header(default_model_path())
    native, reference = (sum(part.size_bytes for part in weigh(header, PlanSettings(kernels=kernels)))
                         for kernels in ("auto", "reference"))  # fmt: skip
    assert native < 250_000_000
    assert reference > 536_000_000
    assert expected_holding("auto", "cuda:0") is REFERENCE
    assert expected_holding("auto", "cpu") is NATIVE
    assert expected_holding("avx2", "cpu") is NATIVE


def test_settings_that_no_backend_has_are_refused() -> None:
    header = ModelHeader("some", header_of("gemma-3-270m").spec, "config", "file")
    with pytest.raises(UnsupportedError, match="embeddings"):
        make_plan(header, PlanSettings(quantization="q4_0", embedding_quantization="iq4_nl"))
    with pytest.raises(UnsupportedError, match="kernels"):
        make_plan(header, PlanSettings(kernels="fastest"))


def test_beside_the_buffers_each_purpose_has_its_own_memory() -> None:
    """The 270M, 32 tokens, 2 threads, 1,000 tokens of context (4 pieces of 256): inputs of 2,048 in 16 bits with a sum
    for each 16; 4 heads of 256 in tiles of 64 rows; sines and cosines."""
    rounded = 32 * (2 * 2048 + 128 * 4 + 4)
    tile = 64 * 16 + 64 * (256 + 64) * 4
    attend = (64 * (2 * 256 + 272) + 24 * 256) * 4
    unpacked = (256 + 64) * 32 * 4 + 4096
    spec = header_of("gemma-3-270m").spec
    expected = rounded + 5 * tile + 2 * (2 * tile + attend + unpacked) + 2 * 32 * 256 * 4
    assert native_scratch_bytes(spec, 32, 2, 1000) == expected


def test_another_file_is_offered_where_it_saves_memory(planned_natively: None) -> None:
    """A 31B in 16 bits does not fit in 40 GiB; with native kernels a quantized file of it does."""
    header = header_of("gemma-4-31B-it")
    native, reference = (
        make_plan(header, PlanSettings(max_model_len=4096, max_num_seqs=1, memory_bytes=40 << 30, kernels=kernels))
        for kernels in ("auto", "reference")
    )
    assert [change.flags for change in native.changes] == ["--quantization q8_0"]
    assert reference.changes == ()
