"""The matrix kernels of every level that runs here: the values of stored codes, their products, and the row law."""

from __future__ import annotations

import subprocess
from pathlib import Path

import numpy as np
import pytest
from gguf.constants import GGMLQuantizationType
from gguf.quants import dequantize

from gemwright.loading.encodings import GGML_ENCODINGS
from tests.kernels.conftest import Build

ENCODINGS = {encoding.name: encoding for encoding in GGML_ENCODINGS.values() if encoding.readable}
QUANTIZED = ("q4_0", "q4_1", "q5_0", "q5_1", "q8_0", "q4_k", "q5_k", "q6_k")

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def probe(build: Build) -> Path:
    return build("linear_probe")


def stored_rows(name: str, outputs: int, inputs: int, generator: np.random.Generator) -> np.ndarray:
    """Random blocks whose float16 scales are of a weight's size, some of them subnormal."""
    encoding = ENCODINGS[name]
    if name == "float32":
        return generator.normal(0, 0.05, (outputs, inputs)).astype(np.float32).view(np.uint8)
    if name == "bfloat16":
        wide = generator.normal(0, 0.05, (outputs, inputs)).astype(np.float32)
        return (wide.view(np.uint32) >> 16).astype(np.uint16).view(np.uint8)
    blocks = generator.integers(0, 256, (outputs, inputs // encoding.block_elements, encoding.block_bytes), np.uint8)
    for offset in encoding.scale_offsets:
        scales = generator.normal(0, 0.01, blocks.shape[:2]).astype(np.float16)
        scales[generator.random(scales.shape) < 0.02] = np.float16(3e-6)
        blocks[:, :, offset : offset + 2] = scales[..., None].view(np.uint8)
    return blocks.reshape(outputs, -1)


@pytest.mark.parametrize("rows", [1, 2, 3, 4, 5, 17, 70])
@pytest.mark.parametrize("outputs", [1, 33, 90])
@pytest.mark.parametrize("name", [*QUANTIZED, "float32", "bfloat16"])
def test_products(probe: Path, name: str, outputs: int, rows: int) -> None:
    generator = np.random.default_rng()
    quantized = name in QUANTIZED
    widths = (256, 768) if name.endswith("_k") else (32, 640, 1152) if quantized else (12, 40, 90, 705)
    inputs = int(generator.choice(widths))
    stored = stored_rows(name, outputs, inputs, generator)
    x = generator.normal(0, 1, (rows, inputs)).astype(np.float32)
    x[:, 0] *= 30
    if rows > 1:
        x[1] = 0
    done = subprocess.run(
        [probe, name, str(outputs), str(inputs), str(rows)],
        input=stored.tobytes() + x.tobytes(), capture_output=True, check=True, timeout=60,
    )  # fmt: skip
    found = np.frombuffer(done.stdout, np.float32)
    size_of_a_level = outputs * inputs + 2 * rows * outputs * (2 if quantized else 1)
    assert len(found) % size_of_a_level == 0
    if name == "float32":
        expected = stored.view(np.float32)
    elif name == "bfloat16":
        expected = (stored.view(np.uint16).astype(np.uint32) << 16).view(np.float32)
    else:
        expected = dequantize(stored, GGMLQuantizationType(ENCODINGS[name].ggml_type))
    exact = x.astype(np.float64) @ expected.astype(np.float64).T
    size = np.abs(x.astype(np.float64)) @ np.abs(expected.astype(np.float64)).T + 1e-30
    levels = found.reshape(-1, size_of_a_level)
    assert len(levels) >= 1
    integers = []
    for level in levels:
        values, level = np.split(level, [outputs * inputs])
        assert np.array_equal(values.reshape(outputs, inputs), expected)
        if quantized:
            integers.append(level[: rows * outputs])
            # A row is rounded to 1/65534 of its largest number; its error is at most half of that a weight.
            bound = np.abs(x).max(axis=1, keepdims=True) / 65534 * np.abs(expected.astype(np.float64)).sum(axis=1)
            error = np.abs(integers[-1].reshape(rows, outputs) - exact)
            assert (error <= 1.01 * bound + 1e-5 * size).all()
            alone = level[rows * outputs : 2 * rows * outputs]
            assert np.array_equal(alone, integers[-1])
            level = level[2 * rows * outputs :]
        together, alone = level.reshape(2, rows, outputs)
        assert (np.abs(together - exact) / size).max() < 2e-6
        assert np.array_equal(together, alone)
    for other in integers[1:]:
        assert np.array_equal(other, integers[0]), "16-bit activations give the same bits on every level"
