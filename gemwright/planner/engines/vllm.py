"""vLLM (V1): how many blocks of K/V its memory has, what one request needs of them, and what stands beside.

Rules and records: the pages are those of its hybrid K/V manager; blocks, concurrency and longest request come out as it
prints them, given the bytes it has for K/V. What it has of a device's memory is an estimate.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil
from typing import Any, Final

from gemwright.errors import UnsupportedError, show_bytes
from gemwright.planner.engines.layer_kinds import (
    KindOfLayer,
    adapter_bytes,
    check_length,
    drafter_part,
    kinds_of_layers,
)
from gemwright.planner.engines.versions import NEWEST, Version, check_version, parse_version
from gemwright.planner.engines.vllm_overheads import (
    device_memory_bytes,
    is_multimodal,
    overhead_lines,
    token_budget,
    weight_lines,
)
from gemwright.planner.engines.vllm_pages import (
    DEFAULT_BLOCK_SIZE,
    TOKENS_BY_CONCURRENCY_SINCE,
    PagePool,
    default_in_flight_batches,
    page_pool,
)
from gemwright.planner.estimate import Estimate, KVFacts, KVGroupFacts
from gemwright.planner.ledger import Ledger, Line, Place
from gemwright.planner.media import image_tokens
from gemwright.planner.placement import placement
from gemwright.planner.settings import PlanSettings
from gemwright.planner.weights import WeightPart, weigh
from gemwright.spec.model_header import ModelHeader
from gemwright.spec.model_spec import ModelSpec

DEFAULT_UTILIZATION: Final = 0.92
OLDER_UTILIZATION: Final = 0.9
"""Before 0.21, which counts CUDA graphs and takes more for it (vllm-project/vllm, PR 38284)."""
_DTYPES: Final = {
    "bfloat16": "bfloat16", "bf16": "bfloat16", "float16": "float16", "half": "float16", "fp16": "float16",
    "float32": "float32", "float": "float32",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Rules:
    """What of settings and version decides blocks."""

    version: Version
    pool: PagePool
    max_model_len: int
    budget: int
    budget_source: str
    in_flight_batches: int

    @property
    def batched_tokens(self) -> int:
        """Tokens of all batches in flight, for which sliding layers reserve."""
        return self.in_flight_batches * self.budget

    @property
    def blocks_per_request(self) -> int:
        """Blocks that one request of the planned length needs."""
        return self.pool.blocks_per_request(self.max_model_len, self.batched_tokens)


def estimate_vllm(header: ModelHeader, settings: PlanSettings) -> Estimate:
    """Return what vLLM will hold on each device, and how many requests of what length its cache serves.

    K/V has `available_kv_bytes` where given, else the utilization's share of the memory named, less weights and
    overheads; where neither is known, the cache is what the planned requests need. `needed_bytes` is the device memory
    of which the utilization's share holds it all. Raises RequestError for a length beyond the model's context,
    UnsupportedError for what vLLM cannot do: other versions than parse, heads that do not divide, unequal pages.
    """
    spec = header.spec
    kinds = kinds_of_layers(spec)
    # A split that cannot be is told before what would not come out even because of it.
    placed = placement(spec, settings.tensor_parallel_size)
    rules = _rules(spec, kinds, settings)
    pool = rules.pool
    place: Place = "ram" if settings.device is not None and settings.device.kind == "cpu" else "gpu"
    num_seqs = settings.max_num_seqs or 1
    parts = weigh(header, settings)
    drafter = drafter_part(header, settings)
    loaded = parts if drafter is None else (*parts, drafter)
    around = Ledger(
        (
            *weight_lines(loaded, spec, settings, placed, place),
            *_adapter_lines(spec, settings, place),
            *overhead_lines(spec, settings, rules.version, rules.max_model_len, place),
        ),
        place,
    )
    available = _available_bytes(settings, around, place)
    num_blocks = None if available is None else pool.num_blocks(available)
    planned_blocks = num_seqs * rules.blocks_per_request
    held_blocks = planned_blocks if num_blocks is None or num_blocks < rules.blocks_per_request else num_blocks
    ledger = around.add(*_cache_lines(rules, held_blocks, place, around, settings))
    needed = around.total_bytes + planned_blocks * pool.block_bytes
    if settings.available_kv_bytes is None:
        needed = ceil(needed / utilization(settings))
    notes = (*header.notes, *_notes(spec, rules, settings, available, num_blocks, drafter, place))
    return Estimate(
        engine="vllm",
        ledger=ledger,
        kv=_kv_facts(rules, settings.tensor_parallel_size),
        weights=loaded,
        max_model_len=rules.max_model_len,
        max_num_seqs=num_seqs,
        needed_bytes=needed,
        engine_facts={"vllm": _facts(spec, rules, available, num_blocks)},
        notes=notes,
    )


def _rules(spec: ModelSpec, kinds: tuple[KindOfLayer, ...], settings: PlanSettings) -> _Rules:
    version = parse_version(settings.engine_version, "vLLM")
    budget, source = token_budget(spec, settings)
    dtype = settings.kv_cache_dtype.lower()
    return _Rules(
        version=version,
        pool=page_pool(
            kinds,
            settings.tensor_parallel_size,
            _model_dtype(spec, settings) if dtype == "auto" else dtype,
            settings.block_size or DEFAULT_BLOCK_SIZE,
        ),
        max_model_len=check_length(spec, settings.max_model_len or spec.max_context, "--max-model-len"),
        budget=budget,
        budget_source=source,
        in_flight_batches=settings.in_flight_batches or default_in_flight_batches(version),
    )


def _model_dtype(spec: ModelSpec, settings: PlanSettings) -> str:
    """Return the dtype of activations, which is that of K/V under auto; float32 checkpoints are run in 16 bits."""
    if settings.dtype == "auto":
        return "float16" if spec.stored_dtype == "float16" else "bfloat16"
    name = _DTYPES.get(settings.dtype.lower())
    if name is None:
        raise UnsupportedError(
            "not a dtype of vLLM",
            value=settings.dtype,
            limit=f"auto, {', '.join(_DTYPES)}",
            remedy="use --dtype bfloat16, or leave it out",
        )
    return name


def utilization(settings: PlanSettings) -> float:
    """Return the share of a device's memory that vLLM takes: as asked, else the default of its version."""
    if settings.gpu_memory_utilization is not None:
        return settings.gpu_memory_utilization
    version = parse_version(settings.engine_version, "vLLM")
    return DEFAULT_UTILIZATION if version >= TOKENS_BY_CONCURRENCY_SINCE else OLDER_UTILIZATION


