"""What share of a device's published rates engines reach, from measured speeds; bands are wide where little is known.

Refuses to know any model: a row is an engine, a class of devices, and whether experts are chosen token by token.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Final, Literal

from gemwright.planner.devices import Device
from gemwright.planner.settings import Engine


@dataclass(frozen=True, slots=True)
class Band:
    """A number that is not known exactly."""

    low: float
    value: float
    high: float

    def to_dict(self) -> dict[str, Any]:
        """Return the fields of the JSON output."""
        return {"low": self.low, "value": self.value, "high": self.high}


DeviceClass = Literal["nvidia", "amd", "old amd", "intel", "apple", "cpu"]
"""Devices for which an engine's kernels are about equally good."""


@dataclass(frozen=True, slots=True)
class Efficiency:
    """How near an engine comes to what a device could do."""

    bandwidth: Band
    """Share of the published memory bandwidth while weights and K/V are read."""
    compute: Band
    """Share of the published peak in the matrix products of a prompt."""
    layer_s: Band
    """Seconds a layer and step that no byte and no product explains: starting kernels, and waiting between them."""
    source: str
    """Which measurements this rests on, or that there are none."""


AttentionKernel = Literal["tuned", "fallback", "reference", "unknown"]

ATTENTION: Final[dict[AttentionKernel, Band]] = {
    "tuned": Band(0.08, 0.25, 0.6),
    "fallback": Band(0.0015, 0.003, 0.01),
    "reference": Band(0.05, 0.4, 1.0),
    "unknown": Band(0.0015, 0.03, 0.6),
}
"""Share of the peak that attention over a prompt reaches, by the kernel that does it.

One report of Gemma 4 26B-A4B under vLLM on an Intel Arc Pro B70 has both: 24,200 tokens in 4.2 s with a flash kernel,
in 116.6 s with the Triton fallback for heads of 512, which is about 0.5 of the card's 183 * 10**12 operations a second.
"""

_WIDE: Final = Band(0.2, 0.5, 0.9)
_TUNED: Final = Band(0.6, 0.78, 0.92)
_LAUNCH: Final = Band(0.0, 10e-6, 60e-6)

_LLAMA_CPP: Final[dict[tuple[DeviceClass, bool], Efficiency]] = {
    ("nvidia", False): Efficiency(
        _TUNED,
        Band(0.25, 0.7, 1.7),
        _LAUNCH,
        "0.82 (31B NVFP4, GB10), 0.80 (27B Q6_K, RTX 5070 Ti and 5060 Ti), 0.64 (12B Q4_K_M, GB10, Ollama); prompts "
        "of quantized models run in int8, above the bfloat16 peak",
    ),
    ("nvidia", True): Efficiency(
        Band(0.25, 0.5, 0.75),
        Band(0.1, 0.3, 0.8),
        _LAUNCH,
        "26B-A4B beside 12B on one unnamed card: 0.61 if the 12B reached 0.78; elsewhere 0.25 to 0.5",
    ),
    ("amd", False): Efficiency(
        _TUNED, Band(0.15, 0.4, 0.9), _LAUNCH, "0.80 (4B F16, Radeon 8060S); no other new AMD device"
    ),
    ("amd", True): Efficiency(Band(0.2, 0.4, 0.75), Band(0.08, 0.25, 0.7), _LAUNCH, "no measurement; as on NVIDIA"),
    ("old amd", False): Efficiency(
        Band(0.45, 0.7, 0.85),
        Band(0.2, 0.45, 0.7),
        Band(0.1e-3, 0.33e-3, 0.7e-3),
        "27B F16 on two MI50: 10.37 tokens/s, which is 0.55 of the bandwidth in all; prompts 0.48 of the peak",
    ),
    ("old amd", True): Efficiency(
        Band(0.15, 0.35, 0.7), Band(0.05, 0.2, 0.5), Band(0.1e-3, 0.33e-3, 0.9e-3), "no measurement"
    ),
    ("apple", False): Efficiency(
        Band(0.45, 0.6, 0.85), Band(0.2, 0.5, 0.9), _LAUNCH, "0.52 (31B 4-bit, M2 Ultra, MLX), taken over from MLX"
    ),
    ("apple", True): Efficiency(
        Band(0.2, 0.35, 0.6), Band(0.1, 0.3, 0.7), _LAUNCH, "0.27 (26B-A4B 4-bit, M2 Ultra, MLX), taken over from MLX"
    ),
    ("intel", False): Efficiency(_WIDE, Band(0.05, 0.2, 0.6), _LAUNCH, "no measurement"),
    ("intel", True): Efficiency(Band(0.1, 0.3, 0.7), Band(0.05, 0.15, 0.5), _LAUNCH, "no measurement"),
    ("cpu", False): Efficiency(
        Band(0.4, 0.7, 1.0), Band(0.1, 0.5, 1.5), _LAUNCH, "0.7 of a read loop (1B Q4_0 and Q8_0, two cores)"
    ),
    ("cpu", True): Efficiency(Band(0.2, 0.5, 0.9), Band(0.1, 0.3, 1.0), _LAUNCH, "no measurement"),
}

