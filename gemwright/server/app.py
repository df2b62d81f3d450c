"""The application: routes, errors in their clients' shapes, and what every request passes through."""

from __future__ import annotations

import logging

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.responses import Response

from gemwright import __version__
from gemwright.errors import GemwrightError
from gemwright.server.door import Door
from gemwright.server.errors import BusyError, NoRouteError, error_body, headers_of, status_of, style_of
from gemwright.server.metrics import ServerMetrics
from gemwright.server.route import CompactJson, request_id_of
from gemwright.server.service import Service
from gemwright.server.streaming import ClientGoneError

LOG = logging.getLogger("gemwright.server")

CLIENT_CLOSED = 499
"""What servers log for a request whose client went away; nobody receives it."""


def make_app(service: Service) -> FastAPI:
    """Return the application that serves a model; `service` may get its engine later."""
    from gemwright.server import ledger, openapi, page, status
    from gemwright.server.anthropic import messages
    from gemwright.server.ollama import absent, answers
    from gemwright.server.ollama import models as tags
    from gemwright.server.openai import absent as absent_openai
    from gemwright.server.openai import chat, completions, models, responses, tokens

    app = FastAPI(
        title="Gemwright",
        version=__version__,
        description="A Gemma model behind the routes of OpenAI, Anthropic and Ollama.",
        default_response_class=CompactJson,
        docs_url=None,
        redoc_url=None,
    )
    app.state.service = service
    app.state.metrics = ServerMetrics(service)
    for router in (
        chat.router,
        completions.router,
        responses.router,
        models.router,
        tokens.router,
        absent_openai.router,
        messages.router,
        answers.router,
        tags.router,
        absent.router,
        ledger.router,
        page.router,
        status.router,
    ):
        app.include_router(router)
    app.add_exception_handler(GemwrightError, _answer_error)
    app.add_exception_handler(Exception, _answer_error)
    app.add_exception_handler(HTTPException, _answer_http_error)
    app.add_exception_handler(RequestValidationError, _answer_validation_error)
    app.add_exception_handler(ClientGoneError, _answer_nobody)
    openapi.document(app, service.settings)
    app.add_middleware(Door, settings=service.settings)
    if service.settings.cors_origins:
        # Outside the door, so that a page is told of a refusal too.
        app.add_middleware(
            CORSMiddleware,
            allow_origins=list(service.settings.cors_origins),
            allow_methods=["GET", "POST", "OPTIONS"],
            allow_headers=["*"],
            expose_headers=["x-request-id"],
        )
    return app


async def _answer_error(request: Request, error: Exception) -> Response:
    if isinstance(error, BusyError):
        request.app.state.metrics.reject("queue_full")
    if status_of(error) >= 500 and not isinstance(error, GemwrightError):
        LOG.error("request %s failed", request_id_of(request), exc_info=error)
    return CompactJson(
        error_body(error, style_of(request.url.path)), status_code=status_of(error), headers=headers_of(error)
    )


async def _answer_http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    if error.status_code == 404:
        found: GemwrightError = NoRouteError("no such route", value=request.url.path[:200])
    else:
        found = GemwrightError(str(error.detail), remedy="docs/api.md lists the routes")
        found.http_status = error.status_code
    return CompactJson(
        error_body(found, style_of(request.url.path)), status_code=error.status_code, headers=error.headers
    )


async def _answer_validation_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    found = GemwrightError(f"{'.'.join(map(str, first['loc']))}: {first['msg']}", remedy="change the request")
    found.http_status = 400
    return CompactJson(error_body(found, style_of(request.url.path)), status_code=400)


async def _answer_nobody(request: Request, error: Exception) -> Response:
    return Response(status_code=CLIENT_CLOSED)
