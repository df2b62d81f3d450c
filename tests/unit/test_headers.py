"""Headers without weights: the same spec, tensors and bytes as the opened checkpoint, or a refusal that says why."""

from __future__ import annotations

import json
import os
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from gemwright.errors import CheckpointError, UnsupportedError
from gemwright.loading.checkpoint import Checkpoint, open_checkpoint
from gemwright.loading.gguf_header import read_header as read_gguf_header
from gemwright.loading.headers import local_header
from gemwright.loading.mapped_file import MappedFile
from gemwright.loading.partial_file import PartialFile
from gemwright.loading.safetensors import SINGLE_NAME
from gemwright.planner.inputs import read_header
from gemwright.planner.settings import PlanSettings
from gemwright.planner.weights import weigh
from gemwright.spec.families import read_config
from gemwright.spec.model_header import ModelHeader
from gemwright.spec.weights import list_unused_tensors
from gemwright.testing import TINY_CONFIGS, write_tiny_checkpoint
from gemwright.testing.checkpoints import random_tensors
from tests.header_files import refused_header, shard, stored_entries, tiny_gguf, write_entries
from tests.tiny_gguf import write_tiny_gguf


def assert_equals_checkpoint(header: ModelHeader, checkpoint: Checkpoint) -> None:
    assert header.spec == checkpoint.spec
    assert header.format == checkpoint.format
    assert header.tensors is not None
    assert {(tensor.name, tensor.shape, tensor.encoding, tensor.size_bytes) for tensor in header.tensors} == {
        (tensor.name, tensor.shape, tensor.encoding, tensor.num_bytes) for tensor in checkpoint.files.tensors.values()
    }
    assert len(header.tensors) == len(checkpoint.files.tensors)


# The same as the opened checkpoint


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", TINY_CONFIGS)
def test_a_folder_is_told_as_it_is_opened_in_one_file_and_in_several(tmp_path: Path, name: str, dtype: str) -> None:
    write_tiny_checkpoint(name, tmp_path, dtype=dtype, with_unused=True)
    one = local_header(tmp_path)
    assert (one.origin, one.notes, one.quantization, one.left_over) == ("folder", (), None, frozenset())
    assert_equals_checkpoint(one, open_checkpoint(tmp_path))
    shard(tmp_path)
    several = local_header(tmp_path)
    assert_equals_checkpoint(several, open_checkpoint(tmp_path))
    assert one.tensors is not None
    assert several.tensors is not None
    assert set(several.tensors) == set(one.tensors)


@pytest.mark.parametrize("encoding", ["F32", "Q8_0"])
@pytest.mark.parametrize("name", TINY_CONFIGS)
def test_a_gguf_file_is_told_as_it_is_opened(tmp_path: Path, name: str, encoding: str) -> None:
    path = tiny_gguf(tmp_path / f"tiny-{encoding}.gguf", name, encoding=encoding, tokens=515)
    header = local_header(path)
    assert header.origin == "file"
    assert header.quantization == (None if encoding == "F32" else "q8_0")
    assert header.notes == ()
    assert_equals_checkpoint(header, open_checkpoint(path))
    in_folder = local_header(tmp_path)
    assert (in_folder.origin, in_folder.tensors) == ("folder", header.tensors)


def test_the_unused_kv_of_published_files_is_told_and_counted_as_unused(tmp_path: Path) -> None:
    write_tiny_checkpoint("gemma4-e", tmp_path, with_unused=True)
    header = local_header(tmp_path)
    assert header.notes == ()
    (unused,) = (part for part in weigh(header, PlanSettings(engine="vllm", dtype="float32")) if part.name == "unused")
    assert unused.size_bytes == 4 * sum(int(np.prod(tensor.shape)) for tensor in list_unused_tensors(header.spec))


