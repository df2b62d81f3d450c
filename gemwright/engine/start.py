"""From a checkpoint and a config to a running engine: decides, weighs, refuses or allocates, in that order."""

from __future__ import annotations

from dataclasses import dataclass

from gemwright.config import EngineConfig
from gemwright.engine.runner import Runner
from gemwright.loading.checkpoint import Checkpoint
from gemwright.memory.dtypes import ComputeDtype
from gemwright.memory.engine_plan import EnginePlan, plan_memory
from gemwright.memory.footprint import FootprintLine
from gemwright.memory.holding import Holding, expected_holding, holding_of
from gemwright.memory.kv_layout import KVLayout
from gemwright.memory.machine import allowed_threads, free_memory_bytes
from gemwright.models.decoder import Decoder
from gemwright.models.weights import ModelWeights, Progress, pack_weights
from gemwright.ops.backends import choose_backend, judge_backends
from gemwright.ops.protocol import Buffer, Cache, Ops


@dataclass(frozen=True, slots=True)
class StartedEngine:
    """What a start yields. `lines` is the plan and `measured` what was allocated for each of them; `notes` is what a
    user should know: what was dropped, lowered or chosen."""

    runner: Runner
    plan: EnginePlan
    measured: tuple[int, ...]
    """Bytes allocated for each line of the plan, as the backend counts them."""
    notes: tuple[str, ...]

    @property
    def layout(self) -> KVLayout:
        """The K/V cache."""
        return self.plan.layout

    @property
    def dtype(self) -> ComputeDtype:
        """What is computed, held and cached in."""
        return self.plan.dtype

    @property
    def max_model_len(self) -> int:
        """The longest prompt and answer together, in tokens."""
        return self.plan.max_model_len

    @property
    def step_tokens(self) -> int:
        """Tokens of one step: as configured, or as many as all requests can bring."""
        return self.plan.step_tokens

    @property
    def lines(self) -> tuple[FootprintLine, ...]:
        """The plan, line by line."""
        return self.plan.lines

    @property
    def planned_bytes(self) -> int:
        """Sum of the plan's lines."""
        return self.plan.planned_bytes

    @property
    def measured_bytes(self) -> int:
        """Sum of what was allocated."""
        return sum(self.measured)


def plan_engine(checkpoint: Checkpoint, config: EngineConfig) -> EnginePlan:
    """Return what an engine for a checkpoint will hold on this machine, without torch. Raises as `plan_memory`."""
    return plan_memory(
        checkpoint.spec,
        config,
        stored_dtype=checkpoint.stored_dtype,
        free_bytes=free_memory_bytes() if config.device == "cpu" else 0,
        name=checkpoint.folder.name,
        holding=choose_holding(config.kernels, config.device),
        encodings=checkpoint.encodings(),
    )


def choose_holding(kernels: str, device: str) -> Holding:
    """Return how the backend that will compute holds a model; where none can run here, what would be planned for one
    that can."""
    chosen = [judged.backend.name for judged in judge_backends(kernels, device) if judged.is_chosen]
    return holding_of(chosen[0]) if chosen else expected_holding(kernels, device)


def start_engine(checkpoint: Checkpoint, config: EngineConfig, progress: Progress | None = None) -> StartedEngine:
    """Load the weights and allocate cache and workspace.

    Raises UnsupportedError for what cannot run, CapacityError before anything is read when it cannot fit.
    """
    plan = plan_engine(checkpoint, config)
    plan.require_fit()
    ops = _make_ops(config, plan.dtype)
    weights = pack_weights(checkpoint.spec, ops, checkpoint.sources(), progress)
    cache = ops.allocate_cache(plan.layout)
    buffers = ops.allocate_workspace(plan.workspace)
    return StartedEngine(
        runner=Runner(ops, Decoder(checkpoint.spec, ops, weights, plan.layout, cache, buffers), plan.layout),
        plan=plan,
        measured=_measure(plan, ops, weights, cache, buffers),
        notes=(*checkpoint.notes, *plan.notes, *ops.notes()),
    )


def _measure(
    plan: EnginePlan, ops: Ops, weights: ModelWeights, cache: Cache, buffers: dict[str, Buffer]
) -> tuple[int, ...]:
    """Return what the backend allocated for each line of the plan."""
    sizes: dict[tuple[str, str], int] = {("weights", part): size for part, size in weights.part_bytes.items()}
    sizes |= {("cache", str(index)): size for index, size in enumerate(ops.cache_bytes(cache))}
    sizes["workspace", "buffers"] = sum(ops.buffer_bytes(buffer) for buffer in buffers.values())
    measured = tuple(sizes.pop(line.key) for line in plan.lines)
    assert not sizes, f"allocated but not planned: {sizes}"
    return measured


def _make_ops(config: EngineConfig, dtype: ComputeDtype) -> Ops:
    choose_backend(config.kernels, config.device)
    from gemwright.ops.reference import ReferenceOps

    return ReferenceOps(dtype, config.device, config.threads or allowed_threads())
