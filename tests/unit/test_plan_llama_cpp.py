"""What llama.cpp's and Ollama's caches hold, against numbers worked by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from gemwright.errors import RequestError, UnsupportedError
from gemwright.planner.engines.llama_cache import cache_rules
from gemwright.planner.engines.llama_cpp import estimate_llama_cpp
from gemwright.planner.engines.ollama import default_context, estimate_ollama
from gemwright.planner.estimate import Estimate
from gemwright.planner.settings import PlanSettings
from tests.planned_models import GIB, header_of, spec_of

MIB = 1 << 20
PLAIN = PlanSettings(engine="llama.cpp")
OLLAMA = PlanSettings(engine="ollama")


def ask(name: str, **asked: Any) -> Estimate:
    return estimate_llama_cpp(header_of(name), replace(PLAIN, **asked))


def facts(name: str, **asked: Any) -> dict[str, Any]:
    found: dict[str, Any] = ask(name, **asked).engine_facts["llama_cpp"]
    return found


def sizes(name: str, **asked: Any) -> tuple[int, int]:
    found = facts(name, **asked)
    return found["kv_full_bytes"], found["kv_sliding_bytes"]


def test_one_slot() -> None:
    """31B at 32,768 tokens: 10 full layers of 4 x 512 with a cell for every token, and 50 sliding layers of 16 x 256
    with 1,024 + 512 cells; K and V in two bytes a value."""
    assert sizes("gemma-4-31B-it", ctx_size=32_768, parallel=1) == (
        32_768 * 10 * 4 * 512 * 4,
        1536 * 50 * 16 * 256 * 4,
    )


def test_the_number_of_slots_that_a_server_starts_with_is_four_windows() -> None:
    """One cache for all: 4 x 1,024 + 512 sliding cells, and no more full ones."""
    found = facts("gemma-4-31B-it", ctx_size=32_768)
    assert (found["num_slots"], found["kv_unified"]) == (4, True)
    assert (found["kv_full_cells"], found["kv_sliding_cells"]) == (32_768, 4608)


def test_slots_that_the_user_asks_for_have_a_cache_each() -> None:
    """32,768 / 4 cells in each, and 4 x (1,024 + 512) sliding ones."""
    found = facts("gemma-4-31B-it", ctx_size=32_768, parallel=4)
    assert (found["kv_unified"], found["kv_full_cells"], found["kv_sliding_cells"]) == (False, 32_768, 4 * 1536)
    assert ask("gemma-4-31B-it", ctx_size=32_768, parallel=4).max_model_len == 8192


def test_cells_are_rounded_up_to_256() -> None:
    """30,001 tokens: 30,208 cells. In three slots 10,069 each, so 10,240 x 3."""
    assert facts("gemma-3-4b-it", ctx_size=30_001, parallel=1)["kv_full_cells"] == 30_208
    assert facts("gemma-3-4b-it", ctx_size=30_001, parallel=3)["kv_full_cells"] == 30_720


def test_sliding_cells_never_exceed_the_context() -> None:
    assert facts("gemma-3-4b-it", ctx_size=1000, parallel=1)["kv_sliding_cells"] == 1024
    assert facts("gemma-3-4b-it", ctx_size=200, parallel=1)["kv_sliding_cells"] == 256


def test_the_micro_batch_stands_in_the_sliding_cells() -> None:
    assert facts("gemma-3-4b-it", ctx_size=32_768, parallel=1, ubatch_size=2048)["kv_sliding_cells"] == 1024 + 2048
    # 1,024 + 100 is rounded up.
    assert facts("gemma-3-4b-it", ctx_size=32_768, parallel=1, ubatch_size=100)["kv_sliding_cells"] == 1280


def test_swa_full_keeps_every_token_in_sliding_layers() -> None:
    assert sizes("gemma-3-4b-it", ctx_size=32_768, parallel=1, swa_full=True) == (
        32_768 * 5 * 4 * 256 * 4,
        32_768 * 29 * 4 * 256 * 4,
    )


def test_quantized_caches_have_scales_in_their_blocks() -> None:
    """q8_0 has 34 bytes for 32 values, q4_0 18; K and V may differ."""
    plain, _ = sizes("gemma-3-4b-it", ctx_size=8192, parallel=1)
    eight, _ = sizes("gemma-3-4b-it", ctx_size=8192, parallel=1, cache_type_k="q8_0", cache_type_v="q8_0")
    mixed, _ = sizes("gemma-3-4b-it", ctx_size=8192, parallel=1, cache_type_k="q8_0", cache_type_v="q4_0")
    assert plain == 8192 * 5 * 1024 * 4
    assert eight == 8192 * 5 * 1024 * 2 * 34 // 32
    assert mixed == 8192 * 5 * 1024 * (34 + 18) // 32


def test_k_equal_to_v_saves_nothing_here() -> None:
    """12B's full layers compute V from the projection of K; the cache has both: 1 x 512 twice, in two bytes."""
    assert sizes("gemma-4-12B-it", ctx_size=32_768, parallel=1)[0] == 32_768 * 8 * 512 * 2 * 2


