"""Models that are recognized and refused by name, as data: each with a reason and a way out.

Refuses to know how any supported model is read. docs/compatibility.md is written from these tables.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from gemwright.errors import UnsupportedError
from gemwright.spec.families.keys import KeyReader, shown

_DECODERS = "use a Gemma 2, Gemma 3 or Gemma 4 model"
_TRANSFORMERS = "use transformers for it"
_EMBEDDINGS = "use an embedding server such as sentence-transformers"
_UNQUANTIZED = "use the unquantized checkpoint or a GGUF file of the same model"


@dataclass(frozen=True, slots=True)
class RefusedModel:
    """A model that is known by what config.json calls its model_type, or GGUF its architecture."""

    name: str
    types: tuple[str, ...]
    """The types as they are published."""
    part: str | None
    """Text that a type of this model holds in any spelling ("-" read as "_"); None: `types` alone."""
    reason: str
    remedy: str
    is_whole: bool = True
    """False for a file that is a part of a model."""

    def problem(self) -> str:
        """Return what is wrong, in words."""
        if not self.is_whole:
            return f"this is {self.name}, {self.reason}"
        return f"{self.name} ({self.reason}) is not supported" if self.reason else f"{self.name} is not supported"


_GEMMA_1: Final = re.compile(r"(code)?gemma(_?1\.1)?_?[27]b", re.ASCII)
"""Names of Gemma 1 and what was made of it, as `refuse_name` spells them: gemma7b_it, gemma1.1_2b, codegemma7b."""

REFUSED_MODELS: Final = (
    RefusedModel("Gemma 1", ("gemma",), None, "", "use google/gemma-2-2b-it or a later Gemma"),
    RefusedModel(
        "the vision part of a model (an mmproj file)",
        ("clip",),
        None,
        "not a language model",
        "give the model's other GGUF file",
        is_whole=False,
    ),
    RefusedModel(
        "a Gemma 4 drafter in a GGUF file",
        ("gemma4-assistant",),
        None,
        "the format drops its ordered embeddings",
        "use the safetensors drafter, such as google/gemma-4-E2B-it-assistant",
    ),
    RefusedModel(
        "DiffusionGemma",
        ("diffusion_gemma",),
        "diffusion",
        "text by block diffusion",
        "use google/gemma-4-26B-A4B-it, which has the same body",
    ),
    RefusedModel("EmbeddingGemma", ("gemma-embedding",), "embedding", "embeddings, no text", _EMBEDDINGS),
    RefusedModel(
        "PaliGemma",
        ("paligemma",),
        "paligemma",
        "a prefix attends in both directions",
        "use a Gemma 3 or Gemma 4 multimodal model",
    ),
    RefusedModel("T5Gemma", ("t5gemma", "t5gemma2"), "t5gemma", "an encoder and a decoder", _DECODERS),
    RefusedModel(
        "RecurrentGemma", ("recurrent_gemma",), "recurrent", "a recurrent state instead of a cache", _DECODERS
    ),
    RefusedModel("ShieldGemma 2", ("shieldgemma2",), "shieldgemma2", "an image classifier", _TRANSFORMERS),
    RefusedModel("VaultGemma", ("vaultgemma",), "vaultgemma", "", _DECODERS),
    RefusedModel(
        "Gemma 3n",
        ("gemma3n", "gemma3n_text"),
        "gemma3n",
        "",
        "use google/gemma-4-E2B-it or google/gemma-4-E4B-it, its successors",
    ),
)
"""Of those with a `part` the first that fits counts; exact types go before parts."""


@dataclass(frozen=True, slots=True)
class RefusedClass:
    """A class in `architectures` that is no language model, known by a part of its name."""

    part: str
    problem: str
    remedy: str


_CLASSIFIER = "names a classifier, whose head Gemwright does not have"
REFUSED_CLASSES: Final = (
    RefusedClass("Gemma3TextModel", "names EmbeddingGemma, which gives embeddings and no text", _EMBEDDINGS),
    RefusedClass("ShieldGemma2", "names ShieldGemma 2, an image classifier", _TRANSFORMERS),
    RefusedClass("Classification", _CLASSIFIER, _TRANSFORMERS),
    RefusedClass("Regression", _CLASSIFIER, _TRANSFORMERS),
    RefusedClass("Reward", _CLASSIFIER, _TRANSFORMERS),
)

QUANTIZATION_SECTIONS: Final = ("quantization_config", "compression_config", "quantization")
"""The keys under which a config says that its safetensors are quantized; the last is what MLX writes."""


def refuse_type(source: str, key: str, model_type: str, supported: Iterable[str]) -> UnsupportedError:
    """Return the error for a model type that has no reader; the caller raises it.

    `key` is the name of the key that holds it, `supported` the types that can be run.
    """
    model = _known(model_type.lower())
    if model is None:
        what, remedy = "a model type that is not known", f"supported: {', '.join(sorted(supported))}"
    else:
        what, remedy = model.problem(), model.remedy
    return UnsupportedError(f"{source}: {what}", value=f"{key} {shown(model_type)}", remedy=remedy)


def refuse_name(name: str) -> UnsupportedError | None:
    """Return the error for a model of the hub whose name alone tells that it is refused, such as google/gemma-3n-E2B;
    None for all others. For where nothing but the name is to be had."""
    spelled = name.lower().rpartition("/")[2].replace("gemma-", "gemma").replace("-", "_")
    parts = (model for model in REFUSED_MODELS if model.part is not None and model.part in spelled)
    model = next(parts, None) if "gemma" in spelled else None
    if model is None and _GEMMA_1.match(spelled):
        model = next(model for model in REFUSED_MODELS if model.types == ("gemma",))
    if model is None:
        return None
    return UnsupportedError(f"going by its name: {model.problem()}", value=name, remedy=model.remedy)


def _known(lowered: str) -> RefusedModel | None:
    exact = (model for model in REFUSED_MODELS if lowered in model.types)
    spelled = lowered.replace("-", "_")
    similar = (model for model in REFUSED_MODELS if model.part is not None and model.part in spelled)
    return next(exact, None) or next(similar, None)


def refuse_drafter(name: str) -> UnsupportedError:
    """Return the error for a drafter that is asked to answer; the caller raises it. `name` is the model's."""
    return UnsupportedError(
        "this is a drafter: it predicts tokens for a larger Gemma and cannot answer alone",
        value=name,
        remedy="run the model it drafts for",
    )


def check_architectures(top: KeyReader, allowed: frozenset[str]) -> None:
    """Refuse classes that are not a language model of this family, such as classifiers and encoders.

    Raises UnsupportedError naming the class in `architectures`; an absent or empty list passes.
    """
    for name in top.items("architectures") or []:
        if isinstance(name, str) and name in allowed:
            continue
        text = name if isinstance(name, str) else ""
        found = next((entry for entry in REFUSED_CLASSES if entry.part in text), None)
        problem = "names a class that is not known" if found is None else found.problem
        remedy = _DECODERS if found is None else found.remedy
        raise top.refusal("architectures", problem, value=shown(name), limit=", ".join(sorted(allowed)), remedy=remedy)


def refuse_quantization(keys: KeyReader) -> None:
    """Refuse a quantized checkpoint by its method's name; an absent or null section passes.

    Raises UnsupportedError. `quantization` without a method is what MLX writes.
    """
    for name in QUANTIZATION_SECTIONS:
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
            remedy=_UNQUANTIZED,
        )
