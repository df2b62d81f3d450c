"""What a model's weights take, part by part: exactly from a header, else from a named recipe.

Whole models, before any split over devices. Which tensors an engine loads is decided here; how a type stores them is in
planner.quantization.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from math import prod
from typing import Final

from gemwright.errors import UnsupportedError
from gemwright.planner.kept import Kept
from gemwright.planner.own_weights import check_reads, engine_dtype, engine_holding, stored_encodings
from gemwright.planner.quantization import (
    FLOAT_BITS,
    RECIPES,
    TENSOR_TYPES,
    Layout,
    Recipe,
    find_embedding_type,
    find_recipe,
    fitting_type,
    list_gguf_towers,
    list_stored_tensors,
    unused_bytes,
)
from gemwright.planner.settings import PlanSettings
from gemwright.planner.weight_names import WEIGHT_NAMES, PartNames, WeightName
from gemwright.spec.model_header import HeaderTensor, ModelHeader
from gemwright.spec.model_spec import ModelSpec
from gemwright.spec.weights import count_all_parameters, count_parameters, is_buffer, list_tensors, list_unused_tensors


@dataclass(frozen=True, slots=True)
class WeightPart:
    """One part of a model's weights.

    "per-layer embedding" is the table alone, from which a step gathers rows; its projections stand with the layers, as
    routers do. "norms" are all small vectors.
    """

    name: WeightName
    num_parameters: int
    size_bytes: int
    formula: str
    """Such as "262144 x 640 x 2 B" or "197 tensors of the header"."""
    source: str
    """Where its numbers stand: "config.json", "header of model.safetensors", "recipe q4_k_m"."""
    error_bytes: int = 0
    """How far off the size may be: 0 from a header, a share of it from a recipe."""


@dataclass(frozen=True, slots=True)
class StoredFile:
    """What a model's files take on disk, which is what a download costs."""

    size_bytes: int
    formula: str
    source: str
    error_bytes: int


_TOWER_PARTS: Final[tuple[WeightName, ...]] = ("vision", "audio", "projector")
_TOKENIZER_BYTES: Final[Mapping[Layout, tuple[int, int]]] = {"gguf": (25, 5), "safetensors": (130, 20)}
"""Bytes an id of what stands beside the tensors, and how far off: metadata of GGUF files takes 23.7 to 24.9
(Gemma 2 9B, Gemma 3 270M), tokenizer.json of Gemma 3 and 4 with or without tokenizer.model 125 to 145."""


_KEPT: Final[Kept[tuple[WeightPart, ...]]] = Kept()


def weigh(header: ModelHeader, settings: PlanSettings) -> tuple[WeightPart, ...]:
    """Return what the engine that `settings` name loads of a model, part by part, each part once.

    Gemwright holds the language model in its own dtype, whatever the file's, and with native kernels what is quantized
    as it is. llama.cpp and Ollama hold a GGUF file as it is, its towers and K/V that no layer uses apart; vLLM holds
    these too. A header's sizes are exact; where there is none, or `settings.quantization` asks for what the file is
    not, a recipe gives them. Raises UnsupportedError for unknown quantizations (with those that are known), and for
    files that the engine does not load.
    """
    chosen = (settings.engine, settings.dtype, engine_holding(settings).name)
    asked = (settings.quantization, settings.embedding_quantization, settings.language_model_only)
    return _KEPT.find(header, (*chosen, *asked), lambda: _weigh(header, settings))


def _weigh(header: ModelHeader, settings: PlanSettings) -> tuple[WeightPart, ...]:
    if settings.engine == "gemwright":
        return _weigh_gemwright(header, settings)
    layout, tensors, source, recipe = _file(header, settings)
    _refuse_dtype(header, settings, recipe)
    loads_towers = settings.engine == "vllm" and not settings.language_model_only
    # Ollama's own files hold the vision tower, and it loads it; llama.cpp's main program leaves it out.
    loads_towers = loads_towers or settings.engine == "ollama"
    left: tuple[WeightName, ...] = () if loads_towers else _TOWER_PARTS
    if settings.engine in ("llama.cpp", "ollama"):
        left += ("unused",)  # what no layer asks for stays in the file
    parts = _sum_parts(header.spec, tensors, source, recipe, layout, header.left_over)
    loaded = tuple(part for part in parts if part.name not in left)
    if recipe is None or "unused" in left or not header.has_unused_tensors:
        return loaded
    if _holds_unused(header, settings, recipe, layout):
        return loaded
    room = unused_bytes(header.spec, recipe)
    return tuple(
        replace(part, error_bytes=part.error_bytes + room) if part.name == "layers" else part for part in loaded
    )


