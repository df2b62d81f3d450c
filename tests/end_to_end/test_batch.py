"""`gemwright batch`: bad lines, order, resuming, and that no setting of the engine changes an answer."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gemwright.engine.batch import Batch, encode_output
from gemwright.testing import write_tiny_checkpoint
from tests.end_to_end.command_line import CHILD, CommandLine, child_environment
from tests.end_to_end.conftest import TinyFolder, TinyLLM

Line = dict[str, Any]


@pytest.fixture(scope="module")
def folder(tiny_folder: TinyFolder) -> Path:
    return tiny_folder("gemma3")


def write_lines(path: Path, lines: list[Line | str]) -> Path:
    path.write_text("".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines))
    return path


def read_outputs(path: Path) -> list[Line]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def by_id(path: Path) -> dict[Any, Line]:
    outputs = read_outputs(path)
    found = {output["id"]: output for output in outputs}
    assert len(found) == len(outputs)
    return found


def ids_of(length: int, shift: int = 0) -> list[int]:
    return [2, *((7 * place + 31 * shift) % 480 + 20 for place in range(length - 1))]


def test_a_line_is_answered_as_run_answers_it(gemwright: CommandLine, folder: Path, tmp_path: Path) -> None:
    settings = {"max_tokens": 6, "temperature": 12, "seed": 3, "logprobs": 2, "ignore_eos": True}
    lines: list[Line | str] = [{"id": "text", "prompt": "Wie geht's?", **settings}, "", {"id": 7, "prompt": "a"}]
    lines.append({"id": "three", "prompt_token_ids": [40, 300], **settings, "n": 3, "top_k": None})
    source, target = write_lines(tmp_path / "in.jsonl", lines), tmp_path / "out.jsonl"
    outcome = gemwright("batch", folder, source, target, "--json")
    assert outcome.code == 0, outcome.stderr
    found = by_id(target)
    assert found.keys() == {"text", 7, "three"}
    flags = [word for name, value in settings.items() for word in (f"--{name.replace('_', '-')}", value)][:-1]
    run = gemwright("run", folder, "Wie geht's?", *flags, "--json").json()
    assert found["text"].keys() == {"id", *run}
    for name in ("model", "prompt_token_ids", "token_ids", "text", "finish_reason", "logprobs", "usage"):
        assert found["text"][name] == run[name], name
    run = gemwright("run", folder, "--token-ids", "40,300", *flags, "--n", 3, "--json").json()
    assert found["three"]["choices"] == run["choices"]
    # Greedy by the model's own defaults, 256 tokens at most.
    assert found[7]["token_ids"] == gemwright("run", folder, "a", "--json").json()["token_ids"]
    usages = [output["usage"] for output in found.values()]
    summary = outcome.json()
    assert summary == {
        "num_requests": 3,
        "num_errors": 0,
        "num_steps": summary["num_steps"],
        "max_running": 5,
        "num_preemptions": 0,
        **{name: sum(usage[name] for usage in usages) for name in ("prompt_tokens", "cached_tokens")},
        "completion_tokens": sum(usage["completion_tokens"] for usage in usages),
        "memory": summary["memory"],
    }
    assert all(line["planned_bytes"] == line["measured_bytes"] for line in summary["memory"]["lines"])
    assert summary["num_steps"] >= len(found[7]["token_ids"])


BAD_LINES: list[tuple[Line | str, str]] = [
    ("{", "no JSON"),
    ("[1]", "no JSON object"),
    ('"text"', "no JSON object"),
    ("[" * 100_000, "no JSON"),
    ({"prompt": "a"}, "id"),
    ({"id": None, "prompt": "a"}, "id"),
    ({"id": True, "prompt": "a"}, "id"),
    ({"id": [1], "prompt": "a"}, "id"),
    ({"id": 1}, "no prompt"),
    ({"id": 1, "prompt": ""}, "empty"),
    ({"id": 1, "prompt": "a", "prompt_token_ids": [2]}, "more than one prompt"),
    ({"id": 1, "prompt": ["a"]}, "prompt"),
    ({"id": 1, "prompt": "\ud800"}, "surrogate"),
    ({"id": 1, "prompt_token_ids": "2"}, "prompt_token_ids"),
    ({"id": 1, "prompt_token_ids": []}, "empty"),
    ({"id": 1, "prompt_token_ids": [2, 515]}, "prompt_token_ids"),
    ({"id": 1, "prompt_token_ids": [2, "3"]}, "prompt_token_ids"),
    ({"id": 1, "prompt_token_ids": [2] * 70_000}, "no room"),
    ({"id": 1, "messages": [{"role": "user", "content": "a"}]}, "base model"),
    ({"id": 1, "prompt": "a", "tools": []}, "tools goes with messages"),
    ({"id": 1, "prompt": "a", "max_tokens": 0}, "max_tokens"),
    ({"id": 1, "prompt": "a", "temperature": -1}, "temperature"),
    ('{"id": 1, "prompt": "a", "temperature": NaN}', "temperature"),
    ({"id": 1, "prompt": "a", "logit_bias": {"515": 1}}, "logit_bias"),
    ({"id": 1, "prompt": "a", "priority": "high"}, "priority"),
    ({"id": 1, "prompt": "a", "cache_salt": 5}, "cache_salt"),
    ({"id": 1, "prompt": "a", "cache_salt": "\ud800"}, "cache_salt"),
    ({"id": 1, "prompt": "a", "max_tokenz": 5}, "unknown field"),
]


def test_every_bad_line_gets_an_error_that_names_it_and_the_rest_go_on(
    gemwright: CommandLine, folder: Path, tmp_path: Path
) -> None:
    lines: list[Line | str] = []
    for number, (line, _) in enumerate(BAD_LINES, start=1):
        numbered = (
            line if isinstance(line, str) else {**line, **({"id": number} if type(line.get("id")) is int else {})}
        )
        lines.append(numbered.replace('"id": 1', f'"id": {number}') if isinstance(numbered, str) else numbered)
    lines.append({"id": "good", "prompt": "a", "max_tokens": 2})
    lines.append({"id": "good", "prompt": "b", "max_tokens": 2})
    source, target = write_lines(tmp_path / "in", lines), tmp_path / "out"
    source.write_bytes(source.read_bytes() + b'{"id": "\xff", "prompt": "a"}\n')
    outcome = gemwright("batch", folder, source, target, "--json")
    assert outcome.code == 0, outcome.stderr
    outputs = read_outputs(target)
    assert outcome.json()["num_requests"] == len(outputs) == len(lines) + 1
    assert [output["id"] for output in outputs if "error" not in output] == ["good"]
    assert outcome.json()["num_errors"] == len(outputs) - 1
    errors = {output["line"] if output["id"] is None else output["id"]: output for output in outputs[:-1]}
    for number, (_, what) in enumerate(BAD_LINES, start=1):
        assert what in errors[number]["error"]["what"], errors[number]
        assert errors[number]["error"].keys() == {"what", "value", "limit", "remedy"}
    (second,) = [output for output in outputs if output["id"] == "good" and "error" in output]
    assert (second["line"], second["error"]["value"]) == (len(lines), "good")
    unknown = errors[len(BAD_LINES)]["error"]
    assert unknown["value"] == "max_tokenz"
    assert "max_tokens" in unknown["limit"]


def test_answers_come_in_the_order_finished(gemwright: CommandLine, folder: Path, tmp_path: Path) -> None:
    lengths = {"long": 30, "short": 2, "middle": 10}
    lines = [{"id": key, "prompt": "a", "max_tokens": length, "ignore_eos": True} for key, length in lengths.items()]
    source = write_lines(tmp_path / "in", [*lines])
    assert gemwright("batch", folder, source, tmp_path / "out").code == 0
    assert [output["id"] for output in read_outputs(tmp_path / "out")] == ["short", "middle", "long"]
    # A lower priority runs first where there is room for one only.
    source = write_lines(tmp_path / "in", [{**line, "priority": -place} for place, line in enumerate(lines)])
    assert gemwright("batch", folder, source, tmp_path / "two", "--max-num-seqs", 1).code == 0
    assert [output["id"] for output in read_outputs(tmp_path / "two")] == ["middle", "short", "long"]


def test_stdin_is_read_and_the_text_summary_counts(
    gemwright: CommandLine, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stdin = b'{"id": 1, "prompt": "a", "max_tokens": 1}\n{"id": 2}'
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(stdin)))
    outcome = gemwright("batch", "-", tmp_path / "out", "--model", folder)
    assert by_id(tmp_path / "out").keys() == {1, 2}
    assert outcome.stdout.startswith("requests 2, errors 1, steps 1, ")


def test_what_cannot_be_read_or_written_is_refused_before_the_model_is_read(
    gemwright: CommandLine, tmp_path: Path
) -> None:
    source = write_lines(tmp_path / "in", [{"id": 1, "prompt": "a"}])
    (tmp_path / "there").write_text("mine\n")
    cases: list[tuple[list[object], int, str]] = [
        ([source, tmp_path / "there"], 2, "the output exists"),
        ([source, tmp_path / "there", "--resume"], 2, "line 1 of the output is no answer"),
        ([source, source, "--resume"], 2, "one file"),
        ([tmp_path / "there", source, "--resume"], 2, "line 1 of the output is no answer"),
        ([tmp_path / "nowhere", tmp_path / "out"], 5, "cannot be read"),
        ([tmp_path, tmp_path / "out"], 5, "cannot be read"),
        ([source, tmp_path / "no" / "out"], 5, "folder does not exist"),
        ([source, tmp_path, "--resume"], 5, "cannot be read and written"),
        ([source], 2, "two files"),
        (["m", "m", source, tmp_path / "out"], 2, "two files"),
        (["m", source, tmp_path / "out", "--model", "n"], 2, "two models"),
        ([source, tmp_path / "out", "--block-size", 3], 3, "block_size"),
    ]
    for words, code, message in cases:
        outcome = gemwright("batch", *words)
        assert (outcome.code, outcome.stdout) == (code, ""), outcome.stderr
        assert message in outcome.stderr
        assert not (tmp_path / "out").exists()
    assert (tmp_path / "there").read_text() == "mine\n"
    assert len(source.read_text().splitlines()) == 1


@pytest.mark.slow
def test_a_batch_longer_than_memory_is_taken_line_by_line(tiny_llm: TinyLLM) -> None:
    work = Batch(tiny_llm("gemma3", max_num_seqs=2), max_in_flight=5)
    num_taken = 0

    def lines() -> Iterator[str]:
        nonlocal num_taken
        for num_taken in range(1, 401):
            yield json.dumps({"id": num_taken, "prompt_token_ids": [2, 40], "max_tokens": 1 + num_taken % 3})

    num_answered = 0
    for _ in work.run(lines()):
        num_answered += 1
        assert num_taken - num_answered <= 5
        assert len(work.llm.core.scheduler.waiting) <= 5
    assert num_answered == 400
    assert work.llm.core.blocks.request_ids == ()
    assert work.llm.core._answers == {}


def test_closing_the_answers_aborts_what_runs(tiny_llm: TinyLLM) -> None:
    work = Batch(tiny_llm("gemma3"))
    lines = [json.dumps({"id": key, "prompt": "a", "max_tokens": 1 + 50 * key, "ignore_eos": True}) for key in range(4)]
    outputs = work.run(lines)
    assert next(outputs)["id"] == 0
    assert len(work.llm.core.scheduler.running) == 3
    outputs.close()  # type: ignore[attr-defined]  # a generator
    assert not work.llm.core.scheduler.has_work
    work.llm.core.blocks.check()


def test_logits_that_are_no_numbers_end_their_line_alone(tiny_llm: TinyLLM, monkeypatch: pytest.MonkeyPatch) -> None:
    llm = tiny_llm("gemma3")
    run = llm.core.runner.run

    def poisoned(step: Any) -> Any:
        for place, logits in run(step):
            yield place, logits * float("nan") if place == 1 and llm.core.counters.num_steps == 3 else logits

    monkeypatch.setattr(llm.core.runner, "run", poisoned)
    lines = [json.dumps({"id": key, "prompt": key * 4, "max_tokens": 6, "ignore_eos": True}) for key in "abc"]
    outputs = {output["id"]: output for output in Batch(llm).run(lines)}
    assert "not finite" in outputs["b"]["error"]["what"]
    assert [len(outputs[key]["token_ids"]) for key in "ac"] == [6, 6]
    assert llm.core.blocks.request_ids == ()


def start_child(*words: object) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [*CHILD, *map(str, words)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=child_environment()
    )


def wait_for_lines(path: Path, count: int, child: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + 120
    while not path.exists() or path.read_bytes().count(b"\n") < count:
        assert child.poll() is None, child.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.01)


def many_lines(number: int) -> list[Line | str]:
    lines: list[Line | str] = [
        {"id": f"line {place}", "prompt_token_ids": ids_of(5 + place % 40, place), "max_tokens": 8, "ignore_eos": True}
        for place in range(number)
    ]
    return [*lines[:3], "broken", lines[0], {"id": "bad", "prompt": ""}, *lines[3:]]


@pytest.mark.slow
def test_killed_and_resumed_gives_the_complete_set(gemwright: CommandLine, folder: Path, tmp_path: Path) -> None:
    number = 150
    source, target = write_lines(tmp_path / "in", many_lines(number)), tmp_path / "out"
    words = ("batch", folder, source, target, "--max-num-seqs", 4)
    child = start_child(*words)
    wait_for_lines(target, 15, child)
    os.kill(child.pid, signal.SIGKILL)
    child.communicate()
    before = target.read_bytes()
    num_before = before.count(b"\n")
    assert 15 <= num_before < number
    # What a torn write leaves: the line is answered again, in whole.
    target.write_bytes(before + b'{"id": "line 149", "model": "x", "tok')
    outcome = gemwright(*words, "--resume", "--json")
    assert outcome.code == 0, outcome.stderr
    assert target.read_bytes().startswith(before)
    outputs = read_outputs(target)
    assert outcome.json()["num_requests"] == len(outputs) - num_before
    answers = {output["id"]: output["token_ids"] for output in outputs if "error" not in output}
    assert answers.keys() == {f"line {place}" for place in range(number)}
    assert sorted((str(output["id"]), output.get("line")) for output in outputs if "error" in output) == [
        ("None", 4),
        ("bad", None),
        ("line 0", 5),
    ]
    assert len(outputs) == number + 3
    # Resuming what is complete adds nothing, and an uninterrupted run says the same.
    assert gemwright(*words, "--resume", "--json").json()["num_requests"] == 0
    assert read_outputs(target) == outputs
    assert gemwright("batch", folder, source, tmp_path / "whole").code == 0
    whole = {output["id"]: output["token_ids"] for output in read_outputs(tmp_path / "whole") if "error" not in output}
    assert whole == answers


def test_ctrl_c_ends_with_130_and_whole_lines(folder: Path, tmp_path: Path) -> None:
    source, target = write_lines(tmp_path / "in", many_lines(2000)), tmp_path / "out"
    child = start_child("batch", folder, source, target)
    wait_for_lines(target, 10, child)
    child.send_signal(signal.SIGINT)
    stdout, stderr = child.communicate(timeout=60)
    assert (child.returncode, stdout, stderr.strip()) == (130, b"", b"interrupted")
    assert target.read_bytes().endswith(b"\n")
    assert 10 <= len(read_outputs(target)) < 2000


def test_a_checkpoint_without_tokenizer_answers_ids(gemwright: CommandLine, tmp_path: Path) -> None:
    bare = write_tiny_checkpoint("gemma4-e", tmp_path)
    for path in bare.glob("tokenizer*"):
        path.unlink()
    lines: list[Line | str] = [{"id": 1, "prompt_token_ids": [40, 300], "max_tokens": 2}, {"id": 2, "prompt": "a"}]
    lines.append({"id": 3, "prompt_token_ids": [40], "bad_words": ["a"]})
    assert gemwright("batch", bare, write_lines(tmp_path / "in", lines), tmp_path / "out").code == 0
    found = by_id(tmp_path / "out")
    assert found[1]["text"] is None
    assert len(found[1]["token_ids"]) == 2
    assert "tokenizer" in found[2]["error"]["what"]
    assert "tokenizer" in found[3]["error"]["what"]


def test_cache_salts_part_what_may_be_shared(gemwright: CommandLine, folder: Path, tmp_path: Path) -> None:
    prompt = {"prompt_token_ids": ids_of(64), "max_tokens": 1}
    lines: list[Line | str] = [{"id": 1, **prompt}, {"id": 2, **prompt}, {"id": 3, **prompt, "cache_salt": "x"}]
    source = write_lines(tmp_path / "in", lines)
    flags: list[list[object]] = [[], ["--cache-salt", "x"], ["--no-prefix-caching"]]
    for place, words in enumerate(flags):
        target = tmp_path / f"out{place}"
        assert gemwright("batch", folder, source, target, "--max-num-seqs", 1, *words).code == 0
        cached = [by_id(target)[key]["usage"]["cached_tokens"] for key in (1, 2, 3)]
        assert cached == [[0, 48, 0], [0, 48, 48], [0, 0, 0]][place]


def test_an_answer_too_deep_for_json_is_an_error_of_its_line() -> None:
    deep: Any = 1
    for _ in range(5_000):
        deep = [deep]
    written = json.loads(encode_output({"id": "a", "tool_calls": [{"name": "f", "arguments": {"x": deep}}]}))
    assert written["id"] == "a"
    assert "nested too deep" in written["error"]["value"]
