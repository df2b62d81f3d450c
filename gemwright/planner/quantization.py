"""How quantized weights are stored: types with their sizes, and named recipes that give every tensor its type.

The mixes follow the quantizer of llama.cpp (src/llama-quant.cpp): which tensors get more bits, and what stands in where
a row does not divide into blocks. Refuses to know about engines: which of this is loaded, planner.weights decides.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from math import prod
from typing import Final, Literal

from gemwright.errors import UnsupportedError
from gemwright.spec.model_header import HeaderTensor
from gemwright.spec.model_spec import ModelSpec
from gemwright.spec.weights import TensorSpec, list_tensors, list_tower_tensors, list_unused_tensors

Layout = Literal["gguf", "safetensors"]
"""Which kind of file: GGUF files keep vectors in float32 and no towers, safetensors files everything as published."""


@dataclass(frozen=True, slots=True)
class TensorType:
    """One way to store a matrix: `block_bits` hold `block_elements` neighbors of a row, scales included."""

    name: str
    block_elements: int
    block_bits: int
    fallback: str | None = None
    """The type that llama.cpp takes for rows that do not divide into blocks. None: rows are padded."""
    row_bytes: int = 0
    """Bytes of each row beside its blocks, such as one scale a row."""
    column_bytes: int = 0
    """Bytes of each column beside the blocks, such as the group of every input."""
    matrix_bytes: int = 0
    """Bytes of each matrix beside all that, such as its shape or a scale of the whole."""

    @property
    def bits_per_weight(self) -> float:
        """Bits of one weight, scales of its block included."""
        return self.block_bits / self.block_elements

    def tensor_bytes(self, shape: tuple[int, ...]) -> int:
        """Return the bytes of a tensor [..., rows, columns] that is stored in this type."""
        columns, rows = shape[-1], prod(shape[:-1])
        num_blocks = rows * -(-columns // self.block_elements)
        beside = rows * self.row_bytes + prod(shape[:-2]) * (columns * self.column_bytes + self.matrix_bytes)
        return num_blocks * self.block_bits // 8 + beside


@dataclass(frozen=True, slots=True)
class Recipe:
    """A named way to store a whole model."""

    name: str
    base: str
    """The type of a matrix that no rule names."""
    layouts: tuple[Layout, ...]
    error_share: float
    """How far off a size from this recipe may be: files of one name differ."""
    embedding: str | None = None
    """The type of the embedding and per-layer tables where it is another one."""
    stores_head: bool = False
    """Whether the tied head stands in the file a second time, beside the embedding."""

    @property
    def is_float(self) -> bool:
        """Whether nothing is quantized."""
        return self.base in FLOAT_BITS


FLOAT_BITS: Final[Mapping[str, int]] = {"float32": 32, "float16": 16, "bfloat16": 16}

# Bytes of a GGUF block are those of ggml's structs; the fallbacks are those of llama.cpp's tensor_type_fallback.
_GGUF_BLOCKS: Final = (
    ("q4_0", 32, 18, "float16"),
    ("q4_1", 32, 20, "float16"),
    ("q5_0", 32, 22, "float16"),
    ("q5_1", 32, 24, "float16"),
    ("q8_0", 32, 34, "float16"),
    ("iq4_nl", 32, 18, "float16"),
    ("q2_k", 256, 84, "q4_0"),
    ("q3_k", 256, 110, "q4_0"),
    ("q4_k", 256, 144, "q5_0"),
    ("q5_k", 256, 176, "q5_1"),
    ("q6_k", 256, 210, "q8_0"),
    ("iq1_s", 256, 50, "iq4_nl"),
    ("iq1_m", 256, 56, "iq4_nl"),
    ("iq2_xxs", 256, 66, "iq4_nl"),
    ("iq2_xs", 256, 74, "iq4_nl"),
    ("iq2_s", 256, 82, "iq4_nl"),
    ("iq3_xxs", 256, 98, "iq4_nl"),
    ("iq3_s", 256, 110, "iq4_nl"),
    ("iq4_xs", 256, 136, "iq4_nl"),
)

# compressed-tensors, AWQ, GPTQ and MLX: weights, then the scales of their groups.
_PACKED: Final = (
    TensorType("int4 group 32", 32, 32 * 4 + 16, matrix_bytes=16),
    TensorType("nvfp4", 16, 16 * 4 + 8, matrix_bytes=8),
    TensorType("fp8", 1, 8, row_bytes=2),
    TensorType("int8", 1, 8, row_bytes=2),
    TensorType("awq", 128, 128 * 4 + 16 + 4),
    TensorType("gptq", 128, 128 * 4 + 16 + 4, column_bytes=4),
    TensorType("mlx 4-bit", 64, 64 * 4 + 32),
    TensorType("mlx 8-bit", 64, 64 * 8 + 32),
)

TENSOR_TYPES: Final[Mapping[str, TensorType]] = {
    kind.name: kind
    for kind in (
        *(TensorType(name, 1, bits) for name, bits in FLOAT_BITS.items()),
        *(TensorType(name, elements, 8 * size, fallback) for name, elements, size, fallback in _GGUF_BLOCKS),
        *_PACKED,
    )
}
"""Every type by its name."""

_FLOAT_NAMES: Final[Mapping[str, str]] = {
    "f32": "float32", "float32": "float32", "float": "float32", "f16": "float16", "fp16": "float16",
    "float16": "float16", "half": "float16", "bf16": "bfloat16", "bfloat16": "bfloat16",
}  # fmt: skip

_GGUF: Final[tuple[Layout, ...]] = ("gguf",)
_SAFETENSORS: Final[tuple[Layout, ...]] = ("safetensors",)
_EITHER: Final[tuple[Layout, ...]] = ("gguf", "safetensors")
_K_QUANT_ERROR: Final = 0.02
_MIX_ERROR: Final = 0.005

RECIPES: Final[Mapping[str, Recipe]] = {
    recipe.name: recipe
    for recipe in (
        Recipe("bf16", "bfloat16", _EITHER, 0.0),
        Recipe("f16", "float16", _EITHER, 0.0),
        Recipe("f32", "float32", _EITHER, 0.0),
        *(Recipe(name, name, _GGUF, 0.0) for name, *_ in _GGUF_BLOCKS),
        Recipe("q3_k_s", "q3_k", _GGUF, _K_QUANT_ERROR, "q6_k"),
        Recipe("q3_k_m", "q3_k", _GGUF, _K_QUANT_ERROR, "q6_k"),
        Recipe("q3_k_l", "q3_k", _GGUF, _K_QUANT_ERROR, "q6_k"),
        Recipe("q4_k_s", "q4_k", _GGUF, _K_QUANT_ERROR, "q6_k"),
        Recipe("q4_k_m", "q4_k", _GGUF, _K_QUANT_ERROR, "q6_k"),
        Recipe("q5_k_s", "q5_k", _GGUF, _K_QUANT_ERROR, "q6_k"),
        Recipe("q5_k_m", "q5_k", _GGUF, _K_QUANT_ERROR, "q6_k"),
        # The int4 checkpoints that Google publishes for vLLM keep a head of their own beside the embedding.
        Recipe("w4a16", "int4 group 32", _SAFETENSORS, _MIX_ERROR, "bfloat16", stores_head=True),
        Recipe("int4", "int4 group 32", _SAFETENSORS, _K_QUANT_ERROR, "bfloat16"),
        Recipe("nvfp4", "nvfp4", _EITHER, _K_QUANT_ERROR, "bfloat16"),
        Recipe("fp8", "fp8", _SAFETENSORS, _K_QUANT_ERROR, "bfloat16"),
        Recipe("int8", "int8", _SAFETENSORS, _K_QUANT_ERROR, "bfloat16"),
        Recipe("awq", "awq", _SAFETENSORS, _K_QUANT_ERROR, "bfloat16"),
        Recipe("gptq", "gptq", _SAFETENSORS, _K_QUANT_ERROR, "bfloat16"),
        Recipe("mlx-4bit", "mlx 4-bit", _SAFETENSORS, _MIX_ERROR),
        Recipe("mlx-8bit", "mlx 8-bit", _SAFETENSORS, _MIX_ERROR),
    )
}
"""Every recipe by its name. A bare type such as q4_0 or q6_k is every matrix, embedding included; names that end in
_s, _m or _l are llama.cpp's mixes."""

