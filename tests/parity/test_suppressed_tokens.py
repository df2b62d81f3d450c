"""Tokens that a generation config suppresses: greedy answers without them are transformers'."""

from __future__ import annotations

import json
from pathlib import Path

from gemwright import LLM, SamplingParams
from gemwright.testing import write_tiny_checkpoint
from tests.parity.oracle import Oracle


def test_greedy_tokens_without_suppressed_ones_equal_transformers(tmp_path: Path) -> None:
    folder = write_tiny_checkpoint("gemma3", tmp_path / "tiny")
    params = SamplingParams(temperature=0.0, max_tokens=24, ignore_eos=True)
    prompt = [2, 40, 300, 41]

    def greedy() -> list[int]:
        llm = LLM(folder, threads=1, max_model_len=64, dtype="float32")
        return list(llm.generate(prompt, params)[0].token_ids)

    free = greedy()
    suppressed = sorted(set(free))[:4]
    (folder / "generation_config.json").write_text(json.dumps({"suppress_tokens": suppressed}))
    kept = greedy()
    assert kept == Oracle(folder).generate(prompt, 24) != free
    assert not set(kept) & set(suppressed)
