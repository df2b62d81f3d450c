"""Machines: this one, and a table of known accelerators and processors with memory, bandwidth and peak rates."""

from __future__ import annotations

import difflib
import hashlib
import platform
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, Final, Literal

from gemwright.errors import RequestError, UnsupportedError
from gemwright.memory.machine import CoreFacts, MemoryFacts, allowed_threads, core_facts, memory_facts

if TYPE_CHECKING:
    from gemwright.memory.gpus import GpuFacts, VisibleGpu

PROC = Path("/proc")


@dataclass(frozen=True, slots=True)
class Device:
    """What one device can hold and how fast it can be."""

    name: str
    kind: Literal["gpu", "cpu", "npu"]
    """gpu: memory of its own, or shared with the processor where `is_unified`."""
    memory_bytes: int | None
    bandwidth_bytes_per_s: float | None
    """Of its memory, as published, or as measured on this machine."""
    peak_flops: Mapping[str, float]
    """Dense operations a second by dtype: "float32", "bfloat16", "float16", "fp8", "int8"; absent where unknown."""
    source: str
    """Where these numbers are published."""
    is_unified: bool = False


# The table


def list_devices() -> tuple[Device, ...]:
    """Return every device of the table."""
    from gemwright.planner.device_table import TABLE

    return tuple(known.device for known in TABLE)


def find_device(name: str) -> Device:
    """Return the device that a name means: "h100", "H100-80GB", "NVIDIA GeForce RTX 4090".

    Case, makers' names and the order of words do not matter. Raises UnsupportedError with the closest names for a name
    that the table does not have, or that several devices share ("A100").
    """
    from gemwright.planner.device_table import TABLE

    wanted = _words(name)
    rows = [(known.device, [_words(text) for text in (known.device.name, *known.aliases)]) for known in TABLE]
    for device, texts in rows:
        if wanted and wanted in texts:
            return device
    sharing = [device.name for device, texts in rows if wanted and any(wanted <= text for text in texts)]
    spelled = {" ".join(sorted(text)): device.name for device, texts in rows for text in texts}
    close = [spelled[text] for text in difflib.get_close_matches(" ".join(sorted(wanted)), spelled, n=5, cutoff=0.5)]
    # A maker's word alone, such as Xeon, names all that have it.
    made = [] if wanted or not name.strip() else [d.name for d, _ in rows if name.strip().lower() in d.name.lower()]
    names = list(dict.fromkeys(sharing or close or made))
    if not names:
        known = ", ".join(device.name for device, _ in rows)
        raise UnsupportedError(
            "no device of this name is in the table",
            value=name or "nothing",
            limit=f"none is close; there are {known}",
            remedy="name one of these, or give --memory 24GiB instead of a name",
        )
    raise UnsupportedError(
        "the name fits several devices" if len(sharing or made) > 1 else "no device of this name is in the table",
        value=name,
        limit=", ".join(names),
        remedy=f'name one of them, such as "{names[0]}"',
    )


def _device_of_driver(name: str, total_bytes: int | None) -> Device | None:
    """Return the table's device for a driver's name. Where cards of one name have different memory (RTX 4060 Ti), its
    size decides."""
    try:
        return find_device(name)
    except UnsupportedError:
        pass
    alike = [
        device
        for device in list_devices()
        if _words(name) < _words(device.name)
        and all(re.fullmatch(r"\d+gb", word) for word in _words(device.name) - _words(name))
    ]
    if total_bytes is None:
        return None
    fitting = [d for d in alike if d.memory_bytes is not None and abs(d.memory_bytes / total_bytes - 1) < _SAME_MEMORY]
    return fitting[0] if len(fitting) == 1 else None


_SAME_MEMORY: Final = 0.03
"""Drivers of different versions hold back a little more or less of the same card."""

