"""Schemas of tools as they are declared to Gemma 4: whatever JSON schema allows, a type is printed and braces close."""

from __future__ import annotations

import time
from typing import Any

import pytest

from gemwright.errors import RequestError
from gemwright.text.tool_schemas import simplified
from tests.chat_templates import built_in, function, through_jinja, user

TYPED = {"type": "object", "properties": {"a": {"type": "string", "description": "A"}}, "required": ["a"]}


def parameters_of(**parameters: Any) -> Any:
    return simplified(function("f", **parameters))["function"]["parameters"]


def declared(schema: Any, **definitions: Any) -> str:
    """Return what a parameter `p` of this schema is declared as."""
    tools = [function("f", type="object", properties={"p": schema}, **definitions)]
    texts = {make("gemma4").render([user("U")], tools=tools).text for make in (built_in, through_jinja)}
    assert len(texts) == 1, texts
    head, tail = "parameters:{properties:{p:{", '}},type:<|"|>OBJECT<|"|>}}<tool|>'
    return texts.pop().partition(head)[2].partition(tail)[0].replace('<|"|>', '"')


def test_a_typed_schema_is_left_as_it_is() -> None:
    assert parameters_of(**TYPED) == TYPED


def test_no_parameters_stay_none() -> None:
    assert "parameters" not in simplified(function("f"))["function"]
    assert simplified({"function": {"name": "f", "parameters": {}}})["function"]["parameters"] == {}


@pytest.mark.parametrize(
    "schema",
    [
        {"properties": {"a": {}}},
        {"required": ["a"]},
        {"type": ["object", "null"], "properties": {}},
        {"type": 7},
        {"$ref": "#/$defs/P", "$defs": {"P": {"properties": {}}}},
        {"anyOf": [{"type": "object"}, {"type": "array"}]},
    ],
)
def test_parameters_are_an_object_whatever_they_say(schema: dict[str, Any]) -> None:
    assert parameters_of(**schema)["type"] == "object"


@pytest.mark.parametrize(
    ("schema", "text"),
    [
        # Field case 045.
        ({"type": ["string", "null"]}, 'nullable:true,type:"STRING"'),
        ({"type": ["null", "string"], "enum": ["a"]}, 'enum:["a"],nullable:true,type:"STRING"'),
        ({"type": ["string", "integer"]}, 'type:["STRING","INTEGER"]'),
        ({"type": ["string", "integer", "null"]}, 'nullable:true,type:["STRING","INTEGER"]'),
        ({"type": ["null"]}, 'type:"NULL"'),
        ({"type": []}, 'type:"STRING"'),
        ({"type": [{}, 3]}, 'type:"STRING"'),
        ({}, 'type:"STRING"'),
        (True, 'type:"STRING"'),
        ({"description": "D"}, 'description:"D",type:"STRING"'),
        ({"properties": {"b": {}}}, 'properties:{b:{type:"STRING"}},type:"OBJECT"'),
        ({"items": {"type": "integer"}}, 'items:{type:"INTEGER"},type:"ARRAY"'),
        ({"type": "array", "items": {}}, 'type:"ARRAY"'),
        ({"type": "array", "items": True}, 'type:"ARRAY"'),
        ({"type": "array", "items": [{"type": "string"}]}, 'type:"ARRAY"'),
        ({"type": "array", "items": {"enum": [1, 2]}}, 'items:{enum:[1,2],type:"INTEGER"},type:"ARRAY"'),
        (
            {"type": "array", "items": {"type": ["string", "null"], "default": None}},
            'items:{nullable:true,type:"STRING"},type:"ARRAY"',
        ),
        ({"enum": ["x", "y"]}, 'enum:["x","y"],type:"STRING"'),
        ({"enum": [1]}, 'type:"INTEGER"'),
        ({"enum": [False]}, 'type:"BOOLEAN"'),
        ({"enum": []}, 'type:"STRING"'),
        ({"enum": 5, "type": "string"}, 'type:"STRING"'),
        ({"const": "x"}, 'enum:["x"],type:"STRING"'),
        ({"type": "string", "required": True}, 'type:"STRING"'),
        ({"type": "object", "required": True, "properties": 4}, 'properties:{},type:"OBJECT"'),
        ({"type": "object", "required": ["a", 1], "properties": {}}, 'properties:{},required:["a"],type:"OBJECT"'),
        ({"type": "string", "description": ["D"]}, 'type:"STRING"'),
        ({"allOf": 4}, 'type:"STRING"'),
        ({"anyOf": []}, 'type:"STRING"'),
        ({"anyOf": [{"type": "integer"}, {"type": "null"}]}, 'nullable:true,type:"INTEGER"'),
        (
            {"anyOf": [{"type": "integer", "description": "inner"}, {"type": "null"}], "description": "outer"},
            'description:"outer",nullable:true,type:"INTEGER"',
        ),
        ({"oneOf": [{"type": "integer"}, {"type": "string"}]}, 'type:["INTEGER","STRING"]'),
        ({"oneOf": [{"const": "a"}, {"const": "b"}]}, 'enum:["a","b"],type:"STRING"'),
        ({"anyOf": [{"type": "null"}]}, 'nullable:true,type:"NULL"'),
        (
            {
                "anyOf": [
                    {
                        "type": "object",
                        "properties": {"k": {"const": "x"}, "n": {"type": "integer"}},
                        "required": ["k"],
                    },
                    {"type": "object", "properties": {"k": {"const": "y"}}, "required": ["k"]},
                ]
            },
            'properties:{k:{enum:["x"],type:"STRING"},n:{type:"INTEGER"}},required:["k"],type:"OBJECT"',
        ),
        (
            {"anyOf": [{"type": "array", "items": {"type": "string"}}, {"type": "array", "items": {"type": "null"}}]},
            'items:{nullable:true,type:"STRING"},type:"ARRAY"',
        ),
        (
            {"allOf": [{"properties": {"a": {}}, "required": ["a"]}, {"properties": {"b": {}}, "required": ["b"]}]},
            'properties:{a:{type:"STRING"},b:{type:"STRING"}},required:["a","b"],type:"OBJECT"',
        ),
        ({"$ref": "elsewhere.json"}, 'type:"STRING"'),
        ({"$ref": "#/nowhere/at/all"}, 'type:"STRING"'),
        ({"$ref": 4}, 'type:"STRING"'),
    ],
    ids=repr,
)
def test_a_parameter_has_a_type_that_can_be_printed(schema: Any, text: str) -> None:
    assert declared(schema) == text


