"""Tiny model files whose headers a test takes apart: safetensors split into shards or written anew, GGUF."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gemwright.errors import CheckpointError, GemwrightError
from gemwright.loading.headers import local_header
from gemwright.loading.safetensors import INDEX_NAME, SINGLE_NAME
from gemwright.spec.families import read_config
from gemwright.testing import TINY_CONFIGS
from gemwright.testing.checkpoints import random_tensors
from tests.tiny_gguf import write_tiny_gguf

# Wide enough for whole blocks of 32.
WIDE = {"hidden_size": 64, "intermediate_size": 96}


def tiny_gguf(path: Path, name: str = "gemma3", **options: Any) -> Path:
    spec = read_config(TINY_CONFIGS[name] | WIDE)
    return write_tiny_gguf(path, spec, random_tensors(spec, seed=5), **options)


def stored_entries(folder: Path) -> tuple[dict[str, Any], bytes]:
    """Return the entries of a folder's one safetensors file, and its data."""
    content = (folder / SINGLE_NAME).read_bytes()
    begin = 8 + int.from_bytes(content[:8], "little")
    return json.loads(content[8:begin]), content[begin:]


def write_entries(path: Path, entries: dict[str, Any], data: bytes) -> None:
    text = json.dumps(entries).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)


def shard(folder: Path, num_shards: int = 3) -> None:
    """Split the one file of a folder into shards with an index."""
    entries, data = stored_entries(folder)
    entries.pop("__metadata__")
    names = list(entries)
    weight_map: dict[str, str] = {}
    for number in range(num_shards):
        part, content = {}, b""
        file = f"model-{number + 1:05d}-of-{num_shards:05d}.safetensors"
        for name in names[number::num_shards]:
            begin, end = entries[name]["data_offsets"]
            part[name] = entries[name] | {"data_offsets": [len(content), len(content) + end - begin]}
            content += data[begin:end]
            weight_map[name] = file
        write_entries(folder / file, part, content)
    (folder / INDEX_NAME).write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    (folder / SINGLE_NAME).unlink()


def refused_header(path: Path, *words: str, error: type[GemwrightError] = CheckpointError) -> None:
    """The header is refused in words that name the file, with a remedy."""
    with pytest.raises(error) as raised:
        local_header(path)
    text = str(raised.value)
    assert path.name in text
    assert "remedy: " in text
    for word in words:
        assert word in text
