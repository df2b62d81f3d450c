"""From a checkpoint and a config to a running engine: decides, weighs, refuses or allocates, in that order."""

from __future__ import annotations

import os
from dataclasses import dataclass

from gemwright.config import MAX_THREADS, EngineConfig
from gemwright.engine.runner import Runner
from gemwright.errors import CapacityError, RequestError, UnsupportedError
from gemwright.loading.checkpoint import Checkpoint
from gemwright.memory.dtypes import ComputeDtype
from gemwright.memory.footprint import FootprintLine, plan_footprint
from gemwright.memory.kv_layout import KVLayout, group_layers, longest_request, plan_layout
from gemwright.memory.machine import free_memory_bytes
from gemwright.memory.workspace import plan_workspace
from gemwright.models.decoder import Decoder
from gemwright.models.weights import Progress, pack_weights
from gemwright.ops.protocol import Ops
from gemwright.spec.model_spec import ModelSpec


@dataclass(frozen=True, slots=True)
class StartedEngine:
    """What a start yields. `lines` is the plan, `measured_bytes` what was allocated for it, `notes` what a user should
    know: what was dropped, lowered or chosen."""

    runner: Runner
    layout: KVLayout
    dtype: ComputeDtype
    max_model_len: int
    step_tokens: int
    """Tokens of one step: as configured, or as many as all requests can bring."""
    lines: tuple[FootprintLine, ...]
    measured_bytes: int
    notes: tuple[str, ...]

    @property
    def planned_bytes(self) -> int:
        """Sum of the plan's lines."""
        return sum(line.planned_bytes for line in self.lines)


def start_engine(checkpoint: Checkpoint, config: EngineConfig, progress: Progress | None = None) -> StartedEngine:
    """Load the weights and allocate cache and workspace.

    Raises UnsupportedError for what cannot run, CapacityError before anything is read when it cannot fit.
    """
    spec = checkpoint.spec
    if spec.drafter is not None:
        raise UnsupportedError(
            "this is a drafter: it predicts tokens for a larger Gemma and cannot answer alone",
            value=checkpoint.folder.name,
            remedy="run the model it drafts for",
        )
    notes: list[str] = []
    dtype = _choose_dtype(checkpoint, config, notes)
    free_bytes = free_memory_bytes() if config.device == "cpu" else 0
    layout, max_model_len = _plan_cache(spec, config, dtype, free_bytes, notes)
    step_tokens = min(config.step_tokens(), config.max_num_seqs * max_model_len)
    workspace = plan_workspace(spec, step_tokens=step_tokens, dtype=dtype)
    lines = plan_footprint(spec, layout, workspace, dtype)
    _check_fits(lines, workspace.scratch_bytes, free_bytes)
    ops = _make_ops(config, dtype)
    weights = pack_weights(spec, ops, checkpoint.sources(), progress)
    notes[:0] = checkpoint.notes
    cache = ops.allocate_cache(layout)
    buffers = ops.allocate_workspace(workspace)
    measured = (
        weights.total_bytes + ops.cache_bytes(cache) + sum(ops.buffer_bytes(buffer) for buffer in buffers.values())
    )
    notes.extend(ops.notes())
    return StartedEngine(
        runner=Runner(ops, Decoder(spec, ops, weights, layout, cache, buffers), layout),
        layout=layout,
        dtype=dtype,
        max_model_len=max_model_len,
        step_tokens=step_tokens,
        lines=lines,
        measured_bytes=measured,
        notes=tuple(notes),
    )


def _choose_dtype(checkpoint: Checkpoint, config: EngineConfig, notes: list[str]) -> ComputeDtype:
    if config.dtype == "float32":
        return "float32"
    if config.dtype == "bfloat16":
        return "bfloat16"
    stored = checkpoint.stored_dtype
    if stored == "float32":
        return "float32"
    if stored == "float16":
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
        budget = free_bytes // 4
    if budget is not None and config.max_model_len is None:
        shapes = group_layers(spec, config.block_size, dtype, keys_from_values=config.keys_from_values)
        held = longest_request(shapes, budget, wanted, step_tokens)
        if held < wanted:
            if held == 0:
                raise CapacityError(
                    "the K/V pool is smaller than one block of every group",
                    value=f"{shapes.request_bytes(1, step_tokens)} bytes needed",
                    limit=f"{budget} bytes allowed",
                    remedy="raise --kv-cache-memory-bytes",
                )
            notes.append(
                f"context lowered from the model's {wanted} to {held} tokens: what a K/V pool of "
                f"{budget / 2**30:.2f} GiB holds (--kv-cache-memory-bytes)"
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


def _check_fits(lines: tuple[FootprintLine, ...], scratch_bytes: int, free_bytes: int) -> None:
    needed = sum(line.planned_bytes for line in lines) + scratch_bytes
    if free_bytes and needed > free_bytes:
        largest = max(lines, key=lambda line: line.planned_bytes)
        raise CapacityError(
            "the model does not fit in free memory",
            value=f"{needed} bytes needed, most of them for {largest.name} ({largest.planned_bytes})",
            limit=f"{free_bytes} bytes free",
            remedy="use --dtype bfloat16, a smaller model, or lower --max-num-seqs and --max-model-len",
        )


def _make_ops(config: EngineConfig, dtype: ComputeDtype) -> Ops:
    try:
        from gemwright.ops.reference import ReferenceOps
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise UnsupportedError(
            "the reference backend needs torch, which is not installed",
            value=f"--kernels {config.kernels}",
            remedy="pip install 'gemwright[torch]'",
        ) from error
    return ReferenceOps(dtype, config.device, config.threads or _allowed_threads())


def _allowed_threads() -> int:
    """Return the threads a user allows by OMP_NUM_THREADS, else the cores this process may run on."""
    asked = os.environ.get("OMP_NUM_THREADS", "")
    allowed = int(asked) if asked.isdigit() and int(asked) > 0 else len(os.sched_getaffinity(0))
    return min(allowed, MAX_THREADS)
