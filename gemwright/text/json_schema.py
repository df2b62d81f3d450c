"""JSON schemas for the grammar engine: what is closed, dropped or refused, and where in the schema a refusal stands."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from gemwright.errors import RequestError

SUPPORTED = (
    "type, properties, required, additionalProperties, patternProperties, items, prefixItems, minItems, maxItems, "
    "minLength, maxLength, pattern, format, minimum, maximum, exclusiveMinimum, exclusiveMaximum, multipleOf, enum, "
    "const, anyOf, allOf, oneOf of provably different branches, local $ref"
)
MAX_PROPERTIES = 1000
"""Most properties of one object: beyond, the time to compile grows with their square."""

_MAX_SEARCHED = 500
"""How many parts of a refused schema are tried, to say which one it is."""

_ONE = ("additionalProperties", "additionalItems", "not", "if", "then", "else", "contains", "propertyNames")
_MANY = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
_LISTS = ("anyOf", "oneOf", "allOf", "prefixItems")
_NUMBER_FORMATS = frozenset({"int32", "int64", "float", "double"})
"""OpenAPI's, which say how a number is stored."""

TYPES = ("null", "boolean", "integer", "number", "string", "array", "object")

ASSERTIONS = frozenset(
    (
        *("type", "enum", "const", "anyOf", "oneOf", "allOf", "not", "if", "then", "else", "$ref", "$dynamicRef"),
        *("properties", "required", "additionalProperties", "patternProperties", "propertyNames", "minProperties"),
        *("maxProperties", "dependentRequired", "dependentSchemas", "dependencies", "unevaluatedProperties"),
        *("items", "prefixItems", "additionalItems", "minItems", "maxItems", "uniqueItems", "contains", "minContains"),
        *("maxContains", "unevaluatedItems", "minLength", "maxLength", "pattern", "format", "minimum", "maximum"),
        *("exclusiveMinimum", "exclusiveMaximum", "multipleOf", "$recursiveRef"),
    )
)
"""Keywords that say which values are admitted; all others are annotations."""

Path = tuple[str | int, ...]


def require_sound(name: str, schema: Mapping[str, Any]) -> None:
    """Raise RequestError, naming keyword and place, unless every keyword's value is of the kind it must be, and no
    object has too many properties."""
    for path, part in walk(schema):
        for key in part.keys() & _KINDS.keys():
            is_fine, kind = _KINDS[key]
            if not is_fine(part[key]):
                raise RequestError(
                    f"{name}: {key} is no {kind}", value=f"at {pointer(path)}: {repr(part[key])[:80]}", limit=kind
                )
        properties = part.get("properties", ())
        if len(properties) > MAX_PROPERTIES:
            raise RequestError(
                f"{name}: too many properties at {pointer(path)}", value=len(properties), limit=MAX_PROPERTIES
            )


def _is_schema(value: Any) -> bool:
    return isinstance(value, (Mapping, bool))


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _is_type_list(value: list[Any]) -> bool:
    return bool(value) and all(isinstance(kind, str) and kind in TYPES for kind in value)


_Kind = tuple[Callable[[Any], bool], str]
_MAPPING: _Kind = (
    lambda value: isinstance(value, Mapping) and all(map(_is_schema, value.values())),
    "object of schemas",
)
_SCHEMA: _Kind = (_is_schema, "schema")
_SCHEMAS: _Kind = (
    lambda value: isinstance(value, list) and len(value) > 0 and all(map(_is_schema, value)),
    "list of schemas",
)
_LENGTH: _Kind = (lambda value: _is_number(value) and value >= 0 and value == int(value), "integer, 0 or more")
_NUMBER: _Kind = (_is_number, "number")
_BOUND: _Kind = (lambda value: _is_number(value) or isinstance(value, bool), "number")
_TEXT: _Kind = (lambda value: isinstance(value, str), "text")
_KINDS: dict[str, _Kind] = {
    **dict.fromkeys(("properties", "patternProperties", "$defs", "definitions", "dependentSchemas"), _MAPPING),
    **dict.fromkeys(("anyOf", "oneOf", "allOf", "prefixItems"), _SCHEMAS),
    **dict.fromkeys(("additionalProperties", "additionalItems", "not", "contains", "propertyNames"), _SCHEMA),
    **dict.fromkeys(("minItems", "maxItems", "minLength", "maxLength", "minProperties", "maxProperties"), _LENGTH),
    **dict.fromkeys(("minimum", "maximum", "multipleOf"), _NUMBER),
    **dict.fromkeys(("exclusiveMinimum", "exclusiveMaximum"), _BOUND),
    **dict.fromkeys(("pattern", "format", "$ref"), _TEXT),
    "items": (lambda value: _is_schema(value) or _SCHEMAS[0](value), "schema"),
    "enum": (lambda value: isinstance(value, list) and len(value) > 0, "list of values"),
    "required": (lambda value: isinstance(value, list) and all(map(_TEXT[0], value)), "list of names"),
    "type": (lambda value: _is_type_list(value if isinstance(value, list) else [value]), f"one of {', '.join(TYPES)}"),
}


