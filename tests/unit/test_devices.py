"""The table of devices, how their names are found, and what this machine is as a device."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace
from subprocess import run

import pytest

from gemwright.errors import RequestError, UnsupportedError
from gemwright.memory.gpus import Gpu, GpuFacts, MigInstance
from gemwright.planner import devices
from gemwright.planner.device_table import TABLE
from gemwright.planner.devices import Device, Machine, find_device, list_devices, machine_fingerprint, this_machine

MIB = 1 << 20
GB = 1e9


def gpu(name: str, mebibytes: int | None, mig: str | None = None, instances: tuple[MigInstance, ...] = ()) -> Gpu:
    total = None if mebibytes is None else mebibytes * MIB
    return Gpu(0, name, total, total, "570.1", None, mig, (), "GPU-a", instances)


@pytest.fixture
def machine() -> Machine:
    return this_machine()


def with_gpus(machine: Machine, *gpus: Gpu) -> Machine:
    return replace(machine, gpus=GpuFacts(gpus, None, None))


# The table


def test_every_row_says_where_its_numbers_stand() -> None:
    for device in list_devices():
        assert device.source, device.name
        assert device.bandwidth_bytes_per_s is not None
        assert 50 * GB < device.bandwidth_bytes_per_s < 10_000 * GB
        assert set(device.peak_flops) <= {"float32", "bfloat16", "float16", "fp8", "int8"}
        assert device.memory_bytes is None or 8 << 30 < device.memory_bytes < 300 << 30


def test_narrower_dtypes_are_never_slower() -> None:
    for device in list_devices():
        peaks = [device.peak_flops[dtype] for dtype in ("float32", "float16", "fp8") if dtype in device.peak_flops]
        assert peaks == sorted(peaks), device.name


@pytest.mark.parametrize(
    ("name", "mebibytes", "gigabytes_per_s"),
    [
        ("rtx 4090", 24_564, 1_008), ("H100", 81_559, 3_350), ("h200", 143_771, 4_800), ("T4", 15_360, 320),
        ("NVIDIA A100-SXM4-80GB", 81_920, 2_039), ("mi300x", 196_592, 5_325), ("arc pro b70", 32_768, 608),
    ],
)  # fmt: skip
def test_known_devices(name: str, mebibytes: int, gigabytes_per_s: float) -> None:
    found = find_device(name)
    assert (found.memory_bytes, found.bandwidth_bytes_per_s) == (mebibytes * MIB, gigabytes_per_s * GB)


def test_every_name_and_alias_means_its_own_row() -> None:
    for known in TABLE:
        for name in (known.device.name, known.device.name.upper(), *known.aliases):
            assert find_device(name) is known.device, name


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("H100-80GB", "NVIDIA H100 SXM"),
        ("NVIDIA H100 80GB HBM3", "NVIDIA H100 SXM"),
        ("nvidia h100 pcie", "NVIDIA H100 PCIe"),
        ("NVIDIA GeForce RTX 4090", "NVIDIA GeForce RTX 4090"),
        ("4090", "NVIDIA GeForce RTX 4090"),
        ("Tesla V100-SXM2-32GB", "NVIDIA V100 32 GB"),
        ("NVIDIA A100 80GB PCIe", "NVIDIA A100 80 GB PCIe"),
        ("RTX_5070_Ti", "NVIDIA GeForce RTX 5070 Ti"),
        ("Intel(R) Xeon(R) Platinum 8480+", "Intel Xeon Platinum 8480+"),
        ("AMD EPYC 9654 96-Core Processor", "AMD EPYC 9654"),
        ("Apple M2 Ultra", "Apple M2 Ultra"),
    ],
)
def test_names_as_drivers_and_people_write_them(name: str, found: str) -> None:
    assert find_device(name).name == found


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("A100", ("several devices", "A100 40 GB", "A100 80 GB PCIe", "A100 80 GB SXM")),
        ("M3 Max", ("several devices", "30 GPU cores", "40 GPU cores")),
        ("rtx 5070", ("no device of this name", "RTX 5070 Ti")),
        ("H1000", ("no device of this name", "H100")),
        ("", ("no device of this name", "--memory")),
        ("abacus", ("none is close", "--memory")),
    ],
)
def test_a_name_that_means_none_or_several_is_refused_with_those_it_could_mean(
    name: str, words: tuple[str, ...]
) -> None:
    """A smaller card must never pass for a larger one of nearly the same name: an RTX 5070 is no RTX 5070 Ti."""
    with pytest.raises(UnsupportedError) as caught:
        find_device(name)
    assert all(word in str(caught.value) for word in words)


# This machine


def test_a_gpu_gets_its_speed_from_the_table_and_its_memory_from_the_driver(machine: Machine) -> None:
    found = with_gpus(machine, gpu("NVIDIA H200", 143_000)).device(0)
    assert found.memory_bytes == 143_000 * MIB
    assert found.bandwidth_bytes_per_s == 4_800 * GB
    assert found.peak_flops["bfloat16"] == 989.5e12


@pytest.mark.parametrize(("mebibytes", "is_known"), [(16_380, True), (8_188, False), (None, False)])
def test_cards_of_one_name_differ_by_their_memory(machine: Machine, mebibytes: int | None, is_known: bool) -> None:
    """The RTX 4060 Ti comes with 8 and 16 GB; the table has the larger one alone."""
    found = with_gpus(machine, gpu("NVIDIA GeForce RTX 4060 Ti", mebibytes)).device(0)
    assert (found.bandwidth_bytes_per_s == 288 * GB) is is_known


def test_a_gpu_that_the_table_does_not_have_keeps_its_memory_and_no_speed(machine: Machine) -> None:
    found = with_gpus(machine, gpu("NVIDIA Unheard Of", 1_000)).device(0)
    assert (found.memory_bytes, found.bandwidth_bytes_per_s, dict(found.peak_flops)) == (1_000 * MIB, None, {})


def test_a_gpu_without_memory_of_its_own_has_the_systems(machine: Machine) -> None:
    one = with_gpus(machine, gpu("NVIDIA GB10", None))
    assert (one.device(0).memory_bytes, one.device(0).is_unified) == (machine.memory.total_bytes, True)
    assert one.free_bytes(0) == one.free_bytes() == machine.memory.free_bytes


def test_an_instance_has_its_slices_share(machine: Machine) -> None:
    """3g.40gb of an A100 80 GB: 4 of 8 slices of memory, 3 of 7 of compute."""
    part = MigInstance(0, "3g.40gb", "MIG-a", 40_448 * MIB, 40_000 * MIB)
    one = with_gpus(machine, gpu("NVIDIA A100-SXM4-80GB", 81_920, "Enabled", (part,)))
    found = one.device(0)
    assert found.name == "NVIDIA A100-SXM4-80GB MIG 3g.40gb"
    assert (found.memory_bytes, found.bandwidth_bytes_per_s) == (40_448 * MIB, 2_039 * GB / 2)
    assert found.peak_flops["bfloat16"] == pytest.approx(312e12 * 3 / 7)
    assert one.free_bytes(0) == 40_000 * MIB


def test_a_gpu_that_is_not_visible_is_refused(machine: Machine) -> None:
    one = with_gpus(machine, gpu("NVIDIA L4", 23_034))
    assert one.num_devices == 1
    for hidden in (one, replace(one, gpus=replace(one.gpus, visible=""))):
        with pytest.raises(RequestError, match="no such GPU is visible"):
            hidden.device(1)


def test_the_processor_has_the_memory_that_its_limits_allow(machine: Machine) -> None:
    free = replace(machine.memory, group_limit_bytes=None, address_space_limit_bytes=None)
    assert replace(machine, memory=free).cpu().memory_bytes == machine.memory.total_bytes
    tight = replace(machine, memory=replace(free, group_limit_bytes=3 << 30))
    assert tight.cpu() == tight.device() == Device(machine.processor, "cpu", 3 << 30, None, {}, "this machine")


@pytest.fixture
def unmeasured() -> Iterator[None]:
    devices.measured_bandwidth.cache_clear()
    devices.measured_flops.cache_clear()
    yield
    devices.measured_bandwidth.cache_clear()
    devices.measured_flops.cache_clear()


@pytest.mark.usefixtures("unmeasured")
def test_the_processor_is_measured_when_that_is_asked(machine: Machine) -> None:
    found = machine.cpu(measured=True)
    assert found.bandwidth_bytes_per_s is not None
    assert 0.1 * GB < found.bandwidth_bytes_per_s < 10_000 * GB
    assert found.peak_flops["float32"] > 1e8
    assert found.source.startswith("measured now")
    assert machine.cpu(measured=True) == found, "a second time it is not measured again"


def test_the_fingerprint_is_of_hardware_and_versions_alone(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    own = machine.fingerprint()
    assert own == machine_fingerprint()
    assert len(own) == 16
    int(own, 16)
    busy = replace(machine, memory=replace(machine.memory, free_bytes=1, available_bytes=1, group_limit_bytes=1 << 30))
    assert busy.fingerprint() == own
    others = [
        replace(machine, processor="another"),
        replace(machine, memory=replace(machine.memory, total_bytes=machine.memory.total_bytes * 2)),
        replace(machine, cores=replace(machine.cores, num_machine=999)),
        with_gpus(machine, gpu("NVIDIA L4", 23_034)),
        with_gpus(machine, replace(gpu("NVIDIA L4", 23_034), driver="580.2")),
    ]
    assert len({own, *(other.fingerprint() for other in others)}) == 6
    monkeypatch.setattr(devices, "_version", lambda package: "0.0.1")
    assert machine.fingerprint() != own


def test_looking_at_a_machine_imports_neither_torch_nor_numpy() -> None:
    code = (
        "import sys; from gemwright.planner import devices as d; d.machine_fingerprint(); d.find_device('h100');"
        "assert not {'torch', 'numpy'} & set(sys.modules)"
    )
    assert run([sys.executable, "-c", code], check=False).returncode == 0
