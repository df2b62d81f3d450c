"""What our own engine reads of stored weights, and the dtype that it computes and holds them in."""

from __future__ import annotations

from typing import Final

from gemwright.errors import UnsupportedError
from gemwright.memory.dtypes import ComputeDtype
from gemwright.planner.quantization import FLOAT_BITS, RECIPES, Layout, find_embedding_type, find_recipe
from gemwright.planner.settings import PlanSettings
from gemwright.spec.model_header import ModelHeader

_READABLE: Final = frozenset({"q4_0", "q4_1", "q5_0", "q5_1", "q8_0", "q2_k", "q3_k", "q4_k", "q5_k", "q6_k"})


def engine_dtype(header: ModelHeader, settings: PlanSettings) -> ComputeDtype:
    """Return what our engine computes in: as asked, else float32 for float32 checkpoints, bfloat16 for all others.

    Raises UnsupportedError for what it does not compute in.
    """
    if settings.dtype == "float32" or (
        settings.dtype == "auto" and header.format != "gguf" and header.spec.stored_dtype == "float32"
    ):
        return "float32"
    if settings.dtype in ("auto", "bfloat16"):
        return "bfloat16"
    raise UnsupportedError(
        "Gemwright does not compute in this dtype",
        value=settings.dtype,
        limit="auto, float32, bfloat16",
        remedy="use --dtype bfloat16 or float32",
    )


def check_reads(header: ModelHeader, settings: PlanSettings) -> None:
    """Raise UnsupportedError for weights that are stored, or asked for, in a way that our engine does not read."""
    layout: Layout = "gguf" if header.format == "gguf" else "safetensors"
    name = settings.quantization
    if name is None and (header.tensors is None or header.format == "safetensors"):
        name = header.quantization
    if name is not None:
        recipe = find_recipe(name)
        if not recipe.is_float and recipe.base not in _READABLE:
            raise UnsupportedError(
                "Gemwright does not read weights that are stored so",
                value=name,
                limit=", ".join(known.name for known in RECIPES.values() if known.is_float or known.base in _READABLE),
                remedy="plan for --engine vllm or llama.cpp, or take another file",
            )
    elif header.format == "gguf" and header.tensors is not None:
        readable = _READABLE | FLOAT_BITS.keys()
        odd = sorted({tensor.encoding for tensor in header.tensors} - readable)
        if odd:
            raise UnsupportedError(
                f"{header.name}: Gemwright does not read weights that are stored so",
                value=", ".join(odd),
                limit=", ".join(sorted(readable)),
                remedy="plan for --engine llama.cpp, or take another file",
            )
    if settings.embedding_quantization is not None:
        if name is not None and "gguf" in find_recipe(name).layouts:
            layout = "gguf"
        find_embedding_type(settings.embedding_quantization, layout)
