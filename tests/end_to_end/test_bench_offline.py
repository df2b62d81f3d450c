"""`gemwright bench offline` and `gemwright bench memory`: what they measure, refuse and leave behind."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from gemwright.bench.memory import Case, measure_case
from gemwright.bench.offline import Load, run_load, search_knee
from gemwright.engine.start import choose_holding
from gemwright.errors import RequestError
from gemwright.loading.default_model import cache_folder
from gemwright.planner.calibration import calibration_path, load_calibration
from tests.end_to_end.command_line import CommandLine
from tests.end_to_end.conftest import TinyFolder, TinyLLM

SHAPE = ("--input-len", "12", "--output-len", "4", "--max-model-len", "64")


@pytest.fixture
def kept(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, gemwright: CommandLine) -> Path:
    """Return an empty cache folder in which runs are noted, not the user's own."""
    monkeypatch.setenv("GEMWRIGHT_CACHE", str(tmp_path / "cache"))
    assert cache_folder() == tmp_path / "cache"
    return tmp_path / "cache"


def bench(gemwright: CommandLine, *words: Any) -> dict[str, Any]:
    found = gemwright("bench", *words, "--json")
    assert found.code == 0, found.stderr
    content: dict[str, Any] = found.json()
    return content


def test_a_load_is_answered_and_timed(gemwright: CommandLine, tiny_folder: TinyFolder, tmp_path: Path) -> None:
    output = tmp_path / "result.json"
    words = ("--num-prompts", 5, "--concurrency", 2, "--output", output)
    content = bench(gemwright, "offline", tiny_folder("gemma3"), *SHAPE, *words)
    assert json.loads(output.read_text()) == content
    shape = {"num_prompts": 5, "input_len": 12, "output_len": 4, "concurrency": 2}
    assert {name: content[name] for name in shape} == shape
    assert content["tokens_per_s"] == pytest.approx(5 * 4 / content["seconds"], rel=1e-2)
    for name in ("ttft", "inter_token"):
        row = content[name]
        assert 0 < row["p50_ms"] <= row["p95_ms"] <= row["p99_ms"]
    assert content["num_preemptions"] == 0
    assert 0 < content["pool_share"] <= 1
    for line in content["memory"]["lines"]:
        assert line["planned_bytes"] == line["measured_bytes"]
    assert content["memory"]["process_bytes"] > 0
    assert content["machine"]["num_cores"] >= 1


def test_a_burst_counts_as_all_at_once(gemwright: CommandLine, tiny_folder: TinyFolder) -> None:
    words = ("--num-prompts", 6, "--burst", "--max-num-seqs", 2)
    content = bench(gemwright, "offline", tiny_folder("gemma3"), *SHAPE, *words)
    assert (content["num_prompts"], content["concurrency"]) == (6, 6)
    # Two run at once, the last pair waits for two others.
    assert content["ttft"]["p99_ms"] > content["ttft"]["p50_ms"]


def test_how_many_ran_at_once_is_counted_and_said(gemwright: CommandLine, tiny_folder: TinyFolder) -> None:
    words = ("offline", tiny_folder("gemma3"), *SHAPE, "--concurrency", 5, "--max-num-seqs", 2)
    content = bench(gemwright, *words)
    assert (content["num_prompts"], content["concurrency"], content["max_running"]) == (16, 5, 2)
    assert "tokens/s, 2 at once of 5 asked for," in gemwright("bench", *words).stdout
    content = bench(gemwright, "offline", tiny_folder("gemma3"), *SHAPE, "--concurrency", 17)
    assert content["num_prompts"] == 17


def test_an_answer_of_one_token_has_nothing_between_tokens(gemwright: CommandLine, tiny_folder: TinyFolder) -> None:
    words = ("--input-len", 8, "--output-len", 1, "--num-prompts", 2, "--max-model-len", 32)
    content = bench(gemwright, "offline", tiny_folder("gemma3"), *words)
    assert content["inter_token"] is None


def test_the_knee_lies_on_a_measured_point_and_a_burst_follows(gemwright: CommandLine, tiny_folder: TinyFolder) -> None:
    content = bench(gemwright, "offline", tiny_folder("gemma3"), *SHAPE, "--find-knee", "--max-num-seqs", 4)
    users = [point["concurrency"] for point in content["points"]]
    assert users == [1, 2, 4][: len(users)]
    assert [point["num_prompts"] for point in content["points"]] == [2 * count for count in users]
    knee = content["knee"]
    assert knee["concurrency"] in users
    assert knee["bent"] in ("nothing", "latency", "throughput", "memory")
    assert (knee["concurrency"] == users[-1]) or knee["bent"] != "nothing"
    of_point = next(point for point in content["points"] if point["concurrency"] == knee["concurrency"])
    assert knee["tokens_per_s"] == of_point["tokens_per_s"]
    assert (content["burst"]["num_prompts"], content["burst"]["concurrency"]) == (users[-1], users[-1])