_Rule = Callable[[int, int], bool]
"""Whether the Nth of so many tensors gets the better type."""


def _first(share: int) -> _Rule:
    return lambda index, count: index < count // share


def _more_bits(index: int, count: int) -> bool:
    """llama.cpp's use_more_bits: the first and the last eighth, and every third between."""
    return index < count // 8 or index >= 7 * count // 8 or (index - count // 8) % 3 == 2


def _always(index: int, count: int) -> bool:
    return True


_MIXES: Final[Mapping[str, Mapping[str, tuple[tuple[str, _Rule], ...]]]] = {
    "q3_k_m": {
        "value": (("q5_k", lambda index, count: index < 2), ("q4_k", _always)),
        "down": (("q5_k", _first(16)), ("q4_k", _always)),
        "attention_output": (("q4_k", _always),),
    },
    "q3_k_l": dict.fromkeys(("value", "down", "attention_output"), (("q5_k", _always),)),
    "q4_k_s": {"value": (("q5_k", lambda index, count: index < 4),), "down": (("q5_k", _first(8)),)},
    "q4_k_m": dict.fromkeys(("value", "down"), (("q6_k", _more_bits),)),
    "q5_k_m": dict.fromkeys(("value", "down"), (("q6_k", _more_bits),)),
}
"""By recipe and kind of tensor: types with the layers that get them, the first rule that holds."""


