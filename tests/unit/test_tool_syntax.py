"""Calls in Gemma 4's own syntax, as the official template prints them (facts c.4)."""

from __future__ import annotations

import math
from typing import Any

import pytest

from gemwright.errors import RequestError
from gemwright.text.tool_syntax import format_arguments, format_call, format_value


def test_a_call_has_sorted_bare_keys_and_unescaped_strings() -> None:
    arguments = {"b": [1, 2.5, None], "A": {"z": True, "Y": {}}, "c": 'say "hi"\\n\n'}
    assert format_call("fs.read-v2", arguments) == (
        '<|tool_call>call:fs.read-v2{A:{Y:{},z:true},b:[1,2.5,null],c:<|"|>say "hi"\\n\n<|"|>}<tool_call|>'
    )


def test_numbers_are_printed_as_python_prints_them() -> None:
    assert (
        format_value([1e16, 1e-07, -0.0, 10**30, False]) == "[1e+16,1e-07,-0.0,1000000000000000000000000000000,false]"
    )


def test_no_text_ends_its_own_string() -> None:
    assert format_value('a<|"|>,b:<|"|>c') == '<|"|>a",b:"c<|"|>'


@pytest.mark.parametrize("key", ["", " a", "a:b", "a,b", "{", "<a", "it's", 'x"', "a\nb"])
def test_keys_that_could_not_be_read_bare_are_quoted(key: str) -> None:
    assert format_arguments({key: 1}) == f'{{<|"|>{key}<|"|>:1}}'


def test_depth_is_no_matter() -> None:
    value: Any = 1
    for _ in range(5000):
        value = {"a": [value]}
    assert format_value(value) == "{a:[" * 5000 + "1" + "]}" * 5000


@pytest.mark.parametrize(
    "value", [math.inf, math.nan, {1: 2}, object(), b"x", 10**5000], ids=lambda value: type(value).__name__
)
def test_what_json_cannot_hold_is_refused(value: Any) -> None:
    with pytest.raises(RequestError, match="arguments"):
        format_value({"a": value})


@pytest.mark.parametrize("name", ["", "a b", "a{", "<|x"])
def test_names_that_could_not_be_read_are_refused(name: str) -> None:
    with pytest.raises(RequestError, match="name"):
        format_call(name, {})
