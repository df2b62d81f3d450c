"""What balancers, monitors and people ask: is it up, how busy is it, what does it hold."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import PlainTextResponse, Response

from gemwright import __version__
from gemwright.server.metrics import CONTENT_TYPE, ServerMetrics
from gemwright.server.route import CompactJson, service_of

router = APIRouter(tags=["Status"])

_HEALTH: dict[str, Any] = {
    "response_class": Response,
    "responses": {
        200: {"description": "Requests are taken; the body is empty."},
        503: {
            "description": "Requests are not taken.",
            "content": {
                "application/json": {
                    "schema": {
                        "type": "object",
                        "required": ["state", "problem"],
                        "properties": {
                            "state": {"enum": ["loading", "ready", "draining", "failed"]},
                            "problem": {"type": ["string", "null"]},
                        },
                    }
                }
            },
        },
    },
}


@router.get("/health", **_HEALTH)
async def health(request: Request) -> Response:
    """200 while requests are taken; 503 while the model is loaded, when it failed, and when the server goes down."""
    service = service_of(request)
    if service.is_healthy:
        return Response(status_code=200)
    engine = service.loaded_engine
    problem = service.failure or (engine.failure.what if engine is not None and engine.failure is not None else None)
    return CompactJson({"state": service.state, "problem": problem}, status_code=503)


@router.get("/ready", **_HEALTH)
async def ready(request: Request) -> Response:
    """The same as /health, for those who tell readiness from life."""
    return await health(request)


@router.get("/ping", **_HEALTH)
@router.post("/ping", **_HEALTH)
async def ping(request: Request) -> Response:
    """The same as /health, under the name that SageMaker asks for."""
    return await health(request)


@router.get("/load")
async def load(request: Request) -> dict[str, Any]:
    """How many requests are being answered."""
    service = service_of(request)
    engine = service.loaded_engine
    return {
        "server_load": len(service.live),
        "num_running": 0 if engine is None else engine.num_running,
        "num_waiting": 0 if engine is None else engine.num_waiting,
    }


@router.get("/version")
async def version() -> dict[str, str]:
    """The version of Gemwright."""
    return {"version": __version__}


@router.get("/metrics", response_class=PlainTextResponse)
async def metrics(request: Request) -> Response:
    """Metrics for Prometheus."""
    found: ServerMetrics = request.app.state.metrics
    return Response(found.render(), media_type=CONTENT_TYPE)
