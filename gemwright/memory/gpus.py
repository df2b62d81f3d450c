"""Which GPUs this machine has, asked of NVIDIA's driver and never of torch, whose import would take seconds.

Refuses to know what they are for, and how fast they are.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Final
from xml.etree import ElementTree

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
class MigInstance:
    """A part of a GPU with memory of its own (NVIDIA's Multi-Instance GPU); None for what the driver does not tell."""

    index: int
    """Among the instances of its GPU."""
    profile: str | None
    """Such as "3g.40gb": slices of its compute, and memory."""
    uuid: str | None
    total_bytes: int | None
    free_bytes: int | None
    processes: tuple[GpuProcess, ...] = ()


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
    uuid: str | None = None
    instances: tuple[MigInstance, ...] = ()
    """What the GPU is cut into where `mig` is Enabled; such a GPU computes in its instances alone."""


@dataclass(frozen=True, slots=True)
class VisibleGpu:
    """What a CUDA program of this environment can open: a whole GPU, or one instance of it."""

    gpu: Gpu
    instance: MigInstance | None = None

    @property
    def name(self) -> str:
        """The driver's name, with the instance's profile: "NVIDIA A100-SXM4-80GB MIG 3g.40gb"."""
        if self.instance is None:
            return self.gpu.name
        return f"{self.gpu.name} MIG {self.instance.profile or self.instance.index}"

    @property
    def total_bytes(self) -> int | None:
        """Its memory."""
        return self.gpu.total_bytes if self.instance is None else self.instance.total_bytes

    @property
    def free_bytes(self) -> int | None:
        """What nobody holds of it."""
        return self.gpu.free_bytes if self.instance is None else self.instance.free_bytes

    @property
    def processes(self) -> tuple[GpuProcess, ...]:
        """The programs that compute on it."""
        return self.gpu.processes if self.instance is None else self.instance.processes


@dataclass(frozen=True, slots=True)
class GpuFacts:
    """All GPUs, and why they could not be asked, if so."""

    gpus: tuple[Gpu, ...]
    visible: str | None
    """CUDA_VISIBLE_DEVICES, which hides all others from torch; None where it is not set."""
    torch_cuda: str | None
    """The CUDA version that the installed torch was built for; None for a torch without CUDA, or no torch."""
    problem: str | None = None

    def devices(self) -> tuple[VisibleGpu, ...]:
        """Return what CUDA numbers 0, 1, 2... here: all GPUs, or those that CUDA_VISIBLE_DEVICES lists, up to its
        first entry that names none.

        Numbers count in the driver's order. CUDA itself puts the fastest GPU first where CUDA_DEVICE_ORDER is not
        PCI_BUS_ID, which differs only between unlike GPUs. Unasked, a CUDA program sees one instance of a GPU that is
        cut, so that only the first counts.
        """
        whole = {str(number): _opened(gpu) for number, gpu in enumerate(self.gpus)}
        if self.visible is None:
            return tuple(device for device in whole.values() if device is not None)
        found: list[VisibleGpu] = []
        for entry in self.visible.split(","):
            device = self._named(entry.strip(), whole)
            if device is None or device in found:
                break
            found.append(device)
        return tuple(found)

    def _named(self, entry: str, whole: dict[str, VisibleGpu | None]) -> VisibleGpu | None:
        if entry in whole:
            return whole[entry]
        if entry.startswith("MIG-"):
            parts = [VisibleGpu(gpu, instance) for gpu in self.gpus for instance in gpu.instances]
            matches = [part for part in parts if part.instance and (part.instance.uuid or "").startswith(entry)]
        elif entry.startswith("GPU-"):
            uuids = [gpu for gpu in self.gpus if (gpu.uuid or "").startswith(entry)]
            matches = [device for device in map(_opened, uuids) if device is not None]
        else:
            return None
        return matches[0] if len(matches) == 1 else None


def _opened(gpu: Gpu) -> VisibleGpu | None:
    """Return what a program gets that opens a GPU by its number; None where a cut GPU has no instance."""
    if gpu.mig != "Enabled":
        return VisibleGpu(gpu)
    return VisibleGpu(gpu, gpu.instances[0]) if gpu.instances else None


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
    gpus = tuple(_read_gpu(row, used) for row in listed if len(row) == 8)
    if not any(gpu.mig == "Enabled" for gpu in gpus):
        return GpuFacts(gpus, visible, built)
    try:
        text, names = _run(program, timeout_seconds, "-q", "-x"), _run(program, timeout_seconds, "-L")
        return GpuFacts(_with_instances(gpus, text, names), visible, built)
    except (OSError, subprocess.SubprocessError, ElementTree.ParseError, ValueError) as error:
        return GpuFacts(gpus, visible, built, f"nvidia-smi does not tell the instances of a GPU that is cut: {error}")


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
    lines = _run(program, timeout_seconds, query, "--format=csv,noheader,nounits").splitlines()
    return [[field.strip() for field in line.split(",")] for line in lines if line.strip()]


def _run(program: str, timeout_seconds: float, *arguments: str) -> str:
    done = subprocess.run(
        [program, *arguments],
        capture_output=True,
        text=True,
        errors="replace",
        check=True,
        timeout=timeout_seconds,
        stdin=subprocess.DEVNULL,
    )
    return done.stdout


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
        uuid,
    )