def find_recipe(name: str) -> Recipe:
    """Return the recipe of a name, case apart; spellings of the floats count too.

    Raises UnsupportedError for a name that is none, with all that are.
    """
    key = name.lower().replace("-", "_")
    floats = {"float32": "f32", "float16": "f16", "bfloat16": "bf16"}
    key = floats[_FLOAT_NAMES[key]] if key in _FLOAT_NAMES else key
    recipe = RECIPES.get(key) or RECIPES.get(name.lower())
    if recipe is None:
        raise UnsupportedError(
            "unknown quantization",
            value=name,
            limit=", ".join(RECIPES),
            remedy="name one of these, or plan from a file's own header",
        )
    return recipe


def find_embedding_type(name: str, layout: Layout) -> TensorType:
    """Return the type of a name for embedding tables in such a file.

    Raises UnsupportedError for a name that is none, with all that are.
    """
    key = name.lower()
    known = [kind.name for kind in TENSOR_TYPES.values() if kind.fallback is not None] if layout == "gguf" else []
    if layout == "safetensors":
        known = ["fp8", "int8"]
    found = TENSOR_TYPES.get(_FLOAT_NAMES.get(key, key if key in known else ""))
    if found is None:
        raise UnsupportedError(
            f"unknown type of an embedding in a {layout} file",
            value=name,
            limit=", ".join(["f32", "f16", "bf16", *known]),
            remedy="change --embedding-quantization",
        )
    return found


def fitting_type(name: str, columns: int) -> TensorType:
    """Return the type in which llama.cpp stores rows of so many columns when it is asked for a type."""
    kind = TENSOR_TYPES[name]
    while kind.fallback is not None and columns % kind.block_elements:
        kind = TENSOR_TYPES[kind.fallback]
    return kind


@lru_cache(maxsize=16)
def list_stored_tensors(
    spec: ModelSpec,
    recipe: Recipe,
    layout: Layout,
    *,
    embedding_type: str | None = None,
    float_type: str = "bfloat16",
    has_unused: bool = False,
) -> tuple[HeaderTensor, ...]:
    """Return the tensors of a file that a recipe would write, as its header would list them.

    `float_type` is that of what a quantized recipe leaves alone. Packed formats store several tensors a weight; here
    each weight is one, of their size together. `has_unused`: with the K/V that first files of the E-models carry.
    """
    if layout == "gguf":
        return tuple(_gguf_tensors(spec, recipe, embedding_type, float_type, has_unused))
    return tuple(_safetensors_tensors(spec, recipe, embedding_type, float_type, has_unused))


