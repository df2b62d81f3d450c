"""What would make it fit: single changes of settings, those that cost a user least first.

Refuses to know any engine's rules: it changes one setting, estimates again, and keeps what fits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Final

from gemwright.errors import RequestError, UnsupportedError, show_bytes
from gemwright.planner.estimate import Estimate
from gemwright.planner.fit import (
    Estimator,
    Fit,
    fixed_pool_bytes,
    held_bytes,
    is_within_pool,
    largest,
    with_length_and_users,
)
from gemwright.planner.margins import cache_bytes, estimate_with_margin
from gemwright.planner.own_weights import engine_holding
from gemwright.planner.settings import PlanSettings, flag
from gemwright.spec.model_header import ModelHeader

_MEBIBYTE: Final = 1 << 20
_LEAST_CONTEXT: Final = 256
"""A shorter context is no help to anyone."""
_NUM_POOLS: Final = 4
"""Estimates in which a pool that fits is looked for."""
_DEFAULT_UBATCH: Final = 512
_DEFAULT_BUDGETS: Final = {"cpu": 512, "gpu": 2048}
"""Of our own engine, by kind of device (EngineConfig.step_tokens)."""


@dataclass(frozen=True, slots=True)
class Change:
    """One change of settings after which it fits."""

    flags: str
    """What to add to the command line of a plan, or "without" what is to be left out of it."""
    cost: str
    """What it costs, in words."""
    saved_bytes: int
    """Below zero what it takes more: a larger K/V pool."""
    total_bytes: int
    """What is held then."""

    def describe(self) -> str:
        """Return it as one line."""
        saved = self.saved_bytes
        effect = f"saves {show_bytes(saved)}" if saved > 0 else f"takes {show_bytes(-saved)} more"
        return f"{self.flags}  {effect}: {self.cost}"

    def to_dict(self) -> dict[str, Any]:
        """Return the fields of the JSON output."""
        return {
            "flags": self.flags,
            "cost": self.cost,
            "saved_bytes": self.saved_bytes,
            "total_bytes": self.total_bytes,
        }


Candidate = tuple[str, dict[str, Any], str, str]
"""What is changed, settings to replace, the flags that say so, and what they cost."""


def cheapest_change(
    header: ModelHeader, settings: PlanSettings, memory_bytes: int, estimator: Estimator = estimate_with_margin
) -> tuple[Change, ...]:
    """Return the single changes that make it fit in memory, the cheapest for a user first; none where none does.

    Lossless ones come first, then fewer users or a shorter context (the most that fit), then fewer bits of activations,
    cache and weights, then more devices. Of steps of one setting the first that is enough is offered, and nothing that
    the engine does not have or would not start with.
    """
    planned = estimator(header, settings)
    # A pool of a fixed size that is too small is no matter of memory: what it is compared with is what is held.
    is_too_much = is_within_pool(planned, settings)
    before = held_bytes(planned, settings) if is_too_much else planned.ledger.total_bytes
    found: dict[str, Change] = {}
    for subject, fields, flags, cost in _candidates(header, settings, planned, memory_bytes, estimator):
        if subject in found:
            continue
        after = _size_bytes(header, replace(settings, **fields), estimator)
        if after is not None and after <= memory_bytes and (after < before or not is_too_much):
            found[subject] = Change(flags, cost, before - after, after)
    return tuple(found.values())


def _size_bytes(header: ModelHeader, settings: PlanSettings, estimator: Estimator) -> int | None:
    """Return what is held under settings; None where the engine does not have them for this model, would not start with
    them, or has a K/V pool of a fixed size that is too small."""
    try:
        found = estimator(header, settings)
    except (RequestError, UnsupportedError):
        return None
    return None if found.is_refused or not is_within_pool(found, settings) else held_bytes(found, settings)


def _candidates(
    header: ModelHeader, settings: PlanSettings, planned: Estimate, memory_bytes: int, estimator: Estimator
) -> Iterator[Candidate]:
    if settings.draft:
        yield "draft", {"draft": False, "num_speculative_tokens": None}, "without --draft", "nothing but speed"
    yield from _ENGINES[settings.engine](header, settings, planned)
    if settings.engine == "gemwright" or settings.available_kv_bytes is not None:
        yield from _pools(header, settings, planned, memory_bytes, estimator)
        yield from _larger_pool(settings, planned)
    yield from _fewer(header, settings, planned, memory_bytes, estimator)
    yield from _bits(settings)
    if settings.engine in ("vllm", "llama.cpp"):
        for size in (2, 4, 8):
            if size > settings.tensor_parallel_size:
                cost = f"{size} devices of this size"
                yield "devices", {"tensor_parallel_size": size}, f"--tensor-parallel-size {size}", cost


def _gemwright(header: ModelHeader, settings: PlanSettings, planned: Estimate) -> Iterator[Candidate]:
    if settings.kv_layout == "both" and any(layer.k_equals_v for layer in header.spec.layers):
        yield "layout", {"kv_layout": "auto"}, "--kv-layout auto", "nothing: keys are rebuilt from values"
    is_gpu = settings.device is not None and settings.device.kind == "gpu"
    budget = settings.max_num_batched_tokens or _DEFAULT_BUDGETS["gpu" if is_gpu else "cpu"]
    yield from _smaller_budgets(budget, "long prompts are read in more steps")


def _vllm(header: ModelHeader, settings: PlanSettings, planned: Estimate) -> Iterator[Candidate]:
    facts = planned.engine_facts["vllm"]
    if facts["in_flight_batches"] != 1:
        cost = "vLLM's --no-async-scheduling: no step is scheduled beside the last"
        yield "flight", {"in_flight_batches": 1}, "--in-flight-batches 1", cost
    cost = "each step reads fewer prompt tokens, and sliding layers reserve less"
    yield from _smaller_budgets(facts["max_num_batched_tokens"], cost)
    is_text_alone = not settings.num_images and not settings.audio_seconds
    if header.spec.towers and not settings.language_model_only and is_text_alone:
        yield "towers", {"language_model_only": True}, "--language-model-only", "images and sound are refused"


def _smaller_budgets(budget: int, cost: str) -> Iterator[Candidate]:
    for tokens in (2048, 1024, 512, 256, 128):
        if tokens < budget:
            yield "budget", {"max_num_batched_tokens": tokens}, f"--max-num-batched-tokens {tokens}", cost


def _llama_cpp(header: ModelHeader, settings: PlanSettings, planned: Estimate) -> Iterator[Candidate]:
    if settings.swa_full:
        cost = "prompts are found again in the window alone"
        yield "sliding", {"swa_full": False}, "without --swa-full", cost
    if settings.flash_attention is False:
        cost = "nothing, where the device has the kernels"
        yield "flash", {"flash_attention": None}, "without --no-flash-attn", cost
    if (settings.ubatch_size or _DEFAULT_UBATCH) > 256:
        yield "batch", {"ubatch_size": 256}, "--ubatch-size 256", "prompts are read in smaller steps"
    if planned.max_num_seqs > 1 and settings.parallel is None and settings.max_num_seqs is None:
        yield "slots", {"parallel": 1}, "--parallel 1", "one request at a time; nobody asked for more"


_ENGINES: Final[dict[str, Callable[[ModelHeader, PlanSettings, Estimate], Iterator[Candidate]]]] = {
    "gemwright": _gemwright,
    "vllm": _vllm,
    "llama.cpp": _llama_cpp,
    "ollama": _llama_cpp,
}


def _pools(
    header: ModelHeader, settings: PlanSettings, planned: Estimate, memory_bytes: int, estimator: Estimator
) -> Iterator[Candidate]:
    """Offer the largest pool that fits, where the engine starts with it: with the length asked for, or with a shorter
    one that our engine takes by itself where none was."""
    pool = room = cache_bytes(planned.ledger)
    then, changed = planned, settings
    for _ in range(_NUM_POOLS):
        # What stands around a pool follows its size by a little, so that the first answer may be a few KiB off.
        room -= held_bytes(then, changed) - memory_bytes
        room -= room % _MEBIBYTE
        if not 0 < room < pool:
            return
        changed = replace(settings, **_pool_of(settings, room))
        try:
            then = estimator(header, changed)
        except (RequestError, UnsupportedError):
            return
        if then.is_refused or held_bytes(then, changed) <= memory_bytes:
            break
    if then.max_model_len < _LEAST_CONTEXT:
        return
    cost = "fewer requests are held at once before one has to wait"
    if then.max_model_len < planned.max_model_len:
        cost = (
            f"the context is lowered from {planned.max_model_len:,} to the {then.max_model_len:,} tokens that the pool "
            "holds"
        )
    yield "pool", _pool_of(settings, room), f"--kv-cache-memory-bytes {room >> 20}MiB", cost


def _pool_of(settings: PlanSettings, size_bytes: int) -> dict[str, Any]:
    """Return the field that fixes the pool's size; --kv-cache-memory-bytes sets either."""
    return {"available_kv_bytes" if settings.engine == "vllm" else "kv_cache_memory_bytes": size_bytes}


