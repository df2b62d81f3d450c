"""The real Gemma 3 270M, from its quantized GGUF file, beside transformers on the same file."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import gemwright.verify
from gemwright import LLM
from gemwright.loading.default_model import default_model_path
from gemwright.testing.logits import compute_logits
from tests.end_to_end.command_line import CommandLine
from tests.needles import needle_ids
from tests.parity.oracle import TOLERANCE, Oracle, check_greedy, logit_error

PROMPTS = [
    "The capital of France is",
    "def fibonacci(n):\n    ",
    "Die Quadratwurzel aus 144 ist",
    "\u6771\u4eac\u306f\u65e5\u672c\u306e",
]
NUM_TOKENS = 64


@pytest.fixture(scope="module")
def llm() -> LLM:
    return LLM(dtype="float32", max_num_seqs=4, max_model_len=3000)


@pytest.fixture(scope="module")
def oracle() -> Oracle:
    return Oracle(default_model_path())


@pytest.mark.slow
def test_short_prompts_have_the_reference_tokens_and_logits(llm: LLM, oracle: Oracle) -> None:
    """Each of our tokens, generated freely and all prompts together, is the reference's choice after the same text."""
    for completion in llm.generate(PROMPTS, llm.sampling_params(max_tokens=NUM_TOKENS, ignore_eos=True)):
        known = [*completion.prompt_token_ids, *completion.token_ids[:-1]]
        ours = compute_logits(llm, [known], num_rows=NUM_TOKENS)[0]
        assert ours.argmax(axis=-1).tolist() == list(completion.token_ids)
        reference = oracle.logits(known, NUM_TOKENS)
        assert logit_error(ours, reference) < TOLERANCE
        check_greedy(ours, reference)


@pytest.mark.slow
def test_two_thousand_tokens(llm: LLM, oracle: Oracle) -> None:
    """Four windows long, in chunks of an odd size."""
    ids = needle_ids(llm.encode, 2000)
    ours = compute_logits(llm, [ids], chunk_sizes=[333], num_rows=64)[0]
    reference = oracle.logits(ids, 64)
    assert logit_error(ours, reference) < TOLERANCE
    check_greedy(ours, reference)
    assert np.array_equal(ours[-1:], compute_logits(llm, [ids], chunk_sizes=[512], num_rows=1)[0])


@pytest.mark.slow
def test_verify_agrees_and_run_gives_the_reference_tokens(
    oracle: Oracle, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The commands of the README; `verify` gets the loaded reference, since another load takes most of a minute."""
    loaded = {"missing_keys": set(), "mismatched_keys": set()}
    monkeypatch.setattr(gemwright.verify, "_load_in_transformers", lambda path, dtype: (oracle.model, loaded))
    command = CommandLine(capsys, monkeypatch)
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("The capital of France is\n")
    outcome = command("verify", "--prompts", prompts, "--max-tokens", 16)
    assert outcome.code == 0, outcome.stdout + outcome.stderr
    assert "16 of 16 tokens equal over 1 prompts" in outcome.stdout
    words = ("--max-tokens", 16, "--temperature", 0, "--dtype", "float32", "--json")
    found = command("run", "The capital of France is", *words).json()
    assert found["token_ids"] == oracle.generate(found["prompt_token_ids"], 16)
