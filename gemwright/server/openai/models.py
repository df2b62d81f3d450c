"""GET /v1/models and /v1/models/{id}."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request

from gemwright.server.route import service_of
from gemwright.server.service import Service

router = APIRouter()


@router.get("/v1/models", tags=["OpenAI"])
async def list_models(request: Request) -> dict[str, Any]:
    """List the names of the model that is served."""
    service = service_of(request)
    return {"object": "list", "data": [_model(service, name) for name in service.names]}


@router.get("/v1/models/{name:path}", tags=["OpenAI"])
async def show_model(request: Request, name: str) -> dict[str, Any]:
    """Describe the model under one of its names."""
    service = service_of(request)
    return _model(service, service.check_model(name))


def _model(service: Service, name: str) -> dict[str, Any]:
    engine = service.loaded_engine
    return {
        "id": name,
        "object": "model",
        "created": service.created,
        "owned_by": "gemwright",
        "root": service.model,
        "parent": None,
        "max_model_len": None if engine is None else engine.llm.engine.max_model_len,
    }
