"""What vLLM's cache holds, against numbers worked by hand and published records; `--engine vllm` beside them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from gemwright.errors import RequestError, UnsupportedError
from gemwright.planner.engines.layer_kinds import KindOfLayer, kinds_of_layers
from gemwright.planner.engines.versions import NEWEST, parse_version
from gemwright.planner.engines.vllm import estimate_vllm
from gemwright.planner.engines.vllm_overheads import token_budget
from gemwright.planner.engines.vllm_pages import PagePool, default_in_flight_batches, page_pool, token_bytes
from gemwright.planner.estimate import Estimate
from gemwright.planner.ledger import Line
from gemwright.planner.settings import PlanSettings
from tests.planned_models import GIB, H100, header_of, spec_of

KIB = 1 << 10
PLAIN = PlanSettings(engine="vllm")
FULL = KindOfLayer(window=None, num_layers=10, num_kv_heads=4, head_dim=512)
SLIDING = KindOfLayer(window=1024, num_layers=50, num_kv_heads=16, head_dim=256)
"""Gemma 4 31B."""


def pool_of(name: str, *, parts: int = 1, dtype: str = "bfloat16", block: int = 16) -> PagePool:
    return page_pool(kinds_of_layers(spec_of(name)), parts, dtype, block)


def ask(name: str, **asked: Any) -> Estimate:
    return estimate_vllm(header_of(name), replace(PLAIN, **asked))


def facts(name: str, **asked: Any) -> dict[str, Any]:
    found: dict[str, Any] = ask(name, **asked).engine_facts["vllm"]
    return found


@pytest.mark.parametrize(
    ("name", "page_kib", "full_tokens", "sliding_tokens", "num_groups", "group_size"),
    [
        ("gemma-2-2b", 64, 16, 16, 2, 13),
        ("gemma-2-9b", 128, 16, 16, 2, 21),
        ("gemma-2-27b", 128, 16, 16, 2, 23),
        ("gemma-3-270m", 16, 16, 16, 6, 3),
        ("gemma-3-1b-it", 16, 16, 16, 7, 4),
        ("gemma-3-4b-it", 64, 16, 16, 7, 5),
        ("gemma-3-12b-it", 128, 16, 16, 6, 8),
        ("gemma-3-27b-it", 128, 16, 16, 7, 10),
        ("gemma-4-E2B-it", 32, 16, 32, 5, 3),
        ("gemma-4-E4B-it", 64, 16, 32, 6, 4),
        ("gemma-4-12B-it", 128, 64, 16, 6, 8),
        ("gemma-4-26B-A4B-it", 128, 32, 16, 6, 5),
        ("gemma-4-31B-it", 256, 32, 16, 6, 10),
    ],
)
def test_pages_and_groups_of_every_gemma(
    name: str, page_kib: int, full_tokens: int, sliding_tokens: int, num_groups: int, group_size: int
) -> None:
    pool = pool_of(name)
    full, sliding = pool.kinds
    assert pool.page_bytes == page_kib * KIB
    assert (full.block_size, sliding.block_size) == (full_tokens, sliding_tokens)
    assert (pool.num_groups, pool.group_size) == (num_groups, group_size)


def test_a_tokens_bytes_by_dtype() -> None:
    """K and V of 4 heads of 512 values: 2 x 4 x 512 values."""
    assert token_bytes(FULL, 1, "bfloat16") == 2 * 4 * 512 * 2
    assert token_bytes(FULL, 1, "float32") == 2 * 4 * 512 * 4
    assert token_bytes(FULL, 1, "fp8") == 2 * 4 * 512
    # A float32 scale for each head of K and of V: 2 x 4 x 4 bytes.
    assert token_bytes(FULL, 1, "fp8_per_token_head") == 2 * 4 * 512 + 2 * 4 * 4
    # Half a byte a value and a byte of scale for 16: 256 + 32 bytes a head.
    assert token_bytes(FULL, 1, "nvfp4") == 2 * 4 * (256 + 32)


def test_heads_are_divided_and_never_below_one() -> None:
    assert token_bytes(FULL, 2, "bfloat16") == token_bytes(FULL, 1, "bfloat16") // 2
    assert token_bytes(FULL, 8, "bfloat16") == 2 * 1 * 512 * 2


def test_an_unknown_kv_dtype_is_refused_with_those_that_are_known() -> None:
    with pytest.raises(UnsupportedError, match="no rule for this K/V dtype") as error:
        ask("gemma-4-31B-it", kv_cache_dtype="q8_0")
    assert "fp8" in (error.value.limit or "")


def test_pages_that_cannot_be_made_equal_are_refused() -> None:
    """A scale a head does not double with the head: 16 x 2 x 8 x (256 + 4) against 16 x 2 x 1 x (512 + 4) bytes."""
    with pytest.raises(UnsupportedError, match="cannot make the pages of these layers equal"):
        ask("gemma-4-12B-it", kv_cache_dtype="fp8_per_token_head")


def test_what_a_request_needs() -> None:
    """31B at 32,768 tokens and a step of 2,048: one full group of 32,768 / 32 blocks, and five sliding ones which each
    hold 1,023 + 2,048 tokens in blocks of 16, 191.9 and so 192, and one more."""
    pool = pool_of("gemma-4-31B-it")
    assert pool.blocks_per_request(32_768, 2048) == 1024 + 5 * (192 + 1) == 1989
    # Below the window a sliding layer keeps the whole request, and still one block more.
    assert pool.blocks_per_request(100, 2048) == 4 + 5 * (7 + 1)


def test_two_batches_are_in_flight_from_0_26() -> None:
    assert default_in_flight_batches((0, 25, 9)) == 1
    assert default_in_flight_batches((0, 26, 0)) == 2
    old = facts("gemma-4-31B-it", engine_version="0.25.0", max_model_len=32_768, max_num_batched_tokens=2048)
    new = facts("gemma-4-31B-it", engine_version="0.26.0", max_model_len=32_768, max_num_batched_tokens=2048)
    assert old["blocks_per_request"] == 1989
    # 1,023 + 4,096 tokens: 319.9, so 320 blocks and one.
    assert new["blocks_per_request"] == 1024 + 5 * 321
    chosen = facts("gemma-4-31B-it", in_flight_batches=1, max_model_len=32_768, max_num_batched_tokens=2048)
    assert chosen["blocks_per_request"] == 1989


def test_blocks_concurrency_and_tokens_from_the_bytes_for_kv() -> None:
    """20 GiB over blocks of 10 pages of 256 KiB: 8,192 blocks, for 1,989 a request."""
    asked: dict[str, Any] = {
        "available_kv_bytes": 20 * GIB,
        "max_model_len": 32_768,
        "max_num_batched_tokens": 2048,
    }
    found = facts("gemma-4-31B-it", engine_version="0.25.0", **asked)
    assert found["num_blocks"] == 8192
    assert found["max_concurrency"] == 8192 / 1989
    assert found["kv_cache_size_tokens"] == int(8192 / 1989 * 32_768)
    # Until 0.20 the same memory was printed as the blocks of one group of six, in the smallest block.
    older = facts("gemma-4-31B-it", engine_version="0.20.2", **asked)
    assert older["kv_cache_size_tokens"] == 8192 // 6 * 16
    assert older["max_concurrency"] == found["max_concurrency"]


def test_the_longest_request_is_the_last_that_fits() -> None:
    found = facts("gemma-4-31B-it", available_kv_bytes=5 * GIB, max_model_len=32_768, engine_version="0.25.0")
    pool, longest = pool_of("gemma-4-31B-it"), found["max_model_len_that_fits"]
    assert pool.blocks_per_request(longest, 2496) <= found["num_blocks"] == 2048
    assert pool.blocks_per_request(longest + 1, 2496) > 2048


def test_nothing_fits_in_no_memory() -> None:
    pool = pool_of("gemma-4-31B-it")
    assert pool.num_blocks(-1) == pool.num_blocks(pool.block_bytes - 1) == 0
    assert pool.longest_length(0, 2048, 262_144) == 0


def test_a_start_that_would_be_refused_says_what_fits() -> None:
    estimate = ask("gemma-4-31B-it", available_kv_bytes=5 * GIB, max_model_len=262_144)
    (note,) = [note for note in estimate.notes if "refuse to start" in note]
    assert str(estimate.engine_facts["vllm"]["max_model_len_that_fits"]) in note


def test_the_last_group_is_filled_up() -> None:
    """Gemma 3 4B: 29 sliding layers in groups of 5 leave one place empty."""
    pool = pool_of("gemma-3-4b-it")
    assert pool.num_padding_layers == 6 * 5 - 29
    assert [group.num_layers for group in ask("gemma-3-4b-it", max_model_len=4096).kv.groups] == [5, 29, 1]


def test_kinds_of_nearly_equal_number_form_one_group_each() -> None:
    """7 and 5 are less than 1.5 times apart: groups of 7, of which one has two empty places."""
    kinds = (replace(FULL, num_layers=5), replace(FULL, window=512, num_layers=7))
    pool = page_pool(kinds, 1, "bfloat16", 16)
    assert (pool.group_size, pool.num_groups, pool.num_padding_layers) == (7, 2, 2)


def test_layers_that_share_own_nothing_and_are_not_counted() -> None:
    """E4B has 42 layers, of which 18 read another layer's K/V."""
    assert sum(kind.num_layers for kind in kinds_of_layers(spec_of("gemma-4-E4B-it"))) == 42 - 18


