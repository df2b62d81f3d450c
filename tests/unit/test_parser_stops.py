"""Stop strings end the answer, and only the answer, wherever its text is cut."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gemwright.text.parser import OutputParser
from gemwright.text.parser_stops import StopFilter
from tests.parser_tools import cut, run

TEXTS = st.text("abAB\n", max_size=30)


@given(
    text=TEXTS, stops=st.lists(st.text("abAB", min_size=1, max_size=4), max_size=3), cuts=st.lists(st.integers(0, 30))
)
def test_the_text_ends_before_the_stop_string_complete_first(text: str, stops: list[str], cuts: list[int]) -> None:
    filtered = StopFilter(stops)
    shown = "".join(filtered.push(chunk) for chunk in cut(text, cuts)) + filtered.flush()
    ends = [(text.find(stop) + len(stop), text.find(stop)) for stop in stops if stop in text]
    assert shown == (text[: min(ends)[1]] if ends else text)
    assert (filtered.found is not None) == bool(ends)


@pytest.mark.parametrize("chunks", [["one STOP two"], list("one STOP two"), ["one ST", "OP two"]])
def test_the_output_ends_at_a_stop_string(chunks: list[str]) -> None:
    parsed = run(chunks, stop=["STOP", ""])
    assert (parsed.output.content, parsed.stop_found, parsed.output.finish_reason) == ("one ", "STOP", "stop")


def test_stop_strings_in_thoughts_and_calls_do_not_count() -> None:
    text = '<|channel>thought\nSTOP<channel|>a<|tool_call>call:f{a:<|"|>STOP<|"|>}<tool_call|>b STOP c'
    parsed = run([text], stop=["STOP"])
    assert parsed.output.reasoning_content == "STOP"
    assert parsed.output.tool_calls[0].arguments == {"a": "STOP"}
    assert (parsed.output.content, parsed.stop_found) == ("ab ", "STOP")


def test_a_stop_string_does_not_reach_over_a_mark() -> None:
    parsed = run(["ST<|channel>thought\nx<channel|>OP"], stop=["STOP"])
    assert (parsed.output.content, parsed.stop_found) == ("STOP", None)


def test_what_might_begin_a_stop_string_is_held_back_and_no_longer() -> None:
    parser = OutputParser("gemma3", stop=["STOP"])
    given_out = ["".join(event.text or "" for event in parser.push_text(chunk)) for chunk in ("a ST", "A ST", "O", "X")]
    assert given_out == ["a ", "STA ", "", "STOX"]


def test_a_request_that_may_not_stop_yet_goes_on() -> None:
    parser = OutputParser("gemma3", stop=["STOP"])
    parser.may_stop = False
    parser.push_text("a STOP b ST")
    parser.may_stop = True
    parser.push_text("OP c")
    assert (parser.stop_found, parser.output.content) == ("STOP", "a STOP b ")
