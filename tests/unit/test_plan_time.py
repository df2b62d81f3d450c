"""Predicted speed: formulas worked by hand, where nothing is said, and what must be monotone."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gemwright.errors import RequestError
from gemwright.planner.devices import Device, find_device, list_devices
from gemwright.planner.efficiency import ATTENTION, Band, device_class, efficiency
from gemwright.planner.rates import combine
from gemwright.planner.settings import PlanSettings
from gemwright.planner.time import expected_tokens, predict
from tests.planned_models import GIB, H100, TINY, VLLM, estimate_of, header_of, part, predict_tiny, spec_of, traffic

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
    without = predict_tiny(PlanSettings(engine="vllm", num_speculative_tokens=4))
    assert without.speculation is None
    assert any("--draft" in note for note in without.notes)
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
