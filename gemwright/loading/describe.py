"""What a model is, without its weights: from its files on this machine, or from the small ones at the hub."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gemwright.loading.checkpoint import Checkpoint, open_checkpoint
from gemwright.loading.hub_files import CARD_NAME, CONFIG_NAME
from gemwright.loading.hub_name import HubName
from gemwright.loading.json_files import read_json_object
from gemwright.spec.model_spec import ModelSpec

_CARD_LIMIT_BYTES = 1 << 20
_TOKENIZER_CONFIG_LIMIT_BYTES = 16 << 20
_TEMPLATE_FILES = ("chat_template.jinja", "chat_template.json")
_TOKENIZER_CONFIG = "tokenizer_config.json"
_GENERATION_CONFIG = "generation_config.json"
_LICENSE = re.compile(r"^(license_name|license):\s*[\"']?([^\"'\n#]+)", re.MULTILINE)
_FRONT_MATTER = re.compile(r"\A---\n(.*?)\n---", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Description:
    """A model as its small files tell it."""

    spec: ModelSpec | None
    """None for a GGUF model at the hub, whose header is not fetched."""
    family: str | None
    format: str
    stored_dtype: str | None
    """What its weights are stored as: the config's dtype, or a GGUF model's encodings."""
    files: Mapping[str, int]
    """Its files with their bytes."""
    weights_bytes: int
    """Bytes of the files that hold weights."""
    generation_config: Mapping[str, Any]
    has_tokenizer: bool
    has_chat_template: bool
    license: str | None
    path: Path | None
    """None for a model that is not on this machine."""
    commit: str | None = None
    revision: str | None = None


def describe_path(path: Path, *, allow_unknown_config_keys: bool = False) -> Description:
    """Describe a model on this machine from headers and configs. Raises as `open_checkpoint`."""
    checkpoint = open_checkpoint(path, allow_unknown_config_keys=allow_unknown_config_keys)
    return describe_checkpoint(checkpoint, path)


def describe_checkpoint(checkpoint: Checkpoint, path: Path) -> Description:
    """Describe a model that is open; `path` is where it was asked for."""
    folder, metadata = checkpoint.folder, checkpoint.gguf_metadata
    weights = {file.name: file.stat().st_size for file in checkpoint.files.paths}
    if metadata is None:
        small = {entry.name: entry.stat().st_size for entry in folder.iterdir() if _is_described(entry)}
        has_template = any(name in small for name in _TEMPLATE_FILES) or _names_template(
            read_json_object(folder / _TOKENIZER_CONFIG, _TOKENIZER_CONFIG_LIMIT_BYTES)
            if _TOKENIZER_CONFIG in small
            else {}
        )
        license_name = _card_license(folder / CARD_NAME)
    else:
        small = {}
        has_template = "tokenizer.chat_template" in metadata
        named = metadata.get("general.license.name") or metadata.get("general.license")
        license_name = named if isinstance(named, str) else _card_license(folder / CARD_NAME)
    return Description(
        spec=checkpoint.spec,
        family=checkpoint.spec.family,
        format=checkpoint.format,
        stored_dtype=_stored(checkpoint),
        files={**small, **weights},
        weights_bytes=sum(weights.values()),
        generation_config=checkpoint.generation_config,
        has_tokenizer="tokenizer.json" in small if metadata is None else "tokenizer.ggml.model" in metadata,
        has_chat_template=has_template,
        license=license_name,
        path=path,
    )


def describe_remote(name: HubName, *, allow_unknown_config_keys: bool = False) -> Description:
    """Describe a model at the hub from its listing and its configs; nothing is kept. Raises as `hub.pull`."""
    from gemwright.loading.hub import Hub

    hub = Hub()
    listing = hub.look_up(name.repository, name.revision)
    choice = hub.choose(listing, name.quantization)
    spec = hub.check(listing, choice, allow_unknown_config_keys=allow_unknown_config_keys)
    files = {file: listing.files[file].size_bytes for file in choice.files}
    has_template = any(file in files for file in _TEMPLATE_FILES)
    if not has_template and _TOKENIZER_CONFIG in files:
        has_template = _names_template(hub.read_json(listing, _TOKENIZER_CONFIG, _TOKENIZER_CONFIG_LIMIT_BYTES))
    return Description(
        spec=spec,
        family=None if spec is None else spec.family,
        format=choice.format,
        stored_dtype=choice.quantization if spec is None else spec.stored_dtype,
        files=files,
        weights_bytes=sum(files[file] for file in choice.weights),
        generation_config=hub.read_json(listing, _GENERATION_CONFIG) if _GENERATION_CONFIG in files else {},
        has_tokenizer="tokenizer.json" in files,
        has_chat_template=has_template,
        license=listing.license,
        path=None,
        commit=listing.commit,
        revision=name.revision,
    )


def _is_described(entry: Path) -> bool:
    return entry.name == CONFIG_NAME or (entry.suffix in (".json", ".jinja") and entry.is_file())


def _names_template(config: Mapping[str, Any]) -> bool:
    return bool(config.get("chat_template"))


def _stored(checkpoint: Checkpoint) -> str | None:
    """Return the config's dtype, or the encodings of a GGUF model's weights, the one with most bytes first."""
    if checkpoint.format == "safetensors":
        return checkpoint.stored_dtype
    sizes: dict[str, int] = {}
    for tensor in checkpoint.files.tensors.values():
        sizes[tensor.encoding] = sizes.get(tensor.encoding, 0) + tensor.num_bytes
    return ", ".join(sorted(sizes, key=lambda encoding: -sizes[encoding]))


def _card_license(path: Path) -> str | None:
    """Return the license that the front matter of a model card names, its own name before its kind."""
    try:
        with path.open("rb") as file:
            text = file.read(_CARD_LIMIT_BYTES).decode("utf-8", errors="replace")
    except OSError:
        return None
    front = _FRONT_MATTER.search(text.replace("\r\n", "\n"))
    found = dict(_LICENSE.findall(front[1])) if front is not None else {}
    named = found.get("license_name") or found.get("license")
    return named.strip() if named else None
