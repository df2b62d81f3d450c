"""What an answer must look like, as plain data: a schema, a regex, choices, a grammar, or calls of a request's tools.

Checks what can be checked without a tokenizer; knows nothing of how a constraint is enforced (text.grammar does it).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

from gemwright.errors import RequestError

MAX_CONSTRAINT_BYTES = 1 << 20
"""Longest schema, regex, grammar or list of choices, in bytes of UTF-8."""

MAX_DEPTH = 64
"""Deepest nesting of lists and objects in a schema."""

ANY_OBJECT = '{"type": "object"}'
"""The schema of `json_object`."""


class ConstraintKind(StrEnum):
    """What is wanted."""

    JSON_SCHEMA = "json_schema"
    REGEX = "regex"
    CHOICE = "choice"
    GRAMMAR = "grammar"
    TOOLS = "tools"


@dataclass(frozen=True, slots=True)
class ToolSchema:
    """A tool that may be called: its name and the JSON text of its parameters' schema.

    `strict` refuses a schema that cannot be enforced whole; else what cannot be enforced of it is left out.
    """

    name: str
    parameters: str
    strict: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Constraint:
    """What an answer must look like.

    `text` is the schema, regex or grammar, `choices` the texts of a choice, `tools` those that may be called: at least
    one call if `must_call`, at most one unless `parallel_tool_calls`. `thinking` lets the model think first, free of
    the constraint; `opens_thought` says that the prompt ends inside a thought, which the answer goes on with. Both are
    what the prompt was rendered with.
    """

    kind: ConstraintKind
    text: str = ""
    choices: tuple[str, ...] = ()
    tools: tuple[ToolSchema, ...] = ()
    must_call: bool = False
    parallel_tool_calls: bool = True
    thinking: bool = False
    opens_thought: bool = False

    def with_thinking(self, thinking: bool, opens_thought: bool) -> Constraint:
        """Return the same constraint for a prompt rendered so."""
        return replace(self, thinking=thinking, opens_thought=opens_thought)


def schema_constraint(schema: Any) -> Constraint:
    """Return the constraint of a JSON schema, a mapping or its JSON text. Raises RequestError for what is none."""
    return Constraint(kind=ConstraintKind.JSON_SCHEMA, text=schema_text("json_schema", schema))


def object_constraint() -> Constraint:
    """Return the constraint of any JSON object."""
    return Constraint(kind=ConstraintKind.JSON_SCHEMA, text=ANY_OBJECT)


def regex_constraint(regex: Any) -> Constraint:
    """Return the constraint of a regex that the whole answer must match."""
    return Constraint(kind=ConstraintKind.REGEX, text=_text("regex", regex))


def grammar_constraint(grammar: Any) -> Constraint:
    """Return the constraint of a Lark or GBNF grammar."""
    return Constraint(kind=ConstraintKind.GRAMMAR, text=_text("grammar", grammar))


def choice_constraint(choices: Any) -> Constraint:
    """Return the constraint of being one of several texts."""
    if isinstance(choices, (str, bytes, Mapping)) or not isinstance(choices, Sequence) or not choices:
        raise RequestError("choice", value=repr(choices)[:80], limit="a list of at least one text")
    for choice in choices:
        _text("choice", choice)
    _text("choice", "".join(choices))
    return Constraint(kind=ConstraintKind.CHOICE, choices=tuple(dict.fromkeys(choices)))


def tool_constraint(
    tools: Sequence[Mapping[str, Any]], tool_choice: Any = "auto", *, parallel_tool_calls: bool = True
) -> Constraint | None:
    """Return what `tool_choice` asks of an answer, or None where it asks nothing.

    tools: as in the OpenAI interface, `{"type": "function", "function": {"name", "parameters", "strict"}}`, or the
        inner object alone.
    tool_choice: "none"; "auto" (None is the same): calls are free to come or not, those of strict tools conform, and
        without `parallel_tool_calls` one comes at most;
        "required"; or a tool's name, alone, as `{"name"}` or as `{"type": "function", "function": {"name"}}`.

    Raises RequestError for a tool without a name, two of one name, a choice that names none of them, or a schema that
    is no schema.
    """
    functions = [_function(tool) for tool in tools]
    names = [function.name for function in functions]
    double = next((name for name in names if names.count(name) > 1), None) if len(set(names)) < len(names) else None
    if double is not None:
        raise RequestError("tools: two have one name", value=double, limit="each name once")
    if tool_choice in (None, "auto", "none"):
        is_free = parallel_tool_calls and not any(function.strict for function in functions)
        if tool_choice == "none" or is_free or not functions:
            return None
        chosen, must_call = functions, False
    else:
        must_call = True
        chosen = functions
        if tool_choice != "required":
            name = _chosen_name(tool_choice)
            chosen = [function for function in functions if function.name == name]
            if not chosen:
                raise RequestError("tool_choice names no tool of the request", value=name, limit=", ".join(names))
    if not chosen:
        raise RequestError("tool_choice asks for a call, and the request has no tools", remedy="give tools")
    return Constraint(
        kind=ConstraintKind.TOOLS,
        tools=tuple(chosen),
        must_call=must_call,
        parallel_tool_calls=bool(parallel_tool_calls),
    )


def schema_text(name: str, schema: Any) -> str:
    """Return a schema's JSON text, keys in the order given. Raises RequestError, naming `name`, for what is none."""
    if isinstance(schema, str):
        _text(name, schema)
        try:
            schema = json.loads(schema, parse_constant=_no_constant)
        except (ValueError, RecursionError) as error:
            raise RequestError(f"{name} is not JSON", value=str(error)[:200]) from None
    if not isinstance(schema, Mapping):
        raise RequestError(f"{name} is no schema", value=repr(schema)[:80], limit="a JSON object")
    if _is_deeper(schema, MAX_DEPTH):
        raise RequestError(f"{name} is nested too deep", limit=f"{MAX_DEPTH} levels")
    try:
        text = json.dumps(schema, ensure_ascii=False, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise RequestError(f"{name} is not JSON", value=str(error)[:200]) from None
    return _text(name, text)


def _function(tool: Any) -> ToolSchema:
    inner = tool.get("function", tool) if isinstance(tool, Mapping) else None
    if not isinstance(inner, Mapping) or not isinstance(inner.get("name"), str) or not inner["name"]:
        raise RequestError("tools: a tool has no name", value=repr(tool)[:80], limit="an object with a name")
    strict = inner.get("strict")
    if strict not in (True, False, None):
        raise RequestError(f"tools: strict of {inner['name']}", value=strict, limit="true or false")
    parameters = inner.get("parameters")
    if not parameters:
        parameters = {"type": "object", "properties": {}}
    return ToolSchema(inner["name"], schema_text(f"the parameters of tool {inner['name']}", parameters), bool(strict))


def _chosen_name(tool_choice: Any) -> str:
    inner = tool_choice
    if isinstance(inner, Mapping):
        inner = inner.get("function", inner)
    name = inner.get("name") if isinstance(inner, Mapping) else inner
    if not isinstance(name, str) or not name:
        raise RequestError("tool_choice", value=repr(tool_choice)[:80], limit="none, auto, required or a tool's name")
    return name


def _text(name: str, value: Any) -> str:
    """Return a text that UTF-8 can hold, not empty and not too long."""
    if not isinstance(value, str) or not value:
        raise RequestError(name, value=repr(value)[:80], limit="a text that is not empty")
    try:
        num_bytes = len(value.encode())
    except UnicodeEncodeError as error:
        raise RequestError(f"{name} holds half of a surrogate pair", value=f"at character {error.start}") from None
    if num_bytes > MAX_CONSTRAINT_BYTES:
        raise RequestError(f"{name} is too long", value=f"{num_bytes} bytes", limit=f"{MAX_CONSTRAINT_BYTES} bytes")
    return value


def _no_constant(word: str) -> float:
    raise ValueError(f"{word} is no JSON number")


def _is_deeper(value: Any, levels: int) -> bool:
    """Whether lists and objects are nested more than so many levels deep."""
    layer = [value]
    for _ in range(levels + 1):
        inner: list[Any] = []
        for item in layer:
            if isinstance(item, Mapping):
                inner.extend(item.values())
            elif isinstance(item, (list, tuple)):
                inner.extend(item)
        if not inner:
            return False
        layer = [item for item in inner if isinstance(item, (Mapping, list, tuple))]
        if not layer:
            return False
    return True