_MAKERS_WORDS: Final = frozenset(
    (
        "nvidia", "amd", "intel", "apple", "google", "geforce", "tesla", "radeon", "instinct", "quadro", "graphics",
        "gpu", "card", "accelerator", "generation", "edition", "corporation", "inc", "cpu", "processor", "core", "rtx",
        "rx", "arc", "tpu", "xeon", "platinum", "epyc", "ryzen", "hbm2", "hbm2e", "hbm3", "hbm3e",
    )
)  # fmt: skip
"""Words that tell no device of the table from another."""


def _words(name: str) -> frozenset[str]:
    """Return what tells a device from others: "NVIDIA A100-SXM4-80GB" is a100, sxm, 80gb."""
    text = re.sub(r"\((?:r|tm|c)\)|\d+-core", " ", name.lower())
    text = re.sub(r"\b(\d+)\s*gi?b\b", r"\1gb", re.sub(r"[^a-z0-9+.]+", " ", text))
    return frozenset(re.sub(r"^sxm\d$", "sxm", word) for word in text.split()) - _MAKERS_WORDS


# This machine


@dataclass(frozen=True, slots=True)
class Machine:
    """What this machine has, and what of it this process may use."""

    processor: str
    cores: CoreFacts
    memory: MemoryFacts
    gpus: GpuFacts

    @property
    def num_devices(self) -> int:
        """How many GPUs, or instances of GPUs, a program of this environment can open."""
        return len(self.gpus.devices())

    def device(self, index: int | None = None) -> Device:
        """Return a GPU as CUDA numbers them here, with bandwidth and peaks of the table where it is known; the
        processor where no number is given.

        An instance of a GPU that is cut (MIG) has its own memory, and of bandwidth and peaks its slices' share. Raises
        RequestError where there is no such GPU.
        """
        if index is None:
            return self.cpu()
        found = self.gpus.devices()
        if not 0 <= index < len(found):
            raise RequestError(
                "no such GPU is visible here",
                value=index,
                limit=f"{len(found)} visible" + (f" ({self.gpus.problem})" if self.gpus.problem else ""),
                remedy="name a device with --device-name, or look at gemwright doctor",
            )
        return self._joined(found[index])

    def free_bytes(self, index: int | None = None) -> int | None:
        """Return what is free now on a GPU, or (None) for this process in the machine's memory; None: not told."""
        if index is None:
            return self.memory.free_bytes or None
        device = self.device(index)
        free = self.gpus.devices()[index].free_bytes
        return self.memory.free_bytes or None if free is None and device.is_unified else free

    def cpu(self, *, measured: bool = False) -> Device:
        """Return the processor as a device: the memory that the system or a control group allows in all.

        With `measured`, bandwidth and the float32 peak are measured now, which takes about half a second once; else
        they are unknown, since a table cannot say what this machine's share of a processor gets.
        """
        limits = [self.memory.total_bytes, self.memory.group_limit_bytes, self.memory.address_space_limit_bytes]
        plain = Device(
            name=self.processor,
            kind="cpu",
            memory_bytes=min((limit for limit in limits if limit), default=None),
            bandwidth_bytes_per_s=None,
            peak_flops={},
            source="this machine",
        )
        if not measured:
            return plain
        return replace(
            plain,
            bandwidth_bytes_per_s=measured_bandwidth(),
            peak_flops={"float32": measured_flops()},
            source=f"measured now, {allowed_threads()} threads",
        )

    def _joined(self, visible: VisibleGpu) -> Device:
        whole = _device_of_driver(visible.gpu.name, visible.gpu.total_bytes)
        total = visible.total_bytes
        if whole is None:
            return Device(visible.name, "gpu", total, None, {}, "nvidia-smi; the table does not have it")
        if total is None and whole.is_unified:
            total = self.memory.total_bytes or None
        own = replace(whole, name=visible.name, memory_bytes=total or whole.memory_bytes)
        if visible.instance is None:
            return own
        return _shared(own, visible)

    def fingerprint(self) -> str:
        """Return a name for this machine and for the versions of what runs on it, 16 hexadecimal digits.

        It changes with the processor, its cores, the size of memory, GPUs, their driver, Gemwright, Python and torch;
        not with what is free, nor with limits of a container.
        """
        parts = [
            self.processor,
            platform.machine(),
            f"{self.cores.num_machine} cores",
            f"{round(self.memory.total_bytes / (1 << 30))} GiB",
            *(f"{gpu.name}, {gpu.total_bytes}, driver {gpu.driver}" for gpu in self.gpus.gpus),
            f"python {platform.python_version()}",
            *(f"{package} {_version(package)}" for package in ("gemwright", "torch")),
        ]
        return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]


