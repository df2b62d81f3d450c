"""From a Python function to a tool that a model can call: its schema from the signature, and the call itself."""

from __future__ import annotations

import asyncio
import importlib
import importlib.util
import inspect
import json
import re
import sys
import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from gemwright.errors import CheckpointError, RequestError

_SIMPLE = {str: "string", int: "integer", float: "number", bool: "boolean"}
_ARGUMENT = re.compile(r"^\s*:?(?:param\s+)?(\w+)\s*(?:\([^)]*\))?\s*:\s*(.+)$")
_MAX_RESULT_CHARACTERS = 20_000


@dataclass(frozen=True, slots=True)
class Tool:
    """A function and how it is described to a model."""

    name: str
    description: str
    parameters: Mapping[str, Any]
    """The JSON schema of its arguments."""
    function: Callable[..., Any]

    def to_dict(self) -> dict[str, Any]:
        """Return it as OpenAI's interface has it."""
        described = {"name": self.name, "description": self.description, "parameters": dict(self.parameters)}
        return {"type": "function", "function": described}

    def call(self, arguments: Mapping[str, Any]) -> str:
        """Call it and return what a model is told: its result as text, JSON unless it is text already.

        Whatever it raises is told too, so that the model may try again; nothing is raised here.
        """
        try:
            inspect.signature(self.function).bind(**arguments)
        except TypeError as error:
            return json.dumps({"error": f"wrong arguments: {error}"})
        properties = self.parameters.get("properties", {})
        for name, value in arguments.items():
            misfit = _misfit(value, properties.get(name, {}), name)
            if misfit is not None:
                return json.dumps({"error": f"wrong arguments: {misfit}"}, ensure_ascii=False)
        try:
            result = self.function(**arguments)
            if inspect.iscoroutine(result):
                result = asyncio.run(result)
            text = result if isinstance(result, str) else json.dumps(result, ensure_ascii=False, default=str)
        except (Exception, SystemExit) as error:
            text = json.dumps({"error": f"{type(error).__name__}: {error}"}, ensure_ascii=False)
        # Names of files may hold lone surrogates, which no request can carry.
        text = text.encode("utf-8", "backslashreplace").decode()
        if len(text) > _MAX_RESULT_CHARACTERS:
            left_out = len(text) - _MAX_RESULT_CHARACTERS
            return f"{text[:_MAX_RESULT_CHARACTERS]}\n[{left_out} more characters were left out]"
        return text


def tool_of(function: Callable[..., Any], name: str | None = None) -> Tool:
    """Return a function as a tool: name, first paragraph of its docstring, and the types of its parameters.

    Lines of the docstring such as `city: where to look` describe a parameter. Raises RequestError for a parameter
    without a type, or with one that JSON cannot carry.
    """
    name = name or function.__name__
    description, about = _read_docstring(inspect.getdoc(function) or "")
    try:
        hints = typing.get_type_hints(function, include_extras=True)
        parameters = inspect.signature(function).parameters
    except Exception as error:  # a hint is any expression, and some callables have no signature
        raise RequestError(
            f"the types of {name} cannot be read",
            value=f"{type(error).__name__}: {error}",
            remedy="give a function written with def, its parameters with types",
        ) from error
    properties: dict[str, Any] = {}
    required = []
    for parameter in parameters.values():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD, parameter.POSITIONAL_ONLY):
            raise RequestError(f"{name}: parameter {parameter.name} has no name to be given by", value=str(parameter))
        if parameter.name not in hints:
            raise RequestError(
                f"{name}: parameter {parameter.name} has no type",
                remedy=f"write {parameter.name}: str, or another type",
            )
        schema = _schema(hints[parameter.name], f"{name}: parameter {parameter.name}")
        if parameter.name in about:
            schema["description"] = about[parameter.name]
        properties[parameter.name] = schema
        if parameter.default is parameter.empty:
            required.append(parameter.name)
    return Tool(name, description, {"type": "object", "properties": properties, "required": required}, function)


