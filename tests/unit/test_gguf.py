"""GGUF: what a good file gives, decoding against the gguf package, and how bad files are refused."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf import GGUFWriter
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType
from gguf.quants import dequantize, quantize

from gemwright.errors import CheckpointError, UnsupportedError
from gemwright.loading.encodings import GGML_ENCODINGS
from gemwright.loading.gguf import open_gguf

BLOCK_TYPES = ["Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K"]


def write(path: Path, fill: Callable[[GGUFWriter], None]) -> Path:
    writer = GGUFWriter(path, "gemma3")
    fill(writer)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def random_blocks(name: str, rows: int, blocks: int, seed: int) -> np.ndarray[Any, Any]:
    """Return random stored blocks whose float16 scales are finite."""
    encoding = GGML_ENCODINGS[int(GGMLQuantizationType[name])]
    generator = np.random.default_rng(seed)
    stored = generator.integers(0, 256, (rows, blocks, encoding.block_bytes), dtype=np.uint8)
    for offset in encoding.scale_offsets:
        scales = generator.uniform(-60000, 60000, (rows, blocks)).astype(np.float16)
        scales[::3] *= np.float16(1e-7)
        stored[:, :, offset : offset + 2] = scales.view(np.uint8).reshape(rows, blocks, 2)
    return stored.reshape(rows, -1)


def text(value: str | bytes) -> bytes:
    content = value.encode() if isinstance(value, str) else value
    return struct.pack("<Q", len(content)) + content


def pair(key: str, type_number: int, value: bytes) -> bytes:
    return text(key) + struct.pack("<I", type_number) + value


def info(name: str, shape: tuple[int, ...], type_number: int = 0, offset: int = 0) -> bytes:
    return text(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, type_number, offset)


def raw_file(pairs: list[bytes], infos: list[bytes], data: bytes = b"", *, version: int = 3, align: int = 32) -> bytes:
    head = b"GGUF" + struct.pack("<IQQ", version, len(infos), len(pairs)) + b"".join(pairs) + b"".join(infos)
    return head + bytes(-len(head) % align) + data


def test_metadata_is_given_as_python_values(tmp_path: Path) -> None:
    def fill(writer: GGUFWriter) -> None:
        writer.add_uint8("u8", 200)
        writer.add_int8("i8", -5)
        writer.add_uint16("u16", 60000)
        writer.add_int16("i16", -300)
        writer.add_uint32("u32", 2**32 - 1)
        writer.add_int32("i32", -7)
        writer.add_uint64("u64", 2**64 - 1)
        writer.add_int64("i64", -(2**40))
        writer.add_float32("f32", 0.5)
        writer.add_float64("f64", 0.1)
        writer.add_bool("yes", True)
        writer.add_string("text", "naïve ▁ 語")
        writer.add_array("strings", ["", "a", "語" * 100])
        writer.add_array("ints", [3, -1, 2])
        writer.add_array("floats", [0.5, -1.25])
        writer.add_array("bools", [True, False, True])

    metadata = open_gguf(write(tmp_path / "m.gguf", fill)).metadata
    assert metadata["general.architecture"] == "gemma3"
    expected = {"u8": 200, "i8": -5, "u16": 60000, "i16": -300, "u32": 2**32 - 1, "i32": -7, "u64": 2**64 - 1}
    expected |= {"i64": -(2**40), "f32": 0.5, "f64": 0.1, "text": "naïve ▁ 語", "strings": ["", "a", "語" * 100]}
    assert {key: metadata[key] for key in expected} == expected
    assert metadata["yes"] is True
    assert metadata["ints"].tolist() == [3, -1, 2]
    assert metadata["floats"].tolist() == [0.5, -1.25]
    assert metadata["bools"].tolist() == [True, False, True]
    assert metadata["bools"].dtype == np.bool_
    assert metadata.array_length("strings") == 3
    assert metadata.array_length("ints") == 3
    assert metadata.array_length("text") is None
    assert metadata.raw_strings("strings")[1:] == [b"a", ("語" * 100).encode()]
    assert "absent" not in metadata
    assert metadata.get("absent") is None
    assert set(metadata) >= expected.keys()


def test_shapes_have_rows_first_and_floats_are_exact(tmp_path: Path) -> None:
    generator = np.random.default_rng(2)
    stored = {
        "token_embd.weight": generator.standard_normal((6, 4)).astype(np.float32),
        "blk.0.ffn_down_exps.weight": generator.standard_normal((3, 5, 8)).astype(np.float16),
        "output_norm.weight": generator.standard_normal(7).astype(np.float32),
    }

    def fill(writer: GGUFWriter) -> None:
        for name, values in stored.items():
            writer.add_tensor(name, values)
        raw = quantize(stored["token_embd.weight"], GGMLQuantizationType.BF16)
        writer.add_tensor("bf16", raw, raw_dtype=GGMLQuantizationType.BF16)

    opened = open_gguf(write(tmp_path / "m.gguf", fill))
    for name, values in stored.items():
        tensor = opened.tensors[name]
        assert tensor.shape == values.shape
        np.testing.assert_array_equal(tensor.read_rows(0, len(values)), values.astype(np.float32))
        np.testing.assert_array_equal(tensor.read_rows(1, 3), values[1:3].astype(np.float32))
    raw = quantize(stored["token_embd.weight"], GGMLQuantizationType.BF16)
    assert opened.tensors["bf16"].encoding == "bfloat16"
    np.testing.assert_array_equal(opened.tensors["bf16"].read_rows(0, 6), dequantize(raw, GGMLQuantizationType.BF16))
    opened.release()
    np.testing.assert_array_equal(opened.tensors["output_norm.weight"].read_rows(0, 7), stored["output_norm.weight"])


@pytest.mark.parametrize("name", BLOCK_TYPES)
def test_row_slices_of_blocks_decode_as_the_gguf_package_decodes_the_whole(tmp_path: Path, name: str) -> None:
    kind = GGMLQuantizationType[name]
    raw = random_blocks(name, rows=37, blocks=3, seed=3)
    stacked = random_blocks(name, rows=4 * 5, blocks=2, seed=4).reshape(4, 5, -1)

    def fill(writer: GGUFWriter) -> None:
        writer.add_tensor("w", raw, raw_dtype=kind)
        writer.add_tensor("experts", stacked, raw_dtype=kind)

    opened = open_gguf(write(tmp_path / "m.gguf", fill))
    for tensor, stored in ((opened.tensors["w"], raw), (opened.tensors["experts"], stacked)):
        assert tensor.encoding == name.lower()
        whole = dequantize(stored, kind)
        assert tensor.shape == whole.shape
        for begin, end in ((0, tensor.num_rows), (1, 3), (3, 4), (2, 2)):
            np.testing.assert_array_equal(tensor.read_rows(begin, end), whole[begin:end])
            assert tensor.stored_rows(begin, end).tobytes() == stored[begin:end].tobytes()


@pytest.mark.parametrize("name", BLOCK_TYPES)
def test_a_scale_that_is_not_finite_is_named_with_its_row(tmp_path: Path, name: str) -> None:
    encoding = GGML_ENCODINGS[int(GGMLQuantizationType[name])]
    for offset in encoding.scale_offsets:
        for bad in (np.inf, -np.inf, np.nan):
            raw = random_blocks(name, rows=20, blocks=2, seed=5)
            at = encoding.block_bytes + offset
            raw[13, at : at + 2] = np.array([bad], dtype=np.float16).view(np.uint8)
            path = write(
                tmp_path / "m.gguf",
                lambda writer, raw=raw: writer.add_tensor("blk.0.w", raw, raw_dtype=GGMLQuantizationType[name]),
            )
            tensor = open_gguf(path).tensors["blk.0.w"]
            tensor.read_rows(0, 13)
            for read in (tensor.read_rows, tensor.stored_rows):
                with pytest.raises(CheckpointError, match=r"'blk\.0\.w'.*not finite, first in row 13"):
                    read(0, 20)


@pytest.mark.parametrize("name", ["IQ2_XXS", "IQ4_NL", "IQ4_XS", "TQ1_0", "MXFP4", "NVFP4", "I8", "F64"])
def test_other_encodings_are_listed_and_refused_by_name_when_wanted(tmp_path: Path, name: str) -> None:
    kind = GGMLQuantizationType[name]
    block_elements, block_bytes = GGML_QUANT_SIZES[kind]
    path = tmp_path / "m.gguf"
    path.write_bytes(raw_file([], [info("w", (block_elements, 2), int(kind))], bytes(2 * block_bytes)))
    tensor = open_gguf(path).tensors["w"]
    with pytest.raises(UnsupportedError, match=f"'w' is stored as {tensor.encoding}"):
        tensor.read_rows(0, 1)


def test_sizes_of_all_types_agree_with_the_gguf_package() -> None:
    for number, encoding in GGML_ENCODINGS.items():
        assert GGML_QUANT_SIZES[GGMLQuantizationType(number)] == (encoding.block_elements, encoding.block_bytes)


def test_a_string_that_is_not_utf8_is_named_when_it_is_looked_at(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    strings = struct.pack("<IQ", 8, 2) + text("good") + text(b"\xff")
    path.write_bytes(raw_file([pair("tokens", 9, strings)], []))
    metadata = open_gguf(path).metadata
    assert metadata.raw_strings("tokens") == [b"good", b"\xff"]
    with pytest.raises(CheckpointError, match="'tokens': string 1 is not UTF-8"):
        metadata["tokens"]


HUGE = 2**63
ONE = struct.pack("<f", 1.0)
FAULTS: list[tuple[str, bytes]] = [
    ("not a GGUF file", b"GGML" + bytes(60)),
    ("version runs past the end", b"GGUF\3\0"),
    ("tensor count is more than", b"GGUF" + struct.pack("<IQQ", 3, HUGE, 0)),
    ("metadata count is more than", b"GGUF" + struct.pack("<IQQ", 3, 0, HUGE)),
    ("length of metadata key 0", b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, HUGE) + bytes(64)),
    ("length of metadata key 0", raw_file([pair("", 4, bytes(4))], [])),
    ("metadata key 0 is not UTF-8", raw_file([text(b"\xff") + struct.pack("<II", 4, 1)], [])),
    ("value of 'k' runs past the end", raw_file([pair("k", 8, struct.pack("<Q", HUGE))], [], bytes(64))),
    ("value of 'k' is not UTF-8", raw_file([pair("k", 8, text(b"\xff\xfe"))], [])),
    ("type of 'k'", raw_file([pair("k", 13, bytes(8))], [])),
    ("'k' is no bool", raw_file([pair("k", 7, b"\2")], [])),
    ("'k' stands twice", raw_file([pair("k", 4, bytes(4))] * 2, [])),
    ("length of array 'k' is more than", raw_file([pair("k", 9, struct.pack("<IQ", 4, HUGE))], [], bytes(64))),
    ("length of array 'k' is more than", raw_file([pair("k", 9, struct.pack("<IQ", 8, HUGE))], [], bytes(64))),
    (
        "array 'k': string 1 runs past the end",
        raw_file([pair("k", 9, struct.pack("<IQ", 8, 3) + text("ok") + struct.pack("<Q", HUGE))], [], bytes(64)),
    ),
    (
        "array 'k': string 2 runs past the end",
        raw_file([pair("k", 9, struct.pack("<IQ", 8, 3) + text("ok") * 2 + struct.pack("<Q", 900))], [], bytes(64)),
    ),
    ("element type of array 'k'", raw_file([pair("k", 9, struct.pack("<IQ", 13, 1) + bytes(8))], [])),
    ("'k' is an array of arrays", raw_file([pair("k", 9, struct.pack("<IQ", 9, 1) * 5000)], [])),
    ("'k' holds a value that is no bool", raw_file([pair("k", 9, struct.pack("<IQ", 7, 2) + b"\0\3")], [])),
    ("general.alignment", raw_file([pair("general.alignment", 4, struct.pack("<I", 24))], [])),
    ("general.alignment", raw_file([pair("general.alignment", 4, struct.pack("<I", 0))], [])),
    ("general.alignment", raw_file([pair("general.alignment", 8, text("32"))], [])),
    ("length of name of tensor 0", raw_file([], [info("", (1,))], ONE)),
    ("number of axes of tensor 'w'", raw_file([], [info("w", ())], ONE + bytes(32))),
    ("number of axes of tensor 'w'", raw_file([], [info("w", (1,) * 5)], ONE)),
    ("'w' has an impossible shape", raw_file([], [info("w", (0, 4))], ONE)),
    ("'w' has an impossible shape", raw_file([], [info("w", (2**33, 2**33))], ONE)),
    ("'w' are no whole blocks of q4_0", raw_file([], [info("w", (33, 2), 2)], bytes(64))),
    ("'w' lies outside the file", raw_file([], [info("w", (1000,))], ONE)),
    ("'w' lies outside the file", raw_file([], [info("w", (1,), offset=HUGE)], ONE)),
    ("'w': its offset", raw_file([], [info("w", (1,), offset=4)], bytes(64))),
    ("'b': its offset", raw_file([], [info("a", (16,)), info("b", (16,), offset=32)], bytes(128))),
    ("'b': its offset", raw_file([], [info("a", (1,)), info("b", (1,), offset=96)], bytes(128))),
    ("'w' stands twice", raw_file([], [info("w", (1,)), info("w", (1,), offset=32)], bytes(64))),
    ("split.count", raw_file([pair("split.count", 2, struct.pack("<H", 3))], [])),
]


@pytest.mark.parametrize(("problem", "content"), FAULTS, ids=[f"{i}-{fault[0]}" for i, fault in enumerate(FAULTS)])
def test_a_header_that_cannot_be_true_is_refused(tmp_path: Path, problem: str, content: bytes) -> None:
    path = tmp_path / "bad.gguf"
    path.write_bytes(content)
    with pytest.raises(CheckpointError) as caught:
        open_gguf(path)
    assert problem in str(caught.value)
    assert "bad.gguf" in str(caught.value)


@pytest.mark.parametrize(
    ("problem", "content"),
    [
        ("big-endian", b"GGUF" + struct.pack(">IQQ", 3, 0, 0)),
        ("GGUF version", b"GGUF" + struct.pack("<IQQ", 1, 0, 0)),
        ("GGUF version", b"GGUF" + struct.pack("<IQQ", 4, 0, 0)),
        ("'w' has a type that is unknown or was withdrawn", raw_file([], [info("w", (32,), 4)], bytes(64))),
    ],
)
def test_files_that_are_understood_and_refused(tmp_path: Path, problem: str, content: bytes) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(content)
    with pytest.raises(UnsupportedError, match=problem):
        open_gguf(path)


def test_version_2_and_other_alignments_are_read(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    pairs = [pair("general.alignment", 4, struct.pack("<I", 64))]
    infos = [info("a", (1,)), info("b", (1,), offset=64)]
    path.write_bytes(raw_file(pairs, infos, ONE + bytes(60) + struct.pack("<f", 2.0), version=2, align=64))
    opened = open_gguf(path)
    assert opened.tensors["a"].read_rows(0, 1).tolist() == [1.0]
    assert opened.tensors["b"].read_rows(0, 1).tolist() == [2.0]


class TestSplit:
    @staticmethod
    def write(folder: Path, changes: dict[int, dict[str, int]] | None = None, names: str = "abc") -> list[Path]:
        paths = []
        for index, name in enumerate(names):
            values = {"no": index, "count": 3, "tensors": 3} | (changes or {}).get(index, {})
            pairs = [
                pair("split.no", 2, struct.pack("<H", values["no"])),
                pair("split.count", 2, struct.pack("<H", values["count"])),
                pair("split.tensors.count", 5, struct.pack("<i", values["tensors"])),
            ]
            path = folder / f"model-{index + 1:05d}-of-00003.gguf"
            path.write_bytes(raw_file(pairs, [info(name, (1,))], struct.pack("<f", index)))
            paths.append(path)
        return paths

    @pytest.mark.parametrize("opened", [0, 1, 2])
    def test_any_part_opens_the_set(self, tmp_path: Path, opened: int) -> None:
        paths = self.write(tmp_path)
        checkpoint = open_gguf(paths[opened])
        assert checkpoint.paths == tuple(paths)
        assert {name: tensor.read_rows(0, 1)[0] for name, tensor in checkpoint.tensors.items()} == {
            "a": 0,
            "b": 1,
            "c": 2,
        }

    def test_a_missing_part_is_named(self, tmp_path: Path) -> None:
        paths = self.write(tmp_path)
        paths[1].unlink()
        with pytest.raises(CheckpointError, match=r"model-00002-of-00003\.gguf: no such file\n.*part 2 of 3"):
            open_gguf(paths[0])

    @pytest.mark.parametrize(
        ("changes", "problem"),
        [
            ({1: {"no": 2}}, r"00002-of-00003\.gguf: split\.no"),
            ({2: {"count": 4}}, r"00003-of-00003\.gguf: split\.count"),
            ({0: {"tensors": 4}}, r"split\.tensors\.count"),
        ],
    )
    def test_parts_that_do_not_belong_together_are_refused(
        self, tmp_path: Path, changes: dict[int, dict[str, int]], problem: str
    ) -> None:
        with pytest.raises(CheckpointError, match=problem):
            open_gguf(self.write(tmp_path, changes)[0])

    def test_a_tensor_in_two_parts_is_named(self, tmp_path: Path) -> None:
        with pytest.raises(CheckpointError, match=r"'a' lies in model-00001-of-00003\.gguf too"):
            open_gguf(self.write(tmp_path, names="aba")[0])

    def test_a_part_under_another_name_is_refused(self, tmp_path: Path) -> None:
        renamed = self.write(tmp_path)[0].rename(tmp_path / "renamed.gguf")
        with pytest.raises(CheckpointError, match=r"split\.count"):
            open_gguf(renamed)

    def test_an_impossible_part_number_is_refused(self, tmp_path: Path) -> None:
        with pytest.raises(CheckpointError, match="part number"):
            open_gguf(tmp_path / "model-00004-of-00003.gguf")
