"""Which files of a repository make up a model: safetensors with their index and tokenizer, or one GGUF model.

Knows names only; refuses to know where the files lie. Never chosen: pickles, other frameworks' formats, folders with
copies, the vision parts of GGUF models.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from typing import Literal

from gemwright.errors import CheckpointError, GemwrightError, RequestError, UnsupportedError
from gemwright.loading.safetensors import ADAPTER_NAME, INDEX_NAME, PICKLED_SUFFIXES, SINGLE_NAME, adapter_alone

CONFIG_NAME = "config.json"
CARD_NAME = "README.md"

UNREAD = frozenset({"special_tokens_map.json", "processor_config.json", "preprocessor_config.json", CARD_NAME})
"""Files that come along (the model card for its license), and without which a model runs as it does with them."""

_BESIDE_WEIGHTS = (
    CONFIG_NAME,
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "chat_template.jinja",
    "chat_template.json",
    "processor_config.json",
    "preprocessor_config.json",
    CARD_NAME,
)
_SHARD = re.compile(r".+-\d{5}-of-\d{5}\.safetensors")
_PART = re.compile(r"(?P<stem>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf")
_LABEL = re.compile(r"(?:^|[-._])((?:UD-)?(?:I?Q\d\w*|TQ\d\w*|BF16|F16|F32|MXFP\d\w*|NVFP\d\w*))$", re.IGNORECASE)
_SHOWN_NAMES = 12


@dataclass(frozen=True, slots=True)
class Choice:
    """The files of one model, small ones first."""

    format: Literal["safetensors", "gguf"]
    files: tuple[str, ...]
    weights: tuple[str, ...]
    """Those of `files` that hold weights; the first one opens a GGUF model."""
    quantization: str | None = None
    """What picks this GGUF model among those of its repository."""


@dataclass(frozen=True, slots=True)
class GgufModel:
    """One GGUF model of a repository, all parts of a split file together."""

    label: str
    """Its quantization as the file name tells, such as Q4_K_M; the name itself where that tells none."""
    files: tuple[str, ...]


def gguf_models(names: Collection[str]) -> tuple[GgufModel, ...]:
    """Return the GGUF language models among `names`; sets that lack a part, vision parts and imatrix files are none."""
    sets: dict[str, list[str]] = {}
    for name in sorted(names):
        base = name.rpartition("/")[2].lower()
        if not name.endswith(".gguf") or "mmproj" in base or "imatrix" in base:
            continue
        part = _PART.fullmatch(name)
        sets.setdefault(name.removesuffix(".gguf") if part is None else part["stem"], []).append(name)
    whole = {stem: tuple(files) for stem, files in sets.items() if _is_whole(files)}
    labels = [_label(stem) for stem in whole]
    return tuple(
        GgufModel(label if label is not None and labels.count(label) == 1 else stem.rpartition("/")[2], files)
        for label, (stem, files) in zip(labels, whole.items(), strict=True)
    )


def label_of(name: str) -> str | None:
    """Return the quantization that the name of a GGUF file tells, such as Q4_K_M; None where it tells none."""
    part = _PART.fullmatch(name)
    return _label(name.removesuffix(".gguf") if part is None else part["stem"])


def choose_files(
    names: Collection[str],
    *,
    source: str,
    quantization: str | None = None,
    read_shards: Callable[[], tuple[str, ...] | None] = lambda: None,
) -> Choice:
    """Return the files of the model that a repository with the files `names` holds.

    `source` names the repository in messages; `read_shards` returns what its index lists, None where nobody can say
    yet: then all that look like shards are taken. Raises RequestError where a quantization must be chosen or is not
    there, UnsupportedError for repositories whose format is refused, CheckpointError where a file is missing.
    """
    models = gguf_models(names)
    weights = sorted(name for name in names if "/" not in name and name.endswith(".safetensors"))
    if quantization is not None:
        return _gguf_choice(_named_model(models, quantization, source), names)
    if weights or INDEX_NAME in names:
        return _safetensors_choice(names, weights, source, read_shards)
    if len(models) == 1:
        return _gguf_choice(models[0], names)
    if models:
        raise RequestError(
            f"{source} holds {len(models)} GGUF models",
            value=_listed(model.label for model in models),
            remedy=f"name one of them: {source.partition('@')[0]}:{models[0].label}",
        )
    raise _no_model(names, source)


def _gguf_choice(model: GgufModel, names: Collection[str]) -> Choice:
    small = (CARD_NAME,) if CARD_NAME in names else ()
    return Choice("gguf", (*small, *model.files), model.files, model.label)


def _named_model(models: tuple[GgufModel, ...], quantization: str, source: str) -> GgufModel:
    wanted = quantization.lower()
    found = [model for model in models if model.label.lower() == wanted]
    if len(found) == 1:
        return found[0]
    if not models:
        raise RequestError(
            f"{source} holds no GGUF files",
            value=f"quantization {quantization}",
            remedy=f"leave :{quantization} out, or name a repository of GGUF files",
        )
    raise RequestError(
        f"{source} has no such quantization",
        value=quantization,
        limit=_listed(model.label for model in models),
        remedy="name one of these",
    )


def _safetensors_choice(
    names: Collection[str],
    weights: list[str],
    source: str,
    read_shards: Callable[[], tuple[str, ...] | None],
) -> Choice:
    if CONFIG_NAME not in names:
        raise _no_model(names, source)
    small = [name for name in _BESIDE_WEIGHTS if name in names]
    if SINGLE_NAME in names:
        weights = [SINGLE_NAME]
    elif INDEX_NAME in names:
        small.append(INDEX_NAME)
        listed = read_shards()
        weights = [name for name in weights if _SHARD.fullmatch(name)] if listed is None else list(listed)
        lacking = [name for name in weights if name not in names]
        if lacking or not weights:
            raise CheckpointError(
                f"{source}: {INDEX_NAME} lists weights that are not there",
                value=_listed(lacking) or "none at all",
                remedy="ask those who published it, or name another revision",
            )
    elif len(weights) > 1 or _SHARD.fullmatch(weights[0]):
        raise CheckpointError(
            f"{source}: {INDEX_NAME} is missing, which says what lies in which file",
            value=_listed(weights),
            remedy="ask those who published it, or name another revision",
        )
    return Choice("safetensors", (*small, *weights), tuple(weights))


def _no_model(names: Collection[str], source: str) -> GemwrightError:
    if ADAPTER_NAME in names:
        return adapter_alone(source)
    pickled = sorted(name for name in names if name.endswith(PICKLED_SUFFIXES))
    if pickled:
        return UnsupportedError(
            f"{source}: pickled weights can run code when they are loaded, so they are not",
            value=_listed(pickled),
            remedy="name a repository with safetensors or GGUF files of the same model",
        )
    return UnsupportedError(
        f"{source} holds no model that can be read",
        value=_listed(sorted(names)) or "no files",
        limit=f"{CONFIG_NAME} with safetensors in the same folder, or GGUF files",
        remedy="name a repository with one of these",
    )


def _is_whole(files: list[str]) -> bool:
    part = _PART.fullmatch(files[0])
    return len(files) == (1 if part is None else int(part["count"]))


def _label(stem: str) -> str | None:
    match = _LABEL.search(stem.rpartition("/")[2])
    return None if match is None else match[1].upper()


def _listed(names: Iterable[str]) -> str:
    found = list(names)
    return ", ".join(found[:_SHOWN_NAMES]) + (", ..." if len(found) > _SHOWN_NAMES else "")
