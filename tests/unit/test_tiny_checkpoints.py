"""Tiny checkpoints for everyone's tests: the same each time, readable by others, refused where they cannot be."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from tokenizers import Tokenizer

from gemwright.spec.families import read_config
from gemwright.spec.weights import list_tensors, list_unused_tensors
from gemwright.testing import TINY_CONFIGS, write_tiny_checkpoint
from gemwright.testing.checkpoints import encode

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


@pytest.mark.parametrize("dtype", DTYPES)
def test_encoding_rounds_as_torch_does(dtype: str) -> None:
    generator = np.random.default_rng(0)
    values = np.concatenate(
        [
            generator.standard_normal(4000, dtype=np.float32) * np.float32(10.0) ** generator.integers(-6, 5, 4000),
            np.array([0.0, -0.0, 1.00390625, 1.01171875, 3.0e-39], dtype=np.float32),  # two ties and a subnormal
        ]
    ).astype(np.float32)
    expected = torch.from_numpy(values).to(DTYPES[dtype])
    assert encode(values, dtype) == expected.view(torch.uint8).numpy().tobytes()


@pytest.mark.parametrize("name", sorted(TINY_CONFIGS))
@pytest.mark.parametrize("dtype", DTYPES)
def test_another_reader_finds_every_tensor_of_the_list(name: str, dtype: str, tmp_path: Path) -> None:
    folder = write_tiny_checkpoint(name, str(tmp_path / "new" / "folder"), dtype=dtype, prefix="language_model.")
    config = json.loads((folder / "config.json").read_text())
    assert config["dtype"] == dtype
    found = load_file(folder / "model.safetensors")
    expected = {"language_model." + tensor.safetensors: tensor.shape for tensor in list_tensors(read_config(config))}
    assert {key: tuple(tensor.shape) for key, tensor in found.items()} == expected
    assert {tensor.dtype for tensor in found.values()} == {DTYPES[dtype]}
    assert all(bool(tensor.isfinite().all()) for tensor in found.values())


def test_dead_tensors_are_there_when_asked_for(tmp_path: Path) -> None:
    folder = write_tiny_checkpoint("gemma4-e", tmp_path, with_unused=True)
    unused = list_unused_tensors(read_config(TINY_CONFIGS["gemma4-e"]))
    assert len(unused) > 0
    assert {"model." + tensor.safetensors for tensor in unused} <= load_file(folder / "model.safetensors").keys()


def test_a_seed_makes_the_same_file_and_another_seed_another(tmp_path: Path) -> None:
    def content(folder: str, seed: int) -> bytes:
        return (write_tiny_checkpoint("gemma3", tmp_path / folder, seed=seed) / "model.safetensors").read_bytes()

    assert content("a", 4) == content("b", 4)
    assert content("a", 4) != content("c", 5)


def test_the_tokenizer_keeps_every_byte_and_knows_gemmas_words(tmp_path: Path) -> None:
    tokenizer = Tokenizer.from_file(str(write_tiny_checkpoint("gemma3", tmp_path) / "tokenizer.json"))
    for text in ("plain text", "  two spaces\n\n\ttab", "Grüße 🙂 你好", "\x00\x7f"):
        ids = tokenizer.encode(text).ids
        assert tokenizer.decode(ids) == text
        assert max(ids) < 515
    for word, token_id in (("<bos>", 2), ("<|turn>", 105), ("<turn|>", 106), ("<|channel>", 100), ("\n", 107)):
        assert tokenizer.encode(word).ids == [token_id]


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("gemma5", {}, "no tiny Gemma is called 'gemma5'; there are gemma2, gemma3"),
        ("gemma3", {"dtype": "float64"}, "float64"),
        ("gemma3", {"overrides": {"vocab_size": 364}}, "needs 365 ids, the model has 364"),
    ],
)
def test_what_cannot_be_written(name: str, options: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=message):
        write_tiny_checkpoint(name, tmp_path, **options)


def test_overrides_reach_the_config_and_the_weights(tmp_path: Path) -> None:
    folder = write_tiny_checkpoint("gemma3", tmp_path, overrides={"intermediate_size": 50, "vocab_size": 365})
    found = load_file(folder / "model.safetensors")
    assert found["model.layers.0.mlp.gate_proj.weight"].shape == (50, 40)
    assert found["model.embed_tokens.weight"].shape == (365, 40)
