"""How a config says that its safetensors are quantized: one short label for each way, for whoever plans such files.

Refuses to know how to read such tensors, and which of them Gemwright runs (refused.py says that).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from gemwright.spec.families.keys import KeyReader
from gemwright.spec.families.refused import QUANTIZATION_SECTIONS

_FP8_METHODS: Final = frozenset({"fp8", "fbgemm_fp8"})
_MODELOPT_ALGORITHMS: Final = {
    "nvfp4": "nvfp4",
    "nvfp4_awq": "nvfp4",
    "fp8": "fp8",
    "fp8_pb_wo": "fp8",
    "fp8_per_channel_per_token": "fp8",
    "mxfp8": "mxfp8",
}
_MLX_GROUP_SIZE: Final = 64
_PACKED_GROUP_SIZE: Final = 32


def quantization_label(config: Mapping[str, Any], *, source: str = "config.json") -> str | None:
    """Return how the safetensors of a config.json are quantized, in a word such as "w4a16"; None: they are not.

    w4a16 (packed int4 in groups of 32), fp8, nvfp4 and int8 for what compressed-tensors, ModelOpt and others write,
    "mlx-4bit" (groups of 64), "nf4", "awq", "gptq". Another group size or number of bits is appended ("w4a16-g128",
    "gptq-8bit"). A way without a word of its own, and one that mixes several, is called by its method's name.
    Raises UnsupportedError naming the key where the section is no object, or a number in it no number.
    """
    for keys in _places(config, source):
        for name in QUANTIZATION_SECTIONS:
            section = keys.child(name)
            if section is not None:
                return _label(section, is_mlx=name == "quantization")[:80]
    return None


def without_quantization(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the config without the sections that say how it is quantized, at the top and in its text_config."""
    plain = {key: value for key, value in config.items() if key not in QUANTIZATION_SECTIONS}
    if isinstance(text := plain.get("text_config"), Mapping):
        plain["text_config"] = {key: value for key, value in text.items() if key not in QUANTIZATION_SECTIONS}
    return plain


def _places(config: Mapping[str, Any], source: str) -> list[KeyReader]:
    top = KeyReader(config, source=source)
    text = top.child("text_config")
    return [top] if text is None else [top, text]


def _label(section: KeyReader, *, is_mlx: bool) -> str:
    method = section.text("quant_method")
    if method is None:
        # MLX writes its section under two names and names its method in neither; some compressed-tensors do not either.
        if section.has("config_groups"):
            method = "compressed-tensors"
        elif is_mlx or (section.has("bits") and section.has("group_size")):
            method = "mlx"
        else:
            return "not named"
    lowered = method.lower()
    if lowered in ("compressed-tensors", "sparseml"):
        return _compressed_tensors_label(section) or method
    if lowered.startswith("modelopt"):
        return _modelopt_label(section, lowered) or method
    if lowered == "mlx":
        return _mlx_label(section)
    if lowered == "bitsandbytes":
        if section.flag("load_in_8bit", False):
            return "int8"
        return section.text("bnb_4bit_quant_type", "fp4") or method
    if lowered in ("awq", "gptq"):
        bits = section.integer("bits", 4, maximum=64)
        return lowered if bits == 4 else f"{lowered}-{bits}bit"
    return "fp8" if lowered in _FP8_METHODS else method


def _compressed_tensors_label(section: KeyReader) -> str | None:
    """Return the one label of all groups; None where they differ, or where it has none."""
    groups = section.child("config_groups")
    labels = set()
    stored = section.text("format")
    for group in () if groups is None else map(groups.child, groups.names()):
        if group is not None:
            # Where groups are stored in different formats, each names its own.
            labels.add(_group_label(group.text("format") or stored, group.child("weights")))
    if not labels:
        labels.add(_group_label(stored, None))
    return labels.pop() if len(labels) == 1 else None


def _group_label(stored: str | None, weights: KeyReader | None) -> str | None:
    bits = None if weights is None else weights.optional_integer("num_bits", maximum=64)
    if stored == "nvfp4-pack-quantized":
        return "nvfp4"
    if stored == "mxfp4-pack-quantized":
        return "mxfp4"
    if stored == "float-quantized":
        return "fp8" if bits in (None, 8) else None
    if stored == "int-quantized":
        return "int8" if bits in (None, 8) else None
    if stored == "naive-quantized" and bits == 8 and weights is not None:
        return {"float": "fp8", "int": "int8"}.get(weights.text("type") or "")
    if stored == "pack-quantized" and weights is not None and bits is not None:
        group_size = weights.optional_integer("group_size")
        group = "" if group_size == _PACKED_GROUP_SIZE else f"-g{group_size}" if group_size else "-channel"
        return f"w{bits}a16{group}"
    return None


def _modelopt_label(section: KeyReader, method: str) -> str | None:
    """Return the label of ModelOpt's algorithm, which stands in the section, below it, or in the method's name."""
    below = section.child("quantization")
    algorithm = section.text("quant_algo") or (below and below.text("quant_algo"))
    if not algorithm:
        algorithm = {"modelopt_fp4": "nvfp4", "modelopt_mxfp8": "mxfp8"}.get(method, "")
    return _MODELOPT_ALGORITHMS.get(algorithm.lower())


def _mlx_label(section: KeyReader) -> str:
    bits = section.integer("bits", 4, maximum=64)
    group_size = section.integer("group_size", _MLX_GROUP_SIZE)
    mode = section.text("mode", "affine")
    if mode != "affine":
        return f"mlx-{mode}"
    return f"mlx-{bits}bit" + ("" if group_size == _MLX_GROUP_SIZE else f"-g{group_size}")
