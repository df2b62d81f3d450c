"""How the fields of request bodies are declared: honored, ignored or refused, each with a word on it.

docs/api.md is written from these declarations. Unknown fields are refused by name; refused ones too, unless they ask
for what happens anyway.
"""

from __future__ import annotations

import functools
import json
import math
from typing import Any, Literal, Self, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from gemwright.server.errors import FieldError

Handling = Literal["honored", "ignored", "refused"]

_SHOWN_CHARACTERS = 80


def honored(default: Any = None, note: str = "", **facts: Any) -> Any:
    """Return a field that does what it says; `default` ... makes it required."""
    return Field(default, description=note or None, json_schema_extra={"x-handling": "honored"}, **facts)


def ignored(note: str, **facts: Any) -> Any:
    """Return a field that is taken and changes nothing, because it cannot change an answer."""
    return Field(None, description=note, json_schema_extra={"x-handling": "ignored"}, **facts)


def refused(note: str, *harmless: Any, **facts: Any) -> Any:
    """Return a field that would change the answer in a way this server cannot; null and `harmless` values pass."""
    extra: dict[str, Any] = {"x-handling": "refused", "x-harmless": list(harmless)}
    return Field(None, description=note, json_schema_extra=extra, **facts)


class _RefusedError(ValueError):
    """A field of a part is refused."""

    def __init__(self, field: str, note: str, value: str) -> None:
        super().__init__(note)
        self.field = field
        self.note = note
        self.value = value


class Part(BaseModel):
    """An object inside a body. Unknown fields are refused."""

    model_config = ConfigDict(extra="forbid", strict=True)

    @model_validator(mode="after")
    def _refuse(self) -> Self:
        for name, shown_name, note, harmless in _refused_fields(type(self)):
            value = getattr(self, name)
            if value is None or any(type(value) is type(other) and value == other for other in harmless):
                continue
            # Through pydantic, which knows the path to this part.
            raise _RefusedError(shown_name, note, _shown(value))
        return self


@functools.cache
def _refused_fields(model: type[Part]) -> tuple[tuple[str, str, str, tuple[Any, ...]], ...]:
    """Return the fields of a part that are refused: attribute, name, note and harmless values. Found once, not for each
    body."""
    found: list[tuple[str, str, str, tuple[Any, ...]]] = []
    for name, field in model.model_fields.items():
        extra: Any = field.json_schema_extra
        if isinstance(extra, dict) and extra.get("x-handling") == "refused":
            note = field.description or "is not supported"
            found.append((name, field.alias or name, note, tuple(extra["x-harmless"])))
    return tuple(found)


class Body(Part):
    """A request body."""


Model = TypeVar("Model", bound=Body)


def json_schema(model: type[Part]) -> dict[str, Any]:
    """Return the JSON schema of a part, other parts under `$defs`, with references into an OpenAPI document."""
    found = model.model_json_schema(ref_template="#/components/schemas/{model}")
    _spell_bounds(found)
    return found


_BOUNDS = {"ge": "minimum", "gt": "exclusiveMinimum", "le": "maximum", "lt": "exclusiveMaximum"}


def _spell_bounds(schema: Any) -> None:
    """Give the bounds of a union their names in JSON Schema: pydantic leaves them as its own."""
    if isinstance(schema, list):
        for item in schema:
            _spell_bounds(item)
    elif isinstance(schema, dict):
        if "anyOf" in schema:
            schema.update({word: schema.pop(own) for own, word in _BOUNDS.items() if own in schema})
        for item in schema.values():
            _spell_bounds(item)


def parse_body(model: type[Model], content: bytes) -> Model:
    """Return a body from its bytes. Raises FieldError naming the field that is wrong, `body` for what is no JSON."""
    value = parse_json(content)
    if not isinstance(value, dict):
        raise FieldError("body", "is no JSON object", value=_shown(value))
    try:
        return model.model_validate(value)
    except ValidationError as error:
        raise _field_error(error) from None
    except RecursionError:
        raise FieldError("body", "is nested too deeply") from None


PartModel = TypeVar("PartModel", bound=Part)


def parse_part(model: type[PartModel], value: Any, where: str) -> PartModel:
    """Return an object inside a body, read apart because its kind is known only by looking at it. Raises FieldError
    naming what is wrong by its path, which begins with `where`."""
    if not isinstance(value, dict):
        raise FieldError(where, "is no object", value=_shown(value))
    try:
        return model.model_validate(value)
    except ValidationError as error:
        raise _field_error(error, where) from None


def parse_json(content: bytes) -> Any:
    """Return the value of a JSON text. Raises FieldError for invalid UTF-8 or JSON, NaN, Infinity and endless depth."""
    try:
        return json.loads(content.decode("utf-8"), parse_constant=_no_constant, parse_float=_finite)
    except UnicodeDecodeError as error:
        raise FieldError("body", "is not UTF-8", value=f"byte {error.start}") from None
    except RecursionError:
        raise FieldError("body", "is nested too deeply") from None
    except ValueError as error:
        raise FieldError("body", "is no JSON", value=str(error)[:200], remedy="send a JSON object") from None


_TYPE_WORDS = frozenset({"int", "float", "str", "bool"})
"""What pydantic puts into a path for the members of a union."""


def _no_constant(word: str) -> Any:
    raise ValueError(f"{word} is no number in JSON")


def _finite(text: str) -> float:
    value = float(text)
    if math.isinf(value):
        raise ValueError(f"{text[:40]} is beyond the largest number")
    return value


def _field_error(error: ValidationError, where: str | None = None) -> FieldError:
    """Return the first thing that is wrong, by the field that is nearest to it; `where` is the path to the part."""
    # In a union every member complains: the longest path is that of the member that was meant.
    first = max(error.errors(include_url=False), key=lambda entry: len(entry["loc"]))
    parts = [str(part) for part in first["loc"] if part not in _TYPE_WORDS and "[" not in str(part)]
    path = ".".join(parts if where is None else [where, *parts])
    cause = first["ctx"]["error"] if first["type"] == "value_error" else None
    if isinstance(cause, _RefusedError):
        path = f"{path}.{cause.field}" if path else cause.field
        return FieldError(path, cause.note, value=cause.value, remedy="leave it out")
    if first["type"] == "extra_forbidden":
        return FieldError(path, "is no field that this server knows", remedy="leave it out")
    if first["type"] == "missing":
        return FieldError(path, "is missing", remedy="send it")
    return FieldError(path or "body", first["msg"], value=_shown(first["input"]))


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}..."
