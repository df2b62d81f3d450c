"""The table of known accelerators and processors. Numbers are those that vendors publish; what they leave out is None.

Memory is what the driver offers to programs where that is known (nvidia-smi's MiB, rocm-smi's bytes), else the nominal
size, which `source` then says; None where the buyer chooses it. Peaks are dense, for products that add up in float32.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final, Literal

from gemwright.planner.devices import Device


@dataclass(frozen=True, slots=True)
class Known:
    """A row of the table: the device, and other words by which people call it."""

    device: Device
    aliases: tuple[str, ...] = ()


def _row(
    name: str,
    memory_mib: int | None,
    gigabytes_per_s: float | None,
    source: str,
    *aliases: str,
    **tera: float,
) -> Known:
    """Return a row from published units: MiB of memory, 10**9 bytes a second, 10**12 operations a second by dtype."""
    memory_bytes = None if memory_mib is None else memory_mib << 20
    bandwidth = None if gigabytes_per_s is None else gigabytes_per_s * 1e9
    peaks: Mapping[str, float] = {dtype: value * 1e12 for dtype, value in tera.items()}
    return Known(Device(name, "gpu", memory_bytes, bandwidth, peaks, source), aliases)


def _unified(known: Known) -> Known:
    """Return a row whose device shares the system's memory."""
    return replace(known, device=replace(known.device, is_unified=True))


def _kind(kind: Literal["cpu", "npu"], *rows: Known) -> tuple[Known, ...]:
    return tuple(replace(known, device=replace(known.device, kind=kind)) for known in rows)


def _tensor(peak: float, float32: float, **more: float) -> dict[str, float]:
    """Return peaks by dtype where bfloat16 and float16 are equally fast."""
    return {"float32": float32, "bfloat16": peak, "float16": peak, **more}


def _xmx(int8: float) -> dict[str, float]:
    """Return peaks of an Arc B card, for which Intel publishes int8 alone: its matrix units (XMX) do half as many in
    bfloat16 and float16 (Intel Xe GPU Architecture, in the oneAPI GPU Optimization Guide)."""
    return {"bfloat16": int8 / 2, "float16": int8 / 2, "int8": int8}


_AMPERE: Final = "NVIDIA Ampere GA102 GPU architecture whitepaper"
_ADA: Final = "NVIDIA Ada GPU architecture whitepaper"
_BLACKWELL: Final = "NVIDIA RTX Blackwell GPU architecture whitepaper"
_GEFORCE: Final = "https://www.nvidia.com/en-us/geforce/graphics-cards/"
_APPLE: Final = "https://support.apple.com/specs"
_HOPPER: Final = "https://resources.nvidia.com/en-us-tensor-core/nvidia-tensor-core-gpu-datasheet"

