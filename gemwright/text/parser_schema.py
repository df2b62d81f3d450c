"""What a tool's JSON schema says about a place in its arguments, and how a text there becomes JSON.

Reads schemas leniently: what it does not understand allows everything. It validates nothing.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from gemwright.text.parser_json import compact_json, quote

Types = frozenset[str] | None
"""Names of JSON types that a place may hold; None says nothing about it."""

_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?")
_LOOSE_NUMBER = re.compile(r"([+-]?)0*([0-9]+)(\.[0-9]*)?([eE][+-]?[0-9]+)?|([+-]?)(\.[0-9]+)([eE][+-]?[0-9]+)?")
_MAX_NUMBER_LENGTH = 1000
"""Longer ones stay text: readers of JSON refuse numbers of some thousand digits."""
_LITERALS = {"true": "boolean", "false": "boolean", "null": "null"}
_PYTHON_LITERALS = {"True": "true", "False": "false", "None": "null"}
_MAX_ALTERNATIVES = 64
_MAX_JSON_IN_TEXT = 1 << 16
_EVERYTHING: Types = None


class Place:
    """A place in the arguments: the schemas that may rule it, none of which may be known."""

    __slots__ = ("_nodes", "_root", "is_known", "keys", "types")

    def __init__(self, root: Mapping[str, Any], nodes: Iterable[Any]) -> None:
        self._root = root
        self._nodes = self._flatten(nodes)
        self.is_known = bool(self._nodes)
        self.types = self._find_types()
        """The JSON types this place may hold."""
        self.keys = self._find_keys()
        """The keys an object here may have, None where others than the listed ones are welcome."""

    def member(self, key: str) -> Place:
        """Return the place of an object's member."""
        if not self._nodes:
            return self
        found = []
        for node in self._nodes:
            properties = node.get("properties")
            if isinstance(properties, Mapping) and key in properties:
                found.append(properties[key])
            elif isinstance(node.get("additionalProperties"), Mapping):
                found.append(node["additionalProperties"])
        return Place(self._root, found) if found else ANYWHERE

    def element(self, index: int) -> Place:
        """Return the place of an array's element."""
        if not self._nodes:
            return self
        found = []
        for node in self._nodes:
            first, rest = node.get("prefixItems"), node.get("items")
            if isinstance(first, Sequence) and not isinstance(first, str) and index < len(first):
                found.append(first[index])
            elif isinstance(rest, Mapping):
                found.append(rest)
        return Place(self._root, found) if found else ANYWHERE

    def _flatten(self, nodes: Iterable[Any]) -> list[Mapping[str, Any]]:
        """Return the schemas with references followed and alternatives beside each other."""
        waiting, flat, seen = list(nodes), [], 0
        while waiting and seen < _MAX_ALTERNATIVES:
            node = waiting.pop(0)
            seen += 1
            if not isinstance(node, Mapping):
                continue
            parts: list[Any] = []
            for name in ("anyOf", "oneOf", "allOf"):
                if isinstance(node.get(name), list):
                    parts += node[name]
            if isinstance(node.get("$ref"), str):
                parts.append(self._follow(node["$ref"]))
            waiting += parts
            if not parts or {"type", "properties", "items", "enum"} & node.keys():
                flat.append(node)
        return flat

    def _follow(self, reference: str) -> Any:
        node: Any = self._root
        for step in reference.removeprefix("#").strip("/").split("/"):
            node = node.get(step.replace("~1", "/").replace("~0", "~")) if isinstance(node, Mapping) else None
        return node

    def _find_types(self) -> Types:
        found: set[str] = set()
        for node in self._nodes:
            named = node.get("type")
            names = [named] if isinstance(named, str) else named if isinstance(named, list) else []
            here = {name.lower() for name in names if isinstance(name, str)}
            if not here:
                values = node["enum"] if isinstance(node.get("enum"), list) else []
                values = [node["const"]] if "const" in node else values
                here = {_type_of(value) for value in values}
            here |= {"object"} if not here and "properties" in node else set()
            if not here:
                return _EVERYTHING
            found |= here | ({"null"} if node.get("nullable") is True else set())
        return frozenset(found) if found else _EVERYTHING

    def _find_keys(self) -> frozenset[str] | None:
        keys: set[str] = set()
        for node in self._nodes:
            properties = node.get("properties")
            if not isinstance(properties, Mapping) or not properties or node.get("additionalProperties"):
                return None
            keys.update(properties)
        return frozenset(keys) if self._nodes else None


