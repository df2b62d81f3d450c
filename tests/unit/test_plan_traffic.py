"""What a step reads and computes, worked by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gemwright.planner.settings import PlanSettings
from gemwright.planner.traffic import Traffic, causal_pairs
from tests.planned_models import EMBEDDING, LAYERS, TINY, VLLM, estimate_of, part, spec_of, traffic


def test_a_step_reads_the_weights_and_what_each_layer_sees_of_the_cache() -> None:
    """A tied embedding once, as the head; 1,000 tokens of 1,024 B in 3 full layers, 512 of them in 15 with a window."""
    kv = 3 * 1024 * 1000 + 15 * 1024 * 512
    assert LAYERS == 100_270_080
    assert traffic().kv_bytes(1000) == kv == 10_936_320
    assert traffic().step_bytes(1000, 1) == 2 * (EMBEDDING + LAYERS) + kv == 547_020_800
    assert traffic().step_bytes(1000, 8) == 536_084_480 + 8 * kv


def test_a_step_computes_two_operations_a_parameter_and_four_a_key_and_value() -> None:
    attention = 4 * 1024 * (3 * 1000 + 15 * 512)
    assert traffic().step_flops(1000, 1) == 2 * (EMBEDDING + LAYERS) + attention == 579_829_760
    assert traffic().step_flops(1000, 3) == 3 * 579_829_760


def test_a_head_of_its_own_is_read_and_the_embedding_is_not() -> None:
    own = replace(TINY, weights=(*TINY.weights, part("head", EMBEDDING, EMBEDDING)))
    assert traffic(estimate=own).step_bytes(1, 1) - traffic().step_bytes(1, 1) == -EMBEDDING


def test_tables_of_per_layer_embeddings_are_not_read() -> None:
    more = replace(TINY, weights=(*TINY.weights, part("per-layer embedding", 10**9, 2 * 10**9)))
    assert traffic(estimate=more).step_bytes(1, 1) == traffic().step_bytes(1, 1)
    assert traffic(estimate=more).step_flops(1, 1) == traffic().step_flops(1, 1)


def test_a_prompt_sees_the_head_once_and_attends_within_windows() -> None:
    assert causal_pairs(1000, None) == 500_500
    assert causal_pairs(1000, 512) == 512 * 513 // 2 + 488 * 512 == 381_184
    assert traffic().prefill_product_flops(1000) == 2 * (LAYERS * 1000 + EMBEDDING)
    assert traffic().prefill_attention_flops(1000) == 4 * 1024 * (3 * 500_500 + 15 * 381_184)


@given(st.integers(1, 300), st.none() | st.integers(1, 40))
def test_pairs_are_those_that_one_would_count(num_tokens: int, window: int | None) -> None:
    counted = sum(min(position + 1, window or num_tokens) for position in range(num_tokens))
    assert causal_pairs(num_tokens, window) == counted


def test_a_step_reads_the_experts_that_its_tokens_choose() -> None:
    """128 experts, 8 a token: one token reads a sixteenth, sixteen tokens 1 - (15/16)^16 = 0.644 of them."""
    spec = spec_of("gemma-4-26B-A4B-it")
    estimate = estimate_of(spec, part("experts", 1000, 1_000_000), part("layers", 100, 1000))
    mixture = Traffic(spec, VLLM, estimate)
    assert mixture.is_mixture
    assert mixture.weights_bytes(1) == pytest.approx(1000 + 62_500)
    assert mixture.weights_bytes(16) == pytest.approx(1000 + 1_000_000 * (1 - (15 / 16) ** 16))
    assert mixture.all_weights_bytes == 1_001_000
    assert mixture.prefill_product_flops(10) == 2 * 10 * (100 + 1000 / 16), "each token meets its own experts alone"


def test_layers_that_share_keys_and_values_read_them_again() -> None:
    """E4B: 7 full layers read what 4 own, 35 sliding ones what 20 own; 2 heads of 512 and of 256, a window of 512."""
    spec = spec_of("gemma-4-E4B-it")
    shared = Traffic(spec, VLLM, estimate_of(spec))
    assert [sum(layer.window is None for layer in spec.layers), spec.num_layers] == [7, 42]
    assert shared.kv_bytes(10_000) == pytest.approx(7 * 4096 * 10_000 + 35 * 2048 * 512)


def test_our_engine_leaves_out_rows_that_nobody_wants() -> None:
    """E2B: after layer 15 none owns keys and values, and only a prompt's last row goes on. The layers that are left
    out have the wider feed-forward, so that less than their number's share remains."""
    spec = spec_of("gemma-4-E2B-it")
    estimate = estimate_of(spec, part("layers", 10**9, 10**9))
    ours, theirs = (Traffic(spec, PlanSettings(engine=engine), estimate) for engine in ("gemwright", "vllm"))
    ratio = ours.prefill_product_flops(10_000) / theirs.prefill_product_flops(10_000)
    assert 0.25 < ratio < 15 / 35
    assert ours.prefill_attention_flops(10_000) < theirs.prefill_attention_flops(10_000)
    assert ours.step_bytes(1, 1) == theirs.step_bytes(1, 1)
