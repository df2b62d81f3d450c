"""Headers that cannot be true, and models that are refused: each by file and field, value and remedy."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gemwright.errors import CheckpointError, GemwrightError, UnsupportedError
from gemwright.loading.gguf_header import read_header as read_gguf_header
from gemwright.loading.headers import chunk_header, local_header
from gemwright.loading.mapped_file import MappedFile
from gemwright.loading.partial_file import HEADER_LIMIT_BYTES, PartialFile
from gemwright.loading.safetensors import SINGLE_NAME
from gemwright.testing import TINY_CONFIGS, write_tiny_checkpoint
from tests.header_files import refused_header, stored_entries, tiny_gguf, write_entries

# Damaged files


def broken_json(content: bytes) -> bytes:
    return content[:8] + b"{" + b"?" + content[10:]


def with_length(value: int) -> Callable[[bytes], bytes]:
    return lambda content: value.to_bytes(8, "little") + content[8:]


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (with_length(1 << 40), ("length field", f"value: {1 << 40}")),
        (with_length((1 << 64) - 1), ("length field", "18446744073709551615")),  # -1, as a signed number
        (with_length(1 << 63), ("length field",)),
        (with_length(0), ("not a JSON object",)),
        (lambda content: with_length(len(content) - 7)(content), ("length field", "limit: ")),
        (lambda content: content[:100], ("length field", "cut short")),
        (lambda content: content[:7], ("too short",)),
        (lambda content: content[:-1], ("outside the file",)),
        (lambda content: content + b"\0", ("after the last tensor",)),
        (broken_json, ("not valid JSON", "column 2")),
        (lambda _: b"", ("empty",)),
    ],
)
def test_a_damaged_safetensors_header_is_named(
    tmp_path: Path, damage: Callable[[bytes], bytes], words: tuple[str, ...]
) -> None:
    path = write_tiny_checkpoint("gemma3", tmp_path) / SINGLE_NAME
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(CheckpointError) as raised:
        local_header(tmp_path)
    for word in (str(path), "remedy: ", *words):
        assert word in str(raised.value)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda begin, end: [begin - 4, end - 4], ("overlaps", "norm")),
        (lambda begin, end: [begin + 4, end + 4], ("outside the file", "norm")),
        (lambda begin, end: [begin + (1 << 50), end + (1 << 50)], ("outside the file", "norm")),
        (lambda begin, end: [-4, end], ("impossible data_offsets", "norm")),
        (lambda begin, end: [end, begin], ("outside the file", "norm")),
        (lambda begin, end: [begin, end - 4], ("does not fill", "norm")),
    ],
)
def test_offsets_that_cannot_be_are_named(
    tmp_path: Path, change: Callable[[int, int], list[int]], words: tuple[str, ...]
) -> None:
    write_tiny_checkpoint("gemma3", tmp_path)
    entries, data = stored_entries(tmp_path)
    last = max(entries.keys() - {"__metadata__"}, key=lambda name: entries[name]["data_offsets"][1])
    entries[last]["data_offsets"] = change(*entries[last]["data_offsets"])
    write_entries(tmp_path / SINGLE_NAME, entries, data)
    with pytest.raises(CheckpointError) as raised:
        local_header(tmp_path)
    for word in (SINGLE_NAME, last, *words):
        assert word in str(raised.value)


def test_a_gguf_file_that_ends_anywhere_in_its_header_is_refused(tmp_path: Path) -> None:
    path = tiny_gguf(tmp_path / "m.gguf", tokens=515)
    content = path.read_bytes()
    metadata, tensors = read_gguf_header(MappedFile(path))
    end = min(tensor.begin for tensor in tensors.values())
    assert len(metadata) > 15
    for cut in [*range(1, 64), *range(64, end, 97)]:
        path.write_bytes(content[:cut])
        with pytest.raises(CheckpointError) as raised:
            local_header(path)
        assert path.name in str(raised.value)
        assert "remedy: " in str(raised.value)


def test_the_first_piece_of_a_gguf_file_tells_what_the_whole_does(tmp_path: Path) -> None:
    path = tiny_gguf(tmp_path / "m-Q8_0.gguf", encoding="Q8_0", tokens=515)
    content = path.read_bytes()
    end = min(tensor.begin for tensor in read_gguf_header(MappedFile(path))[1].values())
    piece = tmp_path / "piece"
    piece.write_bytes(content[: end + (1 << 21)])
    header = chunk_header(piece, path.name, len(content), "tiny", "a note")
    whole = local_header(path)
    assert (header.spec, header.tensors, header.quantization) == (whole.spec, whole.tensors, "q8_0")
    assert header.notes == ("a note",)
    piece.write_bytes(content[: end - 1])
    with pytest.raises(CheckpointError, match="ends within the header"):
        chunk_header(piece, path.name, len(content), "tiny")


def test_a_length_that_lies_fetches_nothing_more(tmp_path: Path) -> None:
    """A string longer than the file, inside a long array: the part that is here is enough to say so."""
    path = tiny_gguf(tmp_path / "m.gguf", tokens=515)
    content = bytearray(path.read_bytes())
    at = content.index(b"t100") - 8
    content[at : at + 8] = (1 << 40).to_bytes(8, "little")
    asked: list[int] = []

    def fetch(begin: int, end: int) -> bytes:
        asked.append(end)
        return bytes(content[begin:end])

    with pytest.raises(CheckpointError, match="string 100 runs past the end of the file"):
        read_gguf_header(PartialFile(path, len(content), fetch, first_bytes=1 << 12))
    assert max(asked) < at + (1 << 13)


def test_a_header_longer_than_headers_are_is_refused_without_fetching_it() -> None:
    asked: list[tuple[int, int]] = []

    def fetch(begin: int, end: int) -> bytes:
        asked.append((begin, end))
        return bytes(end - begin)

    file = PartialFile(Path("m.gguf"), 1 << 40, fetch)
    with pytest.raises(CheckpointError, match="too long") as raised:
        file.bring(HEADER_LIMIT_BYTES + 1)
    assert raised.value.limit == "128.0 MiB"
    assert asked == []
    with pytest.raises(CheckpointError, match="empty"):
        PartialFile(Path("m.gguf"), 0, fetch)


# Models and configs that are refused

ROPE = {"rope_type": "default", "rope_theta": 6.0}


@pytest.mark.parametrize(
    ("config", "error", "words"),
    [
        ({"model_type": "gemma9"}, UnsupportedError, ("gemma9", "gemma4")),
        ({"model_type": "qwen3"}, UnsupportedError, ("qwen3", "supported: ")),
        ({"model_type": "gemma3n"}, UnsupportedError, ("Gemma 3n", "google/gemma-4-E2B-it")),
        ({"model_type": "gemma3n_text"}, UnsupportedError, ("Gemma 3n", "google/gemma-4-E4B-it")),
        (TINY_CONFIGS["gemma3"] | {"head_dim": None, "hidden_size": "72"}, UnsupportedError, ("hidden_size", "72")),
        (TINY_CONFIGS["gemma3"] | {"layer_types": ["full_attention"]}, UnsupportedError, ("layer_types",)),
        (TINY_CONFIGS["gemma3"] | {"architectures": ["Gemma2ForCausalLM"]}, UnsupportedError, ("architectures",)),
        (
            TINY_CONFIGS["gemma3"]
            | {"rope_parameters": {"full_attention": {"rope_type": "default", "rope_theta": 6.0}}},
            UnsupportedError,
            ("rope_",),
        ),
        (
            TINY_CONFIGS["gemma4-moe"] | {"top_k_experts": 9},
            UnsupportedError,
            ("top_k_experts", "limit: 8"),
        ),
        (TINY_CONFIGS["gemma4-e"] | {"num_kv_shared_layers": 99}, UnsupportedError, ("num_kv_shared_layers", "99")),
        (TINY_CONFIGS["gemma3"] | {"num_attention_heads": 0}, UnsupportedError, ("num_attention_heads", "0")),
        (TINY_CONFIGS["gemma3"] | {"secret_sauce": 1}, UnsupportedError, ("secret_sauce",)),
    ],
)
def test_a_config_is_refused_by_the_key_that_cannot_be(
    tmp_path: Path, config: dict[str, Any], error: type[GemwrightError], words: tuple[str, ...]
) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(config))
    refused_header(path, *words, error=error)
    with pytest.raises(error):
        local_header(tmp_path)


@pytest.mark.parametrize(("architecture", "said"), [("gemma3n", "Gemma 3n"), ("llama", "llama"), ("gemma9", "gemma9")])
def test_a_gguf_architecture_is_refused_by_name(tmp_path: Path, architecture: str, said: str) -> None:
    path = tiny_gguf(tmp_path / "m.gguf")
    content = path.read_bytes()
    old = (6).to_bytes(8, "little") + b"gemma3"
    new = len(architecture).to_bytes(8, "little") + architecture.encode()
    # What is longer or shorter now is taken from the padding before the tensors.
    begin = min(tensor.begin for tensor in read_gguf_header(MappedFile(path))[1].values())
    more = len(new) - len(old)
    head = content[:begin].replace(old, new, 1)
    assert head != content[:begin]
    head = head[:-more] if more > 0 else head + bytes(-more)
    path.write_bytes(head + content[begin:])
    refused_header(path, said, error=UnsupportedError)