def _with_instances(gpus: tuple[Gpu, ...], text: str, names: str) -> tuple[Gpu, ...]:
    """Return the GPUs with their instances: memory and processes from the XML of `nvidia-smi -q -x`, profiles and
    UUIDs, which it need not have, from `nvidia-smi -L`."""
    listed = _listed_instances(names)
    cut = {}
    for element in ElementTree.fromstring(text).iter("gpu"):
        uuid = (element.findtext("uuid") or "").strip()
        processes = [*element.iter("process_info")]
        cut[uuid] = tuple(
            _read_instance(part, processes, listed.get(uuid, {})) for part in element.iterfind("mig_devices/mig_device")
        )
    return tuple(replace(gpu, instances=cut.get(gpu.uuid or "", ())) for gpu in gpus)


def _read_instance(
    part: ElementTree.Element, processes: list[ElementTree.Element], listed: dict[int, tuple[str, str]]
) -> MigInstance:
    def same(other: ElementTree.Element) -> bool:
        places = ("gpu_instance_id", "compute_instance_id")
        return all((other.findtext(place) or "").strip() == (part.findtext(place) or "").strip() for place in places)

    index = int(part.findtext("index") or "")
    profile, uuid = listed.get(index, (None, None))
    own = tuple(
        GpuProcess(
            int(entry.findtext("pid") or ""),
            (entry.findtext("process_name") or "").strip(),
            _mebibytes((entry.findtext("used_memory") or "").removesuffix("MiB").strip()),
        )
        for entry in processes
        if same(entry)
    )
    total, free = (
        _mebibytes((part.findtext(f"fb_memory_usage/{field}") or "").removesuffix("MiB").strip())
        for field in ("total", "free")
    )
    return MigInstance(index, profile, (part.findtext("uuid") or "").strip() or uuid, total, free, own)


def _listed_instances(names: str) -> dict[str, dict[int, tuple[str, str]]]:
    """Return, by the UUID of the GPU and the index of the instance, profile and UUID as `nvidia-smi -L` prints them."""
    found: dict[str, dict[int, tuple[str, str]]] = {}
    own: dict[int, tuple[str, str]] = {}
    for line in names.splitlines():
        if gpu := re.match(r"GPU \d+:.*\(UUID: (GPU-[^)]+)\)", line):
            own = found.setdefault(gpu[1], {})
        elif instance := re.match(r"\s+MIG (\S+)\s+Device\s+(\d+): \(UUID: (MIG-[^)]+)\)", line):
            own[int(instance[2])] = (instance[1], instance[3])
    return found


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
