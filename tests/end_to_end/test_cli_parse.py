"""`gemwright parse`: lines in, lines out, as the contract says; bad lines named and the rest read."""

from __future__ import annotations

import io
import json
import subprocess
from collections.abc import Callable
from typing import Any

import pytest

from gemwright.cli import main
from gemwright.cli.parse_lines import parse_lines
from gemwright.text.parser_json import read_json
from tests.end_to_end.command_line import CHILD, child_environment
from tests.parser_tools import CASES

Run = Callable[..., tuple[int, list[dict[str, Any]], str]]


@pytest.fixture
def parse(monkeypatch: pytest.MonkeyPatch, capsysbinary: pytest.CaptureFixture[bytes]) -> Run:
    """Run the verb on lines (bytes as they are, anything else as JSON); returns code, answers and stderr."""

    def run(*lines: Any, family: str = "gemma4") -> tuple[int, list[dict[str, Any]], str]:
        data = b"".join(line if isinstance(line, bytes) else json.dumps(line).encode() + b"\n" for line in lines)
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(data)))
        code = main(["parse", "--family", family])
        printed = capsysbinary.readouterr()
        return code, [json.loads(line) for line in printed.out.splitlines()], printed.err.decode()

    return run


def test_every_case_is_answered_in_order_and_its_events_give_its_fields(parse: Run) -> None:
    code, answers, _ = parse(*CASES)
    assert code == 0
    assert [one["id"] for one in answers] == [case["id"] for case in CASES]
    for case, one in zip(CASES, answers, strict=True):
        num_chunks = len(case.get("stream_splits", case.get("stream_byte_splits", []))) + 1
        chunks = [event["chunk"] for event in one["events"]]
        assert chunks == sorted(chunks)
        assert chunks[-1] == num_chunks
        texts = dict.fromkeys(("reasoning", "content", "arguments", "finish"), "")
        names = [event["name"] for event in one["events"] if event["type"] == "tool_call"]
        for event in one["events"]:
            if event["type"] in texts:
                texts[event["type"]] += event["text"]
        assert (one["reasoning_content"] or "", one["content"] or "") == (texts["reasoning"], texts["content"])
        assert names == [call["name"] for call in one["tool_calls"]]
        assert texts["finish"] == one["finish_reason"] == case.get("finish_reason", one["finish_reason"])


def test_events_name_their_chunk(parse: Run) -> None:
    line = {"id": 1, "text": "<|channel>thought\nEasy.<channel|>Blue é.", "stream_byte_splits": [20, 37, 39, 40]}
    _, (answer,), _ = parse(line)
    assert answer["events"] == [
        {"chunk": 0, "type": "reasoning", "text": "Ea"},
        {"chunk": 1, "type": "reasoning", "text": "sy."},
        {"chunk": 1, "type": "content", "text": "Blue"},
        {"chunk": 2, "type": "content", "text": " "},
        {"chunk": 3, "type": "content", "text": "é"},
        {"chunk": 4, "type": "content", "text": "."},
        {"chunk": 5, "type": "finish", "text": "stop"},
    ]


def test_a_cut_call_is_reported_beside_the_calls(parse: Run) -> None:
    _, (answer,), _ = parse({"id": "x", "text": '<|tool_call>call:f{a:<|"|>b', "finish_reason": "length"})
    assert answer["tool_calls"] == []
    assert answer["finish_reason"] == "length"
    assert answer["content"] is None
    assert answer["unfinished_calls"] == [{"name": "f", "text": 'call:f{a:"b'}]
    assert answer["warnings"] == ["a call was cut"]


def test_fields_of_cases_that_say_nothing_to_the_parser_are_passed_over(parse: Run) -> None:
    code, (answer,), _ = parse({"text": "x", "expected": 5, "why": [], "finish_reason": None, "context": None})
    assert code == 0
    assert answer["id"] is None
    assert answer["content"] == "x"