def _larger_pool(settings: PlanSettings, planned: Estimate) -> Iterator[Candidate]:
    """Offer a pool that holds all that was asked for, where one of a fixed size does not."""
    pool = fixed_pool_bytes(settings)
    wanted = planned.kv.bytes_per_sequence * (settings.max_num_seqs or 1)
    wanted += -wanted % _MEBIBYTE
    if pool is not None and pool < wanted:
        requests = "a request" if settings.max_num_seqs in (None, 1) else f"{settings.max_num_seqs:,} requests"
        cost = f"the pool holds {requests} of {planned.max_model_len:,} tokens at once"
        yield "pool", _pool_of(settings, wanted), f"--kv-cache-memory-bytes {wanted >> 20}MiB", cost


def _fewer(
    header: ModelHeader, settings: PlanSettings, planned: Estimate, memory_bytes: int, estimator: Estimator
) -> Iterator[Candidate]:
    fit = Fit(header, settings, estimator)
    users = fit.most_users(memory_bytes)
    is_llama = settings.engine in ("llama.cpp", "ollama")
    if 0 < users < planned.max_num_seqs:
        fields: dict[str, Any] = {"max_num_seqs": users}
        flags = f"--max-num-seqs {users}"
        if is_llama:
            # A context of all slots together says how long each request is, so that it goes with the slots.
            fields |= {"parallel": None, "ctx_size": None, "max_model_len": planned.max_model_len}
            length = "" if settings.ctx_size is None else f" --max-model-len {planned.max_model_len}"
            flags = _in_place_of(f"{flags}{length}", settings, "parallel", "ctx_size")
        cost = f"{users} user{'' if users == 1 else 's'} at once instead of {planned.max_num_seqs}"
        yield "users", fields, flags, cost
    # With as many users as the engine plans by itself, and the pool that it takes for them.
    context = largest(
        lambda length: _size_bytes(header, with_length_and_users(settings, length), estimator),
        planned.max_model_len,
        memory_bytes,
    )
    context -= context % _LEAST_CONTEXT
    if _LEAST_CONTEXT <= context < planned.max_model_len:
        flags = _in_place_of(f"--max-model-len {context}", settings, "ctx_size")
        cost = f"{context:,} tokens of context instead of {planned.max_model_len:,}"
        yield "context", {"max_model_len": context, "ctx_size": None}, flags, cost


