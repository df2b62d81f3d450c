"""The published parser cases: the right result in every chunking, the events included."""

from __future__ import annotations

import codecs
import itertools
from typing import Any

import pytest

from tests.parser_tools import CASES, Parsed, case_options, check_calls, cut, fields, joined, run

IDS = [case["id"] for case in CASES]


def chunkings(case: dict[str, Any]) -> dict[str, list[str]]:
    text = case["text"]
    found = {"whole": [text], "by character": list(text)}
    if "stream_splits" in case:
        found["as given"] = cut(text, case["stream_splits"])
    if "stream_byte_splits" in case:
        data, decoder = text.encode(), codecs.getincrementaldecoder("utf-8")()
        ends = [0, *case["stream_byte_splits"], len(data)]
        found["as given"] = [decoder.decode(data[begin:end]) for begin, end in itertools.pairwise(ends)]
    return found


def plain(reasoning: str | None, content: str | None, calls: list[dict[str, Any]]) -> dict[str, Any]:
    return {"reasoning": (reasoning or "").strip(), "content": (content or "").strip(), "calls": calls}


def result(parsed: Parsed) -> dict[str, Any]:
    output = parsed.output
    calls = [{"name": call.name, "arguments": call.arguments} for call in output.tool_calls]
    return plain(output.reasoning_content, output.content, calls)


def test_all_cases_are_there() -> None:
    assert len(CASES) == 42
    assert {"as given"} < {name for case in CASES for name in chunkings(case)}


@pytest.mark.parametrize("hold", [0, 256])
@pytest.mark.parametrize("case", CASES, ids=IDS)
def test_case(case: dict[str, Any], hold: int) -> None:
    right = [
        plain(one["reasoning_content"], one["content"], one["tool_calls"])
        for one in [case["expected"], *case.get("also_ok", [])]
    ]
    for name, chunks in chunkings(case).items():
        parsed = run(chunks, hold_arguments=hold, **case_options(case))
        assert joined(parsed.events) == fields(parsed.output), name
        check_calls(parsed.output)
        if case.get("check") != "robust":
            assert result(parsed) in right, name
            assert parsed.output.finish_reason == case["finish_reason"], name


@pytest.mark.parametrize("case", CASES, ids=IDS)
def test_events_of_the_first_chunks_do_not_change_with_what_follows(case: dict[str, Any]) -> None:
    options = case_options(case)
    for chunks in chunkings(case).values():
        whole = run(chunks, **options)
        for count in range(len(chunks)):
            assert run(chunks[:count], **options).by_chunk[:count] == whole.by_chunk[:count]


@pytest.mark.parametrize("case", CASES, ids=IDS)
def test_a_cut_anywhere_ends_without_marks_in_the_texts(case: dict[str, Any]) -> None:
    for end in range(len(case["text"])):
        for reason in ("stop", "length"):
            parsed = run([case["text"][:end]], **{**case_options(case), "reason": reason})
            check_calls(parsed.output)
            shown = f"{parsed.output.content}{parsed.output.reasoning_content}"
            assert not [mark for mark in ("<|channel>", "<channel|>", "call>", "_call|>", '<|"|>') if mark in shown]
            assert (parsed.output.finish_reason == "tool_calls") == (
                reason == "stop" and parsed.output.tool_calls != ()
            )