def _gguf_tensors(
    spec: ModelSpec, recipe: Recipe, embedding_type: str | None, float_type: str, has_unused: bool
) -> Iterator[HeaderTensor]:
    rules = _MIXES.get(recipe.name, {})
    tensors = list_tensors(spec)
    unused = [(tensor.gguf, tensor.shape) for tensor in list_unused_tensors(spec)] if has_unused else []
    # Values are counted where they stand, downs by their layer: so does the quantizer.
    values = [tensor.layer for tensor in tensors if tensor.name.endswith(".value")]
    values = sorted([*values, *(int(name.split(".")[1]) for name, _ in unused if "attn_v." in name)], key=_number)
    for tensor in tensors:
        name = tensor.gguf[0][0] if tensor.gguf[0] else tensor.safetensors
        wanted = _gguf_type(tensor, spec, recipe, embedding_type, float_type)
        slot = _slot(tensor)
        place, count = (values.index(tensor.layer), len(values)) if slot == "value" else (tensor.layer, spec.num_layers)
        wanted = next((better for better, holds in rules.get(slot, ()) if holds(place or 0, count)), wanted)
        yield _stored(name, tensor.shape, fitting_type(wanted, tensor.shape[-1]))
    for name, shape in unused:
        yield _stored(name, shape, fitting_type(recipe.base if len(shape) > 1 else "float32", shape[-1]))


def _gguf_type(tensor: TensorSpec, spec: ModelSpec, recipe: Recipe, embedding_type: str | None, float_type: str) -> str:
    if len(tensor.shape) < 2 or tensor.name.endswith(".router"):
        return "float32"
    if tensor.role == "embedding":
        if embedding_type is not None:
            return embedding_type
        # An untied head takes the better type in the embedding's place.
        return recipe.embedding if recipe.embedding is not None and spec.tied_head else recipe.base
    if tensor.part == "head":
        return recipe.embedding or recipe.base
    if tensor.name == "per_layer_model_projection" and not recipe.is_float:
        return float_type
    return recipe.base


def unused_bytes(spec: ModelSpec, recipe: Recipe) -> int:
    """Return what the tensors that no layer uses take where a file has them."""
    shapes = [tensor.shape for tensor in list_unused_tensors(spec)]
    return sum(fitting_type(recipe.base, shape[-1]).tensor_bytes(shape) for shape in shapes)


def list_gguf_towers(spec: ModelSpec) -> tuple[HeaderTensor, ...]:
    """Return the towers as Ollama's files have them beside the language model, and projector files (mmproj) alone: in
    16 bits whatever the recipe, vectors in float32.

    With them Ollama's sizes of Gemma 4 26B-A4B, printed as 19 and 24 GB at 4,096 and 262,144 tokens, come out as 18.9
    and 24.5 GB; without, as 17.8 and 23.3.
    """
    return tuple(
        _stored(tower.name, tower.shape, TENSOR_TYPES["float16" if len(tower.shape) > 1 else "float32"])
        for tower in list_tower_tensors(spec)
    )


def _slot(tensor: TensorSpec) -> str:
    kind = tensor.name.rpartition(".")[2]
    return "down" if kind == "experts_down" else kind


def _safetensors_tensors(
    spec: ModelSpec, recipe: Recipe, embedding_type: str | None, float_type: str, has_unused: bool
) -> Iterator[HeaderTensor]:
    plain = TENSOR_TYPES[recipe.base if recipe.is_float else float_type]
    linear = TENSOR_TYPES[recipe.base]
    table = linear if recipe.embedding is None else plain
    table = table if embedding_type is None else TENSOR_TYPES[embedding_type]
    for tensor in list_tensors(spec):
        kind = plain
        if tensor.role == "index":
            kind = TensorType("int64", 1, 64)
        elif tensor.role == "embedding":
            kind = table
        elif tensor.role in ("linear", "experts") and tensor.part != "head" and not tensor.name.endswith(".router"):
            kind = linear
        yield _stored(tensor.safetensors, tensor.shape, kind)
    if recipe.stores_head and spec.tied_head:
        yield _stored("lm_head.weight", (spec.vocab_size, spec.hidden_size), plain)
    for tower in list_tower_tensors(spec):
        yield _stored(tower.name, tower.shape, plain)
    for unused in list_unused_tensors(spec) if has_unused else ():
        yield _stored(unused.safetensors, unused.shape, linear if len(unused.shape) > 1 else plain)


def _stored(name: str, shape: tuple[int, ...], kind: TensorType) -> HeaderTensor:
    return HeaderTensor(name, shape, kind.name, kind.tensor_bytes(shape or (1,)))


def _number(layer: int | None) -> int:
    return layer or 0
