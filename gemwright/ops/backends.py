"""The backends that exist, what each needs, and which of them computes. Imports none of them.

A new backend is one entry of BACKENDS, its name in config.KERNELS, and a line where engine/start.py makes it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Final

from gemwright.errors import UnsupportedError
from gemwright.ops.processor import read_processor

AUTO: Final = "auto"

MKL_STRICT: Final = ("MKL_CBWR", "AUTO,STRICT")
"""The variable, and its value, that makes a row of MKL's float32 products independent of rows and threads beside it."""


@dataclass(frozen=True, slots=True)
class Backend:
    """One implementation of ops.protocol.Ops."""

    name: str
    """What --kernels calls it."""
    what: str
    devices: tuple[str, ...]
    features: frozenset[str]
    """Features of the processor (ops/processor.py) without which it does not run on "cpu"."""
    package: str | None
    """The package that it is written with; None where it needs none."""
    extra: str | None = None
    """The extra of this project that installs it."""

    def obstacle(self, device: str, features: frozenset[str]) -> tuple[str, str] | None:
        """Return why it cannot run on `device` with a processor of these features, and a remedy; None where it can."""
        kind = device.partition(":")[0]
        if kind not in self.devices:
            return f"it does not run on {kind}", f"use --device {self.devices[0]}"
        lacking = sorted(self.features - features) if kind == "cpu" else []
        if lacking:
            return f"this processor has no {', '.join(lacking)}", f"use --kernels {AUTO}"
        if self.package is not None and not is_installed(self.package):
            return f"it needs {self.package}, which is not installed", f"pip install 'gemwright[{self.extra}]'"
        return None


BACKENDS: Final = (
    Backend(
        "reference",
        "plain torch operations, written to be right rather than fast",
        devices=("cpu", "cuda"),
        features=frozenset(),
        package="torch",
        extra="torch",
    ),
)
"""Best first: `--kernels auto` takes the first that can run."""


@dataclass(frozen=True, slots=True)
class Judged:
    """One backend on this machine."""

    backend: Backend
    obstacle: str | None
    """Why it cannot run, None where it can."""
    remedy: str | None
    is_chosen: bool


def judge_backends(
    kernels: str = AUTO, device: str = "cpu", backends: Sequence[Backend] = BACKENDS
) -> tuple[Judged, ...]:
    """Return every backend, best first, with what stands against it, and which one `kernels` chooses."""
    features = frozenset(read_processor().features)
    obstacles = [backend.obstacle(device, features) for backend in backends]
    asked = [kernels in (AUTO, backend.name) for backend in backends]
    able = (
        index for index, (fits, obstacle) in enumerate(zip(asked, obstacles, strict=True)) if fits and obstacle is None
    )
    chosen = next(able, None)
    found = []
    for index, (backend, obstacle) in enumerate(zip(backends, obstacles, strict=True)):
        why, remedy = obstacle or (None, None)
        found.append(Judged(backend, why, remedy, is_chosen=index == chosen))
    return tuple(found)


def choose_backend(kernels: str, device: str, backends: Sequence[Backend] = BACKENDS) -> Backend:
    """Return the backend that computes; UnsupportedError where none that is asked for can run here."""
    judged = judge_backends(kernels, device, backends)
    chosen = [entry.backend for entry in judged if entry.is_chosen]
    if chosen:
        return chosen[0]
    asked = [entry for entry in judged if kernels in (AUTO, entry.backend.name)]
    raise UnsupportedError(
        f"the {asked[-1].backend.name} backend cannot run here: {asked[-1].obstacle}",
        value=f"--kernels {kernels}",
        remedy=asked[-1].remedy,
    )


def is_installed(package: str) -> bool:
    """Whether a package could be imported, without importing it."""
    try:
        return find_spec(package) is not None
    except (ImportError, ValueError):
        return False
