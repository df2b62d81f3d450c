"""What llama.cpp holds: cells, slots and types, weights by device and its buffers, against numbers worked by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from gemwright.errors import RequestError, UnsupportedError
from gemwright.planner.devices import Device
from gemwright.planner.engines.layer_kinds import KindOfLayer
from gemwright.planner.engines.llama_cache import NEWEST_RULES, CacheRules, CacheSettings, cache_rules, cell_bytes
from gemwright.planner.engines.llama_cpp import estimate_llama_cpp
from gemwright.planner.estimate import Estimate
from gemwright.planner.export import emit
from gemwright.planner.ledger import Line
from gemwright.planner.settings import PlanSettings
from tests.planned_models import header_of

MIB = 1 << 20
PLAIN = PlanSettings(engine="llama.cpp")


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


def line(estimate: Estimate, name: str) -> Line:
    (found,) = [line for line in estimate.ledger.lines if line.name == name]
    return found


def test_one_cache_for_all_that_is_asked_for_multiplies_the_window_alone() -> None:
    """Two slots in one cache: 32,768 full cells, 2 x 1,024 + 512 sliding ones, and one request may have all."""
    estimate = ask("gemma-3-4b-it", ctx_size=32_768, parallel=2, kv_unified=True)
    found = estimate.engine_facts["llama_cpp"]
    assert (found["kv_full_cells"], found["kv_sliding_cells"]) == (32_768, 2560)
    assert estimate.max_model_len == 32_768


def test_the_length_of_each_request_makes_the_context_of_all() -> None:
    """Three requests of 5,000 tokens: 15,000, rounded up to 15,104; a third is 5,034, so 5,120 cells in each slot."""
    found = facts("gemma-3-4b-it", max_model_len=5000, max_num_seqs=3)
    assert (found["n_ctx"], found["num_slots"], found["kv_full_cells"]) == (15_000, 3, 3 * 5120)
    assert found["kv_sliding_cells"] == 3 * 1536


def test_swa_full_stands_above_slots_and_batches() -> None:
    found = facts("gemma-3-4b-it", ctx_size=32_768, parallel=4, ubatch_size=2048, swa_full=True)
    assert found["kv_sliding_cells"] == found["kv_full_cells"] == 32_768


def test_gemma_2_keeps_4096_tokens_and_a_batch_in_every_other_layer() -> None:
    """2B: 13 layers of each kind, 4 x 256 values of K and of V."""
    assert sizes("gemma-2-2b", ctx_size=8192, parallel=1) == (8192 * 13 * 4096, (4096 + 512) * 13 * 4096)


@pytest.mark.parametrize(
    ("name", "width", "row_bytes"),
    [
        ("f32", 1024, 4096), ("f16", 1024, 2048), ("q8_0", 1024, 1088), ("q5_1", 1024, 768), ("q5_0", 1024, 704),
        ("q4_1", 1024, 640), ("q4_0", 1024, 576), ("iq4_nl", 32, 18), ("q8_0", 32, 34),
    ],
)  # fmt: skip
def test_the_bytes_of_a_row_by_type(name: str, width: int, row_bytes: int) -> None:
    """32 values with their scale: 34 bytes in q8_0, 24, 22, 20 and 18 in the others; K and V alike."""
    cache = CacheSettings(256, 1, True, 512, False, True, name, name, NEWEST_RULES)
    assert cell_bytes(KindOfLayer(None, 1, 1, width), cache, width) == 2 * row_bytes


def test_rows_that_no_block_divides_are_refused() -> None:
    cache = CacheSettings(256, 1, True, 512, False, True, "q8_0", "f16", NEWEST_RULES)
    with pytest.raises(UnsupportedError, match="does not divide into blocks") as error:
        cell_bytes(KindOfLayer(None, 1, 1, 80), cache, 80)
    assert "80 values, q8_0" in str(error.value)
    assert "--cache-type-k f16" in str(error.value)


def test_a_full_layer_too_is_as_wide_as_a_sliding_one_without_flash_attention() -> None:
    """12B: full layers have 1 x 512 values of K, and V as wide as sliding layers' 8 x 256."""
    full, sliding = sizes("gemma-4-12B-it", ctx_size=8192, parallel=1, flash_attention=False)
    assert full == 8192 * 8 * (512 + 2048) * 2
    assert sliding == 1536 * 40 * (2048 + 2048) * 2


@pytest.mark.parametrize(("dtype", "name"), [("bfloat16", "bf16"), ("half", "f16"), ("Q8_0", "q8_0")])
def test_one_setting_is_the_type_of_both(dtype: str, name: str) -> None:
    found = facts("gemma-3-4b-it", ctx_size=1024, kv_cache_dtype=dtype)
    assert (found["cache_type_k"], found["cache_type_v"]) == (name, name)


