"""Tokens that the model's own files forbid are never given, whichever format the files are in."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gemwright import LLM
from gemwright.spec.families import read_config
from gemwright.testing import TINY_CONFIGS, write_tiny_checkpoint
from gemwright.testing.checkpoints import random_tensors
from tests.tiny_gguf import write_tiny_gguf

PROMPT = [2, 40, 300, 77]


def write_gguf(folder: Path, suppressed: list[int] | None) -> Path:
    spec = read_config(TINY_CONFIGS["gemma3"])
    metadata: dict[str, int | list[int]] = {}
    if suppressed is not None:
        metadata["tokenizer.ggml.suppress_tokens"] = suppressed
    return write_tiny_gguf(folder / "tiny.gguf", spec, random_tensors(spec, 0), extra_metadata=metadata)


def write_safetensors(folder: Path, suppressed: list[int] | None) -> Path:
    write_tiny_checkpoint("gemma3", folder)
    if suppressed is not None:
        (folder / "generation_config.json").write_text(json.dumps({"suppress_tokens": suppressed}))
    return folder


@pytest.mark.parametrize("write", [write_gguf, write_safetensors])
@pytest.mark.parametrize("sampling", [{"temperature": 0.0}, {"temperature": 2.0, "seed": 3}])
def test_suppressed_tokens_are_never_given(tmp_path: Path, write: Any, sampling: dict[str, Any]) -> None:
    def answer(name: str, suppressed: list[int] | None) -> tuple[int, ...]:
        (tmp_path / name).mkdir()
        llm = LLM(write(tmp_path / name, suppressed), threads=1, max_model_len=64, dtype="float32")
        params = llm.sampling_params(max_tokens=24, ignore_eos=True, **sampling)
        (completion,) = llm.generate([PROMPT], params)
        return completion.token_ids

    free = answer("free", None)
    suppressed = sorted(set(free[:4]))
    bound = answer("bound", suppressed)
    assert not set(bound) & set(suppressed)
    assert len(bound) == len(free)