def _available_bytes(settings: PlanSettings, around: Ledger, place: Place) -> int | None:
    """Return the bytes for K/V on each device; None where they are not known."""
    if settings.available_kv_bytes is not None:
        return settings.available_kv_bytes
    memory = device_memory_bytes(settings)
    if memory is None or place != "gpu":
        return None
    return max(0, int(memory * utilization(settings)) - around.total_bytes)


def _adapter_lines(spec: ModelSpec, settings: PlanSettings, place: Place) -> list[Line]:
    size, formula = adapter_bytes(spec, settings, _model_dtype(spec, settings))
    if not size:
        return []
    shared = -(-size // settings.tensor_parallel_size)
    error = size - shared
    return [Line("adapters: LoRA", size, place, "steady", formula, "--lora-rank, --num-loras", error)]


def _cache_lines(
    rules: _Rules, num_blocks: int, place: Place, around: Ledger, settings: PlanSettings
) -> tuple[Line, ...]:
    pool = rules.pool
    kinds = ", ".join(f"{kind.layers.num_layers} {kind.layers.kind}" for kind in pool.kinds)
    # Of memory that is an estimate the cache takes the rest, so that what is uncertain around it is so here.
    is_rest = settings.available_kv_bytes is None and device_memory_bytes(settings) is not None
    return (
        Line(
            f"K/V cache: {kinds} layers",
            num_blocks * pool.block_bytes,
            place,
            "steady",
            f"{num_blocks:,} blocks x {pool.group_size} layers x {pool.page_bytes:,} B",
            "layer_types, num_key_value_heads, head_dim",
            around.error_bytes if is_rest else 0,
        ),
    )


def _kv_facts(rules: _Rules, tensor_parallel_size: int) -> KVFacts:
    """Return the kinds of layers, and as one more the places of the last groups that no layer fills."""
    groups = []
    for kind in rules.pool.kinds:
        padding = kind.num_groups * rules.pool.group_size - kind.layers.num_layers
        tokens = kind.block_size * kind.blocks_for(rules.max_model_len, rules.batched_tokens)
        for name, num_layers in ((kind.layers.kind, kind.layers.num_layers), ("padding", padding)):
            if num_layers:
                groups.append(
                    KVGroupFacts(
                        kind=name,
                        num_layers=num_layers,
                        num_kv_heads=max(1, kind.layers.num_kv_heads // tensor_parallel_size),
                        head_dim=kind.layers.head_dim,
                        window=kind.layers.window,
                        token_bytes=kind.token_bytes,
                        tokens_per_sequence=tokens,
                    )
                )
    return KVFacts(tuple(groups))


def _facts(spec: ModelSpec, rules: _Rules, available: int | None, num_blocks: int | None) -> dict[str, Any]:
    pool, needs = rules.pool, rules.blocks_per_request
    facts: dict[str, Any] = {
        "num_blocks": num_blocks,
        "kv_cache_size_tokens": None,
        "max_concurrency": None,
        "max_model_len_that_fits": None,
        "available_kv_bytes": available,
        "page_bytes": pool.page_bytes,
        "num_groups": pool.num_groups,
        "group_size": pool.group_size,
        "block_tokens": {kind.layers.kind: kind.block_size for kind in pool.kinds},
        "blocks_per_request": needs,
        "request_bytes": needs * pool.block_bytes,
        "in_flight_batches": rules.in_flight_batches,
        "max_num_batched_tokens": rules.budget,
    }
    if num_blocks is not None:
        facts["max_concurrency"] = num_blocks / needs
        facts["kv_cache_size_tokens"] = pool.printed_tokens(
            num_blocks, rules.max_model_len, rules.batched_tokens, rules.version
        )
        facts["max_model_len_that_fits"] = pool.longest_length(num_blocks, rules.batched_tokens, spec.max_context)
    return facts


def _notes(
    spec: ModelSpec,
    rules: _Rules,
    settings: PlanSettings,
    available: int | None,
    num_blocks: int | None,
    drafter: WeightPart | None,
    place: Place,
) -> list[str]:
    notes = [
        f"--max-num-batched-tokens {rules.budget} ({rules.budget_source}): sliding layers reserve for "
        f"{rules.in_flight_batches} x {rules.budget} tokens beyond the window, so a smaller number leaves more for K/V"
    ]
    if settings.available_kv_bytes is None and device_memory_bytes(settings) is not None and place == "gpu":
        share = utilization(settings)
        if settings.gpu_memory_utilization is None:
            notes.append(f"--gpu-memory-utilization {share} is assumed, the default of this version")
        notes.append(
            f"{show_bytes(available or 0)} for K/V are what {share:g} of the memory leaves, +-1 GiB; "
            "--kv-cache-memory-bytes fixes them instead"
        )
    elif settings.available_kv_bytes is not None and settings.gpu_memory_utilization is not None:
        notes.append("--gpu-memory-utilization decides nothing where the bytes for K/V are given")
    elif place == "ram" and settings.available_kv_bytes is None:
        notes.append("on a processor vLLM takes the size of its cache from a setting: give --available-kv-bytes")
    if num_blocks is not None and num_blocks < rules.blocks_per_request:
        longest = rules.pool.longest_length(num_blocks, rules.batched_tokens, spec.max_context)
        notes.append(
            f"vLLM would refuse to start: one request of {rules.max_model_len} tokens needs "
            f"{show_bytes(rules.blocks_per_request * rules.pool.block_bytes)} for K/V and "
            f"{show_bytes(available or 0)} are there; {longest} tokens fit"
        )
    copies = placement(spec, settings.tensor_parallel_size)
    for kind in copies.kinds:
        if kind.num_copies > 1:
            notes.append(
                f"{kind.kind} layers have fewer K/V heads than devices: each head is held by {kind.num_copies} of them"
            )
    if rules.pool.num_padding_layers:
        notes.append(
            f"the last group of {rules.pool.group_size} is not full: {rules.pool.num_padding_layers} of "
            f"{rules.pool.num_groups * rules.pool.group_size} pages of every token are held by no layer"
        )
    if drafter is not None or settings.num_speculative_tokens is not None:
        notes.append(
            "a drafter owns no K/V in vLLM, and speculative tokens change no number of blocks"
            + ("" if drafter is not None else "; add --draft to count its weights")
        )
    item = image_tokens(spec, settings)
    is_cut = item is not None and spec.image_attention != "causal" and (settings.max_num_batched_tokens or item) < item
    if is_cut and is_multimodal(spec, settings):
        notes.append(f"an image of {item} tokens does not fit a step, and its positions must not be cut")
    if rules.version == NEWEST:
        notes.append("rules of the newest vLLM known; --engine-version plans for another")
    notes += check_version(rules.version, "vLLM", spec.family)
    return notes
