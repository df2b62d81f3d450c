"""Published models by name: config.json of each, and what its variants on the hub store otherwise.

Refuses to know what is in a config (spec.families reads them) and to touch a network: these are copies of published
facts, whose sources stand in published/SOURCES.md. One file is read, and only when a model is asked for.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import Any, Final


@dataclass(frozen=True, slots=True)
class PublishedModel:
    """A model that can be planned from its name alone."""

    hub_id: str
    """The published model, as its publisher spells it; where `is_exact` is false, the one that the name says this is a
    copy or conversion of."""
    base_id: str
    """The hub id whose config this is: `hub_id` itself, or the model that it is a variant of."""
    config: dict[str, Any]
    """The base model's config.json, a fresh copy."""
    quantization: str | None
    """How its weights are stored, as `quantization_label` names it or as a GGUF type ("q4_0"). None: unquantized, or
    not known where `is_exact` is false."""
    is_gguf: bool
    is_exact: bool
    """Whether the name asked for is a published one. False: it is someone else's and merely contains one."""
    embedding_quantization: str | None = None
    """Where the embedding table is stored in another way than `quantization`."""
    has_unused_tensors: bool = True
    """Whether the file holds the K/V of layers that share another layer's cache (list_unused_tensors)."""


@dataclass(frozen=True, slots=True)
class _Variant:
    """Repositories named `owner/` + one of `models` + `suffix`, and how they differ from `google/` + the model."""

    owner: str
    models: tuple[str, ...]
    suffix: str
    quantization: str | None = None
    embedding_quantization: str | None = None
    is_gguf: bool = False
    has_unused_tensors: bool = True
    drafts: bool = False
    """Whether it is the drafter of the model, whose config ends in "-assistant"."""


_GEMMA4: Final = ("gemma-4-E2B-it", "gemma-4-E4B-it", "gemma-4-12B-it", "gemma-4-26B-A4B-it", "gemma-4-31B-it")
_GEMMA4_SMALL: Final = _GEMMA4[:2]
_GEMMA4_DENSE: Final = ("gemma-4-E2B-it", "gemma-4-E4B-it", "gemma-4-12B-it", "gemma-4-31B-it")
_GEMMA4_LARGE: Final = _GEMMA4[2:]
_GEMMA3: Final = ("gemma-3-1b-it", "gemma-3-4b-it", "gemma-3-12b-it", "gemma-3-27b-it")
_GEMMA3_BASE: Final = ("gemma-3-1b-pt", "gemma-3-4b-pt", "gemma-3-12b-pt", "gemma-3-27b-pt")

# Files written after quantization-aware training leave the unused K/V out. Google's GGUF files are q4_0 throughout but
# for the embedding; "mobile" mixes 2, 4 and 8 bits, and its labels are the methods that config.json names.
_VARIANTS: Final = (
    _Variant(
        "google", (*_GEMMA4, *_GEMMA3, *_GEMMA3_BASE), "-qat-q4_0-gguf", "q4_0", "q6_k", True, has_unused_tensors=False
    ),
    _Variant("google", (*_GEMMA4, *_GEMMA3), "-qat-q4_0-unquantized", has_unused_tensors=False),
    _Variant("google", _GEMMA4, "-qat-q4_0-unquantized-assistant", has_unused_tensors=False, drafts=True),
    _Variant("google", _GEMMA3, "-qat-int4-unquantized"),
    _Variant("google", _GEMMA4_DENSE, "-qat-w4a16-ct", "w4a16", has_unused_tensors=False),
    _Variant("google", _GEMMA4_SMALL, "-qat-mobile-ct", "compressed-tensors", has_unused_tensors=False),
    _Variant("google", _GEMMA4_SMALL, "-qat-mobile-transformers", "gemma", has_unused_tensors=False),
    _Variant("nvidia", ("Gemma-4-31B-IT", "Gemma-4-26B-A4B"), "-NVFP4", "nvfp4"),
    _Variant("RedHatAI", _GEMMA4_LARGE, "-FP8-dynamic", "fp8"),
    _Variant("RedHatAI", _GEMMA4_LARGE, "-FP8-block", "fp8"),
    _Variant("RedHatAI", _GEMMA4_LARGE, "-NVFP4", "nvfp4"),
)

