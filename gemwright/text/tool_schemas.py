"""Schemas of tools made simple enough for a template to print: one type each, no references, no alternatives."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gemwright.errors import RequestError

MAX_SCHEMAS = 10_000
"""Most schemas that those of one tool may hold in all, references put in place."""
MAX_SCHEMA_DEPTH = 64
"""How deep they may then lie in each other."""

_LEFT_OUT = ("$defs", "definitions", "$schema", "$id", "$comment")
_ALTERNATIVES = ("anyOf", "oneOf")
_KINDS: Mapping[str, type | tuple[type, ...]] = {
    **dict.fromkeys(("properties", "items"), Mapping),
    **dict.fromkeys(("required", "enum", "allOf", *_ALTERNATIVES), list),
    **dict.fromkeys(("description", "$ref"), str),
    "type": (str, list),
}
"""What has another JSON type has no meaning."""
_NAMES = {str: "string", bool: "boolean", int: "integer", float: "number", list: "array", dict: "object"}


def simplified(tool: Mapping[str, Any]) -> dict[str, Any]:
    """Return a tool in OpenAI's form whose parameters every Gemma template can print.

    A type is always there: templates of Gemma 4 lose a brace without it, and fail on a list of types with null in it,
    which becomes `nullable`. References to definitions of the schema are put in place; one inside what it refers to
    becomes an object of any kind. Parts of `allOf` become one. `anyOf` and `oneOf` of one kind and null become that
    kind; of others the types are listed, and objects get the properties of all, of which those are required that all
    require. What is left alone prints as it always did.

    Raises RequestError for a schema that references make huge.
    """
    function = dict(tool["function"])
    if function.get("parameters"):
        unfolded = _Unfolding(function["name"], function["parameters"]).unfolded(function["parameters"], 0)
        kind = unfolded.get("type")
        function["parameters"] = {**unfolded, "type": kind if isinstance(kind, str) else "object"}
    return {**tool, "function": function}


class _Unfolding:
    """The schema of one tool, and how much of it has been unfolded."""

    def __init__(self, name: str, root: Mapping[str, Any]) -> None:
        self._name = name
        self._root = root
        self._num_schemas = 0
        self._inside: list[str] = []
        """The references that are being followed."""

    def typed(self, schema: Any, depth: int) -> dict[str, Any]:
        """Return a schema made simple, with a type."""
        found = self.unfolded(schema, depth)
        if "type" in found:
            return found
        enum = found.get("enum")
        guess = "object" if "properties" in found else "array" if "items" in found else None
        return {**found, "type": guess or _NAMES.get(type(enum[0]) if enum else str, "string")}

    def unfolded(self, schema: Any, depth: int) -> dict[str, Any]:
        """Return a schema made simple, with the type that it says, if it says one."""
        self._num_schemas += 1
        if self._num_schemas > MAX_SCHEMAS or depth > MAX_SCHEMA_DEPTH:
            raise RequestError(
                f"tools: the parameters of {self._name} unfold too far",
                limit=f"{MAX_SCHEMAS} schemas, {MAX_SCHEMA_DEPTH} in each other",
                remedy="use fewer references",
            )
        if not isinstance(schema, Mapping):
            return {}
        found: dict[str, Any] = {
            key: value
            for key, value in schema.items()
            if key not in _LEFT_OUT and isinstance(value, _KINDS.get(key, object))
        }
        parts = [self._referred(found.pop("$ref"), depth)] if "$ref" in found else []
        parts += [self.unfolded(part, depth + 1) for part in found.pop("allOf", ())]
        for key in _ALTERNATIVES:
            alternatives = found.pop(key, None)
            if alternatives:
                parts.append(_one_of([self.typed(one, depth + 1) for one in alternatives]))
        if "properties" in found:
            found["properties"] = {name: self.typed(one, depth + 1) for name, one in found["properties"].items()}
        if found.get("items"):
            found["items"] = self.typed(found["items"], depth + 1)
        if "required" in found:
            found["required"] = [name for name in found["required"] if isinstance(name, str)]
        if "const" in found and "enum" not in found:
            found["enum"] = [found.pop("const")]
        found = _with_one_type(found)
        for part in reversed(parts):
            found = _both(part, found)
        return found

    def _referred(self, reference: str, depth: int) -> dict[str, Any]:
        target: Any = self._root if reference.startswith("#") else None
        for step in reference.removeprefix("#").strip("/").split("/") if reference.strip("#/") else ():
            step = step.replace("~1", "/").replace("~0", "~")
            if isinstance(target, list) and step.isascii() and step.isdigit():
                target = target[int(step)] if len(step) < 10 and int(step) < len(target) else None
            else:
                target = target.get(step) if isinstance(target, Mapping) else None
        if reference in self._inside:
            kind = target.get("type") if isinstance(target, Mapping) else None
            return {"type": kind if isinstance(kind, str) else "object"}
        self._inside.append(reference)
        found = self.unfolded(target, depth + 1)
        self._inside.pop()
        return found


def _with_one_type(found: dict[str, Any]) -> dict[str, Any]:
    """Return a schema whose list of types is one type and `nullable`, where that says the same."""
    listed = found.get("type")
    if not isinstance(listed, list):
        return found
    kinds = list(dict.fromkeys(one for one in listed if isinstance(one, str) and one != "null"))
    nullable = {"nullable": True} if "null" in listed else {}
    if not kinds:
        rest = {key: value for key, value in found.items() if key != "type"}
        return {**rest, "type": "null"} if nullable else rest
    return {**found, "type": kinds[0] if len(kinds) == 1 else kinds, **nullable}


def _both(first: Mapping[str, Any], second: Mapping[str, Any]) -> dict[str, Any]:
    """Return a schema that says what both say; where they differ, the second counts."""
    found = {**first, **second}
    if "properties" in first and "properties" in second:
        found["properties"] = {**first["properties"], **second["properties"]}
    if "required" in first and "required" in second:
        found["required"] = list(dict.fromkeys([*first["required"], *second["required"]]))
    return found


def _one_of(alternatives: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return one schema for several: the only one that is not null, or what they have in common."""
    kinds = [one for one in alternatives if one["type"] != "null"]
    nullable = {"nullable": True} if len(kinds) < len(alternatives) or any(one.get("nullable") for one in kinds) else {}
    if len(kinds) == 1:
        return {**kinds[0], **nullable}
    listed = [one["type"] if isinstance(one["type"], list) else [one["type"]] for one in kinds]
    types = list(dict.fromkeys(kind for some in listed for kind in some))
    found: dict[str, Any] = {"type": types[0] if len(types) == 1 else types or "null", **nullable}
    if types == ["string"] and all("enum" in one for one in kinds):
        found["enum"] = [value for one in kinds for value in one["enum"]]
    if types == ["object"]:
        found["properties"] = {
            name: schema for one in reversed(kinds) for name, schema in one.get("properties", {}).items()
        }
        required = [one.get("required", []) for one in kinds]
        found["required"] = [name for name in required[0] if all(name in names for names in required)]
    if types == ["array"] and all(one.get("items") for one in kinds):
        found["items"] = _one_of([one["items"] for one in kinds])
    return found
