"""Which GPUs this machine has, asked of NVIDIA's driver and never of torch, whose import would take seconds."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Final

PROC = Path("/proc")

TIMEOUT_SECONDS: Final = 5.0
_FIELDS: Final = "index,uuid,name,memory.total,memory.free,driver_version,compute_cap,mig.mode.current"
_MIB: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class GpuProcess:
    """A program that computes on a GPU."""

    pid: int
    name: str
    used_bytes: int | None


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU; None for what the driver does not tell."""

    index: int | None
    name: str
    total_bytes: int | None
    free_bytes: int | None
    driver: str | None
    compute_capability: str | None
    mig: str | None
    """Whether the GPU is cut into instances: Enabled, Disabled, or None where it cannot be."""
    processes: tuple[GpuProcess, ...]


@dataclass(frozen=True, slots=True)
class GpuFacts:
    """All GPUs, and why they could not be asked, if so."""

    gpus: tuple[Gpu, ...]
    visible: str | None
    """CUDA_VISIBLE_DEVICES, which hides all others from torch; None where it is not set."""
    torch_cuda: str | None
    """The CUDA version that the installed torch was built for; None for a torch without CUDA, or no torch."""
    problem: str | None = None


def read_gpus(timeout_seconds: float = TIMEOUT_SECONDS) -> GpuFacts:
    """Return the GPUs of NVIDIA's driver. A driver that does not answer in time is a problem, none at all is not."""
    visible, built = os.environ.get("CUDA_VISIBLE_DEVICES"), torch_cuda_version()
    program = shutil.which("nvidia-smi")
    driver = (PROC / "driver" / "nvidia" / "version").exists()
    if program is None:
        if not driver:
            return GpuFacts((), visible, built)
        return GpuFacts(_named_by_the_driver(), visible, built, "nvidia-smi is not installed, so only names are known")
    try:
        listed = _ask(program, f"--query-gpu={_FIELDS}", timeout_seconds)
        used = _ask(program, "--query-compute-apps=gpu_uuid,pid,process_name,used_memory", timeout_seconds)
    except subprocess.TimeoutExpired:
        return GpuFacts(
            _named_by_the_driver(), visible, built, f"nvidia-smi did not answer in {timeout_seconds:g} seconds"
        )
    except (OSError, subprocess.CalledProcessError) as error:
        said = (getattr(error, "stdout", None) or str(error)).strip().splitlines()
        reason = said[0] if said else "it gave no reason"
        return GpuFacts(_named_by_the_driver(), visible, built, f"nvidia-smi failed: {reason}" if driver else None)
    return GpuFacts(tuple(_read_gpu(row, used) for row in listed if len(row) == 8), visible, built)


def torch_cuda_version() -> str | None:
    """Return the CUDA version in torch's own version.py, which is read as text."""
    try:
        spec = find_spec("torch")
    except (ImportError, ValueError):
        return None
    if spec is None or not spec.submodule_search_locations:
        return None
    try:
        text = (Path(spec.submodule_search_locations[0]) / "version.py").read_text()
    except OSError:
        return None
    found = re.search(r"^cuda\b[^=\n]*=\s*['\"]([\d.]+)['\"]", text, re.MULTILINE)
    return found[1] if found else None


def _ask(program: str, query: str, timeout_seconds: float) -> list[list[str]]:
    done = subprocess.run(
        [program, query, "--format=csv,noheader,nounits"],
        capture_output=True,
        text=True,
        errors="replace",
        check=True,
        timeout=timeout_seconds,
        stdin=subprocess.DEVNULL,
    )
    return [[field.strip() for field in line.split(",")] for line in done.stdout.splitlines() if line.strip()]


def _read_gpu(row: list[str], used: list[list[str]]) -> Gpu:
    index, uuid, name, total, free, driver, capability, mig = row
    processes = tuple(
        GpuProcess(int(entry[1]), entry[2], _mebibytes(entry[3]))
        for entry in used
        if len(entry) == 4 and entry[0] == uuid and entry[1].isdigit()
    )
    return Gpu(
        int(index) if index.isdigit() else None,
        name,
        _mebibytes(total),
        _mebibytes(free),
        _told(driver),
        _told(capability),
        _told(mig),
        processes,
    )


def _told(field: str) -> str | None:
    """Return a field, None for "[N/A]" and "[Not Supported]"."""
    return None if field.startswith("[") or not field else field


def _mebibytes(field: str) -> int | None:
    return int(field) * _MIB if field.isdigit() else None


def _named_by_the_driver() -> tuple[Gpu, ...]:
    found = []
    for path in sorted((PROC / "driver" / "nvidia" / "gpus").glob("*/information")):
        try:
            match = re.search(r"^Model:\s*(.+)$", path.read_text(errors="replace"), re.MULTILINE)
        except OSError:
            match = None
        found.append(Gpu(None, match[1].strip() if match else "unknown", None, None, None, None, None, ()))
    return tuple(found)
