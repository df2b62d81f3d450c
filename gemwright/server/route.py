"""What every route does: find the service, read the body, answer in JSON, and tell OpenAPI what it takes."""

from __future__ import annotations

import uuid
from typing import Any, TypeVar

from fastapi import Request
from starlette.responses import JSONResponse

from gemwright.server.fields import Body, parse_body
from gemwright.server.service import Service
from gemwright.server.streaming import EVENT_STREAM, JSON_LINES, dump

Model = TypeVar("Model", bound=Body)


class CompactJson(JSONResponse):
    """JSON without spaces, and as UTF-8."""

    def render(self, content: Any) -> bytes:
        """Return the body."""
        return dump(content).encode()


def request_id_of(request: Request) -> str:
    """Return the id of a request: what its client sent as x-request-id, or one of our own."""
    return str(request.scope.get("gemwright.request_id") or uuid.uuid4().hex)


def service_of(request: Request) -> Service:
    """Return the service behind a request."""
    found: Service = request.app.state.service
    return found


_STREAMS: dict[str, dict[str, Any]] = {
    EVENT_STREAM: {
        "type": "object",
        "description": "One event of the stream; its data is a JSON text, or [DONE] at the end of OpenAI's streams.",
        "required": ["data"],
        "properties": {"data": {"type": "string"}, "event": {"type": "string"}},
    },
    JSON_LINES: {"type": "string", "description": "Lines, each of them a JSON object."},
}
BODIES: dict[str, type[Body]] = {}
"""Bodies that routes document, by name."""


def body_of(model: type[Body], example: dict[str, Any], *, stream: str | None = None) -> dict[str, Any]:
    """Return what a route's OpenAPI entry says of its body, and remember the body for the document's components.

    Bodies are read by fields.parse_body, whatever their content type says, so FastAPI does not know them. `example` is
    a whole body; `stream` is the content type of an answer that comes piece by piece, where a client may ask for one.
    """
    BODIES[model.__name__] = model
    content = {"schema": {"$ref": f"#/components/schemas/{model.__name__}"}, "example": example}
    facts: dict[str, Any] = {
        "requestBody": {"required": True, "content": {"application/json": content}},
        "x-body": model.__name__,
    }
    if stream is not None:
        facts["responses"] = {"200": {"content": {stream: {"schema": _STREAMS[stream]}}}}
    return facts


async def read_body(request: Request, model: type[Model]) -> Model:
    """Return the body of a request, whatever its content type says: curl sends JSON as a form unless told.

    Raises FieldError naming what is wrong.
    """
    return parse_body(model, await request.body())
