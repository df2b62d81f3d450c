"""What `gemwright plan` can be asked to put out instead of a plan: settings, a report, a comparison; one at a time."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.end_to_end.command_line import CommandLine

LARGE = "google/gemma-4-31B-it"
SMALL = "google/gemma-3-270m"


@pytest.mark.parametrize("engine", ["gemwright", "vllm", "llama.cpp", "ollama"])
def test_settings_as_json_are_one_object(engine: str, gemwright: CommandLine) -> None:
    words = ("plan", LARGE, "--offline", "--engine", engine, "--memory", "80GiB", "--max-model-len", 8192)
    found = gemwright(*words, "--emit", engine, "--json")
    assert found.code == 0, found.stderr
    content = found.json()
    assert (content["model"], content["engine"], content["fits"]) == (LARGE, engine, True)
    assert shlex.split(content["command"])
    assert content["settings"]
    shown = gemwright(*words, "--emit", engine).stdout.splitlines()
    assert [line for line in shown if line.startswith("# ")][: len(content["notes"])] == [
        f"# {note}" for note in content["notes"]
    ]
    if engine != "ollama":
        assert shown[-1] == content["command"]


def test_a_report_as_json_is_the_plan_and_where_the_report_lies(gemwright: CommandLine, tmp_path: Path) -> None:
    words = ("plan", SMALL, "--offline", "--memory", "4GiB")
    plain = gemwright(*words, "--json").json()
    content = gemwright(*words, "--json", "--advise", "--report", tmp_path).json()
    report = Path(content.pop("report"))
    files = [Path(name) for name in content.pop("report_files")]
    assert content == plain
    assert report.read_text().startswith(f"# {SMALL} on ")
    assert sorted(files) == sorted(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("words", "names"),
    [
        (("--emit", "gemwright", "--advise"), ("--emit", "--advise")),
        (("--emit", "gemwright", "--versus", "--max-model-len 512"), ("--emit", "--versus")),
        (("--advise", "--versus", "--max-model-len 512"), ("--advise", "--versus")),
        (("--report", "somewhere"), ("--report", "--advise")),
        (("--load-test",), ("--load-test", "--advise")),
        (("--advise", "--load-test", "--load-test-result", "x.json"), ("--load-test", "--load-test-result")),
    ],
)
@pytest.mark.parametrize("as_json", [False, True])
def test_outputs_that_exclude_each_other_are_named(
    words: tuple[str, ...], names: tuple[str, str], as_json: bool, gemwright: CommandLine, tmp_path: Path
) -> None:
    found = gemwright("plan", "nobody/asks-for-this", *words, *(["--json"] if as_json else []))
    assert found.code == 2, found.stderr
    assert all(name in found.stderr for name in names)
    assert found.stdout == ""
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--emit", "foo"), "remedy: name one of them: gemwright, vllm, llama.cpp, ollama"),
        (("--emit", ""), "remedy: name one of them: gemwright, vllm, llama.cpp, ollama"),
        (("--emit", "vllm"), "remedy: add --engine vllm"),
        (("--prompt-tokens", "0"), "remedy: raise --prompt-tokens"),
    ],
)
def test_a_remedy_names_what_to_type(words: tuple[str, ...], said: str, gemwright: CommandLine) -> None:
    found = gemwright("plan", LARGE, "--offline", *words)
    assert found.code == 2
    assert said in found.stderr


def test_the_command_of_the_default_model_names_none(gemwright: CommandLine) -> None:
    found = gemwright("plan", "--emit", "gemwright", "--max-model-len", 512)
    assert found.stdout.startswith("gemwright serve --max-model-len 512 ")
    refused = gemwright("plan", "--engine", "vllm", "--emit", "vllm", "--max-model-len", 512)
    assert refused.code == 3
    assert "google/gemma-3-270m" in refused.stderr


def test_the_report_of_what_has_no_settings_says_why(gemwright: CommandLine, tmp_path: Path) -> None:
    found = gemwright("plan", LARGE, "--offline", "--draft", "--advise", "--report", tmp_path)
    assert found.code == 0, found.stderr
    text = next(path for path in tmp_path.glob("*.md") if path.name != "plans.md").read_text()
    last = text[text.index("## 7.") :]
    assert "None can be written" in last
    assert "--draft" in last
    assert "gemwright serve" not in last


def test_the_emitted_pool_has_the_margin_that_was_asked_for(gemwright: CommandLine) -> None:
    sizes = []
    for more in ((), ("--margin", "kv=2")):
        found = gemwright("plan", SMALL, "--offline", "--max-num-seqs", 2, *more, "--emit", "gemwright", "--json")
        sizes.append(found.json()["settings"]["--kv-cache-memory-bytes"])
    assert sizes[1] == 2 * sizes[0]


def test_settings_that_do_not_fit_still_fail_the_gate(gemwright: CommandLine) -> None:
    found = gemwright("plan", LARGE, "--offline", "--emit", "gemwright", "--assert-fits", "4GiB")
    assert found.code == 4
    assert found.stdout.startswith("# it does not fit in 4.00 GiB")


@pytest.mark.parametrize("as_json", [False, True])
def test_an_engine_without_a_formula_has_no_settings(as_json: bool, gemwright: CommandLine) -> None:
    words = ("plan", LARGE, "--engine", "tgi", *(["--json"] if as_json else []))
    for more in (("--emit", "vllm"), ("--advise",), ("--versus", "--max-model-len 512")):
        refused = gemwright(*words, *more)
        assert refused.code == 3, refused.stderr
        assert refused.stdout == ""
    found = gemwright(*words)
    assert found.code == 0
    if as_json:
        assert found.json()["model"] == LARGE
    assert gemwright("plan", LARGE, "--offline", "--versus", "--engine tgi").code == 3


def test_the_rates_of_this_machine_are_said(gemwright: CommandLine) -> None:
    words: tuple[Any, ...] = ("plan", SMALL, "--offline", "--here", "--memory", "2GiB", "--json")
    found = gemwright(*words)
    assert found.code == 0, found.stderr
    device = found.json()["device"]
    if device["bandwidth_bytes_per_s"] is not None:
        rate = f"{device['bandwidth_bytes_per_s'] / 1e9:,.1f} GB/s of memory"
        (note,) = [line for line in found.stderr.splitlines() if line.startswith("note: rates of ")]
        assert rate in note
        assert device["source"] in note
    assert json.dumps(device)


@pytest.mark.parametrize("more", ["--offline", "--emit=gemwright"])
def test_a_plan_loads_neither_numpy_nor_a_client_it_does_not_need(more: str) -> None:
    """The hub of this process is a closed port: its client would only say so later."""
    program = f"""
import sys
from gemwright.cli import main
code = main(["plan", "{LARGE}", "--memory", "80GiB", "{more}"])
unwanted = ["numpy", "asyncio", "httpx2", "huggingface_hub.hf_api", "torch"]
print(code, [name for name in unwanted if name in sys.modules], file=sys.stderr)
"""
    environment = {name: value for name, value in os.environ.items() if not name.lower().endswith("_proxy")}
    environment |= {"HF_ENDPOINT": "http://127.0.0.1:9", "HF_HUB_OFFLINE": "0"}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, env=environment)
    assert done.stderr.splitlines()[-1] == "0 []"
    assert LARGE in done.stdout