def test_a_drafter_alone_is_refused() -> None:
    with pytest.raises(UnsupportedError, match="a drafter cannot be planned alone"):
        ask("gemma-4-31B-it-assistant")


@pytest.mark.parametrize(
    ("name", "settings", "budget"),
    [
        ("gemma-3-4b-it", PLAIN, 2048),
        ("gemma-4-31B-it", PLAIN, 2496),
        ("gemma-4-E4B-it", PLAIN, 2048),
        ("gemma-4-31B-it", replace(PLAIN, language_model_only=True), 2048),
        ("gemma-4-31B-it", replace(PLAIN, device=H100), 8192),
        ("gemma-4-31B-it", replace(PLAIN, memory_bytes=80 * GIB), 8192),
        ("gemma-4-31B-it", replace(PLAIN, max_num_batched_tokens=512, device=H100), 512),
    ],
)
def test_the_token_budget_of_a_step(name: str, settings: PlanSettings, budget: int) -> None:
    assert token_budget(spec_of(name), settings)[0] == budget


def test_the_cache_takes_what_the_share_leaves() -> None:
    estimate = ask("gemma-3-4b-it", memory_bytes=24 * GIB, max_model_len=8192, gpu_memory_utilization=0.5)
    found = estimate.engine_facts["vllm"]
    cache = found["num_blocks"] * 5 * 64 * KIB
    # What is needed at once: the profile's step and its images do not stand beside each other.
    assert found["available_kv_bytes"] == 12 * GIB - (estimate.ledger.total_bytes - cache)
    assert found["num_blocks"] == found["available_kv_bytes"] // (5 * 64 * KIB)