_OWNER: Final = re.compile(r"[a-z0-9][a-z0-9._-]*", re.IGNORECASE)
# What others append to the name of a model they copied or converted: a pattern, the owner it is understood of (None:
# anyone), the quantization it names, and whether the files are GGUF, of which one repository holds many types.
_CONVERSIONS: Final[tuple[tuple[re.Pattern[str], str | None, str | None, bool], ...]] = (
    (re.compile(r"(-bf16)?"), None, None, False),
    (re.compile(r"(-qat)?-gguf"), None, None, True),
    (re.compile(r"(-qat)?-q4_0-gguf"), None, "q4_0", True),
    (re.compile(r"(-qat)?-mlx-4bit"), None, "mlx-4bit", False),
    (re.compile(r"(-qat)?-mlx-8bit"), None, "mlx-8bit", False),
    # Without the word MLX, "4bit" may mean any method.
    (re.compile(r"(-qat)?-4bit"), "mlx-community", "mlx-4bit", False),
    (re.compile(r"(-qat)?-8bit"), "mlx-community", "mlx-8bit", False),
)


def find_published(model: str) -> PublishedModel | None:
    """Return what is known of a model by its name on the hub, such as "google/gemma-4-31B-it"; else None.

    Case does not matter. Beside the published repositories, names of the
    form `owner/gemma-4-31B-it`, `owner/gemma-4-31B-it-GGUF` and `mlx-community/gemma-4-31B-it-4bit` are taken as what
    they say (`is_exact` false). Look for a local path of that name first: this function looks at names alone.
    """
    owner, slash, name = model.rpartition("/")
    if not slash or not name or not _OWNER.fullmatch(owner):
        return None
    wanted = f"{owner}/{name}".lower()
    for hub_id, base, variant in _known_models():
        if hub_id.lower() == wanted:
            return PublishedModel(
                hub_id=hub_id,
                base_id=f"google/{base}",
                config=_read(base),
                quantization=variant.quantization,
                is_gguf=variant.is_gguf,
                is_exact=True,
                embedding_quantization=variant.embedding_quantization,
                has_unused_tensors=variant.has_unused_tensors,
            )
    return None if owner.lower() == "google" else _guess(owner.lower(), name.lower())


def list_published() -> tuple[str, ...]:
    """Return the hub ids that are known exactly, sorted: every published model and the variants in the table."""
    return tuple(sorted((hub_id for hub_id, _, _ in _known_models()), key=str.lower))


def _guess(owner: str, name: str) -> PublishedModel | None:
    """Return the model that someone else's repository names; the longest fitting name wins."""
    # A common converter writes the original owner before the name, as google_gemma-3-4b-it-GGUF.
    plain = name.removeprefix("google_")
    for base in sorted(_names(), key=len, reverse=True):
        if not plain.startswith(base.lower()):
            continue
        rest = plain.removeprefix(base.lower())
        for pattern, understood_of, quantization, is_gguf in _CONVERSIONS:
            if pattern.fullmatch(rest) and understood_of in (None, owner):
                base_id = f"google/{base}"
                return PublishedModel(base_id, base_id, _read(base), quantization, is_gguf, is_exact=False)
        return None
    return None


def _known_models() -> Iterator[tuple[str, str, _Variant]]:
    """Yield every hub id with the name of its config and how it is stored: Google's models, then their variants."""
    names = {name.lower(): name for name in _names()}
    for variant in (_Variant("google", tuple(names.values()), ""), *_VARIANTS):
        for name in variant.models:
            base = names[f"{name}{'-assistant' if variant.drafts else ''}".lower()]
            yield f"{variant.owner}/{name}{variant.suffix}", base, variant


def _folder() -> Traversable:
    return files("gemwright.planner") / "published"


def _names() -> tuple[str, ...]:
    """Return the names of the configs in the package, such as "gemma-4-31B-it"."""
    return tuple(sorted(item.name.removesuffix(".json") for item in _folder().iterdir() if item.name.endswith(".json")))


def _read(name: str) -> dict[str, Any]:
    config: dict[str, Any] = json.loads((_folder() / f"{name}.json").read_text(encoding="utf-8"))
    return config