def weigh_drafter(drafter: ModelHeader, settings: PlanSettings) -> WeightPart:
    """Return what a drafter's own weights take beside its target's, as one part. Raises as `weigh` does.

    A drafter is stored in its own dtype whatever the target's quantization, so that setting is not read.
    """
    parts = weigh(drafter, replace(settings, quantization=None, embedding_quantization=None))
    return WeightPart(
        "drafter",
        sum(part.num_parameters for part in parts),
        sum(part.size_bytes for part in parts),
        " + ".join(part.formula for part in parts if part.size_bytes >= 1 << 20) or "its tensors",
        parts[0].source,
        sum(part.error_bytes for part in parts),
    )


def stored_file(header: ModelHeader, settings: PlanSettings) -> StoredFile:
    """Return what the model's files take on disk, tokenizer included. Raises UnsupportedError as `weigh` does.

    A header's tensors are exact; what stands beside them (metadata, tokenizer) is estimated from the vocabulary. Where
    no header was read, K/V projections that no layer uses may be in the file: the error bar has room for them, unless
    they are known to be there.
    """
    layout, tensors, source, recipe = _file(header, settings)
    tensor_bytes = sum(tensor.size_bytes for tensor in tensors)
    size, error = _TOKENIZER_BYTES[layout]
    num_ids = header.spec.vocab_size
    error_bytes = num_ids * error
    if recipe is not None:
        error_bytes += round(tensor_bytes * recipe.error_share)
        if header.has_unused_tensors and not _holds_unused(header, settings, recipe, layout):
            error_bytes += unused_bytes(header.spec, recipe)
    formula = f"{len(tensors)} tensors + tokenizer of {num_ids} ids x {size} B"
    return StoredFile(tensor_bytes + num_ids * size, formula, source, error_bytes)


def stored_bytes(header: ModelHeader, settings: PlanSettings) -> int:
    """Return the bytes of `stored_file`."""
    return stored_file(header, settings).size_bytes


def num_parameters(spec: ModelSpec) -> int:
    """Return the parameters as the reference class holds them: towers included, a tied head once, unused ones apart."""
    return count_all_parameters(spec).num_parameters


def num_language_parameters(spec: ModelSpec) -> int:
    """Return the parameters of the language model alone."""
    return count_parameters(list_tensors(spec))


def lora_bytes(spec: ModelSpec, rank: int, dtype: str = "bfloat16") -> tuple[int, str]:
    """Return the bytes of one adapter on every linear of attention and feed-forward, and how they come about.

    A weight [out, in] gets A [rank, in] and B [out, rank]. Layers that read another's K/V have no key and value
    projections, and where K equals V there is one for both; experts and per-layer inputs get none.
    """
    kinds = {"query", "key", "value", "attention_output", "gate", "up", "down"}
    adapted = [
        tensor for tensor in list_tensors(spec) if tensor.role == "linear" and tensor.name.rpartition(".")[2] in kinds
    ]
    num_values = rank * sum(sum(tensor.shape) for tensor in adapted)
    size = FLOAT_BITS[dtype] // 8
    widths = num_values // rank
    return num_values * size, f"{len(adapted)} linears, rank {rank} x {widths} inputs and outputs x {size} B"


def _weigh_gemwright(header: ModelHeader, settings: PlanSettings) -> tuple[WeightPart, ...]:
    dtype, holding = engine_dtype(header, settings), engine_holding(settings)
    check_reads(header, settings)
    stored = stored_encodings(header, settings)
    held = [
        (tensor, holding.held(tensor, stored.by_name.get(tensor.name), dtype)) for tensor in list_tensors(header.spec)
    ]
    tensors = tuple(
        HeaderTensor(tensor.safetensors, tensor.shape, kept.encoding, kept.total_bytes) for tensor, kept in held
    )
    origin = "config.json" if header.format == "config" else f"header of {header.name}"
    if not holding.has_panels:
        return _sum_parts(header.spec, tensors, f"shapes of {origin}, held in {dtype}", None, "safetensors")
    source = f"{stored.describe(header)}, held in panels of 32 outputs, floats in {dtype}"
    return _sum_parts(header.spec, tensors, source, stored.recipe, "gguf")


