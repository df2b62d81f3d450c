"""llama.cpp with all layers on its devices: caches cell by cell, weights, compute buffer, context, projector.

Its caches come out as its log prints them. The compute buffer is fitted, with a wide error bar.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from gemwright.errors import RequestError, UnsupportedError
from gemwright.planner.engines.layer_kinds import (
    KindOfLayer,
    adapter_bytes,
    check_length,
    drafter_part,
    kinds_of_layers,
)
from gemwright.planner.engines.llama_cache import (
    DEFAULT_BATCH,
    DEFAULT_UBATCH,
    CacheRules,
    CacheSettings,
    cache_rules,
    cache_type,
    cell_bytes,
    check_build,
    count_cells,
    is_quantized,
)
from gemwright.planner.engines.llama_lines import (
    compute_line,
    context_lines,
    drafter_cache_line,
    projector_lines,
    weight_lines,
)
from gemwright.planner.estimate import Estimate, KVFacts, KVGroupFacts
from gemwright.planner.ledger import Ledger, Line, Place
from gemwright.planner.media import hears_sound
from gemwright.planner.settings import PlanSettings
from gemwright.planner.weights import WeightPart, weigh
from gemwright.spec.model_header import ModelHeader
from gemwright.spec.model_spec import ModelSpec


@dataclass(frozen=True, slots=True)
class LlamaPlan:
    """What llama.cpp's rules give for a model: shared with Ollama, whose runner has the same."""

    cache: CacheSettings
    kv: KVFacts
    max_model_len: int
    """The longest request that one slot can have."""
    full_bytes: int
    sliding_bytes: int
    full_cells: int
    sliding_cells: int
    ledger: Ledger
    loaded: tuple[WeightPart, ...]
    notes: tuple[str, ...]

    def facts(self) -> dict[str, Any]:
        """Return what the JSON output has of the cache, over all devices, as llama.cpp's log prints it."""
        return {
            "kv_full_bytes": self.full_bytes,
            "kv_sliding_bytes": self.sliding_bytes,
            "kv_full_cells": self.full_cells,
            "kv_sliding_cells": self.sliding_cells,
            "n_ctx": self.cache.n_ctx,
            "num_slots": self.cache.num_slots,
            "kv_unified": self.cache.is_unified,
            "ubatch_size": self.cache.ubatch_size,
            "swa_full": self.cache.swa_full,
            "flash_attention": self.cache.flash_attention,
            "cache_type_k": self.cache.type_k,
            "cache_type_v": self.cache.type_v,
        }


def estimate_llama_cpp(header: ModelHeader, settings: PlanSettings) -> Estimate:
    """Return what llama.cpp's server will hold on each device, all layers offloaded.

    `ctx_size` is the context of all slots together. Without it each of the requests planned for gets `max_model_len`
    tokens. Raises RequestError for settings that contradict each other or the model, UnsupportedError for what
    llama.cpp cannot do, such as a quantized V without flash attention.
    """
    rules = cache_rules(settings.engine_version)
    newer = check_build(settings.engine_version, header.spec.family)
    cache, notes = _cache_settings(header.spec, settings, rules)
    plan = plan_llama(header, settings, cache)
    return Estimate(
        engine="llama.cpp",
        ledger=plan.ledger,
        kv=plan.kv,
        weights=plan.loaded,
        max_model_len=plan.max_model_len,
        max_num_seqs=cache.num_slots,
        needed_bytes=plan.ledger.total_bytes,
        engine_facts={"llama_cpp": plan.facts()},
        notes=(*header.notes, *newer, *notes, *plan.notes),
    )