def test_references_are_put_in_place() -> None:
    definitions = {
        "Kind": {"enum": ["x", "y"], "title": "Kind"},
        "Deep/er~": {"type": "object", "properties": {"kind": {"$ref": "#/$defs/Kind"}}},
        "List": {"oneOf": [{"type": "integer"}, {"type": "array", "items": {"$ref": "#/$defs/Kind"}}]},
    }
    assert declared({"$ref": "#/$defs/Kind"}, **{"$defs": definitions}) == 'enum:["x","y"],type:"STRING"'
    assert declared({"$ref": "#/$defs/Kind", "description": "D"}, **{"$defs": definitions}) == (
        'description:"D",enum:["x","y"],type:"STRING"'
    )
    assert declared({"$ref": "#/$defs/Deep~1er~0"}, **{"$defs": definitions}) == (
        'properties:{kind:{enum:["x","y"],type:"STRING"}},type:"OBJECT"'
    )
    assert declared({"$ref": "#/$defs/List/oneOf/1"}, **{"$defs": definitions}) == (
        'items:{enum:["x","y"],title:"Kind",type:"STRING"},type:"ARRAY"'
    )


def test_a_reference_to_itself_is_cut_where_it_comes_again() -> None:
    node = {"type": "object", "properties": {"value": {"type": "integer"}, "next": {"$ref": "#/$defs/Node"}}}
    assert declared({"$ref": "#/$defs/Node"}, **{"$defs": {"Node": node}}) == (
        'properties:{next:{properties:{},type:"OBJECT"},value:{type:"INTEGER"}},type:"OBJECT"'
    )
    assert declared({"$ref": "#"}).startswith("properties:{p:")
    assert declared({"$ref": "#/properties/p"}) == 'properties:{},type:"OBJECT"'


def test_what_references_make_huge_is_refused_at_once() -> None:
    began = time.perf_counter()
    doubling = {
        f"d{level}": {"properties": {name: {"$ref": f"#/$defs/d{level + 1}"} for name in ("a", "b")}}
        for level in range(40)
    }
    chain = {f"d{level}": {"properties": {"a": {"$ref": f"#/$defs/d{level + 1}"}}} for level in range(3000)}
    many = {"p": {"properties": {f"a{i}": {"$ref": "#"} for i in range(30)}}}
    for definitions in (doubling, chain):
        with pytest.raises(RequestError, match="unfold too far"):
            parameters_of(**{"$ref": "#/$defs/d0", "$defs": definitions})
    assert parameters_of(properties=many)["type"] == "object"
    assert time.perf_counter() - began < 5
