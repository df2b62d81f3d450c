"""GPUs that are cut into instances, and what CUDA_VISIBLE_DEVICES leaves of a machine's GPUs."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gemwright.memory import gpus
from gemwright.memory.gpus import Gpu, GpuFacts, GpuProcess, MigInstance

LISTED = """\
GPU 0: NVIDIA A100-SXM4-80GB (UUID: GPU-aaaa-1)
  MIG 3g.40gb     Device  0: (UUID: MIG-cccc-0)
  MIG 1g.10gb     Device  1: (UUID: MIG-cccd-1)
GPU 1: NVIDIA A100-SXM4-80GB (UUID: GPU-bbbb-2)
"""
QUERIED = """\
<?xml version="1.0" ?>
<!DOCTYPE nvidia_smi_log SYSTEM "nvsmi_device_v12.dtd">
<nvidia_smi_log>
  <driver_version>570.86.15</driver_version>
  <gpu id="00000000:07:00.0">
    <uuid>GPU-aaaa-1</uuid>
    <fb_memory_usage><total>81920 MiB</total><used>N/A</used><free>N/A</free></fb_memory_usage>
    <mig_devices>
      <mig_device>
        <index>0</index><gpu_instance_id>2</gpu_instance_id><compute_instance_id>0</compute_instance_id>
        <fb_memory_usage><total>40448 MiB</total><used>298 MiB</used><free>40151 MiB</free></fb_memory_usage>
        <bar1_memory_usage><total>65535 MiB</total><used>1 MiB</used><free>65534 MiB</free></bar1_memory_usage>
      </mig_device>
      <mig_device>
        <index>1</index><gpu_instance_id>9</gpu_instance_id><compute_instance_id>0</compute_instance_id>
        <fb_memory_usage><total>9728 MiB</total><used>12 MiB</used><free>9716 MiB</free></fb_memory_usage>
      </mig_device>
    </mig_devices>
    <processes>
      <process_info>
        <gpu_instance_id>2</gpu_instance_id><compute_instance_id>0</compute_instance_id>
        <pid>4711</pid><type>C</type><process_name>python3</process_name><used_memory>260 MiB</used_memory>
      </process_info>
    </processes>
  </gpu>
  <gpu id="00000000:0F:00.0">
    <uuid>GPU-bbbb-2</uuid>
    <mig_devices>
      None
    </mig_devices>
  </gpu>
</nvidia_smi_log>
"""
PROGRAM = """#!/bin/sh
case "$*" in
*--query-gpu*)
  echo "0, GPU-aaaa-1, NVIDIA A100-SXM4-80GB, 81920, [N/A], 570.86.15, 8.0, Enabled"
  echo "1, GPU-bbbb-2, NVIDIA A100-SXM4-80GB, 81920, 81154, 570.86.15, 8.0, Disabled" ;;
*--query-compute-apps*) ;;
*-x*) cat "{folder}/queried.xml" ;;
*-L*) cat "{folder}/listed.txt" ;;
esac
"""


@pytest.fixture
def cut_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine whose first GPU has two instances, and whose second is whole."""
    program = tmp_path / "nvidia-smi"
    program.write_text(PROGRAM.replace("{folder}", str(tmp_path)))
    program.chmod(0o755)
    (tmp_path / "queried.xml").write_text(QUERIED)
    (tmp_path / "listed.txt").write_text(LISTED)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.defpath}")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    return tmp_path


def test_instances_have_their_own_memory_and_processes(cut_gpu: Path) -> None:
    facts = gpus.read_gpus()
    assert facts.problem is None
    first, second = facts.gpus
    assert first.instances == (
        MigInstance(0, "3g.40gb", "MIG-cccc-0", 40448 << 20, 40151 << 20, (GpuProcess(4711, "python3", 260 << 20),)),
        MigInstance(1, "1g.10gb", "MIG-cccd-1", 9728 << 20, 9716 << 20),
    )
    assert (second.uuid, second.instances) == ("GPU-bbbb-2", ())


@pytest.mark.parametrize("broken", ["queried.xml", "listed.txt"])
def test_a_driver_that_does_not_tell_the_instances_is_a_problem(cut_gpu: Path, broken: str) -> None:
    (cut_gpu / broken).unlink()
    facts = gpus.read_gpus()
    assert "instances of a GPU that is cut" in (facts.problem or "")
    assert [gpu.name for gpu in facts.gpus] == ["NVIDIA A100-SXM4-80GB"] * 2


@pytest.mark.parametrize(
    ("visible", "names"),
    [
        (None, ["A100 MIG 3g.40gb", "A100"]),
        ("1", ["A100"]),
        ("0,1", ["A100 MIG 3g.40gb", "A100"]),
        ("MIG-cccd", ["A100 MIG 1g.10gb"]),
        ("MIG-cccd-1,GPU-bbbb", ["A100 MIG 1g.10gb", "A100"]),
        ("MIG-ccc", []),
        ("1,7,0", ["A100"]),
        ("1,1", ["A100"]),
        ("", []),
        ("-1", []),
    ],
)
def test_visible_devices_are_those_that_cuda_would_number(
    cut_gpu: Path, monkeypatch: pytest.MonkeyPatch, visible: str | None, names: list[str]
) -> None:
    """An entry may be a number or the beginning of a UUID that only one has; the first wrong one ends the list."""
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    devices = gpus.read_gpus().devices()
    assert [device.name.removeprefix("NVIDIA ").replace("-SXM4-80GB", "") for device in devices] == names


def test_memory_of_a_device_is_that_of_its_instance(cut_gpu: Path) -> None:
    part, whole = gpus.read_gpus().devices()
    assert (part.total_bytes, part.free_bytes) == (40448 << 20, 40151 << 20)
    assert (whole.total_bytes, whole.free_bytes) == (81920 << 20, 81154 << 20)
    assert [process.pid for process in part.processes] == [4711]
    assert whole.processes == ()


def test_a_cut_gpu_without_instances_can_be_opened_by_nobody() -> None:
    gpu = Gpu(0, "NVIDIA A100", 80 << 30, None, None, None, "Enabled", ())
    assert GpuFacts((gpu,), None, None).devices() == ()
    assert GpuFacts((gpu,), "0", None).devices() == ()
