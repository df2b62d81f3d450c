"""Forms that models write, well or badly, each with its reading; field cases by their numbers."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gemwright.errors import UnsupportedError
from gemwright.text.parser import OutputParser
from gemwright.text.parser_dialects import dialect_of, prompt_leaves_thought_open
from gemwright.text.parser_events import EventType, UnfinishedCall
from tests.parser_tools import TOOLS, arguments, joined, parse, run


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        # The opening mark of a string is missing.
        ('{query:weather in Oslo<|"|>}', {"query": "weather in Oslo"}),
        ('{q:Oslo, Norway<|"|>,limit:5}', {"q": "Oslo, Norway", "limit": 5}),
        ('{a:if (x) { y } else { z }<|"|>,b:1}', {"a": "if (x) { y } else { z }", "b": 1}),
        ('{a:see [1], [2]<|"|>}', {"a": "see [1], [2]"}),
        ('{k<|"|>:1}', {"k": 1}),
        ("{a:'tis the season<|\"|>}", {"a": "'tis the season"}),
        # The closing mark is missing.
        ('{a:<|"|>text}', {"a": "text"}),
        ('{a:<|"|>text', {"a": "text"}),
        ('{a:<|"|>f(){}}', {"a": "f(){}"}),
        ('{o:{a:<|"|>text}}', {"o": {"a": "text"}}),
        # A mark inside a string.
        ('{a:<|"|>say <|"|>hi<|"|> ok<|"|>}', {"a": 'say "hi" ok'}),
        ('{a:<|"|>x<|"|> }', {"a": "x"}),
        # Quotes of JSON and Python.
        ('{text: "Mira\'s desk"}', {"text": "Mira's desk"}),
        ('{a:"x\\"y\\n\\u00e9\\ud83d\\ude00",b:\'it\'s\'}', {"a": 'x"y\né😀', "b": "it's"}),
        ('{"a":1,"b":[{"c":null}]}', {"a": 1, "b": [{"c": None}]}),
        ("{'a': 'b', 'c': ['d', \"e\"]}", {"a": "b", "c": ["d", "e"]}),
        ('{a:"abc,b:1}', {"a": '"abc', "b": 1}),
        # Brackets, commas and colons.
        ("({a:1})", {"a": 1}),
        ("{{a:1}}", {"a": 1}),
        ('(a="x", n=3)', {"a": "x", "n": 3}),
        ("{a:{b:1},c:2", {"a": {"b": 1}, "c": 2}),
        ("{a:[1,2}", {"a": [1, 2]}),
        ("{a:1}}", {"a": 1}),
        ("{a:1],b:2}", {"a": "1]", "b": 2}),
        ("{a:1,}", {"a": 1}),
        ("{,a:1}", {"a": 1}),
        ("{a:{b:1} c:2}", {"a": {"b": 1}, "c": 2}),
        ('{a<|"|>x<|"|>}', {"a": "x"}),
        ("{a:,b:1}", {"a": "", "b": 1}),
        ("{a,b:1}", {"a": None, "b": 1}),
        ("", {}),
        # Words and numbers.
        ("{a:None,b:True,c:nullable,d:truest}", {"a": "None", "b": "True", "c": "nullable", "d": "truest"}),
        ("{a:1.,b:+5,c:.5,d:0x1,e:-,f:1_0}", {"a": "1.", "b": "+5", "c": ".5", "d": "0x1", "e": "-", "f": "1_0"}),
        ("{a:-0.5e-3,b:0,c:-0}", {"a": -0.5e-3, "b": 0, "c": 0}),
        ("{t:12:30,u:https://x.y/z?q=1,b:2}", {"t": "12:30", "u": "https://x.y/z?q=1", "b": 2}),
        ("{\n  a: 1,\n  b: x y\n}", {"a": 1, "b": "x y"}),
        # Data stays data.
        ('{a:<|"|><tool_call|><|tool_call>call:g{}<bos><|"|>}', {"a": "<tool_call|><|tool_call>call:g{}<bos>"}),
        ('{a:<|"|>\\n "q" \'s\' {[(<|"|>}', {"a": "\\n \"q\" 's' {[("}),
        ('{o:{k:1,k:2},o:{k:3,z:[]},k:4}', {"o": {"k": 3, "z": []}, "k": 4}),
    ],
)  # fmt: skip
def test_arguments_of_every_form(text: str, expected: dict[str, Any]) -> None:
    assert arguments(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("{a:12345}", {"a": "12345"}),
        ("{a:true,o:{a:1.50}}", {"a": "true", "o": {"a": "1.50"}}),
        ("{a:null}", {"a": "null"}),
        ("{flag:null,o:{a:null}}", {"flag": None, "o": {"a": None}}),
        ("{flag:True}", {"flag": True}),
        ("{list:[1,x]}", {"list": ["1", "x"]}),
        ('{list:<|"|>["x","y"]<|"|>}', {"list": ["x", "y"]}),
        ('{n:<|"|>5<|"|>}', {"n": 5}),
        ("{n:007}", {"n": 7}),
        ('{n:<|"|>five<|"|>}', {"n": "five"}),
        ('{a:one, two: three<|"|>,n:2}', {"a": "one, two: three", "n": 2}),
        ("{other:5}", {"other": 5}),
    ],
)
def test_fc_035_types_follow_the_schema_at_every_level(text: str, expected: dict[str, Any]) -> None:
    assert arguments(text, tools=TOOLS) == expected


def test_fc_035_references_and_alternatives_are_followed() -> None:
    tool = {
        "name": "f",
        "parameters": {
            "properties": {"p": {"$ref": "#/$defs/P"}, "q": {"oneOf": [{"type": "number"}, {"type": "STRING"}]}},
            "$defs": {"P": {"properties": {"zip": {"type": "string"}, "p": {"$ref": "#/$defs/P"}}}},
        },
    }
    found = arguments("{p:{zip:1,p:{zip:2}},q:5}", tools=[tool])
    assert found == {"p": {"zip": "1", "p": {"zip": "2"}}, "q": 5}


@pytest.mark.parametrize(
    "schema", [None, [], "x", {"properties": 5}, {"properties": {"a": 5}}, {"$ref": "#/no"}, {"$ref": "#"}]
)
def test_schemas_that_say_nothing_are_passed_over(schema: Any) -> None:
    assert arguments("{a:5}", tools=[{"name": "f", "parameters": schema}, {}, {"name": 5}]) == {"a": 5}


def test_fc_036_null_stays_null() -> None:
    assert arguments("{note:null}") == {"note": None}


def test_fc_030_source_code_comes_through_word_for_word() -> None:
    code = "\n".join(
        f'def f{i}(x):\n    """Say <b>"{i}"</b>."""\n    return {{"k": [x, \'{i:x}\']}}' for i in range(20)
    )
    assert arguments(f'{{code:<|"|>{code}<|"|>,n:1}}') == {"code": code, "n": 1}


@pytest.mark.parametrize(
    ("text", "calls", "content"),
    [
        ('<|tool_call>{"name":"f","arguments":{"a":5}}<tool_call|>', [("f", {"a": 5})], None),
        ("<|tool_call>f{a:1}<tool_call|>", [("f", {"a": 1})], None),
        ("<|tool_call>call : f {a:1}\n<tool_call|>\n", [("f", {"a": 1})], None),
        ('<|tool_call>call:<|"|>f<|"|>{a:1}<tool_call|>', [("f", {"a": 1})], None),
        ("call:f{a:1}<tool_call|>", [("f", {"a": 1})], None),
        ("\ncall:f{a:1}<tool_call|>", [("f", {"a": 1})], None),
        ("<|tool_call>call:f{a:1}<|tool_call>call:g{}", [("f", {"a": 1}), ("g", {})], None),
        ("<|tool_call>call:f{a:1<|tool_call>call:g{}<tool_call|>", [("f", {"a": 1}), ("g", {})], None),
        ("<|tool_call>call:f{a:1} Done.", [("f", {"a": 1})], " Done."),
        ("<|tool_call>call:f{a:q} Done.", [("f", {"a": "q"})], " Done."),
        ('<|tool_call>call:f{a:<|"|>x}<tool_call|><|tool_response>', [("f", {"a": "x"})], None),
        ("call:f{a:1} is how a call looks.", [], "call:f{a:1} is how a call looks."),
        ("I would call:f{a:1} now.", [], "I would call:f{a:1} now."),
        ("<|tool_call>no call<tool_call|> here", [], "no call here"),
        ('<|tool_call>{"a":1}<tool_call|>', [], '{"a":1}'),
        ('<|tool_call>call:f{a:<|"|>x', [], 'call:f{a:"x'),
    ],
)
def test_what_is_a_call_and_what_is_text(text: str, calls: list[Any], content: str | None) -> None:
    output = parse(text)
    assert [(one.name, one.arguments) for one in output.tool_calls] == calls
    assert output.content == content
    assert output.finish_reason == ("tool_calls" if calls else "stop")


@pytest.mark.parametrize(
    ("text", "reasoning", "content"),
    [
        ("<|channel>thought\nx<channel|>y", "x", "y"),
        ("thought\nshort<channel|>Hi", "short", "Hi"),  # FC-006
        ("<|channel>thought\n<channel|>Blue.", None, "Blue."),  # FC-009
        ("<|channel>thought<channel|>Hi", None, "Hi"),
        ("<|channel>a thing<channel|>Hi", "a thing", "Hi"),
        ("<|channel>thought\nx\n<channel|>y", "x", "y"),
        ("<|channel>thought\nx\n\n<channel|>\n\ny", "x\n", "\n\ny"),
        ("<|channel>thought\nx<channel|>\n\n<|channel>thought\ny<channel|>z", "x\ny", "z"),
        ("<|channel>thought\nx<turn|>y", "x", "y"),
        ('<|channel>thought\na <|"|>b<bos><channel|>c<pad>d<mask>', "a b", "cd"),
        ("<|turn>model\nHi<turn|>", None, "Hi"),
        ("<start_of_turn>user <end_of_turn>", None, "<start_of_turn>user <end_of_turn>"),
        ("a < b <| c <|chan", None, "a < b <| c <|chan"),
        ("thought", None, "thought"),
        (" \n ", None, " \n "),
        ("", None, None),
    ],
)
def test_thoughts_and_answers(text: str, reasoning: str | None, content: str | None) -> None:
    output = parse(text)
    assert (output.reasoning_content, output.content, output.tool_calls) == (reasoning, content, ())


def test_fc_002_an_output_in_an_open_thought_begins_as_reasoning_also_when_cut() -> None:
    assert prompt_leaves_thought_open("<tool_response|><|channel>thought\n")
    assert parse("So a coat.<channel|>Bring it.", opens_thought=True).reasoning_content == "So a coat."
    cut = parse("thoroughly", opens_thought=True, reason="length")
    assert (cut.reasoning_content, cut.content) == ("thoroughly", None)
    assert parse("thou", opens_thought=True).reasoning_content == "thou"


@pytest.mark.parametrize(
    "tail", ["", "<|turn>model\n", "<|channel>thought\n<channel|>", "<|channel>thought\nx<channel|><|turn>model\n"]
)
def test_fc_001_a_prompt_without_an_open_thought_does_not_open_one(tail: str) -> None:
    assert not prompt_leaves_thought_open(tail)


def test_fc_015_and_fc_019_no_piece_of_a_mark_reaches_any_event() -> None:
    parsed = run(['<|tool_call>call:buy{item:<|"|>Buy milk', "<|", '"|>}<tool', "_call|>"], hold_arguments=0)
    assert joined(parsed.events)["calls"] == [("buy", '{"item":"Buy milk"}')]


def test_fc_017_a_chunk_may_end_one_call_and_begin_the_next() -> None:
    parsed = run(['<|tool_call>call:a{x:<|"|>', 'Paris<|"|>}<tool_call|><|tool_call>call:b{y:', "1}<tool_call|>"])
    assert joined(parsed.events)["calls"] == [("a", '{"x":"Paris"}'), ("b", '{"y":1}')]


def test_fc_033_a_cut_call_is_not_given_and_not_lost() -> None:
    cut = parse('Now.<|tool_call>call:f{a:<|"|>x y', reason="length")
    assert (cut.content, cut.tool_calls, cut.finish_reason) == ("Now.", (), "length")
    assert cut.unfinished_calls == (UnfinishedCall("f", 'call:f{a:"x y'),)
    whole = parse("<|tool_call>call:f{a:1}<tool_call|><|tool_call>call:g{", reason="length")
    assert (len(whole.tool_calls), whole.finish_reason, whole.unfinished_calls[0].name) == (1, "length", "g")


def test_a_long_string_is_streamed_and_its_beginning_is_final() -> None:
    text = "word " * 200
    parser = OutputParser("gemma4")
    given = "".join(
        event.text or ""
        for chunk in ('<|tool_call>call:f{path:<|"|>p<|"|>,text:<|"|>', *text)
        for event in parser.push_text(chunk)
        if event.type is EventType.ARGUMENTS
    )
    assert given.startswith('{"path":"p","text":"word word')
    assert len(given) > 900
    parser.push_text('<|"|>}')
    assert parser.output.tool_calls[0].arguments_json.startswith(given)


def test_a_key_that_comes_again_after_its_value_was_given_out_counts_too() -> None:
    output = parse(f'<|tool_call>call:f{{k:1,a:<|"|>{"x" * 400}<|"|>,k:2}}')
    assert output.tool_calls[0].arguments["k"] == 2
    assert output.tool_calls[0].has_duplicate_keys
    assert "a key came twice" in output.warnings


def test_numbers_too_long_for_readers_of_json_stay_text() -> None:
    assert arguments(f"{{a:{'9' * 900},b:{'9' * 5000}}}") == {"a": int("9" * 900), "b": "9" * 5000}


def test_control_characters_and_half_surrogate_pairs_are_escaped() -> None:
    output = parse('<|tool_call>call:f{a:<|"|>\x00\x1f\ud800"\\\u2028é<|"|>}')
    text = output.tool_calls[0].arguments_json
    assert text == '{"a":"\\u0000\\u001f\\ud800\\"\\\\\u2028é"}'
    assert json.loads(text)["a"] == '\x00\x1f\ud800"\\\u2028é'


@pytest.mark.parametrize("depth", [12, 2000])
def test_any_depth_is_read(depth: int) -> None:
    value: Any = arguments("{a:[" * depth + "1" + "]}" * depth)
    for _ in range(depth):
        (value,) = value["a"]
    assert value == 1


def test_a_megabyte_of_arguments_comes_through() -> None:
    text = "é<|}\n" * 250_000
    assert arguments(f'{{a:<|"|>{text}<|"|>}}') == {"a": text}


def test_an_unknown_family_is_refused_by_name() -> None:
    with pytest.raises(UnsupportedError, match="family"):
        OutputParser("gemma5")


def test_fc_012_the_dialect_follows_from_the_vocabulary() -> None:
    assert dialect_of(["<bos>", "<|channel>"]) == "gemma4"
    assert dialect_of(["<bos>", "<start_of_image>"]) == "gemma3"
    assert dialect_of(["<bos>", "<start_of_turn>"]) == "gemma2"


def test_a_key_that_the_schema_does_not_name_leaves_the_literal_before_it_alone() -> None:
    tools = [{"name": "f", "parameters": {"properties": {"n": {"type": "integer"}, "s": {"type": "string"}}}}]
    assert arguments('{n:2,extra:true,s:12,other:<|"|>x<|"|>}', tools=tools) == {
        "n": 2,
        "extra": True,
        "s": "12",
        "other": "x",
    }
    assert arguments("{s:Dock B, level:4,n:2}", tools=tools) == {"s": "Dock B, level:4", "n": 2}


@pytest.mark.parametrize(
    ("text", "reasoning", "content"),
    [
        ("a <|chan<pad>nel>thought", None, "a <|channel >thought"),
        ("<|tool_<turn|>call>call:t{}", None, "<|tool_call >call:t{}"),
        ("<|channel>thought\n<tur<pad>n|> so<channel|>b", "<turn| > so", "b"),
        ('<|tool_call>call:t{<|<|"|>|>', None, 'call:t{<|"| >'),
        ("<|cha<|chan<pad>nel><bos>nnel>", None, "<|cha<|channel >nnel>"),
    ],
)
def test_no_mark_comes_together_from_what_stood_around_another(text: str, reasoning: str | None, content: str) -> None:
    output = parse(text)
    assert (output.reasoning_content, output.content) == (reasoning, content)
    assert any("got a space" in warning for warning in output.warnings)


def test_a_call_without_a_name_is_text() -> None:
    output = parse("<|tool_call>call:{a:1}<tool_call|>")
    assert (output.content, output.tool_calls) == ("call:{a:1}", ())


def test_a_number_that_no_reader_holds_is_text() -> None:
    assert arguments("{a:1e999,b:-1e400,c:1e308}") == {"a": "1e999", "b": "-1e400", "c": 1e308}
