"""Any chunking equals no chunking, nothing vanishes, marks never show, calls round-trip, and every input ends soon."""

from __future__ import annotations

import json
import random
import time
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from gemwright.text.parser import OutputParser, TokenReader
from gemwright.text.parser_events import Event
from gemwright.text.tokenizer import SPACE_MARK, from_gguf_metadata
from gemwright.text.tool_syntax import QUOTE, format_call
from tests.parser_tools import (
    DIALECT_NAMES,
    FRAGMENTS,
    MARKS,
    TOOLS,
    check_calls,
    cut,
    fields,
    hostile_text,
    joined,
    parse,
    run,
)
from tests.tokenizer_cases import small_gemma4_metadata

OPTIONS = st.fixed_dictionaries(
    {
        "tools": st.sampled_from([(), TOOLS]),
        "may_call": st.booleans(),
        "opens_thought": st.booleans(),
        "stop": st.sampled_from([(), ("STOP", "x}")]),
        "reason": st.sampled_from(["stop", "length"]),
        "hold_arguments": st.sampled_from([0, 8, 256]),
    }
)
# Half of them begin inside a call, where most of the machine is.
TEXTS = st.tuples(st.sampled_from(["", "<|tool_call>call:f{"]), hostile_text()).map("".join)
CUTS = st.lists(st.integers(0, 200), max_size=12)
SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text()
VALUES = st.recursive(
    SCALARS, lambda values: st.lists(values, max_size=4) | st.dictionaries(st.text(max_size=8), values, max_size=4)
)
ARGUMENTS = st.dictionaries(st.text(max_size=8), VALUES, max_size=6)


@settings(max_examples=300)
@given(text=TEXTS, dialect=DIALECT_NAMES, options=OPTIONS, cuts=CUTS)
def test_every_chunking_gives_the_same(text: str, dialect: str, options: dict[str, Any], cuts: list[int]) -> None:
    whole = run([text], dialect, **options)
    assert joined(whole.events) == fields(whole.output)
    for chunks in (cut(text, cuts), list(text)):
        pieces = run(chunks, dialect, **options)
        assert joined(pieces.events) == fields(pieces.output) == fields(whole.output)
        assert pieces.output.unfinished_calls == whole.output.unfinished_calls
        assert set(pieces.output.warnings) == set(whole.output.warnings)
        assert pieces.stop_found == whole.stop_found


@given(text=TEXTS, dialect=DIALECT_NAMES, options=OPTIONS, cuts=CUTS)
def test_events_of_the_first_chunks_do_not_change_with_what_follows(
    text: str, dialect: str, options: dict[str, Any], cuts: list[int]
) -> None:
    chunks = cut(text, cuts)
    whole = run(chunks, dialect, **options)
    for count in range(len(chunks)):
        assert run(chunks[:count], dialect, **options).by_chunk[:count] == whole.by_chunk[:count]


@given(text=TEXTS, dialect=DIALECT_NAMES, options=OPTIONS)
def test_marks_never_show_and_arguments_are_objects(text: str, dialect: str, options: dict[str, Any]) -> None:
    output = run([text], dialect, **options).output
    check_calls(output)
    shown = f"{output.reasoning_content}\n{output.content}"
    assert not [mark for mark in MARKS[dialect] if mark in shown]
    assert output.finish_reason != "tool_calls" or output.tool_calls
    if not options["may_call"]:
        assert not output.tool_calls
        assert not output.unfinished_calls


@settings(max_examples=300)
@given(data=st.data(), dialect=DIALECT_NAMES, options=OPTIONS)
def test_no_word_vanishes(data: st.DataObject, dialect: str, options: dict[str, Any]) -> None:
    # Words that occur once each, between marks, brackets and quotes of every kind.
    between = st.sampled_from([*FRAGMENTS, *MARKS[dialect]])
    plan = data.draw(st.lists(st.none() | between, max_size=40))
    parts = [f"W{place}W" if part is None else part for place, part in enumerate(plan)]
    text = data.draw(st.sampled_from(["", "<|tool_call>call:f{"])) + "".join(parts)
    output = run([text], dialect, **{**options, "stop": ()}).output
    found = " ".join(
        [
            output.reasoning_content or "",
            output.content or "",
            *(f"{one.name} {one.arguments_json}" for one in output.tool_calls),
            *(f"{one.name} {one.text}" for one in output.unfinished_calls),
        ]
    )
    lost = [part for part in parts if part.startswith("W") and part not in found]
    assert not lost or "a key came twice" in output.warnings


def readable(value: Any) -> Any:
    """Return the value as its text can say it: inside a string, the string mark is a quote character."""
    if isinstance(value, dict):
        return {readable(key): readable(item) for key, item in value.items()}
    if isinstance(value, list):
        return [readable(item) for item in value]
    return value.replace(QUOTE, '"') if isinstance(value, str) else value


@settings(max_examples=300)
@given(arguments=ARGUMENTS, cuts=CUTS, hold=st.sampled_from([0, 256]))
def test_a_call_that_was_rendered_is_read_back_equal(arguments: dict[str, Any], cuts: list[int], hold: int) -> None:
    parsed = run(cut(format_call("f", arguments), cuts), hold_arguments=hold)
    (found,) = parsed.output.tool_calls
    assert (found.name, found.arguments) == ("f", readable(arguments))
    assert parsed.output.warnings == ()
    assert parsed.output.content is None
    assert json.loads(found.arguments_json) == found.arguments


