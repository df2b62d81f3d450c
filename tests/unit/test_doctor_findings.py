"""What the facts of a machine mean: each check on machines that this one is not."""

from __future__ import annotations

import tomllib
from dataclasses import replace
from pathlib import Path

import pytest

from gemwright.cli.doctor_facts import Facts, gather
from gemwright.cli.doctor_findings import exit_code, find
from gemwright.cli.installed import BASE_PACKAGES, OPTIONAL_PACKAGES
from gemwright.config import EngineConfig
from gemwright.engine.assess import assess_model
from gemwright.memory.gpus import Gpu, GpuFacts
from gemwright.memory.machine import CoreFacts
from gemwright.ops.backends import judge_backends
from gemwright.ops.torch_facts import TorchFacts
from gemwright.testing import write_tiny_checkpoint

GIB = 1 << 30
PROJECT = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
GPU = Gpu(0, "A GPU", 24 * GIB, 20 * GIB, "570.1", "9.0", None, ())


@pytest.fixture
def facts() -> Facts:
    """A machine with eight cores, 16 GiB free, no GPU and no variables, whatever this one has."""
    found = gather(EngineConfig(), None, (), None, starts_torch=False)
    return replace(
        found,
        cores=CoreFacts(8, 8, None),
        threads=8,
        memory=replace(found.memory, free_bytes=16 * GIB, address_space_limit_bytes=None),
        gpus=GpuFacts((), None, None),
        other_variables={},
    )


def states(facts: Facts, name: str) -> list[tuple[str, str]]:
    return [(finding.state, finding.what) for finding in find(facts) if finding.name == name]


def one(facts: Facts, name: str) -> tuple[str, str]:
    (found,) = states(facts, name)
    return found


def test_packages_are_those_that_the_project_asks_for() -> None:
    def names(lines: list[str]) -> set[str]:
        return {line.translate(str.maketrans(dict.fromkeys("<>=!~[;", " "))).split()[0] for line in lines}

    extras = PROJECT["optional-dependencies"]
    assert set(BASE_PACKAGES) == names(PROJECT["dependencies"])
    assert all(package in names(extras[extra]) for package, extra in OPTIONAL_PACKAGES.items())


def test_a_machine_with_all_it_needs_has_no_problem(facts: Facts) -> None:
    assert exit_code(find(facts)) == 0
    assert one(facts, "threads") == ("ok", "8 of 8 cores")
    assert one(facts, "memory") == ("ok", "16.00 GiB free for this process")
    assert states(facts, "GPU") == []


def test_a_default_model_that_cannot_be_joined_is_a_problem_where_it_is_what_would_run(facts: Facts) -> None:
    closed = tuple(replace(place, obstacle="Permission denied") for place in facts.places)
    unjoined = replace(facts, places=closed, has_default_model=True, is_default_joined=False)
    assert one(unjoined, "default model") == ("problem", "is installed, and cannot be joined in the own cache")
    assert exit_code(find(unjoined)) == 5
    assert one(replace(unjoined, is_default_joined=True), "default model")[0] == "ok"


@pytest.mark.parametrize(("quota", "state"), [(None, "ok"), (8.0, "ok"), (2.5, "warning")])
def test_threads_beyond_the_quota_are_warned_of(facts: Facts, quota: float | None, state: str) -> None:
    assert one(replace(facts, cores=CoreFacts(8, 8, quota)), "threads")[0] == state


@pytest.mark.parametrize(("free", "words"), [(0, "nobody tells"), (GIB // 2, "little memory")])
def test_memory_that_is_short_or_unknown_is_warned_of(facts: Facts, free: int, words: str) -> None:
    state, what = one(replace(facts, memory=replace(facts.memory, free_bytes=free)), "memory")
    assert state == "warning"
    assert words in what


def test_a_limit_of_the_address_space_is_warned_of(facts: Facts) -> None:
    limited = replace(facts, memory=replace(facts.memory, address_space_limit_bytes=8 * GIB))
    assert one(limited, "address space")[0] == "warning"


def test_a_gpu_beside_a_torch_for_the_cpu_is_warned_of_and_a_problem_where_it_is_asked_for(facts: Facts) -> None:
    idle = replace(facts, gpus=GpuFacts((GPU,), None, None))
    assert one(idle, "GPU") == ("warning", "the installed torch is built for the CPU alone")
    asked = replace(idle, config=EngineConfig(device="cuda"))
    assert one(asked, "GPU")[0] == "problem"
    assert exit_code(find(asked)) == 3
    able = replace(asked, gpus=GpuFacts((GPU,), None, "12.8"))
    assert one(able, "GPU") == ("ok", "1 found")
    dead = replace(able, torch=TorchFacts(None, True, True, 0))
    assert one(dead, "GPU") == ("problem", "torch can use no GPU")


def test_a_model_is_weighed_against_the_gpu_it_is_to_run_on(facts: Facts, tmp_path: Path) -> None:
    config = EngineConfig(device="cuda", max_model_len=64)
    found = assess_model(str(write_tiny_checkpoint("gemma3", tmp_path)), config)
    machine = replace(facts, config=config, assessment=found, gpus=GpuFacts((GPU,), None, "12.8"))
    name = f"model {tmp_path}"
    assert one(machine, name)[0] == "ok"
    small = replace(machine, gpus=GpuFacts((replace(GPU, free_bytes=1000),), None, "12.8"))
    assert one(small, name) == ("problem", "the model does not fit on A GPU")
    assert exit_code(find(small)) == 4


def test_a_torch_that_does_not_start_is_a_problem(facts: Facts) -> None:
    broken = replace(facts, torch=TorchFacts("libgomp.so.1: cannot open shared object file"))
    assert one(broken, "torch")[0] == "problem"
    assert exit_code(find(broken)) == 1


def test_no_backend_for_a_device_is_a_problem(facts: Facts) -> None:
    assert exit_code(find(replace(facts, backends=judge_backends("reference", "npu")))) == 3


def test_a_full_disk_is_warned_of_with_a_way_out(facts: Facts) -> None:
    full = replace(facts, places=tuple(replace(place, free_bytes=1 << 20) for place in facts.places))
    for place in full.places:
        (finding,) = [finding for finding in find(full) if finding.name == place.name]
        assert finding.state == "warning"
        assert finding.value == "1.0 MiB free"
        assert "gemwright rm" in (finding.remedy or "")
