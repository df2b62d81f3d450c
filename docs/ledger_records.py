"""Published memory records, and what the planner says for the same settings: the data behind docs/ledger.md.

A record's settings are free text; where the text leaves something open, `note` says how it was read. Each check has a
class: "exact", "rounded" (the input was printed rounded: 0.1 %), a share for weights, or "shown" (no claim).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from gemwright.planner.devices import find_device
from gemwright.planner.estimate import Estimate, estimate
from gemwright.planner.published import find_published
from gemwright.planner.settings import PlanSettings
from gemwright.planner.time import predict
from gemwright.planner.weights import num_language_parameters, num_parameters
from gemwright.spec.families import read_config
from gemwright.spec.model_header import ModelHeader

RECORDS: Final[list[dict[str, Any]]] = json.loads(
    (Path(__file__).parents[1] / "tests" / "data" / "memory_records.json").read_text(encoding="utf-8")
)

MIB: Final = 1 << 20
GIB: Final = 1 << 30
BILLION: Final = 10**9

Value = Callable[[Estimate, ModelHeader], float]


@dataclass(frozen=True)
class Check:
    """One number of a record: what was published, and how ours is read off an estimate."""

    what: str
    published: float
    ours: Value
    tolerance: float | None = 0.0
    """As a share of the published number; 0.0: equal once rounded as it was printed. None: shown, no claim."""
    digits: int = 0
    """Digits after the point of the published number."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Settings of this number alone."""


@dataclass(frozen=True)
class Reading:
    """How a record is read: model, settings, numbers."""

    model: str
    settings: Mapping[str, Any]
    checks: tuple[Check, ...]
    note: str = ""


@dataclass(frozen=True)
class Result:
    """One check carried out."""

    what: str
    published: float
    ours: float
    tolerance: float | None
    digits: int

    @property
    def error(self) -> float:
        """Ours less the published, as a share of it; below zero where we predict too little."""
        return self.ours / self.published - 1

    @property
    def is_met(self) -> bool | None:
        """Whether it is within its class; None where nothing is claimed."""
        if self.tolerance is None:
            return None
        rounded = round(self.ours, self.digits)
        return rounded == self.published or abs(self.error) <= self.tolerance


def header_of(model: str) -> ModelHeader:
    """Return the header of a published model, from its config alone."""
    found = find_published(model)
    assert found is not None, model
    return ModelHeader(model, read_config(found.config), "config", "published")


def carry_out(reading: Reading) -> list[Result]:
    """Return a reading's numbers beside ours."""
    header = header_of(reading.model)
    results = []
    for check in reading.checks:
        found = estimate(header, PlanSettings(**{**reading.settings, **check.settings}))
        results.append(Result(check.what, check.published, check.ours(found, header), check.tolerance, check.digits))
    return results


def _llama(name: str, unit: int = MIB) -> Value:
    return lambda found, _: found.engine_facts["llama_cpp"][name] / unit


def _kv_mib(found: Estimate, _: ModelHeader) -> float:
    facts = found.engine_facts["llama_cpp"]
    return (facts["kv_full_bytes"] + facts["kv_sliding_bytes"]) / MIB


def _vllm(name: str, unit: int = 1) -> Value:
    return lambda found, _: found.engine_facts["vllm"][name] / unit


def _weights(unit: int) -> Value:
    return lambda found, _: found.weights_bytes / unit


def _language(unit: int) -> Value:
    return lambda _, header: num_language_parameters(header.spec) / unit


def _unused(unit: int) -> Value:
    from gemwright.spec.weights import count_all_parameters

    return lambda _, header: (
        (num_language_parameters(header.spec) + count_all_parameters(header.spec).num_unused_elements) / unit
    )


def _llama_cpp(**settings: Any) -> dict[str, Any]:
    return {"engine": "llama.cpp", "parallel": 1, **settings}


def _engine_vllm(**settings: Any) -> dict[str, Any]:
    return {"engine": "vllm", **settings}


_Q8: Final = {"cache_type_k": "q8_0", "cache_type_v": "q8_0"}
_SIZE: Final = 0.005
_K_QUANT: Final = 0.02
_ROUNDED: Final = 0.001

