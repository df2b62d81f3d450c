"""Our own engine: the plan it will allocate, from memory.engine_plan itself, and what its process takes beside it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

from gemwright.config import EngineConfig
from gemwright.errors import CapacityError, UnsupportedError, show_bytes
from gemwright.memory.engine_plan import EnginePlan, plan_memory
from gemwright.memory.holding import REFERENCE
from gemwright.memory.process import BLOCK_RECORD_BYTES, VOCABULARY_ENTRY_BYTES
from gemwright.memory.workspace import LOAD_CHUNK_BYTES
from gemwright.planner.drafters import find_drafter
from gemwright.planner.estimate import Estimate, KVFacts, KVGroupFacts
from gemwright.planner.ledger import Ledger, Line, Phase, Place
from gemwright.planner.media import media_lines
from gemwright.planner.own_weights import (
    StoredEncodings,
    check_reads,
    engine_dtype,
    engine_holding,
    engine_place,
    stored_encodings,
)
from gemwright.planner.settings import PlanSettings
from gemwright.planner.weights import lora_bytes, stored_file, weigh, weigh_drafter
from gemwright.spec.model_header import ModelHeader
from gemwright.spec.weights import list_tensors

CUDA_CONTEXT_BYTES = 400 << 20
CUDA_CONTEXT_ERROR_BYTES = 200 << 20
"""A CUDA context with torch's own libraries; 300 to 600 MiB are seen."""
_CHECKED_BYTES: Final = 4 << 20
"""What looking for values that are not finite takes, and joining rows of two tensors."""
_WITH_POOL: Final[tuple[Phase, ...]] = ("steady", "capture", "step", "request")


def estimate_gemwright(header: ModelHeader, settings: PlanSettings) -> Estimate:
    """Return what our engine will hold: its own plan, line by line, and its process around it.

    Raises UnsupportedError for what the engine refuses, RequestError for a length beyond the model's context.
    """
    _refuse_what_cannot_run(header, settings)
    place = engine_place(settings)
    around = _process_lines(header, settings, place)
    free_bytes = 0
    if settings.memory_bytes is not None:
        taken = sum(line.size_bytes for line in around if line.place == place and line.phase == "steady")
        free_bytes = max(1, settings.memory_bytes - taken)
    config = _config(settings, place)
    stored = stored_encodings(header, settings)
    known: dict[str, Any] = {
        "stored_dtype": _stored_dtype(header),
        "name": header.name,
        "holding": engine_holding(settings),
        "encodings": stored.by_name,
    }
    notes = list(header.notes)
    is_refused = False
    try:
        plan = plan_memory(header.spec, config, free_bytes=free_bytes, **known)
    except CapacityError as error:
        is_refused = True
        notes.append(f"as it stands the engine would not start: {error.what} ({error.value}, {error.limit})")
        asked = replace(config, kv_cache_memory_bytes=None, max_num_seqs=settings.max_num_seqs or 1)
        plan = plan_memory(header.spec, asked, free_bytes=0, **known)
    notes += plan.notes
    lines = [*_plan_lines(plan, place, stored), *_load_lines(header, settings, plan, stored), *around]
    media = media_lines(header.spec, settings, dtype_bytes=2, place=place)
    if media:
        notes.append("this version reads no images and no sound: their lines are what the towers would add")
    extras = _extra_lines(header, settings, place, notes)
    ledger = Ledger((*lines, *media, *extras), place)
    num_seqs = settings.max_num_seqs or config.max_num_seqs
    return Estimate(
        engine="gemwright",
        ledger=ledger,
        kv=_kv_facts(plan),
        weights=weigh(header, replace(settings, dtype=plan.dtype)),
        max_model_len=plan.max_model_len,
        max_num_seqs=num_seqs,
        needed_bytes=_needed_bytes(plan, ledger, settings.max_num_seqs or 1),
        engine_facts={},
        notes=tuple(notes),
        is_refused=is_refused,
    )