def prepare(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return the schema to compile. Every answer it admits is one that the given schema admits.

    An object that lists properties takes no others unless the schema says so, where that can be said without
    contradicting another part of it. Keywords that say nothing (`uniqueItems` false) are dropped.
    """
    parts = dict(walk(schema))
    mixes = any("allOf" in part or "if" in part or "dependentSchemas" in part for part in parts.values())
    mixes_references = mixes or any("$ref" in part and constraining(part) - {"$ref"} for part in parts.values())

    def rewrite(part: Any, may_close: bool) -> Any:
        if not isinstance(part, Mapping):
            return part
        made = dict(part)
        if made.get("uniqueItems") is False:
            del made["uniqueItems"]
        if made.get("format") in _NUMBER_FORMATS:
            del made["format"]
        asked = constraining(made)
        has_shape = bool(asked & {"properties", "required", "additionalProperties", "patternProperties"})
        branches_may = may_close and not has_shape
        for key, value in part.items():
            if key not in made:
                continue
            inner_may = not mixes
            if key in _LISTS or key == "items":
                inner_may = branches_may if key in ("anyOf", "oneOf") else not mixes
                made[key] = (
                    [rewrite(x, inner_may) for x in value] if isinstance(value, list) else rewrite(value, inner_may)
                )
            elif key in _MANY and isinstance(value, Mapping):
                inner_may = not mixes_references if key in ("$defs", "definitions") else not mixes
                made[key] = {name: rewrite(x, inner_may) for name, x in value.items()}
            elif key in _ONE:
                made[key] = rewrite(value, inner_may and key != "not")
        if may_close and _can_close(made, asked):
            made["additionalProperties"] = False
        return made

    closed: dict[str, Any] = rewrite(schema, not mixes)
    closed.pop("x-guidance", None)  # the grammar engine would take its options from there
    return closed


def _can_close(part: Mapping[str, Any], asked: set[str]) -> bool:
    properties, required = part.get("properties"), part.get("required", [])
    if not isinstance(properties, Mapping) or not isinstance(required, list):
        return False
    open_ended = {"additionalProperties", "patternProperties", "unevaluatedProperties", "anyOf", "oneOf", "$ref"}
    return not asked & (open_ended | {"minProperties"}) and set(map(str, required)) <= properties.keys()


def constraining(part: Mapping[str, Any]) -> set[str]:
    """Return the keywords of a schema that are no mere annotations."""
    return set(part) & ASSERTIONS


def walk(schema: Any, path: Path = ()) -> Iterator[tuple[Path, Mapping[str, Any]]]:
    """Yield a schema and all inside it, each with its place."""
    if not isinstance(schema, Mapping):
        return
    yield path, schema
    for child_path, child in children(schema):
        yield from walk(child, path + child_path)


def children(schema: Mapping[str, Any]) -> Iterator[tuple[Path, Any]]:
    """Yield the schemas directly inside one; definitions first, since what is wrong there shows up elsewhere too."""
    for key in sorted(schema, key=lambda key: key not in ("$defs", "definitions")):
        value = schema[key]
        if key in _MANY and isinstance(value, Mapping):
            yield from (((key, name), child) for name, child in value.items())
        elif (key in _LISTS and isinstance(value, list)) or (key == "items" and isinstance(value, list)):
            yield from (((key, index), child) for index, child in enumerate(value))
        elif key in _ONE or key == "items":
            yield (key,), value


def pointer(path: Path) -> str:
    """Return a place as a JSON pointer: #/properties/a."""
    return "/".join(["#", *(str(part).replace("~", "~0").replace("/", "~1") for part in path)])


def refusal(name: str, schema: Mapping[str, Any], complaint: Callable[[Mapping[str, Any]], str]) -> RequestError:
    """Return the error of a schema that the grammar engine refuses, naming the innermost part it refuses.

    `complaint` says what the engine has against a schema, "" if nothing.
    """
    budget = _MAX_SEARCHED
    definitions = {key: schema[key] for key in ("$defs", "definitions") if key in schema}

    def against(part: Any) -> str:
        nonlocal budget
        budget -= 1
        return complaint({**definitions, **part}) if isinstance(part, Mapping) and part and budget > 0 else ""

    path: Path = ()
    part, found = schema, complaint(schema)
    while True:
        inner = next(
            ((child_path, child, told) for child_path, child in children(part) if (told := against(child))), None
        )
        if inner is None:
            break
        path, part, found = path + inner[0], inner[1], inner[2]
    return RequestError(
        f"{name}: {plain_complaint(found)}",
        value=f"at {pointer(path)}",
        limit=SUPPORTED,
        remedy="leave the keyword out, or say the same with those above",
    )


def plain_complaint(message: str) -> str:
    """Return the grammar engine's message in our words where it has some of its own."""
    keys = re.match(r"Unimplemented keys: \[(.*?)\]", message)
    if keys is not None:
        return f"the keyword {keys[1]} is not supported"
    if message.startswith("Resource "):
        return "a $ref leaves the schema, and nothing is fetched"
    if message.startswith("Pointer "):
        return f"a $ref leads nowhere: {message.split(chr(39))[1]}"
    if message.startswith("oneOf"):
        return "oneOf is supported for branches that provably exclude each other; use anyOf"
    return " ".join(message.split())[:300]


def is_type(value: Any, kind: str) -> bool:
    """Whether a JSON value is of a JSON type."""
    if isinstance(value, bool) or value is None:
        return kind == ("null" if value is None else "boolean")
    if kind == "integer":
        return isinstance(value, int) or (isinstance(value, float) and value.is_integer())
    classes: dict[str, tuple[type, ...]] = {
        "number": (int, float),
        "string": (str,),
        "array": (list,),
        "object": (dict,),
    }
    return isinstance(value, classes.get(kind, ()))


def exclusive(branches: Sequence[Any]) -> bool:
    """Whether no value can fit two of the schemas: their types differ, or a required property's constants do."""
    return all(_differ(left, right) for index, left in enumerate(branches) for right in branches[index + 1 :])


def _differ(left: Any, right: Any) -> bool:
    if not isinstance(left, Mapping) or not isinstance(right, Mapping):
        return False
    ours, theirs = _constants(left), _constants(right)
    if ours is not None and theirs is not None:
        return not any(value in theirs for value in ours)
    kinds = [set(given if isinstance(given := branch.get("type", ()), list) else [given]) for branch in (left, right)]
    kinds = [found | {"integer"} if "number" in found else found for found in kinds]
    if all(kinds) and () not in kinds[0] | kinds[1] and not kinds[0] & kinds[1]:
        return True
    properties = [branch.get("properties", {}) for branch in (left, right)]
    shared = set(left.get("required", ())) & set(right.get("required", ()))
    return any(
        _differ(properties[0][name], properties[1][name])
        for name in shared
        if name in properties[0] and name in properties[1] and _constants(properties[0][name]) is not None
    )


def _constants(schema: Any) -> list[Any] | None:
    if not isinstance(schema, Mapping):
        return None
    return [schema["const"]] if "const" in schema else schema.get("enum")
