"""What a model on this machine is and stores, from the headers of its files: a folder, a GGUF file, a config.json.

No weights are read. Refuses to know the network: models of the hub that are not in the cache are read by hub_headers.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, Literal

from gemwright.errors import CheckpointError, show_bytes
from gemwright.loading.checkpoint import ROPE_FREQS, locate_files, read_gguf_spec, read_rope_freqs
from gemwright.loading.gguf import GgufCheckpoint, join_parts, open_gguf
from gemwright.loading.gguf_header import read_header
from gemwright.loading.hub_cache import Snapshot, find_snapshot, locate_model
from gemwright.loading.hub_files import CONFIG_NAME, label_of
from gemwright.loading.hub_name import HubName
from gemwright.loading.json_files import read_json_object
from gemwright.loading.mapped_file import shown
from gemwright.loading.matching import match_gguf, match_safetensors
from gemwright.loading.partial_file import PartialFile
from gemwright.loading.safetensors import ADAPTER_NAME, INDEX_NAME, PICKLED_SUFFIXES, adapter_alone, open_safetensors
from gemwright.loading.stored_tensor import StoredTensor
from gemwright.spec.families import quantization_label, read_config
from gemwright.spec.model_header import HeaderTensor, ModelHeader
from gemwright.spec.model_spec import ModelSpec

Origin = Literal["hub", "cache", "folder", "file", "published"]

WEIGHT_SUFFIXES: Final = (".safetensors", ".safetensors.index.json", ".gguf", *PICKLED_SUFFIXES)
NOT_KNOWN: Final = "which tensors its files hold, and how these are encoded, is not known"
"""What a config does not tell."""
_CHUNK_BYTES: Final = 1 << 20
_ADAPTER_WEIGHTS: Final = "adapter_model.safetensors"
_SHOWN_NAMES: Final = 3
_FLOAT_LABELS: Final = frozenset({"f32", "f16", "bf16"})

# `llama_ftype` of llama.cpp's llama.h, as general.file_type holds it; the floats 0, 1 and 32 are no quantizations.
_FILE_TYPES: Final[Mapping[int, str]] = {
    2: "q4_0",
    3: "q4_1",
    7: "q8_0",
    8: "q5_0",
    9: "q5_1",
    10: "q2_k",
    11: "q3_k_s",
    12: "q3_k_m",
    13: "q3_k_l",
    14: "q4_k_s",
    15: "q4_k_m",
    16: "q5_k_s",
    17: "q5_k_m",
    18: "q6_k",
    19: "iq2_xxs",
    20: "iq2_xs",
    21: "q2_k_s",
    22: "iq3_xs",
    23: "iq3_xxs",
    24: "iq1_s",
    25: "iq4_nl",
    26: "iq3_s",
    27: "iq3_m",
    28: "iq2_s",
    29: "iq2_m",
    30: "iq4_xs",
    31: "iq1_m",
    36: "tq1_0",
    37: "tq2_0",
    38: "mxfp4_moe",
}


def local_header(
    path: Path, name: str | None = None, *, origin: Origin | None = None, allow_unknown_config_keys: bool = False
) -> ModelHeader:
    """Return what a folder, a GGUF file (any part of a split one) or a config.json alone tells.

    `name` is what the user called it, the path where left out; `origin` where it comes from, where not "folder" or
    "file". A folder that holds config.json and no weights is read as its config.json. Raises CheckpointError for what
    is missing, damaged or contradicts itself, UnsupportedError for models, adapters and formats that are refused.
    """
    name = str(path) if name is None else name
    if path.name.endswith(".json") and not path.name.endswith(".index.json") and path.is_file():
        note = f"planned from {path.name} alone: {NOT_KNOWN}"
        return config_header(path, name, origin or "file", note, allow_unknown_config_keys=allow_unknown_config_keys)
    if _holds_config_alone(path):
        note = f"no weights lie in {path}: planned from its {CONFIG_NAME} alone; {NOT_KNOWN}"
        return config_header(
            path / CONFIG_NAME, name, origin or "folder", note, allow_unknown_config_keys=allow_unknown_config_keys
        )
    kind, found = locate_files(path)
    origin = origin or ("folder" if path.is_dir() else "file")
    if kind == "gguf":
        files = open_gguf(found)
        spec = read_gguf_spec(
            files,
            rope_freqs=read_rope_freqs(files.tensors.get(ROPE_FREQS)),
            allow_unknown_config_keys=allow_unknown_config_keys,
        )
        return gguf_header(files, spec, name, origin)
    config_path = found / CONFIG_NAME
    spec, quantization = read_model_config(read_json_object(config_path), str(config_path), allow_unknown_config_keys)
    checkpoint = open_safetensors(found)
    refuse_adapter([file.name for file in checkpoint.paths], str(path))
    return safetensors_header(checkpoint.tensors, spec, quantization, name, origin, str(path))


def cached_header(name: HubName, *, allow_unknown_config_keys: bool = False) -> ModelHeader | None:
    """Return what a model of the hub is and stores, where all its headers lie in the local cache; else None.

    Asks no network. Raises as `local_header`, and RequestError for a name that leaves open which model is meant.
    """
    snapshot = find_snapshot(name.repository, name.revision)
    if snapshot is None or not any(file.endswith(WEIGHT_SUFFIXES) for file in snapshot.files):
        return None
    if _lacks_index(snapshot):
        return None
    located = locate_model(snapshot, name.quantization)
    if located.choice is None or located.path is None:
        return None
    needed = {CONFIG_NAME, INDEX_NAME, *located.choice.weights}
    if needed.intersection(located.missing):
        return None
    return local_header(located.path, str(name), origin="cache", allow_unknown_config_keys=allow_unknown_config_keys)


def cached_config_header(name: HubName, note: str, *, allow_unknown_config_keys: bool = False) -> ModelHeader | None:
    """Return what the config.json of a model of the hub tells, where the local cache holds it; else None.

    For models whose weights are not here. Raises CheckpointError and UnsupportedError for a config that is refused.
    """
    snapshot = find_snapshot(name.repository, name.revision)
    if snapshot is None or name.quantization is not None or not snapshot.has(CONFIG_NAME):
        return None
    return config_header(
        snapshot.folder / CONFIG_NAME,
        str(name),
        "cache",
        note,
        allow_unknown_config_keys=allow_unknown_config_keys,
    )


def config_header(
    path: Path, name: str, origin: Origin, *notes: str, allow_unknown_config_keys: bool = False
) -> ModelHeader:
    """Return what a config.json tells on its own. Raises as `read_model_config`."""
    spec, quantization = read_model_config(read_json_object(path), str(path), allow_unknown_config_keys)
    return ModelHeader(name, spec, "config", origin, None, quantization, notes)


def read_model_config(
    config: Mapping[str, Any], source: str, allow_unknown_config_keys: bool = False
) -> tuple[ModelSpec, str | None]:
    """Return the spec that a config.json describes, and the name of its quantization if it has one.

    Raises UnsupportedError for models that are refused, CheckpointError where keys are missing or contradict.
    """
    spec = read_config(config, source=source, allow_unknown_keys=allow_unknown_config_keys, allow_quantized=True)
    return spec, quantization_label(config, source=source)


def chunk_header(chunk: Path, file_name: str, size_bytes: int, name: str, *notes: str) -> ModelHeader:
    """Return what the first piece of a GGUF file tells, whose whole would be `size_bytes` long and called `file_name`.

    Raises CheckpointError where the piece is damaged or ends within the header.
    """

    def fetch(begin: int, end: int) -> bytes:
        with chunk.open("rb") as file:
            file.seek(begin)
            content = file.read(end - begin)
        if len(content) < end - begin:
            raise CheckpointError(f"{chunk}: ends within the header", value=f"{begin + len(content)} bytes", limit=end)
        return content

    path = Path(file_name)
    files = join_parts((path,), [read_header(PartialFile(path, size_bytes, fetch, first_bytes=_CHUNK_BYTES))])
    header = gguf_header(files, read_gguf_spec(files, rope_freqs=None), name, "file")
    return replace(header, notes=(*header.notes, *notes))


def gguf_header(files: GgufCheckpoint, spec: ModelSpec, name: str, origin: Origin) -> ModelHeader:
    """Return what a GGUF model tells, given the spec that its metadata describes. Raises as `safetensors_header`."""
    quantization = gguf_quantization(files.paths[0].name, files.metadata)
    left_over = match_gguf(spec, files.tensors, str(files.paths[0]), for_plan=True).left_over
    return _whole_header(files.tensors, spec, "gguf", quantization, name, origin, left_over)


def safetensors_header(
    tensors: Mapping[str, StoredTensor],
    spec: ModelSpec,
    quantization: str | None,
    name: str,
    origin: Origin,
    source: str,
) -> ModelHeader:
    """Return what a safetensors model tells, given what its config describes; `source` names it in messages.

    Raises CheckpointError where tensors are missing or of other shapes than the config says. Quantized files, which
    rename and pack their tensors, are taken as they are.
    """
    left_over: tuple[str, ...] = ()
    if quantization is None:
        left_over = match_safetensors(spec, tensors, source, for_plan=True).left_over
    return _whole_header(tensors, spec, "safetensors", quantization, name, origin, left_over)


def _whole_header(
    tensors: Mapping[str, StoredTensor],
    spec: ModelSpec,
    file_format: Literal["safetensors", "gguf"],
    quantization: str | None,
    name: str,
    origin: Origin,
    left_over: tuple[str, ...],
) -> ModelHeader:
    notes: tuple[str, ...] = ()
    if left_over:
        size = show_bytes(sum(tensors[spare].num_bytes for spare in left_over))
        some = ", ".join(shown(spare) for spare in left_over[:_SHOWN_NAMES])
        more = ", ..." if len(left_over) > _SHOWN_NAMES else ""
        notes = (
            f"tensors that no layer uses: {len(left_over)} of {len(tensors)}, {size} ({some}{more}); they are counted "
            "as unused, and Gemwright does not run a checkpoint that holds them",
        )
    listed = listed_tensors(tensors.values())
    spares = frozenset(left_over)
    return ModelHeader(name, spec, file_format, origin, listed, quantization, notes, left_over=spares)


def gguf_quantization(file_name: str, metadata: Mapping[str, Any]) -> str | None:
    """Return the quantization of a GGUF model in lower case, from its file's name, else from general.file_type.

    None for one that is not quantized, or does not say.
    """
    label = label_of(file_name)
    if label is not None:
        return None if label.lower() in _FLOAT_LABELS else label.lower()
    file_type = metadata.get("general.file_type")
    return _FILE_TYPES.get(file_type) if type(file_type) is int else None


def listed_tensors(tensors: Iterable[StoredTensor]) -> tuple[HeaderTensor, ...]:
    """Return the tensors of all files of a model as its headers list them."""
    return tuple(HeaderTensor(tensor.name, tensor.shape, tensor.encoding, tensor.num_bytes) for tensor in tensors)


def refuse_adapter(weights: Iterable[str], source: str) -> None:
    """Raise UnsupportedError where the only weights are those of an adapter, such as LoRA."""
    if tuple(weights) == (_ADAPTER_WEIGHTS,):
        raise adapter_alone(source)


def _holds_config_alone(path: Path) -> bool:
    """Whether a folder holds config.json and no weights in any format. Raises CheckpointError for one that hides it."""
    try:
        names = [entry.name for entry in path.iterdir()] if path.is_dir() else []
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be listed", value=error.strerror) from error
    return CONFIG_NAME in names and not any(name.endswith(WEIGHT_SUFFIXES) or name == ADAPTER_NAME for name in names)


def _lacks_index(snapshot: Snapshot) -> bool:
    """Whether shards came into the cache before what lists them, with nobody having noted what there is."""
    weights = [name for name in snapshot.files if name.endswith(".safetensors")]
    return snapshot.listing is None and len(weights) > 1 and INDEX_NAME not in snapshot.files
