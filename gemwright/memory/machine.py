"""What the system lets this process have: memory, cores, and the limits of its control groups and shell.

Refuses to know what any of it is for.
"""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from gemwright.config import MAX_THREADS

PROC = Path("/proc")
CGROUP = Path("/sys/fs/cgroup")
TRANSPARENT_HUGE_PAGES = Path("/sys/kernel/mm/transparent_hugepage/enabled")

_NO_LIMIT = 1 << 60
"""Control groups of version 1 write a number near 2**63 where there is no limit."""

_MEMORY_FILES = {
    2: ("memory.max", "memory.current", ""),
    1: ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_"),
}
"""By version: the files of limit and use, and what the names in memory.stat begin with."""


@dataclass(frozen=True, slots=True)
class MemoryFacts:
    """The machine's memory in bytes. None: no limit, or nobody tells."""

    total_bytes: int
    available_bytes: int
    group_limit_bytes: int | None
    """The tightest limit of this process's control groups."""
    address_space_limit_bytes: int | None
    """RLIMIT_AS: what `ulimit -v` sets."""
    locked_limit_bytes: int | None
    """RLIMIT_MEMLOCK: what `ulimit -l` sets."""
    free_bytes: int
    """What this process may still take, all of these considered; 0 where nobody tells."""
    swap_total_bytes: int
    swap_free_bytes: int
    huge_page_bytes: int
    num_huge_pages: int
    """Huge pages set aside beforehand; Gemwright asks for none of them."""
    transparent_huge_pages: str | None
    """always, madvise or never."""


@dataclass(frozen=True, slots=True)
class CoreFacts:
    """Cores as the system counts them, hyperthreads one by one."""

    num_machine: int
    num_allowed: int
    """Those this process may run on (its affinity)."""
    quota: float | None
    """Processor seconds a second that its control groups allow; None without a limit."""


def memory_facts() -> MemoryFacts:
    """Return what this machine and this process have."""
    info = _numbers(PROC / "meminfo")
    return MemoryFacts(
        total_bytes=info.get("MemTotal", 0) * 1024,
        available_bytes=info.get("MemAvailable", 0) * 1024,
        group_limit_bytes=min((limit for limit, _ in _group_limits()), default=None),
        address_space_limit_bytes=_shell_limit(resource.RLIMIT_AS),
        locked_limit_bytes=_shell_limit(resource.RLIMIT_MEMLOCK),
        free_bytes=free_memory_bytes(),
        swap_total_bytes=info.get("SwapTotal", 0) * 1024,
        swap_free_bytes=info.get("SwapFree", 0) * 1024,
        huge_page_bytes=info.get("Hugepagesize", 0) * 1024,
        num_huge_pages=info.get("HugePages_Total", 0),
        transparent_huge_pages=_transparent_huge_pages(),
    )


def core_facts() -> CoreFacts:
    """Return how many cores there are, and how many this process may use."""
    return CoreFacts(os.cpu_count() or 1, len(os.sched_getaffinity(0)), _processor_quota())


def allowed_threads() -> int:
    """Return the threads that an engine starts unasked: as many as OMP_NUM_THREADS says, else as many cores as this
    process may keep busy: those it may run on, and no more than its control group has time for."""
    asked = os.environ.get("OMP_NUM_THREADS", "")
    if asked.isdigit() and int(asked) > 0:
        return min(int(asked), MAX_THREADS)
    cores = core_facts()
    time = cores.num_allowed if cores.quota is None else max(1, int(cores.quota))
    return min(cores.num_allowed, time, MAX_THREADS)


def free_memory_bytes() -> int:
    """Return the bytes this process can still allocate: what the system has free, or what a control group or the
    limit of its address space allows if that is less. Returns 0 when nobody tells."""
    rooms = [_numbers(PROC / "meminfo").get("MemAvailable", 0) * 1024]
    limits = [room for _, room in _group_limits()]
    space = _shell_limit(resource.RLIMIT_AS)
    if space is not None:
        limits.append(max(0, space - _statm(0)))
    return min([room for room in rooms if room] + limits, default=0)


def process_bytes() -> int:
    """Return the resident set of this process in bytes, 0 where the system does not tell."""
    return _statm(1)


def _statm(field: int) -> int:
    """Return a field of /proc/self/statm in bytes: 0 is the address space, 1 the resident set."""
    try:
        fields = (PROC / "self" / "statm").read_text().split()
    except OSError:
        return 0
    return int(fields[field]) * os.sysconf("SC_PAGE_SIZE")


def _shell_limit(kind: int) -> int | None:
    limit = resource.getrlimit(kind)[0]
    return None if limit == resource.RLIM_INFINITY else limit


def _transparent_huge_pages() -> str | None:
    """Return the choice in brackets: "always [madvise] never" is madvise."""
    try:
        words = TRANSPARENT_HUGE_PAGES.read_text().split()
    except OSError:
        return None
    return next((word.strip("[]") for word in words if word.startswith("[")), None)


def _group_folders(controller: str) -> Iterator[tuple[Path, int]]:
    """Yield the folders of this process's control group and of all around it, with their version, 2 or 1.

    A container may show a path of the machine outside, whose folders are not there: they are passed over.
    """
    paths = {2: "/", 1: "/"}
    try:
        lines = (PROC / "self" / "cgroup").read_text().splitlines()
    except OSError:
        lines = []
    for line in lines:
        _, controllers, path = (*line.split(":", 2), "", "")[:3]
        if controllers == "":
            paths[2] = path
        elif controller in controllers.split(","):
            paths[1] = path
    for version, root in ((2, CGROUP), (1, CGROUP / controller)):
        inner = PurePosixPath(paths[version])
        for place in (inner, *inner.parents):
            if ".." not in place.parts:
                yield root / str(place).lstrip("/"), version


def _group_limits() -> list[tuple[int, int]]:
    """Return limit, and limit less use, of every control group that limits memory. Cached file pages, such as those
    of a model's file read before, count as use but give way."""
    found = []
    for folder, version in _group_folders("memory"):
        limit_name, used_name, prefix = _MEMORY_FILES[version]
        try:
            limit = (folder / limit_name).read_text().strip()
            used = int((folder / used_name).read_text())
        except (OSError, ValueError):
            continue
        if not limit.isdigit() or int(limit) >= _NO_LIMIT:
            continue
        stat = _numbers(folder / "memory.stat")
        cached = stat.get(f"{prefix}inactive_file", 0) + stat.get(f"{prefix}active_file", 0)
        found.append((int(limit), max(0, int(limit) - max(0, used - cached))))
    return found


def _processor_quota() -> float | None:
    quotas = []
    for folder, version in _group_folders("cpu"):
        try:
            if version == 2:
                quota, period = (folder / "cpu.max").read_text().split()
            else:
                quota = (folder / "cpu.cfs_quota_us").read_text().strip()
                period = (folder / "cpu.cfs_period_us").read_text().strip()
        except (OSError, ValueError):
            continue
        if quota.isdigit() and period.isdigit() and int(quota) > 0 and int(period) > 0:
            quotas.append(int(quota) / int(period))
    return min(quotas, default=None)


def _numbers(path: Path) -> dict[str, int]:
    """Return name -> number from lines such as "MemFree: 12 kB" or "active_file 12"; empty where there is no file."""
    try:
        lines = path.read_text().splitlines()
    except OSError:
        return {}
    fields = [line.replace(":", " ").split() for line in lines]
    return {names[0]: int(names[1]) for names in fields if len(names) > 1 and names[1].isdigit()}