_NVIDIA: Final = (
    _row(
        "NVIDIA T4", 15_360, 320, "https://www.nvidia.com/en-us/data-center/tesla-t4/", "tesla t4",
        float32=8.1, float16=65, int8=130,
    ),
    _row(
        "NVIDIA V100 16 GB", 16_384, 900, "https://www.nvidia.com/en-us/data-center/v100/", "tesla v100 sxm2 16gb",
        float32=15.7, float16=125,
    ),
    _row(
        "NVIDIA V100 32 GB", 32_768, 900, "https://www.nvidia.com/en-us/data-center/v100/", "tesla v100 sxm2 32gb",
        float32=15.7, float16=125,
    ),
    _row(
        "NVIDIA A10", 23_028, 600, "https://www.nvidia.com/en-us/data-center/products/a10-gpu/",
        **_tensor(125, 31.2, int8=250),
    ),
    _row("NVIDIA A10G", 23_028, 600, "NVIDIA A10G datasheet", **_tensor(70, 35, int8=140)),
    _row(
        "NVIDIA L4", 23_034, 300, "https://www.nvidia.com/en-us/data-center/l4/",
        **_tensor(121, 30.3, fp8=242.5, int8=242.5),
    ),
    _row(
        "NVIDIA L40S", 46_068, 864, "https://www.nvidia.com/en-us/data-center/l40s/",
        **_tensor(362, 91.6, fp8=733, int8=733),
    ),
    _row(
        "NVIDIA A100 40 GB", 40_960, 1_555, "https://www.nvidia.com/en-us/data-center/a100/",
        "a100 sxm4 40gb", "a100 pcie 40gb", **_tensor(312, 19.5, int8=624),
    ),
    _row(
        "NVIDIA A100 80 GB PCIe", 81_920, 1_935, "https://www.nvidia.com/en-us/data-center/a100/", "a100 80gb pcie",
        **_tensor(312, 19.5, int8=624),
    ),
    _row(
        "NVIDIA A100 80 GB SXM", 81_920, 2_039, "https://www.nvidia.com/en-us/data-center/a100/",
        "a100 sxm4 80gb", "a100 80gb sxm4", **_tensor(312, 19.5, int8=624),
    ),
    _row("NVIDIA H100 PCIe", 81_559, 2_000, _HOPPER, "h100 pcie 80gb", **_tensor(756, 51, fp8=1_513, int8=1_513)),
    _row(
        "NVIDIA H100 SXM", 81_559, 3_350, _HOPPER, "h100", "h100 80gb", "h100 sxm5", "h100 80gb hbm3", "h100 sxm5 80gb",
        **_tensor(989.5, 67, fp8=1_979, int8=1_979),
    ),
    _row("NVIDIA H100 NVL", 95_830, 3_900, _HOPPER, "h100 nvl 94gb", **_tensor(835, 60, fp8=1_670, int8=1_670)),
    _row(
        "NVIDIA H200 SXM", 143_771, 4_800, "https://www.nvidia.com/en-us/data-center/h200/", "h200", "h200 141gb",
        **_tensor(989.5, 67, fp8=1_979, int8=1_979),
    ),
    _row(
        "NVIDIA B200", 183_359, 8_000, "https://www.nvidia.com/en-us/data-center/hgx/", "b200 180gb", "hgx b200",
        **_tensor(2_250, 75, fp8=4_500, int8=4_500),
    ),
    _unified(_row(
        "NVIDIA GB10", 122_070, 273, "https://www.nvidia.com/en-us/products/workstations/dgx-spark/; nominal memory",
        "dgx spark",
    )),
    _row("NVIDIA GeForce RTX 3060 12 GB", 12_288, 360, _GEFORCE, "rtx 3060", float32=12.7),
    _row("NVIDIA GeForce RTX 3090", 24_576, 936, _AMPERE, "rtx 3090", "3090", **_tensor(71, 35.6, int8=284)),
    _row("NVIDIA GeForce RTX 4060 Ti 16 GB", 16_380, 288, _GEFORCE, "rtx 4060 ti 16gb", float32=22),
    _row("NVIDIA GeForce RTX 4070", 12_282, 504, _GEFORCE, "rtx 4070", float32=29),
    _row(
        "NVIDIA GeForce RTX 4080", 16_376, 716.8, _ADA, "rtx 4080", "4080",
        **_tensor(97.5, 48.7, fp8=194.9, int8=389.9),
    ),
    _row(
        "NVIDIA GeForce RTX 4090", 24_564, 1_008, _ADA, "rtx 4090", "4090",
        **_tensor(165.2, 82.6, fp8=330.3, int8=660.6),
    ),
    _row("NVIDIA GeForce RTX 5060 Ti 16 GB", 16_311, 448, _GEFORCE, "rtx 5060 ti 16gb", float32=24),
    _row("NVIDIA GeForce RTX 5070 Ti", 16_303, 896, _BLACKWELL, "rtx 5070 ti", "5070 ti", **_tensor(87.9, 43.9)),
    _row("NVIDIA GeForce RTX 5080", 16_303, 960, _BLACKWELL, "rtx 5080", "5080", **_tensor(112.6, 56.3)),
    _row(
        "NVIDIA GeForce RTX 5090", 32_607, 1_792, _BLACKWELL, "rtx 5090", "5090",
        **_tensor(209.5, 104.8, fp8=419, int8=838),
    ),
    _row(
        "NVIDIA RTX 6000 Ada Generation", 49_140, 960, "https://www.nvidia.com/en-us/products/workstations/rtx-6000/",
        "rtx 6000 ada", **_tensor(364.2, 91.1, fp8=728.5, int8=728.5),
    ),
    _row(
        "NVIDIA RTX PRO 6000 Blackwell", 97_887, 1_792, "NVIDIA RTX Blackwell PRO GPU architecture whitepaper",
        "rtx pro 6000", "rtx pro 6000 blackwell workstation edition", **_tensor(503.8, 126),
    ),
    _unified(_row(
        "NVIDIA Jetson AGX Orin 64 GB", 61_035, 204.8,
        "https://www.nvidia.com/en-us/autonomous-machines/embedded-systems/jetson-orin/; nominal memory",
        "jetson orin", "jetson agx orin", float32=5.3,
    )),
)  # fmt: skip

