"""Predicted speed: formulas worked by hand, published measurements within their bands, and what must be monotone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gemwright.errors import RequestError, UnsupportedError
from gemwright.planner.devices import Device, find_device, list_devices
from gemwright.planner.efficiency import ATTENTION, Band, device_class, efficiency
from gemwright.planner.estimate import Estimate, KVFacts, KVGroupFacts
from gemwright.planner.ledger import Ledger
from gemwright.planner.rates import combine
from gemwright.planner.settings import PlanSettings
from gemwright.planner.time import TimeEstimate, expected_tokens, predict
from gemwright.planner.traffic import Traffic, causal_pairs
from gemwright.planner.weights import WeightPart
from gemwright.spec.families import read_config
from gemwright.spec.model_header import ModelHeader
from gemwright.spec.model_spec import ModelSpec
from tests.published_configs import load_config

GIB = 1 << 30
EMBEDDING = 262_144 * 640
LAYERS = 18 * 640 * (1024 + 2 * 256 + 1024 + 3 * 2048)
"""Gemma 3 270M: 18 layers with 4 heads of 256, one of K and V, a feed-forward of 2,048; a window of 512 on 15."""


@cache
def spec_of(name: str) -> ModelSpec:
    return read_config(load_config(name), source=name)


def header_of(name: str) -> ModelHeader:
    return ModelHeader(name, spec_of(name), "config", "published")


def part(name: Any, num_parameters: int, size_bytes: float) -> WeightPart:
    return WeightPart(name, num_parameters, round(size_bytes), "as the test says", "test")


def estimate_of(spec: ModelSpec, *weights: WeightPart, needed_bytes: int = 0, parts: int = 1) -> Estimate:
    """An estimate of these weights, with K and V in two bytes a value, over `parts` devices."""
    own = [
        (layer.window, max(1, layer.num_kv_heads // parts), layer.head_dim) for layer in spec.layers if layer.owns_kv
    ]
    groups = tuple(
        KVGroupFacts(
            kind="full" if window is None else "sliding",
            num_layers=own.count((window, heads, size)),
            num_kv_heads=heads,
            head_dim=size,
            window=window,
            token_bytes=4 * heads * size,
            tokens_per_sequence=1,
        )
        for window, heads, size in dict.fromkeys(own)
    )
    return Estimate("any", Ledger(()), KVFacts(groups), weights, spec.max_context, 1, needed_bytes, {})


TINY = estimate_of(
    spec_of("gemma-3-270m"),
    part("embedding", EMBEDDING, 2 * EMBEDDING),
    part("layers", LAYERS, 2 * LAYERS),
    part("vision", 10**9, 10**9),
    part("unused", 10**9, 10**9),
)
VLLM = PlanSettings(engine="vllm")
H100 = find_device("h100")


def traffic(settings: PlanSettings = VLLM, estimate: Estimate = TINY, name: str = "gemma-3-270m") -> Traffic:
    return Traffic(spec_of(name), settings, estimate)


def predict_tiny(settings: PlanSettings = VLLM, device: Device | Sequence[Device] = H100, **asked: Any) -> TimeEstimate:
    return predict(header_of("gemma-3-270m"), settings, TINY, device, **{"context": 1000, **asked})


# Bytes and operations


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


# Devices together


def test_a_split_by_layers_runs_at_the_harmonic_mean() -> None:
    """896 and 448 GB/s with equal memory: 2 / (1/896 + 1/448) = 597.3 GB/s."""
    two = (find_device("rtx 5070 ti"), replace(find_device("rtx 5060 ti 16gb"), memory_bytes=16_303 << 20))
    assert combine(two, "layer", ()).bandwidth == pytest.approx(597.33e9, rel=1e-4)
    assert combine(two, "tensor", ()).bandwidth == 2 * 448e9, "equal parts wait for the slower one"


def test_a_split_by_layers_follows_memory() -> None:
    """3/4 of the bytes at 100, 1/4 at 50 GB/s: 1 / (0.0075 + 0.005) = 80."""
    large, small = (
        Device(f"NVIDIA {size}", "gpu", size, speed, {}, "test") for size, speed in ((30, 100.0), (10, 50.0))
    )
    assert combine((large, small), "layer", ()).bandwidth == pytest.approx(80)


def test_a_tensor_split_is_faster_than_one_and_slower_than_all_together() -> None:
    one = predict_tiny()
    spec = spec_of("gemma-3-27b-it")
    dense = part("layers", 27 * 10**9, 54 * 10**9)
    single, double = (
        predict(
            header_of("gemma-3-27b-it"),
            PlanSettings(engine="vllm", tensor_parallel_size=size),
            estimate_of(spec, dense, parts=size),
            H100,
            context=8000,
        )
        for size in (1, 2)
    )
    assert single.decode_tokens_per_s is not None and double.decode_tokens_per_s is not None  # noqa: PT018
    assert 1.5 < double.decode_tokens_per_s.value / single.decode_tokens_per_s.value < 2
    assert double.bytes_per_step == single.bytes_per_step
    # So small a model loses: the sums over devices take longer than its bytes.
    two = predict_tiny(PlanSettings(engine="vllm", tensor_parallel_size=2))
    assert two.decode_bound == "launch"
    assert two.inter_token_s is not None and one.inter_token_s is not None  # noqa: PT018
    assert two.inter_token_s.value > one.inter_token_s.value


# Predictions by hand


def test_decode_by_hand() -> None:
    """547,020,800 B at the shares of vLLM on NVIDIA, and what 18 layers need to start."""
    known = efficiency("vllm", H100, is_mixture=False)
    assert known is not None
    found = predict_tiny()
    speed = known.bandwidth.value * 3350e9
    step_s = 547_020_800 / speed + 18 * known.layer_s.value
    assert found.inter_token_s is not None and found.decode_tokens_per_s is not None  # noqa: PT018
    assert found.inter_token_s.value == pytest.approx(step_s)
    assert found.decode_tokens_per_s.value == pytest.approx(1 / step_s)
    assert found.decode_tokens_per_s.high == pytest.approx(known.bandwidth.high * 3350e9 / 547_020_800)
    assert (found.decode_bound, found.bytes_per_step, found.flops_per_step) == ("launch", 547_020_800, 579_829_760)


def test_first_token_by_hand() -> None:
    known = efficiency("vllm", H100, is_mixture=False)
    assert known is not None
    found = predict_tiny(context=100_00, prompt_tokens=10_000, attention="tuned")
    mine = traffic()
    products = mine.prefill_product_flops(10_000) / (known.compute.value * 989.5e12)
    attention = mine.prefill_attention_flops(10_000) / (ATTENTION["tuned"].value * 989.5e12)
    starts = 5 * 18 * known.layer_s.value
    assert found.ttft_s is not None
    assert found.ttft_s.value == pytest.approx(products + attention + starts), "in 5 parts of 2,048 tokens"
    assert found.prefill_flops == round(mine.prefill_product_flops(10_000) + mine.prefill_attention_flops(10_000))


def test_what_a_kernel_for_attention_changes() -> None:
    fast, slow, unknown = (
        predict_tiny(context=30_000, attention=kind).ttft_s for kind in ("tuned", "fallback", "unknown")
    )
    assert fast is not None and slow is not None and unknown is not None  # noqa: PT018
    assert slow.value > 10 * fast.value
    assert unknown.low <= fast.low
    assert unknown.high >= slow.high


def test_vllm_picks_the_kernel_by_device_where_heads_are_wide() -> None:
    wide = predict(header_of("gemma-4-31B-it"), VLLM, estimate_of(spec_of("gemma-4-31B-it")), H100, context=30_000)
    assert any("attention kernel" in note for note in wide.notes)
    assert not any("attention kernel" in note for note in predict_tiny().notes)


def test_half_of_the_highest_throughput_is_reached_where_it_says() -> None:
    found = predict_tiny()
    assert found.half_rate_num_seqs is not None
    at, far = (predict_tiny(num_seqs=count) for count in (round(found.half_rate_num_seqs), 10**7))
    assert at.decode_tokens_per_s is not None and far.decode_tokens_per_s is not None  # noqa: PT018
    assert at.decode_tokens_per_s.value / far.decode_tokens_per_s.value == pytest.approx(0.5, rel=0.02)


def test_many_short_sequences_are_bound_by_compute_and_many_long_ones_by_bandwidth() -> None:
    assert predict_tiny(context=1, num_seqs=5000).decode_bound == "compute"
    assert predict_tiny(context=30_000, num_seqs=500).decode_bound == "bandwidth"


def test_what_does_not_fit_has_no_speed() -> None:
    large = replace(TINY, needed_bytes=100 * GIB)
    found = predict(header_of("gemma-3-270m"), VLLM, large, H100, context=1000)
    assert (found.decode_bound, found.prefill_bound, found.decode_tokens_per_s) == ("capacity", "capacity", None)
    assert found.to_dict()["decode_tokens_per_s"] is None
    asked = PlanSettings(engine="vllm", memory_bytes=200 * GIB)
    assert predict(header_of("gemma-3-270m"), asked, large, H100, context=1000).decode_bound != "capacity"


def test_a_drafter_is_a_term_of_its_own() -> None:
    """Four drafted tokens of which 70 % are kept bring 1 + 0.7 + 0.49 + 0.343 + 0.2401 = 2.7731 a step."""
    assert expected_tokens(0.7, 4) == pytest.approx(2.7731)
    assert expected_tokens(1.0, 3) == 4
    drafted = replace(TINY, weights=(*TINY.weights, part("drafter", 10**6, 2 * 10**6)))
    settings = PlanSettings(engine="vllm", draft=True, num_speculative_tokens=4)
    found = predict(header_of("gemma-3-270m"), settings, drafted, H100, context=1000)
    assert found.speculation is not None
    assert found.speculation.tokens_per_step.value == pytest.approx(2.7731)
    assert found.decode_tokens_per_s is not None
    plain = found.decode_tokens_per_s.value
    assert plain < found.speculation.decode_tokens_per_s.value < 2.7731 * plain
    assert predict_tiny().speculation is None
    never = predict(
        header_of("gemma-3-270m"), settings, drafted, H100, context=1000, acceptance=Band(0.0, 0.0, 0.0)
    ).speculation
    assert never is not None
    assert never.decode_tokens_per_s.value < plain, "what is drafted and never kept costs"


# Where nothing is known, nothing is said


def test_no_speed_without_a_measured_engine_a_bandwidth_or_a_peak() -> None:
    tpu = predict_tiny(device=find_device("tpu v5e"))
    assert tpu.decode_tokens_per_s is None
    assert "nothing was measured of vllm" in tpu.notes[0]
    unheard = predict_tiny(device=Device("NVIDIA Unheard", "gpu", None, None, {}, "test"))
    assert unheard.decode_tokens_per_s is None
    assert "bandwidth of NVIDIA Unheard is not known" in unheard.notes[0]
    spark = predict_tiny(device=find_device("dgx spark"))
    assert spark.decode_tokens_per_s is not None
    assert spark.ttft_s is None
    assert "not published" in spark.notes[0]


def test_float32_without_matrix_units_is_no_measure_of_a_gpu_that_has_them() -> None:
    """Of an RTX 3060 the float32 peak alone is published; products in bfloat16 are several times as fast."""
    assert set(find_device("rtx 3060").peak_flops) == {"float32"}
    assert predict_tiny(device=find_device("rtx 3060")).ttft_s is None
    assert predict_tiny(PlanSettings(engine="vllm", dtype="float32"), find_device("rtx 3060")).ttft_s is not None


@pytest.mark.parametrize("asked", [{"context": 0}, {"num_seqs": 0}, {"prompt_tokens": 0}, {"context": 10**9}])
def test_counts_that_cannot_be_are_refused(asked: dict[str, int]) -> None:
    with pytest.raises(RequestError):
        predict_tiny(**asked)


def test_no_device_is_refused() -> None:
    with pytest.raises(RequestError):
        predict_tiny(device=())


def test_every_device_of_the_table_has_a_class_or_no_speed() -> None:
    for device in list_devices():
        kind = device_class(device)
        assert (kind is None) is (device.kind == "npu"), device.name
        for is_mixture in (False, True):
            known = efficiency("llama.cpp", device, is_mixture=is_mixture)
            assert (known is None) is (kind is None), device.name
    assert device_class(find_device("MI50 32GB")) == "old amd"
    assert device_class(Device("Tesla V100-SXM2-16GB", "gpu", None, None, {}, "nvidia-smi")) == "nvidia"


def test_lines_for_people_have_the_band_and_its_evidence() -> None:
    text = "\n".join(predict_tiny(num_seqs=2).describe())
    for word in ("decode ", "tokens/s (", "first token after", "half of the highest", "measured before", "one prompt"):
        assert word in text


# Order


@given(
    st.sampled_from(["gemma-3-270m", "gemma-4-E2B-it", "gemma-4-26B-A4B-it"]),
    st.sampled_from(["h100", "rtx 4090", "mi300x", "m2 ultra", "epyc 9654"]),
    st.lists(st.integers(1, 30_000), min_size=2, max_size=4),
    st.lists(st.integers(1, 300), min_size=2, max_size=4),
)
def test_longer_is_never_faster_and_more_users_never_wait_less(
    name: str, device: str, contexts: list[int], users: list[int]
) -> None:
    spec = spec_of(name)
    estimate = estimate_of(
        spec, part("embedding", 10**8, 10**8), part("layers", 10**9, 10**9), part("experts", 10**9, 10**9)
    )

    def at(context: int, num_seqs: int) -> tuple[Band, Band]:
        settings = PlanSettings(engine="llama.cpp")
        found = predict(header_of(name), settings, estimate, find_device(device), context=context, num_seqs=num_seqs)
        assert found.inter_token_s is not None
        assert found.decode_tokens_per_s is not None
        for band in (found.inter_token_s, found.decode_tokens_per_s, *([found.ttft_s] if found.ttft_s else [])):
            assert 0 < band.low <= band.value <= band.high
        return found.inter_token_s, found.decode_tokens_per_s

    for (slow, less), (slower, lesser) in pairwise(at(context, users[0]) for context in sorted(contexts)):
        assert slower.value >= slow.value
        assert lesser.value <= less.value
    for (wait, together), (longer, more) in pairwise(at(contexts[0], count) for count in sorted(users)):
        assert longer.value >= wait.value
        assert more.value >= together.value * (1 - 1e-9)


# Published measurements

MI50 = find_device("mi50 32gb")
MEASURED = {
    # id of the record: model, engine, devices, GiB read for a token, tokens/s measured
    "t-31b-nvfp4-gb10": ("gemma-4-31B-it", "llama.cpp", ("gb10",), 17.97, 11.56),
    "t-4b-f16-8060s": ("gemma-3-4b-it", "llama.cpp", ("radeon 8060s",), 7.23, 26.22),
    "t-27b-f16-mi50": ("gemma-3-27b-it", "llama.cpp", ("mi50 32gb", "mi50 32gb"), 50.31, 10.37),
    "t-12b-q4km-gb10-ollama": ("gemma-3-12b-it", "ollama", ("gb10",), 6.79, 24),
    "t-27b-2x5060": ("gemma-3-27b-it", "llama.cpp", ("rtx 5070 ti", "rtx 5060 ti 16gb"), 20.96, 21.28),
}
NOT_PREDICTED = {
    "t-31b-mlx-m2ultra": "MLX is an engine for which there is no formula",
    "t-26b-mlx-m2ultra": "MLX is an engine for which there is no formula",
    "t-3n-e4b-mi50": "Gemma 3n is refused by name",
}


@pytest.mark.parametrize("record", MEASURED)
def test_decode_that_was_measured_is_within_its_band(record: str) -> None:
    name, engine, devices, read_gib, measured = MEASURED[record]
    estimate = estimate_of(spec_of(name), part("layers", 10**9, read_gib * GIB))
    settings = PlanSettings(engine=engine)  # type: ignore[arg-type]
    found = predict(header_of(name), settings, estimate, [find_device(one) for one in devices], context=128)
    assert found.decode_tokens_per_s is not None
    assert found.decode_tokens_per_s.low <= measured <= found.decode_tokens_per_s.high
    assert found.decode_tokens_per_s.value == pytest.approx(measured, rel=0.3)
    assert found.decode_bound == "bandwidth"


@pytest.mark.parametrize("record", NOT_PREDICTED)
def test_measurements_that_no_formula_covers(record: str) -> None:
    if "MLX" in NOT_PREDICTED[record]:
        from gemwright.planner.settings import UNKNOWN_ENGINES

        assert "mlx" in UNKNOWN_ENGINES
    else:
        with pytest.raises(UnsupportedError):
            spec_of("gemma-3n-E4B-it")


def test_one_unnamed_card_runs_four_models_at_consistent_rates() -> None:
    """t-12b-q4km-cuda: the card is not named. If the 12B Q4_K_M (6.62 GiB, 52.17 tokens/s) runs at the usual share, the
    QAT file of 6.24 GiB and the 26B-A4B in Q4_0 must be within their bands on the same card.

    Its E4B (4.62 GiB, 107.2 tokens/s) reads about 2.9 GiB without the table of per-layer embeddings, 2.82 * 10**9
    values of about 5 bits.
    """
    known = efficiency("llama.cpp", H100, is_mixture=False)
    assert known is not None
    card = Device("NVIDIA, unnamed", "gpu", None, 52.17 * 6.62 * GIB / known.bandwidth.value, {}, "test")
    experts = 30 * 128 * 3 * 2816 * 704
    dense = 25_233_000_000 - experts
    mixture = [part("experts", experts, experts * 4.5 / 8), part("layers", dense, dense * 4.5 / 8)]
    for name, weights, measured in (
        ("gemma-4-12B-it", [part("layers", 10**9, 6.24 * GIB)], 55.4),
        ("gemma-4-E4B-it", [part("layers", 10**9, 2.9 * GIB)], 107.2),
        ("gemma-4-26B-A4B-it", mixture, 135.4),
    ):
        settings = PlanSettings(engine="llama.cpp")
        found = predict(header_of(name), settings, estimate_of(spec_of(name), *weights), card, context=128)
        assert found.decode_tokens_per_s is not None
        assert found.decode_tokens_per_s.low <= measured <= found.decode_tokens_per_s.high, name


@pytest.mark.parametrize(
    ("prompt", "attention", "measured_s"),
    [(24_200, "tuned", 4.2), (11_800, "tuned", 1.7), (24_200, "fallback", 116.6), (11_800, "fallback", 27.7)],
)
def test_prompts_with_either_attention_kernel_are_within_their_bands(
    prompt: int, attention: Any, measured_s: float
) -> None:
    """t-26b-b70-prefill, vLLM on an Intel Arc Pro B70. With an unknown kernel the band holds both."""
    spec = spec_of("gemma-4-26B-A4B-it")
    experts = 30 * 128 * 3 * 2816 * 704
    dense = 25_233_000_000 - experts
    estimate = estimate_of(spec, part("experts", experts, experts * 4.5 / 8), part("layers", dense, dense * 4.5 / 8))
    for kernel in (attention, None):
        found = predict(
            header_of("gemma-4-26B-A4B-it"), VLLM, estimate, find_device("b70"), context=prompt, attention=kernel
        )
        assert found.ttft_s is not None
        assert found.ttft_s.low <= measured_s <= found.ttft_s.high
        assert kernel is None or found.ttft_s.value == pytest.approx(measured_s, rel=0.35)


def test_a_long_prompt_on_two_h200_is_within_its_band() -> None:
    """t-31b-h200-ttft: 31,493 tokens in 9.085 s, a short answer included; which kernel attended is not told."""
    spec = spec_of("gemma-4-31B-it")
    settings = PlanSettings(engine="vllm", quantization="fp8", tensor_parallel_size=2)
    estimate = estimate_of(spec, part("layers", 30_697_000_000, 30_697_000_000), parts=2)
    found = predict(header_of("gemma-4-31B-it"), settings, estimate, find_device("h200"), context=31_493)
    assert found.ttft_s is not None
    assert found.ttft_s.low <= 9.085 <= found.ttft_s.high


def test_a_prompt_on_two_old_cards_is_within_its_band() -> None:
    """t-27b-f16-mi50: 512 tokens at 236.5 a second."""
    spec = spec_of("gemma-3-27b-it")
    estimate = estimate_of(spec, part("layers", 27_009_000_000, 2 * 27_009_000_000))
    found = predict(header_of("gemma-3-27b-it"), PlanSettings(engine="llama.cpp"), estimate, [MI50, MI50], context=512)
    assert found.ttft_s is not None
    assert found.ttft_s.low <= 512 / 236.5 <= found.ttft_s.high
    assert found.ttft_s.value == pytest.approx(512 / 236.5, rel=0.3)


@pytest.mark.parametrize(
    ("gigabytes_per_s", "gigaflops", "decode", "first_s"),
    [(20.3, 148, 12.9, 1.9), (27.4, 108, 7.3, 3.1), (26, 148, 16, None)],
)
def test_our_own_engine_is_within_its_band(
    gigabytes_per_s: float, gigaflops: float, decode: float, first_s: float | None
) -> None:
    """Gemma 3 270M in bfloat16 on two cores and on one of an EPYC, and on two of a Xeon; a prompt of 1,001 tokens."""
    cpu = Device("EPYC", "cpu", None, gigabytes_per_s * 1e9, {"float32": gigaflops * 1e9}, "measured")
    found = predict_tiny(PlanSettings(), cpu, context=1001)
    assert found.decode_tokens_per_s is not None and found.ttft_s is not None  # noqa: PT018
    assert found.decode_tokens_per_s.low <= decode <= found.decode_tokens_per_s.high
    assert first_s is None or found.ttft_s.low <= first_s <= found.ttft_s.high