_VLLM: Final[dict[tuple[DeviceClass, bool], Efficiency]] = {
    ("nvidia", False): Efficiency(
        Band(0.45, 0.72, 0.9),
        Band(0.2, 0.45, 0.75),
        Band(0.0, 15e-6, 100e-6),
        "no decode of a Gemma measured; 31B FP8 on two H200: 31,493 tokens in 9.1 s, with attention on a fallback",
    ),
    ("nvidia", True): Efficiency(
        Band(0.2, 0.45, 0.75), Band(0.1, 0.3, 0.6), Band(0.0, 20e-6, 150e-6), "no measurement; 0.25 to 0.5 elsewhere"
    ),
    ("amd", False): Efficiency(_WIDE, Band(0.1, 0.3, 0.7), Band(0.0, 20e-6, 150e-6), "no measurement"),
    ("amd", True): Efficiency(Band(0.1, 0.35, 0.7), Band(0.05, 0.2, 0.5), Band(0.0, 20e-6, 150e-6), "no measurement"),
    ("intel", False): Efficiency(_WIDE, Band(0.1, 0.35, 0.6), Band(0.0, 20e-6, 150e-6), "no measurement"),
    ("intel", True): Efficiency(
        Band(0.1, 0.35, 0.7),
        Band(0.2, 0.35, 0.6),
        Band(0.0, 20e-6, 150e-6),
        "prompts of 26B-A4B int4 on an Arc Pro B70: 24,200 tokens in 4.2 s, 11,800 in 1.7 s; decode not measured",
    ),
    ("cpu", False): Efficiency(
        Band(0.4, 0.8, 1.0), Band(0.2, 1.0, 6.0), Band(0.0, 50e-6, 500e-6), "25 of 26 GB/s (1B bfloat16, two cores)"
    ),
}

_GEMWRIGHT: Final[dict[tuple[DeviceClass, bool], Efficiency]] = {
    ("cpu", False): Efficiency(
        Band(0.1, 0.35, 0.8),
        Band(0.3, 0.9, 6.0),
        Band(0.4e-3, 1.2e-3, 4e-3),
        "the reference backend stays far below what memory allows: a decode step of 270M in bfloat16 takes about 60 ms "
        "on two cores of a Xeon with AMX (docs/log.md), which is 16 to 17 tokens/s; 12 to 13 on two of an EPYC and 7 "
        "on one, where a read loop's rate would give 40 to 50; 1,001 tokens of prompt took 1.8 to 2.2 s and 3.1 s",
    ),
    ("cpu", True): Efficiency(
        Band(0.05, 0.25, 0.7),
        Band(0.1, 0.5, 3.0),
        Band(0.8e-3, 4e-3, 30e-3),
        "experts were not measured: the reference backend runs them one after another",
    ),
    ("nvidia", False): Efficiency(
        Band(0.05, 0.3, 0.7), Band(0.02, 0.2, 0.6), Band(0.1e-3, 0.4e-3, 1.5e-3), "the reference backend, not measured"
    ),
    ("nvidia", True): Efficiency(
        Band(0.02, 0.15, 0.5), Band(0.01, 0.1, 0.5), Band(0.3e-3, 2e-3, 15e-3), "the reference backend, not measured"
    ),
}

_TABLES: Final[dict[Engine, dict[tuple[DeviceClass, bool], Efficiency]]] = {
    "llama.cpp": _LLAMA_CPP,
    "ollama": _LLAMA_CPP,
    "vllm": _VLLM,
    "gemwright": _GEMWRIGHT,
}


def device_class(device: Device) -> DeviceClass | None:
    """Return the class of a device by its maker's name; None for one that no engine here was seen on."""
    name = device.name.lower()
    if device.kind == "cpu":
        return "cpu"
    if re.search(r"\b(?:mi50|mi60|gfx906)\b", name):
        return "old amd"
    words: dict[str, DeviceClass] = {
        "nvidia": "nvidia",
        "tesla": "nvidia",
        "quadro": "nvidia",
        "amd": "amd",
        "intel": "intel",
        "apple": "apple",
    }
    found = next((words[word] for word in re.findall(r"[a-z]+", name) if word in words), None)
    return found if device.kind == "gpu" else None


def efficiency(engine: Engine, device: Device, *, is_mixture: bool) -> Efficiency | None:
    """Return what share of a device's rates an engine reaches; None where nothing is known, so that nothing is said."""
    kind = device_class(device)
    return None if kind is None else _TABLES[engine].get((kind, is_mixture))