def _refuse_what_cannot_run(header: ModelHeader, settings: PlanSettings) -> None:
    check_reads(header, settings)
    computed = engine_dtype(header, settings)
    if settings.kv_cache_dtype not in ("auto", computed):
        raise UnsupportedError(
            "gemwright keeps K and V in the dtype it computes in",
            value=settings.kv_cache_dtype,
            limit=f"auto, {computed}",
            remedy="leave --kv-cache-dtype out, or plan for --engine vllm or llama.cpp",
        )
    if engine_place(settings) == "gpu" and settings.kernels not in ("auto", REFERENCE.name):
        raise UnsupportedError(
            "only the reference backend runs on a GPU",
            value=f"--kernels {settings.kernels}",
            limit=f"auto, {REFERENCE.name}",
            remedy="leave --kernels out",
        )


def _config(settings: PlanSettings, place: Place) -> EngineConfig:
    asked: dict[str, Any] = {
        "max_model_len": settings.max_model_len,
        "max_num_batched_tokens": settings.max_num_batched_tokens,
        "max_num_seqs": settings.max_num_seqs,
        "block_size": settings.block_size,
        "kv_cache_memory_bytes": settings.kv_cache_memory_bytes,
    }
    return EngineConfig(
        dtype=settings.dtype,
        device="cuda" if place == "gpu" else "cpu",
        kv_layout=settings.kv_layout,
        kernels=settings.kernels,
        **{name: value for name, value in asked.items() if value is not None},
    )


def _stored_dtype(header: ModelHeader) -> str | None:
    """Return the checkpoint's own dtype as a start would find it; None for GGUF."""
    if header.format == "gguf":
        return None
    if header.spec.stored_dtype is not None or header.tensors is None:
        return header.spec.stored_dtype
    tables = (tensor.encoding for tensor in header.tensors if tensor.name.endswith("embed_tokens.weight"))
    return next(tables, None)


def _plan_lines(plan: EnginePlan, place: Place, stored: StoredEncodings) -> list[Line]:
    # What a recipe says is near: files of one name differ. Held in the engine's dtype, they do not.
    share = stored.recipe.error_share if stored.recipe is not None and plan.holding.has_panels else 0
    lines = [
        Line(
            line.name,
            line.planned_bytes,
            place,
            "steady",
            line.formula,
            line.source,
            round(share * line.planned_bytes) if line.key[0] == "weights" and line.key[1] != "norm" else 0,
        )
        for line in plan.lines
    ]
    num_blocks = sum(group.num_blocks for group in plan.layout.groups)
    records = num_blocks * BLOCK_RECORD_BYTES
    lines += [
        Line(
            "K/V cache: prefixes kept for later requests",
            0,
            place,
            "steady",
            "they stay in the pool's own blocks until these are needed",
            "memory/block_pool.py",
        ),
        Line(
            "host: block tables and pool",
            records,
            "ram",
            "steady",
            f"{num_blocks:,} blocks x {BLOCK_RECORD_BYTES} B",
            "measured",
            records // 2,
        ),
        Line(
            "workspace: an operation's own",
            plan.workspace.scratch_bytes,
            place,
            "step",
            "a product's inputs in 16 bits, pieces of attention, rows of the chosen experts, what threads unpack"
            if plan.holding.has_panels
            else "the largest of scores and sums of a tile of attention, rows of the chosen experts, rounded logits",
            "memory/workspace.py",
        ),
    ]
    return lines


def _load_lines(header: ModelHeader, settings: PlanSettings, plan: EnginePlan, stored: StoredEncodings) -> list[Line]:
    lines = [_decoding_line(header, plan, stored)]
    file = stored_file(header, settings)
    lines += [
        Line(
            "load: pages of the model's files",
            file.size_bytes,
            "mmap",
            "load",
            file.formula,
            file.source,
            file.error_bytes,
        ),
        Line("load: the model's files", file.size_bytes, "disk", "steady", file.formula, file.source, file.error_bytes),
    ]
    return lines


def _decoding_line(header: ModelHeader, plan: EnginePlan, stored: StoredEncodings) -> Line:
    """Return the line of what passes through float32 while weights are loaded."""
    name = "load: rows decoded at once"
    if not plan.holding.has_panels:
        formula = f"2 x {show_bytes(LOAD_CHUNK_BYTES)} of float32"
        return Line(name, 2 * LOAD_CHUNK_BYTES, "ram", "load", formula, "ops/reference.py", LOAD_CHUNK_BYTES)
    plain = _stored_dtype(header)
    largest = 0
    encodings = set()
    for tensor in list_tensors(header.spec):
        encoding = stored.by_name.get(tensor.name, plain)
        if len(tensor.shape) > 1 and plan.holding.is_decoded(tensor, encoding, plan.dtype):
            largest = max(largest, 4 * tensor.num_elements)
            encodings.add(str(encoding))
    chunk = min(largest, LOAD_CHUNK_BYTES)
    formula = f"2 x {show_bytes(chunk)} of float32, from {', '.join(sorted(encodings))}" if chunk else "none: as stored"
    return Line(name, 2 * chunk, "ram", "load", formula, "ops/native.py", max(chunk, _CHECKED_BYTES))


