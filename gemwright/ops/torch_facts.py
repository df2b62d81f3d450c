"""What only torch itself can tell: whether it starts, which GPUs it can use, and whether its products keep the row law.

Asking imports torch, which takes a second or more.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TorchFacts:
    """The installed torch as it runs here; None where it does not start."""

    problem: str | None
    """Why it cannot be imported."""
    has_mkl: bool | None = None
    rows_are_independent: bool | None = None
    """Measured: whether a row of a float32 product has the same bits in any number of rows and threads."""
    num_cuda_devices: int | None = None


def read_torch() -> TorchFacts:
    """Import torch as the reference backend does, and return what it says."""
    try:
        import torch

        from gemwright.ops.reference import float32_rows_are_independent
    except (ImportError, OSError) as error:  # OSError: one of its libraries is missing
        return TorchFacts(problem=str(error).strip().partition("\n")[0] or type(error).__name__)
    num_devices = torch.cuda.device_count() if torch.cuda.is_available() else 0
    return TorchFacts(None, torch.backends.mkl.is_available(), float32_rows_are_independent(), num_devices)