def test_weights_are_never_looked_at(tmp_path: Path) -> None:
    """Values that no loader accepts change nothing, and neither does a file whose data is one hole."""
    write_tiny_checkpoint("gemma3", tmp_path)
    before = local_header(tmp_path)
    path = tmp_path / SINGLE_NAME
    size = path.stat().st_size
    header_end = 8 + int.from_bytes(path.read_bytes()[:8], "little")
    path.write_bytes(path.read_bytes()[:header_end] + b"\xff" * (size - header_end))
    assert local_header(tmp_path) == before
    os.truncate(path, header_end)
    os.truncate(path, size)
    assert local_header(tmp_path) == before


@pytest.mark.parametrize("allowance", [1 << 10, 1 << 16])
def test_of_a_file_that_comes_in_ranges_the_header_alone_is_asked_for(tmp_path: Path, allowance: int) -> None:
    spec = read_config(TINY_CONFIGS["gemma3"] | {"hidden_size": 256, "intermediate_size": 512})
    path = write_tiny_gguf(tmp_path / "m.gguf", spec, random_tensors(spec, seed=5), tokens=515)
    whole = MappedFile(path)
    metadata, tensors = read_gguf_header(whole)
    header_bytes = min(tensor.begin for tensor in tensors.values())
    asked: list[tuple[int, int]] = []

    def fetch(begin: int, end: int) -> bytes:
        asked.append((begin, end))
        return whole.map[begin:end]

    partial_metadata, partial_tensors = read_gguf_header(
        PartialFile(path, whole.size_bytes, fetch, first_bytes=allowance)
    )
    assert dict(partial_metadata).keys() == dict(metadata).keys()
    assert partial_metadata["tokenizer.ggml.tokens"] == metadata["tokenizer.ggml.tokens"]
    assert {name: (tensor.shape, tensor.begin) for name, tensor in partial_tensors.items()} == {
        name: (tensor.shape, tensor.begin) for name, tensor in tensors.items()
    }
    assert asked[0] == (0, allowance)
    assert all(before[1] == after[0] for before, after in pairwise(asked))
    assert asked[-1][1] <= max(2 * header_bytes, allowance) < whole.size_bytes / 20


# A config alone


def test_a_lone_config_says_what_it_cannot_know(tmp_path: Path) -> None:
    write_tiny_checkpoint("gemma4-e", tmp_path / "whole")
    whole = local_header(tmp_path / "whole")
    alone = local_header(tmp_path / "whole" / "config.json")
    assert alone.spec == whole.spec
    assert (alone.format, alone.origin, alone.tensors) == ("config", "file", None)
    (note,) = alone.notes
    assert "config.json alone" in note
    assert "which tensors its files hold, and how these are encoded, is not known" in note
    for path in (tmp_path / "whole").iterdir():
        if path.name.endswith(".safetensors"):
            path.unlink()
    folder = local_header(tmp_path / "whole")
    assert (folder.format, folder.origin) == ("config", "folder")
    assert "no weights lie in" in folder.notes[0]
    assert "is not known" in folder.notes[0]


def test_a_config_of_any_name_will_do(tmp_path: Path) -> None:
    path = tmp_path / "mine.json"
    path.write_text(json.dumps(TINY_CONFIGS["gemma2"]))
    assert read_header(str(path)).spec == read_config(TINY_CONFIGS["gemma2"])


GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 128}


def test_a_quantized_config_is_planned_for_engines_that_read_it_and_refused_for_ours(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(TINY_CONFIGS["gemma3"] | {"quantization_config": GPTQ}))
    header = local_header(path)
    assert header.quantization == "gptq"
    assert header.spec == read_config(TINY_CONFIGS["gemma3"])
    assert sum(part.size_bytes for part in weigh(header, PlanSettings(engine="vllm"))) > 0
    with pytest.raises(UnsupportedError, match="does not read weights") as raised:
        weigh(header, PlanSettings(engine="gemwright"))
    assert raised.value.value == "gptq"


