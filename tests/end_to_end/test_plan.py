"""`gemwright plan`: its answers, its gates, its refusals, and that the engine holds what it says."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import gemwright as package
from gemwright.engine import start
from gemwright.memory.engine_plan import plan_memory
from gemwright.planner.engines import gemwright as planned_engine
from gemwright.testing import TINY_CONFIGS
from tests.end_to_end.command_line import CommandLine
from tests.end_to_end.conftest import TinyFolder, TinyLLM

LARGE = "google/gemma-4-31B-it"
FLAGS = ("--max-model-len", "96", "--max-num-seqs", "3")


def plan(gemwright: CommandLine, *words: Any) -> dict[str, Any]:
    found = gemwright("plan", *words, "--offline", "--json")
    assert found.code == 0, found.stderr
    return found.json()


@pytest.mark.parametrize("name", TINY_CONFIGS)
def test_what_is_planned_is_what_the_engine_allocates(
    name: str, gemwright: CommandLine, tiny_folder: TinyFolder, tiny_llm: TinyLLM
) -> None:
    folder = tiny_folder(name)
    planned = plan(gemwright, folder, *FLAGS)
    engine = tiny_llm(name, max_model_len=96, max_num_seqs=3).engine
    lines = {line["name"]: line["bytes"] for line in planned["lines"]}
    for line, measured in zip(engine.lines, engine.measured, strict=True):
        assert lines[line.name] == measured
    assert planned["weights_bytes"] == sum(size for name, size in lines.items() if name.startswith("weights: "))


def test_there_is_one_formula() -> None:
    """The engine's start and the planner make their plans by one and the same function."""
    assert start.plan_memory is planned_engine.plan_memory is plan_memory


def test_a_published_model_is_planned_offline_and_says_so(gemwright: CommandLine) -> None:
    found = gemwright("plan", LARGE, "--memory", "80GiB", "--offline", "--json")
    assert found.code == 0
    assert "config of google/gemma-4-31B-it that comes with Gemwright" in found.stderr
    content = found.json()
    assert content["origin"] == "published"
    assert content["num_parameters"] == 31_273_086_512
    assert content["num_language_parameters"] == 30_697_345_280
    assert content["fits"] is True
    assert content["total_bytes"] <= 80 << 30
    # Keys are rebuilt from values on its full layers: 10 layers x 4 heads x 512 x 2 bytes.
    assert content["kv"]["bytes_per_token_full"] == 10 * 4 * 512 * 2


