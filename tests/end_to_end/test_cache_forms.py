"""Keys rebuilt from values, and layers that only the wanted rows pass: cheaper forms of the same computation."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from gemwright import LLM
from gemwright.testing import write_tiny_checkpoint
from gemwright.testing.logits import compute_logits

K_EQUALS_V = ["gemma4-k-equals-v", "gemma4-moe", "gemma4-unified"]


def load(name: str, folder: Path, kv_layout: str, dtype: str) -> LLM:
    write_tiny_checkpoint(name, folder, seed=6, dtype=dtype)
    return LLM(folder, max_model_len=512, max_num_seqs=2, kv_layout=kv_layout, threads=1)


def ids_for(llm: LLM) -> list[int]:
    ids: list[int] = np.random.default_rng(3).integers(3, llm.spec.vocab_size, 180).tolist()
    return ids


@pytest.mark.parametrize("name", K_EQUALS_V)
def test_in_float32_keys_from_values_are_the_stored_keys_to_the_bit(name: str, tmp_path: Path) -> None:
    both, values = (load(name, tmp_path, kv_layout, "float32") for kv_layout in ("both", "v"))
    ids = ids_for(both)
    assert np.array_equal(
        compute_logits(both, [ids], chunk_sizes=[60])[0], compute_logits(values, [ids], chunk_sizes=[60])[0]
    )


def test_in_bfloat16_they_differ_by_less_than_rounding_does(tmp_path: Path) -> None:
    """Rebuilt keys are rounded once less than stored ones; both are as far from float32 as each other."""
    squares = {"both": 0.0, "v": 0.0}
    for name in K_EQUALS_V:
        folder = tmp_path / name
        exact = LLM(write_tiny_checkpoint(name, folder, seed=6, dtype="bfloat16"), dtype="float32", max_model_len=512)
        ids = ids_for(exact)
        reference = compute_logits(exact, [ids], chunk_sizes=[60])[0]
        for kv_layout in squares:
            ours = compute_logits(load(name, folder, kv_layout, "bfloat16"), [ids], chunk_sizes=[60])[0]
            squares[kv_layout] += float(((ours - reference) ** 2).mean())
    both, values = (np.sqrt(squares[kv_layout] / len(K_EQUALS_V)) for kv_layout in ("both", "v"))
    print(f"rms error against float32: both {both:.4f}, values alone {values:.4f}")
    assert values < 1.15 * both


def test_values_alone_take_half_the_bytes_of_full_layers(tmp_path: Path) -> None:
    both, values = (load("gemma4-k-equals-v", tmp_path, kv_layout, "float32") for kv_layout in ("both", "auto"))
    for kept, halved in zip(both.engine.layout.groups, values.engine.layout.groups, strict=True):
        assert kept.total_bytes == (2 if kept.window is None else 1) * halved.total_bytes
    assert values.engine.measured_bytes == values.engine.planned_bytes < both.engine.planned_bytes


@pytest.mark.parametrize("name", ["gemma4-e", "gemma4-e-narrow", "gemma3"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_row_has_the_same_logits_whether_the_others_are_wanted_or_not(name: str, dtype: str, tmp_path: Path) -> None:
    """Layers that own no K/V see only wanted rows; prompt logprobs want them all (field cases 081, 082)."""
    llm = load(name, tmp_path, "auto", dtype)
    ids = ids_for(llm)
    every = compute_logits(llm, [ids, ids[:70]], chunk_sizes=[50, 9])
    last = compute_logits(llm, [ids, ids[:70]], chunk_sizes=[50, 9], num_rows=1)
    for whole, row in zip(every, last, strict=True):
        assert np.array_equal(whole[-1:], row)


def test_unwanted_rows_do_not_pass_the_layers_that_own_no_cache(tmp_path: Path) -> None:
    llm = load("gemma4-e", tmp_path, "auto", "float32")
    rows: dict[int, set[int]] = {}
    compute_logits(
        llm,
        [ids_for(llm)],
        chunk_sizes=[180],
        num_rows=1,
        on_layer=lambda index, x: rows.setdefault(index, set()).add(len(x)),
    )
    first = llm.spec.first_layer_after_kv
    assert 0 < first < llm.spec.num_layers
    assert rows == {index: {180 if index < first else 1} for index in range(llm.spec.num_layers)}
