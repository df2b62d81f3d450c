"""The plan beside what a live process holds, line by line: what was planned, allocated, and touched so far.

Memory that was allocated and never written costs nothing yet, so that what a process holds is compared with what was
touched: K/V blocks that were ever handed out, and the rows of the largest step.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gemwright.engine.core import EngineCore
from gemwright.engine.start import StartedEngine
from gemwright.memory.footprint import FootprintLine
from gemwright.memory.machine import process_bytes
from gemwright.memory.process import beside_bytes
from gemwright.memory.workspace import LOGIT_ROWS, Workspace

PROC = Path("/proc")


@dataclass(frozen=True, slots=True)
class MeasuredLine:
    """One line of the plan."""

    name: str
    planned_bytes: int
    measured_bytes: int
    """Allocated for it, as the backend counts."""
    touched_bytes: int
    """Of that, written so far."""

    def to_dict(self) -> dict[str, Any]:
        """Return the fields of the JSON output."""
        return {
            "name": self.name,
            "planned_bytes": self.planned_bytes,
            "measured_bytes": self.measured_bytes,
            "touched_bytes": self.touched_bytes,
        }


@dataclass(frozen=True, slots=True)
class EngineMeasurement:
    """An engine's memory at one moment."""

    lines: tuple[MeasuredLine, ...]
    beside_bytes: int
    """What tokenizer and block pool are counted with."""
    runtime_bytes: int
    """What the process is planned to take beside all that: as calibrated, or as seen elsewhere."""
    process_bytes: int
    """The resident set."""
    peak_process_bytes: int
    """The most it ever was."""
    is_on_cpu: bool
    """Whether the engine's memory is the process's own."""

    @property
    def touched_bytes(self) -> int:
        """Sum of the lines."""
        return sum(line.touched_bytes for line in self.lines)

    @property
    def planned_process_bytes(self) -> int:
        """What the process should hold now."""
        own = self.touched_bytes if self.is_on_cpu else 0
        return own + self.beside_bytes + self.runtime_bytes

    @property
    def measured_runtime_bytes(self) -> int:
        """What the process holds beside lines, tokenizer and pool: what a calibration keeps."""
        return self.process_bytes - (self.planned_process_bytes - self.runtime_bytes)

    def to_dict(self) -> dict[str, Any]:
        """Return the fields of the JSON output."""
        return {
            "lines": [line.to_dict() for line in self.lines],
            "process": {
                "planned_bytes": self.planned_process_bytes,
                "measured_bytes": self.process_bytes,
                "peak_bytes": self.peak_process_bytes,
                "runtime_bytes": self.measured_runtime_bytes,
            },
        }


def measure(
    engine: StartedEngine, core: EngineCore, *, vocab_size: int, runtime_bytes: int | None = None
) -> EngineMeasurement:
    """Return an engine's plan beside what it holds now. `vocab_size` is that of its tokenizer, 0 without one;
    `runtime_bytes` what the process is known to take beside it, None: as seen elsewhere."""
    is_on_cpu = engine.runner.ops.is_on_cpu
    lines = []
    for line, measured in zip(engine.lines, engine.measured, strict=True):
        touched = _touched(line, engine, core) if is_on_cpu else measured
        lines.append(MeasuredLine(line.name, line.planned_bytes, measured, touched))
    num_blocks = sum(pool.num_blocks for pool in core.blocks.pools)
    return EngineMeasurement(
        tuple(lines),
        beside_bytes(vocab_size, num_blocks),
        engine.plan.holding.runtime_bytes if runtime_bytes is None else runtime_bytes,
        process_bytes(),
        _peak_bytes(),
        is_on_cpu,
    )


def _touched(line: FootprintLine, engine: StartedEngine, core: EngineCore) -> int:
    section, part = line.key
    if section == "cache":
        group = engine.layout.groups[int(part)]
        return core.blocks.pools[group.index].num_touched * group.block_bytes
    if section == "workspace":
        counters = core.counters
        return _touched_buffers(engine.plan.workspace, counters.max_step_tokens, counters.max_logit_rows)
    return line.planned_bytes


def _touched_buffers(workspace: Workspace, num_tokens: int, num_logit_rows: int) -> int:
    touched = 0
    for buffer in workspace.buffers:
        used = num_logit_rows if buffer.name in ("selected", "logits", "wanted") else num_tokens
        rows = min(buffer.rows, min(used, LOGIT_ROWS) if buffer.name in ("selected", "logits") else used)
        touched += buffer.total_bytes * rows // buffer.rows
    return touched


def _peak_bytes() -> int:
    """Return the largest resident set so far, 0 where the system does not tell."""
    try:
        lines = (PROC / "self" / "status").read_text().splitlines()
    except OSError:
        return 0
    found = (line.split()[1] for line in lines if line.startswith("VmHWM:"))
    return int(next(found, "0")) * 1024
