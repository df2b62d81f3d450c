"""Every row of docs/compatibility.md is true: what works runs on a tiny model, what is refused is refused by a run."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gguf.constants import GGMLQuantizationType
from numpy.typing import NDArray

from docs import compatibility_rows as rows
from docs.compatibility_rows import Row
from docs.write_compatibility import MATRIX_ROWS
from gemwright import LLM, SamplingParams
from gemwright.errors import UnsupportedError
from gemwright.loading.encodings import GGML_ENCODINGS, SAFETENSORS_ENCODINGS, Encoding
from gemwright.loading.hub_gguf import check_beginning
from gemwright.spec.families import read_config
from gemwright.spec.weights import list_tensors
from gemwright.testing import TINY_CONFIGS, write_tiny_checkpoint
from gemwright.testing.checkpoints import random_tensors, write_safetensors
from gemwright.testing.tokenizer_files import write_byte_tokenizer
from tests.end_to_end.conftest import TinyFolder
from tests.tiny_gguf import write_tiny_gguf

# Wide enough for whole blocks of 32, or of 256.
WIDE = {"hidden_size": 64, "intermediate_size": 96}
WIDEST = {"hidden_size": 256, "intermediate_size": 256, "num_hidden_layers": 2, "sliding_window_pattern": 2}

SHORT_NAMES = {"float32": "F32", "float16": "F16", "bfloat16": "BF16"}
BY_TYPE = {encoding.name: encoding for encoding in GGML_ENCODINGS.values()}
BY_CODE = {encoding.name: code for code, encoding in SAFETENSORS_ENCODINGS.items()}


def name_of(row: Row) -> str:
    return row.name


def working(*tables: tuple[Row, ...]) -> list[Row]:
    return [row for table in tables for row in table if row.state == "works"]


def write_model(folder: Path, config: Mapping[str, Any]) -> Path:
    """Write a model with this config.json, its towers by one tensor each."""
    spec = read_config(config)
    (folder / "config.json").write_text(json.dumps(config))
    tensors = {
        ("" if tensor.at_root else "model.") + tensor.safetensors: values
        for tensor, values in random_tensors(spec, seed=1).items()
    }
    tensors |= {f"{tower.prefixes[0]}some.weight": np.zeros((2, 2), np.float32) for tower in spec.towers}
    write_safetensors(folder / "model.safetensors", tensors)
    write_byte_tokenizer(folder, spec.vocab_size)
    return folder


def answer(model: Path, *, params: Mapping[str, Any] | None = None, **options: Any) -> LLM:
    """Let a model answer, and check that it did."""
    llm = LLM(model, **{"threads": 1, "max_model_len": 128, **options})
    wanted = SamplingParams(**{"max_tokens": 3, "temperature": 0.0, **(params or {})})
    (result,) = llm.generate([[2, 300, 301, 302]], wanted)
    assert all(1 <= len(choice.token_ids) <= wanted.max_tokens for choice in result.choices)
    return llm


# Families


@pytest.mark.parametrize("row", working(rows.FAMILIES, rows.RELATIVES, rows.CHANGES), ids=name_of)
def test_a_family_that_works_runs_and_says_what_it_leaves_out(row: Row, tmp_path: Path) -> None:
    assert row.config is not None
    llm = answer(write_model(tmp_path, row.config))
    skipped = " ".join(note for note in llm.engine.notes if "text only" in note)
    assert ("image" in row.note) == ("vision" in skipped or "projector" in skipped)
    assert "audio" not in row.note or "audio" in skipped or "projector" in skipped


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", MATRIX_ROWS.values(), ids=MATRIX_ROWS.keys())
def test_each_family_runs_from_each_format_in_each_dtype(
    name: str, dtype: str, tiny_folder: TinyFolder, tmp_path: Path
) -> None:
    assert answer(tiny_folder(name), dtype=dtype).engine.dtype == dtype
    spec = read_config(TINY_CONFIGS[name] | WIDE)
    gguf = write_tiny_gguf(tmp_path / "m.gguf", spec, random_tensors(spec, seed=2), encoding="Q8_0")
    assert answer(gguf, dtype=dtype).engine.dtype == dtype


@pytest.mark.parametrize("name", MATRIX_ROWS.values(), ids=MATRIX_ROWS.keys())
def test_float16_is_refused_for_each_family(name: str, tiny_folder: TinyFolder) -> None:
    with pytest.raises(UnsupportedError, match="float16"):
        LLM(tiny_folder(name), dtype="float16")


@pytest.mark.parametrize(
    ("model_type", "row"),
    [pytest.param(name, row, id=name) for row, types in rows.BY_TYPE for name in types],
)
def test_a_model_known_by_its_type_is_refused_in_both_formats(model_type: str, row: Row, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": model_type}))
    with pytest.raises(UnsupportedError) as caught:
        LLM(tmp_path)
    assert caught.value.remedy == row.error().remedy
    with pytest.raises(UnsupportedError) as caught:
        rows.read_gguf(general__architecture=model_type)
    assert caught.value.remedy == row.error().remedy


# Formats


@pytest.mark.parametrize("row", working(rows.FORMATS), ids=name_of)
def test_a_format_that_works_runs(row: Row, tmp_path: Path) -> None:
    if row.config is not None:
        answer(write_model(tmp_path, row.config))
    else:  # GGUF; tests/unit/test_gguf.py opens split sets
        answer(gguf_in(BY_TYPE["q8_0"], tmp_path / "m.gguf"))


@pytest.mark.parametrize("method", rows.QUANTIZATION_METHODS)
def test_each_quantization_method_is_refused_by_name(method: str, tmp_path: Path) -> None:
    section = {"quantization_config": {"quant_method": method}}
    (tmp_path / "config.json").write_text(json.dumps(TINY_CONFIGS["gemma3"] | section))
    with pytest.raises(UnsupportedError, match=f"quant_method '{method}'"):
        LLM(tmp_path)


def gguf_in(encoding: Encoding, path: Path) -> Path:
    """Write a tiny model whose embedding table lies in random blocks of an encoding."""
    spec = read_config(TINY_CONFIGS["gemma3"] | WIDEST)
    generator = np.random.default_rng(3)
    blocks = 256 // encoding.block_elements
    shape = (spec.vocab_size, blocks, encoding.block_bytes)
    stored = generator.integers(0, 60, shape, dtype=np.uint8)
    for offset in encoding.scale_offsets:
        scales = generator.uniform(0.001, 0.01, shape[:2]).astype("<f2")
        stored[:, :, offset : offset + 2] = scales.view(np.uint8).reshape(*shape[:2], 2)
    table: NDArray[np.uint8] = stored.reshape(spec.vocab_size, -1)
    assert encoding.ggml_type is not None
    raw = {"token_embd.weight": (table, GGMLQuantizationType(encoding.ggml_type))}
    return write_tiny_gguf(path, spec, random_tensors(spec, seed=2), without=frozenset(raw), raw=raw)


@pytest.mark.parametrize("name", rows.GGUF_READ)
def test_a_gguf_encoding_that_is_read_runs(name: str, tmp_path: Path) -> None:
    llm = answer(gguf_in(BY_TYPE[name], tmp_path / "m.gguf"))
    planned = {line.name: line.planned_bytes for line in llm.engine.lines}
    table = next(tensor for tensor in list_tensors(llm.spec) if tensor.name == "embedding")
    assert planned["weights: embedding"] == 2 * table.num_elements, "held in bfloat16, however it is stored"


@pytest.mark.parametrize("name", rows.GGUF_REFUSED)
def test_a_gguf_encoding_that_is_refused_is_named(name: str, tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match=f"token_embd.weight' is stored as {name}, which is not supported"):
        LLM(gguf_in(BY_TYPE[name], tmp_path / "m.gguf"))


def test_a_gguf_model_that_the_loader_would_refuse_is_refused_before_it_is_fetched(tmp_path: Path) -> None:
    beginning = gguf_in(BY_TYPE["float32"], tmp_path / "m.gguf").read_bytes()[:16384]
    for name in rows.GGUF_READ:
        check_beginning(beginning, SHORT_NAMES.get(name, name.upper()), "m")
    quantized = [name for name in rows.GGUF_REFUSED if BY_TYPE[name].block_elements > 1 and name != "q8_k"]
    assert len(quantized) > 10
    for name in quantized:
        with pytest.raises(UnsupportedError):
            check_beginning(beginning, name.upper(), "m")


@pytest.mark.parametrize("name", rows.SAFETENSORS_READ)
def test_a_safetensors_encoding_that_is_read_runs(name: str, tmp_path: Path) -> None:
    answer(write_tiny_checkpoint("gemma3", tmp_path, dtype=name))


@pytest.mark.parametrize("name", rows.SAFETENSORS_REFUSED)
def test_a_safetensors_encoding_that_is_refused_is_named(name: str, tmp_path: Path) -> None:
    path = write_tiny_checkpoint("gemma3", tmp_path) / "model.safetensors"
    content = path.read_bytes()
    length = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + length])
    table = header.pop("model.embed_tokens.weight")
    begin, end = table["data_offsets"]
    code = BY_CODE[name]
    size = SAFETENSORS_ENCODINGS[code].num_bytes(int(np.prod(table["shape"])))
    for entry in header.values():
        if "data_offsets" in entry and entry["data_offsets"][0] >= end:
            entry["data_offsets"] = [offset - end + begin for offset in entry["data_offsets"]]
    data = content[8 + length :]
    rest = data[:begin] + data[end:]
    header["model.embed_tokens.weight"] = {
        "dtype": code,
        "shape": table["shape"],
        "data_offsets": [len(rest), len(rest) + size],
    }
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + rest + bytes(size))
    with pytest.raises(UnsupportedError, match=f"embed_tokens.weight' is stored as {name}, which is not supported"):
        LLM(tmp_path)


# Dtypes, devices, kernels, features


@pytest.mark.parametrize("row", working(rows.COMPUTED_IN, rows.DEVICES_AND_KERNELS), ids=name_of)
def test_each_engine_option_that_works_runs(row: Row, tiny_folder: TinyFolder) -> None:
    options = {"max_model_len": 2048, **row.options}
    if row.options.get("device") == "cuda" and not torch.cuda.is_available():
        with pytest.raises(UnsupportedError, match="CUDA device is not usable"):
            answer(tiny_folder("gemma3"), **options)
        return
    answer(tiny_folder("gemma3"), **options)


@pytest.mark.parametrize("device", rows.OTHER_DEVICES)
def test_other_devices_are_refused(device: str, tiny_folder: TinyFolder) -> None:
    with pytest.raises(UnsupportedError, match="unknown device"):
        LLM(tiny_folder("gemma3"), device=device)


@pytest.mark.parametrize("kernels", rows.OTHER_KERNELS)
def test_kernels_that_do_not_exist_yet_are_refused(kernels: str, tiny_folder: TinyFolder) -> None:
    with pytest.raises(UnsupportedError, match="unknown kernels"):
        LLM(tiny_folder("gemma3"), kernels=kernels)


@pytest.mark.parametrize("row", working(rows.FEATURES), ids=name_of)
def test_each_feature_that_works_runs(row: Row, tiny_folder: TinyFolder, tmp_path: Path) -> None:
    folder = tiny_folder("gemma3") if row.config is None else write_model(tmp_path, row.config)
    answer(folder, params=row.params, **row.options)
