"""Small promises found broken once: each is the input that broke it, with the right answer."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from gemwright import LLM
from gemwright.errors import CheckpointError, RequestError, UnsupportedError
from gemwright.spec.families import read_config
from gemwright.testing import write_tiny_checkpoint
from gemwright.testing.checkpoints import random_tensors
from gemwright.testing.logits import compute_logits
from tests.tiny_gguf import write_tiny_gguf


def run(arguments: list[str], **options: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", "import sys; from gemwright.cli import main; sys.exit(main())", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, **options)  # type: ignore[call-overload,no-any-return]


def test_python_refuses_an_empty_prompt_as_the_command_line_does(tmp_path: Path) -> None:
    llm = LLM(write_tiny_checkpoint("gemma3", tmp_path), max_model_len=64, threads=1)
    for prompts in ("", ["", "text"]):
        with pytest.raises(RequestError, match="prompt is empty"):
            llm.generate(prompts)


def test_a_repetition_penalty_of_the_model_holds_in_greedy_decoding_too(tmp_path: Path) -> None:
    folder = write_tiny_checkpoint("gemma3", tmp_path)
    (folder / "generation_config.json").write_text(json.dumps({"repetition_penalty": 5.0}))
    llm = LLM(folder, max_model_len=64, threads=1)
    assert llm.sampling_params().repetition_penalty == 5.0
    assert llm.sampling_params().temperature == 0
    (folder / "generation_config.json").write_text(json.dumps({"do_sample": "no"}))
    with pytest.raises(CheckpointError, match="do_sample"):
        LLM(folder, max_model_len=64, threads=1)


def test_unknown_keys_of_a_gguf_file_may_be_allowed_too(tmp_path: Path) -> None:
    folder = write_tiny_checkpoint("gemma3", tmp_path)
    spec = read_config(json.loads((folder / "config.json").read_text()))
    path = write_tiny_gguf(tmp_path / "model.gguf", spec, random_tensors(spec, 0), extra_metadata={"gemma3.brave": 1})
    with pytest.raises(UnsupportedError, match="brave"):
        LLM(path)
    llm = LLM(path, allow_unknown_config_keys=True, max_model_len=64, threads=1)
    assert len(llm.generate([[2, 5]], llm.sampling_params(max_tokens=1))[0].token_ids) == 1


def test_closed_streams_spoil_nothing(tmp_path: Path) -> None:
    folder = str(write_tiny_checkpoint("gemma3", tmp_path))
    words = ["run", folder, "Hi", "--max-tokens", "2", "--threads", "1"]
    quoted = " ".join(f"'{word}'" for word in words)
    program = "import sys; from gemwright.cli import main; sys.exit(main())"
    command = f"exec '{sys.executable}' -c '{program}' {quoted}"
    silent = subprocess.run(["bash", "-c", f"{command} --json 2>&-"], capture_output=True, text=True, check=False)
    assert silent.returncode == 0
    assert json.loads(silent.stdout)["usage"]["completion_tokens"] == 2
    mute = subprocess.run(["bash", "-c", f"{command} >&-"], capture_output=True, text=True, check=False)
    assert mute.returncode == 1
    assert "stdout is closed" in mute.stderr
    full = subprocess.run(["bash", "-c", f"{command} >/dev/full"], capture_output=True, text=True, check=False)
    assert full.returncode == 1
    assert "cannot be written" in full.stderr
    assert "unforeseen" not in full.stderr


def test_a_long_word_is_a_prompt(tmp_path: Path) -> None:
    folder = str(write_tiny_checkpoint("gemma3", tmp_path))
    done = run(
        ["run", "word " * 60, "--max-tokens", "1", "--threads", "1", "--json"],
        env={**os.environ, "GEMWRIGHT_MODEL": folder},
    )
    assert done.returncode == 0, done.stderr
    assert len(json.loads(done.stdout)["prompt_token_ids"]) > 60


def test_computing_logits_leaves_no_wrong_hits_behind(tmp_path: Path) -> None:
    """compute_logits writes into the engine's cache behind its books; what stood there must not be found again."""
    llm = LLM(write_tiny_checkpoint("gemma3", tmp_path), max_model_len=128, max_num_seqs=1, threads=1)
    params = llm.sampling_params(max_tokens=8, ignore_eos=True)
    prompt = list(range(3, 93))
    before = llm.generate([prompt], params)[0]
    compute_logits(llm, [list(range(400, 310, -1))])
    after = llm.generate([prompt], params)[0]
    assert after.token_ids == before.token_ids
    assert after.usage.cached_tokens == 0
