"""`gemwright bench serve`: on our own server, and on one whose faults are known."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from gemwright.bench.arrivals import Arrivals
from gemwright.bench.client import Outcome
from gemwright.bench.prompts import WordTokens
from gemwright.bench.serve import Manner, Served, View
from gemwright.cli.bench.shared import without_keys
from gemwright.errors import show_bytes
from gemwright.testing.scripted import answers, scripted_llm
from tests.end_to_end.command_line import CommandLine
from tests.end_to_end.command_line import Outcome as Ended
from tests.end_to_end.conftest import TinyFolder
from tests.serving import Served as Running
from tests.serving import serving

CHAT = ("--endpoint", "/v1/chat/completions")


@pytest.fixture(scope="module")
def server(tiny_folder: TinyFolder) -> Iterator[Running]:
    """Our server, whose model answers ABCDEFGH."""
    folder, script = tiny_folder("gemma3"), answers({}, "ABCDEFGH")
    llm = scripted_llm(folder, script, threads=1, max_model_len=256, max_num_seqs=4, chat_template="gemma4")
    with serving(llm) as running:
        yield running


class Scripted(BaseHTTPRequestHandler):
    """Answers the first requests, which are probes, well, and the others as its server's plan says, one after the
    other and around again."""

    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None:
        pass

    def do_GET(self) -> None:
        self.reply(200, b'{"data":[{"id":"planned"}]}' if self.path == "/v1/models" else b"")

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        server = self.server
        assert isinstance(server, Planned)
        with server.lock:
            number = len(server.bodies)
            server.bodies.append(body)
        plan = "good" if number < server.num_probes else server.plan[(number - server.num_probes) % len(server.plan)]
        num_words = len(body["prompt"].split())
        usage = {"choices": [], "usage": {"prompt_tokens": 2 + 3 * num_words, "completion_tokens": 7}}
        piece, end = {"choices": [{"text": "x"}]}, {"choices": [{"text": "", "finish_reason": "length"}]}
        events: list[Any] = [piece, piece, piece, end, usage, "[DONE]"]
        if plan == "429":
            self.reply(429, b'{"error":{"message":"too many"}}')
            return
        if plan == "slow":
            time.sleep(1.0)
        if plan == "error":
            events = [piece, {"error": {"message": "out of memory"}}, "[DONE]"]
        if plan == "cut":
            events = [piece, piece]
        if plan == "no usage":
            events = [piece, end, "[DONE]"]
        if plan == "no event":
            events = [piece, "<html>"]
        text = "".join(f"data: {found if isinstance(found, str) else json.dumps(found)}\n\n" for found in events)
        self.reply(200, text.encode())

    def reply(self, status: int, content: bytes) -> None:
        try:
            self.send_response(status)
            self.send_header("content-length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)
        except OSError:
            self.close_connection = True


class Planned(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Scripted)
        self.lock = threading.Lock()
        self.bodies: list[dict[str, Any]] = []
        self.plan = ["good"]
        self.num_probes = 2

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


@pytest.fixture
def planned() -> Iterator[Planned]:
    with Planned() as running:
        thread = threading.Thread(target=running.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        yield running
        running.shutdown()
        thread.join()


def measure(gemwright: CommandLine, url: str, *words: object) -> Ended:
    return gemwright("bench", "serve", "--base-url", url, "--json", *words)


@pytest.mark.parametrize("endpoint", [(), CHAT], ids=["completions", "chat"])
def test_counts_are_those_of_the_server(gemwright: CommandLine, server: Running, endpoint: tuple[str, ...]) -> None:
    before = server.engine.counters.completion_tokens
    ended = measure(
        gemwright, server.url, *endpoint, "--num-prompts", 6, "--max-concurrency", 3, "--random-input-len", 100,
        "--random-output-len", 5,
    )  # fmt: skip
    found = ended.json()
    assert ended.code == 0
    assert found["endpoint"] == (endpoint[1] if endpoint else "/v1/completions")
    assert (found["model"], found["num_completed"], found["num_failed"], found["failures"]) == ("gemma", 6, 0, {})
    assert found["output_tokens"] == 6 * 5
    assert found["output_tokens"] + 2 * 2 == server.engine.counters.completion_tokens - before  # two probes of two
    assert found["finish_reasons"] == {"length": 6}
    assert 1 <= found["peak_concurrency"] <= 3
    # The tiny vocabulary makes five tokens of each word.
    assert abs(found["input_tokens"] / 6 - 100) <= 2.5
    assert found["requests_per_s"] == pytest.approx(6 / found["seconds"], rel=1e-3)
    assert found["tokens_per_s"] == pytest.approx(30 / found["seconds"], rel=1e-3)
    for name in ("ttft", "tpot", "inter_token", "e2e"):
        row = found[name]
        assert list(row) == ["mean_ms", "std_ms", "p50_ms", "p95_ms", "p99_ms"]
        assert 0 <= row["p50_ms"] <= row["p95_ms"] <= row["p99_ms"]
    assert found["machine"]["num_cores"] >= 1


def test_what_is_shown_can_be_chosen_and_goodput_counts_answers_within_the_limits(
    gemwright: CommandLine, server: Running
) -> None:
    words = ("--num-prompts", 2, "--random-input-len", 60, "--percentile-metrics", "ttft,itl")
    found = measure(
        gemwright, server.url, *words, "--metric-percentiles", "25,99.9", "--goodput", "ttft:60000", "e2el:60000"
    ).json()
    assert list(found["ttft"]) == ["mean_ms", "std_ms", "p25_ms", "p99.9_ms"]
    assert "tpot" not in found
    assert "e2e" not in found
    assert found["goodput"]["limits_ms"] == {"ttft": 60000, "e2el": 60000}
    assert found["goodput"]["num_good"] == 2
    assert measure(gemwright, server.url, *words, "--goodput", "e2el:0.001").json()["goodput"]["num_good"] == 0


def test_a_burst_tells_its_first_wave_apart(gemwright: CommandLine, server: Running) -> None:
    words = ("--num-prompts", 6, "--random-input-len", 60, "--random-output-len", 4)
    found = measure(gemwright, server.url, *words, "--burst", "--max-concurrency", 4).json()
    assert found["burst"]["peak"] == found["peak_concurrency"] == 4
    assert found["burst"]["first_wave"]["ttft"]["p99_ms"] > 0
    assert found["burst"]["after_it"]["ttft"]["p99_ms"] > 0


def test_the_knee_is_searched_with_twice_as_many_users_each_time(
    gemwright: CommandLine, server: Running, tiny_folder: TinyFolder, tmp_path: Path
) -> None:
    words = ("--find-knee", "--max-concurrency", 3, "--random-input-len", 60, "--random-output-len", 4)
    ended = measure(gemwright, server.url, *words, "--save-result", "--result-dir", tmp_path / "results")
    found = ended.json()
    users = [point["concurrency"] for point in found["points"]]
    assert users == [1, 2, 3][: len(users)]
    assert [point["num_completed"] for point in found["points"]] == [2 * count for count in users]
    assert found["knee"]["concurrency"] in users
    assert found["burst"]["peak_concurrency"] == users[-1]
    # Our own server tells of its cache.
    assert all(point["num_preemptions"] == 0 and 0 <= point["pool_share"] <= 1 for point in found["points"])
    (saved,) = (tmp_path / "results").iterdir()
    assert json.loads(saved.read_text()) == found
    # The ledger's report takes it from there.
    words = ("--offline", "--advise", "--report", tmp_path / "report", "--load-test-result")
    assert gemwright("plan", tiny_folder("gemma3"), *words, saved).code == 0
    knee = f"{found['knee']['concurrency']} users"
    (report,) = [path for path in (tmp_path / "report").glob("*.md") if path.name != "plans.md"]
    assert f"Knee at {knee}: " in report.read_text()
    assert f"The process held {show_bytes(found['process_bytes'])}." in report.read_text()
    assert f"| {knee}, " in (tmp_path / "report" / "plans.md").read_text()
    for other in (report, tmp_path / "absent.json"):
        refused = gemwright("plan", tiny_folder("gemma3"), *words, other)
        assert refused.code != 0
        assert str(other) in refused.stderr
    assert gemwright("plan", tiny_folder("gemma3"), "--offline", "--load-test-result", saved).code == 2


def test_failures_are_counted_by_what_went_wrong(gemwright: CommandLine, planned: Planned) -> None:
    planned.plan = ["good", "429", "error", "cut", "no usage", "no event", "slow", "429"]
    ended = measure(
        gemwright, f"{planned.url}/v1", "--num-prompts", 8, "--max-concurrency", 1, "--random-input-len", 20,
        "--request-timeout", 0.4, "--ignore-eos", "--random-output-len", 7,
    )  # fmt: skip
    found = ended.json()
    assert ended.code == 0
    assert (found["num_completed"], found["num_failed"]) == (1, 7)
    assert {kind: failure["count"] for kind, failure in found["failures"].items()} == {
        "http 429": 2,
        "error event": 1,
        "cut off": 1,
        "no usage": 1,
        "not an event": 1,
        "timeout": 1,
    }
    assert found["failures"]["http 429"]["first"] == "too many"
    assert found["failures"]["error event"]["first"] == "out of memory"
    # The one answer: seven tokens in three pieces; 20 tokens are 2 and six words of 3.
    assert (found["output_tokens"], found["num_pieces"], found["input_tokens"]) == (7, 3, 20)
    assert planned.bodies[-1] == {
        "model": "planned",
        "prompt": planned.bodies[-1]["prompt"],
        "max_tokens": 7,
        "temperature": 0.0,
        "stream": True,
        "stream_options": {"include_usage": True},
        "ignore_eos": True,
    }
    assert len({body["prompt"] for body in planned.bodies}) == 10


def test_where_every_request_fails_the_result_is_printed_and_the_code_is_1(
    gemwright: CommandLine, planned: Planned
) -> None:
    planned.plan = ["429"]
    ended = measure(gemwright, planned.url, "--num-prompts", 3)
    assert ended.code == 1
    assert ended.json()["failures"] == {"http 429": {"count": 3, "first": "too many"}}
    assert ended.json()["ttft"] is None
    assert "every request failed" in ended.stderr


def test_failures_bend_the_knee(gemwright: CommandLine, planned: Planned) -> None:
    planned.plan = ["good", "good", "good", "429", "good", "good", "good"]
    found = measure(gemwright, planned.url, "--find-knee", "--max-concurrency", 8).json()
    assert (found["knee"]["concurrency"], found["knee"]["bent"]) in [(1, "failures"), (1, "throughput"), (1, "latency")]
    assert found["points"][1]["num_failed"] == 1
    assert found["knee"]["num_preemptions"] is None


def test_without_a_server_the_address_and_what_to_do_are_named(gemwright: CommandLine, planned: Planned) -> None:
    ended = gemwright("bench", "serve", "--base-url", "http://127.0.0.1:9", "--model", "x", "--num-prompts", 1)
    assert ended.code == 1
    assert "http://127.0.0.1:9/v1/completions: not connected" in ended.stderr
    assert "--base-url" in ended.stderr


def test_prompts_of_a_file_are_sent_once_each(gemwright: CommandLine, planned: Planned, tmp_path: Path) -> None:
    planned.num_probes = 1
    path = tmp_path / "prompts.jsonl"
    path.write_text("".join(json.dumps({"prompt": f"p{n}", "output_tokens": 10 + n}) + "\n" for n in range(4)))
    words = ("--dataset-name", "custom", "--dataset-path", path)
    assert measure(gemwright, planned.url, *words, "--num-prompts", 3).code == 0
    sent = [(body["prompt"], body["max_tokens"]) for body in planned.bodies[1:]]
    assert len(set(sent)) == 3
    assert set(sent) <= {(f"p{n}", 10 + n) for n in range(4)}
    few = measure(gemwright, planned.url, *words, "--num-prompts", 5)
    assert few.code == 2
    assert "--num-prompts" in few.stderr


def test_first_questions_of_a_sharegpt_file_are_sent(gemwright: CommandLine, planned: Planned, tmp_path: Path) -> None:
    planned.num_probes = 1
    path = tmp_path / "talks.json"
    turns = [{"from": "human", "value": "Why?"}, {"from": "gpt", "value": "So."}, {"from": "human", "value": "Oh."}]
    path.write_text(json.dumps([{"id": "1", "conversations": turns}, {"id": "2", "conversations": turns[1:2]}]))
    words = ("--dataset-name", "sharegpt", "--dataset-path", path, "--sharegpt-output-len", 9, "--num-prompts", 1)
    assert measure(gemwright, planned.url, *words).code == 0
    assert [(body["prompt"], body["max_tokens"]) for body in planned.bodies[1:]] == [("Why?", 9)]


def test_results_for_people_name_failures_and_goodput(gemwright: CommandLine, planned: Planned) -> None:
    planned.plan = ["good", "429"]
    ended = gemwright("bench", "serve", "--base-url", planned.url, "--num-prompts", 4, "--goodput", "tpot:60000")
    assert ended.code == 0
    assert "2 answered, 2 failed" in ended.stdout
    assert "2 x http 429: too many" in ended.stdout
    assert "2 kept to all limits" in ended.stdout


@pytest.mark.parametrize(
    "words",
    [
        ("--num-prompts", 0),
        ("--request-rate", 0),
        ("--request-rate", 2, "--burst", "--max-concurrency", 2),
        ("--burst",),
        ("--burst", "--find-knee", "--max-concurrency", 2),
        ("--find-knee", "--num-prompts", 8),
        ("--burstiness", 2),
        ("--burstiness", -1, "--request-rate", 2),
        ("--max-concurrency", 0),
        ("--ramp-up-strategy", "linear"),
        ("--ramp-up-strategy", "cubic"),
        ("--ramp-up-strategy", "linear", "--ramp-up-start-rps", 0, "--ramp-up-end-rps", 2),
        ("--ramp-up-strategy", "linear", "--ramp-up-start-rps", 1, "--ramp-up-end-rps", 2, "--request-rate", 3),
        ("--goodput", "itl:5"),
        ("--goodput", "ttft:5", "ttft:6"),
        ("ttft:5",),
        ("--percentile-metrics", "speed"),
        ("--metric-percentiles", "101"),
        ("--dataset-path", "x"),
        ("--dataset-name", "custom"),
        ("--dataset-name", "sharegpt", "--dataset-path", "x"),
        ("--custom-output-len", 5),
        ("--result-dir", "x"),
        ("--base-url", "localhost:8000"),
        ("--endpoint", "/v1/embeddings"),
        ("--seed", -1),
        ("--temperature", -1),
        ("--request-timeout", 0),
    ],
    ids=lambda words: " ".join(map(str, words)),
)
def test_flags_that_make_no_sense_are_refused_before_anything_is_sent(
    gemwright: CommandLine, words: tuple[object, ...]
) -> None:
    assert gemwright("bench", "serve", *words).code == 2


def test_numbers_worked_by_hand() -> None:
    """Two answers and a failure. The first: sent at 10.0, a piece at 10.2, others 0.1 and 0.3 s later, 5 tokens; the
    second, sent at 10.1, one token after 0.5 s."""
    served = Served(
        Manner(Arrivals(), max_concurrency=2),
        (
            Outcome(10.0, 10.7, ttft_s=0.2, gaps_s=(0.1, 0.3), num_prompt_tokens=8, num_tokens=5, finish_reason="stop"),
            Outcome(10.1, 10.6, ttft_s=0.5, num_prompt_tokens=8, num_tokens=1, finish_reason="stop"),
            Outcome(10.7, 12.0, failure="timeout", detail="1.3 seconds", held_back_s=0.6),
        ),
    )
    found = served.to_dict(View(percentiles=(50,), goodput_ms={"ttft": 300, "tpot": 100}))
    assert (found["seconds"], found["peak_concurrency"]) == (2.0, 2)
    assert (found["tokens_per_s"], found["requests_per_s"], found["total_tokens_per_s"]) == (3.0, 1.0, 11.0)
    assert found["ttft"] == {"mean_ms": 350.0, "std_ms": 150.0, "p50_ms": 350.0}
    assert found["inter_token"] == {"mean_ms": 200.0, "std_ms": 100.0, "p50_ms": 200.0}
    # 0.4 s shared among the four tokens after the first; the answer of one token has none.
    assert found["tpot"] == {"mean_ms": 100.0, "std_ms": 0.0, "p50_ms": 100.0}
    assert found["e2e"]["mean_ms"] == 600.0
    assert found["held_back"]["mean_ms"] == 200.0
    assert (found["goodput"]["num_good"], found["goodput"]["requests_per_s"]) == (1, 0.5)
    assert (found["num_pieces"], found["num_failed"], found["finish_reasons"]) == (4, 1, {"stop": 2})
    point = served.to_point()
    assert (point.concurrency, point.tokens_per_s, point.num_failed) == (2, 3.0, 1)


def test_the_worst_five_minutes_are_found_in_a_long_load() -> None:
    """One request a second for 15 minutes; the first token takes 0.1 s, and 0.9 s from minute 6 to minute 8."""

    def outcome(second: int) -> Outcome:
        return Outcome(50.0 + second, 51.0 + second, ttft_s=0.9 if 360 <= second < 480 else 0.1, num_tokens=1)

    outcomes = tuple(map(outcome, range(900)))
    begin_s, worst = Served(Manner(), outcomes).worst_stretch()
    # More than a twentieth of any five minutes with enough of those two; the first such stretch of several.
    assert (begin_s, len(worst)) == (80, 301)
    failed = replace(outcomes[700], failure="timeout")
    begin_s, worst = Served(Manner(), (*outcomes[:700], failed, *outcomes[701:])).worst_stretch()
    assert failed in worst
    found = Served(Manner(), outcomes[:200]).to_dict(View(percentiles=(50,)))["worst_five_minutes"]
    assert (found["begin_s"], found["num_requests"], found["ttft"]["p50_ms"]) == (0.0, 200, 100.0)


def test_keys_do_not_go_into_results() -> None:
    for words in (["--api-key", "secret", "--json"], ["--json", "--api-key=secret"]):
        hidden = without_keys(words)
        assert "secret" not in " ".join(hidden)
        assert "--json" in hidden


def test_a_folder_that_cannot_be_written_is_refused_before_anything_is_sent(
    gemwright: CommandLine, planned: Planned, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    ended = measure(gemwright, planned.url, "--save-result", "--result-dir", tmp_path / "file")
    assert ended.code == 5
    assert str(tmp_path / "file") in ended.stderr
    assert "--result-dir" in ended.stderr
    assert planned.bodies == []


def test_how_many_words_a_length_is_follows_from_two_counts() -> None:
    """8 words are 20 tokens and 24 are 52: 2 a word and 4 beside."""
    tokens = WordTokens.from_counts(20, 52)
    assert (tokens.fixed, tokens.each) == (4, 2)
    assert (tokens.num_words(6), tokens.num_words(104), tokens.num_words(105)) == (1, 50, 50)
