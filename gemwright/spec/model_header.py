"""What is known of a model before any of its weights is read: its spec and, where a header was seen, what it stores.

Refuses to know where files lie and how they are fetched.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from gemwright.spec.model_spec import ModelSpec


@dataclass(frozen=True, slots=True)
class HeaderTensor:
    """One stored tensor, as the header of its file lists it."""

    name: str
    """Its name in the file, with whatever prefix it has there."""
    shape: tuple[int, ...]
    """As stored: packed formats have fewer columns than weights. Rows first, in GGUF files too."""
    encoding: str
    """Lower-case name, such as "bfloat16", "int32" or "q4_k"."""
    size_bytes: int


@dataclass(frozen=True, slots=True)
class ModelHeader:
    """A model as its headers tell it."""

    name: str
    """What the user called it."""
    spec: ModelSpec
    format: Literal["safetensors", "gguf", "config"]
    """"config": config.json alone, so that nothing is known of what is stored."""
    origin: Literal["hub", "cache", "folder", "file", "published"]
    """"published": the table of published configs that comes with Gemwright."""
    tensors: tuple[HeaderTensor, ...] | None = None
    """Every stored tensor, over all files of the model; None where no header was read."""
    quantization: str | None = None
    """Which named variant it is, such as "q4_0", "q4_k_m", "w4a16" or "nvfp4"; None: not quantized, or not known."""
    notes: tuple[str, ...] = ()
    """What a user should know of where this comes from, one sentence each."""
    embedding_quantization: str | None = None
    """Where the variant is known to store its embedding tables otherwise than its other matrices."""
    has_unused_tensors: bool = True
    """Whether its files may hold the tensors of spec.weights.list_unused_tensors, where no header was read."""
    left_over: frozenset[str] = frozenset()
    """Names of those of `tensors` that no layer of the model uses; empty where quantization renames its tensors."""
    is_default: bool = False
    """Whether it is the model that is meant where none is named; its name is not one that can be asked for."""