READINGS: Final[dict[str, Reading]] = {
    "lcpp-12b-np1-8k-q8": Reading(
        "google/gemma-4-12B-it", _llama_cpp(ctx_size=8192, **_Q8), (Check("K/V, MiB", 323, _kv_mib),)
    ),
    "lcpp-12b-np1-8k-f16": Reading(
        "google/gemma-4-12B-it", _llama_cpp(ctx_size=8192), (Check("K/V, MiB", 608, _kv_mib),)
    ),
    "lcpp-12b-np1-4k-q8": Reading(
        "google/gemma-4-12B-it", _llama_cpp(ctx_size=4096, **_Q8), (Check("K/V, MiB", 289, _kv_mib),)
    ),
    "lcpp-26b-262k-q8": Reading(
        "google/gemma-4-26B-A4B-it",
        _llama_cpp(ctx_size=262144, **_Q8),
        (
            Check("full K/V, MiB", 2720.00, _llama("kv_full_bytes"), digits=2),
            Check("sliding K/V, MiB", 159.38, _llama("kv_sliding_bytes"), digits=2),
            Check("sliding cells", 1536, _llama("kv_sliding_cells", 1)),
        ),
    ),
    "lcpp-e4b-16k-q8": Reading(
        "google/gemma-4-E4B-it",
        _llama_cpp(ctx_size=16384, **_Q8),
        (
            Check("sliding K/V, MiB", 21.25, _llama("kv_sliding_bytes"), digits=2),
            Check("sliding cells", 1024, _llama("kv_sliding_cells", 1)),
        ),
    ),
    "lcpp-12b-32k-swafull": Reading(
        "google/gemma-4-12B-it",
        _llama_cpp(ctx_size=32768, swa_full=True),
        (
            Check("full K/V, MiB", 512.0, _llama("kv_full_bytes"), digits=1),
            Check("sliding cells", 32768, _llama("kv_sliding_cells", 1)),
        ),
    ),
    "lcpp-31b-131k": Reading(
        "google/gemma-4-31B-it",
        _llama_cpp(ctx_size=131072),
        (Check("full cells", 131072, _llama("kv_full_cells", 1)),),
        "one slot is assumed; the type of K and V is not stated",
    ),
    "lcpp-e4b-npu-4k": Reading(
        "google/gemma-4-E4B-it",
        _llama_cpp(ctx_size=4096, ubatch_size=1024),
        (
            Check("full K/V, MiB", 64.0, _llama("kv_full_bytes"), digits=1),
            Check("sliding K/V, MiB", 60.0, _llama("kv_sliding_bytes"), digits=1),
            Check("sliding cells", 1536, _llama("kv_sliding_cells", 1)),
            Check("sliding K/V with swa-full, MiB", 160.0, _llama("kv_sliding_bytes"), settings={"swa_full": True}),
        ),
    ),
    "lcpp-31b-240k-np4": Reading(
        "google/gemma-4-31B-it",
        {"engine": "llama.cpp", "ctx_size": 240000, "parallel": 4, "kv_unified": True},
        (
            Check("full cells", 240128, _llama("kv_full_cells", 1)),
            Check("sliding cells", 4608, _llama("kv_sliding_cells", 1)),
        ),
    ),
    "x-swafull-default": Reading(
        "google/gemma-4-E4B-it",
        _llama_cpp(ctx_size=4096, ubatch_size=1024),
        (
            Check("windowed, MiB", 60.0, _llama("kv_sliding_bytes")),
            Check("swa-full, MiB", 160.0, _llama("kv_sliding_bytes"), settings={"swa_full": True}),
        ),
    ),
    "x-e4b-shared": Reading(
        "google/gemma-4-E4B-it",
        _llama_cpp(ctx_size=16384, **_Q8),
        (Check("sliding K/V, MiB", 21.25, _llama("kv_sliding_bytes"), digits=2),),
    ),
    "x-12b-ctx-halving": Reading(
        "google/gemma-4-12B-it",
        _llama_cpp(ctx_size=4096, **_Q8),
        (Check("full K/V at 4,096 = what halving saves, MiB", 38, _llama("kv_full_bytes"), None),),
        "34 MiB of K/V; 4 MiB of the 38 measured are compute buffers",
    ),
    "vllm-26b-b70-triton": Reading(
        "google/gemma-4-26B-A4B-it",
        _engine_vllm(
            engine_version="0.26.0",
            available_kv_bytes=11274289152,
            max_model_len=131072,
            block_size=16,
            max_num_batched_tokens=2496,
        ),
        (
            Check("tokens", 376999, _vllm("kv_cache_size_tokens")),
            Check("concurrency", 2.88, _vllm("max_concurrency"), digits=2),
        ),
    ),
    "vllm-31b-b200-8k": Reading(
        "google/gemma-4-31B-it",
        _engine_vllm(available_kv_bytes=int(63.29 * GIB), max_model_len=8192, max_num_batched_tokens=8192),
        (
            Check("tokens", 75278, _vllm("kv_cache_size_tokens"), _ROUNDED),
            Check("concurrency", 9.19, _vllm("max_concurrency"), digits=2),
        ),
        "the token budget is not stated; any from 7,169 on gives the same",
    ),
    "vllmmetal-26b-32k": Reading(
        "google/gemma-4-26B-A4B-it",
        _engine_vllm(available_kv_bytes=171536 * 225280, max_model_len=32768, max_num_batched_tokens=2496),
        (Check("tokens", 664225, _vllm("kv_cache_size_tokens"), _ROUNDED),),
        "the budget is what the older report of 171,536 tokens, all layers full, comes to",
    ),
    "vllm-31b-2xb70": Reading(
        "google/gemma-4-31B-it",
        _engine_vllm(
            engine_version="0.21.0",
            available_kv_bytes=int(10.12 * GIB),
            max_model_len=163840,
            block_size=64,
            max_num_batched_tokens=8192,
            tensor_parallel_size=2,
            in_flight_batches=1,
        ),
        (
            Check("tokens", 169314, _vllm("kv_cache_size_tokens"), _ROUNDED),
            Check("concurrency", 1.03, _vllm("max_concurrency"), digits=2),
        ),
    ),
    "vllm-e2b-t4-w4a16": Reading(
        "google/gemma-4-E2B-it",
        _engine_vllm(
            engine_version="0.29.0",
            available_kv_bytes=int(4.66 * GIB),
            max_model_len=16384,
            max_num_batched_tokens=2048,
            quantization="w4a16",
        ),
        (
            Check("tokens", 519681, _vllm("kv_cache_size_tokens"), _ROUNDED),
            Check("concurrency", 31.72, _vllm("max_concurrency"), _ROUNDED, digits=2),
            Check("weights loaded, GiB", 8.02, _weights(GIB), None, digits=2),
        ),
    ),
    "vllm-12b-a10-64k": Reading(
        "google/gemma-4-12B-it",
        _engine_vllm(
            engine_version="0.26.0",
            available_kv_bytes=int(11.13 * GIB),
            max_model_len=65536,
            max_num_batched_tokens=2496,
        ),
        (
            Check("tokens", 256669, _vllm("kv_cache_size_tokens"), _ROUNDED),
            Check("concurrency", 3.92, _vllm("max_concurrency"), digits=2),
        ),
    ),
    "vllm-31b-a100-report-v020": Reading(
        "google/gemma-4-31B-it",
        _engine_vllm(engine_version="0.20.0", available_kv_bytes=50 * GIB, max_model_len=16384),
        (Check("tokens, about", 55000, _vllm("kv_cache_size_tokens"), 0.01),),
        "published as about 55,000 from about 50 GiB; the older report does not depend on the length",
    ),
    "vllmmetal-31b-262k": Reading(
        "google/gemma-4-31B-it",
        _engine_vllm(available_kv_bytes=12724 * 2621440, max_model_len=262144, max_num_batched_tokens=2496),
        (Check("tokens", 331003, _vllm("kv_cache_size_tokens")),),
        "12,724 blocks are those of the companion run",
    ),
    "vllm-26b-b70-mtp": Reading(
        "google/gemma-4-26B-A4B-it",
        _engine_vllm(
            engine_version="0.26.0",
            available_kv_bytes=10200547328,
            max_model_len=131072,
            block_size=64,
            max_num_batched_tokens=2048,
            draft=True,
            num_speculative_tokens=3,
        ),
        (
            Check("tokens", 356893, _vllm("kv_cache_size_tokens")),
            Check("concurrency", 2.72, _vllm("max_concurrency"), digits=2),
        ),
    ),
    "vllm-12b-a10-16k": Reading(
        "google/gemma-4-12B-it",
        _engine_vllm(
            engine_version="0.26.0",
            available_kv_bytes=11325 * MIB,
            max_model_len=16384,
            max_num_batched_tokens=2496,
        ),
        (Check("tokens", 86664, _vllm("kv_cache_size_tokens")),),
        "about 11 GiB; 11,325 blocks of 1 MiB give the printed number",
    ),
    "vllm-31b-049878-after": Reading(
        "google/gemma-4-31B-it",
        _engine_vllm(
            engine_version="0.26.0",
            available_kv_bytes=49 * GIB,
            max_model_len=262144,
            max_num_batched_tokens=32768,
        ),
        (
            Check("longest that fits", 58368, _vllm("max_model_len_that_fits")),
            Check("K/V of one request, GiB", 70.79, _vllm("request_bytes", GIB), digits=2),
        ),
    ),
    "vllm-27b-spark-nvfp4": Reading(
        "google/gemma-3-27b-it",
        _engine_vllm(max_model_len=131072),
        (
            Check("page bytes, fp8", 65536, _vllm("page_bytes"), settings={"kv_cache_dtype": "fp8"}),
            Check("page bytes, nvfp4", 36864, _vllm("page_bytes"), settings={"kv_cache_dtype": "nvfp4"}),
        ),
        "the memory is not stated, so tokens are not compared",
    ),
    "w-31b-params": Reading(
        "google/gemma-4-31B-it",
        _llama_cpp(quantization="q4_0"),
        (
            Check("parameters, billions", 30.7, _language(BILLION), digits=1),
            Check("size, GiB", 16.09, _weights(GIB), _SIZE, digits=2),
        ),
    ),
    "w-26b-q80": Reading(
        "google/gemma-4-26B-A4B-it",
        _llama_cpp(quantization="q8_0"),
        (
            Check("parameters, billions", 25.23, _language(BILLION), digits=2),
            Check("size, GiB", 25.0, _weights(GIB), _SIZE, digits=2),
        ),
    ),
    "w-12b-qat": Reading(
        "google/gemma-4-12B-it",
        _llama_cpp(quantization="q4_0"),
        (
            Check("parameters, billions", 11.91, _language(BILLION), digits=2),
            Check("size, GiB", 6.24, _weights(GIB), _SIZE, digits=2),
        ),
    ),
    "w-e2b-q80": Reading(
        "google/gemma-4-E2B-it",
        _llama_cpp(quantization="q8_0"),
        (
            Check("parameters with unused K/V, billions", 4.65, _unused(BILLION), digits=2),
            Check("size, GiB", 4.61, _weights(GIB), _SIZE, digits=2),
        ),
        "the file holds the K/V of sharing layers, which a later one leaves out: 0.4 %",
    ),
    "w-3-12b-q80": Reading(
        "google/gemma-3-12b-it",
        _llama_cpp(quantization="q8_0"),
        (
            Check("parameters, billions", 11.77, _language(BILLION), digits=2),
            Check("size, GiB", 11.64, _weights(GIB), _SIZE, digits=2),
        ),
    ),
    "w-3-1b-params": Reading(
        "google/gemma-3-1b-it",
        _llama_cpp(quantization="q4_k_m"),
        (
            Check("parameters, millions", 999.89, _language(10**6), digits=2),
            Check("size, MiB", 762.49, _weights(MIB), _K_QUANT, digits=2),
        ),
    ),
    "w-31b-q40-google": Reading(
        "google/gemma-4-31B-it",
        _llama_cpp(quantization="q4_0", embedding_quantization="q6_k"),
        (Check("size, GiB", 16.42, _weights(GIB), _SIZE, digits=2),),
    ),
    "w-31b-nvfp4": Reading(
        "google/gemma-4-31B-it",
        {"engine": "vllm", "quantization": "nvfp4", "language_model_only": True},
        (Check("size, GiB", 17.97, _weights(GIB), _SIZE, digits=2),),
        "a GGUF of NVFP4; the same bytes as the recipe of safetensors",
    ),
    "w-26b-q4km": Reading(
        "google/gemma-4-26B-A4B-it",
        _llama_cpp(quantization="q4_k_m"),
        (Check("size, GiB", 15.63, _weights(GIB), None, digits=2),),
        "builds differ: 15.63 to 15.83 GiB under one name",
    ),
    "w-e2b-q40": Reading(
        "google/gemma-4-E2B-it",
        _llama_cpp(quantization="q4_0"),
        (Check("size, GiB", 2.82, _weights(GIB), None, digits=2),),
        "the file mixes types in its tables; the list of its tensors is needed",
    ),
    "w-3-27b-q4km": Reading(
        "google/gemma-3-27b-it",
        _llama_cpp(quantization="q4_k_m"),
        (Check("size, GiB", 15.4, _weights(GIB), None, digits=2),),
    ),
    "w-2-9b-ollama": Reading(
        "google/gemma-2-9b-it",
        _llama_cpp(quantization="q4_0", embedding_quantization="q6_k"),
        (Check("file, GB", 5.443152417, _weights(BILLION), _SIZE, digits=9),),
        "the file has 8 MB of tokenizer and metadata besides",
    ),
    "w-3-27b-q6k": Reading(
        "google/gemma-3-27b-it",
        _llama_cpp(quantization="q6_k", embedding_quantization="q8_0"),
        (Check("size, GiB", 20.96, _weights(GIB), _K_QUANT, digits=2),),
    ),
    "w-mlx-31b": Reading(
        "google/gemma-4-31B-it",
        {"engine": "vllm", "quantization": "mlx-4bit"},
        (Check("file, GB", 18.44, _weights(BILLION), _SIZE, digits=2),),
        "sized as the file: language model in 4.5 bits, tower in 16",
    ),
    "ollama-26b-262k": Reading(
        "google/gemma-4-26B-A4B-it",
        {"engine": "ollama", "quantization": "q4_k_m", "ctx_size": 262144},
        (Check("ollama ps, GB", 24, lambda found, _: found.engine_facts["ollama"]["size_bytes"] / BILLION, None),),
    ),
    "ollama-26b-4k": Reading(
        "google/gemma-4-26B-A4B-it",
        {"engine": "ollama", "quantization": "q4_k_m", "ctx_size": 4096},
        (Check("ollama ps, GB", 19, lambda found, _: found.engine_facts["ollama"]["size_bytes"] / BILLION, None),),
    ),
    "ollama-31b-262k": Reading(
        "google/gemma-4-31B-it",
        {"engine": "ollama", "quantization": "q4_k_m", "ctx_size": 262144},
        (Check("ollama ps, GB", 47, lambda found, _: found.engine_facts["ollama"]["size_bytes"] / BILLION, None),),
    ),
}


