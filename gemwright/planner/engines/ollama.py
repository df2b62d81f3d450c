"""Ollama: llama.cpp's caches with Ollama's own defaults, and the size that `ollama ps` prints."""

from __future__ import annotations

from typing import Final

from gemwright.errors import UnsupportedError
from gemwright.planner.engines.layer_kinds import check_length
from gemwright.planner.engines.llama_cache import DEFAULT_UBATCH, NEWEST_RULES, CacheRules, CacheSettings
from gemwright.planner.engines.llama_cpp import cache_types, flash_attention, plan_llama
from gemwright.planner.engines.versions import NEWEST, Version, check_version, parse_version
from gemwright.planner.estimate import Estimate
from gemwright.planner.settings import PlanSettings
from gemwright.spec.model_header import ModelHeader
from gemwright.spec.model_spec import ModelSpec

_GIB: Final = 1 << 30
_WINDOW_SINCE: Final[Version] = (0, 9, 0)
"""Mid-2025; sizes of March 2025 fit caches of full length in all layers."""
_TIERS_SINCE: Final[Version] = (0, 15, 5)
_FOUR_THOUSAND_SINCE: Final[Version] = (0, 6, 7)
_TIERS: Final = ((47 * _GIB, 262_144), (23 * _GIB, 32_768), (0, 4096))
"""The default context by the memory of all devices (ollama/ollama, PR 13946): from 48 and 24 GiB on, a little less
for what a driver keeps."""
_OUTSIDE_SIZE: Final = ("runtime: device context",)
"""Lines that are on the device and not in the size that Ollama prints."""


def estimate_ollama(header: ModelHeader, settings: PlanSettings) -> Estimate:
    """Return what Ollama will hold, all layers on its devices: the file, K/V and its graph.

    `engine_facts["ollama"]["size_bytes"]` is what `ollama ps` shows as SIZE in most builds; some for Apple show the
    file alone. Raises RequestError and UnsupportedError as `estimate_llama_cpp` does, and for settings that Ollama does
    not have.
    """
    spec = header.spec
    if settings.swa_full or settings.kv_unified is False:
        raise UnsupportedError(
            "Ollama has no such setting",
            value="--swa-full" if settings.swa_full else "--no-kv-unified",
            remedy="leave it out, or plan for --engine llama.cpp",
        )
    version = parse_version(settings.engine_version, "Ollama")
    notes = check_version(version, "Ollama", spec.family)
    slots = settings.parallel or settings.max_num_seqs or 1
    asked = settings.ctx_size or settings.max_model_len
    flag = "--max-model-len" if settings.ctx_size is None else "--ctx-size"
    default, why = default_context(spec, settings, version)
    length = default if asked is None else check_length(spec, asked, flag)
    type_k, type_v = cache_types(settings)
    cache = CacheSettings(
        n_ctx=length * slots,
        num_slots=slots,
        is_unified=True,
        ubatch_size=settings.ubatch_size or DEFAULT_UBATCH,
        swa_full=False,
        flash_attention=flash_attention(settings, type_v),
        type_k=type_k,
        type_v=type_v,
        rules=NEWEST_RULES if version >= _WINDOW_SINCE else CacheRules(has_window=False),
    )
    plan = plan_llama(header, settings, cache)
    ledger = plan.ledger
    size = ledger.total_bytes - sum(line.size_bytes for line in ledger.lines if line.name in _OUTSIDE_SIZE)
    error = ledger.error_bytes - sum(line.error_bytes for line in ledger.lines if line.name in _OUTSIDE_SIZE)
    if asked is None:
        notes.append(f"num_ctx {length}: {why}; longer prompts are cut without a word, so set num_ctx")
    if slots > 1:
        notes.append(f"OLLAMA_NUM_PARALLEL {slots} multiplies num_ctx: {slots} x {length} tokens")
    if version < _WINDOW_SINCE:
        notes.append("before mid-2025 all layers kept the whole context")
    if settings.ctx_size is not None and settings.max_model_len is not None:
        notes.append("--ctx-size is num_ctx, and --max-model-len decides nothing beside it")
    facts = {**plan.facts(), "num_ctx": length, "size_bytes": size, "size_error_bytes": error}
    return Estimate(
        engine="ollama",
        ledger=ledger,
        kv=plan.kv,
        weights=plan.loaded,
        max_model_len=length,
        max_num_seqs=slots,
        needed_bytes=ledger.total_bytes,
        engine_facts={"ollama": facts},
        notes=(*header.notes, *notes, *plan.notes),
    )


def default_context(spec: ModelSpec, settings: PlanSettings, version: Version = NEWEST) -> tuple[int, str]:
    """Return the context that Ollama takes where none is set, and why.

    From 0.15.5 on by the memory of its devices, at most the model's own; before 4096 tokens, and 2048 before 0.6.7.
    """
    if version < _FOUR_THOUSAND_SINCE:
        return min(2048, spec.max_context), "the default before 0.6.7"
    if version < _TIERS_SINCE:
        return min(4096, spec.max_context), "the default before 0.15.5"
    memory = settings.memory_bytes
    if settings.device is not None and settings.device.memory_bytes is not None:
        memory = settings.device.memory_bytes
    if memory is None:
        return min(4096, spec.max_context), "the default below 24 GiB of device memory, since no memory was named"
    total = memory * settings.tensor_parallel_size
    context = next(tokens for floor, tokens in _TIERS if total >= floor)
    return min(context, spec.max_context), "the default for this much device memory"