def this_machine() -> Machine:
    """Return what this machine has; asks NVIDIA's driver where one is here, and never imports torch."""
    from gemwright.memory.gpus import read_gpus

    return Machine(_processor_name(), core_facts(), memory_facts(), read_gpus())


def machine_fingerprint() -> str:
    """Return `Machine.fingerprint` of this machine."""
    return this_machine().fingerprint()


def _shared(whole: Device, visible: VisibleGpu) -> Device:
    """Return the share of an instance. Memory is cut into eight slices, and computing units into seven (NVIDIA's
    Multi-Instance GPU User Guide)."""
    part, gpu = visible.instance, visible.gpu
    bandwidth: float | None = None
    if whole.bandwidth_bytes_per_s and part and part.total_bytes and gpu.total_bytes:
        eighths = max(1, round(8 * part.total_bytes / gpu.total_bytes))
        bandwidth = whole.bandwidth_bytes_per_s * eighths / 8
    profile = re.match(r"(?:(\d+)c\.)?(\d+)g\.", (part.profile if part else None) or "")
    sevenths = int(profile[1] or profile[2]) if profile else None
    return replace(
        whole,
        bandwidth_bytes_per_s=bandwidth,
        peak_flops={} if sevenths is None else {k: v * sevenths / 7 for k, v in whole.peak_flops.items()},
        source=f"its slices' share of {gpu.name}: {whole.source}",
    )


def _processor_name() -> str:
    try:
        text = (PROC / "cpuinfo").read_text(errors="replace")
    except OSError:
        text = ""
    found = re.search(r"^(?:model name|Model)\s*:\s*(.+)$", text, re.MULTILINE)
    return found[1].strip() if found else platform.machine() or "unknown processor"


def _version(package: str) -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version(package)
    except PackageNotFoundError:
        return "none"


# Measured now

_READ_BYTES: Final = 128 << 20
_ROWS: Final = 768


@lru_cache(maxsize=1)
def measured_bandwidth() -> float:
    """Return bytes a second that this process's threads read from memory together: the best of three passes over
    128 MiB, one contiguous part a thread. Takes about 0.2 s, once a process.

    A cache larger than that makes it look faster than memory is, as it does small models.
    """
    import numpy as np

    threads = allowed_threads()
    parts = np.array_split(np.empty(_READ_BYTES // 4, dtype=np.float32), threads)
    # Pages that nobody wrote are one page of zeros, which the caches hold.
    _timed([Thread(target=part.fill, args=(1.0,)) for part in parts])
    return _READ_BYTES / min(_timed([Thread(target=part.max) for part in parts]) for _ in range(3))


@lru_cache(maxsize=1)
def measured_flops() -> float:
    """Return float32 operations a second of numpy's matrix product: the best of three, two operations an entry."""
    import numpy as np

    matrix = np.ones((_ROWS, _ROWS), dtype=np.float32)
    seconds = []
    for _ in range(3):
        start = time.perf_counter()
        matrix @ matrix
        seconds.append(time.perf_counter() - start)
    return 2.0 * _ROWS**3 / min(seconds)


def _timed(threads: list[Thread]) -> float:
    start = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return time.perf_counter() - start