@dataclass(frozen=True)
class Rate:
    """A published decode rate of one sequence, for the roofline."""

    model: str
    device: str
    settings: Mapping[str, Any]
    tokens_per_s: float


RATES: Final[dict[str, Rate]] = {
    "t-31b-nvfp4-gb10": Rate(
        "google/gemma-4-31B-it", "GB10", {"engine": "llama.cpp", "quantization": "q4_0", "parallel": 1}, 11.56
    ),
    "t-4b-f16-8060s": Rate(
        "google/gemma-3-4b-it", "Radeon 8060S", {"engine": "llama.cpp", "quantization": "f16", "parallel": 1}, 26.22
    ),
    "t-12b-q4km-gb10-ollama": Rate(
        "google/gemma-3-12b-it", "GB10", {"engine": "ollama", "quantization": "q4_k_m", "parallel": 1}, 24
    ),
}

NOT_COMPARED: Final[dict[str, str]] = {
    "x-lmstudio-ui": "another estimator's own error; the engine's allocation is right",
    "x-b60-formula": "a formula of two numbers; its 20 KiB a token and its ceiling are those of vllm-26b-b70-mtp",
    "x-31b-ananke-sharded": "another planner's error; a right total of two wrong terms",
    "lcpp-3n-32k": "Gemma 3n is out of scope, and refused by name",
    "koboldcpp-31b-8x": "the context is not stated; all layers full against windows tends to 11 times",
    "ollama-3-27b-default": "the default context of that version is not stated",
    "ollama-26b-262k-mac": "that build shows the file alone",
    "t-31b-mlx-m2ultra": "no formula for MLX",
    "t-26b-mlx-m2ultra": "no formula for MLX",
    "t-12b-q4km-cuda": "the card is not stated",
    "t-27b-f16-mi50": "two devices of an old backend: tests/unit/test_plan_measured_time.py has it",
    "t-27b-2x5060": "two unequal devices: tests/unit/test_plan_measured_time.py has it",
    "t-31b-h200-ttft": "includes other work; its band is in tests/unit/test_plan_measured_time.py",
    "t-3n-e4b-mi50": "Gemma 3n is out of scope, and refused by name",
    "t-26b-b70-prefill": "one prompt with two attention kernels: tests/unit/test_plan_measured_time.py has it",
    "w-google-table-2026b": "a table of 1.2 times the weights in GiB labelled GB: a loose upper band, no measurement",
    "w-31b-iq3xxs": "IQ3_XXS mixes types by an importance matrix, which no recipe knows",
    "w-12b-q40-706": "a third-party mix under the name Q4_0; the list of its tensors is needed",
}
"""Records without a comparison, and why: UNKNOWN is an answer too."""


def rate_of(rate: Rate) -> tuple[float, float, float]:
    """Return the lowest, middle and highest decode rate that the roofline gives."""
    header = header_of(rate.model)
    settings = PlanSettings(device=find_device(rate.device), max_model_len=4096, **rate.settings)
    found = predict(
        header, settings, estimate(header, settings), find_device(rate.device), context=128, num_seqs=1
    ).decode_tokens_per_s
    assert found is not None
    return found.low, found.value, found.high


def total_parameters(model: str) -> int:
    """Return the parameters of a published model, towers included."""
    return num_parameters(header_of(model).spec)
