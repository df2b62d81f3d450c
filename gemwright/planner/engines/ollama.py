"""Ollama: llama.cpp's caches under Ollama's own defaults, and the size that `ollama ps` shows."""

from __future__ import annotations

from typing import Final

from gemwright.planner.engines.layer_kinds import check_length
from gemwright.planner.engines.llama_cache import DEFAULT_UBATCH, CacheSettings, cache_rules
from gemwright.planner.engines.llama_cpp import cache_types, flash_attention, plan_llama
from gemwright.planner.estimate import Estimate
from gemwright.planner.settings import PlanSettings
from gemwright.spec.model_header import ModelHeader

DEFAULT_NUM_CTX: Final = 4096
"""num_ctx where neither the request, the Modelfile nor OLLAMA_CONTEXT_LENGTH says more."""


def estimate_ollama(header: ModelHeader, settings: PlanSettings) -> Estimate:
    """Return what Ollama's runner will hold with all layers on its devices.

    num_ctx is the context of each of OLLAMA_NUM_PARALLEL slots, so that the cache is laid out for their product; the
    vision tower is part of the file and loaded. Raises as estimate_llama_cpp.
    """
    slots = settings.parallel or settings.max_num_seqs or 1
    asked = settings.ctx_size or settings.max_model_len
    length = check_length(header.spec, asked or min(DEFAULT_NUM_CTX, header.spec.max_context), "--ctx-size")
    type_k, type_v = cache_types(settings)
    cache = CacheSettings(
        n_ctx=length * slots,
        num_slots=slots,
        is_unified=bool(settings.kv_unified),
        ubatch_size=settings.ubatch_size or DEFAULT_UBATCH,
        swa_full=bool(settings.swa_full),
        flash_attention=flash_attention(settings, type_v),
        type_k=type_k,
        type_v=type_v,
        rules=cache_rules(settings.engine_version),
    )
    plan = plan_llama(header, settings, cache)
    notes = []
    if asked is None:
        notes.append(
            f"num_ctx {length} is Ollama's default, which a longer prompt is cut to without a word: set num_ctx, or "
            "OLLAMA_CONTEXT_LENGTH"
        )
    # Some builds for Apple machines show the file alone.
    context = sum(line.size_bytes for line in plan.ledger.select("runtime"))
    shown = plan.ledger.total_bytes - context
    return Estimate(
        engine="ollama",
        ledger=plan.ledger,
        kv=plan.kv,
        weights=plan.loaded,
        max_model_len=plan.max_model_len,
        max_num_seqs=slots,
        needed_bytes=plan.ledger.total_bytes,
        engine_facts={
            "ollama": {"num_ctx": length, "num_parallel": slots, "ps_size_bytes": shown},
            "llama_cpp": plan.facts(),
        },
        notes=(*header.notes, *notes, *plan.notes),
    )
