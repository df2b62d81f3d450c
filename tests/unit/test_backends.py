"""Which backend computes here, which processor this is, and which GPUs the driver names."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gemwright.config import DEVICES, KERNELS
from gemwright.errors import UnsupportedError
from gemwright.memory import gpus
from gemwright.ops import backends, processor
from gemwright.ops.backends import AUTO, BACKENDS, Backend, choose_backend, judge_backends

PLAIN = Backend("plain", "always there", ("cpu",), frozenset(), None)
FAST = Backend("fast", "for processors with avx2", ("cpu",), frozenset({"avx2", "fma"}), None)
FOREIGN = Backend("foreign", "written with a package nobody has", ("cpu",), frozenset(), "no_such_package", "extra")
CPUINFO = """processor\t: {index}
model name\t: A Processor
physical id\t: {socket}
core id\t\t: {core}
flags\t\t: fpu avx2 fma avx512f
"""


@pytest.fixture
def cpuinfo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file of a machine with two sockets, three cores and four threads."""
    monkeypatch.setattr(processor, "PROC", tmp_path)
    monkeypatch.setattr(processor, "NODES", tmp_path / "nodes")
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    places = ((0, 0), (0, 0), (0, 1), (1, 0))
    entries = [CPUINFO.format(index=index, socket=socket, core=core) for index, (socket, core) in enumerate(places)]
    (tmp_path / "cpuinfo").write_text("\n".join(entries) + "\n")
    return tmp_path / "cpuinfo"


def test_kernels_and_devices_of_the_settings_are_those_of_the_backends() -> None:
    assert (AUTO, *(backend.name for backend in BACKENDS)) == KERNELS
    assert {device for backend in BACKENDS for device in backend.devices} == set(DEVICES)


def test_features_cores_and_sockets_are_read(cpuinfo: Path) -> None:
    found = processor.read_processor()
    assert (found.name, found.architecture) == ("A Processor", "x86_64")
    assert found.features == ("avx2", "fma", "avx512f")
    assert "amx_tile" in found.missing_features
    assert (found.num_physical_cores, found.num_sockets, found.num_memory_nodes) == (3, 2, None)


def test_a_system_that_says_nothing_of_its_processor(cpuinfo: Path) -> None:
    cpuinfo.unlink()
    found = processor.read_processor()
    assert (found.name, found.features, found.num_physical_cores) == (None, (), None)


def test_auto_takes_the_first_that_can_run(cpuinfo: Path) -> None:
    assert choose_backend("auto", "cpu", [FOREIGN, FAST, PLAIN]) is FAST
    assert choose_backend("plain", "cpu", [FOREIGN, FAST, PLAIN]) is PLAIN
    cpuinfo.write_text(cpuinfo.read_text().replace("fma", "fpu"))
    assert choose_backend("auto", "cpu", [FOREIGN, FAST, PLAIN]) is PLAIN
    judged = judge_backends("auto", "cpu", [FOREIGN, FAST, PLAIN])
    assert [entry.is_chosen for entry in judged] == [False, False, True]
    assert judged[1].obstacle == "this processor has no fma"
    assert judged[2].obstacle is None


@pytest.mark.parametrize(
    ("kernels", "device", "words"),
    [
        ("fast", "cpu", ("no avx2, fma", "--kernels auto")),
        ("foreign", "cpu", ("needs no_such_package, which is not installed", "pip install 'gemwright[extra]'")),
        ("plain", "cuda:1", ("does not run on cuda", "--device cpu")),
    ],
)
def test_a_backend_that_cannot_run_says_why(cpuinfo: Path, kernels: str, device: str, words: tuple[str, ...]) -> None:
    cpuinfo.write_text("model name: old\nflags: fpu\n")
    with pytest.raises(UnsupportedError) as caught:
        choose_backend(kernels, device, [FAST, FOREIGN, PLAIN])
    assert all(word in str(caught.value) for word in (*words, f"--kernels {kernels}"))


def test_the_reference_backend_runs_here() -> None:
    assert choose_backend("auto", "cpu").name == "reference"
    assert backends.is_installed("torch")


@pytest.fixture
def driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder whose nvidia-smi is the only one, beside a driver that knows one GPU by name."""
    (tmp_path / "bin").mkdir()
    folder = tmp_path / "driver" / "nvidia"
    (folder / "gpus" / "0000:01:00.0").mkdir(parents=True)
    (folder / "version").write_text("NVRM version\n")
    (folder / "gpus" / "0000:01:00.0" / "information").write_text("Model: \t\t NVIDIA H200\nIRQ: 12\n")
    monkeypatch.setattr(gpus, "PROC", tmp_path)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.defpath}")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    return tmp_path / "bin"


def write_program(folder: Path, text: str) -> None:
    path = folder / "nvidia-smi"
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)


def test_gpus_are_as_the_driver_tells(driver: Path) -> None:
    write_program(
        driver,
        'case "$1" in\n'
        '*--query-gpu*) echo "0, GPU-a, NVIDIA H200, 143771, 143000, 570.1, 9.0, Disabled"\n'
        '  echo "1, GPU-b, Tesla T4, 15360, [N/A], 570.1, 7.5, [N/A]" ;;\n'
        '*) echo "GPU-b, 77, python, 512" ;;\nesac',
    )
    facts = gpus.read_gpus()
    first, second = facts.gpus
    assert (facts.visible, facts.problem) == ("0", None)
    assert (first.index, first.name, first.total_bytes, first.free_bytes) == (
        0,
        "NVIDIA H200",
        143771 << 20,
        143000 << 20,
    )
    assert (first.driver, first.compute_capability, first.mig, first.processes) == ("570.1", "9.0", "Disabled", ())
    assert (second.free_bytes, second.mig) == (None, None)
    assert second.processes == (gpus.GpuProcess(77, "python", 512 << 20),)


@pytest.mark.parametrize(
    ("text", "words"), [("exec sleep 30", "did not answer in 0.5 seconds"), ("echo Oh no; exit 9", "failed: Oh no")]
)
def test_a_driver_that_fails_is_a_problem_and_names_stay_known(driver: Path, text: str, words: str) -> None:
    write_program(driver, text)
    facts = gpus.read_gpus(timeout_seconds=0.5)
    assert words in (facts.problem or "")
    assert [gpu.name for gpu in facts.gpus] == ["NVIDIA H200"]


def test_a_machine_without_gpus_has_no_problem(driver: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(driver))
    assert "not installed" in (gpus.read_gpus().problem or "")
    monkeypatch.setattr(gpus, "PROC", tmp_path / "nothing")
    facts = gpus.read_gpus()
    assert (facts.gpus, facts.problem) == ((), None)


def test_torch_is_asked_for_its_cuda_without_being_imported() -> None:
    import torch

    built = torch.version.cuda
    assert gpus.torch_cuda_version() == built
