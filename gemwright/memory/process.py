"""What a process of the engine takes beside the plan: the interpreter and its libraries, a tokenizer, the pool's books.

Measured once (docs/log.md); a calibration of the machine takes the first number's place.
"""

from __future__ import annotations

RUNTIME_BYTES = 245 << 20
"""Resident set of Python with torch 2.13 for CPUs and our modules, before a model."""

RUNTIME_ERROR_BYTES = 64 << 20

NATIVE_RUNTIME_BYTES = 48 << 20
"""The same with the native kernels in torch's place."""

NATIVE_RUNTIME_ERROR_BYTES = 24 << 20

VOCABULARY_ENTRY_BYTES = 320
"""What a tokenizer holds for each entry of its vocabulary, on the 262,144 of Gemma 3."""

BLOCK_RECORD_BYTES = 300
"""What the block pool holds for a K/V block that has content: its number, references and keys, as Python objects."""


def beside_bytes(vocab_size: int, num_blocks: int) -> int:
    """Return what a tokenizer and the books of so many blocks take."""
    return vocab_size * VOCABULARY_ENTRY_BYTES + num_blocks * BLOCK_RECORD_BYTES
