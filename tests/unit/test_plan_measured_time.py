"""Speeds that were measured and published, within the bands that are predicted for them."""

from __future__ import annotations

from typing import Any

import pytest

from gemwright.errors import UnsupportedError
from gemwright.planner.devices import Device, find_device
from gemwright.planner.efficiency import efficiency
from gemwright.planner.settings import UNKNOWN_ENGINES, PlanSettings
from gemwright.planner.time import predict
from tests.planned_models import GIB, H100, VLLM, estimate_of, header_of, part, predict_tiny, spec_of

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
