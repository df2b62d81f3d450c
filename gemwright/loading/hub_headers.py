"""What a model of the hub is and stores, from a few requests: its config, its index and the headers of its weights.

Of a safetensors file exactly the header is asked for. How long a GGUF header is shows only while it is read: it is
asked for in growing ranges, so at most as much again as it takes comes on top. Nothing is kept.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from gemwright.loading import safetensors
from gemwright.loading.checkpoint import ROPE_FREQS, check_rope_freqs, read_gguf_spec
from gemwright.loading.gguf import join_parts
from gemwright.loading.gguf_header import GgufMetadata
from gemwright.loading.gguf_header import read_header as read_gguf_header
from gemwright.loading.headers import (
    NOT_KNOWN,
    WEIGHT_SUFFIXES,
    gguf_header,
    read_model_config,
    refuse_adapter,
    safetensors_header,
)
from gemwright.loading.hub import Hub, Listing, run_all
from gemwright.loading.hub_files import CONFIG_NAME
from gemwright.loading.hub_gguf import check_beginning
from gemwright.loading.hub_name import HubName
from gemwright.loading.hub_transfer import Patience
from gemwright.loading.partial_file import PartialFile
from gemwright.loading.stored_tensor import StoredTensor
from gemwright.spec.model_header import ModelHeader
from gemwright.spec.model_spec import ModelSpec

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

HEADER_PATIENCE: Final = Patience(
    attempts=2, first_wait_seconds=0.2, longest_told_wait_seconds=1.0, silence_seconds=4.0, answer_seconds=60.0
)
"""Whoever asks what a model would take has other ways to find out, and waits for an answer."""

FIRST_PART_BYTES: Final = 1 << 20
"""First range of a GGUF model: enough to refuse other architectures. The vocabulary makes the header much longer."""
LATER_PART_BYTES: Final = 1 << 16
"""First range of the other parts of a split GGUF model, which list their tensors and little else."""

_PUBLISHED_ROTARY_FACTOR: Final = 0.25


def hub_header(name: HubName, *, allow_unknown_config_keys: bool = False) -> ModelHeader:
    """Return what a model of the hub is and stores at its revision; asks the hub, and the cache not at all.

    Raises RequestError where one of several GGUF models must be named, UnsupportedError for models and formats that
    are refused, CheckpointError for damaged headers and for whatever keeps the hub from answering
    (`hub_errors.why_unanswered` tells these apart).
    """
    hub = Hub(HEADER_PATIENCE)
    listing = hub.look_up(name.repository, name.revision)
    if name.quantization is None and CONFIG_NAME in listing.files and not _has_weights(listing):
        spec, quantization = _read_spec(hub, listing, allow_unknown_config_keys)
        note = f"{name.repository} holds no weights: planned from its {CONFIG_NAME} alone; {NOT_KNOWN}"
        return ModelHeader(str(name), spec, "config", "hub", None, quantization, (note,))
    choice = hub.choose(listing, name.quantization)
    if choice.format == "gguf":
        return _gguf_header(hub, listing, choice.weights, str(name), allow_unknown_config_keys)
    refuse_adapter(choice.weights, name.repository)
    spec, quantization = _read_spec(hub, listing, allow_unknown_config_keys)
    tensors = _safetensors(hub, listing, choice.weights)
    return safetensors_header(tensors, spec, quantization, str(name), "hub", name.repository)


def _has_weights(listing: Listing) -> bool:
    return any(name.endswith(WEIGHT_SUFFIXES) or name == safetensors.ADAPTER_NAME for name in listing.files)


def _read_spec(hub: Hub, listing: Listing, allow_unknown_config_keys: bool) -> tuple[ModelSpec, str | None]:
    config = hub.read_json(listing, CONFIG_NAME)
    return read_model_config(config, f"{listing.repository}/{CONFIG_NAME}", allow_unknown_config_keys)


def _safetensors(hub: Hub, listing: Listing, weights: tuple[str, ...]) -> dict[str, StoredTensor]:
    """Return the tensors of a model's files, whose headers are fetched a few at once."""
    headers: dict[str, dict[str, StoredTensor]] = {}
    index_path = Path(listing.repository, safetensors.INDEX_NAME)
    weight_map: dict[str, str] | None = None
    if safetensors.SINGLE_NAME not in weights and safetensors.INDEX_NAME in listing.files:
        index = hub.read_json(listing, safetensors.INDEX_NAME, safetensors.INDEX_LIMIT_BYTES)
        weight_map = safetensors.read_weight_map(index, index_path)

    def read(name: str) -> None:
        headers[name] = safetensors.read_header(_remote_file(hub, listing, name))

    run_all([partial(read, name) for name in weights], hub.stop)
    if weight_map is None:
        return headers[weights[0]]
    return safetensors.join_shards(weight_map, ((name, headers[name]) for name in weights), index_path)


def _gguf_header(
    hub: Hub, listing: Listing, parts: tuple[str, ...], name: str, allow_unknown_config_keys: bool
) -> ModelHeader:
    headers: dict[str, tuple[GgufMetadata, dict[str, StoredTensor]]] = {}
    paths = tuple(Path(listing.repository, part) for part in parts)
    first = _remote_file(hub, listing, parts[0], FIRST_PART_BYTES)
    end = first.bring(min(FIRST_PART_BYTES, first.size_bytes))
    # The encodings, which running a model depends on, are no reason to refuse it here.
    check_beginning(first.map[:end], None, str(paths[0]))

    def read(part: str) -> None:
        file = first if part == parts[0] else _remote_file(hub, listing, part, LATER_PART_BYTES)
        headers[part] = read_gguf_header(file)

    run_all([partial(read, part) for part in parts], hub.stop)
    files = join_parts(paths, (headers[part] for part in parts))
    spec = read_gguf_spec(
        files,
        rope_freqs=_published_rope_freqs(files.tensors.get(ROPE_FREQS)),
        allow_unknown_config_keys=allow_unknown_config_keys,
    )
    return gguf_header(files, spec, name, "hub")


def _published_rope_freqs(tensor: StoredTensor | None) -> NDArray[np.float32] | None:
    """Return what the tensor of RoPE divisors holds in files of every published Gemma 4, for it is not fetched.

    No size depends on the values: ones for the quarter of the pairs that turn (partial_rotary_factor 0.25), 1e30 for
    the rest. Raises CheckpointError for a tensor of another shape.
    """
    import numpy as np

    if tensor is None:
        return None
    check_rope_freqs(tensor)
    divisors = np.full(tensor.num_rows, 1e30, dtype=np.float32)
    divisors[: int(tensor.num_rows * _PUBLISHED_ROTARY_FACTOR)] = 1.0
    return divisors


def _remote_file(hub: Hub, listing: Listing, name: str, first_bytes: int | None = None) -> PartialFile:
    fetch = partial(hub.read_range, listing, name)
    return PartialFile(Path(listing.repository, name), listing.files[name].size_bytes, fetch, first_bytes=first_bytes)
