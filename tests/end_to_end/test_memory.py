"""A long prompt takes no memory beyond what was announced: no scores beyond a tile, no logits beyond a few rows."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from gemwright.testing import write_tiny_checkpoint

CHILD = """
import sys
from pathlib import Path
from gemwright import LLM, SamplingParams

def status(name):
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith(name + ":")).split()[1]) * 1024

params = SamplingParams(max_tokens=2, temperature=0, prompt_logprobs=0)
LLM(sys.argv[1], threads=1, max_model_len=64).generate([2, 3, 4], params)  # torch's and our own first-use memory
before = status("VmRSS")
Path("/proc/self/clear_refs").write_text("5")
llm = LLM(sys.argv[1], threads=1, max_num_seqs=1)
(completion,) = llm.generate([2, *(3 + 7 * place % 500 for place in range(31_999))], params)
peak = status("VmHWM") - before
assert len(completion.prompt_logprobs) == 32_000
assert len(completion.token_ids) == 2
weights = sum(line.planned_bytes for line in llm.engine.lines if line.name.startswith("weights"))
print(peak, weights, llm.engine.layout.total_bytes, llm.engine.max_model_len)
"""


@pytest.mark.slow
def test_a_prompt_of_32000_tokens_peaks_below_weights_cache_and_64_mib(tmp_path: Path) -> None:
    """The logits of all positions would take 122 MiB, a whole step's scores over all keys 62. One query head keeps it
    short."""
    sizes = {"max_position_embeddings": 40_000, "num_attention_heads": 1, "vocab_size": 1000}
    folder = write_tiny_checkpoint("gemma3", tmp_path, overrides=sizes)
    done = subprocess.run([sys.executable, "-c", CHILD, folder], check=True, capture_output=True, text=True)
    peak_bytes, weights_bytes, cache_bytes, max_model_len = map(int, done.stdout.split())
    assert max_model_len == 40_000
    # Seven of eight layers keep their window and a step: the cache is a fraction of what all positions would take.
    assert cache_bytes < 40_000 * 8 * 2 * 16 * 4 // 6
    assert peak_bytes < weights_bytes + cache_bytes + (64 << 20)
