"""Constraints that cannot be: refused by keyword and place, at once or in bounded time, and never with a crash."""

from __future__ import annotations

import time
from typing import Any

import pytest

from gemwright.errors import RequestError
from gemwright.text.constraint import (
    Constraint,
    choice_constraint,
    grammar_constraint,
    regex_constraint,
    schema_constraint,
    tool_constraint,
)
from gemwright.text.grammar import ConstraintCompiler
from tests.constrained import byte_compiler, random_answer


@pytest.fixture(scope="module")
def compiler(tmp_path_factory: pytest.TempPathFactory) -> ConstraintCompiler:
    return byte_compiler(tmp_path_factory.mktemp("bytes"))


def call_of(schema: dict[str, Any], **options: Any) -> Constraint:
    constraint = tool_constraint([{"name": "f", "parameters": schema, **options}], "required")
    assert constraint is not None
    return constraint


@pytest.mark.parametrize(
    ("schema", "message", "place"),
    [
        ({"not": {}}, '"not" is not supported', "#"),
        ({"properties": {"a/b": {"items": {"uniqueItems": True}}}}, '"uniqueItems"', "#/properties/a~1b/items"),
        ({"anyOf": [{}, {"if": {}, "then": {}}]}, '"if", "then"', "#/anyOf/1"),
        ({"$ref": "#/$defs/x", "$defs": {"x": {"contains": {}}}}, '"contains"', "#/$defs/x"),
        ({"items": {"$ref": "https://example.com/schema"}}, "nothing is fetched", "#/items"),
        ({"items": {"$ref": "#/$defs/none"}}, "leads nowhere: /$defs/none", "#/items"),
        ({"properties": {"a": {"type": "strin"}}}, "strin", "#/properties/a"),
        ({"type": "string", "format": "stardate"}, "stardate", "#"),
        ({"prefixItems": [{"pattern": "(a"}]}, "unclosed group", "#/prefixItems/0"),
        ({"oneOf": [{"type": "string"}, {"maxLength": 3}]}, "use anyOf", "#"),
        ({"type": "integer", "minimum": 5, "maximum": 3}, "Unsatisfiable", "#"),
        ({"properties": {"a": {"required": "b"}}}, "required", "#/properties/a"),
    ],
)
def test_a_schema_that_cannot_be_enforced_is_refused_by_keyword_and_place(
    schema: dict[str, Any], message: str, place: str, compiler: ConstraintCompiler
) -> None:
    with pytest.raises(RequestError) as caught:
        compiler.check(schema_constraint(schema))
    assert message in caught.value.what
    assert str(caught.value.value).split(": ")[0] == f"at {place}"
    assert caught.value.exit_code == 2
    assert caught.value.http_status == 400


NESTED = "[" * 500 + "]" * 500


@pytest.mark.parametrize(
    ("make", "value"),
    [
        *[
            (schema_constraint, value)
            for value in ("", "{", "[]", "5", 5, [], '{"a": NaN}', "{'a': 1}", "\ud800", b"{}")
        ],
        *[(schema_constraint, value) for value in ({"const": float("inf")}, {"a": {1, 2}}, f'{{"enum": {NESTED}}}')],
        *[(schema_constraint, value) for value in ("[" * 100_000, {"title": "x" * (1 << 20)})],
        *[
            (choice_constraint, value)
            for value in ([], "ab", [""], [1], {"a": 1}, None, ["a" * 600_000, "b" * 600_000])
        ],
        *[(regex_constraint, value) for value in ("", 5, None, "\ud800", "a" * (1 << 21))],
        *[(grammar_constraint, value) for value in ("", {}, "start: " + "a" * (1 << 21))],
    ],
)
def test_what_is_no_constraint_is_refused_at_once(make: Any, value: Any) -> None:
    with pytest.raises(RequestError):
        make(value)


