"""`gemwright doctor`: what it says of this machine and of models is what `gemwright run` then does."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from gemwright.ops.reference import float32_rows_are_independent
from gemwright.testing import TINY_CONFIGS, write_tiny_checkpoint
from tests.contracts.test_import_time import BLOCK, cpu_seconds
from tests.end_to_end.command_line import CHILD, CommandLine, Outcome, child_environment
from tests.end_to_end.conftest import TinyFolder
from tests.hub_server import Hub

DOCTOR = "import sys; sys.argv = ['gemwright', 'doctor', *{words!r}]; from gemwright.cli import main; code = main()"


def findings(outcome: Outcome, state: str, name: str = "") -> list[dict[str, Any]]:
    return [
        finding
        for finding in outcome.json()["findings"]
        if finding["state"] == state and finding["name"].startswith(name)
    ]


def child(*words: str, **variables: str) -> Outcome:
    environment = {**child_environment(), **variables}
    done = subprocess.run(
        [*CHILD, "doctor", *words],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    return Outcome(done.returncode, done.stdout, done.stderr)


# Models


@pytest.mark.parametrize("flags", [(), ("--dtype", "bfloat16"), ("--max-model-len", "64", "--max-num-seqs", "2")])
def test_what_doctor_plans_is_what_run_allocates(
    gemwright: CommandLine, tiny_folder: TinyFolder, flags: tuple[str, ...]
) -> None:
    folder = tiny_folder("gemma4-e")
    found = gemwright("doctor", folder, "--json", *flags)
    assert found.code == 0
    model = found.json()["model"]
    ran = gemwright("run", folder, "--token-ids", "2,5", "--max-tokens", 1, "--json", *flags)
    assert model["planned_bytes"] == ran.json()["memory"]["planned_bytes"] == ran.json()["memory"]["measured_bytes"]
    assert sum(line["planned_bytes"] for line in model["lines"]) == model["planned_bytes"] <= model["needed_bytes"]
    assert (model["family"], model["format"], model["tokenizer"], model["runs"]) == (
        "gemma4",
        "safetensors",
        True,
        True,
    )
    assert model["dtype"] == ("bfloat16" if "bfloat16" in flags else "float32")
    assert model["kernels"] == "reference"


def test_a_report_for_people_names_the_model_and_its_memory(gemwright: CommandLine, tiny_folder: TinyFolder) -> None:
    found = gemwright("doctor", tiny_folder("gemma3"), "--max-model-len", 128)
    assert found.code == 0
    assert found.stderr == ""
    for words in ("processor", "gemma3, safetensors, stored in float32", "128 tokens of the model's 4096", "in all"):
        assert words in found.stdout
    assert "runs in float32 with a context of 128 tokens" in found.stdout
    assert found.stdout.endswith("0 problems, 0 warnings\n")


def drafter(folder: Path) -> None:
    config = {"model_type": "gemma4_assistant", "text_config": {"model_type": "gemma4_text"}}
    (folder / "config.json").write_text(json.dumps(config))


def relative(folder: Path) -> None:
    (folder / "config.json").write_text(json.dumps({"model_type": "t5gemma"}))


def quantized(folder: Path) -> None:
    section = {"quantization_config": {"quant_method": "gptq"}}
    (folder / "config.json").write_text(json.dumps(TINY_CONFIGS["gemma3"] | section))


def pickled(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")


def cut_short(folder: Path) -> None:
    os.truncate(folder / "model.safetensors", 5000)


def damage_the_tokenizer(folder: Path) -> None:
    (folder / "tokenizer.json").write_text("{")


def damage_the_defaults(folder: Path) -> None:
    (folder / "generation_config.json").write_text('{"eos_token_id": "one"}')


@pytest.mark.parametrize(
    ("spoil", "code", "words"),
    [
        (drafter, 3, "this is a drafter"),
        (relative, 3, "T5Gemma"),
        (quantized, 3, "quant_method 'gptq'"),
        (pickled, 3, "pickled weights can run code"),
        (cut_short, 5, "cut short"),
        (damage_the_tokenizer, 5, "tokenizer.json"),
        (damage_the_defaults, 5, "eos_token_id"),
    ],
)
def test_a_model_that_does_not_run_is_a_problem_with_the_exit_code_and_words_of_run(
    gemwright: CommandLine, tmp_path: Path, spoil: Any, code: int, words: str
) -> None:
    spoil(write_tiny_checkpoint("gemma3", tmp_path))
    found = gemwright("doctor", tmp_path, "--json")
    ran = gemwright("run", tmp_path, "a", "--max-tokens", 1)
    assert found.code == ran.code == code
    assert words in ran.stderr
    (problem,) = findings(found, "problem")
    shown = "\n".join(filter(None, (problem["what"], problem["value"])))
    assert words in shown
    assert problem["remedy"] in ran.stderr
    assert found.json()["model"]["runs"] is False


def test_a_model_that_does_not_fit_shows_its_plan_and_exits_4(
    gemwright: CommandLine, tiny_folder: TinyFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gemwright.engine.start.free_memory_bytes", lambda: 700_000)
    found = gemwright("doctor", tiny_folder("gemma3"), "--max-model-len", 32, "--json")
    assert found.code == 4
    (problem,) = findings(found, "problem")
    assert problem["limit"] == "683.6 KiB free"
    model = found.json()["model"]
    assert model["needed_bytes"] > model["free_bytes"] == 700_000


def test_a_context_that_is_lowered_is_said(gemwright: CommandLine, tiny_folder: TinyFolder) -> None:
    found = gemwright("doctor", tiny_folder("gemma3"), "--kv-cache-memory-bytes", 300_000, "--json")
    assert found.json()["model"]["max_model_len"] < 4096
    assert [finding for finding in findings(found, "ok", "model") if "context lowered" in finding["what"]]


def test_a_model_without_a_tokenizer_is_warned_of(gemwright: CommandLine, tmp_path: Path) -> None:
    write_tiny_checkpoint("gemma3", tmp_path)
    (tmp_path / "tokenizer.json").unlink()
    found = gemwright("doctor", tmp_path, "--json")
    assert found.code == 0
    (warning,) = findings(found, "warning", "model")
    assert "token ids only" in warning["what"]


def test_a_model_of_the_hub_is_looked_for_in_the_cache_and_not_fetched(
    gemwright: CommandLine, hub: Hub, tiny_folder: TinyFolder
) -> None:
    hub.add("tiny/gemma", tiny_folder("gemma3"))
    found = gemwright("doctor", "tiny/gemma", "--json")
    assert found.code == 5
    (problem,) = findings(found, "problem")
    assert problem["what"] == "this model is not in the local cache"
    assert "gemwright pull tiny/gemma" in problem["remedy"]
    assert hub.asked == []
    assert gemwright("pull", "tiny/gemma").code == 0
    asked = len(hub.asked)
    found = gemwright("doctor", "tiny/gemma", "--json")
    assert found.code == 0
    assert found.json()["model"]["runs"] is True
    assert [place["num_models"] for place in found.json()["places"] if place["name"] == "hub cache"] == [1]
    assert len(hub.asked) == asked


@pytest.mark.parametrize(("model", "code"), [("no/such/thing.gguf", 5), ("", 2), ("./nothing-here", 5)])
def test_a_name_of_nothing_is_a_problem(gemwright: CommandLine, model: str, code: int) -> None:
    assert gemwright("doctor", model, "--json").code == code


# The machine


def test_without_a_model_it_says_what_this_machine_is(gemwright: CommandLine) -> None:
    found = gemwright("doctor", "--json")
    content = found.json()
    assert content["cores"]["num_allowed"] == len(os.sched_getaffinity(0))
    assert content["cores"]["threads"] == 1  # GEMWRIGHT_THREADS of the test
    assert content["memory"]["total_bytes"] > content["memory"]["free_bytes"] > 0
    assert content["memory"]["kv_budget_bytes"] == pytest.approx(content["memory"]["free_bytes"] / 4, rel=0.01)
    assert [kernel["name"] for kernel in content["kernels"] if kernel["is_chosen"]] == ["reference"]
    assert content["software"]["packages"]["numpy"] is not None
    assert {place["name"] for place in content["places"]} == {"hub cache", "own cache"}


def test_it_takes_little_time_and_starts_no_torch() -> None:
    program = DOCTOR.format(words=[])
    assert cpu_seconds(f"{program}; assert 'torch' not in sys.modules", runs=2) < 1.5


def test_full_measures_the_row_law(tiny_folder: TinyFolder) -> None:
    found = child(str(tiny_folder("gemma3")), "--full", "--json")
    measured = float32_rows_are_independent()  # MKL's strict mode holds on Intel's processors alone
    assert found.json()["torch"]["rows_are_independent"] is measured
    (finding,) = findings(found, "ok" if measured else "warning", "row law")
    assert finding["what"].startswith("measured" if measured else "float32 results")


def test_a_mode_of_mkl_that_breaks_the_row_law_is_warned_of() -> None:
    (warning,) = findings(child("--json", MKL_CBWR="AVX2"), "warning", "row law")
    assert "MKL_CBWR" in warning["remedy"]


def test_without_torch_all_is_said_but_that_nothing_can_compute(tiny_folder: TinyFolder) -> None:
    words = [str(tiny_folder("gemma3")), "--json"]
    program = BLOCK.format(names={"torch", "transformers", "accelerate"}) + DOCTOR.format(words=words)
    done = subprocess.run(
        [sys.executable, "-c", f"{program}\nsys.exit(code)"],
        env=child_environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    found = Outcome(done.returncode, done.stdout, done.stderr)
    assert found.code == 3, found.stderr
    (problem,) = findings(found, "problem")
    assert "torch, which is not installed" in problem["what"]
    assert problem["remedy"] == "pip install 'gemwright[torch]'"
    assert found.json()["model"]["planned_bytes"] > 0
    assert [finding["what"] for finding in findings(found, "warning", "model")] == [
        "would run, but for the problem above"
    ]


def test_a_variable_that_nothing_reads_is_warned_of_with_the_one_that_was_meant() -> None:
    found = child("--json", GEMWRIGHT_DTPYE="float32", GEMWRIGHT_MAX_TOKENS="8", GEMWRIGHT_ZZZ="1")
    first, second = findings(found, "warning", "variables")
    assert first["what"].startswith("GEMWRIGHT_DTPYE")
    assert "GEMWRIGHT_DTYPE" in first["remedy"]
    assert second["what"].startswith("GEMWRIGHT_ZZZ")
    values = {variable["name"]: variable["value"] for variable in found.json()["variables"]}
    assert values["GEMWRIGHT_MAX_TOKENS"] == "8"


def test_secrets_are_never_printed() -> None:
    variables = {
        "HF_TOKEN": "hf_verysecret",
        "GEMWRIGHT_API_KEY": "verysecret",
        "HTTPS_PROXY": "http://user:verysecret@proxy.example:8080",
        "HF_ENDPOINT": "http://user:verysecret@hub.example",
    }
    for flags in ((), ("--json",)):
        found = child(*flags, **variables)
        assert "verysecret" not in found.stdout + found.stderr
        assert "HF_TOKEN" in found.stdout
        assert "hub.example" in found.stdout


def test_settings_that_are_wrong_are_a_problem_and_not_the_end(gemwright: CommandLine) -> None:
    found = gemwright("doctor", "--dtype", "float16", "--json")
    assert found.code == 3
    (problem,) = findings(found, "problem")
    assert (problem["name"], problem["value"]) == ("settings", "float16")
    assert found.json()["cores"]["num_machine"] > 0


def test_caches_are_where_the_variables_say_and_writing_is_tried(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    found = child("--json", HF_HUB_CACHE=str(tmp_path / "file" / "hub"), GEMWRIGHT_CACHE=str(tmp_path / "own"))
    hub, own = found.json()["places"]
    assert hub["moved_by"] == {"HF_HUB_CACHE": str(tmp_path / "file" / "hub")}
    (warning,) = findings(found, "warning", "hub cache")
    assert "is not a folder" in warning["value"]
    assert "HF_HOME" in warning["remedy"]
    assert (own["path"], own["exists"], own["obstacle"]) == (str(tmp_path / "own"), False, None)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file"]
    assert found.code == 0


def test_more_threads_than_cores_are_warned_of(gemwright: CommandLine) -> None:
    (warning,) = findings(gemwright("doctor", "--threads", 1000, "--json"), "warning", "threads")
    assert warning["value"] == "1000 threads"


def test_a_gpu_that_is_asked_for_and_not_here_is_a_problem(gemwright: CommandLine, tiny_folder: TinyFolder) -> None:
    folder = tiny_folder("gemma3")
    found = gemwright("doctor", folder, "--device", "cuda:99", "--json")
    ran = gemwright("run", folder, "a", "--device", "cuda:99")
    assert found.code == ran.code == 3
    assert findings(found, "problem", "GPU")