@pytest.mark.parametrize(
    ("line", "what"),
    [
        (b"{bad\n", "no JSON"),
        (b"[" * 100_000 + b"\n", "no JSON"),
        (b"5\n", "no JSON object"),
        (b'{"id":1,"text":"\xff"}\n', "not UTF-8"),
        ({"id": 1}, "text"),
        ({"id": 1, "text": 5}, "text"),
        ({"id": [], "text": ""}, "id"),
        ({"id": 1, "text": "abc", "stream_splits": [2, 1]}, "stream_splits"),
        ({"id": 1, "text": "abc", "stream_splits": [4]}, "stream_splits"),
        ({"id": 1, "text": "abc", "stream_splits": [-1]}, "stream_splits"),
        ({"id": 1, "text": "abc", "stream_splits": ["1"]}, "stream_splits"),
        ({"id": 1, "text": "abc", "stream_splits": True}, "stream_splits"),
        ({"id": 1, "text": "é", "stream_byte_splits": [3]}, "stream_byte_splits"),
        ({"id": 1, "text": "é", "stream_byte_splits": [1], "stream_splits": [1]}, "both"),
        ({"id": 1, "text": "\ud800", "stream_byte_splits": [1]}, "surrogate"),
        ({"id": 1, "text": "", "finish_reason": "done"}, "finish_reason"),
        ({"id": 1, "text": "", "finish_reason": []}, "finish_reason"),
        ({"id": 1, "text": "", "context": []}, "context"),
        ({"id": 1, "text": "", "context": 5}, "context"),
        ({"id": 1, "text": "", "context": {"tools": [5]}}, "context.tools"),
        ({"id": 1, "text": "", "context": {"prompt_tail": 5}}, "context.prompt_tail"),
    ],
)
def test_a_bad_line_is_answered_and_named_and_the_others_are_read(parse: Run, line: Any, what: str) -> None:
    code, (bad, good), errors = parse(b"\n", line, {"id": "good", "text": "x"})
    assert code == 2
    assert what in bad["error"]["what"]
    assert bad["line"] == 2
    assert bad["error"]["remedy"]
    assert good["content"] == "x"
    assert "line 2" in errors


def test_half_a_surrogate_pair_comes_out_as_it_went_in(parse: Run) -> None:
    code, (answer,), _ = parse({"id": "\udc00", "text": "a\ud800"})
    assert code == 0
    assert (answer["id"], answer["content"]) == ("\udc00", "a\ud800")


def test_an_unknown_family_is_refused(parse: Run) -> None:
    code, answers, errors = parse({"id": 1, "text": "x"}, family="gemma5")
    assert (code, answers) == (3, [])
    assert "gemma2, gemma3, gemma4" in errors


def test_gemma_3_lines(parse: Run) -> None:
    line = {"id": 1, "text": '{"name":"f","parameters":{"a":1}}', "context": {"tools": [{"name": "f"}]}}
    _, (answer,), _ = parse(line, family="gemma3")
    assert answer["tool_calls"] == [{"name": "f", "arguments": {"a": 1}}]
    assert answer["finish_reason"] == "tool_calls"


def test_output_is_utf_8_whatever_the_locale() -> None:
    environment = {**child_environment(), "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONIOENCODING": "ascii"}
    line = json.dumps({"id": 1, "text": "é"}, ensure_ascii=False).encode()
    done = subprocess.run(
        [*CHILD, "parse", "--family", "gemma4"], input=line, env=environment, capture_output=True, check=True
    )
    assert json.loads(done.stdout.decode())["content"] == "é"


@pytest.mark.parametrize("value", ["{x:" * 1500 + "1" + "}" * 1500, "1e999"])
def test_a_call_that_python_cannot_write_back_is_answered_with_a_late_duplicate_key_in_it(value: str) -> None:
    text = f'<|tool_call>call:f{{s:<|"|>{"z" * 300}<|"|>,x:{value},s:1}}<tool_call|>'
    lines = [json.dumps({"id": 1, "text": text}).encode(), b'{"id": 2, "text": "and on"}']
    answer, other = map(read_json, parse_lines(lines, "gemma4"))
    assert answer["tool_calls"][0]["arguments"]["s"] == 1
    assert other["content"] == "and on"