_AMD: Final = (
    _row(
        "AMD Instinct MI50 16 GB", 16_368, 1_024, "AMD Radeon Instinct MI50 datasheet",
        float32=13.3, float16=26.5, int8=53,
    ),
    _row(
        "AMD Instinct MI50 32 GB", 32_752, 1_024, "AMD Radeon Instinct MI50 datasheet",
        float32=13.3, float16=26.5, int8=53,
    ),
    _row(
        "AMD Instinct MI60", 32_752, 1_024, "AMD Radeon Instinct MI60 datasheet",
        float32=14.7, float16=29.5, int8=58.9,
    ),
    _row(
        "AMD Instinct MI210", 65_520, 1_638.4, "https://www.amd.com/en/products/accelerators/instinct/mi200/mi210.html",
        "mi210", **_tensor(181, 22.6, int8=181),
    ),
    _row(
        "AMD Instinct MI250X (one of its two dies)", 65_520, 1_638.4,
        "half of https://www.amd.com/en/products/accelerators/instinct/mi200/mi250x.html", "mi250x", "mi250x gcd",
        **_tensor(191.5, 23.9, int8=191.5),
    ),
    _row(
        "AMD Instinct MI300X", 196_592, 5_325, "https://www.amd.com/en/products/accelerators/instinct/mi300/mi300x.html",
        "mi300x", **_tensor(1_307.4, 163.4, fp8=2_614.9, int8=2_614.9),
    ),
    _row(
        "AMD Instinct MI325X", 262_128, 6_000, "https://www.amd.com/en/products/accelerators/instinct/mi300/mi325x.html",
        "mi325x", **_tensor(1_307.4, 163.4, fp8=2_614.9, int8=2_614.9),
    ),
    _row(
        "AMD Radeon RX 7900 XTX", 24_560, 960,
        "https://www.amd.com/en/products/graphics/desktops/radeon/7000-series/amd-radeon-rx-7900xtx.html",
        "rx 7900 xtx", "7900 xtx", **_tensor(122.8, 61.4),
    ),
    _unified(_row(
        "AMD Radeon 8060S", None, 256,
        "https://www.amd.com/en/products/processors/laptop/ryzen/ai-300-series/amd-ryzen-ai-max-plus-395.html; "
        "memory is the system's",
        "strix halo", "ryzen ai max 395", "ryzen ai max+ 395",
    )),
)  # fmt: skip

_INTEL: Final = (
    _row(
        "Intel Arc B580", 12_288, 456,
        "https://www.intel.com/content/www/us/en/products/sku/241598.html; nominal memory",
        "b580", **_xmx(233),
    ),
    _row(
        "Intel Arc Pro B60", 24_576, 456,
        "https://www.intel.com/content/www/us/en/products/sku/243916.html; nominal memory",
        "b60", "arc b60", **_xmx(197),
    ),
    _row(
        "Intel Arc Pro B70", 32_768, 608, "Intel Arc Pro B70 product page; nominal memory", "b70", "arc b70",
        **_xmx(367),
    ),
    _row(
        "Intel Data Center GPU Max 1550", 131_072, 3_276.8,
        "https://www.intel.com/content/www/us/en/products/sku/232873.html; nominal memory", "max 1550", "ponte vecchio",
        **_tensor(838.9, 52.4, int8=1_678),
    ),
)  # fmt: skip

_MAC_GB_PER_S: Final[Mapping[str, float]] = {
    "M1": 68.25, "M1 Pro": 200, "M1 Max": 400, "M1 Ultra": 800,
    "M2": 100, "M2 Pro": 200, "M2 Max": 400, "M2 Ultra": 800,
    "M3": 100, "M3 Pro": 150, "M3 Max (30 GPU cores)": 300, "M3 Max (40 GPU cores)": 400, "M3 Ultra": 819,
    "M4": 120, "M4 Pro": 273, "M4 Max (32 GPU cores)": 410, "M4 Max (40 GPU cores)": 546,
}  # fmt: skip
_MAC_FLOAT32: Final[Mapping[str, float]] = {"M1": 2.6, "M1 Pro": 5.2, "M1 Max": 10.4, "M2": 3.6}
"""Those that Apple published, in 10**12 a second."""

_MACS: Final = tuple(
    _unified(
        _row(
            f"Apple {name}",
            None,
            bandwidth,
            f"{_APPLE}; memory is the system's",
            name,
            **({"float32": _MAC_FLOAT32[name]} if name in _MAC_FLOAT32 else {}),
        )
    )
    for name, bandwidth in _MAC_GB_PER_S.items()
)

_TPUS: Final = _kind(
    "npu",
    _row(
        "Google TPU v5e", 16_384, 819, "https://cloud.google.com/tpu/docs/v5e; nominal memory", "tpu v5e", "v5e",
        "v5 lite", bfloat16=197, int8=393,
    ),
    _row(
        "Google TPU v6e", 32_768, 1_640, "https://cloud.google.com/tpu/docs/v6e; nominal memory", "tpu v6e", "v6e",
        "trillium", bfloat16=918, int8=1_836,
    ),
)  # fmt: skip

_PROCESSORS: Final = _kind(
    "cpu",
    _row(
        "Intel Xeon Platinum 8480+", None, 307.2,
        "https://www.intel.com/content/www/us/en/products/sku/231746.html: 8 channels of DDR5-4800, one socket",
        "xeon 8480+", "xeon 8480", "8480+",
    ),
    _row(
        "AMD EPYC 9654", None, 460.8,
        "https://www.amd.com/en/products/processors/server/epyc/4th-generation-9004-and-8004-series/"
        "amd-epyc-9654.html: 12 channels of DDR5-4800, one socket",
        "epyc 9654",
    ),
    _row(
        "AMD Ryzen 9 7950X", None, 83.2,
        "https://www.amd.com/en/products/processors/desktops/ryzen/7000-series/amd-ryzen-9-7950x.html: "
        "2 channels of DDR5-5200",
        "ryzen 7950x", "7950x",
    ),
)  # fmt: skip

TABLE: Final = (*_NVIDIA, *_AMD, *_INTEL, *_MACS, *_TPUS, *_PROCESSORS)
"""All rows, by vendor."""