def load_tool(spelled: str) -> Tool:
    """Return the tool that `module:function` or `file.py:function` names. Raises RequestError and CheckpointError."""
    module_name, _, function_name = spelled.rpartition(":")
    if not module_name or not function_name.isidentifier():
        raise RequestError("--tool names no function", value=spelled, limit="module:function, or file.py:function")
    try:
        module = _import(module_name)
    except (Exception, SystemExit) as error:  # whatever their code raises
        raise CheckpointError(
            "a tool's module cannot be imported", value=f"{module_name}: {type(error).__name__}: {error}"
        ) from error
    function = getattr(module, function_name, None)
    if not callable(function):
        raise RequestError("a tool's module has no such function", value=spelled)
    return tool_of(function, function_name)


def _import(name: str) -> types.ModuleType:
    if not name.endswith(".py"):
        if "" not in sys.path:
            sys.path.insert(0, "")
        return importlib.import_module(name)
    path = Path(name).expanduser().resolve()
    # Under a name of its own, so that tools in a json.py take nobody's place, and two tools of a file share its state.
    own_name = f"gemwright_tools:{path}"
    if own_name in sys.modules:
        return sys.modules[own_name]
    found = importlib.util.spec_from_file_location(own_name, path)
    if found is None or found.loader is None or not path.is_file():
        raise FileNotFoundError(name)
    module = importlib.util.module_from_spec(found)
    # Dataclasses look their module up by its name.
    sys.modules[own_name] = module
    try:
        found.loader.exec_module(module)
    except BaseException:
        del sys.modules[own_name]
        raise
    return module


def _read_docstring(text: str) -> tuple[str, dict[str, str]]:
    """Return the first paragraph, and what later lines of the form `name: text` say."""
    first, _, rest = text.partition("\n\n")
    about = {}
    for line in rest.splitlines():
        found = _ARGUMENT.match(line)
        if found is not None:
            about[found[1]] = found[2].strip()
    return " ".join(first.split()), about


def _schema(hint: Any, where: str) -> dict[str, Any]:
    if isinstance(hint, type) and hint in _SIMPLE:
        return {"type": _SIMPLE[hint]}
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Annotated:
        schema = _schema(arguments[0], where)
        notes = [note for note in arguments[1:] if isinstance(note, str)]
        return {**schema, "description": notes[0]} if notes else schema
    if origin is Literal:
        kinds = {type(value) for value in arguments}
        if len(kinds) == 1 and (kind := kinds.pop()) in _SIMPLE:
            return {"type": _SIMPLE[kind], "enum": list(arguments)}
    if origin in (typing.Union, types.UnionType):
        others = [argument for argument in arguments if argument is not type(None)]
        if len(others) == 1:
            schema = _schema(others[0], where)
            return {**schema, "type": [schema["type"], "null"]} if isinstance(schema.get("type"), str) else schema
    if hint in (list, tuple, dict) or origin in (list, tuple, dict, Mapping):
        if dict in (hint, origin) or origin is Mapping:
            return {"type": "object"}
        inner = [argument for argument in arguments if argument is not ...]
        return {"type": "array", **({"items": _schema(inner[0], where)} if inner else {})}
    raise RequestError(
        f"{where} has a type that JSON cannot carry",
        value=getattr(hint, "__name__", str(hint)),
        limit="str, int, float, bool, list, dict, Literal, and one of these or None",
    )


_PYTHON_TYPES: dict[str, tuple[type, ...]] = {
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "array": (list,),
    "object": (dict,),
    "null": (type(None),),
}


def _misfit(value: Any, schema: Mapping[str, Any], where: str) -> str | None:
    """Return what keeps a value from a schema that `_schema` made, None where it fits."""
    wanted = schema.get("type")
    kinds: list[str] = wanted if isinstance(wanted, list) else [] if wanted is None else [wanted]
    if kinds and not any(_is_kind(value, kind) for kind in kinds):
        return f"{where} is {json.dumps(value, ensure_ascii=False)}, which is no {' or '.join(kinds)}"
    if value is not None and "enum" in schema and value not in schema["enum"]:
        return f"{where} is {json.dumps(value, ensure_ascii=False)}, and may be {json.dumps(schema['enum'])}"
    if isinstance(value, list) and "items" in schema:
        found = (_misfit(item, schema["items"], f"{where}[{place}]") for place, item in enumerate(value))
        return next((misfit for misfit in found if misfit is not None), None)
    return None


def _is_kind(value: Any, kind: str) -> bool:
    if isinstance(value, bool):
        return kind == "boolean"  # though Python calls it an int
    return isinstance(value, _PYTHON_TYPES[kind])
