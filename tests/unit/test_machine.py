"""How much memory is free: the system's word, the control group's limit, and files in the page cache."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from gemwright.memory import machine

GIB = 1 << 30
ROOT = Path(__file__).parents[2]


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


def test_limits_of_the_groups_around_count_too(system: Path) -> None:
    write(system / "proc" / "self", cgroup="0::/user.slice/one.scope\n")
    write(system / "proc", meminfo=f"MemAvailable:  {8 * GIB // 1024} kB\n")
    inner, around = system / "cgroup" / "user.slice" / "one.scope", system / "cgroup" / "user.slice"
    write(inner, memory__max="max", memory__current="0")
    write(around, memory__max=f"{3 * GIB}", memory__current=f"{GIB}")
    assert machine.free_memory_bytes() == 2 * GIB
    assert machine.memory_facts().group_limit_bytes == 3 * GIB
    write(inner, memory__max=f"{2 * GIB}", memory__current=f"{GIB}")
    assert machine.free_memory_bytes() == GIB


def test_a_group_of_version_1_lies_below_its_controller(system: Path) -> None:
    write(system / "proc" / "self", cgroup="4:memory:/jobs/7\n2:cpu,cpuacct:/jobs/7\n0::/\n")
    folder = system / "cgroup" / "memory" / "jobs" / "7"
    write(folder, memory__limit_in_bytes=f"{4 * GIB}", memory__usage_in_bytes=f"{GIB}")
    write(system / "cgroup" / "cpu" / "jobs" / "7", cpu__cfs_quota_us="150000", cpu__cfs_period_us="100000")
    write(system / "cgroup" / "cpu", cpu__cfs_quota_us="-1", cpu__cfs_period_us="100000")
    assert machine.free_memory_bytes() == 3 * GIB
    assert machine.core_facts().quota == 1.5


def test_a_path_of_the_machine_outside_is_passed_over(system: Path) -> None:
    write(system / "proc" / "self", cgroup="0::/../../system.slice\n")
    write(system / "cgroup", memory__max=f"{GIB}", memory__current="0", cpu__max="max 100000")
    assert machine.free_memory_bytes() == GIB
    assert machine.core_facts().quota is None


@pytest.mark.parametrize(("quota", "threads"), [("max", 8), ("800000", 8), ("250000", 2), ("50000", 1)])
def test_threads_are_no_more_than_the_control_group_has_time_for(
    system: Path, monkeypatch: pytest.MonkeyPatch, quota: str, threads: int
) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr("os.sched_getaffinity", lambda process: set(range(8)))
    write(system / "cgroup", cpu__max=f"{quota} 100000\n")
    assert machine.allowed_threads() == threads
    monkeypatch.setenv("OMP_NUM_THREADS", "5")
    assert machine.allowed_threads() == 5
    monkeypatch.setenv("OMP_NUM_THREADS", "4,2")
    assert machine.allowed_threads() == threads


def test_the_address_space_limit_of_the_shell_counts() -> None:
    program = (
        "import resource; resource.setrlimit(resource.RLIMIT_AS, (3 << 30, 3 << 30)); "
        "from gemwright.memory import machine; print(machine.free_memory_bytes(), "
        "machine.memory_facts().address_space_limit_bytes)"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    free, limit = map(int, done.stdout.split())
    assert limit == 3 * GIB
    assert 0 < free < 3 * GIB


def test_memory_facts_are_those_of_the_system(system: Path) -> None:
    write(
        system / "proc",
        meminfo="MemTotal: 64 kB\nMemAvailable: 32 kB\nSwapTotal: 16 kB\nSwapFree: 8 kB\n"
        "HugePages_Total: 3\nHugepagesize: 2048 kB\n",
    )
    facts = machine.memory_facts()
    assert (facts.total_bytes, facts.available_bytes, facts.swap_total_bytes, facts.swap_free_bytes) == (
        *(64 << 10, 32 << 10, 16 << 10, 8 << 10),
    )
    assert (facts.num_huge_pages, facts.huge_page_bytes, facts.group_limit_bytes) == (3, 2 << 20, None)