def _in_place_of(flags: str, settings: PlanSettings, *names: str) -> str:
    """Return flags, and those of named fields that were given and must go."""
    gone = [flag(name) for name in names if getattr(settings, name) is not None]
    return f"{flags} without {' and '.join(gone)}" if gone else flags


def _bits(settings: PlanSettings) -> Iterator[Candidate]:
    if settings.engine == "gemwright" and settings.dtype in ("auto", "float32"):
        yield "dtype", {"dtype": "bfloat16"}, "--dtype bfloat16", "float32's last digits"
    if settings.engine == "vllm" and settings.kv_cache_dtype == "auto":
        yield "cache", {"kv_cache_dtype": "fp8"}, "--kv-cache-dtype fp8", "K and V in 8 bits"
    if settings.engine in ("llama.cpp", "ollama") and settings.cache_type_k is None and settings.cache_type_v is None:
        fields = {"cache_type_k": "q8_0", "cache_type_v": "q8_0", "kv_cache_dtype": "auto", "flash_attention": None}
        yield "cache", fields, "--cache-type-k q8_0 --cache-type-v q8_0", "K and V in 8 bits"
    steps: dict[str, tuple[tuple[str, str], ...]] = {
        "vllm": (("fp8", "weights of 8 bits"), ("w4a16", "weights of 4 bits")),
        "llama.cpp": (("q8_0", "weights of 8 bits"), ("q6_k", "weights of 6 bits"), ("q4_0", "weights of 4 bits")),
    }
    steps["ollama"] = steps["llama.cpp"]
    if engine_holding(settings).has_panels:
        steps["gemwright"] = steps["llama.cpp"]
    for name, cost in steps.get(settings.engine, ()):
        if settings.quantization != name:
            yield "weights", {"quantization": name}, f"--quantization {name}", f"{cost}, another file"
