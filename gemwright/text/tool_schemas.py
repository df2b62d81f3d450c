"""Schemas of tools made simple enough for a template to print: one type each, no references, no alternatives."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_MAX_DEPTH = 24
"""Beyond it a schema that refers to itself is cut: an object of any kind."""
_NAMES = {str: "string", bool: "boolean", int: "integer", float: "number", list: "array", dict: "object"}


def simplified(tool: Mapping[str, Any]) -> dict[str, Any]:
    """Return a tool in OpenAI's form whose parameters every Gemma template can print.

    A type is always there: templates of Gemma 4 lose a brace without it, and fail on a list of types with null in it,
    which becomes `nullable`. References to definitions of the schema are put in place, `anyOf` and `oneOf` of one kind
    and null become that kind, other alternatives a list of types. What is left alone prints as it always did.
    """
    function = dict(tool["function"])
    parameters = function.get("parameters")
    if parameters is not None:
        simple = _simple(parameters, parameters, 0)
        function["parameters"] = {**simple, "type": simple["type"] if isinstance(simple["type"], str) else "object"}
    return {**tool, "function": function}


def _simple(schema: Any, root: Mapping[str, Any], depth: int) -> dict[str, Any]:
    if not isinstance(schema, Mapping) or depth > _MAX_DEPTH:
        return {"type": "object"} if depth > _MAX_DEPTH else {"type": "string"}
    found = {key: value for key, value in schema.items() if key not in ("$defs", "definitions", "$schema")}
    reference = found.pop("$ref", None)
    if isinstance(reference, str):
        found = {**_simple(_referred(reference, root), root, depth + 1), **found}
    for part in found.pop("allOf", None) or []:
        found = {**_simple(part, root, depth + 1), **found}
    for key in ("anyOf", "oneOf"):
        alternatives = found.get(key)
        if isinstance(alternatives, list) and alternatives:
            del found[key]
            found = {**_one_of([_simple(item, root, depth + 1) for item in alternatives]), **found}
    if isinstance(found.get("properties"), Mapping):
        found["properties"] = {name: _simple(item, root, depth + 1) for name, item in found["properties"].items()}
    if isinstance(found.get("items"), Mapping) and found["items"]:
        found["items"] = _simple(found["items"], root, depth + 1)
    if "const" in found and "enum" not in found:
        found["enum"] = [found.pop("const")]
    return _with_type(found)


def _with_type(found: dict[str, Any]) -> dict[str, Any]:
    kind = found.get("type")
    if isinstance(kind, list):
        kinds = [one for one in kind if one != "null"]
        if len(kinds) < len(kind):
            found["nullable"] = True
        found["type"] = kinds[0] if len(kinds) == 1 else kinds or "null"
    elif not isinstance(kind, str):
        enum = found.get("enum")
        first = enum[0] if isinstance(enum, list) and enum else None
        guess = "object" if "properties" in found else "array" if "items" in found else None
        found["type"] = guess or _NAMES.get(type(first), "string")
    return found


def _one_of(alternatives: list[dict[str, Any]]) -> dict[str, Any]:
    """Return one schema for several: the only one that is not null, or the list of their types."""
    kinds = [item for item in alternatives if item["type"] != "null"]
    nullable = {"nullable": True} if len(kinds) < len(alternatives) else {}
    if len(kinds) == 1:
        return {**kinds[0], **nullable}
    types: list[Any] = []
    for item in kinds:
        types += item["type"] if isinstance(item["type"], list) else [item["type"]]
    unique = list(dict.fromkeys(types))
    if len(unique) == 1 and unique[0] == "string" and all("enum" in item for item in kinds):
        return {"type": "string", "enum": [value for item in kinds for value in item["enum"]], **nullable}
    return {"type": unique[0] if len(unique) == 1 else unique or "null", **nullable}


def _referred(reference: str, root: Mapping[str, Any]) -> Any:
    place: Any = root
    if not reference.startswith("#"):
        return {}
    for step in reference.removeprefix("#").strip("/").split("/"):
        step = step.replace("~1", "/").replace("~0", "~")
        place = place.get(step) if isinstance(place, Mapping) else None
    return place