def chain(length: int, link: str) -> dict[str, Any]:
    """Return a schema whose definitions lead to each other in a row."""
    definitions: dict[str, Any] = {f"d{length}": {"type": "string"}}
    for number in range(length):
        target = {"$ref": f"#/$defs/d{number + 1}"}
        wrapped = {"type": "object", "properties": {"a": target}, "required": ["a"]}
        definitions[f"d{number}"] = (
            wrapped if link == "property" else {"allOf": [target]} if link == "allOf" else target
        )
    return {"$defs": definitions, "type": "object", "properties": {"x": {"$ref": "#/$defs/d0"}}, "required": ["x"]}


def with_rules(count: int, form: str) -> str:
    first, last = form.format(left="{left}", right="{right}"), count
    rules = [first.replace("{left}", f"r{number}").replace("{right}", f"r{number + 1}") for number in range(count)]
    is_gbnf = "::=" in form
    sign = "::=" if is_gbnf else ":"
    return "\n".join([f"{'root' if is_gbnf else 'start'} {sign} r0", *rules, f'r{last} {sign} "b"'])


HARD: list[Any] = [
    *(
        regex_constraint(regex)
        for regex in ("(a{1000}){1000}", "a{1000000}", "(.{1,200}){1,200}", "(?:(?:a?){99}){99}")
    ),
    *(regex_constraint(regex) for regex in ("(a|b)*c(a|b){20}", "(x+x+)+y", "(" * 5000 + "a" + ")" * 5000, "\\")),
    *(
        regex_constraint(regex)
        for regex in ("(?=a)b", "\\1(a)", "[", "|".join(f"w{number}" for number in range(20_000)))
    ),
    choice_constraint([f"choice {number}" for number in range(20_000)]),
    schema_constraint({"enum": [f"value {number}" for number in range(50_000)]}),
    schema_constraint({"properties": {f"k{number}": {"type": "string"} for number in range(1000)}}),
    schema_constraint({"properties": {f"k{number}": {} for number in range(20_000)}}),
    schema_constraint({"type": "string", "maxLength": 10_000_000}),
    schema_constraint({"type": "array", "minItems": 100_000}),
    schema_constraint({"$ref": "#/$defs/x", "$defs": {"x": {"$ref": "#/$defs/x"}}}),
    schema_constraint({"$ref": "#"}),
    *(schema_constraint(chain(2000, link)) for link in ("property", "allOf", "plain")),
    *(call_of(chain(2000, link), strict=True) for link in ("property", "allOf", "plain")),
    call_of({"type": "object", "allOf": [{"$ref": "#"}, {"minProperties": 0}]}, strict=True),
    *(
        grammar_constraint(text)
        for text in ('start: start "a" | "b"', "start: a\na: a", 'start: "a" start', "start: x")
    ),
    *(
        grammar_constraint(text)
        for text in ('start: ("a"|"b"){1,1000000}', "start: " + "(" * 9999, "x ::= y", "root ::= (")
    ),
    *(
        grammar_constraint(text)
        for text in ('root ::= "' + "a" * 99_999, "root ::= [", 'root ::= "\\uD800"', "root ::= *")
    ),
    grammar_constraint("root ::= " + "(" * 5000 + '"a"' + ")" * 5000),
    *(grammar_constraint(with_rules(count, '{left}: "a" {right}')) for count in (1500, 20_000)),
    *(grammar_constraint(with_rules(count, '{left} ::= "a" {right} | {right} "c"')) for count in (1500, 20_000)),
    grammar_constraint(with_rules(40, "{left} ::= {right} {right}")),
]


@pytest.mark.parametrize("place", range(len(HARD)))
def test_what_explodes_is_followed_or_refused_in_bounded_time(place: int, compiler: ConstraintCompiler) -> None:
    started = time.perf_counter()
    told = ""
    try:
        random_answer(compiler, HARD[place], 0, max_tokens=300)
    except RequestError as error:
        told = str(error)
    assert len(told) < 1000
    assert time.perf_counter() - started < 20
