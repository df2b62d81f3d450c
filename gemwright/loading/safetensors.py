"""Reads safetensors: one file, or an index with shards; memory-mapped, checked as strictly as the format asks.

Refuses to know what the tensors mean, and refuses pickled weights, whose loading runs code from the file.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from math import prod
from pathlib import Path
from typing import Any

from gemwright.errors import CheckpointError, UnsupportedError
from gemwright.loading.encodings import SAFETENSORS_ENCODINGS
from gemwright.loading.json_files import parse_json_object, read_json_object
from gemwright.loading.mapped_file import MappedFile, shown
from gemwright.loading.stored_tensor import StoredTensor

SINGLE_NAME = "model.safetensors"
INDEX_NAME = "model.safetensors.index.json"

_LENGTH_BYTES = 8
_HEADER_LIMIT_BYTES = 100_000_000
INDEX_LIMIT_BYTES = 100_000_000
_FILE_NAME_LIMIT = 255
_RANK_LIMIT = 16
_DIMENSION_LIMIT = 1 << 62
PICKLED_SUFFIXES = (".bin", ".pt", ".pth", ".ckpt", ".pkl", ".pickle", ".bin.index.json")
"""Names of pickled weights, and of the index that lists them."""
ADAPTER_NAME = "adapter_config.json"
_SHARD_NAME = re.compile(r"-\d{5}-of-(\d{5})\.safetensors$")


class SafetensorsCheckpoint:
    """The tensors of one safetensors file or of all shards of an index, by their names in the files."""

    def __init__(self, paths: tuple[Path, ...], tensors: dict[str, StoredTensor]) -> None:
        self.paths = paths
        self.tensors = tensors

    def release(self) -> None:
        """Drop the pages of all files from the resident set."""
        for file in {id(tensor.file): tensor.file for tensor in self.tensors.values()}.values():
            file.release()


def open_safetensors(path: Path) -> SafetensorsCheckpoint:
    """Open a .safetensors file, an index, or a folder that holds either.

    Raises CheckpointError for missing and damaged files, UnsupportedError where there are only pickled weights.
    """
    if not path.is_dir():
        if path.name.endswith(".index.json"):
            return _open_index(path)
        return SafetensorsCheckpoint((path,), read_header(MappedFile(path)))
    single, index = path / SINGLE_NAME, path / INDEX_NAME
    if _lies_there(single):
        return SafetensorsCheckpoint((single,), read_header(MappedFile(single)))
    if _lies_there(index):
        return _open_index(index)
    return _open_unlisted(path)


def read_header(file: MappedFile) -> dict[str, StoredTensor]:
    """Return the tensors of one mapped safetensors file; CheckpointError when its header cannot be true.

    The file is: 8 bytes length N (little endian), N bytes JSON, then the data, which the tensors fill without a gap.
    """
    where = str(file.path)
    if file.size_bytes < _LENGTH_BYTES:
        raise CheckpointError(f"{where}: too short for safetensors", value=f"{file.size_bytes} bytes", limit=8)
    file.bring(_LENGTH_BYTES)
    header_bytes = int.from_bytes(file.map[:_LENGTH_BYTES], "little")
    limit_bytes = min(_HEADER_LIMIT_BYTES, file.size_bytes - _LENGTH_BYTES)
    if header_bytes > limit_bytes:
        raise CheckpointError(
            f"{where}: the header's length field is not possible: not safetensors, or cut short",
            value=header_bytes,
            limit=limit_bytes,
            remedy="fetch or copy the file again",
        )
    file.bring(_LENGTH_BYTES + header_bytes)
    header = file.map[_LENGTH_BYTES : _LENGTH_BYTES + header_bytes]
    if not header.startswith(b"{"):
        raise CheckpointError(f"{where}: the header is not a JSON object")
    entries = parse_json_object(header, f"{where}: header")
    _check_metadata(entries.pop("__metadata__", None), where)
    data_begin = _LENGTH_BYTES + header_bytes
    spans: list[tuple[int, int, str]] = []
    tensors: dict[str, StoredTensor] = {}
    for name, entry in entries.items():
        tensor, end = _read_entry(file, name, entry, data_begin)
        tensors[name] = tensor
        spans.append((tensor.begin - data_begin, end, name))
    _check_spans(spans, file.size_bytes - data_begin, where)
    return tensors


def _read_entry(file: MappedFile, name: str, entry: Any, data_begin: int) -> tuple[StoredTensor, int]:
    where = f"{file.path}: tensor {shown(name)}"
    if not isinstance(entry, dict) or entry.keys() != {"dtype", "shape", "data_offsets"}:
        keys = ", ".join(sorted(entry)) if isinstance(entry, dict) else type(entry).__name__
        raise CheckpointError(f"{where}: its entry is malformed", value=shown(keys), limit="dtype, shape, data_offsets")
    dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    encoding = SAFETENSORS_ENCODINGS.get(dtype) if isinstance(dtype, str) else None
    if encoding is None:
        raise CheckpointError(
            f"{where}: unknown dtype", value=shown(str(dtype)), limit=", ".join(SAFETENSORS_ENCODINGS)
        )
    if not isinstance(shape, list) or len(shape) > _RANK_LIMIT or not all(_is_size(size) for size in shape):
        raise CheckpointError(f"{where}: impossible shape", value=shown(str(shape)[:300]))
    if not isinstance(offsets, list) or len(offsets) != 2 or not all(_is_size(offset) for offset in offsets):
        raise CheckpointError(f"{where}: impossible data_offsets", value=shown(str(offsets)[:300]))
    begin, end = offsets
    data_bytes = file.size_bytes - data_begin
    if not begin <= end <= data_bytes:
        raise CheckpointError(
            f"{where}: its data lies outside the file, which may be cut short",
            value=f"bytes {begin}..{end}",
            limit=f"0..{data_bytes}",
            remedy="fetch or copy the file again",
        )
    num_elements = prod(shape)
    if num_elements % encoding.block_elements or encoding.num_bytes(num_elements) != end - begin:
        raise CheckpointError(
            f"{where}: shape {shape} of {dtype} does not fill its data",
            value=f"{end - begin} bytes",
            limit=f"{-(-num_elements * encoding.block_bytes // encoding.block_elements)} bytes",
        )
    return StoredTensor(file, name, tuple(shape), encoding, data_begin + begin), end


def _is_size(value: Any) -> bool:
    return type(value) is int and 0 <= value < _DIMENSION_LIMIT


def _check_metadata(metadata: Any, where: str) -> None:
    if metadata is None:
        return
    if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
        raise CheckpointError(f"{where}: __metadata__ must map strings to strings")


def _check_spans(spans: list[tuple[int, int, str]], data_bytes: int, where: str) -> None:
    position = 0
    for begin, end, name in sorted(spans):
        if begin != position:
            problem = "overlaps the tensor before it" if begin < position else "leaves a gap before it"
            raise CheckpointError(f"{where}: tensor {shown(name)} {problem}", value=begin, limit=position)
        position = end
    if position != data_bytes:
        raise CheckpointError(
            f"{where}: bytes after the last tensor", value=f"{data_bytes} bytes of data", limit=f"{position} bytes"
        )


def _open_index(path: Path) -> SafetensorsCheckpoint:
    weight_map = read_weight_map(read_json_object(path, INDEX_LIMIT_BYTES), path)
    shards = sorted(set(weight_map.values()))
    missing = [shard for shard in shards if not _lies_there(path.parent / shard)]
    if missing:
        raise CheckpointError(
            f"{path.parent}: {len(missing)} of {len(shards)} shards are missing",
            value=", ".join(missing[:5]) + (", ..." if len(missing) > 5 else ""),
            remedy="fetch the missing files, or remove the folder and fetch the model again",
        )
    tensors = join_shards(weight_map, ((shard, read_header(MappedFile(path.parent / shard))) for shard in shards), path)
    return SafetensorsCheckpoint(tuple(path.parent / shard for shard in shards), tensors)


def read_weight_map(index: Mapping[str, Any], path: Path) -> dict[str, str]:
    """Return the file that an index names for each tensor.

    Raises CheckpointError where it names none or something that is no file beside it, UnsupportedError for pickles.
    """
    weight_map = index.get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise CheckpointError(f"{path}: weight_map is missing, empty or not an object")
    for name, shard in weight_map.items():
        _check_shard_name(path, name, shard)
    return weight_map


def join_shards(
    weight_map: Mapping[str, str], headers: Iterable[tuple[str, Mapping[str, StoredTensor]]], path: Path
) -> dict[str, StoredTensor]:
    """Return the tensors of all shards, given as pairs of a shard's name and what its header lists.

    Raises CheckpointError where the index at `path` says anything else than the shards do.
    """
    tensors: dict[str, StoredTensor] = {}
    for shard, header in headers:
        for name, tensor in header.items():
            listed = weight_map.get(name)
            if listed != shard:
                raise CheckpointError(
                    f"{path}: tensor {shown(name)} lies in {shard}",
                    value="not listed" if listed is None else f"listed in {listed}",
                    remedy="index and shards are of different checkpoints: fetch them again",
                )
            tensors[name] = tensor
    for name, shard in weight_map.items():
        if name not in tensors:
            raise CheckpointError(f"{path}: tensor {shown(name)} is listed in {shard}, which does not hold it")
    return tensors


def _check_shard_name(index: Path, name: str, shard: Any) -> None:
    if not isinstance(shard, str) or not shard or shard in (".", "..") or any(c in shard for c in "/\\\0"):
        raise CheckpointError(
            f"{index}: the shard of tensor {shown(name)} is not a plain file name",
            value=shown(str(shard)),
            limit="the name of a file in the same folder",
        )
    if not shard.isprintable() or len(shard) > _FILE_NAME_LIMIT:
        raise CheckpointError(f"{index}: the shard of tensor {shown(name)} is no file's name", value=shown(shard))
    if shard.endswith(PICKLED_SUFFIXES):
        raise pickled_weights(index.parent / shard)
    if not shard.endswith(".safetensors"):
        raise CheckpointError(
            f"{index}: the shard of tensor {shown(name)} is not a .safetensors file", value=shown(shard)
        )


def _open_unlisted(folder: Path) -> SafetensorsCheckpoint:
    try:
        names = sorted(entry.name for entry in folder.iterdir())
    except OSError as error:
        raise CheckpointError(f"{folder}: cannot be listed", value=error) from error
    weights = [name for name in names if name.endswith(".safetensors")]
    shards = [name for name in weights if (match := _SHARD_NAME.search(name)) and int(match[1]) > 1]
    if len(weights) == 1 and not shards:
        return open_safetensors(folder / weights[0])
    if weights:
        raise CheckpointError(
            f"{folder}: {INDEX_NAME} is missing, which says what lies in which of the {len(weights)} files",
            value=", ".join(weights[:5]) + (", ..." if len(weights) > 5 else ""),
            remedy="fetch the index too",
        )
    pickled = [name for name in names if name.endswith(PICKLED_SUFFIXES)]
    if pickled:
        raise pickled_weights(folder / pickled[0])
    raise CheckpointError(
        f"{folder}: no weights",
        limit=f"{SINGLE_NAME}, {INDEX_NAME} with its shards, or one .gguf file",
        remedy="fetch one of these for the model too",
    )


def adapter_alone(source: object) -> UnsupportedError:
    """Return the error that refuses an adapter, such as LoRA, without its model; the caller raises it."""
    return UnsupportedError(
        f"{source} is an adapter to a model, not a model",
        remedy="merge it into its base model (merge_and_unload of PEFT), and name the result",
    )


def pickled_weights(path: Path) -> UnsupportedError:
    """Return the error that refuses a pickled file; the caller raises it."""
    return UnsupportedError(
        f"{path}: pickled weights can run code when they are loaded, so they are not",
        remedy="convert the checkpoint to safetensors (save_pretrained of transformers writes it)",
    )


def _lies_there(path: Path) -> bool:
    try:
        return path.exists()
    except (OSError, ValueError):
        return False
