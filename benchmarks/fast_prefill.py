"""Time what fast prefill saves: one step of a prompt with one row of logits wanted, against all rows wanted.

The model has the layers of Gemma 4 E2B (35, the last 20 without K/V of their own), widths cut to a quarter and random
weights. Only the decoder is timed, not the head. The two sides alternate.

    .venv/bin/python benchmarks/fast_prefill.py --output benchmarks/results/fast_prefill.json
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from decode import describe_machine, describe_versions

from gemwright import LLM
from gemwright.engine.step import SequenceChunk, build_step
from gemwright.memory.block_manager import BlockManager
from gemwright.testing import TINY_CONFIGS, write_tiny_checkpoint

NUM_TOKENS = 1024
NUM_PAIRS = 5


def quarter_of_e2b() -> dict[str, Any]:
    """Return the E2B layout at a quarter of its widths, as overrides of the tiny E-like config."""
    pattern = (["sliding_attention"] * 4 + ["full_attention"]) * 7
    return {
        **TINY_CONFIGS["gemma4-e"],
        "num_hidden_layers": 35,
        "num_kv_shared_layers": 20,
        "layer_types": pattern,
        "sliding_window": 512,
        "num_attention_heads": 8,
        "num_key_value_heads": 1,
        "hidden_size": 384,
        "intermediate_size": 1536,
        "head_dim": 64,
        "global_head_dim": 128,
        "hidden_size_per_layer_input": 64,
        "vocab_size": 4096,
        "vocab_size_per_layer_input": 4096,
    }


def seconds(llm: LLM, num_rows: int) -> float:
    """Return the time of one step of NUM_TOKENS tokens with `num_rows` rows wanted."""
    layout = llm.engine.layout
    blocks = BlockManager(layout)
    if not blocks.try_add(0, NUM_TOKENS, NUM_TOKENS):
        raise SystemExit("the K/V pool is too small")
    blocks.grow(0, 0, NUM_TOKENS)
    ids = np.random.default_rng(0).integers(3, 4000, NUM_TOKENS).tolist()
    tables = [blocks.table(0, group.index) for group in layout.groups]
    step = build_step([SequenceChunk(ids, 0, tables, num_rows)], layout)
    started_at = time.perf_counter()
    llm.core.runner.decoder.forward(step)
    return time.perf_counter() - started_at


def main() -> None:
    """Time both sides and write the result."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    results: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        write_tiny_checkpoint("gemma4-e", Path(folder), dtype="bfloat16", overrides=quarter_of_e2b())
        for dtype in ("bfloat16", "float32"):
            llm = LLM(
                folder, dtype=dtype, threads=options.threads, max_model_len=1040, max_num_seqs=1,
                max_num_batched_tokens=NUM_TOKENS,
            )  # fmt: skip
            seconds(llm, 1)
            pairs = [(seconds(llm, 1), seconds(llm, NUM_TOKENS)) for _ in range(NUM_PAIRS)]
            results[dtype] = {
                "seconds_one_row": [one for one, _ in pairs],
                "seconds_all_rows": [every for _, every in pairs],
                "median_ratio": statistics.median(every / one for one, every in pairs),
            }
            print(f"{dtype}: all rows take {results[dtype]['median_ratio']:.2f} times as long as one")
    document = {
        "command": f"benchmarks/fast_prefill.py --threads {options.threads}",
        "machine": describe_machine(),
        "versions": describe_versions(),
        "num_tokens": NUM_TOKENS,
        "results": results,
    }
    options.output.parent.mkdir(parents=True, exist_ok=True)
    options.output.write_text(json.dumps(document, indent=2) + "\n")


if __name__ == "__main__":
    main()
