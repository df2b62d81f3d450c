"""How much memory is free: the system's word, the control group's limit, and files in the page cache."""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest

from gemwright.memory import machine

GIB = 1 << 30


@pytest.fixture
def system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty system, to be filled by the test."""
    monkeypatch.setattr(machine, "PROC", tmp_path / "proc")
    monkeypatch.setattr(machine, "CGROUP", tmp_path / "cgroup")
    return tmp_path


def write(folder: Path, **files: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name.replace("__", ".")).write_text(text)


def test_this_machine_has_free_memory_and_this_process_a_size() -> None:
    assert 0 < machine.free_memory_bytes() <= psutil.virtual_memory().total
    assert machine.process_bytes() == pytest.approx(psutil.Process().memory_info().rss, rel=0.2)


def test_without_a_limit_the_system_decides(system: Path) -> None:
    write(system / "proc", meminfo=f"MemTotal: 99 kB\nMemAvailable:  {8 * GIB // 1024} kB\n")
    write(system / "cgroup", memory__max="max\n", memory__current="5\n")
    assert machine.free_memory_bytes() == 8 * GIB


@pytest.mark.parametrize(("limit", "free"), [(4, 3), (64, 8)])
def test_a_control_group_may_allow_less(system: Path, limit: int, free: int) -> None:
    write(system / "proc", meminfo=f"MemAvailable:  {8 * GIB // 1024} kB\n")
    write(system / "cgroup", memory__max=f"{limit * GIB}\n", memory__current=f"{GIB}\n")
    assert machine.free_memory_bytes() == free * GIB


def test_cached_files_give_way(system: Path) -> None:
    """A model's file that was read before fills the page cache of the group, and takes no room from an engine."""
    write(
        system / "cgroup",
        memory__max=f"{16 * GIB}",
        memory__current=f"{12 * GIB}",
        memory__stat=f"anon {2 * GIB}\ninactive_file {7 * GIB}\nactive_file {3 * GIB}\nshmem 0\n",
    )
    assert machine.free_memory_bytes() == 14 * GIB


def test_version_1_control_groups(system: Path) -> None:
    folder = system / "cgroup" / "memory"
    write(folder, memory__limit_in_bytes=f"{4 * GIB}", memory__usage_in_bytes=f"{3 * GIB}")
    assert machine.free_memory_bytes() == GIB
    write(folder, memory__stat=f"cache 1\ntotal_inactive_file {GIB}\ntotal_active_file 0\n")
    assert machine.free_memory_bytes() == 2 * GIB
    write(folder, memory__limit_in_bytes="9223372036854771712")
    write(system / "proc", meminfo="MemAvailable: 4 kB\n")
    assert machine.free_memory_bytes() == 4096


def test_a_full_control_group_has_nothing_left(system: Path) -> None:
    write(system / "proc", meminfo="MemAvailable: 400 kB\n")
    write(system / "cgroup", memory__max="1000", memory__current="2000")
    assert machine.free_memory_bytes() == 0


def test_a_system_that_tells_nothing(system: Path) -> None:
    assert machine.free_memory_bytes() == 0
    assert machine.process_bytes() == 0
