"""Whether a GGUF model can be run, from the first bytes of its file and its quantization's name.

What cannot be seen there is left to the loader, which reads the whole header.
"""

from __future__ import annotations

import struct

from gemwright.errors import CheckpointError, UnsupportedError
from gemwright.spec.families.gguf import ARCHITECTURES
from gemwright.spec.families.refused import refuse_type

BEGINNING_BYTES = 16384

_KEY = b"general.architecture"
_MAGIC = b"GGUF"
_KEYS_BEGIN = 4 + 4 + 8 + 8
_STRING = 8
_SCALAR_BYTES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
_UNREAD_LABELS = ("IQ", "TQ", "MXFP", "NVFP", "Q1_")


def check_beginning(beginning: bytes, label: str | None, source: str) -> None:
    """Refuse a GGUF model whose architecture or quantization cannot be run.

    Raises UnsupportedError for these, CheckpointError for a file that is no GGUF at all.
    """
    architecture = read_architecture(beginning, source)
    if architecture is not None and architecture not in ARCHITECTURES:
        raise refuse_type(source, "general.architecture", architecture, ARCHITECTURES)
    if (label or "").removeprefix("UD-").startswith(_UNREAD_LABELS):
        raise UnsupportedError(
            f"{source}: weights of this quantization cannot be read",
            value=label,
            limit="F32, F16, BF16, Q8_0, Q4_0 to Q5_1, Q2_K to Q6_K",
            remedy="name another GGUF model of the repository",
        )


def read_architecture(beginning: bytes, source: str) -> str | None:
    """Return what the beginning of a GGUF file calls its architecture, None where it does not come to that.

    Writers put this key first. Raises CheckpointError for bytes that are no GGUF.
    """
    if not beginning.startswith(_MAGIC):
        raise CheckpointError(f"{source}: not a GGUF file", value=beginning[:4], limit=_MAGIC)
    position = _KEYS_BEGIN
    try:
        while True:
            key, position = _text(beginning, position)
            (kind,) = struct.unpack_from("<I", beginning, position)
            position += 4
            if kind == _STRING:
                value, position = _text(beginning, position)
                if key == _KEY:
                    return value.decode("utf-8", errors="replace")
            else:
                position += _SCALAR_BYTES[kind]
    except (struct.error, KeyError):  # the end of what we have, or an array, over which nobody skips without reading
        return None


def _text(content: bytes, begin: int) -> tuple[bytes, int]:
    (length,) = struct.unpack_from("<Q", content, begin)
    end = begin + 8 + length
    if end > len(content):
        raise struct.error
    return content[begin + 8 : end], end
