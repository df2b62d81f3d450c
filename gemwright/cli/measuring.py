"""What a finished command measured of itself: shown beside the plan, and kept for later plans on this machine."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gemwright.loading.default_model import cache_folder
from gemwright.memory.process import RUNTIME_BYTES
from gemwright.planner.calibration import load_calibration, note_run

if TYPE_CHECKING:
    from gemwright.engine.llm import LLM
    from gemwright.engine.measured import EngineMeasurement


def measure_run(llm: LLM) -> EngineMeasurement:
    """Return plan and measurement, the process planned as this machine was calibrated before."""
    return llm.measure(runtime_bytes=planned_runtime_bytes())


def planned_runtime_bytes() -> int:
    """Return what a process is planned to take beside its lines: as this machine was calibrated, or as seen
    elsewhere."""
    calibration = load_calibration(cache_folder())
    return RUNTIME_BYTES if calibration is None else calibration.runtime_bytes


def keep_run(llm: LLM) -> None:
    """Let later plans know what this process took beside its ledger; only runs on a CPU are comparable."""
    found = llm.measure()
    if found.is_on_cpu:
        note_run(cache_folder(), found.measured_runtime_bytes)
