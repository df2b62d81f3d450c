"""Opens GGUF models: one file, or a set split into parts named `-00001-of-0000N.gguf`.

Refuses to know what keys and tensors mean.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from gemwright.errors import CheckpointError
from gemwright.loading.gguf_header import GgufMetadata, read_header
from gemwright.loading.mapped_file import MappedFile, shown
from gemwright.loading.stored_tensor import StoredTensor

_PART_NAME = re.compile(r"^(?P<stem>.*)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf$", re.DOTALL)


class GgufCheckpoint:
    """The metadata and the tensors of a GGUF model, parts joined."""

    def __init__(self, paths: tuple[Path, ...], metadata: GgufMetadata, tensors: dict[str, StoredTensor]) -> None:
        self.paths = paths
        self.metadata = metadata
        self.tensors = tensors

    def release(self) -> None:
        """Drop the pages of all parts from the resident set."""
        for file in {id(tensor.file): tensor.file for tensor in self.tensors.values()}.values():
            file.release()


def part_paths(path: Path) -> tuple[Path, ...]:
    """Return all parts of the set that the file name `path` speaks of, in order; the path itself where it is no part.

    Raises CheckpointError for a part number that cannot be.
    """
    match = _PART_NAME.match(path.name)
    if match is None:
        return (path,)
    number, count = int(match["number"]), int(match["count"])
    if not 1 <= number <= count:
        raise CheckpointError(f"{path}: part number in the name", value=number, limit=f"1 to {count}")
    return tuple(path.with_name(f"{match['stem']}-{index:05d}-of-{count:05d}.gguf") for index in range(1, count + 1))


def open_gguf(path: Path) -> GgufCheckpoint:
    """Open a GGUF file; any part of a split set opens the whole set.

    Raises CheckpointError for damaged files and missing parts, UnsupportedError for kinds of GGUF that are refused.
    """
    paths = part_paths(path)
    for missing in paths:
        if not missing.exists():
            raise CheckpointError(
                f"{missing}: no such file",
                value=None if len(paths) == 1 else f"part {paths.index(missing) + 1} of {len(paths)}",
                remedy=None if len(paths) == 1 else "put all parts in one folder",
            )
    return join_parts(paths, (read_header(MappedFile(part)) for part in paths))


def join_parts(
    paths: tuple[Path, ...], headers: Iterable[tuple[GgufMetadata, dict[str, StoredTensor]]]
) -> GgufCheckpoint:
    """Return the model whose parts have these headers, in order; CheckpointError where they do not fit together."""
    headers = iter(headers)
    metadata, tensors = next(headers)
    _check_split(paths[0], metadata, 0, len(paths))
    for index, (part_metadata, part_tensors) in enumerate(headers, start=1):
        _check_split(paths[index], part_metadata, index, len(paths))
        for name, tensor in part_tensors.items():
            if name in tensors:
                raise CheckpointError(f"{tensor.describe()} lies in {tensors[name].file.path.name} too")
            tensors[name] = tensor
    expected = metadata.get("split.tensors.count")
    if expected is not None and (type(expected) is not int or expected != len(tensors)):
        raise CheckpointError(
            f"{paths[0]}: split.tensors.count", value=shown(str(expected)), limit=f"{len(tensors)} tensors in all parts"
        )
    return GgufCheckpoint(paths, metadata, tensors)


def _check_split(path: Path, metadata: GgufMetadata, index: int, num_parts: int) -> None:
    count, number = metadata.get("split.count", 1), metadata.get("split.no", 0)
    if type(count) is int and count == 0:
        # Merging tools leave a count of 0 in a file that is whole again.
        count = 1
    if type(count) is not int or count != num_parts:
        raise CheckpointError(
            f"{path}: split.count",
            value=shown(str(count)),
            limit=f"{num_parts}, going by the file's name",
            remedy="parts of a split model must keep their names, -00001-of-0000N.gguf, and lie in one folder",
        )
    if type(number) is not int or number != index:
        raise CheckpointError(f"{path}: split.no", value=shown(str(number)), limit=f"{index}, going by the file's name")
