"""How much memory this process may still take, from the system and its control group."""

from __future__ import annotations

import os
from pathlib import Path

PROC = Path("/proc")
CGROUP = Path("/sys/fs/cgroup")

_NO_LIMIT = 1 << 60
"""Control groups of version 1 write a number near 2**63 where there is no limit."""


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
        fields = (PROC / "self" / "statm").read_text().split()
    except OSError:
        return 0
    return int(fields[1]) * os.sysconf("SC_PAGE_SIZE")


def _meminfo_available() -> int:
    """Return what /proc/meminfo calls available, 0 where it does not tell."""
    return _numbers(PROC / "meminfo").get("MemAvailable", 0) * 1024


def _cgroup_room() -> int | None:
    """Return limit less use of the control group, None without a limit. Cached file pages, such as those of a model's
    file read before, count as use but give way."""
    for folder, limit_name, used_name, prefix in (
        (CGROUP, "memory.max", "memory.current", ""),
        (CGROUP / "memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_"),
    ):
        try:
            limit = (folder / limit_name).read_text().strip()
            used = int((folder / used_name).read_text())
        except (OSError, ValueError):
            continue
        if not limit.isdigit() or int(limit) >= _NO_LIMIT:
            continue
        stat = _numbers(folder / "memory.stat")
        cached = stat.get(f"{prefix}inactive_file", 0) + stat.get(f"{prefix}active_file", 0)
        return max(0, int(limit) - max(0, used - cached))
    return None


def _numbers(path: Path) -> dict[str, int]:
    """Return name -> number from lines such as "MemFree: 12 kB" or "active_file 12"; empty where there is no file."""
    try:
        lines = path.read_text().splitlines()
    except OSError:
        return {}
    fields = [line.replace(":", " ").split() for line in lines]
    return {names[0]: int(names[1]) for names in fields if len(names) > 1 and names[1].isdigit()}
