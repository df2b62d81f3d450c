"""Safetensors: what a good file gives, and by which name a bad one is refused."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from gemwright.errors import CheckpointError, UnsupportedError
from gemwright.loading.safetensors import open_safetensors


def file_bytes(header: Any, data: bytes = b"", length: int | None = None) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return (len(text) if length is None else length).to_bytes(8, "little") + text + data


def entry(dtype: str, shape: list[Any], begin: Any, end: Any) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


def refused(path: Path, content: bytes, error: type[Exception] = CheckpointError) -> str:
    path.write_bytes(content)
    with pytest.raises(error) as caught:
        open_safetensors(path)
    assert path.name in str(caught.value)
    return str(caught.value)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "model.safetensors"


def test_values_are_those_that_were_saved(path: Path) -> None:
    generator = np.random.default_rng(1)
    saved = {
        "matrix": generator.standard_normal((7, 5)).astype(np.float32),
        "half": generator.standard_normal((3, 2, 4)).astype(np.float16),
        "vector": generator.standard_normal(9).astype(np.float32),
        "scalar": np.array(2.5, dtype=np.float32),
        "nothing": np.zeros((0, 4), dtype=np.float32),
    }
    save_file(saved, path, metadata={"format": "np"})
    opened = open_safetensors(path)
    assert opened.tensors.keys() == saved.keys()
    for name, values in saved.items():
        tensor = opened.tensors[name]
        assert tensor.shape == values.shape
        rows = tensor.read_rows(0, tensor.num_rows)
        np.testing.assert_array_equal(rows.reshape(values.shape), values.astype(np.float32))
        assert tensor.stored_rows(0, tensor.num_rows).tobytes() == values.tobytes()
    np.testing.assert_array_equal(opened.tensors["matrix"].read_rows(2, 4), saved["matrix"][2:4])
    np.testing.assert_array_equal(opened.tensors["vector"].read_rows(3, 8), saved["vector"][3:8])


def test_bfloat16_is_the_upper_half_of_float32(path: Path) -> None:
    values = np.array([[1.0, -2.5], [3.0e38, 1.0e-40]], dtype=np.float32)
    upper = (values.view(np.uint32) >> 16).astype(np.uint16)
    path.write_bytes(file_bytes({"w": entry("BF16", [2, 2], 0, 8)}, upper.tobytes()))
    tensor = open_safetensors(path).tensors["w"]
    assert tensor.encoding == "bfloat16"
    expected = (upper.astype(np.uint32) << 16).view(np.float32)
    np.testing.assert_array_equal(tensor.read_rows(0, 2), expected)


@pytest.mark.parametrize("bad", [np.inf, -np.inf, np.nan])
@pytest.mark.parametrize("dtype", ["F32", "F16", "BF16"])
def test_a_value_that_is_not_finite_is_named_with_its_row(path: Path, dtype: str, bad: float) -> None:
    values = np.ones((40, 4), dtype=np.float32)
    values[31, 2] = bad
    stored = {
        "F32": values.tobytes(),
        "F16": values.astype(np.float16).tobytes(),
        "BF16": (values.view(np.uint32) >> 16).astype(np.uint16).tobytes(),
    }[dtype]
    path.write_bytes(file_bytes({"w.weight": entry(dtype, [40, 4], 0, len(stored))}, stored))
    tensor = open_safetensors(path).tensors["w.weight"]
    for read in (tensor.read_rows, tensor.stored_rows):
        read(0, 31)
        with pytest.raises(CheckpointError, match=r"'w\.weight'.*not finite, first in row 31"):
            read(5, 40)


@pytest.mark.parametrize("dtype", ["F64", "I8", "U8", "F8_E4M3", "BOOL"])
def test_other_dtypes_are_listed_and_refused_by_name_when_wanted(path: Path, dtype: str) -> None:
    num_bytes = 16 if dtype == "F64" else 2
    path.write_bytes(file_bytes({"odd": entry(dtype, [2], 0, num_bytes)}, bytes(num_bytes)))
    tensor = open_safetensors(path).tensors["odd"]
    with pytest.raises(UnsupportedError, match=f"'odd' is stored as {tensor.encoding}"):
        tensor.read_rows(0, 2)


def test_releasing_keeps_the_values(path: Path) -> None:
    values = np.arange(40_000, dtype=np.float32).reshape(200, 200)
    save_file({"w": values}, path)
    opened = open_safetensors(path)
    view = opened.tensors["w"].stored_rows(0, 200)
    opened.tensors["w"].release()
    opened.release()
    assert view.tobytes() == values.tobytes()
    np.testing.assert_array_equal(opened.tensors["w"].read_rows(0, 200), values)


def resident_file_bytes() -> int:
    status = Path("/proc/self/status").read_text()
    return int(status.split("RssFile:")[1].split()[0]) * 1024


def test_streaming_with_release_keeps_the_file_out_of_the_resident_set(path: Path) -> None:
    values = np.random.default_rng(0).standard_normal((8, 1 << 20)).astype(np.float32)
    save_file({f"w{index}": row.reshape(1024, 1024) for index, row in enumerate(values)}, path)
    opened = open_safetensors(path)
    before = resident_file_bytes()
    highest = 0
    for tensor in opened.tensors.values():
        for begin in range(0, 1024, 128):
            tensor.read_rows(begin, begin + 128)
        highest = max(highest, resident_file_bytes() - before)
        tensor.release()
    assert resident_file_bytes() - before < 2 << 20
    # One tensor of 4 MiB at a time, and the pages the kernel maps around a fault; not all 32 MiB.
    assert 3 << 20 < highest < 8 << 20


HEADER_FAULTS: list[tuple[bytes, str]] = [
    (b"\1\2\3", "too short"),
    (file_bytes(b"{}", length=3), "length field"),
    (file_bytes(b"{}", length=2**63), "length field"),
    (file_bytes(b"{}" + b" " * 100, length=100_000_001), "length field"),
    (file_bytes(b" {}"), "not a JSON object"),
    (file_bytes(b"[1]"), "not a JSON object"),
    (file_bytes(b"{\xff}"), "not UTF-8"),
    (file_bytes(b'{"a"'), "not valid JSON"),
    (file_bytes(b'{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}"), "nested too deeply"),
    (file_bytes(b'{"a": NaN}'), "NaN"),
    (file_bytes(b'{"a": ' + b"9" * 5000 + b"}"), "not acceptable JSON"),
    (file_bytes(b'{"__metadata__": {"a": 1}}'), "__metadata__"),
    (file_bytes(b'{"a": 1}'), "malformed"),
    (file_bytes({"a": {"dtype": "F32", "shape": [0]}}), "malformed"),
    (file_bytes({"a": entry("F99", [1], 0, 4)}, bytes(4)), "unknown dtype"),
    (file_bytes({"a": entry("F32", [-1], 0, 4)}, bytes(4)), "impossible shape"),
    (file_bytes({"a": entry("F32", [True], 0, 4)}, bytes(4)), "impossible shape"),
    (file_bytes({"a": entry("F32", [1.0], 0, 4)}, bytes(4)), "impossible shape"),
    (file_bytes({"a": entry("F32", [1], False, 4)}, bytes(4)), "impossible data_offsets"),
    (file_bytes({"a": entry("F32", [1], 4, 0)}, bytes(4)), "outside the file"),
    (file_bytes({"a": entry("F32", [2], 0, 8)}, bytes(4)), "outside the file"),
    (file_bytes({"a": entry("F32", [2], 0, 4)}, bytes(4)), "does not fill"),
    (file_bytes({"a": entry("F32", [2**61, 2**61], 0, 4)}, bytes(4)), "does not fill"),
    (file_bytes({"a": entry("F4", [3], 0, 1)}, bytes(1)), "does not fill"),
    (file_bytes({"a": entry("F32", [1], 4, 8)}, bytes(8)), "leaves a gap"),
    (file_bytes({"a": entry("F32", [2], 0, 8), "b": entry("F32", [1], 4, 8)}, bytes(8)), "overlaps"),
    (file_bytes({"a": entry("F32", [1], 0, 4)}, bytes(5)), "after the last tensor"),
    (
        file_bytes(b'{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"a":{}}', bytes(4)),
        "'a' stands twice",
    ),
    (file_bytes(b'{"a":{"dtype":"F32","dtype":"F32","shape":[1],"data_offsets":[0,4]}}', bytes(4)), "stands twice"),
]


@pytest.mark.parametrize(("content", "problem"), HEADER_FAULTS, ids=[problem for _, problem in HEADER_FAULTS])
def test_a_header_that_cannot_be_true_is_refused(path: Path, content: bytes, problem: str) -> None:
    assert problem in refused(path, content)


def test_an_absurd_name_does_not_flood_the_message(path: Path) -> None:
    content = file_bytes({"n\x1b" * 10_000: entry("F32", [2], 0, 4)}, bytes(4))
    message = refused(path, content)
    assert len(message) < 1000
    assert "\x1b" not in message


def test_missing_empty_and_irregular_files_are_refused(path: Path) -> None:
    with pytest.raises(CheckpointError, match="no such file"):
        open_safetensors(path)
    refused(path, b"")
    fifo = path.with_name("pipe.safetensors")
    os.mkfifo(fifo)
    with pytest.raises(CheckpointError, match="not a regular file"):
        open_safetensors(fifo)


class TestIndex:
    @pytest.fixture
    def folder(self, tmp_path: Path) -> Path:
        save_file({"a": np.ones((2, 2), np.float32)}, tmp_path / "model-00001-of-00002.safetensors")
        save_file({"b": np.zeros((2, 2), np.float32)}, tmp_path / "model-00002-of-00002.safetensors")
        self.write(tmp_path, {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"})
        return tmp_path

    @staticmethod
    def write(folder: Path, weight_map: Any) -> None:
        index = {"metadata": {"total_size": 32}, "weight_map": weight_map}
        (folder / "model.safetensors.index.json").write_text(json.dumps(index))

    @staticmethod
    def refused(folder: Path, problem: str, error: type[Exception] = CheckpointError) -> None:
        with pytest.raises(error, match=problem):
            open_safetensors(folder)

    def test_shards_are_joined(self, folder: Path) -> None:
        opened = open_safetensors(folder)
        assert opened.tensors.keys() == {"a", "b"}
        assert [path.name for path in opened.paths] == [
            "model-00001-of-00002.safetensors",
            "model-00002-of-00002.safetensors",
        ]

    def test_shards_behind_the_links_of_a_hub_cache_are_read(self, folder: Path, tmp_path: Path) -> None:
        snapshot = tmp_path / "snapshots" / "abc"
        snapshot.mkdir(parents=True)
        for path in folder.glob("model*"):
            (snapshot / path.name).symlink_to(Path("../..") / path.name)
        assert open_safetensors(snapshot).tensors.keys() == {"a", "b"}

    def test_a_missing_shard_is_named(self, folder: Path) -> None:
        (folder / "model-00002-of-00002.safetensors").unlink()
        self.refused(folder, r"1 of 2 shards are missing\n.*model-00002-of-00002\.safetensors")

    @pytest.mark.parametrize("shard", ["../b.safetensors", "/etc/passwd", "x/y.safetensors", "..", "", "a\\b", 7, None])
    def test_a_shard_must_be_a_plain_file_name(self, folder: Path, shard: Any) -> None:
        self.write(folder, {"a": "model-00001-of-00002.safetensors", "b": shard})
        self.refused(folder, "'b' is not a plain file name")

    def test_pickled_shards_are_refused(self, folder: Path) -> None:
        self.write(folder, {"a": "pytorch_model-00001-of-00002.bin"})
        self.refused(folder, "pickled weights can run code", UnsupportedError)

    def test_a_listed_tensor_that_is_absent_is_named(self, folder: Path) -> None:
        self.write(folder, {name: f"model-0000{n}-of-00002.safetensors" for name, n in (("a", 1), ("b", 2), ("c", 2))})
        self.refused(folder, "'c' is listed in model-00002-of-00002.safetensors")

    def test_a_tensor_in_another_shard_than_listed_is_named(self, folder: Path) -> None:
        save_file({"a": np.ones((2, 2), np.float32), "b": np.ones(1, np.float32)}, folder / "two.safetensors")
        self.write(folder, {"a": "model-00001-of-00002.safetensors", "b": "two.safetensors"})
        self.refused(folder, r"'a' lies in two\.safetensors\n.*listed in model-00001")

    def test_a_tensor_that_is_not_listed_is_named(self, folder: Path) -> None:
        save_file({"b": np.ones(1, np.float32), "extra": np.ones(1, np.float32)}, folder / "two.safetensors")
        self.write(folder, {"b": "two.safetensors"})
        self.refused(folder, r"'extra' lies in two\.safetensors\n.*not listed")

    @pytest.mark.parametrize("content", ["[]", "{", '{"weight_map": []}', '{"weight_map": {}}', "{}"])
    def test_an_index_that_is_none_is_refused(self, folder: Path, content: str) -> None:
        (folder / "model.safetensors.index.json").write_text(content)
        self.refused(folder, r"index\.json")

    def test_shards_without_an_index_are_refused(self, folder: Path) -> None:
        (folder / "model.safetensors.index.json").unlink()
        self.refused(folder, r"model\.safetensors\.index\.json is missing")
        (folder / "model-00002-of-00002.safetensors").unlink()
        self.refused(folder, r"model\.safetensors\.index\.json is missing")


def test_one_file_of_another_name_will_do(tmp_path: Path) -> None:
    save_file({"a": np.ones((2, 2), np.float32)}, tmp_path / "weights.safetensors")
    assert open_safetensors(tmp_path).tensors.keys() == {"a"}


@pytest.mark.parametrize(
    "name", ["pytorch_model.bin", "pytorch_model.bin.index.json", "model.pt", "model.pth", "last.ckpt"]
)
def test_a_folder_of_pickled_weights_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"\x80\x04.")
    with pytest.raises(UnsupportedError, match="pickled weights can run code"):
        open_safetensors(tmp_path)


def test_a_folder_without_weights_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="no weights"):
        open_safetensors(tmp_path)