def _file(header: ModelHeader, settings: PlanSettings) -> tuple[Layout, tuple[HeaderTensor, ...], str, Recipe | None]:
    """Return the file that is loaded: its kind, its tensors, where they stand, and the recipe if there was one."""
    llama = settings.engine in ("llama.cpp", "ollama")
    # llama.cpp loads GGUF files alone, so that of anything else it is given a conversion.
    is_header = header.tensors is not None and (header.format == "gguf" or not llama)
    if settings.quantization is None and is_header:
        assert header.tensors is not None
        tensors, source = header.tensors, f"header of {header.name}"
        if settings.engine == "vllm" and header.quantization is None:
            tensors = tuple(_cast(tensor, _float_type(header, settings)) for tensor in tensors)
        if settings.embedding_quantization is not None:
            kind = find_embedding_type(settings.embedding_quantization, _layout(header)).name
            names = PartNames(header.spec)
            tensors = tuple(_with_embedding(tensor, names, kind) for tensor in tensors)
            source = f"{source}, embedding as if it were {kind}"
        return _layout(header), tensors, source, None
    float_type = _float_type(header, settings)
    recipe = find_recipe(settings.quantization or header.quantization or float_type)
    layout = _layout_of(recipe, settings, llama)
    embedding = settings.embedding_quantization
    embedding_type = None if embedding is None else find_embedding_type(embedding, layout).name
    if embedding_type is not None and not recipe.is_float and recipe.error_share == 0:
        recipe = replace(recipe, error_share=_MIX_ERROR)
    tensors = list_stored_tensors(
        header.spec,
        recipe,
        layout,
        embedding_type=embedding_type,
        float_type=float_type,
        has_unused=_holds_unused(header, settings, recipe, layout),
    )
    if layout == "gguf" and settings.engine in ("ollama", "vllm"):
        tensors = (*tensors, *list_gguf_towers(header.spec))
    source = f"recipe {recipe.name}" + ("" if embedding_type is None else f", embedding {embedding_type}")
    if settings.quantization is not None and header.tensors is not None:
        source += f" (what if: the file is {header.quantization or header.spec.stored_dtype or 'not quantized'})"
    return layout, tensors, source, recipe


_MIX_ERROR: Final = 0.005


def _holds_unused(header: ModelHeader, settings: PlanSettings, recipe: Recipe, layout: Layout) -> bool:
    """Whether a file that was not read is known to hold K/V projections that no layer uses: the published ones in 16
    bits do. A file of another kind may, and then an error bar has room for them."""
    is_published = header.origin == "published" and header.has_unused_tensors
    return is_published and settings.quantization is None and recipe.is_float and layout == "safetensors"


def _layout(header: ModelHeader) -> Layout:
    return "gguf" if header.format == "gguf" else "safetensors"


def _layout_of(recipe: Recipe, settings: PlanSettings, llama: bool) -> Layout:
    if llama and "gguf" not in recipe.layouts:
        raise UnsupportedError(
            f"{settings.engine} loads GGUF files, and there is none of this kind",
            value=recipe.name,
            limit=", ".join(known.name for known in RECIPES.values() if "gguf" in known.layouts),
            remedy="name one of these with --quantization, or plan for --engine vllm",
        )
    return "gguf" if llama or "safetensors" not in recipe.layouts else "safetensors"


def _float_type(header: ModelHeader, settings: PlanSettings) -> str:
    """The type of what is not quantized: as asked, else the checkpoint's, where vLLM halves float32."""
    if settings.dtype != "auto":
        return _named_float(settings.dtype)
    stored = header.spec.stored_dtype
    if stored == "float16" or (stored == "float32" and settings.engine != "vllm"):
        return stored
    return "bfloat16"


def _named_float(name: str) -> str:
    key = {"half": "float16", "float": "float32"}.get(name, name)
    if key not in FLOAT_BITS:
        raise UnsupportedError("unknown dtype", value=name, limit=", ".join(["auto", *FLOAT_BITS]))
    return key


def _refuse_dtype(header: ModelHeader, settings: PlanSettings, recipe: Recipe | None) -> None:
    """A GGUF file has the types it has; --dtype names that of a conversion that is not quantized."""
    if settings.engine == "vllm" or settings.dtype == "auto" or (recipe is not None and settings.quantization is None):
        return
    raise UnsupportedError(
        f"{settings.engine} holds weights in the types of the file",
        value=f"--dtype {settings.dtype}",
        remedy="leave --dtype out, or name the file's type with --quantization alone",
    )


