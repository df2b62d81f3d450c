"""What Ollama holds: its defaults, its early versions, its files and the size it prints, against numbers by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from gemwright.errors import RequestError, UnsupportedError
from gemwright.planner.engines.ollama import default_context, estimate_ollama
from gemwright.planner.settings import PlanSettings
from tests.planned_models import GIB, header_of, spec_of

OLLAMA = PlanSettings(engine="ollama")


def ollama(name: str, **asked: Any) -> dict[str, Any]:
    found: dict[str, Any] = estimate_ollama(header_of(name), replace(OLLAMA, **asked)).engine_facts["ollama"]
    return found


def test_ollama_multiplies_the_context_by_its_parallel_requests() -> None:
    """Two of 8,192: 16,384 full cells, and 2 x 1,024 + 512 sliding ones."""
    found = ollama("gemma-3-4b-it", ctx_size=8192, parallel=2)
    assert (found["num_ctx"], found["n_ctx"]) == (8192, 16_384)
    assert (found["kv_full_cells"], found["kv_sliding_cells"]) == (16_384, 2560)


def test_ollamas_early_versions_kept_all_tokens_everywhere() -> None:
    found = ollama("gemma-3-4b-it", ctx_size=8192, engine_version="0.6.2")
    assert found["kv_sliding_cells"] == 8192


@pytest.mark.parametrize(
    ("version", "memory_gib", "tokens"),
    [
        ((0, 6, 6), None, 2048),
        ((0, 6, 7), None, 4096),
        ((0, 15, 4), 80, 4096),
        ((0, 15, 5), 12, 4096),
        ((0, 15, 5), 24, 32_768),
        ((0, 15, 5), 80, 131_072),
    ],
)
def test_ollamas_context_where_none_is_set(version: Any, memory_gib: int | None, tokens: int) -> None:
    """On large devices 262,144, of which Gemma 3 4B has 131,072."""
    memory = None if memory_gib is None else memory_gib * GIB
    assert default_context(spec_of("gemma-3-4b-it"), replace(OLLAMA, memory_bytes=memory), version)[0] == tokens


def test_the_size_that_ollama_prints_leaves_the_device_context_out() -> None:
    estimate = estimate_ollama(header_of("gemma-3-4b-it"), replace(OLLAMA, ctx_size=8192))
    outside = sum(line.size_bytes for line in estimate.ledger.lines if line.name == "runtime: device context")
    assert outside > 0
    assert estimate.engine_facts["ollama"]["size_bytes"] == estimate.ledger.total_bytes - outside


def test_what_ollama_has_no_setting_for_is_refused() -> None:
    for asked in ({"swa_full": True}, {"kv_unified": False}):
        with pytest.raises(UnsupportedError, match="Ollama has no such setting"):
            ollama("gemma-3-4b-it", **asked)


def test_one_request_is_the_default_and_a_window_is_added_for_each_more() -> None:
    """8,192 tokens of Gemma 3 4B: one has 1,024 + 512 sliding cells, four 4 x 1,024 + 512."""
    assert ollama("gemma-3-4b-it", ctx_size=8192)["kv_sliding_cells"] == 1536
    four = ollama("gemma-3-4b-it", ctx_size=8192, max_num_seqs=4)
    assert (four["kv_full_cells"], four["kv_sliding_cells"]) == (32_768, 4608)


def test_the_context_is_that_of_one_request() -> None:
    found = estimate_ollama(header_of("gemma-3-4b-it"), replace(OLLAMA, ctx_size=10_000, parallel=2))
    assert (found.max_model_len, found.max_num_seqs) == (10_000, 2)
    # 20,000 tokens are 79 x 256 cells with those that round up.
    assert found.engine_facts["ollama"]["kv_full_cells"] == 79 * 256 == 20_224


def test_the_window_came_with_0_9() -> None:
    assert ollama("gemma-3-4b-it", ctx_size=8192, engine_version="0.8.9")["kv_sliding_cells"] == 8192
    assert ollama("gemma-3-4b-it", ctx_size=8192, engine_version="0.9.0")["kv_sliding_cells"] == 1536


def test_its_cache_types_are_those_of_llama_cpp() -> None:
    """q8_0: 34 bytes for 32 of 5 x 4 x 256 values of K, and as many of V."""
    found = ollama("gemma-3-4b-it", ctx_size=8192, kv_cache_dtype="q8_0")
    assert found["kv_full_bytes"] == 8192 * 5 * 1024 * 2 * 34 // 32
    with pytest.raises(UnsupportedError, match="a quantized V needs flash attention"):
        ollama("gemma-3-4b-it", kv_cache_dtype="q8_0", flash_attention=False)


def test_its_files_hold_the_towers_in_16_bits() -> None:
    """26B-A4B: 569,550,384 values of the tower and 3,244,032 of the projector, of which a few are vectors."""
    asked = PlanSettings(engine="ollama", quantization="q4_k_m", ctx_size=4096)
    parts = {part.name: part for part in estimate_ollama(header_of("gemma-4-26B-A4B-it"), asked).weights}
    assert parts["vision"].size_bytes == pytest.approx(2 * 569_550_384, rel=0.001)
    assert parts["projector"].size_bytes == 2 * 3_244_032
    assert parts["vision"].error_bytes == 0
    # Published: `ollama ps` shows 19 GB with 4,096 tokens.
    assert round(ollama("gemma-4-26B-A4B-it", quantization="q4_k_m", ctx_size=4096)["size_bytes"] / 1e9) == 19


def test_images_add_the_buffers_and_not_the_tower_again() -> None:
    """Half of the projector's file, which lies in the model's: 2 x 572,794,416 bytes."""
    asked: dict[str, Any] = {"quantization": "q4_0", "ctx_size": 4096}
    text = ollama("gemma-4-26B-A4B-it", **asked)["size_bytes"]
    assert ollama("gemma-4-26B-A4B-it", num_images=1, **asked)["size_bytes"] - text == 569_550_384 + 3_244_032


def test_absurd_settings_are_refused() -> None:
    with pytest.raises(RequestError, match="beyond the model's context"):
        ollama("gemma-3-4b-it", ctx_size=131_073)
    with pytest.raises(UnsupportedError, match="not a version of Ollama"):
        ollama("gemma-3-4b-it", engine_version="b5554")
    with pytest.raises(UnsupportedError, match="no such cache type"):
        ollama("gemma-3-4b-it", kv_cache_dtype="fp8")
    with pytest.raises(UnsupportedError, match="is not a setting of ollama"):
        ollama("gemma-3-4b-it", tensor_parallel_size=2)
    for name in ("ctx_size", "parallel", "ubatch_size"):
        with pytest.raises(RequestError, match=name):
            ollama("gemma-3-4b-it", **{name: -1})


def test_both_ways_to_say_the_length_are_told_apart() -> None:
    found = estimate_ollama(header_of("gemma-3-4b-it"), replace(OLLAMA, ctx_size=4096, max_model_len=8192))
    assert found.max_model_len == 4096
    assert any("--max-model-len decides nothing" in note for note in found.notes)
