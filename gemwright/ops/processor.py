"""Which processor this is and what it can do, as far as kernels ask. Refuses to know which kernels there are."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

PROC = Path("/proc")
NODES = Path("/sys/devices/system/node")

_X86: Final = (
    *("avx2", "fma", "f16c", "avx512f", "avx512bw", "avx512vl", "avx512_vnni", "avx512_bf16"),
    *("amx_tile", "amx_bf16", "amx_int8"),
)
FEATURES: Final[Mapping[str, tuple[str, ...]]] = {
    "x86_64": _X86,
    "aarch64": ("asimd", "asimddp", "bf16", "i8mm", "sve", "sve2"),
}
"""By architecture, the features of interest as Linux spells them."""


@dataclass(frozen=True, slots=True)
class Processor:
    """One machine's processors, which are taken to be alike."""

    name: str | None
    architecture: str
    features: tuple[str, ...]
    """Those of FEATURES that it has."""
    missing_features: tuple[str, ...]
    num_physical_cores: int | None
    num_sockets: int | None
    num_memory_nodes: int | None


def read_processor() -> Processor:
    """Return what /proc/cpuinfo says; None and nothing where it does not."""
    try:
        text = (PROC / "cpuinfo").read_text(errors="replace")
    except OSError:
        text = ""
    entries = [_fields(entry) for entry in text.strip().split("\n\n")]
    first = entries[0]
    flags = set((first.get("flags") or first.get("Features") or "").split())
    architecture = platform.machine()
    known = FEATURES.get(architecture, ())
    cores = {
        (entry["physical id"], entry["core id"]) for entry in entries if {"physical id", "core id"} <= entry.keys()
    }
    return Processor(
        name=first.get("model name") or first.get("Model"),
        architecture=architecture,
        features=tuple(name for name in known if name in flags),
        missing_features=tuple(name for name in known if name not in flags),
        num_physical_cores=len(cores) or None,
        num_sockets=len({socket for socket, _ in cores}) or None,
        num_memory_nodes=len(list(NODES.glob("node[0-9]*"))) or None,
    )


def _fields(entry: str) -> dict[str, str]:
    pairs = (line.partition(":") for line in entry.splitlines())
    return {name.strip(): value.strip() for name, _, value in pairs}
