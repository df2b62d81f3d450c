"""Writes tiny random checkpoints as published ones look: config.json, model.safetensors, tokenizer.json.

Built from the same tensor list as the loader reads, with numpy and nothing else.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gemwright.spec.families import read_config
from gemwright.spec.model_spec import ModelSpec
from gemwright.spec.weights import TensorSpec, list_tensors, list_unused_tensors
from gemwright.testing.tiny_configs import TINY_CONFIGS
from gemwright.testing.tokenizer_files import write_byte_tokenizer

_CODES = {"float32": "F32", "bfloat16": "BF16", "float16": "F16"}
"""What a safetensors header calls each dtype."""


def write_tiny_checkpoint(
    name: str,
    folder: str | Path,
    *,
    seed: int = 0,
    dtype: str = "float32",
    prefix: str = "model.",
    with_unused: bool = False,
    overrides: Mapping[str, Any] | None = None,
    tokenizer_family: str = "gemma4",
) -> Path:
    """Write the tiny Gemma `name` of TINY_CONFIGS into `folder` (created if missing) and return the folder.

    `dtype` is "float32", "bfloat16" or "float16"; `prefix` is put before the language model's tensor names;
    `with_unused` adds the dead K/V tensors that some published files hold; `overrides` replaces fields of the config.
    `tokenizer_family` says whose control words its tokenizer has, "gemma2", "gemma3" or "gemma4".
    """
    if name not in TINY_CONFIGS:
        raise ValueError(f"no tiny Gemma is called {name!r}; there are {', '.join(TINY_CONFIGS)}")
    config = {**TINY_CONFIGS[name], **(overrides or {})}
    config.pop("torch_dtype", None)
    config["dtype"] = dtype
    spec = read_config(config)
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config, indent=2))
    tensors = {
        ("" if tensor.at_root else prefix) + tensor.safetensors: values
        for tensor, values in random_tensors(spec, seed).items()
    }
    if with_unused:
        generator = np.random.default_rng(seed + 1)
        for unused in list_unused_tensors(spec):
            tensors[prefix + unused.safetensors] = generator.standard_normal(unused.shape, dtype=np.float32)
    write_safetensors(folder / "model.safetensors", tensors, dtype)
    write_byte_tokenizer(folder, spec.vocab_size, tokenizer_family)
    return folder


def random_tensors(spec: ModelSpec, seed: int) -> dict[TensorSpec, NDArray[np.float32]]:
    """Return random values for every tensor, scaled so that a forward pass neither dies out nor blows up."""
    generator = np.random.default_rng(seed)
    values: dict[TensorSpec, NDArray[np.float32]] = {}
    for tensor in list_tensors(spec):
        normal = generator.standard_normal(tensor.shape, dtype=np.float32)
        if tensor.role == "norm":
            values[tensor] = 1.0 - spec.norm_weight_offset + 0.2 * normal
        elif tensor.role == "vector":
            values[tensor] = 1.0 + 0.1 * normal
        elif tensor.role == "embedding":
            values[tensor] = 0.5 * normal
        else:
            values[tensor] = normal * np.float32(1.2 * tensor.shape[-1] ** -0.5)
    return values


def write_safetensors(path: Path, tensors: Mapping[str, NDArray[np.float32]], dtype: str = "float32") -> None:
    """Write a safetensors file with all tensors in one dtype: "float32", or "bfloat16" or "float16" (rounded to nearest
    even)."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    parts: list[bytes] = []
    offset = 0
    for name, values in tensors.items():
        data = encode(values, dtype)
        header[name] = {
            "dtype": _CODES[dtype],
            "shape": list(values.shape),
            "data_offsets": [offset, offset + len(data)],
        }
        offset += len(data)
        parts.append(data)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(len(text).to_bytes(8, "little") + text + b"".join(parts))


def encode(values: NDArray[np.float32], dtype: str) -> bytes:
    """Return the bytes of values as "float32", "bfloat16" or "float16"; raises ValueError for another dtype."""
    if dtype not in _CODES:
        raise ValueError(f"dtype {dtype!r} is none of {', '.join(_CODES)}")
    if dtype != "bfloat16":
        return values.astype("<f4" if dtype == "float32" else "<f2").tobytes()
    bits = np.ascontiguousarray(values, dtype="<f4").view("<u4").astype(np.uint64)
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
    return rounded.astype("<u2").tobytes()