ANYWHERE = Place({}, ())
"""A place of which nothing is known."""


def _type_of(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, int):
        return "integer"
    if isinstance(value, float):
        return "number"
    return "string" if isinstance(value, str) else "array" if isinstance(value, list) else "object"


def read_tools(tools: Iterable[Mapping[str, Any]]) -> dict[str, Place]:
    """Return the place of each tool's arguments by name.

    A tool is OpenAI's `{"type": "function", "function": {...}}`, or `name` with `parameters` or `input_schema`.
    """
    places: dict[str, Place] = {}
    for tool in tools:
        function = tool.get("function", tool)
        if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
            continue
        schema = function.get("parameters", function.get("input_schema"))
        places[function["name"]] = Place(schema, [schema]) if isinstance(schema, Mapping) else ANYWHERE
    return places


def literal_of(text: str, *, loose: bool) -> tuple[str, str] | None:
    """Return type and JSON text of a bare literal, None if it is none.

    loose: also take Python's True, False and None, and numbers such as +5, 007, .5 and 5.
    """
    if loose:
        text = _PYTHON_LITERALS.get(text, text)
    if text in _LITERALS:
        return _LITERALS[text], text
    if not text or len(text) > _MAX_NUMBER_LENGTH or text[0] not in "+-.0123456789":
        return None
    match = _NUMBER.fullmatch(text)
    if match is None and loose and (found := _LOOSE_NUMBER.fullmatch(text)) is not None:
        sign, whole, fraction, exponent, sign2, fraction2, exponent2 = (group or "" for group in found.groups())
        fraction = (fraction + fraction2).removesuffix(".")
        text = f"{(sign + sign2).replace('+', '')}{whole or '0'}{fraction}{exponent}{exponent2}"
        match = _NUMBER.fullmatch(text)
    if match is None:
        return None
    if not (match[1] or match[2]):
        return "integer", text
    return None if math.isinf(float(text)) else ("number", text)  # no reader of JSON holds 1e999


def _fits(kind: str, types: frozenset[str]) -> bool:
    return kind in types or (kind == "integer" and "number" in types)


def bare_to_json(text: str, types: Types, *, loose: bool = False) -> str:
    """Return the JSON of a bare word: a literal where it is one and the types allow it, else a string."""
    literal = literal_of(text, loose=loose)
    if types is None:
        return literal[1] if literal is not None else quote(text)
    if literal is not None and literal[0] == "null" and text != "null":
        return literal[1]  # Python's None
    wanted = literal_of(text, loose=True)
    if wanted is not None and _fits(wanted[0], types):
        return wanted[1]
    if literal is not None and "string" not in types:
        return literal[1]
    return quote(text)


def quoted_to_json(text: str, types: Types) -> tuple[str, bool]:
    """Return the JSON of a quoted text, and whether its type was mended.

    It is a string unless the types exclude strings and the text spells a value that they allow.
    """
    if types is None or "string" in types:
        return quote(text), False
    literal = literal_of(text.strip(), loose=True)
    if literal is not None and _fits(literal[0], types):
        return literal[1], True
    if types & {"object", "array"} and len(text) <= _MAX_JSON_IN_TEXT and text.lstrip()[:1] in ("{", "["):
        try:
            value = json.loads(text)
            if _type_of(value) in types:
                return compact_json(value), True
        except (ValueError, RecursionError):
            pass
    return quote(text), False