def _process_lines(header: ModelHeader, settings: PlanSettings, place: Place) -> list[Line]:
    """Return what the process takes beside the plan: measured on this machine where it was, else as seen elsewhere."""
    vocabulary = header.spec.vocab_size * VOCABULARY_ENTRY_BYTES
    holding = engine_holding(settings)
    calibration = settings.calibration
    if calibration is not None and place == "ram":
        runs = f"{calibration.num_runs} run{'' if calibration.num_runs == 1 else 's'}"
        line = Line(
            f"runtime: {holding.runtime}",
            calibration.runtime_bytes + vocabulary,
            "ram",
            "steady",
            f"measured in {runs} on this machine, and {header.spec.vocab_size:,} x {VOCABULARY_ENTRY_BYTES} B",
            "calibration of this machine",
            calibration.error_bytes,
        )
        return [line]
    lines = [
        Line(
            f"runtime: {holding.runtime}",
            holding.runtime_bytes + vocabulary,
            "ram",
            "steady",
            f"{show_bytes(holding.runtime_bytes)} and {header.spec.vocab_size:,} x {VOCABULARY_ENTRY_BYTES} B",
            "measured elsewhere; `gemwright bench memory` measures it here",
            holding.runtime_error_bytes,
        )
    ]
    if place == "gpu":
        lines.append(
            Line(
                "runtime: CUDA context",
                CUDA_CONTEXT_BYTES,
                "gpu",
                "steady",
                show_bytes(CUDA_CONTEXT_BYTES),
                "seen elsewhere",
                CUDA_CONTEXT_ERROR_BYTES,
            )
        )
    return lines


def _extra_lines(header: ModelHeader, settings: PlanSettings, place: Place, notes: list[str]) -> list[Line]:
    """Return the lines of what this version does not run yet and a user plans for: a drafter, adapters."""
    lines = []
    if settings.draft:
        notes.append("this version runs no drafter: its lines are what one would add")
        name, spec = find_drafter(header.spec)
        part = weigh_drafter(ModelHeader(name, spec, "config", "published"), replace(settings, dtype="bfloat16"))
        lines.append(Line("drafter: weights", part.size_bytes, place, "steady", part.formula, name, part.error_bytes))
    if settings.lora_rank is not None:
        notes.append("this version runs no LoRA adapters beside a model: merge them, or read their line as an outlook")
        size, formula = lora_bytes(header.spec, settings.lora_rank)
        lines.append(
            Line(
                "adapters: LoRA",
                (settings.num_loras or 1) * size,
                place,
                "steady",
                f"{settings.num_loras or 1} x ({formula})",
                "rank",
            )
        )
    return lines


def _kv_facts(plan: EnginePlan) -> KVFacts:
    return KVFacts(
        tuple(
            KVGroupFacts(
                kind=group.kind.value,
                num_layers=len(group.layers),
                num_kv_heads=group.num_kv_heads,
                head_dim=group.head_dim,
                window=group.window,
                token_bytes=group.token_bytes,
                tokens_per_sequence=group.block_size * group.blocks_for_request(plan.max_model_len, _step(plan)),
            )
            for group in plan.layout.groups
        )
    )


def _step(plan: EnginePlan) -> int:
    """Return the tokens that one request can bring in a step."""
    return min(plan.step_tokens, plan.max_model_len)


def _needed_bytes(plan: EnginePlan, ledger: Ledger, num_seqs: int) -> int:
    """Return the ledger's total with a pool of exactly what `num_seqs` requests of full length need; there is no pool
    yet while the model is loaded."""
    request_bytes = plan.layout.request_bytes(plan.max_model_len, _step(plan))
    running = max(ledger.held_bytes(phase) for phase in _WITH_POOL)
    return max(ledger.held_bytes("load"), running - plan.layout.total_bytes + num_seqs * request_bytes)
