"""Gemma 2 and 3: calls in the text, where a request has tools (FC-039)."""

from __future__ import annotations

from typing import Any

import pytest

from tests.parser_tools import TOOLS, parse, run

LONG = "x" * 2000


@pytest.mark.parametrize(
    ("text", "calls", "content"),
    [
        ('{"name":"f","parameters":{"a":"x"}}', [("f", {"a": "x"})], None),
        ('[{"name":"f","arguments":{}}, {"name":"g","arguments":{}}]', [("f", {}), ("g", {})], None),
        ('{"type":"function","function":{"name":"f","arguments":"{\\"a\\":\\"b\\"}"}}', [("f", {"a": "b"})], None),
        ('Sure:\n```json\n{"name":"f","arguments":{"a":5}}\n```\nDone.', [("f", {"a": "5"})], "Sure:\n\nDone."),
        ('```tool_call\n{"name":"f","arguments":{}}', [("f", {})], None),
        ('```tool_code\nf(a="x", flag=None)\ng()\n```', [("f", {"a": "x", "flag": None}), ("g", {})], None),
        ("```tool_code\nf(list=['a', \"b\"], o={'a': 'c'})\n```", [("f", {"list": ["a", "b"], "o": {"a": "c"}})], None),
        (f'{{"name":"f","arguments":{{"a":"{LONG}"}}}}', [("f", {"a": LONG})], None),
        ('{"name":"other","parameters":{}}', [], '{"name":"other","parameters":{}}'),
        ('{"name":"f"}', [], '{"name":"f"}'),
        ('{"name":"f","parameters":{},"age":5}', [], '{"name":"f","parameters":{},"age":5}'),
        ('[{"name":"f","parameters":{}},5]', [], '[{"name":"f","parameters":{}},5]'),
        ('{"name":"f","parameters":{"a":', [], '{"name":"f","parameters":{"a":'),
        ('Use {"name":"f","parameters":{}} here', [], 'Use {"name":"f","parameters":{}} here'),
        ('```py\n{"name":"f","parameters":{}}\n```', [], '```py\n{"name":"f","parameters":{}}\n```'),
        ("```tool_code\nf(1)\n```", [], "```tool_code\nf(1)\n```"),
        ("```tool_code\nx = f()\n```", [], "```tool_code\nx = f()\n```"),
        ("```tool_code\nf() g()\n```", [], "```tool_code\nf() g()\n```"),
        ("[a link](x)\n{a}\n```\ncode\n```\n", [], "[a link](x)\n{a}\n```\ncode\n```\n"),
        ("``", [], "``"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("dialect", ["gemma2", "gemma3"])
def test_a_call_is_one_only_of_a_tool_of_the_request(dialect: str, text: str, calls: list[Any], content: Any) -> None:
    for chunks in ([text], list(text)):
        parsed = run(chunks, dialect, tools=TOOLS)
        assert [(one.name, one.arguments) for one in parsed.output.tool_calls] == calls
        assert parsed.output.content == content
    assert parse(text, dialect).content == text  # without tools, text


def test_ordinary_text_is_not_held_back() -> None:
    parsed = run(["One", " two\n", "{x", " y}\n", "```py\n", "{"], "gemma3", tools=TOOLS)
    assert ["".join(event.text or "" for event in events) for events in parsed.by_chunk[:-1]] == [
        *("One", " two\n", "{x", " y}\n", "```py\n", "{")
    ]


@pytest.mark.parametrize("word", ["<bos>", "<end_of_turn>", "<start_of_turn>", "<eos>", "<pad>", "<unk>", "<mask>"])
def test_control_words_are_left_out(word: str) -> None:
    assert parse(f"a{word}b", "gemma2").content == "ab"
    assert parse(f"a{word}model\nb", "gemma3").content == ("ab" if word == "<start_of_turn>" else "amodel\nb")
    assert parse("a<|channel>b<turn|>", "gemma3").content == "a<|channel>b<turn|>"
