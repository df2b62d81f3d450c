"""What a finished command measured of itself: shown beside the plan, and kept for later plans on this machine."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gemwright.loading.default_model import cache_folder
from gemwright.planner.calibration import load_calibration, note_run

if TYPE_CHECKING:
    from gemwright.engine.llm import LLM
    from gemwright.engine.measured import EngineMeasurement


def measure_run(llm: LLM) -> EngineMeasurement:
    """Return plan and measurement, the process planned as this machine was calibrated before."""
    return llm.measure(runtime_bytes=planned_runtime_bytes(llm.engine.plan.holding.name))


def planned_runtime_bytes(backend: str) -> int | None:
    """Return what a process of a backend takes beside its lines as this machine was calibrated; None where it was
    not."""
    calibration = load_calibration(cache_folder(), backend)
    return None if calibration is None else calibration.runtime_bytes


def keep_run(llm: LLM) -> None:
    """Let later plans know what this process took beside its ledger; only runs on a CPU are comparable."""
    found = llm.measure()
    if found.is_on_cpu:
        note_run(cache_folder(), llm.engine.plan.holding.name, found.measured_runtime_bytes)
