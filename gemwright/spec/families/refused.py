"""Models that are recognized and refused by name, each with a reason and a way out.

Refuses to know how any supported model is read.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from gemwright.errors import UnsupportedError
from gemwright.spec.families.keys import KeyReader, shown

_DECODERS = "use a Gemma 2, Gemma 3 or Gemma 4 model"

_BY_TYPE: Final[tuple[tuple[str, str, str], ...]] = (
    # (text in the lower-case type, the model's name, remedy); the first that fits counts.
    ("diffusion", "DiffusionGemma (text by block diffusion)", "use google/gemma-4-26B-A4B-it, which has the same body"),
    ("embedding", "EmbeddingGemma (embeddings, no text)", "use an embedding server such as sentence-transformers"),
    ("paligemma", "PaliGemma (a prefix attends in both directions)", "use a Gemma 3 or Gemma 4 multimodal model"),
    ("t5gemma", "T5Gemma (an encoder and a decoder)", _DECODERS),
    ("recurrent", "RecurrentGemma (a recurrent state instead of a cache)", _DECODERS),
    ("shieldgemma2", "ShieldGemma 2 (an image classifier)", "use transformers for it"),
    ("vaultgemma", "VaultGemma", _DECODERS),
    ("gemma3n", "Gemma 3n", "use google/gemma-4-E2B-it or google/gemma-4-E4B-it, its successors"),
)

_BY_EXACT_TYPE: Final[dict[str, tuple[str, str]]] = {
    "gemma": ("Gemma 1", "use google/gemma-2-2b-it or a later Gemma"),
    "clip": (
        "this is the vision part of a model (an mmproj file), not a language model",
        "give the model's other GGUF file",
    ),
    "gemma4-assistant": (
        "a Gemma 4 drafter in a GGUF file (the format drops its ordered embeddings)",
        "use the safetensors drafter, such as google/gemma-4-E2B-it-assistant",
    ),
}


def refuse_type(source: str, key: str, model_type: str, supported: Iterable[str]) -> UnsupportedError:
    """Return the error for a model type that has no reader; the caller raises it.

    `key` is the name of the key that holds it, `supported` the types that have a reader.
    """
    lowered = model_type.lower()
    what, remedy = _BY_EXACT_TYPE.get(lowered, ("", ""))
    if not what:
        for part, name, way_out in _BY_TYPE:
            if part in lowered.replace("-", "_"):
                what, remedy = name, way_out
                break
    if not what:
        what, remedy = "a model type that is not known", f"supported: {', '.join(sorted(supported))}"
    elif not what.startswith("this is"):
        what += " is not supported"
    return UnsupportedError(f"{source}: {what}", value=f"{key} {shown(model_type)}", remedy=remedy)


def check_architectures(top: KeyReader, allowed: frozenset[str]) -> None:
    """Refuse classes that are not a language model of this family, such as classifiers and encoders.

    Raises UnsupportedError naming the class in `architectures`; an absent or empty list passes.
    """
    for name in top.items("architectures") or []:
        if isinstance(name, str) and name in allowed:
            continue
        text = name if isinstance(name, str) else ""
        if text == "Gemma3TextModel":
            problem = "names EmbeddingGemma, which gives embeddings and no text"
            remedy = "use an embedding server such as sentence-transformers"
        elif text.startswith("ShieldGemma2"):
            problem, remedy = "names ShieldGemma 2, an image classifier", "use transformers for it"
        elif "Classification" in text or "Regression" in text or "Reward" in text:
            problem, remedy = "names a classifier, whose head Gemwright does not have", "use transformers for it"
        else:
            problem, remedy = "names a class that is not known", _DECODERS
        raise top.refusal("architectures", problem, value=shown(name), limit=", ".join(sorted(allowed)), remedy=remedy)


def refuse_quantization(keys: KeyReader) -> None:
    """Refuse a quantized checkpoint by its method's name; an absent or null section passes.

    Raises UnsupportedError. `quantization` without a method is what MLX writes.
    """
    for name in ("quantization_config", "compression_config", "quantization"):
        section = keys.raw(name)
        if section is None:
            continue
        method = section.get("quant_method") if hasattr(section, "get") else None
        if not isinstance(method, str):
            method = "mlx" if name == "quantization" else "not named"
        raise UnsupportedError(
            f"{keys.source}: {keys.path}{name}: quantized safetensors checkpoints are not supported yet",
            value=f"quant_method {shown(method)}",
            limit="float32, bfloat16 or float16 safetensors, or GGUF",
            remedy="use the unquantized checkpoint or a GGUF file of the same model",
        )
