"""What passes the door and what does not: keys, limits, time, ids, logs, CORS."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from gemwright import LLM
from gemwright.errors import RequestError
from gemwright.server.app import make_app
from gemwright.server.logs import JsonLines, log_answers
from gemwright.server.service import Service
from gemwright.server.settings import ServerSettings
from gemwright.testing.scripted import answers, scripted_llm
from tests.operation import (
    CHAT,
    MESSAGES,
    OLLAMA,
    asked,
    error_of,
    quick_model,
    samples,
    slow_model,
    until,
    write_folder,
)
from tests.serving import Served, serving

OPEN = {"/", "/health", "/ready", "/ping", "/metrics", "/favicon.ico", "/page/{name}"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_folder(tmp_path_factory.mktemp("operation"))


@pytest.fixture(scope="module")
def llm(folder: Path) -> LLM:
    return quick_model(folder)


@pytest.fixture(scope="module")
def slow_llm(folder: Path) -> LLM:
    return slow_model(folder)


@pytest.fixture(scope="module")
def served(llm: LLM) -> Iterator[Served]:
    with serving(llm, ServerSettings(api_keys=("first", "schlüssel"), max_body_bytes=2000)) as server:
        yield server


@pytest.fixture(scope="module")
def client(served: Served) -> Iterator[httpx2.Client]:
    with httpx2.Client(base_url=served.url, timeout=60) as found:
        yield found


FIRST = {"authorization": "Bearer first"}


@contextlib.contextmanager
def logged() -> Iterator[list[str]]:
    """The lines that a server would write."""
    lines: list[str] = []

    class Keep(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            lines.append(self.format(record))

    handler, logger = Keep(), logging.getLogger("gemwright")
    handler.setFormatter(JsonLines())
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        yield lines
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)


# Keys.


def test_every_route_but_those_of_monitors_and_the_page_wants_a_key(served: Served, client: httpx2.Client) -> None:
    schema = client.get("/openapi.json", headers=FIRST).json()["paths"]
    found = {(path, method.upper()) for path, methods in schema.items() for method in methods}
    assert {CHAT, MESSAGES, OLLAMA, "/v1/models", "/health", "/metrics"} <= {path for path, _ in found}
    found |= {("/openapi.json", "GET"), ("/no/such/route", "GET"), ("/health/", "GET"), ("/metrics/x", "GET")}
    for path, method in found:
        response = client.request(method, path.replace("{name}", "x"))
        assert (response.status_code == 401) is (path not in OPEN), (method, path, response.status_code)


@pytest.mark.parametrize(
    "headers",
    [
        {"authorization": "Bearer first"},
        {"authorization": "bearer   first"},
        {"x-api-key": "first"},
        {"authorization": "Basic eDp5", "x-api-key": "first"},
        {"authorization": "Bearer schlüssel".encode()},
        {"x-api-key": "schlüssel".encode()},
    ],
)
def test_any_of_the_keys_is_taken_in_either_header(client: httpx2.Client, headers: dict[str, Any]) -> None:
    assert client.get("/v1/models", headers=headers).status_code == 200


@pytest.mark.parametrize("path", [CHAT, MESSAGES, OLLAMA])
@pytest.mark.parametrize(
    ("headers", "message"),
    [
        ({}, "no API key came"),
        ({"authorization": "first"}, "no API key came"),
        ({"authorization": "Basic first"}, "no API key came"),
        ({"authorization": "Bearer"}, "the API key is wrong"),
        ({"authorization": "Bearer firs"}, "the API key is wrong"),
        ({"authorization": "Bearer first2"}, "the API key is wrong"),
        ({"authorization": "Bearer wrong", "x-api-key": "first"}, "the API key is wrong"),
        ({"x-api-key": "FIRST"}, "the API key is wrong"),
        ({"x-api-key": b"\xff\xfe"}, "the API key is wrong"),
    ],
)
def test_a_wrong_key_is_refused_in_the_shape_of_each_client(
    client: httpx2.Client, path: str, headers: dict[str, Any], message: str
) -> None:
    response = client.post(path, json=asked(path), headers=headers)
    assert response.status_code == 401
    assert response.headers["www-authenticate"] == "Bearer"
    assert message in error_of(path, response)
    if path == CHAT:
        assert response.json()["error"]["code"] == "invalid_api_key"
    if path == MESSAGES:
        assert response.json()["error"]["type"] == "authentication_error"


def test_without_keys_everybody_is_let_in(llm: LLM) -> None:
    with serving(llm) as server, httpx2.Client(base_url=server.url) as client:
        assert client.get("/v1/models").status_code == 200
        assert client.get("/v1/models", headers={"x-api-key": "any"}).status_code == 200


# Limits.


@pytest.mark.parametrize("path", [CHAT, MESSAGES, OLLAMA])
@pytest.mark.parametrize("says_length", [True, False])
def test_a_body_over_the_limit_is_refused_whether_or_not_it_says_its_length(
    client: httpx2.Client, path: str, says_length: bool
) -> None:
    def of_size(num_bytes: int) -> Any:
        content = json.dumps(asked(path)).encode()
        content += b" " * (num_bytes - len(content))
        return content if says_length else iter([content[:100], content[100:]])

    assert client.post(path, content=of_size(2000), headers=FIRST).status_code == 200
    response = client.post(path, content=of_size(2001), headers=FIRST)
    assert response.status_code == 413
    assert "limit: 2000 bytes" in error_of(path, response)


@pytest.mark.parametrize("path", [CHAT, MESSAGES, OLLAMA])
def test_a_full_queue_refuses_and_says_when_to_come_again(slow_llm: LLM, path: str) -> None:
    with serving(slow_llm, ServerSettings(max_num_queued_requests=1)) as server:
        engine = server.engine
        with httpx2.Client(base_url=server.url, timeout=60) as client, contextlib.ExitStack() as stack:
            for num_here in (1, 2):
                stack.enter_context(client.stream("POST", path, json={**asked(path, "long"), "stream": True}))
                until(lambda: engine.num_running + engine.num_waiting == num_here)  # noqa: B023  # called at once
                if num_here == 1:
                    until(lambda: engine.num_running == 1)
            response = client.post(path, json=asked(path))
            assert response.status_code == 429
            assert response.headers["retry-after"] == "1"
            assert "limit: 1 waiting" in error_of(path, response)
            metrics = samples(client)
            assert metrics["vllm:num_requests_running"] == metrics["vllm:num_requests_waiting"] == 1
            assert metrics["vllm:admission_rejections_total", "queue_full"] == 1
        until(lambda: engine.num_running + engine.num_waiting == 0)


@pytest.mark.parametrize("path", [CHAT, MESSAGES, OLLAMA])
def test_an_answer_that_takes_too_long_is_cut_off(slow_llm: LLM, path: str) -> None:
    """Whole answers get 504; a stream ends with the error, since its status has gone out."""
    with serving(slow_llm, ServerSettings(request_timeout_s=0.2)) as server:
        with httpx2.Client(base_url=server.url, timeout=60) as client:
            response = client.post(path, json=asked(path, "long"))
            assert response.status_code == 504
            assert "limit: 0.2 seconds" in error_of(path, response)
            with client.stream("POST", path, json={**asked(path, "long"), "stream": True}) as stream:
                assert stream.status_code == 200
                assert "the answer took too long" in "".join(stream.iter_text())
            until(lambda: not slow_llm.core.scheduler.has_work)
            assert slow_llm.core.blocks.request_ids == ()
            assert samples(client)["vllm:request_success_total", "error"] == 2
        assert not server.service.live


# Ids and logs.


def test_the_id_of_a_request_comes_back_and_is_in_the_log(client: httpx2.Client) -> None:
    cases: list[tuple[str, dict[str, Any], dict[str, str], int]] = [
        (CHAT, asked(CHAT), FIRST, 200),
        (CHAT, asked(CHAT), {}, 401),
        (CHAT, asked(CHAT, "x" * 3000), FIRST, 413),
        (CHAT, {"messages": []}, FIRST, 400),
        (CHAT, asked(CHAT, model="other"), FIRST, 404),
        ("/no/such/route", {}, FIRST, 404),
    ]
    with logged() as lines:
        for number, (path, content, headers, status) in enumerate(cases):
            response = client.post(path, json=content, headers={**headers, "x-request-id": f"mine:{number}"})
            assert response.status_code == status
            assert response.headers["x-request-id"] == response.headers["request-id"] == f"mine:{number}"
        until(lambda: sum("mine:" in line for line in lines) >= len(cases))
    records = [json.loads(line) for line in lines if "mine:" in line]
    accesses = [record for record in records if record["message"] == "request"]
    assert [(record["request_id"], record["path"], record["status"]) for record in accesses] == [
        (f"mine:{number}", path, status) for number, (path, _, _, status) in enumerate(cases)
    ]
    assert all(record["method"] == "POST" and record["seconds"] >= 0 for record in accesses)


@pytest.mark.parametrize("given", [None, "", "a b", "x" * 129, 'a"b', "ümlaut".encode()])
def test_an_id_that_cannot_be_kept_is_replaced(client: httpx2.Client, given: Any) -> None:
    headers = {} if given is None else {"x-request-id": given}
    first, second = (client.get("/health", headers=headers).headers["x-request-id"] for _ in range(2))
    assert first != second
    assert len(first) == len(second) == 32


def test_an_error_that_nobody_foresaw_is_told_by_its_id_and_by_nothing_else(llm: LLM) -> None:
    service = Service(ServerSettings(cors_origins=("https://page.example",)), "gemma")
    app = make_app(service)

    @app.get("/broken")
    async def broken() -> None:
        raise KeyError("inner secret")

    async def main() -> httpx2.Response:
        async with httpx2.AsyncClient(transport=httpx2.ASGITransport(app), base_url="http://test") as client:
            return await client.get("/broken", headers={"x-request-id": "mine", "origin": "https://page.example"})

    with logged() as lines:
        response = asyncio.run(main())
    assert response.status_code == 500
    assert response.headers["x-request-id"] == "mine"
    assert response.headers["access-control-allow-origin"] == "https://page.example"
    assert "secret" not in response.text
    records = [json.loads(line) for line in lines if "mine" in line]
    assert [record["level"] for record in records] == ["error", "info"]
    assert "request mine failed" in records[0]["message"]
    assert "inner secret" in records[0]["traceback"]
    assert records[1]["status"] == 500


SECRET = "nobody-may-read-this"


@pytest.mark.parametrize("log_prompts", [False, True])
def test_the_text_of_prompts_and_answers_is_logged_only_where_it_is_wanted(folder: Path, log_prompts: bool) -> None:
    llm = scripted_llm(folder, answers({SECRET: f"You said {SECRET}."}), threads=1, chat_template="gemma4")
    with logged() as lines, serving(llm, ServerSettings(log_prompts=log_prompts)) as server:
        log_answers(server.service)
        with httpx2.Client(base_url=server.url, timeout=60) as client:
            for path in (CHAT, MESSAGES, OLLAMA):
                assert client.post(path, json=asked(path, SECRET, max_tokens=50)).status_code == 200
            for wrong in (
                {"messages": [{"role": SECRET, "content": SECRET}]},
                {"messages": SECRET},
                {"messages": [], SECRET: SECRET},
                {"messages": [{"role": "user", "content": SECRET}], "temperature": SECRET},
                {"messages": [{"role": "user", "content": SECRET * 1000}]},
                SECRET,
            ):
                assert client.post(CHAT, json=wrong).status_code == 400
            assert client.post(f"/v1/models?key={SECRET}").status_code == 405
        until(lambda: sum('"request"' in line for line in lines) == 10)
    told = [line for line in lines if SECRET in line]
    assert len(told) == (3 if log_prompts else 0)
    for line in told:
        record = json.loads(line)
        assert record["message"] == "answer"
        assert SECRET in record["prompt"]
        assert record["answers"] == [f"You said {SECRET}."]


# Pages of other origins.


def test_pages_of_allowed_origins_may_call_and_read_a_refusal(llm: LLM) -> None:
    settings = ServerSettings(cors_origins=("https://page.example",), api_keys=("first",))
    with serving(llm, settings) as server, httpx2.Client(base_url=server.url) as client:
        asks = {"access-control-request-method": "POST", "access-control-request-headers": "authorization"}
        allowed = client.options(CHAT, headers={"origin": "https://page.example", **asks})
        assert allowed.status_code == 200
        assert allowed.headers["access-control-allow-origin"] == "https://page.example"
        assert "POST" in allowed.headers["access-control-allow-methods"]
        assert "authorization" in allowed.headers["access-control-allow-headers"].lower()
        other = client.options(CHAT, headers={"origin": "https://other.example", **asks})
        assert "access-control-allow-origin" not in other.headers
        refused = client.post(CHAT, json=asked(CHAT), headers={"origin": "https://page.example"})
        assert (refused.status_code, refused.headers["access-control-allow-origin"]) == (401, "https://page.example")
        assert "x-request-id" in refused.headers["access-control-expose-headers"].lower()


def test_no_page_may_call_unless_its_origin_is_allowed(client: httpx2.Client) -> None:
    headers = {"origin": "https://page.example", "access-control-request-method": "POST"}
    found = client.options(CHAT, headers=headers)
    assert found.status_code != 200
    assert not [name for name in found.headers if name.startswith("access-control")]


@pytest.mark.parametrize(
    "fields",
    [
        {"port": -1},
        {"port": 65_536},
        {"max_num_queued_requests": 0},
        {"max_body_bytes": 0},
        {"max_answers": 0},
        {"request_timeout_s": 0},
        {"request_timeout_s": float("nan")},
        {"keep_alive_s": -1},
        {"drain_timeout_s": -1},
        {"drain_timeout_s": float("nan")},
        {"api_keys": ("good", "")},
        {"api_keys": (" spaced ",)},
        {"ssl_keyfile": Path("key.pem")},
        {"reasoning_field": "thoughts"},
        {"metrics_prefix": "my metrics "},
    ],
)
def test_settings_that_cannot_be_kept_to_are_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(RequestError):
        ServerSettings(**fields)