def test_what_is_needed_is_the_memory_of_which_the_share_holds_it() -> None:
    half = ask("gemma-3-4b-it", max_model_len=8192, gpu_memory_utilization=0.5).needed_bytes
    whole = ask("gemma-3-4b-it", max_model_len=8192, gpu_memory_utilization=1.0).needed_bytes
    assert abs(half - 2 * whole) <= 1


@pytest.mark.parametrize(
    ("text", "version"),
    [("0.9", (0, 9, 0)), ("v0.33.0", (0, 33, 0)), ("0.26.0rc1", (0, 26, 0)), ("0.20.1+cu130", (0, 20, 1))],
)
def test_versions(text: str, version: tuple[int, int, int]) -> None:
    assert parse_version(text, "vLLM") == version


@pytest.mark.parametrize("text", [None, "main", "nightly"])
def test_the_newest_version_is_above_all(text: str | None) -> None:
    assert parse_version(text, "vLLM") == NEWEST > (99, 0, 0)


@pytest.mark.parametrize("text", ["", "newest", "0", "1.2.3.4.5", "0.²"])
def test_what_is_no_version_is_refused(text: str) -> None:
    with pytest.raises(UnsupportedError, match="not a version of vLLM"):
        parse_version(text, "vLLM")


def test_absurd_settings_are_refused() -> None:
    with pytest.raises(RequestError, match="beyond the model's context"):
        ask("gemma-3-4b-it", max_model_len=1 << 30)
    for name in ("max_num_seqs", "block_size", "available_kv_bytes", "in_flight_batches", "max_model_len"):
        for value in (0, -1):
            with pytest.raises(RequestError, match=name):
                ask("gemma-3-4b-it", **{name: value})
    for share in (0.0, -0.5, 1.5, float("nan")):
        with pytest.raises(RequestError, match="gpu_memory_utilization"):
            ask("gemma-3-4b-it", gpu_memory_utilization=share)
    with pytest.raises(UnsupportedError, match="not a dtype of vLLM"):
        ask("gemma-3-4b-it", dtype="int4")
    with pytest.raises(UnsupportedError, match="is not a setting of vllm"):
        ask("gemma-3-4b-it", swa_full=True)


