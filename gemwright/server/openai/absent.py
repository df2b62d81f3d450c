"""Routes of OpenAI that this server does not have, each saying why."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.responses import Response

from gemwright.errors import UnsupportedError

router = APIRouter(tags=["OpenAI"])


@router.post("/v1/embeddings", status_code=400)
async def embeddings() -> Response:
    """Refuse: the models that are served here write text."""
    raise no_embeddings()


def no_embeddings() -> UnsupportedError:
    """Return the error of asking for embeddings."""
    return UnsupportedError(
        "the model that is served here writes text and makes no embeddings",
        remedy="ask a server with an embedding model, such as EmbeddingGemma",
    )
