"""How numbers are stored in weight files: block sizes, decoding to float32, and where a non-finite value can hide.

Refuses to know about files and tensor names. Sizes of GGML types follow ggml's block structs; the value of a
quantized weight is defined by the `gguf` package's dequantizers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class Encoding:
    """One way to store numbers: `block_bytes` bytes hold `block_elements` neighbors of the last axis."""

    name: str
    """Lower-case name, such as "bfloat16" or "q4_0"."""
    block_elements: int
    block_bytes: int
    ggml_type: int | None = None
    """ggml's number of the type, where it has one."""
    scale_offsets: tuple[int, ...] = ()
    """Offsets of the float16 scales inside a block. All else in a block is a small integer, so a value is finite
    exactly when these are."""
    readable: bool = False
    """Whether rows can be decoded to float32 here and may be weights."""
    index: bool = False
    """Whether it holds integers that may be indices, which decode here but are no weights."""

    def num_bytes(self, num_elements: int) -> int:
        """Return the bytes of `num_elements` (a multiple of block_elements) stored elements."""
        return num_elements // self.block_elements * self.block_bytes


FLOAT32 = Encoding("float32", 1, 4, ggml_type=0, readable=True)
FLOAT16 = Encoding("float16", 1, 2, ggml_type=1, readable=True)
BFLOAT16 = Encoding("bfloat16", 1, 2, ggml_type=30, readable=True)
INT32 = Encoding("int32", 1, 4, ggml_type=26, index=True)
INT64 = Encoding("int64", 1, 8, ggml_type=27, index=True)

_QUANTIZED = (
    Encoding("q4_0", 32, 18, 2, (0,), True),
    Encoding("q4_1", 32, 20, 3, (0, 2), True),
    Encoding("q5_0", 32, 22, 6, (0,), True),
    Encoding("q5_1", 32, 24, 7, (0, 2), True),
    Encoding("q8_0", 32, 34, 8, (0,), True),
    Encoding("q2_k", 256, 84, 10, (80, 82), True),
    Encoding("q3_k", 256, 110, 11, (108,), True),
    Encoding("q4_k", 256, 144, 12, (0, 2), True),
    Encoding("q5_k", 256, 176, 13, (0, 2), True),
    Encoding("q6_k", 256, 210, 14, (208,), True),
)

# Known by size, so that a file that holds them can be opened, and refused by name when they are wanted.
_REFUSED_GGML = tuple(
    Encoding(name, elements, size_bytes, number)
    for number, name, elements, size_bytes in (
        (15, "q8_k", 256, 292),
        (16, "iq2_xxs", 256, 66),
        (17, "iq2_xs", 256, 74),
        (18, "iq3_xxs", 256, 98),
        (19, "iq1_s", 256, 50),
        (20, "iq4_nl", 32, 18),
        (21, "iq3_s", 256, 110),
        (22, "iq2_s", 256, 82),
        (23, "iq4_xs", 256, 136),
        (24, "int8", 1, 1),
        (25, "int16", 1, 2),
        (28, "float64", 1, 8),
        (29, "iq1_m", 256, 56),
        (34, "tq1_0", 256, 54),
        (35, "tq2_0", 256, 66),
        (39, "mxfp4", 32, 17),
        (40, "nvfp4", 64, 36),
        (41, "q1_0", 128, 18),
    )
)

GGML_ENCODINGS: dict[int, Encoding] = {
    encoding.ggml_type: encoding
    for encoding in (FLOAT32, FLOAT16, BFLOAT16, INT32, INT64, *_QUANTIZED, *_REFUSED_GGML)
    if encoding.ggml_type is not None
}

SAFETENSORS_ENCODINGS: dict[str, Encoding] = {
    "F32": FLOAT32,
    "F16": FLOAT16,
    "BF16": BFLOAT16,
    "F64": Encoding("float64", 1, 8),
    "C64": Encoding("complex64", 1, 8),
    "I64": INT64,
    "U64": Encoding("uint64", 1, 8),
    "I32": INT32,
    "U32": Encoding("uint32", 1, 4),
    "I16": Encoding("int16", 1, 2),
    "U16": Encoding("uint16", 1, 2),
    "I8": Encoding("int8", 1, 1),
    "U8": Encoding("uint8", 1, 1),
    "BOOL": Encoding("bool", 1, 1),
    "F8_E4M3": Encoding("float8_e4m3", 1, 1),
    "F8_E5M2": Encoding("float8_e5m2", 1, 1),
    "F8_E4M3FNUZ": Encoding("float8_e4m3fnuz", 1, 1),
    "F8_E5M2FNUZ": Encoding("float8_e5m2fnuz", 1, 1),
    "F8_E8M0": Encoding("float8_e8m0", 1, 1),
    "F6_E2M3": Encoding("float6_e2m3", 4, 3),
    "F6_E3M2": Encoding("float6_e3m2", 4, 3),
    "F4": Encoding("float4", 2, 1),
}

READABLE_NAMES = tuple(encoding.name for encoding in (FLOAT32, FLOAT16, BFLOAT16, *_QUANTIZED))


def decode(encoding: Encoding, stored: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Decode stored rows, uint8 [rows, row bytes], to a new float32 array [rows, elements]; never raises on values."""
    import numpy as np

    if encoding is FLOAT32:
        return stored.view("<f4").astype(np.float32)
    if encoding is FLOAT16:
        return stored.view("<f2").astype(np.float32)
    if encoding is BFLOAT16:
        words = stored.view("<u2").astype(np.uint32)
        words <<= 16
        return words.view(np.float32)
    if encoding.index:
        return stored.view(f"<i{encoding.block_bytes}").astype(np.float32)
    # Importing the package costs about 0.1 s, which a start without GGUF need not pay.
    from gguf.constants import GGMLQuantizationType
    from gguf.quants import dequantize

    assert encoding.ggml_type is not None
    with np.errstate(all="ignore"):
        values = dequantize(np.ascontiguousarray(stored), GGMLQuantizationType(encoding.ggml_type))
    return np.asarray(values, dtype=np.float32)


def first_non_finite_row(encoding: Encoding, stored: NDArray[np.uint8]) -> int | None:
    """Return the first row of uint8 [rows, row bytes] that would decode to an infinity or NaN, or None."""
    import numpy as np

    if encoding.index:
        return None
    if encoding is FLOAT32:
        bad = ~np.isfinite(stored.view("<f4"))
    elif encoding is FLOAT16:
        bad = (stored.view("<u2") & 0x7C00) == 0x7C00
    elif encoding is BFLOAT16:
        bad = (stored.view("<u2") & 0x7F80) == 0x7F80
    else:
        blocks = stored.reshape(stored.shape[0], -1, encoding.block_bytes)
        bad = np.zeros(blocks.shape[:2], dtype=np.bool_)
        for offset in encoding.scale_offsets:
            high_bytes = blocks[:, :, offset + 1]
            bad |= (high_bytes & 0x7C) == 0x7C
    if not bad.any():
        return None
    return int(bad.any(axis=1).argmax())