def test_a_pool_that_is_too_small_is_seen(tiny_llm: TinyLLM) -> None:
    """Room for one request of 64 tokens and little more: of two users one waits, or is preempted."""
    alone = tiny_llm("gemma3", max_model_len=64, max_num_seqs=1).engine.layout.total_bytes
    llm = tiny_llm("gemma3", max_model_len=64, max_num_seqs=4, kv_cache_memory_bytes=alone * 3 // 2)
    found = search_knee(llm, Load(input_len=44, output_len=20), most=4)
    assert found.knee.point.concurrency == 1
    assert found.knee.bent == "memory"
    assert [point.load.concurrency for point in found.points] == [1, 2]
    first, last = found.points
    assert (first.num_preemptions, first.num_full_steps) == (0, 0)
    assert last.num_preemptions or last.num_full_steps


def test_no_prompt_of_a_search_is_found_in_the_prefix_cache(tiny_llm: TinyLLM) -> None:
    """Neither of its points nor of its burst: what is found is not computed, and would be timed too fast."""
    llm = tiny_llm("gemma3", max_model_len=128, max_num_seqs=4)
    search_knee(llm, Load(input_len=64, output_len=2), most=4)
    assert llm.core.counters.prompt_tokens >= 64 * 3
    assert llm.core.counters.cached_tokens == 0
    run_load(llm, Load(2, 64, 2, 2, seed=99), burst=True)
    assert llm.core.counters.cached_tokens == 0


def test_a_load_leaves_nothing_in_the_engine(tiny_llm: TinyLLM) -> None:
    llm = tiny_llm("gemma3", max_model_len=64)
    with pytest.raises(RequestError, match="longer than the context"):
        run_load(llm, Load(1, 60, 8, 1))
    run_load(llm, Load(3, 12, 2, 2))
    assert not llm.core.scheduler.has_work
    assert llm.core.blocks.share_held == 0


def test_people_read_a_line_for_each_thing(gemwright: CommandLine, tiny_folder: TinyFolder) -> None:
    found = gemwright("bench", "offline", tiny_folder("gemma3"), *SHAPE, "--num-prompts", 2)
    assert found.code == 0
    for text in ("tokens/s, 2 at once,", "first token", "between tokens", "of the K/V pool held"):
        assert text in found.stdout
    found = gemwright("bench", "offline", tiny_folder("gemma3"), *SHAPE, "--find-knee", "--max-num-seqs", 2)
    assert found.stdout.startswith("knee: ")
    assert "burst of " in found.stdout
    assert found.stderr.count(" users ") >= 1


@pytest.mark.parametrize(
    ("words", "code", "text"),
    [
        (["offline", "--num-prompts", "0"], 2, "num_prompts"),
        (["offline", "--concurrency", "0"], 2, "concurrency"),
        (["offline", "--concurrency", "-3"], 2, "concurrency"),
        (["offline", "--concurrency", "40", "--num-prompts", "3"], 2, "raise --num-prompts to 40"),
        (["offline", "--input-len", "-1"], 2, "input_len"),
        (["offline", "--output-len", "0"], 2, "output_len"),
        (["offline", "--seed", "-1"], 2, "seed"),
        (["offline", "--concurrency", "many"], 2, "--concurrency"),
        (["offline", "--max-num-seqs", "0"], 2, "max_num_seqs"),
        (["offline", "--input-len", "70", "--max-model-len", "64"], 2, "longer than the context"),
        (["offline", "--find-knee", "--concurrency", "4"], 2, "--find-knee"),
        (["offline", "--find-knee", "--num-prompts", "4"], 2, "--find-knee"),
        (["offline", "--find-knee", "--burst"], 2, "--find-knee"),
        (["offline", "--burst", "--concurrency", "4"], 2, "--burst"),
        (["offline", "--kernels", "nothing"], 3, "kernels"),
        (["memory", "--loads", "0"], 2, "--loads"),
        (["memory", "--loads", "1,-2"], 2, "--loads"),
        (["memory", "--contexts", "long"], 2, "--contexts"),
        (["memory", "--contexts", "1"], 2, "context"),
        (["memory", "--contexts", "64,99999999", "--loads", "1"], 2, "beyond the model's context"),
    ],
)
def test_what_is_out_of_range_is_said_with_its_exit_code(
    words: list[str], code: int, text: str, gemwright: CommandLine, tiny_folder: TinyFolder
) -> None:
    verb, *rest = words
    found = gemwright("bench", verb, tiny_folder("gemma3"), *rest)
    assert (found.code, found.stdout) == (code, "")
    assert text in found.stderr
    assert "Traceback" not in found.stderr


@pytest.mark.parametrize("verb", ["offline", "memory"])
def test_an_unknown_model_and_a_file_that_cannot_be_written_end_with_5(
    verb: str, gemwright: CommandLine, tiny_folder: TinyFolder, tmp_path: Path
) -> None:
    found = gemwright("bench", verb, tmp_path / "nowhere")
    assert (found.code, found.stdout) == (5, "")
    for output in (tmp_path / "nowhere" / "result.json", tmp_path):
        # Before anything is measured: the model is not even looked at.
        found = gemwright("bench", verb, tmp_path / "no-model", "--output", output, "--json")
        assert (found.code, found.stdout) == (5, "")
        assert "the result cannot be written" in found.stderr


def test_a_verb_that_is_not_there_is_bad_usage(gemwright: CommandLine) -> None:
    assert gemwright("bench", "everything").code == 2


@pytest.mark.skipif(sys.platform != "linux", reason="resident sets are read from /proc")
def test_plans_lie_beside_processes_and_later_plans_know_them(
    gemwright: CommandLine, tiny_folder: TinyFolder, kept: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Two processes are measured; what they took beside their ledgers is kept and read by the next plan."""
    output = tmp_path / "memory.json"
    folder = tiny_folder("gemma3")
    words = ("--contexts", "32,64", "--loads", "2", "--output", output)
    content = bench(gemwright, "memory", folder, *words)
    assert json.loads(output.read_text()) == content
    assert content["model"] == str(folder)
    assert [(case["context"], case["num_users"]) for case in content["cases"]] == [(32, 2), (64, 2)]
    for case, other in zip(content["cases"], reversed(content["cases"]), strict=True):
        assert case["kv_is_exact"]
        assert case["kv_planned_bytes"] == case["kv_measured_bytes"] > 0
        for line in case["lines"]:
            assert line["planned_bytes"] == line["measured_bytes"]
        assert case["error_before_bytes"] == case["planned_process_bytes"] - case["process_bytes"]
        assert case["error_after_bytes"] == other["runtime_bytes"] - case["runtime_bytes"]
        assert case["peak_process_bytes"] >= case["process_bytes"]
    (backend,) = {case["backend"] for case in content["cases"]}
    assert backend == choose_holding("auto", "cpu").name
    assert list((kept / "calibration").iterdir()) == [calibration_path(kept, backend)]
    runs = json.loads(calibration_path(kept, backend).read_text())["runtime_bytes"]
    assert runs == [case["runtime_bytes"] for case in content["cases"]]
    found = load_calibration(kept, backend)
    assert found is not None
    planned = gemwright("plan", folder, "--here", "--offline", "--json").json()
    line = next(line for line in planned["lines"] if line["name"].startswith("runtime"))
    assert line["source"] == "calibration of this machine"
    assert line["error_bytes"] == found.error_bytes
    monkeypatch.setenv("GEMWRIGHT_NO_CALIBRATION", "1")
    planned = gemwright("plan", folder, "--here", "--offline", "--json").json()
    line = next(line for line in planned["lines"] if line["name"].startswith("runtime"))
    assert line["source"].startswith("measured elsewhere")


def test_what_a_measuring_process_refuses_is_refused_here(tiny_folder: TinyFolder) -> None:
    """With its fields and its exit code, not as something unforeseen."""
    with pytest.raises(RequestError, match="beyond the model's context") as caught:
        measure_case(Case(str(tiny_folder("gemma3")), 99_999_999, 1, {"threads": 1}))
    assert caught.value.value == "99999999"
    for context, users in ((1, 1), (8, 0), (8, -1)):
        with pytest.raises(RequestError):
            Case(None, context, users, {})


@pytest.mark.slow
def test_the_load_test_of_a_report_is_the_same_search(
    gemwright: CommandLine, tiny_folder: TinyFolder, tmp_path: Path
) -> None:
    """`plan --advise --load-test` writes the knee into the report and the row that is kept."""
    words = ("--advise", "--load-test", "--report", tmp_path / "report", "--max-model-len", "64", "--max-num-seqs", "2")
    found = gemwright("plan", tiny_folder("gemma3"), *words, "--offline")
    assert found.code == 0, found.stderr
    table = (tmp_path / "report" / "plans.md").read_text().splitlines()
    assert len(table) == 3
    assert " users, " in table[-1]
    (report,) = [path for path in (tmp_path / "report").glob("*.md") if path.name != "plans.md"]
    text = report.read_text()
    assert "gemwright bench offline --find-knee --input-len 32 --output-len 32" in text
    assert "Knee at " in text
    assert gemwright("plan", tiny_folder("gemma3"), *words, "--offline").code == 0
    assert len((tmp_path / "report" / "plans.md").read_text().splitlines()) == 4
