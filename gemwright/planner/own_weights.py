"""What our own engine reads of stored weights, and how it holds them: in which dtype, form and encodings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from gemwright.errors import UnsupportedError
from gemwright.memory.dtypes import ComputeDtype
from gemwright.memory.holding import Holding, expected_holding
from gemwright.planner.kept import Kept
from gemwright.planner.ledger import Place
from gemwright.planner.quantization import (
    FLOAT_BITS,
    RECIPES,
    Layout,
    Recipe,
    find_embedding_type,
    find_recipe,
    fitting_type,
    list_stored_tensors,
)
from gemwright.planner.settings import PlanSettings
from gemwright.spec.model_header import ModelHeader
from gemwright.spec.weights import list_tensors


@dataclass(frozen=True, slots=True)
class StoredEncodings:
    """How the tensors of spec.weights are stored, as far as a backend may keep them so."""

    by_name: Mapping[str, str] = field(default_factory=dict)
    """By name of spec.weights; what is not there is a float, which is held in the engine's dtype."""
    recipe: Recipe | None = None
    """Where no header was read: what they follow from."""

    def describe(self, header: ModelHeader) -> str:
        """Return where they stand, for people."""
        if self.recipe is not None:
            return f"recipe {self.recipe.name}"
        return "config.json" if header.format == "config" else f"header of {header.name}"


def engine_place(settings: PlanSettings) -> Place:
    """Return where our engine's weights and cache lie."""
    return "gpu" if settings.device is not None and settings.device.kind == "gpu" else "ram"


def engine_holding(settings: PlanSettings) -> Holding:
    """Return how the backend that our engine would compute with holds a model."""
    return expected_holding(settings.kernels, "cuda" if engine_place(settings) == "gpu" else "cpu")


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
        kind = find_embedding_type(settings.embedding_quantization, layout).name
        if kind not in _READABLE | FLOAT_BITS.keys():
            raise UnsupportedError(
                "Gemwright does not read embeddings that are stored so",
                value=settings.embedding_quantization,
                limit=", ".join(sorted(_READABLE | FLOAT_BITS.keys())),
                remedy="change --embedding-quantization, or plan for --engine vllm or llama.cpp",
            )


_KEPT: Final[Kept[StoredEncodings]] = Kept()


def stored_encodings(header: ModelHeader, settings: PlanSettings) -> StoredEncodings:
    """Return how the weights that our engine is asked to load are stored, tensor by tensor: from a header where it is
    the file's own, else from the recipe that is named. `check_reads` has refused what it does not read."""
    asked = (settings.quantization, settings.embedding_quantization)
    return _KEPT.find(header, asked, lambda: _find_encodings(header, settings))


def _find_encodings(header: ModelHeader, settings: PlanSettings) -> StoredEncodings:
    name = settings.quantization or (header.quantization if header.tensors is None else None)
    recipe = None if name is None else find_recipe(name)
    if recipe is not None and "gguf" in recipe.layouts and not recipe.is_float:
        stored = list_stored_tensors(header.spec, recipe, "gguf")
        found = {tensor.name: wanted.encoding for tensor, wanted in zip(list_tensors(header.spec), stored, strict=True)}
    elif name is None and header.format == "gguf":
        found, recipe = _header_encodings(header), None
    else:
        return StoredEncodings()
    if settings.embedding_quantization is not None:
        kind = find_embedding_type(settings.embedding_quantization, "gguf").name
        tables = (tensor for tensor in list_tensors(header.spec) if tensor.role == "embedding")
        found |= {table.name: fitting_type(kind, table.shape[-1]).name for table in tables}
    return StoredEncodings(found, recipe)


def _header_encodings(header: ModelHeader) -> dict[str, str]:
    """Return the encodings of a GGUF file; stacked tensors of different ones come out as float32."""
    stored = {tensor.name: tensor.encoding for tensor in header.tensors or ()}
    found = {}
    for tensor in list_tensors(header.spec):
        names = next(names for names in tensor.gguf if all(name in stored for name in names))
        encodings = {stored[name] for name in names}
        found[tensor.name] = encodings.pop() if len(encodings) == 1 else "float32"
    return found