@given(arguments=ARGUMENTS)
def test_rendered_calls_are_read_back_from_their_ids(arguments: dict[str, Any]) -> None:
    text = format_call("f", arguments)
    assume(SPACE_MARK not in text)  # to the tokenizer it is a space
    parser = OutputParser("gemma4")
    reader = TokenReader(TOKENIZER, parser)
    reader.push(TOKENIZER.encode(text))
    reader.finish("stop")
    assert [one.arguments for one in parser.output.tool_calls] == [readable(arguments)]


TOKENIZER = from_gguf_metadata(small_gemma4_metadata(), cache_dir=None)
SPECIAL_IDS = sorted(TOKENIZER.special_tokens.values())


def read_ids(ids: list[int], size: int) -> tuple[dict[str, Any], list[Event]]:
    parser = OutputParser("gemma4", tools=TOOLS)
    reader = TokenReader(TOKENIZER, parser)
    events = [event for start in range(0, len(ids), size) for event in reader.push(ids[start : start + size])]
    return fields(parser.output) | {"reason": None}, events


@given(ids=st.lists(st.integers(0, 500) | st.sampled_from(SPECIAL_IDS), max_size=80), size=st.integers(1, 9))
def test_token_garbage_ends_and_is_the_same_one_by_one(ids: list[int], size: int) -> None:
    one_by_one, events = read_ids(ids, 1)
    assert read_ids(ids, size)[0] == one_by_one
    assert len(events) <= 8 * len(ids) + 8


NUM_TOKENS = 100_000
MAX_SECONDS = 200e-6 * NUM_TOKENS
SHAPES = {
    "answer": ("", "abc <b> defg,\n hi", ""),
    "thought": ("<|channel>thought\n", "abc < defg,\n hi\n", ""),
    "string": ('<|tool_call>call:f{x:<|"|>', 'abc "}<b>, é\n', '<|"|>}<tool_call|>'),
    "bare text": ("<|tool_call>call:f{x:", "some words, and } more,\n", '<|"|>}<tool_call|>'),
    "quoted": ('<|tool_call>call:f{x:"', 'say "it", \\n and } more,\n', '"}<tool_call|>'),
    "numbers": ("<|tool_call>call:f{x:[", "12345,{y:7},", "0]}<tool_call|>"),
    "depth": ("<|tool_call>call:f{x:", "[{x:", ""),
    "calls": ("", '<|tool_call>call:f{x:<|"|>y<|"|>}<tool_call|>', ""),
    "strings without end": ("", '<|tool_call>call:f{x:<|"|>y}<tool_call|>', ""),
    "quotes without end": ("<|tool_call>call:f{", 'x:"y,z:"', ""),
    "marks": ("", '<|"|><|channel><', ""),
}


@pytest.mark.parametrize("shape", SHAPES)
def test_the_cost_of_a_token_does_not_grow_with_the_output(shape: str) -> None:
    # Four characters a token, one at a time. It takes 3 to 50 us; the limit leaves room for a machine that is busy.
    begin, middle, end = SHAPES[shape]
    text = begin + middle * (4 * NUM_TOKENS // len(middle)) + end
    parser = OutputParser("gemma4")
    started = time.process_time()
    for place in range(0, len(text), 4):
        parser.push_text(text[place : place + 4])
    parser.finish("stop")
    assert time.process_time() - started < MAX_SECONDS


@pytest.mark.parametrize("shape", SHAPES)
def test_an_output_given_at_once_costs_no_more(shape: str) -> None:
    begin, middle, end = SHAPES[shape]
    started = time.process_time()
    parse(begin + middle * (4 * NUM_TOKENS // len(middle)) + end)
    assert time.process_time() - started < MAX_SECONDS


@pytest.mark.parametrize(
    "text",
    [
        '```json\n{"name":"f",' + "\n{" * 100_000,
        '{"name":"f","parameters":{"a":"' + "x\n" * 100_000 + '"}}',
        '{"name": "f",\n' * 30_000,
        "```tool_code\nf(a='" + "x\n``" * 100_000,
        "[" * 200_000,
        ("```json\n" + " " * 50) * 5_000,
    ],
)
def test_long_text_that_may_be_a_call_costs_no_more(text: str) -> None:
    started = time.process_time()
    for chunks in ([text], cut(text, range(0, len(text), 4))):
        run(chunks, "gemma3", tools=TOOLS)
    assert time.process_time() - started < 10


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_a_million_hostile_outputs_end() -> None:
    seed = random.randrange(1 << 32)
    print("seed", seed)
    draw = random.Random(seed)
    fragments = sorted({*FRAGMENTS, *(mark for marks in MARKS.values() for mark in marks)})
    longest = 0.0
    for number in range(1_000_000):
        text = "".join(draw.choices(fragments, k=draw.randint(1, 24)))
        text = f"<|tool_call>call:f{{{text}" if number % 3 == 0 else text
        started = time.process_time()
        parser = OutputParser(
            draw.choice(["gemma2", "gemma3", "gemma4", "gemma4", "gemma4"]),
            tools=TOOLS if number % 2 else (),
            opens_thought=number % 7 == 0,
            hold_arguments=draw.choice([0, 256]),
        )
        half = draw.randint(0, len(text))
        parser.push_text(text[:half])
        parser.push_text(text[half:])
        parser.finish("stop")
        longest = max(longest, time.process_time() - started)
        check_calls(parser.output)
    assert longest < 1
