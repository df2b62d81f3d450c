"""`gemwright run` with the default model, and in an environment without transformers."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.end_to_end.command_line import CommandLine, child_environment
from tests.end_to_end.conftest import TinyFolder

# Put in front of a program, it makes transformers look as if it were not installed.
WITHOUT_TRANSFORMERS = """
import sys
class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("transformers", "accelerate"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Absent())
from gemwright.cli import main
sys.exit(main())
"""


def without_transformers(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", WITHOUT_TRANSFORMERS, *words]
    return subprocess.run(command, env=child_environment(), capture_output=True, text=True, check=False)


def test_run_needs_no_transformers_and_says_how_it_went() -> None:
    words = ("--max-tokens", "16", "--temperature", "0", "--dtype", "float32")
    done = without_transformers("run", "The capital of France is", *words)
    assert done.returncode == 0, done.stderr
    assert done.stdout == " the capital of the country of France. It is the largest city in France and\n"
    assert re.search(r"^16 tokens at [\d.]+ tokens/s, first token after [\d.]+ s", done.stderr, re.MULTILINE)
    (found,) = re.findall(r"^  in all +([\d.]+ GiB) +([\d.]+ GiB) ", done.stderr, re.MULTILINE)
    planned, measured = found
    assert planned == measured
    (terms,) = re.findall(r"Gemma terms: (.*)$", done.stderr, re.MULTILINE)
    assert "Gemma Terms of Use" in Path(terms).read_text(errors="replace")


def test_the_default_model_in_json(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    outcome = CommandLine(capsys, monkeypatch)(
        *("run", "The capital of France is", "--max-tokens", 2, "--logprobs", 1, "--max-model-len", 64, "--json")
    )
    found = json.loads(outcome.stdout)
    assert found["model"] == "gemma-3-270m-q4_k_m.gguf"
    assert found["prompt_token_ids"] == [2, 818, 5279, 529, 7001, 563]
    assert [entry[0]["token_id"] for entry in found["logprobs"]] == found["token_ids"]
    assert "Gemma terms" in outcome.stderr


def test_verify_without_transformers_exits_3_and_says_what_to_install(tiny_folder: TinyFolder) -> None:
    done = without_transformers("verify", str(tiny_folder("gemma3")))
    assert done.returncode == 3
    assert done.stdout == ""
    assert "pip install 'gemwright[verify]'" in done.stderr
    assert "Traceback" not in done.stderr
