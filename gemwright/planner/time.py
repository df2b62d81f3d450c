"""How fast a planned model will be: a roofline of bytes and operations, with bands instead of single numbers.

    step     = max(bytes / (share x bandwidth), operations / (share x peak)) + layers x start of their kernels
    bytes    = weights that are streamed + K/V that every sequence reads
    first    = max(2 x parameters x prompt / (share x peak), weights x chunks / (share x bandwidth)) + attention

The shares are measured ones (planner/efficiency.py). Where no share, bandwidth or peak is known, nothing is said.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Literal

from gemwright.errors import RequestError, show_bytes
from gemwright.planner.devices import Device
from gemwright.planner.efficiency import ATTENTION, AttentionKernel, Band, Efficiency, device_class, efficiency
from gemwright.planner.estimate import Estimate
from gemwright.planner.rates import Rates, Split, combine
from gemwright.planner.settings import PlanSettings
from gemwright.planner.traffic import Traffic
from gemwright.spec.model_header import ModelHeader

Bound = Literal["bandwidth", "compute", "launch", "capacity"]
"""What holds the speed back. launch: starting kernels and waiting between devices. capacity: it does not fit."""

ACCEPTANCE: Final = Band(0.5, 0.7, 0.85)
"""Share of drafted tokens that are kept, one by one, where nobody says: it depends on the text."""

_DRAFTED_TOKENS: Final = 4
_DRAFTER_LAYERS: Final = 4
"""All published drafters of Gemma 4 have four."""

_REDUCE_S: Final = Band(8e-6, 15e-6, 60e-6)
_LINK_BYTES_PER_S: Final = Band(20e9, 100e9, 450e9)
"""One sum over all devices, of which each layer needs two: its start, and its bytes over PCIe 4 (low) or NVLink 4
(high)."""

_SIDES: Final[tuple[Literal["low", "value", "high"], ...]] = ("high", "value", "low")


@dataclass(frozen=True, slots=True)
class Speculation:
    """What a drafter changes: k tokens are drafted one by one and checked in one step."""

    num_tokens: int
    acceptance: Band
    tokens_per_step: Band
    """(1 - a^(k+1)) / (1 - a) of acceptance a (Leviathan and others 2023, https://arxiv.org/abs/2211.17192)."""
    decode_tokens_per_s: Band

    def to_dict(self) -> dict[str, Any]:
        """Return the fields of the JSON output."""
        return {
            "num_tokens": self.num_tokens,
            "acceptance": self.acceptance.to_dict(),
            "tokens_per_step": self.tokens_per_step.to_dict(),
            "decode_tokens_per_s": self.decode_tokens_per_s.to_dict(),
        }


@dataclass(frozen=True, slots=True)
class TimeEstimate:
    """How fast it will be, as far as that is known."""

    decode_tokens_per_s: Band | None
    """Of all sequences together, without a drafter."""
    inter_token_s: Band | None
    """Between two tokens of one sequence."""
    ttft_s: Band | None
    """From the start of one prompt on an idle engine to its first token."""
    decode_bound: Bound | None
    prefill_bound: Bound | None
    bytes_per_step: int
    """Read in one step of all sequences, over all devices."""
    flops_per_step: int
    prefill_flops: int
    efficiency: Efficiency | None
    half_rate_num_seqs: float | None
    """Sequences at which throughput is half of what it can never pass: more of them add less and less.

    Memory may end it before: a 31B was reported to gain nothing beyond 64 sequences on an H100, and 128 on an H200."""
    speculation: Speculation | None
    notes: tuple[str, ...]

    def describe(self) -> list[str]:
        """Return lines for people."""
        lines = []
        if self.decode_tokens_per_s is not None:
            lines.append(f"decode {_show(self.decode_tokens_per_s, 'tokens/s')}, bound by {self.decode_bound}")
        if self.speculation is not None:
            drafted = self.speculation
            lines.append(
                f"with {drafted.num_tokens} drafted tokens {_show(drafted.decode_tokens_per_s, 'tokens/s')}, "
                f"if {_show(drafted.acceptance, 'of them')} are kept"
            )
        if self.ttft_s is not None:
            lines.append(f"first token after {_show(self.ttft_s, 's')}, bound by {self.prefill_bound}")
        if self.half_rate_num_seqs is not None:
            lines.append(
                f"half of the highest throughput at {_digits(self.half_rate_num_seqs)} sequences of this length"
            )
        if self.efficiency is not None:
            lines.append(f"measured before: {self.efficiency.source}")
        return [*lines, *self.notes]

    def to_dict(self) -> dict[str, Any]:
        """Return the fields of the JSON output."""
        bands = {"decode_tokens_per_s": self.decode_tokens_per_s, "ttft_s": self.ttft_s}
        return {
            **{name: None if band is None else band.value for name, band in bands.items()},
            **{f"{name}_band": None if band is None else [band.low, band.high] for name, band in bands.items()},
            "inter_token_s": None if self.inter_token_s is None else self.inter_token_s.value,
            "bound": self.decode_bound,
            "prefill_bound": self.prefill_bound,
            "bytes_per_step": self.bytes_per_step,
            "flops_per_step": self.flops_per_step,
            "prefill_flops": self.prefill_flops,
            "half_rate_num_seqs": self.half_rate_num_seqs,
            "efficiency_source": None if self.efficiency is None else self.efficiency.source,
            "speculation": None if self.speculation is None else self.speculation.to_dict(),
            "notes": list(self.notes),
        }


def predict(
    header: ModelHeader,
    settings: PlanSettings,
    estimate: Estimate,
    device: Device | Sequence[Device],
    *,
    context: int,
    num_seqs: int = 1,
    prompt_tokens: int | None = None,
    attention: AttentionKernel | None = None,
    split: Split | None = None,
    acceptance: Band = ACCEPTANCE,
) -> TimeEstimate:
    """Return how fast `num_seqs` sequences of `context` tokens each decode, and how long a prompt takes (of
    `prompt_tokens`, or `context` where left out).

    One device stands for as many of its kind as `settings.tensor_parallel_size` says; several are given as a sequence.
    `attention` is the kernel that attends over the prompt and changes its time up to thirty times; left out, it
    follows from the engine, and stays unknown, with a wide band, where the engine picks it by device. Raises
    RequestError for counts that cannot be.
    """
    prompt = context if prompt_tokens is None else prompt_tokens
    _check(context, num_seqs, prompt, estimate)
    devices = [device] * settings.tensor_parallel_size if isinstance(device, Device) else list(device)
    is_split_by_layer = (split or ("layer" if settings.engine in ("llama.cpp", "ollama") else "tensor")) == "layer"
    traffic = Traffic(header.spec, settings, estimate, 1 if is_split_by_layer else len(devices))
    rates = combine(devices, "layer" if is_split_by_layer else "tensor", _dtypes(header, settings, devices))
    known = efficiency(settings.engine, rates.slowest, is_mixture=traffic.is_mixture)
    kernel = attention or _attention_kernel(header, settings)
    chunk = min(prompt, chunk_tokens(settings, rates.slowest))
    prefill_flops = traffic.prefill_product_flops(prompt) + traffic.prefill_attention_flops(prompt)
    notes = _notes(settings, rates, known, kernel, prompt, num_seqs)
    if settings.num_speculative_tokens and not traffic.drafter_bytes:
        notes += ("drafted tokens are left out of the speed: this plan has no drafter's weights (--draft)",)
    facts: dict[str, Any] = {
        "bytes_per_step": traffic.step_bytes(context, num_seqs),
        "flops_per_step": traffic.step_flops(context, num_seqs),
        "prefill_flops": prefill_flops,
        "efficiency": known,
    }
    nothing = TimeEstimate(None, None, None, None, None, half_rate_num_seqs=None, speculation=None, notes=(), **facts)
    if (missing := _missing_bytes(settings, estimate, devices)) > 0:
        word = f"it does not fit: {show_bytes(missing)} more are needed on each device"
        return replace(nothing, decode_bound="capacity", prefill_bound="capacity", notes=(*notes, word))
    if known is None or rates.bandwidth is None:
        return replace(nothing, notes=notes)

    steps = [_step(traffic, rates, known, side, context, num_seqs, 1) for side in _SIDES]
    seconds = Band(*(sum(parts.values()) for parts in steps))
    firsts = [_first(traffic, rates, known, side, kernel, prompt, chunk) for side in _SIDES] if rates.peak else None
    return TimeEstimate(
        decode_tokens_per_s=Band(num_seqs / seconds.high, num_seqs / seconds.value, num_seqs / seconds.low),
        inter_token_s=seconds,
        ttft_s=None if firsts is None else Band(*(sum(parts.values()) for parts in firsts)),
        decode_bound=_bound(steps[1]),
        prefill_bound=None if firsts is None else _bound(firsts[1]),
        half_rate_num_seqs=_half_rate(traffic, rates, known, context),
        speculation=_speculate(settings, traffic, rates, known, context, num_seqs, acceptance),
        notes=notes,
        **facts,
    )


def chunk_tokens(settings: PlanSettings, device: Device) -> int:
    """Return the tokens of a prompt that one step takes: weights are streamed once for each such part."""
    if settings.engine in ("llama.cpp", "ollama"):
        return settings.ubatch_size or 512
    return settings.max_num_batched_tokens or (512 if device.kind == "cpu" else 2048)


def _step(
    traffic: Traffic,
    rates: Rates,
    known: Efficiency,
    side: Literal["low", "value", "high"],
    context: int,
    num_seqs: int,
    num_tokens: int,
) -> dict[Bound, float]:
    """Return the seconds of a step in which each sequence has `num_tokens` new ones, by what they go to."""
    assert rates.bandwidth is not None
    reads = traffic.step_bytes(context, num_seqs, num_tokens) / (getattr(known.bandwidth, side) * rates.bandwidth)
    flops = traffic.step_flops(context, num_seqs, num_tokens)
    computes = flops / (getattr(known.compute, side) * rates.peak) if rates.peak else 0.0
    waits = _waits(traffic, rates, known, side, num_seqs * num_tokens)
    return _longer(reads, computes) | {"launch": waits}


def _first(
    traffic: Traffic,
    rates: Rates,
    known: Efficiency,
    side: Literal["low", "value", "high"],
    kernel: AttentionKernel,
    prompt: int,
    chunk: int,
) -> dict[Bound, float]:
    """Return the seconds of a prompt, by what they go to."""
    assert rates.bandwidth is not None
    assert rates.peak is not None
    num_chunks = math.ceil(prompt / chunk)
    reads = num_chunks * traffic.weights_bytes(chunk) / (getattr(known.bandwidth, side) * rates.bandwidth)
    computes = traffic.prefill_product_flops(prompt) / (getattr(known.compute, side) * rates.peak)
    attends = traffic.prefill_attention_flops(prompt) / (getattr(ATTENTION[kernel], side) * rates.peak)
    parts = _longer(reads, computes)
    parts["compute"] = parts.get("compute", 0.0) + attends
    return parts | {"launch": num_chunks * _waits(traffic, rates, known, side, chunk)}


def _longer(reads: float, computes: float) -> dict[Bound, float]:
    return {"compute": computes} if computes > reads else {"bandwidth": reads}


def _waits(
    traffic: Traffic, rates: Rates, known: Efficiency, side: Literal["low", "value", "high"], num_tokens: int
) -> float:
    """Return the seconds of one step that go to starting kernels and, under a tensor split, to sums over devices."""
    layer_s, reduce_s = known.layer_s, _REDUCE_S
    # A high rate goes with a short wait.
    start, reduce = {
        "high": (layer_s.low, reduce_s.low),
        "value": (layer_s.value, reduce_s.value),
        "low": (layer_s.high, reduce_s.high),
    }[side]
    total = traffic.num_layers * start
    if rates.split == "tensor" and rates.num_devices > 1:
        others = (rates.num_devices - 1) / rates.num_devices
        sent = 2 * others * num_tokens * traffic.hidden_size * 2
        total += 2 * traffic.num_layers * (reduce + sent / getattr(_LINK_BYTES_PER_S, side))
    return total


def _bound(parts: dict[Bound, float]) -> Bound:
    return max(parts, key=lambda name: parts[name])


def _half_rate(traffic: Traffic, rates: Rates, known: Efficiency, context: int) -> float | None:
    """Return the B for which B / step(B) is half of its limit for ever more sequences."""
    assert rates.bandwidth is not None
    speed = known.bandwidth.value * rates.bandwidth
    shared = traffic.all_weights_bytes / speed + traffic.num_layers * known.layer_s.value
    reads = traffic.kv_bytes(context) / speed
    computes = traffic.step_flops(context, 1) / (known.compute.value * rates.peak) if rates.peak else 0.0
    # While bytes decide: shared + B reads = 2 B max(reads, computes).
    slope = 2 * max(reads, computes) - reads
    return shared / slope if slope > 0 else None


def _speculate(
    settings: PlanSettings,
    traffic: Traffic,
    rates: Rates,
    known: Efficiency,
    context: int,
    num_seqs: int,
    acceptance: Band,
) -> Speculation | None:
    if not traffic.drafter_bytes:
        return None
    assert rates.bandwidth is not None
    num_tokens = settings.num_speculative_tokens or _DRAFTED_TOKENS
    per_step, speeds = [], []
    for side in ("low", "value", "high"):
        kept = expected_tokens(getattr(acceptance, side), num_tokens)
        checking = sum(_step(traffic, rates, known, side, context, num_seqs, num_tokens + 1).values())
        drafting = traffic.drafter_bytes / (getattr(known.bandwidth, side) * rates.bandwidth)
        waiting = _waits(traffic, rates, known, side, num_seqs) * _DRAFTER_LAYERS / traffic.num_layers
        per_step.append(kept)
        speeds.append(num_seqs * kept / (checking + num_tokens * (drafting + waiting)))
    return Speculation(num_tokens, acceptance, Band(*per_step), Band(*speeds))


def expected_tokens(acceptance: float, num_drafted: int) -> float:
    """Return the tokens that a step brings on average: 1 + a + a^2 + ... + a^k."""
    return sum(acceptance**power for power in range(num_drafted + 1))


def _check(context: int, num_seqs: int, prompt: int, estimate: Estimate) -> None:
    for name, value, most in (
        ("context", context, estimate.max_model_len),
        ("num_seqs", num_seqs, None),
        ("prompt_tokens", prompt, estimate.max_model_len),
    ):
        if value < 1 or (most is not None and value > most):
            limit = "at least 1" + (f", at most the {most} tokens planned for" if most else "")
            raise RequestError(name, value=value, limit=limit)


def _missing_bytes(settings: PlanSettings, estimate: Estimate, devices: Sequence[Device]) -> int:
    """Return what lacks on each device; 0 where nothing does, or where nobody says how much there is."""
    sizes = [device.memory_bytes for device in devices if device.memory_bytes is not None]
    memory = settings.memory_bytes or min(sizes, default=None)
    return 0 if memory is None else max(0, estimate.needed_bytes - memory)


def _dtypes(header: ModelHeader, settings: PlanSettings, devices: Sequence[Device]) -> tuple[str, ...]:
    """Return the dtypes in which products may run, the likeliest first.

    Where float32 is all that is known of a device with matrix units, it tells nothing of narrower products.
    """
    has_no_units = all(device_class(device) in ("cpu", "apple") for device in devices)
    if settings.engine == "vllm" and "fp8" in (settings.quantization or header.quantization or ""):
        return ("fp8", "bfloat16", "float16")
    if settings.dtype == "float32":
        return ("float32",)
    return ("bfloat16", "float16", "float32") if has_no_units else ("bfloat16", "float16")


def _attention_kernel(header: ModelHeader, settings: PlanSettings) -> AttentionKernel:
    if settings.engine == "gemwright":
        return "reference"
    if settings.engine == "vllm":
        return "unknown" if max(layer.head_dim for layer in header.spec.layers) > 256 else "tuned"
    return "unknown" if settings.flash_attention is False else "tuned"


def _notes(
    settings: PlanSettings, rates: Rates, known: Efficiency | None, kernel: AttentionKernel, prompt: int, num_seqs: int
) -> tuple[str, ...]:
    notes = []
    name = rates.slowest.name
    if known is None:
        kind = device_class(rates.slowest) or rates.slowest.kind
        notes.append(f"no speed is predicted: nothing was measured of {settings.engine} on {name} ({kind})")
    if rates.bandwidth is None:
        notes.append(f"no speed is predicted: the memory bandwidth of {name} is not known")
    if rates.peak is None and known is not None:
        notes.append(f"no time to the first token is predicted: the peak of {name} for this dtype is not published")
    elif kernel == "unknown":
        notes.append(
            f"which attention kernel runs is not known, and for {prompt} tokens it can change the time to the first "
            "token up to 30 times"
        )
    if num_seqs > 1:
        notes.append("the time to the first token is that of one prompt alone; prompts that come together wait in turn")
    return tuple(notes)


def _show(band: Band, unit: str) -> str:
    return f"{_digits(band.value)} {unit} ({_digits(band.low)} to {_digits(band.high)})"


def _digits(value: float) -> str:
    """Return three digits; larger numbers whole, as nobody reads 7.79e+03."""
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"