def _cast(tensor: HeaderTensor, float_type: str) -> HeaderTensor:
    if tensor.encoding not in FLOAT_BITS or tensor.encoding == float_type:
        return tensor
    size = prod(tensor.shape) * FLOAT_BITS[float_type] // 8
    return replace(tensor, encoding=float_type, size_bytes=size)


def _with_embedding(tensor: HeaderTensor, names: PartNames, kind: str) -> HeaderTensor:
    spec, part = names.spec, names.part_of(tensor.name)
    if part == "embedding":
        shape: tuple[int, ...] = (spec.vocab_size, spec.hidden_size)
    elif part == "per-layer embedding" and spec.per_layer_inputs is not None:
        shape = (spec.per_layer_inputs.vocab_size, spec.num_layers * spec.per_layer_inputs.width)
    else:
        return tensor
    chosen = fitting_type(kind, shape[-1])
    return replace(tensor, shape=shape, encoding=chosen.name, size_bytes=chosen.tensor_bytes(shape))


def _sum_parts(
    spec: ModelSpec,
    tensors: Iterable[HeaderTensor],
    source: str,
    recipe: Recipe | None,
    layout: Layout,
    left_over: frozenset[str] = frozenset(),
) -> tuple[WeightPart, ...]:
    names = PartNames(spec, left_over)
    found: dict[WeightName, list[HeaderTensor]] = {}
    for tensor in tensors:
        found.setdefault(names.part_of(tensor.name), []).append(tensor)
    counted = _count_by_part(spec, names)
    return tuple(
        WeightPart(
            name,
            counted.get(name) or sum(prod(tensor.shape) for tensor in found[name]),
            sum(tensor.size_bytes for tensor in found[name]),
            _formula(found[name]),
            source,
            _error_bytes(name, found[name], recipe, layout),
        )
        for name in WEIGHT_NAMES
        if name in found
    )


def _count_by_part(spec: ModelSpec, names: PartNames) -> dict[WeightName, int]:
    """Count parameters from the spec, as packed formats do not show them. Buffers are none."""
    counts: dict[WeightName, int] = {}
    named = [(tensor.safetensors, tensor.num_elements) for tensor in list_tensors(spec) if not is_buffer(tensor)]
    named += [(tensor.safetensors, prod(tensor.shape)) for tensor in list_unused_tensors(spec)]
    for name, size in named:
        part = names.part_of(name)
        counts[part] = counts.get(part, 0) + size
    for tower in spec.towers:
        size = sum(tensor.num_elements for tensor in tower.tensors if not tensor.is_buffer)
        counts[tower.name] = counts.get(tower.name, 0) + size
    return counts


def _error_bytes(name: WeightName, tensors: list[HeaderTensor], recipe: Recipe | None, layout: Layout) -> int:
    if recipe is None or name in _TOWER_PARTS or name == "norms":
        return 0
    size = sum(tensor.size_bytes for tensor in tensors)
    if name == "per-layer embedding" and layout == "gguf" and recipe.embedding is not None:
        # Quantizers before 2026 gave this table the type of a plain matrix.
        plain = sum(fitting_type(recipe.base, tensor.shape[-1]).tensor_bytes(tensor.shape) for tensor in tensors)
        return max(size - plain, round(size * recipe.error_share))
    return round(size * recipe.error_share)


def _formula(tensors: list[HeaderTensor]) -> str:
    types: dict[str, int] = {}
    for tensor in tensors:
        types[tensor.encoding] = types.get(tensor.encoding, 0) + 1
    if len(tensors) > 1:
        return f"{len(tensors)} tensors: " + ", ".join(f"{count} {name}" for name, count in sorted(types.items()))
    (tensor,) = tensors
    shape = " x ".join(str(size) for size in tensor.shape) or "1"
    if tensor.encoding in FLOAT_BITS:
        return f"{shape} x {FLOAT_BITS[tensor.encoding] // 8} B"
    kind = TENSOR_TYPES.get(tensor.encoding)
    return f"{shape} in {tensor.encoding}" + ("" if kind is None else f" ({kind.bits_per_weight:g} bits)")