def line(estimate: Estimate, name: str) -> Line:
    (found,) = [line for line in estimate.ledger.lines if line.name == name]
    return found


def test_pages_grow_with_the_block_and_shrink_with_the_dtype() -> None:
    """31B: 16 x 2 x 16 heads x 256 values in two bytes are 256 KiB; blocks of 64 tokens four times that, fp8 half."""
    large = pool_of("gemma-4-31B-it", block=64)
    assert (large.page_bytes, [kind.block_size for kind in large.kinds]) == (1024 * KIB, [128, 64])
    small = pool_of("gemma-4-31B-it", dtype="fp8")
    assert (small.page_bytes, [kind.block_size for kind in small.kinds]) == (128 * KIB, [32, 16])
    # On 8 devices full layers keep one head of 512 and sliding ones two of 256: as many values.
    split = pool_of("gemma-4-31B-it", parts=8)
    assert (split.page_bytes, [kind.block_size for kind in split.kinds]) == (32 * KIB, [16, 16])


def test_scales_a_head_go_where_all_heads_are_alike() -> None:
    """Gemma 3 27B: 16 tokens x 2 x 16 heads x (128 + 4) bytes in both kinds."""
    assert pool_of("gemma-3-27b-it", dtype="fp8_per_token_head").page_bytes == 16 * 2 * 16 * 132
    assert pool_of("gemma-3-27b-it", dtype="nvfp4").page_bytes == 16 * 2 * 16 * (64 + 8)


@pytest.mark.parametrize(
    ("name", "length", "groups", "full", "sliding"),
    [
        # A step of 2,048 tokens, one batch in flight: sliding blocks for window - 1 + 2,048 tokens, and one.
        ("gemma-2-2b", 8192, (1, 1), 512, 384 + 1),
        ("gemma-3-270m", 32_768, (1, 5), 2048, 160 + 1),
        ("gemma-3-27b-it", 32_768, (1, 6), 2048, 192 + 1),
        ("gemma-4-E2B-it", 32_768, (1, 4), 2048, 80 + 1),
        ("gemma-4-12B-it", 32_768, (1, 5), 512, 192 + 1),
        ("gemma-4-26B-A4B-it", 32_768, (1, 5), 1024, 192 + 1),
    ],
)
def test_the_blocks_of_one_request(name: str, length: int, groups: tuple[int, int], full: int, sliding: int) -> None:
    found = facts(name, engine_version="0.25.0", max_model_len=length, max_num_batched_tokens=2048)
    assert found["blocks_per_request"] == groups[0] * full + groups[1] * sliding
    assert found["request_bytes"] == found["blocks_per_request"] * found["group_size"] * found["page_bytes"]


def test_shorter_than_the_window_a_request_reserves_its_own_length() -> None:
    """Gemma 2 2B at 1,000 tokens: 63 blocks of 16, and one more in the sliding group."""
    found = facts("gemma-2-2b", engine_version="0.25.0", max_model_len=1000, max_num_batched_tokens=2048)
    assert found["blocks_per_request"] == 63 + 64


def test_bytes_that_hold_a_block_less_hold_no_request() -> None:
    asked: dict[str, Any] = {"engine_version": "0.25.0", "max_model_len": 32_768, "max_num_batched_tokens": 2048}
    need = facts("gemma-4-31B-it", **asked)["request_bytes"]
    assert need == 1989 * 10 * 256 * KIB
    assert facts("gemma-4-31B-it", available_kv_bytes=need, **asked)["max_concurrency"] == 1.0
    less = facts("gemma-4-31B-it", available_kv_bytes=need - 1, **asked)
    assert less["max_concurrency"] == 1988 / 1989
    # One block of 32 tokens in the full group is what is given up.
    assert less["max_model_len_that_fits"] == 32_768 - 32
    assert facts("gemma-4-31B-it", available_kv_bytes=need, **asked)["max_model_len_that_fits"] == 32_768


