"""Where more users stop paying, and what runs leave behind for later plans."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gemwright.bench.knee import Point, find_knee
from gemwright.bench.latency import percentile, spread
from gemwright.bench.memory import judge
from gemwright.planner.calibration import calibration_path, load_calibration, note_run

MIB = 1 << 20


def point(users: int, rate: float, between: float, *, preempted: int = 0, share: float = 0.1) -> Point:
    return Point(users, rate, between, 10.0, preempted, share)


@pytest.mark.parametrize(
    ("points", "users", "bent"),
    [
        ([point(1, 10, 10), point(2, 19, 11), point(4, 36, 12)], 4, "nothing"),
        ([point(1, 10, 10), point(2, 19, 12), point(4, 36, 21)], 2, "latency"),
        ([point(1, 10, 10), point(2, 19, 12), point(4, 20, 15)], 2, "throughput"),
        ([point(1, 10, 10), point(2, 19, 12, preempted=1)], 1, "memory"),
        ([point(1, 10, 10), point(2, 19, 12, share=0.97)], 1, "memory"),
        ([point(1, 10, 10, preempted=3)], 1, "memory"),
    ],
)
def test_the_knee_is_the_last_point_before_something_bends(points: list[Point], users: int, bent: str) -> None:
    knee = find_knee(points)
    assert (knee.point.concurrency, knee.bent) == (users, bent)


def test_percentiles_lie_between_neighbors() -> None:
    assert percentile([1.0, 2.0, 3.0, 4.0], 50) == 2.5
    assert percentile([5.0], 99) == 5.0
    found = spread([0.001, 0.003])
    assert found is not None
    assert (found.mean, found.deviation, found.p50) == (2.0, 1.0, 2.0)
    assert spread([]) is None


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv("GEMWRIGHT_NO_CALIBRATION", raising=False)
    return tmp_path


def test_a_calibration_is_the_median_with_a_bar_that_holds_the_runs(folder: Path) -> None:
    assert load_calibration(folder, "reference") is None
    for size in (300, 310, 350):
        note_run(folder, "reference", size * MIB)
    found = load_calibration(folder, "reference")
    assert found is not None
    assert (found.runtime_bytes, found.error_bytes, found.num_runs) == (310 * MIB, 40 * MIB, 3)


def test_the_bar_is_never_below_8_mib_and_20_runs_are_kept(folder: Path) -> None:
    for _ in range(30):
        note_run(folder, "reference", 300 * MIB)
    found = load_calibration(folder, "reference")
    assert found is not None
    assert (found.error_bytes, found.num_runs) == (8 * MIB, 20)


@pytest.mark.parametrize(
    "content", ["", "{", "[]", '{"version": 1, "runtime_bytes": ["x", -1, true]}', '{"version": 9}']
)
def test_a_file_that_is_damaged_counts_for_nothing(content: str, folder: Path) -> None:
    path = calibration_path(folder, "reference")
    path.parent.mkdir()
    path.write_text(content)
    assert load_calibration(folder, "reference") is None
    note_run(folder, "reference", 300 * MIB)
    assert json.loads(path.read_text())["runtime_bytes"] == [300 * MIB]


def test_what_cannot_be_written_ends_nothing(folder: Path) -> None:
    (folder / "calibration").write_text("in the way")
    note_run(folder, "reference", 300 * MIB)
    assert load_calibration(folder, "reference") is None


def test_backends_are_kept_apart(folder: Path) -> None:
    note_run(folder, "reference", 300 * MIB)
    note_run(folder, "native", 50 * MIB)
    found = [load_calibration(folder, backend) for backend in ("reference", "native")]
    assert [None if calibration is None else calibration.runtime_bytes for calibration in found] == [
        300 * MIB,
        50 * MIB,
    ]


def test_it_can_be_switched_off(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GEMWRIGHT_NO_CALIBRATION", "1")
    note_run(folder, "reference", 300 * MIB)
    assert not list(folder.iterdir())


def test_a_case_is_judged_by_the_calibration_of_the_others() -> None:
    case = {"touched_bytes": 100 * MIB, "beside_bytes": 10 * MIB, "kv_planned_bytes": 5, "kv_measured_bytes": 5}
    cases = [
        {**case, "runtime_bytes": size * MIB, "process_bytes": (110 + size) * MIB, "planned_process_bytes": 355 * MIB}
        for size in (250, 260)
    ]
    first, second = judge(cases)
    assert first["error_before_bytes"] == -5 * MIB
    assert first["error_after_bytes"] == 10 * MIB
    assert second["error_after_bytes"] == -10 * MIB
    assert all(row["kv_is_exact"] and row["is_within_before"] and row["is_within_after"] for row in (first, second))