def test_layers_that_share_own_nothing() -> None:
    """E2B: 3 full layers of 1 x 512 and 12 sliding ones of 1 x 256 own K/V, of 35; the window is 512."""
    assert sizes("gemma-4-E2B-it", ctx_size=32_768, parallel=1) == (
        32_768 * 3 * 512 * 4,
        1024 * 12 * 256 * 4,
    )


def test_without_flash_attention_values_are_as_wide_as_the_widest_layer() -> None:
    """E2B: V of sliding layers is 512 wide instead of 256: 256 + 512 values instead of 256 + 256."""
    assert sizes("gemma-4-E2B-it", ctx_size=32_768, parallel=1, flash_attention=False)[1] == 1024 * 12 * (256 + 512) * 2


def test_a_quantized_v_needs_flash_attention() -> None:
    with pytest.raises(UnsupportedError, match="a quantized V needs flash attention"):
        ask("gemma-3-4b-it", flash_attention=False, cache_type_v="q8_0")


def test_before_may_2025_all_layers_kept_all_tokens() -> None:
    old = facts("gemma-3-4b-it", ctx_size=8192, engine_version="2025-04", parallel=1)
    assert old["kv_sliding_cells"] == old["kv_full_cells"] == 8192
    assert facts("gemma-3-4b-it", ctx_size=8192, engine_version="b5600", parallel=1)["kv_sliding_cells"] == 1536


def test_before_november_2025_cells_were_rounded_to_32_without_flash_attention() -> None:
    asked: dict[str, Any] = {"ctx_size": 8192, "parallel": 1, "ubatch_size": 32, "flash_attention": False}
    assert facts("gemma-3-4b-it", engine_version="2025-10", **asked)["kv_sliding_cells"] == 1056
    assert facts("gemma-3-4b-it", engine_version="2026-01", **asked)["kv_sliding_cells"] == 1280


def test_the_days_between_two_rules_are_refused() -> None:
    with pytest.raises(UnsupportedError, match="changed the size of sliding caches twice"):
        cache_rules("b5450")
    with pytest.raises(UnsupportedError, match="changed the size of sliding caches twice"):
        cache_rules("2025-05")


@pytest.mark.parametrize("text", ["", "5", "2025-13", "newest", "b12345678"])
def test_what_is_no_version_is_refused(text: str) -> None:
    with pytest.raises(UnsupportedError, match=r"not a version of llama\.cpp"):
        cache_rules(text)


def test_contradictions_and_absurd_settings_are_refused() -> None:
    with pytest.raises(RequestError, match="--cache-type-k and --kv-cache-dtype differ"):
        ask("gemma-3-4b-it", kv_cache_dtype="q8_0", cache_type_k="f16")
    with pytest.raises(RequestError, match="beyond the model's context"):
        ask("gemma-3-4b-it", ctx_size=1 << 30)
    with pytest.raises(RequestError, match="more devices than layers"):
        ask("gemma-3-4b-it", tensor_parallel_size=64)
    with pytest.raises(UnsupportedError, match="no such cache type"):
        ask("gemma-3-4b-it", cache_type_k="fp8")
    with pytest.raises(UnsupportedError, match="no room for so many slots"):
        ask("gemma-3-4b-it", parallel=257)
    with pytest.raises(UnsupportedError, match="one cache for all slots"):
        ask("gemma-3-4b-it", parallel=2, kv_unified=False, engine_version="2025-06")
    for name in ("ctx_size", "parallel", "ubatch_size"):
        with pytest.raises(RequestError, match=name):
            ask("gemma-3-4b-it", **{name: 0})


def test_the_lines_add_up_to_the_cache_and_the_weights() -> None:
    estimate = ask("gemma-3-4b-it", ctx_size=8192, parallel=1, quantization="q8_0")
    found = estimate.engine_facts["llama_cpp"]
    cache = sum(line.size_bytes for line in estimate.ledger.lines if line.name.startswith("K/V"))
    weights = [line for line in estimate.ledger.lines if line.name.startswith("weights")]
    on_device = sum(line.size_bytes for line in weights if line.place == "gpu")
    assert cache == found["kv_full_bytes"] + found["kv_sliding_bytes"]
    assert on_device == sum(part.size_bytes for part in estimate.weights)
    # The tied embedding is the output layer on the device, and its rows are read from the mapped file.
    assert sum(line.size_bytes for line in weights if line.place == "mmap") == 262_208 * 2560 * 34 // 32


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
