"""What an engine will hold, decided from a spec and a config: dtype, cache, workspace, and whether it fits.

The engine allocates this plan and the planner shows it: there is no second formula. Refuses to know about checkpoints
and devices; what is free is told.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from gemwright.config import EngineConfig
from gemwright.errors import CapacityError, RequestError, show_both_bytes, show_bytes
from gemwright.memory.dtypes import ComputeDtype
from gemwright.memory.footprint import FootprintLine, plan_footprint
from gemwright.memory.holding import REFERENCE, Holding
from gemwright.memory.kv_layout import KVLayout, group_layers, longest_request, plan_layout
from gemwright.memory.machine import allowed_threads
from gemwright.memory.workspace import Workspace, plan_workspace
from gemwright.spec.families.refused import refuse_drafter
from gemwright.spec.model_spec import ModelSpec

KV_SHARE = 4
"""Unasked, the K/V pool takes at most one part in so many of free memory."""


@dataclass(frozen=True, slots=True)
class EnginePlan:
    """What an engine will compute in and hold, decided from headers alone."""

    dtype: ComputeDtype
    layout: KVLayout
    workspace: Workspace
    max_model_len: int
    step_tokens: int
    """Tokens of one step: as configured, or as many as all requests can bring."""
    lines: tuple[FootprintLine, ...]
    free_bytes: int
    """What this process may still take; 0 where nobody knows, as on a GPU."""
    notes: tuple[str, ...]
    holding: Holding
    """How the backend that it is made for holds all this."""
    encodings: Mapping[str, str]
    """How the tensors of spec.weights are stored, by name."""

    @property
    def planned_bytes(self) -> int:
        """Sum of the lines: what is allocated and kept."""
        return sum(line.planned_bytes for line in self.lines)

    @property
    def needed_bytes(self) -> int:
        """The same, and what one operation takes for its duration."""
        return self.planned_bytes + self.workspace.scratch_bytes

    def require_fit(self) -> None:
        """Raise CapacityError where what is needed is more than what is free."""
        if not self.free_bytes or self.needed_bytes <= self.free_bytes:
            return
        largest = max(self.lines, key=lambda line: line.planned_bytes)
        needed, free = show_both_bytes(self.needed_bytes, self.free_bytes)
        raise CapacityError(
            "the model does not fit in free memory",
            value=f"{needed} needed, most of it for {largest.name} ({show_bytes(largest.planned_bytes)})",
            limit=f"{free} free",
            remedy="use --dtype bfloat16, a smaller model, or lower --max-num-seqs and --max-model-len",
        )


def plan_memory(
    spec: ModelSpec,
    config: EngineConfig,
    *,
    stored_dtype: str | None,
    free_bytes: int,
    name: str = "the model",
    holding: Holding = REFERENCE,
    encodings: Mapping[str, str] | None = None,
) -> EnginePlan:
    """Decide dtype, cache and workspace; nothing is read or allocated.

    `stored_dtype` is the checkpoint's own, None for GGUF; `free_bytes` what may be taken, 0 where nobody knows.
    `holding` is that of the backend, and `encodings` how each tensor of spec.weights is stored, by name; None, or a
    name that is not there, means floats, which every backend holds in the engine's dtype.
    Raises UnsupportedError for a drafter, RequestError for a length beyond the model's context, CapacityError where not
    even a short request's cache fits. Whether all of it fits, `EnginePlan.require_fit` says.
    """
    if spec.drafter is not None:
        raise refuse_drafter(name)
    notes: list[str] = []
    dtype = _choose_dtype(stored_dtype, config, notes)
    layout, max_model_len = _plan_cache(spec, config, dtype, free_bytes, notes)
    step_tokens = min(config.step_tokens(), config.max_num_seqs * max_model_len)
    threads = config.threads or allowed_threads()
    workspace = plan_workspace(
        spec,
        step_tokens=step_tokens,
        dtype=dtype,
        holding=holding,
        threads=threads,
        max_model_len=max_model_len,
    )
    lines = plan_footprint(spec, layout, workspace, dtype, holding, encodings)
    return EnginePlan(
        dtype, layout, workspace, max_model_len, step_tokens, lines, free_bytes, tuple(notes), holding, encodings or {}
    )


def _choose_dtype(stored_dtype: str | None, config: EngineConfig, notes: list[str]) -> ComputeDtype:
    if config.dtype == "float32":
        return "float32"
    if config.dtype == "bfloat16":
        return "bfloat16"
    if stored_dtype == "float32":
        return "float32"
    if stored_dtype == "float16":
        notes.append(
            "the checkpoint is float16, which overflows in Gemma: computing in bfloat16 (--dtype float32 is exact)"
        )
    return "bfloat16"


def _plan_cache(
    spec: ModelSpec, config: EngineConfig, dtype: ComputeDtype, free_bytes: int, notes: list[str]
) -> tuple[KVLayout, int]:
    """Return the cache's layout and the longest request it serves."""
    wanted = config.max_model_len or spec.max_context
    if wanted > spec.max_context:
        raise RequestError(
            "max_model_len is beyond the model's context",
            value=wanted,
            limit=spec.max_context,
            remedy=f"use --max-model-len {spec.max_context} or less",
        )
    step_tokens = min(config.step_tokens(), wanted)
    budget = config.kv_cache_memory_bytes
    if budget is None and free_bytes:
        budget = free_bytes // KV_SHARE
    if budget is not None and config.max_model_len is None:
        shapes = group_layers(spec, config.block_size, dtype, keys_from_values=config.keys_from_values)
        held = longest_request(shapes, budget, wanted, step_tokens)
        if held < wanted:
            if held == 0:
                needed, allowed = show_both_bytes(shapes.request_bytes(1, step_tokens), budget)
                raise CapacityError(
                    "the K/V pool is smaller than one block of every group",
                    value=f"{needed} needed",
                    limit=f"{allowed} allowed",
                    remedy="raise --kv-cache-memory-bytes",
                )
            notes.append(
                f"context lowered from the model's {wanted} to {held} tokens: what a K/V pool of "
                f"{show_bytes(budget)} holds (--kv-cache-memory-bytes)"
            )
            wanted = held
    layout = plan_layout(
        spec,
        block_size=config.block_size,
        dtype=dtype,
        max_model_len=wanted,
        max_num_seqs=config.max_num_seqs,
        step_tokens=min(step_tokens, wanted),
        budget_bytes=budget,
        keys_from_values=config.keys_from_values,
    )
    return layout, wanted
