"""Reads the header of one GGUF file: metadata and where the tensors lie, without touching their data.

Long arrays are walked, not decoded: numbers become views of the mapped file, strings are decoded when first looked at.
A count, length or offset is believed only as far as the file has bytes for it, so a lie costs neither time nor memory.
Refuses to know what keys and tensors mean. Layout: the GGUF specification, versions 2 and 3, little endian.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Iterator, Mapping
from math import prod
from typing import Any

from gemwright.errors import CheckpointError, UnsupportedError
from gemwright.loading.encodings import GGML_ENCODINGS
from gemwright.loading.mapped_file import MappedFile, shown
from gemwright.loading.stored_tensor import StoredTensor

_MAGIC = b"GGUF"
_VERSIONS = (2, 3)
_DEFAULT_ALIGNMENT = 32
_NAME_LIMIT_BYTES = 65535
_AXES_LIMIT = 4
_DIMENSION_LIMIT = 1 << 62
_MINIMUM_KEY_BYTES = 8 + 1 + 4 + 1
_MINIMUM_TENSOR_BYTES = 8 + 1 + 4 + 8 + 4 + 8

_BOOL, _STRING, _ARRAY = 7, 8, 9
_SCALARS = {
    number: struct.Struct("<" + code)
    for number, code in {
        0: "B",
        1: "b",
        2: "H",
        3: "h",
        4: "I",
        5: "i",
        6: "f",
        7: "B",
        10: "Q",
        11: "q",
        12: "d",
    }.items()
}
_ARRAY_DTYPES = {
    0: "<u1", 1: "<i1", 2: "<u2", 3: "<i2", 4: "<u4", 5: "<i4", 6: "<f4", 7: "<u1", 10: "<u8", 11: "<i8", 12: "<f8"
}  # fmt: skip
"""As numpy spells them."""
_UINT32 = _SCALARS[4]
_UINT64 = _SCALARS[10]


class StringArray:
    """A string array of a GGUF file that has been walked and checked, but not decoded."""

    def __init__(self, file: MappedFile, key: str, begin: int, ends: array[int]) -> None:
        self._file = file
        self._key = key
        self._begin = begin
        self._ends = ends

    def __len__(self) -> int:
        return len(self._ends)

    def raw(self) -> list[bytes]:
        """Return the strings as the bytes that lie in the file."""
        base = begin = self._begin
        content = self._file.map[base : self._ends[-1]] if self._ends else b""
        found = []
        for end in self._ends:
            found.append(content[begin - base + 8 : end - base])
            begin = end
        return found

    def decode(self) -> list[str]:
        """Return the strings; CheckpointError for one that is not UTF-8."""
        raw = self.raw()
        try:
            return [text.decode() for text in raw]
        except UnicodeDecodeError as error:
            index = raw.index(error.object)
            raise CheckpointError(
                f"{self._file.path}: {shown(self._key)}: string {index} is not UTF-8", value=error.object[:40]
            ) from error


class GgufMetadata(Mapping[str, Any]):
    """The metadata of a GGUF file as Python values.

    Numbers are int or float, bools bool, strings str, numeric arrays read-only numpy views, string arrays list[str],
    decoded when first asked for. Looking at a string that is not UTF-8 raises CheckpointError.
    """

    def __init__(self, values: dict[str, Any]) -> None:
        self._values = values
        self._decoded: dict[str, list[str]] = {}

    def __getitem__(self, key: str) -> Any:
        value = self._values[key]
        if not isinstance(value, StringArray):
            return value
        if key not in self._decoded:
            self._decoded[key] = value.decode()
        return self._decoded[key]

    def __contains__(self, key: object) -> bool:
        return key in self._values

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def array_length(self, key: str) -> int | None:
        """Return the length of the array `key` without decoding it; None where the key is absent or no array."""
        import numpy as np

        value = self._values.get(key)
        return len(value) if isinstance(value, (StringArray, np.ndarray)) else None

    def raw_strings(self, key: str) -> list[bytes]:
        """Return the string array `key` as bytes, not decoded; KeyError where it is absent or no string array."""
        value = self._values[key]
        if not isinstance(value, StringArray):
            raise KeyError(key)
        return value.raw()


def read_header(file: MappedFile) -> tuple[GgufMetadata, dict[str, StoredTensor]]:
    """Return metadata and tensors of one mapped GGUF file.

    Raises CheckpointError when the header cannot be true, UnsupportedError for versions, byte orders and tensor types
    that are understood and refused.
    """
    cursor = _Cursor(file)
    _check_version(file, cursor)
    num_tensors = cursor.count("tensor count", _MINIMUM_TENSOR_BYTES)
    num_keys = cursor.count("metadata count", _MINIMUM_KEY_BYTES)
    values: dict[str, Any] = {}
    for index in range(num_keys):
        key = cursor.name(f"metadata key {index}")
        if key in values:
            raise CheckpointError(f"{file.path}: metadata key {shown(key)} stands twice")
        values[key] = cursor.value(key, cursor.unsigned32(f"type of {shown(key)}"))
    entries = [_read_entry(file, cursor, index) for index in range(num_tensors)]
    alignment = _read_alignment(file, values)
    data_begin = -(-cursor.position // alignment) * alignment
    tensors: dict[str, StoredTensor] = {}
    for name, shape, type_number, offset in entries:
        if name in tensors:
            raise CheckpointError(f"{file.path}: tensor {shown(name)} stands twice")
        tensors[name] = StoredTensor(file, name, shape, GGML_ENCODINGS[type_number], data_begin + offset)
    _check_spans(file, tensors, data_begin, alignment)
    return GgufMetadata(values), tensors


class _Cursor:
    """A reading position in the header; every read checks that the file has the bytes."""

    def __init__(self, file: MappedFile) -> None:
        self.file = file
        self.position = len(_MAGIC)

    def take(self, num_bytes: int, what: str) -> int:
        """Step over `num_bytes` and return where they begin."""
        begin = self.position
        if num_bytes > self.file.size_bytes - begin:
            raise CheckpointError(
                f"{self.file.path}: {what} runs past the end of the file",
                value=f"{num_bytes} bytes at {begin}",
                limit=f"{self.file.size_bytes} bytes in the file",
                remedy="fetch or copy the file again",
            )
        self.position = begin + num_bytes
        self.file.bring(self.position)
        return begin

    def unsigned32(self, what: str) -> int:
        return int(_UINT32.unpack_from(self.file.map, self.take(4, what))[0])

    def unsigned64(self, what: str) -> int:
        return int(_UINT64.unpack_from(self.file.map, self.take(8, what))[0])

    def count(self, what: str, minimum_bytes: int) -> int:
        """Return a 64-bit count of things of at least `minimum_bytes` each, which the rest of the file must hold."""
        count = self.unsigned64(what)
        limit = (self.file.size_bytes - self.position) // minimum_bytes
        if count > limit:
            raise CheckpointError(
                f"{self.file.path}: {what} is more than the file has room for", value=count, limit=limit
            )
        return count

    def text(self, what: str, limit_bytes: int | None = None) -> str:
        num_bytes = self.unsigned64(f"length of {what}")
        if limit_bytes is not None and not 0 < num_bytes <= limit_bytes:
            raise CheckpointError(
                f"{self.file.path}: length of {what}", value=num_bytes, limit=f"1 to {limit_bytes} bytes"
            )
        begin = self.take(num_bytes, what)
        content = self.file.map[begin : self.position]
        try:
            return content.decode()
        except UnicodeDecodeError as error:
            raise CheckpointError(f"{self.file.path}: {what} is not UTF-8", value=content[:40]) from error

    def name(self, what: str) -> str:
        return self.text(what, _NAME_LIMIT_BYTES)

    def value(self, key: str, type_number: int) -> Any:
        """Read the value of `key`."""
        if type_number == _STRING:
            return self.text(f"value of {shown(key)}")
        if type_number == _ARRAY:
            return self.array(key)
        scalar = _SCALARS.get(type_number)
        if scalar is None:
            raise CheckpointError(
                f"{self.file.path}: type of {shown(key)}", value=type_number, limit="a GGUF value type, 0 to 12"
            )
        value = scalar.unpack_from(self.file.map, self.take(scalar.size, f"value of {shown(key)}"))[0]
        if type_number != _BOOL:
            return value
        if value > 1:
            raise CheckpointError(f"{self.file.path}: {shown(key)} is no bool", value=value, limit="0 or 1")
        return bool(value)

    def array(self, key: str) -> Any:
        import numpy as np

        what = f"array {shown(key)}"
        type_number = self.unsigned32(f"element type of {what}")
        if type_number == _ARRAY:
            raise CheckpointError(f"{self.file.path}: {what} is an array of arrays, which no model file needs")
        if type_number == _STRING:
            return self.string_array(key, self.count(f"length of {what}", 8))
        if type_number not in _ARRAY_DTYPES:
            raise CheckpointError(
                f"{self.file.path}: element type of {what}", value=type_number, limit="a GGUF value type, 0 to 12"
            )
        dtype = np.dtype(_ARRAY_DTYPES[type_number])
        length = self.count(f"length of {what}", dtype.itemsize)
        begin = self.take(length * dtype.itemsize, what)
        elements = self.file.array(begin, self.position).view(dtype)
        if type_number != _BOOL:
            return elements
        if length and int(elements.max()) > 1:
            raise CheckpointError(f"{self.file.path}: {what} holds a value that is no bool", limit="0 or 1")
        return elements.view(np.bool_)

    def string_array(self, key: str, length: int) -> StringArray:
        begin = position = self.position
        content, size_bytes, unpack = self.file.map, self.file.size_bytes, _UINT64.unpack_from
        ends = array("Q")
        append = ends.append
        here_bytes = self.file.bring(position)
        try:
            for _ in range(length):
                if position + 8 > here_bytes:
                    if position + 8 > size_bytes:
                        # Nothing is fetched for a length that lies.
                        raise struct.error
                    here_bytes = self.file.bring(position + 8)
                position += 8 + unpack(content, position)[0]
                append(position)
        except (struct.error, OverflowError):
            position = size_bytes + 1
        if position > size_bytes:
            # A length that lies makes the next read fail, or is the last: either way this is the string to blame.
            blamed = max(0, sum(end <= size_bytes for end in ends))
            raise CheckpointError(
                f"{self.file.path}: array {shown(key)}: string {blamed} runs past the end of the file",
                limit=f"{size_bytes} bytes in the file",
                remedy="fetch or copy the file again",
            )
        self.position = position
        self.file.bring(position)
        return StringArray(self.file, key, begin, ends)


def _check_version(file: MappedFile, cursor: _Cursor) -> None:
    file.bring(min(len(_MAGIC), file.size_bytes))
    if file.map[: len(_MAGIC)] != _MAGIC:
        raise CheckpointError(f"{file.path}: not a GGUF file", value=file.map[:4], limit=_MAGIC)
    version = cursor.unsigned32("version")
    if version in _VERSIONS:
        return
    if int.from_bytes(version.to_bytes(4, "little"), "big") in (1, *_VERSIONS):
        raise UnsupportedError(
            f"{file.path}: a big-endian GGUF file",
            limit="little endian",
            remedy="convert it with gguf_convert_endian.py",
        )
    raise UnsupportedError(
        f"{file.path}: GGUF version", value=version, limit="2 or 3", remedy="convert the model again"
    )


def _read_alignment(file: MappedFile, values: dict[str, Any]) -> int:
    alignment = values.get("general.alignment", _DEFAULT_ALIGNMENT)
    if type(alignment) is not int or alignment <= 0 or alignment & (alignment - 1):
        raise CheckpointError(f"{file.path}: general.alignment", value=shown(str(alignment)), limit="a power of two")
    return alignment


def _read_entry(file: MappedFile, cursor: _Cursor, index: int) -> tuple[str, tuple[int, ...], int, int]:
    name = cursor.name(f"name of tensor {index}")
    where = f"tensor {shown(name)}"
    num_axes = cursor.unsigned32(f"number of axes of {where}")
    if not 1 <= num_axes <= _AXES_LIMIT:
        raise CheckpointError(f"{file.path}: number of axes of {where}", value=num_axes, limit=f"1 to {_AXES_LIMIT}")
    # The file has the fastest axis first; here rows come first.
    shape = tuple(reversed([cursor.unsigned64(f"shape of {where}") for _ in range(num_axes)]))
    type_number = cursor.unsigned32(f"type of {where}")
    offset = cursor.unsigned64(f"offset of {where}")
    encoding = GGML_ENCODINGS.get(type_number)
    if encoding is None:
        raise UnsupportedError(
            f"{file.path}: {where} has a type that is unknown or was withdrawn", value=f"ggml type {type_number}"
        )
    if min(shape) < 1 or prod(shape) > _DIMENSION_LIMIT:
        raise CheckpointError(f"{file.path}: {where} has an impossible shape", value=shape)
    if shape[-1] % encoding.block_elements:
        raise CheckpointError(
            f"{file.path}: the rows of {where} are no whole blocks of {encoding.name}",
            value=shape[-1],
            limit=f"a multiple of {encoding.block_elements}",
        )
    return name, shape, type_number, offset


def _check_spans(file: MappedFile, tensors: dict[str, StoredTensor], data_begin: int, alignment: int) -> None:
    """Check that the tensors follow each other, each on the next aligned byte, inside the file."""
    expected = data_begin
    for tensor in sorted(tensors.values(), key=lambda tensor: tensor.begin):
        end = tensor.begin + tensor.num_bytes
        if end > file.size_bytes:
            raise CheckpointError(
                f"{tensor.describe()} lies outside the file, which may be cut short",
                value=f"bytes {tensor.begin}..{end}",
                limit=f"{file.size_bytes} bytes in the file",
                remedy="fetch or copy the file again",
            )
        if tensor.begin != expected:
            raise CheckpointError(
                f"{tensor.describe()}: its offset is not where the tensor before it ends",
                value=tensor.begin - data_begin,
                limit=f"{expected - data_begin}, a multiple of {alignment}",
            )
        expected = -(-end // alignment) * alignment
