"""The OpenAPI document is true: whatever schemathesis makes of it is answered as the document says, by a live server.

Bodies are drawn from the schemas, bent until they break them, and mixed field by field out of the document's examples.
What the document cannot say (two fields that contradict each other, say) is refused too, so valid bodies may get 400.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import httpx2
import jsonschema
import pytest
import requests
import schemathesis
from fastapi.routing import APIRoute
from schemathesis.checks import (
    content_type_conformance,
    negative_data_rejection,
    not_a_server_error,
    response_schema_conformance,
    status_code_conformance,
    unsupported_method,
)
from schemathesis.config import SchemathesisConfig

from gemwright.server import page
from gemwright.server.app import make_app
from gemwright.server.service import Service
from gemwright.server.settings import ServerSettings
from gemwright.testing import write_tiny_checkpoint
from gemwright.testing.scripted import answers, scripted_llm
from tests.serving import Served, serving

SETTINGS = ServerSettings(api_keys=("secret",), max_answers=4, max_body_bytes=1 << 20)
KEY = {"authorization": "Bearer secret"}
CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
    negative_data_rejection,
    unsupported_method,
]
APP = make_app(Service(SETTINGS, "gemma"))
DOCUMENT: dict[str, Any] = APP.openapi()
OPERATIONS = {
    f"{method.upper()} {path}": operation
    for path, methods in DOCUMENT["paths"].items()
    for method, operation in methods.items()
}
BODIES = {name: operation for name, operation in OPERATIONS.items() if "requestBody" in operation}

# Their fields are those of /v1/completions, /api/chat and /v1/messages, but for a few.
SHARED = ("/v1/chat/completions", "/api/generate", "/v1/messages/count_tokens")


def schema(num_examples: int, *, without_coverage: tuple[str, ...] = ()) -> Any:
    """Return what makes requests. 501 is what routes of other servers answer, as the document says."""
    config: dict[str, Any] = {
        "generation": {"deterministic": True, "max-examples": num_examples, "with-security-parameters": False},
        "checks": {"not_a_server_error": {"expected-statuses": ["2xx", "3xx", "4xx", "501"]}},
        "operations": [{"include-path": path, "phases": {"coverage": {"enabled": False}}} for path in without_coverage],
    }
    return schemathesis.openapi.from_dict(DOCUMENT, config=SchemathesisConfig.from_dict(config))


FEW = schema(10, without_coverage=SHARED)
MANY = schema(50)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    path = tmp_path_factory.mktemp("schemathesis")
    folder = write_tiny_checkpoint("gemma4-e", path, overrides={"max_position_embeddings": 256})
    llm = scripted_llm(folder, answers({}, "A"), threads=1, max_model_len=256, chat_template="gemma4")
    with serving(llm, SETTINGS) as found:
        yield found


@pytest.fixture(scope="module")
def session() -> Iterator[requests.Session]:
    with requests.Session() as found:
        yield found


@FEW.parametrize()  # type: ignore[untyped-decorator]
def test_answers_are_as_documented(case: schemathesis.Case, server: Served, session: requests.Session) -> None:
    case.call_and_validate(base_url=server.url, session=session, headers=KEY, checks=CHECKS)


@pytest.mark.slow
@MANY.parametrize()  # type: ignore[untyped-decorator]
def test_many_answers_are_as_documented(case: schemathesis.Case, server: Served, session: requests.Session) -> None:
    case.call_and_validate(base_url=server.url, session=session, headers=KEY, checks=CHECKS)


def test_the_document_is_valid_and_has_every_route() -> None:
    FEW.validate()
    routes = {
        f"{method} {route.path.replace(':path', '')}"
        for route in all_routes(APP.routes)
        for method in route.methods
        if not any(route.path == other.path for other in all_routes(page.router.routes))
    }
    assert len(routes) > 30
    assert routes == OPERATIONS.keys()


def all_routes(routes: Any) -> list[APIRoute]:
    """Return the routes of an application, those of the routers that it includes too."""
    found: list[APIRoute] = []
    for route in routes:
        if isinstance(route, APIRoute):
            found.append(route)
        elif hasattr(route, "original_router"):
            found += all_routes(route.original_router.routes)
    return found


def test_every_example_is_answered(server: Served, session: requests.Session) -> None:
    for name, operation in BODIES.items():
        content = operation["requestBody"]["content"]["application/json"]
        found = session.post(server.url + name.partition(" ")[2], json=content["example"], headers=KEY, timeout=60)
        assert found.status_code == 200, (name, found.text)


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[]", b"null", b'"text"', b'{"model": NaN}', b"\xff", b'{"no_such_field": 1}', b"[" * 99999]
)
def test_what_is_no_body_is_rejected(server: Served, session: requests.Session, content: bytes) -> None:
    for name in BODIES:
        found = session.post(server.url + name.partition(" ")[2], data=content, headers=KEY, timeout=60)
        assert found.status_code == 400, (name, found.text)
        assert_documented(name, found.status_code, found.json())


REFUSALS = {
    401: ({}, b""),
    413: (KEY, b" " * SETTINGS.max_body_bytes),
    503: (KEY, b""),
}
"""By status: the headers, and what is sent behind the body."""


@pytest.mark.parametrize(
    ("name", "status"),
    [(name, status) for name in OPERATIONS for status in REFUSALS if str(status) in OPERATIONS[name]["responses"]],
)
def test_refusals_at_the_door_are_documented(name: str, status: int) -> None:
    """A server whose model is not loaded, asked with the document's example."""
    method, _, path = name.partition(" ")
    operation = OPERATIONS[name]
    headers, extra = REFUSALS[status]

    async def main() -> httpx2.Response:
        example: Any = {}
        if "requestBody" in operation:
            example = operation["requestBody"]["content"]["application/json"]["example"]
        content = httpx2.Request(method, "http://test", json=example).content + extra
        transport = httpx2.ASGITransport(APP)
        async with httpx2.AsyncClient(transport=transport, base_url="http://test") as client:
            return await client.request(method, path, content=content, headers=headers)

    found = asyncio.run(main())
    assert found.status_code == status
    if method != "HEAD":
        assert_documented(name, status, found.json())


def assert_documented(name: str, status: int, body: Any) -> None:
    answer = OPERATIONS[name]["responses"][str(status)]["content"]["application/json"]["schema"]
    jsonschema.validate(body, {**answer, "components": DOCUMENT["components"]})
