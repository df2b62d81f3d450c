"""Loading takes no more memory than the model in the engine's dtype and its largest tensor."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from gemwright.testing import write_tiny_checkpoint

CHILD = """
import sys
from pathlib import Path
import torch
from gemwright import LLM

def status(name):
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith(name + ":")).split()[1]) * 1024

LLM(sys.argv[2], dtype=sys.argv[3], max_model_len=64, max_num_seqs=1)  # torch's and our own first-use memory
before = status("VmRSS")
Path("/proc/self/clear_refs").write_text("5")
llm = LLM(sys.argv[1], dtype=sys.argv[3], max_model_len=64, max_num_seqs=1)
print(status("VmHWM") - before, llm.engine.measured_bytes)
"""


@pytest.mark.parametrize(
    ("stored", "dtype"),
    [
        ("float32", "float32"),
        pytest.param("bfloat16", "bfloat16", marks=pytest.mark.slow),
        pytest.param("float32", "bfloat16", marks=pytest.mark.slow),
    ],
)
def test_peak_is_the_model_and_its_largest_tensor(stored: str, dtype: str, tmp_path: Path) -> None:
    sizes = {"vocab_size": 60_000, "hidden_size": 384, "intermediate_size": 6_000}
    large = write_tiny_checkpoint("gemma3", tmp_path / "large", dtype=stored, overrides=sizes)
    small = write_tiny_checkpoint("gemma3", tmp_path / "small", dtype=stored)
    done = subprocess.run(
        [sys.executable, "-c", CHILD, large, small, dtype], check=True, capture_output=True, text=True
    )
    peak_bytes, model_bytes = map(int, done.stdout.split())
    largest_bytes = sizes["vocab_size"] * sizes["hidden_size"] * (4 if stored == "float32" else 2)
    assert peak_bytes < model_bytes + largest_bytes, f"peak {peak_bytes}, model {model_bytes}, largest {largest_bytes}"
