"""What would make it fit: single changes of settings, those that cost a user least first.

Refuses to know any engine's rules: it changes one setting, estimates again, and keeps what fits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Final

from gemwright.errors import RequestError, UnsupportedError, show_bytes
from gemwright.planner.estimate import Estimate, estimate
from gemwright.planner.fit import Estimator, Fit
from gemwright.planner.settings import PlanSettings
from gemwright.spec.model_header import ModelHeader

_MEBIBYTE: Final = 1 << 20
_LEAST_CONTEXT: Final = 256
"""A shorter context is no help to anyone."""


@dataclass(frozen=True, slots=True)
class Change:
    """One change of settings after which it fits."""

    flags: str
    """What to add to the command line."""
    cost: str
    """What it costs, in words."""
    saved_bytes: int
    total_bytes: int
    """What is held then."""

    def describe(self) -> str:
        """Return it as one line."""
        return f"{self.flags}  saves {show_bytes(self.saved_bytes)}: {self.cost}"

    def to_dict(self) -> dict[str, Any]:
        """Return the fields of the JSON output."""
        return {
            "flags": self.flags,
            "cost": self.cost,
            "saved_bytes": self.saved_bytes,
            "total_bytes": self.total_bytes,
        }


Candidate = tuple[dict[str, Any], str, str]
"""Settings to replace, the flags that say so, and what they cost."""


def cheapest_change(
    header: ModelHeader, settings: PlanSettings, memory_bytes: int, estimator: Estimator = estimate
) -> tuple[Change, ...]:
    """Return the single changes that make it fit in memory, the cheapest for a user first; none where none does.

    Lossless ones come first, then fewer users or a shorter context (the most that fit), then a cache and weights of
    fewer bits, then more devices. Only what the engine has is offered.
    """
    planned = estimator(header, settings)
    before = held_bytes(planned)
    found = []
    for fields, flags, cost in _candidates(header, settings, planned, memory_bytes, estimator):
        try:
            after = held_bytes(estimator(header, replace(settings, **fields)))
        except (RequestError, UnsupportedError):
            continue  # the engine does not have it for this model
        if after <= memory_bytes and after < before:
            found.append(Change(flags, cost, before - after, after))
    return tuple(found)


def held_bytes(found: Estimate) -> int:
    """Return what must fit: what will be held, or what is needed for what was asked, whichever is more."""
    return max(found.needed_bytes, found.ledger.total_bytes)


def _candidates(
    header: ModelHeader, settings: PlanSettings, planned: Estimate, memory_bytes: int, estimator: Estimator
) -> Iterator[Candidate]:
    yield from _ENGINES[settings.engine](header, settings, planned)
    if settings.engine == "gemwright":
        yield from _pools(planned, memory_bytes)
    yield from _fewer(header, settings, planned, memory_bytes, estimator)
    yield from _bits(settings)
    if settings.engine in ("vllm", "llama.cpp"):
        for size in (2, 4, 8):
            if size > settings.tensor_parallel_size:
                cost = f"{size} devices of this size"
                yield {"tensor_parallel_size": size}, f"--tensor-parallel-size {size}", cost


def _gemwright(header: ModelHeader, settings: PlanSettings, planned: Estimate) -> Iterator[Candidate]:
    if settings.kv_layout == "both" and any(layer.k_equals_v for layer in header.spec.layers):
        yield {"kv_layout": "auto"}, "--kv-layout auto", "nothing: keys are rebuilt from values"
    for tokens in (256, 128):
        if (settings.max_num_batched_tokens or 512) > tokens:
            cost = "long prompts are read in more steps"
            yield {"max_num_batched_tokens": tokens}, f"--max-num-batched-tokens {tokens}", cost
    if settings.dtype in ("auto", "float32"):
        yield {"dtype": "bfloat16"}, "--dtype bfloat16", "float32's last digits"


def _vllm(header: ModelHeader, settings: PlanSettings, planned: Estimate) -> Iterator[Candidate]:
    if header.spec.towers and not settings.language_model_only and not settings.num_images:
        yield {"language_model_only": True}, "--language-model-only", "images and sound are refused"
    for tokens in (2048, 1024, 512):
        if (settings.max_num_batched_tokens or 8192) > tokens:
            cost = "each step reads fewer prompt tokens, and sliding layers reserve less"
            yield {"max_num_batched_tokens": tokens}, f"--max-num-batched-tokens {tokens}", cost
    if settings.in_flight_batches != 1:
        yield {"in_flight_batches": 1}, "--no-async-scheduling", "the next step is not scheduled beside the last"


def _llama_cpp(header: ModelHeader, settings: PlanSettings, planned: Estimate) -> Iterator[Candidate]:
    if settings.swa_full:
        yield {"swa_full": False}, "without --swa-full", "prompts are found again in the window alone"
    if settings.parallel != 1 and settings.max_num_seqs is None:
        yield {"parallel": 1}, "--parallel 1", "one request at a time"
    if settings.flash_attention is False:
        yield {"flash_attention": None}, "without --no-flash-attn", "nothing, where the device has the kernels"
    if (settings.ubatch_size or 512) > 256:
        yield {"ubatch_size": 256}, "--ubatch-size 256", "prompts are read in smaller steps"


_ENGINES: Final[dict[str, Callable[[ModelHeader, PlanSettings, Estimate], Iterator[Candidate]]]] = {
    "gemwright": _gemwright,
    "vllm": _vllm,
    "llama.cpp": _llama_cpp,
    "ollama": _llama_cpp,
}


def _pools(planned: Estimate, memory_bytes: int) -> Iterator[Candidate]:
    """Offer a smaller pool where all else and one request of the planned length fit."""
    pool = sum(line.size_bytes for line in planned.ledger.select("K/V cache"))
    room = pool - (planned.ledger.total_bytes - memory_bytes)
    room -= room % _MEBIBYTE
    if planned.kv.bytes_per_sequence <= room < pool:
        cost = "fewer requests are held at once before one has to wait"
        yield {"kv_cache_memory_bytes": room}, f"--kv-cache-memory-bytes {room >> 20}MiB", cost


def _fewer(
    header: ModelHeader, settings: PlanSettings, planned: Estimate, memory_bytes: int, estimator: Estimator
) -> Iterator[Candidate]:
    fit = Fit(header, settings, estimator)
    users = fit.most_users(memory_bytes)
    is_llama = settings.engine in ("llama.cpp", "ollama")
    if 0 < users < planned.max_num_seqs:
        fields: dict[str, Any] = {"max_num_seqs": users, "parallel": users if is_llama else None}
        flags = f"--parallel {users}" if is_llama else f"--max-num-seqs {users}"
        yield fields, flags, f"{users} users at once instead of {planned.max_num_seqs}"
    context = fit.longest_context(memory_bytes)
    context -= context % _LEAST_CONTEXT
    if _LEAST_CONTEXT <= context < planned.max_model_len:
        fields = {"max_model_len": context, "ctx_size": None}
        yield (
            fields,
            f"--max-model-len {context}",
            f"{context:,} tokens of context instead of {planned.max_model_len:,}",
        )


def _bits(settings: PlanSettings) -> Iterator[Candidate]:
    if settings.engine == "vllm" and settings.kv_cache_dtype == "auto":
        yield {"kv_cache_dtype": "fp8"}, "--kv-cache-dtype fp8", "K and V in 8 bits"
    if settings.engine in ("llama.cpp", "ollama") and settings.cache_type_k is None and settings.cache_type_v is None:
        fields = {"cache_type_k": "q8_0", "cache_type_v": "q8_0"}
        yield fields, "--cache-type-k q8_0 --cache-type-v q8_0", "K and V in 8 bits"
    steps: dict[str, tuple[tuple[str, str], ...]] = {
        "vllm": (("fp8", "weights of 8 bits"), ("w4a16", "weights of 4 bits")),
        "llama.cpp": (("q8_0", "weights of 8 bits"), ("q6_k", "weights of 6 bits"), ("q4_0", "weights of 4 bits")),
    }
    steps["ollama"] = steps["llama.cpp"]
    for name, cost in steps.get(settings.engine, ()):
        if settings.quantization != name:
            yield {"quantization": name}, f"--quantization {name}", f"{cost}, another file"
