"""A GGUF file and a safetensors folder with the same weights are the same model, bit for bit."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from gguf.constants import GGMLQuantizationType
from gguf.quants import dequantize, quantize

from gemwright import LLM
from gemwright.spec.families import read_config
from gemwright.testing import TINY_CONFIGS, write_tiny_checkpoint
from gemwright.testing.checkpoints import random_tensors, write_safetensors
from gemwright.testing.logits import compute_logits
from tests.tiny_gguf import write_tiny_gguf

# GGUF has no key for the attention scale: it is key_length^-0.5 for Gemma 2 and 3 (facts j). The sliding pattern and
# the linear factor are there.
OVERRIDES = {"gemma2": {"query_pre_attn_scalar": 24}}
GGUF_FAMILIES = [name for name in TINY_CONFIGS if name != "gemma4-unified"]


def logits(path: Path) -> np.ndarray:
    llm = LLM(path, dtype="float32", max_model_len=256, max_num_seqs=1)
    ids = np.random.default_rng(1).integers(3, llm.spec.vocab_size, 80).tolist()
    return compute_logits(llm, [ids], chunk_sizes=[33])[0]


@pytest.mark.parametrize(("name", "split_experts"), [*((name, False) for name in GGUF_FAMILIES), ("gemma4-moe", True)])
def test_float32_file_equals_the_folder(name: str, split_experts: bool, tmp_path: Path) -> None:
    folder = write_tiny_checkpoint(name, tmp_path / "folder", seed=4, overrides=OVERRIDES.get(name))
    spec = read_config(json.loads((folder / "config.json").read_text()))
    values = random_tensors(spec, 4)
    file = write_tiny_gguf(tmp_path / "model.gguf", spec, values, split_experts=split_experts)
    from_file, from_folder = logits(file), logits(folder)
    if spec.norm_weight_offset == 0:
        assert np.array_equal(from_file, from_folder)
    else:  # 1 + w was rounded once by the converter, so w itself comes back to within one unit in the last place
        spread = from_folder.max() - from_folder.min()
        assert np.abs(from_file - from_folder).max() < 1e-5 * spread


@pytest.mark.parametrize("encoding", ["F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0"])
def test_quantized_file_equals_the_folder_of_its_dequantized_weights(encoding: str, tmp_path: Path) -> None:
    folder = write_tiny_checkpoint(
        "gemma4-e", tmp_path / "folder", seed=4, overrides={"hidden_size": 64, "intermediate_size": 96}
    )
    spec = read_config(json.loads((folder / "config.json").read_text()))
    values = random_tensors(spec, 4)
    file = write_tiny_gguf(tmp_path / "model.gguf", spec, values, encoding=encoding)
    kind = GGMLQuantizationType[encoding]
    rounded = {
        "model." + tensor.safetensors: dequantize(quantize(value, kind), kind)
        if value.ndim > 1 and value.shape[-1] % 32 == 0
        else value
        for tensor, value in values.items()
    }
    write_safetensors(folder / "model.safetensors", rounded)
    assert np.array_equal(logits(file), logits(folder))