def _cache_settings(
    spec: ModelSpec, settings: PlanSettings, rules: CacheRules
) -> tuple[CacheSettings, tuple[str, ...]]:
    asked_slots = settings.parallel or settings.max_num_seqs
    slots = asked_slots or rules.default_slots
    if slots > rules.max_slots:
        raise UnsupportedError(
            "llama.cpp has no room for so many slots",
            value=slots,
            limit=rules.max_slots,
            remedy="lower --parallel, or --max-num-seqs",
        )
    notes = []
    if asked_slots is None and slots > 1:
        notes.append(
            f"the server starts with {slots} slots, and every one adds a window to the sliding layers: --parallel 1 is "
            "the largest saving that costs nothing where requests come one at a time"
        )
    is_unified = settings.kv_unified
    if is_unified is None:
        # One cache for all where the number of slots is the server's own choice; one each where it is the user's.
        is_unified = asked_slots is None or not rules.has_streams
    elif not is_unified and not rules.has_streams:
        raise UnsupportedError(
            "this version of llama.cpp has one cache for all slots",
            value="--no-kv-unified",
            limit="from July 2025 on",
            remedy="leave it out, or plan for a newer --engine-version",
        )
    if settings.ctx_size is not None:
        check_length(spec, -(-settings.ctx_size // (asked_slots or 1)), "--ctx-size")
        context = settings.ctx_size
        if settings.max_model_len is not None:
            notes.append("--ctx-size is the context of all slots together, and --max-model-len decides nothing beside")
    else:
        length = check_length(spec, settings.max_model_len or spec.max_context, "--max-model-len")
        context = length * (asked_slots or 1)
        if asked_slots is not None and asked_slots > 1:
            notes.append(f"-c {context}: {asked_slots} requests of {length} tokens")
    if settings.ubatch_size is not None and settings.ubatch_size > DEFAULT_BATCH:
        notes.append(
            f"a micro-batch is never larger than the batch, which holds {DEFAULT_BATCH} tokens unless it is set: "
            f"--ubatch-size {settings.ubatch_size} wants -b {settings.ubatch_size} beside it"
        )
    type_k, type_v = cache_types(settings)
    flash = flash_attention(settings, type_v)
    return (
        CacheSettings(
            n_ctx=context,
            num_slots=slots,
            is_unified=is_unified,
            ubatch_size=settings.ubatch_size or DEFAULT_UBATCH,
            swa_full=bool(settings.swa_full),
            flash_attention=flash,
            type_k=type_k,
            type_v=type_v,
            rules=rules,
        ),
        tuple(notes),
    )


def cache_types(settings: PlanSettings) -> tuple[str, str]:
    """Return the types of K and V: f16 where nothing is asked. Raises RequestError where two settings differ."""
    asked = None if settings.kv_cache_dtype == "auto" else cache_type(settings.kv_cache_dtype, "--kv-cache-dtype")
    found = []
    for name, own in (("--cache-type-k", settings.cache_type_k), ("--cache-type-v", settings.cache_type_v)):
        own_type = None if own is None else cache_type(own, name)
        if asked is not None and own_type is not None and own_type != asked:
            raise RequestError(
                f"{name} and --kv-cache-dtype differ",
                value=f"{own_type} and {asked}",
                remedy="give one of them",
            )
        found.append(own_type or asked or "f16")
    return found[0], found[1]


def flash_attention(settings: PlanSettings, type_v: str) -> bool:
    """Return whether flash attention is on: where nothing is asked, it is.

    Raises UnsupportedError for a quantized V without it: V would lie transposed, across the blocks of its type.
    """
    if settings.flash_attention is False and is_quantized(type_v):
        raise UnsupportedError(
            "a quantized V needs flash attention",
            value=f"--cache-type-v {type_v} --no-flash-attn",
            limit="f32, f16, bf16 without flash attention",
            remedy="leave --no-flash-attn out, or use --cache-type-v f16",
        )
    return settings.flash_attention is not False


def plan_llama(
    header: ModelHeader,
    settings: PlanSettings,
    cache: CacheSettings,
) -> LlamaPlan:
    """Return caches and all lines for decided settings, on each of equal devices over which layers are split."""
    spec = header.spec
    kinds = kinds_of_layers(spec)
    place: Place = "ram" if settings.device is not None and settings.device.kind == "cpu" else "gpu"
    num_devices = settings.tensor_parallel_size
    if num_devices > spec.num_layers:
        raise RequestError(
            "more devices than layers", value=num_devices, limit=spec.num_layers, remedy="lower --tensor-parallel-size"
        )
    windows = [kind.window for kind in kinds if kind.window is not None]
    cells = count_cells(cache, max(windows, default=None))
    widest = max(layer.kv_width for layer in spec.layers)
    groups = []
    lines: list[Line] = []
    notes = []
    for kind in kinds:
        size = cell_bytes(kind, cache, widest)
        held_cells = cells.full if kind.window is None else count_cells(cache, kind.window).sliding
        # What one request takes of it: all cells where there is one cache, since the server divides nothing.
        per_sequence = held_cells if cache.is_unified else held_cells // cache.num_slots
        groups.append(
            KVGroupFacts(kind.kind, kind.num_layers, kind.num_kv_heads, kind.head_dim, kind.window, size, per_sequence)
        )
        lines.append(_cache_line(kind, size, held_cells, cache, num_devices, place))
    loaded = weigh(header, settings)
    drafter = drafter_part(header, settings)
    if drafter is not None:
        loaded = (*loaded, drafter)
        lines.append(drafter_cache_line(spec, cache, cells.full, place))
        notes.append(
            "some builds give the drafter a cache of its own and some let it read the target's: both are meant"
        )
    if num_devices > 1:
        notes.append(
            f"layers are split over {num_devices} equal devices, so that weights and K/V divide by layers; the output "
            "layer lies on the last one"
        )
    projector = projector_lines(spec, settings, place)
    if not projector and spec.towers and settings.engine == "llama.cpp":
        sound = " or --audio-seconds" if hears_sound(spec) else ""
        notes.append(f"text alone: the projector file (--mmproj) is not loaded; plan with --images{sound} to add it")
    adapters, formula = adapter_bytes(spec, settings, "float16")
    if adapters:
        lines.append(Line("adapters: LoRA", adapters, place, "steady", formula, "--lora-rank, --num-loras"))
    ledger = Ledger(
        (
            *weight_lines(loaded, spec, num_devices, place),
            *lines,
            compute_line(spec, cache, cells, place),
            *context_lines(place),
            *projector,
        ),
        place,
    )
    full_bytes, sliding_bytes = _sum_by_window(kinds, cache, widest)
    return LlamaPlan(
        cache=cache,
        kv=KVFacts(tuple(groups)),
        max_model_len=min(cells.tokens_per_slot, cache.n_ctx, spec.max_context),
        full_bytes=full_bytes,
        sliding_bytes=sliding_bytes,
        full_cells=cells.full,
        sliding_cells=cells.sliding if windows else 0,
        ledger=ledger,
        loaded=loaded,
        notes=tuple(notes),
    )


def _sum_by_window(kinds: Iterable[KindOfLayer], cache: CacheSettings, widest: int) -> tuple[int, int]:
    sums = {"full": 0, "sliding": 0}
    for kind in kinds:
        cells = count_cells(cache, kind.window)
        held = cells.full if kind.window is None else cells.sliding
        sums[kind.kind] += kind.num_layers * held * cell_bytes(kind, cache, widest)
    return sums["full"], sums["sliding"]


def _cache_line(kind: KindOfLayer, size: int, cells: int, cache: CacheSettings, num_devices: int, place: Place) -> Line:
    """Return what the device with the most layers of a kind holds of its cache."""
    num_layers = -(-kind.num_layers // num_devices)
    split = f" of {kind.num_layers}, on each of {num_devices} devices" if num_devices > 1 else ""
    types = cache.type_k if cache.type_k == cache.type_v else f"{cache.type_k}/{cache.type_v}"
    line = Line(
        f"K/V cache: {kind.num_layers} {kind.kind} layers",
        num_layers * cells * size,
        place,
        "steady",
        f"{cells:,} cells x {num_layers} layers{split} x {size:,} B ({types})",
        "layer types, head_count_kv, key_length",
    )
    # Devices are filled by neighboring layers, so that one may have one layer more of a kind than its share.
    return replace(line, error_bytes=cells * size) if num_devices > 1 else line
