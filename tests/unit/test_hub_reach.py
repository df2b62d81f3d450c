"""Whether anybody listens at the hub's address, before its client is loaded."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest
from huggingface_hub import constants

from gemwright.loading.hub_reach import listens


@pytest.fixture(autouse=True)
def no_proxies(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "https_proxy", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


@pytest.fixture
def port() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


def test_a_listening_port_is_there_and_a_closed_one_is_not(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "ENDPOINT", f"http://127.0.0.1:{port}/hub")
    assert listens()
    # localhost has an address of each family on some machines, and one that is refused does not end the search.
    monkeypatch.setattr(constants, "ENDPOINT", f"http://localhost:{port}")
    assert listens()
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    assert not listens()


@pytest.mark.parametrize("endpoint", ["http://[", "http://", "somewhere", "file:///models", "http://127.0.0.1:port"])
def test_what_is_no_address_is_left_to_the_client(endpoint: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "ENDPOINT", endpoint)
    assert listens()


@pytest.mark.parametrize("name", ["http_proxy", "HTTPS_PROXY", "all_proxy"])
def test_behind_a_proxy_it_cannot_be_told(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setenv(name, "http://127.0.0.1:3128")
    assert listens()
