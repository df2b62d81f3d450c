"""The OpenAPI document at /openapi.json: what FastAPI finds in the routes, and what it cannot see there.

Bodies are read by fields.parse_body, and errors come from one place for all routes; both are written in here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from fastapi import FastAPI

from gemwright.server.door import is_open
from gemwright.server.errors import Style, style_of
from gemwright.server.fields import json_schema
from gemwright.server.route import BODIES
from gemwright.server.settings import ServerSettings

Schema = dict[str, Any]

_TEXT: Final[Schema] = {"type": "string"}
_MAYBE: Final[Schema] = {"type": ["string", "null"]}

ERRORS: Final[dict[Style, tuple[str, Schema]]] = {
    "openai": (
        "OpenAIError",
        {
            "type": "object",
            "description": "What went wrong, as clients of OpenAI read it.",
            "required": ["error"],
            "properties": {
                "error": {
                    "type": "object",
                    "required": ["message", "type", "param", "code"],
                    "properties": {"message": _TEXT, "type": _TEXT, "param": _MAYBE, "code": _MAYBE},
                }
            },
        },
    ),
    "anthropic": (
        "AnthropicError",
        {
            "type": "object",
            "description": "What went wrong, as clients of Anthropic read it.",
            "required": ["type", "error"],
            "properties": {
                "type": {"const": "error"},
                "error": {
                    "type": "object",
                    "required": ["type", "message"],
                    "properties": {"type": _TEXT, "message": _TEXT, "details": {"type": "object"}},
                },
            },
        },
    ),
    "ollama": (
        "OllamaError",
        {
            "type": "object",
            "description": "What went wrong, as clients of Ollama read it.",
            "required": ["error"],
            "properties": {"error": _TEXT},
        },
    ),
}
"""The name and the schema of each shape of errors."""

MEANINGS: Final = {
    "400": "The request is wrong, or asks for what this server cannot do: the message names the field.",
    "401": "No key came with the request, or a wrong one.",
    "404": "No such model, file, response or route.",
    "413": "The body is larger than --max-body-bytes.",
    "429": "More requests wait than --max-num-queued-reqs; Retry-After says when to come again.",
    "500": "The engine failed; the log has it under the request's id.",
    "501": "Another server's route, which this one does not have.",
    "503": "The model is being loaded, or the server is going down; Retry-After says when to come again.",
    "504": "The answer took longer than --request-timeout.",
}
"""What a status says, on every route that answers with it."""

_SCHEMES: Final = {
    "bearer": {"type": "http", "scheme": "bearer", "description": "as clients of OpenAI send keys"},
    "x-api-key": {"type": "apiKey", "in": "header", "name": "x-api-key", "description": "as clients of Anthropic do"},
}

_USUAL: Final = "Successful Response"
"""What FastAPI says of a route's own status."""

_NEEDS_MODEL: Final = frozenset({"/v1/ledger"})
"""Routes without a body that cannot answer before the model is loaded."""


def document(app: FastAPI, settings: ServerSettings) -> None:
    """Complete the application's own document: bodies, errors, keys."""
    make: Callable[[], Schema] = app.openapi

    def openapi() -> Schema:
        if app.openapi_schema is None:
            app.openapi_schema = _completed(make(), settings)
        return app.openapi_schema

    app.openapi = openapi  # type: ignore[method-assign]  # the way FastAPI documents


def _completed(found: Schema, settings: ServerSettings) -> Schema:
    components = found.setdefault("components", {})
    schemas = components.setdefault("schemas", {})
    for name, model in BODIES.items():
        own = json_schema(model)
        schemas.update(own.pop("$defs", {}))
        schemas[name] = own
    # Of FastAPI's own: this server's errors have other shapes.
    for name in ("HTTPValidationError", "ValidationError"):
        schemas.pop(name, None)
    schemas.update(dict(ERRORS.values()))
    components["securitySchemes"] = _SCHEMES
    for path, methods in found["paths"].items():
        for operation in methods.values():
            operation["security"] = _security(path, settings)
            _add_errors(operation["responses"], path, operation, bool(operation["security"]))
    return found


def _security(path: str, settings: ServerSettings) -> list[dict[str, list[str]]]:
    return [{name: []} for name in _SCHEMES] if settings.api_keys and not is_open(path) else []


def _add_errors(responses: Schema, path: str, operation: Schema, has_key: bool) -> None:
    responses.pop("422", None)
    statuses = {"401"} if has_key else set()
    content = responses.get("200", {}).get("content", {})
    if "requestBody" in operation:
        statuses |= {"400", "404", "413", "503"}
        if len(content) > 1:  # a stream, or whole
            statuses |= {"429", "500", "504"}
    elif "{" in path and "200" in responses:
        statuses.add("404")
    if path in _NEEDS_MODEL:
        statuses.add("503")
    name, _ = ERRORS[style_of(path)]
    error = {"application/json": {"schema": {"$ref": f"#/components/schemas/{name}"}}}
    # Routes that only refuse have the status of it where others have 200.
    statuses |= {status for status in responses if status in MEANINGS and responses[status]["description"] == _USUAL}
    for status in sorted(statuses):
        responses[status] = {"description": MEANINGS[status], "content": error}
