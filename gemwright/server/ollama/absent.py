"""Routes of Ollama that this server does not have, each saying why."""

from __future__ import annotations

import re

from fastapi import APIRouter
from starlette.responses import Response

from gemwright.server.errors import NotOfferedError
from gemwright.server.openai.absent import no_embeddings

router = APIRouter(tags=["Ollama"])

_MANAGEMENT = (
    ("POST", "/api/pull", "run `gemwright pull MODEL`, then `gemwright serve MODEL`"),
    ("POST", "/api/push", "models are published with the hub's own tools"),
    ("POST", "/api/create", "start the server with the model and settings you want"),
    ("POST", "/api/copy", "start the server with --served-model-name"),
    ("DELETE", "/api/delete", "run `gemwright rm MODEL`"),
    ("POST", "/api/blobs/{digest}", "files are put where `gemwright serve` is started"),
    ("HEAD", "/api/blobs/{digest}", "files are put where `gemwright serve` is started"),
)


@router.post("/api/embed", status_code=400)
@router.post("/api/embeddings", status_code=400)
async def embed() -> Response:
    """Refuse: the models that are served here write text."""
    raise no_embeddings()


def _refuse(method: str, path: str, remedy: str) -> None:
    async def refuse() -> Response:
        """Refuse: models are managed on the command line."""
        raise NotOfferedError(f"{method} {path}: this server does not manage models", remedy=remedy)

    name = f"{method.lower()}_{path.split('/')[2]}"
    parameters = [
        {"name": word, "in": "path", "required": True, "schema": {"type": "string"}}
        for word in re.findall(r"{(\w+)}", path)
    ]
    router.add_api_route(
        path,
        refuse,
        methods=[method],
        name=name,
        status_code=501,
        openapi_extra={"parameters": parameters} if parameters else None,
    )


for _route in _MANAGEMENT:
    _refuse(*_route)