def test_quantized_files_are_taken_as_their_headers_list_them(tmp_path: Path) -> None:
    folder = write_tiny_checkpoint("gemma3", tmp_path)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"quantization_config": GPTQ}))
    entries, data = stored_entries(folder)
    renamed = {name.replace("q_proj.weight", "q_proj.qweight"): entry for name, entry in entries.items()}
    write_entries(folder / SINGLE_NAME, renamed, data)
    header = local_header(folder)
    assert (header.quantization, header.left_over, header.notes) == ("gptq", frozenset(), ())
    parts = weigh(header, PlanSettings(engine="vllm"))
    assert sum(part.size_bytes for part in parts) == len(data)
    with pytest.raises(UnsupportedError, match="does not read weights"):
        weigh(header, PlanSettings(engine="gemwright"))


def test_a_gguf_type_that_only_llama_cpp_reads_is_planned_for_it_and_refused_for_ours(tmp_path: Path) -> None:
    from gguf.constants import GGMLQuantizationType

    rows = np.zeros((515, 64 // 32 * 18), np.uint8)  # IQ4_NL: 18 bytes hold 32 values
    path = tiny_gguf(
        tmp_path / "m-IQ4_NL.gguf",
        without=frozenset({"token_embd.weight"}),
        raw={"token_embd.weight": (rows, GGMLQuantizationType.IQ4_NL)},
    )
    header = local_header(path)
    assert header.quantization == "iq4_nl"
    assert header.tensors is not None
    parts = weigh(header, PlanSettings(engine="llama.cpp"))
    assert sum(part.size_bytes for part in parts) == sum(tensor.size_bytes for tensor in header.tensors)
    with pytest.raises(UnsupportedError, match="does not read weights") as raised:
        weigh(header, PlanSettings(engine="gemwright"))
    assert raised.value.value == "iq4_nl"


# Tensors that do not belong together


def test_tensors_that_no_layer_uses_are_reported_and_counted_as_unused(tmp_path: Path) -> None:
    folder = write_tiny_checkpoint("gemma3", tmp_path / "folder")
    entries, data = stored_entries(folder)
    spare = {"dtype": "F32", "shape": [300], "data_offsets": [len(data), len(data) + 1200]}
    write_entries(folder / SINGLE_NAME, entries | {"model.layers.0.mystery.weight": spare}, data + bytes(1200))
    gguf = tiny_gguf(tmp_path / "m.gguf", extra={"blk.0.mystery.weight": np.zeros(300, np.float32)})
    for path, name, engine in (
        (folder, "model.layers.0.mystery.weight", "vllm"),
        (gguf, "blk.0.mystery.weight", "llama.cpp"),
    ):
        header = local_header(path)
        assert header.left_over == {name}
        (note,) = header.notes
        assert name in note
        assert "1 of " in note
        assert "1.2 KiB" in note
        assert "unused" in note
        sizes = {
            part.name: part.size_bytes
            for part in weigh(header, PlanSettings(engine=engine))  # type: ignore[arg-type]
        }
        # vLLM loads it, and halves float32; llama.cpp leaves it in the file.
        assert sizes.get("unused") == (600 if engine == "vllm" else None)
        with pytest.raises(CheckpointError, match="left over"):
            open_checkpoint(path)


def test_missing_tensors_and_other_shapes_are_refused_as_a_start_refuses_them(tmp_path: Path) -> None:
    folder = write_tiny_checkpoint("gemma3", tmp_path / "folder")
    config = json.loads((folder / "config.json").read_text())
    for change, words in (
        ({"num_hidden_layers": 9}, ("missing", "layers.8.")),
        ({"intermediate_size": 96}, ("wrong shape", "limit: [96, 40]")),
        ({"vocab_size": 516}, ("515 rows", "limit: vocab_size 516")),
        ({"head_dim": 8}, ("wrong shape",)),
    ):
        (folder / "config.json").write_text(json.dumps(config | change))
        refused_header(folder, *words)
        with pytest.raises(CheckpointError):
            open_checkpoint(folder)
    refused_header(
        tiny_gguf(tmp_path / "m.gguf", without=frozenset({"blk.2.attn_k.weight"})), "missing", "blk.2.attn_k"
    )
