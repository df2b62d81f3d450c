"""Any JSON at all as a schema: it is followed or refused, and what is made under it is what it admits."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gemwright.errors import RequestError
from gemwright.text.constraint import schema_constraint, tool_constraint
from gemwright.text.grammar import ConstraintCompiler
from tests.constrained import byte_compiler, random_answer, read_calls, text_of

KEYWORDS = [
    *("type", "properties", "required", "additionalProperties", "items", "prefixItems", "minItems", "maxItems", "enum"),
    *("const", "anyOf", "oneOf", "allOf", "$ref", "$defs", "minLength", "maxLength", "pattern", "format", "minimum"),
    *("maximum", "multipleOf", "nullable", "not", "uniqueItems", "title", "patternProperties", "exclusiveMinimum"),
]
NAMES = st.sampled_from(["a", "B", "c d", "é", "x:y", '"', "items", "type", "$ref"])
SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 9),
    st.sampled_from([0.5, -1.5, 1e3]),
    st.sampled_from(
        ["string", "integer", "object", "array", "number", "null", "boolean", "date", "^a+$", "a|b", "(", ""]
    ),
    st.sampled_from(["#", "#/$defs/a", "#/properties/a", "http://x/y", "uuid", "<|tool_call>", '<|"|>', "日本"]),
)
ANYTHING = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYWORDS) | NAMES, inner, max_size=4),
)
TYPE = st.sampled_from(["string", "integer", "object", "array", "number", "null", "boolean"])


def sound(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Schemas whose keywords have values of the right kind, mostly."""
    small = st.integers(0, 4)
    keywords: dict[str, st.SearchStrategy[Any]] = {
        "type": TYPE | st.lists(TYPE, min_size=1, max_size=2),
        "properties": st.dictionaries(NAMES, inner, max_size=3),
        "required": st.lists(NAMES, max_size=2, unique=True),
        "additionalProperties": st.booleans() | inner,
        "items": inner,
        "prefixItems": st.lists(inner, min_size=1, max_size=2),
        "minItems": small,
        "maxItems": small,
        "minLength": small,
        "maxLength": small,
        "enum": st.lists(SCALARS, min_size=1, max_size=3),
        "const": ANYTHING,
        "anyOf": st.lists(inner, min_size=1, max_size=2),
        "oneOf": st.lists(inner, min_size=1, max_size=2),
        "allOf": st.lists(inner, min_size=1, max_size=2),
        "pattern": st.sampled_from(["^a+$", "b", "^x|y$", "[0-9]{2}"]),
        "minimum": st.integers(-3, 3),
        "maximum": st.integers(3, 9),
        "nullable": st.booleans(),
        "$ref": st.sampled_from(["#", "#/$defs/a", "#/$defs/none"]),
    }
    return st.fixed_dictionaries({}, optional=keywords).map(lambda schema: dict(list(schema.items())[:4]))


SOUND = st.recursive(st.booleans() | st.just({}) | st.builds(lambda kind: {"type": kind}, TYPE), sound, max_leaves=6)


@pytest.fixture(scope="module")
def compiler(tmp_path_factory: pytest.TempPathFactory) -> ConstraintCompiler:
    return byte_compiler(tmp_path_factory.mktemp("bytes"))


def admits(schema: Any, value: Any) -> bool:
    """Whether the value is valid, null too where the schema says nullable."""
    try:
        return bool(jsonschema.Draft202012Validator(schema).is_valid(value))
    except (jsonschema.SchemaError, Exception) as error:  # what is no schema validates nothing
        raise AssertionError(f"{schema} was compiled: {error}") from error


def follow(compiler: ConstraintCompiler, make: Any) -> str | None:
    """Return one whole answer, or None where the constraint is refused or the walk does not end."""
    try:
        constraint = make()
        if constraint is None:
            return None
        tokens, is_whole = random_answer(compiler, constraint, 1, max_tokens=200)
    except RequestError:
        return None
    return text_of(compiler.tokenizer, tokens) if is_whole else None


@settings(max_examples=150)
@given(schema=st.dictionaries(st.sampled_from(KEYWORDS), ANYTHING, max_size=5))
def test_garbage_is_followed_or_refused(schema: dict[str, Any], compiler: ConstraintCompiler) -> None:
    text = follow(compiler, lambda: schema_constraint(schema))
    assert text is None or json.loads(text) is not Ellipsis
    for strict in (False, True):
        tool = {"name": "f", "parameters": schema, "strict": strict}
        text = follow(compiler, lambda tool=tool: tool_constraint([tool], "required"))
        assert text is None or all(name == "f" for name, _ in read_calls(text))


@settings(max_examples=150)
@given(schema=SOUND.filter(lambda schema: isinstance(schema, dict)), definition=SOUND)
def test_what_is_followed_is_what_the_schema_admits(schema: Any, definition: Any, compiler: ConstraintCompiler) -> None:
    schema = {**schema, "$defs": {"a": definition}}
    text = follow(compiler, lambda: schema_constraint(schema))
    assert text is None or admits(schema, json.loads(text))
    arguments = {
        "type": "object",
        "properties": {"v": {"$ref": "#/$defs/a"}},
        "required": ["v"],
        "$defs": {"a": definition},
    }
    if "nullable" in json.dumps(definition):
        return  # null is admitted there, which JSON schema itself does not know
    tool = {"name": "f", "parameters": arguments, "strict": True}
    text = follow(compiler, lambda: tool_constraint([tool], "f", parallel_tool_calls=False))
    assert text is None or admits(arguments, read_calls(text)[0][1])
