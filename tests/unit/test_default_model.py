"""The default model: joined once, checked once, safe against full disks, broken packages and company."""

from __future__ import annotations

import errno
import hashlib
import multiprocessing
import os
from pathlib import Path

import pytest

from gemwright.errors import CapacityError, CheckpointError
from gemwright.loading import default_model
from gemwright.loading.default_model import default_model_path, terms_path

CONTENT = os.urandom(5_000_000)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Stand-in packages whose code must not run, holding CONTENT in four chunks; returns the cache folder."""
    site = tmp_path / "site"
    chunks = []
    for index in range(4):
        module, name = f"stand_in_part{index}", f"part{index}"
        data = site / module / "data"
        data.mkdir(parents=True)
        (site / module / "__init__.py").write_text("raise AssertionError('package code was run')")
        (data / name).write_bytes(CONTENT[index * 1_300_000 : (index + 1) * 1_300_000])
        chunks.append((module, name))
    (site / "stand_in_part0" / "data" / "GEMMA_TERMS.html").write_text("terms")
    monkeypatch.syspath_prepend(site)
    monkeypatch.setattr(default_model, "_CHUNKS", tuple(chunks))
    monkeypatch.setattr(default_model, "_TERMS_MODULE", "stand_in_part0")
    monkeypatch.setattr(default_model, "MODEL_BYTES", len(CONTENT))
    monkeypatch.setattr(default_model, "MODEL_SHA256", hashlib.sha256(CONTENT).hexdigest())
    folder = tmp_path / "cache"
    monkeypatch.setenv("GEMWRIGHT_CACHE", str(folder))
    return folder


def files_below(folder: Path) -> set[str]:
    return {path.name for path in folder.rglob("*") if path.is_file()} - {".lock"}


def forbid_hashing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hashlib, "sha256", None)
    monkeypatch.setattr(hashlib, "file_digest", None)


def test_the_chunks_are_joined_once_and_checked_once(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[int, int]] = []
    path = default_model_path(lambda done, total: seen.append((done, total)))
    assert path.read_bytes() == CONTENT
    assert cache in path.parents
    assert seen[-1] == (len(CONTENT), len(CONTENT))
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)
    forbid_hashing(monkeypatch)
    assert default_model_path() == path


def test_a_later_start_needs_no_packages(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = default_model_path()
    monkeypatch.setattr(default_model, "_CHUNKS", (("no_such_package_at_all", "part"),))
    assert default_model_path() == path


def test_missing_packages_are_named_with_what_to_install(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(default_model, "_CHUNKS", (("no_such_package_at_all", "part"),))
    monkeypatch.setattr(default_model, "_TERMS_MODULE", "no_such_package_at_all")
    for find in (default_model_path, terms_path):
        with pytest.raises(CheckpointError, match=r"no-such-package-at-all is not installed\n.*gemwright\[demo\]"):
            find()
    assert not cache.exists()


def test_the_terms_are_found(cache: Path) -> None:
    assert terms_path().read_text() == "terms"


@pytest.mark.parametrize("damage", [CONTENT[:-1], CONTENT + b"x", CONTENT[:-1] + bytes([CONTENT[-1] ^ 1])])
def test_a_damaged_file_in_the_cache_is_replaced(cache: Path, damage: bytes) -> None:
    path = default_model_path()
    path.write_bytes(damage)
    assert default_model_path().read_bytes() == CONTENT


def test_a_copied_file_is_checked_again_and_kept(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = default_model_path()
    os.utime(path, (1, 1))
    inode = path.stat().st_ino
    assert default_model_path().stat().st_ino == inode
    forbid_hashing(monkeypatch)
    assert default_model_path() == path


@pytest.mark.parametrize("stamp", [b"", b"{", b"[]", b"\xff"])
def test_a_damaged_stamp_costs_only_a_check(cache: Path, stamp: bytes) -> None:
    path = default_model_path()
    path.with_name(f"{path.name}.stamp.json").write_bytes(stamp)
    assert default_model_path().read_bytes() == CONTENT


@pytest.mark.parametrize("damage", ["cut", "changed"])
def test_damaged_packages_are_refused_and_leave_nothing(cache: Path, tmp_path: Path, damage: str) -> None:
    chunk = tmp_path / "site" / "stand_in_part2" / "data" / "part2"
    content = chunk.read_bytes()
    chunk.write_bytes(content[:-1] if damage == "cut" else content[:-1] + bytes([content[-1] ^ 1]))
    with pytest.raises(CheckpointError, match=r"packages of the default model.*\n(.*\n)+.*--force-reinstall"):
        default_model_path()
    assert files_below(cache) == set()


def test_a_missing_chunk_is_named(cache: Path, tmp_path: Path) -> None:
    (tmp_path / "site" / "stand_in_part1" / "data" / "part1").unlink()
    with pytest.raises(CheckpointError, match=r"part1: no such file\n.*reinstall stand-in-part1"):
        default_model_path()


def test_a_disk_known_to_be_full_is_refused_before_writing(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Usage:
        free = 1 << 20

    monkeypatch.setattr(default_model.shutil, "disk_usage", lambda folder: Usage)
    with pytest.raises(CapacityError, match=r"no room for the default model\n.*1 MiB free\n.*\n.*GEMWRIGHT_CACHE"):
        default_model_path()
    assert files_below(cache) == set()


def test_a_disk_that_fills_up_meanwhile_leaves_nothing_half_done(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write = os.write
    written = 0

    def full(descriptor: int, content: bytes) -> int:
        nonlocal written
        written += len(content)
        if written > 2_000_000:
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(descriptor, content)

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(CapacityError, match="no room for the default model"):
        default_model_path()
    assert files_below(cache) == set()


def test_an_interruption_leaves_nothing_half_done(cache: Path) -> None:
    def interrupt(done: int, total: int) -> None:
        if done > 2_000_000:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        default_model_path(interrupt)
    assert files_below(cache) == set()


def test_a_cache_that_cannot_be_written_is_named(cache: Path) -> None:
    cache.write_text("a file, not a folder")
    with pytest.raises(CheckpointError, match=r"cannot be written there\n(.*\n)*.*GEMWRIGHT_CACHE"):
        default_model_path()


def test_a_cache_that_can_only_be_read_will_do(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = default_model_path()
    path.with_name(f"{path.name}.stamp.json").unlink()

    def refuse(**options: object) -> tuple[int, str]:
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(default_model.tempfile, "mkstemp", refuse)
    assert default_model_path() == path


def test_what_a_killed_process_left_is_cleared_away(cache: Path) -> None:
    left = cache / "default-model" / ".joining-dead"
    left.parent.mkdir(parents=True)
    left.write_bytes(b"half")
    path = default_model_path()
    assert files_below(cache) == {path.name, f"{path.name}.stamp.json"}


def _start(barrier: multiprocessing.synchronize.Barrier, answers: multiprocessing.Queue[bool]) -> None:  # type: ignore[name-defined]
    barrier.wait()
    answers.put(default_model_path().read_bytes() == CONTENT)


def test_processes_that_start_at_once_all_get_the_whole_file(cache: Path) -> None:
    context = multiprocessing.get_context("fork")
    barrier, answers = context.Barrier(4), context.Queue()
    processes = [context.Process(target=_start, args=(barrier, answers)) for _ in range(4)]
    for process in processes:
        process.start()
    assert [answers.get(timeout=60) for _ in processes] == [True] * 4
    for process in processes:
        process.join(60)
        assert process.exitcode == 0
    path = default_model_path()
    assert files_below(cache) == {path.name, f"{path.name}.stamp.json"}


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({"GEMWRIGHT_CACHE": "/one", "XDG_CACHE_HOME": "/two"}, "/one"),
        ({"XDG_CACHE_HOME": "/two"}, "/two/gemwright"),
        ({"HOME": "/three"}, "/three/.cache/gemwright"),
    ],
)
def test_where_the_cache_lies(variables: dict[str, str], expected: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("GEMWRIGHT_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert default_model.cache_folder() == Path(expected)


def test_the_published_packages_hold_what_we_expect() -> None:
    digest = hashlib.sha256()
    num_bytes = 0
    for module, name in default_model._CHUNKS:
        with default_model._find(module, name).open("rb") as chunk:
            while piece := chunk.read(1 << 22):
                digest.update(piece)
                num_bytes += len(piece)
    assert num_bytes == default_model.MODEL_BYTES
    assert digest.hexdigest() == default_model.MODEL_SHA256
    assert "Gemma" in terms_path().read_text(errors="replace")