def test_weights_are_divided_and_few_heads_are_copied() -> None:
    """12B over 4: 8 full layers have one head of 512 and one projection for K and V, of which three copies are more."""
    estimate = ask("gemma-4-12B-it", max_model_len=4096, tensor_parallel_size=4)
    whole = {part.name: part.size_bytes for part in estimate.weights}
    copies = 3 * 8 * 512 * 3840 * 2
    assert line(estimate, "weights: embedding").size_bytes == 262_144 * 3840 * 2 // 4
    assert line(estimate, "weights: layers").size_bytes == (whole["layers"] + copies) // 4
    assert line(estimate, "weights: norms").size_bytes == whole["norms"]
    vision = line(estimate, "weights: vision")
    assert vision.size_bytes == whole["vision"]
    assert vision.error_bytes == vision.size_bytes - vision.size_bytes // 4
    assert line(estimate, "runtime: buffers between devices").size_bytes == 256 << 20


def test_rotary_tables_of_every_head_size() -> None:
    """E4B: 131,072 positions of heads of 512 and of 256, in two bytes."""
    tables = line(ask("gemma-4-E4B-it", max_model_len=4096), "runtime: rotary tables and buffers")
    assert tables.size_bytes == 131_072 * (512 + 256) * 2


def test_cuda_graphs_are_counted_from_0_21() -> None:
    older = ask("gemma-3-4b-it", max_model_len=4096, engine_version="0.20.2")
    newer = ask("gemma-3-4b-it", max_model_len=4096, engine_version="0.21.0")
    assert line(newer, "runtime: CUDA graphs").size_bytes == 150 << 20
    assert not [found for found in older.ledger.lines if "CUDA graphs" in found.name]


def test_the_largest_step() -> None:
    """26B-A4B, 2,048 tokens: 3 x 2,816 values, 16 + 2 x 2 heads of 512 (more than 16 + 2 x 8 of 256), 3 x 2,112; then 8
    experts of 3 x 704 + 2,816."""
    estimate = ask("gemma-4-26B-A4B-it", max_model_len=4096, max_num_seqs=8, language_model_only=True)
    values = 3 * 2816 + 20 * 512 + 3 * 2112
    experts = 8 * (3 * 704 + 2816)
    assert line(estimate, "step: activations").size_bytes == 2048 * (values + experts) * 2
    assert line(estimate, "step: logits and sampling").size_bytes == 2 * 8 * 262_144 * 4


@pytest.mark.parametrize(
    ("asked", "rows"),
    [({}, 256), ({"device": H100}, 1024), ({"max_num_seqs": 7}, 7), ({"max_num_batched_tokens": 128}, 128)],
)
def test_the_profile_samples_for_every_request_that_may_run(asked: dict[str, Any], rows: int) -> None:
    estimate = ask("gemma-3-4b-it", max_model_len=4096, **asked)
    assert line(estimate, "step: logits and sampling").size_bytes == 2 * rows * 262_208 * 4


def test_the_profile_encodes_as_many_images_as_fit_a_step() -> None:
    """12B: 2,496 tokens hold 8 images of 280, each of which becomes 280 positions of 3,840 values."""
    found = line(ask("gemma-4-12B-it", max_model_len=4096), "media: embeddings of vision items")
    assert found.size_bytes == 8 * 280 * 3840 * 2
    alone = ask("gemma-4-12B-it", max_model_len=4096, language_model_only=True)
    assert not alone.ledger.select("media")


def test_adapters_and_drafter_stand_beside_the_weights() -> None:
    """Rank 8 beside Gemma 3 270M, twice: 18 layers of seven linears, the sum of inputs and outputs in two bytes."""
    widths = (640 + 1024) + 2 * (640 + 256) + (1024 + 640) + 2 * (640 + 2048) + (2048 + 640)
    adapters = line(ask("gemma-3-270m", max_model_len=4096, lora_rank=8, num_loras=2), "adapters: LoRA")
    assert adapters.size_bytes == 2 * 18 * widths * 8 * 2
    plain = facts("gemma-4-E4B-it", max_model_len=4096)
    drafted = ask("gemma-4-E4B-it", max_model_len=4096, draft=True)
    assert line(drafted, "weights: drafter").size_bytes > 0
    assert drafted.engine_facts["vllm"]["request_bytes"] == plain["request_bytes"]


def test_a_float32_checkpoint_is_run_in_16_bits() -> None:
    header = header_of("gemma-3-270m")
    single = replace(header, spec=replace(header.spec, stored_dtype="float32"))
    page = estimate_vllm(single, replace(PLAIN, max_model_len=4096)).engine_facts["vllm"]["page_bytes"]
    assert page == 16 * KIB
    assert facts("gemma-3-270m", max_model_len=4096, dtype="float32")["page_bytes"] == 32 * KIB
