"""What a model will cost: memory line by line, time, what fits. Knows specs and sizes, never the engine or torch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gemwright.planner.ledger import Ledger

__all__ = ["plan"]


def plan(
    model: str | None = None,
    *,
    revision: str | None = None,
    offline: bool = False,
    device_name: str | None = None,
    **settings: Any,
) -> Ledger:
    """Return the ledger of a model: what an engine will hold, line by line.

    `model` is a hub id, a folder, a config.json or a .gguf file, None the default model; `settings` are the fields of
    planner.settings.PlanSettings. Only headers are read. `planner.answers.make_plan` gives the other answers too.
    Raises what `gemwright plan` would print: RequestError, UnsupportedError, CheckpointError.
    """
    from gemwright.planner.answers import make_plan
    from gemwright.planner.devices import find_device
    from gemwright.planner.inputs import read_header
    from gemwright.planner.settings import PlanSettings

    device = None if device_name is None else find_device(device_name)
    asked = PlanSettings(device=device, **settings)
    return make_plan(read_header(model, revision=revision, offline=offline), asked).ledger
