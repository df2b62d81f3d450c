"""How much memory this process may still take, from the system and its control group."""

from __future__ import annotations

from pathlib import Path


def free_memory_bytes() -> int:
    """Return the bytes this process can still allocate: what the system has free, or what its control group allows
    if that is less. Returns 0 when neither says."""
    free = _meminfo_available()
    room = _cgroup_room()
    if room is None:
        return free
    return min(free, room) if free else room


def process_bytes() -> int:
    """Return the resident set of this process in bytes, 0 where the system does not tell."""
    try:
        fields = Path("/proc/self/statm").read_text().split()
    except OSError:
        return 0
    return int(fields[1]) * _page_bytes()


def _page_bytes() -> int:
    import os

    return os.sysconf("SC_PAGE_SIZE")


def _meminfo_available() -> int:
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return 0
    for line in lines:
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return 0


def _cgroup_room() -> int | None:
    for limit_file, used_file in (
        ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"),
        ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.usage_in_bytes"),
    ):
        try:
            limit = Path(limit_file).read_text().strip()
            used = int(Path(used_file).read_text())
        except (OSError, ValueError):
            continue
        if limit != "max" and limit.isdigit() and int(limit) < 1 << 60:
            return max(0, int(limit) - used)
    return None
