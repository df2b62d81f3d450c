"""A grammar (llguidance's Lark) for one call of a request's tools in Gemma 4's own syntax, from their JSON schemas.

Keys stand in the order the model was trained on, sorted without regard to case. An object takes the keys it lists and
no others unless `additionalProperties` says so; one that lists none takes any.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from gemwright.errors import RequestError
from gemwright.text.constraint import ToolSchema
from gemwright.text.json_schema import TYPES, Path, constraining, exclusive, is_type, pointer, require_sound
from gemwright.text.string_patterns import FORMATS, escaped, lark_regex, literal, whole_regex
from gemwright.text.tool_syntax import QUOTE, format_value

_MAX_RULES = 5000

_NUMBER_KEYS = frozenset(["minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"])
_KEYS_BY_TYPE: dict[str, frozenset[str]] = {
    "null": frozenset(),
    "boolean": frozenset(),
    "integer": _NUMBER_KEYS,
    "number": _NUMBER_KEYS,
    "string": frozenset(["minLength", "maxLength", "pattern", "format"]),
    "array": frozenset(["items", "prefixItems", "additionalItems", "minItems", "maxItems"]),
    "object": frozenset(["properties", "required", "additionalProperties"]),
}
_SAY_NOTHING = {"uniqueItems": False, "minProperties": 0}
_FREE = r"/(?s:.*)/"


def one_call(tools: Sequence[ToolSchema], ids: Mapping[str, int], *, only_strict: bool) -> str:
    """Return the grammar of one call of one of `tools`, its marks included.

    ids: of the control words `<|tool_call>`, `<tool_call|>` and `<|"|>`. With `only_strict`, the schemas of tools that
    are not strict are not looked at: their arguments are any object.

    Raises RequestError, naming tool, keyword and place, for what a strict tool's schema asks and this cannot enforce.
    """
    return _CallGrammar(ids[QUOTE]).one_call(tools, ids, only_strict)


class _NoValueError(RequestError):
    """A schema admits no value; where it is one of several, the others stay."""


class _CallGrammar:
    """Collects rules while it walks schemas."""

    def __init__(self, quote_id: int) -> None:
        self.quote = f"<[{quote_id}]>"
        self.rules: dict[str, str] = {}
        self.named: dict[str, str] = {}
        """By the text of a terminal: its name. Equal terminals are one lexeme."""
        self.references: dict[tuple[int, str], str] = {}
        self.waiting: list[tuple[str, str]] = []
        """References whose rules are yet to be made, each with its name: chains of them may be long."""
        self.tool = ToolSchema("", "{}")
        self.root: dict[str, Any] = {}
        self.number = 0

    def one_call(self, tools: Sequence[ToolSchema], ids: Mapping[str, int], only_strict: bool) -> str:
        calls = []
        for number, tool in enumerate(tools):
            format_value({tool.name: None})  # a name that is no text is refused there
            self.tool, self.number, self.root = tool, number, json.loads(tool.parameters)
            schema = {"type": "object"} if only_strict and not tool.strict else self.root
            calls.append(f"{literal(tool.name)} {self.rule(self.arguments(schema), f'call_{number}')}")
            while self.waiting:
                target, name = self.waiting.pop()
                self.rule(self.value(self.resolve(target, ()), (target,)), name)
        start = f'start: <[{ids["<|tool_call>"]}]> "call:" ({" | ".join(calls)}) <[{ids["<tool_call|>"]}]>'
        terminals = (f"{name}: {text}" for text, name in self.named.items())
        return "\n".join([start, *(f"{name}: {body}" for name, body in self.rules.items()), *terminals])

    def arguments(self, schema: Mapping[str, Any]) -> str:
        """Return the body of a call's arguments, which are an object whether or not the schema says so."""
        require_sound(f"the parameters of tool {self.tool.name}", schema)
        if not constraining(schema) & {"$ref", "anyOf", "oneOf", "allOf", "enum", "const"}:
            kinds = schema.get("type", "object")
            schema = {**schema, "type": "object", "nullable": False} if "object" in kinds else schema
        if not self.takes_object(schema, 0):
            raise self.refused("arguments are an object", (), "type")
        return self.value(schema, ())

    def takes_object(self, schema: Any, depth: int) -> bool:
        """Whether every value of a schema is an object, as arguments must be."""
        if not isinstance(schema, Mapping) or depth > 64 or schema.get("nullable") is True:
            return False
        if "$ref" in schema:
            return self.takes_object(self.resolve(schema["$ref"], ()), depth + 1)
        if "type" in schema or "enum" in schema or "const" in schema:
            return schema.get("type") in ("object", ["object"]) and not {"enum", "const"} & schema.keys()
        for key in ("anyOf", "oneOf"):
            if key in schema:
                return all(self.takes_object(branch, depth + 1) for branch in schema[key])
        if "allOf" in schema:
            return any(self.takes_object(part, depth + 1) for part in schema["allOf"])
        return bool(_KEYS_BY_TYPE["object"] & schema.keys())

    def rule(self, body: str, name: str | None = None) -> str:
        """Return the name of a rule of this body."""
        name = name or f"r{len(self.rules)}"
        if len(self.rules) >= _MAX_RULES:
            raise RequestError("the schemas of the tools are too large", limit=f"{_MAX_RULES} grammar rules")
        self.rules[name] = body
        return name

    def terminal(self, text: str) -> str:
        return self.named.setdefault(text, f"T{len(self.named)}")

    def text(self, regex: str = _FREE) -> str:
        """Return a string whose text matches, spelled-out delimiters excepted."""
        if "NO_QUOTE" not in self.rules:
            self.rules["NO_QUOTE"] = rf"{_FREE} & ~/(?s:.*){lark_regex(escaped(QUOTE))}(?s:.*)/"
        inner = "NO_QUOTE" if regex == _FREE else self.terminal(f"{regex} & NO_QUOTE")
        return f"{self.quote} {inner} {self.quote}"

    def value(self, schema: Any, path: Path) -> str:
        """Return the body of a rule for the values of a schema."""
        if schema is True or (isinstance(schema, Mapping) and not constraining(schema)):
            return self.anything()
        if not isinstance(schema, Mapping):
            raise self.refused("no value is allowed", path, repr(schema)[:40], _NoValueError)
        schema = self.merged(schema, path)
        if "$ref" in schema:
            return self.reference(schema, path)
        if "enum" in schema or "const" in schema:
            return self.listed(schema, path)
        for key in ("anyOf", "oneOf"):
            if key in schema:
                return self.alternatives(key, schema, path)
        self.know(schema, frozenset().union(*_KEYS_BY_TYPE.values()) | {"type"}, path)
        kinds = self.types(schema, path)
        return self.any_of([functools.partial(getattr(self, f"a_{kind}"), schema, path) for kind in kinds])

    def any_of(self, makers: Sequence[Callable[[], str]]) -> str:
        """Return the alternatives that admit a value; raises what the last one raised if none does."""
        bodies, failure = [], None
        for make in makers:
            try:
                bodies.append(make())
            except _NoValueError as error:
                failure = error
        if failure is not None and not bodies:
            raise failure
        return " | ".join(bodies)

    def types(self, schema: Mapping[str, Any], path: Path) -> list[str]:
        """Return the types a schema allows; without `type`, those that its keywords speak of, else all."""
        given = schema.get("type")
        if given is None:
            kinds = [kind for kind in TYPES if _KEYS_BY_TYPE[kind] & schema.keys()]
            kinds = [kind for kind in kinds if kind != "integer"] or list(TYPES)
        else:
            kinds = list(dict.fromkeys(given)) if isinstance(given, list) else [given]
        if schema.get("nullable") is True and "null" not in kinds:
            kinds.append("null")
        return [kind for kind in kinds if kind != "integer" or "number" not in kinds]

    def merged(self, schema: Mapping[str, Any], path: Path) -> Mapping[str, Any]:
        """Return a schema with its allOf taken in: the keywords of all parts together, where no two differ."""
        parts = schema.get("allOf")
        if parts is None:
            return schema
        if len(path) > 200:
            raise self.refused("allOf is nested too deep, or leads to itself", path[:4], "allOf")
        made = {key: value for key, value in schema.items() if key != "allOf"}
        for index, part in enumerate(parts):
            if part is False:
                raise self.refused("no value is allowed", path, "allOf", _NoValueError)
            part = {} if part is True else self.merged(part, (*path, "allOf", index))
            if "$ref" in part and (len(parts) > 1 or constraining(made)):
                part = self.merged(self.resolve(part["$ref"], path), (*path, "$ref"))
            for key, value in part.items():
                if key == "properties" and key in made and not made[key].keys() & value.keys():
                    made[key] = {**made[key], **value}
                elif key == "required" and key in made:
                    made[key] = list(dict.fromkeys([*made[key], *value]))
                elif key not in constraining({key: value}):
                    made.setdefault(key, value)
                elif made.setdefault(key, value) != value and self.must("allOf of parts that differ", path, key):
                    continue
        return made

    def reference(self, schema: Mapping[str, Any], path: Path) -> str:
        if constraining(schema) - {"$ref"}:
            self.must("keywords beside $ref", path, "$ref")
        target = schema["$ref"]
        key = (self.number, str(target))
        if key not in self.references:
            self.resolve(target, path)
            self.references[key] = f"ref{len(self.references)}"
            self.waiting.append((str(target), self.references[key]))
        return self.references[key]

    def resolve(self, target: Any, path: Path) -> Any:
        if not isinstance(target, str) or not target.startswith("#"):
            raise self.refused("a $ref leaves the schema, and nothing is fetched", path, str(target)[:80])
        found: Any = self.root
        for part in filter(None, target[1:].split("/")):
            part = part.replace("~1", "/").replace("~0", "~")
            if isinstance(found, list) and part.isdigit() and int(part) < len(found):
                found = found[int(part)]
            elif isinstance(found, Mapping) and part in found:
                found = found[part]
            else:
                raise self.refused("a $ref leads nowhere", path, target[:80])
        if isinstance(found, Mapping) and found.get("$ref") == target:
            raise self.refused("a $ref leads to itself", path, target[:80])
        return found

    def listed(self, schema: Mapping[str, Any], path: Path) -> str:
        """Return the values of `enum` or `const` that are of the schema's type."""
        values = schema.get("enum", [schema.get("const")])
        if "const" in schema:
            values = [value for value in values if json.dumps(value) == json.dumps(schema["const"])]
        self.know(schema, frozenset(["enum", "const", "type"]), path)
        if "type" in schema:
            kinds = self.types(schema, path)
            values = [value for value in values if any(is_type(value, kind) for kind in kinds)]
        if schema.get("nullable") is True and None not in values:
            values = [*values, None]
        if not values:
            raise self.refused("no value is allowed", path, "enum", _NoValueError)
        if json.dumps(QUOTE)[1:-1] in json.dumps(values):
            raise self.refused(f"no string can hold {QUOTE}", path, "enum")
        texts = [value for value in values if isinstance(value, str)]
        bodies = [self.exact(value) for value in values if not isinstance(value, str)]
        if texts:
            # One terminal, not one rule each: a list may have thousands.
            bodies.insert(0, f"{self.quote} {self.terminal(' | '.join(map(literal, texts)))} {self.quote}")
        return " | ".join(bodies)

    def exact(self, value: Any) -> str:
        """Return a value exactly as the model writes it."""
        parts = format_value(value).split(QUOTE)
        return f" {self.quote} ".join(literal(part) if part else "" for part in parts)

    def alternatives(self, key: str, schema: Mapping[str, Any], path: Path) -> str:
        branches = schema[key]
        if key == "oneOf" and not exclusive(branches):
            self.must("oneOf of branches that do not provably exclude each other; use anyOf", path, key)
        beside = {name: value for name, value in schema.items() if name in constraining(schema) - {key}}
        makers: list[Callable[[], str]] = []
        for index, branch in enumerate(branches):
            whole = {"allOf": [beside, branch]} if beside else branch
            makers.append(functools.partial(self.branch, whole, (*path, key, index)))
        return self.any_of(makers) + (' | "null"' if schema.get("nullable") is True else "")

    def branch(self, schema: Any, path: Path) -> str:
        return self.rule(self.value(schema, path))

    def a_null(self, schema: Mapping[str, Any], path: Path) -> str:
        return '"null"'

    def a_boolean(self, schema: Mapping[str, Any], path: Path) -> str:
        return '"true" | "false"'

    def a_integer(self, schema: Mapping[str, Any], path: Path) -> str:
        return self.a_number(schema, path, "integer")

    def a_number(self, schema: Mapping[str, Any], path: Path, kind: str = "number") -> str:
        limits = {key: schema[key] for key in sorted(_NUMBER_KEYS & schema.keys())}
        # OpenAPI's older spelling: a flag beside the bound.
        for flag, bound in (("exclusiveMinimum", "minimum"), ("exclusiveMaximum", "maximum")):
            if isinstance(limits.get(flag), bool) and limits.pop(flag) and bound in limits:
                limits[flag] = limits.pop(bound)
        return f"%json {json.dumps({'type': kind, **limits})}"

    def a_string(self, schema: Mapping[str, Any], path: Path) -> str:
        regexes = []
        low, high = _length(schema, "minLength") or 0, _length(schema, "maxLength")
        if low or high is not None:
            if high is not None and high < low:
                raise self.refused("minLength is above maxLength", path, "minLength", _NoValueError)
            regexes.append(f"/(?s:.{{{low},{'' if high is None else high}}})/")
        if "pattern" in schema:
            found = whole_regex(schema["pattern"])
            if found is None:
                self.must("pattern cannot be enforced (look-around, back-references, anchors inside)", path, "pattern")
            else:
                regexes.append(f"/{found}/")
        if "format" in schema:
            found = FORMATS.get(str(schema["format"]))
            if found is None:
                self.must(f"format {schema['format']!r} is not supported", path, "format")
            else:
                regexes.append(f"/{lark_regex(found)}/")
        return self.text(" & ".join(regexes) or _FREE)

    def a_array(self, schema: Mapping[str, Any], path: Path) -> str:
        low, high = _length(schema, "minItems") or 0, _length(schema, "maxItems")
        if high is not None and high < low:
            raise self.refused("minItems is above maxItems", path, "minItems", _NoValueError)
        items, first = schema.get("items", True), schema.get("prefixItems", [])
        if isinstance(items, list):  # the spelling before 2020
            items, first = schema.get("additionalItems", True), items
        if first:
            return self.tuple_of(first, items, low, high, path)
        if high == 0 or (items is False and not low):
            return '"[]"'
        item = self.rule(self.value(items, (*path, "items")))
        more = f'("," {item}){{{max(low - 1, 0)},{"" if high is None else high - 1}}}'
        return f'"[" {item} {more} "]"' if low else f'"[]" | "[" {item} {more} "]"'

    def tuple_of(self, first: Sequence[Any], items: Any, low: int, high: int | None, path: Path) -> str:
        """Return an array whose first items each have a schema."""
        limit = len(first) if high is None else min(high, len(first))
        if low > limit or (items is not False and (high is None or high > len(first))):
            self.must("an array may be longer than its prefixItems; say items: false or maxItems", path, "prefixItems")
        rest = ""
        for index in reversed(range(limit)):
            item = self.rule(self.value(first[index], (*path, "prefixItems", index)))
            body = f"{'' if index == 0 else literal(',')} {item} {rest}"
            rest = f"({body})" if index < low else f"({body})?"
        return f'"[" {rest} "]"'

    def a_object(self, schema: Mapping[str, Any], path: Path) -> str:
        properties = schema.get("properties", {})
        required = schema.get("required", [])
        additional = schema.get("additionalProperties", "properties" not in schema)
        possible = {name: found for name, found in properties.items() if found is not False or name in required}
        wanted = {**possible, **{name: additional for name in required if name not in properties}}
        if additional is False and wanted.keys() > properties.keys():
            raise self.refused("required names a property that is not allowed", path, "required")
        written = {name: format_value({name: None})[1 : -len(":null}")] for name in wanted}
        after, alone = "", ""
        if additional is not False:
            pair = self.pair(additional, list(written.values()), path)
            after, alone = f'("," {pair})*', f'({pair} ("," {pair})*)?'
        for name in sorted(wanted, key=str.lower, reverse=True):
            value = self.rule(self.value(wanted[name], (*path, "properties", name)))
            key = self.key(written[name])
            tail = self.rule(after) if after else ""
            if name in required:
                after, alone = f'"," {key} {value} {tail}', f"{key} {value} {tail}"
            else:
                rest = self.rule(alone) if alone else ""
                after = f'"," {key} {value} {tail} | {tail}' if tail else f'("," {key} {value})?'
                alone = f"{key} {value} {tail} | {rest}" if rest else f"({key} {value})?"
        return f'"{{" {self.rule(alone)} "}}"' if alone else '"{}"'

    def key(self, written: str) -> str:
        parts = f"{written}:".split(QUOTE)
        return f" {self.quote} ".join(literal(part) if part else "" for part in parts)

    def pair(self, schema: Any, taken: Iterable[str], path: Path) -> str:
        """Return a key that the schema does not list, and its value."""
        plain = "/[A-Za-z_][A-Za-z0-9_.\\-]{0,63}/"
        for written in taken:
            plain += f" & ~/{lark_regex(escaped(written))}/"
        self.text()
        others = "".join(f" & ~{literal(text.removeprefix(QUOTE).removesuffix(QUOTE))}" for text in taken)
        quoted = self.terminal(f"/(?s:.+)/ & NO_QUOTE{others}")
        value = self.rule(self.value(schema, (*path, "additionalProperties")))
        return self.rule(f'({self.terminal(plain)} | {self.quote} {quoted} {self.quote}) ":" {value}')

    def anything(self) -> str:
        """Return any value at all."""
        if "anything" not in self.rules:
            self.rules["anything"] = ""
            number = self.terminal(r"/-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+\-]?[0-9]+)?/")
            container = f'{self.a_object({}, ())} | "[]" | "[" anything ("," anything)* "]"'
            self.rules["anything"] = f'{self.text()} | {number} | "true" | "false" | "null" | {container}'
        return "anything"

    def know(self, schema: Mapping[str, Any], known: frozenset[str], path: Path) -> None:
        """Refuse keywords that are not known, where the tool is strict."""
        for key in sorted(constraining(schema) - known):
            if key not in _SAY_NOTHING or schema[key] != _SAY_NOTHING[key]:
                self.must(f"the keyword {json.dumps(key)} is not supported", path, key)

    def must(self, what: str, path: Path, key: str) -> bool:
        """Raise if the tool is strict; return True where the schema may be kept in part."""
        if self.tool.strict:
            raise self.refused(what, path, key)
        return True

    def refused(self, what: str, path: Path, key: str, kind: type[RequestError] = RequestError) -> RequestError:
        return kind(
            f"the parameters of tool {self.tool.name}: {what}",
            value=f"{key} at {pointer(path)}",
            remedy="say it with other keywords, or leave strict out to have it enforced as far as it can be"
            if self.tool.strict
            else "correct the schema",
        )


def _length(schema: Mapping[str, Any], key: str) -> int | None:
    return int(schema[key]) if key in schema else None
