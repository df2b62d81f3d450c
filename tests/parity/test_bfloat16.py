"""Bfloat16 beside transformers in bfloat16: no further from it than its own two attention kernels are from each other.

Gemma 2 has no softcap in the fused kernel, so there the yardstick is its bfloat16 against its float32.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from gemwright import LLM
from gemwright.testing import TINY_CONFIGS, write_tiny_checkpoint
from gemwright.testing.logits import compute_logits
from tests.parity.oracle import Oracle

RATIO = 1.5
SEEDS = (1, 2)


def squared_errors(name: str, folder: Path, seed: int) -> tuple[float, float]:
    """Return the mean squared logit error of ours against eager, and of the yardstick against eager."""
    write_tiny_checkpoint(name, folder, seed=seed, dtype="bfloat16")
    llm = LLM(folder, max_model_len=512, max_num_seqs=2)
    assert llm.engine.dtype == "bfloat16"
    ids = np.random.default_rng(seed).integers(3, llm.spec.vocab_size, 150).tolist()
    eager = Oracle(folder, dtype=torch.bfloat16).logits(ids)
    if TINY_CONFIGS[name]["model_type"] == "gemma2":
        yardstick = Oracle(folder, dtype=torch.float32).logits(ids)
    else:
        yardstick = Oracle(folder, dtype=torch.bfloat16, attention="sdpa").logits(ids)
    ours = compute_logits(llm, [ids], chunk_sizes=[40])[0]
    return float(((ours - eager) ** 2).mean()), float(((yardstick - eager) ** 2).mean())


@pytest.mark.slow
def test_error_pooled_over_all_families_is_within_the_yardstick(
    tmp_path: Path, record_property: pytest.RecordProperty
) -> None:
    pairs = {name: [squared_errors(name, tmp_path / f"{name}-{seed}", seed) for seed in SEEDS] for name in TINY_CONFIGS}
    for name, errors in pairs.items():
        ours, yardstick = np.sqrt(np.mean(errors, axis=0))
        record_property(name, f"{ours:.4f} against {yardstick:.4f}")
        print(f"{name:20} rms {ours:.4f}, yardstick {yardstick:.4f}, ratio {ours / yardstick:.2f}")
        assert ours <= 2 * yardstick, f"{name}: rms {ours}, transformers' own {yardstick}"
    ours, yardstick = np.sqrt(np.mean([error for errors in pairs.values() for error in errors], axis=0))
    print(f"{'pooled':20} rms {ours:.4f}, yardstick {yardstick:.4f}, ratio {ours / yardstick:.2f}")
    assert ours <= RATIO * yardstick


@pytest.mark.parametrize("name", ["gemma3", "gemma4-e", "gemma4-moe"])
def test_chunks_and_company_change_no_bit_in_bfloat16(name: str, tmp_path: Path) -> None:
    write_tiny_checkpoint(name, tmp_path, dtype="bfloat16")
    llm = LLM(tmp_path, max_model_len=256, max_num_seqs=4)
    generator = np.random.default_rng(0)
    prompts = [generator.integers(3, llm.spec.vocab_size, length).tolist() for length in (9, 70, 33)]
    alone = [compute_logits(llm, [ids], chunk_sizes=[len(ids)])[0] for ids in prompts]
    together = compute_logits(llm, prompts, chunk_sizes=[5, 17])
    assert all(np.array_equal(one, other) for one, other in zip(alone, together, strict=True))