def test_it_answers_in_a_blink_without_torch_and_the_runner() -> None:
    program = f"""
import sys, time
began = time.process_time()
from gemwright.cli import main
code = main(["plan", "{LARGE}", "--memory", "80GiB", "--offline"])
took = time.process_time() - began
unwanted = ["torch", "transformers", "numpy", "asyncio", "httpx2", "gemwright.engine.core", "gemwright.engine.runner"]
loaded = [name for name in unwanted if name in sys.modules]
assert not loaded, loaded
print(code, took, file=sys.stderr)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    code, seconds = done.stderr.split()[-2:]
    assert code == "0"
    assert float(seconds) < 1.0  # 0.3 s on a quiet machine


def test_no_memory_named_no_verdict(gemwright: CommandLine) -> None:
    assert plan(gemwright, LARGE)["fits"] is None


def test_a_gate_has_its_exit_code(gemwright: CommandLine) -> None:
    assert gemwright("plan", LARGE, "--offline", "--assert-fits", "80GiB").code == 0
    refused = gemwright("plan", LARGE, "--offline", "--assert-fits", "24GiB")
    assert refused.code == 4
    assert "does not fit" in refused.stderr


def test_an_engine_without_a_formula_is_unknown_and_no_failure(gemwright: CommandLine) -> None:
    found = gemwright("plan", LARGE, "--engine", "tgi", "--assert-fits", "24GiB", "--json")
    assert found.code == 0
    assert found.json()["fits"] is None
    assert found.json()["unknown"]


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("--memory", "24G"), 2, "24GiB or 24GB"),
        (("--memory", "-3GiB"), 2, "no amount of memory"),
        (("--memory", "80"), 2, "did you mean 80GiB"),
        (("--max-num-seqs", "0"), 2, "max_num_seqs"),
        (("--max-model-len", "300000"), 2, "262144"),
        (("--engine", "exo"), 2, "unknown engine"),
        (("--ctx-size", "4096"), 3, "llama.cpp"),
        (("--device-name", "H1000"), 3, "H1"),
        (("--quantization", "q9_9"), 3, "q4_0"),
        (("--margin", "walls=2"), 2, "weights"),
        (("--margin", "weights=-1"), 2, "margin"),
        (("--mix", "p50=9000,p95=10"), 2, "p95"),
        (("--shared-prefix", "5"), 2, "--mix"),
        (("--versus", "--json"), 2, "--versus"),
        (("--emit", "vllm"), 2, "--engine vllm"),
        (("--kv-cache-dtype", "fp8"), 3, "vllm"),
    ],
)
def test_what_cannot_be_planned_is_refused_by_name(
    words: tuple[str, ...], code: int, said: str, gemwright: CommandLine
) -> None:
    found = gemwright("plan", LARGE, "--offline", *words)
    assert found.code == code, found.stderr
    assert said.lower() in found.stderr.lower()


@pytest.mark.parametrize(
    ("config", "code", "said"),
    [
        ({"model_type": "llama"}, 3, "llama"),
        ({"model_type": "gemma3n"}, 3, "Gemma 3n"),
        ({}, 5, "model_type"),
        ({**TINY_CONFIGS["gemma3"], "hidden_size": "wide"}, 3, "hidden_size"),
        ({**TINY_CONFIGS["gemma3"], "num_key_value_heads": 3}, 3, "num_key_value_heads"),
    ],
)
def test_configs_that_cannot_be(
    config: dict[str, Any], code: int, said: str, gemwright: CommandLine, tmp_path: Path
) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(config))
    found = gemwright("plan", path)
    assert found.code in (3, 5), found.stderr
    assert said in found.stderr
    assert found.stdout == ""


def test_side_by_side_says_what_changes_and_why(gemwright: CommandLine) -> None:
    found = gemwright("plan", "google/gemma-4-E4B-it", "--versus", "google/gemma-4-12B-it", "--offline")
    assert found.code == 0
    assert "K/V heads of sliding layers 2 -> 8" in found.stdout
    both = plan(gemwright, "google/gemma-4-E4B-it", "--versus", "--max-model-len 8192")
    assert [model["max_model_len"] for model in both["plans"]] == [131_072, 8192]


def test_margins_multiply_sections(gemwright: CommandLine) -> None:
    plain = plan(gemwright, LARGE, *FLAGS)
    more = plan(gemwright, LARGE, *FLAGS, "--margin", "weights=1.1")
    assert more["total_bytes"] - plain["total_bytes"] == pytest.approx(0.1 * plain["weights_bytes"], rel=1e-6)


def test_one_change_that_fits_is_offered(gemwright: CommandLine) -> None:
    content = plan(gemwright, "google/gemma-4-12B-it", "--engine", "vllm", "--memory", "24GiB")
    assert content["fits"] is False
    assert content["changes"]
    for change in content["changes"]:
        assert change["total_bytes"] <= 24 << 30


def test_the_report_has_seven_steps_pictures_and_a_growing_table(gemwright: CommandLine, tmp_path: Path) -> None:
    words = ("plan", LARGE, "--memory", "80GiB", "--offline", "--advise", "--report", tmp_path / "plans")
    for _ in range(2):
        assert gemwright(*words).code == 0
    text = (tmp_path / "plans" / "google-gemma-4-31B-it-gemwright.md").read_text()
    assert [line[:5] for line in text.splitlines() if line.startswith("## ")] == [f"## {step}." for step in range(1, 8)]
    assert "gemwright serve google/gemma-4-31B-it" in text
    pictures = sorted(path.name for path in (tmp_path / "plans").glob("*.svg"))
    assert len(pictures) == 2
    rows = (tmp_path / "plans" / "plans.md").read_text().splitlines()
    assert len(rows) == 4  # head, rule, two plans


def test_the_python_function_gives_the_ledger() -> None:
    ledger = package.plan(LARGE, offline=True, max_model_len=4096, max_num_seqs=1)
    assert 57 << 30 < ledger.total_bytes < 60 << 30
    assert {"weights", "K/V cache", "workspace"} <= set(ledger.sections())


def test_the_default_model_is_planned_from_its_header(gemwright: CommandLine) -> None:
    content = plan(gemwright)
    assert content["num_parameters"] == 268_098_176
    assert content["quantization"] == "q4_k_m"


def test_a_load_is_a_distribution(gemwright: CommandLine) -> None:
    words = (LARGE, "--memory", "80GiB", "--max-num-seqs", "8", "--mix", "p50=2000,p95=8000,max=32000")
    load = plan(gemwright, *words)["load"]
    assert load["p50_bytes"] <= load["p95_bytes"] <= load["p99_bytes"] <= load["largest_bytes"]
    assert load["max_users"] >= 8