@pytest.mark.parametrize(
    ("version", "has_window", "pads_alike", "has_streams", "default_slots", "max_slots"),
    [
        ("2025-05-19", False, False, False, 1, 64),
        ("b5400", False, False, False, 1, 64),
        ("2025-06-01", True, False, False, 1, 64),
        ("2025-07-17", True, False, True, 1, 64),
        ("2025-09-09", True, False, True, 1, 256),
        ("2025-11-08", True, True, True, 1, 256),
        ("2025-12", True, True, True, 4, 256),
        ("7200", True, True, True, 4, 256),
        ("master", True, True, True, 4, 256),
    ],
)
def test_what_a_version_does(
    version: str, has_window: bool, pads_alike: bool, has_streams: bool, default_slots: int, max_slots: int
) -> None:
    assert cache_rules(version) == CacheRules(has_window, pads_alike, has_streams, default_slots, max_slots)


def test_layers_are_split_over_devices_by_the_fullest() -> None:
    """31B over 4: 15 layers of 60 each, of which 3 of 10 are full and 13 of 50 sliding where a device has most."""
    estimate = ask("gemma-4-31B-it", ctx_size=32_768, parallel=1, tensor_parallel_size=4, quantization="q4_0")
    full = line(estimate, "K/V cache: 10 full layers")
    assert (full.size_bytes, full.error_bytes) == (3 * 32_768 * 8192, 32_768 * 8192)
    assert line(estimate, "K/V cache: 50 sliding layers").size_bytes == 13 * 1536 * 16_384
    (layers,) = [part for part in estimate.weights if part.name == "layers"]
    assert line(estimate, "weights: layers").size_bytes == layers.size_bytes * 15 // 60
    # What the log prints is over all devices.
    assert estimate.engine_facts["llama_cpp"]["kv_full_bytes"] == 10 * 32_768 * 8192


def test_tables_that_are_gathered_stay_in_the_mapped_file() -> None:
    """E4B in q8_0: the per-layer table of 42 x 256 values an id never comes to the device."""
    table = line(ask("gemma-4-E4B-it", ctx_size=1024, quantization="q8_0"), "weights: per-layer embedding")
    assert (table.place, table.size_bytes) == ("mmap", 262_144 * 42 * 256 * 34 // 32)


def test_the_compute_buffer_is_logits_or_activations_and_masks() -> None:
    """512 rows of 262,144 logits in float32; two bytes a row and cell for both caches' masks; 60 MiB."""
    small = line(ask("gemma-4-31B-it", ctx_size=4096, parallel=1), "workspace: compute buffer")
    assert small.size_bytes == 512 * 262_144 * 4 + 512 * (4096 + 1536) * 2 + 60 * MIB
    assert small.error_bytes == round(0.15 * small.size_bytes) + 4300 * 4096
    long = line(ask("gemma-4-31B-it", ctx_size=262_144, parallel=1), "workspace: compute buffer")
    assert long.size_bytes - small.size_bytes == 512 * (262_144 - 4096) * 2


def test_a_projector_reserves_one_and_a_half_of_its_file() -> None:
    """26B-A4B: 569,550,384 values of the tower and 3,244,032 of the projector, in two bytes each."""
    asked: dict[str, Any] = {"ctx_size": 4096, "parallel": 1, "quantization": "q8_0"}
    with_image = ask("gemma-4-26B-A4B-it", num_images=1, **asked)
    projector = line(with_image, "media: projector, file and buffers")
    assert projector.size_bytes == 3 * (569_550_384 + 3_244_032)
    assert not ask("gemma-4-26B-A4B-it", **asked).ledger.select("media")


def test_a_drafter_may_have_a_cache_of_its_own() -> None:
    """E4B's drafter reads one full layer of 2 x 512 and three sliding ones of 2 x 256; or it has them itself."""
    cache = line(ask("gemma-4-E4B-it", ctx_size=4096, parallel=1, draft=True), "K/V cache: context of the drafter")
    assert cache.size_bytes == cache.error_bytes == 4096 * (1024 + 3 * 512) * 4
    with pytest.raises(UnsupportedError, match="no drafter is published"):
        ask("gemma-3-4b-it", draft=True)


def test_a_processor_has_no_device_context_and_one_table() -> None:
    device = Device("any", "cpu", None, None, {}, "test")
    estimate = ask("gemma-3-4b-it", ctx_size=1024, quantization="q4_0", device=device)
    assert {found.place for found in estimate.ledger.lines} == {"ram"}
    assert not estimate.ledger.select("runtime")
    assert len([found for found in estimate.ledger.lines if "embedding" in found.name]) == 1


def test_a_micro_batch_above_the_batch_says_what_it_takes() -> None:
    """The server's batch holds 2,048 tokens, and a micro-batch is never larger."""
    assert any("-b 4096" in note for note in ask("gemma-3-4b-it", ctx_size=8192, ubatch_size=4096).notes)
    assert not any("-b 2048" in note for note in ask("gemma-3-4b-it", ctx_size=8192, ubatch_size=2048).notes)
    asked = replace(PLAIN, ctx_size=8192, ubatch_size=4096)
    header = header_of("gemma-3-4b-it")
    *_, command = emit("llama.cpp", header, asked, estimate_llama_cpp(header, asked), None)
    assert "-ub 4096 -b 4096 " in command
